"""Seeded random weights for models that are shipped with constant ones, such as the "light" nets of the onnx package.

Where every weight is the same, so is every output, and a compiler that mixes up channels would pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from poly.errors import OnnxError

if TYPE_CHECKING:
    import onnx


def light_model_path(name: str) -> Path:
    """The file of a light net in the onnx package: squeezenet, resnet50, ... Raises `OnnxError` for another name."""
    import onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    found = folder / f"light_{name}.onnx"
    if not found.is_file():
        names = ", ".join(sorted(p.stem.removeprefix("light_") for p in folder.glob("light_*.onnx")))
        raise OnnxError(f"the onnx package has no light net {name!r}", hint=f"one of {names or 'none'}")
    return found


def random_weights(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """A copy of the model where each ConstantOfShape is an initialiser: seeded values, drawn in node order.

    Weights of convolutions and matrix products are normal with variance 2 / fan-in (He et al. 2015, section 2.2): then
    activations keep their size through the layers; scales and variances lie about 1, all else is small.
    """
    import onnx
    from onnx import numpy_helper

    rng = np.random.default_rng(seed)
    graph = model.graph
    shapes = {i.name: i for i in graph.initializer}
    role: dict[str, tuple[str, int]] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            role.setdefault(name, (node.op_type, position))
    result = onnx.ModelProto()
    result.CopyFrom(model)
    drawn: list[onnx.TensorProto] = []
    del result.graph.node[:]
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            shape = tuple(int(e) for e in numpy_helper.to_array(shapes[node.input[0]]))
            operator, position = role.get(node.output[0], ("", 0))
            drawn.append(numpy_helper.from_array(_draw(rng, shape, operator, position), node.output[0]))
        else:
            result.graph.node.append(node)
    result.graph.initializer.extend(drawn)
    _drop_unused(result)
    return result


def _draw(rng: np.random.Generator, shape: tuple[int, ...], operator: str, position: int) -> npt.NDArray[np.float32]:
    if operator in ("Conv", "Gemm", "MatMul") and position == 1:
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        values = rng.standard_normal(shape) * np.sqrt(2.0 / max(fan_in, 1))
    elif (operator == "BatchNormalization" and position == 1) or operator == "Unsqueeze":
        values = 1 + 0.1 * rng.standard_normal(shape)
    elif operator == "BatchNormalization" and position == 4:
        values = 1 + 0.1 * rng.random(shape)
    else:
        values = 0.05 * rng.standard_normal(shape)
    return values.astype(np.float32)


def _drop_unused(model: onnx.ModelProto) -> None:
    """Drop initialisers that no node reads, and inputs that name an initialiser or that no node reads."""
    used = {name for node in model.graph.node for name in node.input}
    initialisers = [i for i in model.graph.initializer if i.name in used]
    constant = {i.name for i in initialisers}
    inputs = [i for i in model.graph.input if i.name in used and i.name not in constant]
    del model.graph.initializer[:], model.graph.input[:]
    model.graph.initializer.extend(initialisers)
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)
