"""numpy's einsum strings as programs: ellipsis, broadcasting of extents 1, diagonals, implicit output, many operands.

Operands are tensors `x0`, `x1`, ..., the result is `out`. Indices keep their letters, the dimensions of the ellipsis
are `e0`, `e1`, ...; the size of index i is the parameter `Ni`. Up to two operands make one contraction. More are
contracted in pairs, in the order of opt_einsum, through temporaries `t0`, `t1`, ..., unless that saves little; an index
that only one operand has is summed before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import index
from string import ascii_letters, ascii_lowercase, ascii_uppercase

import numpy as np

from poly.affine import Affine, var
from poly.document import counted
from poly.dtypes import dtype_name, numpy_dtype
from poly.errors import ParseError, ShapeError
from poly.frontend.contraction import Contractions, Steps, contract_steps, walk_steps
from poly.program import Program

_ELLIPSIS = "..."
_NUMBERED = ascii_uppercase + ascii_lowercase


def einsum_program(spec: str, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> Program:
    """The program of `numpy.einsum(spec, *operands)` for operands of these shapes and dtypes, all sizes bound.

    The result has the dtype that numpy gives; operands are converted to it first, and bool is summed with `or`. Raises
    `ParseError` for a string and `ShapeError` for shapes and dtypes that numpy refuses too.
    """
    equation = equation_of(spec, shapes)
    if len(dtypes) != len(shapes):
        raise ShapeError(
            f"{counted(len(dtypes), 'dtype')} for {counted(len(shapes), 'operand')}", where=f"einsum {spec!r}"
        )
    sizes = equation.sizes
    dtype = _common_dtype(spec, dtypes)
    build = Contractions({i: var(f"N{i}") for i in sizes}, [f"N{i}" for i in sizes], dtype, pairs=False)
    terms = []
    for n, (indices, shape, own) in enumerate(zip(equation.operands, shapes, dtypes, strict=True)):
        spread = [e == 1 != sizes[i] for i, e in zip(indices, shape, strict=True)]
        extents = [Affine((), 1) if b else build.extents[i] for i, b in zip(indices, spread, strict=True)]
        subscripts = [Affine() if b else var(i) for i, b in zip(indices, spread, strict=True)]
        terms.append(build.operand(f"x{n}", extents, subscripts, own))
    steps = choose_steps([t.indices for t in terms], equation.result, sizes)
    contract_steps(build, terms, equation.result, steps, "out")
    bound = {f"N{i}": extent for i, extent in sizes.items()}
    return build.program("einsum", [f"{p} >= {min(n, 1)}" for p, n in bound.items()], bound)


@dataclass(frozen=True)
class Equation:
    """An index for every dimension of the operands and of the result, and the extent of each index."""

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]
    sizes: Mapping[str, int]


def equation_of(spec: str, shapes: Sequence[tuple[int, ...]]) -> Equation:
    """What a string says for operands of these shapes; the dimensions of the ellipsis become `e0`, `e1`, ...

    Raises `ParseError` for a string and `ShapeError` for shapes that numpy refuses too.
    """
    inputs, output = _parse(spec)
    if len(inputs) != len(shapes):
        names, given = counted(len(inputs), "operand"), f"{len(shapes)} {'is' if len(shapes) == 1 else 'are'} given"
        raise ShapeError(f"einsum {spec!r} names {names}, {given}", hint="one array for each term between commas")
    indices = _expand(spec, inputs, shapes)
    result = _output(spec, output, indices)
    return Equation(tuple(map(tuple, indices)), tuple(result), _sizes(spec, indices, shapes))


def spec_of(sublists: Sequence[Sequence[object]], output: Sequence[object] | None) -> str:
    """The string for numpy's other form, in which subscripts are ints below 52 and Ellipsis: 0 is A, 26 is a.

    Raises `ParseError` for an int outside of 0 .. 51 and `TypeError` for what is neither.
    """
    terms = ",".join(map(_letters, sublists))
    return terms if output is None else f"{terms}->{_letters(output)}"


def number_of(letter: str) -> int | None:
    """The int that a letter of `spec_of` stands for; None of another character."""
    return _NUMBERED.index(letter) if letter.isalpha() else None


def _letters(sublist: Sequence[object]) -> str:
    found: list[str] = []
    for s in sublist:
        number = -1 if s is Ellipsis else index(s)  # type: ignore[arg-type]
        if s is not Ellipsis and not 0 <= number < len(ascii_letters):
            raise ParseError(f"subscript {number} is outside of 0 .. {len(ascii_letters) - 1}", hint="[0, 1]")
        found.append(_ELLIPSIS if s is Ellipsis else _NUMBERED[number])
    return "".join(found)


# ---- the string


@lru_cache(maxsize=1024)
def _parse(spec: str) -> tuple[Sequence[Sequence[str]], Sequence[str] | None]:
    """The subscripts of every operand, and of the output where it is given."""
    if not spec.isascii():
        raise ParseError("subscripts are the letters a-z and A-Z", text=spec, line=1, hint="ij,jk->ik")
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
        elif c != " ":
            why = "a second ellipsis" if c == "." and _ELLIPSIS in found else f"{c!r} has no meaning here"
            text, hint = f"{why}: subscripts are letters and one '...'", "terms with commas between them: ij,jk->ik"
            raise ParseError(text, text=spec, line=1, column=at, hint=hint)
        at += 1
    return found


def _expand(spec: str, inputs: Sequence[Sequence[str]], shapes: Sequence[tuple[int, ...]]) -> list[list[str]]:
    """One index name for each dimension of each operand; those of the ellipsis count from the right."""
    extra: list[int] = []
    for n, (term, shape) in enumerate(zip(inputs, shapes, strict=True)):
        letters = len(term) - (_ELLIPSIS in term)
        if len(shape) < letters or (len(shape) > letters and _ELLIPSIS not in term):
            shown = "".join(term)
            fewer = f"as many letters as dimensions: {''.join(term[-len(shape) :]) if shape else 'none'}"
            hint = fewer if len(shape) < letters else f"...{shown} for the dimensions in front"
            raise ShapeError(
                f"operand {n} has {counted(len(shape), 'dimension')}, {shown!r} is for {letters}",
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
            known = ", ".join(dict.fromkeys(i for i in every if len(i) == 1)) or "none"
            text, hint = f"index {i!r} of the output is in no operand", f"one of the operands' indices: {known}"
            raise ParseError(text, text=spec, line=1, column=spec.rfind(i), hint=hint)
        if result.count(i) > 1:
            text, hint = f"index {i!r} is in the output twice", f"{i} once; notation writes diagonals: D[i,i] = x[i]"
            raise ParseError(text, text=spec, line=1, column=spec.rfind(i), hint=hint)
    if ellipsis and _ELLIPSIS not in output:
        raise ShapeError(
            f"the output leaves out the {counted(len(ellipsis), 'dimension')} of '...'",
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
                text = f"operand {n} has extents {own[i]} and {extent} for index {i!r}"
                raise ShapeError(text, where=f"einsum {spec!r}", hint="another letter for one of them")
        for i, extent in own.items():
            known, first = found.get(i, (1, n))
            if extent != known and 1 not in (extent, known):
                message = f"index {i!r} has extent {known} in operand {first} and {extent} in operand {n}"
                hint = "letters in the order of the dimensions, the same one only for equal extents"
                raise ShapeError(message, where=f"einsum {spec!r}", hint=hint)
            if i not in found or extent != 1:
                found[i] = (extent, n)
    return {i: extent for i, (extent, _) in found.items()}


def _common_dtype(spec: str, dtypes: Sequence[str]) -> str:
    try:
        return dtype_name(np.result_type(*(numpy_dtype(d) for d in dtypes)))
    except TypeError as error:
        raise ShapeError(f"no common dtype of {', '.join(dtypes)}: {error}", where=f"einsum {spec!r}") from None


# ---- the order


def choose_steps(terms: Sequence[Sequence[str]], result: Sequence[str], sizes: Mapping[str, int]) -> Steps:
    """Positions to contract, step by step; the result of a step goes to the end of the list.

    Pairs in the order of opt_einsum's `auto`, unless all at once takes little more work (and no temporaries).
    """
    at_once = (tuple(range(len(terms))),)
    if len(terms) <= 2:
        return at_once
    from opt_einsum.paths import auto

    # sets of strings have no fixed order, and ties would be broken differently in every run: indices are numbers here
    number = {i: k for k, i in enumerate(sizes)}
    inputs = [frozenset(number[i] for i in t) for t in terms]
    extents = {number[i]: max(extent, 1) for i, extent in sizes.items()}
    path = auto(inputs, frozenset(number[i] for i in result), extents)  # type: ignore[arg-type]
    steps = tuple(tuple(sorted(step)) for step in path)
    whole = work_of(terms, result, sizes, at_once)
    return at_once if whole <= 1.5 * work_of(terms, result, sizes, steps) else steps


def work_of(terms: Sequence[Sequence[str]], result: Sequence[str], sizes: Mapping[str, int], steps: Steps) -> int:
    """Multiplications (additions, where one term is summed) that contracting in these steps takes."""
    walked = walk_steps(terms, result, steps)
    return sum(prod(sizes[i] for i in every) * max(len(chosen) - 1, 1) for chosen, every, _ in walked)
