"""Two adjacent axes that every access walks together become one: `T[y, x]` is `T[l]` of the same memory.

A bijection of iterations and of elements, so nothing changes but the extents: a pointwise loop nest over a map of
14 x 14 has one loop of 196 iterations, which vectors and register tiles divide with less left over. Arrays keep their
shapes for callers; row-major memory is the same. Where assignments only repeat elements along a short fast axis, as
`T[y, x] = S[y]` with two or four x, the repeats are `S[l//2]`: whole vectors instead of a part of one.

The other way, an axis that every access walks by two loops or more, as `T[4*g + o]`, becomes two or more: a tile of one
of these loops is then a box without holes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from poly.affine import Affine, var
from poly.dtypes import size_bytes
from poly.expr import IndexValue, walk
from poly.machine import USUAL_LINE
from poly.program import Access, Program, Statement, Subscript, Tensor, box_domain, default_path
from poly.relations import intervals_of
from poly.scheduling.block_loops import blocks_apart
from poly.scheduling.groups import bare, domain_box
from poly.scheduling.wraps import wraps_apart

# Bytes, of lines as nearly all machines have them: a program has the same axes on each.
SHORT = 8 * USUAL_LINE  # rows that are whole lines, or no shorter and turned elsewhere, fill vectors as they are
REPEATS = (2, 4, 8)  # elements: longer repeats are vectors' worth, 32 of a byte are slower joined
MANY = 4 << 20  # that no core holds near: rows between its lines cost more than loops that are cut unevenly
# Elements that windows move by where these are picked from vectors: with more, of sums alone with 3, loops over blocks
# take less (0114).
PICKED, PICKED_WEIGHED = 2, 3
Axis = tuple[str, int]  # a tensor, and the first of two axes
Pair = tuple[str, str]  # two iterators, the second one faster


@dataclass(frozen=True)
class _Joins:
    """What is joined: an iterator pair a statement, and tensors' axes."""

    pairs: dict[str, Pair]
    axes: frozenset[Axis]


def join_axes(program: Program) -> Program:
    """The program with as few axes as possible where it has a reduction; one of assignments alone with fewer where rows
    are no whole lines, and are short, or the last axis of all tensors, or turned and whole lines when joined.
    """
    literal = with_sizes(program) if is_plain(program) else None
    if literal is None:
        return program
    joined = blocks_apart(wraps_apart(literal))
    if joined is not literal or any(s.combiner is not None for s in literal.statements):
        joined = axes_apart(joined)
    while (joins := _joins(joined)) is not None:
        joined = _joined(joined, joins)
    return program if joined is literal else joined


def is_plain(program: Program) -> bool:
    """Whether arrays lie row by row, and the loops of every statement are its own, in the order of its iterators."""
    plain = all(t.layout is None and not t.scope for t in program.tensors)
    return plain and all(
        s.external is None and s.path == default_path(k, s.iterators) for k, s in enumerate(program.statements)
    )


def with_sizes(program: Program) -> Program | None:
    """The program with its sizes put in, None where some are free or stand in more than boxes and shapes."""
    binding, free = program.binding, set(program.parameters)
    tensors = tuple(replace(t, shape=tuple(e.substitute(binding) for e in t.shape)) for t in program.tensors)
    if any(not e.is_constant for t in tensors for e in t.shape):
        return None
    if not free:
        return program
    statements: list[Statement] = []
    for s in program.statements:
        box = domain_box(program, s, s.iterators)
        named = {n for a, _ in s.accesses for i in a.index if isinstance(i, Affine) for n in i.names}
        named |= {n for e in walk(s.body) if isinstance(e, IndexValue) for n in e.index.names}
        if box is None or free & named or any(a.guard or a.indirect for a, _ in s.accesses):
            return None
        ranges = [(i, low, high + 1) for i, (low, high) in zip(s.iterators, box, strict=True)]
        statements.append(replace(s, domain=box_domain(s.name, ranges, program.parameters)))
    return replace(program, tensors=tensors, statements=tuple(statements))


def axes_apart(program: Program, but: Collection[str] = ()) -> Program:
    """Axes that every access walks by two loops or more as an axis each, `but` for those of some tensors."""
    ranges = {s.name: intervals_of(program, s) for s in program.statements}
    steps: dict[Axis, int] = {}
    for t in program.tensors:
        for d, extent in enumerate(t.shape if t.name not in but else ()):
            uses = [_step(access, d, ranges[s.name]) for s, access in _uses(program, t.name)]
            slides = any(_slides(s, access, d, ranges[s.name]) for s, access in _uses(program, t.name))
            if not slides and uses and uses[0] and len(set(uses)) == 1 and extent.constant % uses[0] == 0:
                steps[t.name, d] = uses[0]
    if not steps:
        return program

    def moved(access: Access) -> Access:
        index: list[Subscript] = []
        for d, i in enumerate(access.index):
            step = steps.get((access.tensor, d))
            if step and isinstance(i, Affine):
                slow, fast = _parts(i)
                blocks = sum((var(n) * (i.coefficient(n) // step) for n in slow), Affine()) + i.constant // step
                index += (blocks, var(fast) + i.constant % step)
            else:
                index.append(i)
        return replace(access, index=tuple(index))

    def shape(t: Tensor) -> Iterator[Affine]:
        for d, extent in enumerate(t.shape):
            step = steps.get((t.name, d))
            yield from (Affine.of(extent.constant // step), Affine.of(step)) if step else (extent,)

    apart = replace(
        program,
        tensors=tuple(replace(t, shape=tuple(shape(t))) for t in program.tensors),
        statements=tuple(
            replace(s, write=moved(s.write), reads=tuple(moved(r) for r in s.reads)) for s in program.statements
        ),
    )
    return axes_apart(apart, but)


def _parts(i: Affine) -> tuple[list[str], str]:
    """The slow loops of a subscript, the slowest first, and the fast one."""
    *slow, fast = sorted(i.names, key=i.coefficient, reverse=True)
    return slow, fast


def _step(access: Access, axis: int, ranges: Mapping[str, tuple[int, int] | None]) -> int:
    """How many elements a step of the slow loops is, where the fast one stays in a block of so many; else 0."""
    i = access.index[axis]
    if not isinstance(i, Affine) or not i.is_linear or len(i.names) < 2:
        return 0
    slow, fast = _parts(i)
    step = i.coefficient(slow[-1])
    if i.coefficient(fast) != 1 or step < 2 or not i.names <= ranges.keys():
        return 0
    low, high = ranges[fast] or (0, step)
    inside = 0 <= i.constant % step + low and i.constant % step + high < step
    return step if inside and all(i.coefficient(n) % step == 0 for n in slow) else 0


def _slides(s: Statement, access: Access, axis: int, ranges: Mapping[str, tuple[int, int] | None]) -> bool:
    """Whether a window of two axes and more moves by few elements along one, over what nothing else uses: its rows are
    whole vectors, of which elements are picked.
    """
    written = {n for i in s.write.index if isinstance(i, Affine) for n in i.names}
    places = [i for i in access.index if isinstance(i, Affine)]
    moving = [i for i in places if i.names & written and i.names - written]
    if s.combiner is None or len(moving) < 2 or access.index[axis] not in moving:
        return False
    own = {n for i in places for n in i.names}
    steps = [abs(i.coefficient(n)) for i in moving for n in i.names & written]
    short = max(steps) <= (PICKED_WEIGHED if len(s.reads) > 1 else PICKED)
    return short and all(n in own or ranges[n] == (0, 0) for n in written)


def _joins(program: Program) -> _Joins | None:
    """Pairs of one kind: those of all statements that meet the same axes."""
    boxes = {s.name: domain_box(program, s, s.iterators) for s in program.statements}
    if any(box is None for box in boxes.values()):
        return None
    assigns = all(s.combiner is None for s in program.statements)
    for s in program.statements:
        for pair in zip(s.iterators, s.iterators[1:], strict=False):
            joins = _spread(program, s, pair)
            if joins is None or not _are_whole(program, joins, {n: box or () for n, box in boxes.items()}):
                continue
            if not assigns or _ragged(program, joins) or _turned_to_lines(program, joins):
                return joins
    return None


def _ragged(program: Program, joins: _Joins) -> bool:
    """Whether rows are no whole lines: short ones, or any that all tensors have along their last axis. Vectors that
    begin with a line in one row do in all when these are joined.
    """
    tensors = [(program.tensor[t], d) for t, d in joins.axes]
    lengths = {t.shape[d + 1].constant * size_bytes(t.dtype) for t, d in tensors}
    in_place = all(d + 2 == t.rank for t, d in tensors)
    return any(n % USUAL_LINE and (in_place or n < SHORT) for n in lengths)


def _turned_to_lines(program: Program, joins: _Joins) -> bool:
    """Whether rows that large tensors have along their last axis, and others do not, become whole lines."""
    tensors = [(program.tensor[t], d) for t, d in joins.axes]
    for t, d in tensors:
        row = t.shape[d + 1].constant * size_bytes(t.dtype)
        if not row % USUAL_LINE or t.shape[d].constant * row % USUAL_LINE or t.nbytes({}) < MANY:
            return False
    return len({d + 2 == t.rank for t, d in tensors}) == 2


def _spread(program: Program, first: Statement, pair: Pair) -> _Joins | None:
    """The axes that a pair of iterators walks, the pairs that walk them in other statements, and so on; None where
    something walks one without the other.
    """
    pairs = {first.name: pair}
    axes: set[Axis] = set()
    waiting = [first]
    while waiting:
        s = waiting.pop()
        found = _axes(program, s, pairs[s.name])
        if found is None:
            return None
        for axis in found - axes:
            axes.add(axis)
            for other, access in _uses(program, axis[0]):
                walked = _walked(access, axis[1])
                if walked is None or pairs.setdefault(other.name, walked) != walked:
                    return None
                waiting.append(other)
    found = _Joins(pairs, frozenset(axes))
    return found if axes and not _drifts(program, found) else None


def _uses(program: Program, tensor: str) -> Iterator[tuple[Statement, Access]]:
    for s in program.statements:
        for access in (s.write, *s.reads):
            if access.tensor == tensor:
                yield s, access


def _walked(access: Access, axis: int) -> Pair | None:
    """The iterators that are two subscripts, the first of them so many rows ahead."""
    slow, fast = (*access.index[axis : axis + 2], None, None)[:2]
    if not isinstance(slow, Affine) or not isinstance(fast, Affine):
        return None
    names = bare(slow - slow.constant), bare(fast)
    return (names[0], names[1]) if names[0] is not None and names[1] is not None else None


def _drifts(program: Program, joins: _Joins) -> bool:
    """Whether a tensor is written and read some rows apart: a joined loop would carry what lanes along a row do not."""
    for tensor, d in joins.axes:
        uses = [(access, access is s.write) for s, access in _uses(program, tensor)]
        if len({access.index[d] for access, _ in uses}) > 1 and len({written for _, written in uses}) > 1:
            return True
    return False


def _axes(program: Program, s: Statement, pair: Pair) -> set[Axis] | None:
    """Where a statement's accesses walk a pair; None where they use either in another way."""
    slow, fast = pair
    neighbours = slow in s.iterators and s.iterators[s.iterators.index(slow) + 1 :][:1] == (fast,)
    if not neighbours or any(isinstance(e, IndexValue) and e.index.names & {slow, fast} for e in walk(s.body)):
        return None
    found: set[Axis] = set()
    for access in (s.write, *s.reads):
        names = [i.names if isinstance(i, Affine) else frozenset[str]() for i in access.index]
        held = [d for d, n in enumerate(names) if n & {slow, fast}]
        guarded = any(c.expr.names & {slow, fast} for c in access.guard)
        if guarded:
            return None
        if held and access is not s.write and _repeats(program, s, access, pair):
            continue
        if len(held) == 1 and _is_joined(program, s, access, held[0], pair):
            continue
        if held and (len(held) != 2 or _walked(access, held[0]) != pair):
            return None
        if held:
            found.add((access.tensor, held[0]))
    return found


def _is_joined(program: Program, s: Statement, access: Access, axis: int, pair: Pair) -> bool:
    """Whether a pair walks an axis as one loop would, as a change of shape does."""
    slow, fast = pair
    box, subscript = domain_box(program, s, s.iterators), access.index[axis]
    if box is None or not isinstance(subscript, Affine) or not subscript.is_linear or fast not in subscript.names:
        return False
    low, high = box[s.iterators.index(fast)]
    return subscript.coefficient(slow) == (high - low + 1) * subscript.coefficient(fast)


def _repeats(program: Program, s: Statement, read: Access, pair: Pair) -> bool:
    """Whether an assignment reads the same element for all of a short loop, and neighbours along the one around it."""
    slow, fast = pair
    box = domain_box(program, s, s.iterators)
    names = [i.names if isinstance(i, Affine) else frozenset[str]() for i in read.index]
    if box is None or s.combiner is not None or not names or any(fast in n for n in names):
        return False
    if s.write.index[-1:] != (var(fast),):
        return False
    low, high = box[s.iterators.index(fast)]
    extent = high - low + 1
    alone = read.index[-1] == var(slow) and not any(slow in n for n in names[:-1])
    return alone and extent in REPEATS


def _are_whole(program: Program, joins: _Joins, boxes: dict[str, tuple[tuple[int, int], ...]]) -> bool:
    """Whether the fast iterators run over whole axes of more than one element, and the slow ones from zero."""
    lengths = {int(program.tensor[t].shape[d + 1].constant) for t, d in joins.axes}
    sizes: set[int] = set()
    for name, (slow, fast) in joins.pairs.items():
        at = program.statement[name].iterators.index(slow)
        (low, high), (start, end) = boxes[name][at], boxes[name][at + 1]
        assert program.statement[name].iterators[at + 1] == fast
        if low or start or not high:
            return False
        sizes.add(end + 1)
    return len(sizes) == 1 and sizes == lengths and sizes != {1}


def _joined(program: Program, joins: _Joins) -> Program:
    """The slow iterators become the joined ones."""
    tensors = tuple(
        replace(t, shape=tuple(_merged([*t.shape], {d for name, d in joins.axes if name == t.name})))
        for t in program.tensors
    )
    statements = tuple(_rewritten(program, s, joins, position) for position, s in enumerate(program.statements))
    return replace(program, tensors=tensors, statements=statements)


def _merged(shape: list[Affine], axes: set[int]) -> Iterator[Affine]:
    for d, extent in enumerate(shape):
        if d in axes:
            yield Affine.of(extent.constant * shape[d + 1].constant)
        elif d - 1 not in axes:
            yield extent


def _rewritten(program: Program, s: Statement, joins: _Joins, position: int) -> Statement:
    """A statement with a loop for its pair, if it has one, and accesses at its place."""
    if s.name not in joins.pairs:
        return s
    slow, fast = joins.pairs[s.name]
    box = domain_box(program, s, s.iterators)
    assert box is not None
    ranges = dict(zip(s.iterators, box, strict=True))
    extent = ranges.pop(fast)[1] + 1
    ranges[slow] = (0, (ranges[slow][1] + 1) * extent - 1)
    iterators = tuple(i for i in s.iterators if i != fast)

    def moved(access: Access) -> Access:
        kept = [i for i in access.index if not (isinstance(i, Affine) and i == var(fast))]
        one = len(kept) == len(access.index)
        rows = [_of_one(i, slow, fast, extent) if one else _of_rows(i, slow, extent) for i in kept]
        return replace(access, index=tuple(rows))

    domain = box_domain(s.name, [(i, low, high + 1) for i, (low, high) in ranges.items()])
    return replace(
        s, iterators=iterators, domain=domain, write=moved(s.write),
        reads=tuple(moved(r) for r in s.reads), path=default_path(position, iterators),
    )  # fmt: skip


def _of_rows(i: Subscript, slow: str, extent: int) -> Subscript:
    """A subscript that counted rows, and counts their elements."""
    return i + i.constant * (extent - 1) if isinstance(i, Affine) and slow in i.names else i


def _of_one(i: Subscript, slow: str, fast: str, extent: int) -> Subscript:
    """A subscript that the pair walks as one loop would, or one that the fast loop repeats."""
    if not isinstance(i, Affine):
        return i
    if fast not in i.names:
        return i.substitute({slow: var(slow) // extent})
    return i + (var(slow) - var(fast)) * i.coefficient(fast) - var(slow) * i.coefficient(slow)
