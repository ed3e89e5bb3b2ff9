"""From programs to verified command streams: values against the interpreter, bytes against what must move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

import poly
from poly.accel.compiled import StreamKernel, compile_stream
from poly.accel.emit import emit_stream
from poly.accel.isa import Dma, Mm, StreamError, Vec
from poly.accel.memory import plan_memory
from poly.accel.profile import profile
from poly.accel.regions import Bent, Form, Scope, address
from poly.accel.simulate import run
from poly.accel.verify import verify
from poly.affine import Affine, Constraint, parse_affine, var
from poly.errors import CapacityError, PolyError, RunError, ScheduleError, UnsupportedError
from poly.expr import Const, Read
from poly.frontend.notation import parse
from poly.interp import run_program
from poly.loops import Alloc, Compute, For, LoopTree, Sync
from poly.program import Access, Program, Tensor
from poly.scheduling.contraction import contractions
from poly.scheduling.schedule import Schedule
from poly.scheduling.tiles import Buffer, Bus, Problem, Space, Variable, Work, best_tiles
from poly.text import parse_loops
from tests.strategies import Array, inputs_for, programs

S16, M32 = profile("s16"), profile("m32")


def compulsory(program: Program) -> int:
    """Bytes of every input once and every output once."""
    return sum(t.nbytes(program.binding) for t in program.tensors if t.role in ("input", "constant", "output"))


def same(found: Array, expected: Array, exact: bool) -> None:
    close = np.allclose(found.astype(np.float64), expected.astype(np.float64), rtol=1e-5, atol=1e-6, equal_nan=True)
    assert np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f") if exact else close


def agrees(program: Program, kernel: StreamKernel, exact: bool = True) -> None:
    """The stream gives what the interpreter gives, in a random order of the engines too."""
    assert verify(kernel.stream, kernel.machine) == []
    inputs = inputs_for(program)
    expected = run_program(program, inputs)
    found = kernel(*(inputs[t.name] for t in program.inputs))
    for array, tensor in zip(found if isinstance(found, tuple) else (found,), program.outputs, strict=True):
        same(array, expected[tensor.name], exact)
    values, counters = run(kernel.stream, {n: a for n, a in inputs.items() if n in kernel.stream.symbol}, seed=3)
    for tensor in program.outputs:
        same(values[tensor.name].reshape(expected[tensor.name].shape), expected[tensor.name], exact)
    assert counters.dram_bytes == kernel.report.dram_bytes
    assert kernel.report.cycles >= kernel.report.macs / max(1, kernel.report.peak_macs)


def convolution(
    n: int, c: int, h: int, w: int, o: int, k: int, stride: int, pad: int, dilation: int = 1, dtype: str = "f32"
) -> Program:
    """NCHW, bias first, relu last; padding as a guard."""
    total = "i32" if dtype == "i8" else dtype
    cast = "i32" if dtype == "i8" else ""
    place = {v: f"{stride}*{v} + {dilation}*k{v} - {pad}" for v in "hw"}
    read = f"X[n, c, {place['h']}, {place['w']}]"
    if pad:
        limits = [f"{place[v]} >= 0 and {place[v]} < {e}" for v, e in (("h", h), ("w", w))]
        read = f"({read} if {' and '.join(limits)} else 0)"
    size = {v: (e + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for v, e in (("h", h), ("w", w))}
    out = f"0 <= n < {n} and 0 <= o < {o} and 0 <= h < {size['h']} and 0 <= w < {size['w']}"
    inner = f"0 <= c < {c} and 0 <= kh < {k} and 0 <= kw < {k}"
    product = f"{cast}({read})*{cast}(W[o, c, kh, kw])"
    shape = f"{n}, {o}, {size['h']}, {size['w']}"
    return parse(f"""program conv
        input X: {dtype}[{n}, {c}, {h}, {w}]
        input W: {dtype}[{o}, {c}, {k}, {k}]
        input b: {total}[{o}]
        temporary T: {total}[{shape}]
        output Y: {total}[{shape}]
        start[n, o, h, w]: T[n, o, h, w] = b[o] where {out}
        sum[n, o, h, w, c, kh, kw]: T[n, o, h, w] += {product} where {out} and {inner}
        relu[n, o, h, w]: Y[n, o, h, w] = max(T[n, o, h, w], 0) where {out}
    """)


def within(**extents: int) -> str:
    """`where` clause of a box."""
    return "where " + " and ".join(f"0 <= {i} < {n}" for i, n in extents.items())


def move(x: str, y: str, read: str, write: str, **extents: int) -> Program:
    """One statement that copies."""
    label = f"S[{', '.join(extents)}]"
    return parse(f"program move\ninput X: f32[{x}]\noutput Y: f32[{y}]\n{label}: {write} = {read} {within(**extents)}")


LINEAR = "C[i, j] += x[i, k]*w[j, k]; y[i, j] = max(C[i, j] + b[j], 0)"
INT8 = """input A: i8[100, 70]
input B: i8[70, 50]
C[i, j] += i32(A[i, k])*i32(B[k, j])"""
INSIDE = "h + r >= 1 and h + r <= 17 and w + q >= 1 and w + q <= 17"
DEPTHWISE = f"""input X: f32[1, 24, 17, 17]
input W: f32[24, 3, 3]
Y[n, g, h, w] += (X[n, g, h + r - 1, w + q - 1] if {INSIDE} else 0)*W[g, r, q] {within(n=1, h=17, w=17)}"""
OUT = {"n": 1, "g": 4, "o": 8, "h": 7, "w": 7}
FULL = within(**OUT, c=6, r=3, q=3)
GROUPED = f"""program grouped
input X: f32[1, 24, 9, 9]
input W: f32[32, 6, 3, 3]
output Y: f32[1, 32, 7, 7]
start[n, g, o, h, w]: Y[n, 8*g + o, h, w] = 0 {within(**OUT)}
sum[n, g, o, h, w, c, r, q]: Y[n, 8*g + o, h, w] += X[n, 6*g + c, h + r, w + q]*W[8*g + o, c, r, q] {FULL}"""
ROOM = "2*h + r >= 1 and 2*h + r <= 25 and 2*w + q >= 1 and 2*w + q <= 25"
MAXPOOL = f"""input X: f32[1, 20, 25, 25]
Y[n, c, h, w] max= (X[n, c, 2*h + r - 1, 2*w + q - 1] if {ROOM} else -inf) {within(n=1, c=20, h=13, w=13, r=3, q=3)}"""
AVERAGE = f"""S[n, c, h, w] += X[n, c, 2*h + r, 2*w + q] {within(h=14, w=14, r=2, q=2)}
Y[n, c, h, w] = S[n, c, h, w]*0.25"""
CHAIN = "T[i, j] = X[i, j]*b[j] + c[i]; Y[i, j] = max(T[i, j], 0) - X[i, j]"
CONCAT = f"""program concat
input A: f32[1, 20, 9, 9]
input B: f32[1, 30, 9, 9]
output Y: f32[1, 50, 9, 9]
a[n, c, h, w]: Y[n, c, h, w] = A[n, c, h, w] {within(n=1, c=20, h=9, w=9)}
b[n, c, h, w]: Y[n, c + 20, h, w] = B[n, c, h, w] {within(n=1, c=30, h=9, w=9)}"""
PADDED = "(X[i - 3, j - 1] if i >= 3 and i < 23 and j >= 1 and j < 31 else 7)"

MOVES = {
    "transpose": parse("Y[a, c, d, b] = X[a, b, c, d]", X=(2, 17, 19, 23)),
    "reshape": move("40, 60", "80, 30", "X[(30*i + j) // 60, (30*i + j) % 60]", "Y[i, j]", i=80, j=30),
    "rows": move("14, 10, 33", "140, 33", "X[i // 10, i % 10, j]", "Y[i, j]", i=140, j=33),
    "depth": move(
        "12, 5, 7", "3, 10, 14", "X[(2*(h % 2) + w % 2)*3 + c, h // 2, w // 2]", "Y[c, h, w]", c=3, h=10, w=14
    ),
    "pad": move("20, 30", "26, 33", PADDED, "Y[i, j]", i=26, j=33),
    "slice": move("40, 60", "13, 30", "X[3*i, 59 - 2*j]", "Y[i, j]", i=13, j=30),
    "flatten": move("1, 12, 7, 7", "1, 588", "X[0, c, h, w]", "Y[0, 49*c + 7*h + w]", c=12, h=7, w=7),
    "concat": parse(CONCAT),
}

CASES = {
    "linear": parse(LINEAR, x=(33, 70), w=(50, 70), b=(50,)),
    "int8": parse(INT8),
    "batched": parse("C[b, i, j] += A[b, i, k]*B[b, k, j]", A=(6, 33, 65), B=(6, 65, 47)),
    "matvec": parse("y[i] += A[i, k]*x[k]", A=(130, 300), x=(300,)),
    "dot": parse("y += a[k]*b[k]", a=(3000,), b=(3000,)),
    "outer": parse("C[i, j] += a[i]*b[j]", a=(30,), b=(50,)),
    "conv3x3": convolution(1, 24, 14, 14, 40, 3, 1, 1),
    "conv stride": convolution(2, 17, 15, 13, 19, 3, 2, 1),
    "conv dilation": convolution(1, 8, 20, 20, 8, 3, 1, 2, 2),
    "conv int8": convolution(1, 32, 14, 14, 40, 3, 1, 1, 1, "i8"),
    "conv 1x1": convolution(1, 32, 28, 28, 40, 1, 2, 0),
    "conv 7x7": convolution(1, 3, 30, 30, 20, 7, 2, 3),
    "depthwise": parse(DEPTHWISE),
    "grouped": parse(GROUPED),
    "maxpool": parse(MAXPOOL),
    "average": parse(AVERAGE, X=(1, 40, 28, 28)),
    "global": parse("S[n, c] += X[n, c, h, w]; Y[n, c] = S[n, c]*0.5", X=(2, 300, 7, 7)),
    "elementwise": parse(CHAIN, X=(70, 190), b=(190,), c=(70,)),
    "resize": parse("Y[i, j] = X[i // 2, j // 3] + 1 where 0 <= i < 20 and 0 <= j < 33", X=(10, 11)),
    "scalar": parse("Y[i] = X[i]*s[] + 1", X=(100,), s=()),
    "long sum": parse("s += X[i]*X[i]", X=(50000,)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*CASES, *MOVES])
def test_values(name: str) -> None:
    program = {**CASES, **MOVES}[name]
    agrees(program, compile_stream(program, S16))


def test_softmax() -> None:
    program = parse(
        "m[i] max= X[i, j]; e[i, j] = exp(X[i, j] - m[i]); s[i] += e[i, j]; Y[i, j] = e[i, j]/s[i]", X=(20, 300)
    )
    agrees(program, compile_stream(program, S16), exact=False)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(programs(kinds=("contraction", "elementwise", "convolution", "stencil", "triangle")))
def test_random_programs(program: Program) -> None:
    constants = {t.name: inputs_for(program)[t.name] for t in program.with_role("constant")}
    agrees(program, compile_stream(program, M32, constants))


def test_indirect_reads_and_writes() -> None:
    program = parse("input at: i32[40]\ninput x: f32[30, 8]\ny[i, k] = x[at[i], k] + 1")
    agrees(program, compile_stream(program, S16))
    scatter = parse("input at: i32[40]\ninput v: f32[40]\ninout y: f32[30]\ny[at[i]] += v[i]")
    with pytest.raises(UnsupportedError, match="indirect results"):
        compile_stream(scatter, S16)


# ---- bytes and tiles


@pytest.mark.parametrize("bound", ["i % 9 < 3", "i < 3"])
def test_operands_whose_guards_keep_them_in_their_buffer(bound: str) -> None:
    """Without their conditions these reads would reach into the result's buffer."""
    read = bound.split(" <")[0].replace(" ", "")
    text = f"p[i] += A[i//3,i] + (A[{read},k] if {bound} else 0) - A[k//9%4,k] where 0 <= i < 9 and 0 <= k < 2"
    program = parse(text, A=(3, 9), p=(9,))
    agrees(program, compile_stream(program, S16))


def test_linear_relu_moves_everything_once() -> None:
    program = parse(LINEAR, x=(1, 3072), w=(200, 3072), b=(200,))
    kernel = compile_stream(program, S16)
    report = kernel.report
    assert report.dram_read == {"x": 4 * 3072, "w": 4 * 200 * 3072, "b": 4 * 200}
    assert report.dram_written == {"y": 4 * 200}
    allocated = {n.tensor.space for n in kernel.loops.nodes() if isinstance(n, Alloc)}
    assert allocated <= {"ifmap", "filter", "acc"} and "C" not in {t.name for t in kernel.loops.tensors}
    bound = compulsory(program) / S16.memory["dram"].bytes_per_cycle
    assert bound <= report.cycles <= 1.02 * bound


@pytest.mark.parametrize(
    "name", ["linear", "int8", "batched", "conv3x3", "depthwise", "maxpool", "average", "elementwise"]
)
def test_small_cases_move_no_byte_twice(name: str) -> None:
    program = CASES[name]
    assert compile_stream(program, S16).report.dram_bytes == compulsory(program)


@pytest.mark.parametrize("name", MOVES)
def test_moves_use_no_vector_engine(name: str) -> None:
    """Except where a tile is padding only: there is nothing to copy."""
    kernel = compile_stream(MOVES[name], S16)
    assert {q.engine for q in kernel.stream.queues} - {"ve"} == {"ld", "st"}
    fills = kernel.stream.queue["ve"].items if "ve" in kernel.stream.queue else ()
    assert name == "pad" or not fills


def test_larger_memories_move_less() -> None:
    program = parse("C[i, j] += A[i, k]*B[k, j]", A=(200, 200), B=(200, 200))
    small, large = (compile_stream(program, m).report.dram_bytes for m in (S16, M32))
    assert compulsory(program) <= large < small


def test_search_agrees_with_the_schedule() -> None:
    """The footprints of the search are the buffers of the schedule and the bytes of the stream."""
    program = parse("C[i, j] += A[i, k]*B[k, j]", A=(96, 128), B=(128, 160))
    i, j, k = var("i"), var("j"), var("k")
    variables = (Variable("i", 96), Variable("j", 160, unit=16), Variable("k", 128, True, 16))
    buffers = (
        Buffer("C", ((i, j),), (96, 160), 4, "acc", False, True),
        Buffer("A", ((i, k),), (96, 128), 4, "ifmap", True, False),
        Buffer("B", ((k, j),), (128, 160), 4, "filter", True, False),
    )
    spaces = {n: Space(S16.memory[n].capacity or 0, S16.memory[n].align) for n in ("acc", "ifmap", "filter")}
    work = (Work("mm", ("i", "j", "k"), columns=("j",), rows=("k",), shape=(16, 16)),)
    problem = Problem(variables, buffers, work, (("i", "j"), ("j", "i")), spaces, Bus(8, 8, 4))
    best = best_tiles([problem])
    assert best is not None
    kernel = compile_stream(program, S16)
    assert best[1].moved == kernel.report.dram_bytes
    used = plan_memory(kernel.loops, S16)
    assert all(p.size <= (S16.memory[n].capacity or 0) for n, p in used.placements.items())


def test_no_candidate_fits() -> None:
    buffer = Buffer("A", ((var("i"),),), (64,), 4, "m", True, False)
    problem = Problem((Variable("i", 64),), (buffer,), (), (("i",),), {"m": Space(4, 16)}, Bus(8, 8, 4))
    assert best_tiles([problem]) is None


def test_too_large_for_the_memories() -> None:
    memories = tuple(replace(m, capacity=64) if m.capacity else m for m in S16.memories)
    tiny = replace(S16, name="tiny", memories=memories)
    with pytest.raises(CapacityError, match="fit"):
        compile_stream(
            parse("for t:\n  S[t, i]: A[i] = A[i] + 1 where 0 <= t < 3 and 0 <= i < 100\ninout A: f32[100]"), tiny
        )


# ---- roles


def test_roles_come_from_the_accesses() -> None:
    program = convolution(1, 8, 9, 9, 16, 3, 1, 0)
    (first, second) = contractions(program, program.statement["sum"], S16.engine["mm"])
    assert (first.m, first.n, first.k, first.batch) == (("n", "h", "w"), ("o",), ("c", "kh", "kw"), ())
    assert (second.m, second.n) == (first.n, first.m)
    depthwise = parse(DEPTHWISE)
    (way, _) = contractions(depthwise, depthwise.statements[-1], S16.engine["mm"])
    assert (way.batch, way.n) == (("g",), ())


def test_engines() -> None:
    """Products on the array, everything else on the vector engine, padding by the DMA."""
    kernel = compile_stream(convolution(1, 17, 15, 13, 19, 3, 2, 1), S16)
    commands = {q.engine: q.items for q in kernel.stream.queues}
    assert all(isinstance(c, Mm) for c in commands["mm"]) and all(isinstance(c, Vec) for c in commands["ve"])
    assert any(isinstance(c, Dma) and c.pad for c in commands["ld"])
    square = parse("C[i, j] += A[i, k]*A[j, k]", A=(20, 30))
    assert "mm" not in compile_stream(square, S16).stream.queue


# ---- hand-made schedules, errors, the kernel


def test_a_schedule_by_hand() -> None:
    program = parse("C[i, j] += A[i, k]*B[k, j]", A=(20, 30), B=(30, 24))
    start, update = (s.name for s in program.statements)
    schedule = Schedule(program).promote("C", None, "acc").promote("A", None, "ifmap").promote("B", None, "filter")
    schedule = schedule.tile(k=15).tile({f"{update}.j": 12})
    nest = schedule.nests[update].names
    chain = ("k.o", *(n for n in nest if n.endswith("j.o")), *(n for n in nest if n.endswith(".i")))
    schedule = schedule.reorder(*chain, *(n for n in nest if n.endswith(".p")))
    schedule = schedule.tensorise(schedule.nests[update].names, "mm")
    schedule = schedule.tensorise(schedule.nests[start].names, "ve")
    for s in schedule.program.statements:
        if s.copies:
            schedule = schedule.tensorise(schedule.nests[s.name].names, "st" if s.write.tensor == "C" else "ld")
    kernel = compile_stream(program, S16, schedule=schedule)
    agrees(program, kernel)
    (product,) = kernel.stream.queue["mm"].items
    assert isinstance(product, Mm) and product.roles == "oomnk" and product.trips == (2, 2, 20, 12, 15)


def test_nothing_reaches_dram_directly() -> None:
    program = parse("Y[i] = X[i] + 1", X=(10,))
    with pytest.raises(UnsupportedError, match=r"statement Y_set(.|\n)*tensorise its loops"):
        emit_stream(Schedule(program).lower(), S16)
    scalar = Schedule(parse("Y[i] = X[i] + 1", X=(1,)))
    with pytest.raises(StreamError, match="ve does not read dram"):
        compile_stream(scalar.program, S16, schedule=scalar.tensorise((), "ve", statement="Y_set"))
    with pytest.raises(UnsupportedError, match="no engine 'gpu'"):
        emit_stream(Schedule(program).tensorise(["i"], "gpu").lower(), S16)


def test_the_tree_names_every_engine() -> None:
    """A scalar and a step have a loop that runs once; what is padding only names who fills it."""
    scalar = Schedule(parse("Y[i] = X[i] + 1", X=(1,)))
    for loops, statement in ((), None), (("i",), "Y_set"):
        with pytest.raises(ScheduleError, match="loops or a statement"):
            scalar.tensorise(loops, "ve", statement=statement)
    with pytest.raises(UnsupportedError, match="no engine is named"):
        emit_stream(scalar.lower(), S16)
    given = scalar.tensorise((), "ve", statement="Y_set")
    assert Schedule.parse(str(given)) == given
    ((engine, (command,)),) = ((q.engine, q.items) for q in emit_stream(given.lower(), S16).queues)
    assert engine == "ve" and isinstance(command, Vec)

    (filled,) = emit_stream(all_padding("ve"), S16).queues
    assert filled.engine == "ve" and parse_loops(str(all_padding("ve"))) == all_padding("ve")
    without = replace(S16, engines=tuple(replace(e, writes=("acc",)) if e.kind == "vector" else e for e in S16.engines))
    for fill, machine in (None, S16), ("ve", without), ("mm", S16):
        with pytest.raises(UnsupportedError, match="padding only"):
            emit_stream(all_padding(fill), machine)


def test_loops_of_too_many_commands_are_refused_by_their_counts() -> None:
    """These would be unrolled for days; a loop that could be a unit's is told so first, however long."""
    steps = parse("for t, i:\n    S[i] = S[i - 1]*S[i] where 0 <= t and t < 1000000000 and 1 <= i and i < 50", S=(50,))
    with pytest.raises(UnsupportedError, match="more than 500000 commands"):
        compile_stream(steps, S16)
    with pytest.raises(UnsupportedError, match="tensorise its loops"):
        emit_stream(Schedule(parse("Y[i] = X[i] + 1", X=(10**9,))).lower(), S16)


def all_padding(fill: str | None) -> LoopTree:
    """A copy into `ifmap` whose guard never holds."""
    x, b = Tensor("x", (Affine.of(4),), role="input"), Tensor("b", (Affine.of(4),), space="ifmap")
    never = Access("x", (var("i"),), (Constraint(var("i") - 9),), Const(0))
    copy = Compute("copy", (var("i"),), Access("b", (var("i"),)), (never,), Read(0))
    loop = For("i", (Affine.of(0),), (Affine.of(4),), (copy,), kind="unit", engine="ld", fill=fill)
    return LoopTree("f", (x, b), (Alloc(b, (loop,)),))


def test_elements_wider_than_what_a_memory_aligns_to() -> None:
    narrow = replace(S16, memories=tuple(replace(m, align=4) for m in S16.memories))
    program = parse("y[i] = f64(x[3*i]) + z[i] where 0 <= i < 5", dtypes={"z": "f64"}, x=(15,), z=(5,))
    agrees(program, compile_stream(program, narrow))


def test_a_recurrence_runs_step_by_step() -> None:
    program = parse("for t:\n  S[t]: A[t] = A[t-1] + 1 where 1 <= t < 20\ninout A: f32[20]")
    np.testing.assert_array_equal(compile_stream(program, S16)(np.zeros(20, np.float32)), np.arange(20))


@pytest.mark.parametrize(
    "text",
    [
        "inout A: f32[9]\nfor k:\n  for i:\n    S[k, i]: A[i+1] = A[k] + A[i] where 0 <= k and 0 <= i < 7 - k",
        "inout A: f32[9, 9]\nfor i:\n  S[i, k]: A[k, i] = 2*A[i, k] + 1",
        "inout A: f32[9, 9]\nS[i]: A[i, i] += A[i, 1]",
    ],
)
def test_an_element_may_be_read_and_written_at_once(text: str) -> None:
    """What a command reads and writes is of one of its points, in some steps only."""
    program = parse(text)
    agrees(program, compile_stream(program, S16))


@pytest.mark.parametrize("moved", ["A[j, i]", "A[15 - i, j]"])
def test_elements_that_move_inside_of_one_tensor(moved: str) -> None:
    """A triangle in place: both ends are in one memory, so no DMA engine has a path between them."""
    text = f"program p; inout A: f32[16, 16]; S[i, j]: A[i, j] = {moved} where 8 <= i < 16 and 0 <= j < i - 7"
    program = parse(text)
    agrees(program, compile_stream(program, S16))


def test_a_sync_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="sync"):
        emit_stream(LoopTree("f", (), (Sync(),)), S16)


def test_lists_are_converted() -> None:
    kernel = compile_stream(parse("Y[i] = X[i] + 1", X=(3,)), S16)
    np.testing.assert_array_equal(kernel([1, 2.5, 3]), np.array([2, 3.5, 4], np.float32))
    for wrong in (["a", "b", "c"], [[1], [2, 3]], [1, 2]):
        with pytest.raises(RunError):
            kernel(wrong)


def test_free_sizes_are_refused() -> None:
    program = parse("Y[i] = X[i] + 1", X=("N",))
    with pytest.raises(UnsupportedError, match="sizes N are free"):
        compile_stream(program, S16)
    agrees(program.bind(N=37), compile_stream(program.bind(N=37), S16))


def test_the_kernel_checks_its_arguments() -> None:
    kernel = compile_stream(parse("Y[i] = X[i] + 1", X=(10,)), S16)
    x = np.arange(10, dtype=np.float32)
    out = np.zeros(10, np.float32)
    assert kernel(x, out=out) is out and (out == x + 1).all()
    for wrong in ((x.astype(np.float64),), (x[:5],), (), (x, x)):
        with pytest.raises(RunError):
            kernel(*wrong)
    assert "StreamKernel" in repr(kernel) and "cycles" in str(kernel)


def test_constants_are_in_the_stream() -> None:
    program = parse("constant w: f32[9]\nY[i] = X[i]*w[i]", X=(9,))
    w = np.arange(9, dtype=np.float32)
    kernel = compile_stream(program, S16, {"w": w})
    np.testing.assert_array_equal(kernel(np.full(9, 2, np.float32)), 2 * w)
    assert kernel.stream.symbol["w"].digest


# ---- addresses


def scope(**ranges: tuple[int, int]) -> Scope:
    """Loop variables that count from a first value."""
    found = Scope({}, {})
    for name, (first, trips) in ranges.items():
        found = found.moving(name, first, 1, trips)
    return found


def test_forms() -> None:
    here = scope(i=(0, 4), j=(8, 8)).fixed("t", 5)
    assert here.form(parse_affine("3*i + j - t")) == Form(3, {"i": 3, "j": 1})
    assert here.form(parse_affine("j // 16 + 7*(j % 16)")) == Form(56, {"j": 7})
    assert here.form(parse_affine("(8*i + t) // 4")) == Form(1, {"i": 2})


@pytest.mark.parametrize("text", ["j // 4", "j % 5", "(j + 3) // 4", "(3*j + 1) % 7", "(i + j) // 3", "(2*i - j) % 4"])
def test_bent_expressions_are_cut_exactly(text: str) -> None:
    """The parts cover the box once, and in each the expression is linear with the right values."""
    expression, parts, found = parse_affine(text), [scope(i=(0, 3), j=(2, 11))], {}
    while parts:
        part = parts.pop()
        try:
            form = part.form(expression)
        except Bent as bent:
            parts += bent.parts
            continue
        axes, size = list(part.axes), tuple(part.axes.values())
        forms = (part.places["i"], part.places["j"], form)
        i, j, value = (np.broadcast_to(part.values(f, axes), size).ravel() for f in forms)
        for point in zip(i.tolist(), j.tolist(), value.tolist(), strict=True):
            assert point[:2] not in found
            found[point[:2]] = point[2]
    assert found == {(i, j): expression.evaluate({"i": i, "j": j}) for i in range(3) for j in range(2, 13)}


def test_reshapes_have_linear_addresses() -> None:
    tensor = Tensor("X", (Affine.of(40), Affine.of(60)))
    place = address(tensor, [parse_affine("(30*i + j) // 60"), parse_affine("(30*i + j) % 60")], {})
    assert place == parse_affine("30*i + j")


def test_errors_are_users_errors() -> None:
    assert issubclass(UnsupportedError, PolyError) and issubclass(CapacityError, PolyError)


@pytest.mark.parametrize("target", ["s16", "g16", "m32", "cpu"])
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("p[i] += (B[k] if i == 2 and i == k else 0) + A[i] where 0 <= i < 5 and 0 <= k < 2", [0, 2, 4, 6, 8]),
        ("p[i] = A[i] * (B[i] if i > 7 else 1.5) where 0 <= i < 5", [0, 1.5, 3, 4.5, 6]),
        ("p[i] = 0 * A[i] + (B[i] if 2 <= i < 4 and i != 3 else 7) where 0 <= i < 5", [7, 7, 12, 7, 7]),
    ],
)
def test_reads_whose_conditions_hold_nowhere_together(text: str, wanted: list[float], target: str) -> None:
    kernel = poly.compile(poly.parse(text, A=(5,), B=(5,)), target=target)
    found = kernel(A=np.arange(5, dtype="f4"), B=np.arange(10, 15, dtype="f4"))
    assert np.array_equal(found, np.array(wanted, "f4"))
