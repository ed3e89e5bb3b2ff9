"""The command line: exit codes, tables, errors without tracebacks, and every level of `show`."""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poly import commands
from poly.accel.profile import profile
from poly.checking import onnx_reference
from poly.cli import main
from poly.compiler import compile, machine_of
from poly.dtypes import Array
from poly.machine_text import read_machine
from tests.test_uneven import constants, window

ROOT = Path(__file__).resolve().parent.parent
MATMUL = "C[i,k] += A[i,j]*B[j,k]; D[i,k] = max(C[i,k], 0)"
SHAPES = ["--shape", "A=24,16", "--shape", "B=16,32"]


def poly(*arguments: str) -> int:
    """The exit code, argparse's own included."""
    try:
        return main(arguments)
    except SystemExit as error:
        return int(error.code or 0)


def test_run_einsum_checks_against_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    assert poly("run", "ij,jk->ik", "--shape", "24,16", "--shape", "16,32", "--check") == 0
    shown = capsys.readouterr().out
    assert "float32[24, 32]" in shown and "agrees with numpy.einsum" in shown


def test_run_measures_plans(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ("--shape", "150,70", "--shape", "70,130")
    assert poly("run", "ij,jk->ik", *shapes, "--check", "--tune", "4") == 0
    shown = capsys.readouterr().out
    assert re.search(r"measured +\d of [2-4] plans", shown) and "agrees with numpy.einsum" in shown
    assert poly("run", "ij,jk->ik", *shapes, "--target", "s16", "--tune", "2") == 1
    assert "tune=2 for s16" in capsys.readouterr().err


def test_run_saves_what_numpy_computes(tmp_path: Path) -> None:
    a, b = np.arange(12.0, dtype="f4").reshape(3, 4), np.ones((4, 5), "f4")
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    out = tmp_path / "o.npz"
    files = ["--input", f"{tmp_path}/a.npy", "--input", f"{tmp_path}/b.npy"]
    assert poly("run", "ij,jk->ik", *files, "--save", str(out)) == 0
    (found,) = np.load(out).values()
    assert np.array_equal(found, a @ b)


def test_run_shows_figures_of_the_elements_that_are_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([4, -1, 16, -2], "f4"))
    assert poly("run", "y[i] = sqrt(x[i])", "--input", f"x={tmp_path}/x.npy") == 0
    shown = capsys.readouterr().out.splitlines()[-1].split()
    assert shown == ["y", "float32[4]", "2", "4", "3,", "2", "of", "4", "NaN"]


def test_run_notation_with_named_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = np.ones((24, 16), "f4"), -np.ones((16, 32), "f4")
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    inputs = ["--input", f"B={tmp_path}/b.npy", "--input", f"A={tmp_path}/a.npy"]
    for shapes in (SHAPES, SHAPES[:2], ()):  # what is left out is the array's
        assert poly("run", MATMUL, *shapes, *inputs, "--check", "--save", str(tmp_path / "o.npz")) == 0
        assert not np.load(tmp_path / "o.npz")["D"].any()
    for shapes in (SHAPES[:2], ()):  # without names in the order of the inputs
        in_order = [f"--input={tmp_path}/a.npy", f"--input={tmp_path}/b.npy"]
        assert poly("run", MATMUL, *shapes, *in_order, "--check", "--save", str(tmp_path / "o.npz")) == 0
        assert not np.load(tmp_path / "o.npz")["D"].any()
    np.save(tmp_path / "s.npy", np.float32(3))
    scaled = ["C[i,k] = alpha*A[i,k]", "--input", f"alpha={tmp_path}/s.npy", "--input", f"A={tmp_path}/a.npy"]
    assert poly("run", *scaled, "--check") == 0
    assert poly("run", "C[i,k] = 1", "--input", f"{tmp_path}/a.npy") == 1
    assert "the range of index 'i'" in capsys.readouterr().err
    assert poly("run", MATMUL, *SHAPES[:2], *inputs[2:]) == 2
    assert "--input B=FILE.npy" in capsys.readouterr().err


def test_run_takes_the_arrays_of_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, out = np.arange(12.0, dtype="f4").reshape(3, 4), np.ones((4, 5), "f4"), str(tmp_path / "o.npz")
    text, file = "C[i,k] += A[i,j] * B[j,k]", str(tmp_path / "both.npz")
    np.savez(file, B=b, A=a)  # by name, whatever their order
    assert poly("run", text, "--input", file, "--check", "--save", out) == 0
    assert np.array_equal(np.load(out)["C"], a @ b)
    assert poly("run", "ij,jk->ik", "--input", f"{file}:A", "--input", f"{file}:B", "--check") == 0
    np.savez(tmp_path / "pair.npz", a, b)  # numbered: in order
    for what in (text, "ij,jk->ik"):
        assert poly("run", what, "--input", str(tmp_path / "pair.npz"), "--check") == 0
    capsys.readouterr()
    np.savez(file, allow_pickle=False, **{"in:A": a, "in:B": b})
    assert poly("run", text, "--input", f"A={file}:in:A", "--input", f"B={file}:in:B", "--check") == 0
    assert re.search(r"inputs +2, files$", capsys.readouterr().out, re.MULTILINE)
    assert poly("run", text, "--shape", "B=4,5", "--input", f"A={file}:in:A") == 0
    assert "2, 1 of files, others random, seed 0" in capsys.readouterr().out
    for given, said in (
        (f"A={file}:x", "has no array 'x'\n  try: arrays: in:A, in:B"), (f"A={file}", f"{file}:in:A, one for each"),
        (f"{tmp_path}/none.npz:x", "none.npz"),
    ):  # fmt: skip
        assert poly("run", text, "--shape", "B=4,5", "--shape", "A=3,4", "--input", given) == 2
        assert said in capsys.readouterr().err
    assert poly("run", text, "--shape", "B=4,5", "--shape", "A=3,4", "--input", file) == 2
    assert f"no input 'in:A'\n  try: inputs: A, B; --input A={file}:in:A" in capsys.readouterr().err
    Path(file).write_bytes(b"no archive")
    assert poly("run", text, "--input", file) == 2
    assert "is no archive of arrays" in capsys.readouterr().err


def test_run_onnx_checks_against_the_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.onnx"
    save_model(path)
    assert poly("run", str(path), "--shape", "x=2,3,8,8", "--check") == 0
    shown = capsys.readouterr().out
    assert "agrees with onnx.reference" in shown and "fallbacks none" in " ".join(shown.split())


def test_run_compiles_while_running_what_only_the_run_can_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx
    from onnx import TensorProto, helper

    nodes = [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("NonZero", ["r"], ["y"])]
    graph = helper.make_graph(
        nodes, "late",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6]),
            helper.make_tensor_value_info("s", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [2, None])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path / "late.onnx"
    onnx.save(model, str(path))
    np.save(tmp_path / "s.npy", np.array([8, 3]))
    assert poly("run", str(path), "--bind", "n=4", "--input", f"s={tmp_path}/s.npy", "--check") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "agrees with onnx.reference" in shown and "fallbacks none by numpy y (NonZero)" in shown
    assert poly("run", str(path), "--input", f"s={tmp_path}/s.npy") == 1
    assert "--bind n=1" in capsys.readouterr().err
    np.save(tmp_path / "x.npy", np.ones((4, 6), np.float32))
    assert poly("run", str(path), "--input", f"{tmp_path}/x.npy", "--input", f"{tmp_path}/s.npy", "--check") == 0
    assert poly("show", str(path), "--bind", "n=4") == 1


def save_model(path: Path) -> None:
    """Conv, Relu, Flatten and an old Softmax, which onnx.reference alone runs along the wrong axis."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype("f4")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Softmax", ["p"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 1, 1])],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7), str(path))


def test_demo_on_a_small_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo's own network takes half a minute; the way is the same."""
    import onnx
    from onnx.tools import update_model_dims

    import poly.demo as module

    save_model(tmp_path / "small.onnx")
    model = onnx.load(str(tmp_path / "small.onnx"))
    del model.graph.node[2]  # the pool: the Softmax has rows of 8, one group for a CPU and several for an accelerator
    model.graph.node[2].input[0] = "r"
    model.graph.node[2].attribute.append(onnx.helper.make_attribute("axis", 3))
    for dim in model.graph.output[0].type.tensor_type.shape.dim[2:]:
        dim.dim_value = 8
    update_model_dims.update_inputs_outputs_dims(model, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 8]})
    monkeypatch.setattr(module, "network", lambda: model)
    assert poly("demo", "--threads", "2") == 0
    shown = capsys.readouterr().out
    assert "4 of 4 results agree" in shown and "cycles" in shown and "MISMATCH" not in shown
    counts = next(line for line in shown.splitlines() if line.startswith("groups "))
    of_cpu, of_accelerator = map(int, re.findall(r"(\d+), ", counts))
    assert of_cpu < of_accelerator
    first, second = shown.index("cpu tile"), shown.index("s16 tile")
    for table, count in ((shown[first:second], of_cpu), (shown[second:], of_accelerator)):
        rows = re.findall(r"^ +\d+ +(\d+) ", table, re.MULTILINE)
        assert sum(map(int, rows)) == count
    reference = module.onnx_reference
    monkeypatch.setattr(module, "onnx_reference", lambda m, i: {k: np.add(a, 1) for k, a in reference(m, i).items()})
    assert poly("demo") == 1
    assert "MISMATCH" in capsys.readouterr().out


def test_check_where_onnx_reference_lacks_a_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    from tests.onnx_helpers import node_model

    model, _ = node_model("Relu", [np.zeros(4, "f4")])
    model.graph.node[0].op_type, model.graph.node[0].domain = "QuickGelu", "com.microsoft"
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "m.onnx")
    assert poly("run", str(tmp_path / "m.onnx"), "--check") == 1
    shown = capsys.readouterr().err
    assert "nothing to compare with: onnx.reference cannot run the model" in shown and "--save OUT.npz" in shown


@pytest.mark.parametrize(
    ("codes", "scale", "axis"),
    [
        (np.arange(-2, 4, dtype="i1").reshape(2, 3), np.float32(0.5), None),
        (np.arange(4, dtype="i1"), np.array([0.5], "f4"), None),  # an axis that a vector does not have
        (np.arange(12, dtype="u1").reshape(2, 3, 2), np.array([0.5, 2, 4], "f4"), None),
        (np.arange(6, dtype="i4").reshape(2, 3), np.array([0.5, 3], "f4"), 0),
    ],
)
def test_check_of_codes_before_opset_19(codes: Array, scale: Array, axis: int | None) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    from tests.onnx_helpers import node_model

    zero = np.full(np.shape(scale), 0 if codes.dtype == np.int32 else 1, codes.dtype)
    model, feeds = node_model("DequantizeLinear", [codes, scale, zero], opset=13)
    if axis is not None:
        model.graph.node[0].attribute.append(onnx.helper.make_attribute("axis", axis))
    newer = onnx.ModelProto.FromString(model.SerializeToString())
    newer.opset_import[0].version = 19
    expected = np.asarray(next(iter(ReferenceEvaluator(newer).run(None, feeds))))
    (found,) = onnx_reference(model, feeds).values()
    assert found.dtype == expected.dtype and np.array_equal(found, expected)


@pytest.mark.parametrize(("operator", "said"), [("QuantizeLinear", True), ("Neg", False)])
def test_a_check_that_fails_says_that_codes_may_differ(
    operator: str, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    from tests.onnx_helpers import node_model

    operands = [np.ones(4, "f4"), np.float32(0.5), np.uint8(128)][: 3 if said else 1]
    model, _ = node_model(operator, operands)
    onnx.save(model, tmp_path / "m.onnx")
    assert poly("run", str(tmp_path / "m.onnx"), "--check") == 0
    assert "rounds to codes" not in capsys.readouterr().out

    def other(model: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {n: np.add(a, np.ones_like(a)) for n, a in onnx_reference(model, inputs).items()}

    monkeypatch.setattr("poly.commands.onnx_reference", other)
    assert poly("run", str(tmp_path / "m.onnx"), "--check") == 1
    assert ("rounds to codes" in capsys.readouterr().out) == said


def test_sizes_that_are_named_are_ones_that_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    from tests.onnx_helpers import node_model

    model, _ = node_model("MaxPool", [np.zeros((1, 1, 8, 8), "f4")], kernel_shape=[3, 3])
    for axis, name in ((0, "n"), (2, "h"), (3, "w")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    onnx.save(model, tmp_path / "m.onnx")
    assert poly("run", str(tmp_path / "m.onnx")) == 1
    hint = capsys.readouterr().err.partition("try: ")[2].partition(",")[0].split()
    assert hint[:2] == ["--bind", "n=1"] and len(hint) == 6
    assert poly("run", str(tmp_path / "m.onnx"), *hint, "--check") == 0


def test_random_integers_behind_nan_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    nodes = [node("Cast", ["mask"], ["f"], to=1), node("Neg", ["f"], ["g"]), node("Sqrt", ["g"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", [value("mask", 7, [64])], [value("y", 1, [64])])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    assert poly("run", str(tmp_path / "m.onnx"), "--save", str(tmp_path / "out")) == 0
    shown = capsys.readouterr().out
    assert "--input mask=FILE.npy" in shown and f"saved to {tmp_path}/out.npz" in shown
    np.save(tmp_path / "a.npy", np.ones(64, "i8"))
    assert poly("run", str(tmp_path / "m.onnx"), "--input", f"mask={tmp_path}/a.npy") == 0
    assert "NaN" in (shown := capsys.readouterr().out) and "--input" not in shown


@pytest.mark.parametrize("name", ["a.npz", "a.bin", "a.nest"])
def test_a_file_that_is_no_text(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04\xe6\xff")
    assert poly("run", str(tmp_path / name)) == 2
    assert "is no text" in (shown := capsys.readouterr().err) and ("--input" in shown) == (name == "a.npz")


def test_check_fails_on_another_result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    einsum = np.einsum
    monkeypatch.setattr(np, "einsum", lambda *a, **k: einsum(*a, **k) + 1)
    assert poly("run", "ij->i", "--shape", "8,8", "--check") == 1
    assert "MISMATCH" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["ij->i", "c[i] += A[i,j]"])
def test_check_counts_in_the_units_of_the_dtype(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", np.random.default_rng(0).standard_normal((8, 8)))
    arguments = ["run", what, "--input", f"{tmp_path}/a.npy", "--check"]
    assert poly(*arguments) == 0
    einsum, interpreter = np.einsum, commands.run_program
    monkeypatch.setattr(np, "einsum", lambda *a, **k: einsum(*a, **k) * (1 + 1e-9))
    monkeypatch.setattr(
        commands, "run_program", lambda *a: {k: np.multiply(v, 1 + 1e-9) for k, v in interpreter(*a).items()}
    )
    assert poly(*arguments) == 1  # a difference that no f32 has is one of f64
    assert "MISMATCH" in capsys.readouterr().out


def test_tables_have_no_blanks_at_their_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert poly("machines") == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].startswith("target") and lines.pop() == ""
    assert all(line and line == line.rstrip() for line in lines)


def test_warnings_are_lines_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert poly("run", "ij->i", "--shape", "8,8", "--threads", "64") == 0
    shown = capsys.readouterr().err
    assert shown.startswith("poly: threads=64") and "SettingWarning" not in shown


def test_hints_name_options_that_the_command_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert poly("show", "ij,jk->ik") == 2 and "--input" not in capsys.readouterr().err
    assert poly("run", "ij,jk->ik") == 2 and "--input" in capsys.readouterr().err


def test_run_notation_takes_dtypes_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.ones((3, 4)))
    np.save(tmp_path / "i.npy", np.array([2, 0], "i4"))
    files = ["--input", f"A={tmp_path}/a.npy", "--input", f"at={tmp_path}/i.npy"]
    assert poly("run", "B[i,j] = A[at[i],j]", *files, "--check", "--save", f"{tmp_path}/o.npz") == 0
    assert np.load(tmp_path / "o.npz")["B"].dtype == np.float64
    assert poly("run", "A: f32[3,4]; B[i,j] = A[i,j]", *files[:2]) == 1  # what the text says counts
    assert "expected float32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("program", "D_set[i, k]"), ("schedule", "script"), ("loops", "for "), ("ir", "define "), ("asm", "ret"),
        ("explain", "why legal"),
    ],
)  # fmt: skip
def test_show_levels(level: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert poly("show", MATMUL, *SHAPES, "--level", level) == 0
    assert expected in capsys.readouterr().out


def test_show_has_the_schedule_that_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ["--shape", "A=16,1024", "--shape", "B=1024,16"]
    assert poly("show", "C[i,j] += A[i,k]*B[k,j]", *shapes, "--threads", "2", "--level", "schedule") == 0
    assert "C_parts" in capsys.readouterr().out  # docs/decisions/0029


def test_show_leaves_out_padding_as_compile_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = window(14)
    path = tmp_path / "window.txt"
    path.write_text(str(program))
    assert poly("show", str(path), "--level", "schedule") == 0
    assert capsys.readouterr().out.strip() == str(compile(program, constants=constants()).schedule).strip()


def test_show_of_constants_whose_size_is_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "free.txt"
    path.write_text("program p(n) where n > 0\noutput Y: f32[n]\ninput X: f32[n]\nconstant W: f32[n]\n"
                    "s[i]: Y[i] = X[i]*W[i] where 0 <= i < n\n")  # fmt: skip
    assert poly("show", str(path), "--level", "schedule") == 0
    assert poly("show", str(path), "--level", "ir") == 1
    assert "W" in capsys.readouterr().err


def test_show_numbers_groups_as_engines_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    values = {"q": np.ones((4, 8), np.int8), "s": np.array(0.5, np.float32)}
    constants = [numpy_helper.from_array(value, name) for name, value in values.items()]
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 4]), ("y", [2, 8])))
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "known.onnx"
    save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants), opset_imports=opset), path)
    assert poly("show", str(path), "--level", "program", "--group", "0") == 0
    assert "y[" in capsys.readouterr().out  # what is known when compiling is in no group (docs/decisions/0017)
    assert poly("show", str(path), "--level", "program", "--group", "5") == 2
    assert "no group 5\n  try: --group N, of 0\n" in capsys.readouterr().err
    assert [commands._spans(n) for n in ([0], [0, 1, 3], [0, 2, 4, 5, 6])] == ["0", "0 to 1, 3", "0, 2, 4 to 6"]


def test_fixed_inputs_are_arrays_of_files_and_archives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from onnx import TensorProto, helper, save

    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Tile", ["r", "times"], ["y"])]
    kinds = {"x": TensorProto.FLOAT, "shape": TensorProto.INT64, "times": TensorProto.INT64}
    inputs = [helper.make_tensor_value_info(n, k, [6] if n == "x" else [2]) for n, k in kinds.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    path, fixed, one = (str(tmp_path / name) for name in ("m.onnx", "fixed.npz", "one.npz"))
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(helper.make_graph(nodes, "g", inputs, [y]), opset_imports=opset), path)
    np.savez(fixed, shape=np.array([2, 3]), times=np.array([2, 1]))
    np.savez(one, np.array([3, 2]))
    for given in ([fixed], [f"shape={fixed}:shape", f"times={fixed}:times"], [f"shape={one}", f"times={one}"]):
        assert poly("run", path, *(word for g in given for word in ("--constant", g)), "--check") == 0
        assert "groups" in capsys.readouterr().out  # not by stages
    for given, said in (
        (f"shape={fixed}", f"{fixed}:shape, one for each"), (one, "of which input?"),
        ("shape=none.npy", "no file none.npy"), ("shape=two", "shape=FILE.npz:ARRAY"),
        (f"shape={fixed}:x", "has no array 'x'\n  try: arrays: shape, times"),
    ):  # fmt: skip
        assert poly("run", path, "--constant", given) == 2
        assert said in capsys.readouterr().err


def test_shown_schedule_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert poly("show", MATMUL, *SHAPES, "--level", "schedule") == 0
    text = capsys.readouterr().out
    path = tmp_path / "s.txt"
    path.write_text(text)
    assert poly("show", str(path), "--level", "schedule") == 0
    assert capsys.readouterr().out == text
    assert poly("run", str(path), "--check") == 0


def test_show_group_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.onnx"
    save_model(path)
    shape = ["--shape", "x=1,3,8,8"]
    assert poly("show", str(path), *shape) == 0 and "Conv" in capsys.readouterr().out
    assert poly("show", str(path), *shape, "--level", "loops", "--group", "0") == 0
    assert "for " in capsys.readouterr().out
    assert poly("show", str(path), *shape, "--level", "asm", "--group", "0") == 0
    assert poly("show", str(path), *shape, "--level", "program", "--group", "0") == 0
    assert "\nconstant " in capsys.readouterr().out  # weights are known when compiling, as they are to an engine
    assert poly("show", str(path), *shape, "--level", "loops") == 2
    assert poly("show", str(path), *shape, "--level", "loops", "--group", "99") == 2
    assert "try: --group N, of 0" in capsys.readouterr().err


def test_a_case_of_the_regression_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "case.nest"
    path.write_text("# a case\n\n[program]\nx: f32[8]\ny[i] = x[i]*2\n\n[script]\ntile(sizes={'i': 4})\n")
    assert poly("show", str(path), "--level", "loops") == 0
    assert "for i.o in range(0, 2)" in capsys.readouterr().out
    assert poly("run", str(path), "--check") == 0


def test_files_that_hold_no_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.npy").write_text("hello")
    np.savez(tmp_path / "two.npz", a=np.ones(3), b=np.ones(3))
    for name in ("text.npy", "two.npz"):
        assert poly("run", "i->", "--input", str(tmp_path / name)) == 2
        assert poly("run", "C[i] = A[i]", "--shape", "A=3", "--input", str(tmp_path / name)) == 2
        assert name in capsys.readouterr().err


def test_machines_lists_the_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert poly("machines") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("cpu", "s16", "g16", "m32"))
    assert poly("machines", "s16") == 0
    assert capsys.readouterr().out == f"{profile('s16')}\n"
    assert poly("machines", "cpu") == 0 and 'kind = "cpu"' in capsys.readouterr().out


@pytest.mark.parametrize("name", ["cpu", "s16", "g16", "m32"])
def test_a_printed_machine_can_be_edited_and_given_back(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert poly("machines", name) == 0
    (file := tmp_path / "mine.toml").write_text(capsys.readouterr().out)
    assert read_machine(file) == machine_of(name)
    assert poly("run", "ij,jk->ik", "--shape", "8,8", "--shape", "8,8", "--target", str(file), "--check") == 0
    file.write_text(file.read_text().replace("clock_mhz = ", "clock_mhz = 1"))
    assert read_machine(file).clock_mhz == int(f"1{machine_of(name).clock_mhz}")


def test_a_printed_machine_has_the_names_that_it_had(tmp_path: Path) -> None:
    machine = replace(machine_of("s16"), name='a "\x7f\t\U0001f680\\ é', clock_mhz=3)
    (file := tmp_path / "mine.toml").write_text(str(machine), "utf-8")
    assert read_machine(file) == machine


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "ij,jk->ik"], 2, "2 operands"),
        (["run", "ij->i", "--shape", "8,x"], 2, "ints"),
        (["run", "ij->i", "--shape", "8,-8"], 2, "ints"),
        (["run", "missing.onnx"], 2, "no file"),
        (["check", "ij,jk->ik"], 2, "'ij,jk->ik' is no model"),
        (["show", "mine.toml"], 2, "--target mine.toml"),
        (["run", "ij->i", "--shape", "8,8", "--target", "nowhere"], 1, "no machine"),
        (["run", "ij->i", "--input", "missing.npy"], 2, "missing.npy"),
        (["run", "C[i] = A[i", "--shape", "A=4"], 1, "^"),
        (["show", MATMUL, *SHAPES, "--level", "asm", "--target", "s16"], 2, "no asm"),
        (["show", MATMUL, *SHAPES, "--group", "1"], 2, "--group"),
        (["show", MATMUL, "--shape", "24,16"], 2, "--shape A="),
        (["run", MATMUL, "--shape", "A=M,K", "--shape", "B=K,N"], 2, "size"),
        (["run", "ij->i", "--shape", "8,8", "--threads", "0"], 2, "positive"),
        (["run", "C[i] = dtypes[i]", "--shape", "dtypes=4"], 2, "dtypes"),
        (["show", MATMUL, *SHAPES, "--level", "nothing"], 2, "invalid choice"),
        (["check", MATMUL], 2, "--check"),
        (["explain", MATMUL], 2, "--level explain"),
        (["profile", "model.onnx"], 2, ".profile(inputs)"),
        (["machines", "nothing"], 1, "one of cpu, "),
    ],
)  # fmt: skip
def test_errors_fit_one_screen(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert poly(*arguments) == code
    shown = capsys.readouterr().err
    assert message in shown and "Traceback" not in shown and len(shown.splitlines()) < 24


def test_a_shape_that_is_refused_keeps_its_name_and_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "m.onnx").write_bytes(b"")
    assert poly("run", str(path), "--shape", "Input3=1,-1,5,x") == 2
    assert "try: --shape Input3=1,8,5,8\n" in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert poly() == 2
    assert poly("--version") == 0
    assert "polyloom 0" in capsys.readouterr().out
    assert poly("run", "--help") == 0
    assert "examples:" in capsys.readouterr().out


def test_module_runs_and_a_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "poly", "show", MATMUL, *SHAPES, "--level", "asm"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


def test_options_that_would_do_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.ones((3, 4)))
    for option in (["--shape", "5,6"], ["--dtype", "f32"]):  # what the file has would count
        assert poly("run", "ij->ji", "--input", f"{tmp_path}/a.npy", *option) == 2
        assert f"--input beside {option[0]}" in capsys.readouterr().err
    assert poly("run", MATMUL, *SHAPES, "--dtype", "f64") == 2
    shown = capsys.readouterr().err
    assert "--dtype is for einsum specs" in shown and '"input x: f64[8]; ..."' in shown
    missing = tmp_path / "none" / "out.npz"
    assert poly("run", "ij->ji", "--shape", "3,4", "--save", str(missing)) == 2
    assert "no folder" in capsys.readouterr().err
