"""Peers that compile: TVM's loops as it writes them, IREE with its data tiling, oneDNN by torch's operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.calls import Call, written_out
from benchmarks.cases import Array, Case
from benchmarks.graphs import model_of

if TYPE_CHECKING:
    import onnx

IREE_OPSET = 17
MOST_FLOPS = 1e8  # of a case for TVM, whose plain loops do 0.1-5 Gflop/s on products
_IREE = ("iree.compiler", "iree.compiler.extras.onnx_importer", "iree.compiler.ir", "iree.runtime")


def tvm_peer(case: Case, _threads: int) -> Call | None:
    """One function of loops for a case: without tuning, TVM 0.27 has no schedules for a CPU and uses one thread."""
    import tvm
    from tvm import te

    if case.kind == "model" or case.flops > MOST_FLOPS:
        return None
    inputs, consts = case.operands()
    arrays = [*inputs.values(), *consts.values()]
    places = [te.placeholder(a.shape, "float32", name=n) for n, a in (inputs | consts).items()]
    result = _tvm_terms(case)(*places)
    target = tvm.target.Target({"kind": "llvm", "mcpu": _cpu_name()})
    function = tvm.compile(te.create_prim_func([*places, result]), target=target)["main"]
    held = tvm.runtime.empty([int(d) for d in result.shape], "float32")
    run = written_out(function, *map(tvm.runtime.tensor, arrays), held)
    out = (np.asarray(np.from_dlpack(held), np.float32),)

    def call() -> Sequence[Array]:
        run()
        return out

    return call


def _tvm_terms(case: Case) -> Callable[..., Any]:
    from tvm import te, topi

    def conv(x: Any, w: Any) -> Any:
        if case.groups == 1:
            return topi.nn.conv2d(x, w, case.stride, case.pad, 1)
        if case.groups == x.shape[1]:
            return topi.nn.depthwise_conv2d_nchw(x, w, case.stride, case.pad, 1)
        return topi.nn.group_conv2d_nchw(x, w, case.stride, case.pad, 1, case.groups)

    def gelu(x: Any, b: Any) -> Any:
        y = topi.add(x, b)
        return te.compute(y.shape, lambda *i: y(*i) * 0.5 * (1 + te.erf(y(*i) * sqrt(0.5))))

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = topi.einsum("bij,bkj->bik", q, k)
        scaled = te.compute(scores.shape, lambda *i: scores(*i) / sqrt(case.inputs["q"][-1]))
        return topi.einsum("bik,bkj->bij", topi.nn.softmax(scaled, -1), v)

    terms: Mapping[str, Callable[..., Any]] = {
        "einsum": lambda *x: topi.einsum(case.spec, *x),
        "conv": conv,
        "linear": lambda x, w, b: topi.nn.relu(topi.add(topi.einsum("ij,jk->ik", x, w), b)),
        "muladdrelu": lambda x, y, z: topi.nn.relu(topi.add(topi.multiply(x, y), z)),
        "bias_gelu": gelu,
        "softmax": lambda x: topi.nn.softmax(x, -1),
        "layernorm": lambda x, g, b: topi.nn.layer_norm(x, g, b, [len(case.inputs["x"]) - 1], 1e-5),
        "attention": attention,
        "noop": lambda x: topi.add(x, x),
    }
    return terms[case.kind]


def _cpu_name() -> str:
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_name())


def iree_peer(case: Case, threads: int) -> Call | None:
    """With data tiling, which -O3 leaves off; on one thread on the caller's own."""
    compiler, importer, ir, runtime = map(import_module, _IREE)
    model = _typed(case)
    info = importer.ModelInfo(model)
    module = info.create_module(context=ir.Context()).operation
    importer.NodeImporter.define_function(info.main_graph, module).import_all()
    flags = ["--iree-opt-level=O3", "--iree-opt-data-tiling", "--iree-llvmcpu-target-cpu=host"]
    code = compiler.compile_str(str(module), target_backends=["llvm-cpu"], input_type="onnx", extra_args=flags)
    runtime.flags.parse_flags(f"--task_topology_max_group_count={threads}")
    config = runtime.Config("local-sync" if threads == 1 else "local-task")
    machine = runtime.VmModule.copy_buffer(config.vm_instance, code)
    context = runtime.VmContext(config.vm_instance, [*config.default_vm_modules, machine])
    function = machine.lookup_function(model.graph.name)
    held = [runtime.asdevicearray(config.device, np.ascontiguousarray(a)) for a in _inputs(case)]
    given = runtime.VmVariantList(len(held))
    for array in held:
        given.push_ref(array._buffer_view)

    def call() -> Sequence[Array]:
        found = runtime.VmVariantList(len(model.graph.output))
        context.invoke(function, given, found)
        views = [found.get_as_object(k, runtime.HalBufferView) for k in range(found.size)]
        return [runtime.DeviceArray(config.device, v).to_host() for v in views]

    return call


def _typed(case: Case) -> onnx.ModelProto:
    """The case's model with the shapes of its inputs, types everywhere and an opset that IREE's importer takes."""
    import onnx
    from onnx import version_converter

    model = model_of(case)
    initial = {i.name for i in model.graph.initializer}
    shapes = (a.shape for a in _inputs(case))
    for value in (v for v in model.graph.input if v.name not in initial):
        for dim, extent in zip(value.type.tensor_type.shape.dim, next(shapes), strict=True):
            dim.dim_value = extent
    if model.opset_import[0].version < IREE_OPSET:
        model = version_converter.convert_version(model, IREE_OPSET)
    return onnx.shape_inference.infer_shapes(model)


def _inputs(case: Case) -> list[Array]:
    if case.kind != "model":
        return [*case.operands()[0].values()]
    with np.load(case.path + ".npz") as stored:
        return [stored[n] for n in stored.files if n.startswith("in:")]


def onednn_peer(case: Case, threads: int) -> Call | None:
    """Products of matrices by torch's operator for oneDNN, as `mm` takes MKL; convolutions are oneDNN's in `torch`."""
    import torch

    turned = {"ik,kj->ij": (0, 0), "ki,kj->ij": (1, 0), "ik,jk->ij": (0, 1), "ki,jk->ij": (1, 1)}.get(case.spec)
    if case.kind not in ("einsum", "linear") or (case.kind == "einsum" and turned is None):
        return None
    torch.set_num_threads(threads)
    inputs, consts = case.operands()
    left, right, *bias = (torch.from_numpy(a) for a in (*inputs.values(), *consts.values()))
    left, right = (left.T if turned and turned[0] else left), (right if turned and turned[1] else right.T)
    if consts:
        right = torch.ops.mkldnn._reorder_linear_weight(right.contiguous(), left.shape[0])
    after, operator = "relu" if case.kind == "linear" else "none", torch.ops.mkldnn._linear_pointwise

    def call() -> Sequence[Array]:
        with torch.inference_mode():
            return (operator(left, right, bias[0] if bias else None, after, [], "").numpy(),)

    return call
