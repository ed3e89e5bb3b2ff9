"""A packed copy that the first tile of what uses it makes on its way, each step's part right before the step.

A copy of its own waits for what it reads, and writes what its first user reads back: here operations hide both.
"""

from __future__ import annotations

from collections.abc import Mapping

from poly.affine import Affine, FloorDiv, Var, var
from poly.errors import ScheduleError
from poly.scheduling.schedule import Schedule


def with_first_use(schedule: Schedule, user: str, copy: str, fixed: Mapping[str, int]) -> Schedule:
    """The copy into a packed buffer inside of the loops of the first statement that reads it, down to the loops of the
    user's register tile. Raises `ScheduleError` where these loops do not say what is copied: who plans it there counts
    on it.

    `fixed`: the user's iterators that do not choose what it reads, with the first value of each.
    """
    statement, nest, own = schedule.program.statement, schedule.nests[user], schedule.nests[copy]
    buffer, origin = statement[copy].write.tensor, schedule.source.statement[statement[user].source_name]
    read = next(k for k, r in enumerate(statement[user].reads) if r.tensor == buffer)
    values: dict[str, Affine] = {n: Affine((), v) for n, v in fixed.items()}
    for place, element in zip(origin.reads[read].index, statement[copy].reads[0].index, strict=True):
        names = place.names if isinstance(place, Affine) else frozenset[str]()
        if len(names) != 1 or place != var(*names) or not isinstance(element, Affine):
            raise ScheduleError(f"{user} reads {buffer} by other than iterators", where=schedule.source.name)
        values |= {n: element for n in names}
    scope, shared = schedule.program.tensor[buffer].scope, dict[str, str]()
    blocks = {nest.loops[n]: own.loops[n] for n in scope}
    for loop in nest.names:
        value = nest.loops[loop]
        tile = schedule.kind(loop) == "unroll" and value.names <= fixed.keys()
        if loop in scope:
            shared[loop] = str(own.loops[loop])
        elif tile or schedule.kind(loop) == "vector" or not value.names <= values.keys():
            break
        else:
            shared[loop] = str(_in_block(value, values, blocks))
    inner = [n for n in own.names if schedule.kind(n) in ("unroll", "vector")]
    vectors = all(own.loops[n].names >= own.loops[own.names[-1]].names for n in inner)
    if not {*scope} < {*shared} or schedule.kind(own.names[-1]) != "vector" or not vectors:
        raise ScheduleError(f"the loops of {user} do not say what {copy} copies", where=schedule.source.name)
    depth = nest.path.index([*shared][-1]) + 1
    around, behind = nest.path[:depth], nest.path[depth:]
    loops = (*shared.items(), *((n, str(own.loops[n])) for n in inner))
    there = tuple((n, str(nest.loops[n])) for n in nest.names)
    return schedule.arrange([(copy, (*around, 0, *inner), loops), (user, (*around, 1, *behind), there)])


def _in_block(expression: Affine, values: Mapping[str, Affine], blocks: Mapping[Affine, Affine]) -> Affine:
    """An expression with `values` put in, and remainders of them as differences from where a block begins, which checks
    follow without asking what the block holds. `blocks`: numbers of blocks, before and after.
    """
    found = Affine((), expression.constant)
    for atom, c in expression.terms:
        if isinstance(atom, Var):
            found += values.get(atom.name, var(atom.name)) * c
            continue
        argument = _in_block(atom.argument, values, blocks)
        number = blocks.get(atom.argument // atom.divisor)
        if isinstance(atom, FloorDiv):
            found += argument // atom.divisor * c
        else:
            found += (argument % atom.divisor if number is None else argument - number * atom.divisor) * c
    return found
