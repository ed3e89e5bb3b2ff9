"""Whole contractions by the shape of their operands in memory alone: one program for all extents and strides, which are
its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from poly.affine import Affine, var
from poly.frontend.contraction import Contractions, Lanes, Steps
from poly.program import Program


@dataclass(frozen=True)
class View:
    """How an operand lies in memory: the index of each of its dimensions, the one of the widest stride first.

    `dense[k]`: the next dimension (for the last: one element) follows without a gap. An index may occur twice.
    `steps[k]`: 0, or how far dimension k, one of overlapping windows, moves along the axis of the next.
    """

    indices: tuple[str, ...]
    dense: tuple[bool, ...]
    dtype: str
    steps: tuple[int, ...] = ()

    @property
    def overlaps(self) -> bool:
        return any(self.steps)


@dataclass(frozen=True)
class _Axis:
    """An axis of an operand's tensor, and where it is read. `pitch`: the parameter that is its extent in memory."""

    extent: Affine
    subscript: Affine
    pitch: str = ""


@dataclass(frozen=True)
class Form:
    """A contraction without its extents and strides. `result`: indices of the dense result, outermost first.

    `planar`: complex operands are taken apart into planes first, and put together last. `real`: the numbers of two
    operands, the second of which is made a matrix of real numbers instead, or (`apart`) products of whose parts are
    summed each by itself (`poly.frontend.complex_sums`). `lanes`: how a long sum is cut, for one extent of its index.
    """

    operands: tuple[View, ...]
    result: tuple[str, ...]
    steps: Steps
    dtype: str
    planar: bool = False
    lanes: Lanes | None = None
    real: tuple[int, int] | None = None
    apart: bool = False

    @property
    def indices(self) -> tuple[str, ...]:
        """Every index once, in a fixed order."""
        return tuple(dict.fromkeys([*(i for v in self.operands for i in v.indices), *self.result]))

    @property
    def parameters(self) -> tuple[str, ...]:
        """Extents of the indices, then for each gap the extent that memory has there."""
        gaps = [f"P{n}_{k}" for n, v in enumerate(self.operands) for k, dense in enumerate(v.dense) if not dense]
        return (*(f"N{i}" for i in self.indices), *gaps)

    def finished(self, build: Contractions, values: Sequence[int] | None) -> Program:
        """The program of what was collected, for parameters with these values."""
        conditions = [f"N{i} >= 1" for i in self.indices]
        sizes = {i: var(f"N{i}") for i in self.indices}
        axes = [axis for n, v in enumerate(self.operands) for axis in axes_of(n, v, sizes)]
        conditions += [f"{axis.pitch} >= {axis.extent.isl_text}" for axis in axes if axis.pitch]
        if (cut := self.lanes) is not None:
            extent = (cut.block * cut.blocks + cut.rounds) * cut.lanes + cut.rest
            conditions.append(f"N{cut.index} = {extent}")
        bound = {} if values is None else dict(zip(self.parameters, values, strict=True))
        return build.program("einsum", conditions, bound)

    def place(self, n: int, view: View, sizes: Mapping[str, Affine]) -> tuple[list[Affine], list[Affine]]:
        """The extents of an operand's tensor and the subscripts that it is read at."""
        axes = axes_of(n, view, sizes)
        return [var(a.pitch) if a.pitch else a.extent for a in axes], [a.subscript for a in axes]

    def has_gaps(self, n: int, view: View, sizes: Mapping[str, Affine]) -> bool:
        """Whether memory has gaps behind the rows of an operand's tensor."""
        return any(axis.pitch for axis in axes_of(n, view, sizes)[-1:])


def axes_of(n: int, view: View, sizes: Mapping[str, Affine]) -> list[_Axis]:
    """The axes in memory of operand `n`, outermost first: its view read back, with sizes and parameters for numbers."""
    axes: list[_Axis] = []
    for k, i in reversed([*enumerate(view.indices)]):
        if view.overlaps and (step := view.steps[k]):
            own = axes[-1]
            axes[-1] = replace(own, extent=own.extent + (sizes[i] - 1) * step, subscript=own.subscript + var(i) * step)
            continue
        if not view.dense[k]:
            behind = axes.pop() if axes else _Axis(Affine.of(1), Affine())
            axes.append(replace(behind, pitch=f"P{n}_{k}"))
        axes.append(_Axis(sizes[i], var(i)))
    return axes[::-1]
