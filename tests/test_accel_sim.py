"""The simulators: values against numpy, and cycles against schedules worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poly.accel.footprint import flatten
from poly.accel.isa import (
    Command,
    CommandStream,
    Convert,
    Dma,
    Gather,
    Imm,
    Index,
    Linear,
    Load,
    Mm,
    Op,
    Queue,
    Rep,
    Semaphore,
    StreamError,
    Symbol,
    Vec,
    chip,
    constant,
    dram,
)
from poly.accel.roll import roll
from poly.accel.simulate import run
from poly.accel.stream import parse_stream
from poly.accel.synchronise import synchronise
from poly.accel.timing import Report, simulate
from poly.accel.vector_code import code_of
from poly.accel.verify import verify
from poly.affine import Affine, var
from poly.dtypes import dtype_name
from poly.errors import RunError
from poly.expr import Cast, Const, IndexValue, Read, apply
from poly.machine_text import read_machine

MACHINE = read_machine(Path(__file__).parent.parent / "accel" / "profiles" / "s16.toml")
Array = npt.NDArray[Any]


def execute(
    program: list[tuple[str, Command]], inputs: dict[str, Array], outputs: dict[str, Array]
) -> dict[str, Array]:
    """Synchronise, verify, run in three orders; `outputs` gives dtypes and shapes."""
    symbols = [Symbol(n, dtype_name(a.dtype), a.size, "input") for n, a in inputs.items()]
    symbols += [Symbol(n, dtype_name(a.dtype), a.size, "output") for n, a in outputs.items()]
    stream = synchronise("test", MACHINE, symbols, program)
    assert verify(stream, MACHINE) == []
    results = [run(stream, inputs, seed=seed)[0] for seed in (None, 1, 2)]
    for other in results[1:]:
        for name in outputs:
            np.testing.assert_array_equal(results[0][name], other[name])
    return {n: results[0][n].reshape(outputs[n].shape) for n in outputs}


def small_ints(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    low, high = (0, 256) if dtype == "uint8" else (-128, 128) if dtype == "int8" else (-9, 10)
    return rng.integers(low, high, shape).astype(dtype)


def test_dma_pads_converts_and_replicates() -> None:
    x = small_ints((5, 6), "int8")
    program: list[tuple[str, Command]] = [
        ("ld", Dma(chip("ifmap", 0, "f32", (9, 1)), dram("x", 0, "i8", (6, 1)), (5, 6), ((1, 2), (2, 1)), -3)),
        ("st", Dma(dram("y", 0, "f32", (9, 1)), chip("ifmap", 0, "f32", (9, 1)), (8, 9))),
        ("ld", Dma(chip("acc", 64, "i8", (6, 1)), dram("x", 11, "i8", (0, -1)), (4, 6))),
        ("st", Dma(dram("z", 0, "i8", (6, 1)), chip("acc", 64, "i8", (6, 1)), (4, 6))),
    ]
    got = execute(program, {"x": x}, {"y": np.zeros((8, 9), np.float32), "z": np.zeros((4, 6), np.int8)})
    np.testing.assert_array_equal(got["y"], np.pad(x, ((1, 2), (2, 1)), constant_values=-3).astype(np.float32))
    np.testing.assert_array_equal(got["z"], np.tile(x[1, ::-1], (4, 1)))


@pytest.mark.parametrize(("kind", "acc"), [("int8", "int32"), ("uint8", "int32"), ("float32", "float32")])
def test_mm_is_a_direct_convolution(kind: str, acc: str) -> None:
    """3x3, stride 2, pad 1, NHWC: the window loops are outer loops and rows of a; the pad is the DMA's."""
    h, c, o, s = 9, 16, 16, 2
    x, w = small_ints((h, h, c), kind), small_ints((3, 3, c, o), kind, 1)
    p, hp, size = 5, h + 2, x.itemsize
    program: list[tuple[str, Command]] = [
        (
            "ld",
            Dma(
                chip("ifmap", 0, dtype_name(x.dtype), (hp * c, c, 1)),
                dram("x", 0, dtype_name(x.dtype), (h * c, c, 1)),
                (h, h, c),
                ((1, 1), (1, 1), (0, 0)),
            ),
        ),
        (
            "ld",
            Dma(
                chip("filter", 16 * size, dtype_name(x.dtype), (1,)),
                dram("w", 0, dtype_name(x.dtype), (1,)),
                (9 * c * o,),
            ),
        ),
        (
            "mm",
            Mm(
                chip("acc", 0, dtype_name(np.dtype(acc)), (0, 0, p * o, o, 1, 0)),
                chip("ifmap", 0, dtype_name(x.dtype), (hp * c, c, s * hp * c, s * c, 0, 1)),
                chip("filter", 16 * size, dtype_name(x.dtype), (3 * c * o, c * o, 0, 0, 1, o)),
                (3, 3, p, p, o, c),
                "oommnk",
            ),
        ),
        (
            "st",
            Dma(
                dram("y", 0, dtype_name(np.dtype(acc)), (1,)),
                chip("acc", 0, dtype_name(np.dtype(acc)), (1,)),
                (p * p * o,),
            ),
        ),
    ]
    got = execute(program, {"x": x, "w": w}, {"y": np.zeros((p, p, o), acc)})["y"]
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0))).astype(np.int64)
    want = sum(
        np.einsum("pqc,co->pqo", padded[r : r + s * p - 1 : s, q : q + s * p - 1 : s], w[r, q].astype(np.int64))
        for r in range(3)
        for q in range(3)
    )
    np.testing.assert_array_equal(got, want)


def test_mm_depthwise_scatter_and_wrap() -> None:
    """A batch loop (depthwise), a c that overlaps itself (transposed convolution), and accumulators that wrap."""
    x, w = small_ints((7, 4), "int8"), small_ints((3, 4), "int8", 1)
    x[0, 0] = w[0, 0] = -128
    a, b = chip("ifmap", 0, "i8", (1, 4, 4)), chip("filter", 0, "i8", (1, 0, 4))
    wide_a, wide_b = chip("ifmap", 0, "i8", (0, 4, 1)), chip("filter", 0, "i8", (4, 0, 1))
    one_a, one_b = chip("ifmap", 0, "i8", (0, 0)), chip("filter", 0, "i8", (0, 0))
    got = execute(
        [
            ("ld", Dma(chip("ifmap", 0, "i8", (1,)), dram("x", 0, "i8", (1,)), (28,))),
            ("ld", Dma(chip("filter", 0, "i8", (1,)), dram("w", 0, "i8", (1,)), (12,))),
            ("mm", Mm(chip("acc", 0, "i32", (1, 4, 0)), a, b, (4, 5, 3), "omk")),
            ("st", Dma(dram("y", 0, "i32", (1,)), chip("acc", 0, "i32", (1,)), (20,))),
            ("mm", Mm(chip("acc", 128, "i32", (1, 2, 0)), wide_a, wide_b, (3, 7, 4), "omk")),
            ("st", Dma(dram("z", 0, "i32", (1,)), chip("acc", 128, "i32", (1,)), (15,))),
            ("mm", Mm(chip("acc", 1024, "i32", (0, 0)), one_a, one_b, (9000, 16), "ok")),
            ("st", Dma(dram("v", 0, "i32", (1,)), chip("acc", 1024, "i32", (1,)), (1,))),
        ],
        {"x": x, "w": w},
        {"y": np.zeros((5, 4), np.int32), "z": np.zeros(15, np.int32), "v": np.zeros(1, np.int32)},
    )
    wide, window = x.astype(np.int64), w.astype(np.int64)
    np.testing.assert_array_equal(got["y"], sum(wide[r : r + 5] * window[r] for r in range(3)))
    spread = np.zeros(15, np.int64)
    for m in range(7):
        for r in range(3):
            spread[2 * m + r] += wide[m] @ window[r]
    np.testing.assert_array_equal(got["z"], spread)
    assert int(got["v"][0]) == 128 * 128 * 16 * 9000 - 2**32


def on_vector(commands: list[Vec], inputs: dict[str, Array], out: Array) -> Array:
    """Inputs side by side at 4 KiB steps in acc, the result at 32 KiB."""
    program: list[tuple[str, Command]] = []
    for at, (name, data) in enumerate(inputs.items()):
        dtype = dtype_name(data.dtype)
        program.append(("ld", Dma(chip("acc", 4096 * at, dtype, (1,)), dram(name, 0, dtype, (1,)), (data.size,))))
    program += [("ve", c) for c in commands]
    dtype = dtype_name(out.dtype)
    program.append(("st", Dma(dram("out", 0, dtype, (1,)), chip("acc", 32768, dtype, (1,)), (out.size,))))
    return execute(program, inputs, {"out": out})["out"]


def test_vec_softmax() -> None:
    x = np.random.default_rng(0).normal(size=(6, 10)).astype(np.float32)
    row, point = (1, 0), (10, 1)
    top, total, work = chip("acc", 8192, "f32", row), chip("acc", 9216, "f32", row), chip("acc", 32768, "f32", point)
    commands = [
        Vec(top, (Load(chip("acc", 0, "f32", point)),), (6, 10), "max"),
        Vec(work, (Load(chip("acc", 0, "f32", point)), Load(top), Op("sub", (0, 1)), Op("exp", (2,))), (6, 10)),
        Vec(total, (Load(work),), (6, 10), "+"),
        Vec(work, (Load(work), Load(total), Op("div", (0, 1))), (6, 10)),
    ]
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(on_vector(commands, {"x": x}, np.zeros_like(x)), e / e.sum(1, keepdims=True), rtol=1e-6)


def test_vec_pooling_guard_and_where() -> None:
    """3x3 max pooling, stride 2, pad 1 as guarded loads; then only the upper triangle is doubled."""
    x = small_ints((7, 7), "int32")
    guards = tuple(
        Linear(b, c) for b, c in ((-1, (2, 0, 1, 0)), (7, (-2, 0, -1, 0)), (-1, (0, 2, 0, 1)), (7, (0, -2, 0, -1)))
    )
    out = chip("acc", 32768, "i32", (4, 1))
    double = Vec(out, (Load(out), Imm(2, "i32"), Op("mul", (0, 1))), (4, 4), where=(Linear(0, (-1, 1)),))
    shift = Vec(chip("acc", 8192 + 64, "i32", (1,)), (Load(chip("acc", 0, "i32", (1,))),), (49,))
    pool = Load(chip("acc", 8192 + 64 - 32, "i32", (14, 2, 7, 1)), guards, -(2**31))
    got = on_vector(
        [shift, Vec(chip("acc", 32768, "i32", (4, 1, 0, 0)), (pool,), (4, 4, 3, 3), "max"), double],
        {"x": x},
        np.zeros((4, 4), np.int32),
    )
    padded = np.pad(x, 1, constant_values=-(2**31))
    want = np.array([[padded[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max() for j in range(4)] for i in range(4)])
    np.testing.assert_array_equal(got, np.where(np.triu(np.ones((4, 4))) > 0, 2 * want, want))


def test_vec_gather_index_and_accumulate() -> None:
    table, index = small_ints((8, 5), "float32"), np.array([3, 0, 7, 3], np.int64)
    out = chip("acc", 32768, "f32", (5, 1))
    pick = Vec(
        out,
        (Load(chip("acc", 4096, "i64", (1, 0))), Load(chip("acc", 0, "f32", (0, 1)), gather=(Gather(0, 5, 8),))),
        (4, 5),
    )
    column = Vec(out, (Index(Linear(1, (10, 1))), Convert("f32", 0)), (4, 5), "+", accumulate=True)
    got = on_vector([pick, column], {"t": table, "i": index}, np.zeros((4, 5), np.float32))
    np.testing.assert_array_equal(got, table[index] + (1 + 10 * np.arange(4)[:, None] + np.arange(5)))
    with pytest.raises(RunError, match="index 9 is not in 0..7"):
        on_vector([pick], {"t": table, "i": np.array([0, 9, 0, 0], np.int64)}, np.zeros((4, 5), np.float32))


def test_vec_runs_statement_bodies() -> None:
    """`code_of` gives what `poly.expr.evaluate` gives, literals typed by their neighbours."""
    x = np.linspace(-4, 4, 40, dtype=np.float32)
    q = small_ints((40,), "int32")
    body = apply(
        "select",
        apply("and", apply("lt", Read(0), Const(1.5)), apply("ge", Read(1), Const(0))),
        apply("max", apply("mul", Read(0), Cast("f32", Read(1))), Const(0)),
        apply("add", Cast("f32", IndexValue(Affine.of(3) + 2 * var("i"))), apply("sigmoid", Read(0))),
    )
    loads = [Load(chip("acc", 0, "f32", (1,))), Load(chip("acc", 4096, "i32", (1,)))]
    code = code_of(body, loads, lambda a: Linear(a.substitute({"i": 0}).constant, (a.coefficient("i"),)), "f32")
    got = on_vector([Vec(chip("acc", 32768, "f32", (1,)), code, (40,))], {"x": x, "q": q}, np.zeros(40, np.float32))
    want = np.where(
        (x < 1.5) & (q >= 0), np.maximum(x * q.astype(np.float32), 0), (3 + 2 * np.arange(40)) + 1 / (1 + np.exp(-x))
    )
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_vec_in_blocks_is_vec_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = small_ints((12, 9), "int32")
    command = Vec(chip("acc", 32768, "i32", (0, 1)), (Load(chip("acc", 0, "i32", (9, 1))),), (12, 9), "+")
    whole = on_vector([command], {"x": x}, np.zeros(9, np.int32))
    monkeypatch.setattr("poly.accel.vector.CHUNK", 20)
    np.testing.assert_array_equal(on_vector([command], {"x": x}, np.zeros(9, np.int32)), whole)
    np.testing.assert_array_equal(whole, x.sum(0))


def stream_of(text: str) -> CommandStream:
    return parse_stream(text)


PLAIN = """
stream s for s16
symbol x: i8[64] input
symbol y: i8[64] output
semaphore full: st = 0
queue ld {
  dma ifmap[0x0]:i8(1) <- @x[0]:i8(1) {64} post full
}
queue st {
  dma @y[0]:i8(1) <- ifmap[0x0]:i8(1) {64} wait full
}
"""


def test_bad_runs_are_errors() -> None:
    x = small_ints((64,), "int8")
    with pytest.raises(RunError, match="input x"):
        run(stream_of(PLAIN), {})
    with pytest.raises(RunError, match="int8"):
        run(stream_of(PLAIN), {"x": x.astype(np.int32)})
    with pytest.raises(StreamError, match="deadlock: st#0"):
        run(stream_of(PLAIN.replace("post full", "")), {"x": x})
    with pytest.raises(StreamError, match="deadlock: st#0 on semaphore full"):
        simulate(stream_of(PLAIN.replace("post full", "")), MACHINE)
    with pytest.raises(StreamError, match="leaves @x"):
        run(stream_of(PLAIN.replace("@x[0]", "@x[1]")), {"x": x})
    short = stream_of(PLAIN.replace("@x[0]:i8(1) {64}", "@x[0]:i8(1) {63}"))
    with pytest.raises(RunError, match="nothing wrote"):
        run(short, {"x": x})
    poisoned, _ = run(short, {"x": x}, checked=False)
    assert poisoned["y"][63] == 0x7F
    weights = constant("x", x)
    with pytest.raises(RunError, match="data is missing"):
        run(
            stream_of(PLAIN.replace("symbol x: i8[64] input", f"symbol x: i8[64] constant sha256={weights.digest}")), {}
        )


def test_counters() -> None:
    got, counters = run(stream_of(PLAIN), {"x": small_ints((64,), "int8")})
    assert counters.read == {"x": 64} and counters.written == {"y": 64} and counters.dram_bytes == 128
    assert counters.commands == {"ld": 1, "st": 1}
    np.testing.assert_array_equal(got["y"], small_ints((64,), "int8"))


def accounted(report: Report) -> Report:
    for engine in report.engines:
        assert engine.busy + sum(engine.stalls.values()) == report.cycles, engine
    return report


def test_cycles_of_one_load_and_one_store() -> None:
    """ld: setup 4, bus 64/8 = 8, latency 64 -> posts at 76. st: 76 + 4 + 8 + 64 = 152."""
    report = accounted(simulate(stream_of(PLAIN), MACHINE, trace=True))
    assert [(s.engine, s.start, s.end, s.complete) for s in report.trace] == [("ld", 0, 12, 76), ("st", 76, 88, 152)]
    assert report.cycles == 152 and report.dram_bytes == 128 and report.bus_bytes == 128
    assert report.engine("ld").stalls == {"setup": 4, "done": 140}
    assert report.engine("st").stalls == {"setup": 4, "semaphore full": 76, "done": 64}
    assert "152 cycles" in str(report)


def test_short_rows_cost_a_line_each() -> None:
    stream = stream_of(PLAIN.replace("@x[0]:i8(1) {64}", "@x[0]:i8(9) {7}"))
    assert simulate(stream, MACHINE).bus_bytes == 7 * 8 + 64


def test_the_bus_is_shared_in_turns() -> None:
    """Two loads of 4 slots of 64 cycles on two engines take turns: each waits for the other's slots."""
    text = """
stream s for s16
symbol x: i8[4096] input
symbol y: i8[2048] output
semaphore go: st = 0
queue ld {
  dma ifmap[0x0]:i8(1) <- @x[0]:i8(1) {2048} post go
  dma filter[0x0]:i8(1) <- @x[2048]:i8(1) {2048}
}
queue st {
  dma @y[0]:i8(1) <- ifmap[0x0]:i8(1) {2048} wait go
}
"""
    report = accounted(simulate(stream_of(text), MACHINE, trace=True))
    # ld#0 has the bus 4..260 and posts at 324. ld#1 wants it at 264, st#0 at 324 + 4. Slots of 64 from 264 on:
    # ld st ld st ld st ld st.
    spans = {s.label: (s.start, s.end, s.complete) for s in report.trace}
    assert spans == {"ld#0": (0, 260, 324), "ld#1": (260, 712, 776), "st#0": (324, 776, 840)}
    assert report.cycles == 840
    assert report.engine("ld").stalls == {"setup": 8, "bus": 192, "done": 128}
    assert report.engine("st").stalls == {"setup": 4, "bus": 192, "semaphore go": 324, "done": 64}


def mm_stream(m: int, passes: int, same: bool = False) -> CommandStream:
    """One command of `passes` passes of m rows on data that is taken as loaded (timing does not look at values)."""
    b = chip("filter", 0, "i8", (0 if same else 256, 0, 1, 16))
    command = Mm(
        chip("acc", 0, "i32", (0, 16, 1, 0)), chip("ifmap", 0, "i8", (16, 64, 0, 1)), b, (passes, m, 16, 16), "omnk"
    )
    return CommandStream("s", "s16", (), (), (Queue("mm", (command,)),))


@pytest.mark.parametrize(("m", "passes"), [(1, 1), (49, 8), (128, 3), (7, 20)])
def test_cycles_of_the_array(m: int, passes: int) -> None:
    """Weight stationary: preload 16, then per pass max(m, 16), the last m, then 30 to drain. Alone: SCALE-Sim."""
    report = accounted(simulate(mm_stream(m, passes), MACHINE))
    assert report.cycles == 16 + (passes - 1) * max(m, 16) + m + 30
    assert report.engine("mm").stalls == {"preload": 16, "done": 30}
    alone = accounted(simulate(mm_stream(m, passes), MACHINE, overlap=False))
    scale_sim = passes * (m + 2 * 16 + 16 - 2) - 1
    assert alone.cycles - 1 == scale_sim
    assert simulate(mm_stream(m, passes, same=True), MACHINE, overlap=False).cycles == alone.cycles
    assert accounted(simulate(mm_stream(m, passes, same=True), MACHINE)).cycles == 16 + passes * m + 30


def test_the_next_weights_load_behind_the_present_pass() -> None:
    """Two commands of one pass of 49: the second preloads during the first; without shadow registers it cannot."""
    one = mm_stream(49, 1).queues[0].items[0]
    stream = CommandStream("s", "s16", (), (), (Queue("mm", (Rep(2, (one,)),)),))
    assert accounted(simulate(stream, MACHINE)).cycles == 16 + 49 + 49 + 30
    from dataclasses import replace

    plain = replace(MACHINE, engines=tuple(replace(e, features=()) for e in MACHINE.engines))
    assert accounted(simulate(stream, plain)).cycles == 16 + 49 + 16 + 49 + 30


def test_cycles_of_the_vector_engine() -> None:
    """Setup 4; 40 points on 16 lanes are 3 vectors of exp (4) + add (1); 8 to complete."""
    x = chip("acc", 0, "f32", (1,))
    command = Vec(x, (Load(x), Op("exp", (0,)), Op("add", (0, 1))), (40,))
    report = accounted(simulate(CommandStream("s", "s16", (), (), (Queue("ve", (command,)),)), MACHINE))
    assert report.cycles == 4 + 3 * 5 + 8
    assert report.engine("ve").busy == 15


def matmul(size: int, tile: int, depth: int) -> tuple[CommandStream, Array, Array]:
    """A tiled product, k innermost, `depth` buffers for a and b, two accumulators."""
    a, b = small_ints((size, size), "int8"), small_ints((size, size), "int8", 1)
    program: list[tuple[str, Command]] = []
    turn = 0
    for i in range(0, size, tile):
        for j in range(0, size, tile):
            acc = (i // tile * (size // tile) + j // tile) % 2 * tile * tile * 4
            for k in range(0, size, tile):
                at = turn % depth * tile * tile
                turn += 1
                program += [
                    (
                        "ld",
                        Dma(chip("ifmap", at, "i8", (tile, 1)), dram("a", i * size + k, "i8", (size, 1)), (tile, tile)),
                    ),
                    (
                        "ld",
                        Dma(
                            chip("filter", at, "i8", (tile, 1)), dram("b", k * size + j, "i8", (size, 1)), (tile, tile)
                        ),
                    ),
                    (
                        "mm",
                        Mm(
                            chip("acc", acc, "i32", (0, 16, tile, 1, 0)),
                            chip("ifmap", at, "i8", (16, 0, tile, 0, 1)),
                            chip("filter", at, "i8", (16 * tile, 16, 0, 1, tile)),
                            (tile // 16, tile // 16, tile, 16, 16),
                            "oomnk",
                            accumulate=k > 0,
                        ),
                    ),
                ]
            program.append(
                ("st", Dma(dram("c", i * size + j, "i32", (size, 1)), chip("acc", acc, "i32", (tile, 1)), (tile, tile)))
            )
    symbols = (
        Symbol("a", "i8", size * size, "input"),
        Symbol("b", "i8", size * size, "input"),
        Symbol("c", "i32", size * size, "output"),
    )
    return synchronise("matmul", MACHINE, symbols, program), a, b


def test_double_buffering_overlaps_and_single_does_not() -> None:
    cycles: dict[int, int] = {}
    for depth in (1, 2):
        stream, a, b = matmul(128, 64, depth)
        assert verify(stream, MACHINE) == []
        for seed in (None, 5):
            got, counters = run(stream, {"a": a, "b": b}, seed=seed)
            np.testing.assert_array_equal(got["c"].reshape(128, 128), a.astype(np.int64) @ b.astype(np.int64))
        assert counters.macs == 128**3 and counters.read == {"a": 2 * 128**2, "b": 2 * 128**2}
        report = accounted(simulate(stream, MACHINE))
        assert report.dram_bytes == counters.dram_bytes and report.macs == counters.macs
        cycles[depth] = report.cycles
    bus = 8 * 128**2 // 8
    assert bus < cycles[2] < 0.85 * cycles[1]


def test_hardware_loops_run_as_if_written_out() -> None:
    """`Rep` with credits: two buffers, four tiles; the same stream unrolled gives the same values and cycles."""
    text = """
stream s for s16
symbol x: f32[256] input
symbol y: f32[256] output
semaphore full: ve = 0
semaphore free: ld = 2
semaphore done: st = 0
semaphore room: ve = 2
queue ld {
  rep 2 {
    dma acc[0x0]:f32(1) <- @x[0 + 128*r0]:f32(1) {64} wait free post full
    dma acc[0x100]:f32(1) <- @x[64 + 128*r0]:f32(1) {64} wait free post full
  }
}
queue ve {
  rep 2 {
    rep 2 {
      vec acc[0x1000 + 0x0*r0 + 0x100*r1]:f32(1) = {64} %0 load acc[0x0 + 0x0*r0 + 0x100*r1]:f32(1), %1 index (0 + 1*i0 + 128*r0 + 64*r1), %2 convert f32 %1, %3 add %0 %2 wait full, room post free, done
    }
  }
}
queue st {
  rep 2 {
    rep 2 {
      dma @y[0 + 128*r0 + 64*r1]:f32(1) <- acc[0x1000 + 0x0*r0 + 0x100*r1]:f32(1) {64} wait done post room
    }
  }
}
"""  # noqa: E501
    stream = stream_of(text)
    assert verify(stream, MACHINE) == []
    x = np.random.default_rng(0).integers(-9, 9, 256).astype(np.float32)
    for seed in range(6):
        np.testing.assert_array_equal(run(stream, {"x": x}, seed=seed)[0]["y"], x + np.arange(256))
    assert accounted(simulate(stream, MACHINE)).cycles > 0
    assert stream.semaphores[1] == Semaphore("free", "ld", 2)


def expanded(stream: CommandStream) -> list[list[tuple[object, ...]]]:
    """What each queue executes: shape of the command, starts of its operands, tokens."""
    return [
        [
            (type(c), [(r.key, r.start(k), r.strides) for r in c.operands], c.wait, c.post)
            for c, k in ((flat.commands[at], k) for at, k in flat.instances)
        ]
        for flat in map(flatten, stream.queues)
    ]


def test_rolling_keeps_every_instance() -> None:
    """An unrolled 8x8x8-tile product becomes a few lines; verdict, values and cycles stay."""
    stream, a, b = matmul(256, 32, 2)
    short = roll(stream)
    assert expanded(short) == expanded(stream)
    assert len(str(short).splitlines()) * 10 < len(str(stream).splitlines())
    assert parse_stream(str(short)) == short
    assert verify(short, MACHINE) == []
    assert simulate(short, MACHINE) == simulate(stream, MACHINE)
    got, _ = run(short, {"a": a, "b": b}, seed=3)
    np.testing.assert_array_equal(got["c"].reshape(256, 256), a.astype(np.int64) @ b.astype(np.int64))


def programs() -> st.SearchStrategy[list[tuple[str, Command]]]:
    """Random commands over 64 bytes of two memories and two symbols, all addresses initialised first."""
    at = st.integers(0, 12)

    def load(to: int, source: int, count: int, stride: int) -> tuple[str, Command]:
        return "ld", Dma(chip("acc", 4 * to, "i32", (stride,)), dram("x", source, "i32", (1,)), (count,))

    def add(to: int, one: int, two: int, count: int) -> tuple[str, Command]:
        code = (Load(chip("acc", 4 * one, "i32", (1,))), Load(chip("acc", 4 * two, "i32", (1,))), Op("add", (0, 1)))
        return "ve", Vec(chip("ifmap", 4 * to, "i32", (1,)), code, (count,))

    def back(to: int, source: int, count: int) -> tuple[str, Command]:
        return "st", Dma(chip("acc", 4 * to, "i32", (1,)), chip("ifmap", 4 * source, "i32", (1,)), (count,))

    def store(to: int, source: int, count: int) -> tuple[str, Command]:
        return "st", Dma(dram("y", to, "i32", (1,)), chip("acc", 4 * source, "i32", (1,)), (count,))

    count, stride = st.integers(1, 4), st.sampled_from([-1, 1, 3])
    one = st.one_of(
        st.builds(
            lambda t, s, c, d: load(t if d > 0 else t + 3, s, c if d != 3 else min(c, 2), d), at, at, count, stride
        ),
        st.builds(add, at, at, at, count),
        st.builds(back, at, at, count),
        st.builds(store, at, at, count),
    )
    first = [
        load(0, 0, 16, 1),
        ("ve", Vec(chip("ifmap", 0, "i32", (1,)), (Load(chip("acc", 0, "i32", (1,))),), (16,))),
        store(0, 0, 16),
    ]
    return st.lists(one, max_size=25).map(lambda rest: [*first, *rest])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(programs(), st.integers(0, 2**31))
def test_any_legal_order_means_program_order(program: list[tuple[str, Command]], seed: int) -> None:
    symbols = (Symbol("x", "i32", 16, "input"), Symbol("y", "i32", 16, "output"))
    stream = synchronise("random", MACHINE, symbols, program)
    assert verify(stream, MACHINE) == []
    assert expanded(roll(stream)) == expanded(stream)
    x = np.arange(1, 17, dtype=np.int32) ** 2
    want = sequential(program, x)
    for order in (None, seed, seed + 1):
        np.testing.assert_array_equal(run(stream, {"x": x}, seed=order)[0]["y"], want)
    accounted(simulate(stream, MACHINE))


def sequential(program: list[tuple[str, Command]], x: Array) -> Array:
    """The same commands element by element in Python, in program order."""
    spaces: dict[str, dict[int, int]] = {"acc": {}, "ifmap": {}, "@x": dict(enumerate(x.tolist())), "@y": {}}
    for _, command in program:
        regions = command.operands
        (count,) = command.counts if isinstance(command, Dma) else command.trips if isinstance(command, Vec) else (0,)
        values = [sum(spaces[r.key][r.offset // r.unit + i * r.strides[0]] for r in regions[1:]) for i in range(count)]
        for i, value in enumerate(values):
            spaces[regions[0].key][regions[0].offset // regions[0].unit + i * regions[0].strides[0]] = value
    return np.array([spaces["@y"][i] for i in range(16)], np.int32)
