"""What a blocked contraction asks for before it reads or copies it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from poly.affine import Affine, Mod
from poly.dtypes import size_bytes
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.relations import bound_domain
from poly.scheduling.asked_copies import copies_into
from poly.scheduling.cpu_block_steps import Steps
from poly.scheduling.cpu_core import WALKED, core_of, last_share, own_share
from poly.scheduling.cpu_edits import results_asked
from poly.scheduling.cpu_facts import (
    BYTES_AHEAD,
    bytes_apart,
    bytes_touched,
    from_afar,
    own_capacity,
    reduction_extents,
)
from poly.scheduling.cpu_plan import BlockPlan, Pack, Piece, Strip
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Mark, Schedule
from poly.sets import interval

# The rows of the next register tile are asked for once for each tile of lanes, so only where there are at most so many
# of these, and where so many times a tile's rows fit the nearest cache: what is packed is there besides.
FEW_USES, AHEAD_SHARE = 2, 4
# Less of an operand than the first cache holds is asked for where tiles have so many rows, which a core does not look
# beyond, and sums are so many times longer than what is asked for behind their end.
FEWEST_ROWS, LONG_SUM = 6, 8
TILES_AHEAD = 2  # that results are asked for: in one, their lines come too late
STAYING = 0.6  # of a core's own caches, which hold other operands too: more results than that do not stay
# Register tiles of the inner loop from which on what they store is asked for along it: its last ones ask for nothing.
FEWEST_TILES = 4
FOLLOWED = 64  # rows of results of short sums that prefetchers do not follow at once; of others `WALKED` (0135)


@dataclass(frozen=True)
class StoredRows:
    """Rows of memory that register tiles store: along an axis, so many by a `tile`, and `all` before the first one goes
    on; asked for `along` the inner loop over tiles or the outer one, which are `below` each other.
    """

    axis: int
    tile: int
    all: int
    along: int
    below: bool


@dataclass(frozen=True)
class Ahead:
    """What is asked for ahead in one contraction."""

    group: Group
    plan: BlockPlan
    machine: Machine

    def rows(self, schedule: Schedule, name: str, tile: str, height: int) -> Schedule:
        """Rows of an operand that comes as it lies from beyond a core's own caches, which few tiles of lanes use, are
        asked for a register tile ahead: short pieces, of which prefetchers lose one after the other. Not where the rows
        of two tiles would meet in one set of the first cache.
        """
        s, plan, vector = schedule.program.statement[name], self.plan, schedule.nests[name].names[-1]
        axes = self.group.axes[s.source_name]
        rows, lanes, once = axes[plan.rows], axes[plan.lanes], self._steps_at_once(schedule, s, axes)
        steps = reduction_extents(schedule.program, s, axes)
        uses = sum(-(-(p.high - p.low) // (plan.vector * p.width)) for p in plan.strips)
        if uses > FEW_USES or schedule.kind(vector) != "vector":
            return schedule
        for r in s.reads:
            moving = {n for i in r.index if isinstance(i, Affine) for n in i.names}
            along = any(r.index[-1:] == (Affine.of(n),) for n in steps)  # a row is contiguous
            if r.guard or not along or rows not in moving or lanes in moving:
                continue
            if not from_afar(schedule.program, r.tensor, self.machine):
                continue
            element = size_bytes(schedule.program.tensor[r.tensor].dtype)
            kept = core_of(self.machine, element).lines_kept(bytes_apart(schedule.program, r, rows) or 0)
            if AHEAD_SHARE * element * height * once <= self.machine.nearest_cache and 2 * height <= kept:
                return schedule.prefetch(vector, tile)
        return schedule

    def copies(self, schedule: Schedule, names: Sequence[str]) -> Schedule:
        """What is copied for the next block of lanes is asked for all through the tiles of this one, as planned."""
        for name in names:
            s = schedule.program.statement[name]
            for pack in self.plan.packs if s.combiner is not None else ():
                buffer = s.reads[pack.read].tensor
                if pack.asked and copies_into(schedule, buffer):
                    loop = [n for n in schedule.nests[name].names if schedule.kind(n) == "serial"][-1]
                    line = self.machine.line // size_bytes(schedule.program.tensor[pack.tensor].dtype)
                    if schedule.marks.get(loop, Mark()).asks is None:
                        schedule = schedule.prefetch_copy(loop, buffer, line)
        return schedule

    def constants(self, schedule: Schedule, name: str) -> Schedule:
        """A packed constant that a core's own caches do not hold is asked for on its way: between two uses comes the
        rest of it, and every tile, block and step of a window is a new stream for a prefetcher.
        """
        vector = schedule.nests[name].names[-1]
        if schedule.kind(vector) != "vector" or schedule.marks[vector].ahead:
            return schedule
        rolled = self._reduction_loops(schedule, name)[1]
        for pack in self._packed_constants(schedule, own_capacity(self.machine)) if rolled else ():
            if pack.block:
                element = size_bytes(schedule.source.tensor[pack.tensor].dtype)
                step = element * pack.block * self._laid_steps(schedule, name, rolled[-1])
                return schedule.prefetch(vector, rolled[-1], -(-BYTES_AHEAD // step))
        return schedule

    def _packed_constants(self, schedule: Schedule, least: int) -> Iterator[Pack]:
        """The constants of more bytes than `least` that were packed once, when compiling."""
        for pack in self.plan.packs:
            tensor = schedule.source.tensor[pack.tensor]
            large = tensor.nbytes(schedule.program.binding) > least
            if pack.site == "whole" and tensor.role == "constant" and large:
                yield pack

    def lanes(self, schedule: Schedule, name: str) -> Schedule:
        """Lanes of an operand that is used as it lies, more in a tile's steps than the first cache holds, are asked for
        some steps ahead: pieces of rows that lie apart, which no prefetcher follows, come from slower caches each time;
        where few tiles of rows use them and the operand does not stay near, also less. So are a tile's rows of an
        operand that does not stay near, where these lie side by side. Not where each row would be asked for by itself.
        """
        program, nest, vector = schedule.program, schedule.nests[name], schedule.nests[name].names[-1]
        s, rolled = program.statement[name], self._reduction_loops(schedule, name)[1]
        wanted, axes, near = core_of(self.machine, 4).asked, self.group.axes[s.source_name], self.machine.nearest_cache
        if not wanted or schedule.kind(vector) != "vector" or schedule.marks[vector].ahead or not rolled:
            return schedule
        moving = [r for r in s.reads if not program.tensor[r.tensor].scope]
        for n in nest.loops[rolled[-1]].names:
            moving = [r for r in moving if (bytes_apart(program, r, n) or 0) >= self.machine.line]
        if any((bytes_apart(program, r, axes[self.plan.rows]) or 0) >= self.machine.line for r in moving):
            return schedule
        steps, pieces = self._steps_at_once(schedule, s, axes), self.plan.strips[0].rows
        panel = steps * self.plan.vector * max(p.width for p in self.plan.strips)
        few = sum(-(-(p.high - p.low) // p.tile) for p in pieces) <= FEW_USES
        few = few and min(p.tile for p in pieces) >= FEWEST_ROWS and steps >= LONG_SUM * wanted
        own = own_capacity(self.machine)
        all_away = bytes_touched(schedule.source, self.group.statements) > own
        for r in moving:
            size, element = program.tensor[r.tensor].nbytes(program.binding), size_bytes(program.tensor[r.tensor].dtype)
            away = size > own_share(own)
            large = few and away or element * panel > near
            wide = bytes_apart(program, r, axes[self.plan.lanes]) == element and large
            if wide or away and all_away and self._are_short(program, s, r, axes, steps):
                each = self._laid_steps(schedule, name, rolled[-1])
                return schedule.prefetch(vector, rolled[-1], max(1, wanted // each))
        return schedule

    def _are_short(self, program: Program, s: Statement, r: Access, axes: Sequence[str], steps: int) -> bool:
        """Whether the rows of a tile are side by side in an operand, each step's in lines of their own (a window has
        lines for several steps), and all of these more than the first cache holds.
        """
        element, line = size_bytes(program.tensor[r.tensor].dtype), self.machine.line
        length = element * max(p.tile for p in self.plan.strips[0].rows)
        touched = steps * (length - element + line)  # a piece starts anywhere in a line
        if bytes_apart(program, r, axes[self.plan.rows]) != element or touched <= self.machine.nearest_cache:
            return False
        return all((bytes_apart(program, r, n) or line) >= line for n in reduction_extents(program, s, axes))

    def blocks(self, schedule: Schedule, names: Sequence[str]) -> Schedule:
        """The next block of a constant that was packed once is asked for all through the tiles that use this one, where
        that comes from afar. In a model whose constants all do, what comes next is asked for behind the last block:
        they lie in the order in which they are used (`poly.engine_constants`).
        """
        core = core_of(self.machine, 4)
        least = self.machine.nearest_cache if core.streamed else own_capacity(self.machine)
        for name in names if core.afar else ():
            s, nest = schedule.program.statement[name], schedule.nests[name]
            loops = [n for n in nest.names if schedule.kind(n) == "serial"]
            for pack in self._packed_constants(schedule, least) if s.combiner is not None and loops else ():
                read = s.reads[pack.read]
                along = self._blocks_loop(schedule, name, read, loops[:-1])
                if (along is not None or core.streamed) and schedule.marks.get(loops[-1], Mark()).block is None:
                    line = self.machine.line // size_bytes(schedule.source.tensor[pack.tensor].dtype)
                    schedule = schedule.prefetch_block(loops[-1], read.tensor, line, along)
        return schedule

    def _blocks_loop(self, schedule: Schedule, name: str, read: Access, loops: Sequence[str]) -> str | None:
        """The innermost of the loops of which each iteration reads a part of its own, and no part a second time."""
        s, nest = schedule.program.statement[name], schedule.nests[name]
        moving = {n for i in read.affine_index for n in i.names}
        domain = bound_domain(schedule.program, s)
        ends = {n: interval(domain, k) or (0, 1) for k, n in enumerate(s.iterators)}
        along: str | None = None
        for loop in loops:
            e = nest.loops[loop]
            first, last = (int(e.evaluate({n: ends[n][k] for n in e.names})) for k in (0, 1))
            if not e.names <= moving and (first != last or any(isinstance(a, Mod) for a, _ in e.terms)):
                break
            along = loop if e.names & moving and first != last else along
        return along

    def beside(self, schedule: Schedule, names: Sequence[str], tile: str) -> Schedule:
        """What is read beside the reduction from beyond a core's own caches is asked for a register tile ahead."""
        for name in names:
            s, vector = schedule.program.statement[name], schedule.nests[name].names[-1]
            far = any(from_afar(schedule.program, r.tensor, self.machine) for r in s.reads if not r.indirect)
            if s.combiner is None and far and schedule.kind(vector) == "vector":
                schedule = schedule.prefetch(vector, tile)
        return schedule

    def results(self, schedule: Schedule, strip: Strip, piece: Piece, tiles: Sequence[str]) -> Schedule:
        """What the register tiles of a piece store is asked for some tiles ahead where a core's own caches do not hold
        it, the last one is slow, and tiles write more rows of memory before they go on in the first of them than
        prefetchers follow. Where sums are short also less of it, if rows lie apart and the caches do not hold all
        operands; not where it comes from memory then.
        """
        core, update = core_of(self.machine, 1), next(s for s in self.group.statements if s.combiner is not None)
        program, axes = schedule.source, self.group.axes[update.name]
        rows = self._stored(strip, piece, update)
        far = program.tensor[update.write.tensor].nbytes(program.binding) > last_share(self.machine, 1)
        steps = prod(reduction_extents(program, update, axes).values())
        short = steps / core.fma < core.line / core.caches[-1].rate  # operations end before a line comes from memory
        apart = bytes_apart(program, update.write, axes[rows.axis]) or core.line
        kept = core.lines_kept(apart)
        asked = rows.tile * (1 + TILES_AHEAD * rows.below)  # in other sets where tiles are beside each other
        followed = rows.all < FOLLOWED if short else rows.all <= WALKED
        if not core.afar or (far and short) or followed or asked > kept:
            return schedule
        own = own_capacity(self.machine)
        *_, row = program.tensor[update.write.tensor].extents(program.binding)
        gaps = apart > row * size_bytes(program.tensor[update.write.tensor].dtype)  # else rows follow one another
        lost = short and gaps and bytes_touched(program, self.group.statements) > own
        return results_asked(schedule, tiles[rows.along], TILES_AHEAD, int(STAYING * own) if lost else own)

    def _stored(self, strip: Strip, piece: Piece, update: Statement) -> StoredRows:
        """The rows of memory that register tiles of a piece store."""
        plan, last, lanes = self.plan, update.write.index[-1], self.group.axes[update.name][self.plan.lanes]
        flat = isinstance(last, Affine) and lanes in last.names  # tiles are rows of memory, not columns
        axis, tile = (plan.rows, piece.tile) if flat else (plan.lanes, strip.width * plan.vector)
        high = plan.row_block or -(-(piece.high - piece.low) // piece.tile)
        trips = (high, strip.block) if plan.lanes_inside else (strip.block, high)
        along = int(trips[1] >= FEWEST_TILES)
        below = along == (flat != plan.lanes_inside)
        return StoredRows(axis, tile, tile * (trips[along] if below else 1 if along else trips[1]), along, below)

    def _reduction_loops(self, schedule: Schedule, name: str) -> tuple[list[str], list[str]]:
        """Loops of a statement's nest along its reduction, and those of them that are not laid out."""
        nest, axes = schedule.nests[name], {*self.group.axes[schedule.program.statement[name].source_name]}
        inner = [n for n in nest.names if nest.loops[n].names - axes]
        return inner, [n for n in inner if schedule.kind(n) != "unroll"]

    def _steps_at_once(self, schedule: Schedule, s: Statement, axes: Sequence[str]) -> int:
        """Steps of the reduction of a tile, before sums go back to memory."""
        steps, depth = reduction_extents(schedule.program, s, axes), self.plan.depth
        return prod(depth[1] if depth and n == depth[0] else e for n, e in steps.items())

    def _laid_steps(self, schedule: Schedule, name: str, loop: str) -> int:
        """Steps of a reduction that are laid out in a body of one of its loops."""
        inner, rolled = self._reduction_loops(schedule, name)
        return prod(self._laid_trips(schedule, name, n) for n in inner[inner.index(loop) + 1 :] if n not in rolled)

    def _laid_trips(self, schedule: Schedule, name: str, loop: str) -> int:
        """Copies of a loop that is laid out: of a whole one, or of a tile."""
        atom = schedule.nests[name].loops[loop].terms[0][0]
        if isinstance(atom, Mod):
            return atom.divisor
        return Steps(self.group, self.plan, self.machine).trips(schedule, name, loop)
