"""Simplification while importing: constant nodes, batch normalisation inside convolutions, dead nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from poly.affine import Affine
from poly.dtypes import Array, dtype_name, is_float, numpy_dtype, size_bytes
from poly.errors import OnnxError, PolyError
from poly.frontend.onnx_normalisations import affine_of_statistics
from poly.frontend.onnx_notation import Attribute, Call, NoCompiledForm, Notation
from poly.frontend.onnx_reference import reference_outputs
from poly.frontend.onnx_terms import Names, Value, is_format
from poly.graph import Graph, Node
from poly.program import Tensor

if TYPE_CHECKING:
    import onnx


_RANDOM: Final = frozenset(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial Bernoulli".split()
)
# The opset from which on onnx.reference is right. It is wrong on BatchNormalization of opsets 9 to 13; on LogSoftmax
# far below the maximum, where it takes the logarithm of 0; on Softmax and its like before opset 13, which are over all
# axes from `axis` on; on Squeeze while its axes are an attribute; and before opset 7, where operands line up at `axis`.
_TRUSTED_FROM: Final = {"BatchNormalization": 99, "LogSoftmax": 99, "Softmax": 13, "Hardmax": 13, "Squeeze": 13}
_KEPT: Final = frozenset({"DequantizeLinear", "Dropout"})  # the codes are smaller than what they stand for
_MAX_UNPACKED: Final = 1 << 20
_MAX_SMALL: Final = 4096
_MAX_FOLDED: Final = 1 << 27
_MAX_GROWN: Final = 1 << 22
_GROWING: Final = frozenset(
    "Expand Tile Range Pad Resize Upsample OneHot HannWindow HammingWindow BlackmanWindow MaxUnpool Col2Im".split()
)


def fold(call: Call, node: onnx.NodeProto, *, sized: bool = False) -> list[Array] | None:
    """The node's outputs where they are known while importing, else None.

    `sized`: the model is imported at several sizes, from the smallest to the largest, and has to fold alike at
    all of them.
    """
    if call.domain or call.operator in _RANDOM:
        return None
    special = _SPECIAL.get(call.operator)
    if special is not None:
        found = special(call)
        if found is not None or call.operator in WITHOUT_CONTENT:
            return None if found is None else [found]
    given = {v.name: v.array for v in call.inputs if v is not None and v.array is not None}
    if not call.inputs or len(given) < len({v.name for v in call.inputs if v is not None}):
        return None
    if call.operator in _KEPT or node.attribute and any(a.HasField("g") for a in node.attribute):
        return None
    if call.operator == "Expand" and max(v.size for v in call.inputs if v is not None) > _MAX_UNPACKED:
        return None
    if not _fits(call, node, _MAX_FOLDED if sized else _MAX_GROWN):
        return None
    return _interpreted(call) if call.opset < _TRUSTED_FROM.get(call.operator, 7) else _evaluate(call, node)


def _fits(call: Call, node: onnx.NodeProto, grown: int) -> bool:
    """True where the node's outputs are of a size to keep (`grown` elements, made of less); only what can make much of
    little is looked at.
    """
    elements = sum(v.size for v in call.inputs if v is not None)
    if call.operator not in _GROWING and elements <= _MAX_SMALL:
        return True
    from onnx import defs, numpy_helper, shape_inference

    from poly.frontend.onnx_model import tensor_type

    given = [(n, v) for n, v in zip(node.input, call.inputs, strict=False) if v is not None and v.array is not None]
    small = {n: numpy_helper.from_array(np.asarray(v.array, order="C"), n) for n, v in given if v.size <= _MAX_SMALL}
    try:
        schema = defs.get_schema(call.operator, call.opset, call.domain)
        found = shape_inference.infer_node_outputs(schema, node, {n: tensor_type(v) for n, v in given}, small)
    except Exception:  # the evaluator will say what is wrong
        return call.operator not in _GROWING
    shapes = [[d.dim_value for d in t.tensor_type.shape.dim] for t in found.values()]
    most = min(max(2 * elements, grown), _MAX_FOLDED)
    return all(prod(max(1, e) for e in s) <= most for s in shapes)


def _evaluate(call: Call, node: onnx.NodeProto) -> list[Array] | None:
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for position, value in enumerate(call.inputs):
        copy.input[position] = "" if value is None else value.name
    arrays = {v.name: v.array for v in call.inputs if v is not None and v.array is not None}
    try:
        found = reference_outputs(copy, call.opset, arrays)
    except Exception:  # the evaluator lacks this version
        return _interpreted(call)
    return None if any(f is None or isinstance(f, (list, dict)) for f in found) else [np.asarray(f) for f in found]


def _interpreted(call: Call) -> list[Array] | None:
    """The outputs by the node's own row; None where it has none, or where the outputs are not all there."""
    from poly.frontend.onnx_operators import OPERATORS

    row, given = OPERATORS.get(call.operator), {v.name: v for v in call.inputs if v is not None and v.array is not None}
    if row is None or any(is_format(v.dtype) for v in given.values()):
        return None
    names = Names()
    for name, value in given.items():
        names.fresh(name, value.rank)
    notation = Notation(call, names)
    try:
        row(notation)
        found = _computed(call, notation, given)
    except (NoCompiledForm, PolyError):  # an error is told where the node is imported
        return None
    wanted = [notation.results.get(k) for k in range(len(call.outputs))]
    return None if any(v is None or v.name not in found for v in wanted) else [found[v.name] for v in wanted if v]


def _computed(call: Call, notation: Notation, given: Mapping[str, Value]) -> Mapping[str, Array]:
    from poly.interp import run_program

    results = notation.results
    made = [v for v in results.values() if v.name not in given and not is_format(v.dtype)]
    arrays = {v.name: np.asarray(v.array) for v in given.values()} | notation.constants
    node = Node(call.name, call.operator, (), (), tuple(notation.statements), tuple(notation.temporaries))
    tensors = (
        *(_tensor(n, a.shape, dtype_name(a.dtype), "constant") for n, a in arrays.items()),
        *(_tensor(v.name, v.shape, v.dtype, "output") for v in made),
    )
    return arrays | (run_program(Graph("folded", tensors, (node,)).to_program(), arrays) if made else {})


def _tensor(name: str, shape: Sequence[int], dtype: str, role: Literal["constant", "output"]) -> Tensor:
    return Tensor(name, tuple(Affine.of(int(e)) for e in shape), dtype, role)


def _constant(call: Call) -> Array | None:
    given = [(k, v) for k, v in call.attributes.items() if v is not None]
    if len(given) != 1:
        raise OnnxError("has not exactly one value", where=call.where)
    name, value = given[0]
    dtype = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}.get(
        name
    )
    if dtype is not None:
        return np.asarray(value, dtype)
    if name != "value" or not isinstance(value, np.ndarray):
        raise OnnxError(
            f"{name} has no compiled form", where=call.where, hint="strings and sparse tensors are not supported"
        )
    return value


def _constant_of_shape(call: Call) -> Array | None:
    shape = call.inputs[0]
    if shape is None or shape.array is None:
        return None
    extents = tuple(int(e) for e in shape.array.reshape(-1))
    if any(e < 0 for e in extents):
        raise OnnxError(f"shape {shape.array.tolist()} has a negative extent", where=call.where)
    if prod(extents) > _MAX_FOLDED:
        raise OnnxError(f"a constant of more than {_MAX_FOLDED} elements: {shape.array.tolist()}", where=call.where)
    value = call.attributes.get("value")
    fill = value if isinstance(value, np.ndarray) else np.zeros(1, np.float32)
    return np.full(extents, fill.reshape(-1)[0], fill.dtype)


def _shape(call: Call) -> Array | None:
    value = call.inputs[0]
    if value is None:
        return None
    start, end = call.attributes.get("start"), call.attributes.get("end")
    bounds = slice(start if isinstance(start, int) else 0, end if isinstance(end, int) else None)
    return np.array(value.shape[bounds], np.int64)


def _cast_like(call: Call) -> Array | None:
    """Of the other operand the dtype is enough."""
    x, like = (*call.inputs, None)[:2]
    if x is None or like is None or x.array is None or x.size > _MAX_SMALL:
        return None
    floats = is_float(like.dtype) and size_bytes(like.dtype) >= 4
    exact = x.array.dtype.kind in "iu" and like.dtype in ("i32", "i64") and x.dtype != "u64"
    return x.array.astype(numpy_dtype(like.dtype)) if x.dtype != "bool" and (floats or exact) else None


def _size(call: Call) -> Array | None:
    value = call.inputs[0]
    return None if value is None else np.array(value.size, np.int64)


_SPECIAL: Final[dict[str, Callable[[Call], Array | None]]] = {
    "CastLike": _cast_like,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Shape": _shape,
    "Size": _size,
}

WITHOUT_CONTENT: Final = frozenset(_SPECIAL) - {"CastLike"}  # operators with a rule of their own for folding


@dataclass(frozen=True)
class Imported:
    """A node of the model with its notation."""

    node: Node
    call: Call
    results: tuple[Value, ...]


def fold_batch_norm(norm: Call, conv: Call, constant: Callable[[str, Array], Value]) -> Call | None:
    """The convolution that does what `conv` and then `norm` do, with the norm's outputs; None where that is not known.

    W' = W * factor[m], b' = b * factor[m] + offset[m], computed in f64. `constant` registers a new array.
    """
    attributes: dict[str, Attribute] = dict(norm.attributes)
    known = [None if v is None else v.array for v in norm.inputs[1:5]]
    statistics = [a for a in known if a is not None]
    x, weights = conv.inputs[0], conv.inputs[1]
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    inference = not attributes.get("training_mode") and (norm.opset >= 7 or attributes.get("is_test"))
    if len(statistics) != 4 or weights is None or weights.array is None or len(norm.outputs) != 1 or not inference:
        return None
    if attributes.get("spatial", 1) != 1 or (bias is not None and bias.array is None) or weights.dtype[0] != "f":
        return None
    if any(a.shape != weights.shape[:1] for a in statistics):
        return None
    epsilon = attributes.get("epsilon", 1e-5)
    dtype = numpy_dtype(weights.dtype)
    affine = affine_of_statistics(statistics, epsilon if isinstance(epsilon, float) else 1e-5, dtype)
    if affine is None:
        return None
    factor, offset = affine
    flat = np.ascontiguousarray(weights.array).reshape(len(factor), prod(weights.shape[1:]))
    scaled = np.empty(flat.shape, dtype)  # in f64, and rounded, by pieces that stay in a cache
    np.multiply(flat, factor[:, None], out=scaled, dtype=np.float64, casting="same_kind")
    start = offset if bias is None or bias.array is None else bias.array.astype(np.float64) * factor + offset
    operands = (
        x,
        constant(f"{weights.name}_norm", scaled.reshape(weights.array.shape)),
        constant(f"{weights.name}_bias", start.astype(dtype)),
    )
    return replace(conv, inputs=operands, outputs=norm.outputs)


def live(nodes: Sequence[Imported], wanted: Iterable[str]) -> list[Imported]:
    """The nodes that the wanted tensors need, in order."""
    needed, kept = set(wanted), list[Imported]()
    for imported in reversed(nodes):
        if needed & set(imported.node.outputs):
            needed |= set(imported.node.inputs)
            kept.append(imported)
    return kept[::-1]
