"""Recomputation: a producer's instances run again inside each tile of their consumer (`recompute`).

This is fusion after tiling with halos (Zhao and Di, MICRO 2020): the tile's footprint on the tensor, pulled back
through the producers' writes, is the set of instances that each tile needs. Neighbouring tiles may run the same
instance.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from poly.affine import Affine, var
from poly.errors import ScheduleError
from poly.program import Access, Program, Statement, Tensor
from poly.relations import access_map
from poly.scheduling.edits import buffer_name, finish, free_buffer_name
from poly.scheduling.insertion import drop_unused, insert_nest, span
from poly.scheduling.paths import Nest, canonical
from poly.scheduling.promotion import redirected
from poly.scheduling.schedule import Schedule
from poly.scheduling.tile_footprints import Tile, apart, named, tile_of
from poly.sets import coalesced, fix_sizes, identifier


def recompute(schedule: Schedule, tensor: str, at: str, space: str = "dram", *, name: str | None = None) -> Schedule:
    """Compute the part of `tensor` that one iteration of loop `at` reads, inside that iteration, into a buffer in
    `space`.

    All statements that write the tensor are run again, in their order, as S_at; the original ones stay only where
    somebody else reads the tensor. Raises `ScheduleError` where the tensor is not produced outside the loop, and what
    `promote` raises.
    """
    program = schedule.program
    writers, consumers = _across(schedule, tensor, at)
    tile = tile_of(schedule, tensor, at, consumers)
    source = program.tensor[tensor]
    buffer = buffer_name(schedule, name or free_buffer_name(schedule, f"{tensor}_{identifier(at)}"))
    new = Tensor(buffer, tile.box.extents, source.dtype, "temporary", space, None, tile.loops, source.source_name)
    again = [_again(schedule, s, tensor, new, tile) for s in writers]
    nests = dict(schedule.nests)
    first, _ = span(schedule, at, consumers)
    for k, s in enumerate(again):
        nests = insert_nest(nests, at, first + k, _nest(s, tile), s.name)
    statements = [
        redirected(schedule, s, tensor, new, tile, pad=False) if s.name in consumers else s for s in program.statements
    ]
    where = min(k for k, s in enumerate(statements) if s.name in consumers)
    statements[where:where] = again
    result = without_dead(replace(program, tensors=(*program.tensors, new), statements=tuple(statements)), tensor)
    nests = {n: nest for n, nest in nests.items() if n in result.statement}
    new_schedule = replace(schedule, program=result, nests=canonical(nests))
    return finish(schedule, new_schedule, "recompute", tensor=tensor, at=at, space=space, name=buffer)


def _across(schedule: Schedule, tensor: str, at: str) -> tuple[list[Statement], tuple[str, ...]]:
    """The statements that write a tensor outside of a loop, and those that read it inside. Raises `ScheduleError`."""
    program, where = schedule.program, schedule.source.name
    if tensor not in program.tensor:
        raise ScheduleError(f"no tensor {tensor!r}", where=where, hint=f"tensors: {', '.join(program.tensor)}")
    under = set(schedule.under(at))
    writers = [s for s in program.statements if s.write.tensor == tensor]
    consumers = tuple(
        s.name for s in program.statements if s.name in under and any(r.tensor == tensor for r in s.reads)
    )
    if not consumers or not writers or any(s.name in under or s.tile_rank or s.partial or s.external for s in writers):
        hint = "name the tensor between a producer and the tiled consumer"
        raise ScheduleError(f"{tensor} is not computed outside loop {at!r} and read inside it", where=where, hint=hint)
    if any(s.write.indirect for s in writers):
        raise ScheduleError(f"{tensor} is written indirectly: any instance may be needed", where=where)
    return writers, consumers


def _again(schedule: Schedule, s: Statement, tensor: str, new: Tensor, tile: Tile) -> Statement:
    """A producer with the tile before its iterators, writing the tile's buffer."""
    program = schedule.program
    variables = apart(tile.variables, (*s.iterators, *program.parameters))
    clash = {old: Affine.of(new) for old, new in zip(tile.variables, variables, strict=True) if old != new}
    writes = fix_sizes(access_map(s, s.write, program.parameters), program.binding)
    needed = tile.footprint.apply_range(writes.set_tuple_name(isl.dim_type.out, "").reverse())
    (name,) = apart([f"{s.name}_{identifier(tile.loops[-1])}"], tuple(program.statement))
    domain = named(coalesced(needed.wrap().flatten().set_tuple_name(name)), (*variables, *s.iterators))
    corner = [c.substitute(clash) for c in tile.box.lower]

    def seen(access: Access) -> Access:
        if access.tensor != tensor:
            return access
        index = tuple(i - c if isinstance(i, Affine) else i for i, c in zip(access.index, corner, strict=True))
        return replace(access, tensor=new.name, index=index)

    return replace(
        s, name=name, iterators=(*variables, *s.iterators), domain=domain, write=seen(s.write),
        reads=tuple(seen(r) for r in s.reads), tile_rank=len(variables),
        origin=s.origin or ("" if s.copies else s.name),
    )  # fmt: skip


def _nest(s: Statement, tile: Tile) -> Nest:
    loops = dict(zip(tile.loops, (var(v) for v in s.iterators), strict=False))
    own = {f"{s.name}.{i}": var(i) for i in s.iterators[s.tile_rank :]}
    return Nest(loops | own, tuple(own))


def without_dead(program: Program, tensor: str) -> Program:
    """Drop the original producers of a temporary that nobody reads any more."""
    kept = program.tensor[tensor].role != "temporary"
    read = any(r.tensor == tensor and s.write.tensor != tensor for s in program.statements for r in s.reads)
    read |= any(s.external is not None and tensor in s.external.reads for s in program.statements)
    if kept or read:
        return program
    return drop_unused(program, tuple(s for s in program.statements if s.write.tensor != tensor))
