"""Every refusal of the ONNX importer says node, operator, opset, operands, what failed and what to try."""

from __future__ import annotations

import os
import random
import re

import numpy as np
import onnx
import pytest

from poly.errors import OnnxError
from poly.frontend.onnx_import import from_onnx
from tests import test_onnx, test_onnx_compiled
from tests.onnx_error_sites import Site, node_models, refusals, sites, wrong_versions
from tests.onnx_helpers import node_model
from tests.onnx_wrong_nodes import WRONG_NODES

SLOW = pytest.mark.skipif("POLYLOOM_SLOW" not in os.environ, reason="set POLYLOOM_SLOW=1 for the slow tests")
OPERAND = re.compile(r"\w+: \w+\[[\d, ]*\]|inputs (none|-)|-(?=[,)])")


def complaint(model: onnx.ModelProto, error: OnnxError) -> str:
    """What a message lacks, "" where it lacks nothing."""
    text, (node, *others) = str(error), model.graph.node
    about_file = not others and error.where is not None and error.where.startswith(("input ", "model ", "initialiser "))
    if not error.message.strip():
        return "words"
    if about_file:
        return ""
    if not error.hint or "\n  try: " not in text:
        return "what to try"
    if not others and not re.search(rf"\({node.op_type}|\((\w+\.)*[A-Z]\w+, opset", text):  # or one inside its body
        return "the operator"
    if "opset" not in text:
        return "the opset"
    place = error.where or ""
    if "inputs" in place and not OPERAND.search(place):
        return "the operands"
    return "" if place.startswith(("node ", "tensor ", "constant ")) else "the place"


@pytest.mark.parametrize("number", range(len(WRONG_NODES)))
def test_a_wrong_node_is_refused_for_what_is_wrong(number: int) -> None:
    operator, inputs, options, words = WRONG_NODES[number]
    model, _ = node_model(operator, inputs, **options)
    with pytest.raises(OnnxError, match=words) as caught:
        from_onnx(model)
    assert not complaint(model, caught.value), caught.value


def test_messages_of_wrong_operators() -> None:
    """Each operator of the other tests, wrong in four random ways."""
    cases = [*test_onnx.CASES.values(), *test_onnx_compiled.CASES.values()]
    models = [node_model(operator, inputs, **options)[0] for operator, inputs, options in cases]
    rng, hit, count = random.Random(7), set[Site](), 0
    lacking: list[str] = []
    for _ in range(4):
        for model, error, where in refusals(wrong_versions(m, rng) for m in models):
            count, hit = count + 1, hit | where
            if lack := complaint(model, error):
                lacking.append(f"{lack}: {error}")
    assert not lacking, "\n".join(lacking[:10])
    assert count > 150 and len(hit) > 50


@SLOW
def test_most_sites_are_reached() -> None:
    """ONNX's own node tests, wrong in many random ways: no other exception, complete messages, most refusals met."""
    models, rng, hit = node_models(), random.Random(1), set[Site]()
    lacking: list[str] = []
    for _ in range(12):
        for model, error, where in refusals(wrong_versions(m, rng) for m in models):
            hit |= where
            if lack := complaint(model, error):
                lacking.append(f"{lack}: {error}")
    for operator, inputs, options, _ in WRONG_NODES:
        hit |= next(iter(refusals([node_model(operator, inputs, **options)[0]])))[2]
    missed = "\n".join(f"{name}:{line}" for name, line, _ in sorted(sites() - hit))
    assert not lacking, "\n".join(lacking[:10])
    assert len(hit) > 0.8 * len(sites()), missed  # the others are about files, in other tests


def test_a_fault_of_the_import_is_not_blamed_on_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from poly.errors import Bug
    from poly.frontend import onnx_importer

    def broken(_: object) -> None:
        raise Bug("two names for one thing")

    monkeypatch.setattr(onnx_importer, "OPERATORS", {**onnx_importer.OPERATORS, "Relu": broken})
    with pytest.raises(OnnxError, match="does not hold: two names.*\n.*the fault is Polyloom's"):
        from_onnx(node_model("Relu", [np.ones(3, np.float32)])[0])
