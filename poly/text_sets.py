"""Integer sets as conditions: `0 <= i < M and (i) mod 2 = 0`. Printed in isl's words; read in isl's or Python's.

Every name goes through a stand-in, so that a dot in a name, or a name that is a word of isl, does no harm.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

import islpy as isl

from poly.errors import ParseError
from poly.lexical import Fragment, decode, quote

SET, PARAM = isl.dim_type.set, isl.dim_type.param
_WORD: Final = re.compile(r"[^\W\d]\w*")
_TIMES: Final = re.compile(r"(\d*)([^\W\d]\w*)")  # isl writes 2i
_DEEPEST: Final = 500  # brackets in isl's words, and signs in front of one another
_SIGNS: Final = re.compile(rf"(?:(?:-|\bnot\b)\s*){{{_DEEPEST}}}")
_ISL_WORDS: Final = frozenset("and or not mod floor ceil min max exists implies true false".split())
_COMPARE: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "=", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_BINARY: Final[dict[type[ast.operator], str]] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


def print_condition(domain: isl.Set, iterators: Sequence[str] = ()) -> str:
    """The condition of a set whose dimensions are `iterators`; "" for everything."""
    count = domain.dim(PARAM)
    names = [*(str(domain.get_dim_name(PARAM, d)) for d in range(count)), *iterators]
    if not domain.is_params():
        if domain.has_tuple_id():
            domain = domain.reset_tuple_id()
        domain = domain.move_dims(PARAM, count, SET, 0, len(iterators)).params()
    if domain.plain_is_universe():
        return ""
    stand_ins = {f"v{d}_": name for d, name in enumerate(names)}
    for d, stand_in in enumerate(stand_ins):
        domain = domain.set_dim_name(PARAM, d, stand_in)
    text = str(domain)
    text = text[text.index(":") + 1 : text.rindex("}")].strip()

    def shown(match: re.Match[str]) -> str:
        word, times = match[2], "*" if match[1] else ""
        if word in stand_ins:
            name = stand_ins[word]
            return f"{match[1]}{times}{'`' + name + '`' if name in _ISL_WORDS else quote(name)}"
        while word not in _ISL_WORDS and word in names:  # an existential that has the name of an iterator
            word += "_"
        return f"{match[1]}{times}{word}"

    return _TIMES.sub(shown, text)


def read_condition(
    condition: Fragment | None, iterators: Sequence[str], parameters: Sequence[str], name: str | None
) -> isl.Set:
    """The set `{ name[iterators] : condition }`, or a set of the parameters where `name` is None.

    Raises `ParseError` for a condition that isl cannot read or that has an unknown name.
    """
    stand_ins = {n: f"v{d}_" for d, n in enumerate([*parameters, *iterators])}
    text = "true" if condition is None else _isl_text(condition, stand_ins)
    parts = [", ".join(stand_ins[n] for n in group) for group in (parameters, iterators)]
    space = "" if name is None else f"[{parts[1]}]"
    try:
        found = isl.Set(f"[{parts[0]}] -> {{ {space} : {text} }}")
    except isl.Error as error:
        assert condition is not None, error
        raise condition.error(
            f"not a condition: {condition.shown!r}", hint="for example 0 <= i < M and i % 2 == 0"
        ) from None
    if name is None:
        found = _rename(found, parameters, ())
        return found if found.is_params() else found.params()
    return _rename(found, parameters, iterators).set_tuple_name(name)


def read_terms(
    condition: Fragment, iterators: Sequence[str], parameters: Sequence[str], kept: Collection[str]
) -> isl.Set | None:
    """The part of a conjunction that speaks of `kept` iterators only, as a set of those of `iterators`.

    None where the text is not a conjunction in Python's syntax.
    """
    try:
        tree = condition.expression()
    except ParseError:
        return None
    names = {n: f"v{d}_" for d, n in enumerate([*parameters, *iterators])}
    dropped = set(iterators).difference(kept)
    with condition.within_depth():
        terms = [_translate(t, condition, names) for t in _conjuncts(tree) if not _mentions(t, dropped)]
    parts = [", ".join(names[n] for n in group) for group in (parameters, [i for i in iterators if i in kept])]
    found = isl.Set(f"[{parts[0]}] -> {{ [{parts[1]}] : {' and '.join(terms) or 'true'} }}")
    return _rename(found, parameters, [i for i in iterators if i in kept])


def _conjuncts(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            for value in values:
                yield from _conjuncts(value)
        case ast.Compare(left=left, ops=ops, comparators=right):
            for a, op, b in zip([left, *right], ops, right, strict=False):
                yield ast.copy_location(ast.Compare(a, [op], [b]), node)
        case _:
            yield node


def _mentions(node: ast.expr, names: Collection[str]) -> bool:
    return any(isinstance(n, ast.Name) and decode(n.id) in names for n in ast.walk(node))


def _rename(found: isl.Set, parameters: Sequence[str], iterators: Sequence[str]) -> isl.Set:
    for kind, names in ((PARAM, parameters), (SET, iterators)):
        for d, name in enumerate(names):
            if name[:1].isdigit():  # isl refuses what looks like a number
                raise ParseError(f"{name!r} cannot name an index or a size")
            found = found.set_dim_name(kind, d, name)
    return found


def _isl_text(condition: Fragment, names: Mapping[str, str]) -> str:
    try:
        tree = condition.expression()
    except ParseError:
        return _raw(condition, names)
    with condition.within_depth():
        return _translate(tree, condition, names)


def _raw(condition: Fragment, names: Mapping[str, str]) -> str:
    """isl's own words, names replaced. `exists (e: ...)` brings names of its own."""
    text = condition.text
    if any(c in text for c in "{}"):
        raise condition.error("a condition has no braces")
    if _nested(text) > _DEEPEST or _SIGNS.search(text):  # isl's parser would overflow the stack of the process
        raise condition.error("nested too deeply")
    bound = {w for m in re.finditer(r"exists[^:]*:", text) for w in _WORD.findall(m[0])}

    def replace(match: re.Match[str]) -> str:
        word, name = match[0], decode(match[0])
        if word in _ISL_WORDS or word in bound:
            return word
        if name not in names:
            raise condition.error(f"unknown name {name!r}", match.start(), _known(names))
        return names[name]

    return _WORD.sub(replace, text).replace("==", "=")


def _nested(text: str) -> int:
    return max(accumulate((c == "(") - (c == ")") for c in text), default=0)


def _known(names: Mapping[str, str]) -> str:
    declared = "an index with both ends, where 0 <= i < 8, or sizes declared first: program name(M, N)"
    return f"one of {', '.join(names)}" if names else declared


def _translate(node: ast.expr, condition: Fragment, names: Mapping[str, str]) -> str:
    """A condition as isl writes it. Raises `ParseError` at the node."""
    def go(inner: ast.expr) -> str:
        return _translate(inner, condition, names)

    match node:
        case ast.BoolOp(op=op, values=values):
            return "(" + (" and " if isinstance(op, ast.And) else " or ").join(map(go, values)) + ")"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"(not {go(operand)})"
        case ast.Compare(left=left, ops=ops, comparators=right) if all(type(op) in _COMPARE for op in ops):
            links = zip(ops, [left, *right], right, strict=False)
            return "(" + " and ".join(f"{go(a)} {_COMPARE[type(op)]} {go(b)}" for op, a, b in links) + ")"
        case ast.Constant(value=bool(value)):
            return str(value).lower()
        case ast.Name(id=("true" | "false") as word):
            return word
        case ast.Constant(value=int(value)):
            return str(value)
        case ast.Name(id=name) if decode(name) in names:
            return names[decode(name)]
        case _:
            found = _operation(node, go)
            if found is None:
                raise _meaningless(node, condition, names)
            return found


def _operation(node: ast.expr, go: Callable[[ast.expr], str]) -> str | None:
    """Arithmetic on indices as isl writes it, by what its operands are; None for other expressions."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return f"-{value}"  # isl does not read (-2) * N
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"(-{go(operand)})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return f"({go(left)} {_BINARY[type(op)]} {go(right)})"
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return f"floor({go(left)}/{go(right)})"
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            return f"({go(left)} mod {go(right)})"
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return f"{go(left)}/{go(right)}"
        case ast.Call(func=ast.Name(id=("floor" | "ceil" | "min" | "max") as name), args=arguments):
            return f"{name}({', '.join(map(go, arguments))})"
        case _:
            return None


def _meaningless(node: ast.expr, condition: Fragment, names: Mapping[str, str]) -> ParseError:
    """Why an expression is none of a condition."""
    match node:
        case ast.Name(id=name):
            hint = f'{_known(names)}; a size {decode(name)} stands in a shape: x=("{decode(name)}",)'
            return condition.node_error(node, f"unknown name {decode(name)!r}", hint if names else _known(names))
        case ast.Tuple() if (comma := next(condition.find(","), None)) is not None:
            return condition.error("a condition has no commas", comma, "and between its parts")
        case ast.Subscript():
            read = ast.unparse(node)
            hint = f"a choice in the value: ({read} if {read} > 0 else 0)"
            return condition.node_error(node, "a condition on indices has no values of tensors", hint)
        case _:
            return condition.node_error(node, "this has no meaning in a condition")
