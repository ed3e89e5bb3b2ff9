"""How good are choices that nothing was measured for? `python -m benchmarks.choices [words ...]`

For every contraction and convolution among the cases: the time of the plan that the model likes best, against the best
of many that are measured, by the code that `compile(..., tune=N)` chooses with. Candidates are the model's favourites,
and those of every way to do it (loops of lanes and rows, what is packed and where, order of the tile loops, copies
before), so that they differ in more than a block size; of those with equal code one. All are measured, those that are
fast more often (`poly.trials`); a line says how many in how many rounds. Making them takes longer than measuring: both
can be done bit by bit, as candidates are kept in a folder and times in a file.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from benchmarks.candidates import THREADS, nests_of
from benchmarks.cases import Case, load_cases
from benchmarks.trials import Found, Shown, Trials
from poly.codegen.host import host_machine
from poly.tuner import TuningContext, different
from poly.tuning import Tuning

GOOD = 1.1
MEGABYTES = 1 << 14  # of candidates
EXAMPLES = """examples:
  python -m benchmarks.choices                            all contractions and convolutions
  python -m benchmarks.choices gemm --candidates 50       cases whose names hold a word
  python -m benchmarks.choices --keep DIR --only make     compile the candidates into a folder, measure nothing
  python -m benchmarks.choices ttm --keep DIR --only measure --json out.json
  python -m benchmarks.choices --only show --json out.json
"""


def measured(path: Path) -> list[Found]:
    """What earlier runs found."""
    if not path.exists():
        return []
    kept = json.loads(path.read_text())
    return [Found(f["nest"], tuple(Shown(**c) for c in f["candidates"]), f["listed"]) for f in kept]


def summary(found: Sequence[Found]) -> str:
    near = sum(f.ratio <= GOOD for f in found)
    mean = np.exp(np.mean([np.log(f.ratio) for f in found])) if found else 1.0
    share = near / max(1, len(found))
    far = ", ".join(f"{f.nest} {f.ratio:.2f}" for f in found if f.ratio > GOOD)
    counts = sorted(len(f.candidates) for f in found) or [0]
    return (
        f"within 10 % of the best: {near} of {len(found)} ({share:.0%}); geometric mean {mean:.3f}; "
        f"{counts[0]} to {counts[-1]} candidates were measured a nest\nmore than 10 % off: {far or 'none'}"
    )


def _chosen(options: argparse.Namespace) -> list[Case]:
    kinds = ("einsum", "conv", "linear", "attention")
    cases = [c for c in load_cases(options.cases) if c.kind in kinds]
    words = options.words
    return [c for c in cases if not words or any(c.name == w[1:] if w[0] == "=" else w in c.name for w in words)]


def _run(options: argparse.Namespace) -> list[Found]:
    found = {f.nest: f for f in measured(options.json)} if options.json is not None else {}
    context = TuningContext(Tuning(), replace(host_machine(), cores=1), THREADS)
    for case in _chosen(options) if options.only != "show" else ():
        for nest in nests_of(case, context.machine):
            listed = nest.candidates(options.candidates, options.far)
            every = context.made(listed, 0.0 if options.only == "measure" else options.make, lambda _done, _all: None)
            made = different(listed, every)
            if options.only == "make":
                print(f"{nest.name:24} {len(made)} of {len(listed)} candidates", flush=True)
                continue
            result = Trials(nest).found(made, len(listed), options.seconds)
            print(result or f"{nest.name:24} nothing to choose", flush=True)
            if result is None:
                continue
            found[nest.name] = result
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(f) for f in found.values()], indent=1))
    return [*found.values()]


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
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where candidates are kept, a disk cache")
    parser.add_argument("--only", choices=("make", "measure", "show"), help="one of the two steps, "
                        "or what is in the file of times")  # fmt: skip
    parser.add_argument("--cases", type=Path, metavar="FILE", help="more cases, a JSON list")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all candidates and times here, "
                        "those of earlier runs too")  # fmt: skip
    return parser


def _wrong_option(options: argparse.Namespace) -> str | None:
    """What keeps the options from making sense, if anything does."""
    if min(options.candidates, options.far, options.seconds, options.make, options.jobs) <= 0:
        return "--candidates, --far, --seconds, --make and --jobs are positive"
    if options.only == "show" and (options.json is None or not options.json.is_file()):
        return "--only show needs the --json FILE of an earlier run"
    if options.only != "show" and not _chosen(options):
        return f"no contraction or convolution has one of {', '.join(options.words)} in its name"
    return None


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    if (wrong := _wrong_option(options)) is not None:
        parser.error(wrong)
    if options.only != "make":
        print(f"{'nest':24} {'chosen':>11} {'best':>11}  ratio  measured (candidates x rounds)")
    with tempfile.TemporaryDirectory(prefix="polyloom_choices_") as folder:
        os.environ |= {"POLYLOOM_CACHE": str(options.keep or folder), "POLYLOOM_CACHE_SIZE": str(MEGABYTES)}
        os.environ |= {"POLYLOOM_JOBS": str(options.jobs)}
        found = _run(options)
    if options.only == "show":
        print("\n".join(map(str, found)))
    if options.only != "make":
        print(summary(found))


if __name__ == "__main__":
    main()
