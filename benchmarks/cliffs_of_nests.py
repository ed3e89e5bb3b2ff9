"""Random loop nests (`benchmarks.random_nests`) beside numba, or beside plain Python: values, and times."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

import numpy as np

import poly
from benchmarks.medians import times
from benchmarks.random_nests import LONG, RandomNest, random_nest
from poly.dtypes import Array, is_float
from poly.errors import PolyError
from poly.frontend.nest import nest
from poly.program import Program

LARGEST: Final = 3_000_000  # elements of an array
MOST: Final = 1e8  # beyond it integers may not fit, nor floats agree
LEAST: Final = 10.0  # microseconds: what a call with its checks may cost; below that it is most of it


def beside_python(seed: int) -> str | None:
    """What is wrong with ours for a seed, in lines; "" for nothing, None where the values leave what can be compared.

    With its sizes known and free, on one thread and two.
    """
    made = random_nest(seed)
    wanted = _results(made, made.function, seed)
    if wanted is None:
        return None
    try:
        program = nest(made.function, exact=seed % 4 == 0).program
    except PolyError as error:
        return _told(made, seed, str(error))
    bound = program.bind(**made.sizes) if made.sizes else program
    forms: list[tuple[str, Program, int]] = [("known", bound, 1), ("known, two threads", bound, 2)]
    forms += [("free", program, 1)] if made.sizes else []
    try:
        found = [(form, _differences(made, p, poly.compile(p, threads=n), wanted, seed)) for form, p, n in forms]
    except PolyError as error:
        return _told(made, seed, str(error))
    return "\n".join(_told(made, seed, f"{form}: {text}") for form, text in found if text)


def beside_numba(seed: int, slower: float) -> str | None:
    """The same with longer loops, sizes known, one thread; and where ours takes longer than X times numba's time."""
    import numba

    made = random_nest(seed, LONG)
    if any(prod(e) > LARGEST for e in made.extents().values()):
        return None
    exact = seed % 4 == 0
    compiled = numba.njit(made.function, fastmath=not exact)
    wanted = _results(made, compiled, seed)
    if wanted is None:
        return None
    try:
        program = nest(made.function, exact=exact).program
        program = program.bind(**made.sizes) if made.sizes else program
        kernel = poly.compile(program, threads=1)
        wrong = _differences(made, program, kernel, wanted, seed)
    except PolyError as error:
        return _told(made, seed, str(error))
    if wrong:
        return _told(made, seed, wrong)
    start, mine, others = made.arrays(seed), made.arrays(seed), made.arrays(seed)
    names = [t.name for t in program.outputs]
    out: Any = tuple(mine[n] for n in names) if len(names) > 1 else mine[names[0]]
    ours, theirs = times(
        lambda: (_restored(mine, start, names), kernel(**mine, out=out)),
        lambda: (_restored(others, start, names), compiled(*made.sizes.values(), *others.values())),
    )
    text = f"{ours:.1f} us, numba {theirs:.1f}, {ours / theirs:.2f}"
    return _told(made, seed, text) if ours > max(slower * theirs, LEAST) else ""


def _restored(arrays: Mapping[str, Array], start: Mapping[str, Array], names: list[str]) -> None:
    """What a run overwrites, so that values do not grow from one to the next."""
    for name in names:
        np.copyto(arrays[name], start[name])


def _results(made: RandomNest, function: Callable[..., object], seed: int) -> dict[str, Array] | None:
    arrays = made.arrays(seed)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*made.sizes.values(), *arrays.values())
    except OverflowError:
        return None
    found = [np.abs(a.astype("f8")).max(initial=0) for a in arrays.values()]
    return arrays if np.isfinite(found).all() and max(found) < MOST else None


def _differences(
    made: RandomNest, program: Program, kernel: Callable[..., Any], wanted: Mapping[str, Array], seed: int
) -> str:
    """What a kernel gives otherwise than is wanted, and which of its arguments it changes."""
    arrays, before = made.arrays(seed), made.arrays(seed)
    known = {str(e) for shape in made.shapes.values() for e in shape} | {*program.binding}
    found = kernel(**arrays, **{n: v for n, v in made.sizes.items() if n not in known})
    results = found if isinstance(found, tuple) else (found,)
    narrow = any(d == "f32" for d in made.dtypes.values())
    wrong = [f"{n} is changed" for n, a in arrays.items() if not np.array_equal(a, before[n])]
    for tensor, result in zip(program.outputs, results, strict=True):
        aim = wanted[tensor.name]
        least = (1e-4 if narrow else 1e-11) * max(1.0, np.abs(aim).max(initial=0)) if is_float(tensor.dtype) else 0.0
        apart = np.abs(result.astype("f8") - aim.astype("f8")).max(initial=0)
        wrong += [f"{tensor.name} {apart:.2g} apart"] if not apart <= least else []
    return ", ".join(wrong)


def _told(made: RandomNest, seed: int, text: str) -> str:
    return f"{seed:8}  {dict(made.sizes)}: {text}\n{made.text}"
