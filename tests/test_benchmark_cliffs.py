"""Random models of `benchmarks.cliffs`: the same for a seed, all operators among them, valid."""

from __future__ import annotations

import onnx

from benchmarks.cliffs import OPERATORS, model_of


def test_models() -> None:
    models = [found for seed in range(150) if (found := model_of(seed)) is not None]
    assert len(models) > 75
    for model, x in models:
        onnx.checker.check_model(onnx.shape_inference.infer_shapes(model, strict_mode=True))
        assert tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim) == x.shape
    met = {n.op_type for m, _ in models for n in m.graph.node}
    assert {"Conv", "MatMul", "GRU", "LSTM", "CumSum", "Softmax"} <= met and len(met) >= len(OPERATORS)


def test_a_seed_is_a_model() -> None:
    first, again = model_of(99), model_of(99)
    assert first is not None and again is not None and first[0] == again[0] and (first[1] == again[1]).all()
