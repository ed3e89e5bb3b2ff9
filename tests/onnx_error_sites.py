"""Where the ONNX importer refuses something, and which of these places a set of wrong models reaches."""

from __future__ import annotations

import ast
import random
import traceback
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from poly.errors import OnnxError
from poly.frontend.onnx_import import from_onnx
from tests import fuzz_onnx

ROOT = Path(__file__).resolve().parent.parent
Site = tuple[str, int, int]
CALLS = {"fail", "require", "OnnxError"}


@cache
def sites() -> frozenset[Site]:
    """(file, first line, last line) of every call that refuses a model."""
    found: set[Site] = set()
    for path in sorted((ROOT / "frontend").glob("onnx_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in CALLS:
                    found.add((path.name, node.lineno, node.end_lineno or node.lineno))
    return frozenset(found)


def reached(error: BaseException) -> set[Site]:
    """The sites that an error went through, those of its causes included."""
    frames: set[tuple[str, int]] = set()
    seen: BaseException | None = error
    while seen is not None:
        frames |= {(Path(f.filename).name, f.lineno or 0) for f in traceback.extract_tb(seen.__traceback__)}
        seen = seen.__cause__ or seen.__context__
    return {s for s in sites() for name, line in frames if s[0] == name and s[1] <= line <= s[2]}


def refusals(models: Iterable[onnx.ModelProto]) -> Iterator[tuple[onnx.ModelProto, OnnxError, set[Site]]]:
    """The errors of models that are refused."""
    for model in models:
        try:
            from_onnx(model)
        except OnnxError as error:
            yield model, error, reached(error)


def node_models() -> list[onnx.ModelProto]:
    """ONNX's own node tests, their small inputs as constants in every second model, so that both ways are met."""
    from onnx.backend.test.case.node import collect_testcases

    found: list[onnx.ModelProto] = []
    for k, case in enumerate(collect_testcases("")):
        if case.model is None or "_expanded" in case.name or not case.data_sets:
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        inputs = case.data_sets[0][0]
        for info, value in zip(list(model.graph.input), inputs, strict=False):
            if k % 2 and isinstance(value, np.ndarray) and value.size <= 64 and value.dtype.kind in "ifub":
                model.graph.initializer.append(numpy_helper.from_array(value, info.name))
        found.append(model)
    return found


def wrong_versions(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """The model with something wrong: a shape, a dtype, an attribute, an operand, an operator set."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 2))):
        try:
            rng.choice(_CHANGES)(changed, rng)
        except (ValueError, IndexError, TypeError, OverflowError, onnx.defs.SchemaError):
            continue
    return changed


def _rank(model: onnx.ModelProto, rng: random.Random) -> None:
    dims = rng.choice(model.graph.input).type.tensor_type.shape.dim
    if rng.random() < 0.5:
        dims.add().dim_value = rng.choice((1, 2, 3))
    else:
        del dims[rng.randrange(len(dims))]


def _extent(model: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice(rng.choice(model.graph.input).type.tensor_type.shape.dim).dim_value = rng.choice((0, 1, 2, 5, 7))


def _attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    schema = onnx.defs.get_schema(node.op_type, model.opset_import[0].version)
    name = rng.choice(sorted(schema.attributes))
    values: list[Any] = [-9, -1, 0, 2, 99, [0], [-3, 1], [1, 2, 3, 4, 5], [9, 9], [], 0.5, -1.0, "nothing", "VALID"]
    for k, old in enumerate(node.attribute):
        if old.name == name:
            del node.attribute[k]
            break
    if rng.random() < 0.9:
        node.attribute.append(helper.make_attribute(name, rng.choice(values), attr_type=None))


def _content(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    array = numpy_helper.to_array(tensor).copy()
    value = rng.choice((-99, -1, 0, 1, 99))
    if rng.random() < 0.3:
        array = np.concatenate([array.reshape(-1), array.reshape(-1)])
    else:
        array.reshape(-1)[rng.randrange(array.size)] = value
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _operand(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    position = rng.randrange(len(node.input))
    if rng.random() < 0.4:
        node.input[position] = ""
    elif rng.random() < 0.5:
        node.input[position] = rng.choice([i.name for i in model.graph.input])
    else:
        del node.input[position]


def _opset(model: onnx.ModelProto, rng: random.Random) -> None:
    model.opset_import[0].version = rng.randrange(1, 30)


_CHANGES = (
    _rank, _rank, _extent, _extent, _attribute, _attribute, _attribute, _content, _operand, _opset, fuzz_onnx.dtype,
)  # fmt: skip
