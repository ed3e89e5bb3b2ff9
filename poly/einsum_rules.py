"""What numpy would do with a call of einsum: which dtype it computes in, which casts it allows, how the result lies.

numpy itself answers, by the iterator that its own einsum runs on and by `einsum_path`; both look at samples that have
the operands' shapes, strides and dtypes, and no elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final, NamedTuple, cast

import numpy as np

from poly.dtypes import Array
from poly.errors import ArgumentTypeError, NoSuchPath, PathError, ShapeError
from poly.frontend.contraction import Steps
from poly.frontend.einsum import Equation, choose_steps
from poly.frontend.strides import strides_like
from poly.tuning import Tuning

Dtype = np.dtype[np.generic]

_SMALL: Final = 4096  # products that numpy itself makes to tell the layout of their result
FREE_WORK: Final = 1 << 15  # multiplications up to which a kernel with free sizes does, in any layout of the result
PLAIN_WORK: Final = 1 << 9  # the same where its loops are those of the source, which compile at once and have no lanes
LONGEST: Final = 1 << 8  # multiplications for one result up to which either does
# bound here: whoever puts ours in the place of numpy's must not make it call itself
numpy_einsum: Final = cast("Callable[..., Array]", np.einsum)


class Signature(NamedTuple):
    """What a plan knows of an array; strides in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Dtype


class Options(NamedTuple):
    """Keywords of a call. `dtype` None: the common one. `optimize`: False, a name, or a path with numpy's head."""

    optimize: bool | str | tuple[object, ...] = False
    dtype: Dtype | None = None
    order: str = "K"
    casting: str = "safe"
    threads: int = 1
    tune: Tuning | None = None


def sample(array: Signature) -> Array:
    """An array of this shape, strides and dtype. Its elements must not be touched."""
    try:
        return np.lib.stride_tricks.as_strided(np.zeros((), array.dtype), array.shape, array.strides)
    except TypeError:  # a dtype that numpy itself knows too little of: float8_e5m2 of ml_dtypes
        plain = np.zeros((), f"V{array.dtype.itemsize}")
        return np.lib.stride_tricks.as_strided(plain, array.shape, array.strides).view(array.dtype)


def steps_of(
    spec: str, equation: Equation, samples: Sequence[Array], optimize: bool | str | tuple[object, ...]
) -> Steps:
    """The order of contractions: ours for False, numpy's or opt_einsum's for what they understand."""
    if optimize is False or len(samples) == 1 or (len(samples) == 2 and optimize in (True, "greedy", "optimal")):
        return choose_steps(equation.operands, equation.result, equation.sizes)
    if isinstance(optimize, str) and optimize not in ("greedy", "optimal"):
        path = _path_by_name(spec, samples, optimize)
    else:
        path = _numpy_path(spec, samples, optimize)
    return tuple(tuple(sorted(step)) for step in path)


def _path_by_name(spec: str, samples: Sequence[Array], name: str) -> Sequence[tuple[int, ...]]:
    from opt_einsum import contract_path

    try:
        return contract_path(spec, *(s.shape for s in samples), shapes=True, optimize=name)[0]  # pyright: ignore
    except KeyError as error:
        raise NoSuchPath(f"no optimizer {name!r}", hint="greedy, optimal, or a name that opt_einsum knows") from error


def _numpy_path(spec: str, samples: Sequence[Array], optimize: object) -> Sequence[tuple[int, ...]]:
    if isinstance(optimize, tuple) and optimize[:1] == ("einsum_path",):
        optimize = [*optimize]
    try:
        path = np.einsum_path(spec, *samples, optimize=optimize)[0]  # pyright: ignore
    except (RuntimeError, IndexError) as error:  # IndexError also for operands without dimensions
        if optimize in (True, "greedy", "optimal"):
            return [tuple(range(len(samples)))]
        raise PathError(str(error), where=f"einsum {spec!r}") from error
    except (TypeError, KeyError) as error:
        raise ArgumentTypeError(str(error), where="optimize", hint="True, 'greedy', 'optimal' or a path") from error
    return path[1:]


def result_of(
    spec: str,
    equation: Equation,
    samples: Sequence[Array],
    options: Options,
    out: Signature | None,
    steps: Steps = (),
) -> Signature:
    """The result as numpy would allocate it (for `steps` where `optimize` is asked for), in the dtype in which it
    computes; with `out`, that array's strides.

    numpy's einsum takes `out` into the common dtype; with `optimize`, where products of matrices take over, it assigns
    to it. Raises `ArgumentTypeError` for a cast that is not allowed, `ShapeError` where shapes do not fit.
    """
    shape = tuple(equation.sizes[i] for i in equation.result)
    if out is not None and out.shape != shape:
        hint = f"out=numpy.empty({shape}, {out.dtype.name!r})"
        raise ShapeError(f"out has shape {out.shape}, the result {shape}", where=f"einsum {spec!r}", hint=hint)
    try:
        iterator = _iterator(equation, samples, options, None if options.optimize is not False else out)
    except TypeError as error:
        message, hint = str(error).replace("Iterator operand", "operand"), "casting='unsafe', or convert the operands"
        raise ArgumentTypeError(message, where=f"einsum {spec!r}", hint=hint) from error
    except ValueError as error:
        raise ShapeError(str(error), where=f"einsum {spec!r}") from error
    strides = iterator.operands[-1].strides if out is None else out.strides
    if out is None and steps and len(samples) > 1 and options.optimize is not False and 0 not in shape:
        most = 2 if prod(equation.sizes.values()) > _SMALL else _SMALL
        strides = _strides_of_steps(spec, samples, steps, options.order, most)  # their order is what counts
    if out is None and options.order == "K" and prod(equation.sizes.values()) > FREE_WORK:
        strides = _batches_outermost(equation, samples, Signature(shape, strides, iterator.dtypes[-1]))
    return Signature(shape, strides, iterator.dtypes[-1])


def _batches_outermost(equation: Equation, samples: Sequence[Array], result: Signature) -> tuple[int, ...]:
    """Strides with the indices of all operands outermost, where numpy's order ends with one that no operand's does.

    Elements that lie side by side would then be of different products: there would be no lanes but along that index.
    """
    batch = set(equation.result).intersection(*equation.operands)
    axes = [(abs(t), i) for i, n, t in zip(equation.result, result.shape, result.strides, strict=True) if n > 1]
    if not axes or min(axes)[1] not in batch - {_finest(s, o) for s, o in zip(samples, equation.operands, strict=True)}:
        return result.strides
    largest = max(axes)[0]
    like = [abs(t) + largest * (i in batch) for i, t in zip(equation.result, result.strides, strict=True)]
    return strides_like(result.shape, like, result.dtype.itemsize)


def _finest(array: Array, indices: Sequence[str]) -> str:
    """The index along which an operand's elements lie side by side, "" where there is none."""
    moving = [(abs(t), i) for i, n, t in zip(indices, array.shape, array.strides, strict=True) if n > 1 and t]
    return min(moving, default=(0, ""))[1]


def _strides_of_steps(spec: str, samples: Sequence[Array], steps: Steps, order: str, most: int) -> tuple[int, ...]:
    """Strides as numpy's products of matrices leave them: it contracts zeros of extents up to `most`."""
    small: list[Array] = []
    for s in samples:
        shape = [min(n, most) for n in s.shape]
        axes = sorted(range(s.ndim), key=lambda k, s=s: -abs(s.strides[k]))
        gap = 0 if s.flags.c_contiguous or s.flags.f_contiguous else 1
        memory = np.zeros([shape[k] << gap * (k == axes[-1]) for k in axes])
        small.append(memory[..., :: 1 + gap].transpose(np.argsort(axes)) if axes else memory)
    path = ["einsum_path", *steps]
    return numpy_einsum(spec, *small, optimize=path, order=order).strides


def _iterator(equation: Equation, samples: Sequence[Array], options: Options, out: Signature | None) -> np.nditer:
    """numpy's own iterator over the operands, whose dtype, casts and memory order of the result are ours."""
    result = equation.result
    axes = [*result, *sorted(i for i in equation.sizes if i not in result)]  # numpy's order: it breaks ties by it
    views: list[Array] = []
    op_axes: list[list[int]] = []
    for array, indices in zip(samples, equation.operands, strict=True):
        own = tuple(dict.fromkeys(indices))
        views.append(array if own == indices else _diagonal(array, indices, own))
        op_axes.append([own.index(i) if i in own else -1 for i in axes])
    op_axes.append([k if k < len(result) else -1 for k in range(len(axes))])
    flags = ["external_loop", "buffered", "delay_bufalloc", "reduce_ok", "refs_ok", "zerosize_ok"]
    reading, writing = ["readonly", "nbo", "aligned"], ["readwrite", "nbo", "aligned", "allocate", "no_broadcast"]
    return np.nditer(
        [*views, None if out is None else sample(out)],
        flags=flags + ["common_dtype"] * (options.dtype is None),  # type: ignore[arg-type]
        op_flags=[*[reading] * len(views), writing],  # type: ignore[list-item]
        op_dtypes=None if options.dtype is None else [options.dtype] * (len(views) + 1),
        order=options.order,  # type: ignore[arg-type]
        casting=options.casting,  # type: ignore[arg-type]
        op_axes=op_axes,
    )


def _diagonal(array: Array, indices: Sequence[str], own: Sequence[str]) -> Array:
    number = {i: k for k, i in enumerate(own)}
    return numpy_einsum(array, [number[i] for i in indices], [*range(len(own))])
