"""`einsum`: numpy's function by compiled kernels, for every argument that numpy's has.

The first call with operands of some shapes, strides and dtypes makes a plan, later ones look it up. numpy's iterator
decides dtype, casting and the memory layout of the result, as in numpy; `poly.einsum_plan` decides what is compiled.

* Where numpy gives a view (one operand, nothing summed, no `out`) so does this: the same view, of the same memory.
* In the order "K", which numpy only calls close to that of the operands, large results whose elements would lie side by
  side along an index of all operands, but along which no operand's do, have the indices of all operands outermost.
* Operands are read where they lie: permuted, sliced, strided. Those that run backwards, overlap themselves, or are not
  aligned are copied.
* longdouble and clongdouble have no compiled form: numpy computes them, with a `FallbackWarning`. Operands of classes
  with their own `__array_function__` go to numpy too, as they do there. Arrays of objects are refused.
* `optimize=False` leaves the order of contractions to us; True, "greedy", "optimal", a memory limit or an explicit path
  mean what they mean to numpy; the names of opt_einsum's optimizers ("auto", "dp", ...) mean what they mean there.
* What one operand sums alone is summed before anything is multiplied, which numpy does not do: fewer products, but such
  a sum may overflow where each product is small.
* Arrays of other libraries come in through DLPack, or as `numpy.asarray` takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, update_wrapper
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from poly.arguments import knows_arguments, shown
from poly.codegen.call import NATIVE, NativeCall, Record, attach
from poly.dlpack import Exporter, from_dlpack
from poly.dtypes import DTYPES, Array, numpy_dtype
from poly.einsum_plan import Compiled, Plan, Viewed, make_plan
from poly.einsum_rules import Options, Signature, numpy_einsum
from poly.errors import ArgumentError, ArgumentTypeError, ParseError, PolyError, RunError
from poly.frontend.einsum import number_of, spec_of
from poly.settings import thread_number, usable_cores, warn_of_cores
from poly.tuning import Tuning, tuning_of

MOST_SPECS: Final = 4096  # strings, and signatures of one, whose calls are native
MOST_RECORDS: Final = 32
Optimize: TypeAlias = bool | str | Sequence[object]
Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
Order = Literal["C", "F", "A", "K"]


@knows_arguments("einsum")
def _einsum(
    *operands: object,
    out: Array | None = None,
    optimize: Optimize | None = False,
    dtype: npt.DTypeLike | None = None,
    order: Order | None = "K",
    casting: Casting = "safe",
    threads: SupportsIndex = 1,
    tune: Tuning | int | bool | None = None,
) -> Array:
    """`numpy.einsum` by a compiled kernel, kept for operands of the same shapes, strides and dtypes.

    `einsum(subscripts, *operands)` or `einsum(operand, sublist, operand, sublist, ..., [output])`; operands are arrays,
    anything with `__dlpack__`, or what `numpy.asarray` takes, of floating (bfloat16 included), integer, bool or complex
    dtype. `out`, `dtype`, `order`, `casting`, `optimize`: as in numpy; see the module text for what differs.
    `threads`: for kernels that are worth it; `tune`: plans that are measured for those, as `compile` has it. The result
    is numpy's: shape, dtype, memory layout (but see the module text), a scalar where it has no dimensions, `out` where
    that is given.

    Raises `ParseError` and `ShapeError` (a `ValueError`) for a spec or shapes that numpy refuses, `ArgumentTypeError`
    (a `TypeError`) for a dtype without compiled form or a cast that `casting` forbids, `PathError` (a `RuntimeError`)
    for a bad path, `ArgumentError` (a `ValueError`) for an unknown order or casting.
    """
    spec, given = _spelled(operands)
    if [o for o in given if type(o) is not np.ndarray]:
        if _overridden(given, out):
            keywords = {"optimize": optimize, "dtype": dtype, "order": order, "casting": casting}
            return numpy_einsum(spec, *given, out=out, **keywords)
        given = tuple([as_array(o) for o in given])
    arrays = cast("tuple[Array, ...]", given)
    plain = optimize is False and dtype is None and _are_usual(order, casting, threads) and not tune
    options = None if plain else _options(optimize, dtype, order, casting, threads, tune)
    signature = tuple([(a.shape, a.strides, a.dtype) for a in arrays])
    target = None if out is None else _checked(out)
    try:
        plan = _plan(spec, signature, options, None if target is None else (target.shape, target.strides, target.dtype))
    except PolyError as error:
        raise error if isinstance(operands[0], str) else _with_numbers(error, spec) from error.__cause__
    if plain and isinstance(plan, Compiled) and plan.record is not None:
        _native_from_now_on(spec, signature, plan.record)
    elif plain and target is None and isinstance(plan, Viewed):
        _known_from_now_on(spec, arrays[0].shape, plan)
    return plan(arrays, target)


_einsum.__qualname__ = "einsum"  # what Python's own errors call it

# ---- calls that native code makes by itself


class _OfSpec(NativeCall):
    """What `einsum` does for one string: records of its last plans, everything else in Python."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self.records: dict[object, Record] = {}
        self.views: dict[tuple[int, ...], Viewed] = {}
        self.last: Record | None = None
        attach(self, None)

    def _careful(self, *operands: Any, **keywords: Any) -> object:
        if self.views and len(operands) == 1 and not keywords:
            array = operands[0]
            if type(array) is np.ndarray and (view := self.views.get(array.shape)) is not None:
                return view((array,), None)
        return _einsum(self.spec, *operands, **keywords)

    def _failed(self, _at: int, _status: int) -> None:
        raise RunError("no memory for the buffers", where=f"einsum {self.spec!r}")


class _Einsum(NativeCall):
    """`einsum` as it is called: by the string to an `_OfSpec`, everything else in Python."""

    def __init__(self) -> None:
        update_wrapper(self, _einsum)  # pyright: ignore[reportArgumentType]
        self.__name__ = self.__qualname__ = "einsum"
        self.specs: dict[str, _OfSpec] = {}
        attach(self, None, id(self.specs))

    def _careful(self, *operands: Any, **keywords: Any) -> object:
        return _einsum(*operands, **keywords)

    def __reduce__(self) -> str:
        return "einsum"

    def __repr__(self) -> str:
        return "<einsum>"


def _native_from_now_on(spec: str, signature: object, make: Callable[[], Record]) -> None:
    """Give native code the record of a plan, as far as there is room. Records live on: a call may be in one of them."""
    own = _own(spec)
    if own is None or signature in own.records or len(own.records) >= MOST_RECORDS:
        return
    record = make()
    if own.records.setdefault(signature, record) is record:  # no other thread was faster: what is linked is never freed
        own.last = record.before(own.last)
        attach(own, record)


def _known_from_now_on(spec: str, shape: tuple[int, ...], plan: Viewed) -> None:
    """Views of arrays of this shape are made without a look at anything else, as far as there is room."""
    own = _own(spec)
    if own is not None and len(own.views) < MOST_RECORDS:
        own.views[shape] = plan


def _own(spec: str) -> _OfSpec | None:
    """What is done for a string; None where there is no room for another one."""
    if not NATIVE or (spec not in _calls.specs and len(_calls.specs) >= MOST_SPECS):
        return None
    return _calls.specs.setdefault(spec, _OfSpec(spec))


def forget() -> None:
    """Drop all plans, so that calls make new ones. No other thread may be in a call."""
    _plan.cache_clear()
    for own in _calls.specs.values():
        attach(own, None)
        own.last = None
        own.records.clear()
        own.views.clear()


@lru_cache(maxsize=8192)
def _plan(
    spec: str,
    operands: tuple[tuple[tuple[int, ...], tuple[int, ...], np.dtype[np.generic]], ...],
    options: Options | None,
    out: tuple[tuple[int, ...], tuple[int, ...], np.dtype[np.generic]] | None,
) -> Plan:
    """Plans of the last calls. Plain tuples in, because they are made faster than named ones."""
    signatures = tuple(Signature(*o) for o in operands)
    return make_plan(spec, signatures, options or Options(), None if out is None else Signature(*out))


def as_array(operand: object) -> Array:
    """A numpy array on the memory of an array of any library, through DLPack; else what `numpy.asarray` makes.

    Raises `ArgumentTypeError` where neither works.
    """
    if isinstance(operand, np.ndarray):
        return operand.view(np.ndarray)
    if hasattr(operand, "__dlpack__") and not isinstance(operand, np.generic):
        try:
            return from_dlpack(cast("Exporter", operand))
        except (BufferError, RuntimeError, TypeError) as error:
            if not hasattr(operand, "__array__"):
                raise _no_array(operand, error) from error
    if operand is None or isinstance(operand, str | bytes):
        raise ArgumentTypeError(f"an operand is {shown(operand)}", hint="an array of numbers")
    try:
        return np.asarray(operand)
    except ValueError as error:
        raise ArgumentError(f"{type(operand).__name__} is no array: {error}") from error
    except (TypeError, RuntimeError) as error:
        raise _no_array(operand, error) from error


def _no_array(operand: object, error: Exception) -> ArgumentTypeError:
    hint = "an array in the memory of this process, without gradient"
    return ArgumentTypeError(f"no access to the memory of {type(operand).__name__}: {error}", hint=hint)


def _overridden(operands: Sequence[object], out: object) -> bool:
    """True where a class has its own meaning for numpy's functions, as numpy asks it."""
    own = (getattr(type(o), "__array_function__", None) for o in (*operands, out))
    return any(f is not None and f is not np.ndarray.__array_function__ for f in own)


def _spelled(operands: tuple[object, ...]) -> tuple[str, tuple[object, ...]]:
    """The string and the operands, of a call with lists of subscripts too."""
    if not operands:
        raise ArgumentError("einsum takes a string of subscripts and operands", hint="einsum('ij,jk->ik', a, b)")
    if isinstance(operands[0], str):
        return str(operands[0]), operands[1:]
    pairs = len(operands) // 2
    output = operands[-1] if len(operands) % 2 else None
    if not pairs:
        raise ArgumentError("an operand without subscripts", hint="einsum(a, [0, 1], b, [1, 2], [0, 2])")
    try:
        sublists = tuple([tuple(cast("Sequence[object]", s)) for s in operands[1 : 2 * pairs : 2]])
        given = None if output is None else tuple(cast("Sequence[object]", output))
        return _letters(sublists, given), tuple(operands[: 2 * pairs : 2])
    except ParseError:
        raise
    except TypeError as error:
        raise ArgumentTypeError(
            "subscripts are a string, or after each operand a list of ints below 52 and Ellipsis",
            where=f"einsum of {type(operands[0]).__name__}",
            hint="einsum('ij,jk->ik', a, b), or einsum(a, [0, 1], b, [1, 2], [0, 2])",
        ) from error


_letters = lru_cache(maxsize=4096)(spec_of)


def _with_numbers(error: PolyError, spec: str) -> PolyError:
    """An error of a string that was made from lists, with what its letters stand for."""
    letters = ", ".join(f"{c} is {numbered}" for c in sorted({*spec}) if (numbered := number_of(c)) is not None)
    error.args = (f"{error}\n  where {letters}",)
    return error


@cache
def _warn_of_cores(threads: int) -> None:
    warn_of_cores(threads, usable_cores())


def _are_usual(order: object, casting: object, threads: object) -> bool:
    try:
        return bool(order == "K" and casting == "safe" and threads == 1)
    except ValueError:  # an array is not equal to anything
        return False


def _options(
    optimize: Optimize | None, dtype: npt.DTypeLike | None, order: str | None, casting: str, threads: SupportsIndex,
    tune: Tuning | int | bool | None,
) -> Options:  # fmt: skip
    """The keywords, checked and hashable."""
    order = "K" if order is None else order
    for name, value in (("order", order), ("casting", casting)):
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError(f"{name} is {shown(value)}", hint=f"{name} is a str")
    count = thread_number(threads)
    _warn_of_cores(count)
    order = order.upper()
    if order not in ("C", "F", "A", "K"):
        raise ArgumentError(f"order {order!r}", hint="C, F, A or K")
    if casting not in ("no", "equiv", "safe", "same_kind", "unsafe"):
        raise ArgumentError(f"casting {casting!r}", hint="no, equiv, safe, same_kind or unsafe")
    try:
        wanted = None if dtype is None else np.dtype(dtype)
    except TypeError as error:
        own = isinstance(dtype, str) and dtype in DTYPES
        hint = repr(numpy_dtype(str(dtype)).name) if own else "'float32', 'float64' or another of numpy's"
        raise ArgumentTypeError(f"dtype {dtype!r}: {error}", hint=hint) from error
    return Options(_path(optimize), wanted, order, casting, count, tuning_of(tune))


def _path(optimize: Optimize | None) -> bool | str | tuple[object, ...]:
    """`optimize` as something hashable, an explicit path with numpy's head."""
    if optimize is None or isinstance(optimize, bool | np.bool_):
        return bool(optimize)
    if isinstance(optimize, str):
        return optimize
    try:
        path = tuple([s if isinstance(s, str | int | float) else tuple(cast("Sequence[int]", s)) for s in optimize])
        hash(path)
    except TypeError as error:
        raise ArgumentTypeError(f"optimize={optimize!r} is no path", hint="True, 'greedy' or [(0, 1), ...]") from error
    return ("einsum_path", *path) if path and isinstance(path[0], tuple) else path


def _checked(out: object) -> Array:
    if not isinstance(out, np.ndarray):
        hint = "numpy.from_dlpack(out)" if hasattr(out, "__dlpack__") else "numpy.empty(shape, dtype)"
        raise ArgumentTypeError(f"out is {type(out).__name__}, no array", hint=hint)
    if not out.flags.writeable:
        raise ArgumentError("out is read-only", hint="an array of its own: numpy.empty(shape, dtype)")
    return out


_calls: Final = _Einsum()
if TYPE_CHECKING:
    einsum = _einsum
else:
    einsum = _calls
