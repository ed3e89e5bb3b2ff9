"""Free sizes that count items: the plan of one item, repeated for all of them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import helper

import poly
from poly.codegen.host import host_machine
from poly.codegen.kernel import Kernel
from poly.engine import Engine
from poly.errors import IllegalEdit, ScheduleError
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.cpu_items import schedule_items
from poly.scheduling.items import all_items, items_of, one_item
from poly.scheduling.schedule import Schedule
from poly.sized_engine import SizedEngine
from poly.text import parse_program
from tests.machines import MESH

HOST = host_machine()
Shape = tuple[int | str, ...]
WINDOW = "Y[n,f,y,x] += X[n,c,y+r,x+s]*W[f,c,r,s]"
ATTENTION = (
    "S[n,i,j] += Q[n,i,d]*K[n,j,d]; m[n,i] max= S[n,i,j]; e[n,i,j] = exp(S[n,i,j] - m[n,i]); z[n,i] += e[n,i,j];"
    "O[n,i,d] += e[n,i,j]*V[n,j,d]; Y[n,i,d] = O[n,i,d]/z[n,i]"
)
REPEATED: Mapping[str, tuple[str, Mapping[str, Shape]]] = {
    "window": (WINDOW, {"X": ("N", 8, 18, 18), "W": (16, 8, 3, 3), "Y": ("N", 16, 16, 16)}),
    "window and what follows": (
        WINDOW.replace("Y", "Z") + "; Y[n,f,y,x] = max(Z[n,f,y,x] + b[f], 0)",
        {"X": ("N", 8, 18, 18), "W": (16, 8, 3, 3), "Z": ("N", 16, 16, 16), "b": (16,)},
    ),
    "each plane by itself": (
        "Y[n,c,y,x] += X[n,c,y+r,x+s]*W[c,r,s]", {"X": ("N", 8, 34, 34), "W": (8, 3, 3), "Y": ("N", 8, 32, 32)}
    ),
    "greatest": ("Y[n,c,y,x] max= X[n,c,2*y,2*x+s]", {"X": ("N", 8, 33, 33), "Y": ("N", 8, 16, 16)}),
    "rows": (ATTENTION, {"Q": ("N", 40, 16), "K": ("N", 40, 16), "V": ("N", 40, 16)}),
    "product": ("Y[n,i,j] += X[n,i,k]*W[k,j]", {"X": ("N", 65, 48), "W": (48, 40)}),
    "another order": ("Y[n,i,j] = X[n,j,i]*2", {"X": ("N", 70, 66)}),
    "shared is made": ("V[k,j] = W[j,k]*2; Y[n,i,j] += X[n,i,k]*V[k,j]", {"X": ("N", 65, 48), "W": (40, 48)}),
}
NOT_REPEATED: Mapping[str, tuple[str, Mapping[str, Shape]]] = {
    "few uses of what is shared": ("Y[n,j] += X[n,k]*W[k,j]", {"X": ("N", 256), "W": (256, 256)}),
    "little to do": ("Y[n,i] = X[n,i] + 1", {"X": ("N", 64)}),
    "summed over items": ("Y[i,j] += X[n,i,j]", {"X": ("N", 64, 100)}),
    "neighbours": ("Y[n,i] = X[n,i] + X[n+1,i]", {"X": ("N", 8000), "Y": ("N - 1", 8000)}),
    "the last axis": ("Y[i,n] = X[i,n]*2", {"X": (8000, "N")}),
    "two sizes": ("Y[n,i] = X[n,i]*2", {"X": ("N", "M")}),
    "an item's number": ("Y[n,i] = X[n,i]*f32(n)", {"X": ("N", 8000)}),
}


def program_of(text: str, shapes: Mapping[str, Shape]) -> Program:
    return poly.parse(text, dtypes=None, **shapes)


def arrays_of(program: Program, size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {t.name: rng.integers(-3, 4, t.extents({"N": size})).astype(np.float32) for t in program.inputs}


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("threads", [1, 2])
def test_all_items_are_computed(name: str, threads: int) -> None:
    program = program_of(*REPEATED[name])
    kernel = poly.compile(program, threads=threads)
    assert isinstance(kernel, Kernel)
    assert kernel.schedule is not None
    assert kernel.schedule.script.startswith("repeat(size='N'")
    for size in (1, 2, 5):
        arrays = arrays_of(program, size)
        wanted = run_program(program, arrays)["Y"]
        assert np.allclose(np.asarray(kernel(*arrays.values())), wanted, 1e-5, 1e-5)


@pytest.mark.parametrize("name", NOT_REPEATED)
def test_what_has_no_items_or_too_small_ones(name: str) -> None:
    assert schedule_items(program_of(*NOT_REPEATED[name]), HOST, 1) is None


@pytest.mark.parametrize("name", REPEATED)
def test_one_item_and_all_of_them(name: str) -> None:
    program = program_of(*REPEATED[name])
    items = items_of(program)
    assert items is not None
    one = one_item(program, items)
    assert parse_program(str(one)) == one
    again = all_items(one, items)
    assert parse_program(str(again)) == again
    found = items_of(again)
    assert found is not None
    assert str(one_item(again, found)) == str(one)
    arrays = arrays_of(program, 3)
    whole = run_program(again, arrays)["Y"]
    np.testing.assert_array_equal(whole, run_program(program, arrays)["Y"])
    for k in range(3):
        own = {n: a[k] if n in items.tensors else a for n, a in arrays.items()}
        np.testing.assert_array_equal(run_program(one, own)["Y"], whole[k])


@pytest.mark.parametrize("name", ["window and what follows", "rows", "shared is made"])
def test_the_script_gives_the_schedule(name: str) -> None:
    schedule = schedule_items(program_of(*REPEATED[name]), HOST, 1)
    assert schedule is not None
    assert str(Schedule.parse(str(schedule))) == str(schedule)


@pytest.mark.parametrize("name", ["window", "another order", "joined"])
def test_a_schedule_goes_with_the_program_it_was_made_for(name: str) -> None:
    joined = ("Y[n,i,j] = X[n,i,j]*2", {"X": ("N", 70, 66)})
    program = program_of(*{**REPEATED, "joined": joined}[name])
    kernel = poly.compile(program)
    assert isinstance(kernel, Kernel)
    again = poly.compile(program, schedule=kernel.schedule)
    assert isinstance(again, Kernel)
    assert str(again.loops) == str(kernel.loops)


def test_edits_of_an_item_are_checked_for_all() -> None:
    program = poly.parse("Z[n,i] = X[n,i]; Y[n,i] = Z[n,i] + 1", X=("N", 64))
    first, second = (s.name for s in program.statements)
    turned = f"arrange(nests=(('{second}', (0, 'a'), (('a', 'i'),)), ('{first}', (1, 'b'), (('b', 'i'),))))"
    with pytest.raises(IllegalEdit):
        Schedule(program).repeat("N", [turned])


@pytest.mark.parametrize(("size", "edits"), [("M", []), ("N", ["tile(sizes={'q': 4})"])])
def test_repeat_says_what_does_not_apply(size: str, edits: list[str]) -> None:
    program = program_of(*REPEATED["another order"])
    with pytest.raises(ScheduleError):
        Schedule(program).repeat(size, edits)
    with pytest.raises(ScheduleError):
        Schedule(program).tile(n=4).repeat("N", [])


def test_buffers_belong_to_an_item() -> None:
    program = poly.parse("Y[n,i] = X[n,i]*2", X=("N", 64))
    schedule = Schedule(program).repeat("N", ["promote(tensor='X', at=None, space='l1', name='b')"])
    (buffer,) = (t for t in schedule.program.tensors if t.name == "b")
    assert (buffer.scope, buffer.extents({})) == (("n",), (64,))


def _model(batch: int | str) -> onnx.ModelProto:
    rng = np.random.default_rng(5)
    weights = {
        "w": rng.standard_normal((16, 8, 3, 3)), "b": rng.standard_normal(16), "v": rng.standard_normal((24, 16, 1, 1)),
        "u": rng.standard_normal((10, 24)),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "v"], ["d"]), helper.make_node("GlobalAveragePool", ["d"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]), helper.make_node("Gemm", ["f", "u"], ["y"], transB=1),
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "m", [value("x", onnx.TensorProto.FLOAT, [batch, 8, 20, 20])],
        [value("y", onnx.TensorProto.FLOAT, [batch, 10])],
        [onnx.numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_has_the_groups_of_one_item(threads: int) -> None:
    engine = poly.compile(poly.from_onnx(_model("n"), ranges={"n": (1, 9)}), threads=threads)
    assert isinstance(engine, SizedEngine)
    fixed = poly.compile(poly.from_onnx(_model(4)), threads=threads)
    assert isinstance(fixed, Engine)
    assert len(engine.steps) == len(fixed.steps)
    x = np.random.default_rng(6).standard_normal((4, 8, 20, 20)).astype(np.float32)
    whole, out = fixed.run({"x": x})["y"], np.empty((4, 10), np.float32)
    assert np.allclose(engine.run({"x": x}, out={"y": out})["y"], whole, 1e-4, 1e-4)
    for k in range(1, 4):
        assert np.allclose(engine.run({"x": x[:k]})["y"], whole[:k], 1e-4, 1e-4)
    assert engine.profile({"x": x}, 1) is not None
    assert not engine.engines


def test_outputs_and_memory_are_those_of_the_call() -> None:
    """What a caller's array held before is gone, results of other calls stay, whatever sizes came between."""
    engine = poly.compile(poly.from_onnx(_model("n"), ranges={"n": (1, 64)}))
    assert isinstance(engine, SizedEngine)
    fixed = poly.compile(poly.from_onnx(_model(1)))
    assert isinstance(fixed, Engine)
    x = np.random.default_rng(7).standard_normal((64, 8, 20, 20)).astype(np.float32)
    wanted = np.concatenate([fixed.run({"x": x[k : k + 1]})["y"] for k in range(64)])
    first = engine.run({"x": x[:2]})["y"]
    for size in (64, 1, 3, 64, 2, 1):
        out = np.full((size, 10), np.nan, np.float32)
        engine.run({"x": x[:size]}, out={"y": out})
        assert np.allclose(out, wanted[:size], 1e-4, 1e-4)
    assert np.allclose(first, wanted[:2], 1e-4, 1e-4)


def test_an_output_that_is_an_input_is_copied() -> None:
    node = helper.make_node("GreaterOrEqual", ["x", "x"], ["g"])
    copied = helper.make_node("Identity", ["x"], ["y"])
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node, copied], "m", [value("x", onnx.TensorProto.FLOAT, ["n", 3])],
        [value("y", onnx.TensorProto.FLOAT, ["n", 3]), value("g", onnx.TensorProto.BOOL, ["n", 3])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    engine = poly.compile(poly.from_onnx(model, ranges={"n": (1, 9)}))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    out = {"y": np.full((2, 3), np.nan, np.float32), "g": np.zeros((2, 3), np.bool_)}
    engine.run({"x": x}, out=out)
    np.testing.assert_array_equal(out["y"], x)
    assert out["g"].all()


def test_a_sized_graph_is_copied_and_pickled() -> None:
    """As one of fixed sizes is; its engine is code, as theirs are."""
    graph = poly.from_onnx(_model("n"), ranges={"n": (1, 9)})
    x = np.random.default_rng(6).standard_normal((4, 8, 20, 20)).astype(np.float32)
    want = poly.compile(graph).run({"x": x})["y"]
    for again in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert str(again) == str(graph)
        engine = poly.compile(again)
        np.testing.assert_array_equal(engine.run({"x": x})["y"], want)
        with pytest.raises(TypeError, match="an engine is code in this process"):
            pickle.dumps(engine)


def test_an_item_has_a_block_for_each_thread() -> None:
    program = program_of("Y[n,i,j] += X[n,i,k]*Z[n,k,j]", {"X": ("N", 512, 16), "Z": ("N", 16, 512)})
    schedule = schedule_items(program, MESH, 2)
    assert schedule is not None and any(s.iterators == ("n", "i", "i_b", "j", "k") for s in schedule.source.statements)
    x, z = (np.ones(shape, np.float32) for shape in ((3, 512, 16), (3, 16, 512)))
    found = poly.compile(program, threads=2, schedule=schedule)(x, z)
    assert np.array_equal(np.asarray(found), np.full((3, 512, 512), 16, np.float32))
