"""Statements of a model that read only constants: computed once, when compiling (`split_known`).

Weights that a model keeps as codes and a scale are expanded here, before groups are made: what uses them then sees
constants, which have a layout of their own, are packed when compiling, and are not expanded again in every run. Data
flow decides, as it does for nests of one group (`poly.scheduling.constants`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import replace
from typing import Final, Literal

from poly.program import Program, Statement
from poly.scheduling.groups import tensors_read, tensors_written

MOST_BYTES: Final = 1 << 28  # that what is computed may take: codes are smaller than what they stand for


def split_known(program: Program) -> tuple[Program | None, Program]:
    """What is computed when compiling, its results outputs (None: nothing is), and the rest, with these as constants.

    Statements of a program with free sizes, those that share loops with others, and external ones are of the rest, as
    is what would take more than `MOST_BYTES` together.
    """
    if set(program.parameters) - program.binding.keys():
        return None, program
    known = _known(program)
    if not known:
        return None, program
    first = tuple(s for s in program.statements if known.issuperset(tensors_written(s)))
    rest = tuple(s for s in program.statements if not known.issuperset(tensors_written(s)))
    needed = known & {t for s in rest for t in tensors_read(s)}
    return _part(program, f"{program.name}_known", first, needed, "output"), _part(
        program, program.name, rest, needed, "constant"
    )


def _known(program: Program) -> frozenset[str]:
    """Temporaries that are made of constants alone."""
    heads = Counter(s.path[0] for s in program.statements)
    alone = {s.name for s in program.statements if s.external is None and heads[s.path[0]] == 1}
    writers: dict[str, list[Statement]] = {}
    for s in program.statements:
        for t in tensors_written(s):
            writers.setdefault(t, []).append(s)
    plain = {t.name for t in program.tensors if t.role == "temporary" and t.layout is None}
    left = {t for t, made in writers.items() if t in plain and all(s.name in alone and s.reads for s in made)}
    fixed = {t.name for t in program.tensors if t.role == "constant"}

    def unspoilt(names: Set[str]) -> frozenset[str]:
        while spoilt := {t for t in names if any(not {*tensors_read(s)} <= fixed | names for s in writers[t])}:
            names = names - spoilt
        return frozenset(names)

    return unspoilt(_fitting(program, unspoilt(left)))  # again: what does not fit may be read by a later writer


def _fitting(program: Program, names: Set[str]) -> frozenset[str]:
    """Those of some tensors, in the order in which they are made, that fit; none that begins with one that does not."""
    found: set[str] = set()
    refused: set[str] = set()
    total = 0
    for s in program.statements:
        for t in {*tensors_written(s)} & names - found - refused:
            size = program.tensor[t].nbytes(program.binding)
            if refused.isdisjoint(tensors_read(s)) and total + size <= MOST_BYTES:
                found.add(t)
                total += size
            else:
                refused.add(t)
    return frozenset(found)


def _part(
    program: Program, name: str, statements: tuple[Statement, ...], changed: Set[str],
    role: Literal["output", "constant"],
) -> Program:  # fmt: skip
    """A program of some statements, with the tensors that they touch; the rest with all that callers see."""
    used = {t for s in statements for t in (*tensors_read(s), *tensors_written(s))}
    seen = ("input", "output", "inout", "state") if role == "constant" else ()
    tensors = tuple(
        replace(t, role=role) if t.name in changed else t for t in program.tensors if t.name in used or t.role in seen
    )
    return replace(program, name=name, tensors=tensors, statements=statements)
