"""What a box of iterations touches of an operand, in a cache's lines.

Boxes are given by their number of iterations along every loop, as arrays with an element for each candidate: corners
are affine in these sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poly.locks import cached_property
from poly.scheduling.cpu_core import PAGE, START, STREAMS, Core
from poly.scheduling.cpu_shares import EDGE, Numbers


class Touched(NamedTuple):
    """Bytes of an operand's cache lines that boxes touch: `first` as they come into the first cache, `further` as they
    count further out, `scattered` what of these is for pieces in pages of their own; `footprint`: of a cache,
    where they fall together.
    """

    first: Numbers
    further: Numbers
    scattered: Numbers
    footprint: Numbers


class _Pieces(NamedTuple):
    """Pieces of memory: elements of one (`run`), their number, of the first cache's sets the most that a step
    leaves out for each piece (`crowd`); whether pages lie `apart`, and so `far` that a core does not know them all.
    """

    run: Numbers
    number: Numbers
    crowd: Numbers
    apart: npt.NDArray[np.bool_]
    far: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Operand:
    """One access. `axes`: factors of the iterators in every subscript; `strides`: bytes along every axis."""

    tensor: str
    axes: tuple[Mapping[str, int], ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: int
    write: bool = False

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * self.element

    def depends(self, iterator: str) -> bool:
        return iterator in self._apart

    def stride(self, iterator: str) -> int:
        """Bytes between neighbours along a loop."""
        return self._apart.get(iterator, 0)

    @cached_property
    def _apart(self) -> Mapping[str, int]:
        """Bytes between neighbours along every loop."""
        found: dict[str, int] = {}
        for axis, step in zip(self.axes, self.strides, strict=True):
            for iterator, factor in axis.items():
                found[iterator] = found.get(iterator, 0) + factor * step
        return found

    def extents(self, sizes: Mapping[str, Numbers]) -> list[tuple[Numbers, Numbers | None]]:
        """By axis the elements in a row that a box of iterations touches, and the number of such rows, where steps
        leave more out between them than a prefetcher reaches over (None: nowhere).
        """
        found: list[tuple[Numbers, Numbers | None]] = []
        for axis, extent, stride in zip(self.axes, self.shape, self.strides, strict=True):
            far = {i: c for i, c in axis.items() if (abs(c) - 1) * stride > EDGE}
            near = _reach({i: c for i, c in axis.items() if i not in far}, extent, sizes)
            if not far:
                found.append((near, None))
                continue
            total, rows = _reach(axis, extent, sizes), prod((sizes[i] for i in far), start=np.ones(()))
            one = near * rows >= total
            found.append((np.where(one, total, near), np.where(one, 1.0, rows)))
        return found

    def elements(self, sizes: Mapping[str, Numbers]) -> Numbers:
        total: Numbers = np.ones(())
        for extent, rows in self.extents(sizes):
            total = total * extent if rows is None else total * extent * rows
        return total

    def lines(
        self,
        core: Core,
        sizes: Mapping[str, Numbers],
        follows: npt.NDArray[np.bool_] | bool = False,
        walked: Numbers | float = inf,
    ) -> Touched:
        """The cache lines that a box touches. `follows`: the next box goes on where this one ends, in lines that only
        the first cache has lost by then. `walked`: bytes after which a walk through the box leaves a piece.
        """
        line = core.line
        run, count, crowd, apart, far = self._pieces(core, sizes)
        length = run * self.element
        lines = (length - self.element) / line + 1  # of a piece that starts anywhere
        touched = count * lines * line
        starts = np.where(count > STREAMS, count, 0.0)
        first = touched + starts * (core.near + START * (crowd >= core.sets))
        left = count * np.where(apart, np.maximum(length / walked, 1.0), 1.0)  # pieces as they are walked
        starts = np.where(left > STREAMS, left, 0.0)
        shared = np.where(follows, np.minimum(length / line, 1.0), 1.0)  # of a line with the box before
        start = starts * shared * np.where(far, core.page, START)
        further = touched * np.where(follows, length / line / lines, 1.0) + start
        return Touched(first, further, np.where(far, start, 0.0), touched * np.maximum(crowd / lines, 1.0))

    def _pieces(self, core: Core, sizes: Mapping[str, Numbers]) -> _Pieces:
        """The pieces of memory that a box lies in, by its axes from the fastest on."""
        run, count, crowd = np.ones(()), np.ones(()), np.ones(())
        far = apart = np.zeros((), bool)
        whole: npt.NDArray[np.bool_] | None = np.ones((), bool)  # the axes so far lie in one piece; None: they cannot
        dense = self.element
        for (extent, rows), size, stride in zip(
            reversed(self.extents(sizes)), reversed(self.shape), reversed(self.strides), strict=True
        ):
            if rows is not None:
                count = count * rows
            sets = core.crowding(stride) / count  # the pieces of a step fill the sets that it leaves out
            over = (extent > 1) & (extent * stride > core.pages * PAGE) & (stride >= PAGE)
            if whole is not None and stride == dense:
                count = np.where(whole, count, count * extent)
                crowd = np.where(whole | (extent < 2), crowd, np.maximum(crowd, sets))
                far, apart = far | (~whole & over), apart | ((extent > 1) & (stride >= PAGE))
                run = np.where(whole, run * extent, run)
                whole, dense = whole & (extent >= size), dense * size
                continue
            whole = None
            count = count * extent
            crowd = np.where(extent < 2, crowd, np.maximum(crowd, sets))
            far, apart = far | over, apart | ((extent > 1) & (stride >= PAGE))
        return _Pieces(run, count, crowd, apart, far)


def _reach(axis: Mapping[str, int], extent: int, sizes: Mapping[str, Numbers]) -> Numbers:
    """Elements of an axis from the first to the last that a box touches."""
    total: Numbers | None = None
    for i, c in axis.items():
        part = sizes[i] - 1.0 if abs(c) == 1 else abs(c) * (sizes[i] - 1.0)
        total = part if total is None else total + part
    return np.ones(()) if total is None else np.minimum(1.0 + total, float(extent))


def next_stays(
    core: Core, operands: Sequence[Operand], k: int, sizes: Mapping[str, Numbers], level: int = 0
) -> npt.NDArray[np.bool_]:
    """Whether a cache holds, besides all that is used of a box, as much of one operand once more: what is copied for
    the next box can be asked for while this one is used. Where much is asked for, as it lies: in few sets, maybe.
    """
    used = sum((o.elements(sizes) * o.element for o in operands), np.zeros(()))
    lies = level > 0 and core.afar > 0
    following = operands[k].lines(core, sizes).footprint if lies else operands[k].elements(sizes) * operands[k].element
    return used + following <= core.caches[level].capacity
