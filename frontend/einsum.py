"""numpy's einsum strings as programs: ellipsis, broadcasting of extents 1, diagonals, implicit output, many operands.

Operands are tensors `x0`, `x1`, ..., the result is `out`. Indices keep their letters, the dimensions of the ellipsis
are `e0`, `e1`, ...; the size of index i is the parameter `Ni`. Up to two operands make one contraction. More are
contracted in pairs, in the order of opt_einsum, through temporaries `t0`, `t1`, ...; an index that only one operand has
is summed before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import islpy as isl
import numpy as np

from poly.affine import Affine, var
from poly.dtypes import dtype_name, numpy_dtype
from poly.errors import ParseError, ShapeError
from poly.expr import COMBINERS, Apply, Cast, Combiner, Const, Expr, Read
from poly.program import Access, Program, Role, Statement, Tensor, box_domain, default_path
from poly.sets import header

_ELLIPSIS = "..."


def einsum_program(spec: str, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> Program:
    """The program of `numpy.einsum(spec, *operands)` for operands of these shapes and dtypes, all sizes bound.

    The result has the dtype that numpy gives; operands are converted to it first, and bool is summed with `or`. Raises
    `ParseError` for a string and `ShapeError` for shapes and dtypes that numpy refuses too.
    """
    inputs, output = _parse(spec)
    if not len(inputs) == len(shapes) == len(dtypes):
        raise ShapeError(f"einsum {spec!r} names {len(inputs)} operands, there are {len(shapes)}")
    indices = _expand(spec, inputs, shapes)
    result = _output(spec, output, indices)
    sizes = _sizes(spec, indices, shapes)
    dtype = _common_dtype(spec, dtypes)
    parameters = tuple(f"N{i}" for i in sizes)
    build = _Contractions(sizes, parameters, dtype)
    terms = [build.operand(n, *each) for n, each in enumerate(zip(indices, shapes, dtypes, strict=True))]
    build.contract(_contract_pairs(terms, result, build), result, "out")
    condition = " and ".join(f"{p} >= {min(n, 1)}" for p, n in zip(parameters, sizes.values(), strict=True)) or "true"
    context = isl.Set(f"{header(parameters)}{{ : {condition} }}")
    bound = tuple(sorted(zip(parameters, sizes.values(), strict=True)))
    return Program("einsum", tuple(build.tensors), tuple(build.statements), parameters, context, bound)


# ---- the string


def _parse(spec: str) -> tuple[list[list[str]], list[str] | None]:
    """The subscripts of every operand, and of the output where it is given."""
    if not spec.isascii():
        raise ParseError("subscripts are the letters a-z and A-Z", text=spec, line=1)
    arrow = spec.find("->")
    left = spec if arrow < 0 else spec[:arrow]
    inputs: list[list[str]] = []
    start = 0
    for term in left.split(","):
        inputs.append(_subscripts(spec, start, start + len(term)))
        start += len(term) + 1
    return inputs, None if arrow < 0 else _subscripts(spec, arrow + 2, len(spec))


def _subscripts(spec: str, start: int, end: int) -> list[str]:
    found: list[str] = []
    at = start
    while at < end:
        c = spec[at]
        if spec.startswith(_ELLIPSIS, at, end) and _ELLIPSIS not in found:
            found.append(_ELLIPSIS)
            at += 2
        elif c.isalpha():
            found.append(c)
        elif not c.isspace():
            why = "a second ellipsis" if c == "." and _ELLIPSIS in found else f"{c!r} has no meaning here"
            raise ParseError(f"{why}: subscripts are letters and one '...'", text=spec, line=1, column=at)
        at += 1
    return found


def _expand(spec: str, inputs: Sequence[Sequence[str]], shapes: Sequence[tuple[int, ...]]) -> list[list[str]]:
    """One index name for each dimension of each operand; those of the ellipsis count from the right."""
    extra: list[int] = []
    for n, (term, shape) in enumerate(zip(inputs, shapes, strict=True)):
        letters = len(term) - (_ELLIPSIS in term)
        if len(shape) < letters or (len(shape) > letters and _ELLIPSIS not in term):
            shown = "".join(term)
            hint = None if len(shape) < letters else f"...{shown} for the dimensions in front"
            raise ShapeError(
                f"operand {n} has {len(shape)} dimensions, {shown!r} is for {letters}",
                where=f"einsum {spec!r}",
                hint=hint,
            )
        extra.append(len(shape) - letters)
    most = max(extra)
    return [_fill(term, [f"e{k}" for k in range(most - own, most)]) for term, own in zip(inputs, extra, strict=True)]


def _fill(term: Sequence[str], ellipsis: Sequence[str]) -> list[str]:
    return [name for s in term for name in (ellipsis if s == _ELLIPSIS else [s])]


def _output(spec: str, output: Sequence[str] | None, indices: Sequence[Sequence[str]]) -> list[str]:
    """The indices of the result: those given, or the ellipsis and then the letters that occur once, sorted."""
    every = [i for term in indices for i in term]
    ellipsis = sorted({i for i in every if len(i) > 1}, key=lambda i: int(i[1:]))
    if output is None:
        return ellipsis + sorted(i for i in set(every) if len(i) == 1 and every.count(i) == 1)
    result = _fill(output, ellipsis)
    where = f"einsum {spec!r}"
    for i in result:
        if i not in every:
            raise ParseError(f"index {i!r} of the output is in no operand", text=spec, line=1, column=spec.rfind(i))
        if result.count(i) > 1:
            raise ParseError(f"index {i!r} is in the output twice", text=spec, line=1, column=spec.rfind(i))
    if ellipsis and _ELLIPSIS not in output:
        raise ShapeError(
            f"the output leaves out the {len(ellipsis)} dimensions of '...'",
            where=where,
            hint="->..." + "".join(output),
        )
    return result


def _sizes(spec: str, indices: Sequence[Sequence[str]], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The extent of every index. Extents 1 give way to the extents of other operands, never within one operand."""
    found: dict[str, tuple[int, int]] = {}
    for n, (term, shape) in enumerate(zip(indices, shapes, strict=True)):
        own: dict[str, int] = {}
        for i, extent in zip(term, shape, strict=True):
            if own.setdefault(i, extent) != extent:
                raise ShapeError(
                    f"operand {n} has extents {own[i]} and {extent} for index {i!r}", where=f"einsum {spec!r}"
                )
        for i, extent in own.items():
            known, first = found.get(i, (1, n))
            if extent != known and 1 not in (extent, known):
                message = f"index {i!r} has extent {known} in operand {first} and {extent} in operand {n}"
                raise ShapeError(message, where=f"einsum {spec!r}")
            if i not in found or extent != 1:
                found[i] = (extent, n)
    return {i: extent for i, (extent, _) in found.items()}


def _common_dtype(spec: str, dtypes: Sequence[str]) -> str:
    try:
        return dtype_name(np.result_type(*(numpy_dtype(d) for d in dtypes)))
    except TypeError as error:
        raise ShapeError(f"no common dtype of {', '.join(dtypes)}: {error}", where=f"einsum {spec!r}") from None


# ---- the program


@dataclass(frozen=True)
class _Term:
    """An operand or a temporary as it is read. `indices`: those that it depends on, in order, once each."""

    access: Access
    dtype: str
    indices: tuple[str, ...]


class _Contractions:
    """Tensors and statements as they come about."""

    def __init__(self, sizes: Mapping[str, int], parameters: tuple[str, ...], dtype: str) -> None:
        self.sizes, self.parameters, self.dtype = sizes, parameters, dtype
        self.tensors: list[Tensor] = []
        self.statements: list[Statement] = []

    def operand(self, n: int, indices: Sequence[str], shape: tuple[int, ...], dtype: str) -> _Term:
        """The tensor `xn`; a dimension of extent 1 under a longer index is read at 0."""
        spread = [e == 1 != self.sizes[i] for i, e in zip(indices, shape, strict=True)]
        extents = tuple(Affine((), 1) if b else var(f"N{i}") for i, b in zip(indices, spread, strict=True))
        subscripts = tuple(Affine() if b else var(i) for i, b in zip(indices, spread, strict=True))
        self.tensors.append(Tensor(f"x{n}", extents, dtype, "input"))
        own = dict.fromkeys(i for i, b in zip(indices, spread, strict=True) if not b)
        return _Term(Access(f"x{n}", subscripts), dtype, tuple(own))

    def contract(self, terms: Sequence[_Term], kept: Sequence[str], name: str = "") -> _Term:
        """The product of the terms, summed over all but `kept`."""
        role: Role = "output" if name else "temporary"
        name = name or f"t{sum(t.role == 'temporary' for t in self.tensors)}"
        self.tensors.append(Tensor(name, tuple(var(f"N{i}") for i in kept), self.dtype, role))
        reads = [t.access for t in terms]
        factors = [self._value(n, t.dtype) for n, t in enumerate(terms)]
        product = "and" if self.dtype == "bool" else "mul"
        body = reduce(lambda a, b: Apply(product, (a, b)), factors)
        summed = list(dict.fromkeys(i for t in terms for i in t.indices if i not in kept))
        target = Access(name, tuple(var(i) for i in kept))
        if summed:
            combiner = COMBINERS["or" if self.dtype == "bool" else "+"]
            self._state(f"{name}_init", kept, target, (), Const(combiner.identity(self.dtype).value), None)
            self._state(f"{name}_update", [*kept, *summed], target, reads, body, combiner)
        else:
            self._state(f"{name}_set", kept, target, reads, body, None)
        return _Term(target, self.dtype, tuple(kept))

    def _value(self, position: int, dtype: str) -> Expr:
        return Read(position) if dtype == self.dtype else Cast(self.dtype, Read(position))

    def _state(
        self,
        name: str,
        order: Sequence[str],
        write: Access,
        reads: Sequence[Access],
        body: Expr,
        combiner: Combiner | None,
    ) -> None:
        domain = box_domain(name, [(i, 0, var(f"N{i}")) for i in order], self.parameters)
        path = default_path(len(self.statements), order)
        self.statements.append(Statement(name, tuple(order), domain, write, tuple(reads), body, combiner, path=path))


def _contract_pairs(terms: list[_Term], result: Sequence[str], build: _Contractions) -> list[_Term]:
    """Contract in pairs until one contraction is left; gives its terms. At most two stay as they are."""
    if len(terms) <= 2:
        return terms

    def needed(left: Sequence[_Term]) -> set[str]:
        return {*result, *(i for t in left for i in t.indices)}

    for n, term in enumerate(terms):
        kept = [i for i in term.indices if i in needed([*terms[:n], *terms[n + 1 :]])]
        if len(kept) < len(term.indices):
            terms[n] = build.contract([term], kept)
    for positions in _order(terms, result, build.sizes):
        chosen = [terms[k] for k in positions]
        rest = [t for k, t in enumerate(terms) if k not in positions]
        if not rest:
            return chosen
        every = dict.fromkeys(i for t in chosen for i in t.indices)
        terms = [*rest, build.contract(chosen, [i for i in every if i in needed(rest)])]
    return terms


def _order(terms: Sequence[_Term], result: Sequence[str], sizes: Mapping[str, int]) -> Sequence[Sequence[int]]:
    """Positions to contract, step by step; the result of a step goes to the end of the list.

    Indices are numbers here: sets of strings have no fixed order, and ties would be broken differently in every run.
    """
    from opt_einsum.paths import auto

    number = {i: k for k, i in enumerate(sizes)}
    inputs = [frozenset(number[i] for i in t.indices) for t in terms]
    extents = {number[i]: max(extent, 1) for i, extent in sizes.items()}
    path = auto(inputs, frozenset(number[i] for i in result), extents)  # type: ignore[arg-type]
    return [sorted(step) for step in path]
