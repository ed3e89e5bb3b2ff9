"""Scripts: the log of edits of a schedule, run again on its source program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature

from poly.errors import ScheduleError
from poly.program import Program
from poly.scheduling.schedule import Edit, Schedule


def replay(program: Program, edits: Sequence[Edit]) -> Schedule:
    """Run a script on a source program. Raises what the edits raise."""
    schedule = Schedule(program)
    for edit in edits:
        schedule = apply_edit(schedule, edit)
    return schedule


def apply_edit(schedule: Schedule, edit: Edit) -> Schedule:
    """One line of a script. Raises `ScheduleError` where it is no call of a primitive, else what that raises."""
    if edit.name not in PRIMITIVES:
        raise ScheduleError(f"no primitive {edit.name!r}", hint=f"one of {', '.join(PRIMITIVES)}")
    primitive: Callable[..., Schedule] = getattr(import_module(f"poly.scheduling.{PRIMITIVES[edit.name]}"), edit.name)
    parameters = signature(primitive)
    try:
        call = parameters.bind(schedule, **dict(edit.arguments))
    except TypeError as error:
        raise ScheduleError(f"{edit}: {error}", hint="the arguments are in the primitive's docstring") from error
    for name, value in edit.arguments:
        wanted = str(parameters.parameters[name].annotation)
        if not any(isinstance(value, _VALUES[part.partition("[")[0]]) for part in wanted.split(" | ")):
            raise ScheduleError(f"{edit}: {name} is {value!r}", hint=f"{name}: {wanted}")
    return primitive(*call.args, **call.kwargs)


_VALUES: Mapping[str, type | tuple[type, ...]] = {
    "int": int, "str": str, "bool": bool, "None": type(None), "Sequence": (tuple, list), "Mapping": dict,
}  # fmt: skip

# By the module that holds each, which is imported when it is used.
PRIMITIVES: Mapping[str, str] = {
    **dict.fromkeys(("tile", "interchange", "reorder", "fuse", "distribute", "shift", "skew"), "edits"),
    "split": "splitting", "shorten": "shortening",
    **dict.fromkeys(
        ("unroll", "vectorise", "nontemporal", "prefetch", "parallelise", "nowait", "leave", "tensorise"), "marks"
    ),
    "promote": "promotion", "recompute": "recompute", "inline": "inlining", "double_buffer": "buffering",
    "arrange": "arrange", "rfactor": "rfactor", "overlay": "overlay", "prefetch_copy": "asked_copies",
    "prefetch_block": "asked_blocks",
    "repeat": "items",
}  # fmt: skip
