"""What is right: cases in float64 by numpy, models by the outputs that came with them."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from benchmarks.cases import MODELS, Array, Case

Wide = npt.NDArray[np.float64]
ROUNDING = 1e-4  # of the greatest value, for single kernels
MODEL_ROUNDING = 1e-3
STEPS = 3.5  # of a quantised output: sums in another order fall on the other side of ties on the way


def reference(case: Case) -> list[Wide]:
    """The expected outputs of a case. Ends the command where its shapes do not fit."""
    try:
        return _expected(case)
    except (ValueError, IndexError) as error:
        raise SystemExit(f"case {case.name}: its shapes are none of kind {case.kind}: {error}") from error


def _expected(case: Case) -> list[Wide]:
    if case.kind == "model":
        with np.load(case.path + ".npz") as stored:
            return [stored[n].astype(np.float64) for n in stored.files if n.startswith("out:")]
    inputs, consts = case.operands()
    a = {n: x.astype(np.float64) for n, x in {**inputs, **consts}.items()}
    match case.kind:
        case "einsum":
            return [np.einsum(case.spec, *a.values(), optimize=True)]
        case "conv":
            return [_conv(a["x"], a["w"], case)]
        case "linear":
            return [np.maximum(a["x"] @ a["w"] + a["b"], 0)]
        case "muladdrelu":
            return [np.maximum(a["x"] * a["y"] + a["z"], 0)]
        case "bias_gelu":
            x = a["x"] + a["b"]
            return [0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))]
        case "softmax":
            return [_softmax(a["x"])]
        case "layernorm":
            x = a["x"] - a["x"].mean(-1, keepdims=True)
            return [x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * a["g"] + a["b"]]
        case "attention":
            return [_softmax(a["q"] @ a["k"].transpose(0, 2, 1) / math.sqrt(a["q"].shape[-1])) @ a["v"]]
        case "noop":
            return [a["x"] + a["x"]]
        case _:
            raise ValueError(f"no reference for {case.kind}")


def _softmax(x: Wide) -> Wide:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _conv(x: Wide, w: Wide, case: Case) -> Wide:
    padded = np.pad(x, ((0, 0), (0, 0), (case.pad, case.pad), (case.pad, case.pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))
    windows = windows[:, :, :: case.stride, :: case.stride]
    n, c, h, v = windows.shape[:4]
    grouped = windows.reshape(n, case.groups, c // case.groups, h, v, *w.shape[2:])
    weights = w.reshape(case.groups, -1, *w.shape[1:])
    return np.einsum("ngchvrs,gocrs->ngohv", grouped, weights, optimize=True).reshape(n, -1, h, v)


def error_of(results: Sequence[npt.NDArray[np.generic]], expected: Sequence[Wide]) -> float:
    """The greatest difference of the outputs, each relative to its greatest value."""
    worst = 0.0
    for found, want in zip(results, expected, strict=True):
        got = found.astype(np.float64)
        if got.size != want.size or not np.isfinite(got).all():
            return math.inf
        difference = np.abs(got.reshape(want.shape) - want).max(initial=0)
        worst = max(worst, float(difference / max(1e-30, np.abs(want).max(initial=0))))
    return worst


def model_cases(folder: Path, work: Path, wanted: Callable[[str], bool]) -> tuple[Case, ...]:
    """The `wanted` models of a folder, those whose inputs and outputs are known: NAME.onnx beside NAME.npz, with arrays
    `in:...` and `out:...`. Where weights are constants, randomized_NAME.npz goes with random ones, made in `work`.
    """
    found = (_model_case(f, folder, work) for f in sorted(folder.glob("*.onnx"), key=_place) if wanted(f.stem))
    return tuple(case for case in found if case is not None)


def _place(file: Path) -> tuple[int, str]:
    """Those of `MODELS` in their order, then the others by name."""
    return MODELS.index(file.stem) if file.stem in MODELS else len(MODELS), file.stem


def _model_case(source: Path, folder: Path, work: Path) -> Case | None:
    name, target = source.stem, work / source.name
    known = [f for f in (folder / f"randomized_{name}.npz", folder / f"{name}.npz") if f.exists()]
    if not known:
        return None
    if known[0].stem != name:
        _randomise(folder / "randomize_light.py", source, target)
    else:
        target.write_bytes(source.read_bytes())
    with np.load(known[0]) as stored:
        arrays = {n: stored[n] for n in stored.files}
    model = onnx.load(str(target), load_external_data=False)
    wanted = {f"out:{o.name}": arrays[f"out:{o.name}"] for o in model.graph.output}  # there may be inner tensors, too
    inputs = {n: a for n, a in arrays.items() if n.startswith("in:")}
    kept: dict[str, Any] = inputs | wanted  # by names that are no parameter of savez
    np.savez(f"{target}.npz", **kept)
    return Case(name, "model", {n[3:]: a.shape for n, a in inputs.items()}, path=str(target), step=_step(model, wanted))


def _step(model: onnx.ModelProto, outputs: Mapping[str, Array]) -> float:
    """The greatest distance of two codes of an output that is quantised, relative to its greatest value."""
    scales = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    last = {n.output[0]: n.input[1] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    steps = [0.0]
    for name, array in outputs.items():
        if (scale := scales.get(last.get(name[4:], ""))) is not None:
            steps.append(float(np.max(scale) / max(1e-30, np.max(np.abs(array), initial=0))))
    return max(steps)


def _randomise(script: Path, source: Path, target: Path) -> None:
    spec = importlib.util.spec_from_file_location("randomize_light", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    onnx.save(module.randomize(onnx.load(str(source))), str(target))
