"""Policy for permutations: assignments whose target is contiguous along one loop and a read along another one.

Square blocks go through registers: rows as they lie in the read tensor, read across them by the lanes, which is a
network of shuffles (`poly.codegen.transpose`). A block takes whole cache lines of the read tensor; blocks make tiles of
few enough pages and lines that both sides' lines are used whole before they are evicted. Where the lines of a block's
target meet in too few sets of the first cache, or go past the caches in parts, a tile is put together in a buffer, so
that it leaves in long runs (of several rows where short ones follow one another), while the next tile's lines are asked
for. What goes past the caches in vectors that are whole lines leaves straight from registers (docs/decisions/0044). So
it does where the target's rows are short, and the loops follow the read, which then comes in streams. Where the last
cache is slow, lines that leave as usual are asked for before they are written (docs/decisions/0104). Of short
elements a block takes pieces of rows, for half of the registers (docs/decisions/0137). Edges are index-set splits.
Where both are contiguous along one loop only the order of the others matters (`cpu_runs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from poly.dtypes import size_bytes
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.scheduling.cpu_core import PAGE, Core, core_of
from poly.scheduling.cpu_edits import (
    FEW_VECTORS,
    first_last,
    fused,
    in_vectors,
    loop_of,
    only_read,
    ordered,
    turned_square,
    whole_blocks,
)
from poly.scheduling.cpu_facts import Facts, axis_of, bytes_touched, facts_of, own_capacity, step_of
from poly.scheduling.cpu_nontemporal import LEAST_RUN, results_past
from poly.scheduling.edits import free_buffer_name
from poly.scheduling.groups import Group, assignment_of
from poly.scheduling.schedule import Schedule

FEWEST = 2  # iterations along either side
FEW_READ, PIECE = 5, 8  # so many elements, or bytes, are read at once: less is sooner picked from whole vectors
MOST_RUN = 640  # bytes of a row of the target that leave the caches together, at most
NARROW = 16  # bytes of a row read that are turned in few registers: as many as machines interleave in an instruction
MOST_ROWS = 64  # that are read in turns where whole lines of the target leave at once: each is in a page of its own
WIDE = 2  # lines of a row read that are turned before the next row's, where whole lines of the target leave at once
FEW_PAGES = 8  # times those that a core holds: what blocks without tiles may walk through
MANY_LANES = 32  # from which on squares of vectors fill the registers, and shuffles are what takes time
TILES_AHEAD = 2  # such pieces of rows that are asked for before they are turned
BUFFER = 0.67  # of the nearest cache: the tile of a target whose own lines meet in few sets of it
STRIPS = 3  # of the target's lanes, at the least
PART = 1024  # bytes of rows read that all strips of the target are made from before the next
SHARES = 8  # such parts for each thread, at the least
KEPT = 0.75  # of the nearest cache's lines: rows read whose lines stay until the next block takes the rest of them
ROWS_WRITTEN = 64  # of the target at a time, where its lines are asked for: these and those written are near then
MOST_UNEVEN = 1.125  # times its fair share that a thread may have of them
LINES_AHEAD = 2  # blocks of rows that are asked for before they are written, where rows are whole lines; else 1
STAYS = 0.375  # of the last cache: tensors that stay there (0074)
MEETING = 0.125  # of its sets: those that the lines of a strip's target are to be in at least, so that many may come


@dataclass(frozen=True)
class Blocks:
    """A block is `rows` iterations of the target's lanes times `columns` of the read's. Here they follow one another
    along the target's lanes. `asks`: so many blocks ahead for lines of the target.
    """

    rows: int
    columns: int
    asks: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Tiles(Blocks):
    """In tiles of both, of whole blocks. These follow one another along the read's lanes, `lanes_inside`: along the
    target's. `past`: what is written goes past the caches, in vectors straight from registers.
    """

    tile: tuple[int, int]
    past: bool = False
    lanes_inside: bool = False


@dataclass(frozen=True)
class Buffered(Tiles):
    """Tile by tile from a buffer. `beside`: iterations of the innermost of the other loops in a tile."""

    beside: tuple[int, ...] = ()


@dataclass(frozen=True)
class Permutation:
    """`outer`: positions of the other parallel loops, outermost first; `lanes`, `read_lanes`: of those along which the
    target and the turned reads are contiguous; `turned`: the positions of these reads.
    """

    statement: str
    outer: tuple[int, ...]
    lanes: int
    read_lanes: int
    turned: tuple[int, ...]
    vector: int
    blocks: Blocks


def permutation_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> Permutation | None:
    """The choices for a group that is one permuting assignment; None where it is something else."""
    s = assignment_of(group)
    if s is None or s.write.indirect:
        return None
    axes = group.axes[s.name]
    facts = facts_of(program, group, machine, threads)
    strides = facts.strides(s)
    lanes = next((a for a, n in enumerate(facts.extents) if strides[-1][a] == 1 and n >= FEWEST), None)
    if lanes is None:
        return None
    turned = [k for k, step in enumerate(strides[:-1]) if step[lanes] not in (0, 1)]
    sides = {_side(facts, strides[k], size_bytes(program.tensor[s.reads[k].tensor].dtype)) for k in turned}
    read_lanes = sides.pop() if len(sides) == 1 else None
    if read_lanes is None or not all(_turns(s, s.reads[k], axes[lanes], axes[read_lanes]) for k in turned):
        return None
    if any(strides[k][read_lanes] != 1 for k in turned):
        return None
    size = max(size_bytes(program.tensor[a.tensor].dtype) for a in (s.write, *(s.reads[k] for k in turned)))
    vector, side = _square_of(machine, len(turned), size)
    if vector < FEWEST:
        return None
    blocks = _blocks_of(facts, s, lanes, read_lanes, turned, size, (vector, side))
    leading = strides[turned[0] if _straight(blocks) else -1]  # whose order the other loops follow
    others = [a for a in range(len(axes)) if a not in (lanes, read_lanes)]
    outer = tuple(sorted(others, key=lambda a: -(leading[a] or 0)))
    return Permutation(
        statement=s.name, outer=outer, lanes=lanes, read_lanes=read_lanes, turned=tuple(turned), vector=vector,
        blocks=blocks,
    )  # fmt: skip


def _straight(blocks: Blocks) -> bool:
    """Whether vectors go past the caches straight from registers."""
    return isinstance(blocks, Tiles) and blocks.past and not isinstance(blocks, Buffered)


def _side(facts: Facts, steps: Mapping[int, int | None], size: int) -> int | None:
    """The loop along which a read is contiguous, where enough of it is; `size`: bytes of an element."""
    least = max(FEWEST, min(FEW_READ, -(-PIECE // size)))
    return next((a for a, step in steps.items() if step == 1 and facts.extents[a] >= least), None)


def _square_of(machine: Machine, reads: int, size: int) -> tuple[int, int]:
    """Lanes of the target, and elements of a row read, that are turned at once: a square in the registers. Of short
    elements, where vectors are lines, all of these, and as many elements as half of the registers hold, since a network
    of shuffles needs as many again: a load of less than a vector puts rows beside one another.
    """
    vector, registers = machine.lanes(size), machine.vector_registers // reads
    if vector * size >= machine.line and vector >= MANY_LANES:
        return vector, max(FEWEST, min(vector, _power(registers // 2)))
    side = min(vector, _power(registers))
    return side, side


def _power(most: int) -> int:
    """The largest power of two up to a number, 1 at least."""
    return 1 << max(0, most.bit_length() - 1)


def _blocks_of(
    facts: Facts, s: Statement, lanes: int, read_lanes: int, turned: Sequence[int], size: int, square: tuple[int, int]
) -> Blocks:
    """Whole lines of the read, of the target, or of what is left of either in a buffer; `size`: bytes of an element;
    `square`: as `_square_of` gives it.
    """
    program, machine, strides = facts.program, facts.machine, facts.strides(s)
    core, line, (vector, side) = core_of(machine, size), machine.line, square
    room = machine.vector_registers // len(turned) * machine.lanes(size) // vector**2  # in squares
    wide = max(1, min(line // (vector * size), room))
    columns = side * wide
    past = results_past(program, facts.group, machine, 1)  # squares: see 0044
    if s.write.tensor in past and _whole_lines(strides[-1], lanes, size, line):
        apart = [(strides[k][lanes] or 0) * size for k in turned]
        blocks = _past_blocks(core, facts.extents[lanes], apart, size, square, wide)
        if blocks is not None:
            return blocks
    tile = _tile(core, facts.extents[lanes], strides[turned[0]][lanes], size, columns)
    crowded = core.lines_kept((strides[-1][read_lanes] or 0) * size) < columns
    if crowded and facts.extents[lanes] * size >= line:
        others = {a: step for a, step in strides[-1].items() if a not in (lanes, read_lanes)}
        beside = _joined(facts.extents, others, lanes, MOST_RUN // size)
        run = facts.extents[lanes] if beside else _run(facts.extents[lanes], size, line)
        fit = min(MOST_RUN // size, int(BUFFER * machine.nearest_cache) // (run * prod(beside) * size))
        return Buffered(vector, columns, (run, max(1, fit // columns) * columns), beside=beside)
    rows = vector * max(1, min(line // (vector * size), room // wide))
    if core.afar and bytes_touched(program, facts.group.statements) > machine.nearest_cache:
        ahead = LINES_AHEAD if _whole_lines(strides[-1], lanes, size, line) else 1
        return _asking(facts, lanes, read_lanes, rows, columns, line // size, ahead)
    if tile is not None:
        return Tiles(rows, columns, tile)
    strip = _strips(facts, core, lanes, read_lanes, strides[turned[0]], strides[-1], size)
    return Blocks(rows, columns) if strip is None else Tiles(rows, columns, strip, lanes_inside=True)


def _past_blocks(
    core: Core, extent: int, apart: Sequence[int], size: int, square: tuple[int, int], wide: int
) -> Blocks | None:
    """Of rows that are whole lines and go past the caches; `extent`: of the target's lanes; `apart`: bytes between what
    two of them read; None where lines read are lost before all of them is used.
    """
    run, line, (vector, side) = _run(extent, size, core.line), core.line, square
    if run * size < LEAST_RUN:  # in a buffer it would touch a page a line
        rows = vector * wide
        return Tiles(rows, min(side, max(1, NARROW // size)), (rows, line // size), past=True)
    if vector * size >= line:
        tile = min(LEAST_RUN // size, MOST_ROWS), WIDE * line // size
        return Tiles(vector, side, tile, past=True)
    if all(2 * run <= _kept(core, n, line) for n in apart):
        return Buffered(vector, side * wide, (run, side * wide), past=True)
    return None


def _asking(
    facts: Facts, lanes: int, read_lanes: int, rows: int, columns: int, line: int, ahead: int
) -> Blocks:
    """Where lines to write come slowly from the last cache, or stores lie in two lines: the order in which they are
    asked for is what counts. Out of the cores' own caches a row of blocks at a time, or of as many as have all of a
    line read, of which threads have as many each or a part of each; else some lines of each row read. `line`: elements.
    """
    threads, extents = facts.threads, facts.extents
    if bytes_touched(facts.program, facts.group.statements) > threads * own_capacity(facts.machine):
        return Tiles(rows, columns, (extents[lanes], ROWS_WRITTEN), asks=ahead)
    width = max(columns, line)
    shares = max(1, prod(extents) // (extents[lanes] * extents[read_lanes]) * (extents[read_lanes] // width))
    even = -(-shares // threads) * threads <= MOST_UNEVEN * shares
    if columns < width:
        return Tiles(rows, columns, (-(-extents[lanes] // (1 if even else threads)), width), asks=ahead)
    if even:
        return Blocks(rows, columns, asks=ahead)
    return Tiles(rows, columns, (-(-extents[lanes] // threads), extents[read_lanes]), lanes_inside=True, asks=ahead)


def _strips(
    facts: Facts,
    core: Core,
    lanes: int,
    read_lanes: int,
    read: Mapping[int, int | None],
    written: Mapping[int, int | None],
    size: int,
) -> tuple[int, int] | None:
    """Iterations of the target's lanes, and of the read's that these go through together, where rows do not stay near
    for all of the target's; where their lines meet in few sets only, on several threads, which share the latter, and
    where what comes from memory comes sooner in long runs.
    """
    extent, apart = facts.extents[lanes], (read[lanes] or 0) * size
    strip = _strip(core, apart, (written[read_lanes] or 0) * size, size)
    touched = bytes_touched(facts.program, facts.group.statements)
    stays = touched <= STAYS * core.caches[-1].capacity
    if STRIPS * (strip if facts.threads == 1 and stays else core.lines_kept(apart)) >= extent:
        return None
    shares = SHARES * facts.threads if facts.threads > 1 else 1
    return strip, min(PART // size, facts.extents[read_lanes] // shares)


def _strip(core: Core, read: int, written: int, size: int) -> int:
    """Iterations of the target's lanes whose rows of the read stay near until the next columns are turned: as many as
    the nearest cache has lines for, and pages; yet not so few that lines written meet in few sets. `read`, `written`:
    bytes from a row to the next.
    """
    lines = KEPT * core.lines_kept(read)
    pages = core.pages * max(1.0, PAGE / max(1, read))
    sets = core.lines_kept(written) / core.caches[0].ways
    least = MEETING * core.sets / sets * core.line / size
    return max(1, int(max(min(lines, pages, MOST_RUN // size), least)))


def _kept(core: Core, step: int, line: int) -> float:
    """How many lines that far apart the last cache holds: those asked for have to be there yet when they are used."""
    capacity, _, ways, _ = core.caches[-1]
    lines, apart = capacity // line, max(1, step // line)
    return max(ways, lines / (apart & -apart))


def _joined(extents: Sequence[int], steps: Mapping[int, int | None], lanes: int, most: int) -> tuple[int, ...]:
    """Iterations of the loops along which short rows of the target follow one another, the innermost last: so many that
    `most` elements leave together, at most.
    """
    run, parts = extents[lanes], tuple[int, ...]()
    following = {step: extents[a] for a, step in steps.items() if extents[a] > 1}
    while run in following and (fit := most // run) > 1:
        parts = (-(-following[run] // -(-following[run] // fit)), *parts)
        if parts[0] < following[run]:
            break
        run *= parts[0]
    return parts


def _run(extent: int, size: int, bytes_of_line: int) -> int:
    """Elements of a row of the target that leave the caches together: whole lines, and few are left over."""
    line = bytes_of_line // size
    most = max(1, min(extent, MOST_RUN // size) // line)
    runs = range(min(most, LEAST_RUN // bytes_of_line), most + 1)
    return line * max(runs, key=lambda n: (extent // (n * line) * n, n))


def _whole_lines(steps: Mapping[int, int | None], lanes: int, size: int, line: int) -> bool:
    """Whether blocks along the lanes that start at lines stay at lines."""
    return all(step is not None and step * size % line == 0 for a, step in steps.items() if a != lanes)


def _turns(s: Statement, read: Access, lanes: str, read_lanes: str) -> bool:
    """Whether a square of a read is a square of its tensor: each loop moves one subscript, by ones."""
    if read.guard or read.indirect:
        return False
    places = [axis_of(read, lanes), axis_of(read, read_lanes)]
    if None in places or places[0] == places[1]:
        return False
    steps = [step_of(read, d, i) for d, i in zip(places, (lanes, read_lanes), strict=True) if d is not None]
    return steps == [1, 1] and read.tensor != s.write.tensor


def _tile(core: Core, extent: int, step: int | None, size: int, columns: int) -> tuple[int, int] | None:
    """Sides of a tile that is in few pages; where the target's rows are short blocks of them are one run: no tiles."""
    pages = extent * min(1.0, (step or PAGE) * size / PAGE)
    most = max(core.pages, columns)
    return None if extent * size <= PAGE and pages <= FEW_PAGES * core.pages else (most, most)


def schedule_permutation(schedule: Schedule, group: Group, plan: Permutation, machine: Machine) -> Schedule:
    """Split, tile, promote and mark the group's statement."""
    assert group.box is not None
    axes, name = group.axes[plan.statement], plan.statement
    blocks = plan.blocks
    shared = len(plan.outer) - (len(blocks.beside) if isinstance(blocks, Buffered) else 0)  # a cut leaves them whole
    places = (*plan.outer[:shared], plan.read_lanes, *plan.outer[shared:], plan.lanes)
    order = [loop_of(schedule, name, axes[a]) for a in places]
    for loop, a in zip(order, places, strict=True):
        if group.box[a][0]:
            schedule = schedule.shift(name, loop, -group.box[a][0])
    schedule = ordered(schedule, name, order)
    extents = [high - low + 1 for low, high in group.box]
    depth = len(plan.outer)
    schedule, strips = whole_blocks(schedule, name, shared, extents[plan.read_lanes], blocks.columns)
    for strip, columns in strips:
        schedule, rest = first_last(schedule, strip, depth + 2 - shared), extents[plan.lanes]
        if isinstance(blocks, Buffered) and columns == blocks.columns and rest >= blocks.tile[0]:
            schedule, (whole, *others) = whole_blocks(schedule, strip, depth, rest, blocks.tile[0])
            schedule = _buffered(schedule, plan, blocks, whole[0], machine)
            if not others:
                continue
            strip, rest = others[0]
        schedule, parts = whole_blocks(schedule, strip, depth, rest, blocks.rows)
        for part, rows in parts:
            schedule = _blocks(schedule, plan, part, rows, columns, extents)
            if blocks.asks and rows == blocks.rows:
                schedule = _results_asked(schedule, plan, part)
            for read in plan.turned:
                schedule, square = _square(schedule, plan, part, read, machine.register_space)
                rows_read = schedule.nests[f"ld_{square}"].names[-1]
                past = isinstance(blocks, Tiles) and blocks.past
                ahead = _ahead(schedule, plan, part, rows, extents) if past else None
                if ahead is not None and schedule.kind(rows_read) == "vector":
                    schedule = schedule.prefetch(rows_read, *ahead)
        if blocks.asks:
            around = 2 if isinstance(blocks, Tiles) and not blocks.lanes_inside else 1
            schedule = fused(schedule, [part for part, _ in parts], range(depth, depth + around))
    return schedule


def _ahead(
    schedule: Schedule, plan: Permutation, name: str, rows: int, extents: Sequence[int]
) -> tuple[str, int] | None:
    """Along which loop lines of what is read are asked for, and how many iterations ahead, where tiles of several
    blocks follow one another along its rows, or these are short, or other loops follow its order.
    """
    loops, depth, blocks = schedule.nests[name].names, len(plan.outer), plan.blocks
    if isinstance(blocks, Tiles) and blocks.tile[0] > rows:
        several = extents[plan.read_lanes] > blocks.tile[1]
        return loops[depth + 1 if several else depth], TILES_AHEAD
    return (loops[depth - 1], 1) if plan.outer else None


def _results_asked(schedule: Schedule, plan: Permutation, name: str) -> Schedule:
    """Lines of the target asked for along the blocks of a piece that follow one another in its rows."""
    loops = schedule.nests[name].names
    at = 2 + plan.blocks.lanes_inside if isinstance(plan.blocks, Tiles) else 1
    return schedule.prefetch(loops[-1], loops[len(plan.outer) + at], plan.blocks.asks)


def _even(extent: int, block: int, most: int) -> int:
    """A tile of whole blocks, `most` iterations at most, of which an extent has several of about the same size."""
    blocks = max(1, extent // block)
    return -(-blocks // -(-blocks // max(1, most // block))) * block


def _blocks(
    schedule: Schedule, plan: Permutation, name: str, rows: int, columns: int, extents: Sequence[int]
) -> Schedule:
    """One piece in blocks, all of them whole."""
    lanes, read_lanes = schedule.nests[name].names[len(plan.outer) :]
    tiles, inside = list[str](), True
    if isinstance(plan.blocks, Tiles):
        height = _even(extents[plan.lanes], rows, plan.blocks.tile[0])
        width = _even(extents[plan.read_lanes], columns, plan.blocks.tile[1])
        inside = plan.blocks.lanes_inside
        schedule = schedule.tile({lanes: height, read_lanes: width})
        tiles = [f"{lanes}.o", f"{read_lanes}.o"]
        lanes, read_lanes = f"{lanes}.p", f"{read_lanes}.p"
    schedule = schedule.tile({lanes: rows, read_lanes: columns})
    blocks = [f"{lanes}.o", f"{read_lanes}.o"]
    if inside:
        tiles.reverse()
        blocks.reverse()
    schedule = schedule.reorder(*tiles, *blocks, f"{read_lanes}.p", f"{lanes}.p")
    schedule = schedule.unroll(f"{read_lanes}.p")
    schedule = in_vectors(schedule, f"{lanes}.p", rows, plan.vector, FEW_VECTORS)
    straight = _straight(plan.blocks) and rows == plan.blocks.rows
    return schedule.nontemporal(schedule.nests[name].names[-1]) if straight else schedule


def _buffered(
    schedule: Schedule, plan: Permutation, blocks: Buffered, name: str, machine: Machine
) -> Schedule:
    """A piece of whole tiles, each turned into a buffer that then leaves row by row."""
    (*outer, lanes, read_lanes), (height, width) = schedule.nests[name].names, blocks.tile
    beside = dict(zip(outer[len(outer) - len(blocks.beside) :], blocks.beside, strict=True))
    columns, depth = blocks.columns, len(outer) + 2 + len(beside)
    schedule = schedule.tile({**beside, lanes: height, read_lanes: width})
    schedule = schedule.tile({f"{read_lanes}.p": columns})
    tiles, inner = [f"{n}.o" for n in (*beside, lanes, read_lanes)], [f"{n}.p" for n in (*beside, lanes)]
    schedule = schedule.reorder(*tiles, *inner, f"{read_lanes}.p.o", f"{read_lanes}.p.p")
    schedule, parts = whole_blocks(schedule, name, depth, height, blocks.rows)
    for part, rows in parts:
        lanes, squares, column = schedule.nests[part].names[depth:]
        schedule = schedule.tile({lanes: rows}).reorder(f"{lanes}.o", squares, column, f"{lanes}.p").unroll(column)
        schedule = in_vectors(schedule, f"{lanes}.p", rows, plan.vector, FEW_VECTORS)
        for read in plan.turned:
            schedule, square = _square(schedule, plan, part, read, machine.register_space)
            schedule = schedule.prefetch(schedule.nests[f"ld_{square}"].names[-1], tiles[-1])
    target = schedule.program.statement[parts[0][0]].write.tensor
    buffer = f"{target}_{name}_b"
    users = [part for part, _ in parts]
    schedule = schedule.promote(target, tiles[-1], machine.cache_space(0), name=buffer, users=users)
    row = f"st_{buffer}.{schedule.program.tensor[target].rank - 1}"
    schedule = in_vectors(schedule, row, height, plan.vector)
    return schedule.nontemporal(schedule.nests[f"st_{buffer}"].names[-1]) if blocks.past else schedule


def _square(
    schedule: Schedule, plan: Permutation, name: str, read: int, space: str
) -> tuple[Schedule, str]:
    """The rows of a block of what is read in registers, and the name of these."""
    s = schedule.program.statement[name]
    access = s.reads[read]
    buffer = free_buffer_name(schedule, f"{access.tensor}_{name}_t")
    kinds = [(n, schedule.kind(n)) for n in schedule.nests[name].names]
    at = [n for n, kind in kinds if kind == "serial"][-1]
    reads = only_read(s, read)
    schedule = turned_square(schedule, name, access.tensor, at, space, buffer, reads=reads, vector=plan.vector)
    return schedule, buffer

