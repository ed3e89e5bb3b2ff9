"""The onnx package's own backend cases through `poly.compile`: what became of each, as a table.

`python -m tests.onnx_coverage [KIND ...]` runs every case (of some kinds) in worker processes and writes
docs/onnx_coverage.md and tests/onnx_coverage.tsv, which the tests gate on. A case counts as compiled only when its
model ran here, no node of it by the reference evaluator, and gave the expected outputs; as `fallback` when some node
ran by the evaluator.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

import poly
from poly.errors import PolyError
from poly.frontend.onnx_contrib import OPERATORS as CONTRIB

ROOT: Final = Path(__file__).parent.parent
TABLE: Final = Path(__file__).with_suffix(".tsv")
REPORT: Final = ROOT / "docs" / "onnx_coverage.md"
KINDS: Final = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
RESULTS: Final = ("compiled", "fallback", "refused", "wrong", "crashed")
_SECONDS: Final = 1200
_RANDOM: Final = ("Bernoulli", "RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike")


@dataclass(frozen=True)
class Row:
    """One case: its group by the operators' nature, what became of it, and why."""

    kind: str
    name: str
    group: str
    result: str
    reason: str = ""

    def __str__(self) -> str:
        return "\t".join((self.kind, self.name, self.group, self.result, self.reason)).rstrip("\t")


def read_table() -> dict[str, Row]:
    """The committed table, by kind and name."""
    rows = [Row(*line.split("\t")) for line in TABLE.read_text().splitlines()]
    return {f"{row.kind}/{row.name}": row for row in rows}


# -- the cases -----------------------------------------------------------------------------------------------------


def cases(kind: str) -> list[Any]:
    """The package's cases of a kind, in its order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "node":
            from onnx.backend.test.case.node import collect_testcases

            return collect_testcases(None)
        from onnx.backend.test.loader import load_model_tests

        return list(load_model_tests(kind=kind))


def model_of(case: Any) -> onnx.ModelProto:
    if case.model is not None:
        return case.model
    return onnx.load(str(Path(str(case.model_dir)) / "model.onnx" if case.model_dir else _light(case)))


def _light(case: Any) -> Path:
    """The file of a large net in the package."""
    return Path(onnx.__file__).parent.parent / case.url


def data_of(case: Any, model: onnx.ModelProto) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Inputs and expected outputs of each data set."""
    names = [i.name for i in model.graph.input]
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield dict(zip(names, map(_value, inputs), strict=False)), [_value(o) for o in outputs]
        return
    if case.model_dir is None:
        from onnx.backend.test.runner import Runner

        defaults = {i.name for i in model.graph.initializer}
        own = [i for i in model.graph.input if i.name not in defaults]
        wanted = _light(case).with_name(f"{_light(case).stem}_output_0.pb")
        inputs = {i.name: Runner.generate_dummy_data(i, seed=0, name=case.name, random=False) for i in own}
        yield inputs, [_stored(wanted, model.graph.output[0].type)]
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        parts = [
            [_stored(folder / f"{role}_{k}.pb", infos[k].type) for k in range(len(list(folder.glob(f"{role}_*.pb"))))]
            for role, infos in (("input", model.graph.input), ("output", model.graph.output))
        ]
        yield dict(zip(names, parts[0], strict=False)), parts[1]


def _value(v: Any) -> Any:
    return numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v


def _stored(path: Path, kind: onnx.TypeProto) -> Any:
    text = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(text))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(text))
    return numpy_helper.to_array(onnx.TensorProto.FromString(text))


# -- one case ------------------------------------------------------------------------------------------------------


def outcome(case: Any) -> tuple[str, str]:
    """What becomes of a case, and why where it is not compiled."""
    model = model_of(case)
    engine = poly.compile(model)
    names = [o.name for o in model.graph.output]
    reasons: dict[str, str] = {}
    random = any(node.op_type in _RANDOM for node in model.graph.node)
    try:
        for inputs, wanted in data_of(case, model):
            given = {name: v for name, v in inputs.items()}
            found = engine.run(given)
            same = alike if random else agree
            bad = [n for n, want in zip(names, wanted, strict=False) if not same(found[n], want, case)]
            if bad:
                return "wrong", f"output {bad[0]}"
            if engine.share is not None:
                reasons |= {name: o.reason for name, o in engine.share.outside.items()}
    except PolyError as error:
        return "refused", error.message
    if engine.fallbacks or engine.by_numpy:
        return "fallback", next(iter(reasons.values()), "an operator without a compiled form")
    return "compiled", ""


def alike(have: Any, want: Any, _case: Any) -> bool:
    """Of random values: equal shapes and dtypes."""
    return (np.shape(have), have.dtype) == (np.shape(want), want.dtype)


def agree(have: Any, want: Any, case: Any) -> bool:
    """Equal shapes and dtypes; floats within the case's tolerance, all else equal."""
    if isinstance(want, (list, tuple)):
        same = isinstance(have, (list, tuple)) and len(have) == len(want)
        return same and all(agree(h, w, case) for h, w in zip(have, want, strict=True))
    if want is None or have is None:
        return have is want
    have, want = np.asarray(have), np.asarray(want)
    if have.shape != want.shape or (have.dtype != want.dtype and "O" not in (have.dtype.kind, want.dtype.kind)):
        if not {have.dtype.kind, want.dtype.kind} <= {"O", "U", "T"}:
            return False
    if want.dtype.kind not in "fcV" and want.dtype.name not in ("bfloat16",) and "float" not in want.dtype.name:
        return bool(np.array_equal(have, want))
    rtol, atol = max(case.rtol, 1e-3), max(case.atol, 1e-5)
    if want.dtype.itemsize < 4:
        rtol = 2e-2
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    return bool(np.allclose(have.astype(wide), want.astype(wide), rtol=rtol, atol=atol, equal_nan=True))


def judged(case: Any) -> tuple[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result, reason = outcome(case)
        except Exception as error:  # anything but a PolyError is a crash
            result, reason = "crashed", f"{type(error).__name__}: {error}"
    return result, " ".join(reason.split())[:160]


# -- all cases -----------------------------------------------------------------------------------------------------


def work(kind: str, first: int, step: int) -> None:
    """A worker: prints a line before and after each case, so that the parent knows which one killed it."""
    found = cases(kind)
    for k in range(first, len(found), step):
        print(k, flush=True)
        result, reason = judged(found[k])
        print(f"{k}\t{found[k].name}\t{result}\t{reason}", flush=True)


def run_all(kind: str, workers: int) -> dict[str, tuple[str, str]]:
    """Every case of a kind. A worker that dies is started again behind the case that killed it."""
    found: dict[str, tuple[str, str]] = {}
    names = [case.name for case in cases(kind)]
    pending = [(first, workers) for first in range(workers)]
    while pending:
        running = [(first, step, _start(kind, first, step)) for first, step in pending]
        pending = []
        for _, step, process in running:
            output, _ = process.communicate()
            lines = output.splitlines()
            for line in lines:
                if "\t" in line:
                    _, name, result, reason = (line + "\t").split("\t")[:4]
                    found[name] = (result, reason)
            if lines and "\t" not in lines[-1]:
                dead = int(lines[-1])
                found[names[dead]] = ("crashed", f"the process ended with {process.returncode}")
                pending.append((dead + step, step))
    return found


def _start(kind: str, first: int, step: int) -> subprocess.Popen[str]:
    command = ["timeout", str(_SECONDS), sys.executable, "-m", "tests.onnx_coverage", kind, str(first), str(step)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


# -- the table -----------------------------------------------------------------------------------------------------

_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "outside": (
        "If Loop Scan SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength "
        "SequenceMap SplitToSequence ConcatFromSequence Optional OptionalGetElement OptionalHasElement StringConcat "
        "StringNormalizer StringSplit RegexFullMatch TfIdfVectorizer NonMaxSuppression NonZero Unique Compress "
        "ImageDecoder Gradient Adagrad Adam Momentum Bernoulli RandomNormal RandomUniform RandomNormalLike "
        "RandomUniformLike Multinomial"
    ).split(),
    "loops": "RNN LSTM GRU CumSum CumProd LinearAttention CausalConvWithState DFT STFT Det ArgMax ArgMin TopK "
    "MelWeightMatrix HannWindow HammingWindow BlackmanWindow".split(),
    "indirect": "Gather GatherElements GatherND Scatter ScatterElements ScatterND OneHot GridSample RoiAlign "
    "DeformConv NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss MaxUnpool TensorScatter ReverseSequence".split(),
}  # type: ignore[assignment]
_HALF: Final = {10, 16}


def group_of(case: Any) -> str:
    """Affine, loops, indirect or outside, by the worst operator; exotic or half where such a type occurs inside."""
    model = model_of(case)
    operators, types = set[str](), set[int]()
    _collect(model.graph, operators, types)
    for function in model.functions:
        operators.update(node.op_type for node in function.node)
    domains = {o.domain for o in model.opset_import if o.domain not in ("", "ai.onnx", "ai.onnx.preview")}
    outside = bool(operators & set(_GROUPS["outside"])) or 8 in types or any(d.startswith("ai.onnx.") for d in domains)
    if outside:
        return "outside"
    worst = next((g for g in ("indirect", "loops") if operators & set(_GROUPS[g])), "affine")
    if types - {*range(1, 8), 9, 11, 12, 13, 0} - _HALF:
        return f"{worst}, 8 bits or fewer"
    return f"{worst}, half" if types & _HALF else worst


def _collect(graph: onnx.GraphProto, operators: set[str], types: set[int]) -> None:
    for info in (*graph.input, *graph.output, *graph.value_info):
        for kind in (info.type, info.type.sequence_type.elem_type, info.type.optional_type.elem_type):
            types.add(kind.tensor_type.elem_type)
        if info.type.HasField("sequence_type") or info.type.HasField("optional_type"):
            operators.add("Optional")
    types.update(i.data_type for i in graph.initializer)
    for node in graph.node:
        operators.add(node.op_type)
        for attribute in node.attribute:
            if attribute.name == "to":
                types.add(attribute.i)
            if attribute.HasField("g"):
                _collect(attribute.g, operators, types)


def report(rows: Sequence[Row]) -> str:
    """The table as a page."""
    count = Counter((row.group, row.result) for row in rows)
    groups = sorted({row.group for row in rows}, key=lambda g: (g == "outside", "," in g, g))
    shown = [r for r in RESULTS if any(row.result == r for row in rows)]
    lines = [
        f"# ONNX backend cases, onnx {onnx.__version__}", "",
        "Made by `python -m tests.onnx_coverage`; the tests gate on the cases that pass (`tests/onnx_coverage.tsv`).",
        "Every case runs through `poly.compile(model).run(inputs)` on the CPU. *compiled*: the outputs agree and",
        "no node ran by numpy or onnx.reference; *fallback*: they agree and some did; *refused*: a `PolyError`.", "",
        f"| group | cases | {' | '.join(shown)} | compiled |", f"|---|{'---|' * (len(shown) + 2)}",
    ]  # fmt: skip
    plain = [row for row in rows if row.group in ("affine", "loops", "indirect")]
    sums = [("affine, loops and indirect, plain types", plain), ("all", list(rows))]
    for name, members in [*((g, [r for r in rows if r.group == g]) for g in groups), *sums]:
        count = Counter(row.result for row in members)
        cells = [str(len(members)), *(str(count[r]) for r in shown), f"{count['compiled'] / max(len(members), 1):.1%}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "## What is not compiled, and why", "", "| group | result | cases | reason | for example |",
              "|---|---|---|---|---|"]  # fmt: skip
    by_reason: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for row in rows:
        if row.result != "compiled":
            by_reason[row.group, row.result, row.reason].append(row.name)
    for (group, result, reason), names in sorted(by_reason.items(), key=lambda item: (item[0][0], -len(item[1]))):
        text = reason.replace("|", "\\|")
        lines.append(f"| {group} | {result} | {len(names)} | {text} | {names[0]} |")
    lines += [
        "", "## ONNX Runtime's own domain, com.microsoft", "",
        f"{len(CONTRIB)} operators have a compiled form; each has cases in `tests/test_onnx_contrib.py`, whose results",
        "are those of ONNX Runtime, codes within one. What has no form, operands and attributes too, is refused.", "",
        ", ".join(sorted(CONTRIB)) + ".",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(kinds: Sequence[str]) -> None:
    """Run the cases of some kinds, and write the table and the page; rows of other kinds stay."""
    rows = list(read_table().values()) if TABLE.exists() else []
    for kind in kinds:
        listed = cases(kind)
        found = run_all(kind, 1 if kind == "real" else 2)
        rows = [row for row in rows if row.kind != kind]
        rows += [Row(kind, c.name, group_of(c), *found.get(c.name, ("crashed", "no answer"))) for c in listed]
        rows.sort(key=lambda row: KINDS.index(row.kind))
        TABLE.write_text("".join(f"{row}\n" for row in rows))
        REPORT.write_text(report(rows))


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[2].isdigit():
        work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(sys.argv[1:] or KINDS)
