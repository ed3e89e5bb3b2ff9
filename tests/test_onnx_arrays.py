"""Operators by numpy on whole arrays, beside onnx.reference."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np
import onnx
import pytest
from onnx import helper

import poly
from poly.errors import RunError
from poly.model_engine import ModelEngine
from tests.onnx_helpers import Operand, assert_close, chain_model, node_model, reference

SOURCE = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def draws_of_its_own(request: pytest.FixtureRequest) -> None:
    """Each test draws the same, whatever ran before it."""
    own = np.random.default_rng(crc32(request.node.name.encode()))
    SOURCE.bit_generator.state = own.bit_generator.state


def run(model: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in poly.compile(model).run(arrays).items()}


def compare(operator: str, *inputs: Operand, **attributes: Any) -> None:
    model, arrays = node_model(operator, inputs, **attributes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no FallbackWarning
        found = run(model, arrays)
    assert_close(found, reference(model, arrays))


def along(axis: int | None) -> dict[str, Any]:
    return {} if axis is None else {"axis": axis}


def f32(*shape: int) -> np.ndarray:
    return SOURCE.standard_normal(shape).astype(np.float32)


def boxes(batch: int, count: int, centred: bool = False) -> np.ndarray:
    """Corners in any order, or centres and extents."""
    centres, extents = SOURCE.random((2, batch, count, 2)).astype(np.float32)
    return np.concatenate([centres, extents] if centred else [centres, centres + extents - 0.3], axis=2)


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize(("batch", "classes", "count", "most"), [(1, 1, 200, 300), (2, 3, 90, 5), (1, 12, 20, 20)])
def test_the_best_boxes_of_each_class(batch: int, classes: int, count: int, most: int, centred: int) -> None:
    scores = np.round(SOURCE.random((batch, classes, count)), 1).astype(np.float32)  # with equal ones
    for overlap, least in ((0.5, 0.3), (0.0, 0.0), (1.0, 0.95), (0.2, 2.0)):
        limits = np.array([most]), np.array([overlap], np.float32), np.array([least], np.float32)
        compare("NonMaxSuppression", boxes(batch, count, centred == 1), scores, *limits, center_point_box=centred)


@pytest.mark.parametrize("target", ["cpu", "s16"])
def test_boxes_that_others_read_are_cut_to_what_was_found(target: str) -> None:
    """Where a loop over what data choose has a compiled form they are compiled, elsewhere numpy finds them."""
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "part", "least"], ["places"]),
        helper.make_node("Mul", ["places", "places"], ["squares"]),
    ]
    arrays = {"boxes": boxes(2, 40), "scores": f32(2, 3, 40)}
    limits = {"most": np.array([7]), "part": np.array([0.3], np.float32), "least": np.array([0], np.float32)}
    model, _ = chain_model(nodes, arrays, ["places", "squares"], constants=limits)
    engine = poly.compile(model, target=target)
    assert isinstance(engine, ModelEngine)
    for _ in range(3):
        assert_close({n: np.asarray(v) for n, v in engine.run(arrays).items()}, reference(model, arrays))
    assert len(engine.by_numpy) == (target != "cpu") and not engine.fallbacks


def test_a_model_that_is_cut_at_its_end_gives_as_many_as_there_are_in_each_run() -> None:
    arrays = {"x0": f32(9, 4), "x1": np.array([True, False, True] * 3)}
    model, _ = node_model("Compress", list(arrays.values()), axis=0)
    engine = poly.compile(model)
    for wanted in (arrays["x1"], ~arrays["x1"], np.zeros(9, bool), np.ones(9, bool)):
        for _ in range(3):
            found = np.asarray(engine.run({**arrays, "x1": wanted})["y0"])
            np.testing.assert_array_equal(found, arrays["x0"][wanted])
    into = np.empty((6, 4), np.float32)
    assert engine.run(arrays, out={"y0": into})["y0"] is into
    np.testing.assert_array_equal(into, arrays["x0"][arrays["x1"]])
    assert not engine.by_numpy


def test_no_box_where_none_is_asked_for() -> None:
    model, arrays = node_model("NonMaxSuppression", [boxes(1, 5), f32(1, 2, 5)])
    assert run(model, arrays)["y0"].shape == (0, 3)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_what_a_condition_takes(axis: int | None) -> None:
    for condition in ([True, False, True, True], [False], []):
        compare("Compress", f32(4, 5, 6), np.array(condition, bool), **along(axis))


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (0, 3), (3, 0)])
def test_places_of_what_is_not_zero(shape: tuple[int, ...]) -> None:
    x = f32(*shape) * (SOURCE.random(shape) < 0.5)
    compare("NonZero", x.astype(np.float32))
    compare("NonZero", x > 0)


def test_places_in_a_number() -> None:
    """The evaluator has none with numpy 2."""
    for value in (0, 3):
        model, arrays = node_model("NonZero", [np.array(value)])
        found = run(model, arrays)["y0"]
        np.testing.assert_array_equal(found, np.zeros((1, int(value != 0))))


def test_a_region_of_one_element() -> None:
    """A sum in lanes of which all that is read lies where elements say."""
    region = np.array([[0, 0, 1, 1]], np.float32)
    model, arrays = node_model(
        "RoiAlign", [f32(1, 1, 1, 1), region, np.array([0])], opset=10, output_height=1, output_width=1,
        sampling_ratio=1,
    )  # fmt: skip
    np.testing.assert_array_equal(run(model, arrays)["y0"], arrays["x0"])


REPEATING = [SOURCE.integers(0, 3, (20, 2)), np.floor(f32(6, 3, 2)), np.array([[2.0, np.nan], [np.nan, 1.0]])]


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_what_is_different(axis: int | None) -> None:
    for x in REPEATING:
        compare("Unique", x, outputs=4, **along(axis))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_what_is_different_in_order_of_first_places(axis: int | None) -> None:
    """Which onnx.reference has along the first axis alone."""
    for x in REPEATING:
        model, arrays = node_model("Unique", [x], outputs=4, sorted=0, **along(axis))
        y, first, number, counts = map(np.asarray, run(model, arrays).values())
        lined = x.reshape(-1) if axis is None else x
        np.testing.assert_array_equal(np.take(y, number, axis or 0), lined)
        np.testing.assert_array_equal(np.take(lined, first, axis or 0), y)
        np.testing.assert_array_equal(np.bincount(number), counts)
        assert (np.diff(first) > 0).all() and y.shape == np.unique(x, axis=axis).shape


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_determinants(dtype: str) -> None:
    for shape in ((5, 1, 1), (3, 2, 2), (2, 2, 12, 12), (20, 20)):
        compare("Det", (f32(*shape) / 2).astype(dtype))


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("least", "most", "skips"), [(1, 1, 0), (1, 2, 0), (2, 2, 5), (1, 3, 2)])
def test_counts_of_grams(mode: str, least: int, most: int, skips: int) -> None:
    pool = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7, 4, 5, 6, 2, 3, 2]
    attributes: dict[str, Any] = {
        "mode": mode, "min_gram_length": least, "max_gram_length": most, "max_skip_count": skips,
        "ngram_counts": [0, 4, 10], "ngram_indexes": [0, 1, 2, 3, 4, 5, 6, 8, 9],
        "weights": [float(k) for k in range(10)],
    }  # fmt: skip
    x = SOURCE.integers(0, 10, (3, 40)).astype(np.int32)
    for given in (x, x[0], x[:, :1]):
        compare("TfIdfVectorizer", given, pool_int64s=pool, **attributes)
    words = np.array([f"w{k}" for k in x[0]], object)
    numbers, _ = node_model("TfIdfVectorizer", [x[0]], pool_int64s=pool, **attributes)
    model, _ = node_model("TfIdfVectorizer", [x[0]], pool_strings=[f"w{k}" for k in pool], **attributes)
    model.graph.input[0].type.tensor_type.elem_type = 8
    found = run(model, {"x0": words})
    assert_close(found, reference(numbers, {"x0": x[0]}))


@pytest.mark.parametrize("place", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_that_sample_as_many_places_as_they_are_large(mode: str, place: str) -> None:
    corners = SOURCE.random((6, 4)) * 14 - 3
    rois = np.concatenate([corners[:, :2], corners[:, :2] + np.abs(corners[:, 2:])], axis=1).astype(np.float32)
    rois[0] = [20, 20, 30, 30]  # outside
    shape: dict[str, Any] = {"output_height": 3, "output_width": 2, "spatial_scale": 0.7, "mode": mode}
    given = f32(2, 3, 8, 9), rois, SOURCE.integers(0, 2, 6)
    compare("RoiAlign", *given, opset=16, coordinate_transformation_mode=place, **shape)
    if place == "output_half_pixel":  # as before opset 16, where the evaluator takes half an element off
        now, arrays = node_model("RoiAlign", given, opset=16, coordinate_transformation_mode=place, **shape)
        before, _ = node_model("RoiAlign", given, opset=10, **shape)
        assert_close(run(before, arrays), run(now, arrays))


def test_greatest_elements_of_regions() -> None:
    x, rois = f32(2, 3, 8, 9), np.array([[0, 1, 2, 6, 7], [1, 3.4, 3.6, 3, 3], [1, 6, 6, 30, 30]], np.float32)
    model, arrays = node_model("MaxRoiPool", [x, rois], pooled_shape=[2, 3])
    found = run(model, arrays)["y0"]
    want = np.zeros((3, 3, 2, 3), np.float32)
    for r, (image, *sides) in enumerate(rois):
        left, top, right, bottom = (int(np.floor(s + 0.5)) for s in sides)
        high, wide = max(bottom - top + 1, 1) / 2, max(right - left + 1, 1) / 3
        for h, w in np.ndindex(2, 3):
            rows = slice(top + int(h * high), top + int(np.ceil((h + 1) * high)))
            columns = slice(left + int(w * wide), left + int(np.ceil((w + 1) * wide)))
            part = x[int(image), :, rows, columns]
            want[r, :, h, w] = part.max(axis=(1, 2)) if part.size else 0
    np.testing.assert_array_equal(found, want)


def test_classes_are_drawn_by_their_weights() -> None:
    weights = np.array([[1.0, 0.0, 3.0], [0.5, 0.25, 0.25]])
    with np.errstate(divide="ignore"):
        x = np.log(weights).astype(np.float32)
    model, arrays = node_model("Multinomial", [x], sample_size=10_000, seed=2.5)
    engine = poly.compile(model)
    found = np.asarray(engine.run(arrays)["y0"])
    assert found.shape == (2, 10_000) and found.dtype == np.int32
    shares = [np.bincount(row, minlength=3) / 10_000 for row in found]
    np.testing.assert_allclose(shares, weights / weights.sum(axis=1, keepdims=True), atol=0.03)
    np.testing.assert_array_equal(np.asarray(engine.run(arrays)["y0"]), found)
    assert not np.any(found[0] == 1)
    seeded = [node_model("Multinomial", [x], sample_size=100, seed=s)[0] for s in (-1.0, 2.0, 0.5, 0.25)]
    assert len({np.asarray(poly.compile(m).run(arrays)["y0"]).tobytes() for m in seeded}) == 4


def test_what_numpy_runs_is_no_fallback_and_fails_by_its_name() -> None:
    model, arrays = node_model("Compress", [f32(4), np.array([True, False, False, False, True])])
    engine = poly.compile(model)
    with pytest.raises(RunError, match="numpy failed: index 4"):
        engine.run(arrays)
    assert engine.fallbacks == ()
    engine.run(arrays | {"x1": np.array([True, False, True, False, False])})
    assert engine.fallbacks == () and engine.by_numpy == ("node (Compress)",)
    assert "numpy" in str(poly.explain(engine)) and "reference evaluator" not in f"{poly.explain(engine)} {engine}"


def test_the_default_domain_has_two_names() -> None:
    model, arrays = node_model("NonZero", [f32(3, 4)])
    model.graph.node[0].domain = model.opset_import[0].domain = "ai.onnx"
    engine = poly.compile(model)
    assert np.asarray(engine.run(arrays)["y0"]).shape == (2, 12) and engine.by_numpy == ("node (NonZero)",)
    assert model.graph.node[0].domain == "ai.onnx"  # the caller's
