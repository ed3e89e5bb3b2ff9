"""What goes wrong, in one hierarchy: `PolyError` and its kinds are for users, `Bug` is for us.

Every message says what failed, where (statement, loop, node, shapes), why, and what to try. Kinds that stand for what
numpy and Python raise as ValueError, TypeError or RuntimeError are that as well.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

_WIDTH = 160  # characters of a line in a message
_DEEP = 100  # operators in each other: each takes two or three of the 1000 calls that Python has


class PolyError(Exception):
    """Base of every error a user can cause.

    `where` names the place (statement, loop, ONNX node), `hint` says what to try; both are part of the message.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.message, self.where, self.hint = message, where, hint
        text = message if where is None else f"{where}: {message}"
        super().__init__(f"{text}\n  try: {hint}" if hint else text)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), dict(self.__dict__), self.args)


def _rebuild(kind: type[PolyError], fields: dict[str, object], args: tuple[object, ...]) -> PolyError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    error.args = args
    return error


@dataclass(frozen=True)
class WantedShape:
    """A tensor whose shape the caller is to say, with extents that would do: names are sizes, None is for any.

    `named`: what is any may be a free size. Its text is an argument of `parse`: `x=(512, "K")`.
    """

    tensor: str
    extents: tuple[int | str | None, ...]
    named: bool = False

    def shown(self) -> tuple[str, ...]:
        """Extents as in a declaration."""
        some = ("512", "K", "M", "L", *["8"] * len(self.extents)) if self.named else ["512"] * len(self.extents)
        return tuple(some[k] if e is None else str(e) for k, e in enumerate(self.extents))

    def __str__(self) -> str:
        shown = ", ".join(e if e.isdecimal() else f'"{e}"' for e in self.shown())
        return f"{self.tensor}=({shown}{',' if len(self.extents) == 1 else ''})"


class ParseError(PolyError, ValueError):
    """Text that is not in the grammar; the message shows the line and a caret under the column.

    `wanted`: a shape that is missing.
    """

    def __init__(
        self,
        message: str,
        *,
        text: str = "",
        line: int = 0,
        column: int = 0,
        hint: str | None = None,
        wanted: WantedShape | None = None,
    ) -> None:
        lines = text.split("\n")  # as Python counts them; splitlines() would cut at more
        if text and 0 <= line - 1 < len(lines):
            first = max(0, column - _WIDTH // 2) if len(lines[line - 1]) > _WIDTH else 0
            shown = lines[line - 1][first : first + _WIDTH]
            message = f"{message}\n  line {line}: {shown}\n  {' ' * (len(f'line {line}: ') + column - first)}^"
        super().__init__(message, hint=hint)
        self.line, self.column, self.wanted = line, column, wanted


class ShapeError(PolyError, ValueError):
    """Operands whose ranks, extents or dtypes do not fit together. `wanted`: a shape that is missing."""

    def __init__(
        self, message: str, *, where: str | None = None, hint: str | None = None, wanted: WantedShape | None = None
    ) -> None:
        super().__init__(message, where=where, hint=hint or (str(wanted) if wanted else None))
        self.wanted = wanted


class UnsupportedError(PolyError):
    """A construct that is understood but that this path cannot express."""


@contextmanager
def within_depth(deepest: Callable[[], tuple[int, str]]) -> Generator[None]:
    """Where Python does not recurse deeply enough for an expression, an `UnsupportedError`. `deepest`: how deep the
    deepest one is, and where; where that is not deep, the error is a bug of ours, and stays what it is.
    """
    try:
        yield
    except RecursionError as error:
        depth, where = deepest()
        if depth < _DEEP:
            raise
        hint = "a statement of its own for a part of it"
        raise UnsupportedError(f"an expression is nested too deeply: {depth}", where=where, hint=hint) from error


class OnnxError(PolyError):
    """An ONNX file or node that cannot be imported; carries node, operator, opset and shapes in `where`."""


class ScheduleError(PolyError):
    """An edit that does not apply to this schedule (no such loop, not adjacent, wrong argument)."""


class NoSuchEdit(ScheduleError, AttributeError):
    """A name that no edit and no other part of a schedule has."""


class IllegalEdit(ScheduleError):
    """An edit that would change what the program computes.

    `kind` is the violated rule ("order", "value", "capacity", "bounds", "parallel"); `witness` holds one pair of
    statement instances, as text, that shows it (source instance, sink instance).
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        witness: tuple[str, str] | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        shown = message if witness is None else f"{message}; witness: {witness[0]} -> {witness[1]}"
        super().__init__(shown, where=where, hint=hint)
        self.kind, self.witness = kind, witness


class CapacityError(IllegalEdit):
    """A buffer or a set of buffers that does not fit the memory it is promoted to."""


class MachineError(PolyError):
    """A machine description that is inconsistent, a target that does not exist, or a call of another CPU's code."""


class RunError(PolyError):
    """Wrong arguments at a call, or an index out of range found while running."""


class IndexRangeError(RunError, IndexError):
    """An index that data hold and that is outside of its tensor. `position`: of the group, where several ran.

    `value`: an end of 32 bits for what lies there or beyond. `first`: the least index there may be.
    """

    def __init__(
        self, where: str, statement: str, tensor: str, dimension: int, value: int, extent: int, first: int = 0
    ) -> None:
        shown = {-(2**31): f"{value} or less", 2**31 - 1: f"{value} or more"}.get(value, value)
        text = f"index {shown} of dimension {dimension} of {tensor} is outside {first} .. {extent - 1}"
        from_end = -extent <= value < 0 and first == 0
        hint = f"indices do not count from the end: k + {extent} if k < 0 else k" if from_end else None
        super().__init__(text, where=where, hint=hint)
        self.statement, self.tensor, self.dimension = statement, tensor, dimension
        self.value, self.extent, self.position = value, extent, 0


class ArgumentError(RunError, ValueError):
    """An argument of a call whose value is none of those there are."""


class ArgumentTypeError(RunError, TypeError):
    """An argument of a call that is of the wrong kind: no array, a dtype without compiled form, a cast not allowed."""


class PathError(RunError, RuntimeError):
    """A contraction path that does not lead from the operands to the result."""


class NoSuchPath(PathError, KeyError):
    """A name that no optimizer of contraction paths has."""

    __str__ = PathError.__str__  # KeyError's quotes the message


class FallbackWarning(UserWarning):
    """Something was computed by the reference instead of by compiled code."""


class SettingWarning(UserWarning):
    """A setting that cannot do what it is meant to, or that another suits better: a name in the environment that is
    none, threads without cores, a model that is compiled for ever new sizes.
    """


class Bug(AssertionError):
    """An invariant of ours that does not hold; never the user's fault."""


def warn_caller(message: str, kind: type[Warning]) -> None:
    """Warn, and name the line outside of this package from which the call came, however deep the warning arose."""
    frame, inside = sys._getframe(1), ("poly", "importlib")  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in inside:
        frame = frame.f_back
    known, module = frame.f_globals.setdefault("__warningregistry__", {}), frame.f_globals.get("__name__", "<unknown>")
    warnings.warn_explicit(message, kind, frame.f_code.co_filename, frame.f_lineno, module, known)
