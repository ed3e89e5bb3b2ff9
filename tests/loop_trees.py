"""Short spellings for hand-built loop trees, and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from poly.affine import Affine, Constraint, var
from poly.dtypes import numpy_dtype
from poly.expr import COMBINERS, Cast, Const, Expr, IndexValue, Read, apply
from poly.loops import Compute, For, If, LoopKind, LoopTree, Node
from poly.program import Access, ReadIndex, Role, Tensor

Bound = Affine | int | str


def tensor(name: str, *shape: Bound, dtype: str = "f32", role: Role = "temporary", space: str = "dram") -> Tensor:
    return Tensor(name, tuple(Affine.of(e) for e in shape), dtype, role, space)


def at(name: str, *index: Bound | ReadIndex, guard: Sequence[Constraint] = (), fill: float | int | bool = 0) -> Access:
    subscripts = tuple(i if isinstance(i, ReadIndex) else Affine.of(i) for i in index)
    return Access(name, subscripts, tuple(guard), Const(fill) if guard else None)


def loop(
    variable: str,
    lower: Bound | list[Bound],
    upper: Bound | list[Bound],
    *body: Node,
    kind: LoopKind = "serial",
    step: int = 1,
) -> For:
    def bounds(value: Bound | list[Bound]) -> tuple[Affine, ...]:
        return tuple(Affine.of(b) for b in (value if isinstance(value, list) else [value]))

    return For(variable, bounds(lower), bounds(upper), tuple(body), step, kind)


def compute(
    name: str, write: Access, reads: Sequence[Access], body: Expr, combiner: str | None = None, contract: bool = True
) -> Compute:
    return Compute(name, (), write, tuple(reads), body, COMBINERS[combiner] if combiner else None, contract)


def inside(expr: Affine, extent: Affine | int) -> list[Constraint]:
    """0 <= expr < extent."""
    return [Constraint(expr), Constraint(Affine.of(extent) - expr - 1)]


@dataclass(frozen=True)
class Case:
    """A tree with inputs for it and values of its free sizes."""

    tree: LoopTree
    inputs: dict[str, np.ndarray]
    sizes: dict[str, int]


@dataclass(frozen=True)
class _Axis:
    """Loops over one index: its value as a function of them, from the outside in (outer, inner)."""

    index: Affine
    outer: tuple[For, ...]
    inner: tuple[For, ...]


@st.composite
def _axis(draw: st.DrawFn, name: str, extent: Affine, size: int, kinds: Sequence[LoopKind], outer: LoopKind) -> _Axis:
    """The index `name` over 0 .. extent - 1, plain or tiled; `size`: the extent's value."""
    fixed = extent.is_constant
    tile = draw(st.sampled_from([0, 1, 2, 3, 4, 5, 8, 11]))
    kind = draw(st.sampled_from(kinds))
    if tile == 0:
        plain: LoopKind = kind if fixed or kind not in ("unroll", "vector") else "serial"
        return _Axis(var(name), (), (loop(name, 0, extent, kind=plain),))
    o, p = f"{name}.o", f"{name}.p"
    clipped: list[Bound] = [tile, extent - tile * var(o)]
    if kind == "unroll" and (not fixed or size % tile):
        kind = "serial"
    tiles = Affine.of(-(-size // tile)) if fixed else (extent + (tile - 1)) // tile
    return _Axis(tile * var(o) + var(p), (loop(o, 0, tiles, kind=outer),), (loop(p, 0, clipped, kind=kind),))


def _nest(loops: Sequence[For], *body: Node) -> Node:
    nodes: tuple[Node, ...] = body
    for around in reversed(loops):
        nodes = (replace(around, body=nodes),)
    assert len(nodes) == 1
    return nodes[0]


_DTYPES = ["f32", "f64", "i32", "i8", "u8", "i64", "bool"]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Nests over two axes and a reduction, with tiles, lanes, guards, conditions, indirect reads and buffers.

    All values are small integers, so every order of the reduction gives the same bits.
    """
    sizes = {"N": draw(st.integers(1, 19))}
    free = draw(st.booleans())
    rows, depth = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    columns = var("N") if free else Affine.of(sizes["N"])
    dtype = draw(st.sampled_from(_DTYPES))
    single = draw(st.integers(0, 3))  # which axis may be the vector one
    axes = [
        draw(
            _axis(
                "i",
                Affine.of(rows),
                rows,
                ["serial", "unroll", "vector"] if single == 1 else ["serial", "unroll"],
                "parallel",
            )
        ),
        draw(
            _axis(
                "j",
                columns,
                sizes["N"],
                ["serial", "vector", "vector"] if single in (0, 3) else ["serial", "unroll"],
                "serial",
            )
        ),
        draw(
            _axis("k", Affine.of(depth), depth, ["serial", "vector"] if single == 2 else ["serial", "unroll"], "serial")
        ),
    ]
    i, j, k = (a.index for a in axes)
    height, width = draw(st.integers(2, 9)), draw(st.integers(2, 9))
    x = tensor("X", height, width, dtype=dtype, role="input")
    idx = tensor("idx", rows, role="input", dtype=draw(st.sampled_from(["i32", "i64"])))
    y = tensor("Y", rows, columns, dtype=dtype, role="output")
    reads = [_read(draw, "X", (height, width), (i, j, k)), at("idx", i), at("X", ReadIndex(1), (j + k) % width)]
    body, combiner = _body(draw, dtype, (i, j, k))
    update: Node = compute("update", at("Y", i, j), reads, body, combiner)
    if draw(st.booleans()):
        condition = Constraint(i - j + draw(st.integers(-3, 3)) + draw(st.sampled_from([0, 1])) * k)
        update = If(((condition,), (Constraint(j - 3, True),)), (update,))
    start = compute("start", at("Y", "a", "b"), [], Const(draw(st.sampled_from([0, 1]))))
    body_nodes = (loop("a", 0, rows, loop("b", 0, columns, start), kind="parallel"), _nest(_order(draw, axes), update))
    tree = LoopTree("case", (x, idx, y), body_nodes, ("N",) if free else (), () if free else ())
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    values = rng.integers(0, 3, (height, width)) if dtype in ("u8", "bool") else rng.integers(-2, 3, (height, width))
    inputs = {
        "X": values.astype(numpy_dtype(dtype)),
        "idx": rng.integers(0, height, rows).astype(numpy_dtype(idx.dtype)),
    }
    return Case(tree, inputs, sizes if free else {})


def _order(draw: st.DrawFn, axes: Sequence[_Axis]) -> list[For]:
    """The loops of all axes: tile loops in some order, then the inner ones in some order."""
    outer = [f for a in axes for f in a.outer]
    inner = draw(st.permutations([f for a in axes for f in a.inner]))
    first = [f for f in outer if f.kind == "parallel"]
    return [*first, *draw(st.permutations([f for f in outer if f.kind != "parallel"])), *inner]


def _read(draw: st.DrawFn, name: str, extents: tuple[int, int], index: tuple[Affine, Affine, Affine]) -> Access:
    """A read of a matrix at affine subscripts, in bounds by a remainder or by a guard."""
    i, j, k = index
    forms = [i + k, j - 1, 2 * j - k, (i + j) // 2, j // 3 + i, (j + 1) % 4 + k, 3 - j, k]
    subscripts: list[Affine] = []
    guard: list[Constraint] = []
    for extent in extents:
        form = draw(st.sampled_from(forms))
        if draw(st.booleans()):
            subscripts.append(form % extent)
        else:
            subscripts.append(form)
            guard += inside(form, extent)
    return at(name, *subscripts, guard=guard, fill=draw(st.sampled_from([0, 1])))


def _body(draw: st.DrawFn, dtype: str, index: tuple[Affine, Affine, Affine]) -> tuple[Expr, str | None]:
    a, b = Read(0), Read(2)
    if dtype == "bool":
        return draw(st.sampled_from([apply("and", a, b), apply("or", a, b), apply("ne", a, b)])), draw(
            st.sampled_from(["and", "or", None])
        )
    position = Cast(dtype, apply("lt", IndexValue(index[0] + 2 * index[1]), Const(9)))
    bodies = [
        apply("mul", a, b),
        apply("add", a, apply("mul", b, position)),
        apply("max", a, b),
        apply("select", apply("lt", a, b), a, position),
        apply("min", apply("add", a, Const(1)), b),
    ]
    return draw(st.sampled_from(bodies)), draw(st.sampled_from(["+", "max", "min", None, "+"]))
