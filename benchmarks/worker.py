"""One peer in a process of its own: reads requests as JSON lines, answers with JSON lines.

`{"case": k}` makes case k ready: {"error", "compile": seconds, "cached": seconds or null, "memory": greatest resident
bytes}; `{"time": seconds, "least": bool}` measures it for about that long: {"seconds": of one call}, and with `"peak":
true` as long again {"flops": operations a second of one core between calls}; `limits`, which is a worker like the
peers, answers `{"limits": k}` with what the machine allows.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from time import perf_counter, process_time, sleep

import numpy as np

from benchmarks.cases import Case, conv, einsum
from benchmarks.limits import measure, peak
from benchmarks.peers import PEERS, Call, ours, pin
from benchmarks.reference import error_of

WARM = 3
SAMPLE = 2e-5  # seconds at least of what the clock measures at once
SHORT = 1e-4  # seconds of calls between two measurements of the core's peak
REST = 5e-3  # seconds in which threads that are not at work use hardly any time of a core
Answer = dict[str, float | str | None]


def main() -> None:
    name, threads, cases_file = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not mix with the answers
    cores = os.sched_getaffinity(0)
    pin(threads)
    cases: dict[str, Case] = {c.name: c for c in pickle.loads(cases_file.read_bytes())}
    call: Call | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: Answer
        if "limits" in request:
            found = measure(cases[request["limits"]], threads)
            answer = {
                "pattern": found.pattern, "flops": found.flops, "bandwidth": found.bandwidth,
                "functions": found.functions(cases[request["limits"]], threads),
            }  # fmt: skip
        elif "case" in request:
            call = None  # the last case's memory goes first
            call, answer = _prepare(name, cases[request["case"]], threads, cases_file.parent, cores)
        else:
            assert call is not None
            answer = {"seconds": _measure(call, request["time"], least=request["least"])}
            if request.get("peak"):
                answer["flops"] = _peak_between(call, request["time"], least=request["least"])
        _at_rest()
        print(json.dumps(answer), file=answers, flush=True)


def _prepare(
    name: str, case: Case, threads: int, folder: Path, cores: set[int]
) -> tuple[Call | None, Answer]:
    """Our compiler may use all `cores`, however many threads a call has; a peer's threads might stay on them."""
    prepare = PEERS[name].prepare
    assert prepare is not None
    try:
        cached = None
        if name == "ours":
            with _on(cores):
                _initialise(threads)
                case.operands()  # their making is no part of compiling; those of the small cases are gone by now
                seconds, call = _timed(lambda: prepare(case, threads))
                cached = _timed(lambda: prepare(case, threads))[0]
        else:
            case.operands()
            seconds, call = _timed(lambda: prepare(case, threads))
        if call is None:
            return None, {"absent": "no way to express it"}
        results = [*call()]
        memory = _most_memory()
        expected: list[np.ndarray] = pickle.loads((folder / f"{_file_name(case)}.expected").read_bytes())
        return call, {
            "error": error_of(results, expected), "compile": seconds, "cached": cached, "memory": memory,
        }  # fmt: skip
    except Exception as error:  # a peer that fails is shown as absent, with its reason
        return None, {"absent": f"{type(error).__name__}: {str(error)[:300]}"}


@contextmanager
def _on(cores: set[int]) -> Generator[None]:
    """This thread, and those that it starts, on some cores for a while."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _most_memory() -> float:
    """The greatest resident size of this process so far in bytes (what getrusage says survives an exec)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0.0)


def _file_name(case: Case) -> str:
    return "".join(c if c.isalnum() else "_" for c in case.name)


def _initialise(threads: int) -> None:
    """Imports, the target and the workers, which are no part of a case's compile time: all modules, as those that are
    loaded late are made from their source each time where nothing is kept of them, and small cases.
    """
    import poly  # not in the processes of peers

    for module in walk_packages(poly.__path__, "poly."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    if threads > 1:
        poly.pool()
    ours(einsum("small product", "ik,kj->ij", (5, 6), (6, 7)), 1)
    ours(einsum("small chain", "ij,jk,kl->il", (5, 6), (6, 7), (7, 8)), 1)
    ours(conv("small windows", (1, 8, 6, 6), (8, 8, 3, 3)), 1)


def _timed(work: Callable[[], Call | None]) -> tuple[float, Call | None]:
    start = perf_counter()
    found = work()
    return perf_counter() - start, found


def _at_rest() -> None:
    """Wait until no thread of this process is at work: some libraries' look for more for 50 ms after a call, on cores
    that the next peer is measured on.
    """
    for _ in range(100):
        before = process_time()
        sleep(REST)
        if process_time() - before < REST / 10:
            return


def _measure(call: Call, budget: float, *, least: bool) -> float:
    """Seconds of one call: the median, or the least, of samples, each of as many calls as the clock needs."""
    once = 0.0
    for _ in range(WARM):
        start = perf_counter()
        call()
        once = perf_counter() - start
        if once > budget:
            break
    count = max(1, int(SAMPLE / max(once, 1e-8)))
    samples: list[float] = []
    end = perf_counter() + budget
    while len(samples) < 3 or (perf_counter() < end and len(samples) < 10_000):
        start = perf_counter()
        for _ in range(count):
            call()
        samples.append((perf_counter() - start) / count)
        if samples[-1] > 2 * budget:
            break
    return min(samples) if least else float(np.median(samples))


def _peak_between(call: Call, budget: float, *, least: bool) -> float:
    """Operations a second of one core between calls: its clock is then that of the calls. What they left of other
    code's and data's place in the caches is no part of it: the first run of the loop does not count.
    """
    found: list[float] = []
    end = perf_counter() + budget
    while len(found) < 3 or perf_counter() < end:
        start = perf_counter()
        while perf_counter() < start + SHORT:
            call()
        peak(1, tries=1)
        found.append(peak(1, tries=1))
    return max(found) if least else float(np.median(found))


if __name__ == "__main__":
    main()
