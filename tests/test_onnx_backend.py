"""The onnx package's own node tests, each through the importer and the interpreter, sorted by what became of it.

About 40 s, so only where POLYLOOM_SLOW is set. A case counts as compiled only when its program ran here, without a node
left to the reference evaluator, and gave the expected outputs.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from poly.errors import PolyError
from poly.frontend.onnx_import import from_onnx
from poly.graph import Graph
from tests.onnx_helpers import Arrays, run_graph

# Node tests of onnx 1.23.2 that are compiled; later versions of the package add cases.
COMPILED = 1475
# Inputs of floats that give the output's shape.
_SHAPE_LIKE = ("scales", "roi", "depth")


def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return collect_testcases(None)  # type: ignore[arg-type]


def arrays_of(values: list[Any]) -> list[np.ndarray] | None:
    """Plain arrays; None where a value is a sequence, an optional or strings."""
    found = [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values]
    plain = all(isinstance(v, (np.ndarray, np.generic)) and v.dtype != object for v in found)
    return [np.asarray(v) for v in found] if plain else None


def graphs(model: onnx.ModelProto, inputs: Arrays) -> Iterator[Graph | PolyError]:
    """The import with every input at run time, and with small integer inputs (axes, sizes, pads) as constants."""
    small = [n for n, a in inputs.items() if (a.dtype.kind in "iub" or n in _SHAPE_LIKE) and a.size <= 64]
    first = next(iter(inputs), "")
    for fixed in ([], [n for n in small if n != first], small):
        shapes = {n: a.shape for n, a in inputs.items() if n not in fixed}
        try:
            yield from_onnx(model, shapes, {n: inputs[n] for n in fixed})
        except PolyError as error:
            yield error


def outcome(case: Any) -> str:
    data = [arrays_of(list(part)) for part in case.data_sets[0]]
    if data[0] is None or data[1] is None:
        return "no tensors"
    inputs = dict(zip([i.name for i in case.model.graph.input], data[0], strict=True))
    best: Graph | None = None
    for graph in graphs(case.model, inputs):
        if isinstance(graph, Graph):
            best = graph
            if not any(node.external for node in graph.nodes):
                break
    if best is None:
        return "refused"
    if any(node.external for node in best.nodes):
        return "external"
    found = run_graph(best, inputs)
    names = [o.name for o in case.model.graph.output]
    return "compiled" if all(agree(found[n], want) for n, want in zip(names, data[1], strict=True)) else "wrong"


def agree(have: np.ndarray, want: np.ndarray) -> bool:
    if (have.shape, have.dtype) != (want.shape, want.dtype):
        return False
    if want.dtype.kind not in "fV":
        return bool(np.array_equal(have, want))
    rtol = 1e-3 if want.dtype.itemsize >= 4 else 2e-2
    return np.allclose(have.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=1e-5, equal_nan=True)


@pytest.mark.skipif("POLYLOOM_SLOW" not in os.environ, reason="40 s; set POLYLOOM_SLOW=1")
def test_node_cases_of_the_onnx_package() -> None:
    results = {case.name: outcome(case) for case in cases()}
    count = Counter(results.values())
    assert [name for name, found in results.items() if found == "wrong"] == []
    assert count["compiled"] >= COMPILED, count
