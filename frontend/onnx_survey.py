"""What becomes of every node of a model (`survey_onnx`): the import goes on behind what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from poly.errors import OnnxError
from poly.frontend.onnx_import import Fate, Importer, Interrupted
from poly.graph import Graph

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class NodeFate:
    """What became of a node of the file.

    `fate`: "compiled", "expanded" (by its function body), "folded" (known while importing), "inlined" (an If),
    "at first run" (it waits for a value that decides its shape or branch; `poly.compile(Path(...))` compiles it then),
    "fallback" (the reference evaluator runs it), "refused", or "not reached" (it reads what was refused). `why` and
    `hint`: for the last four.
    """

    name: str
    operator: str
    opset: int
    fate: Fate
    why: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Survey:
    """A model as far as it can be imported. `graph`: what reads a refused node's output reads an input instead."""

    graph: Graph
    fates: tuple[NodeFate, ...]


def survey_onnx(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...] | int], constants: Mapping[str, Array]
) -> Survey:
    """Import a model and go on behind nodes that are refused. Raises `OnnxError` for what is wrong with its inputs."""
    importer = Importer(model, staged=True)
    importer.declare_inputs(shapes, constants)
    fates = _fates(importer, model.graph.node)
    return Survey(importer.graph(partial=True), fates)


def _fates(importer: Importer, nodes: Iterable[onnx.NodeProto]) -> tuple[NodeFate, ...]:
    """Import nodes; the outputs of a refused one become inputs where their shapes are known."""
    found: list[NodeFate] = []
    lost: dict[str, Fate] = {}

    def note(proto: onnx.NodeProto, fate: Fate, why: str = "", hint: str = "") -> None:
        name = proto.name or next(iter(proto.output), "")
        found.append(NodeFate(name, proto.op_type, importer.opset(proto.domain), fate, why, hint))

    for proto in nodes:
        if missing := next((i for i in proto.input if i in lost), None):
            note(proto, lost[missing], f"it reads {missing!r}")
            lost |= dict.fromkeys(proto.output, lost[missing])
            continue
        try:
            fate = importer.node(proto)
            note(proto, fate, importer.reason if fate == "fallback" else "")
        except Interrupted as later:
            names = "" if later.value is None else ", ".join(sorted(importer.origins(later.value)))
            hint = f"fix it: constants={{...}} of {names}" if names else ""
            note(proto, "fallback" if later.value is None else "at first run", later.reason, hint)
            lost |= dict.fromkeys(importer.give_up(proto), "at first run")
        except OnnxError as error:
            note(proto, "refused", error.message, error.hint or "")
            lost |= dict.fromkeys(importer.give_up(proto), "not reached")
    return tuple(found)
