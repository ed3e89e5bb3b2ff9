"""IR that is written by hand: names for its numbers, and one line for a load or a store at an offset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_NAME: Final = re.compile(r"\$([A-Z_]+)")
_LOAD: Final = re.compile(r"  (%\w+) = call (i64|i32|ptr) @(word|link|field)\(ptr (\S+), i64 (\S+)\)")
_STORE: Final = re.compile(r"  call void @put\(ptr (\S+), i64 (\S+), (i64|i32|ptr) (\S+)\)")
_ALIGN: Final = {"i32": 4, "i64": 8, "ptr": 8}


def numbers_of(module: Mapping[str, object]) -> dict[str, str]:
    """The whole numbers among a module's constants."""
    return {name: str(value) for name, value in module.items() if name.isupper() and isinstance(value, int)}


def expanded(text: str, names: Mapping[str, str]) -> str:
    """Text with `$NAME` put in, and the accesses as instructions: `@word(base, k)` is the number and `@link(base, k)`
    the pointer in word k, `@field(base, offset)` what lies at an offset in bytes, where `@put(base, offset, value)`
    stores.
    """
    named = _NAME.sub(lambda found: names[found[1]], text)
    stores = [0]

    def store(found: re.Match[str]) -> str:
        base, offset, kind, value = found.groups()
        stores[0] += 1
        place = f"%put{stores[0]}"
        lines = f"  {place} = getelementptr i8, ptr {base}, i64 {offset}"
        return f"{lines}\n  store {kind} {value}, ptr {place}, align {_ALIGN[kind]}"

    return _STORE.sub(store, _LOAD.sub(_load, named))


def _load(found: re.Match[str]) -> str:
    result, kind, way, base, index = found.groups()
    element = "i8" if way == "field" else "i64"
    place = f"  {result}.at = getelementptr {element}, ptr {base}, i64 {index}"
    return f"{place}\n  {result} = load {kind}, ptr {result}.at, align {_ALIGN[kind]}"
