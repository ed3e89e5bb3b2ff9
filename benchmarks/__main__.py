"""`python -m benchmarks [words]`: the cases whose names hold one of the words, ours and every installed peer.

Each peer runs in its own process; rounds are interleaved, results checked, medians of rounds reported, with the
machine's limits from the same rounds. A row is added in `cases.py`, a peer in `peers.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from statistics import median

from benchmarks.cases import Case, load_cases
from benchmarks.peers import environment, installed

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-4


class Worker:
    """A peer's process."""

    def __init__(self, name: str, threads: int, cases: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.worker", name, str(threads), str(cases)]
        variables = {**os.environ, **environment(threads)}
        self.name = name
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=variables,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, **request: object) -> dict[str, float | str | None]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            return {"absent": f"its process ended ({self.process.poll()})"}

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(case: Case, workers: Sequence[Worker], limits: Worker, rounds: int, seconds: float) -> dict[str, object]:
    """One row."""
    ready: dict[str, dict[str, float | str | None]] = {w.name: w.ask(case=case.name) for w in workers}
    live = [w for w in workers if "absent" not in ready[w.name]]
    times: dict[str, list[float]] = {w.name: [] for w in live}
    flops: list[float] = []
    copied: list[float] = []
    for _ in range(rounds):
        bounds = limits.ask(size=max(4096, case.traffic))
        flops.append(float(bounds["flops"] or 0))
        copied.append(float(bounds["bytes"] or 0))
        for w in live:
            answer = w.ask(time=seconds)
            if "seconds" in answer:
                times[w.name].append(float(answer["seconds"] or 0))
    found = {n: median(t) for n, t in times.items() if t}
    return {
        "case": case.name, "seconds": found, "peak_flops": median(flops), "copy_bytes": median(copied),
        "errors": {w.name: ready[w.name]["error"] for w in live},
        "compile": {w.name: ready[w.name]["compile"] for w in live},
        "absent": {n: r["absent"] for n, r in ready.items() if "absent" in r},
        "flops": case.flops, "traffic": case.traffic,
    }  # fmt: skip


def ratio(row: dict[str, object]) -> float | None:
    """Ours over the best peer with a right result; None where one of them is absent."""
    seconds, errors = row["seconds"], row["errors"]
    assert isinstance(seconds, dict) and isinstance(errors, dict)
    peers = [t for n, t in seconds.items() if n != "ours" and errors[n] < TOLERANCE]
    return seconds["ours"] / min(peers) if peers and "ours" in seconds else None


def limit_share(row: dict[str, object], threads: int) -> float | None:
    """The time that the machine's limits allow over the time of ours."""
    seconds = row["seconds"]
    assert isinstance(seconds, dict)
    if "ours" not in seconds:
        return None
    compute = float(row["flops"]) / (float(row["peak_flops"]) * threads)  # type: ignore[arg-type]
    memory = float(row["traffic"]) / float(row["copy_bytes"])  # type: ignore[arg-type]
    return max(compute, memory) / seconds["ours"]


def line_of(row: dict[str, object], names: Sequence[str], threads: int) -> str:
    seconds, errors, took = row["seconds"], row["errors"], row["compile"]
    assert isinstance(seconds, dict) and isinstance(errors, dict) and isinstance(took, dict)
    cells = [f"{row['case']!s:26}"]
    for name in names:
        wrong = name in errors and not errors[name] < TOLERANCE
        cells.append(f"{seconds[name] * 1e6:11.1f}{'!' if wrong else ' '}" if name in seconds else f"{'-':>11} ")
    r, share = ratio(row), limit_share(row, threads)
    cells.append(f"{r:8.2f}" if r is not None else f"{'-':>8}")
    cells.append(f"{100 * share:7.0f}%" if share is not None else f"{'-':>8}")
    cells.append(f"{took['ours']:8.2f}s" if "ours" in took else f"{'-':>9}")
    return " ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("words", nargs="*", help="only cases whose names hold one of these; '=name' for one exactly")
    parser.add_argument("--cases", type=Path, default=ROOT / "../shared/bench/cases.json", help="a JSON list of cases")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05, help="measuring time of one round and peer")
    parser.add_argument("--peers", nargs="+", default=None, help="default: all that are installed")
    parser.add_argument("--json", type=Path, default=None, help="write all figures here")
    options = parser.parse_args()
    chosen = [c for c in load_cases(options.cases) if _wanted(c.name, options.words)]
    names = ["ours", *(n for n in installed() if n != "ours" and (options.peers is None or n in options.peers))]
    report: list[dict[str, object]] = []
    for threads in options.threads:
        print(f"\n{threads} thread{'s' * (threads > 1)}, microseconds (! = wrong result); ratio: ours / best peer")
        print(" ".join([f"{'case':26}", *(f"{n:>11} " for n in names), "   ratio", "   limit", "  compile"]))
        workers = [Worker(n, threads, options.cases) for n in names]
        limits = Worker("limits", 1, options.cases)
        for case in chosen:
            row = measure(case, workers, limits, options.rounds, options.seconds) | {"threads": threads}
            report.append(row)
            print(line_of(row, names, threads), flush=True)
            for name, why in row["absent"].items():  # type: ignore[attr-defined]
                if name == "ours":
                    print(f"    ours: {why}")
        for worker in (*workers, limits):
            worker.close()
        ratios = [r for row in report if row["threads"] == threads and (r := ratio(row)) is not None]
        if ratios:
            print(f"geometric mean of {len(ratios)} ratios: {exp(sum(map(log, ratios)) / len(ratios)):.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1))


def _wanted(name: str, words: Sequence[str]) -> bool:
    return not words or any(name == w[1:] if w.startswith("=") else w in name for w in words)


if __name__ == "__main__":
    main()
