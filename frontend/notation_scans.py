"""Scans: a statement that reads what it wrote before, `s[i] = (s[i-1] if i >= 1 else 0) + x[i]`.

Where the shape of s is left out, s is a result of the text, not something that it changes: each element that is read
has to be written by then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import islpy as isl

from poly.frontend.notation_shapes import Draft, Shapes
from poly.program import Access
from poly.relations import access_map
from poly.sets import header, witness
from poly.text_body import access_text


def starts_itself(name: str, drafts: Sequence[Draft], given: Collection[str]) -> bool:
    """Whether the first statement that writes a tensor is a scan of it, which needs no value from outside."""
    first = next((d for d in drafts if d.tensor == name), None)
    return first is not None and name not in given and is_scan(first)


def is_scan(draft: Draft) -> bool:
    """Whether a statement assigns elements of a tensor that it reads."""
    return draft.line.combiner is None and any(r.tensor == draft.tensor for r in draft.reads)


def check_scans(drafts: Sequence[Draft], found: Shapes, given: Collection[str]) -> None:
    """Raise `ParseError` for an element that is read before anything has written it."""
    for name in dict.fromkeys(d.tensor for d in drafts):
        if not starts_itself(name, drafts, given):
            continue
        draft = next(d for d in drafts if d.tensor == name)
        for read in draft.reads:
            if read.tensor == name:
                _check_written(draft, read, found)


def _check_written(draft: Draft, read: Access, found: Shapes) -> None:
    shape = found.shapes[read.tensor]
    given = tuple(e.constant if e.is_constant else str(e) for e in shape)
    hint = f"{read.tensor}={given} as an argument, an array whose values it then starts from"
    if read.indirect or draft.write.indirect:
        raise draft.line.body.error(f"the shape of {read.tensor} is not given", hint=hint)
    inside = draft.statement()
    domain = inside.domain.intersect_params(found.context)
    reads, writes = (
        access_map(inside, a, found.parameters, shape).intersect_domain(domain) for a in (read, draft.write)
    )
    names, before = draft.iterators, ", ".join(f"{i}_" for i in draft.iterators)
    earlier = isl.Map(
        f"{header(found.parameters)}{{ {inside.name}[{', '.join(names)}] -> {inside.name}[{before}] : "
        f"{_later(names)} }}"
    )
    missing = reads.subtract(earlier.apply_range(writes))
    if not missing.is_empty():
        instance, _ = witness(missing, (names, [f"d{d}" for d in range(len(shape))]))
        shown = access_text(read, draft.reads)
        text = f"the shape of {read.tensor} is not given, and {instance} reads {shown}, which is not written by then"
        raise draft.line.body.error(text, hint=hint)


def _later(names: Sequence[str]) -> str:
    """The first instance comes after the second, in the order of the loops."""
    same = [" and ".join([*(f"{b} = {b}_" for b in names[:k]), f"{a} > {a}_"]) for k, a in enumerate(names)]
    return " or ".join(f"({s})" for s in same) or "false"
