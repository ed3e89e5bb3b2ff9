"""Plans of einsum calls: what is done for operands of some shapes, strides and dtypes.

Little work runs in a kernel with free sizes, made once a form in about 10 ms (100 ms with tiles) and shared by all
sizes; more work, or long sums one after the other, is worth a kernel for its own extents and strides, tiled by the
policy, in about 30 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from typing import Final, NamedTuple

import numpy as np

from poly.codegen.call import Expected, Record
from poly.codegen.call_ir import MAX_GIVEN
from poly.codegen.kernel import Kernel
from poly.compiler import compile_program, compile_small, machine_of
from poly.dtypes import dtype_name, numpy_dtype, size_bytes
from poly.einsum_rules import (
    FREE_WORK,
    LONGEST,
    PLAIN_WORK,
    Array,
    Dtype,
    Options,
    Signature,
    numpy_einsum,
    result_of,
    sample,
    steps_of,
)
from poly.errors import ArgumentError, ArgumentTypeError, FallbackWarning, PolyError, warn_caller
from poly.frontend.complex_sums import apart_operands, real_operands
from poly.frontend.contraction import HALVES, Steps, kept_alone
from poly.frontend.contraction_forms import Form
from poly.frontend.einsum import Equation, equation_of, work_of
from poly.frontend.form_programs import form_program
from poly.frontend.strides import (
    Dimensions,
    Memory,
    dense_strides,
    dimensions_of,
    form_of,
    is_dense,
    memory_of_pairs,
    pairs_stay,
    strides_like,
)
from poly.given_arrays import overlaps_itself
from poly.pointers import MAPPED, address, fresh_empty
from poly.program import Program
from poly.scheduling.schedule import Schedule
from poly.settings import check_settings
from poly.tuning import Tuning

WORTH_PLANES: Final = 1.25  # products an element, from which on complex operands are taken apart into planes first
WORTH_ROWS: Final = 8  # uses of an element, from which on one becomes a matrix of real numbers instead
_COMPILED: Final = frozenset("f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool c64 c128".split())


@dataclass(frozen=True)
class Viewed:
    """One operand and nothing to compute: numpy's view of it; `axes`: its axes in their order, () for a diagonal."""

    spec: str
    axes: tuple[int, ...]

    def __call__(self, arrays: Sequence[Array], _out: Array | None) -> Array:
        return arrays[0].transpose(self.axes) if self.axes else numpy_einsum(self.spec, arrays[0])


@dataclass(frozen=True)
class Fallback:
    """A dtype without compiled form that numpy computes."""

    spec: str
    options: Options
    dtype: Dtype

    def __call__(self, arrays: Sequence[Array], out: Array | None) -> Array:
        message = f"einsum {self.spec!r}: {self.dtype} has no compiled form, numpy computes it"
        warn_caller(message, FallbackWarning)
        keywords = self.options._asdict()
        del keywords["threads"], keywords["tune"]
        return numpy_einsum(self.spec, *arrays, out=out, **keywords)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel between arrays.

    `run` takes the addresses of the operands and of the result; None: nothing is summed, the result is zeros. `record`:
    the same for native code, None where a call has more to do than to enter the kernel, or `out` is not what a call
    without it would make. `casts`: for each operand the dtype it is copied to first, or None. `strides`: of a fresh
    result, where it is not in the order C. `direct`: `out` may be written in place. `factor`: what the result is
    multiplied by. `misaligned`: bits that are zero in the addresses of aligned operands.
    """

    run: Callable[[Sequence[int]], None] | None
    record: Callable[[], Record] | None
    shape: tuple[int, ...]
    dtype: Dtype
    strides: tuple[int, ...] | None
    casts: tuple[Dtype | None, ...] | None
    direct: bool
    factor: Array | None
    misaligned: int

    def __call__(self, arrays: Sequence[Array], out: Array | None) -> Array:
        if self.casts is not None:
            arrays = [a if t is None else a.astype(t, order="C") for a, t in zip(arrays, self.casts, strict=True)]
        addresses: list[int] = []
        bits = 0
        for a in arrays:
            at = address(a)
            bits |= at
            addresses.append(at)
        if bits & self.misaligned:
            arrays = [a if a.flags.aligned else _moved(a) for a in arrays]
            addresses = [address(a) for a in arrays]
        if (
            out is not None
            and self.direct
            and out.flags.aligned
            and not any(np.may_share_memory(out, a) for a in arrays)
        ):
            result = out
        else:
            result = fresh_empty(self.shape, self.dtype, self.strides)
        if self.run is None:
            result.fill(0)
        else:
            addresses.append(address(result))
            self.run(addresses)
        if self.factor is not None:
            _scale(result, self.factor)
        if out is None:
            return result if self.shape else result[()]
        if result is not out:
            np.copyto(out, result, casting="unsafe")  # whether the cast is allowed was asked before
        return out


Plan = Viewed | Fallback | Compiled


def _moved(array: Array) -> Array:
    """A copy with the same strides, at an aligned address."""
    size = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)) + array.itemsize
    copy = np.ndarray(array.shape, array.dtype, np.empty(size, np.uint8), 0, array.strides)
    np.copyto(copy, array)
    return copy


def _scale(result: Array, factor: Array) -> None:
    for part in (result.real, result.imag) if result.dtype.kind == "c" else (result,):
        np.multiply(part, factor, out=part)


def make_plan(spec: str, operands: tuple[Signature, ...], options: Options, out: Signature | None) -> Plan:
    """The plan for operands (and `out`) with these shapes, strides and dtypes. Raises as `poly.einsum` does."""
    check_settings()
    equation = equation_of(spec, [o.shape for o in operands])
    if out is not None and overlaps_itself(out.shape, out.strides, out.dtype.itemsize):
        hint = "an array of its own: numpy.empty(out.shape, out.dtype)"
        raise ArgumentError("elements of out share memory", where=f"einsum {spec!r}", hint=hint)
    if len(operands) == 1 and out is None and set(indices := equation.operands[0]) == set(equation.result):
        plain = len(indices) == len(equation.result)
        return Viewed(spec, tuple(indices.index(i) for i in equation.result) if plain else ())
    samples = [sample(o) for o in operands]
    steps = steps_of(spec, equation, samples, options.optimize)
    result = result_of(spec, equation, samples, options, out, steps)
    if result.dtype.char in "gG":
        return Fallback(spec, options, result.dtype)
    if _name(result.dtype) not in _COMPILED:
        hint = "dtype=float, casting='unsafe' computes with their values" if result.dtype.kind == "O" else None
        if hint is None and np.can_cast(result.dtype, np.float32):
            hint = "dtype='float32' computes with their values"
        message = f"arrays of {result.dtype} have no compiled form"
        raise ArgumentTypeError(message, where=f"einsum {spec!r}", hint=hint)
    plan = _compiled(equation, steps, operands, result, out, options)
    usual = out is None or result == result_of(spec, equation, samples, options, None, steps)
    return plan if usual else replace(plan, record=None)


def _name(dtype: Dtype) -> str:
    """Our name of a dtype in native byte order, "" where there is none."""
    try:
        return dtype_name(dtype)
    except PolyError:
        return ""


class _How(NamedTuple):
    """What a call is worth. `free`: no more than a kernel for any sizes, made once for all calls of a form; `plain`: no
    policy is asked, the program's own loops are the schedule; `planar`: complex operands are taken apart into planes.
    """

    free: bool
    plain: bool
    planar: bool


def _how(equation: Equation, steps: Steps, operands: Sequence[Signature], result: Signature) -> _How:
    shape, _, dtype = result
    work = work_of(equation.operands, equation.result, equation.sizes, steps)
    tiled = dtype.char in "fd" and len(steps) == 1 and not kept_alone(equation.operands, equation.result)
    tiled = tiled and not _short_sums(equation, operands, result)
    products = work * (4 if dtype.kind == "c" else 1)
    free = products <= min(FREE_WORK if tiled else PLAIN_WORK, LONGEST * prod(shape))
    elements = sum(prod(s) for s in (shape, *(o.shape for o in operands)))
    return _How(free, work <= PLAIN_WORK, dtype.kind == "c" and work >= WORTH_PLANES * elements)


def _compiled(
    equation: Equation,
    steps: Steps,
    operands: Sequence[Signature],
    result: Signature,
    out: Signature | None,
    options: Options,
) -> Compiled:
    """The plan of a call that a kernel computes: what operands are cast to, how all lie in memory, and where no cast is
    needed the record by which native code makes the call.
    """
    shape, strides, dtype = result
    how = _how(equation, steps, operands, result)
    read = [_read(o, indices, dtype, how.free) for o, indices in zip(operands, equation.operands, strict=True)]
    casts = tuple(cast for cast, _ in read)
    names = [_name(cast or o.dtype) for cast, o in zip(casts, operands, strict=True)]
    written = dimensions_of(shape, strides, dtype.itemsize, equation.result)
    direct = out is not None and out.dtype == dtype and written is not None and is_dense(written, equation.sizes)
    if written is None or not direct:
        strides = strides_like(shape, strides if out is None else (), dtype.itemsize)
        written = dimensions_of(shape, strides, dtype.itemsize, equation.result)
        assert written is not None
    memory = Memory([m for _, m in read], names, [i for i, _ in written], equation.sizes)
    computed = _name(dtype)
    if not how.free and len(names) == 1 and names[0] in HALVES and computed in HALVES and pairs_stay(memory):
        memory, computed, how = memory_of_pairs(memory), HALVES[computed], how._replace(planar=False)
    run = record = None
    changed = None if strides == dense_strides(shape, dtype.itemsize) else strides
    as_they_are = all(cast is None for cast in casts)
    factor = _factor(equation, memory, dtype)
    if 0 not in equation.sizes.values():
        kernel, values = _kernel(memory, computed, steps, how, options)
        order = [*(f"x{n}" for n in range(len(operands))), "out"]
        run = kernel.runner(order, values)
        if as_they_are and factor is None and len(operands) < MAX_GIVEN:
            expected = [*(_expected(*o) for o in operands), _expected_result(shape, changed, dtype)]
            record = partial(kernel.record, order, expected, sizes=values, release=not how.free, scalar=not shape)
    return Compiled(
        run, record, shape, dtype, changed, None if as_they_are else casts, direct, factor,
        max(numpy_dtype(n).alignment for n in names) - 1,
    )  # fmt: skip


def _short_sums(equation: Equation, operands: Sequence[Signature], result: Signature) -> bool:
    """Whether lanes of free sizes would be mostly empty: along a sum that is shorter than a vector."""
    length = prod(n for i, n in equation.sizes.items() if i not in equation.result)
    finest = _finest(equation.result, result)
    across = [_finest(indices, o) for indices, o in zip(equation.operands, operands, strict=True) if finest in indices]
    short = 1 < length < machine_of("cpu").lanes(result.dtype.itemsize)
    return short and any(i not in equation.result for i in across)


def _finest(indices: Sequence[str], array: Signature) -> str:
    """The index that an array steps along most finely, "" of one element."""
    steps = [(abs(s), i) for i, n, s in zip(indices, array.shape, array.strides, strict=True) if n > 1 and s]
    return min(steps, default=(0, ""))[1]


def _expected(shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: Dtype) -> Expected:
    """An array for native calls: an operand or (strides None: in the order C) the result."""
    steps = dense_strides(shape, dtype.itemsize) if strides is None else strides
    size = sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) + dtype.itemsize
    return Expected(shape, dtype, size, strides)


def _expected_result(shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: Dtype) -> Expected:
    found = _expected(shape, strides, dtype)
    make = partial(fresh_empty, shape, dtype, strides) if found.bytes >= MAPPED else None
    return replace(found, writable=True, make=make)


def _read(operand: Signature, indices: Sequence[str], dtype: Dtype, free: bool) -> tuple[Dtype | None, Dimensions]:
    """The dtype that an operand is copied to before the kernel (None: read where it is), and its memory then.

    numpy makes every conversion that can lose something: what such a cast gives is its business.
    """
    shape, strides, own = operand
    as_it_is = own == dtype or (not free and _name(own) in _COMPILED and np.can_cast(own, dtype, "safe"))
    overlap = not free and own.kind != "c"
    found = dimensions_of(shape, strides, own.itemsize, indices, overlap) if as_it_is else None
    if found is not None:
        return None, found
    cast = own if as_it_is else dtype
    found = dimensions_of(shape, dense_strides(shape, cast.itemsize), cast.itemsize, indices)
    assert found is not None
    return cast, found


def _factor(equation: Equation, memory: Memory, dtype: Dtype) -> Array | None:
    """What sums over indices that no operand steps along multiply with, in the result's dtype."""
    stepped = {i for m in memory.operands for i, _ in m}
    times = prod(n for i, n in equation.sizes.items() if i not in stepped and i not in equation.result)
    if times <= 1 or dtype.kind == "b":
        return None
    if dtype.kind in "iu":
        return np.asarray(times % (1 << 8 * dtype.itemsize), np.uint64).astype(dtype)
    return np.asarray(times).astype(np.empty(0, dtype).real.dtype)


# ---- kernels


def _kernel(
    memory: Memory, dtype: str, steps: Steps, how: _How, options: Options
) -> tuple[Kernel, Mapping[str, int]]:
    """A kernel with free sizes and their values, or one for these sizes alone."""
    if how.free:
        form, values = form_of(memory, dtype, steps)
        return _free_kernel(form, how.plain), dict(zip(form.parameters, values, strict=True))
    lanes = 4 * machine_of("cpu").lanes(max(map(size_bytes, [dtype, *memory.dtypes])))
    form, values = form_of(memory, dtype, steps, how.planar, lanes)
    real = _of_real_numbers(form, dict(zip(form.parameters, values, strict=True)))
    return _bound_kernel(real, values, options.threads, options.tune), {}


def _of_real_numbers(form: Form, sizes: Mapping[str, int]) -> Form:
    """A sum of complex products as one of real numbers, where that pays: a matrix for an element that is used often, or
    sums of parts, where there are no more of them than operands have elements."""

    def steps(beside: Sequence[str]) -> int:
        return prod(sizes[f"N{i}"] for i in form.indices if i not in beside)

    real, apart = real_operands(form), apart_operands(form)
    if real is not None and steps(form.operands[real[1]].indices) >= WORTH_ROWS:
        return replace(form, planar=False, real=real)
    if apart is not None and steps(form.result) >= steps(form.operands[apart[1]].indices):
        return replace(form, planar=False, real=apart, apart=True)
    return form


@lru_cache(maxsize=4096)
def _free_kernel(form: Form, plain: bool) -> Kernel:
    program = form_program(form)
    return _compiled_form(program, 1, plain) if plain else compile_small(program, machine_of("cpu"))


@lru_cache(maxsize=1024)
def _bound_kernel(form: Form, values: tuple[int, ...], threads: int, tune: Tuning | None) -> Kernel:
    return _compiled_form(form_program(form, values), threads, plain=False, tune=tune)


def _compiled_form(program: Program, threads: int, plain: bool, tune: Tuning | None = None) -> Kernel:
    kernel = compile_program(program, machine_of("cpu"), {}, threads, Schedule(program) if plain else None, tune)
    assert isinstance(kernel, Kernel)
    return kernel
