"""Draws the picture in the README from the schedule that the README builds: `python docs/make_pictures.py`."""

from __future__ import annotations

from pathlib import Path

import poly
from poly.pictures import schedule_tree
from poly.scheduling.schedule import Schedule

DOCS = Path(__file__).resolve().parent


def readme_schedule() -> Schedule:
    """A matrix product with relu in tiles of 16 x 16, its sums in an accumulator, its operands in a scratchpad."""
    program = poly.parse(
        "C[i,k] += A[i,j] * B[j,k]; D[i,k] = max(C[i,k] + bias[k], 0)", A=(64, 96), B=(96, 32), bias=(32,)
    )
    return (
        poly.Schedule(program)
        .tile({"C_init.i": 16, "C_init.k": 16})
        .tile({"C_update.i": 16, "C_update.k": 16, "j": 8})
        .tile({"D_set.i": 16, "D_set.k": 16})
        .reorder("C_update.i.o", "C_update.k.o", "j.o", "j.p", "C_update.i.p", "C_update.k.p")
        .fuse("C_init.i.o", "C_update.i.o")
        .fuse("i.o", "D_set.i.o")
        .fuse("C_init.k.o", "C_update.k.o")
        .fuse("k.o", "D_set.k.o")
        .promote("C", "k.o", "acc")
        .promote("A", "j.o", "l1")
        .promote("B", "j.o", "l1")
        .unroll("C_update.i.p")
        .vectorise("C_update.k.p")
        .parallelise("i.o")
    )


if __name__ == "__main__":
    schedule_tree(readme_schedule()).save(str(DOCS / "schedule.svg"))
