"""A group as a program of its own, and names by which equal ones are one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from poly.program import Access, Program, Role, Tensor
from poly.scheduling.groups import Group, tensors_read, tensors_written


@dataclass(frozen=True)
class Users:
    """By tensor of a program the statements that read it, and those that write it."""

    readers: Mapping[str, frozenset[str]]
    writers: Mapping[str, frozenset[str]]


def users_by_tensor(program: Program) -> Users:
    """Found once for all groups of a program."""
    readers, writers = dict[str, set[str]](), dict[str, set[str]]()
    for s in program.statements:
        for table, names in ((readers, tensors_read(s)), (writers, tensors_written(s))):
            for t in names:
                table.setdefault(t, set()).add(s.name)
    return Users(*({t: frozenset(names) for t, names in table.items()} for table in (readers, writers)))


def extract(program: Program, group: Group, name: str, users: Users | None = None) -> Program:
    """A group as a program of its own: what comes from outside is input, what is needed outside is output.

    Constants stay constants, sizes and context are kept. `users`: those of the program, where they are known.
    """
    inside, users = frozenset(group.names), users or users_by_tensor(program)
    used = {t for s in group.statements for t in (*tensors_read(s), *tensors_written(s))}
    written = {t for s in group.statements for t in tensors_written(s)}
    needed, shared = ({t for t in used if table.get(t, inside) - inside} for table in (users.readers, users.writers))
    tensors: list[Tensor] = []
    for t in program.tensors:
        if t.name in used:
            tensors.append(replace(t, role=_role(t, t.name in written, t.name in needed, t.name in shared, group)))
    keep_order = len(group.statements) > 1 and not _nests_apart_in(group)
    order = list(dict.fromkeys(s.path[0] for s in group.statements))
    statements = tuple(
        replace(s, path=(order.index(s.path[0]) if keep_order else k, *s.path[1:]))
        for k, s in enumerate(group.statements)
    )
    return Program(name, tuple(tensors), statements, program.parameters, program.context, program.sizes)


def _nests_apart_in(group: Group) -> bool:
    heads = [s.path[0] for s in group.statements]
    return len(set(heads)) == len(heads)


def _role(t: Tensor, written: bool, needed: bool, shared: bool, group: Group) -> Role:
    """What a tensor is to a group; one that others write too keeps what they wrote, so it comes in and goes out."""
    if t.role in ("constant", "inout", "state"):
        return t.role
    if not written:
        return "input"
    if shared:
        return "inout"
    reads_first = any(s.combiner is not None and s.write.tensor == t.name for s in group.statements[:1])
    if reads_first:
        return "inout"
    return "output" if needed or t.role == "output" else "temporary"


def canonical_names(program: Program) -> tuple[Program, Mapping[str, str]]:
    """The same program with names by order of appearance, so that identical groups read the same; and new -> old."""
    tensors = {t.name: f"t{k}" for k, t in enumerate(_by_use(program))}
    statements = {s.name: f"s{k}" for k, s in enumerate(program.statements)}

    def renamed(access: Access) -> Access:
        return replace(access, tensor=tensors[access.tensor])

    new = tuple(
        replace(
            s, name=statements[s.name], domain=s.domain.set_tuple_name(statements[s.name]), write=renamed(s.write),
            reads=tuple(renamed(r) for r in s.reads), origin=statements.get(s.origin, ""),
        )
        for s in program.statements
    )  # fmt: skip
    by_name = {t.name: t for t in program.tensors}
    shapes = tuple(replace(by_name[old], name=name) for old, name in tensors.items())
    result = Program("group", shapes, new, program.parameters, program.context, program.sizes)
    return result, {name: old for old, name in tensors.items()}


def _by_use(program: Program) -> Iterator[Tensor]:
    seen: set[str] = set()
    for s in program.statements:
        for name in (*tensors_read(s), *tensors_written(s)):
            if name not in seen:
                seen.add(name)
                yield program.tensor[name]
