"""What is right: cases in float64 by numpy, models by the outputs that came with them."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.cases import MODELS, Array, Case

Wide = npt.NDArray[np.float64]
ROUNDING = 1e-4  # of the greatest value, for single kernels
MODEL_ROUNDING = 1e-3


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


def model_cases(folder: Path, work: Path) -> tuple[Case, ...]:
    """The models of `MODELS` that are in `folder`; those with constant weights get random ones in `work`."""
    found: list[Case] = []
    for name, random in MODELS:
        source, golden = folder / f"{name}.onnx", folder / f"{'randomized_' if random else ''}{name}.npz"
        if not source.exists() or not golden.exists():
            continue
        target = work / f"{name}.onnx"
        if random:
            _randomise(folder / "randomize_light.py", source, target)
        else:
            target.write_bytes(source.read_bytes())
        with np.load(golden) as stored:
            arrays = {n: stored[n] for n in stored.files}
        outputs: dict[str, Any] = {**_first_outputs(target, arrays)}  # by names that are no parameter of savez
        np.savez(f"{target}.npz", **outputs)
        inputs = {n[3:]: a.shape for n, a in arrays.items() if n.startswith("in:")}
        found.append(Case(name, "model", inputs, path=str(target)))
    return tuple(found)


def _randomise(script: Path, source: Path, target: Path) -> None:
    import onnx

    spec = importlib.util.spec_from_file_location("randomize_light", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    onnx.save(module.randomize(onnx.load(str(source))), str(target))


def _first_outputs(target: Path, arrays: dict[str, Array]) -> dict[str, Array]:
    """Inputs, and the outputs in the order of the model's (goldens may hold inner tensors too)."""
    import onnx

    names = [o.name for o in onnx.load(str(target), load_external_data=False).graph.output]
    kept = {n: a for n, a in arrays.items() if n.startswith("in:")}
    return kept | {f"out:{n}": arrays[f"out:{n}"] for n in names}
