"""What entries of the disk cache are found by, and what they hold: values as text, and as pickles.

Pickles depend on this package's classes, so keys of such entries have `package_hash` among their parts.
"""

from __future__ import annotations

import copyreg
import hashlib
import pickle
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Final

import islpy as isl

from poly.affine import Affine
from poly.disk_cache import read_entry
from poly.scheduling.schedule import Schedule
from poly.sets import pickled_set

_FOLDERS: Final = ("", "frontend", "scheduling", "codegen", "accel")


def content_text(value: object) -> str:
    """All that a schedule, or a part of it, holds, as text: what differs anywhere has another one."""
    match value:
        case Schedule():
            parts = (value.source, value.program, value.nests, value.marks, value.log)
            return "\n".join(map(content_text, parts))
        case Affine() | isl.Set() | isl.Map():
            return str(value)
        case Mapping():
            return f"{{{', '.join(f'{k!r}: {content_text(v)}' for k, v in value.items())}}}"
        case frozenset():
            return f"{{{', '.join(sorted(map(content_text, value)))}}}"
        case tuple() | list():
            return f"({', '.join(map(content_text, value))},)"
        case _ if is_dataclass(value):
            return f"{type(value).__name__}({', '.join(content_text(getattr(value, f.name)) for f in fields(value))})"
        case _:
            return repr(value)


def pickled(value: object) -> bytes:
    """A value as an entry of the disk cache: a pickle from which equal sets are read once."""
    buffer = BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.dispatch_table = copyreg.dispatch_table | {isl.Set: pickled_set}
    pickler.dump(value)
    return buffer.getvalue()


def read_pickle(path: Path | None) -> object:
    """What an entry of the disk cache holds; None where there is none that can be read."""
    content = read_entry(path)
    if content is None:
        return None
    try:
        return pickle.loads(content)
    except Exception:  # written under another Python, say: as good as none
        return None


@cache
def package_hash() -> str:
    """A hash of the package's source and of the versions of what it stands on."""
    from importlib import metadata

    found = hashlib.sha256(repr((sys.version, metadata.version("islpy"), metadata.version("llvmlite"))).encode())
    for folder in _FOLDERS:
        for path in sorted((Path(__file__).parent / folder).glob("*.py")):
            found.update(path.name.encode())
            found.update(path.read_bytes())
    return found.hexdigest()
