"""Who is measured. A peer makes a case ready and gives a call without arguments that computes the result once.

Each runs in a process of its own with its own environment; `prepare` gives None where it has no way to express a case.
To add a peer, write a `prepare` and name it in `PEERS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.calls import Call, written_out
from benchmarks.cases import Array, Case
from benchmarks.graphs import model_of
from benchmarks.peers_compilers import iree_peer, onednn_peer, tvm_peer
from benchmarks.peers_loops import numba_peer
from benchmarks.peers_tensor import jax_peer, torch_compiled_peer, torch_peer

PAGE = 4096
Prepare = Callable[[Case, int], Call | None]


@dataclass(frozen=True)
class Peer:
    """`package`: what has to be installed. `variables`: of its environment, more than the number of threads."""

    package: str
    prepare: Prepare | None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


def model_inputs(case: Case) -> dict[str, Array]:
    """The inputs of a case; a model's are those that its outputs are known for."""
    if case.kind != "model":
        return case.operands()[0]
    with np.load(case.path + ".npz") as stored:
        return {n[3:]: stored[n] for n in stored.files if n.startswith("in:")}


def ours(case: Case, threads: int) -> Call | None:
    """Programs for equations, models for the rest."""
    import poly
    from poly.frontend.einsum import einsum_program

    inputs = model_inputs(case)
    if case.kind == "model":
        return _our_engine(case, inputs, threads)
    if case.kind == "einsum":
        program = einsum_program(case.spec, [a.shape for a in inputs.values()], ["f32"] * len(inputs))
        kernel = poly.compile(program, threads=threads)
    else:
        graph = poly.from_onnx(model_of(case))
        program = graph.to_program()
        kernel = poly.compile(program, constants=graph.constants, threads=threads)
    arrays = [*inputs.values()]
    out = _at_a_line(program.outputs[0].extents(program.binding))
    run, result = written_out(kernel, *arrays, out=out), (out,)

    def call() -> Sequence[Array]:
        run()
        return result

    return call


def _at_a_line(shape: Sequence[int]) -> Array:
    """Memory for a result that starts at a cache line, as what other libraries allocate for theirs does.

    Half a page away from where numpy's large arrays start: a core that compares the lowest 12 bits of addresses only
    would take loads of the operands for loads of what it just stored.
    """
    size = 4 * int(np.prod(shape, dtype=np.int64))
    raw = np.empty(size + 2 * PAGE, np.uint8)
    start = (PAGE // 2 - raw.ctypes.data) % PAGE
    return raw[start : start + size].view(np.float32).reshape(shape)


def _our_engine(case: Case, inputs: Mapping[str, Array], threads: int) -> Call:
    import poly
    from poly.dtypes import numpy_dtype

    try:
        graph = poly.from_onnx(case.path, shapes={n: a.shape for n, a in inputs.items()})
    except poly.PolyError:  # what only a run can tell
        running = poly.compile(Path(case.path), threads=threads)
        return lambda: [np.asarray(v) for v in running.run(inputs).values()]
    engine = poly.compile(graph, threads=threads)
    outputs = zip(engine.outputs, graph.outputs, strict=True)
    out = {n: np.empty(t.extents({}), numpy_dtype(t.dtype)) for n, t in outputs}

    def call() -> Sequence[npt.NDArray[np.generic]]:
        engine.run(inputs, out=out)
        return [*out.values()]

    return call


# ---- numpy


def numpy_peer(case: Case, _threads: int) -> Call | None:
    """BLAS where an equation is a matrix product, else einsum on its best path; formulas for the rest."""
    inputs, consts = case.operands() if case.kind != "model" else ({}, {})
    if case.kind == "einsum":
        one = _numpy_einsum(case, [*inputs.values()])
        return lambda: (one(),)
    a = inputs | consts
    if case.kind == "muladdrelu":
        out = _at_a_line(a["x"].shape)

        def muladdrelu() -> Sequence[Array]:
            np.multiply(a["x"], a["y"], out=out)
            np.add(out, a["z"], out=out)
            return (np.maximum(out, 0, out=out),)

        return muladdrelu
    match case.kind:
        case "linear":
            return lambda: (np.maximum(a["x"] @ a["w"] + a["b"], 0),)
        case "softmax":
            return lambda: (_softmax(a["x"]),)
        case "layernorm":
            return lambda: (_layernorm(a["x"]) * a["g"] + a["b"],)
        case "noop":
            out = _at_a_line(a["x"].shape)
            return lambda: (np.add(a["x"], a["x"], out=out),)
        case "attention":
            scale = np.float32(1 / np.sqrt(a["q"].shape[-1]))
            return lambda: (_softmax(a["q"] @ a["k"].transpose(0, 2, 1) * scale) @ a["v"],)
        case _:
            return None


def _numpy_einsum(case: Case, arrays: list[Array]) -> Callable[[], Array]:
    terms, result = case.spec.split("->")
    parts = terms.split(",")
    if len(parts) == 1:
        if sorted(parts[0]) == sorted(result):
            view = arrays[0].transpose([parts[0].index(i) for i in result])
            out = _at_a_line(view.shape)

            def permute() -> Array:
                np.copyto(out, view)
                return out

            return permute
        axes = tuple(k for k, i in enumerate(parts[0]) if i not in result)
        return lambda: arrays[0].sum(axes)
    flat = {"ik,kj->ij": (0, 0), "ki,kj->ij": (1, 0), "ik,jk->ij": (0, 1), "ki,jk->ij": (1, 1)}
    if case.spec in flat:
        left, right = (x.T if t else x for x, t in zip(arrays, flat[case.spec], strict=True))
        out = _at_a_line((left.shape[0], right.shape[1]))
        return lambda: np.matmul(left, right, out=out)
    if case.spec in ("ij,j->i", "ij,i->j"):
        matrix = arrays[0] if case.spec == "ij,j->i" else arrays[0].T
        out = _at_a_line((matrix.shape[0],))
        return lambda: np.matmul(matrix, arrays[1], out=out)
    batched = {"bij,bjk->bik": arrays[-1], "bid,bjd->bij": arrays[-1].swapaxes(-1, -2)}
    if case.spec in batched:
        right = batched[case.spec]
        out = _at_a_line((*arrays[0].shape[:2], right.shape[2]))
        return lambda: np.matmul(arrays[0], right, out=out)
    path = np.einsum_path(case.spec, *arrays, optimize="optimal")[0]
    return lambda: np.einsum(case.spec, *arrays, optimize=path)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _layernorm(x: Array) -> Array:
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5))


# ---- ONNX runtimes


def onnxruntime_peer(case: Case, threads: int) -> Call | None:
    """Inputs and outputs bound to memory."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(model_of(case).SerializeToString(), options, ["CPUExecutionProvider"])
    inputs = model_inputs(case)
    outs = session.run(None, inputs)
    binding = session.io_binding()
    held = [ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(a)) for a in inputs.values()]
    for name, value in zip(inputs, held, strict=True):
        binding.bind_ortvalue_input(name, value)
    results = [ort.OrtValue.ortvalue_from_numpy(o) for o in outs if isinstance(o, np.ndarray)]
    for output, value in zip(session.get_outputs(), results, strict=True):
        binding.bind_ortvalue_output(output.name, value)
    def call() -> Sequence[Array]:
        session.run_with_iobinding(binding)
        return [r.numpy() for r in results]

    call.held = held  # type: ignore[attr-defined] - what is bound lives as long as the call
    return call


def openvino_peer(case: Case, threads: int) -> Call | None:
    """In f32 (its default may be bf16), for latency, on shared memory."""
    import openvino as ov

    core = ov.Core()
    model = core.read_model(model_of(case).SerializeToString())
    inputs = model_inputs(case)
    if model.is_dynamic():
        model.reshape({n: list(a.shape) for n, a in inputs.items()})
    settings = {
        "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False,
    }  # fmt: skip
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    held = {n: np.ascontiguousarray(a) for n, a in inputs.items()}
    for name, array in held.items():
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))

    def call() -> Sequence[Array]:
        request.infer()
        return [o.data for o in request.output_tensors]

    call.held = held  # type: ignore[attr-defined]
    return call


PEERS: Mapping[str, Peer] = {
    "ours": Peer("poly", ours),
    "numpy": Peer("numpy", numpy_peer),
    "onnxruntime": Peer("onnxruntime", onnxruntime_peer),
    "openvino": Peer("openvino", openvino_peer),
    "torch": Peer("torch", torch_peer),
    "torch.compile": Peer("torch", torch_compiled_peer, {"TORCHINDUCTOR_FREEZING": "1"}),
    "jax": Peer("jax", jax_peer, {"JAX_PLATFORMS": "cpu"}),
    "numba": Peer("numba", numba_peer),
    "onednn": Peer("torch", onednn_peer),
    "tvm": Peer("tvm", tvm_peer),
    "iree": Peer("iree.compiler", iree_peer),
}


def absent() -> dict[str, str]:
    """Peers that are not measured, with the reason; nothing is claimed against them."""
    found: dict[str, str] = {}
    for name, peer in PEERS.items():
        if not _installed(peer.package):
            found[name] = "not installed"
        elif peer.prepare is None:
            found[name] = "installed, no way to run it is written here"
    return found


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def installed() -> list[str]:
    """The peers that can be measured."""
    return [name for name in PEERS if name not in absent()]


def versions() -> dict[str, str]:
    """Versions of the installed peers."""
    found: dict[str, str] = {}
    for name in installed():
        try:
            found[name] = version({"ours": "polyloom"}.get(name, PEERS[name].package))
        except PackageNotFoundError:
            found[name] = "?"
    return found


def environment(name: str, threads: int) -> dict[str, str]:
    """Variables to set before a library loads: the number of threads, and what the peer is at its best with."""
    variables: dict[str, str] = dict.fromkeys(
        ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"], str(threads)
    )
    variables |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}  # no page faults in timed calls
    if "avx512f" in _cpu_flags():  # OpenBLAS takes its AVX2 kernels on newer AMD processors
        variables["OPENBLAS_CORETYPE"] = "SkylakeX"
    if name == "jax" and threads == 1:
        variables["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    return variables | (dict(PEERS[name].variables) if name in PEERS else {})


def _cpu_flags() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo") as file:
            return frozenset(next((line for line in file if line.startswith("flags")), "").split())
    except OSError:
        return frozenset()


def pin(threads: int) -> None:
    """Keep the process on as many cores as it has threads: the last ones it may use."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[-threads:])
