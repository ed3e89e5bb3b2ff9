"""Local scalars that one assignment gives, in the place of their readers.

    for k in range(K):
        d = x[k] - y[k]          ->         for k in range(K):
        s += d * d                              s += (x[k] - y[k]) * (x[k] - y[k])

Forward substitution (Kuck, Muraoka and Chen 1972): a statement that only names a value would be a loop of its own over
an array of all its values, or keep the iterations around it in order. It pays where that is cheap: for one reader
beside it, which finds the value twice in one expression, and of few operations for several, or for a reader in loops of
its own where an array of the values would have more axes than all that they are computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from poly.expr import OPERATORS, Apply, Cast, Const, Expr, Read, dtype_of, rewrite, stays_short, walk, with_reads_at
from poly.frontend.nest_types import settled
from poly.program import Access, PathStep, Program, ReadIndex, Statement, Tensor

_FEW = 2  # operations, and reads, that are as cheap as what keeps their value


def inline_scalars(program: Program, private: Callable[[str, Sequence[Statement]], bool]) -> Program:
    """The program with cheap local scalars in their readers' place. `private`: whether a scalar's first access in each
    iteration around all its statements is a write."""
    dtypes = {t.name: t.dtype for t in program.tensors}
    statements, gone = {s.name: s for s in program.statements}, set[str]()
    for scalar in [t for t in program.tensors if t.role == "temporary" and not t.shape]:
        users = [s for s in statements.values() if scalar.name in s.tensors]
        writers = [s for s in users if s.write.tensor == scalar.name]
        if len(writers) != 1 or len(users) < 2 or not private(scalar.name, users):
            continue
        writer, readers = writers[0], [s for s in users if s is not writers[0]]
        if _is_cheap(writer, readers, scalar.name) and _stays(statements.values(), writer, readers, scalar.name):
            value = _of_dtype(writer.body, [dtypes[r.tensor] for r in writer.reads], scalar.dtype)
            statements |= {s.name: _in_place(s, scalar.name, value, writer.reads) for s in readers}
            del statements[writer.name]
            gone.add(scalar.name)
    if not gone:
        return program
    return _of_statements(program, [*statements.values()], [t for t in program.tensors if t.name not in gone])


def without_unused(program: Program) -> Program:
    """The program without locals that no array of the caller depends on, such as the place of a maximum that nobody
    asks for."""
    needed = {t.name for t in program.tensors if t.role != "temporary"}
    while more := {n for s in program.statements if s.write.tensor in needed for n in s.tensors} - needed:
        needed |= more
    kept = tuple(s for s in program.statements if s.write.tensor in needed)
    if not kept or len(kept) == len(program.statements):
        return program
    return _of_statements(program, kept, [t for t in program.tensors if t.name in needed])


def _of_statements(program: Program, kept: Sequence[Statement], tensors: Sequence[Tensor]) -> Program:
    """The program with these of its tensors, and some of its statements, in their order."""
    paths = _numbered({s.name: s.path for s in kept})
    statements = tuple(replace(s, path=paths[s.name]) for s in kept)
    return replace(program, tensors=tuple(tensors), statements=statements)


def _is_cheap(writer: Statement, readers: Sequence[Statement], name: str) -> bool:
    operators = [e.operator for e in walk(writer.body) if isinstance(e, Apply)]
    if not all(stays_short(r.body, writer.body, _uses(r, name)) for r in readers):
        return False
    deeper = any(len(r.iterators) > len(writer.iterators) for r in readers)
    if len(readers) == 1 and not deeper:
        return True
    grown = all(len(_loops_of(r)) < len(writer.iterators) for r in writer.reads)
    few = len(operators) <= _FEW and len(writer.reads) <= _FEW
    light = few and all(OPERATORS[name].cost == "instruction" for name in operators)
    return light and (grown or not deeper)


def _uses(s: Statement, name: str) -> int:
    return sum(isinstance(e, Read) and s.reads[e.position].tensor == name for e in walk(s.body))


def _loops_of(access: Access) -> set[str]:
    return {n for x in access.index if not isinstance(x, ReadIndex) for n in x.names}


def _stays(statements: Iterable[Statement], writer: Statement, readers: Sequence[Statement], name: str) -> bool:
    """Whether what a value is computed from is the same where it is read, in the same iteration."""
    around, place = writer.path[:-1], writer.path[-1]
    last = max(readers, key=lambda s: _position(s, len(around)))
    sources = {r.tensor for r in writer.reads}
    for s in statements:
        if s.write.tensor not in sources or s.path[: len(around)] != around:
            continue
        at = _position(s, len(around))
        own = s is last and len(s.path) == len(writer.path)  # reads before it writes
        if _position(writer, len(around)) < at <= _position(last, len(around)) and not own:
            return False
    updates = any(r.combiner is not None and r.write.tensor in sources for r in readers)
    places = any(isinstance(x, ReadIndex) and r.reads[x.position].tensor == name for r in readers for x in _indices(r))
    return isinstance(place, int) and not updates and not places and writer.external is None


def _position(s: Statement, depth: int) -> int:
    step = s.path[depth]
    assert isinstance(step, int)
    return step


def _indices(s: Statement) -> list[object]:
    return [x for a in (*s.reads, s.write) for x in a.index]


def _of_dtype(body: Expr, reads: Sequence[str], dtype: str) -> Expr:
    """A value as the scalar holds it."""
    if isinstance(body, Const) and body.dtype is None:
        return Const(body.value, dtype)
    if dtype_of(body, reads) is None:
        body = settled(body, dtype)
    return body if dtype_of(body, reads) == dtype else Cast(dtype, body)


def _in_place(s: Statement, name: str, value: Expr, given: Sequence[Access]) -> Statement:
    """A statement with a value instead of its reads of a scalar, and what the value reads after its own reads."""
    kept = [k for k, r in enumerate(s.reads) if r.tensor != name]
    place = {k: n for n, k in enumerate(kept)}
    own = [s.reads[k].moved(place) for k in kept]
    moved = {k: len(own) + k for k in range(len(given))}
    reads = [*own, *(r.moved(moved) for r in given)]
    inside = with_reads_at(value, moved)

    def here(e: Expr) -> Expr | None:
        if not isinstance(e, Read):
            return None
        return Read(place[e.position]) if e.position in place else inside

    return replace(s, reads=tuple(reads), body=rewrite(s.body, here), write=s.write.moved(place))


def _numbered(paths: Mapping[str, tuple[PathStep, ...]]) -> dict[str, tuple[PathStep, ...]]:
    """The same order, with positions only where there are several, and at the top."""
    steps: dict[tuple[PathStep, ...], set[int]] = {}
    for path in paths.values():
        for k, step in enumerate(path):
            if isinstance(step, int):
                steps.setdefault(path[:k], set()).add(step)

    def of(path: tuple[PathStep, ...]) -> tuple[PathStep, ...]:
        found: list[PathStep] = []
        for k, step in enumerate(path):
            beside = sorted(steps[path[:k]]) if isinstance(step, int) else []
            if not isinstance(step, int):
                found.append(step)
            elif len(beside) > 1 or k == 0:
                found.append(beside.index(step))
        return tuple(found)

    return {name: of(path) for name, path in paths.items()}
