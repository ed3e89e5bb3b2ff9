"""Draws the picture in the README from the schedule that the README builds: `python docs/make_pictures.py`."""

from __future__ import annotations

from pathlib import Path

import poly
from poly.pictures import schedule_tree
from poly.scheduling.schedule import Schedule

DOCS = Path(__file__).resolve().parent


def readme_schedule() -> Schedule:
    """A matrix product with relu in tiles of 4 x 8: its sums in registers, a panel of B in a buffer of its own."""
    program = poly.parse(
        "C[i,k] += A[i,j] * B[j,k]; D[i,k] = max(C[i,k] + bias[k], 0)", A=(64, 96), B=(96, 32), bias=(32,)
    )
    return (
        poly.Schedule(program)
        .tile({"C_init.i": 4, "C_init.k": 8})
        .tile({"C_update.i": 4, "C_update.k": 8})
        .tile({"D_set.i": 4, "D_set.k": 8})
        .reorder("C_update.i.o", "C_update.k.o", "j", "C_update.i.p", "C_update.k.p")
        .fuse("C_init.i.o", "C_update.i.o")
        .fuse("i.o", "D_set.i.o")
        .fuse("C_init.k.o", "C_update.k.o")
        .fuse("k.o", "D_set.k.o")
        .promote("C", "k.o", "reg")
        .promote("B", "k.o", "l1")
        .unroll("C_init.i.p")
        .vectorise("C_init.k.p")
        .unroll("C_update.i.p")
        .vectorise("C_update.k.p")
        .unroll("D_set.i.p")
        .vectorise("D_set.k.p")
        .parallelise("i.o")
    )


if __name__ == "__main__":
    schedule_tree(readme_schedule()).save(str(DOCS / "schedule.svg"))
