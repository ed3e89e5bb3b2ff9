"""Plausible mistakes over the whole library: each is a `PolyError` with what to try, and what is tried works."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import poly
from poly.cli import main
from poly.errors import PolyError

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the lines below speak of."""
    folder = tmp_path_factory.mktemp("files")
    shape = ["n", 4]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    (folder / "broken.onnx").write_bytes(b"hello")
    (folder / "pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    (folder / "machine.toml").write_text("x = 3")
    (folder / "program.txt").write_text("y[i] = 2*x[i]")
    (folder / "empty").mkdir()
    text = "C[i,k] += A[i,j]*B[j,k]"
    program = poly.parse(text, A=(16, 16), B=(16, 16))
    return {
        "np": np, "numpy": np, "text": text, "poly": poly, "parse": poly.parse, "folder": folder,
        "path": folder / "model.onnx",
        "a": np.ones((4, 5), "f4"), "b": np.ones((5, 6), "f4"), "m": np.ones((16, 16), "f4"), "program": program,
        "schedule": poly.Schedule(program), "kernel": poly.compile(program),
        "stream": poly.compile(program, target="s16"),
        "wide": poly.compile(poly.parse(text, A=(4, 5), B=(5, 6))), "c": np.empty((6, 4), "f4"),
        "engine": poly.compile(poly.from_onnx(model, {"n": 2})), "x": np.ones((2, 4), "f4"),
    }  # fmt: skip


# What is written, a part of what is to be tried, and a line that follows it: {} is that part where it is code to be
# run, and # why nothing follows.
MISTAKES: list[tuple[str, str, str]] = [
    # einsum
    ('poly.einsum("ij,jk->il", a, b)', "one of the operands' indices: i, j, k", 'poly.einsum("ij,jk->ik", a, b)'),
    ('poly.einsum("ij,kj->ik", a, b)', "letters in the order of the dimensions", 'poly.einsum("ij,jk->ik", a, b)'),
    ('poly.einsum("ijk,jk->ik", a, b)', "as many letters as dimensions: jk", 'poly.einsum("jk,ki->ji", a, b)'),
    ('poly.einsum("ij;jk", a, b)', "terms with commas between them: ij,jk->ik", 'poly.einsum("ij,jk", a, b)'),
    ("poly.einsum(a, b)", "einsum('ij,jk->ik', a, b)", "poly.{}"),
    ('poly.einsum("ij,jk", a, None)', "an array of numbers", 'poly.einsum("ij,jk", a, b)'),
    ('poly.einsum("ij,jk", a, "b")', "an array of numbers", 'poly.einsum("ij,jk", a, b)'),
    ('poly.einsum("ij,jk->ik", a, b, out=a)', "out=numpy.empty((4, 6), 'float32')",
     "poly.einsum('ij,jk->ik', a, b, {})"),
    ('poly.einsum("ij,jk", a, b, dtype="f31")', "'float64'", 'poly.einsum("ij,jk", a, b, dtype={})'),
    ('poly.einsum("ij,jk->iik", a, b)', "D[i,i] = x[i]", 'parse("{}", x=(4,))'),
    ('poly.einsum("ii", a)', "another letter for one of them", 'poly.einsum("ij", a)'),
    ('poly.einsum("ij,jk", a, b, thread=2)', "threads=", 'poly.einsum("ij,jk", a, b, {}1)'),
    ('poly.einsum("ij,jk", a, b, order="C", otu=c)', "out=", 'poly.einsum("ij,jk->ki", a, b, {}c)'),
    # notation
    ('parse("a: i64[i] = x[i]", x=(5,))', "a[i] = i64(x[i])", 'parse("{}", x=(5,))'),
    ('parse("S: f64[i] += x[i,k]", x=(5, 2))', "S[i] += f64(x[i,k])", 'parse("{}", x=(5, 2))'),
    ('parse("y[i] = i32[x[i]]", x=(5,))', "i32(x)", 'parse("y[i] = i32(x[i])", x=(5,))'),
    ('parse("y[i] = i32(x[i], 2)", x=(5,))', "i32(x)", 'parse("y[i] = i32(x[i])", x=(5,))'),
    ('parse("y[g[i]] += x[i]", x=(2,), g=(2,))', "y=(512,)", 'parse("y[g[i]] += x[i]", x=(2,), g=(2,), {})'),
    ('parse("y[i,g[i]] += x[i]", x=(2,), g=(2,))', "y=(2, 512)",
     'parse("y[i,g[i]] += x[i]", x=(2,), g=(2,), {})'),
    ('parse("h[i32(x[i]*16)] += 1.0", x=(9,))', "g[i] = i32(x[i] * 16) before it, and g[i] as the subscript",
     'parse("g[i] = i32(x[i] * 16); h[g[i]] += 1.0", x=(9,), h=(16,))'),
    ('parse("y[i] = x[z[i] + 1]", x=(9,), z=(3,))', "g[i] = i64(z[i] + 1) before it",
     'parse("g[i] = i64(z[i] + 1); y[i] = x[g[i]]", x=(9,), z=(3,))'),
    ('parse("y[i] = x[i*i]", x=(9,))', "g[i] = i * i where 0 <= i < 8 before it",
     'parse("g[i] = i * i where 0 <= i < 8; y[i] = x[g[i]]", x=(64,))'),
    ('parse("y[i] = x[i]; y[i,j] = x[i]*x[j]", x=(3,))', "as many everywhere, or y_2",
     'parse("y[i] = x[i]; y_2[i,j] = x[i]*x[j]", x=(3,))'),
    ('parse("y[i] = x[i]")', "x=(512,)", 'parse("y[i] = x[i]", {})'),
    ('parse("y[i] = x[i]", x=(-1,))', "extents from 0 on", 'parse("y[i] = x[i]", x=(0,))'),
    ('parse("y[i] = x[i] +", x=(8,))', "a value behind +", 'parse("y[i] = x[i] + 1", x=(8,))'),
    ('parse("y[i] = x[i] > 0 && x[i] < 1", x=(8,))', "a and b", 'parse("y[i] = x[i] > 0 and x[i] < 1", x=(8,))'),
    ('parse("y[i] = x[i] > 0 ? 1 : 0", x=(8,))', "a if c else b", 'parse("y[i] = 1 if x[i] > 0 else 0", x=(8,))'),
    ('parse("y[i] = x[i] if i", x=(8,))', "a if c else b", 'parse("y[i] = x[i] if i else 0", x=(8,))'),
    ('parse("y[i] = (x[i]", x=(8,))', "as many brackets", 'parse("y[i] = (x[i])", x=(8,))'),
    ('parse("y[i] := x[i]", x=(8,))', "y[i] = ...", 'parse("y[i] = x[i]", x=(8,))'),
    ('parse("inpt x: f32[8]; y[i] = x[i]")', "input ...: f32[M, 64]", 'parse("input x: f32[8]; y[i] = x[i]")'),
    ('parse("input x f32[8]; y[i] = x[i]")', "input A: f32[M, 64]", 'parse("input x: f32[8]; y[i] = x[i]")'),
    ('parse("input x: f32(8); y[i] = x[i]")', "f32[8]", 'parse("input x: {}; y[i] = x[i]")'),
    ('parse("for i in range(8): y[i] = x[i]", x=(9,))', "for i: with `where 0 <= i < 8`",
     'parse("for i: y[i] = x[i] where 0 <= i < 8", x=(9,))'),
    ('parse("y[i] = pow(x[i])", x=(8,))', "pow(x, y)", 'parse("y[i] = pow(x[i], 2)", x=(8,))'),
    ('parse("y[i] = x[i] where i > 100", x=(8,))', "a larger tensor", 'parse("y[i] = x[i] where i > 100", x=(200,))'),
    ('parse("y[i] = x[i]", shapes={"x": (8,)}, x=(8,))', "A=(64", 'parse("y[i] = x[i]", x=(64,))'),
    ('parse("y[i] = x[i]", (8,))', "shapes have names: parse(text, A=(64, 96))", 'parse("y[i] = x[i]", x=(8,))'),
    # compile
    ("poly.compile(program, thread=2)", "threads=", "poly.compile(program, {}1)"),
    ("poly.compile()", "compile(", "poly.{}program)"),
    ("poly.compile(folder / 'modl.onnx')", "model.onnx", "poly.compile(folder / '{}')"),
    ("poly.compile(folder / 'none' / 'model.onnx')", "a folder that there is", "poly.compile(folder / 'model.onnx')"),
    ("poly.compile(folder)", "model.onnx", "poly.compile(folder / '{}')"),
    ("poly.compile(folder / 'empty')", "the path of a file, not of a folder", "poly.compile(path)"),
    ("poly.compile(folder / 'broken.onnx')", "fetch the file again", "# from where it came, which no test can"),
    ("poly.compile(folder / 'pointer.onnx')", "git lfs pull", "# a command of git"),
    ("poly.compile(folder / 'program.txt')", "a program's text goes to poly.parse",
     "parse((folder / 'program.txt').read_text(), x=(4,))"),
    ("poly.compile(program, target=str(folder / 'machine.toml'))", "schema = 1 on its first line",
     "# the file would still describe no machine"),
    ("poly.compile(program, target='machin.toml')", "a path that there is", "# there is no description to name"),
    ("poly.compile(parse('y[i] = x[i]', x=('N',)), 's16')", "program.bind(N=64)",
     "(lambda program: poly.compile({}, 's16'))(parse('y[i] = x[i]', x=('N',)))"),
    ("poly.compile(parse('y[i] = x[i-1] + x[i+1]', x=(8,)), 's16')", "y[i] = 0 where 0 <= i < 8",
     "poly.compile(parse('{}; y[i] = x[i-1] + x[i+1] where 1 <= i < 7', x=(8,)), 's16')"),
    # calls
    ("kernel(m)", "kernel(A, B)", "(lambda A, B: {})(m, m)"),
    ("kernel(A=m, D=m)", "kernel(A, B)", "(lambda A, B: {})(m, m)"),
    ("kernel(m, m, Out=m)", "out=", "kernel(m, m, {}m.copy())"),
    ("kernel(m, m[:4])", "an array of shape (16, 16)", "kernel(m, m)"),
    ("kernel(m[:, :8], m)", "parse it with those of all its inputs",
     "poly.compile(parse(text, A=(16, 8), B=(8, 16)))(m[:, :8], m[:8])"),
    ("kernel(m, m, out=np.empty((8, 8), 'f4'))", "numpy.empty((16, 16), 'float32')",
     "kernel(m, m, out={})"),
    ("poly.compile(parse('y[i] = x[i]', x=('N',)))(m)", "an array with 1 dimension",
     "poly.compile(parse('y[i] = x[i]', x=('N',)))(m[0])"),
    ("wide(a, b, out=c)", "out.T", "(lambda out: wide(a, b, out={}))(c)"),
    ("wide(a, b, out=(c,))", "out[0].T", "(lambda out: wide(a, b, out=({},)))((c,))"),
    ("wide(a, b.T)", "B.T", "(lambda B: wide(a, {}))(b.T)"),
    ("kernel(m, m, out=m.astype('f8'))", "numpy.empty((16, 16), 'float32')",
     "kernel(m, m, out={})"),
    ("kernel(m, None)", "an array of float32 for B", "kernel(m, m.astype('float32'))"),
    ("engine.run({})", "run({'x': ...})", "engine.run({'x': x})"),
    ("engine.run(x)", "run({'x': ...})", "engine.run({'x': x})"),
    ("engine.run({'x': x}, out={'y': np.empty((4, 2), 'f4').T})", "numpy.empty((2, 4), 'float32')",
     "engine.run({'x': x}, out={'y': {}})"),
    # schedules
    ("schedule.split('j', 100)", "at most its last", "schedule.split('j', 8)"),
    ("schedule.fuse('j')", "fuse(first, second)", "# this program has no two loops side by side"),
    ("schedule.unroll('j', 4)", "unroll(loop)", "schedule.unroll('j')"),
    ("schedule.parallelise('C_init.k').vectorise('C_init.k')", "tile({'C_init.k': 8})",
     "schedule.{}"),
    ("schedule.promote('A', 'j', spac='l1')", "space=", "schedule.promote('A', 'j', {}'l1')"),
    ("poly.Schedule.parse('hello')", "str(schedule) is such a text", "poly.Schedule.parse(str(schedule))"),
    ("schedule.distribute('j')", "a loop with several statements", "# this program has none"),
    # an accelerator, the interpreter, sizes
    ("stream(m)", "kernel(A, B)", "(lambda kernel, A, B: {})(stream, m, m)"),
    ("stream(m, m.astype('f8'))", "B.astype('float32')", "(lambda B: stream(m, {}))(m.astype('f8'))"),
    ("stream(m, None)", "an array of float32 for B", "stream(m, m.astype('float32'))"),
    ("stream(m, m, out=3)", "numpy.empty((16, 16), 'float32')", "stream(m, m, out={})"),
    ("stream(m, m, out=(m, m))", "an array for each", "stream(m, m, out=(np.empty_like(m),))"),
    ("poly.run_program(schedule, {'A': m, 'B': m})", "the `program` of what is given",
     "poly.run_program(schedule.program, {'A': m, 'B': m})"),
    ("poly.run_program(program, {'A': m, 'B': m[:3]})", "an array of shape (16, 16)",
     "poly.run_program(program, {'A': m, 'B': m})"),
    ("poly.run_program(program, {'A': m, 'B': m[0]})", "an array with 2 dimensions",
     "poly.run_program(program, {'A': m, 'B': m})"),
    ("parse('y[i] = x[i]', x=('N',)).bind(N=0)", "sizes with N > 0", "parse('y[i] = x[i]', x=('N',)).bind(N=1)"),
    ("poly.compile(parse('y[i] = x[i]', x=('2*N',)))(x[0, :3])", "an extent that is 2*N",
     "poly.compile(parse('y[i] = x[i]', x=('2*N',)))(x[0])"),
    # models
    ("poly.from_onnx(path, shape={'n': 2})", "shapes=", "poly.from_onnx(path, {}{'n': 2})"),
    ("poly.from_onnx(path, {'x': (1, 5)})", "an array of shape [n, 4] for 'x'", "poly.from_onnx(path, {'x': (1, 4)})"),
    ("poly.from_onnx(path, {'x': (1,)})", "an array of shape [n, 4] for 'x'", "poly.from_onnx(path, {'x': (2, 4)})"),
    ("poly.from_onnx(path, {'n': -1})", "an extent from 0 on", "poly.from_onnx(path, {'n': 0})"),
    ("poly.from_onnx(folder / 'modle.onnx', {'n': 1})", "model.onnx", "poly.from_onnx(folder / '{}', {'n': 1})"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "hint", "followed"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_what_is_tried_works(names: dict[str, Any], written: str, hint: str, followed: str) -> None:
    with pytest.raises(PolyError) as found:
        eval(written, dict(names))
    assert hint in (found.value.hint or ""), found.value
    assert len(str(found.value)) < 700
    assert followed and hint not in followed, "a line that takes it from the hint, or why there is none"
    if not followed.startswith("#"):
        assert eval(followed.replace("{}", hint), dict(names)) is not None


def test_arguments_that_python_refuses_stay_its_errors(names: dict[str, Any]) -> None:
    for written in ("poly.compile(program, thread=2)", "schedule.fuse('j')", "kernel(m)"):
        with pytest.raises(TypeError):
            eval(written, dict(names))
    with pytest.raises(AttributeError) as found:
        eval("poly.compil", dict(names))
    assert (found.value.name, found.value.obj) == ("compil", poly)


@pytest.mark.parametrize(("arguments", "hint", "followed"), [
    (["check", "y[i] = x[i]+1", "--shape", "x=10"], 'poly run "y[i] = x[i]+1" --shape x=10 --check',
     ["run", "y[i] = x[i]+1", "--shape", "x=10", "--check"]),
    (["check", "ij,jk->ik"], 'poly run "ij,jk->ik" --shape 8,8 --shape 8,8 --check',
     ["run", "ij,jk->ik", "--shape", "8,8", "--shape", "8,8", "--check"]),
    (["show", "y[i] = 2*x[i]"], "--shape x=64\n", ["show", "y[i] = 2*x[i]", "--shape", "x=64"]),
    (["show", "y[i] += x[i,j]"], "--shape x=64,64\n", ["show", "y[i] += x[i,j]", "--shape", "x=64,64"]),
    (["show", "y[t[i], j] += x[i,j]", "--shape", "x=8,1512", "--shape", "t=8"], "--shape y=64,1512\n",
     ["show", "y[t[i], j] += x[i,j]", "--shape", "x=8,1512", "--shape", "t=8", "--shape", "y=64,1512"]),
    (["show", "y[t[i], i + 1] += x[i]", "--shape", "x=N", "--shape", "t=N"], "--shape y=64,N+1\n",
     ["show", "y[t[i], i + 1] += x[i]", "--shape", "x=N", "--shape", "t=N", "--shape", "y=64,N+1"]),
    (["show", "y[i] += x[i,j,k,l,m]"], "--shape x=64,64,64,64,64\n",
     ["show", "y[i] += x[i,j,k,l,m]", "--shape", "x=64,64,64,64,64"]),
    (["run", "FOLDER/model.onnx", "--bind", "n=two"], "--bind n=1", ["run", "FOLDER/model.onnx", "--bind", "n=1"]),
    (["run", "FOLDER/model.onnx", "--bind", "n"], "--bind n=1", ["run", "FOLDER/model.onnx", "--bind", "n=1"]),
    (["run", "FOLDER/mode.onnx", "--bind", "n=1"], "model.onnx", ["run", "FOLDER/model.onnx", "--bind", "n=1"]),
    (["show", "FOLDER"], "model.onnx", ["show", "FOLDER/model.onnx", "--bind", "n=1"]),
    (["run", "ij->ji", "--input", "FOLDER"], "is a folder", []),
    (["run", ""], "C[i,k] +=", []),
    (["check", "/dev/null"], "is a device", []),
])  # fmt: skip
def test_what_the_command_tries_works(
    arguments: list[str], hint: str, followed: list[str], names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(names["folder"])
    assert main([a.replace("FOLDER", folder) for a in arguments]) == 2
    assert hint in capsys.readouterr().err.partition("try: ")[2]
    assert not followed or main([a.replace("FOLDER", folder) for a in followed]) == 0


def test_tensors_show_as_they_are_declared() -> None:
    tensors = poly.parse("y[i] = x[i]", x=("N",)).tensors
    assert str(tensors[0]) == "output y: f32[N]"
    assert repr(tensors) == "(<Tensor output y: f32[N]>, <Tensor input x: f32[N]>)"


def test_long_lines_are_broken_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ["show", "y[n,k,h,w] += x[n,c,h+r,w+s] * f[k,c,r,s]", "--shape", "x=2,8,9,9", "--shape", "f=4,8,3,3"]
    monkeypatch.setenv("COLUMNS", "80")
    assert main(text) == 0
    plain = capsys.readouterr().out
    monkeypatch.setattr("poly.console.sys.stdout.isatty", lambda: True)
    assert main(text) == 0
    shown = capsys.readouterr().out
    assert max(map(len, plain.splitlines())) > 80 >= max(map(len, shown.splitlines()))
    assert plain.split() == shown.split() and poly.parse(plain)
