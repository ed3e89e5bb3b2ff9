"""Transposed convolutions, by what is written: each element is summed up where it stays.

Elements that differ by steps of the stride meet the same taps, and are a convolution of what is read (Dumoulin and
Visin, "A guide to convolution arithmetic for deep learning", 2016, section 4.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import gcd, prod
from typing import Final

from poly.affine import Affine, Constraint, var
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_terms import Index, Value, literal
from poly.frontend.onnx_windows import Window, axes_and_auto_pad, channels_of, halves, ints_of, kernel_of, taps_of

_MOST_PHASES: Final = 32  # convolutions that one transposed convolution becomes


def conv_transpose(b: Notation) -> None:
    """The transposed access: Y[n, m, s*p + d*k - before] += X[n, c, p] * W[c, m, k], where that lies inside.

    Where taps overlap, every remainder of a place by the strides is a convolution of its own, whose sums stay where
    they are made; remainders that are alike are one, with a loop.
    """
    x, w, bias = b.input(0), b.input(1), b.optional(2)
    rank, group = x.rank - 2, b.int_attribute("group", 1)
    b.require(rank >= 1 and w.rank == x.rank, f"ranks {x.rank} and {w.rank}: needs [N, C, ...] and [C, M / group, ...]")
    b.require(group > 0 and x.shape[1] == w.shape[0] and w.shape[0] % group == 0, f"weights {list(w.shape)} do not fit")
    each = w.shape[1]
    b.require(bias is None or bias.shape == (each * group,), f"bias is not [{each * group}]")
    axes = _transposed(b, x.shape[2:], kernel_of(b, w))
    y = b.output((x.shape[0], each * group, *(a.elements for a in axes)), x.dtype)
    phases = [phases_of(a) for a in axes]
    if not all(map(_is_apart, axes)) and prod(map(len, phases)) <= _MOST_PHASES:
        _by_phases(b, y, x, w, bias, phases, each)
    else:
        _by_positions(b, y, x, w, bias, axes, each)


def _is_apart(axis: Window) -> bool:
    """Whether taps along a transposed window neither overlap nor leave gaps: sums start where they are made then."""
    blocks = axis.stride == axis.kernel and axis.before == 0 and axis.elements == axis.positions * axis.stride
    return axis.dilation == 1 and (blocks or _is_one(axis))


def _is_one(axis: Window) -> bool:
    """Whether one position has a tap for each element."""
    within = axis.dilation == 1 and 0 <= axis.before <= axis.kernel - axis.elements
    return axis.positions == 1 and within


def _by_positions(
    b: Notation, y: Value, x: Value, w: Value, bias: Value | None, axes: Sequence[Window], each: int
) -> None:
    """`conv_transpose`, sums where positions and taps say; those of one position by element."""
    apart, one = all(map(_is_apart, axes)), {a.name for a in axes if _is_one(a)}
    places = [var(a.name) if a.name in one else a.place for a in axes]
    loops = {a.name: a.elements if a.name in one else a.positions for a in axes}
    taps = taps_of([a for a in axes if a.name not in one])
    start = literal(0) if bias is None else bias[var("m")]
    ranges = loops | taps if apart else {a.name: a.elements for a in axes}
    written = places if apart else [var(a.name) for a in axes]
    b.assign(y, {"n": x.shape[0], "m": y.shape[1], **ranges}, start, (var("n"), var("m"), *written), suffix="_init")
    group = y.shape[1] // each
    channels, m, first = channels_of(y.shape[1], w.shape[0] // group, group)
    within: Index = var("m") if group == 1 else var("q") if "q" in channels else 0
    ranges = {"n": x.shape[0], **channels, **loops, "c": w.shape[0] // group, **taps}
    source = (var("n"), first + var("c"), *(Affine() if a.name in one else var(a.name) for a in axes))
    met = (var(a.name) + a.before if a.name in one else a.tap for a in axes)
    value = x[source] * w[(first + var("c"), within, *met)]
    inside = [c for a, p in zip(axes, places, strict=True) for c in (Constraint(p), Constraint(a.elements - 1 - p))]
    b.assign(y, ranges, value, (var("n"), m, *places), combiner="+", where=inside)


def _by_phases(
    b: Notation, y: Value, x: Value, w: Value, bias: Value | None, axes: Sequence[Sequence[Phase]], each: int
) -> None:
    """`conv_transpose`, a convolution for every tuple of remainders, with loops along those that are alike."""
    group = y.shape[1] // each
    channels, m, first = channels_of(y.shape[1], w.shape[0] // group, group)
    within: Index = var("m") if group == 1 else var("q") if "q" in channels else 0
    several = any(p.place != var(p.name) for axis in axes for p in axis)
    for k, phases in enumerate(product(*axes)):
        loops = {p.remainder: p.count for p in phases if p.count > 1}
        ranges = {"n": x.shape[0], **channels, **loops, **{p.name: p.size for p in phases}}
        place = (var("n"), m, *(p.place for p in phases))
        start = literal(0) if bias is None else bias[m]
        if not all(p.size and p.taps for p in phases):  # no tap comes there
            b.assign(y, ranges, start, place, suffix=f"_phase{k}")
            continue
        over = {"c": w.shape[0] // group} | {f"k{p.name}": p.taps for p in phases if p.taps > 1}
        source = (var("n"), first + var("c"), *(p.source for p in phases))
        value = b.padded(x, source, 0, {**ranges, **over}) * w[(first + var("c"), within, *(p.tap for p in phases))]
        shape = (x.shape[0], y.shape[1], *loops.values(), *(p.size for p in phases))
        sums = b.temporary(f"phase{k}", shape, x.dtype) if several else y
        inner = tuple(var(p.name) for p in phases)
        own = (var("n"), m, *map(var, loops), *inner)
        b.reduce(sums, ranges, over, value, index=own, start=start, suffix=f"_phase{k}")
        if several:
            made = sums[(var("n"), m, *(p.made for p in phases if p.count > 1), *inner)]
            b.assign(y, ranges, made, place, suffix=f"_phase{k}_place")


@dataclass(frozen=True)
class Phase:
    """The elements of `count` remainders along an axis of a transposed window: `size` of each, with `taps`, which read
    at `source` what meets the `tap` of the weights. `remainder`: the loop along several, in the order of their first
    taps, as weights lie; by the order of their places one lies at `place`, and is the iteration `made`.
    """

    name: str
    remainder: str
    count: int
    size: int
    taps: int
    place: Affine
    made: Affine
    source: Affine
    tap: Affine


@dataclass(frozen=True)
class _Remainder:
    """The elements of one remainder: `size` with `taps` each, of which the first reads `shift` elements further and
    meets the tap `begin`.
    """

    size: int
    taps: int
    shift: int
    begin: int

    @classmethod
    def of(cls, axis: Window, remainder: int) -> _Remainder:
        """d*k = remainder + before - s*(p - source) has a solution k every s / gcd(s, d) taps, or none."""
        step, shift = axis.stride // gcd(axis.stride, axis.dilation), remainder + axis.before
        begins = [k for k in range(min(step, axis.kernel)) if (shift - axis.dilation * k) % axis.stride == 0]
        size = max(0, -((remainder - axis.elements) // axis.stride))
        if not begins:
            return cls(size, 0, 0, 0)
        taps = -((begins[0] - axis.kernel) // step)
        return cls(size, taps, (shift - axis.dilation * begins[0]) // axis.stride, begins[0])


def phases_of(axis: Window) -> list[Phase]:
    """The remainders of an axis by its stride, those together that follow each other and differ by steps."""
    found = [_Remainder.of(axis, r) for r in range(axis.stride)]
    phases: list[Phase] = []
    low = 0
    while low < axis.stride:
        high = low + 1
        while high < axis.stride and _alike(found[low : high + 1]):
            high += 1
        phases.append(_phase(axis, low, found[low:high]))
        low = high
    return phases


def _alike(run: Sequence[_Remainder]) -> bool:
    """Whether neighbours differ in where they read and what they meet alone, and always by as much."""
    steps = {(b.shift - a.shift, b.begin - a.begin) for a, b in pairwise(run)}
    return len({(r.size, r.taps) for r in run}) == 1 and len(steps) == 1 and run[0].size * run[0].taps > 0


def _phase(axis: Window, low: int, run: Sequence[_Remainder]) -> Phase:
    loop, last, common = f"r{axis.name}", len(run) - 1, gcd(axis.stride, axis.dilation)
    r = var(loop) if last else Affine()
    ordered = sorted(run, key=lambda one: one.begin)
    first, following = ordered[0], ordered[min(1, last)]
    made = r if first is run[0] else -r + last
    t = var(f"k{axis.name}") if first.taps > 1 else Affine()
    source = var(axis.name) + r * (following.shift - first.shift) + first.shift - t * (axis.dilation // common)
    tap = t * (axis.stride // common) + r * (following.begin - first.begin) + first.begin
    place = var(axis.name) * axis.stride + r + low
    return Phase(axis.name, loop, len(run), first.size, first.taps, place, made, source, tap)


def _transposed(b: Notation, extents: Sequence[int], kernel: Sequence[int]) -> list[Window]:
    """The axes of a transposed window, of which `extents` are the positions. Raises `OnnxError`."""
    rank, (axes, auto) = len(extents), axes_and_auto_pad(b, kernel)
    extra = ints_of(b, "output_padding", (0,) * rank, rank)
    b.require(min(extra) >= 0, f"output_padding {list(extra)} is negative")
    wanted = ints_of(b, "output_shape", (0,) * rank, rank) if b.ints_attribute("output_shape") else None
    found: list[Window] = []
    for k, (a, extent) in enumerate(zip(axes, extents, strict=True)):
        full = a.stride * (extent - 1) + extra[k] + a.span
        before, after = a.before, a.after
        if wanted is not None:
            before, after = halves(full - wanted[k], auto)
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            before, after = halves(max(full - extent * a.stride, 0), auto)
        size = full - before - after
        b.require(size > 0, f"the output would have the extent {size} along axis {k + 2}")
        found.append(Window(a.name, size, a.kernel, a.stride, a.dilation, before, after, extent))
    return found


ROWS: Final[dict[str, Row]] = {"ConvTranspose": conv_transpose}
