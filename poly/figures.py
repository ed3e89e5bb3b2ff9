"""Pictures of iteration domains, footprints and time lines, drawn with matplotlib; each gives a `Figure`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import islpy as isl
import numpy as np
import numpy.typing as npt

from poly.affine import Affine
from poly.arguments import checks_kinds
from poly.errors import PolyError, ScheduleError
from poly.program import Program, Statement
from poly.scheduling.dependences import Dependence
from poly.scheduling.schedule import Schedule
from poly.scheduling.tile_footprints import tile_of
from poly.sets import IN, OUT, SET, fix_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from poly.accel.compiled import StreamKernel
    from poly.accel.timing import Report

TILE_COLOURS: Final = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2")
ARROW_COLOURS: Final = {"flow": "#1b5e20", "anti": "#8e24aa", "output": "#bf360c", "reduction": "#455a64"}
_MOST_ARROWS: Final = 600


def _figure(width: float, height: float, columns: int = 1) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for picture in axes:
        for axis in (picture.xaxis, picture.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
    return figure, list(axes)


# ---- iteration domains


@checks_kinds(PolyError, "Program", "Schedule")
def iteration_domain(
    what: Program | Schedule,
    statement: str,
    axes: tuple[str, str] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    window: int = 24,
    arrows: bool = True,
) -> Figure:
    """The points of a statement's domain on two of its iterators; tiles in colours, dependences on itself as arrows.

    `axes`: (down, across), the last two iterators unless given. Only the first `window` values of each are drawn. An
    arrow goes to the nearest dependent instance; those along other iterators have no length and are left out.
    `sizes` bind free sizes. Raises `PolyError` for unknown names and for sizes left free.
    """
    schedule = what if isinstance(what, Schedule) else Schedule(what)
    s = schedule.statement(statement)
    down, across = axes or _last_two(s)
    for name in (down, across):
        if name not in s.iterators:
            raise PolyError(f"{statement} has no iterator {name!r}", hint=f"iterators: {', '.join(s.iterators)}")
    bound = schedule.program.binding | dict(sizes or {})
    if free := set(schedule.program.parameters) - set(bound):
        raise PolyError(
            f"size {sorted(free)[0]} is free", where=schedule.program.name, hint="iteration_domain(..., sizes={})"
        )
    domain = fix_sizes(s.domain.intersect_params(schedule.program.context), bound)
    positions = [s.iterators.index(down), s.iterators.index(across)]
    plane = _first(_project(domain, positions), window)
    points = [p for p in _points(plane)]
    figure, (picture,) = _figure(6.4, 5.2)
    _draw_points(picture, schedule, s, (down, across), points)
    if arrows:
        _draw_arrows(picture, schedule, s, positions, bound, points)
    picture.set(xlabel=across, ylabel=down, title=f"{s.name}: instances on ({down}, {across})")
    picture.invert_yaxis()
    picture.set_aspect("equal")
    return figure


def _last_two(s: Statement) -> tuple[str, str]:
    if len(s.iterators) < 2:
        raise PolyError(f"{s.name} has {len(s.iterators)} iterators, a picture needs two", where=f"statement {s.name}")
    return s.iterators[-2], s.iterators[-1]


def _project(domain: isl.Set, keep: Sequence[int]) -> isl.Set:
    """The set on two of its dimensions, in the order given."""
    count = domain.dim(SET)
    names = ", ".join(f"d{k}" for k in range(count))
    source = domain.reset_tuple_id() if domain.has_tuple_id() else domain
    return source.apply(isl.Map(f"{{ [{names}] -> [{', '.join(f'd{k}' for k in keep)}] }}"))


def _first(plane: isl.Set, window: int) -> isl.Set:
    """The part within `window` of the least value of each dimension."""
    for d in range(plane.dim(SET)):
        low = plane.dim_min_val(d)
        if not low.is_int():
            raise PolyError("an unbounded domain cannot be drawn")
        plane = plane.upper_bound_val(SET, d, low.add(isl.Val(window - 1)))
    return plane


def _points(plane: isl.Set) -> Iterator[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    count = plane.dim(SET)
    plane.foreach_point(lambda p: found.append(tuple(int(str(p.get_coordinate_val(SET, d))) for d in range(count))))
    return iter(sorted(found))


def _draw_points(
    picture: Axes, schedule: Schedule, s: Statement, axes: tuple[str, str], points: Sequence[tuple[int, ...]]
) -> None:
    """Dots, with a square in the tile's colour below each where the schedule has tiles."""
    from matplotlib.patches import Rectangle

    tiles = _tile_loops(schedule, s, axes)
    seen: dict[tuple[int, ...], int] = {}
    for y, x in points:
        if tiles:
            values = {axes[0]: y, axes[1]: x}
            key = tuple(int(e.evaluate(values)) for e in tiles.values())
            colour = TILE_COLOURS[sum(k * w for k, w in zip(key, (2, 1, 3), strict=False)) % len(TILE_COLOURS)]
            seen.setdefault(key, len(seen))
            picture.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, color=colour, alpha=0.32, linewidth=0))
    size = 26 if len(points) <= 300 else 9
    picture.scatter([x for _, x in points], [y for y, _ in points], s=size, color="#22303c", zorder=3)
    if tiles:
        picture.text(
            0.99, -0.1, f"tiles: {', '.join(tiles)}", transform=picture.transAxes, ha="right", va="top", color="#51606f"
        )


def _tile_loops(schedule: Schedule, s: Statement, axes: tuple[str, str]) -> dict[str, Affine]:
    """The loops around a statement that group its points: of the two iterators, and not one of them itself."""
    nest = schedule.nests[s.name]
    found: dict[str, Affine] = {}
    for loop in nest.names:
        expression = nest.loops[loop]
        if expression.names and expression.names <= set(axes) and not expression.is_linear and loop.endswith(".o"):
            found[loop] = expression
    return found


def _draw_arrows(
    picture: Axes, schedule: Schedule, s: Statement, positions: Sequence[int], sizes: Mapping[str, int],
    points: Sequence[tuple[int, ...]],
) -> None:  # fmt: skip
    inside = set(points)
    labelled: set[str] = set()
    for dependence in schedule.facts.dependences:
        if dependence.source != s.name or dependence.sink != s.name:
            continue
        colour = ARROW_COLOURS[dependence.kind]
        look = {"arrowstyle": "-|>", "color": colour, "lw": 0.9, "shrinkA": 3, "shrinkB": 3, "mutation_scale": 8}
        for (y0, x0), (y1, x1) in _arrows(dependence, positions, sizes, inside):
            picture.annotate("", (x1, y1), (x0, y0), zorder=4, arrowprops=look)
            if dependence.kind not in labelled:
                labelled.add(dependence.kind)
                picture.plot([], [], color=colour, lw=1.2, label=f"{dependence.kind} on {dependence.tensor}")
    if labelled:
        picture.legend(loc="upper left", bbox_to_anchor=(0.0, -0.09), frameon=False, ncols=2, fontsize=9)


Pair = tuple[tuple[int, int], tuple[int, int]]


def _arrows(
    dependence: Dependence, positions: Sequence[int], sizes: Mapping[str, int], inside: set[tuple[int, ...]]
) -> list[Pair]:
    """Nearest sinks, on the plane, between points that are drawn."""
    relation = fix_sizes(dependence.relation, sizes)
    low = [min(p[k] for p in inside) for k in (0, 1)]
    high = [max(p[k] for p in inside) for k in (0, 1)]
    for k, position in enumerate(positions):
        for side in (IN, OUT):
            relation = relation.lower_bound_val(side, position, low[k]).upper_bound_val(side, position, high[k])
    for d in range(relation.dim(IN)):  # other iterators: their first value stands for all
        if d not in positions:
            first = relation.domain().dim_min_val(d)
            if not first.is_int():
                return []
            relation = relation.fix_val(IN, d, first)
    if relation.is_empty():
        return []
    both = relation.lexmin().wrap().flatten()
    keep = [*positions, *(relation.dim(IN) + p for p in positions)]
    found = [((a, b), (c, d)) for a, b, c, d in _points(_project(both, keep))]
    return [(p, q) for p, q in found if p != q and p in inside and q in inside][:_MOST_ARROWS]


# ---- footprints


@checks_kinds(PolyError, "Schedule")
def tile_footprint(
    schedule: Schedule, tensors: str | Sequence[str], loop: str, *, iteration: Mapping[str, int] | None = None
) -> Figure:
    """The elements of tensors that one iteration of a loop touches, inside the whole tensor (its last two axes).

    `iteration`: values of the loops down to `loop`; those left out take their first value. Raises `ScheduleError`
    where there is no such loop or nothing under it touches a tensor.
    """
    names = (tensors,) if isinstance(tensors, str) else tuple(tensors)
    figure, pictures = _figure(4.4 * len(names), 3.6, len(names))
    for name, picture in zip(names, pictures, strict=True):
        _draw_footprint(picture, schedule, name, loop, dict(iteration or {}))
    return figure


def _draw_footprint(picture: Axes, schedule: Schedule, tensor: str, loop: str, iteration: Mapping[str, int]) -> None:
    from matplotlib.colors import ListedColormap

    program = schedule.program
    if tensor not in program.tensor:
        raise ScheduleError(f"no tensor {tensor!r}", where=program.name, hint=f"tensors: {', '.join(program.tensor)}")
    users = [n for n in schedule.under(loop) if any(a.tensor == tensor for a, _ in program.statement[n].accesses)]
    if not users:
        raise ScheduleError(f"nothing under loop {loop} touches {tensor}", where=program.name)
    tile = tile_of(schedule, tensor, loop, users)
    touched, values = _of_iteration(tile.footprint, tile.loops, iteration)
    extents = program.tensor[tensor].extents(program.binding)
    mask = _raster(touched, extents)
    picture.imshow(
        mask, cmap=ListedColormap(["#eef2f6", "#4c78a8"]), vmin=0, vmax=1, aspect="auto", interpolation="nearest"
    )
    picture.set_title(f"{tensor}{list(extents)}: {int(mask.sum())} of {mask.size} elements", fontsize=10)
    at = ", ".join(f"{name} = {v}" for name, v in values.items())
    picture.set_xlabel(f"axis {max(0, len(extents) - 1)}\none iteration of {loop}\n({at})", fontsize=9)
    picture.set_ylabel(f"axis {len(extents) - 2}" if len(extents) > 1 else "")
    if mask.shape[0] == 1:
        picture.set_yticks([])


def _of_iteration(
    footprint: isl.Map, loops: Sequence[str], wanted: Mapping[str, int]
) -> tuple[isl.Set, dict[str, int]]:
    """The elements that one iteration touches, and the loop values it has."""
    values: dict[str, int] = {}
    for d, loop in enumerate(loops):
        value = isl.Val(wanted[loop]) if loop in wanted else footprint.domain().dim_min_val(d)
        footprint = footprint.fix_val(IN, d, value)
        if footprint.is_empty():
            raise ScheduleError(f"loop {loop} has no iteration {value}")
        values[loop] = int(str(value))
    return footprint.range(), values


def _raster(touched: isl.Set, extents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """The last two axes of a set of elements as a mask (one row for a vector)."""
    rank = len(extents)
    shape = (extents[-2] if rank > 1 else 1, extents[-1] if rank else 1)
    mask = np.zeros(shape, np.bool_)
    if not rank:
        mask[...] = True
        return mask
    plane = _project(touched, list(range(max(0, rank - 2), rank)))
    for part in plane.make_disjoint().get_basic_sets():
        piece = isl.Set.from_basic_set(part)
        low = [int(str(piece.dim_min_val(d))) for d in range(piece.dim(SET))]
        high = [int(str(piece.dim_max_val(d))) for d in range(piece.dim(SET))]
        box = piece
        for d, (a, b) in enumerate(zip(low, high, strict=True)):
            box = isl.Set.universe(piece.get_space()) if d == 0 else box
            box = box.lower_bound_val(SET, d, a).upper_bound_val(SET, d, b)
        if box.is_equal(piece):
            mask[(slice(None), *(slice(a, b + 1) for a, b in zip(low, high, strict=True)))[-2:]] = True
        else:
            for p in _points(piece):
                mask[(0, *p)[-2:]] = True
    return mask


# ---- time lines


@checks_kinds(PolyError, "Report", "StreamKernel")
def timeline(report: Report | StreamKernel, *, first: int = 0, cycles: int | None = None) -> Figure:
    """What each engine did when: of a kernel for an accelerator, or of a report by `simulate(..., trace=True)`.

    Dark: at work; light: until the result is complete. `first` and `cycles` choose a part. Raises `PolyError` where
    the report has no trace.
    """
    from poly.accel.timing import Report, simulate

    if not isinstance(report, Report):
        report = simulate(report.stream, report.machine, trace=True)
    if not report.trace:
        raise PolyError("the report has no trace", hint="simulate(stream, machine, trace=True)")
    last = report.cycles if cycles is None else min(report.cycles, first + cycles)
    names = list(dict.fromkeys(e.name for e in report.engines if e.commands))
    figure, (picture,) = _figure(9.0, 0.55 * len(names) + 1.3)
    for row, name in enumerate(names):
        spans = [s for s in report.trace if s.engine == name and s.complete >= first and s.start <= last]
        colour = TILE_COLOURS[row % len(TILE_COLOURS)]
        for until, alpha in (("complete", 0.3), ("end", 1.0)):
            bars = [(s.start, max(1, getattr(s, until) - s.start)) for s in spans]
            picture.broken_barh(bars, (row - 0.36, 0.72), color=colour, alpha=alpha, edgecolor="white", linewidth=0.6)
    busy = {e.name: e.busy / max(1, report.cycles) for e in report.engines}
    picture.set_yticks(range(len(names)), [f"{n}  {busy[n]:.0%}" for n in names])
    part = "" if (first, last) == (0, report.cycles) else f" {first:,} to {last:,} of {report.cycles:,}"
    title = f"{report.cycles:,} cycles, array {report.utilisation:.1%} used"
    label = f"cycles{part}; dark: at work, light: until the result is complete"
    picture.set(xlim=(first, last), xlabel=label, title=title)
    picture.invert_yaxis()
    return figure
