"""Dtypes of notation: what is given, and what follows of tensors that nothing declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from poly.arguments import shown
from poly.dtypes import DTYPES, NUMPYS_NAMES, dtype_name, hint_for, is_integer, numpy_dtype
from poly.errors import ArgumentError, ArgumentTypeError, PolyError, ShapeError
from poly.expr import Apply, Cast, Const, Expr, Read, dtype_of, walk
from poly.frontend.comparisons import comparable
from poly.frontend.notation_shapes import Draft
from poly.program import Access, ReadIndex, Tensor

_SHORT: Final = re.compile(r"=?f[248]|=?c8|=?c16|[<=>](f[248]|c8|c16|[iu][1248])")  # of numpy, and none of ours

DType = str | type[Any] | np.dtype[Any]  # by our name, or as numpy has it


def named_dtype(dtype: DType, where: str) -> str:
    """Our name of a dtype. Of numpy's short names only those are taken that cannot mean one of ours: `i8` has 8 bits,
    and to numpy 8 bytes, which are `<i8` here, too; `i4` is none, lest `i8` be taken for twice as much.
    """
    if isinstance(dtype, str):
        name = NUMPYS_NAMES.get(dtype, dtype)
        if name not in DTYPES and _SHORT.fullmatch(name) and np.dtype(name).isnative:
            name = dtype_name(np.dtype(name))
        if name not in DTYPES:
            raise ArgumentError(f"unknown dtype {dtype!r}", where=where, hint=_meant(dtype))
        return name
    try:
        known = isinstance(dtype, type | np.dtype)  # pyright: ignore[reportUnnecessaryIsInstance]
        return dtype_name(dtype if known else object)  # to numpy None is f64
    except (TypeError, PolyError):
        raise ArgumentTypeError(f"no dtype: {shown(dtype)}", where=where, hint=hint_for("")) from None


def _meant(name: str) -> str:
    """What to write for a name that is numpy's alone, with bytes (`i4`) or letters (`d`)."""
    try:
        return repr(dtype_name(np.dtype(name).newbyteorder("=")))
    except (TypeError, PolyError):
        return hint_for(name)


def dtype_of_tensor(name: str, drafts: Sequence[Draft], dtypes: dict[str, str], usual: str) -> str:
    """The dtype of an undeclared tensor: of the body that writes it first, else the usual, or i64 for subscripts."""
    if name in dtypes:
        return dtypes[name]
    indirect = {d.reads[s.position].tensor for d in drafts for s in _indirect(d)}
    dtypes[name] = "i64" if name in indirect else usual  # for an input, and for a body that reads its own target
    writer = next((d for d in drafts if d.tensor == name), None)
    if writer is not None:
        own = {r.tensor: dtype_of_tensor(r.tensor, drafts, dtypes, usual) for r in writer.reads}
        others = [*own.values(), *(e.dtype for e in walk(writer.body) if isinstance(e, Cast))]
        tried = [own, *({**own, name: d} for d in others)] if name in own else [own]
        found = _agreed(writer, tried, name)
        dtypes[name] = found or dtypes[name]
        if found == "bool" and (combiner := writer.line.combiner) is not None and combiner.symbol in ("+", "*"):
            text = f"{combiner.symbol}= of truths would be a truth, no number"
            hint = "i64(...) around the right side to count, or= and and= for truths"
            raise ShapeError(text, where=writer.shown, hint=hint)
    return dtypes[name]


def _agreed(writer: Draft, tried: Sequence[Mapping[str, str]], name: str) -> str | None:
    """The dtype of a body; one that reads its own target has that of another read, or of a cast, where that fits."""
    found: list[str | None] = []
    refused: list[ShapeError] = []
    for dtypes in tried:
        try:
            reads = [dtypes[r.tensor] for r in writer.reads]
            found.append(dtype_of(comparable(writer.body, reads), reads))
        except ShapeError as error:
            refused.append(error)
            continue
        if found[-1] is None or dtypes.get(name, found[-1]) == found[-1]:
            return found[-1]
    if not found:
        raise ShapeError(refused[0].message, where=writer.shown, hint=refused[0].hint)
    return found[0]


def _indirect(draft: Draft) -> Iterator[ReadIndex]:
    for access in (draft.write, *draft.reads):
        yield from (s for s in access.index if isinstance(s, ReadIndex))


def filled(read: Access, dtype: str) -> Access:
    """The read of a truth is False elsewhere, not 0."""
    return replace(read, fill=Const(False)) if dtype == "bool" and read.fill == Const(0) else read


def check_fills(draft: Draft, tensors: Mapping[str, Tensor]) -> None:
    """What stands for a read outside of its condition is of the tensor's dtype."""
    for read in draft.reads:
        if read.fill is None:
            continue
        try:
            dtype_of(Apply("select", (Const(True), Read(0), read.fill)), [tensors[read.tensor].dtype])
        except ShapeError as error:
            raise ShapeError(error.message, where=draft.shown, hint=error.hint) from None


def converted(e: Expr) -> Expr | None:
    """A literal that is no value of its dtype, as `u8(-1.5)` or `i32(2.7)`, by a cast like any other value."""
    match e:
        case Const(value, "bool") if value not in (0, 1):
            return Cast("bool", Const(value))
        case Const(value, str(dtype)) if is_integer(dtype):
            limits = np.iinfo(numpy_dtype(dtype).name)
            fits = limits.min <= value <= limits.max and value == int(value)
            return None if fits else Cast(dtype, Const(value))
        case _:
            return None
