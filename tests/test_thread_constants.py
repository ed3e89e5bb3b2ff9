"""Constants that each thread has for itself: which they are, where they lie, and that results do not change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.codegen.buffers import copy_bytes
from poly.codegen.function import lower
from poly.codegen.host import host_machine
from poly.codegen.kernel import Kernel
from poly.engine import Engine
from poly.engine_constants import streaming
from poly.loops import LoopTree
from poly.machine import Machine
from poly.scheduling.constants import Split, split_constants
from poly.scheduling.schedule import Schedule
from poly.scheduling.thread_constants import with_thread_constants
from poly.text_loops import parse_loops
from tests.machines import AVX512, MESH
from tests.onnx_helpers import node_model, reference

HOST = host_machine()
PRODUCT = "C[i,k] += A[i,j] * B[j,k]"


def packed(loop: str, columns: int = 48) -> Schedule:
    """A product whose weight is packed whole, when compiling; threads share a loop of it."""
    program = poly.parse(PRODUCT, dtypes=None, A=(37, 16), B=(16, columns))
    tensors = tuple(replace(t, role="constant") if t.name == "B" else t for t in program.tensors)
    schedule = Schedule(replace(program, tensors=tensors)).promote("B", None, "l2", order=(1, 0), block={1: 16})
    update = next(s.name for s in program.statements if s.combiner is not None)
    return schedule.parallelise(next(n for n in schedule.nests[update].names if n.split(".")[-1] == loop))


def chosen(schedule: Schedule, machine: Machine = MESH, threads: int = 2) -> tuple[str, ...]:
    return with_thread_constants(split_constants(schedule.lower(), machine), machine, threads).after.per_thread


def test_what_all_threads_read_each_has() -> None:
    assert chosen(packed("i")) == ("B_l2",)
    assert chosen(packed("k")) == ()  # each iteration has its own columns


@pytest.mark.parametrize(
    ("machine", "threads"),
    [(MESH, 1), (AVX512, 2), (streaming(MESH, {"w": np.zeros(4 << 20, np.float32)}), 2)],
    ids=["one thread", "others' lines stay", "all come anew"],
)
def test_elsewhere_there_is_one(machine: Machine, threads: int) -> None:
    assert chosen(packed("i"), machine, threads) == ()


def test_only_small_ones() -> None:
    columns = 16 << 10  # 1 MiB
    assert chosen(packed("i", columns)) == ("B_l2",)
    assert chosen(packed("i", columns), threads=16) == ()
    assert chosen(packed("i", 3 * columns)) == ()


def test_text_says_it_and_is_read_back() -> None:
    split = with_thread_constants(split_constants(packed("i").lower(), MESH), MESH, 2)
    assert "\nper thread B_l2\n" in str(split.after) and parse_loops(str(split.after)) == split.after
    two = replace(split.after, per_thread=("B_l2", "A"))
    assert "\nper thread B_l2, A\n" in str(two) and parse_loops(str(two)) == two


def test_code_reads_what_is_this_parts() -> None:
    tree = split_constants(packed("i").lower(), HOST).after
    own = lower(replace(tree, per_thread=("B_l2",)), HOST, "f").ir
    size = copy_bytes(tree.tensors[[t.name for t in tree.tensors].index("B_l2")], dict(tree.sizes))
    assert size == 4096 and f"mul i64 %part, {size}" in own
    assert "mul i64 %part" not in lower(tree, HOST, "f").ir


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shared constant once for each thread, whatever the machine."""

    def choose(split: Split, machine: Machine, threads: int) -> Split:
        return with_thread_constants(split, MESH, threads)

    monkeypatch.setattr("poly.emitted.with_thread_constants", choose)
    monkeypatch.setenv("POLYLOOM_CACHE", "off")


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("threads", [2, 3])
def test_results_are_the_same(threads: int) -> None:
    random = np.random.default_rng(0)
    a, b = random.integers(-4, 5, (37, 16)).astype("f4"), random.integers(-4, 5, (16, 48)).astype("f4")
    kernel = poly.compile(packed("i"), constants={"B": b}, threads=threads)
    assert isinstance(kernel, Kernel) and kernel.loops.per_thread == ("B_l2",)
    memory = kernel.constants["B_l2"]
    assert memory.shape[0] == threads and memory.ctypes.data % 64 == 0 and (memory == memory[0]).all()
    for _ in range(20):
        np.testing.assert_array_equal(np.asarray(kernel(a)), a @ b)


@pytest.mark.usefixtures("always")
def test_a_kernel_of_such_a_tree_copies_what_it_is_given() -> None:
    tree = parse_loops(str(replace(_plain_tree(), per_thread=("B",))))
    inputs, outputs = ([t for t in tree.tensors if t.role == role] for role in ("input", "output"))
    a, b = np.arange(37 * 16, dtype="f4").reshape(37, 16), np.ones((16, 48), "f4")
    kernel = Kernel(tree, HOST, inputs, outputs, {"B": b}, 2)
    assert kernel.constants["B"].nbytes == 2 * 4096
    for _ in range(20):
        np.testing.assert_array_equal(np.asarray(kernel(a)), a @ b)


def _plain_tree() -> LoopTree:
    program = poly.parse(PRODUCT, dtypes=None, A=(37, 16), B=(16, 48))
    tensors = tuple(replace(t, role="constant") if t.name == "B" else t for t in program.tensors)
    schedule = Schedule(replace(program, tensors=tensors))
    for s in program.statements:
        schedule = schedule.parallelise(schedule.nests[s.name].names[0])
    return schedule.lower()


@pytest.mark.usefixtures("always")
def test_an_engine_has_them_too() -> None:
    random = np.random.default_rng(0)
    x, w = (random.integers(-4, 5, shape).astype("f4") for shape in ((1, 16, 24, 24), (32, 16, 3, 3)))
    model, arrays = node_model("Conv", [x, w], constant=[1])
    engine = poly.compile(poly.from_onnx(model), threads=2)
    assert isinstance(engine, Engine)
    (step,) = [s for s in engine.steps if s.compiled is not None and s.compiled.kernel.loops.per_thread]
    assert any(a.nbytes == 2 * -(-w.nbytes // 4096) * 4096 for a in engine.constants.values()) and step.inputs
    wanted = reference(model, arrays)["y0"]
    for _ in range(20):
        np.testing.assert_array_equal(engine.run(arrays)["y0"], wanted)
