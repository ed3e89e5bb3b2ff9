"""Random small programs and inputs for property tests: small integer values, so that levels agree exactly.

`programs()` draws from all kinds; `programs(kinds=("stencil",))` from some. Sizes are parameters and bound to 1 .. 6.
`inputs_for(program)` makes arrays for the inputs, inouts, states and constants; `is_poison(array)`: what no run wrote.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from poly.dtypes import dtype_name, is_float, numpy_dtype
from poly.interp_arrays import poisoned
from poly.program import Program, ReadIndex
from poly.text import parse_program

Draw = Callable[[st.SearchStrategy[Any]], Any]
Array = npt.NDArray[Any]


def box(ranges: Sequence[tuple[str, str]]) -> str:
    """`where` clause of a box from (iterator, extent) pairs."""
    return "where " + " and ".join(f"0 <= {i} < {n}" for i, n in ranges) if ranges else ""


def pick(draw: Draw, options: Sequence[str]) -> str:
    return str(draw(st.sampled_from(list(options))))


def text_of(parameters: Sequence[str], sizes: Sequence[int], lines: Sequence[str]) -> str:
    context = " and ".join(f"{p} >= 1" for p in parameters)
    header = f"program random({', '.join(parameters)}) where {context}" if parameters else "program random"
    binding = [f"sizes {', '.join(f'{p} = {v}' for p, v in zip(parameters, sizes, strict=True))}"] if parameters else []
    return "\n".join([header, *binding, *lines])


@st.composite
def sizes(draw: Draw, names: Sequence[str], least: int = 1, most: int = 6) -> tuple[int, ...]:
    return tuple(draw(st.integers(least, most)) for _ in names)


@st.composite
def contractions(draw: Draw) -> str:
    """`C[i, j] += A[i, k]*B[k, j]`, any ranks, orders and combiners; sometimes with an epilogue."""
    indices = "ijkl"[: draw(st.integers(1, 4))]
    extent = {i: f"N{i}" for i in indices}
    outs = draw(st.permutations(indices))[: draw(st.integers(0, min(3, len(indices))))]
    count = draw(st.integers(1, 3))
    accesses = [
        draw(st.lists(st.sampled_from(indices), unique=True, min_size=0 if n else 1, max_size=3)) for n in range(count)
    ]
    missing = [i for i in indices if i not in outs and not any(i in a for a in accesses)]
    accesses[0] = [*accesses[0], *missing]
    dtype = pick(draw, ["f32", "f32", "f64", "i32"])
    symbol, identity = draw(st.sampled_from([("+", "0"), ("+", "0"), ("max", "-1000"), ("min", "1000")]))
    order = [*outs, *(i for i in indices if i not in outs)]
    body = "*".join(f"X{n}[{', '.join(a)}]" for n, a in enumerate(accesses))
    lines = [f"input X{n}: {dtype}[{', '.join(extent[i] for i in a)}]" for n, a in enumerate(accesses)]
    epilogue = draw(st.booleans())
    shape, target = ", ".join(extent[i] for i in outs), ", ".join(outs)
    lines += [f"{'temporary' if epilogue else 'output'} C: {dtype}[{shape}]"]
    lines += [f"output D: {dtype}[{shape}]"] * epilogue
    lines += [f"init[{target}]: C[{target}] = {identity} {box([(i, extent[i]) for i in outs])}"]
    lines += [f"upd[{', '.join(order)}]: C[{target}] {symbol}= {body} {box([(i, extent[i]) for i in order])}"]
    lines += [f"epi[{target}]: D[{target}] = max(C[{target}] - 2, 0) {box([(i, extent[i]) for i in outs])}"] * epilogue
    return text_of(list(extent.values()), draw(sizes(list(extent), most=5)), lines)


@st.composite
def expressions(draw: Draw, leaves: Sequence[str], depth: int = 3) -> str:
    """A body over leaves, closed under small integers."""
    if depth == 0 or draw(st.booleans()):
        return pick(draw, [*leaves, "2", "-1"])
    a, b, c = (draw(expressions(leaves, depth - 1)) for _ in range(3))
    condition = f"{a} < {b} or not {b} == {c}"
    return pick(
        draw,
        [
            f"({a} + {b})",
            f"{a} - ({b})",
            f"max({a}, {b})",
            f"min({a}, {b})",
            f"-({a})",
            f"abs({a})",
            f"select({condition}, {b}, {c})",
        ],
    )


@st.composite
def elementwise(draw: Draw) -> str:
    """A chain of elementwise statements with transposes and broadcasts."""
    lines = ["input X: f32[M, N]", "input Y: f32[N, M]", "constant b: f32[N]", "input s: f32[]"]
    leaves = ["X[i, j]", "Y[j, i]", "b[j]", "s[]", "f32(index(2*i - j))", "X[i, N - 1 - j]", "X[i // 2, j]"]
    count = draw(st.integers(1, 4))
    statements: list[str] = []
    for k in range(count):
        lines.append(f"{'output' if k == count - 1 else 'temporary'} T{k}: f32[M, N]")
        body = draw(expressions(leaves))
        uses = "" if k == 0 else pick(draw, ["", f" + T{k - 1}[i, j]", f" - T{k - 1}[i, N - 1 - j]"])
        statements.append(f"S{k}[i, j]: T{k}[i, j] = f32({body}){uses} {box([('i', 'M'), ('j', 'N')])}")
        leaves = [*leaves, f"T{k}[i, j]"]
    return text_of(["M", "N"], draw(sizes("MN")), [*lines, *statements])


@st.composite
def stencils(draw: Draw) -> str:
    """A stencil in time: two arrays in turn, or one in place."""
    offsets = sorted({draw(st.integers(-2, 2)) for _ in range(draw(st.integers(1, 3)))})
    low, high = max(0, -offsets[0]), max(0, offsets[-1])
    inside = f"where 0 <= t < T and {low} <= i < N - {high}"

    def terms(tensor: str) -> str:
        return " + ".join(f"{tensor}[{f'i + {o}' if o else 'i'}]" for o in offsets)

    lines = ["inout A: i64[N]"]
    if draw(st.booleans()):
        lines += ["for t:", f"    S[t, i]: A[i] = {terms('A')} - 1 {inside}"]
    else:
        copied = pick(draw, [inside, "where 0 <= t < T and 0 <= i < N"])
        body = "B[i]" if copied == inside else f"(B[i] if i >= {low} and i <= N - {high + 1} else 3)"
        lines += [
            "temporary B: i64[N]",
            "for t:",
            f"    S[t, i]: B[i] = {terms('A')} {inside}",
            f"    R[t, i]: A[i] = {body} {copied}",
        ]
    return text_of(["T", "N"], (draw(st.integers(1, 4)), draw(st.integers(1, 9))), lines)


@st.composite
def convolutions(draw: Draw) -> str:
    """A one- or two-dimensional convolution or pooling with stride, dilation and padding as a guard."""
    stride, dilation, pad, r = (draw(st.integers(a, b)) for a, b in ((1, 2), (1, 2), (0, 2), (1, 3)))
    h = draw(st.integers(4, 8))
    out = (h + 2 * pad - dilation * (r - 1) - 1) // stride + 1
    if out < 1:
        pad, out = pad + dilation * r, (h + 2 * (pad + dilation * r) - dilation * (r - 1) - 1) // stride + 1
    place = f"{stride}*y + {dilation}*r - {pad}"
    pooling = draw(st.booleans())
    fill = "-99" if pooling else "0"
    read = f"(X[c, {place}] if 0 <= {place} and {place} < H else {fill})" if pad else f"X[c, {place}]"
    common = ["input X: f32[C, H]"] + ([] if pooling else ["input W: f32[K, C, R]"])
    context = [("C", draw(st.integers(1, 3))), ("H", h), ("R", r)]
    if pooling:
        lines = [*common, f"output Y: f32[C, {out}]", f"init[c, y]: Y[c, y] = -99 {box([('c', 'C'), ('y', str(out))])}"]
        lines += [f"pool[c, y, r]: Y[c, y] max= {read} {box([('c', 'C'), ('y', str(out)), ('r', 'R')])}"]
    else:
        context.append(("K", draw(st.integers(1, 3))))
        lines = [*common, f"output Y: f32[K, {out}]", f"init[k, y]: Y[k, y] = 0 {box([('k', 'K'), ('y', str(out))])}"]
        ranges = [("k", "K"), ("y", str(out)), ("c", "C"), ("r", "R")]
        lines += [f"conv[k, y, c, r]: Y[k, y] += {read}*W[k, c, r] {box(ranges)}"]
    return text_of([n for n, _ in context], [v for _, v in context], lines)


@st.composite
def triangles(draw: Draw) -> str:
    """Domains that are not boxes: triangular products, prefix sums, a forward substitution, odd points."""
    bound = pick(draw, ["k <= i", "k < i", "i <= k", "k + i < N", "(k + i) % 2 == 0"])
    whole = box([("i", "N")])
    kind = draw(st.integers(0, 2))
    if kind == 0:
        lines = ["input L: i64[N, N]", "input x: i64[N]", "output y: i64[N]", f"init[i]: y[i] = 0 {whole}"]
        lines += [f"upd[i, k]: y[i] += L[i, k]*x[k] {box([('i', 'N'), ('k', 'N')])} and {bound}"]
    elif kind == 1:
        lines = ["input L: i64[N, N]", "inout x: i64[N]", "for i:"]
        lines += ["    sub[i, k]: x[i] += -L[i, k]*x[k] where 0 <= i < N and 0 <= k < i"]
        lines += [f"    fix[i]: x[i] = x[i] + 1 {whole}"] * draw(st.booleans())
    else:
        lines = ["input x: f32[N]", "temporary p: f32[N, N]", "output y: f32[N, N]"]
        lines += [f"P[i, k]: p[i, k] = x[i] - x[k] {box([('i', 'N'), ('k', 'N')])} and {bound}"]
        lines += [f"zero[i, k]: y[i, k] = 0 {box([('i', 'N'), ('k', 'N')])}"]
        lines += [f"Q[i, k]: y[i, k] = p[i, k] + 1 {box([('i', 'N'), ('k', 'N')])} and {bound}"]
    return text_of(["N"], draw(sizes("N")), lines)


@st.composite
def gathers(draw: Draw) -> str:
    """Indirect reads, and a reduction at an indirect place."""
    lines = ["input x: f32[N, K]", "input at: i32[M]"]
    ranges = [("i", "M"), ("k", "K")]
    if draw(st.booleans()):
        lines += ["output y: f32[M, K]", f"G[i, k]: y[i, k] = x[at[i], k] + 1 {box(ranges)}"]
    else:
        lines += ["input v: f32[M, K]", "output y: f32[N, K]"]
        lines += [f"copy[j, k]: y[j, k] = x[j, k] {box([('j', 'N'), ('k', 'K')])}"]
        lines += [f"add[i, k]: y[at[i], k] += v[i, k] {box(ranges)}"]
    return text_of(["N", "M", "K"], draw(sizes("NMK")), lines)


KINDS = {
    "contraction": contractions(), "elementwise": elementwise(), "stencil": stencils(),
    "convolution": convolutions(), "triangle": triangles(), "gather": gathers(),
}  # fmt: skip


def program_texts(kinds: Sequence[str] = tuple(KINDS)) -> st.SearchStrategy[str]:
    return st.one_of([KINDS[kind] for kind in kinds])


def programs(kinds: Sequence[str] = tuple(KINDS)) -> st.SearchStrategy[Program]:
    """Random programs, all sizes bound."""
    return program_texts(kinds).map(parse_program)


def inputs_for(program: Program, seed: int = 0, largest: int = 3) -> dict[str, Array]:
    """Small integers of each tensor's dtype; a tensor that is used as a subscript holds valid ones."""
    random = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    limit: dict[str, int] = {}
    for s in program.statements:
        for access, _ in s.accesses:
            for d, subscript in enumerate(access.index):
                if isinstance(subscript, ReadIndex):
                    indexed = s.reads[subscript.position].tensor
                    extent = program.tensor[access.tensor].extents(program.binding)[d]
                    limit[indexed] = min(limit.get(indexed, extent), extent)
    for tensor in (*program.inputs, *program.with_role("constant")):
        low, high = (0, limit[tensor.name]) if tensor.name in limit else (-largest, largest + 1)
        low = 0 if tensor.dtype[0] == "u" else low
        values = random.integers(low, high, tensor.extents(program.binding))
        arrays[tensor.name] = values.astype(numpy_dtype(tensor.dtype))
    return arrays


def is_poison(array: Array) -> npt.NDArray[np.bool_]:
    """Where an array still holds (or was computed from, for floats) poison; all False for bool."""
    name = dtype_name(array.dtype)
    if is_float(name) or name[0] == "c":
        return np.isnan(array)
    return np.zeros(array.shape, np.bool_) if name == "bool" else array == poisoned((1,), name)[0]
