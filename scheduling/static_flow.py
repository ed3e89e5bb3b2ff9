"""Last writers where no loop interleaves the readers and writers of an element: the sequence of nests decides, or in
loops that they share always earlier or later iterations of these (docs/decisions/0071).

Most buffers are filled, used and stored by nests that stand one after another inside the loops that own the buffer, or
inside loops over parts of it, such as its rows. The last writer of a read element is then found from the last nest
backwards by composing accesses, without an analysis of loop orders: what Feautrier's dataflow (1991) gives, in a
hundredth of the time that isl's general form takes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import islpy as isl

from poly.program import PathStep
from poly.scheduling.dependences import Touch
from poly.scheduling.paths import relation_in_time

AccessOf = Callable[[Touch], isl.Map]
ByDistance = Callable[[Touch, "Touch | None", int], "int | None"]
Path = tuple[PathStep, ...]


def is_may_write(touch: Touch) -> bool:
    """A write that does not hide earlier ones: a reduction's update, or one to an index that is data."""
    return touch.own or (touch.statement.external is None and touch.statement.write.indirect)


def earlier_writers(
    reader: Path | None, writers: Sequence[Touch], paths: Sequence[Path], depth: int, access: AccessOf,
    by_distance: ByDistance,
) -> list[Touch] | None:  # fmt: skip
    """The writers that run before a reader, the last one first; None where a loop interleaves some of them.

    All share `depth` loops, an iteration of which has a tensor of its own. `reader`: its path, None for the end of the
    program. Writers that a loop interleaves are in order where they write different elements, or hide nothing. Further
    loops may be shared by statements that touch an element only in the same iteration of them, so that the sequence
    inside decides, or always in earlier or later ones: `by_distance(writer, other, loops)` says 0, or -1 or 1 of the
    first, for that many outer loops (None: not plain; other None: the reader).
    """
    before = list[tuple[Path, Touch]]()
    for path, writer in zip(paths, writers, strict=True):
        if reader is not None:
            shared, order = relation_in_time(path, reader)
            step = by_distance(writer, None, len(shared)) if len(shared) > depth or order == "same" else 0
            if step is None:
                return None
            if step > 0 or step == 0 and order != "before":  # an instance reads before it writes
                continue
        before.append((path, writer))
    for k, (path, writer) in enumerate(before):
        for other, second in before[:k]:
            shared, order = relation_in_time(path, other)
            if len(shared) <= depth and order != "same" or is_may_write(writer) and is_may_write(second):
                continue
            against = {"before": 1, "after": -1, "same": None}[order]
            if against is not None and by_distance(writer, second, len(shared)) in (0, -against):
                continue
            if not access(writer).range().is_disjoint(access(second).range()):
                return None
    return [writer for _, writer in sorted(before, key=lambda item: item[0], reverse=True)]


def last_writers(
    reads: isl.Map, writers: Sequence[Touch], access: AccessOf, latest: AccessOf
) -> tuple[isl.UnionMap, isl.Map]:
    """{ reader -> writer } for `writers` in the order of `earlier_writers`, and the reads that none surely wrote.

    `access`: { writer -> element }; `latest`: { element -> its last writer } of one statement.
    """
    found = isl.UnionMap("{ }")
    for writer in writers:
        if reads.is_empty():
            break
        written = access(writer)
        if is_may_write(writer):
            found = found.union(reads.apply_range(written.reverse()).to_union_map())
        else:
            found = found.union(reads.apply_range(latest(writer)).to_union_map())
            reads = reads.subtract_range(written.range())
    return found, reads
