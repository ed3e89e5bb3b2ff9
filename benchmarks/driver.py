"""Rounds over the peers' processes: every peer has its turn in every round, next to what the machine allows then."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.cases import Case
from benchmarks.peers import environment
from benchmarks.reference import MODEL_ROUNDING, ROUNDING, STEPS, reference

ROOT = Path(__file__).resolve().parent.parent
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One case with one number of threads. Times in seconds, medians of the rounds; by peer, ours among them.

    `limit`: the time that the machine allows; `bound`: the operations and bytes a second that were measured for it.
    `compile` is cold, `cached` of ours with the object cache filled; `memory`: bytes of a peer's process, for models.
    """

    case: str
    threads: int
    seconds: dict[str, float]
    spread: dict[str, float]
    errors: dict[str, float]
    wrong: tuple[str, ...]
    absent: dict[str, str]
    limit: float | None
    bound: dict[str, float | str]
    compile: dict[str, float]
    cached: float | None
    memory: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def peers(self) -> dict[str, float]:
        """Times of the peers with a right result."""
        return {n: t for n, t in self.seconds.items() if n != "ours" and n not in self.wrong}

    @property
    def best(self) -> tuple[str, float] | None:
        """The fastest peer with a right result."""
        return min(self.peers.items(), key=lambda item: item[1]) if self.peers else None

    @property
    def ratio(self) -> float | None:
        """Ours over the best peer; None where one of them is missing or ours is wrong."""
        if self.best is None or "ours" not in self.seconds or "ours" in self.wrong:
            return None
        return self.seconds["ours"] / self.best[1]

    @property
    def share(self) -> float | None:
        """The time that the machine allows over ours."""
        return self.limit / self.seconds["ours"] if self.limit and "ours" in self.seconds else None


class Worker:
    """A peer's process."""

    def __init__(self, name: str, threads: int, cases: Path) -> None:
        cache = cases.parent / f"cache_{name}_{threads}"
        shutil.rmtree(cache, ignore_errors=True)
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {**os.environ, "POLYLOOM_CACHE": str(cache), "PYTHONPATH": path, **environment(name, threads)}
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", name, str(threads), str(cases)],
            cwd=ROOT, env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, **request: object) -> dict[str, float | str | None]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            return {"absent": f"its process ended ({self.process.wait()})"}

    def close(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait()


@dataclass
class Session:
    """Workers for one number of threads. A model gets processes of its own, whose memory is then the model's.

    `least`: the least times count, not the medians; for machines that others use at the same time.
    """

    names: Sequence[str]
    threads: int
    cases: Sequence[Case]
    rounds: int
    seconds: float
    least: bool = False
    progress: Progress = print

    def __enter__(self) -> Session:
        self._folder = Path(tempfile.mkdtemp(prefix="polyloom_bench_"))
        self._file = self._folder / "cases.pickle"
        self._file.write_bytes(pickle.dumps(tuple(self.cases)))
        self._limits = Worker("limits", self.threads, self._file)
        self._workers: list[Worker] = []
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self._workers, self._limits):
            worker.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _started(self, own: bool) -> list[Worker]:
        """The peers' processes: those there are, or new ones where `own`; one that ended is started again."""
        alive = {w.name: w for w in self._workers if w.process.poll() is None and not own}
        for worker in self._workers:
            if worker.name not in alive:
                worker.close()
        self._workers = [alive.get(n) or Worker(n, self.threads, self._file) for n in self.names]
        return self._workers

    def row(self, case: Case) -> Row:
        """Measure one case."""
        expected = self._folder / ("".join(c if c.isalnum() else "_" for c in case.name) + ".expected")
        expected.write_bytes(pickle.dumps(reference(case)))
        workers = self._started(case.kind == "model")
        ready: dict[str, dict[str, float | str | None]] = {}
        for worker in workers:
            self.progress(f"{case.name}: {worker.name} makes ready")
            ready[worker.name] = worker.ask(case=case.name)
        expected.unlink()
        live = [w for w in workers if "absent" not in ready[w.name]]
        times: dict[str, list[float]] = {w.name: [] for w in live}
        bounds: list[dict[str, float | str | None]] = []
        beside: list[float] = []
        for k in range(self.rounds):
            self.progress(f"{case.name}: round {k + 1} of {self.rounds}")
            if case.kind != "model":
                bounds.append(self._limits.ask(limits=case.name))
            for w in live[k % len(live) :] + live[: k % len(live)] if live else ():
                own = w.name == "ours" and case.kind != "model"
                answer = w.ask(time=self.seconds, least=self.least, peak=own)
                if "seconds" in answer:
                    times[w.name].append(_number(answer["seconds"]))
                if "flops" in answer:
                    beside.append(self.threads * _number(answer["flops"]))
        bound = _bound([b for b in bounds if "flops" in b], beside)
        return self._row(case, ready, times, bound)

    def _row(
        self,
        case: Case,
        ready: dict[str, dict[str, float | str | None]],
        times: dict[str, list[float]],
        bound: dict[str, float | str],
    ) -> Row:
        absent = {n: str(r["absent"]) for n, r in ready.items() if "absent" in r}
        made = {n: r for n, r in ready.items() if "absent" not in r}
        errors = {n: _number(r["error"]) for n, r in made.items()}
        middle = min if self.least else median
        most = STEPS * case.step + (MODEL_ROUNDING if case.kind == "model" else ROUNDING)
        cached = made.get("ours", {}).get("cached")
        return Row(
            case.name, self.threads, {n: middle(t) for n, t in times.items() if t},
            {n: (max(t) - min(t)) / median(t) for n, t in times.items() if t}, errors,
            tuple(n for n, e in errors.items() if not e < most), absent,
            _least_time(case, bound) if bound else None, bound,
            {n: _number(r["compile"]) for n, r in made.items()}, _number(cached) if cached is not None else None,
            {n: _number(r["memory"]) for n, r in made.items()} if case.kind == "model" else {},
        )  # fmt: skip


def _bound(bounds: Sequence[Mapping[str, float | str | None]], beside: Sequence[float]) -> dict[str, float | str]:
    """Medians of the rounds' limits; operations a second are those `beside` our calls, where there are any."""
    if not bounds:
        return {}
    found: dict[str, float | str] = {"pattern": str(bounds[0]["pattern"])}
    found |= {k: median(_number(b[k]) for b in bounds) for k in ("flops", "bandwidth", "functions")}
    return found | {"flops": median(beside)} if beside else found


def _least_time(case: Case, bound: Mapping[str, float | str]) -> float:
    """Seconds: the greatest of operations, bytes and functions."""
    flops, bandwidth, functions = (_number(bound[k]) for k in ("flops", "bandwidth", "functions"))
    return max(case.flops / flops, case.traffic / bandwidth, functions)


def _number(value: float | str | None) -> float:
    assert isinstance(value, int | float)
    return float(value)
