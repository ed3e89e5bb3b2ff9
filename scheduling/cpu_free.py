"""Policy for contractions whose sizes are free: register tiles, packed operands and blocks, at any size.

Where `poly.scheduling.cpu_contract` weighs numbers, there are none here: blocks are of fixed sizes, and pieces end
where whole tiles do, at quasi-affine functions of the sizes (`16*(N//16)`). From the outside in: outer loops, blocks of
lanes [the operand that moves along them packed in panels as wide as the tile], loops that use that again, blocks of
rows, tiles of lanes, tiles of rows [sums in registers], the reduction in steps, rows, vectors, lanes. Rows that fill no
tile are in tiles of a third of the height, and so on down to one; lanes in masked vectors. Packed buffers are as large
as the sizes of a call make them. Few rows use nothing again: they stay apart, with nothing packed (`small`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import islpy as isl

from poly.affine import Affine, var
from poly.errors import PolyError, ScheduleError
from poly.machine import Machine
from poly.program import Access
from poly.relations import extents_of
from poly.scheduling.cpu_edits import (
    copies_in_vectors,
    cut_at,
    fused,
    in_vectors,
    loop_of,
    loops_of_copy,
    only_read,
    ordered,
    outermost,
    unrolled,
)
from poly.scheduling.cpu_facts import axis_of, bare_axes, widest_element
from poly.scheduling.cpu_plan import UNROLLED
from poly.scheduling.cpu_threads import share_outermost
from poly.scheduling.cpu_tile import MOST_SHORT
from poly.scheduling.edits import free_buffer_name, piece_name, settle, unchecked
from poly.scheduling.free_products import FreeProduct, free_product
from poly.scheduling.groups import bare
from poly.scheduling.schedule import Schedule
from poly.sets import header

WIDTH = 2  # vectors side by side in a tile
BLOCK, ROWS = 1024, 96  # of a block: bytes of lanes, and rows, in as many tiles as it takes on the machine
SHARED_ROWS = 24  # the same where threads share blocks of rows: more of them are shared more evenly
STEPS = 4  # of the reduction in one body
LOWER = 3  # a tile of rows over the next lower one: three heights up to 17 rows
LOWER_APART = 2  # the same where every tile walks memory again, as nothing is packed


def schedule_free(
    schedule: Schedule, names: Sequence[str], machine: Machine, threads: int,
    begin: Callable[[Schedule], None] | None = None,
) -> tuple[Schedule, list[str]]:  # fmt: skip
    """The contractions with free sizes among some statements of a checked schedule; and the statements that are left.

    `begin` is called with the schedule that is about to be checked, where no statement is left after that.

    What a check refuses stays as it was.
    """
    left = list(names)
    for name in names:
        there = name in left and name in schedule.program.statement  # else it is in pieces
        product = free_product(schedule.program, name, left) if there else None
        if product is None:
            continue
        try:
            composed = _Composing(product, machine, threads).run(unchecked(schedule))
            if begin is not None and {*left} == {*product.names}:
                begin(composed)
            schedule = settle(composed, schedule)
        except PolyError:
            continue
        if threads > 1 and not product.packed:
            schedule = share_outermost(schedule, product.names, threads)
        left = [n for n in left if n not in product.names]
    return schedule, left


class _Composing:
    """The edits of one contraction."""

    def __init__(self, product: FreeProduct, machine: Machine, threads: int) -> None:
        self.product, self.machine, self.threads = product, machine, threads
        self.vector = self.height = self.block = 0
        self.axes = dict(product.axes)
        self.packed = product.packed  # in each call
        self.reductions = dict[str, Affine]()

    def run(self, schedule: Schedule) -> Schedule:
        """The schedule, not yet checked. Raises `ScheduleError` where an edit does not apply."""
        product, program = self.product, schedule.program
        element = widest_element(program, [program.statement[n] for n in product.names])
        self.vector, self.block = self.machine.lanes(element), BLOCK // element
        self.height = max(1, (self.machine.vector_registers - 1 - WIDTH) // WIDTH)
        if self.vector < 2:
            raise ScheduleError("no lanes")
        ends = extents_of(program, program.statement[product.update]) or {}
        self.reductions = {i: e for i, e in ends.items() if i not in product.axes[product.update]}
        schedule = self._with_constants_packed(schedule)
        schedule, many, few = self._versions(schedule)
        for names, packed in ((many, True), (few, False)):
            if names:
                schedule = self._nest(schedule, names, packed)
        return schedule

    def _nest(self, schedule: Schedule, names: Sequence[str], packed: bool) -> Schedule:
        """Whole tiles of lanes, and what is left over."""
        product = self.product
        for name in names:
            axes = [self._axis(name, a) for a in (*product.outer, product.lanes, *product.middle, product.rows)]
            schedule = outermost(schedule, name, [loop_of(schedule, name, i) for i in axes])
        schedule = fused(schedule, names, range(len(product.outer)))
        lanes = product.extents[product.lanes]
        whole = lanes // (WIDTH * self.vector) * (WIDTH * self.vector)
        schedule, (first, last) = self._cut(schedule, names, len(product.outer), whole, lanes)
        for part, width in ((first, WIDTH), (last, 1)):
            if part:
                schedule = self._strip(schedule, part, width, packed)
        return schedule

    def _axis(self, name: str, axis: int) -> str:
        """The iterator of a piece of a statement on a parallel loop."""
        return self.axes[name][axis]

    # ---- pieces

    def _versions(self, schedule: Schedule) -> tuple[Schedule, list[str], list[str]]:
        """The statements where there is a whole tile of rows, and where there is none, as sizes leave it open."""
        rows, names = self.product.extents[self.product.rows], [*self.product.names]
        if rows.is_constant:
            return (schedule, names, []) if rows.constant >= self.height else (schedule, [], names)
        many, few = list[str](), list[str]()
        for name in names:
            lower, upper = piece_name(schedule, name, "lo"), piece_name(schedule, name, "hi")
            try:
                schedule = schedule.split(schedule.nests[name].names[0], f"{rows} >= {self.height}")
            except ScheduleError:  # always so, or never
                context = schedule.program.context
                holds = isl.Set(f"{header(schedule.program.parameters)}{{ : {rows.isl_text} < {self.height} }}")
                always = holds.intersect(context).is_empty()
                return (schedule, names, []) if always else (schedule, [], names)
            many, few = [*many, lower], [*few, upper]
            self.axes[lower] = self.axes[upper] = self.axes[name]
        return schedule, many, few

    def _cut(
        self, schedule: Schedule, names: Sequence[str], depth: int, whole: Affine, extent: Affine
    ) -> tuple[Schedule, tuple[list[str], list[str]]]:
        """The loop at a depth of some statements, cut where whole tiles end: the statements of both pieces."""
        lower, upper = list[str](), list[str]()
        for name in names:
            schedule, below, above = cut_at(schedule, name, depth, whole, extent)
            for piece, found in ((below, lower), (above, upper)):
                if piece:
                    self.axes[piece] = self.axes[name]
                    found.append(piece)
        return schedule, (lower, upper)

    def _update(self, schedule: Schedule, names: Sequence[str]) -> str:
        return next(n for n in names if schedule.program.statement[n].combiner is not None)

    # ---- a strip of lanes

    def _strip(self, schedule: Schedule, names: Sequence[str], width: int, packed: bool) -> Schedule:
        """Blocks of lanes, what is packed for them, loops that use it again, pieces of rows."""
        product, depth = self.product, len(self.product.outer)
        lanes = width * self.vector
        for name in names:
            loop = schedule.nests[name].names[depth]
            schedule = schedule.tile({loop: max(1, self.block // lanes) * lanes if width > 1 else lanes})
            inner = schedule.nests[name].names[depth + 2 : depth + 3 + len(product.middle)]
            schedule = schedule.reorder(*inner, f"{loop}.p")
        schedule = fused(schedule, names, [depth])
        update = self._update(schedule, names)
        around = schedule.nests[update].names[depth]
        for read in self.packed if packed else ():
            before = set(schedule.nests)
            schedule = self._pack(schedule, update, read, self._axis(update, product.lanes), around, lanes)
            copy = next(n for n in schedule.nests if n not in before)
            loop = next((n for n in loops_of_copy(schedule, copy) if schedule.kind(n) == "serial"), None)
            if self.threads > 1 and loop is not None:
                schedule = schedule.parallelise(loop)
        schedule = fused(schedule, names, range(depth + 1, depth + 1 + len(product.middle)))
        heights = self._heights(width, packed)
        return self._pieces(schedule, names, heights, width, depth + 1 + len(product.middle))

    def _heights(self, width: int, packed: bool) -> list[int]:
        """Of tiles of rows: the full one, where there are as many rows, then a part of it and so on."""
        heights = [self.height]
        while heights[-1] > 1:
            heights.append(max(1, heights[-1] // (LOWER if packed else LOWER_APART)) if width > 1 else 1)
        return heights if packed else heights[1:]

    def _pieces(
        self, schedule: Schedule, names: Sequence[str], heights: Sequence[int], width: int, depth: int
    ) -> Schedule:
        """Tiles of rows of the first height, then what is left in lower ones, each from where the last one ended."""
        rest, now = self.product.extents[self.product.rows], list(names)
        for height in heights:
            schedule, (first, last) = self._cut(schedule, now, depth, rest // height * height, rest)
            if first:
                schedule = self._tiles(schedule, first, width, height, depth)
            if not last:
                return schedule
            rest, now = rest % height, last
            for name in last:  # one block, in which they start at 0
                schedule = schedule.tile({schedule.nests[name].names[depth]: height})
            schedule = fused(schedule, last, [depth])
            depth += 1
        raise ScheduleError("rows are left over")

    def _tiles(self, schedule: Schedule, names: Sequence[str], width: int, height: int, depth: int) -> Schedule:
        """Blocks of rows, tiles of lanes and of rows, the reduction, the tile."""
        blocks = int(height == self.height)
        for name in names:
            rows, lanes = schedule.nests[name].names[depth : depth + 2]
            schedule = schedule.tile({rows: height}).tile({lanes: width * self.vector})
            tiles, points = [f"{lanes}.o", f"{rows}.o"], [f"{rows}.p", f"{lanes}.p"]
            if blocks:
                most = SHARED_ROWS if self.threads > 1 else ROWS
                schedule = schedule.tile({f"{rows}.o": -(-most // height)})
                tiles = [f"{rows}.o.o", f"{lanes}.o", f"{rows}.o.p"]
            if width > 1:
                schedule = schedule.tile({points[1]: self.vector})
                points[1:] = [f"{points[1]}.o", f"{points[1]}.p"]
            band = schedule.nests[name].names[depth:]
            order = [*tiles, *(n for n in band if n not in tiles and n not in points), *points]
            schedule = ordered(schedule, name, order)
            schedule = unrolled(schedule, points[:-1]).vectorise(points[-1])
        schedule = fused(schedule, names, range(depth, depth + blocks + 2))
        update = self._update(schedule, names)
        loops = schedule.nests[update].names
        if blocks and self.product.rows_packed is not None:
            rows = self._axis(update, self.product.rows)
            schedule = self._pack(schedule, update, self.product.rows_packed, rows, loops[depth], height)
        if blocks and self.threads > 1 and self.product.packed:
            schedule = schedule.parallelise(loops[depth])
        schedule = self._sums(schedule, update, loops[depth + blocks + 1])
        return self._steps(schedule, update, depth + blocks + 2, height * width)

    def _sums(self, schedule: Schedule, update: str, at: str) -> Schedule:
        """The tile's sums in registers, and the copies that they need."""
        target = schedule.program.statement[update].write.tensor
        buffer = free_buffer_name(schedule, f"{target}_{update}_r")
        schedule = schedule.promote(target, at, self.machine.register_space, name=buffer)
        extent = schedule.program.tensor[buffer].shape[-1].constant
        return copies_in_vectors(schedule, buffer, extent, self.vector)

    def _steps(self, schedule: Schedule, update: str, depth: int, body: int) -> Schedule:
        """Several steps of the innermost reduction loop in one body, what is left over apart."""
        s, nest = schedule.program.statement[update], schedule.nests[update]
        inner = [n for n in nest.names[depth:] if schedule.kind(n) == "serial"]
        if not inner:
            return schedule
        iterator = next((i for i in s.iterators if nest.loops[inner[-1]] == var(i)), None)
        extent = None if iterator is None else self.reductions[iterator]
        if extent is None or body * 2 > UNROLLED:
            return schedule
        if extent.is_constant and extent.constant <= MOST_SHORT:
            return schedule.unroll(inner[-1]) if extent.constant * body <= UNROLLED else schedule
        if body * STEPS > UNROLLED:
            return schedule
        place = nest.names.index(inner[-1])
        schedule, whole, _ = cut_at(schedule, update, place, extent // STEPS * STEPS, extent)
        loop = schedule.nests[whole].names[place]
        return schedule.tile({loop: STEPS}).unroll(f"{loop}.p")

    # ---- packing

    def _with_constants_packed(self, schedule: Schedule) -> Schedule:
        """Constants among the operands that are packed for lanes, whole and before the nest: once, when compiling."""
        product, left = self.product, list[int]()
        for read in product.packed:
            s = schedule.program.statement[product.update]
            tensor = schedule.program.tensor[s.reads[read].tensor]
            if tensor.role != "constant" or not all(e.is_constant for e in tensor.shape):
                left.append(read)
                continue
            axis = axis_of(s.reads[read], self._axis(product.update, product.lanes))
            assert axis is not None
            buffer = free_buffer_name(schedule, f"{tensor.name}_{product.update}_p")
            schedule = schedule.promote(
                tensor.name, None, self.machine.cache_space(1), name=buffer, users=[product.update],
                order=self._order(s.reads[read], axis), block={axis: WIDTH * self.vector}, reads=only_read(s, read),
            )  # fmt: skip
        self.packed = tuple(left)
        return schedule

    def _order(self, access: Access, axis: int) -> tuple[int, ...]:
        """The axes of a packed buffer from slow to fast: the block's last but for those that the reduction walks."""
        bares = bare_axes(access)
        assert bares is not None
        order = (*(d for d in range(len(bares)) if d != axis and bares[d] not in self.reductions), axis)
        return order + tuple(d for d in range(len(bares)) if d not in order)

    def _pack(self, schedule: Schedule, update: str, read: int, iterator: str, at: str, block: int) -> Schedule:
        """One operand in panels of `block` lanes or rows."""
        s = schedule.program.statement[update]
        access = s.reads[read]
        axis = axis_of(access, iterator)
        bares = bare_axes(access)
        assert axis is not None and bares is not None
        order = self._order(access, axis)
        buffer = free_buffer_name(schedule, f"{access.tensor}_{update}_p")
        schedule = schedule.promote(
            access.tensor, at, self.machine.cache_space(1), name=buffer, users=[update], order=order,
            block={axis: block}, reads=only_read(s, read),
        )  # fmt: skip
        copy, last = f"ld_{buffer}", len(bares) - 1
        lane, own = f"{copy}.{axis}", loops_of_copy(schedule, f"ld_{buffer}")
        first = [f"{copy}.{d}" for d in order if d != axis and f"{copy}.{d}" in own]
        if lane not in own:
            return schedule
        if axis == last:
            schedule = schedule.tile({lane: block})
            schedule = ordered(schedule, copy, [*first, f"{lane}.o", f"{lane}.p"])
            return in_vectors(schedule, f"{lane}.p", block, min(self.vector, block & -block))
        if f"{copy}.{last}" not in own or block % self.vector or block == self.vector:
            return schedule
        return self._across(schedule, copy, lane, f"{copy}.{last}", first, block)

    def _across(
        self, schedule: Schedule, copy: str, lane: str, fast: str, first: Sequence[str], block: int
    ) -> Schedule:
        """Squares of a source that is contiguous along another axis: into registers as they lie, out across."""
        vector, source = self.vector, schedule.program.statement[copy].copies
        name = bare(schedule.program.statement[copy].reads[0].affine_index[-1])
        extent = schedule.program.tensor[source].shape[-1]
        whole = extent // vector * vector
        assert name is not None
        schedule = schedule.tile({lane: block})
        schedule = ordered(schedule, copy, [f"{lane}.o", *(n for n in first if n != fast), fast, f"{lane}.p"])
        place = schedule.nests[copy].names.index(fast)
        schedule, part, _ = cut_at(schedule, copy, place, whole, extent)
        if part not in schedule.nests:
            raise ScheduleError("no whole square")
        loop = schedule.nests[part].names[place]
        lanes = schedule.nests[part].names[-1]
        schedule = schedule.tile({loop: vector})
        blocks, points = [f"{loop}.o"], lanes
        if block > vector:
            schedule = schedule.tile({lanes: vector})
            blocks, points = [f"{loop}.o", f"{lanes}.o"], f"{lanes}.p"
        schedule = ordered(schedule, part, [*reversed(blocks), f"{loop}.p", points])
        schedule = schedule.unroll(f"{loop}.p").vectorise(points)
        square = free_buffer_name(schedule, f"{copy[3:]}_t")
        anchor = schedule.nests[part].names[-3]
        schedule = schedule.promote(source, anchor, self.machine.register_space, name=square, users=[part])
        rows = loops_of_copy(schedule, f"ld_{square}")
        return unrolled(schedule, rows[:-1]).vectorise(rows[-1])
