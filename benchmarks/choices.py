"""How good are choices that nothing was measured for? `python -m benchmarks.choices [words ...]`

For every contraction and convolution among the cases: the time of the plan that the model likes best, against the best
of many that are measured. Candidates are the model's favourites of every way to do it (loops of lanes and rows, what is
packed and where, order of the tile loops), so that they differ in more than a block size. Slow ones are measured once
or twice, the best and the choice in interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from benchmarks.candidates import Array, Nest, Shelf, batches, nests_of, plans_of
from benchmarks.cases import Case, load_cases
from poly.codegen.host import host_machine
from poly.scheduling.cpu_contract import Rated

FIRST, LAST, FINALISTS, BATCH = 3, 9, 10, 16  # rounds over all candidates and over the best, a batch in memory at once
SLOW = 1.5  # of the best so far, twice: not measured again
SAMPLE = 2e-4  # seconds of one measurement, at the least
GOOD = 1.1
ROUNDING = 1e-4  # of the greatest value
EXAMPLES = """examples:
  python -m benchmarks.choices                            all contractions and convolutions
  python -m benchmarks.choices gemm --candidates 50       cases whose names hold a word
  python -m benchmarks.choices --keep DIR --only make     compile the candidates into a folder, measure nothing
  python -m benchmarks.choices --keep DIR --only measure --json out.json
"""


@dataclass(frozen=True)
class Candidate:
    """A plan as text, the cycles that the model gives it, the least seconds that it took."""

    plan: str
    cycles: float
    seconds: float


@dataclass(frozen=True)
class Found:
    """Of one nest, the model's choice first; `count` candidates were measured."""

    nest: str
    candidates: tuple[Candidate, ...]

    @property
    def chosen(self) -> float:
        return self.candidates[0].seconds

    @property
    def best(self) -> float:
        return min(c.seconds for c in self.candidates)

    def __str__(self) -> str:
        place = 1 + sum(c.seconds < self.chosen for c in self.candidates)
        times = f"{self.chosen * 1e6:9.1f}us {self.best * 1e6:9.1f}us"
        return f"{self.nest:30} {times}  {self.chosen / self.best:5.2f}  {place} of {len(self.candidates)}"


class Judge:
    """Measures candidates of one nest on the same arrays."""

    def __init__(self, nest: Nest, shelf: Shelf) -> None:
        self.nest, self.shelf = nest, shelf
        self.arrays = nest.arrays()
        program = nest.program
        self.inputs = [self.arrays[t.name] for t in program.inputs]
        outputs = [self.arrays[t.name] for t in program.outputs]
        self.out: Array | list[Array] = outputs[0] if len(outputs) == 1 else outputs
        self.constants = {t.name: self.arrays[t.name] for t in program.with_role("constant")}
        self.expected: npt.NDArray[np.float32] | None = None

    def found(self, rated: Sequence[Rated], seconds: float) -> Found | None:
        """The candidates' times; None where the choice or all others have no code. Ends after about `seconds`."""
        end = perf_counter() + seconds
        least: dict[int, float] = {}
        for batch in batches(rated, BATCH):
            numbers = range(len(least), len(least) + len(batch))
            times = self._rounds(dict(zip(numbers, batch, strict=True)), FIRST, SLOW)
            if not least and not np.isfinite(times[0]):
                return None
            least |= times
            if perf_counter() > end:
                break
        ranked = sorted((k for k in least if np.isfinite(least[k])), key=lambda k: least[k])
        final = sorted({0, *ranked[:FINALISTS]})
        again = self._rounds({k: rated[k] for k in final}, LAST, np.inf)
        worst = max(again.values())
        times = {k: again[k] if k in again else max(least[k], worst) for k in ranked}
        if len(times) < 2:
            return None
        shown = [Candidate(repr(rated[k].plan), rated[k].cycles, times[k]) for k in sorted(times)]
        return Found(self.nest.name, tuple(shown))

    def _rounds(self, candidates: dict[int, Rated], rounds: int, slow: float) -> dict[int, float]:
        """The least seconds of each, in interleaved rounds; after two, those that are slow drop out."""
        calls = {k: call for k, r in candidates.items() if (call := self._call(r)) is not None}
        times = dict.fromkeys(candidates, np.inf)
        repeats = dict.fromkeys(calls, 1)
        for number in range(rounds):
            limit = slow * min(times.values()) if number > 1 else np.inf
            for k, call in calls.items():
                if times[k] <= limit:
                    start = perf_counter()
                    for _ in range(repeats[k]):
                        call()
                    times[k] = min(times[k], (perf_counter() - start) / repeats[k])
                    repeats[k] = max(1, int(SAMPLE / times[k]))
        return times

    def _call(self, rated: Rated) -> Callable[[], object] | None:
        """A call that was made once; None where the plan was not made or was refused."""
        kernel = self.shelf.kernel(self.nest, rated.plan, self.constants)
        if kernel is None:
            return None
        inputs, out = self.inputs, self.out if isinstance(self.out, np.ndarray) else tuple(self.out)
        kernel(*inputs, out=out)
        first = np.asarray(out if isinstance(out, np.ndarray) else out[0], np.float32)
        if self.expected is None:
            self.expected = first.copy()
        if not np.abs(first - self.expected).max() <= ROUNDING * np.abs(self.expected).max():
            raise AssertionError(f"{self.nest.name}: another result of {rated.plan}")
        return lambda: kernel(*inputs, out=out)


def summary(found: Sequence[Found]) -> str:
    near = sum(f.chosen <= GOOD * f.best for f in found)
    mean = np.exp(np.mean([np.log(f.chosen / f.best) for f in found])) if found else 1.0
    share = near / max(1, len(found))
    return f"within 10 % of the best: {near} of {len(found)} ({share:.0%}); geometric mean {mean:.3f}"


def _chosen(options: argparse.Namespace) -> list[Case]:
    kinds = ("einsum", "conv", "linear", "attention")
    cases = [c for c in load_cases(options.cases) if c.kind in kinds]
    words = options.words
    return [c for c in cases if not words or any(c.name == w[1:] if w[0] == "=" else w in c.name for w in words)]


def _run(options: argparse.Namespace, shelf: Shelf, workers: Executor | None) -> list[Found]:
    found: list[Found] = []
    for case in _chosen(options):
        for nest in nests_of(case, shelf.machine):
            rated = plans_of(nest, options.candidates, options.far)
            shelf.fill(nest, [r.plan for r in rated], workers, options.make)
            if options.only == "make":
                print(f"{nest.name:30} {len(rated)} candidates", flush=True)
                continue
            result = Judge(nest, shelf).found(rated, options.seconds)
            print(result or f"{nest.name:30} nothing to choose", flush=True)
            if result is None:
                continue
            found.append(result)
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(f) for f in found], indent=1))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.choices", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("words", nargs="*", help="only cases whose names hold one of these (=NAME: exactly)")
    parser.add_argument("--candidates", type=int, default=200, metavar="N", help="measured at most (default: 200)")
    parser.add_argument("--far", type=float, default=3.0, metavar="X", help="predicted to take X times as long as the "
                        "best: left out (default: 3)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of measuring a nest (default: 20)")
    parser.add_argument("--make", type=float, default=120.0, metavar="S", help="of making candidates (default: 120)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="processes")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where candidates are kept; delete it when the "
                        "package changes")  # fmt: skip
    parser.add_argument("--only", choices=("make", "measure"), help="one of the two steps")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="more cases, a JSON list")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all candidates and times here")
    return parser


def main() -> None:
    options = _parser().parse_args()
    pool = (
        nullcontext(None)
        if options.only == "measure"
        else ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"))
    )
    if options.only != "make":
        print(f"{'nest':30} {'chosen':>11} {'best':>11}  ratio  place")
    with tempfile.TemporaryDirectory(prefix="polyloom_choices_") as folder, pool as workers:
        found = _run(options, Shelf(options.keep or Path(folder), replace(host_machine(), cores=1)), workers)
    if options.only != "make":
        print(summary(found))


if __name__ == "__main__":
    main()
