"""`while` loops that count, as the `for` that they are.

    k = 0                                for k in range(0, N, 2):
    while k < N:              ->             s += x[k]
        s += x[k]
        k += 2
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

# The end of a range by the comparison with the last value, and whether the loop counts up.
_ENDS: Final[Mapping[type[ast.cmpop], tuple[int, bool]]] = {
    ast.Lt: (0, True), ast.LtE: (1, True), ast.Gt: (0, False), ast.GtE: (-1, False),
}  # fmt: skip


def with_ranges(body: Sequence[ast.stmt], taken: Collection[str]) -> list[ast.stmt]:
    """A body whose counting loops are loops over ranges: begun before them in the same block, with one step, which
    comes last, ends that are no data, and a name that nothing else reads. `taken`: names that mean something beside
    those in the body.
    """
    loops = [loop for part in _blocks(body) for loop in _loops(part)]
    known = _without_data(body, {*taken, *(_name(begin) for begin, _ in loops)})
    loops = [(b, loop) for b, loop in loops if all(_is_whole(v, known) for v in (b.value, _bound(loop)))]
    own = Counter[str]()
    for begin, loop in loops:
        own[_name(begin)] += _mentions([begin, loop])[_name(begin)]
    everywhere = _mentions(body)
    alone = {name for name, times in own.items() if times == everywhere[name] and name not in taken}
    made = _Counted([(begin, loop) for begin, loop in loops if _name(begin) in alone])
    return made.block(body)


class _Counted(ast.NodeTransformer):
    def __init__(self, loops: Sequence[tuple[ast.Assign, ast.While]]) -> None:
        self.begun = {id(loop): begin for begin, loop in loops}
        self.gone = {id(begin) for begin, _ in loops}

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        made = (self.visit(s) for s in body)
        return [s for s in made if s is not None]

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        return None if id(node) in self.gone else node

    def visit_While(self, node: ast.While) -> ast.stmt:
        self.generic_visit(node)
        if (begin := self.begun.get(id(node))) is None:
            return node
        match node:
            case ast.While(test=ast.Compare(ops=[op], comparators=[bound]), body=[*body, ast.AugAssign() as last]):
                beyond, _ = _ENDS[type(op)]
                end = bound if not beyond else ast.BinOp(bound, ast.Add(), ast.Constant(beyond))
                values = [begin.value, end, ast.Constant(_step(last))]
                trips = ast.Call(ast.Name("range", ast.Load()), values, [])
                made = ast.For(begin.targets[0], ast.copy_location(trips, node.test), body or [ast.Pass()], [])
                return ast.fix_missing_locations(ast.copy_location(made, node))
            case _:
                return node


def _blocks(body: Sequence[ast.stmt]) -> Iterator[Sequence[ast.stmt]]:
    yield body
    for s in body:
        match s:
            case ast.For(body=inner, orelse=other) | ast.While(body=inner, orelse=other) | ast.If(
                body=inner, orelse=other
            ):
                yield from (*_blocks(inner), *_blocks(other))
            case _:
                pass


def _loops(block: Sequence[ast.stmt]) -> Iterator[tuple[ast.Assign, ast.While]]:
    """The loops of a block that count, with what begins them."""
    for k, s in enumerate(block):
        if isinstance(s, ast.While) and (name := _counts(s)):
            for at in range(k - 1, -1, -1):
                begin = block[at]
                if name not in _mentions([begin]):
                    continue
                if isinstance(begin, ast.Assign) and _sets(begin, name):
                    if not _names(begin.value) & _written(block[at + 1 : k]):
                        yield begin, s
                break


def _counts(loop: ast.While) -> str:
    """The name that a loop counts by; "" where it does more."""
    match loop:
        case ast.While(
            test=ast.Compare(left=ast.Name(id=name), ops=[op], comparators=[bound]),
            body=[*body, ast.AugAssign(target=ast.Name(id=stepped)) as last],
            orelse=[],
        ) if name == stepped and type(op) in _ENDS:
            kept = not _names(bound) & {name, *_written(body)} and name not in _written(body)
            step = _step(last)
            same_way = step != 0 and (step > 0) == _ENDS[type(op)][1]
            return name if kept and same_way and not any(map(_continues, body)) else ""
        case _:
            return ""


def _step(last: ast.AugAssign) -> int:
    """What is added in each trip; 0 where it varies."""
    match last:
        case ast.AugAssign(op=ast.Add() | ast.Sub() as op, value=ast.Constant(value=int(step))) if step is not True:
            return step if isinstance(op, ast.Add) else -step
        case _:
            return 0


def _continues(s: ast.stmt) -> bool:
    """Whether a statement goes on with the next trip of the loop around it, without the step."""
    match s:
        case ast.Continue():
            return True
        case ast.If(body=body, orelse=other):
            return any(map(_continues, (*body, *other)))
        case ast.For(orelse=other) | ast.While(orelse=other):
            return any(map(_continues, other))
        case _:
            return False


def _bound(loop: ast.While) -> ast.expr:
    return loop.test.comparators[0] if isinstance(loop.test, ast.Compare) else loop.test


def _without_data(body: Sequence[ast.stmt], known: Collection[str]) -> set[str]:
    """Names that are no data: `known`, loop variables, and those that one assignment makes of such."""
    nodes = [n for s in body for n in ast.walk(s)]
    loops = {n.target.id for n in nodes if isinstance(n, ast.For) and isinstance(n.target, ast.Name)}
    stores = Counter(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    found = {*known, *loops}
    for s in (n for n in nodes if isinstance(n, ast.Assign)):
        if stores[_name(s)] == 1 and _sets(s, _name(s)) and _is_whole(s.value, found):
            found.add(_name(s))
    return found


def _is_whole(value: ast.expr, known: Collection[str]) -> bool:
    """Whether a value is made of `known` names and integers, without a fraction or an element in it."""
    match value:
        case ast.Name(id=name):
            return name in known
        case ast.Constant(value=constant):
            return isinstance(constant, int)
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case ast.BinOp(left=a, op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Mod(), right=b):
            return _is_whole(a, known) and _is_whole(b, known)
        case ast.UnaryOp(op=ast.USub(), operand=a):
            return _is_whole(a, known)
        case ast.Call(func=ast.Name(id="len")):
            return True
        case ast.Call(func=ast.Name(id="min" | "max"), args=arguments, keywords=[]):
            return all(_is_whole(a, known) for a in arguments)
        case _:
            return False


def _sets(s: ast.Assign, name: str) -> bool:
    return len(s.targets) == 1 and isinstance(s.targets[0], ast.Name) and s.targets[0].id == name


def _name(begin: ast.Assign) -> str:
    return ast.unparse(begin.targets[0])


def _mentions(body: Sequence[ast.stmt]) -> Counter[str]:
    return Counter(n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name))


def _names(value: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}


def _written(body: Sequence[ast.stmt]) -> set[str]:
    """Locals and arrays that a body writes."""
    nodes = [n for s in body for n in ast.walk(s)]
    stored = [n for n in nodes if isinstance(n, ast.Name | ast.Subscript) and isinstance(n.ctx, ast.Store)]
    return {n.id for s in stored for n in ast.walk(s.value if isinstance(s, ast.Subscript) else s)
            if isinstance(n, ast.Name)}  # fmt: skip
