"""Mutated ONNX files against the importer: every failure has to be a `PolyError`, soon, and in bounded memory.

    python -m tests.fuzz_onnx --count 10000 --seed 1 --jobs 2

Real and random models are mutated in their bytes (flips, cuts, splices) or in their messages (shapes, dtypes,
attributes, edges, operator sets, any field). Each file is read and checked by a worker with a limit on its memory; a
worker that dies, that is silent for longer than the limit, or that lets another exception out is a finding. A case is
named by its seed and number, and is made again from these alone: `--only 1234`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

MODELS: Final = Path(os.environ.get("POLYLOOM_MODELS", "../shared/models"))
LARGEST: Final = 3 << 20  # larger files are mostly weights
MEMORY: Final = 4 << 30
SECONDS: Final = 5.0  # of the processor, so that a busy machine makes no findings
WALL: Final = 90.0
NUMBERS: Final = (0, 1, -1, 2, 3, 7, 64, 127, 255, 4096, 2**16, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62,
                  2**63 - 1, -(2**63))  # fmt: skip
FRACTIONS: Final = (0.0, -1.0, 0.5, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"))


@dataclass(frozen=True)
class Base:
    """A model to mutate, and the shapes that bind its inputs."""

    path: Path
    shapes: dict[str, tuple[int, ...]]


def bases() -> list[Base]:
    """The models there are, those of the folder and the random ones, in a fixed order."""
    found: list[Base] = []
    for path in [*sorted(MODELS.glob("*.onnx")), *sorted((MODELS / "nnsmith").glob("*.onnx"))]:
        if path.stat().st_size > LARGEST:
            continue
        arrays = np.load(path.with_suffix(".npz"))
        found.append(Base(path, {k[3:]: arrays[k].shape for k in arrays if k.startswith("in:")}))
    return found


# -- mutations -------------------------------------------------------------------------------------------------------


def mutated(base: Base, rng: random.Random) -> bytes:
    """A file that came from this one by one to four changes."""
    data = base.path.read_bytes()
    if rng.random() < 0.3:
        return mutated_bytes(data, rng)
    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        try:
            rng.choice(MESSAGE_MUTATIONS)(model, rng)
        except (ValueError, IndexError, TypeError):  # no such part, or a number outside of its field
            continue
    try:
        changed = model.SerializeToString()
    except Exception:  # a string that is none
        return mutated_bytes(data, rng)
    return mutated_bytes(changed, rng) if rng.random() < 0.05 else changed


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flips (mostly near the start, where the structure is), cuts, splices, insertions."""
    found = bytearray(data)
    match rng.randrange(5):
        case 0 | 1:
            reach = rng.choice((64, 1024, 16384, len(found)))
            for _ in range(rng.choice((1, 2, 8, 32))):
                found[rng.randrange(min(reach, len(found)))] ^= 1 << rng.randrange(8)
        case 2:
            del found[rng.randrange(len(found)) :]
        case 3:
            start = rng.randrange(len(found))
            del found[start : start + rng.randrange(1, 200)]
        case _:
            start, other = rng.randrange(len(found)), rng.randrange(len(found))
            found[start:start] = found[other : other + rng.randrange(1, 200)]
    return bytes(found)


def any_field(model: onnx.ModelProto, rng: random.Random) -> None:
    """Any field of any message, however deep."""
    message: Message = model
    while True:
        fields = [f for f, _ in message.ListFields()]
        inner = [f for f in fields if f.type == FieldDescriptor.TYPE_MESSAGE]
        if inner and rng.random() < 0.9:
            field = rng.choice(inner)
            value = getattr(message, field.name)
            if not is_repeated(field):
                message = value
                continue
            if rng.random() < 0.8:
                message = rng.choice(value)
                continue
            change_repeated(value, rng)
            return
        change_field(message, rng.choice(list(message.DESCRIPTOR.fields)), rng)
        return


def is_repeated(field: Any) -> bool:
    repeated = getattr(field, "is_repeated", None)  # newer versions of protobuf have no `label`
    return getattr(field, "label", 0) == 3 if repeated is None else bool(repeated)


def change_repeated(values: Any, rng: random.Random) -> None:
    """Drop, repeat or exchange entries of a list."""
    position = rng.randrange(len(values))
    match rng.randrange(3):
        case 0:
            del values[position]
        case 1:
            values.append(values[position])
        case _:
            kept = list(values)
            rng.shuffle(kept)
            copies = [type(v).FromString(v.SerializeToString()) if isinstance(v, Message) else v for v in kept]
            del values[:]
            values.extend(copies)


def change_field(message: Any, field: Any, rng: random.Random) -> None:
    """Clear a field, or give it a value that is seldom there."""
    if rng.random() < 0.2 or field.type == FieldDescriptor.TYPE_MESSAGE:
        message.ClearField(field.name)
        return
    values: Sequence[object] = NUMBERS
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        values = FRACTIONS
    elif field.type == FieldDescriptor.TYPE_STRING:
        values = ("", "x", "Conv", "ai.onnx.ml", "a" * 5000, "\u00e9\u4e16", "../../etc/passwd", "location")
    elif field.type == FieldDescriptor.TYPE_BYTES:
        values = (b"", b"\x00", b"\xff\xfe", b"SAME_UPPER", b"\x7f" * 4000)
    elif field.type == FieldDescriptor.TYPE_ENUM:
        values = range(-1, 30)
    value = rng.choice(list(values))
    if not is_repeated(field):
        setattr(message, field.name, value)
        return
    held = getattr(message, field.name)
    if held and rng.random() < 0.7:
        held[rng.randrange(len(held))] = value
    else:
        held.append(value)


def shape_of_input(model: onnx.ModelProto, rng: random.Random) -> None:
    dims = rng.choice([*model.graph.input, *model.graph.output]).type.tensor_type.shape.dim
    change_dims(dims, rng)


def change_dims(dims: Any, rng: random.Random) -> None:
    match rng.randrange(3):
        case 0:
            rng.choice(dims).dim_value = rng.choice(NUMBERS)
        case 1:
            del dims[rng.randrange(len(dims))]
        case _:
            dims.add().dim_param = "n"


def shape_of_weights(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    match rng.randrange(4):
        case 0:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
        case 1:
            tensor.dims.append(rng.choice(NUMBERS))
        case 2:
            dims = list(tensor.dims)
            rng.shuffle(dims)
            tensor.dims[:] = dims
        case _:
            del tensor.dims[rng.randrange(len(tensor.dims))]


def dtype(model: onnx.ModelProto, rng: random.Random) -> None:
    number = rng.randrange(0, 28)
    if rng.random() < 0.5 and model.graph.initializer:
        rng.choice(model.graph.initializer).data_type = number
    else:
        rng.choice(model.graph.input).type.tensor_type.elem_type = number


def attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    found = rng.choice([a for n in model.graph.node for a in n.attribute])
    match rng.randrange(5):
        case 0:
            found.type = rng.randrange(0, 15)  # pyright: ignore
        case 1:
            found.i = rng.choice(NUMBERS)
        case 2 if found.ints:
            found.ints[rng.randrange(len(found.ints))] = rng.choice(NUMBERS)
        case 3:
            found.ints.append(rng.choice(NUMBERS))
        case _:
            found.f = rng.choice(FRACTIONS)


def small_integers(model: onnx.ModelProto, rng: random.Random) -> None:
    """Shapes, axes, pads, indices: contents of small integer tensors."""
    tensors = [t for t in model.graph.initializer if t.data_type in (6, 7)]
    tensors += [a.t for n in model.graph.node for a in n.attribute if a.HasField("t") and a.t.data_type in (6, 7)]
    tensor = rng.choice(tensors)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[rng.randrange(array.size)] = rng.choice(NUMBERS) % 2**31
    tensor.CopyFrom(onnx.numpy_helper.from_array(array * rng.choice((1, -1)), tensor.name))


def edge(model: onnx.ModelProto, rng: random.Random) -> None:
    """An input or output by another name: cycles, missing and double definitions."""
    names = [n for node in model.graph.node for n in (*node.input, *node.output)]
    node = rng.choice(model.graph.node)
    side = node.input if rng.random() < 0.7 else node.output
    side[rng.randrange(len(side))] = rng.choice([*names, "", "nowhere"])


def operator(model: onnx.ModelProto, rng: random.Random) -> None:
    from onnx import defs

    schemas = sorted({s.name for s in defs.get_all_schemas() if not s.domain})
    rng.choice(model.graph.node).op_type = rng.choice(schemas)


def opset(model: onnx.ModelProto, rng: random.Random) -> None:
    model.opset_import[0].version = rng.choice((*range(0, 30), *NUMBERS))


def order(model: onnx.ModelProto, rng: random.Random) -> None:
    change_repeated(model.graph.node, rng)


def external_data(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    place = rng.choice(("../../../../etc/passwd", "/etc/passwd", "none", "", "."))
    tensor.external_data.add(key="location", value=place)
    tensor.external_data.add(key=rng.choice(("offset", "length")), value=str(rng.choice((*NUMBERS, "x"))))


MESSAGE_MUTATIONS: Final[tuple[Callable[[onnx.ModelProto, random.Random], None], ...]] = (
    any_field, any_field, any_field, shape_of_input, shape_of_weights, dtype, attribute, attribute, small_integers,
    small_integers, edge, edge, operator, opset, order, external_data,
)  # fmt: skip


def case(all_bases: Sequence[Base], seed: int, number: int) -> tuple[Base, bytes]:
    """Case `number` of a seed."""
    rng = random.Random(f"{seed}/{number}")
    base = rng.choice(all_bases)
    return base, mutated(base, rng)


# -- what runs the cases ---------------------------------------------------------------------------------------------


def read_model(path: Path, shapes: dict[str, tuple[int, ...]]) -> str:
    """What became of a file: "" where it is a model, else the kind and the words of the error."""
    from poly.errors import PolyError
    from poly.frontend.onnx_import import from_onnx
    from poly.model_check import check_model

    try:
        from_onnx(path, shapes)
        check_model(path, shapes)
    except PolyError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def worker(seed: int) -> None:
    """Numbers on stdin; for each "start" and then a line of JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    all_bases = bases()
    with tempfile.TemporaryDirectory() as folder:
        read_model(all_bases[0].path, all_bases[0].shapes)  # imports
        print("ready", flush=True)
        for line in sys.stdin:
            base, data = case(all_bases, seed, int(line))
            path = Path(folder) / "model.onnx"
            path.write_bytes(data)
            print("start", flush=True)
            began = time.process_time()
            try:
                found = {"outcome": read_model(path, base.shapes)}
            except Exception:
                found = {"escaped": traceback.format_exc()}
            print(json.dumps({"base": base.path.name, "seconds": time.process_time() - began, **found}), flush=True)


class Worker:
    """A worker process that is started again where it died."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._read = b""
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "tests.fuzz_onnx", "--worker", "--seed", str(self._seed)]
        self._read = b""
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._line(600.0)

    def _line(self, seconds: float) -> str | None:
        """The next line; None where there is none in time, "" at the worker's end."""
        assert self._process.stdout is not None
        stream, end = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._read:
            ready, _, _ = select.select([stream], [], [], max(0.0, end - time.monotonic()))
            found = os.read(stream, 1 << 16) if ready else b""
            if not found:
                return "" if ready else None
            self._read += found
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def _spent(self) -> float:
        """Seconds of the processor that the worker has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _answer(self) -> str | None:
        """The answer, as long as the worker has time left; its time begins with the line that says it has begun."""
        start, end = self._spent(), time.monotonic() + WALL
        while time.monotonic() < end and self._spent() - start < SECONDS:
            line = self._line(0.5)
            if line is not None and (not line or line.startswith("{")):
                return line
            start = start if line is None else self._spent()
        return None

    def run(self, number: int) -> dict[str, Any]:
        """What became of a case: base, seconds and one of outcome, escaped, died, hung."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{number}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._answer()
        if line:
            return json.loads(line)
        found = {"hung": f"for {SECONDS} s"} if line is None else {"died": f"status {self._process.wait(10)}"}
        self.close()
        self._start()
        return found

    def close(self) -> None:
        self._process.kill()
        _, words = self._process.communicate()
        if words:
            sys.stderr.write(words.decode(errors="replace")[-2000:])


def run_cases(seed: int, numbers: Iterable[int], jobs: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Results of cases, by several workers."""
    numbers = list(numbers)
    workers = [Worker(seed) for _ in range(jobs)]

    def share(k: int) -> list[tuple[int, dict[str, Any]]]:
        return [(n, workers[k].run(n)) for n in numbers[k::jobs]]

    with ThreadPoolExecutor(jobs) as pool:
        for results in pool.map(share, range(jobs)):
            yield from results
    for w in workers:
        w.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int, help="one case, here")
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    if options.worker:
        worker(options.seed)
        return 0
    if options.only is not None:
        base, data = case(bases(), options.seed, options.only)
        path = Path(tempfile.gettempdir()) / f"fuzz_{options.seed}_{options.only}.onnx"
        path.write_bytes(data)
        print(base.path, path)
        print(read_model(path, base.shapes) or "a model")
        return 0
    return report(run_cases(options.seed, range(options.first, options.first + options.count), options.jobs))


def report(results: Iterable[tuple[int, dict[str, Any]]]) -> int:
    outcomes: Counter[str] = Counter()
    slowest, bad = 0.0, 0
    for number, result in results:
        slowest = max(slowest, result.get("seconds", 0.0))
        kind = next(k for k in ("escaped", "died", "hung", "outcome") if k in result)
        outcomes[kind if kind != "outcome" else result["outcome"].partition(":")[0] or "a model"] += 1
        if kind != "outcome":
            bad += 1
            print(f"case {number} of {result.get('base')}: {kind}: {result[kind]}")
    print(f"{sum(outcomes.values())} files: {dict(outcomes)}, slowest {slowest:.2f} s, {bad} findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
