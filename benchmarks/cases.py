"""What is measured. A case is one line: an einsum equation, or a builder of an ONNX model, and the operands' shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Shape = tuple[int, ...]
RESULT = "result"


@dataclass(frozen=True)
class Case:
    """`inputs` are given at run time, `consts` are known when compiling. All operands are float32.

    `flops`: useful operations; `traffic`: bytes if every operand and the result are touched once.
    """

    name: str
    kind: str
    inputs: Mapping[str, Shape]
    consts: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    spec: str = ""
    stride: int = 1
    pad: int = 0
    groups: int = 1
    flops: int = 0
    traffic: int = 0

    def operands(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Arrays for inputs and consts, the same in every process."""
        random = np.random.default_rng(0)
        made = [
            {n: random.standard_normal(s).astype(np.float32) for n, s in group.items()}
            for group in (self.inputs, self.consts)
        ]
        return made[0], made[1]


def einsum(spec: str, *shapes: Shape, name: str = "") -> Case:
    """A case from an equation and shapes."""
    terms, result = spec.split("->")
    sizes = {i: e for t, s in zip(terms.split(","), shapes, strict=True) for i, e in zip(t, s, strict=True)}
    flops = (2 if len(shapes) > 1 else 1) * int(np.prod([*sizes.values()]))
    moved = sum(int(np.prod(s)) for s in shapes) + int(np.prod([sizes[i] for i in result]))
    inputs = {f"x{k}": s for k, s in enumerate(shapes)}
    return Case(
        name or f"{spec}:{'x'.join(map(str, sizes.values()))}",
        "einsum",
        inputs,
        {},
        spec,
        flops=flops,
        traffic=4 * moved,
    )


def gemm(m: int, n: int, k: int) -> Case:
    return einsum("ik,kj->ij", (m, k), (k, n), name=f"gemm_{m}x{n}x{k}")


def conv(name: str, x: Shape, w: Shape, stride: int = 1, pad: int = 0, groups: int = 1) -> Case:
    """A convolution, NCHW, square stride and padding."""
    out = (x[0], w[0], *((x[d] + 2 * pad - w[d]) // stride + 1 for d in (2, 3)))
    flops = 2 * int(np.prod(out)) * w[1] * w[2] * w[3]
    traffic = 4 * sum(int(np.prod(s)) for s in (x, w, out))
    return Case(name, "conv", {"x": x}, {"w": w}, "", stride, pad, groups, flops, traffic)


BUILT_IN: tuple[Case, ...] = (
    gemm(64, 64, 64),
    gemm(512, 512, 512),
    gemm(1000, 1000, 1000),
    gemm(127, 255, 513),
    gemm(8, 1024, 1024),
    einsum("ki,kj->ij", (512, 512), (512, 512), name="gemm_tn"),
    einsum("ik,jk->ij", (512, 512), (512, 512), name="gemm_nt"),
    einsum("ij,j->i", (1024, 1024), (1024,), name="gemv"),
    einsum("ij,i->j", (1024, 1024), (1024,), name="gemv_t"),
    einsum("bij,bjk->bik", (12, 128, 128), (12, 128, 64), name="bmm"),
    einsum("ijk,jl->ilk", (64, 128, 128), (128, 32), name="ttm"),
    einsum("ij->i", (1024, 1024), name="reduce_row"),
    einsum("ij->j", (1024, 1024), name="reduce_col"),
    einsum("ij->ji", (1024, 1024), name="transpose"),
    conv("conv3x3_64_56", (1, 64, 56, 56), (64, 64, 3, 3), pad=1),
    conv("conv3x3s2_128_56", (1, 128, 56, 56), (128, 128, 3, 3), stride=2, pad=1),
    conv("conv1x1_64-256_56", (1, 64, 56, 56), (256, 64, 1, 1)),
    conv("dw3x3_32_112", (1, 32, 112, 112), (32, 1, 3, 3), pad=1, groups=32),
    Case("linear_relu", "linear", {"x": (128, 768)}, {"w": (768, 512), "b": (512,)}, flops=2 * 128 * 768 * 512),
    Case("softmax", "softmax", {"x": (12, 256, 256)}, traffic=8 * 12 * 256 * 256),
)


def load_cases(path: Path | None) -> tuple[Case, ...]:
    """The built-in list, and the cases of a JSON file (a list of name, kind, inputs, consts, spec or attributes)."""
    if path is None or not path.exists():
        return BUILT_IN
    extra = tuple(_case(entry) for entry in json.loads(path.read_text()))
    known = {c.name for c in extra}
    return (*extra, *(c for c in BUILT_IN if c.name not in known))


def _case(entry: Mapping[str, object]) -> Case:
    def shapes(key: str) -> dict[str, Shape]:
        return {n: tuple(s) for n, s in entry.get(key, {}).items()}  # type: ignore[attr-defined]

    numbers = {k: int(entry[k]) for k in ("stride", "pad", "groups", "flops") if k in entry}  # type: ignore[call-overload]
    return Case(
        str(entry["name"]), str(entry["kind"]), shapes("inputs"), shapes("consts"), str(entry.get("spec") or ""),
        traffic=int(entry.get("bytes", 0)), **numbers,  # type: ignore[call-overload]
    )  # fmt: skip


# ---- ONNX models of the cases: what ours and ONNX runtimes compile where there is no equation

Builder = Callable[
    [Case], tuple[list[tuple[str, list[str], str, dict[str, object]]], dict[str, npt.NDArray[np.generic]]]
]


def model_of(case: Case):  # noqa: ANN201 - onnx is imported lazily
    """The case as an ONNX model with inputs and initialisers named like its operands and the output `result`."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, extra = NODES[case.kind](case)
    _, consts = case.operands()
    graph = helper.make_graph(
        [helper.make_node(op, ins, [out], name=f"n{k}", **attrs) for k, (op, ins, out, attrs) in enumerate(nodes)],
        case.name.replace(">", ""),
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in case.inputs.items()],
        [helper.make_tensor_value_info(RESULT, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in {**consts, **extra}.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 9
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def _einsum(case: Case):  # noqa: ANN202
    names = list(case.inputs)
    terms, result = case.spec.split("->")
    first, *rest = terms.split(",")
    if not rest and sorted(first) == sorted(result):
        return [("Transpose", names, RESULT, {"perm": [first.index(i) for i in result]})], {}
    if not rest:
        axes = np.array([k for k, i in enumerate(first) if i not in result], np.int64)
        return [("ReduceSum", [*names, "axes"], RESULT, {"keepdims": 0})], {"axes": axes}
    if (first, rest, result) == ("ik", ["kj"], "ij"):
        return [("MatMul", names, RESULT, {})], {}
    return [("Einsum", names, RESULT, {"equation": case.spec})], {}


def _conv(case: Case):  # noqa: ANN202
    attrs = {"strides": [case.stride] * 2, "pads": [case.pad] * 4, "group": case.groups}
    return [("Conv", ["x", "w"], RESULT, attrs)], {}


def _gelu(case: Case):  # noqa: ANN202
    return [("Add", ["x", "b"], "a", {}), ("Gelu", ["a"], RESULT, {"approximate": "none"})], {}


def _attention(case: Case):  # noqa: ANN202
    scale = np.float32(1 / np.sqrt(case.inputs["q"][-1]))
    nodes: list[tuple[str, list[str], str, dict[str, object]]] = [
        ("Transpose", ["k"], "kt", {"perm": [0, 2, 1]}),
        ("MatMul", ["q", "kt"], "s", {}),
        ("Mul", ["s", "scale"], "t", {}),
        ("Softmax", ["t"], "p", {"axis": -1}),
        ("MatMul", ["p", "v"], RESULT, {}),
    ]
    return nodes, {"scale": np.array(scale)}


NODES: Mapping[str, Builder] = {
    "einsum": _einsum,
    "conv": _conv,
    "linear": lambda c: (
        [("MatMul", ["x", "w"], "m", {}), ("Add", ["m", "b"], "a", {}), ("Relu", ["a"], RESULT, {})],
        {},
    ),
    "muladdrelu": lambda c: (
        [("Mul", ["x", "y"], "m", {}), ("Add", ["m", "z"], "a", {}), ("Relu", ["a"], RESULT, {})],
        {},
    ),
    "bias_gelu": _gelu,
    "softmax": lambda c: ([("Softmax", ["x"], RESULT, {"axis": -1})], {}),
    "layernorm": lambda c: ([("LayerNormalization", ["x", "g", "b"], RESULT, {"axis": -1})], {}),
    "attention": _attention,
    "noop": lambda c: ([("Add", ["x", "x"], RESULT, {})], {}),
}
