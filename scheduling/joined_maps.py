"""Statements that compute each element by itself as one with the only one that reads them, where that turns a tensor or
adds it up: `t[p, c] = f(x[p, c])` and `y[c, p] = t[p, c]` are `y[c, p] = f(x[p, c])`, and so it is the other way round;
`q[i, j] = x[i, j]*x[i, j]` and `s[j] += q[i, j]` are `s[j] += x[i, j]*x[i, j]`. A product reads what would be copied
for it in another order where that lies, as it packs what it does not want to read like that: `t[k, j] = x[j, k]` and
`c[i, j] += a[i, k]*t[k, j]` are `c[i, j] += a[i, k]*x[j, k]`. What is made of codes of one byte, or becomes such, is
one statement with the next along the same elements: quantised models have up to eight of these behind each sum.

Apart, all elements go through memory once more, and what is turned has lanes along rows that may be a few elements.
But for copies, each element of the tensor between is used by one iteration, and computed from what nobody writes
later, so values do not change. A body that reads it in several places has the value as often, which a compiler of
bodies finds and computes once, while it is short: `t*t` of squares of squares would double each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Final, Literal

from poly.affine import Affine
from poly.expr import (
    DOTS,
    OPERATORS,
    Apply,
    Cast,
    Expr,
    IndexValue,
    Read,
    dtype_of,
    rewrite,
    stays_short,
    walk,
    with_reads_at,
)
from poly.program import Access, Program, Statement, default_path
from poly.scheduling.groups import bare, domain_box, tensors_read, tensors_written

Way = Literal["turns", "along", ""]
_Tried = dict[tuple[int, int], tuple[Statement, Statement]]  # by what they are, which they are as long as they are kept
_CODES: Final = frozenset({"i8", "u8"})


def with_maps_joined(program: Program, *, codes: bool = False) -> Program:
    """The program with one statement for such as are made one after the other; itself where there are none. `codes`:
    those between codes, too, which is for one group: of a whole model, groups would hand on wider numbers than codes.
    """
    if not in_own_nests(program):
        return program
    found, tried = program, _Tried()
    while (joined := _joined_once(found, tried, codes)) is not None:
        found = joined
    if found is program:
        return program
    statements = (replace(s, path=default_path(k, s.iterators)) for k, s in enumerate(found.statements))
    return replace(found, statements=tuple(statements))


def in_own_nests(program: Program) -> bool:
    """Whether each statement is a nest of its own, after those before it."""
    if any(s.path[1:] != s.iterators for s in program.statements):
        return False
    places = [s.path[0] for s in program.statements]
    return all(isinstance(a, int) and isinstance(b, int) and a < b for a, b in pairwise(places))


def _joined_once(program: Program, tried: _Tried, codes: bool) -> Program | None:
    """With one statement less; the places in the sequence stay. `tried`: pairs that do not fit."""
    writers, readers = _by_tensor(program, tensors_written), _by_tensor(program, tensors_read)
    for t in program.tensors:
        made, used = writers.get(t.name, []), readers.get(t.name, [])
        if t.role != "temporary" or t.layout is not None or len(made) != 1 or len(used) != 1:
            continue
        (first,), (second,) = made, used
        pair = id(first), id(second)
        if pair in tried:
            continue
        if not _in_order(program, first, second):
            continue
        one = with_body_inside(program, first, second) if _fit(program, first, second, codes) else None
        if one is None:
            tried[pair] = first, second
            continue
        statements = tuple(one if s is second else s for s in program.statements if s is not first)
        return replace(program, tensors=tuple(x for x in program.tensors if x is not t), statements=statements)
    return None


def _by_tensor(program: Program, names: Callable[[Statement], tuple[str, ...]]) -> dict[str, list[Statement]]:
    """The statements by what each of them touches."""
    found: dict[str, list[Statement]] = {}
    for s in program.statements:
        for name in {*names(s)}:
            found.setdefault(name, []).append(s)
    return found


def _fit(program: Program, first: Statement, second: Statement, codes: bool) -> bool:
    """Whether the second statement adds up, or one of two turns what it reads, or the first one copies for a product,
    or, with `codes`, they take one element after the other along the same way, between codes.
    """
    ways = _way(program, first), _way(program, second)
    if ways in (("turns", "along"), ("along", "turns")) or (is_map(first) and _adds_up(program, second)):
        return True
    copies = ways[0] == "turns" and isinstance(first.body, Read)
    if copies and _multiplies(program, second, first.write.tensor):
        return True
    return codes and _between_codes(program, first, second)


def _in_order(program: Program, first: Statement, second: Statement) -> bool:
    """Whether a statement is before another, and what it reads is left as it is."""
    order = [s.name for s in program.statements]
    at = order.index(first.name)
    later = {name for s in program.statements[at:] for name in tensors_written(s)}
    return at <= order.index(second.name) and later.isdisjoint(tensors_read(first))


def _between_codes(program: Program, first: Statement, second: Statement) -> bool:
    """Whether two maps take the same elements, one of them from codes of a byte or to such. A product stays apart from
    a sum, which would have both in one rounding.
    """
    places = [k for k, r in enumerate(second.reads) if r.tensor == first.write.tensor]
    if len(places) != 1 or not (is_map(first) and is_map(second)):
        return False
    names = [bare(i) for i in second.reads[places[0]].affine_index]
    same = None not in names and len({*names}) == len(names) and names == [bare(i) for i in second.write.affine_index]
    dtypes = {program.tensor[a.tensor].dtype for s in (first, second) for a, _ in s.accesses}
    dtypes |= {e.dtype for s in (first, second) for e in walk(s.body) if isinstance(e, Cast)}
    product = isinstance(first.body, Apply) and first.body.operator == "mul"
    sums = [e for e in walk(second.body) if isinstance(e, Apply) and e.operator in ("add", "sub")]
    rounded_once = product and any(Read(places[0]) in e.arguments for e in sums)
    return same and not dtypes.isdisjoint(_CODES) and not rounded_once


def is_map(s: Statement) -> bool:
    """Whether a statement is an assignment of values alone."""
    assigns = s.external is None and s.combiner is None and _is_plain(s)
    return assigns and not any(isinstance(e, IndexValue) for e in walk(s.body))


def _is_plain(s: Statement) -> bool:
    return not any(a.indirect or a.guard for a, _ in s.accesses)


def _adds_up(program: Program, s: Statement) -> bool:
    """Whether each iteration adds a value of one element of a tensor, another one."""
    box = domain_box(program, s, s.iterators)
    if s.combiner is None or len(s.reads) != 1 or box is None or not _is_plain(s):
        return False
    (read,) = s.reads
    long = {i for i, (low, high) in zip(s.iterators, box, strict=True) if low < high}
    return long <= {bare(i) for i in read.affine_index}


def _multiplies(program: Program, s: Statement, tensor: str) -> bool:
    """Whether a statement reduces a tensor's elements with others, as products do, no windows of it. What was made for
    tiles of a matrix unit lies as these need it.
    """
    if isinstance(s.body, Apply) and s.body.operator in DOTS:
        return False
    found = [r for r in s.reads if r.tensor == tensor]
    if s.combiner is None or len(s.reads) < 2 or len(found) != 1 or not _is_plain(s):
        return False
    extents = program.tensor[tensor].extents(program.binding)
    names = [bare(i) for i, extent in zip(found[0].affine_index, extents, strict=True) if extent > 1]
    return None not in names and len({*names}) == len(names)


def _way(program: Program, s: Statement) -> Way:
    """Whether the last axis of the one large operand is another one of the target, or the same; "" where a statement is
    not element by element, has more operands of several long axes, or calls functions.
    """
    calls = any(OPERATORS[e.operator].cost in ("exponential", "function") for e in walk(s.body) if isinstance(e, Apply))
    box = domain_box(program, s, s.iterators)
    if calls or box is None or not is_map(s):
        return ""
    extents = {i: high - low + 1 for i, (low, high) in zip(s.iterators, box, strict=True)}
    long = [[n for n in map(bare, a.affine_index) if n is not None and extents[n] > 1] for a in (s.write, *s.reads)]
    target, *reads = long
    large = [names for names in reads if len(names) > 1]
    whole = len({*target}) == len(target) == sum(n > 1 for n in extents.values())
    if not whole or not target or len(large) != 1 or {*large[0]} != {*target} or len(large[0]) != len(target):
        return ""
    return "turns" if large[0][-1] != target[-1] else "along"


def with_body_inside(program: Program, first: Statement, second: Statement) -> Statement | None:
    """The second statement with the first one's body in place of what it reads; None where it reads parts."""
    tensor = program.tensor[first.write.tensor]
    places = [k for k, r in enumerate(second.reads) if r.tensor == tensor.name]
    box = domain_box(program, first, first.iterators)
    written = {bare(i) for i in first.write.affine_index}
    if box is None or len(places) != 1 or not _fits(first.body, second.body, places[0]):
        return None
    if any(low < high and n not in written for n, (low, high) in zip(first.iterators, box, strict=True)):
        return None  # several iterations walk one axis
    if prod(high - low + 1 for low, high in box) != prod(tensor.extents(program.binding)):
        return None
    (place,) = places
    values = {n: Affine.of(low) for n, (low, _) in zip(first.iterators, box, strict=True)}  # where there is one
    for subscript, index in zip(first.write.affine_index, second.reads[place].affine_index, strict=True):
        if (name := bare(subscript)) is not None:
            values[name] = index
    dtype = dtype_of(first.body, [program.tensor[r.tensor].dtype for r in first.reads])
    kept = [r for k, r in enumerate(second.reads) if k != place]
    reads = list(dict.fromkeys((*kept, *(r.substitute(values) for r in first.reads))))
    value = with_reads_at(first.body, [reads.index(r.substitute(values)) for r in first.reads])
    value = value if dtype == tensor.dtype else Cast(tensor.dtype, value)
    return replace(
        second, reads=tuple(reads), body=_put(second, place, value, reads), contract=first.contract and second.contract
    )


def _fits(value: Expr, body: Expr, place: int) -> bool:
    """Whether a body is short with a value in place of a read, or has it once."""
    uses = sum(isinstance(e, Read) and e.position == place for e in walk(body))
    return uses == 1 or stays_short(body, value, uses)


def _put(s: Statement, place: int, value: Expr, reads: list[Access]) -> Expr:
    """A body with a value in place of one of its reads."""

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Read):
            return None
        return value if node.position == place else Read(reads.index(s.reads[node.position]))

    return rewrite(s.body, rule)
