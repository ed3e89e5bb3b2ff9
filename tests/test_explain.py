"""Explanations and pictures: figures against counts made by hand or by enumeration, and documents that draw."""

import itertools
import math
import re
from typing import TYPE_CHECKING

import islpy as isl
import numpy as np
import pytest

import poly
from poly.document import Document, Table, Text, bytes_text, seconds_text, some, table
from poly.errors import PolyError, ScheduleError, ShapeError, UnsupportedError
from poly.explainer import KernelExplanation
from poly.figures import iteration_domain, tile_footprint
from poly.model_check import check_model
from poly.pictures import schedule_svg, text_html
from poly.program import Program
from poly.scheduling.explanation import Checks, ProgramExplanation, ScheduleExplanation
from poly.scheduling.schedule import Schedule
from poly.scheduling.traffic import count_points, traffic
from poly.text import parse_program
from tests.onnx_helpers import node_model

if TYPE_CHECKING:
    import onnx

M, K, N = 12, 8, 16


def matmul() -> Program:
    return poly.parse("C[i,k] += A[i,j]*B[j,k]", A=(M, K), B=(K, N))


@pytest.mark.parametrize(
    "text",
    [
        "{ [i, j] : 0 <= i <= j < 20 }", "{ [i] : 0 <= i < 50 and exists (a : i = 3a + 1) }",
        "{ [o, e] : 0 <= e < 100 and 16o <= e < 16o + 16 }", "{ [i, j] : floor((i + j)/4) <= 3 and 0 <= i, j }",
        "{ [[i] -> [j, k]] : 0 <= i < 5 and 0 <= j < i and 0 <= k < 7 }",
        "{ [i, j] : i = 9 and 0 <= j < 3 or 0 <= i = 2j < 4 }",
        "{ : }", "{ [i] : i < 0 and i > 0 }",
    ],
)  # fmt: skip
def test_points_are_counted_as_isl_enumerates_them(text: str) -> None:
    domain = isl.Set(text)
    assert count_points(domain) == int(str(domain.count_val()))


def test_points_of_large_boxes_and_unbounded_sets() -> None:
    assert count_points(isl.Set("{ [i, j, k] : 0 <= i, j, k < 1000000 }")) == 10**18
    assert count_points(isl.Set("{ [i] : i >= 0 }")) is None
    assert count_points(isl.Set("[n] -> { [i] : 0 <= i < n }")) is None


def test_program() -> None:
    found = poly.explain(matmul())
    assert isinstance(found, ProgramExplanation)
    assert set(found.instances.values()) == {M * N, M * N * K}
    assert found.compulsory == 4 * (M * K + K * N + M * N)
    assert "3 (1 flow, 1 output, 1 reduction)" in str(found)
    free = poly.explain(poly.parse("C[i,k] += A[i,j]*B[j,k]", A=("M", "K"), B=("K", "N")))
    assert isinstance(free, ProgramExplanation) and set(free.instances.values()) == {None}
    bound = poly.explain(poly.parse("C[i,k] += A[i,j]*B[j,k]", A=("M", "K"), B=("K", "N")), M=M, K=K, N=N)
    assert isinstance(bound, ProgramExplanation) and bound.compulsory == found.compulsory


def test_partly_used_tensors_count_for_what_is_used() -> None:
    program = poly.parse("y[i] = x[2*i] where 0 <= i < 5", x=(100,))
    found = poly.explain(program)
    assert isinstance(found, ProgramExplanation) and found.compulsory == 4 * (5 + 5)


def test_traffic_of_a_tiled_product_by_hand() -> None:
    ti, tk, tj = 4, 8, 2
    loops = [f"{n}.{p}" for p in ("o", "p") for n in ("C_update.i", "C_update.k", "j")]
    schedule = poly.Schedule(matmul()).tile({"C_update.i": ti, "C_update.k": tk, "j": tj})
    schedule = schedule.promote("A", "j.o", "l1").promote("B", "j.o", "l1")
    tiles = (M // ti) * (N // tk) * (K // tj)
    assert loops[2] == "j.o" and set(loops) <= set(schedule.loop_statements)
    moved = traffic(schedule)
    assert moved.pairs["dram", "l1"] == tiles * (ti * tj + tj * tk) * 4
    assert moved.pairs["l1", "compute"] == 2 * M * N * K * 4
    assert moved.pairs["compute", "dram"] == (M * N + M * N * K) * 4
    assert moved.pairs["dram", "compute"] == M * N * K * 4


def test_traffic_counts_a_buffer_in_every_tile_that_is_laid_out() -> None:
    """Two tiles of two rows, side by side: each has sums of its own, and all of them are written."""
    schedule = poly.Schedule(poly.parse("y[i] += A[i,j]", A=(4, 3)))
    schedule = schedule.tile({"y_update.i": 2}).unroll("y_update.i.o")
    moved = traffic(schedule.promote("y", "y_update.i.o", "reg", name="sums", users=["y_update"])).pairs
    assert moved["dram", "reg"] == moved["reg", "dram"] == 4 * 4
    assert moved["compute", "reg"] == 3 * 4 * 4


def test_traffic_counts_a_halo_for_every_tile() -> None:
    program = poly.parse("y[i] += x[i + r] * w[r]", x=(34,), w=(3,))
    schedule = poly.Schedule(program).tile({"y_update.i": 8}).promote("x", "y_update.i.o", "l1")
    assert traffic(schedule).pairs["dram", "l1"] == 4 * (8 + 2) * 4


def test_lanes_and_unrolled_copies_share_what_they_touch() -> None:
    schedule = poly.Schedule(matmul()).tile({"C_update.k": 8}).reorder("C_update.k.o", "j", "C_update.k.p")
    before = traffic(schedule)
    after = traffic(schedule.vectorise("C_update.k.p"))
    reads = [next(m.elements for m in t.moves if m.tensor == "A") for t in (before, after)]
    assert reads == [M * N * K, M * N * K // 8]


def test_schedule() -> None:
    schedule = poly.Schedule(matmul()).tile({"C_update.i": 4}).promote("A", "C_update.i.o", "l1")
    found = poly.explain(schedule)
    assert isinstance(found, ScheduleExplanation)
    (buffer,) = found.buffers
    assert (buffer.name, buffer.space, buffer.bytes) == ("A_l1", "l1", 4 * K * 4)
    boxes = {f.tensor: f.extents for f in found.footprints if f.loop == "C_update.i.o"}
    assert boxes["C"] == ("4", str(N)) and boxes["B"] == (str(K), str(N))
    assert found.checks.relaxed == 1 and found.checks.copies == 1
    values = {f.name: f.values for f in found.loops}
    assert values["C_update.i.o"] == M // 4 and values["C_update.i.p"] == 4
    shown = str(found)
    assert all(part in shown for part in ("why legal", "promoted buffers", "bytes moved", "promote(tensor='A'"))


def test_loops_of_a_schedule_and_what_they_carry() -> None:
    program = poly.parse("s[i] = (s[i-1] if i >= 1 else 0) + x[i]; y[i,k] = s[i]*w[k]", x=(8,), w=(4,))
    schedule = Schedule(program).tile({"y_set.i": 2}).parallelise("y_set.i.o")
    head, *rows = str(schedule.loops).splitlines()
    assert head.split() == ["loop", "runs", "values", "statements"] and len(rows) == len(schedule.loops)
    assert [row.split()[0] for row in rows] == [loop.name for loop in schedule.loops]
    shown = [(loop.name, loop.depth, loop.kind, loop.values, loop.statements) for loop in schedule.loops]
    assert shown == [
        ("s_set.i", 0, "serial", 8, ("s_set",)), ("y_set.i.o", 0, "parallel", 4, ("y_set",)),
        ("y_set.i.p", 1, "serial", 2, ("y_set",)), ("k", 2, "serial", 4, ("y_set",)),
    ]  # fmt: skip
    assert [loop.name for loop in schedule.loops if not schedule.carried(loop.name)] == ["y_set.i.o", "y_set.i.p", "k"]
    [carried] = schedule.carried("s_set.i")
    first, second = map(int, re.findall(r"i=(\d)", carried))
    assert carried.startswith("s: s_set[i=") and second == first + 1
    with pytest.raises(ScheduleError, match="no loop 'j'"):
        schedule.carried("j")
    for sizes in ({"size": 8}, {"sizes": 8}, {"i": 8, "size": 2}):
        with pytest.raises(ScheduleError, match=r"by the names of loops(?s:.)*tile\({'s_set.i': 32}\)"):
            schedule.tile(sizes)


def test_free_sizes_are_counted_for_some() -> None:
    schedule = poly.compile(poly.parse("C[i,k] += A[i,j]*B[j,k]", A=("M", "K"), B=("K", "N"))).schedule
    assert schedule is not None
    assert "as sizes are free: explain(schedule, M=100, K=100, N=100)" in str(poly.explain(schedule))
    counted = poly.explain(schedule, M=100, K=100, N=100)
    assert isinstance(counted, ScheduleExplanation) and counted.traffic.ratio is not None
    assert "the compulsory 117.2 KiB" in str(counted)
    assert "1.00x the compulsory 12 B" in str(poly.explain(schedule, M=1, K=1, N=1))
    with pytest.raises(ShapeError, match="M = 0 is not allowed"):
        poly.explain(schedule, M=0, K=1, N=1)


def test_kernel() -> None:
    kernel = poly.compile(matmul())
    shown = str(poly.explain(kernel))
    assert kernel.machine.name in shown and f"{kernel.machine.lanes(4) * 32} bits" in shown
    assert "<table" in poly.explain(kernel)._repr_html_()
    with pytest.raises(PolyError, match="fixed"):
        poly.explain(kernel, M=4)
    with pytest.raises(PolyError, match="no explanation"):
        poly.explain(3)  # type: ignore[arg-type]


def test_explain_stays_the_function() -> None:
    assert callable(poly.explain)
    poly.explain(matmul())
    assert callable(poly.explain)


# ---- documents and pictures


def test_document_as_text_and_html() -> None:
    inner = Document("inner", (("a", "1 < 2"),), (table("t", ("x", "y"), [(1, "a"), (22, "b&c")]),))
    document = Document("outer", (("label", "one\ntwo"),), (Text("code", "x < y"), inner, Table("empty", ("x",), ())))
    text, html = str(document), document.html()
    assert "   1  a" in text and "  22  b&c" in text and "empty" not in text
    assert "x &lt; y" in html and "b&amp;c" in html and html.count("<div") == html.count("</div")
    assert bytes_text(1536) == "1.5 KiB" and bytes_text(None) == "not counted"


def test_schedule_picture_has_every_loop_and_statement() -> None:
    import xml.etree.ElementTree as tree

    schedule = (
        poly.Schedule(matmul()).tile({"C_update.k": 8}).parallelise("C_update.i").promote("A", "C_update.i", "l1")
    )
    root = tree.fromstring(schedule_svg(schedule))
    shown = "\n".join(t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text"))
    for loop in schedule.loop_statements:
        assert f"for {loop}" in shown
    for statement in schedule.program.statements:
        assert statement.tuple_text.split("[")[0] in shown
    assert "parallel" in shown and "A_l1" in shown


def test_every_class_draws_itself() -> None:
    schedule = poly.Schedule(matmul()).tile({"C_update.i": 4})
    for thing in (matmul(), schedule, schedule.lower()):
        html = thing._repr_html_()
        assert "C_update" in html and "<script" not in html
    assert text_html("a < b").count("&lt;") == 1


def test_compiled_things_draw_themselves() -> None:
    from poly.accel.profile import profile
    from poly.frontend.onnx_import import from_onnx

    kernel, stream = poly.compile(matmul()), poly.compile(matmul(), "s16")
    for thing in (kernel, stream):
        html = getattr(thing, "_repr_html_")()  # noqa: B009
        assert "<svg" in html and "C_update" in html
    assert "16 x 16" in profile("s16")._repr_html_()
    graph = from_onnx(small_model())
    assert graph._repr_html_().count("<line") == 2 and "MatMul" in graph._repr_html_()
    assert "matmul" in poly.compile(graph)._repr_html_()


def test_engines_of_free_sizes_and_of_stages_draw_themselves() -> None:
    from onnx import helper

    from poly.frontend.onnx_import import from_onnx
    from tests.onnx_helpers import chain_model
    from tests.test_api_messages import relu_model

    sized = poly.compile(from_onnx(relu_model(), ranges={"N": (1, 4)}))._repr_html_()
    assert "SizedEngine" in sized and "<table" in sized and "relu" in sized.lower()
    nodes = [helper.make_node("NonZero", ["x"], ["y"], name="places"), helper.make_node("Neg", ["y"], ["z"])]
    model, _ = chain_model(nodes, {"x": np.ones(3, np.float32)}, ["z"])
    engine = poly.compile(model)
    assert "compiles at the first run" in engine._repr_html_()
    engine.run({"x": np.ones(3, np.float32)})
    assert "places" in engine._repr_html_() and "<script" not in engine._repr_html_()


def small_model() -> "onnx.ModelProto":
    """Two products of the input, added."""
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["a"]), helper.make_node("Relu", ["x"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "small", [value("x", TensorProto.FLOAT, [4, 4])], [value("y", TensorProto.FLOAT, [4, 4])]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_engine_on_both_machines() -> None:
    from poly.explainer import EngineExplanation
    from poly.frontend.onnx_import import from_onnx

    graph = from_onnx(small_model())
    for target in ("cpu", "s16"):
        engine = poly.compile(graph, target)
        found = poly.explain(engine)
        assert isinstance(found, EngineExplanation) and not found.fallbacks
        assert found.arena >= found.bound and len(found.groups) == len(engine.steps)
        assert all((g.cycles is not None) == (target == "s16") for g in found.groups)
        assert ("cycles" in str(found)) == (target == "s16")
        assert "why fused" in str(found)


def test_engine_says_why_a_node_is_outside() -> None:
    boxes, which = np.array([[0, 0, 4, 4]], "f4"), np.zeros(1, "i8")
    model, given = node_model(
        "RoiAlign", [np.ones((1, 1, 8, 8), "f4"), boxes, which], output_height=2, output_width=2, sampling_ratio=0
    )
    engine = poly.compile(poly.from_onnx(model))
    why = "samples as many places as a region is large"
    shown = repr(poly.explain(engine))
    assert f"group 0: node (RoiAlign): {why}; try: set sampling_ratio" in shown
    assert "bytes moved  not counted\n" in shown and "1, 0 compiled" in shown
    assert engine.fallbacks == () and engine.by_numpy == ("node (RoiAlign)",)
    assert re.search(rf"{why} +set sampling_ratio", repr(check_model(model)))
    profile = engine.profile(given, runs=1)
    assert repr(profile) == str(profile)


def test_stream_moves_what_its_schedule_says() -> None:
    from poly.explainer import StreamExplanation

    stream = poly.compile(matmul(), "s16")
    found = poly.explain(stream)
    assert isinstance(found, StreamExplanation)
    simulated = sum(found.report.dram_read.values()) + sum(found.report.dram_written.values())
    assert found.schedule.traffic.between("dram") == simulated
    assert "multiply-adds" in str(found)


def png(figure: object) -> bytes:
    import io

    stream = io.BytesIO()
    figure.savefig(stream, format="png")  # type: ignore[attr-defined]
    return stream.getvalue()


def test_iteration_domain_draws_the_points() -> None:
    schedule = poly.Schedule(matmul()).tile({"C_update.i": 4}).tile({"j": 4})
    figure = iteration_domain(schedule, "C_update", ("i", "j"))
    (dots,) = figure.axes[0].collections
    assert {tuple(map(int, p)) for p in np.asarray(dots.get_offsets())} == set(itertools.product(range(K), range(M)))
    assert len(figure.axes[0].patches) == M * K and png(figure)[:4] == b"\x89PNG"
    arrows = [t for t in figure.axes[0].texts if t.__class__.__name__ == "Annotation"]
    assert len(arrows) == M * (K - 1)


def test_footprint_draws_the_elements() -> None:
    schedule = poly.Schedule(matmul()).tile({"C_update.i": 4})
    figure = tile_footprint(schedule, ("A", "B"), "C_update.i.o", iteration={"C_update.i.o": 1})
    first, second = (np.asarray(a.images[0].get_array()) for a in figure.axes)
    assert first[4:8].all() and first.sum() == 4 * K and second.sum() == K * N
    with pytest.raises(ScheduleError, match="no iteration"):
        tile_footprint(schedule, "A", "C_update.i.o", iteration={"C_update.i.o": 99})
    with pytest.raises(ScheduleError, match="no tensor"):
        tile_footprint(schedule, "Z", "C_update.i.o")
    with pytest.raises(PolyError, match="iterator"):
        iteration_domain(schedule, "C_update", ("i", "z"))


def test_skewed_footprint_is_no_box() -> None:
    program = poly.parse(
        "inout u: f32[T+1, N]\nu[t+1,i] = u[t,i-1] + u[t,i] + u[t,i+1] where 1 <= i < N-1 and 0 <= t < T"
    )
    schedule = poly.Schedule(program.bind(T=10, N=20)).skew("i", "t", 1).tile({"t": 4, "i": 6})
    figure = tile_footprint(schedule, "u", "i.o", iteration={"t.o": 1, "i.o": 2})
    mask = np.asarray(figure.axes[0].images[0].get_array())
    touched = {
        (t + s, i + d)
        for t in range(4, 8) for i in range(1, 19) if (i + t) // 6 == 2
        for s, d in ((0, -1), (0, 0), (0, 1), (1, 0))
    }  # fmt: skip
    assert set(zip(*np.nonzero(mask), strict=True)) == touched
    assert math.prod(mask.shape) == 220


def test_what_threads_share_is_said() -> None:
    program = poly.parse("C[i,k] += A[i,j]*B[j,k]", A=(96, 96), B=(96, 96))
    two = str(poly.explain(poly.compile(program, threads=2)))
    assert "2 used" in two and "2 share " in two
    scan = parse_program("program scan()\ninout s: f32[9000]\nstep[i]: s[i] = s[i - 1] + s[i] where 1 <= i < 9000\n")
    for alone in (matmul(), scan):
        text = str(poly.explain(poly.compile(alone, threads=2)))
        assert "2 were asked for, one does it all" in text and ", 1 used" in text
    assert "threads" not in str(poly.explain(poly.compile(program)))


def test_a_text_is_explained_as_its_program() -> None:
    assert str(poly.explain(str(matmul()))) == str(poly.explain(matmul()))


def test_a_kernel_says_why_its_schedule_is_a_plainer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise UnsupportedError("17 vectors for 16 registers")

    monkeypatch.setenv("POLYLOOM_CACHE", "off")
    assert "plainer" not in str(poly.explain(poly.compile(matmul())))
    monkeypatch.setattr("poly.scheduling.cpu.schedule_for_cpu", full)
    assert "17 vectors for 16 registers" in str(poly.explain(poly.compile(matmul())))


def test_a_kernel_says_which_vector_loops_run_one_by_one() -> None:
    rows = Schedule(poly.parse("Y[i] = X[i] * X[i]", X=(64,))).tile(i=8).vectorise("i.p")
    apart = rows.promote("X", "i.p", "l1", name="P")
    one = Schedule(rows.source).tile(i=1).vectorise("i.p").promote("X", "i.p", "l1", name="P")
    for schedule, names in ((rows, {}), (apart, {"i.p": "buffer P is inside"}), (one, {})):
        found = poly.explain(poly.compile(schedule.source, schedule=schedule))
        assert isinstance(found, KernelExplanation)
        assert found.one_by_one == names and ("one by one" in str(found)) == bool(names)


def test_checks_are_counted_in_words() -> None:
    one, two = (Checks(n, 0, n, n, n, n, 0.0) for n in (1, 2))
    assert "1 dependence points" in one.lines[0] and "1 parallel, vector or unit loop carries" in one.lines[2]
    assert "the statement runs" in one.lines[1] and "1 buffer and 1 copy get" in one.lines[3]
    assert "2 parallel, vector and unit loops carry" in two.lines[2] and "2 buffers and 2 copies get" in two.lines[3]


@pytest.mark.parametrize(("seconds", "text"), [
    (4e-7, "0.4 us"), (9.94e-6, "9.9 us"), (9.96e-6, "10 us"), (8.5e-4, "850 us"), (0.0123, "12.3 ms"), (1.2, "1.20 s"),
    (9.994e-4, "999 us"), (9.996e-4, "1.0 ms"), (0.99996, "1.00 s"),
])  # fmt: skip
def test_times_have_two_digits_at_least_and_the_unit_of_what_is_shown(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_loop_around_many_statements_has_a_line_of_some_width() -> None:
    text = "; ".join(f"y{k}[i] = {k} * x[i]" for k in range(40))
    schedule = poly.Schedule(poly.parse(text, x=(8,)))
    while len(names := [*schedule.loop_statements]) > 1:
        schedule = schedule.fuse(*names[:2])
    [loop] = schedule.loops
    assert len(loop.statements) == 40
    row = str(schedule.loops).splitlines()[-1]
    assert "y0_set, y1_set" in row and row.endswith(", and 30 more") and len(row) < 120


@pytest.mark.parametrize(("lengths", "said"), [
    ((5, 5), "aaaaa bbbbb"), ((90,), "a" * 90), ((90, 5), "a" * 90 + ", and 1 more"),
    ((60, 30, 5), "a" * 60 + ", and 2 more"),
])  # fmt: skip
def test_a_column_has_as_many_names_as_are_read_at_a_glance(lengths: tuple[int, ...], said: str) -> None:
    assert some(["abc"[k] * n for k, n in enumerate(lengths)], " ") == said
