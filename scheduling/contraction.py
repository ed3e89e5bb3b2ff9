"""Products recognised by their access maps alone: which loops a matrix unit can take, and in what role.

Of `C[..] += A[..] * B[..]` a loop that moves C and A streams rows (m), one that moves C and B goes along the columns
(n), one that moves A and B is reduced (k), one that moves all three is outside (batch). Nothing else is known of an
operator.
"""

from __future__ import annotations

from dataclasses import dataclass

from poly.affine import Affine
from poly.expr import Apply, Cast, Expr, Read
from poly.machine import Engine
from poly.program import Access, Program, Statement


@dataclass(frozen=True)
class Contraction:
    """A statement on a matrix unit: its reads a and b, and its iterators by role."""

    statement: str
    engine: Engine
    a: int
    b: int
    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]


def product_of(body: Expr) -> tuple[int, int] | None:
    """The two reads of a product of elements, or of conversions of both to one dtype; None for any other body."""
    match body:
        case Apply("mul", (Read(left), Read(right))):
            return left, right
        case Apply("mul", (Cast(a, Read(left)), Cast(b, Read(right)))) if a == b:
            return left, right
        case _:
            return None


def contractions(program: Program, s: Statement, engine: Engine) -> list[Contraction]:
    """The ways in which a matrix unit can compute a statement: none, or one for each assignment of its operands."""
    factors = product_of(s.body)
    if factors is None or s.combiner is None or s.combiner.symbol != "+" or not s.reorder or s.external is not None:
        return []
    left, right = (s.reads[f] for f in factors)
    if left.tensor == right.tensor or s.write.tensor in (left.tensor, right.tensor):
        return []
    if any(access.indirect for access in (s.write, left, right)):
        return []
    result = program.tensor[s.write.tensor].dtype
    if any((program.tensor[access.tensor].dtype, result) not in engine.dtypes for access in (left, right)):
        return []
    return [_classified(s, engine, *factors), _classified(s, engine, *reversed(factors))]


def _classified(s: Statement, engine: Engine, a: int, b: int) -> Contraction:
    roles: dict[str, list[str]] = {"batch": [], "m": [], "n": [], "k": []}
    moves = [names_of(access) for access in (s.write, s.reads[a], s.reads[b])]
    for i in s.iterators:
        in_c, in_a, in_b = (i in names for names in moves)
        roles["k" if not in_c else "batch" if in_a and in_b else "m" if in_a else "n"].append(i)
    return Contraction(
        s.name, engine, a, b, tuple(roles["batch"]), tuple(roles["m"]), tuple(roles["n"]), tuple(roles["k"])
    )


def names_of(access: Access) -> frozenset[str]:
    """Names that move an access."""
    return frozenset(n for e in access.index if isinstance(e, Affine) for n in e.names)
