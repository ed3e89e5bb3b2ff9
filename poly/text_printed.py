"""Accesses, statement bodies and conditions as text, with the fewest parentheses; `text_body` reads it back."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from poly.affine import Affine, Constraint
from poly.conditions import COMPARE
from poly.expr import OPERATORS, Apply, Cast, Combiner, Const, Expr, IndexValue, Read, children
from poly.lexical import quote
from poly.program import Access, ReadIndex, Subscript

_NOT, _UNARY, _ATOM = 3, 30, 100  # precedences beside those of the table of operators


def literal_text(value: float | int | bool) -> str:
    """A Python literal; `inf` and `nan` by name."""
    if isinstance(value, bool):
        return str(value)
    return repr(float(value)) if isinstance(value, float) else str(operator.index(value))


def const_text(const: Const) -> str:
    """`0`, `f32(0)`, `-inf`."""
    text = literal_text(const.value)
    return text if const.dtype is None else f"{const.dtype}({text})"


def condition_text(guard: Sequence[Constraint]) -> str:
    """A conjunction."""
    return " and ".join(str(c) for c in guard) or "True"


def access_text(access: Access, reads: Sequence[Access] = ()) -> str:
    """`A[i + 1, j]`, with its guard where it has one; `reads` are what indirect subscripts refer to."""

    def shown(subscript: Subscript) -> str:
        return str(subscript) if isinstance(subscript, Affine) else read_text(subscript.position, reads)

    text = f"{quote(access.tensor)}[{', '.join(map(shown, access.index))}]"
    if access.fill is None:
        return text
    return f"({text} if {condition_text(access.guard)} else {const_text(access.fill)})"


def read_text(position: int, reads: Sequence[Access]) -> str:
    """The read at a position: its access, or `read(k)` where another one is equal."""
    if not 0 <= position < len(reads) or reads.count(reads[position]) > 1:
        return f"read({position})"
    return access_text(reads[position], reads)


def body_text(body: Expr, reads: Sequence[Access], minimum: int = 0) -> str:
    """A body; parentheses around it where its operator binds less than `minimum`."""
    text, precedence = _shown(body, reads)
    return f"({text})" if precedence < minimum else text


def _shown(body: Expr, reads: Sequence[Access]) -> tuple[str, int]:
    """The text of a body, and how strongly it binds."""
    match body:
        case Const(dtype=None):
            text = const_text(body)
            return text, _UNARY if text.startswith("-") else _ATOM
        case Const():
            return const_text(body), _ATOM
        case Read(position):
            return read_text(position, reads), _ATOM
        case IndexValue(index):
            return f"index({index})", _ATOM
        case Cast(dtype, Const(dtype=None) as const):
            return f"cast({dtype}, {const_text(const)})", _ATOM
        case Cast(dtype, argument):
            return f"{dtype}({body_text(argument, reads)})", _ATOM
        case Apply("neg", (argument,)) if not isinstance(argument, Const):
            return f"-{body_text(argument, reads, _UNARY)}", _UNARY
        case Apply("not", (argument,)):
            return f"not {body_text(argument, reads, _NOT)}", _NOT
        case Apply(name, arguments):
            return _applied(name, arguments, reads)


def _applied(name: str, arguments: Sequence[Expr], reads: Sequence[Access]) -> tuple[str, int]:
    row = OPERATORS[name]
    if row.infix is None:
        return f"{name}({', '.join(body_text(a, reads) for a in arguments)})", _ATOM
    compares = name in COMPARE.values()
    left, right = arguments
    a = body_text(left, reads, row.precedence + compares)  # a comparison of comparisons would read as a chain
    b = body_text(right, reads, row.precedence + 1)
    return (f"{a}*{b}" if name == "mul" else f"{a} {row.infix} {b}"), row.precedence


def reading_order(write: Access, body: Expr, reads: Sequence[Access]) -> list[int]:
    """Positions of reads in the order that reading the text back would number them, each once."""
    found: list[int] = []

    def access(each: Access) -> None:
        for subscript in each.index:
            if isinstance(subscript, ReadIndex):
                read(subscript.position)

    def read(position: int) -> None:
        access(reads[position])
        if position not in found:
            found.append(position)

    def visit(node: Expr) -> None:
        if isinstance(node, Read):
            read(node.position)
        for child in children(node):
            visit(child)

    access(write)
    visit(body)
    return found


def assignment_text(write: Access, combiner: Combiner | None, body: Expr, reads: Sequence[Access]) -> str:
    """`C[i, j] += A[i, k]*B[k, j]`"""
    return f"{access_text(write, reads)} {combiner.symbol if combiner else ''}= {body_text(body, reads)}"


def reads_clause(write: Access, body: Expr, reads: Sequence[Access]) -> str:
    """`reads (...)` where the text alone would number the reads differently, else ""."""
    distinct = all(r not in reads[:k] for k, r in enumerate(reads))
    if distinct and reading_order(write, body, reads) == list(range(len(reads))):
        return ""
    shown = [access_text(r, reads[:k]) for k, r in enumerate(reads)]
    return f"reads ({', '.join(shown)})"
