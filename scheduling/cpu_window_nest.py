"""Nests of windows, composed of primitives as `poly.scheduling.cpu_window` chooses.

Loops from the outside in: outer, strips of rows [what a strip reads, with its padding, in the first cache level; the
other operands in registers], rows of register tiles, vectors [the sums in registers], columns of the window, rows read,
rows written, lanes. A row of the input is loaded once and used for all the rows of the tile that its window reaches.
Where nothing weighs the window, its columns are reduced before its rows: a partial result for each row written, which
are all equal, so that LLVM computes one (a window of 5 x 5 takes 10 operations instead of 25).
"""

from __future__ import annotations

from collections.abc import Sequence

from poly.affine import var
from poly.machine import Machine
from poly.program import Statement
from poly.relations import interval_of
from poly.scheduling.cpu_chain import keep_values
from poly.scheduling.cpu_edits import (
    Composition,
    axis_last,
    cut,
    extent_of,
    fused,
    in_vectors,
    loop_of,
    loops_of_copy,
    results_asked,
    unrolled,
)
from poly.scheduling.cpu_window import Window
from poly.scheduling.edits import piece_name
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule

COPIED_VECTORS = 16  # in a row of the copy: beyond, only its ends are told apart
COPIES = 40  # vectors of a copy that may be laid out


def schedule_window(schedule: Schedule, group: Group, window: Window, machine: Machine) -> Schedule:
    """Fuse, split, tile, promote and mark the statements of a window's group."""
    return keep_values(Windows(group, window, machine).run(schedule), group, machine)


class Windows(Composition):
    """The composition for one group."""

    def __init__(
        self, group: Group, window: Window, machine: Machine, blocks: int = 0, along: int | None = None
    ) -> None:
        """`blocks`: loops over blocks of lanes; `along`: the target's axis along the lanes (None: its last)."""
        super().__init__(group, machine)
        self.window, self.along = window, along
        axes = group.axes[window.statement]
        self.outer = [a for a in range(len(axes)) if a not in (window.rows, window.lanes)]
        self.depth = len(self.outer) + blocks  # of loops around those of a piece

    def run(self, schedule: Schedule) -> Schedule:
        w, names = self.window, list(self.group.names)
        schedule = self._ordered(schedule, names, (*self.outer, w.lanes, w.rows))
        schedule = fused(schedule, names, range(len(self.outer)))
        schedule, parts = cut(schedule, self.group, names, w.lanes, w.lane_cuts)
        for part in parts:
            schedule = self._ordered(schedule, part, (*self.outer, w.rows, w.lanes))
            schedule, pieces = cut(schedule, self.group, part, w.rows, w.cuts)
            for piece in pieces:
                schedule = self._piece(schedule, piece)
        return schedule

    def _range(self, schedule: Schedule, name: str, axis: int) -> tuple[int, int]:
        """First and last value of a parallel loop's iterator in one piece of a statement."""
        s = schedule.program.statement[name]
        found = interval_of(schedule.program, s, self.group.axes[s.source_name][axis])
        assert found is not None  # a group's parallel loops are a box
        return found

    def _piece(self, schedule: Schedule, names: Sequence[str]) -> Schedule:
        """Strips, register tiles and lanes of one piece; promotions from the outside in."""
        w, depth = self.window, self.depth
        low, high = self._range(schedule, names[0], w.rows)
        height, strip = min(w.height, high - low + 1), min(w.strip, high - low + 1)
        if strip % height and not w.unrolled:
            strip = height
        first, last = self._range(schedule, names[0], w.lanes)
        vectors = -(-(last - first + 1) // w.vector)
        laid_out = w.unrolled or (last - first + 1) % w.vector != 0
        for name in names:
            schedule = self._tiled(schedule, name, (low, strip, height), first, laid_out and vectors > 1)
        schedule = fused(schedule, names, range(depth, depth + 3))
        around = schedule.nests[names[0]].names
        update = next(n for n in names if schedule.program.statement[n].source_name == w.statement)
        if w.copied:
            schedule = self._copied(schedule, update, around[depth], (low, high, strip))
        for tensor in w.kept:
            schedule = self._kept(schedule, tensor, update, around[depth])
        schedule, parts = self._vectors_apart(schedule, names, depth + 2, 0 if laid_out else vectors)
        for part in parts:
            schedule = self._targets(schedule, part, schedule.nests[part[0]].names[depth + 2])
            update = next(n for n in part if schedule.program.statement[n].source_name == w.statement)
            tiles, vectors = around[depth + 1], schedule.nests[update].names[-1]
            if w.shifted:
                schedule, vectors = self._shifted(schedule, update)
            if w.by_columns:
                schedule, vectors = self._column(schedule, update)
            if w.columns_first:
                schedule = self._reduced(schedule, update)
            if w.asks_ahead and not w.copied and schedule.kind(tiles) == "serial":
                schedule = schedule.prefetch(vectors, tiles)
        return results_asked(schedule, around[depth + 1]) if w.asks_results else schedule

    def _vectors_apart(
        self, schedule: Schedule, names: Sequence[str], depth: int, vectors: int
    ) -> tuple[Schedule, list[list[str]]]:
        """The loop over vectors that statements share at a depth, cut where the window meets an edge."""
        parts = [list(names)]
        for place in self.window.vector_cuts:
            if place < vectors:
                lower, upper = ([piece_name(schedule, n, piece) for n in parts[-1]] for piece in ("lo", "hi"))
                schedule = schedule.split(schedule.nests[parts[-1][0]].names[depth], place)
                parts[-1:] = [lower, upper]
        return schedule, parts

    def _tiled(
        self, schedule: Schedule, name: str, rows: tuple[int, int, int], first: int, laid_out: bool
    ) -> Schedule:
        """Loops: strips, register tiles of rows, vectors, [columns of the window], rows, lanes."""
        w, (low, strip, height) = self.window, rows
        down, lanes = self._loop(schedule, name, w.rows), self._loop(schedule, name, w.lanes)
        for loop, start, size in ((down, low, strip), (lanes, first, w.vector)):
            if start % size:
                schedule = schedule.shift(name, loop, -start)
        schedule = schedule.tile({down: strip}).tile({f"{down}.p": height}).tile({lanes: w.vector})
        row = f"{down}.p.p"
        if blocks := self._rows_in_blocks(schedule, name):
            schedule = schedule.tile({blocks: w.rows_read})
        order = [f"{down}.o", f"{down}.p.o", f"{lanes}.o"]
        rest = [n for n in schedule.nests[name].names[self.depth :] if n not in (*order, row, f"{lanes}.p")]
        schedule = schedule.reorder(*order, *self._inner(schedule, name, rest, row), f"{lanes}.p")
        rolled = {loop_of(schedule, name, w.sideways)} if w.rolled and rest else set[str]()
        schedule = unrolled(schedule, (*(n for n in rest if n not in rolled), row))
        if laid_out:
            schedule = schedule.unroll(f"{lanes}.o")
        if w.unrolled:
            schedule = schedule.unroll(f"{down}.p.o")
        schedule = self._by_rows(schedule, name, rest, row)
        return schedule.vectorise(f"{lanes}.p")

    def _rows_in_blocks(self, schedule: Schedule, name: str) -> str:
        """The loop over a window's rows, if these are done in blocks."""
        s, w = schedule.program.statement[name], self.window
        return loop_of(schedule, name, w.down) if w.rows_read and s.source_name == w.statement else ""

    def _inner(self, schedule: Schedule, name: str, reductions: Sequence[str], row: str) -> list[str]:
        """The window's columns, the tile's rows, the window's rows; with operands that do not stay, rows last."""
        if self.window.by_columns and reductions:
            columns = loop_of(schedule, name, self.window.sideways)
            return [columns, *(n for n in reductions if n != columns), row]
        if not self._rolls(schedule, name):
            return [*reductions, row]
        down = loop_of(schedule, name, self.window.down)
        return [*(n for n in reductions if n != down), row, down]

    def _rolls(self, schedule: Schedule, name: str) -> bool:
        """Whether one row read is used for all rows that it reaches before the next is read."""
        s, w = schedule.program.statement[name], self.window
        alone = bool(w.kept) or len(s.reads) < 2 or w.shifted
        return s.source_name == w.statement and bool(w.down) and w.spread == 1 and alone and not w.by_columns

    def _by_rows(self, schedule: Schedule, name: str, reductions: Sequence[str], row: str) -> Schedule:
        """Count the window's rows as rows of the input, and go through these first."""
        if not self._rolls(schedule, name):
            return schedule
        down = loop_of(schedule, name, self.window.down)
        band = [n for n in reductions if n != down]
        schedule = schedule.skew(down, row, self.window.step_down)
        if self.window.shifted or self.window.columns_first:
            columns = loop_of(schedule, name, self.window.sideways)
            return schedule.reorder(down, *(n for n in band if n != columns), columns, row)
        if self.window.step > 1 and not self.window.copied:  # the columns share what a row loads
            *band, down = [down, *band]
        return schedule.reorder(*band, down, row) if band else schedule.reorder(down, row)

    def _shifted(self, schedule: Schedule, update: str) -> tuple[Schedule, str]:
        """A row of what is read in registers; the loop over its lanes, or of the update where it reads none."""
        w, around, buffer = self.window, schedule.nests[update].names, f"{self.window.tensor}_{update}_s"
        at = around[around.index(loop_of(schedule, update, w.sideways)) - 1]
        schedule = schedule.promote(w.tensor, at, self.machine.register_space, name=buffer, users=[update], pad=True)
        if f"ld_{buffer}" not in schedule.nests:
            return schedule, around[-1]
        *others, lane = loops_of_copy(schedule, f"ld_{buffer}")
        schedule = unrolled(schedule, others)
        whole = w.vector * w.step
        if extent_of(schedule, buffer, -1) > whole:
            schedule = schedule.split(lane, whole).vectorise(f"{lane}.hi")
            lane = f"{lane}.lo"
        if w.step > 1:
            schedule = schedule.tile({lane: w.vector}).unroll(f"{lane}.o")
            lane = f"{lane}.p"
        return schedule.vectorise(lane), lane

    def _reduced(self, schedule: Schedule, update: str) -> Schedule:
        """What a window takes from a row, for each row written: equal for all of them, so that it is computed once."""
        columns, around = loop_of(schedule, update, self.window.sideways), schedule.nests[update].names
        target = schedule.program.tensor[schedule.program.statement[update].write.tensor]
        at, buffer = around[around.index(columns) - 1], f"{target.source_name}_{update}_p"
        schedule = schedule.tile({columns: self.window.columns}).rfactor(update, f"{columns}.o", at=at, name=buffer)
        for name in (f"clear_{buffer}", f"merge_{buffer}"):
            *rows, lanes = loops_of_copy(schedule, name)
            schedule = unrolled(schedule, rows).vectorise(lanes)
        return schedule.promote(buffer, at, self.machine.register_space, name=f"{buffer}r")

    def _column(self, schedule: Schedule, update: str) -> tuple[Schedule, str]:
        """The rows of one column, or a block of them, in registers; the loop over their lanes, or of the update where
        it reads none.
        """
        w, buffer = self.window, f"{self.window.tensor}_{update}_s"
        at, tensors = loop_of(schedule, update, w.sideways), schedule.program.tensor
        if w.rows_read:
            loops = schedule.nests[update].loops
            at = next(n for n in schedule.nests[update].names if loops[n] == var(w.down) // w.rows_read)
        read = [r.tensor for r in schedule.program.statement[update].reads]
        found = [t for t in read if w.tensor in (t, tensors[t].origin)]
        if not found:
            return schedule, schedule.nests[update].names[-1]
        schedule = schedule.promote(
            found[0], at, self.machine.register_space, name=buffer, users=[update], pad=True
        )
        if f"ld_{buffer}" not in schedule.nests:
            return schedule, schedule.nests[update].names[-1]
        *rows, lane = loops_of_copy(schedule, f"ld_{buffer}")
        return unrolled(schedule, rows).vectorise(lane), lane

    def _copied(self, schedule: Schedule, update: str, at: str, rows: tuple[int, int, int]) -> Schedule:
        """What a strip reads, with its padding, in the first cache level, in vectors."""
        w = self.window
        space, buffer = self.machine.cache_space(0), f"{w.tensor}_{update}_w"
        rank = schedule.program.tensor[w.tensor].rank
        fold = {rank - 1: w.step} if w.step > 1 else None
        schedule = schedule.promote(w.tensor, at, space, name=buffer, users=[update], pad=True, fold=fold)
        if f"ld_{buffer}" not in schedule.nests:  # only padding is read, so that there is nothing to copy
            return schedule
        shape = [int(e.evaluate(schedule.program.binding)) for e in schedule.program.tensor[buffer].shape]
        row, pieces = f"ld_{buffer}.{w.axis}", [""]
        if row in schedule.nests[f"ld_{buffer}"].names and self._pads_rows(schedule, f"ld_{buffer}"):
            if shape[w.axis] * -(-shape[-1] // w.vector) <= COPIES:
                schedule = schedule.unroll(row)
            else:
                schedule, pieces = self._edges(schedule, row, at, rows)
        for piece in pieces:
            schedule = self._in_vectors(schedule, f"ld_{buffer}.{rank - 1}{piece}", shape[-1])
        return self._asked(schedule, f"ld_{buffer}", rows) if w.asks_ahead else schedule

    def _pads_rows(self, schedule: Schedule, copy: str) -> bool:
        """Whether a copy has rows of padding: a window that is shorter at the ends reads none."""
        s, program = schedule.program.statement[copy], schedule.program
        place = s.reads[0].affine_index[self.window.axis]
        ends = [interval_of(program, s, n) or (0, 0) for n in place.names]
        extent = int(program.tensor[s.reads[0].tensor].shape[self.window.axis].evaluate(program.binding))
        low, high = (place.constant + sum(e[k] for e in ends) for k in (0, 1))
        return bool(s.reads[0].guard) and (low < 0 or high >= extent)

    def _asked(self, schedule: Schedule, copy: str, rows: tuple[int, int, int]) -> Schedule:
        """A copy asks for what the next strip reads; where there is one only, for that of the next loop around."""
        low, high, strip = rows
        strips = high - low >= strip
        for name in [n for n in schedule.nests if n == copy or n.startswith(f"{copy}_")]:
            loops = schedule.nests[name].names
            own = [n for n in loops if n.startswith(f"{copy}.{self.window.axis}")]
            around = own[:1] if strips else loops[len(self.outer) - 1 : len(self.outer)]
            if around and schedule.kind(loops[-1]) == "vector":
                schedule = schedule.prefetch(loops[-1], around[0], self.window.step_down * strip if strips else 1)
        return schedule

    def _edges(
        self, schedule: Schedule, row: str, at: str, rows: tuple[int, int, int]
    ) -> tuple[Schedule, list[str]]:
        """Count the rows of a copy as rows of the tensor, and cut off those outside: the pieces' suffixes."""
        w, (low, high, strip) = self.window, rows
        first, last = (w.step_down * h + w.offset for h in (low, high))
        extent = int(schedule.program.tensor[w.tensor].shape[w.axis].evaluate(schedule.program.binding))
        if high - low >= strip:
            schedule = schedule.skew(row, at, w.step_down * strip)
        pieces, rest = list[str](), ""
        if first < 0:
            schedule = schedule.split(row, -first)
            pieces, rest = [".lo"], ".hi"
        if last + w.reach > extent:
            schedule = schedule.split(f"{row}{rest}", extent - first)
            pieces.append(f"{rest}.lo")
            rest = f"{rest}.hi"
        return schedule, [*pieces, rest]

    def _in_vectors(self, schedule: Schedule, lane: str, extent: int) -> Schedule:
        """A row of a copy: short ones laid out, of long ones the first and the last vector apart."""
        w = self.window
        if w.step > 1:
            schedule = schedule.tile({lane: w.step}).reorder(f"{lane}.p", f"{lane}.o").unroll(f"{lane}.p")
            lane, extent = f"{lane}.o", -(-extent // w.step)
        if extent > w.vector * COPIED_VECTORS:
            schedule = schedule.split(lane, w.vector).vectorise(f"{lane}.lo")
            whole = (extent - 1) // w.vector * w.vector
            schedule = schedule.split(f"{lane}.hi", whole).vectorise(f"{lane}.hi.hi")
            return schedule.tile({f"{lane}.hi.lo": w.vector}).vectorise(f"{lane}.hi.lo.p")
        return in_vectors(schedule, lane, extent, w.vector)

    def _kept(self, schedule: Schedule, tensor: str, update: str, at: str) -> Schedule:
        buffer = f"{tensor}_{update}_k"
        schedule = schedule.promote(tensor, at, self.machine.register_space, name=buffer, users=[update])
        return unrolled(schedule, loops_of_copy(schedule, f"ld_{buffer}"))

    def _targets(self, schedule: Schedule, names: Sequence[str], at: str) -> Schedule:
        """The sums in registers."""
        update = next(n for n in names if schedule.program.statement[n].source_name == self.window.statement)
        tensor = schedule.program.statement[update].write.tensor
        users = [n for n in names if tensor in _touched(schedule.program.statement[n])]
        if len(users) < 2:
            return schedule
        along = schedule.program.tensor[tensor].rank - 1 if self.along is None else self.along
        buffer, order = f"{tensor}_{users[0]}_r", axis_last(schedule, tensor, along)
        schedule = schedule.promote(tensor, at, self.machine.register_space, name=buffer, order=order)
        for copy in (f"ld_{buffer}", f"st_{buffer}"):
            if copy in schedule.nests:
                for loop in loops_of_copy(schedule, copy):
                    last = loop == f"{copy}.{order[-1]}"
                    schedule = schedule.vectorise(loop) if last else schedule.unroll(loop)
        return schedule


def _touched(s: Statement) -> set[str]:
    return {a.tensor for a, _ in s.accesses}
