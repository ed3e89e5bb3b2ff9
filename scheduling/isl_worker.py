"""The process that runs isl's scheduler: a JSON object a line in, one out.

It stands alone (standard library and islpy), is started by path, and may be killed at any time. isl's operation count
does not bound its scheduler, so every request runs under a limit of processor time that ends the process.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import Final, TypedDict

import islpy as isl

MEMORY_BYTES: Final = 4 << 30


class Request(TypedDict):
    """Sets and relations as isl writes them. `seconds`: of processor time."""

    domain: str
    context: str
    validity: str
    coincidence: str
    proximity: str
    mode: str
    seconds: float


def compute(request: Request) -> str:
    """The schedule tree, as isl writes it."""
    context = isl.DEFAULT_CONTEXT
    context.set_schedule_maximize_coincidence(int(request["mode"] == "maximise-coincidence"))
    context.set_schedule_algorithm(int(request["mode"] == "feautrier"))
    constraints = (
        isl.ScheduleConstraints.on_domain(isl.UnionSet(request["domain"]))
        .set_context(isl.Set(request["context"]))
        .set_validity(isl.UnionMap(request["validity"]))
        .set_coincidence(isl.UnionMap(request["coincidence"]))
        .set_proximity(isl.UnionMap(request["proximity"]))
    )
    return constraints.compute_schedule().to_str()


def limit(seconds: float) -> None:
    """End this process after that much more processor time; 0 takes the limit away."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    soft = int(used + seconds) + 2 if seconds else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, also inside isl
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        request: Request = json.loads(line)
        limit(request["seconds"])
        try:
            answer = {"schedule": compute(request)}
        except (isl.Error, MemoryError) as error:
            answer = {"error": str(error)}
        limit(0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
