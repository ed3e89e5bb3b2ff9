"""Functions of one byte from a table of 256, where a core looks up many bytes at once.

`y[i] = u8(round(sigmoid(f32(x[i]) * 0.02) * 256))`, in one statement or several that take one element each,
becomes `table[c] = ..`, the same body of each byte, and `y[i] = table[x[i]]`: what took f32 in lanes takes bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final

from poly.affine import Affine, var
from poly.dtypes import is_integer, size_bytes
from poly.expr import Cast, Expr, IndexValue, Read, rewrite, walk
from poly.machine import BYTES, Machine
from poly.program import Access, Program, ReadIndex, Statement, Tensor, box_domain, default_path, unused_name
from poly.scheduling.groups import domain_box, tensors_read, tensors_written
from poly.scheduling.joined_maps import in_own_nests, is_map, with_body_inside

_LEAST: Final = 4096  # elements; fewer are over before the table has paid
_CODE: Final = "c"


def with_byte_tables(program: Program, machine: Machine) -> Program:
    """The program with such statements by tables; all others as they are."""
    if not machine.looks_up_bytes or set(program.parameters) - program.binding.keys() or not in_own_nests(program):
        return program
    for s in program.statements:
        chain = _chain(program, s)
        if chain is not None:
            return with_byte_tables(_by_table(program, s, *chain), machine)
    return program


def _chain(program: Program, s: Statement) -> tuple[Statement, list[Statement]] | None:
    """A statement with all that it is made of inside, from one read of bytes, and what is then not needed."""
    tensor = program.tensor
    if not _is_byte(tensor[s.write.tensor].dtype) or not is_map(s) or s.write.tensor in tensors_read(s):
        return None
    box = domain_box(program, s, s.iterators)
    if box is None or prod(high - low + 1 for low, high in box) < _LEAST:
        return None
    whole, gone = s, list[Statement]()
    while len(whole.reads) == 1 and (first := _maker(program, whole.reads[0], s)) is not None:
        joined = with_body_inside(program, first, whole)
        if joined is None:
            break
        whole, gone = joined, [*gone, first]
    if len(whole.reads) != 1 or tensor[whole.reads[0].tensor].dtype != "u8" or not _is_wide(whole):
        return None
    order = [x.name for x in program.statements]
    between = program.statements[min(order.index(x.name) for x in (s, *gone)) : order.index(s.name)]
    source = whole.reads[0].tensor
    return None if any(source in tensors_written(x) for x in between) else (whole, gone)


def _maker(program: Program, access: Access, last: Statement) -> Statement | None:
    """The one statement that makes what is read, for nothing else."""
    made = [s for s in program.statements if access.tensor in tensors_written(s)]
    users = [s for s in program.statements if access.tensor in tensors_read(s)]
    held = program.tensor[access.tensor]
    own = held.role == "temporary" and held.layout is None and len(made) == len(users) == 1
    return made[0] if own and is_map(made[0]) and len(made[0].reads) == 1 and made[0] is not last else None


def _is_byte(dtype: str) -> bool:
    return is_integer(dtype) and size_bytes(dtype) == 1


def _is_wide(s: Statement) -> bool:
    """Whether a body computes with more than bytes."""
    return any(isinstance(e, Cast) and size_bytes(e.dtype) > 1 for e in walk(s.body))


def _by_table(program: Program, s: Statement, whole: Statement, gone: Sequence[Statement]) -> Program:
    names = {t.name for t in program.tensors} | {x.name for x in program.statements}
    name = unused_name(names, f"{s.name}_table", "_of_bytes")
    table = Tensor(name, (Affine.of(BYTES),), program.tensor[s.write.tensor].dtype, "temporary")

    def code(node: Expr) -> Expr | None:
        return Cast("u8", IndexValue(var(_CODE))) if isinstance(node, Read) else None

    made = f"{name}_of_bytes"
    domain = box_domain(made, [(_CODE, 0, BYTES)], program.parameters)
    first = replace(
        whole, name=made, domain=domain, iterators=(_CODE,), reads=(), body=rewrite(whole.body, code),
        write=Access(name, (var(_CODE),)),
    )  # fmt: skip
    found = replace(s, reads=(whole.reads[0], Access(name, (ReadIndex(0),))), body=Read(1))
    left = [x for x in program.statements if all(x is not other for other in gone)]
    statements = [y for x in left for y in ((first, found) if x is s else (x,))]
    unused = {x.write.tensor for x in gone}
    return replace(
        program, tensors=(*(t for t in program.tensors if t.name not in unused), table),
        statements=tuple(replace(x, path=default_path(k, x.iterators)) for k, x in enumerate(statements)),
    )  # fmt: skip
