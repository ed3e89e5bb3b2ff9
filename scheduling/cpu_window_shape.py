"""What access maps and domains say of a group whose reduction is a window, and where a window leaves its tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from poly.affine import Affine, var
from poly.program import Access, Program, Statement
from poly.relations import intervals_of
from poly.scheduling.groups import Group

# Points of a window; more where it is multiplied by something, many more where its columns are not laid out (0106).
MOST_TAPS, MOST_WEIGHED, MOST_ROLLED = 64, 100, 1024


@dataclass(frozen=True)
class Shape:
    """What the access maps say, named as in `poly.scheduling.cpu_window.Window`. `taps`: extents of the reduction
    iterators by name; `row`: the tensor's axis along rows; `height`, `width`: iterations of rows and lanes; `along`:
    the iterator of the lanes.
    """

    read: Access
    rows: int
    lanes: int
    down: str
    sideways: str
    taps: Mapping[str, int]
    others: tuple[Access, ...]
    row: int
    step: int
    step_down: int
    spread: int
    height: int
    width: int
    along: str

    @property
    def planes(self) -> int:
        """Rows that a window reads at once along other axes than the rows' own."""
        planes = 1
        for axis, subscript in enumerate(self.read.index[:-1]):
            if axis != self.row and isinstance(subscript, Affine):
                planes *= prod(self.taps[n] for n in subscript.names if n in self.taps)
        return planes


def shape_of(program: Program, group: Group, update: Statement) -> Shape | None:
    """Every reduction iterator stands beside one parallel loop in one subscript of the windowed read; the other reads
    stand still along rows and lanes.
    """
    axes, box = group.axes[update.name], group.box or ()
    lanes = axes.index(str(update.write.index[-1]))
    moving = [a for a in update.reads if any(isinstance(i, Affine) and axes[lanes] in i.names for i in a.index)]
    if len(moving) != 1 or moving[0].indirect or [a.tensor for a in update.reads].count(moving[0].tensor) != 1:
        return None
    read, every = moving[0], _extents(program, update, axes)
    placed = beside(read, axes, every or {})
    taps = {n: e for n, e in (every or {}).items() if e > 1 or n in placed}
    used = {n for i in read.affine_index for n in i.names}
    again = any(high > 0 and a not in used for a, (_, high) in zip(axes, box, strict=True))
    if every is None or again or placed.keys() != taps.keys() or axes[lanes] not in placed.values():
        return None
    sideways = next((n for n, a in placed.items() if a == axes[lanes] and n in read.affine_index[-1].names), "")
    rows, down = max(((axes.index(a), n) for n, a in placed.items() if n != sideways), default=(-1, ""))
    if not sideways or rows < 0 or box[rows][1] < 1:
        return None
    others = tuple(a for a in update.reads if a is not read)
    still = {axes[lanes], axes[rows]}
    if any(a.guard or any(not isinstance(i, Affine) or i.names & still for i in a.index) for a in others):
        return None
    row = row_axis(read, axes[rows])
    along, last = read.affine_index[row], read.affine_index[-1]
    return Shape(
        read, rows, lanes, down, sideways, taps, others, row, step=last.coefficient(axes[lanes]),
        step_down=along.coefficient(axes[rows]), spread=along.coefficient(down) if down else 1,
        height=box[rows][1] + 1, width=box[lanes][1] + 1, along=axes[lanes],
    )  # fmt: skip


def suits(group: Group, update: Statement) -> bool:
    """Whether loops start at 0, and every statement writes its parallel loops as they are, lanes last."""
    assert group.box is not None
    axes = group.axes[update.name]
    if len(axes) < 2 or any(low != 0 for low, _ in group.box):
        return False
    places = [i for i in update.write.index if isinstance(i, Affine) and i.names]
    if {str(i) for i in places} != set(axes) or update.write.indirect:
        return False
    last = update.write.index[-1]
    if not isinstance(last, Affine) or last != var(str(last)):
        return False
    lanes = axes.index(str(last))
    return all(s.write.index[-1] == var(group.axes[s.name][lanes]) for s in group.statements)


def beside(read: Access, axes: Sequence[str], taps: Mapping[str, int]) -> dict[str, str]:
    """The parallel loop beside each reduction iterator, in subscripts of the form a*loop + b*iterator + c, a, b > 0."""
    found: dict[str, str] = {}
    for subscript in read.affine_index:
        inner, outer = subscript.names & taps.keys(), subscript.names & set(axes)
        if len(inner) == 1 and len(outer) == 1 and subscript.is_linear and len(subscript.names) == 2:
            if all(subscript.coefficient(n) > 0 for n in subscript.names):
                found[next(iter(inner))] = next(iter(outer))
    return found


def inside_of(program: Program, read: Access, loop: str, tap: str, axis: int, taps: int) -> tuple[int, int]:
    """The positions of a loop, first and end, at which the whole window lies in the tensor."""
    index = read.affine_index[axis]
    step, reach = index.coefficient(loop), (index.coefficient(tap) if tap else 0) * (taps - 1)
    extent = int(program.tensor[read.tensor].shape[axis].evaluate(program.binding))
    return max(0, -(index.constant // step)), (extent - 1 - reach - index.constant) // step + 1


def row_axis(access: Access, iterator: str) -> int:
    return next(d for d, i in enumerate(access.index) if isinstance(i, Affine) and iterator in i.names)


def _extents(program: Program, s: Statement, axes: Sequence[str]) -> dict[str, int] | None:
    """Extents of the reduction iterators where all start at 0."""
    found: dict[str, int] = {}
    for name, values in intervals_of(program, s).items():
        if name not in axes:
            if values is None or values[0] != 0:
                return None
            found[name] = values[1] + 1
    return found
