"""Last writers where the sequence alone decides: no loop interleaves the readers and writers of an element.

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
from poly.scheduling.schedule import relation_in_time

Access = Callable[[Touch], isl.Map]
InStep = Callable[[Touch, "Touch | None", int], bool]
Path = tuple[PathStep, ...]


def is_may_write(touch: Touch) -> bool:
    """A write that does not hide earlier ones: a reduction's update, or one to an index that is data."""
    return touch.own or (touch.statement.external is None and touch.statement.write.indirect)


def earlier_writers(
    reader: Path | None, writers: Sequence[Touch], paths: Sequence[Path], depth: int, access: Access, in_step: InStep
) -> list[Touch] | None:
    """The writers that run before a reader, the last one first; None where a loop interleaves some of them.

    All share `depth` loops, an iteration of which has a tensor of its own. `reader`: its path, None for the end of the
    program. Writers that a loop interleaves are in order where they write different elements, or hide nothing. Further
    loops may be shared by statements that touch an element only in the same iteration of them, which is what
    `in_step(writer, other, loops)` says of that many outer loops (None: of the reader): the sequence inside decides.
    """
    before = list[tuple[Path, Touch]]()
    for path, writer in zip(paths, writers, strict=True):
        if reader is not None:
            shared, order = relation_in_time(path, reader)
            if (len(shared) > depth or order == "same") and not in_step(writer, None, len(shared)):
                return None
            if order != "before":  # an instance reads before it writes
                continue
        before.append((path, writer))
    for k, (path, writer) in enumerate(before):
        for other, second in before[:k]:
            shared, order = relation_in_time(path, other)
            if len(shared) <= depth and order != "same" or is_may_write(writer) and is_may_write(second):
                continue
            if order != "same" and in_step(writer, second, len(shared)):
                continue
            if not access(writer).range().is_disjoint(access(second).range()):
                return None
    return [writer for _, writer in sorted(before, key=lambda item: item[0], reverse=True)]


def last_writers(
    reads: isl.Map, writers: Sequence[Touch], access: Access, latest: Access
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
