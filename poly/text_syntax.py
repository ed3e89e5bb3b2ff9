"""The lines of a program as they are written: headers, declarations, statements with their clauses, `for` blocks.

Nothing is known of the names yet; `poly.text` and `poly.frontend.notation` make programs from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, cast, get_args

from poly.affine import Affine
from poly.dtypes import DTYPES
from poly.expr import COMBINERS, Apply, Combiner, Const, Expr
from poly.lexical import Fragment, Line, Source, decode, is_scalar, quote, read_lines
from poly.program import Access, Layout, PathStep, Role, Tensor
from poly.text_body import BodyReader, affine

_ROLES: Final = get_args(Role)
_START: Final = re.compile(r"([^\W\d]\w*)[ \t]+[^\W\d]")
_TENSOR_CLAUSES: Final = ("in", "layout", "scope", "origin", "gaps")
_STATEMENT_CLAUSES: Final = (
    "where", "ordered", "exact", "origin", "copies", "partial", "tile", "optional", "reads", "path", "external",
)  # fmt: skip


@dataclass(frozen=True)
class Header:
    """`program matmul(M, N) where M >= 1`, or `loops ...` without a condition."""

    name: str
    parameters: tuple[str, ...]
    condition: Fragment | None


@dataclass(frozen=True)
class Declaration:
    """A tensor as declared; `role` is None where it is left to inference (the tensor then says temporary)."""

    tensor: Tensor
    role: Role | None
    place: Fragment


@dataclass(frozen=True)
class StatementLine:
    """`label[iterators]: target symbol= body clauses`. `prefix`: the path down to its own position; `negated`: it was
    written `-=`, which adds the negative body."""

    place: Fragment
    label: str | None
    subscripts: tuple[Fragment, ...] | None
    target: Fragment
    combiner: Combiner | None
    body: Fragment
    clauses: Mapping[str, Fragment]
    prefix: tuple[PathStep, ...] = ()
    negated: bool = False

    @property
    def iterators(self) -> tuple[str, ...] | None:
        """The iterators of the label; None where there are none given."""
        return None if self.subscripts is None else tuple(s.name() for s in self.subscripts)


@dataclass(frozen=True)
class ProgramLines:
    """A whole text."""

    whole: Fragment
    header: Header | None
    sizes: tuple[tuple[str, int], ...]
    declarations: tuple[Declaration, ...]
    statements: tuple[StatementLine, ...]


def read_program_lines(text: str) -> ProgramLines:
    """Raises `ParseError` with line and caret."""
    whole = Source.of(text)
    header: Header | None = None
    sizes: list[tuple[str, int]] = []
    declarations: list[Declaration] = []
    statements: list[StatementLine] = []

    def visit(lines: Iterable[Line], prefix: tuple[PathStep, ...]) -> None:
        nonlocal header
        position = 0
        for line in lines:
            if line.body is not None:
                visit(line.body, (*prefix, position, *_for_names(line.head)))
            elif is_declaration(line.head):
                declarations.append(read_declaration(line.head))
                continue
            elif (kind := start_word(line.head)) == "program":
                if header is not None or statements:
                    raise line.head.error("the program line comes once, and first")
                header = read_header(line.head)
                continue
            elif kind == "sizes":
                sizes.extend(read_sizes(line.head))
                continue
            else:
                statements.append(read_statement_line(line.head, (*prefix, position)))
            position += 1

    visit(read_lines(whole, ("for",)), ())
    return ProgramLines(whole, header, tuple(sizes), tuple(declarations), tuple(statements))


def start_word(line: Fragment) -> str:
    """The word that begins a line and is followed by another word; "" where there is none."""
    match = _START.match(line.text)
    return match[1] if match else ""


def _for_names(head: Fragment) -> tuple[str, ...]:
    if re.search(r"\bin\b", head.text):
        name = head.text[3:].split()[0]
        hint = f"for {name}: with `where 0 <= {name} < 8` behind its statements"
        raise head.error("for names iterators only", 3, hint)
    names = [part.name() for part in head.part(3).split(",")]
    if not names:
        raise head.error("for takes the iterators that the lines below share", hint="for t:")
    return tuple(names)


def read_header(line: Fragment) -> Header:
    """`program NAME(SIZES) where CONDITION`; sizes and condition may be left out."""
    where = next((at for at, word in line.words() if word == "where"), None)
    head = line.part(line.text.index(" ") if " " in line.text else len(start_word(line)), where)
    condition = None if where is None else line.part(where + len("where"))
    match = re.fullmatch(r"([^\W\d]\w*)\s*(?:\((.*)\))?", head.text, re.DOTALL)
    if match is None:
        raise head.error("a name and sizes are expected", hint="program matmul(M, N, K) where M >= 1")
    inside = head.part(match.start(2), match.end(2)) if match[2] else head.part(0, 0)
    if is_scalar(match[1]):
        raise head.error("a name is expected")
    return Header(decode(match[1]), tuple(p.name() for p in inside.split(",")), condition)


def read_sizes(line: Fragment) -> list[tuple[str, int]]:
    """`sizes M = 64, N = 32`"""
    found: list[tuple[str, int]] = []
    for part in line.part(len("sizes")).split(","):
        at = next(part.find("="), None)
        if at is None:
            raise part.error("NAME = VALUE is expected")
        found.append((part.part(0, at).name(), part.part(at + 1).integer()))
    return found


# ---- declarations


def is_declaration(line: Fragment) -> bool:
    """`input A: f32[M]`, or `A: f32[M]` without a role."""
    if start_word(line) in _ROLES:
        return True
    colon = next(line.find(":"), None)
    return colon is not None and _assignment(line) is None


def read_declaration(line: Fragment) -> Declaration:
    """`ROLE NAME: DTYPE[SHAPE] in SPACE layout [i] -> [i // 4, i % 4] of [M, 4] scope (i.o) origin A gaps 1`"""
    word = start_word(line)
    role = word if word in _ROLES else ""
    colon = next(line.find(":"), None)
    if colon is None:
        raise line.error("a declaration is NAME: DTYPE[SHAPE]", len(line.text), "input A: f32[M, 64]")
    if word and not role and (near := get_close_matches(word, _ROLES, 1)):
        raise line.error(f"{word!r} is no role", hint=f"{near[0]} ...: f32[M, 64]")
    name = line.part(len(role), colon).name()
    kind, clauses = split_clauses(line.part(colon + 1), _TENSOR_CLAUSES)
    dtype, shape = _dtype_and_shape(kind)
    tensor = Tensor(
        name,
        shape,
        dtype,
        cast(Role, role or "temporary"),
        clauses["in"].name() if "in" in clauses else "dram",
        _layout(clauses["layout"]) if "layout" in clauses else None,
        tuple(p.name() for p in bracketed(clauses["scope"])) if "scope" in clauses else (),
        clauses["origin"].name() if "origin" in clauses else "",
        _gaps(clauses["gaps"]) if "gaps" in clauses else 0,
    )
    return Declaration(tensor, cast(Role, role) if role else None, line)


def _dtype_and_shape(kind: Fragment) -> tuple[str, tuple[Affine, ...]]:
    match = re.match(r"[^\W\d]\w*", kind.text)
    dtype = decode(match[0]) if match else ""
    if match is None or dtype not in DTYPES:
        raise kind.error(f"no dtype {dtype!r}", hint=f"one of {', '.join(sorted(DTYPES))}")
    rest = kind.part(match.end())
    if not rest.text:
        return dtype, ()
    if rest.text[0] == "(":
        raise rest.error("a shape stands in []", hint=f"{dtype}[{rest.shown.strip('()')}]")
    return dtype, affine_list(rest)


def affine_list(fragment: Fragment) -> tuple[Affine, ...]:
    """`[M, N + 1]`"""
    return tuple(affine(p.expression(), p) for p in bracketed(fragment, "["))


def bracketed(fragment: Fragment, bracket: str = "(") -> list[Fragment]:
    """The parts of `(a, b)`. Raises `ParseError`."""
    if not (fragment.text.startswith(bracket) and fragment.text.endswith(")" if bracket == "(" else "]")):
        shown = f"{bracket}{')' if bracket == '(' else ']'}"
        raise fragment.error(f"a list in {shown} is expected", hint=f"{shown[0]}a, b{shown[1]}")
    return fragment.part(1, len(fragment.text) - 1).split(",")


def _layout(clause: Fragment) -> Layout:
    match = re.fullmatch(r"(\[.*?\])\s*->\s*(\[.*\])\s*of\s*(\[.*\])", clause.text, re.DOTALL)
    if match is None:
        raise clause.error("a layout is [i, j] -> [i // 4, j, i % 4] of [M, N, 4]")
    index, coordinates, shape = (clause.part(*match.span(k)) for k in (1, 2, 3))
    return Layout(tuple(p.name() for p in bracketed(index, "[")), affine_list(coordinates), affine_list(shape))


def _gaps(clause: Fragment) -> int:
    if clause.text not in ("1", "2"):
        raise clause.error("gaps lie behind blocks of 1 element, or of 2")
    return int(clause.text)


def tensor_text(tensor: Tensor, role: bool = True) -> str:
    """The declaration of a tensor."""
    text = f"{tensor.role} " if role else ""
    text += f"{quote(tensor.name, inside=True)}: {tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
    if tensor.space != "dram":
        text += f" in {quote(tensor.space)}"
    if tensor.layout is not None:
        index = ", ".join(quote(i, inside=True) for i in tensor.layout.index)
        coordinates, shape = (", ".join(map(str, each)) for each in (tensor.layout.coordinates, tensor.layout.shape))
        text += f" layout [{index}] -> [{coordinates}] of [{shape}]"
    if tensor.scope:
        text += f" scope ({', '.join(quote(s, inside=True) for s in tensor.scope)})"
    text += f" origin {quote(tensor.origin)}" if tensor.origin else ""
    return text + (f" gaps {tensor.gaps}" if tensor.gaps else "")


# ---- statements


def split_clauses(fragment: Fragment, names: Sequence[str]) -> tuple[Fragment, dict[str, Fragment]]:
    """What comes before the first clause, and the clauses by name. Raises `ParseError` for one given twice."""
    starts = [(at, word) for at, word in fragment.words() if word in names]
    found: dict[str, Fragment] = {}
    for (at, word), end in zip(starts, [*(at for at, _ in starts[1:]), len(fragment.text)], strict=False):
        if word in found:
            raise fragment.error(f"{word} is given twice", at)
        found[word] = fragment.part(at + len(word), end)
    return fragment.part(0, starts[0][0] if starts else None), found


def _assignment(line: Fragment) -> int | None:
    text = line.text
    plain = (
        at for at in line.find("=") if text[at + 1 : at + 2] != "=" and text[at - 1 : at] not in ("<", ">", "!", "=")
    )
    return next(plain, None)


def read_statement_line(line: Fragment, prefix: tuple[PathStep, ...]) -> StatementLine:
    """Split a statement into its parts. Raises `ParseError`."""
    equals = _assignment(line)
    if equals is None:
        einsum = f'poly.einsum("{line.shown}", ...), or ' if "->" in line.text else ""
        raise line.error("a statement is TARGET = BODY", hint=f"{einsum}C[i, k] += A[i, j]*B[j, k]")
    colon = next((at for at in line.find(":") if at < equals), None)
    left = line.part(0 if colon is None else colon + 1, equals)
    match = re.search(r"(\+|\*|\bmax|\bmin|\band|\bor|[-/%&|^@<>!~]+)$", left.text)
    negated = match is not None and match[1] == "-"
    if match is not None and not negated and match[1] not in COMBINERS:
        other = {"/": "*= 1 / (...)"}.get(match[1])
        hint = other or f"one of {', '.join(f'{c}=' for c in COMBINERS)}"
        raise left.error(f"no combiner {match[1]}=", match.start(), hint)
    target = left.part(0, match.start() if match else None)
    if not target.text:
        raise line.error("the target of the statement is missing", hint="y[i] = ..., without `:` before =")
    label, subscripts = (None, None) if colon is None else _label(line.part(0, colon))
    body, clauses = split_clauses(line.part(equals + 1), _STATEMENT_CLAUSES)
    if "where" in clauses and clauses["where"].text[:1] == "(" and (not body.text or body.text[-1] in "+-*/"):
        raise clauses["where"].error("where is no function", hint="select(condition, a, b), or a if condition else b")
    for flag in ("ordered", "exact"):
        if flag in clauses and clauses[flag].text:
            raise clauses[flag].error(f"{flag} stands alone")
    combiner = COMBINERS["+" if negated else match[1]] if match else None
    return StatementLine(line, label, subscripts, target, combiner, body, clauses, prefix, negated)


def _label(label: Fragment) -> tuple[str, tuple[Fragment, ...] | None]:
    bracket = label.text.find("[")
    if bracket >= 0:
        return label.part(0, bracket).name(), tuple(bracketed(label.part(bracket), "["))
    if label.text.isidentifier() and is_scalar(label.text):
        return decode(label.text), ()
    return label.name(), None


def read_assignment(line: StatementLine, reader: BodyReader) -> tuple[Access, Expr, tuple[Access, ...]]:
    """What a statement writes, its body and its reads. Raises `ParseError`."""
    with line.place.within_depth():
        return _assigned(line, reader)


def _assigned(line: StatementLine, reader: BodyReader) -> tuple[Access, Expr, tuple[Access, ...]]:
    if "reads" in line.clauses:
        for part in bracketed(line.clauses["reads"]):
            reader.reads.append(reader.listed(part.expression(), part))
        reader.fixed = True
    write = reader.access(line.target.expression(), line.target)
    if write is None:
        raise line.target.error("a statement writes one element of a tensor", hint="C[i, k], or s[] of rank 0")
    body = reader.body(line.body)
    if line.negated:
        body = Const(-body.value) if isinstance(body, Const) and body.dtype is None else Apply("neg", (body,))
    return write, body, tuple(reader.reads)
