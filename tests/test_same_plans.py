"""A plan depends on the program, the machine and the number of threads alone: what a process compiled before, the cores
that it may use, when it makes object code and the order of its sets do not change it.
"""

from __future__ import annotations

import os
import subprocess
import sys

# A product whose copies out of registers isl bounds in two ways, by what it was asked before; a long row, of which too
# few are shared out for its steps to be one on several threads.
PLANS = """
import os, sys
if "pinned" in sys.argv:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import poly
from poly.frontend.einsum import einsum_program

def product(text, *shapes):
    return poly.compile(einsum_program(text, shapes, ["f32"] * len(shapes)))

def row():
    return poly.compile(poly.parse(
        "m[i] max= x[i,j]; e[i,j] = exp(x[i,j] - m[i]); s[i] += e[i,j]; y[i,j] = e[i,j] / s[i]", x=(1, 50000)
    ))

def first():
    return product("gdab,efgc->abcdef", (24, 16, 16, 16), (16, 16, 24, 16))

if "after others" in sys.argv:
    row(), first(), product("dega,gfbc->abcdef", (16, 16, 24, 16), (24, 16, 16, 16))
for kernel in (first(), row()):
    print(kernel.schedule.program, kernel.schedule, kernel.loops)
"""


def plans(*how: str, seed: int, jobs: int) -> str:
    """What a process of its own prints. `jobs`: 1: object code comes after all checks, more: meanwhile."""
    environment = {"POLYLOOM_CACHE": "off", "PYTHONHASHSEED": str(seed), "POLYLOOM_JOBS": str(jobs)}
    return subprocess.run(
        [sys.executable, "-c", PLANS, *how], check=True, capture_output=True, text=True, env=os.environ | environment
    ).stdout


def test_plans_do_not_differ_from_process_to_process() -> None:
    usual = plans(seed=0, jobs=1)
    assert usual.count("exp(") and usual.count("unroll")
    assert plans(seed=1, jobs=2) == usual
    assert plans("pinned", seed=2, jobs=2) == usual
    assert plans("after others", seed=0, jobs=1) == usual
