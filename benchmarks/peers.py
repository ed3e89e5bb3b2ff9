"""Who is measured. A peer makes a case ready and gives a call without arguments that computes the result once.

Each runs in its own process with its own environment; `prepare` returns None where it cannot run a case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec

import numpy as np

from benchmarks.cases import RESULT, Array, Case, model_of

Call = Callable[[], Array]
Prepare = Callable[[Case, int], Call | None]


def ours(case: Case, threads: int) -> Call | None:
    """Programs for equations, models for the rest."""
    import poly
    from poly.frontend.einsum import einsum_program

    inputs, _ = case.operands()
    if case.kind == "einsum":
        arrays = [*inputs.values()]
        program = einsum_program(case.spec, [a.shape for a in arrays], ["f32"] * len(arrays))
        kernel = poly.compile(program, threads=threads)
        out = np.empty_like(kernel(*arrays))
        return lambda: kernel(*arrays, out=out)
    engine = poly.compile(poly.from_onnx(model_of(case)), threads=threads)
    return lambda: engine.run(inputs)[RESULT]


def numpy_peer(case: Case, threads: int) -> Call | None:
    """BLAS where an equation is a matrix product, else einsum with its best path; simple formulas for the rest."""
    inputs, consts = case.operands()
    if case.kind == "einsum":
        return _numpy_einsum(case, [*inputs.values()])
    a = inputs | consts
    match case.kind:
        case "linear":
            return lambda: np.maximum(a["x"] @ a["w"] + a["b"], 0)
        case "muladdrelu":
            return lambda: np.maximum(a["x"] * a["y"] + a["z"], 0)
        case "softmax":
            return lambda: _softmax(a["x"])
        case "noop":
            return lambda: a["x"] + a["x"]
        case "attention":
            scale = np.float32(1 / np.sqrt(a["q"].shape[-1]))
            return lambda: _softmax(a["q"] @ a["k"].transpose(0, 2, 1) * scale) @ a["v"]
        case _:
            return None


def _numpy_einsum(case: Case, arrays: list[Array]) -> Call:
    terms, result = case.spec.split("->")
    parts = terms.split(",")
    if len(parts) == 1:
        if sorted(parts[0]) == sorted(result):
            order = [parts[0].index(i) for i in result]
            return lambda: np.ascontiguousarray(arrays[0].transpose(order))
        axes = tuple(k for k, i in enumerate(parts[0]) if i not in result)
        return lambda: arrays[0].sum(axes)
    flat = {"ik,kj->ij": (0, 0), "ki,kj->ij": (1, 0), "ik,jk->ij": (0, 1), "ki,jk->ij": (1, 1)}
    if case.spec in flat:
        left, right = (x.T if t else x for x, t in zip(arrays, flat[case.spec], strict=True))
        out = np.empty((left.shape[0], right.shape[1]), np.float32)
        return lambda: np.matmul(left, right, out=out)
    if case.spec in ("ij,j->i", "ij,i->j"):
        matrix = arrays[0] if case.spec == "ij,j->i" else arrays[0].T
        return lambda: matrix @ arrays[1]
    if case.spec == "bij,bjk->bik":
        return lambda: arrays[0] @ arrays[1]
    path = np.einsum_path(case.spec, *arrays, optimize="optimal")[0]
    return lambda: np.einsum(case.spec, *arrays, optimize=path)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def onnxruntime_peer(case: Case, threads: int) -> Call | None:
    """Inputs bound to memory, the output preallocated."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(model_of(case).SerializeToString(), options, ["CPUExecutionProvider"])
    inputs, _ = case.operands()
    out = session.run(None, inputs)[0]
    binding = session.io_binding()
    held = [ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(a)) for a in inputs.values()]
    for name, value in zip(inputs, held, strict=True):
        binding.bind_ortvalue_input(name, value)
    result = ort.OrtValue.ortvalue_from_numpy(out)
    binding.bind_ortvalue_output(RESULT, result)

    def call() -> Array:
        session.run_with_iobinding(binding)
        return result.numpy() if held else out

    return call


def torch_peer(case: Case, threads: int) -> Call | None:
    """Eager torch."""
    import torch

    torch.set_num_threads(threads)
    inputs, consts = case.operands()
    t = {n: torch.from_numpy(a) for n, a in {**inputs, **consts}.items()}
    functions: Mapping[str, Callable[[], object]] = {
        "einsum": lambda: torch.einsum(case.spec, *t.values()).contiguous(),
        "conv": lambda: torch.conv2d(t["x"], t["w"], None, case.stride, case.pad, 1, case.groups),
        "linear": lambda: torch.relu(torch.addmm(t["b"], t["x"], t["w"])),
        "softmax": lambda: torch.softmax(t["x"], -1),
        "muladdrelu": lambda: torch.relu(t["x"] * t["y"] + t["z"]),
    }
    if case.kind not in functions:
        return None
    function = functions[case.kind]
    return lambda: function().numpy()  # type: ignore[attr-defined]


PEERS: Mapping[str, tuple[str, Prepare]] = {
    "ours": ("poly", ours),
    "numpy": ("numpy", numpy_peer),
    "onnxruntime": ("onnxruntime", onnxruntime_peer),
    "torch": ("torch", torch_peer),
}


def installed() -> list[str]:
    """The peers whose package can be imported."""
    return [name for name, (package, _) in PEERS.items() if find_spec(package) is not None]


def environment(threads: int) -> dict[str, str]:
    """Variables that set the number of threads before a library loads."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
