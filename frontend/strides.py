"""How the operands of a contraction lie in memory, as the `Form` that a kernel is made for.

Dimensions go by falling stride, whatever the order of the axes; a gap between two becomes an extent that memory has and
the loops do not use. Extents of 1 and repeated elements (stride 0) are left out, and indices that follow each other
without a gap in every operand and in the result become one, so that many calls share a form. Windows that overlap, as
numpy's `sliding_window_view` gives them, walk along one axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from poly.frontend.contraction import HALVES, Lanes, Steps, kept_alone
from poly.frontend.contraction_forms import Form, View

MOST_RESULTS: Final = 64  # results up to which a sum is worth lanes of its own
LEAST_ROUNDS: Final = 16  # additions a lane

Dimensions = list[tuple[str, int]]  # index and stride in elements, by falling stride


def dense_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of the order C."""
    strides: list[int] = []
    for extent in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(extent, 1)
    return tuple(reversed(strides))


def strides_like(shape: Sequence[int], like: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides without gaps whose axes are in the order of the strides `like`."""
    order = sorted(range(len(like)), key=lambda k: -abs(like[k]))
    if [k for k in order if shape[k] != 1] == sorted(k for k in order if shape[k] != 1):
        return dense_strides(shape, itemsize)
    dense = dense_strides([shape[k] for k in order], itemsize)
    return tuple(dense[order.index(k)] for k in range(len(shape)))


def dimensions_of(
    shape: Sequence[int], strides: Sequence[int], itemsize: int, indices: Sequence[str], overlap: bool = False
) -> Dimensions | None:
    """The dimensions that step through memory, if they nest: each stride a multiple of the next and wide enough, or
    (`overlap`) narrower, of windows over one axis.
    """
    found = [(i, n, s) for i, n, s in zip(indices, shape, strides, strict=True) if n != 1 and s != 0]
    if any(s < 0 or s % itemsize for _, _, s in found):
        return None
    found.sort(key=lambda d: -d[2])
    axes = _nested([(n, s // itemsize) for _, n, s in found])
    if axes is None or (not overlap and any(step for _, step in axes)):
        return None
    return [(i, s // itemsize) for i, _, s in found]


def _nested(dimensions: Sequence[tuple[int, int]]) -> list[tuple[int, int]] | None:
    """For dimensions (extent and stride, by falling stride): what the axis behind is wide in memory, 0 where the
    dimension follows without a gap; and how far it moves along that axis, 0 where it has one of its own. None where
    they do not nest. A `View` has it without the widths, which are parameters of its form (`axes_of`).
    """
    found: list[tuple[int, int]] = []
    unit, width = 1, 1
    for extent, stride in reversed(dimensions):
        pitch, rest = divmod(stride, unit)
        if rest:
            return None
        if pitch < width:
            found.append((0, pitch))
            width += pitch * (extent - 1)
        else:
            found.append((pitch if pitch > width else 0, 0))
            unit, width = stride, extent
    return found[::-1]


def is_dense(dimensions: Dimensions, sizes: Mapping[str, int]) -> bool:
    """No gaps."""
    step = 1
    for i, stride in reversed(dimensions):
        if stride != step:
            return False
        step *= sizes[i]
    return True


@dataclass(frozen=True)
class Memory:
    """The operands and the result (without gaps) of a contraction in memory; every index steps somewhere.

    `dtypes`: of the operands. `sizes`: the extent of every index.
    """

    operands: Sequence[Dimensions]
    dtypes: Sequence[str]
    result: Sequence[str]
    sizes: Mapping[str, int]


PARTS: Final = "parts"  # the index of a real and an imaginary part, which lie side by side


def pairs_stay(memory: Memory) -> bool:
    """Whether the index that an only operand steps along most finely is one of the result, so that it is in lanes."""
    (dimensions,) = memory.operands
    return not dimensions or dimensions[-1][0] in memory.result


def memory_of_pairs(memory: Memory) -> Memory:
    """The same memory as floats: nothing is multiplied, so both parts of a complex number go the same way."""
    operands = [[*((i, 2 * stride) for i, stride in m), (PARTS, 1)] for m in memory.operands]
    dtypes = [HALVES[d] for d in memory.dtypes]
    return Memory(operands, dtypes, [*memory.result, PARTS], {**memory.sizes, PARTS: 2})


def form_of(
    memory: Memory, dtype: str, steps: Steps, planar: bool = False, lanes: int = 1
) -> tuple[Form, tuple[int, ...]]:
    """The form of a contraction computed in `dtype`, and the values of its parameters.

    `planar`: take complex numbers apart. `lanes`: how many partial sums a long sum of few results is split into.
    """
    operands, result, extents = _merged(memory)
    rename: dict[str, str] = {}
    for i in [*(i for m in operands for i, _ in m), *result]:
        rename.setdefault(i, f"i{len(rename)}")
    views: list[View] = []
    gaps: list[int] = []
    for dimensions, name in zip(operands, memory.dtypes, strict=True):
        axes = _nested([(extents[i], stride) for i, stride in dimensions])
        assert axes is not None  # `dimensions_of`
        gaps += [pitch for pitch, _ in axes if pitch]
        dense, along = tuple(not pitch for pitch, _ in axes), tuple(step for _, step in axes)
        views.append(View(tuple(rename[i] for i, _ in dimensions), dense, name, along if any(along) else ()))
    values = {rename[i]: extents[i] for i in rename}
    form = Form(tuple(views), tuple(rename[i] for i in result), steps, dtype, planar)
    long = _long_sum(form, values, lanes) if lanes > 1 else None
    if long is not None:
        form = replace(form, lanes=Lanes.of(long, values[long], lanes))
    return form, (*(values[i] for i in form.indices), *gaps)


def _long_sum(form: Form, sizes: Mapping[str, int], lanes: int) -> str | None:
    """An index to sum in lanes: many elements that lie side by side, few results. None where there is none."""
    if len(form.steps) > 1 or prod(sizes[i] for i in form.result) > MOST_RESULTS:
        return None
    if kept_alone([v.indices for v in form.operands], form.result):
        return None
    found = [i for i in form.indices if i not in form.result and sizes[i] >= LEAST_ROUNDS * lanes]
    for view in form.operands:
        last = view.indices[-1:] if view.dense and view.dense[-1] and not view.overlaps else ()
        found = [i for i in found if i not in view.indices or (last == (i,) and view.indices.count(i) == 1)]
    return max(found, key=lambda i: sizes[i], default=None)


def _merged(memory: Memory) -> tuple[list[Dimensions], list[str], dict[str, int]]:
    """Operands, result and extents with indices merged; the inner one's name stays."""
    operands, result, extents = [list(m) for m in memory.operands], list(memory.result), dict(memory.sizes)
    candidates = [(a[0], b[0]) for m in operands for a, b in zip(m, m[1:], strict=False)]
    candidates += list(zip(result, result[1:], strict=False))
    while candidates:
        outer, inner = candidates.pop()
        if not _together(operands, result, outer, inner, extents[inner]):
            continue
        operands = [[d for d in m if d[0] != outer] for m in operands]
        result = [i for i in result if i != outer]
        extents[inner] *= extents[outer]
        candidates = [(a, inner if b == outer else b) for a, b in candidates if a != outer]
    return operands, result, extents


def _together(operands: Sequence[Dimensions], result: Sequence[str], outer: str, inner: str, extent: int) -> bool:
    if outer == inner:
        return False
    for m in operands:
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
