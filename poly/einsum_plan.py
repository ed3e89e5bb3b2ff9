"""Plans of einsum calls: what is done for operands of some shapes, strides and dtypes.

numpy's own iterator answers what numpy would do: which dtype it computes in, whether casts are allowed, how the result
lies in memory. A contraction is then brought to a `Form`: dimensions by falling stride, indices that lie together in
every operand merged, extents of 1 and repeated elements left out. Little work runs in a kernel with free sizes, made
once a form in about 20 ms; more work is worth a kernel for its extents, tiled by the policy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import prod
from operator import or_
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy import einsum as numpy_einsum  # bound here: who replaces numpy's must not make ours call itself

from poly.codegen.kernel import Kernel
from poly.compiler import compile_program, machine_of
from poly.dtypes import dtype_name, numpy_dtype
from poly.errors import ArgumentTypeError, FallbackWarning, PathError, PolyError, ShapeError
from poly.frontend.contraction import Form, Steps, View
from poly.frontend.einsum import Equation, choose_steps, equation_of, work_of
from poly.pointers import address
from poly.scheduling.schedule import Schedule

Array = npt.NDArray[np.generic]
Dtype = np.dtype[np.generic]
Signature = tuple[tuple[int, ...], tuple[int, ...], Dtype]

FREE_WORK: Final = 1 << 15  # multiplications up to which a kernel with free sizes does
_COMPILED: Final = frozenset(
    ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool", "c64", "c128")
)


class Options(NamedTuple):
    """The keywords of a call; `dtype` None: the common one. `optimize`: False, a name, or numpy's path with its head."""

    optimize: bool | str | tuple[object, ...] = False
    dtype: Dtype | None = None
    order: str = "K"
    casting: str = "safe"
    threads: int = 1


@dataclass(frozen=True)
class Viewed:
    """One operand and nothing to compute: numpy's view of it."""

    spec: str

    def __call__(self, arrays: Sequence[Array], out: Array | None) -> Array:
        return np.asanyarray(numpy_einsum(self.spec, arrays[0]))


@dataclass(frozen=True)
class Fallback:
    """A dtype without compiled form that numpy computes."""

    spec: str
    options: Options
    dtype: Dtype

    def __call__(self, arrays: Sequence[Array], out: Array | None) -> Array:
        message = f"einsum {self.spec!r}: {self.dtype} has no compiled form, numpy computes it"
        warnings.warn(message, FallbackWarning, stacklevel=3)
        o = self.options
        keywords = {"optimize": o.optimize, "dtype": o.dtype, "order": o.order, "casting": o.casting}
        return numpy_einsum(self.spec, *arrays, out=out, **keywords)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel between arrays. `run` None: nothing is summed, the result is zeros.

    `casts`: for each operand the dtype it is copied to first, or None. `strides`: of a fresh result, where it is not
    in the order C. `direct`: `out` may be written in place. `factor`: what the result is multiplied by.
    """

    run: Callable[[Sequence[int]], None] | None
    shape: tuple[int, ...]
    dtype: Dtype
    strides: tuple[int, ...] | None
    casts: tuple[Dtype | None, ...] | None
    direct: bool
    factor: np.generic | None
    misaligned: int

    def __call__(self, arrays: Sequence[Array], out: Array | None) -> Array:
        if self.casts is not None:
            arrays = [a if t is None else a.astype(t, order="C") for a, t in zip(arrays, self.casts, strict=True)]
        addresses = [address(a) for a in arrays]
        if reduce(or_, addresses) & self.misaligned:
            arrays = [a if a.flags.aligned else a.copy("C") if a.flags.c_contiguous else _moved(a) for a in arrays]
            addresses = [address(a) for a in arrays]
        in_place = out is not None and self.direct and self._fits(arrays, out)
        result = out if in_place and out is not None else self._fresh()
        if self.run is None:
            result.fill(0)
        else:
            addresses.append(address(result))
            self.run(addresses)
        if self.factor is not None:
            _scale(result, self.factor)
        if out is None:
            return result if self.shape else result[()]  # type: ignore[return-value]
        if result is not out:
            np.copyto(out, result, casting="unsafe")  # the iterator has allowed the cast
        return out

    def _fresh(self) -> Array:
        if self.strides is None:
            return np.empty(self.shape, self.dtype)
        return np.ndarray(self.shape, self.dtype, None, 0, self.strides)

    def _fits(self, arrays: Sequence[Array], out: Array) -> bool:
        return out.flags.aligned and not any(np.may_share_memory(out, a) for a in arrays)


Plan = Viewed | Fallback | Compiled


def _moved(array: Array) -> Array:
    """A copy with the same strides, at an aligned address."""
    last = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)) + array.itemsize
    copy = np.ndarray(array.shape, array.dtype, np.empty(last, np.uint8), 0, array.strides)
    np.copyto(copy, array)
    return copy


def _scale(result: Array, factor: np.generic) -> None:
    parts = (result.real, result.imag) if result.dtype.kind == "c" else (result,)
    for part in parts:
        np.multiply(part, factor, out=part)


# ---- making a plan


def make_plan(spec: str, signatures: Sequence[Signature], options: Options, out: Signature | None) -> Plan:
    """The plan for operands (and `out`) with these shapes, strides and dtypes. Raises as `poly.einsum` does."""
    shapes = [shape for shape, _, _ in signatures]
    equation = equation_of(spec, shapes)
    if len(signatures) == 1 and out is None and set(equation.operands[0]) == set(equation.result):
        return Viewed(spec)
    samples = [_sample(s) for s in signatures]
    steps = _steps(spec, equation, samples, options.optimize)
    dtype, strides = _negotiate(spec, equation, samples, options, out)
    shape = tuple(equation.sizes[i] for i in equation.result)
    if dtype.char in "gG":
        return Fallback(spec, options, dtype)
    try:
        name = dtype_name(dtype)
    except PolyError:
        name = ""
    if name not in _COMPILED:
        hint = "dtype=float, casting='unsafe' computes with their values" if dtype.kind == "O" else None
        raise ArgumentTypeError(f"arrays of {dtype} have no compiled form", where=f"einsum {spec!r}", hint=hint)
    return _compiled(equation, steps, signatures, (shape, strides, dtype), out, options)


def _sample(signature: Signature) -> Array:
    """An array that only has shape, strides and dtype: its elements are never touched."""
    shape, strides, dtype = signature
    return np.lib.stride_tricks.as_strided(np.empty((), dtype), shape, strides)


def _steps(spec: str, equation: Equation, samples: Sequence[Array], optimize: bool | str | tuple[object, ...]) -> Steps:
    """The order of contractions: ours for False, numpy's or opt_einsum's for what they understand."""
    count = len(samples)
    if optimize is False or count == 1:
        return choose_steps(equation.operands, equation.result, equation.sizes)
    if isinstance(optimize, str) and optimize not in ("greedy", "optimal"):
        from opt_einsum import contract_path

        try:
            path = contract_path(spec, *(s.shape for s in samples), shapes=True, optimize=optimize)[0]
        except KeyError as error:
            raise PathError(f"no optimizer {optimize!r}", hint="greedy, optimal, auto, dp, ...") from error
    else:
        chosen = list(optimize) if isinstance(optimize, tuple) and optimize[:1] == ("einsum_path",) else optimize
        path = _numpy_path(spec, samples, chosen)
    return tuple(tuple(sorted(step)) for step in path)


def _numpy_path(spec: str, samples: Sequence[Array], optimize: object) -> Sequence[tuple[int, ...]]:
    try:
        path = np.einsum_path(spec, *samples, optimize=optimize)[0]  # type: ignore[arg-type]
    except RuntimeError as error:
        raise PathError(str(error), where=f"einsum {spec!r}") from error
    except TypeError as error:
        raise ArgumentTypeError(str(error), where="optimize", hint="True, 'greedy', 'optimal' or a path") from error
    return path[1:]


def _negotiate(
    spec: str, equation: Equation, samples: Sequence[Array], options: Options, out: Signature | None
) -> tuple[Dtype, tuple[int, ...]]:
    """The dtype that numpy computes in, and the strides of the result that it would allocate (or those of `out`)."""
    where = f"einsum {spec!r}"
    result = equation.result
    given = None if out is None or options.optimize is not False else _sample(out)
    shape = tuple(equation.sizes[i] for i in result)
    if out is not None and out[0] != shape:
        raise ShapeError(f"out has shape {out[0]}, the result {shape}", where=where)
    axes = [*result, *(i for i in equation.sizes if i not in result)]
    views, op_axes = [], []
    for sample, indices in zip(samples, equation.operands, strict=True):
        own = tuple(dict.fromkeys(indices))
        views.append(sample if own == indices else _diagonal(sample, indices, own))
        op_axes.append([own.index(i) if i in own else -1 for i in axes])
    op_axes.append([k if k < len(result) else -1 for k in range(len(axes))])
    flags = ["external_loop", "buffered", "delay_bufalloc", "reduce_ok", "refs_ok", "zerosize_ok"]
    reading, writing = ["readonly", "nbo", "aligned"], ["readwrite", "nbo", "aligned", "allocate", "no_broadcast"]
    try:
        iterator = np.nditer(
            [*views, given],
            flags=flags + ["common_dtype"] * (options.dtype is None),  # type: ignore[arg-type]
            op_flags=[*[reading] * len(views), writing],  # type: ignore[list-item]
            op_dtypes=None if options.dtype is None else [options.dtype] * (len(views) + 1),
            order=options.order,  # type: ignore[arg-type]
            casting=options.casting,  # type: ignore[arg-type]
            op_axes=op_axes,
        )
    except TypeError as error:
        hint = "casting='unsafe', or convert the operands"
        raise ArgumentTypeError(str(error).replace("Iterator operand", "operand"), where=where, hint=hint) from error
    except ValueError as error:
        raise ShapeError(str(error), where=where) from error
    strides = out[1] if out is not None else iterator.operands[-1].strides
    return iterator.dtypes[-1], strides


def _diagonal(sample: Array, indices: Sequence[str], own: Sequence[str]) -> Array:
    number = {i: k for k, i in enumerate(own)}
    return numpy_einsum(sample, [number[i] for i in indices], [*range(len(own))])  # type: ignore[no-any-return]


# ---- from strides to a form


Dimensions = list[tuple[str, int]]  # index and stride in elements, by falling stride


def _compiled(
    equation: Equation,
    steps: Steps,
    signatures: Sequence[Signature],
    result: Signature,
    out: Signature | None,
    options: Options,
) -> Compiled:
    sizes = equation.sizes
    shape, strides, dtype = result
    work = work_of(equation.operands, equation.result, sizes, steps) * (4 if dtype.kind == "c" else 1)
    free = work <= FREE_WORK
    casts: list[Dtype | None] = []
    memory: list[Dimensions] = []
    names: list[str] = []
    for signature, indices in zip(signatures, equation.operands, strict=True):
        target = _target(signature[2], dtype, free)
        dimensions = None if target is not None else _dimensions(*signature, indices)
        if dimensions is None:
            target = target or signature[2]
            dimensions = _dimensions(signature[0], _dense(signature[0], target.itemsize), target, indices)
            assert dimensions is not None
        casts.append(target)
        memory.append(dimensions)
        names.append(dtype_name(target or signature[2]))
    written = _dimensions(shape, strides, dtype, equation.result)
    direct = out is not None and out[2] == dtype and written is not None and _packed(written, sizes)
    if written is None or not direct:
        strides = _fresh_strides(shape, strides if out is None else (), dtype.itemsize)
        written = _dimensions(shape, strides, dtype, equation.result)
    assert written is not None
    empty = 0 in sizes.values()
    spread = [] if empty else [i for i in sizes if i not in equation.result and not any(i == j for m in memory for j, _ in m)]
    run = None
    if not empty:
        form, values = _form(memory, names, [i for i, _ in written], dtype_name(dtype), sizes, steps, not free)
        kernel = _free_kernel(form) if free else _bound_kernel(form, values, options.threads)
        tensors = [*(f"x{n}" for n in range(len(memory))), "out"]
        run = kernel.runner(tensors, dict(zip(form.parameters, values, strict=True)) if free else None)
    return Compiled(
        run,
        shape,
        dtype,
        None if strides == _dense(shape, dtype.itemsize) else strides,
        tuple(casts) if any(t is not None for t in casts) else None,
        direct,
        _factor(prod(sizes[i] for i in spread), dtype),
        reduce(or_, [numpy_dtype(n).alignment - 1 for n in names]),
    )


def _target(own: Dtype, dtype: Dtype, free: bool) -> Dtype | None:
    """The dtype that an operand is converted to before the kernel; None where the kernel reads it as it is.

    numpy makes every conversion that can lose something: what such a cast gives is its business.
    """
    if own == dtype and own.isnative:
        return None
    try:
        known = dtype_name(own) in _COMPILED
    except PolyError:
        known = False
    return None if known and not free and np.can_cast(own, dtype, "safe") else dtype


def _dense(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides of the order C."""
    strides: list[int] = []
    for extent in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(extent, 1)
    return tuple(reversed(strides))


def _fresh_strides(shape: Sequence[int], like: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides without gaps, in the order of those given; C where none are."""
    order = sorted(range(len(like)), key=lambda k: -abs(like[k]))
    if [k for k in order if shape[k] != 1] == sorted(k for k in order if shape[k] != 1):
        return _dense(shape, itemsize)
    dense = _dense([shape[k] for k in order], itemsize)
    return tuple(dense[order.index(k)] for k in range(len(shape)))


def _dimensions(
    shape: Sequence[int], strides: Sequence[int], dtype: Dtype, indices: Sequence[str]
) -> Dimensions | None:
    """The dimensions that step through memory, if they nest: each stride a multiple of the next and wide enough."""
    found = [(i, n, s) for i, n, s in zip(indices, shape, strides, strict=True) if n != 1 and s != 0]
    if any(s < 0 or s % dtype.itemsize for _, _, s in found):
        return None
    found.sort(key=lambda d: -d[2])
    for (_, _, outer), (_, extent, inner) in zip(found, found[1:], strict=False):
        if outer % inner or outer < extent * inner:
            return None
    return [(i, s // dtype.itemsize) for i, _, s in found]


def _packed(dimensions: Dimensions, sizes: Mapping[str, int]) -> bool:
    """No gaps, and every index steps."""
    step = 1
    for i, stride in reversed(dimensions):
        if stride != step:
            return False
        step *= sizes[i]
    return True


def _form(
    memory: Sequence[Dimensions],
    names: Sequence[str],
    result: Sequence[str],
    dtype: str,
    sizes: Mapping[str, int],
    steps: Steps,
    planar: bool,
) -> tuple[Form, tuple[int, ...]]:
    """The form of a contraction, and the values of its parameters."""
    extents = dict(sizes)
    memory, result = _merged(memory, result, extents)
    rename: dict[str, str] = {}
    for i in [*(i for m in memory for i, _ in m), *result]:
        rename.setdefault(i, f"i{len(rename)}")
    views: list[View] = []
    gaps: list[int] = []
    for dimensions, name in zip(memory, names, strict=True):
        inner = [*((extents[i], s) for i, s in dimensions[1:]), (1, 1)]
        dense: list[bool] = []
        for (_, stride), (extent, step) in zip(dimensions, inner, strict=False):
            dense.append(stride == extent * step)
            if not dense[-1]:
                gaps.append(stride // step)
        views.append(View(tuple(rename[i] for i, _ in dimensions), tuple(dense), name))
    renamed = {rename[i]: extents[i] for i in rename}
    form = Form(tuple(views), tuple(rename[i] for i in result), steps, dtype, planar and dtype in ("c64", "c128"))
    return form, (*(renamed[i] for i in form.indices), *gaps)


def _merged(
    memory: Sequence[Dimensions], result: Sequence[str], extents: dict[str, int]
) -> tuple[list[Dimensions], list[str]]:
    """Indices that follow each other without a gap in every operand and in the result become one."""
    memory, result = [list(m) for m in memory], list(result)
    candidates = [(a[0], b[0]) for m in memory for a, b in zip(m, m[1:], strict=False)]
    while candidates:
        outer, inner = candidates.pop()
        if not _together(memory, result, outer, inner, extents[inner]):
            continue
        for k, m in enumerate(memory):
            memory[k] = [d for n, d in enumerate(m) if not (d[0] == outer and m[n + 1][0] == inner)]
        result = [i for i in result if i != outer]
        extents[inner] *= extents[outer]
        candidates = [(a, inner if b == outer else b) for a, b in candidates if a != outer]
    return memory, result


def _together(memory: Sequence[Dimensions], result: Sequence[str], outer: str, inner: str, extent: int) -> bool:
    if outer == inner:
        return False
    for m in memory:
        names = [i for i, _ in m]
        if outer not in names and inner not in names:
            continue
        if names.count(outer) != 1 or names.count(inner) != 1:
            return False
        k = names.index(outer)
        if names[k + 1 : k + 2] != [inner] or m[k][1] != extent * m[k + 1][1]:
            return False
    kept = [i for i in result if i in (outer, inner)]
    return not kept or (kept == [outer, inner] and result.index(inner) == result.index(outer) + 1)


def _factor(times: int, dtype: Dtype) -> np.generic | None:
    """What the sum over indices that no operand steps along multiplies with, in the result's dtype."""
    if times == 1 or dtype.kind == "b":
        return None
    if dtype.kind in "iu":
        return np.asarray(times % (1 << 8 * dtype.itemsize), np.uint64).astype(dtype)[()]
    return np.float64(times).astype(np.empty(0, dtype).real.dtype)


# ---- kernels


@lru_cache(maxsize=4096)
def _free_kernel(form: Form) -> Kernel:
    program = form.program()
    kernel = compile_program(program, machine_of("cpu"), {}, 1, Schedule(program))
    assert isinstance(kernel, Kernel)
    return kernel


@lru_cache(maxsize=1024)
def _bound_kernel(form: Form, values: tuple[int, ...], threads: int) -> Kernel:
    kernel = compile_program(form.program(values), machine_of("cpu"), {}, threads, None)
    assert isinstance(kernel, Kernel)
    return kernel
