"""New statements in a schedule: where their nests go, and what is left of the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poly.affine import Affine, var
from poly.program import PathStep, Program, Statement
from poly.scheduling.paths import Nest
from poly.scheduling.schedule import Schedule
from poly.scheduling.tile_footprints import Tile


def span(schedule: Schedule, at: str | None, users: Sequence[str]) -> tuple[int, int]:
    """First and last position among the children of loop `at` (or of the root) that hold users."""
    steps = [inside(schedule.nests[u].path, at)[:1] for u in users]
    positions = [s[0] if s and isinstance(s[0], int) else 0 for s in steps]
    return min(positions), max(positions)


def inside(path: tuple[PathStep, ...], at: str | None) -> tuple[PathStep, ...]:
    """The rest of a path inside a loop."""
    return path if at is None else path[path.index(at) + 1 :]


def insert_nest(nests: dict[str, Nest], at: str | None, position: int, own: Nest, name: str) -> dict[str, Nest]:
    """Make room at a position inside loop `at` and put a nest there; `own.path` continues from `at`."""
    result: dict[str, Nest] = {}
    prefix: tuple[PathStep, ...] = ()
    for other, nest in nests.items():
        if at is not None and at not in nest.path:
            result[other] = nest
            continue
        prefix = nest.path[: len(nest.path) - len(inside(nest.path, at))]
        rest = inside(nest.path, at)
        here, rest = (rest[0], rest[1:]) if rest and isinstance(rest[0], int) else (0, rest)
        result[other] = Nest(nest.loops, (*prefix, here + (here >= position), *rest))
    result[name] = Nest(own.loops, (*prefix, position, *own.path))
    return result


def nest_of_tile(name: str, tile: Tile, extents: Sequence[Affine], order: Sequence[int] | None = None) -> Nest:
    """The loops of a new statement `name` over a tile: those around, then one for each axis longer than 1, in `order`.

    `extents`: of the axes.
    """
    loops = {loop: var(v) for loop, v in zip(tile.loops, tile.variables, strict=True)}
    own: list[str] = []
    for d in order if order is not None else range(len(extents)):
        if not (extents[d].is_constant and extents[d].constant == 1):
            loops[f"{name}.{d}"] = var(tile.elements[d]) - tile.box.lower[d]
            own.append(f"{name}.{d}")
    return Nest(loops, tuple(own))


def insert_statement(
    statements: Sequence[Statement], copy: Statement, users: Sequence[str], *, after: bool
) -> list[Statement]:
    """Statements with one more directly before the first of its users, or after the last."""
    places = [k for k, s in enumerate(statements) if s.name in users]
    k = places[-1] + 1 if after else places[0]
    return [*statements[:k], copy, *statements[k:]]


def drop_unused(program: Program, statements: tuple[Statement, ...]) -> Program:
    """The program with other statements; temporaries that nobody touches any more are dropped."""
    used = {a.tensor for s in statements for a, _ in s.accesses} | {
        n for s in statements if s.external is not None for n in (*s.external.reads, *s.external.writes)
    }
    tensors = tuple(t for t in program.tensors if t.role != "temporary" or t.name in used)
    return replace(program, tensors=tensors, statements=statements)
