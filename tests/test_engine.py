"""Engines: what has no compiled form says why, wherever the engine is shown."""

from __future__ import annotations

import numpy as np

from poly.codegen.host import host_machine
from poly.engine import Unit, build_engine
from poly.errors import UnsupportedError
from poly.explainer import explain
from poly.frontend.notation import parse
from poly.graph import Graph, Node
from poly.program import Program


def refuse(_program: Program) -> Unit:
    raise UnsupportedError("has no compiled form", where="statement S", hint="another one")


def test_the_reason_of_a_fallback_is_kept() -> None:
    program = parse("Y[i] = X[i] + 1", X=(4,))
    node = Node("plus", "Add", ("X",), ("Y",), program.statements)
    engine = build_engine(Graph("g", program.tensors, (node,)), host_machine(), refuse)
    (step,) = engine.steps
    assert step.unit is None and step.why[-1] == "not compiled: statement S: has no compiled form; try: another one"
    for shown in (str(engine), engine._repr_html_(), str(explain(engine))):  # pyright: ignore[reportPrivateUsage]
        assert "has no compiled form" in shown
    np.testing.assert_array_equal(engine.run({"X": np.zeros(4, np.float32)})["Y"], np.ones(4, np.float32))
