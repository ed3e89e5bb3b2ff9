"""Edits that the policies for a core share: each is a few primitives, and decides nothing about a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from poly.affine import Affine, var
from poly.errors import ScheduleError
from poly.machine import Machine
from poly.program import Statement
from poly.scheduling.edits import piece_name
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule

FEW_VECTORS = 8  # of a loop that is laid out in full


def loop_of(schedule: Schedule, statement: str, iterator: str) -> str:
    """The loop that is one of the statement's iterators, up to a shift. Raises `ScheduleError`."""
    nest = schedule.nests[statement]
    found = [loop for loop in nest.names if (nest.loops[loop] - var(iterator)).is_constant]
    if not found:
        raise ScheduleError(f"no loop of {statement} is {iterator}")
    return found[0]


def loop_of_axis(schedule: Schedule, group: Group, statement: str, axis: int) -> str:
    """The loop of a statement, or of a piece of one, that is one of its group's parallel loops, given by position."""
    s = schedule.program.statement[statement]
    return loop_of(schedule, statement, group.axes[s.source_name][axis])


def pieces_of(schedule: Schedule, group: Group) -> list[str]:
    """The statements of a schedule that are a group's, or pieces of one, in program order."""
    inside = set(group.names)
    return [s.name for s in schedule.program.statements if s.source_name in inside]


def loops_of_copy(schedule: Schedule, copy: str) -> list[str]:
    """The loops of a copy, or of the start or merge of partial results, over the axes of its buffer."""
    return [n for n in schedule.nests[copy].names if n.startswith(f"{copy}.")]


def axis_last(schedule: Schedule, tensor: str, axis: int) -> tuple[int, ...]:
    """The axes of a tensor, one of them last."""
    return (*(d for d in range(schedule.program.tensor[tensor].rank) if d != axis), axis)


def users_of(schedule: Schedule, tensor: str, names: Sequence[str]) -> list[str]:
    """Those of some statements that touch a tensor."""
    return [n for n in names if any(a.tensor == tensor for a, _ in schedule.program.statement[n].accesses)]


def unrolled(schedule: Schedule, loops: Iterable[str]) -> Schedule:
    """Several loops laid out."""
    for loop in loops:
        schedule = schedule.unroll(loop)
    return schedule


def in_vectors(schedule: Schedule, loop: str, extent: int, vector: int, most: int | None = None) -> Schedule:
    """A loop in vectors, laid out where there are at most `most` of them (None: always)."""
    if extent <= vector:
        return schedule.vectorise(loop)
    schedule = schedule.tile({loop: vector})
    if most is None or extent <= most * vector:
        schedule = schedule.unroll(f"{loop}.o")
    return schedule.vectorise(f"{loop}.p")


def copies_in_vectors(schedule: Schedule, buffer: str, extent: int, vector: int) -> Schedule:
    """The copies into a buffer in registers and out of it, laid out, their last axis, of an extent, in vectors."""
    for copy in (f"ld_{buffer}", f"st_{buffer}"):
        own = loops_of_copy(schedule, copy) if copy in schedule.nests else []
        if own:
            schedule = in_vectors(unrolled(schedule, own[:-1]), own[-1], extent, vector)
    return schedule


def fused(schedule: Schedule, names: Sequence[str], depths: Iterable[int]) -> Schedule:
    """Share the loops of statements at some depths, given from the outside in."""
    for depth in depths:
        for name in names[1:]:
            first, second = schedule.nests[names[0]].names[depth], schedule.nests[name].names[depth]
            if first != second:
                schedule = schedule.fuse(first, second)
    return schedule


def ordered(schedule: Schedule, name: str, order: Sequence[str]) -> Schedule:
    """A statement's innermost loops in an order."""
    now = schedule.nests[name].names
    return schedule.reorder(*order) if tuple(order) != now[len(now) - len(order) :] else schedule


def last_first(schedule: Schedule, name: str, loops: int) -> Schedule:
    """The innermost loop around the others of the last few, so that a cut of it parts these, too."""
    *others, last = schedule.nests[name].names[-loops:]
    return ordered(schedule, name, [last, *others])


def first_last(schedule: Schedule, name: str, loops: int) -> Schedule:
    """The first of the last few loops inside the others: what `last_first` turned around."""
    first, *others = schedule.nests[name].names[-loops:]
    return ordered(schedule, name, [*others, first])


def outermost(schedule: Schedule, name: str, first: Sequence[str]) -> Schedule:
    """Some of a statement's loops in an order, around the others."""
    now = schedule.nests[name].names
    order = [*first, *(n for n in now if n not in first)]
    same = next((k for k, (a, b) in enumerate(zip(order, now, strict=True)) if a != b), len(now))
    return schedule.reorder(*order[same:]) if same < len(now) else schedule


class Composition:
    """What compositions of a group have in common. `extra`: iterators besides its loops that say what is written."""

    def __init__(self, group: Group, machine: Machine) -> None:
        self.group, self.machine = group, machine
        self.extra: tuple[str, ...] = ()

    def _loop(self, schedule: Schedule, name: str, axis: int) -> str:
        return loop_of_axis(schedule, self.group, name, axis)

    def _ordered(self, schedule: Schedule, names: Sequence[str], axes: Sequence[int]) -> Schedule:
        """Parallel loops of some statements in an order, then the others."""
        for name in names:
            first = [loop_of(schedule, name, i) for i in self.extra] + [self._loop(schedule, name, a) for a in axes]
            schedule = outermost(schedule, name, first)
        return schedule


def cut(
    schedule: Schedule, group: Group, names: Sequence[str], axis: int, cuts: Iterable[int]
) -> tuple[Schedule, list[list[str]]]:
    """Cut one of a group's parallel loops in all of some statements, at ascending places: the statements by piece."""
    return cut_loops(schedule, names, cuts, lambda s, name: loop_of_axis(s, group, name, axis))


def cut_loops(
    schedule: Schedule, names: Sequence[str], cuts: Iterable[int], loop: Callable[[Schedule, str], str]
) -> tuple[Schedule, list[list[str]]]:
    """Cut a loop of each of some statements, as `loop` names it, at ascending places: the statements by piece."""
    pieces = [list(names)]
    for place in cuts:
        lower, upper = list[str](), list[str]()
        for name in pieces[-1]:
            lower.append(piece_name(schedule, name, "lo"))
            upper.append(piece_name(schedule, name, "hi"))
            schedule = schedule.split(loop(schedule, name), place)
        pieces[-1:] = [lower, upper]
    return schedule, pieces


def cut_at(
    schedule: Schedule, name: str, depth: int, place: Affine, extent: Affine
) -> tuple[Schedule, str, str]:
    """A statement's loop at a depth, which starts at 0, cut at a place that is affine in the names of the loops around
    and the sizes: the statements before and behind it, "" for one that is known to be empty.
    """
    if place == extent:
        return schedule, name, ""
    if place == Affine():
        return schedule, "", name
    lower, upper = piece_name(schedule, name, "lo"), piece_name(schedule, name, "hi")
    loop = schedule.nests[name].names[depth]
    return schedule.split(loop, place.constant if place.is_constant else str(place)), lower, upper


def whole_blocks(
    schedule: Schedule, name: str, depth: int, extent: int, block: int
) -> tuple[Schedule, list[tuple[str, int]]]:
    """A statement's loop at a depth, which starts at 0, cut into whole blocks and what is left over.

    The statements that come of it with the sizes of their blocks; each one's loop starts at 0.
    """
    rest = extent % block
    schedule, lower, upper = cut_at(schedule, name, depth, Affine((), extent - rest), Affine((), extent))
    if lower and upper:
        schedule = schedule.shift(upper, schedule.nests[upper].names[depth], rest - extent)
    return schedule, [(piece, size) for piece, size in ((lower, block), (upper, rest)) if piece]


def turned_square(
    schedule: Schedule,
    name: str,
    tensor: str,
    at: str,
    space: str,
    buffer: str,
    *,
    order: Sequence[int] | None = None,
    reads: tuple[int] | None = None,
    vector: int | None = None,
) -> Schedule:
    """What a statement reads of a tensor below a loop in registers, its rows laid out, along the last axis of an
    order (None: the tensor's) in vectors, of `vector` lanes where there may be several.
    """
    schedule = schedule.promote(tensor, at, space, name=buffer, users=[name], reads=reads, order=order)
    load, last = f"ld_{buffer}", order[-1] if order is not None else schedule.program.tensor[tensor].rank - 1
    loops, lanes = loops_of_copy(schedule, load), f"{load}.{last}"
    schedule = unrolled(schedule, [n for n in loops if n != lanes])
    if lanes not in loops:
        return schedule  # an axis of one element
    if vector is None:
        return schedule.vectorise(lanes)
    return in_vectors(schedule, lanes, extent_of(schedule, buffer, -1), vector, FEW_VECTORS)


def only_read(s: Statement, read: int) -> tuple[int] | None:
    """`reads` of a promotion for the read at a position; None, which is all, where no other one is of its tensor."""
    again = sum(r.tensor == s.reads[read].tensor for r in s.reads) > 1
    return (read,) if again else None


def extent_of(schedule: Schedule, buffer: str, axis: int) -> int:
    """Elements of a buffer along an axis."""
    return int(schedule.program.tensor[buffer].shape[axis].evaluate(schedule.program.binding))


def results_asked(schedule: Schedule, tiles: str, ahead: int = 1, more_than: int = 0) -> Schedule:
    """What the iterations of a serial loop store in vectors to whole tensors of more than so many bytes is asked for
    some iterations ahead.
    """
    if schedule.kind(tiles) != "serial":
        return schedule
    for name in schedule.under(tiles):
        s, lanes = schedule.program.statement[name], schedule.nests[name].names[-1]
        target = schedule.program.tensor[s.write.tensor]
        far = not target.scope and target.nbytes(schedule.program.binding) > more_than
        if s.combiner is None and far and schedule.kind(lanes) == "vector" and schedule.marks[lanes].ahead is None:
            schedule = schedule.prefetch(lanes, tiles, ahead)
    return schedule
