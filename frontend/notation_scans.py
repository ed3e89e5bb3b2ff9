"""Scans: a statement that reads what it wrote before, `s[i] = (s[i-1] if i >= 1 else 0) + x[i]`.

Where the shape of s is left out, s is a result of the text, not something that it changes: each element that is read
has to be written by then.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import islpy as isl

from poly.affine import Affine, var
from poly.frontend.notation_shapes import Draft, Shapes
from poly.program import Access
from poly.relations import access_map
from poly.sets import header, witness
from poly.text_printed import access_text


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
        text = f"{instance} reads {shown}, which is not written by then"
        if turned := _turned(draft, domain):
            raise draft.line.body.error(f"{text}: indices run upwards", hint=f"{turned}, the last first")
        raise draft.line.body.error(f"the shape of {read.tensor} is not given, and {text}", hint=hint)


def _turned(draft: Draft, domain: isl.Set) -> str:
    """The statement with an index turned around, where it reads its tensor later along that index alone; else ""."""
    reads = [r for r in draft.reads if r.tensor == draft.tensor]
    if any(a.indirect for a in (draft.write, *reads)):
        return ""
    apart = [[a - b for a, b in zip(r.affine_index, draft.write.affine_index, strict=True)] for r in reads]
    moved = {d for steps in apart for d, step in enumerate(steps) if step != Affine()}
    if len(moved) != 1:
        return ""
    (d,) = moved
    if any(not steps[d].is_constant or steps[d].constant <= 0 for steps in apart):
        return ""
    name = next((i for i in draft.iterators if draft.write.affine_index[d] == var(i)), None)
    if name is None:
        return ""
    k = draft.iterators.index(name)
    low, high = domain.dim_min_val(k), domain.dim_max_val(k)
    if not (low.is_int() and high.is_int()):
        return ""
    value = f"{low.to_python() + high.to_python()}-{name}"
    return re.sub(rf"([-*/%]\s*)?\b{name}\b(?=(\s*[*/%])?)", lambda m: _placed(m, value), draft.shown)


def _placed(match: re.Match[str], value: str) -> str:
    """A difference in place of a name, in brackets where an operator beside it binds as strongly."""
    return f"{match[1] or ''}({value})" if match[1] or match[2] else value


def _later(names: Sequence[str]) -> str:
    """The first instance comes after the second, in the order of the loops."""
    same = [" and ".join([*(f"{b} = {b}_" for b in names[:k]), f"{a} > {a}_"]) for k, a in enumerate(names)]
    return " or ".join(f"({s})" for s in same) or "false"
