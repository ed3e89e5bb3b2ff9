"""Partial results: a reduction accumulates into one element for each iteration of a loop, merged later (`rfactor`).

Suriana, Adams and Kamil, "Parallel associative reductions in Halide" (CGO 2017). The loop then carries nothing and may
be vector lanes, unrolled accumulators or threads. Both new statements say whose partial results they clear or merge
(`Statement.partial`); the value check follows a merged value to the instances that it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from poly.affine import Affine, var
from poly.coefficients import relation_of
from poly.errors import IllegalEdit, ScheduleError
from poly.expr import Read
from poly.program import Access, Statement, Tensor
from poly.relations import expressions_map
from poly.scheduling.edits import buffer_name, finish, first_free
from poly.scheduling.footprint import box_of
from poly.scheduling.insertion import insert_nest, nest_of_tile, span
from poly.scheduling.paths import Nest, canonical
from poly.scheduling.schedule import Schedule, changed
from poly.scheduling.tile_footprints import Tile, apart, named
from poly.scheduling.vectors import Vectors, before_in, together
from poly.sets import OUT, coalesced, fix_sizes, identifier, witness


def rfactor(
    schedule: Schedule, statement: str, loop: str, *, at: str | None = None, name: str | None = None
) -> Schedule:
    """Let a reduction accumulate into partial results, one for every value of `loop` (the last axis, from 0).

    `at`: the loop around `loop` in whose iterations partial results start anew ("" for none, once for the program), or
    `loop` itself for one of each element; default: as far in as an iteration still holds all updates of its elements.
    There `clear_NAME` sets them to the
    combiner's neutral element before the reduction, and `merge_NAME`, a reduction over the new axis, combines them into
    the target behind it; `name` is the new tensor's (default TARGET_rf). Floats are summed in another order, which a
    reduction allows unless it is `ordered`. Raises `IllegalEdit` for an ordered reduction and where somebody would see
    a partial result, `ScheduleError` for what is no reduction or has no box with an affine corner.
    """
    s = schedule.statement(statement)
    if s.combiner is None or s.external is not None or s.write.indirect:
        raise ScheduleError(
            f"{statement} is no reduction into an element known before it runs", where=schedule.source.name,
            hint="name a statement with a combiner (+=) and affine subscripts on its left side",
        )  # fmt: skip
    if loop not in schedule.nests[statement].loops:
        raise ScheduleError(f"{statement} is not under loop {loop!r}", where=schedule.source.name)
    if not s.reorder:
        _refuse_order(schedule, s, loop)
    around = _around(schedule, s, loop, at)
    tile = _tile(schedule, s, loop, around)
    target = schedule.program.tensor[s.write.tensor]
    partial = Tensor(
        buffer_name(schedule, name or first_free(schedule, f"{target.name}_rf", "clear_", "merge_")),
        tile.box.extents, target.dtype, "temporary", "dram", None, around, target.source_name,
    )  # fmt: skip
    where = around[-1] if around else None
    result = _with_partial(schedule, s, loop, partial, tile, where)
    return finish(
        schedule, result, "rfactor", statement=statement, loop=loop, at=where or "", name=partial.name
    )


def _with_partial(
    schedule: Schedule, s: Statement, loop: str, partial: Tensor, tile: Tile, where: str | None
) -> Schedule:
    """The schedule with a reduction into partial results, between what clears and what merges them in loop `where`."""
    clear, merge = _clear(s, partial, tile), _merge(s, partial, tile)
    redirected = _redirected(s, schedule.nests[s.name], loop, partial, tile)
    statements: list[Statement] = []
    for other in schedule.program.statements:
        statements += [clear, redirected, merge] if other is s else [other]
    program = replace(schedule.program, tensors=(*schedule.program.tensors, partial), statements=tuple(statements))
    first, last = span(schedule, where, (s.name,))
    nests = dict(schedule.nests)
    for made, position in ((merge.name, last + 1), (clear.name, first)):
        nests = insert_nest(nests, where, position, nest_of_tile(made, tile, tile.box.extents), made)
    return changed(schedule, program=program, nests=canonical(nests))


def _refuse_order(schedule: Schedule, s: Statement, loop: str) -> NoReturn:
    """An ordered reduction: the witness is two updates of one element that would no longer follow one another."""
    vectors = Vectors(schedule)
    (write,) = (t for t in vectors.touches(s) if t.write)
    pairs = vectors.access(write).apply_range(vectors.access(write).reverse())
    names = schedule.nests[s.name].names
    k = names.index(loop)
    pairs = before_in(together(pairs, range(k)), k)
    if pairs.is_empty():
        raise ScheduleError(f"{s.name} is an ordered reduction", where=schedule.source.name)
    raise IllegalEdit(
        f"{s.name} keeps its order, partial results along {loop} would not", kind="order",
        witness=witness(vectors.instances(s, s, pairs), (s.iterators, s.iterators)), where=schedule.source.name,
        hint="leave the reduction in its order, or declare it without `ordered`",
    )  # fmt: skip


def _around(schedule: Schedule, s: Statement, loop: str, at: str | None) -> tuple[str, ...]:
    """The loops that identify one set of partial results."""
    names = schedule.nests[s.name].names
    outer = names[: names.index(loop) + (at == loop)]
    if at == "":
        return ()
    if at is not None:
        if at not in outer:
            raise ScheduleError(
                f"{at!r} is not a loop around {loop!r} of {s.name}", where=schedule.source.name,
                hint=f"one of {', '.join(outer) or '(none)'}",
            )  # fmt: skip
        return outer[: outer.index(at) + 1]
    return outer[: _complete(schedule, s, outer)]


def _complete(schedule: Schedule, s: Statement, outer: Sequence[str]) -> int:
    """How many of the outermost loops have one value for all updates of an element."""
    program, nest = schedule.program, schedule.nests[s.name]
    scope = [nest.loops[n] for n in program.tensor[s.write.tensor].scope if n in nest.loops]
    element = expressions_map(s, (*scope, *s.write.affine_index), program.parameters)
    element = fix_sizes(element.intersect_params(program.context), program.binding).reverse()
    for k, name in enumerate(outer):
        value = fix_sizes(expressions_map(s, (nest.loops[name],), program.parameters), program.binding)
        if not element.apply_range(value).is_single_valued():
            return k
    return len(outer)


def _tile(schedule: Schedule, s: Statement, loop: str, around: tuple[str, ...]) -> Tile:
    """The partial results of one iteration of the loops around: { [tile] -> [subscripts of the target, loop] }."""
    program, nest = schedule.program, schedule.nests[s.name]
    variables = apart([identifier(n) for n in around], program.parameters)
    where = expressions_map(s, nest.expressions(around), program.parameters)
    values = (*s.write.affine_index, nest.loops[loop])
    element = relation_of(values, s.iterators, program.parameters, s.name)
    footprint = where.reverse().apply_range(element.intersect_domain(s.domain)).intersect_params(program.context)
    footprint = coalesced(fix_sizes(footprint, program.binding))
    elements = apart([f"e{d}" for d in range(footprint.dim(OUT))], (*variables, *program.parameters))
    box = box_of(footprint, variables, f"{schedule.source.name}: {s.write.tensor} along {loop}")
    return Tile(around, variables, elements, footprint, box)


def _redirected(s: Statement, nest: Nest, loop: str, partial: Tensor, tile: Tile) -> Statement:
    """The reduction, updating its partial result."""
    values = dict(zip(tile.variables, nest.expressions(tile.loops), strict=True))
    places = zip((*s.write.affine_index, nest.loops[loop]), tile.box.lower, strict=True)
    return replace(s, write=Access(partial.name, tuple(e - c.substitute(values) for e, c in places)))


def _statement(prefix: str, s: Statement, partial: Tensor, tile: Tile) -> Statement:
    """A statement over all partial results, each of which it sets to the neutral element."""
    assert s.combiner is not None
    name = f"{prefix}_{partial.name}"
    iterators = (*tile.variables, *tile.elements)
    domain = named(coalesced(tile.footprint.wrap().flatten().set_tuple_name(name)), iterators)
    element = Access(partial.name, _element(tile))
    neutral = s.combiner.identity(partial.dtype)
    return Statement(
        name, iterators, domain, element, (), neutral, partial=s.partial or s.source_name,
        tile_rank=len(tile.loops),
    )  # fmt: skip


def _element(tile: Tile) -> tuple[Affine, ...]:
    return tuple(var(e) - c for e, c in zip(tile.elements, tile.box.lower, strict=True))


def _clear(s: Statement, partial: Tensor, tile: Tile) -> Statement:
    return _statement("clear", s, partial, tile)


def _merge(s: Statement, partial: Tensor, tile: Tile) -> Statement:
    """The reduction along the new axis into the old target."""
    target = Access(s.write.tensor, tuple(var(e) for e in tile.elements[:-1]))
    plain = _statement("merge", s, partial, tile)
    return replace(plain, write=target, reads=(plain.write,), body=Read(0), combiner=s.combiner)
