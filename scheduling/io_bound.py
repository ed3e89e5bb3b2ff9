"""The least that any order of a program's instances moves between a memory of a given size and what is behind it.

For a reduction whose accesses are linear: of the instances that can run while X elements are touched there are at most
F(X) = c X^sigma, where sigma is the least sum of exponents of a Hoelder-Brascamp-Lieb inequality over the accesses
(Christ, Demmel, Knight, Scanlon, Yelick, arXiv 1308.0068, Theorem 3.2), and c follows from sharing X among them. So
all V instances take at least V (X - S) / F(X) - (X - S) moves through S elements, for every X > S (Hong and Kung 1981;
Kwasniewski et al., "Pebbles, Graphs, and a Pinch of Combinatorics", SPAA 2021); for a matrix product that is
2 MNK / sqrt(S) - 2 S. Loops of small extent are tried as repeated copies of the others (as in IOOpt, PLDI 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from poly.affine import Affine
from poly.dtypes import size_bytes
from poly.program import Access, Program, Statement
from poly.relations import bound_domain, intervals_of
from poly.scheduling.traffic import compulsory_bytes, count_points
from poly.sets import has_floor, within_budget

MOST_SPACES = 60
_OPERATIONS = 1_000_000

Row = tuple[Fraction, ...]
Space = tuple[Row, ...]  # a basis in reduced row echelon form


@dataclass(frozen=True)
class Bound:
    """`bytes` that every order moves; `statement`: whose instances say so, "" where it is what is touched once."""

    bytes: int
    statement: str = ""
    exponent: Fraction | None = None


def io_lower_bound(program: Program, capacity: int) -> Bound | None:
    """Bytes that enter a memory of `capacity` bytes in any order, at the least; None where a size is free.

    Holds for fully associative memories that are empty at first, without recomputation. Each statement is looked at
    alone, and the largest bound taken.
    """
    least = compulsory_bytes(program, inward=True)
    if least is None:
        return None
    best = Bound(least)
    for s in program.statements:
        found = _bound_of(program, s, capacity) if s.external is None and s.combiner is not None else None
        if found is not None and found.bytes > best.bytes:
            best = found
    return best


def _bound_of(program: Program, s: Statement, capacity: int) -> Bound | None:
    """The largest bound of one reduction, its shortest loops left out one after another (run as copies of the rest)."""
    extents = _extents(program, s)
    domain = bound_domain(program, s)
    points = within_budget(_OPERATIONS, lambda: count_points(domain), lambda: None)
    if extents is None or points is None:
        return None
    tensors = program.tensor
    used = _accesses(s)
    element = min(size_bytes(tensors[a.tensor].dtype) for a in used)
    size = capacity // element
    written = tensors[s.write.tensor].role == "temporary"
    best: Bound | None = None
    order = sorted(s.iterators, key=lambda i: extents[i])
    for small in range(len(order)):
        kept = [i for i in s.iterators if i in order[small:]]
        copies = prod(extents[i] for i in order[:small])
        exponents = least_exponents([kernel(_linear(a, kept), len(kept)) for a in used], len(kept))
        if exponents is None or sum(exponents) <= 1:
            continue
        moves = _moves(points, copies, size, exponents) - (_elements(program, s) if written else 0)
        if best is None or moves * element > best.bytes:
            best = Bound(int(moves) * element, s.name, sum(exponents, Fraction(0)))
    return best


def _moves(points: int, copies: int, size: int, exponents: Sequence[Fraction]) -> float:
    """V (X - S) / (copies F(X)) - (X - S) at the best X."""
    sigma = float(sum(exponents))
    reach = size * sigma / (sigma - 1)
    share = prod((float(e) / sigma) ** float(e) for e in exponents if e)
    return points * (reach - size) / (copies * share * reach**sigma) - (reach - size)


def _elements(program: Program, s: Statement) -> int:
    sizes = program.binding
    return prod(int(e.evaluate(sizes)) for e in program.tensor[s.write.tensor].shape)


def _accesses(s: Statement) -> list[Access]:
    """One linear access of every tensor: more of one tensor touch no fewer elements."""
    found: dict[str, Access] = {}
    for access, _ in s.accesses:
        if not access.indirect and all(isinstance(i, Affine) for i in access.index):
            found.setdefault(access.tensor, access)
    return list(found.values())


def _extents(program: Program, s: Statement) -> dict[str, int] | None:
    found: dict[str, int] = {}
    for name, interval in intervals_of(program, s).items():
        if interval is None:
            return None
        found[name] = interval[1] - interval[0] + 1
    return found or None


# ---- exponents


def least_exponents(kernels: Sequence[Space], dimensions: int) -> list[Fraction] | None:
    """Exponents s in [0, 1] of least sum with rank(H) <= sum s_j rank(phi_j(H)) for the subspaces H that decide.

    These are the lattice that the kernels of the accesses generate by sums and intersections. None where no exponents
    suffice (an iterator that no access uses), or the lattice is too large.
    """
    lattice = _lattice(kernels, dimensions)
    if lattice is None:
        return None
    spaces = sorted(lattice)
    ranks = [[Fraction(len(space) - len(_meet(space, k, dimensions))) for space in spaces] for k in kernels]
    return least_cover(ranks, [Fraction(len(space)) for space in spaces])


def least_cover(gains: Sequence[Sequence[Fraction]], needs: Sequence[Fraction]) -> list[Fraction] | None:
    """The s >= 0 of least sum with sum_j s_j gains[j][h] >= needs[h] for every h; None where there is none.

    By the simplex method on the dual (max needs y, gains y <= 1, y >= 0) with Bland's rule, in exact numbers.
    """
    count, unknowns = len(gains), len(needs)
    unit = [[Fraction(i == k) for i in range(count)] for k in range(count)]
    rows = [[*gain, *unit[k], Fraction(1)] for k, gain in enumerate(gains)]
    costs = [*(-n for n in needs), *([Fraction(0)] * (count + 1))]
    basis = [unknowns + k for k in range(count)]
    while (column := next((k for k, c in enumerate(costs[:-1]) if c < 0), None)) is not None:
        limits = [(row[-1] / row[column], basis[k], k) for k, row in enumerate(rows) if row[column] > 0]
        if not limits:
            return None
        _, _, pivot = min(limits)
        head = rows[pivot][column]
        rows[pivot] = [v / head for v in rows[pivot]]
        basis[pivot] = column
        for k in range(count):
            if k != pivot:
                rows[k] = _less(rows[k], rows[pivot], rows[k][column])
        costs = _less(costs, rows[pivot], costs[column])
    return costs[unknowns:-1]


def _less(row: Sequence[Fraction], other: Sequence[Fraction], factor: Fraction) -> list[Fraction]:
    return [v - factor * w for v, w in zip(row, other, strict=True)] if factor else list(row)


def _lattice(kernels: Sequence[Space], dimensions: int) -> set[Space] | None:
    """Sums and intersections of kernels, and everything; without the empty space."""
    everything = _reduced([[Fraction(i == k) for i in range(dimensions)] for k in range(dimensions)])
    found: set[Space] = {k for k in kernels if k} | {everything}
    new = set(found)
    while new:
        pairs = [(a, b) for a in found for b in new if a != b]
        new = {c for a, b in pairs for c in (_reduced([*a, *b]), _meet(a, b, dimensions)) if c} - found
        found |= new
        if len(found) > MOST_SPACES:
            return None
    return found


def _linear(access: Access, iterators: Sequence[str]) -> list[list[Fraction]]:
    """The coefficients of the subscripts; one with a floor is left out, which only weakens the bound."""
    plain = [i for i in access.index if isinstance(i, Affine) and not has_floor(i)]
    return [[Fraction(i.coefficient(n)) for n in iterators] for i in plain]


def kernel(rows: Sequence[Sequence[Fraction]], dimensions: int) -> Space:
    """The subspace that a linear map takes to zero."""
    reduced = _reduced(rows)
    pivots = [next(k for k, v in enumerate(row) if v) for row in reduced]
    basis: list[list[Fraction]] = []
    for free in (k for k in range(dimensions) if k not in pivots):
        vector = [Fraction(k == free) for k in range(dimensions)]
        for pivot, row in zip(pivots, reduced, strict=True):
            vector[pivot] = -row[free]
        basis.append(vector)
    return _reduced(basis)


def _meet(a: Space, b: Space, dimensions: int) -> Space:
    return kernel([*kernel(a, dimensions), *kernel(b, dimensions)], dimensions)


def _reduced(rows: Sequence[Sequence[Fraction]]) -> Space:
    """Reduced row echelon form without zero rows: equal spaces are equal values."""
    matrix = [list(row) for row in rows]
    done = 0
    for column in range(len(matrix[0]) if matrix else 0):
        pivot = next((k for k in range(done, len(matrix)) if matrix[k][column]), None)
        if pivot is None:
            continue
        matrix[done], matrix[pivot] = matrix[pivot], matrix[done]
        head = matrix[done][column]
        matrix[done] = [v / head for v in matrix[done]]
        for k in range(len(matrix)):
            if k != done:
                matrix[k] = _less(matrix[k], matrix[done], matrix[k][column])
        done += 1
    return tuple(tuple(row) for row in matrix[:done])
