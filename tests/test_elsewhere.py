"""Code for machines that this one is not: it is looked at, and to call it is an error, not the end of the process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.codegen.here import absent_here
from poly.codegen.host import host_machine, is_arm, is_x86, machine_of_features
from poly.codegen.kernel import Kernel
from poly.errors import MachineError
from poly.machine import Machine
from tests.other_cpus import CPUS

HOST = host_machine()
X86 = pytest.mark.skipif(not is_x86(HOST.triple), reason="the host is no x86")
OTHER = ("x86-64", "x86_64-unknown-linux-gnu") if is_arm(HOST.triple) else ("generic", "aarch64-unknown-linux-gnu")


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)


def machine(cpu: str, triple: str, features: tuple[str, ...] = ()) -> Machine:
    return machine_of_features(cpu, features, triple, {1: 32 << 10, 2: 1 << 20}, 2, 3000)


ELSEWHERE = machine(*OTHER)


def test_another_architecture_is_compiled_and_not_called() -> None:
    kernel = poly.compile(poly.parse("y[i] = x[i] * x[i]", x=(100,)), target=ELSEWHERE)
    assert isinstance(kernel, Kernel)
    assert ("fmul" if not is_arm(HOST.triple) else "mulps") in kernel.asm
    assert "kernel" in str(kernel)
    x = np.ones(100, np.float32)
    with pytest.raises(MachineError, match=f'this CPU has no {OTHER[1]}\n  try: compile it with target="cpu"'):
        kernel(x)
    with pytest.raises(MachineError):
        kernel.run_into([x], [x.copy()])
    with pytest.raises(MachineError):
        kernel.runner(["x", "y"])


def test_free_sizes_and_threads() -> None:
    kernel = poly.compile(poly.parse("y[i] += a[i, k] * b[k]", a=("M", "K"), b=("K",)), target=ELSEWHERE, threads=2)
    with pytest.raises(MachineError):
        kernel(np.ones((70, 30), np.float32), np.ones(30, np.float32))


def test_another_system() -> None:
    """Calls there pass arguments elsewhere: results were wrong."""
    first = HOST.triple.partition("-")[0]
    with pytest.raises(MachineError, match="windows"):
        poly.compile(poly.parse("y[i] = x[i] * x[i]", x=(100,)), target=machine("generic", f"{first}-pc-windows-msvc"))(
            np.ones(100, np.float32)
        )


def test_constants_are_computed_here() -> None:
    """Packed weights of a kernel for another machine, and an engine of it, are made without its code."""
    a, w = integers(40, 64), integers(64, 96)
    program = poly.parse("constant w: f32[64, 96]\ny[i, j] += a[i, k] * w[k, j]", a=(40, 64))
    here = poly.compile(program, constants={"w": w})
    np.testing.assert_array_equal(here(a), a @ w)
    kernel = poly.compile(program, target=ELSEWHERE, constants={"w": w})
    assert isinstance(kernel, Kernel) and any(c.size == w.size for c in kernel.constants.values())
    with pytest.raises(MachineError):
        kernel(a)


@X86
def test_features_that_this_cpu_lacks() -> None:
    lacking = [f.removeprefix("-") for f in HOST.engines_of("core")[0].features if f.startswith("-")]
    assert {"sse4a", "xop", "fma4"} & {*lacking}, "a CPU with all of AMD's and Intel's extensions"
    named = next(f for f in ("sse4a", "fma4", "xop") if f in lacking)  # the last brings the others with it
    assert named in absent_here(machine("x86-64", HOST.triple, (named,)))
    assert not absent_here(machine("x86-64", HOST.triple, (named, f"-{named}")))
    assert not absent_here(machine("x86-64", HOST.triple)) and not absent_here(HOST)
    assert not absent_here(replace(HOST, name="mine", cores=1))
    assert not absent_here(machine("x86-64", "", ("sse4.2",)))


@X86
def test_features_that_a_cpu_name_implies() -> None:
    """bdver4 has XOP and FMA4, which no other makers' and no later cores have."""
    if any(f in HOST.engines_of("core")[0].features for f in ("xop", "fma4")):
        pytest.skip("the host has them")
    old = machine("bdver4", HOST.triple)
    assert {"xop", "fma4"} <= {*absent_here(old)}
    assert not {"xop", "fma4"} & {*absent_here(machine("bdver4", HOST.triple, ("-fma4", "-xop")))}
    with pytest.raises(MachineError, match="fma4"):
        poly.compile(poly.parse("y[i] = x[i] * x[i] + 1", x=(100,)), target=old)(np.ones(100, np.float32))


def test_engine() -> None:
    onnx = pytest.importorskip("onnx")
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[8, 16] x, float[16, 24] w) => (float[8, 24] y) {'
    model = onnx.parser.parse_model(text + "h = MatMul(x, w)  y = Relu(h) }")
    w = integers(16, 24)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    del model.graph.input[1]
    engine = poly.compile(poly.from_onnx(model), target=ELSEWHERE)
    assert "y" in str(poly.explain(engine))
    with pytest.raises(MachineError, match="this CPU has no"):
        engine.run({"x": integers(8, 16)})


@pytest.mark.parametrize(("name", "triple"), [
    ("x", "x86_64-unknown-linux-gnu"), ("znver9", "x86_64-unknown-linux-gnu"), ("neoverse-v9", "aarch64-linux-gnu"),
])  # fmt: skip
def test_a_cpu_that_llvm_does_not_know(name: str, triple: str) -> None:
    """LLVM ended the process: "64-bit code requested on a subtarget that doesn't support it"."""
    program = poly.parse("y[i] = x[i] * x[i]", x=(100,))
    with pytest.raises(MachineError, match=f"no CPU '{name}'\n  try: LLVM has {name[:-1] or 'generic'}"):
        poly.compile(program, target=machine(name, triple))


@pytest.mark.parametrize("triple", [
    "x86_64-unknown-linux-gnux32", "x86_64-unknown-linux-muslx32", "aarch64-linux-gnu_ilp32", "x86_64-linux-gnu-coff",
    "x86_64-linux-gnu-xcoff", "x86_64-linux-gnu-wasm", "x86_64-linux-gnu-macho", "wasm32-wasi", "amdgcn", "i686-linux",
    "aarch64_be-linux-gnu", "bogus", "-", "X86_64-linux",
])  # fmt: skip
def test_a_triple_that_no_kernel_is_made_for(triple: str) -> None:
    """LLVM ended the process for most of them."""
    with pytest.raises(MachineError, match="no kernels"):
        poly.compile(poly.parse("y[i] = x[i] * x[i]", x=(100,)), target=machine("generic", triple))


@pytest.mark.parametrize("triple", ["aarch64-linux-gnu", "riscv64-linux-gnu", "x86_64-linux-gnu"])
@pytest.mark.parametrize("feature", ["avx513", "-avx513", 'a"b', "+avx", ""])
def test_a_feature_that_llvm_does_not_know(triple: str, feature: str) -> None:
    with pytest.raises(MachineError, match="no feature"):
        poly.compile(poly.parse("y[i] = x[i] * x[i]", x=(100,)), target=machine("generic", triple, (feature,)))


@pytest.mark.parametrize("triple", ["aarch64-linux-gnu", "riscv64-linux-gnu"])
def test_features_of_another_architecture(triple: str) -> None:
    """Those of the host were taken, and LLVM ended the process on what is emitted for them."""
    target = replace(HOST if is_x86(HOST.triple) else CPUS["avx512"], triple=triple, cpu="generic")
    with pytest.raises(MachineError, match="no feature"):
        poly.compile(poly.parse("y[i] = exp(x[i])", dtypes="f64", x=(100,)), target=target)


@X86
@pytest.mark.parametrize("feature", ["soft-float", "16bit-mode", "32bit-mode", "x32", "-64bit", "-sse", "-sse2"])
def test_a_feature_that_no_code_is_made_with(feature: str) -> None:
    """LLVM ended the process, or took minutes."""
    core, *others = HOST.engines
    target = replace(HOST, engines=(replace(core, features=(*core.features, feature)), *others))
    with pytest.raises(MachineError, match=f"{feature} among the features"):
        poly.compile(poly.parse("y[i] = x[i] * x[i]", x=(100,)), target=target)


def test_a_cpu_without_64_bits_gets_them() -> None:
    target = machine("pentium4", "x86_64-unknown-linux-gnu")
    kernel = poly.compile(poly.parse("y[i] = x[i] * x[i]", x=(100,)), target=target)
    assert isinstance(kernel, Kernel)
    assert "mulps" in kernel.asm or "mulss" in kernel.asm
