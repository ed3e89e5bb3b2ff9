"""Measure ours against every installed peer.

Each peer runs in a process of its own, warm; rounds are interleaved, results are checked, medians of the rounds are
reported beside the limits of the machine from the same rounds. A row is a line of benchmarks/cases.py, a peer an entry
of benchmarks/peers.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases import FIELDS, KINDS, MODELS, MORE, Case, load_cases
from benchmarks.driver import ROOT, Progress, Row, Session
from benchmarks.peers import absent, installed, versions
from benchmarks.reference import model_cases
from benchmarks.report import draw, heading, line, notes, read_json, summary, write_json

EXAMPLES = """examples:
  python -m benchmarks                                the 60 cases and the models, 1 and 2 threads
  python -m benchmarks gemm conv --threads 1          cases whose names hold a word
  python -m benchmarks =gemm_512 --peers onnxruntime  one case, against one peer
  python -m benchmarks --only models --json out.json --picture out.png
  python -m benchmarks minilm --models FOLDER         any NAME.onnx in it whose NAME.npz holds in:... and out:...
"""


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    if (wrong := wrong_option(options)) is not None:
        parser.error(wrong)
    with tempfile.TemporaryDirectory(prefix="polyloom_models_") as work:
        models = _models(options, Path(work)) if options.only != "kernels" else ()
        try:
            cases = load_cases(options.cases, models)
        except (OSError, ValueError) as error:
            parser.error(f"--cases: {error}")
        chosen = _chosen(cases, models, options)
        if not chosen:
            sys.exit(f"no case has one of {', '.join(options.words)} in its name; --list shows them")
        for word in (w for w in options.words if not any(_names(c.name, w) for c in chosen)):
            print(f"no case has {word} in its name; --list shows them", file=sys.stderr)
        if options.list:
            print("\n".join(c.name for c in chosen))
            return
        names = ["ours", *(n for n in installed() if n != "ours" and n in (options.peers or installed()))]
        facts = _facts(options)
        kept = read_json(options.json) if options.add and options.json is not None else []
        rows = _run(chosen, names, options, facts, kept)
    if options.json is not None:
        write_json(options.json, rows, facts)
    if options.picture is not None:
        draw(options.picture, rows, facts)


def _run(
    chosen: Sequence[Case],
    names: Sequence[str],
    options: argparse.Namespace,
    facts: dict[str, object],
    kept: Sequence[Row],
) -> list[Row]:
    """All rows, those of an earlier run that are `kept` first; they are not measured again."""
    rows = list(kept)
    there = {(row.case, row.threads) for row in kept}
    for name, why in absent().items():
        print(f"{name}: {why}, so there is no ratio against it")
    for threads in options.threads:
        _warn_of_cores(threads)
        print(f"\n{threads} thread{'s' * (threads > 1)}; microseconds (!: wrong result), ratio: ours / best peer")
        print("limit: what the machine allows (at the clock between our calls) / ours; compile time cold and cached")
        print(heading(names))
        with _bar(len(chosen)) as (step, told):
            session = Session(names, threads, chosen, options.rounds, options.seconds, options.least, told)
            with session:
                for case in (c for c in chosen if (c.name, threads) not in there):
                    row = session.row(case)
                    rows.append(row)
                    step("\n".join([line(row, names), *notes(row)]))
                    if options.json is not None:
                        write_json(options.json, rows, facts)  # so that a run that is stopped leaves what it has
        print(summary([r for r in rows if r.threads == threads]))
    return rows


def _chosen(cases: Sequence[Case], models: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    """Without words the 60 cases and the models; words look among the others, too."""
    if options.only == "models":
        cases = models
    if not options.words:
        extra = {c.name for c in MORE}
        return [c for c in cases if c.name not in extra]
    return [c for c in cases if any(_names(c.name, w) for w in options.words)]


def _models(options: argparse.Namespace, work: Path) -> tuple[Case, ...]:
    """Without words those of `MODELS`, which are what is shown; words look among all that are in the folder."""
    words: list[str] = options.words
    return model_cases(options.models, work, lambda n: any(_names(n, w) for w in words) if words else n in MODELS)


def _names(name: str, word: str) -> bool:
    return name == word[1:] if word.startswith("=") else word in name


def wrong_option(options: argparse.Namespace) -> str | None:
    """What would be ignored, or would fail only once all is measured."""
    known = [*installed()[1:], *absent(), "ours"]
    for name in options.peers or ():
        if name not in known:
            return f"no peer {name!r}: one of {', '.join(known)}"
    if min(options.threads) < 1 or options.rounds < 1 or options.seconds <= 0:
        return "--threads, --rounds and --seconds are positive"
    for file in (options.json, options.picture):
        if file is not None and not file.absolute().parent.is_dir():
            return f"no folder {file.absolute().parent} for {file.name}"
    if options.picture is not None and options.picture.suffix not in (".png", ".svg"):
        return f"{options.picture} is no .png or .svg"
    return None


def _warn_of_cores(threads: int) -> None:
    if len(os.sched_getaffinity(0)) < threads:
        print(f"only {len(os.sched_getaffinity(0))} core(s) for {threads} threads: times mean little", file=sys.stderr)


@contextmanager
def _bar(count: int) -> Generator[tuple[Progress, Progress]]:
    """Two functions: one prints a finished row, one tells what goes on; a bar below where there is a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, flush=True), lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, redirect_stdout=True) as bar:
        task = bar.add_task("", total=count)

        def step(text: str) -> None:
            print(text, flush=True)
            bar.advance(task)

        yield step, lambda text: bar.update(task, description=text)


def _facts(options: argparse.Namespace) -> dict[str, object]:
    from poly.codegen.host import host_machine

    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": _commit(),
        "processor": _processor(), "cores": os.cpu_count(), "machine": str(host_machine()),
        "python": platform.python_version(), "versions": versions(), "absent": absent(),
        "rounds": options.rounds, "least": options.least, "seconds": options.seconds,
    }  # fmt: skip


def _commit() -> str:
    """Of this package's folder, `+` where files differ from it; "" where there is no git."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=8"], cwd=ROOT, capture_output=True, text=True
        )
        return told.stdout.strip()
    except OSError:
        return ""


def _processor() -> str:
    try:
        for text in Path("/proc/cpuinfo").read_text().splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, epilog=f"{EXAMPLES}\n{FIELDS}\nkinds: {', '.join(KINDS)}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    models = Path(os.environ.get("POLYLOOM_MODELS", ROOT / "../shared/models"))
    parser.add_argument("words", nargs="*", help="only cases whose names hold one of these; '=name' for one exactly")
    parser.add_argument("--only", choices=("kernels", "models"), help="the single kernels, or the whole models")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="default: 1 2")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="interleaved rounds (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.05, metavar="S", help="of a peer in a round (default: 0.05)")
    parser.add_argument("--least", action="store_true", help="least times, not medians: where others use the machine")
    parser.add_argument("--peers", nargs="+", metavar="PEER", help=f"of {', '.join(installed()[1:])} (default: all)")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="more cases, a JSON list (see below)")
    parser.add_argument("--models", type=Path, default=models, metavar="FOLDER", help="default: $POLYLOOM_MODELS")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--add", action="store_true", help="go on with the run whose figures are in the --json file")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the ratios and limits (.png or .svg)")
    parser.add_argument("--list", action="store_true", help="only list the cases")
    return parser


if __name__ == "__main__":
    main()
