"""The `.nest` files: one case a file, as sections headed `[name]`.

# what the case shows
[program]   notation, read by `poly.parse`
[script]    edits, one a line
[error]     where the last edit is refused: the whole message; no other section is expected then
[schedule]  the tree that the script gives
[loops]     what it lowers to
[machine]   a profile: then [stream] is the command stream of the schedule for it
[run]       seed = 1, and values of free sizes; the loops, compiled code and stream agree with the interpreter
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from poly.accel.compiled import compile_stream
from poly.accel.profile import profile
from poly.compiler import compile_program, machine_of
from poly.dtypes import Array, numpy_dtype
from poly.errors import PolyError
from poly.frontend.notation import parse
from poly.interp import run_program
from poly.interp_loops import run_loops
from poly.program import Program, ReadIndex
from poly.scheduling.instances import check_instances
from poly.scheduling.schedule import Schedule
from poly.scheduling.schedule_text import parse_edit, tree_lines
from poly.scheduling.script import apply_edit

ORDER = ("program", "script", "error", "schedule", "loops", "machine", "stream", "run")


@dataclass(frozen=True)
class NestFile:
    """A case as read: the comment on top and the sections, without surrounding blank lines."""

    comment: str
    sections: dict[str, str]

    def text(self) -> str:
        parts = [self.comment, *(f"[{n}]\n{self.sections[n]}" for n in ORDER if n in self.sections)]
        return "\n\n".join(parts) + "\n"


def read_nest(path: Path) -> NestFile:
    """The sections of a file. Raises `ValueError` for a section that is not known."""
    comment: list[str] = []
    sections: dict[str, list[str]] = {}
    current = comment
    for line in path.read_text().splitlines():
        if line.startswith("[") and line.endswith("]") and line[1:-1].isidentifier():
            if line[1:-1] not in ORDER:
                raise ValueError(f"{path.name}: unknown section {line}")
            current = sections.setdefault(line[1:-1], [])
        else:
            current.append(line)
    return NestFile(
        "\n".join(comment).strip(), {name: "\n".join(lines).strip("\n") for name, lines in sections.items()}
    )


def schedule_of(nest: NestFile) -> Schedule:
    """The program with the script run on it."""
    script = nest.sections.get("script", "")
    schedule = Schedule(parse(nest.sections["program"]))
    for number, line in enumerate(script.splitlines(), 1):
        edit = parse_edit(line, number, script)
        if edit is not None:
            schedule = apply_edit(schedule, edit)
    return schedule


def actual(nest: NestFile) -> dict[str, str]:
    """The expected sections as they come out now."""
    try:
        schedule = schedule_of(nest)
    except PolyError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    tree = schedule.lower()
    check_instances(tree, schedule.program)
    found = {"schedule": "\n".join(tree_lines(schedule)), "loops": str(tree).strip("\n")}
    if "machine" in nest.sections:
        machine = profile(nest.sections["machine"].strip())
        found["stream"] = str(compile_stream(schedule.source, machine, schedule=schedule).stream).strip("\n")
    return found


def run_levels(nest: NestFile) -> dict[str, dict[str, Array]]:
    """Outputs by level, on small whole numbers, so that all levels agree exactly."""
    schedule = schedule_of(nest)
    program, settings = schedule.source, _settings(nest)
    seed = settings.pop("seed", 0)
    inputs = _inputs(program, settings, seed)
    levels = {
        "program": run_program(program, inputs, sizes=settings, vectorised=False),
        "vectorised": run_program(program, inputs, sizes=settings, vectorised=True),
        "loops": run_loops(schedule.lower(), inputs, sizes=settings, shuffle=seed),
    }
    names = [t.name for t in program.outputs]
    arrays = [inputs[t.name] for t in program.inputs]
    if all(t.space in ("dram", "reg") for t in schedule.program.tensors) and set(program.parameters) <= _shape_sizes(
        program
    ):
        kernel = compile_program(program, machine_of("cpu"), {}, 1, schedule)
        levels["kernel"] = _named(names, kernel(*arrays))
    if "machine" in nest.sections:
        stream = compile_stream(program, profile(nest.sections["machine"].strip()), schedule=schedule)
        levels["stream"] = _named(names, stream(*arrays))
    return levels


def _shape_sizes(program: Program) -> set[str]:
    """Sizes a kernel can tell: bound ones and those that are the extent of an input."""
    shapes = {str(e) for t in program.inputs for e in t.shape}
    return shapes | set(program.binding)


def _named(names: list[str], results: Array | tuple[Array, ...]) -> dict[str, Array]:
    return dict(zip(names, results if isinstance(results, tuple) else (results,), strict=True))


def _settings(nest: NestFile) -> dict[str, int]:
    lines = nest.sections.get("run", "").replace(",", "\n").splitlines()
    return {k.strip(): int(v) for k, v in (line.split("=") for line in lines if line.strip())}


def _inputs(program: Program, sizes: dict[str, int], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    indices = {
        s.reads[i.position].tensor
        for s in program.statements
        for r in s.reads
        for i in r.index
        if isinstance(i, ReadIndex)
    }
    for t in (*program.inputs, *program.with_role("constant")):
        low = 0 if t.name in indices or t.dtype[0] in "ub" else -3
        values = rng.integers(low, 4, t.extents(program.binding | sizes))
        arrays[t.name] = values.astype(numpy_dtype(t.dtype))
    return arrays
