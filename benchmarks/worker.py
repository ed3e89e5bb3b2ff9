"""One peer in a process of its own: reads requests as JSON lines, answers with JSON lines.

`{"case": k}` makes case k ready: {"error": relative error against float64 or None, "compile": seconds};
`{"time": seconds}` measures it for about that long: {"seconds": median of one call}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TextIO

import numpy as np

from benchmarks.cases import Array, Case, load_cases, model_of
from benchmarks.limits import copy_bandwidth, fma_peak
from benchmarks.peers import PEERS, Call


def main() -> None:
    name, threads, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not mix with the answers
    cases = {c.name: c for c in load_cases(Path(path))}
    if name == "limits":
        return _limits(answers)
    call: Call | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "case" in request:
            call, answer = _prepare(name, cases[request["case"]], threads)
        else:
            assert call is not None
            answer = {"seconds": _measure(call, request["time"])}
        print(json.dumps(answer), file=answers, flush=True)


def _prepare(name: str, case: Case, threads: int) -> tuple[Call | None, dict[str, object]]:
    start = perf_counter()
    try:
        call = PEERS[name][1](case, threads)
        if call is None:
            return None, {"absent": "no way to express it"}
        took = perf_counter() - start
        return call, {"error": _error(case, call()), "compile": took}
    except Exception as error:  # a peer that fails is shown as absent, with its reason
        return None, {"absent": f"{type(error).__name__}: {str(error)[:200]}"}


def _error(case: Case, result: Array) -> float:
    """The greatest error relative to the greatest result. The reference is float64 numpy or ONNX's evaluator."""
    expected = reference(case)
    return float(np.abs(result - expected).max() / max(1e-30, np.abs(expected).max()))


def reference(case: Case) -> np.ndarray:
    inputs, consts = case.operands()
    if case.kind == "einsum":
        return np.einsum(case.spec, *(a.astype(np.float64) for a in inputs.values()), optimize=True)
    if case.kind == "conv":
        return _conv_reference(inputs["x"], consts["w"], case)
    import onnx.reference

    return onnx.reference.ReferenceEvaluator(model_of(case)).run(None, inputs)[0]


def _conv_reference(x: Array, w: Array, case: Case) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (case.pad, case.pad), (case.pad, case.pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))[
        :, :, :: case.stride, :: case.stride
    ]
    n, c, h, v = windows.shape[:4]
    grouped = windows.reshape(n, case.groups, c // case.groups, h, v, *w.shape[2:])
    weights = w.reshape(case.groups, -1, *w.shape[1:])
    return np.einsum("ngchvrs,gocrs->ngohv", grouped, weights, optimize=True).reshape(n, -1, h, v)


def _measure(call: Call, budget: float) -> float:
    samples: list[float] = []
    end = perf_counter() + budget
    while len(samples) < 3 or (perf_counter() < end and len(samples) < 10_000):
        start = perf_counter()
        call()
        samples.append(perf_counter() - start)
    return median(samples)


def _limits(answers: TextIO) -> None:
    """`{"size": bytes}`: {"flops": per second, "bytes": per second} of a working set of that size."""
    peak, operations = fma_peak()
    for line in sys.stdin:
        copy, moved = copy_bandwidth(json.loads(line)["size"])
        best = min(peak() for _ in range(5))
        fastest = min(copy() for _ in range(5))
        print(json.dumps({"flops": operations / best, "bytes": moved / fastest}), file=answers, flush=True)


if __name__ == "__main__":
    main()
