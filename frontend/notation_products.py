"""Sums of products of three and more tensors, in pairs: `D[i,l] += A[i,j]*B[j,k]*C[k,l]` as two sums.

Written as they stand such a sum runs over all its indices at once, which for a chain of matrices is a power more work.
Where einsum takes pairs a statement of notation without a label does, too, in the same order, through temporaries
`D_part`, ... A labelled one, `S[i,j,k,l]: D[i,l] += ...`, stays as written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from poly.affine import Affine, var
from poly.expr import Apply, Const, Expr, Read
from poly.frontend.contraction import EXACT_ENOUGH, walk_steps
from poly.frontend.einsum import choose_steps
from poly.program import Access, PathStep, Program, Statement, Tensor, box_domain
from poly.relations import bound_domain, intervals_of
from poly.sets import identifier


def in_pairs(program: Program, labels: Sequence[str | None]) -> Program:
    """The program with sums of products cut in pairs, those of the statements `labels` excepted."""
    tensors, found = list(program.tensors), list[list[Statement]]()
    for s in program.statements:
        parts = None if s.name in labels else _parts(program, s, tensors)
        if parts is None:
            found.append([s])
            continue
        init = found.pop() if found and found[-1][0].write == s.write and not found[-1][0].reads else []
        found += [[part] for part in parts[:-1]]
        found += [init] if init else []
        found.append([parts[-1]])
    if len(tensors) == len(program.tensors):
        return program
    return replace(program, tensors=tuple(tensors), statements=_renumbered([s for group in found for s in group]))


def _parts(program: Program, s: Statement, tensors: list[Tensor]) -> list[Statement] | None:
    """The statements that one becomes, its temporaries added to `tensors`; None where it stays."""
    reads = _factors(program, s)
    sizes = _extents(program, s)
    if reads is None or sizes is None or any(isinstance(step, int) for step in s.path[1:]):
        return None
    kept = tuple(n for n in s.iterators if any(n in e.names for e in s.write.affine_index))
    terms = [_names(r, s.iterators) for r in reads]
    *pairs, (last, over, _) = walk_steps(terms, kept, choose_steps(terms, kept, sizes))
    if not pairs:
        return None
    constants = [f for f in _flat(s.body) if isinstance(f, Const)]
    found, made = list(reads), list[Statement]()
    for chosen, indices, later in pairs:
        every, needed = ([n for n in s.iterators if n in names] for names in (indices, later))
        name = _fresh(f"{identifier(s.write.tensor)}_part", {*(t.name for t in tensors), *program.statement})
        dtype = program.tensor[s.write.tensor].dtype
        tensors.append(Tensor(name, tuple(Affine((), sizes[n]) for n in needed), dtype, "temporary"))
        target = Access(name, tuple(map(var, needed)))
        made += _sum(s, name, target, [found[k] for k in chosen], needed, every, sizes)
        found.append(target)
    body = _product([*constants, *(Read(k) for k in range(len(last)))])
    over = [n for n in s.iterators if n in kept or n in over]
    domain = box_domain(s.name, [(n, 0, sizes[n]) for n in over])
    path = (s.path[0], *over)
    rest = tuple(found[k] for k in last)
    return [*made, replace(s, iterators=tuple(over), domain=domain, reads=rest, body=body, path=path)]


def _sum(
    s: Statement, name: str, target: Access, reads: Sequence[Access], kept: Sequence[str], every: Sequence[str],
    sizes: Mapping[str, int],
) -> list[Statement]:  # fmt: skip
    """target[kept] = the product of the reads, summed over the other indices of `every`."""
    assert s.combiner is not None
    body, whole = _product([Read(k) for k in range(len(reads))]), len(kept) == len(every)
    found: list[Statement] = []
    if not whole:
        domain = box_domain(f"{name}_init", [(n, 0, sizes[n]) for n in kept])
        zero = Const(0)
        found.append(Statement(f"{name}_init", tuple(kept), domain, target, (), zero, path=(0, *kept)))
    label = f"{name}_set" if whole else f"{name}_update"
    order = [*kept, *(n for n in every if n not in kept)]
    domain = box_domain(label, [(n, 0, sizes[n]) for n in order])
    combiner = None if whole else s.combiner
    found.append(
        Statement(label, tuple(order), domain, target, tuple(reads), body, combiner, s.reorder, s.contract, (0, *order))
    )
    return found


def _factors(program: Program, s: Statement) -> list[Access] | None:
    """The reads whose product is summed: three and more, of one dtype, at places that subscripts give."""
    if s.combiner is None or s.combiner.symbol != "+" or not s.reorder or not s.contract or s.write.indirect:
        return None
    dtype, flat = program.tensor[s.write.tensor].dtype, _flat(s.body)
    if dtype not in EXACT_ENOUGH or not all(isinstance(f, Read | Const) for f in flat):
        return None
    reads = [s.reads[f.position] for f in flat if isinstance(f, Read)]
    plain = all(not r.indirect and not r.guard and program.tensor[r.tensor].dtype == dtype for r in reads)
    return reads if len(reads) > 2 and plain and s.write.tensor not in {r.tensor for r in reads} else None


def _extents(program: Program, s: Statement) -> dict[str, int] | None:
    """The extents of a box that begins at 0; None for any other domain."""
    if program.parameters or not bound_domain(program, s).is_box():
        return None
    found = {n: ends[1] + 1 for n, ends in intervals_of(program, s).items() if ends is not None and ends[0] == 0}
    return found if len(found) == len(s.iterators) else None


def _flat(body: Expr) -> list[Expr]:
    if isinstance(body, Apply) and body.operator == "mul":
        return [f for argument in body.arguments for f in _flat(argument)]
    return [body]


def _product(factors: Sequence[Expr]) -> Expr:
    return reduce(lambda a, b: Apply("mul", (a, b)), factors)


def _names(read: Access, iterators: Sequence[str]) -> tuple[str, ...]:
    return tuple(n for n in iterators if any(n in e.names for e in read.affine_index))


def _fresh(name: str, taken: set[str]) -> str:
    number, found = 0, name
    while any(f"{found}{suffix}" in taken for suffix in ("", "_init", "_update", "_set")):
        number += 1
        found = f"{name}_{number}"
    return found


def _renumbered(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Positions at the top level in the order of the statements; those of one `for` line stay together."""
    found: list[Statement] = []
    place, before = -1, None
    for s in statements:
        head: PathStep = s.path[0]
        loop = (head, s.path[1]) if any(isinstance(step, int) for step in s.path[1:]) else None
        place += loop is None or loop != before
        before = loop
        found.append(replace(s, path=(place, *s.path[1:])))
    return tuple(found)
