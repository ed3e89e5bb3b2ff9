"""What edits of sums of narrow numbers share: what a sum is, where it starts, packed steps, more statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from poly.affine import Affine, Constraint, Var, var
from poly.dtypes import numpy_dtype
from poly.expr import Apply, Cast, Const, Expr, Read, reads_of
from poly.program import Access, Program, Statement, Tensor, box_domain
from poly.scheduling.groups import tensors_read, tensors_written
from poly.sets import fix_sizes, interval

EXACT: Final = 1 << 24  # f32 holds all integers up to here
OFTEN: Final = 16  # products with each element of an operand, where four bytes an element pay
_NARROW: Final = ("i8", "u8", "i16")


@dataclass(frozen=True)
class Factor:
    """One operand of a product: `body` on the reads of its statement; `main` the position of the one that moves."""

    body: Expr
    main: int


def factors_of(s: Statement, program: Program) -> tuple[Factor, Factor] | None:
    """The operands of a product of elements of small integers, less zero points that stay where they are."""
    match s.body:
        case Apply("mul", (first, second)) if s.external is None and len(s.path) > 0 and isinstance(s.path[0], int):
            found = (_factor(first, s, program), _factor(second, s, program))
        case _:
            return None
    a, b = found
    return (a, b) if a is not None and b is not None and a.main != b.main and alone(s, program) else None


def parts_of(source: str, point: Sequence[str], axis: int, steps: int, places: int, count: int) -> list[Access]:
    """The reads of `count` elements side by side along an axis, of so many steps, that one of so many places holds, a
    point of a box; 0 behind the last step.
    """
    reads: list[Access] = []
    for part in range(count):
        place = var(point[axis]) * count + part
        index = tuple(place if k == axis else var(i) for k, i in enumerate(point))
        inside = (Constraint(Affine((), steps - 1) - place),) if steps < count * places else ()
        reads.append(Access(source, index, inside, Const(0) if inside else None))
    return reads


def alone(s: Statement, program: Program) -> bool:
    """Whether a statement is the only one of its nest."""
    return sum(other.path[:1] == s.path[:1] for other in program.statements) == 1


def _factor(body: Expr, s: Statement, program: Program) -> Factor | None:
    moving: list[int] = []
    for k in reads_of(body):
        if s.reads[k].indirect or program.tensor[s.reads[k].tensor].layout is not None:
            return None
        if any(not e.is_constant for e in s.reads[k].affine_index):
            moving.append(k)
        elif s.reads[k].guard:
            return None
    if len(moving) != 1 or magnitude(body, s, program) >= EXACT:
        return None
    only = reads_of(body) == moving
    return Factor(body, moving[0]) if only or not s.reads[moving[0]].guard else None


def magnitude(body: Expr, s: Statement, program: Program) -> int:
    """A bound of an i32 expression's magnitude; `EXACT` where none is known."""
    match body:
        case Cast("i32", Read(position)) if program.tensor[s.reads[position].tensor].dtype in _NARROW:
            limits = np.iinfo(numpy_dtype(program.tensor[s.reads[position].tensor].dtype).name)
            return max(-int(limits.min), int(limits.max))
        case Const(int(value)) | Cast("i32", Const(int(value))):
            return abs(value)
        case Apply("add" | "sub", (a, b)):
            return min(EXACT, magnitude(a, s, program) + magnitude(b, s, program))
        case _:
            return EXACT


def start_of(program: Program, s: Statement) -> Statement | None:
    """The statement that starts the sums of another one: the only other one that writes them, before it in a nest of
    its own, and behind all that writes the operands, so that these can be copied before it. None where there is none.
    """
    target = s.write.tensor
    writers = [w for w in program.statements if target in tensors_written(w) and w is not s]
    if len(writers) != 1:
        return None
    (init,) = writers
    plain = init.combiner is None and init.external is None and target not in tensors_read(init)
    operands = {r.tensor for r in s.reads}
    early = all(
        w.path[:1] < init.path[:1] for w in program.statements if not operands.isdisjoint(tensors_written(w))
    )
    return init if alone(init, program) and plain and early and init.path[:1] < s.path[:1] else None


def ranges_of(program: Program, s: Statement) -> dict[str, int] | None:
    """How many values each iterator has, from 0 on; None where the domain is no such box."""
    domain = fix_sizes(s.domain, program.binding)
    found = [interval(domain, k) for k in range(len(s.iterators))]
    if not all(r is not None and r[0] == 0 for r in found):
        return None
    ranges = {i: r[1] + 1 for i, r in zip(s.iterators, found, strict=True) if r is not None}
    box = box_domain(s.name, [(i, 0, n) for i, n in ranges.items()])
    return ranges if domain.is_equal(box) else None


def over_box(
    program: Program, s: Statement, name: str, extents: Mapping[str, int], write: Access, reads: tuple[Access, ...]
) -> Statement:  # fmt: skip
    """A statement like another one, over a box from 0 on."""
    domain = box_domain(name, [(i, 0, n) for i, n in extents.items()])
    domain, path = domain.align_params(program.context.get_space()), (s.path[0], *extents)
    return replace(s, name=name, iterators=tuple(extents), domain=domain, write=write, reads=reads, path=path)


def number_of(names: Sequence[str], ranges: Mapping[str, int]) -> Affine:
    """The number of an iteration of some loops, the last one fastest."""
    number = Affine()
    for n in names:
        number = number * ranges[n] + var(n)
    return number


def touched_by(subscript: Affine, ranges: Mapping[str, int], extent: int) -> tuple[int, int]:
    """The first place that a subscript takes, and the one after the last: of a guarded read those inside."""
    low = high = subscript.constant
    for atom, c in subscript.terms:
        if not isinstance(atom, Var):
            return 0, extent
        reach = c * (ranges[atom.name] - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return max(low, 0), min(high + 1, extent)


def in_order(program: Program) -> list[Statement]:
    """The statements in the order of their nests, in which a program need not list them."""
    return sorted(program.statements, key=lambda s: s.path[0] if isinstance(s.path[0], int) else -1)


def with_statements(
    program: Program,
    changed: Mapping[str, Statement],
    tensors: Mapping[str, Tensor],
    before: Mapping[str, Sequence[Statement]],
) -> Program:
    """A program with some statements and tensors changed, others added: each a nest of its own, before the nest of the
    statement by whose name it is in `before`.
    """
    room = max((len(made) for made in before.values()), default=0) + 1
    statements: list[Statement] = []
    for s in program.statements:
        head, new = s.path[0], changed.get(s.name, s)
        assert isinstance(head, int)
        for k, made in enumerate(before.get(s.name, ())):
            statements.append(replace(made, path=(room * head + k, *made.iterators)))
        statements.append(replace(new, path=(room * head + room - 1, *new.path[1:])))
    heads = {head: k for k, head in enumerate(sorted({s.path[0] for s in statements}))}
    statements = [replace(s, path=(heads[s.path[0]], *s.path[1:])) for s in statements]
    old = {t.name for t in program.tensors}
    kept = [tensors.get(t.name, t) for t in program.tensors]
    return replace(
        program, tensors=(*kept, *(t for n, t in tensors.items() if n not in old)), statements=tuple(statements)
    )
