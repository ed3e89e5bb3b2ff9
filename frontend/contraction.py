"""Products of tensors, summed over indices, as statements: what einsum strings become.

`Contractions` collects tensors and statements while terms are contracted step by step.

Sums of 16-bit floats are kept in f32 and rounded once. Complex numbers can be pairs of floats: an operand has a last
dimension of extent 2, an intermediate a first one; (a+bi)(c+di) is (ac-bd) + (ad+bc)i with four products, not
contracted, as numpy computes it; sums that use them often are sums of real products (`poly.frontend.complex_sums`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import islpy as isl

from poly.affine import Affine, var
from poly.expr import COMBINERS, Apply, Cast, Combiner, Const, Expr, IndexValue, Read, apply
from poly.program import Access, Program, Role, Statement, Tensor, box_domain, default_path
from poly.sets import header

Steps = tuple[tuple[int, ...], ...]
EXACT_ENOUGH: Final = ("f32", "f64", "i32", "i64")  # dtypes of which sums of sums lose nothing more than sums do
HALVES = {"c64": "f32", "c128": "f64"}
PART = "p"  # index of the real and the imaginary part
_WIDE = {"f16": "f32", "bf16": "f32"}


@dataclass(frozen=True)
class Term:
    """An operand or a temporary as it is read. `indices`: those that it depends on, in order, once each.

    `reads` are two for a complex number held as a pair: its real and its imaginary part.
    """

    reads: tuple[Access, ...]
    dtype: str
    indices: tuple[str, ...]

    def substitute(self, index: str, value: Affine, names: Sequence[str]) -> Term:
        """The term read at other places along an index: at `value`, an expression of the indices `names`."""
        if index not in self.indices:
            return self
        indices = tuple(n for i in self.indices for n in (names if i == index else (i,)))
        return Term(tuple(r.substitute({index: value}) for r in self.reads), self.dtype, indices)


def walk_steps(
    terms: Sequence[Sequence[str]], result: Sequence[str], steps: Steps
) -> Iterator[tuple[list[int], list[str], list[str]]]:
    """What each step contracts: which of the terms and results of earlier steps, these numbered on behind the terms;
    the indices of these; and those of them that are needed afterwards.

    A step's positions count what is left, its result goes to the end.
    """
    left = list(enumerate(terms))
    for number, step in enumerate(steps, len(terms)):
        chosen = [left[k] for k in step]
        left = [t for k, t in enumerate(left) if k not in step]
        every = list(dict.fromkeys(i for _, indices in chosen for i in indices))
        later = {*result, *(i for _, indices in left for i in indices)}
        needed = [i for i in every if i in later]
        needed = _along_operands([indices for _, indices in chosen], needed, result)
        yield [k for k, _ in chosen], every, needed
        left.append((number, needed))


def _along_operands(terms: Sequence[Sequence[str]], kept: list[str], result: Sequence[str]) -> list[str]:
    """What a product of terms keeps, in an order whose last index is such that vectors along it turn few operands: one
    that all of them have innermost; else one that some operand has innermost, best the one that the result has last,
    and of a sum one that no other operand has; where sums use nothing twice, that of the operand with most indices.
    """
    innermost = [t[-1] for t in terms if t]
    own = {i for i in kept if sum(i in t for t in terms) == 1}
    along = [t for t in terms if t and t[-1] in own]
    summed = any(i not in kept for t in terms for i in t)
    last = kept[-1] if kept else ""
    if len({*innermost}) == 1:
        last = innermost[0]
    elif result and result[-1] in innermost and (not summed or result[-1] in own):
        last = result[-1]
    elif summed and along:
        last = last if last in (*result[-1:], *(t[-1] for t in along)) else max(along, key=len)[-1]
    elif summed and sum(not own.isdisjoint(t) for t in terms) < 2:  # else registers use again what is turned
        last = max(terms, key=len)[-1]
    return sorted(kept, key=lambda i: i == last)


class Contractions:
    """Tensors and statements as they come about.

    `extents`: the size of every index. `dtype`: of the result. `pairs`: a complex result is made of pairs of floats;
    `planar`: its sums are kept with the real and imaginary parts apart; `interleaved`: the parts of operands and the
    result lie between the steps of the last subscript, and one statement writes both.
    """

    def __init__(
        self, extents: Mapping[str, Affine], parameters: Sequence[str], dtype: str, pairs: bool, planar: bool = False,
        interleaved: bool = False,
    ) -> None:  # fmt: skip
        self.planar = planar
        self.extents, self.parameters, self.pairs = dict(extents), tuple(parameters), pairs and dtype in HALVES
        self.interleaved = interleaved and self.pairs
        self.stored = HALVES[dtype] if self.pairs else dtype
        self.computed = _WIDE.get(self.stored, self.stored)
        self.tensors: list[Tensor] = []
        self.statements: list[Statement] = []

    def operand(
        self, name: str, extents: Sequence[Affine], subscripts: Sequence[Affine], dtype: str, gaps: bool = False
    ) -> Term:
        """An input tensor of these extents, read at these subscripts. `gaps`: behind its rows."""
        used = tuple(dict.fromkeys(i for s in subscripts for i in sorted(s.names)))
        if not (self.pairs and dtype in HALVES):
            self.tensors.append(Tensor(name, tuple(extents), dtype, "input", gaps=int(gaps)))
            return Term((Access(name, tuple(subscripts)),), dtype, used)
        half = HALVES[dtype]
        shape, parts = self._paired(extents, subscripts)
        self.tensors.append(Tensor(name, shape, half, "input", gaps=2 * gaps))
        return Term(tuple(Access(name, p) for p in parts), half, used)

    def _paired(
        self, extents: Sequence[Affine], subscripts: Sequence[Affine]
    ) -> tuple[tuple[Affine, ...], list[tuple[Affine, ...]]]:
        """The extents of complex numbers as floats, and the subscripts of the real and of the imaginary part."""
        if not self.interleaved or not subscripts:
            return (*extents, Affine((), 2)), [(*subscripts, Affine((), part)) for part in (0, 1)]
        return (*extents[:-1], extents[-1] * 2), [(*subscripts[:-1], subscripts[-1] * 2 + part) for part in (0, 1)]

    def contract(self, terms: Sequence[Term], kept: Sequence[str], name: str = "") -> Term:
        """The product of the terms, summed over all but `kept`; into the output `name`, else into a temporary."""
        summed = list(dict.fromkeys(i for t in terms for i in t.indices if i not in kept))
        if name and summed and (self.computed != self.stored or self.planar):
            return self.contract([self.contract(terms, kept)], kept, name)
        role: Role = "output" if name else "temporary"
        name = name or f"t{sum(t.role == 'temporary' for t in self.tensors)}"
        dtype = self.stored if role == "output" else self.computed
        target = Term(self._target(name, kept, dtype, role), dtype, tuple(kept))
        if summed:
            identity = Const((COMBINERS["or"] if dtype == "bool" else COMBINERS["+"]).identity(dtype).value)
            for access, suffix in zip(target.reads, self._suffixes, strict=True):
                self.state(f"{name}_init{suffix}", kept, access, (), identity, None)
        if self.interleaved and role == "output":
            self._write_both(f"{name}_set", target, terms)
        else:
            self.write(f"{name}_update" if summed else f"{name}_set", target, terms)
        return target

    def _write_both(self, name: str, target: Term, terms: Sequence[Term]) -> None:
        """One statement that puts the real and the imaginary part of the product into the target."""
        self.extents[PART] = Affine((), 2)
        first, part = target.reads[0], IndexValue(var(PART))
        *outer, last = first.affine_index
        body = apply("select", apply("lt", part, Const(1)), *self._product(terms, target.dtype))
        write = Access(first.tensor, (*outer, last + var(PART)))
        self.state(name, [*target.indices, PART], write, [r for t in terms for r in t.reads], body, None)

    def write(self, name: str, target: Term, terms: Sequence[Term]) -> None:
        """Statements that put the product of the terms into the target, or add to it where indices are summed."""
        summed = list(dict.fromkeys(i for t in terms for i in t.indices if i not in target.indices))
        combiner = COMBINERS["or" if target.dtype == "bool" else "+"] if summed else None
        reads = [r for t in terms for r in t.reads]
        bodies = self._product(terms, target.dtype)
        for access, body, suffix in zip(target.reads, bodies, self._suffixes, strict=True):
            self.state(f"{name}{suffix}", [*target.indices, *summed], access, reads, body, combiner)

    @property
    def _suffixes(self) -> tuple[str, ...]:
        return ("_re", "_im") if self.pairs else ("",)

    def planes(self, term: Term) -> Term:
        """A term of pairs with its real and imaginary parts apart, so that neighbours lie side by side."""
        return term if len(term.reads) == 1 or not term.indices else self.contract([term], term.indices)

    def _target(self, name: str, kept: Sequence[str], dtype: str, role: Role) -> tuple[Access, ...]:
        extents, subscripts = [self.extents[i] for i in kept], [var(i) for i in kept]
        if not self.pairs:
            self.tensors.append(Tensor(name, tuple(extents), dtype, role))
            return (Access(name, tuple(subscripts)),)
        if role == "output":
            shape, parts = self._paired(extents, subscripts)
        else:
            shape, parts = (Affine((), 2), *extents), [(Affine((), part), *subscripts) for part in (0, 1)]
        self.tensors.append(Tensor(name, shape, dtype, role))
        return tuple(Access(name, p) for p in parts)

    def _product(self, terms: Sequence[Term], dtype: str) -> list[Expr]:
        """The product of the terms in the target's dtype: one expression, or the real and the imaginary part."""
        values: list[list[Expr]] = []
        position = 0
        for t in terms:
            values.append([cast(Read(position + k), t.dtype, self.computed) for k in range(len(t.reads))])
            position += len(t.reads)
        if not self.pairs:
            multiply = "and" if self.computed == "bool" else "mul"
            product = reduce(lambda a, b: Apply(multiply, (a, b)), [v[0] for v in values])
            return [cast(product, self.computed, dtype)]
        padded = [v if len(v) == 2 else [v[0], Const(0.0, self.computed)] for v in values]
        return reduce(_complex_product, padded)

    def state(
        self,
        name: str,
        order: Sequence[str],
        write: Access,
        reads: Sequence[Access],
        body: Expr,
        combiner: Combiner | None,
    ) -> None:
        domain = box_domain(name, [(i, 0, self.extents[i]) for i in order], self.parameters)
        path = default_path(len(self.statements), order)
        statement = Statement(
            name, tuple(order), domain, write, tuple(reads), body, combiner, contract=not self.pairs, path=path
        )
        self.statements.append(statement)

    def program(self, name: str, condition: Iterable[str], sizes: Mapping[str, int]) -> Program:
        """All that was collected, for sizes that meet the condition."""
        context = isl.Set(f"{header(self.parameters)}{{ : {' and '.join(condition) or 'true'} }}")
        bound = tuple(sorted(sizes.items()))
        return Program(name, tuple(self.tensors), tuple(self.statements), self.parameters, context, bound)


def cast(value: Expr, source: str, target: str) -> Expr:
    """The value in another dtype."""
    return value if source == target else Cast(target, value)


def _complex_product(a: Sequence[Expr], b: Sequence[Expr]) -> list[Expr]:
    real = apply("sub", apply("mul", a[0], b[0]), apply("mul", a[1], b[1]))
    return [real, apply("add", apply("mul", a[0], b[1]), apply("mul", a[1], b[0]))]


def kept_alone(terms: Sequence[Sequence[str]], result: Sequence[str]) -> dict[int, list[str]]:
    """The terms that are summed beforehand, over indices which no other has: what they keep."""
    found: dict[int, list[str]] = {}
    for n, term in enumerate(terms):
        others = {*result, *(i for t in (*terms[:n], *terms[n + 1 :]) for i in t)}
        if len(terms) > 1 and not set(term) <= others:
            found[n] = [i for i in term if i in others]
    return found


def contract_steps(
    build: Contractions, terms: Sequence[Term], result: Sequence[str], steps: Steps, name: str, turn: bool = False
) -> None:
    """Contract step by step into the output `name`, see `walk_steps`; `turn`: batches that lie innermost in the result
    alone are put there last, by a copy.

    An index that only one term has is summed beforehand.
    """
    terms = list(terms)
    for n, kept in kept_alone([t.indices for t in terms], result).items():
        terms[n] = build.contract([terms[n]], kept)
    *pairs, (last, _, _) = walk_steps([t.indices for t in terms], result, steps)
    for chosen, _, needed in pairs:
        terms.append(build.contract([terms[k] for k in chosen], needed))
    factors = [terms[k] for k in last]
    if turn and (kept := _batches_first(factors, result)):
        factors = [build.contract(factors, kept)]
    build.contract(factors, result, name)


def _batches_first(terms: Sequence[Term], result: Sequence[str]) -> list[str]:
    """Where an index of all terms lies innermost in the result and in none of them: the result's indices in an order in
    which each product is a plain one. Empty otherwise, and where nothing is summed."""
    shared = [i for i in result if all(i in t.indices for t in terms)]
    apart = len(terms) > 1 and any(i not in result for t in terms for i in t.indices)
    if not apart or not shared or result[-1] != shared[-1] or any(t.indices[-1] == result[-1] for t in terms):
        return []
    every = dict.fromkeys(i for t in terms for i in t.indices)
    kept = [*shared, *(i for i in every if i in result and i not in shared)]
    return kept if kept != [*result] else []


@dataclass(frozen=True)
class Lanes:
    """A long sum in parts: `blocks` of `block` rounds of `lanes` elements, then `rounds` more, then a `rest`.

    Elements of a round go to sums of their own, which lie side by side in vectors; blocks are summed apart, which keeps
    the error of a sum of n elements near that of sqrt(n) (as pairwise summation does, Higham 1993).
    """

    index: str
    lanes: int
    block: int
    blocks: int
    rounds: int
    rest: int

    @staticmethod
    def of(index: str, extent: int, lanes: int) -> Lanes:
        """The parts of a sum of `extent` elements."""
        rounds, rest = divmod(extent, lanes)
        block = 1 << (rounds.bit_length() - 1) // 2
        blocks, rounds = divmod(rounds, block)
        return Lanes(index, lanes, block, blocks, rounds, rest)


def contract_in_lanes(
    build: Contractions, terms: Sequence[Term], result: Sequence[str], lanes: Lanes, name: str
) -> None:
    """One contraction with the sum over an index in parts, into the output `name`."""

    def at(start: int, *steps: tuple[int, str]) -> list[Term]:
        place = sum((var(i) * step for step, i in steps), Affine((), start))
        return [t.substitute(lanes.index, place, [i for _, i in steps]) for t in terms]

    width, size = lanes.lanes, lanes.block * lanes.lanes
    extents = {"k": lanes.blocks, "c": lanes.block, "d": lanes.rounds, "l": width, "r": lanes.rest}
    build.extents |= {i: Affine((), n) for i, n in extents.items()}
    blocks = build.contract(at(0, (size, "k"), (width, "c"), (1, "l")), [*result, "k", "l"])
    sums = build.contract([blocks], [*result, "l"])
    if lanes.rounds:
        build.write("t1_more", sums, at(size * lanes.blocks, (width, "d"), (1, "l")))
    total = build.contract([sums], result, name)
    if lanes.rest:
        build.write(f"{name}_rest", total, at(size * lanes.blocks + width * lanes.rounds, (1, "r")))
