"""Where do programs fall off a cliff?

Random small models, a few operators of random shapes each, ours beside ONNX Runtime on one thread: those where ours is
slower than X times its time, or gives another result, are printed with a seed that makes them again. What a benchmark
of known shapes never meets, such as maps of three columns, batches before a flattening or a recurrence over 24 rows.
With --nests random loop nests beside numba, and with --short small ones beside plain Python, values alone.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

import poly
from benchmarks.cliffs_of_nests import beside_numba, beside_python
from benchmarks.medians import times
from poly.errors import PolyError

if TYPE_CHECKING:
    import onnx

EXTENTS: Final = (1, 2, 3, 4, 5, 7, 8, 10, 12, 16, 17, 20, 24, 32, 33, 50, 64, 77, 100, 128, 197, 256)
LARGEST, MOST_WORK = 600_000, 1e8  # elements of an input; multiplications of an operator
Floats = npt.NDArray[np.float32]


@dataclass
class Model:
    """A chain of operators as it grows: `shape` of the last result, the text of what was done."""

    choose: random.Random
    shape: list[int]
    nodes: list[onnx.NodeProto] = field(default_factory=list["onnx.NodeProto"])
    weights: list[onnx.TensorProto] = field(default_factory=list["onnx.TensorProto"])
    last: str = "x"

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """An initialiser."""
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def drawn(self, *shape: int) -> str:
        """An initialiser of random numbers."""
        source = np.random.default_rng(len(self.weights))
        return self.constant(source.standard_normal(shape) / 4)

    def add(self, operator: str, *inputs: str, **attributes: int | float | str | list[int]) -> None:
        """An operator on the last result and more inputs."""
        from onnx import helper

        name = f"t{len(self.nodes)}"
        node = helper.make_node(operator, [self.last, *inputs], [name])
        node.attribute.extend(helper.make_attribute(a, v) for a, v in attributes.items())
        self.nodes.append(node)
        self.last = name


# ---- operators: each changes the model, or does nothing where the shape does not suit it


def _convolution(m: Model) -> None:
    if len(m.shape) != 4:
        return
    r = m.choose
    batch, channels, *extents = m.shape
    size, width = r.choice([(1, 1), (1, 1), (2, 2), (3, 3), (3, 3), (5, 5), (7, 7), (3, 1), (7, 1)])
    step, pads = r.choice([1, 1, 2]), [r.choice([0, size // 2]), r.choice([0, width // 2])]
    out = r.choice([1, 3, 4, 12, 16, 20, 24, 64, 128])
    groups = r.choice([1, 1, 1, channels]) if out % channels == 0 else 1
    places = [(e + 2 * p - k) // step + 1 for e, p, k in zip(extents, pads, (size, width), strict=True)]
    if min(places) < 1 or batch * out * prod(places) * channels // groups * size * width > MOST_WORK:
        return
    weights = m.drawn(out, channels // groups, size, width), m.drawn(out)
    m.add("Conv", *weights, pads=[*pads, *pads], strides=[step, step], group=groups)
    m.shape = [batch, out, *places]


def _product(m: Model) -> None:
    columns = m.choose.choice([1, 3, 10, 16, 30, 64, 100, 256])
    if prod(m.shape) * columns < MOST_WORK:
        m.add("MatMul", m.drawn(m.shape[-1], columns))
        m.shape[-1] = columns


def _transposition(m: Model) -> None:
    order = m.choose.sample(range(len(m.shape)), len(m.shape))
    m.add("Transpose", perm=order)
    m.shape = [m.shape[k] for k in order]


def _flattening(m: Model) -> None:
    m.add("Flatten", axis=1)
    m.shape = [m.shape[0], prod(m.shape[1:])]


def _reduction(m: Model) -> None:
    axis = m.choose.randrange(len(m.shape))
    m.add(m.choose.choice(["ReduceMean", "ReduceMax", "ReduceL2"]), axes=[axis], keepdims=1)
    m.shape[axis] = 1


def _pool(m: Model) -> None:
    if len(m.shape) < 3:
        return
    sizes = [min(e, m.choose.choice([2, 3])) for e in m.shape[2:]]
    m.add(m.choose.choice(["MaxPool", "AveragePool"]), kernel_shape=sizes, strides=[2] * len(sizes))
    m.shape[2:] = [(e - k) // 2 + 1 for e, k in zip(m.shape[2:], sizes, strict=True)]


def _norm(m: Model) -> None:
    if len(m.shape) > 2 and m.choose.random() < 0.5:
        m.add("InstanceNormalization", m.drawn(m.shape[1]), m.drawn(m.shape[1]), epsilon=0.01)
    else:
        m.add("LayerNormalization", m.drawn(m.shape[-1]), m.drawn(m.shape[-1]), epsilon=0.01)


def _softmax(m: Model) -> None:
    m.add("Softmax", axis=m.choose.randrange(len(m.shape)))


def _function(m: Model) -> None:
    m.add(m.choose.choice(["Relu", "Sigmoid", "Tanh", "HardSwish", "Erf", "Abs", "Neg"]))


def _scale(m: Model) -> None:
    m.add(m.choose.choice(["Add", "Mul", "Sub", "Max"]), m.drawn(*(m.choose.choice([1, e]) for e in m.shape)))


def _scan(m: Model) -> None:
    m.add("CumSum", m.constant(m.choose.randrange(len(m.shape)), np.int64))


def _recurrence(m: Model) -> None:
    if len(m.shape) != 3 or m.shape[0] > 64 or m.shape[2] > 128:
        return
    operator, gates = m.choose.choice([("LSTM", 4), ("GRU", 3)])
    hidden = m.choose.choice([3, 8, 20, 64])
    m.add(operator, m.drawn(1, gates * hidden, m.shape[2]), m.drawn(1, gates * hidden, hidden), hidden_size=hidden)
    m.add("Squeeze", m.constant([1], np.int64))
    m.shape[2] = hidden


def _choice(m: Model) -> None:
    axis = m.choose.randrange(len(m.shape))
    if m.shape[axis] > 3:
        m.add("Slice", *(m.constant([v], np.int64) for v in (1, m.shape[axis], axis, 2)))
        m.shape[axis] //= 2


OPERATORS: Final[Mapping[str, Callable[[Model], None]]] = {
    "convolution": _convolution, "product": _product, "transposition": _transposition, "flattening": _flattening,
    "reduction": _reduction, "pool": _pool, "norm": _norm, "softmax": _softmax, "function": _function, "scale": _scale,
    "scan": _scan, "recurrence": _recurrence, "choice": _choice,
}  # fmt: skip


# ---- what is found


def model_of(seed: int) -> tuple[onnx.ModelProto, Floats] | None:
    """The model of a seed and its input; None where no operator suited the shape."""
    from onnx import TensorProto, helper

    choose = random.Random(seed)
    shape = [choose.choice(EXTENTS) for _ in range(choose.choice([2, 3, 3, 4, 4, 4]))]
    if not 32 <= prod(shape) <= LARGEST:
        return None
    made = Model(choose, [*shape])
    for name in choose.choices(list(OPERATORS), k=choose.choice([1, 2, 3])):
        OPERATORS[name](made)
    if not made.nodes:
        return None
    graph = helper.make_graph(
        made.nodes, f"seed{seed}", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(made.last, TensorProto.FLOAT, made.shape)], made.weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model, np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compared(seed: int, slower: float) -> str | None:
    """What is wrong with ours for a seed, in a line; "" for nothing, None where the seed has no model."""
    import onnxruntime

    made = model_of(seed)
    if made is None:
        return None
    model, x = made
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    what = f"{seed:8}  {list(x.shape)} {' '.join(n.op_type for n in model.graph.node)}"
    try:
        engine = poly.compile(poly.from_onnx(model), threads=1)
        found = np.asarray(engine.run({"x": x})[model.graph.output[0].name])
    except PolyError as error:
        return f"{what}: {error}"
    wanted = np.asarray(session.run(None, {"x": x})[0])
    if not np.allclose(found, wanted, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(wanted).max()))):
        return f"{what}: another result, {float(np.abs(found - wanted).max()):.2g} apart"
    ours, theirs = times(lambda: engine.run({"x": x}), lambda: session.run(None, {"x": x}))
    return f"{what}: {ours:.1f} us, ONNX Runtime {theirs:.1f}, {ours / theirs:.2f}" if ours > slower * theirs else ""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cliffs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="the first one (default: 0)")
    parser.add_argument("--seconds", type=float, default=60, help="how long (default: 60)")
    parser.add_argument("--slower", type=float, default=1.25, metavar="X", help="times the peer's (default: 1.25)")
    parser.add_argument("--nests", action="store_true", help="random loop nests beside numba, not models")
    parser.add_argument("--short", action="store_true", help="with --nests: values of small ones beside plain Python")
    options = parser.parse_args()
    peer = "numba" if options.nests else "onnxruntime"
    if not (options.nests and options.short) and find_spec(peer) is None:
        parser.error(f"{peer} is not installed: pip install {peer}, or the extra `bench`")
    compare = partial(compared, slower=options.slower)
    if options.nests:
        compare = beside_python if options.short else partial(beside_numba, slower=options.slower)
    seed, count, end = options.seed, 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        line = compare(seed)
        count += line is not None
        seed += 1
        if line:
            print(line, flush=True)
    kind = "nests" if options.nests else "models"
    print(f"{count} {kind}, seeds {options.seed} to {seed - 1}" if count else f"no {kind}")


if __name__ == "__main__":
    main()
