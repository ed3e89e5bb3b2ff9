"""Accesses, statement bodies and conditions read from text; `text_printed` prints them.

Reads are numbered in the order they are met, the subscripts of an indirect access before it, equal ones once;
`BodyReader.reads` collects them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Final

from poly.affine import Affine, Constraint, FloorDiv, Var, affine_of_ast, unequal_parts
from poly.chosen_elements import chosen_element
from poly.conditions import COMPARE, affine_or_none, conjunction, necessary
from poly.document import counted
from poly.dtypes import DTYPES
from poly.errors import ParseError
from poly.expr import (
    COMBINERS,
    OPERATORS,
    Apply,
    Cast,
    Const,
    Expr,
    IndexValue,
    Read,
    rewrite,
    walk,
    with_reads_at,
)
from poly.function_forms import FORMS, MOST_WRITTEN_OUT, NUMPYS_OPERATORS, wanted
from poly.function_hints import INTERNAL, suggestion
from poly.lexical import Fragment, Source, decode, is_scalar, names_in, written
from poly.program import Access, ReadIndex, Subscript
from poly.text_printed import access_text

_ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow",
    ast.FloorDiv: "floor_div", ast.Mod: "mod", ast.BitAnd: "bit_and", ast.BitOr: "bit_or", ast.BitXor: "bit_xor",
    ast.LShift: "shift_left", ast.RShift: "shift_right",
}  # fmt: skip
_LITERALS: Final = {"inf": float("inf"), "nan": float("nan")}


@dataclass
class BodyReader:
    """Reads the accesses, bodies and conditions of one statement.

    `scalars`: tensors of rank 0 that may be written without `[]`. Every other bare name is an index or a size. `fixed`:
    the reads were given as a list, and the body must keep to it. `bare_indices`: a bare index is a value, and a read in
    a choice is done only `around` what makes it count, elsewhere it is 0; `chosen` are the reads that only this guards.
    """

    scalars: Collection[str] = ()
    bare_indices: bool = False
    fixed: bool = False
    reads: list[Access] = field(default_factory=list)
    around: tuple[Constraint, ...] = ()
    chosen: set[int] = field(default_factory=set[int])

    def access(self, node: ast.expr, fragment: Fragment) -> Access | None:
        """The access that a node is, its guard left out; None where it is none."""
        match node:
            case ast.Name(id=name) if is_scalar(name) or decode(name) in self.scalars:
                return Access(decode(name), ())
            case ast.Subscript(value=ast.Name(id=name), slice=inner):
                nodes = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                return Access(decode(name), tuple(self.subscript(n, fragment) for n in nodes))
            case _:
                return None

    def subscript(self, node: ast.expr, fragment: Fragment) -> Subscript:
        """An affine subscript, or a read whose value is the subscript. Raises `ParseError`."""
        match node:
            case ast.Call(func=ast.Name(id="read")):
                return ReadIndex(self._read_call(node, fragment))
            case ast.IfExp():
                guarded = self.guarded(node, fragment)
                if guarded is not None:
                    return ReadIndex(self.number(guarded))
            case _:
                inner = self.access(node, fragment)
                if inner is not None:
                    return ReadIndex(self.number(inner))
        if any(isinstance(n, ast.Subscript) for n in ast.walk(node)) and self._reads_only(node):
            text = "a subscript is affine or an element, not computed from elements"
            raise fragment.node_error(node, text, self._as_element(node, fragment))
        return affine(node, fragment, self._as_element(node, fragment))

    def _reads_only(self, node: ast.expr) -> bool:
        """Whether all subscripts in a node are of accesses that could be read."""
        inner = [n for n in ast.walk(node) if isinstance(n, ast.Subscript)]
        return all(isinstance(n.value, ast.Name) and not isinstance(n.slice, ast.Slice) for n in inner)

    def _as_element(self, node: ast.expr, fragment: Fragment) -> str:
        """The statement that makes a subscript an element, as which it can be any number."""
        odd = any(isinstance(n, ast.Constant) and type(n.value) is not int for n in ast.walk(node))
        if odd or not self._reads_only(node):
            return "i, 2*i + 1, i // 2 and the like, or an element of integers: T[i]"
        other = {n.value for n in ast.walk(node) if isinstance(n, ast.Subscript)}
        other |= {n.func for n in ast.walk(node) if isinstance(n, ast.Call)}
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n not in other and not self.is_access(n)]
        places = {decode(n.id): (n.lineno, n.col_offset) for n in reversed(names)}
        free = next((n for n in ("g", "h", "at") if n not in names_in(fragment.source.encoded)), "place")
        element = f"{free}[{', '.join(sorted(places, key=lambda n: places[n]))}]"
        whole = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DTYPES
        value = written(node) if whole or not other else f"i64({written(node)})"
        ranges = "" if other else f" where {' and '.join(f'0 <= {n} < 8' for n in sorted(places))}"
        return f"{element} = {value}{ranges} before it, and {element} as the subscript"

    def number(self, access: Access) -> int:
        """The position of a read, added where it is new."""
        asked = access
        if self.around:
            guard = tuple(dict.fromkeys((*self.around, *access.guard)))
            access = Access(access.tensor, access.index, guard, access.fill or Const(0))
        if access not in self.reads:
            if self.fixed:
                raise ParseError(f"{access_text(access, self.reads)} is not in the list of reads")
            self.reads.append(access)
            self.chosen |= {len(self.reads) - 1} if self.around and not asked.guard else set()
        elif asked.guard:
            self.chosen.discard(self.reads.index(access))
        return self.reads.index(access)

    def _where(self, node: ast.expr, holds: Sequence[Constraint], fragment: Fragment) -> Expr:
        """The value of a node that counts only where the constraints hold."""
        outside = self.around
        plain = all(unequal_parts(c) or isinstance(a, Var | FloorDiv) for c in holds for a, _ in c.expr.terms)
        if plain and self.bare_indices and not self.fixed:
            self.around = (*outside, *(c for c in holds if not c.expr.names & set(self.scalars)))
        try:
            return self.value(node, fragment)
        finally:
            self.around = outside

    def _choice(self, node: ast.IfExp, fragment: Fragment) -> Expr:
        then = self._where(node.body, necessary(node.test, affine_or_none), fragment)
        otherwise = self._where(node.orelse, necessary(node.test, affine_or_none, negated=True), fragment)
        return Apply("select", (self.value(node.test, fragment), then, otherwise))

    def _truths(self, node: ast.BoolOp, fragment: Fragment) -> Expr:
        """`a and b`, `a or b`: b counts only where a does not decide."""
        every, before, values = isinstance(node.op, ast.And), list[Constraint](), list[Expr]()
        for value in node.values:
            values.append(self._where(value, before, fragment))
            before += necessary(value, affine_or_none, negated=not every)
        return self._fold("and" if every else "or", values)

    def guarded(self, node: ast.IfExp, fragment: Fragment) -> Access | None:
        """`A[i - 1] if affine condition else literal`, or the other way round; None for any other conditional."""
        negated = not self.is_access(node.body)
        read, other = (node.orelse, node.body) if negated else (node.body, node.orelse)
        if not self.is_access(read):
            return None
        fill = _const(other)
        guard = None if fill is None else conjunction(node.test, affine_or_none, negated, not self.bare_indices)
        access = None if guard is None else self.access(read, fragment)
        if not guard or fill is None or access is None:
            return None
        if any(name in self.scalars for c in guard for name in c.expr.names):
            return None
        return Access(access.tensor, access.index, guard, fill)

    def listed(self, node: ast.expr, fragment: Fragment) -> Access:
        """An entry of a list of reads. Raises `ParseError`."""
        access = self.guarded(node, fragment) if isinstance(node, ast.IfExp) else self.access(node, fragment)
        if access is None:
            raise fragment.error("a read is expected here", hint="A[i, k], or (A[i - 1] if i >= 1 else 0)")
        return access

    def is_access(self, node: ast.expr) -> bool:
        """Whether a node is an element or a scalar."""
        if isinstance(node, ast.Name):
            return is_scalar(node.id) or decode(node.id) in self.scalars
        return isinstance(node, ast.Subscript) and self._chosen(node) is None

    def _chosen(self, node: ast.expr) -> ast.IfExp | None:
        """The choice that a read with `max`, `min` or `abs` in a subscript is."""
        if not isinstance(node, ast.Subscript) or not self.bare_indices or self.fixed:
            return None
        return chosen_element(node, self._of_indices)

    def body(self, fragment: Fragment) -> Expr:
        """The body that a fragment is. Raises `ParseError`."""
        with fragment.within_depth():
            return self.value(self.tree(fragment), fragment)

    def tree(self, fragment: Fragment) -> ast.expr:
        """What a fragment says in Python's syntax, one form for one meaning. Raises `ParseError`."""
        found = _Truths().visit(fragment.expression())
        return _Choices().visit(found) if self.bare_indices else found

    def value(self, node: ast.expr, fragment: Fragment) -> Expr:
        """The value that a node is. Raises `ParseError` at the node."""
        const = _const(node)
        if const is not None and not (isinstance(node, ast.Name) and self.is_access(node)):
            return const
        if (chosen := self._chosen(node)) is not None:
            return self._choice(chosen, fragment)
        access = self.access(node, fragment)
        if access is not None:
            return Read(self.number(access))
        match node:
            case ast.IfExp():
                guarded = self.guarded(node, fragment)
                if guarded is not None:
                    return Read(self.number(guarded))
                return self._choice(node, fragment)
            case ast.Name(id=name):
                if not self.bare_indices:
                    hint = f"{decode(name)}[] for a scalar tensor, index({decode(name)}) for the value of an index"
                    raise fragment.node_error(node, f"{decode(name)!r} is not a tensor of rank 0", hint)
                return IndexValue(affine(node, fragment))
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(op, operand, fragment)
            case ast.BinOp(op=ast.FloorDiv() | ast.Mod()) if self._has_index(node) and self._of_indices(node):
                return IndexValue(affine(node, fragment))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return Apply(_ARITHMETIC[type(op)], (self.value(left, fragment), self.value(right, fragment)))
            case ast.BinOp(op=ast.MatMult()):
                raise fragment.node_error(node, "@ has no meaning in a body", "C[i, k] += A[i, j]*B[j, k]")
            case ast.BoolOp():
                return self._truths(node, fragment)
            case ast.Compare():
                return self._compare(node, fragment)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._call(decode(name), arguments, node, fragment)
            case _:
                hint = "a op b, f(a), `a if c else b`, T[i, j] and numbers"
                if isinstance(node, ast.Constant) and "inf" in str(node.value):
                    hint = "-inf without float(...)"
                elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Subscript):
                    hint = "all subscripts in one pair of brackets: T[i, j]"
                raise fragment.node_error(node, "this has no meaning in a body", hint)

    def _has_index(self, node: ast.expr) -> bool:
        return any(isinstance(n, ast.Name) for n in ast.walk(node))

    def _of_indices(self, node: ast.expr) -> bool:
        """Whether the value of a node is affine in indices and sizes."""
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        if not self.bare_indices or any(map(self.is_access, names)):
            return False
        try:
            affine_of_ast(node)
        except ParseError:
            return False
        return True

    def _unary(self, op: ast.unaryop, operand: ast.expr, fragment: Fragment) -> Expr:
        value = self.value(operand, fragment)
        match op:
            case ast.USub():
                return Apply("neg", (value,))
            case ast.Not():
                return Apply("not", (value,))
            case ast.UAdd():
                return value
            case _:  # ast.Invert, of integers and truths
                return Apply("bit_xor", (value, Const(-1)))

    def _compare(self, node: ast.Compare, fragment: Fragment) -> Expr:
        values = [self.value(n, fragment) for n in (node.left, *node.comparators)]
        links: list[Expr] = []
        for op, a, b in zip(node.ops, values, values[1:], strict=False):
            if type(op) not in COMPARE:
                raise fragment.node_error(node, "no such comparison", "== != < <= > >=")
            links.append(Apply(COMPARE[type(op)], (a, b)))
        return self._fold("and", links)

    def _fold(self, name: str, values: Sequence[Expr]) -> Expr:
        result = values[0]
        for value in values[1:]:
            result = Apply(name, (result, value))
        return result

    def _read_call(self, node: ast.Call, fragment: Fragment) -> int:
        match node.args:
            case [ast.Constant(value=int(position))] if 0 <= position < len(self.reads):
                return position
            case _:
                raise fragment.node_error(
                    node, f"read(k) takes a position in the list of reads, 0 to {len(self.reads) - 1}"
                )

    def _call(self, called: str, arguments: Sequence[ast.expr], node: ast.Call, fragment: Fragment) -> Expr:
        name = NUMPYS_OPERATORS.get(called, called)
        if name == "read":
            return Read(self._read_call(node, fragment))
        if name == "index" and len(arguments) == 1:
            return IndexValue(affine(arguments[0], fragment))
        if name == "cast" and len(arguments) == 2 and isinstance(arguments[0], ast.Name) and arguments[0].id in DTYPES:
            return Cast(arguments[0].id, self.value(arguments[1], fragment))
        values = [self.value(a, fragment) for a in arguments]
        if name in COMBINERS and len(values) > 2:
            return self._fold(name, values)
        if (parameters := wanted(name)) is None:
            every = sorted({*FORMS, *(n for n, o in OPERATORS.items() if o.infix is None and n not in INTERNAL)})
            hint = suggestion(called, OPERATORS.keys() | DTYPES) or f"one of {', '.join(every)}"
            raise fragment.node_error(node, f"no function {called!r}", hint)
        if len(parameters) != len(values):
            hint = f"{called}({', '.join(parameters)})"
            hint = f"y {name}= x[i] over all i" if name in ("max", "min") and len(values) == 1 else hint
            text = f"{called} takes {counted(len(parameters), 'argument')}, not {len(values)}"
            raise fragment.node_error(node, text, hint)
        if name in DTYPES:
            return Cast(name, values[0])
        if name not in FORMS:
            return Apply(name, tuple(values))
        if (found := written_out(name, values)) is None:
            text = f"{called}(...) is more than {MOST_WRITTEN_OUT} operations written out"
            raise fragment.node_error(node, text, "a statement of its own for what it is of: t[i] = ...")
        return found


@cache
def _form(name: str) -> Expr:
    """The expression of a form, whose reads are its parameters."""
    parameters = FORMS[name].parameters
    reader = BodyReader(parameters, bare_indices=True)
    body = reader.body(Source.of(FORMS[name].text))
    return with_reads_at(body, [parameters.index(access.tensor) for access in reader.reads])


def written_out(name: str, given: Sequence[Expr], also: Callable[[Expr], Expr | None] = lambda _: None) -> Expr | None:
    """What a form is of these arguments; `also` rewrites what is made of them. None where one occurs several times, and
    the whole is more than `MOST_WRITTEN_OUT`: calls in calls double it each time.
    """
    form = _form(name)
    found = rewrite(form, lambda e: given[e.position] if isinstance(e, Read) else also(e))
    repeated = sum(isinstance(e, Read) for e in walk(form)) > len(given)
    return None if repeated and exceeds(found) else found


def exceeds(body: Expr) -> bool:
    """Whether a body is more than `MOST_WRITTEN_OUT`."""
    return sum(1 for _ in islice(walk(body), MOST_WRITTEN_OUT + 1)) > MOST_WRITTEN_OUT


class _Truths(ast.NodeTransformer):
    """`&` and `|` of conditions, as arrays have them, are `and` and `or`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.BitAnd | ast.BitOr) or not (_is_truth(node.left) and _is_truth(node.right)):
            return node
        op = ast.And() if isinstance(node.op, ast.BitAnd) else ast.Or()
        return ast.copy_location(ast.BoolOp(op, [node.left, node.right]), node)


class _Choices(ast.NodeTransformer):
    """`select(c, a, b)` is `a if c else b`."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="select"), args=[test, then, otherwise], keywords=[]):
                return ast.copy_location(ast.IfExp(test, then, otherwise), node)
            case _:
                return node


def _is_truth(node: ast.expr) -> bool:
    denied = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return denied or isinstance(node, ast.Compare | ast.BoolOp)


def _const(node: ast.expr) -> Const | None:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return Const(value)
        case ast.Name(id=("inf" | "nan") as name):
            return Const(_LITERALS[name])
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(
            value, bool
        ):
            return Const(-value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return Const(-_LITERALS["inf"])
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in DTYPES:
            inner = _const(argument)
            return Const(inner.value, name) if inner is not None and inner.dtype is None else None
        case _:
            return None


def affine(node: ast.expr, fragment: Fragment, hint: str | None = None) -> Affine:
    """The affine expression that a node of the fragment is. Raises `ParseError` at the place, with the hint that there
    is, or this one."""
    with fragment.within_depth():
        try:
            return affine_of_ast(node)
        except ParseError as error:
            raise fragment.error_at(error.line, error.column, error.message, error.hint or hint) from None
