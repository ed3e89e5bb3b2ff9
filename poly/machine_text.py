"""Descriptions of machines as TOML files: read, and written.

Keys are the fields of `Machine`, and of `Memory` and `Engine` in arrays of tables `memory` and `engine`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Final, TypeVar, cast, get_args

from poly.arguments import shown
from poly.errors import MachineError
from poly.files import near_file
from poly.machine import Engine, EngineKind, Machine, Memory

SCHEMA: Final = 1
_ALWAYS_SAID: Final = ("kind", "clock_mhz", "cores", "align", "banks")  # when written: what one edits, or looks for
T = TypeVar("T")


def read_machine(path: str | Path) -> Machine:
    """A machine from a TOML file. Raises `MachineError` naming the table and the key."""
    if not isinstance(path, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MachineError(f"a machine is read from a path, not from {shown(path)}", hint="a TOML file")
    try:
        table = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, tomllib.TOMLDecodeError) as error:
        hint = near_file(path) if isinstance(error, FileNotFoundError) else "a TOML file, as those in accel/profiles"
        if isinstance(error, FileNotFoundError) and Path(path).name == str(path) and not Path(path).suffix:
            hint = f'{path}.toml, its path; a target that `poly machines` lists is given by name: target="{path}"'
        raise MachineError(f"cannot read {path}: {error}", hint=hint) from error
    return machine_of_table(table, str(path))


def machine_of_table(table: Mapping[str, object], where: str = "") -> Machine:
    """A machine from parsed TOML: keys of `Machine`, arrays of tables `memory` and `engine`, and `schema = 1`."""
    top = dict(table)
    if top.pop("schema", None) != SCHEMA:
        hint = f"schema = {SCHEMA} on its first line, and tables as in accel/profiles/s16.toml"
        raise MachineError(f"schema is not {SCHEMA}", where=where, hint=hint)
    memories = tuple(_build(Memory, row, f"{where}: memory") for row in _rows(top.pop("memory", []), where))
    engines = tuple(_build(Engine, row, f"{where}: engine") for row in _rows(top.pop("engine", []), where))
    return _build(Machine, {**top, "memories": memories, "engines": engines}, where)


def _rows(value: object, where: str) -> list[dict[str, object]]:
    if not isinstance(value, list):
        raise MachineError("memory and engine are arrays of tables", where=where)
    return cast("list[dict[str, object]]", value)


_DIGITS = 30  # more is no size, and past some thousands Python reads no number
_UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "B": 1}


def _bytes(value: object, where: str) -> int | None:
    if value is None or isinstance(value, int):
        return value
    text = str(value)
    for unit, factor in _UNITS.items():
        number = text.removesuffix(unit).strip()
        if text.endswith(unit) and number.isdecimal() and len(number) < _DIGITS:
            return int(number) * factor
    raise MachineError(f"not a size: {text!r}", where=where, hint='write 65536, "64KiB" or "1MiB"')


def _frozen(value: object) -> object:
    return tuple(_frozen(v) for v in cast("list[object]", value)) if isinstance(value, list) else value


def _build(kind: type[T], row: Mapping[str, object], where: str) -> T:
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    if not set(row) <= known:
        raise MachineError(
            f"unknown keys {sorted(set(row) - known)}", where=where, hint=f"keys: {', '.join(sorted(known))}"
        )
    values = {k: _bytes(v, where) if k == "capacity" else _frozen(v) for k, v in row.items()}
    if kind is Engine and values.get("kind") not in get_args(EngineKind):
        raise MachineError(
            f"engine kind {values.get('kind')!r}", where=where, hint=f"one of {', '.join(get_args(EngineKind))}"
        )
    try:
        return cast("Callable[..., T]", kind)(**values)
    except (TypeError, ValueError, AttributeError) as error:
        raise MachineError(str(error), where=where) from error


def text_of(machine: Machine) -> str:
    """The description as a TOML file, which `read_machine` takes."""
    parts = [_table(machine, f"schema = {SCHEMA}")]
    parts += [_table(part, "[[memory]]") for part in machine.memories]
    parts += [_table(part, "[[engine]]") for part in machine.engines]
    return "\n\n".join(parts)


def _table(part: Machine | Memory | Engine, head: str) -> str:
    """What a part says, as a table of TOML; its memories and engines are tables of their own."""
    rows = [f for f in fields(part) if f.name not in ("memories", "engines")]
    usual = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in rows}
    values = {f.name: getattr(part, f.name) for f in rows}
    said = [n for n, value in values.items() if n in _ALWAYS_SAID or value != usual[n]]
    return "\n".join([head, *(f"{n} = {_value(values[n])}" for n in said)])


def _value(value: object) -> str:
    match value:
        case Mapping():
            pairs = cast("Mapping[str, object]", value)
            return f"{{{', '.join(f'{key} = {_value(v)}' for key, v in pairs.items())}}}"
        case tuple():
            return f"[{', '.join(map(_value, cast('tuple[object, ...]', value)))}]"
        case _:
            # Of integers, truths and strings, TOML's too but for DEL and, if escaped, what has no 16-bit code.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
