"""What a user meets at the edges of the interface: what is taken, and what a refusal says."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from __future__ import annotations

import copy
import inspect
import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import poly
from poly.cli import main
from poly.errors import ParseError, PolyError
from poly.frontend.nest import Array, f64
from poly.function_hints import ELSEWHERE
from poly.interp import run_program
from poly.scheduling.isl_scheduler import schedule_by_isl
from tests.onnx_helpers import node_model


@poly.nest
def scaled(N: int, A: f64[Array, "N"]) -> None:
    t = 2.0
    for i in range(N):
        A[i] *= t


def test_a_constant_scalar_beside_free_sizes() -> None:
    kernel: Any = poly.compile(scaled)
    for n in (3, 7):
        assert np.asarray(kernel(np.arange(float(n)))).tolist() == [2.0 * k for k in range(n)]


def relu_model() -> onnx.ModelProto:
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "m", [helper.make_tensor_value_info("x", kind, ["N", 4])],
        [helper.make_tensor_value_info("y", kind, None)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.array([[1, -2, 3, -4]], "f4")


@pytest.mark.parametrize(("text", "hint"), [("model.onnx", "pathlib.Path"), ("ij,jk->ik", "einsum\\('ij,jk->ik'")])
def test_texts_that_are_no_programs(text: str, hint: str) -> None:
    with pytest.raises(PolyError, match=hint):
        poly.compile(text)


@pytest.mark.parametrize("shapes", [{"N": np.int64(1)}, {"x": [1, np.int32(4)]}, {"x": (np.int64(1), 4)}])
def test_integers_of_numpy_and_lists_are_shapes(shapes: Any) -> None:
    assert poly.from_onnx(relu_model(), shapes).inputs[0].extents({}) == (1, 4)
    assert poly.from_onnx(relu_model(), ranges={"N": [1, 4]}).parameters == ("N",)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"shapes": {"N": 1.5}}, r"shapes\['N'\] is 1.5"), ({"shapes": {"x": (1, "a")}}, r"shapes\['x'\] is \(1, 'a'\)"),
    ({"ranges": {"N": 3}}, r"ranges\['N'\] is 3"), ({"ranges": {"N": (1,)}}, r"ranges\['N'\] is \(1,\)"),
    ({"ranges": {"Q": (1, 2)}}, "ranges: 'Q' is no dynamic dimension"),
])  # fmt: skip
def test_wrong_shapes_are_named(arguments: Any, message: str) -> None:
    with pytest.raises(PolyError, match=message):
        poly.from_onnx(relu_model(), **arguments)


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(PolyError, match="empty.onnx"):
        poly.from_onnx(tmp_path / "empty.onnx")


def test_engines_take_lists_and_ask_for_the_dtype() -> None:
    engines = (
        poly.compile(poly.from_onnx(relu_model(), {"N": 1})),
        poly.compile(poly.from_onnx(relu_model(), ranges={"N": (1, 4)})),
    )
    for engine in engines:
        assert engine.run({"x": X.tolist()})["y"].tolist() == [[1, 0, 3, 0]]
        with pytest.raises(PolyError, match=r"inputs\['x'\].astype\('float32'\)"):
            engine.run({"x": X.astype("f8")})
    out = {"y": np.empty_like(X)}
    assert engines[0].run({"x": X}, out=out)["y"] is out["y"]


@pytest.mark.parametrize(("sizes", "message"), [
    ({"n": 1}, "no size 'n', the sizes are N"), ({"N": 1.5}, "size 'N' is 1.5"), ({}, "size 'N' is not given"),
])  # fmt: skip
def test_sizes_that_are_specialised(sizes: Any, message: str) -> None:
    engine = poly.compile(poly.from_onnx(relu_model(), ranges={"N": (1, 4)}))
    with pytest.raises(PolyError, match=message):
        engine.specialise(**sizes)
    engine.specialise(N=np.int64(1))
    assert len(engine.engines) == 1
    assert "group 0" in str(poly.explain(engine))


def test_a_nest_is_explained() -> None:
    assert "S0" in str(poly.explain(scaled, N=4))


def test_unknown_arguments_are_refused_by_public_names() -> None:
    kernel: Any = poly.compile(scaled)
    einsum: Any = poly.einsum
    with pytest.raises(TypeError, match=r"none is called 'a'"):
        kernel(a=1)
    with pytest.raises(TypeError, match=r"^einsum: got an unexpected[^!]*try: einsum\(\*operands, out=None"):
        einsum("ij->i", np.eye(2), foo=1)


def test_the_command_hints_at_its_own_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(relu_model(), str(tmp_path / "model.onnx"))
    assert main(["run", str(tmp_path / "model.onnx"), "--check"]) == 1
    assert "--bind N=1" in capsys.readouterr().err
    assert main(["show", "C[i,k] += A[i,j] * B[j,k]", "--shape", "A=64,96"]) == 2
    assert "--shape B=64,64" in capsys.readouterr().err


def test_every_engine_writes_to_out_and_is_profiled(tmp_path: Path) -> None:
    onnx.save(relu_model(), str(tmp_path / "model.onnx"))
    sized = poly.compile(poly.from_onnx(relu_model(), ranges={"N": (1, 4)}))
    own = poly.compile(poly.from_onnx(relu_model(), ranges={"N": (1, 4)}))
    own.specialise(N=1)
    for engine in (sized, own, poly.compile(tmp_path / "model.onnx")):
        out = {"y": np.full_like(X, 9)}
        assert engine.run({"x": X}, out=out)["y"] is out["y"]
        assert out["y"].tolist() == [[1, 0, 3, 0]]
        for wrong in ({"z": out["y"]}, {"y": np.empty((2, 4), "f4")}):
            with pytest.raises(PolyError, match="no output 'z'|out for 'y'"):
                engine.run({"x": X}, out=wrong)
        assert len(engine.profile({"x": X}, runs=2).groups) == 1


@pytest.mark.parametrize("ends", [4, "ab", (1, 2, 3), (1.5, 2)])
def test_a_range_that_is_none_says_what_to_write(ends: object) -> None:
    with pytest.raises(PolyError, match=r"ranges\['N'\] is .*") as found:
        poly.from_onnx(relu_model(), ranges={"N": ends})  # pyright: ignore
    assert f"ranges={{'N': (1, {4 if ends == 4 else 64})}}" in str(found.value)


def test_a_target_that_does_not_exist_brings_the_processor_to_mind() -> None:
    with pytest.raises(PolyError, match="one of cpu, "):
        poly.compile("y[i] = 1 where 0 <= i < 4", target="nope")


def test_a_subscript_out_of_bounds_says_what_to_write() -> None:
    with pytest.raises(PolyError, match="a larger x, or fewer iterations: ... where <condition on i>"):
        poly.parse("y[i] = x[i+2] where 0 <= i < 8", x=(8,))


def test_a_size_that_is_not_allowed_is_no_text_of_isl() -> None:
    with pytest.raises(PolyError, match="N = -1 is not allowed: N > 0"):
        poly.parse("y[i] = x[i]", x=("N",)).bind(N=-1)


def test_one_edit_is_one_edit() -> None:
    schedule = poly.Schedule(poly.parse("y[i] = x[i]", x=(8,)))
    assert repr(schedule) == "<Schedule program: 1 statement, 1 loop, 0 edits>"
    assert "1 edit>" in repr(schedule.tile({"i": 4})) and str(poly.explain(schedule.tile({"i": 4}))).startswith(
        "schedule of program: 1 edit\n"
    )


def test_a_profile_for_free_sizes_names_the_models_statements() -> None:
    engine = poly.compile(poly.from_onnx(relu_model(), ranges={"N": (1, 4)}))
    (group,) = engine.profile({"x": X}, runs=1).groups
    assert group.statements == tuple(s.name for s in poly.from_onnx(relu_model(), {"N": 1}).to_program().statements)


def test_a_stream_without_a_target_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "y[i] = 2 * x[i] where 0 <= i < 16"
    assert main(["show", text, "--shape", "x=16", "--level", "stream"]) == 0
    assert "the stream for s16" in capsys.readouterr().err
    assert main(["show", text, "--shape", "x=16", "--level", "stream", "--target", "cpu"]) == 2
    assert "a CPU has no command stream" in capsys.readouterr().err


def test_progress_shows_where_somebody_types_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from poly import console

    for name, terminal, typed, expected in (
        ("auto", True, True, True), ("auto", True, False, False), ("auto", False, True, False),
        ("on", True, False, True), ("on", False, False, False), ("off", True, True, False),
    ):  # fmt: skip
        monkeypatch.setenv("POLYLOOM_PROGRESS", name)
        monkeypatch.setattr(sys.stderr, "isatty", lambda t=terminal: t, raising=False)
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
        monkeypatch.delattr(sys, "ps1", raising=False)
        if typed:
            monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
        assert console.interactive() is expected


# -- functions of other libraries, dtypes of numpy's, engines that are called


def _numpys(name: str, arrays: list[np.ndarray]) -> np.ndarray:
    """What numpy has of arrays: of one of rank 2, along its rows."""
    first = arrays[0]
    if name == "softmax":
        return np.exp(first) / np.exp(first).sum(1, keepdims=True)
    if name == "dot":
        return np.dot(first, first)
    return getattr(np, name)(*arrays, **({"axis": 1} if len(arrays) == 1 and first.ndim == 2 else {}))


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_what_is_written_for_a_function_computes_it(name: str) -> None:
    if name != "where":  # a word of the notation
        with pytest.raises(ParseError, match=f"no function '{name}'") as refusal:
            poly.parse(f"z[i] = {name}(x[i])", x=(5,), y=(5,))
        assert ELSEWHERE[name] in str(refusal.value)
    if "[" in ELSEWHERE[name]:
        rng = np.random.default_rng(2)
        all_shapes: dict[str, tuple[int, ...]] = {"A": (2, 3), "B": (3, 4), "x": (5,)}
        shapes: Any = {t: shape for t, shape in all_shapes.items() if f"{t}[" in ELSEWHERE[name]}
        given = {t: rng.uniform(0.5, 2, shape).astype("f4") for t, shape in shapes.items()}
        program = poly.parse(ELSEWHERE[name], **shapes)
        found: Any = run_program(program, given)[program.statements[-1].write.tensor]
        np.testing.assert_allclose(found, _numpys(name, list(given.values())), rtol=3e-6)
        return
    text = re.sub(r"\b([xy])\b", r"\1[i]", ELSEWHERE[name]).replace("condition", "x[i] > y[i]")
    text = f"z[i] = {text.replace('low', '0.25').replace('high', '0.5')}; u[i] = y[i]"
    program = poly.parse(text, x=(5,), y=(5,))
    x, y = np.array([0.3, 0.75, 1.5, 0.6, 2.5], "f4"), np.array([0.5, 0.25, 1.25, 2.0, 1.0], "f4")
    found = run_program(program, {"x": x, "y": y})["z"]
    want: dict[str, Any] = {
        "where": np.where(x > y, x, y), "clamp": np.clip(x, 0.25, 0.5),
        "gelu": [0.5 * v * (1 + math.erf(v / 2**0.5)) for v in x], "erfc": [math.erfc(v) for v in x],
    }  # fmt: skip
    np.testing.assert_allclose(found, want[name], rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize(("name", "hint"), [
    ("sgimoid", "sigmoid(...)"), ("Max", "max(...)"), ("float32", "f32(...)"), ("lgo1p", "log1p(...)"),
    ("foo", "one of"), ("np.maximum", "maximum(...)"), ("np.where", "x if condition else y"),
])  # fmt: skip
def test_an_unknown_function_is_answered_with_one_that_means_it(name: str, hint: str) -> None:
    with pytest.raises(ParseError, match=re.escape(f"try: {hint}")):
        poly.parse(f"y[i] = {name}(x[i])", x=(3,))


@pytest.mark.parametrize(("text", "hint"), [
    ("y = x[7]", "a larger x"), ("y = x[-1]", "4 for -1: subscripts count from the start"),
    ("s[i] += x[2*i + r] where r < 2", "both ends, such as where 0 <= r < 2"),
    ("y = max(x[i])", "y max= x[i] over all i"),
    ("s += x[i] where x[i] > 0.5", "a choice in the value: (x[i] if x[i] > 0 else 0)"),
    ("y[i] = x[-1-i]", "subscripts that count from the start, as in x[N-1-i]"),
    ("y[i] = x[i/2]", "// for whole numbers"),
    ("y[i] = x[i,j]", "x[i]"), ("y[i] = x[i][0]", "all subscripts in one pair of brackets: T[i, j]"),
    ("y[i] = x[:]", "an index with a name, as in y[i] += A[i, j]"), ("y = x[i] @ x[i]", "C[i, k] += A[i, j]*B[j, k]"),
    ("i,i->", 'poly.einsum("i,i->", ...), or C[i, k] += A[i, j]*B[j, k]'),
    ("y[i] = x[i]^2", "i32(x) or i64(x) inside bit_xor; a power is x**y"),
    ("y[ï] = x[ï]", "i_"), ("y[mod] = x[mod]", "mod_"), ("y[_] = x[_]", "i_"),
    ("y[i,j] = x[i] where j < 4", "both ends, such as where 0 <= j < 4"),
    ("y[i,j] = x[i] where j > 9", "both ends, such as where 10 <= j < 18"),
    ("y[i] = x[i] + f32(i*0.5)", "convert the other operand: f32(i)"),
    ("c += 1 where r < 2", "an index with both ends, where 0 <= i < 8, or sizes declared first: program name(M, N)"),
    ("y[i] = x[max(i-1, 0)]", "where 0 <= i < 5, or give the shape of the tensor it writes"),
])  # fmt: skip
def test_hints_can_be_followed(text: str, hint: str) -> None:
    with pytest.raises(PolyError) as found:
        poly.parse(text, x=(5,))
    assert found.value.hint == hint


def test_the_functions_are_listed_in_order_and_none_of_ours_alone() -> None:
    with pytest.raises(ParseError) as found:
        poly.parse("y[i] = foo(x[i])", x=(5,))
    listed = (found.value.hint or "").removeprefix("one of ").split(", ")
    assert listed == sorted(listed) and "exp" in listed and not {"dot4", "neg", "bits"} & {*listed}


def test_an_engine_that_is_called_names_its_inputs(tmp_path: Path) -> None:
    onnx.save(relu_model(), path := tmp_path / "m.onnx")
    model = relu_model()
    engines: list[Any] = [
        poly.compile(poly.from_onnx(model, {"N": 1})), poly.compile(path),
        poly.compile(poly.from_onnx(model, ranges={"N": (1, 4)})),
    ]  # fmt: skip
    for engine in engines:
        with pytest.raises(TypeError, match=r"run\(\{'x': ...\}\)") as refusal:
            engine(X)
        assert isinstance(refusal.value, PolyError)


def test_names_of_a_model_are_not_changed_where_they_can_stand() -> None:
    kind, shape = TensorProto.FLOAT, [3, "n"]
    infos = [helper.make_tensor_value_info(name, kind, shape) for name in ("g", "n", "b")]
    add = helper.make_node("Add", ["g", "n"], ["b"])
    model = helper.make_model(helper.make_graph([add], "d", infos[:2], infos[2:]))
    graph = poly.from_onnx(model, ranges={"n": (1, 9)})
    assert [t.name for t in graph.tensors] == ["g", "n", "b"] and repr(graph) == "<Graph d(n): 1 node>"
    engine, ones = poly.compile(graph), np.ones((3, 4), np.float32)
    assert np.array_equal(engine.run({"g": ones, "n": ones})["b"], ones + ones)
    with pytest.raises(PolyError, match="^tensor n: size n is 4 by axis 1 of g and 5 by axis 1 of n\n"):
        engine.run({"g": ones, "n": np.ones((3, 5), np.float32)})
    with pytest.raises(PolyError, match=r"^d: n=40 is outside of the ranges\n.*gave n from 1 to 9$"):
        engine.run({"g": np.ones((3, 40), np.float32), "n": np.ones((3, 40), np.float32)})
    assert "n from 1 to 9" in str(poly.explain(engine)) and "d(n)" in repr(engine)


def product() -> Any:
    return poly.Schedule(poly.parse("C[i,k] += A[i,j]*B[j,k]", A=(16, 16), B=(16, 16)))


@pytest.mark.parametrize(("name", "hint"), [
    ("vectorize", "vectorise"), ("parallel", "parallelise"), ("tiles", "tile"), ("xyzzy", "one of arrange"),
])  # fmt: skip
def test_edits_that_there_are_not(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=rf"a schedule has no '{name}'\n  try: {hint}") as refusal:
        getattr(product(), name)
    assert isinstance(refusal.value, PolyError) and not hasattr(product(), name)


def test_schedules_are_copied_and_pickled() -> None:
    schedule = product().tile(j=4)
    assert schedule.check() is None
    for again in (copy.copy(schedule), copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert again == schedule and str(again.unroll("j.p")) == str(schedule.unroll("j.p"))


def test_figures_of_the_wrong_thing() -> None:
    pytest.importorskip("matplotlib")
    stream: Any = poly.compile(product().source, "s16")
    assert poly.figures.timeline(stream).axes
    wrong: list[Any] = [3, None, product()]
    for thing in wrong:
        with pytest.raises(PolyError, match="timeline: report is"):
            poly.figures.timeline(thing)
    program: Any = product().source
    with pytest.raises(PolyError, match="tile_footprint: schedule is of type Program"):
        poly.figures.tile_footprint(program, "C", "j")
    with pytest.raises(PolyError, match="iteration_domain: what is 3"):
        poly.figures.iteration_domain(wrong[0], "C_update")


def test_no_more_slots_than_iterations() -> None:
    schedule = product().tile(j=4).promote("B", "j.o", "l1")
    assert str(schedule.double_buffer("B_l1", "j.o", 4))
    with pytest.raises(PolyError, match=r"depth 1000000000: loop 'j.o' has uses for 4 slots at the most"):
        schedule.double_buffer("B_l1", "j.o", 10**9)
    with pytest.raises(PolyError, match="nests is 3"):
        poly.Schedule(product().source, nests=3)  # type: ignore[arg-type]


def test_an_index_out_of_range_names_node_and_tensor() -> None:
    infos = [helper.make_tensor_value_info("table", TensorProto.FLOAT, [4, 3]),
             helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])]  # fmt: skip
    nodes = [helper.make_node("Relu", ["table"], ["r"]), helper.make_node("Gather", ["r", "ids"], ["g"], name="lookup"),
             helper.make_node("Softmax", ["g"], ["z"])]  # fmt: skip
    graph = helper.make_graph(nodes, "m", infos, [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    given = {"table": np.ones((4, 3), np.float32), "ids": np.array([0, 9])}
    told = r"^node 'lookup' \(Gather\): index {} of dimension 0 of r is outside -4 .. 3$"
    engines: list[Any] = [poly.compile(poly.from_onnx(model, {"n": 2})), poly.compile(model)]
    for engine in engines:
        for index, shown in ((9, "9"), (-7, "-7"), (2**40, "2147483647 or more"), (-(2**40), "-2147483648 or less")):
            with pytest.raises(IndexError, match=told.format(shown)):
                engine.run({**given, "ids": np.array([0, index])})
        assert engine.run({**given, "ids": np.array([0, -1])})["z"].shape == (2, 3)


@pytest.mark.parametrize("operator", ["GatherND", "ScatterND"])
@pytest.mark.parametrize("index", [12, -13])
def test_a_constant_index_out_of_range_is_refused_with_the_range(operator: str, index: int) -> None:
    updates = [np.ones((1, 3), np.float32)] if operator == "ScatterND" else []
    model, _ = node_model(operator, [np.ones((12, 3), np.float32), np.array([[index]]), *updates], constant=[1])
    with pytest.raises(PolyError, match=r"an index is outside of -12 .. 11"):
        poly.from_onnx(model)


@pytest.mark.parametrize(("target", "memories"), [("cpu", "dram, .*reg"), ("s16", "dram, ")])
def test_a_memory_that_the_machine_has_not(target: str, memories: str) -> None:
    schedule = product().promote("B", "C_update.k", "l9")
    with pytest.raises(PolyError, match=rf"'l9'[^\n]*\n  try: memories: {memories}"):
        poly.compile(schedule, target)


# ---- what a user tries next


def test_numpy_integers_are_numbers_of_edits() -> None:
    schedule, n = poly.Schedule(poly.parse("y[i,j] = x[i,j]*2", x=(16, 16))), np.int64(4)
    edited = schedule.tile({"i": n}).split("j", n).tile({"j.lo": n})
    assert str(poly.Schedule.parse(str(edited))) == str(edited)
    assert "4" in schedule.shift("y_set", "j", n).script and "np." not in schedule.skew("j", "i", n).script
    assert np.sum(poly.compile(edited, threads=np.int64(1))(np.ones((16, 16), "f4"))) == 512


def test_a_tree_reads_well() -> None:
    tree = poly.Schedule(poly.parse("C[i,k] += A[i,j] * B[j,k]", A=(8, 6), B=(6, 4))).tree
    assert str(tree) == (
        "for C_init.i:\n    for C_init.k:\n        C_init\n"
        "for C_update.i:\n    for C_update.k:\n        for j:\n            C_update"
    )


def test_a_kernel_is_not_pickled() -> None:
    program = poly.parse("y[i] = x[i]*2", x=(4,))
    kernel = poly.compile(program)
    for tried in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="kernel program: .*not pickled") as refused:
            tried(kernel)
        assert isinstance(refused.value, PolyError) and "compile" in str(refused.value)
    again = poly.compile(pickle.loads(pickle.dumps(kernel.schedule)))
    np.testing.assert_array_equal(again(np.ones(4, "f4")), kernel(np.ones(4, "f4")))


@pytest.mark.parametrize("tried", [pickle.dumps, copy.copy, copy.deepcopy])
def test_engines_are_not_pickled(tried: Any) -> None:
    engines = (
        poly.compile(poly.from_onnx(relu_model(), {"N": 1})), poly.compile(relu_model()),
        poly.compile(poly.from_onnx(relu_model(), ranges={"N": (1, 4)})),
    )  # fmt: skip
    for engine in engines:
        with pytest.raises(TypeError, match="Engine: .*not pickled(?s:.*)compile that again") as refused:
            tried(engine)
        assert isinstance(refused.value, PolyError)


@pytest.mark.parametrize(
    "name,dtype,hint", [("x", "i4", "'i32'"), ("A", "f31", "one of")]
)
def test_a_wrong_dtype_is_of_the_tensor_it_was_given_for(name: str, dtype: str, hint: str) -> None:
    with pytest.raises(PolyError, match=f"tensor {name}: .*'{dtype}'(?s:.*){hint}"):
        poly.parse("C[i] = A[i]", A=(4,), dtypes={name: dtype})


def test_help_of_promote_explains_every_option() -> None:
    text = inspect.getdoc(poly.Schedule.promote) or ""
    options = [p.name for p in inspect.signature(poly.Schedule.promote).parameters.values() if p.kind == p.KEYWORD_ONLY]
    assert len(options) > 6 and all(f"`{name}`:" in text for name in options)


def test_what_is_taken_for_something_else_is_named() -> None:
    schedule = poly.Schedule(poly.parse("y[i] = 2*x[i]", x=(8,)))
    kernel: Any = poly.compile(schedule)
    with pytest.raises(PolyError, match=r"of a schedule, not of a program\n  try: compile\(Schedule.parse\(text\)\)"):
        poly.compile(str(schedule))
    assert poly.compile(poly.Schedule.parse(str(schedule)))
    with pytest.raises(PolyError, match='is given by name: target="s16"'):
        poly.read_machine("s16")
    with pytest.raises(PolyError, match="pickle its schedule, kernel.schedule"):
        pickle.dumps(kernel)
    again: Any = poly.compile(pickle.loads(pickle.dumps(kernel.schedule)))
    assert np.asarray(again(np.ones(8, "f4"))).tolist() == [2.0] * 8


def test_arguments_of_the_isl_scheduler_are_looked_at() -> None:
    program = poly.parse("C[i,k] += A[i,j]*B[j,k]", A=(8, 8), B=(8, 8))
    for wrong, told in (({"tile": {"i": 8}}, "tile"), ({"mode": ["pluto"]}, "mode"), ({"tiles": 8}, "tile=")):
        with pytest.raises(PolyError, match=told):
            schedule_by_isl(program, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranges", [None, {"N": (1, 4)}, "while it runs"])
def test_run_of_an_engine_says_what_it_takes(ranges: Any) -> None:
    model: Any = relu_model()
    if ranges != "while it runs":
        model = poly.from_onnx(model, ranges=ranges) if ranges else poly.from_onnx(model, {"N": 1})
    engine: Any = poly.compile(model)
    for arguments in ({"inputs": {"x": X}, "outputs": ["y"]}, {}):
        with pytest.raises(PolyError, match=r"run: .*\n  try: run\({name: array}, out=None\)") as found:
            engine.run(**arguments)
        assert isinstance(found.value, TypeError)


@pytest.mark.parametrize(
    ("operator", "domain", "message"),
    [
        ("Rellu", "", r"node 'y' \(Rellu\): no operator Rellu in the domain ai.onnx\n  try: Relu"),
        ("Gelu", "far", r"node 'y' \(Gelu\): no operator Gelu in the domain far\n  try: export it without operators"),
    ],
)
def test_operators_that_nobody_has(operator: str, domain: str, message: str) -> None:
    model = relu_model()
    model.graph.node[0].op_type, model.graph.node[0].domain = operator, domain
    model.opset_import.extend([helper.make_opsetid(domain, 1)] if domain else [])
    with pytest.raises(PolyError, match=message):
        poly.compile(model).run({"x": X})


def test_a_function_that_is_no_nest() -> None:
    def product(n: int) -> None: ...

    compiled: Any = poly.compile
    with pytest.raises(PolyError, match=r"cannot compile function\n  try: poly.nest\(product\)"):
        compiled(product)
    with pytest.raises(PolyError, match=r"cannot compile function\n  try: a Program"):
        compiled(lambda: None)


def test_a_wider_target_says_which_operands_to_convert() -> None:
    text, shapes = "output C: i32[3,5]; C[i,k] += A[i,j] * B[j,k]", {"A": (3, 4), "B": (4, 5)}
    with pytest.raises(PolyError, match=r"body is i8, C is i32\n  try: convert what it reads: i32\(A") as refused:
        poly.parse(text, dtypes="i8", **shapes)
    wide = re.sub(r"(\w\[[^]]*\]) \* (\w\[[^]]*\])", r"i32(\1) * i32(\2)", text)
    assert "i32(B[...])" in str(refused.value)
    a, b = np.full((3, 4), 100, "i1"), np.full((4, 5), 100, "i1")
    found = run_program(poly.parse(wide, dtypes="i8", **shapes), {"A": a, "B": b})["C"]
    assert np.array_equal(found, np.full((3, 5), 40000))
    with pytest.raises(PolyError, match=r"body is f32, C is i8\n  try: write i8\(\.\.\.\)"):
        poly.parse("output C: i8[3]; C[i] = A[i]*2", A=(3,))


def test_a_tile_by_position_is_shown_as_it_is_written() -> None:
    schedule: Any = poly.Schedule(poly.parse("C[i,k] += A[i,j] * B[j,k]", A=(8, 8), B=(8, 8)))
    for arguments in (("j", 4), ("j",)):
        with pytest.raises(PolyError, match=r"\n  try: tile\({"):
            schedule.tile(*arguments)
    with pytest.raises(PolyError, match=r"loop 'C_update.k' has j inside"):
        schedule.vectorise("C_update.k")


def test_our_dtypes_in_einsum_are_named_as_numpy_does() -> None:
    with pytest.raises(PolyError, match=r"dtype 'i32': .*\n  try: 'int32'"):
        poly.einsum("i->", np.ones(3), dtype="i32")
