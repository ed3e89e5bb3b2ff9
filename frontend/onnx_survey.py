"""What becomes of every node of a model (`survey_onnx`): the import goes on behind what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from poly.dtypes import Array
from poly.errors import OnnxError
from poly.frontend.onnx_control import CONTROL
from poly.frontend.onnx_importer import Importer, Interrupted, Outcome
from poly.frontend.onnx_model import foreign_inputs
from poly.frontend.onnx_reference import by_numpy, captured_names
from poly.graph import Graph

if TYPE_CHECKING:
    import onnx

Fate = Outcome | Literal["at first run", "by numpy", "refused", "not reached"]


@dataclass(frozen=True)
class NodeFate:
    """What became of a node of the file.

    `fate`: "compiled", "expanded" (by its function body), "folded" (known while importing), "inlined" (an If),
    "at first run" (it waits for a value that decides its shape or branch; `poly.compile(Path(...))` compiles it then),
    "by numpy" (a routine of numpy runs it), "fallback" (the reference evaluator does), "refused", or "not reached" (it
    reads what was refused). `why` and `hint`: for the last five.
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
    importer, foreign = Importer(model, staged=True), foreign_inputs(model)
    importer.declare_inputs(shapes, constants, foreign)
    fates = _fates(importer, model.graph.node, foreign)
    return Survey(importer.graph(partial=True), fates)


def _fates(importer: Importer, nodes: Iterable[onnx.NodeProto], foreign: Iterable[str]) -> tuple[NodeFate, ...]:
    """Import nodes; the outputs of a refused one become inputs where their shapes are known.

    `foreign`: inputs that are no tensors of numbers; what reads one is not compiled.
    """
    found: list[NodeFate] = []
    lost: dict[str, Fate] = {}
    strange = set(foreign)

    def note(proto: onnx.NodeProto, fate: Fate, why: str = "", hint: str = "") -> None:
        name = proto.name or next(iter(proto.output), "")
        fate = "by numpy" if fate == "fallback" and by_numpy(proto) else fate
        found.append(NodeFate(name, proto.op_type, importer.opset(proto.domain), fate, why, hint))

    for proto in nodes:
        reads = (*proto.input, *captured_names(proto))
        if missing := next((i for i in reads if i in strange), None):
            note(proto, "fallback", f"{missing}: no tensor of numbers")
        elif missing := next((i for i in reads if i in lost), None):
            fallback = lost[missing] == "at first run" and not importer.has_form(proto)
            fate, why = lost[missing], f"it reads {missing!r}"
            note(proto, *(("fallback", "the operator has no compiled form") if fallback else (fate, why)))
        if missing:
            lost |= dict.fromkeys(proto.output, lost.get(missing, "at first run"))
            strange.update(importer.foreign_outputs(proto, strange))
            continue
        try:
            fate = importer.node(proto)
            note(proto, fate, *(importer.reason if fate == "fallback" else ()))
            lost |= dict.fromkeys(importer.without_cut(), "at first run")
        except Interrupted as later:
            names = "" if later.value is None else ", ".join(sorted(importer.values.origins(later.value)))
            hint = f"fix it: constants={{...}} of {names}, or --constant NAME=VALUE" if names else ""
            waits = later.value is not None or proto.op_type in CONTROL
            note(proto, "at first run" if waits else "fallback", later.reason, hint)
            lost |= dict.fromkeys(importer.give_up(proto), "at first run")
            strange.update(importer.foreign_outputs(proto, strange))
        except OnnxError as error:
            note(proto, "refused", error.message, error.hint or "")
            lost |= dict.fromkeys(importer.give_up(proto), "not reached")
    return tuple(found)
