"""What the onnx package knows: files, operator schemas with their defaults, shape inference of a single node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from poly.arguments import shown
from poly.dtypes import Array
from poly.errors import OnnxError
from poly.files import model_instead, near_file, what_instead
from poly.frontend.onnx_contrib import contrib_schema, is_contrib
from poly.frontend.onnx_elementwise import ONNX_DTYPES
from poly.frontend.onnx_extents import extent_of
from poly.frontend.onnx_notation import Attribute, Call, NoCompiledForm
from poly.frontend.onnx_terms import Shape, Value

if TYPE_CHECKING:
    import onnx

_MAX_SHAPE_DATA = 4096
_STRING = 8
_DEFAULT = "ai.onnx"


def load_model(path: str | Path | bytes | onnx.ModelProto) -> onnx.ModelProto:
    """The model of a file, of its bytes or as it is, its own functions inlined. Raises `OnnxError`."""
    model = _read(path)
    if not model.opset_import or not model.graph.output:
        where = str(path) if isinstance(path, (str, Path)) else f"model {model.graph.name!r}"
        hint = "a model that onnx.checker.check_model takes; a file without bytes was not written to its end"
        raise OnnxError("not a model: it has no operator set or no output", where=where, hint=hint)
    for kind, entries in (
        ("input", model.graph.input), ("output", model.graph.output), ("initialiser", model.graph.initializer)
    ):  # fmt: skip
        for name, count in Counter(e.name for e in entries).items():
            if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # so protobuf says
                raise OnnxError(f"{kind} {name!r} has no name in UTF-8", where=f"model {model.graph.name!r}")
            if count > 1:
                raise OnnxError(f"{kind} {name!r} is there {count} times", where=f"model {model.graph.name!r}")
    if model.functions:
        from onnx import inliner

        try:
            model = inliner.inline_local_functions(model)
        except Exception as error:  # it has no error type of its own
            raise OnnxError(f"its functions cannot be inlined: {error}", where=f"model {model.graph.name!r}") from error
    return _with_one_name(model)


def _read(path: str | Path | bytes | onnx.ModelProto) -> onnx.ModelProto:
    import onnx

    if isinstance(path, onnx.ModelProto):
        return path
    if isinstance(path, bytes):
        try:
            return onnx.load_model_from_string(path)
        except Exception as error:  # protobuf has its own
            text = f"{len(path)} bytes that are no ONNX model: {error}"
            raise OnnxError(text, hint="those of a .onnx file") from error
    if not isinstance(path, (str, Path)):  # pyright: ignore[reportUnnecessaryIsInstance]
        text = f"a model is a path, the bytes of a file or an onnx.ModelProto, not {shown(path)}"
        raise OnnxError(text, hint=model_instead(path))
    try:
        return onnx.load(str(path))
    except FileNotFoundError as error:
        missing = str(error.filename or path)
        where = None if missing == str(path) else str(path)
        raise OnnxError(f"no file {missing!r}", where=where, hint=near_file(missing)) from None
    except Exception as error:  # protobuf, external data and the file system each have their own
        hint = what_instead(path)
        raise OnnxError(f"not a readable ONNX model: {error}", where=str(path), hint=hint) from error


def _with_one_name(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the default domain called "" alone, never "ai.onnx"."""
    import onnx

    if not any(n.domain == _DEFAULT for n in (*model.opset_import, *_nodes(model.graph))):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for named in (*copy.opset_import, *_nodes(copy.graph)):
        if named.domain == _DEFAULT:
            named.domain = ""
    return copy


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph, and of those within."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def tensor_array(tensor: onnx.TensorProto, where: str) -> Array:
    """The content of a stored tensor. Raises `OnnxError` where its type has no compiled form or its data do not fit."""
    from onnx import numpy_helper

    if tensor.data_type not in ONNX_DTYPES:
        raise OnnxError(f"data type {tensor.data_type} has no compiled form", where=where)
    if any(extent < 0 for extent in tensor.dims):
        raise OnnxError(f"the shape {list(tensor.dims)} has a negative extent", where=where)
    try:
        return numpy_helper.to_array(tensor)
    except Exception as error:  # truncated data, external data that are gone, ...
        raise OnnxError(f"its data cannot be read: {error}", where=where) from error


def input_shapes(
    inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, tuple[int, ...] | int], constants: Mapping[str, Array]
) -> list[tuple[Shape, str]]:
    """Literal shape and dtype of each input, dynamic extents bound by `shapes`. Raises `OnnxError`."""
    symbols = {i.name: [d.dim_param for d in i.type.tensor_type.shape.dim] for i in inputs}
    known = {*symbols, *(s for row in symbols.values() for s in row if s)}
    unknown = sorted(set(shapes) - known, key=str)
    if unknown:
        names = ", ".join(sorted(map(str, known)))
        hint = f"names that it has: {names}" if names else "the model has no input"
        raise OnnxError(f"shapes: {unknown[0]!r} is no input and no dynamic dimension", hint=hint)
    bound: dict[str, tuple[int, str]] = {}
    for name, value in shapes.items():
        if isinstance(value, int):
            _bind(bound, name, value, "shapes")
        else:
            for symbol, extent in zip(symbols.get(name, ()), value, strict=False):
                if symbol:
                    _bind(bound, symbol, int(extent), f"shapes[{name!r}]")
    for name, array in constants.items():
        for symbol, extent in zip(symbols.get(name, ()), np.shape(array), strict=False):
            if symbol:
                _bind(bound, symbol, extent, f"constants[{name!r}]")
    sizes = {name: value for name, (value, _) in bound.items()}
    for symbol in known - bound.keys():
        extent = None if symbol in symbols else extent_of(symbol, sizes)
        if extent is not None:
            _bind(bound, symbol, extent, f"{symbol!r}")
    given = {name: tuple(np.shape(array)) for name, array in constants.items()} | dict(shapes)
    extents = {name: value for name, (value, _) in bound.items()}
    free = dict.fromkeys(s for row in symbols.values() for s in row if s.isidentifier() and s not in bound)
    return [_input_shape(i, given.get(i.name), extents, tuple(free)) for i in inputs]


def input_dtype(model: onnx.ModelProto, name: str) -> str:
    """The dtype of an input by its name. Raises `OnnxError` where there is none."""
    for info in model.graph.input:
        if info.name == name and info.type.tensor_type.elem_type in ONNX_DTYPES:
            return ONNX_DTYPES[info.type.tensor_type.elem_type]
    raise OnnxError(f"no input {name!r} of numbers", hint=f"inputs: {', '.join(i.name for i in model.graph.input)}")


def foreign_inputs(model: onnx.ModelProto) -> frozenset[str]:
    """The inputs that are no tensors of numbers: strings, sequences, optionals."""
    kinds = ("sequence_type", "optional_type", "map_type", "sparse_tensor_type")
    return frozenset(
        i.name for i in model.graph.input
        if any(i.type.HasField(kind) for kind in kinds) or i.type.tensor_type.elem_type == _STRING
    )  # fmt: skip


def dynamic_dimensions(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...] | int], constants: Mapping[str, Array]
) -> dict[str, int]:
    """Named dynamic dimensions of the inputs that neither `shapes` nor `constants` bind, nor other dimensions
    (`past + 1`), each with its first axis.
    """
    initialisers = {i.name for i in model.graph.initializer}
    found: dict[str, int] = {}
    bound: set[str] = {name for name, value in shapes.items() if isinstance(value, int)}
    for info in model.graph.input:
        if info.name in initialisers:
            continue
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_param and not dim.HasField("dim_value"):
                if info.name in shapes or info.name in constants:
                    bound.add(dim.dim_param)
                found[dim.dim_param] = min(axis, found.get(dim.dim_param, axis))
    sizes = dict.fromkeys(found, 1)
    return {
        name: axis for name, axis in found.items()
        if name not in bound and (name.isidentifier() or extent_of(name, sizes) is None)
    }  # fmt: skip


def _bind(bound: dict[str, tuple[int, str]], symbol: str, extent: int, source: str) -> None:
    value, first = bound.setdefault(symbol, (extent, source))
    if value != extent:
        text = f"dynamic dimension {symbol!r} is {value} by {first} and {extent} by {source}"
        raise OnnxError(text, hint=f"shapes={{{symbol!r}: {value}}}, which binds it everywhere")
    if extent < 0:
        raise OnnxError(f"dynamic dimension {symbol!r} would be {extent}", where=source, hint="an extent from 0 on")


def _with_extents(info: onnx.ValueInfoProto, free: Sequence[str]) -> str:
    """How dimensions get extents: all by their names, or an input's by its shape where one of them has none."""
    dims = info.type.tensor_type.shape.dim
    if all(d.HasField("dim_value") or d.dim_param in free for d in dims):
        text = f"from_onnx(..., shapes={dict.fromkeys(free, 1)}) with the extents you need"
        return f"{text}, or ranges={{{free[0]!r}: (1, 64)}} for any of a range"
    example = tuple(d.dim_value if d.HasField("dim_value") else 1 for d in dims)
    return f"from_onnx(..., shapes={{{info.name!r}: {example}}}) with the extents you need"


def _as_declared(info: onnx.ValueInfoProto) -> str:
    """The shape of an input as the model has it."""
    dims = info.type.tensor_type.shape.dim
    shown = ", ".join(str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims)
    return f"an array of shape [{shown}] for {info.name!r}"


def _input_shape(
    info: onnx.ValueInfoProto, given: tuple[int, ...] | int | None, bound: Mapping[str, int], free: Sequence[str]
) -> tuple[Shape, str]:
    """`free`: the model's dimensions that have a name and no extent."""
    where = f"input {info.name!r}"
    if not info.type.HasField("tensor_type") or info.type.tensor_type.elem_type not in ONNX_DTYPES:
        raise OnnxError(
            "is not a tensor of a type that has a compiled form", where=where, hint="strings, sequences are not"
        )
    tensor = info.type.tensor_type
    dtype = ONNX_DTYPES[tensor.elem_type]
    if not tensor.HasField("shape"):
        if not isinstance(given, tuple):
            raise OnnxError(
                "its shape is not known", where=where, hint=f"from_onnx(..., shapes={{{info.name!r}: (1, ...)}})"
            )
        return tuple(int(e) for e in given), dtype
    dims = tensor.shape.dim
    if isinstance(given, (tuple, list)) and len(given) != len(dims):
        text = f"has rank {len(dims)} in the model, not the shape {list(given)}"
        raise OnnxError(text, where=where, hint=_as_declared(info))
    found: list[int] = []
    for axis, dim in enumerate(dims):
        fixed = dim.dim_value if dim.HasField("dim_value") else bound.get(dim.dim_param) if dim.dim_param else None
        wanted = int(given[axis]) if isinstance(given, (tuple, list)) else fixed
        if wanted is None:
            symbol = f" ({dim.dim_param!r})" if dim.dim_param else ""
            text = f"axis {axis}{symbol} is dynamic and not bound"
            raise OnnxError(text, where=where, hint=_with_extents(info, free))
        if wanted < 0:
            raise OnnxError(f"axis {axis} is {wanted}", where=where, hint="an extent from 0 on")
        if fixed is not None and wanted != fixed:
            text = f"axis {axis} is {fixed} in the model, not {wanted}"
            raise OnnxError(text, where=where, hint=_as_declared(info))
        found.append(wanted)
    return tuple(found), dtype


class Schemas:
    """Operator schemas of a model's (or a function's) operator sets."""

    def __init__(self, imports: Sequence[onnx.OperatorSetIdProto], ir_version: int) -> None:
        self._opsets = {o.domain: o.version for o in imports}
        self.imports = list(imports)
        self.ir_version = ir_version
        self._defaults: dict[tuple[str, str], dict[str, Attribute]] = {}
        self._known: dict[tuple[str, str], onnx.defs.OpSchema] = {}
        self._formals: dict[tuple[str, str], tuple[_Formal, ...]] = {}

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each operator set that is imported."""
        return self._opsets

    def opset(self, domain: str, where: str) -> int:
        """The version in use of a domain. Raises `OnnxError` where the model does not import it."""
        if domain not in self._opsets:
            raise OnnxError(f"the model does not import the operator set {domain or 'ai.onnx'!r}", where=where)
        return self._opsets[domain]

    def schema(self, operator: str, domain: str, where: str) -> onnx.defs.OpSchema:
        """The schema of an operator at the version in use. Raises `OnnxError` where there is none."""
        known = self._known.get((operator, domain))
        if known is None:
            known = self._known[operator, domain] = self._looked_up(operator, domain, where)
        return known

    def _looked_up(self, operator: str, domain: str, where: str) -> onnx.defs.OpSchema:
        from onnx import defs

        opset = self.opset(domain, where)
        if is_contrib(operator, domain):
            return contrib_schema(operator)
        if domain == "" and opset > defs.onnx_opset_version():
            hint = f"this onnx package knows opsets up to {defs.onnx_opset_version()}: install a newer one"
            raise OnnxError(f"opset {opset} is not known", where=where, hint=hint)
        try:
            return defs.get_schema(operator, opset, domain)
        except Exception:
            newest = defs.onnx_opset_version()
            why = f"{domain or 'ai.onnx'} has no operator {operator} at opset {opset}"
            hint = (
                f"this onnx package knows opsets up to {newest}"
                if opset > newest
                else "convert the model to ai.onnx operators"
            )
            raise OnnxError(why, where=where, hint=hint) from None

    def attributes(self, node: onnx.NodeProto, where: str) -> dict[str, Attribute]:
        """The node's attributes over the schema's defaults. Raises `OnnxError` on one that the schema does not have."""
        key = (node.op_type, node.domain)
        schema = self.schema(node.op_type, node.domain, where)
        if key not in self._defaults:
            self._defaults[key] = {n: _attribute(a.default_value, where) for n, a in schema.attributes.items()}
        given: dict[str, Attribute] = {}
        for attribute in node.attribute:
            if attribute.name not in self._defaults[key]:
                allowed = ", ".join(self._defaults[key]) or "none"
                raise OnnxError(f"unknown attribute {attribute.name!r}", where=where, hint=f"attributes: {allowed}")
            given[attribute.name] = _attribute(attribute, where)
        return self._defaults[key] | given

    def foreign_outputs(self, node: onnx.NodeProto, foreign: Container[str]) -> list[str]:
        """The outputs that are no tensors of numbers, where the inputs of the names `foreign` are none."""
        schema = self.schema(node.op_type, node.domain, node.name)
        kinds = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        inputs = zip(schema.inputs, node.input, strict=False)
        same = {formal.type_str for formal, name in inputs if name in foreign}
        return [
            name for formal, name in zip(schema.outputs, node.output, strict=False)
            if formal.type_str in same or all(map(_is_foreign, kinds.get(formal.type_str, [formal.type_str])))
        ]  # fmt: skip

    def check(self, call: Call) -> None:
        """Operand count, and equal dtypes where the schema asks for them. Raises `OnnxError`."""
        schema = self.schema(call.operator, call.domain, call.name)  # as for its attributes, which it has
        if not schema.min_input <= len(call.inputs) <= schema.max_input:
            wanted = (
                f"{schema.min_input} to {schema.max_input}"
                if schema.min_input != schema.max_input
                else schema.min_input
            )
            raise OnnxError(f"has {len(call.inputs)} inputs, needs {wanted}", where=call.where)
        types: dict[str, str] = {}
        formals = self._formals.get((call.operator, call.domain))
        if formals is None:
            formals = self._formals[call.operator, call.domain] = _formals(schema)
        for position, value in enumerate(call.inputs):
            formal = formals[min(position, len(formals) - 1)]
            if value is None and formal.single and position < schema.min_input:
                raise OnnxError(f"input {position} ({formal.name}) is missing", where=call.where)
            if value is None or formal.variable is None:
                continue
            first = types.setdefault(formal.variable, value.dtype)
            if first != value.dtype:
                raise OnnxError(f"operands are {first} and {value.dtype}", where=call.where, hint="insert a Cast")


def _is_foreign(kind: str) -> bool:
    """True of a schema's type such as seq(tensor(float))."""
    return not kind.startswith("tensor(") or kind == "tensor(string)"


@dataclass(frozen=True)
class _Formal:
    """An operand of a schema. `variable`: the type that all operands of that variable have; None where it is free."""

    name: str
    single: bool
    variable: str | None


def _formals(schema: onnx.defs.OpSchema) -> tuple[_Formal, ...]:
    variables, single = {c.type_param_str for c in schema.type_constraints}, schema.FormalParameterOption.Single
    return tuple(
        _Formal(f.name, f.option == single, f.type_str if f.is_homogeneous and f.type_str in variables else None)
        for f in schema.inputs
    )


def _attribute(attribute: onnx.AttributeProto, where: str) -> Attribute:
    from onnx import AttributeProto

    match attribute.type:
        case AttributeProto.FLOAT:
            return float(attribute.f)
        case AttributeProto.INT:
            return int(attribute.i)
        case AttributeProto.STRING:
            return attribute.s.decode("utf-8", "replace")
        case AttributeProto.TENSOR:
            return tensor_array(attribute.t, where)
        case AttributeProto.FLOATS:
            return tuple(float(x) for x in attribute.floats)
        case AttributeProto.INTS:
            return tuple(int(x) for x in attribute.ints)
        case AttributeProto.STRINGS:
            return tuple(x.decode("utf-8", "replace") for x in attribute.strings)
        case _:
            return None


def tensor_type(value: Value) -> onnx.TypeProto:
    """The ONNX type of a tensor."""
    from onnx import helper

    number = next(number for number, name in ONNX_DTYPES.items() if name == value.dtype)
    return helper.make_tensor_type_proto(number, value.shape)


def inferred_outputs(
    call: Call, node: onnx.NodeProto, schemas: Schemas, reason: NoCompiledForm
) -> dict[int, tuple[Shape, str]]:
    """Shape and dtype of each output that is used, by ONNX's shape inference. Raises `OnnxError`."""
    from onnx import numpy_helper, shape_inference

    schema = schemas.schema(call.operator, call.domain, call.where)
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for name, value in zip(node.input, call.inputs, strict=False):
        if value is not None:
            types[name] = tensor_type(value)
            if value.array is not None and value.size <= _MAX_SHAPE_DATA:
                data[name] = numpy_helper.from_array(np.asarray(value.array, order="C"), name)
    try:
        found = shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=schemas.imports, ir_version=schemas.ir_version
        )
    except Exception as error:
        raise OnnxError(f"shape inference failed: {error}", where=call.where) from error
    outputs: dict[int, tuple[Shape, str]] = {}
    for position, name in enumerate(node.output):
        if not name:
            continue
        tensor = found[name].tensor_type if name in found else None
        dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim] if tensor else [None]
        known = [d for d in dims if d is not None and d >= 0]
        if (
            tensor is None
            or not tensor.HasField("shape")
            or len(known) != len(dims)
            or tensor.elem_type not in ONNX_DTYPES
        ):
            raise OnnxError(
                f"{reason.message}, and the shape or type of output {name!r} is not known while importing",
                where=call.where,
                hint=reason.hint or "bind more shapes or constants; or poly.compile(Path(model)), while it runs",
            )
        outputs[position] = (tuple(known), ONNX_DTYPES[tensor.elem_type])
    return outputs
