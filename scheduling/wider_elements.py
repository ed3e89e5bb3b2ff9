"""Elements that are only moved, and always side by side, as one wider element: pairs of f32 are u64.

`Y[j, i, k] = X[i, j, k]` with two or four short elements along k is a permutation whose squares would hold a piece of a
vector in each row; without k it is one of whole vectors. No value is looked at, and integers keep all bits. Arrays keep
shape and dtype for callers; the bytes are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from poly.affine import Affine
from poly.dtypes import size_bytes
from poly.expr import Read
from poly.program import Access, Program, Statement, box_domain, default_path
from poly.scheduling.groups import bare, domain_box
from poly.scheduling.joined_axes import is_plain, with_sizes

_WIDER: Final = {2: "u16", 4: "u32", 8: "u64"}  # by bytes


def with_wider_elements(program: Program) -> Program:
    """The program without the last axis of its tensors, where that makes an element of a machine; else itself."""
    literal = with_sizes(program) if is_plain(program) and all(map(_moves_only, program.statements)) else None
    if literal is None or any(t.role == "constant" or t.rank < 2 for t in literal.tensors):
        return program
    rows = {(t.dtype, t.shape[-1].constant) for t in literal.tensors}
    if len(rows) != 1:
        return program
    ((dtype, extent),) = rows
    wider = _WIDER.get(extent * size_bytes(dtype))
    fast = [_along(literal, s, extent) for s in literal.statements]
    if wider is None or extent < 2 or None in fast:
        return program
    tensors = tuple(replace(t, shape=t.shape[:-1], dtype=wider, gaps=min(1, t.gaps)) for t in literal.tensors)
    return replace(literal, tensors=tensors, statements=tuple(_rewritten(literal, fast)))


def _moves_only(s: Statement) -> bool:
    """Whether a statement copies what it reads."""
    copies = s.external is None and s.combiner is None and s.body == Read(0) and len(s.reads) == 1
    return copies and not any(a.guard or a.indirect for a, _ in s.accesses)


def _along(program: Program, s: Statement, extent: int) -> str | None:
    """The iterator that runs over all of the last axis on both sides, and over nothing else."""
    box, index = domain_box(program, s, s.iterators), s.write.affine_index
    fast = bare(index[-1]) if box is not None and index else None
    if box is None or fast is None or box[s.iterators.index(fast)] != (0, extent - 1) or len(s.iterators) < 2:
        return None
    last = all(a.affine_index[-1:] == (Affine.of(fast),) for a, _ in s.accesses)
    return fast if last and not any(fast in i.names for a, _ in s.accesses for i in a.affine_index[:-1]) else None


def _rewritten(program: Program, fast: list[str | None]) -> Iterator[Statement]:
    for position, (s, along) in enumerate(zip(program.statements, fast, strict=True)):
        box = domain_box(program, s, s.iterators)
        assert box is not None
        ranges = [(i, low, high + 1) for i, (low, high) in zip(s.iterators, box, strict=True) if i != along]
        iterators = tuple(i for i, *_ in ranges)

        def shorter(access: Access) -> Access:
            return replace(access, index=access.index[:-1])

        yield replace(
            s, iterators=iterators, domain=box_domain(s.name, ranges), path=default_path(position, iterators),
            write=shorter(s.write), reads=tuple(map(shorter, s.reads)),
        )  # fmt: skip
