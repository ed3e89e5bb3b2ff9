"""What to write instead of Python that a nest does not have: for a syntax node, what is wrong and one suggestion."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from math import isfinite
from typing import Final

from poly.expr import OPERATORS
from poly.function_forms import FORMS
from poly.function_hints import INTERNAL, suggestion

_SIGNS: Final = frozenset("select bit_and bit_or bit_xor shift_left shift_right".split())  # a if c else b, a & b, ...
FUNCTIONS: Final = tuple(sorted(n for n, o in OPERATORS.items() if o.infix is None and n not in INTERNAL | _SIGNS))
_SUMS: Final = {"sum": "+=", "prod": "*=", "dot": "+=", "matmul": "+=", "einsum": "+=", "mean": "+=", "inner": "+="}
_STATEMENTS: Final[Mapping[type[ast.stmt], tuple[str, str]]] = {
    ast.Return: ("a nest returns nothing", "write the result into an argument, and remove the line"),
    ast.Import: ("an import in a nest", "import outside of the function"),
    ast.ImportFrom: ("an import in a nest", "import outside of the function"),
    ast.FunctionDef: ("a function in a nest", "write its body where it is called"),
    ast.Delete: ("del has no meaning in a nest", "remove the line: locals end with the nest"),
    ast.Global: ("global has no meaning in a nest", "remove the line, and pass what is written as an argument"),
    ast.Nonlocal: ("nonlocal has no meaning in a nest", "remove the line, and pass what is written as an argument"),
    ast.Try: ("try has no meaning in a nest", "remove it: nothing in a nest raises"),
    ast.With: ("with has no meaning in a nest", "open it around the call of the nest"),
    ast.Raise: ("raise has no meaning in a nest", "assert before the loops what holds for sizes"),
    ast.Break: ("a break that data do not decide", "end the range earlier: for i in range(end)"),
    ast.Continue: ("a continue without a condition", "remove what follows it, and the line"),
}
RANGE: Final = (
    "all elements with the row of each, of starts p: row = np.repeat(np.arange(N), np.diff(p)) before the call, "
    "y[row[k]] += values[k] * x[columns[k]] for k in range(len(values))"
)


def statement(node: ast.stmt) -> tuple[str, str]:
    """For a statement that is none of a nest's."""
    for kind, found in _STATEMENTS.items():
        if isinstance(node, kind):
            return found
    match node:
        case ast.While(test=test):
            shown = ast.unparse(ast.UnaryOp(ast.Not(), test))
            return "a while loop only counts: k = 0 before it, k += 1 its last line, k read in it alone", (
                "a bound that no run exceeds, in place of 100, as trips beyond it are left out: "
                f"for trip in range(100): with if {shown}: break as its first line"
            )
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return f"{ast.unparse(node)} changes {name} as a whole", f"a loop that assigns the elements of {name}"
        case ast.Expr(value=ast.Call(func=function)):
            return f"a nest calls nothing for its effect: {ast.unparse(node)}", (
                f"remove the line, and call {ast.unparse(function)} after the nest"
            )
        case ast.Expr():
            return f"{ast.unparse(node)} has no effect", "remove the line, or assign the value"
        case _:
            return f"{type(node).__name__.lower()} has no meaning in a nest", (
                "for loops over range, if on loop variables and sizes, assignments"
            )


def branch(node: ast.If) -> str:
    """For an `if` on data whose branches hold more than assignments."""
    test, inside = ast.unparse(node.test), (*node.body, *node.orelse)
    assigned = next((s for s in inside if isinstance(s, ast.Assign)), None)
    if assigned is not None:
        target, value = ast.unparse(assigned.targets[0]), ast.unparse(assigned.value)
        return f"choose between values: {target} = {value} if {test} else {target}"
    return f"assignments and loops alone under if {test}:"


def targets(node: ast.Assign) -> tuple[str, str]:
    """For assignments to several targets that are not taken apart: why not, and what to write."""
    message = "each target has a value of its own"
    shown = next((t for t in node.targets if isinstance(t, ast.Tuple | ast.List)), ast.Tuple([]))
    sides = [s.elts for s in (shown, node.value) if isinstance(s, ast.Tuple | ast.List)]
    if any(isinstance(e, ast.Tuple | ast.List | ast.Starred) for side in sides for e in side):
        return message, "names and elements, no tuples in tuples: a, b, c = x[i], y[i], 0.0"
    named = ", ".join(map(ast.unparse, shown.elts))
    return message, f"as many values: {named} = {', '.join('...' for _ in shown.elts)}"


def iterable(node: ast.expr) -> str:
    """What to loop over in place of something that is no range."""
    match node:
        case ast.Call(func=ast.Name(id="enumerate"), args=[ast.Name(id=name), *_]) | ast.Name(id=name):
            return f"for i in range(len({name})): with {name}[i] in its body"
        case ast.Call(func=function, args=arguments) if arguments and "range" in ast.unparse(function):
            return f"for i in range({', '.join(map(ast.unparse, arguments[:3]))})"
        case ast.Call(func=ast.Name(id="reversed"), args=[ast.Call(func=ast.Name(id="range"), args=[end])]):
            return f"for i in range({ast.unparse(end)} - 1, -1, -1)"
        case ast.List(elts=elements) | ast.Tuple(elts=elements) if elements:
            return f"for i in range({len(elements)})"
        case _:
            return "for i in range(lower, upper, step)"


def affine(node: ast.expr) -> str:
    """For an expression of which a part is not affine in loop variables and sizes."""
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return f"an integer: {_grouped(left)} // {_grouped(right)}"
        case ast.Call(func=ast.Name(id="int" | "round" | "floor"), args=[ast.BinOp(op=ast.Div()) as inner]):
            return affine(inner)
        case ast.Call(func=ast.Attribute(attr="floor"), args=[ast.BinOp(op=ast.Div()) as inner]):
            return affine(inner)
        case ast.Constant(value=float(value)) if isfinite(value):
            return f"an integer: {int(value)}"
        case ast.BinOp(op=ast.FloorDiv() | ast.Mod(), right=right):
            shown = f"reads may go around: x[(i + 1) % N] of N elements, writes by a local k = {ast.unparse(node)}"
            return f"an integer in place of {ast.unparse(right)}; {shown}"
        case ast.Call(func=ast.Name(id="max" | "min" | "abs")):
            return f"k = {ast.unparse(node)} on a line before, and k as the subscript"
        case ast.BinOp():
            return "+ and -, * by an integer, // and % by an integer"
        case _:
            return "loop variables and sizes with + and -, * by an integer, // and % by an integer"


def held(node: ast.expr) -> str:
    """How a value becomes a subscript."""
    return f"k = {ast.unparse(node)} before it, and k as the subscript"


def value(node: ast.expr) -> str:
    """For an expression that has no meaning as a value."""
    match node:
        case ast.BinOp(op=ast.MatMult()):
            return "a product of matrices is loops: C[i, j] += A[i, k] * B[k, j]"
        case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
            return "a loop that adds to a local: s = 0.0; for k in range(N): s += B[k]"
        case ast.NamedExpr(target=target):
            return f"assign {ast.unparse(target)} on a line before"
        case ast.Lambda():
            return "write its body where it is called"
        case _:
            return "arithmetic, comparisons, and/or/not, `a if c else b`, functions such as sqrt, exp, min, max, abs"


def function(name: str) -> str:
    """For a call of a function that a nest does not know."""
    if name in _SUMS:
        return f"a loop that gathers into a local: s {_SUMS[name]} B[k]"
    known = ", ".join(sorted({*FUNCTIONS, *FORMS}))
    what = f"write what {name} computes in its place, as functions are not inlined"
    return suggestion(name, FUNCTIONS) or f"{what}: arithmetic and {known}"


def _grouped(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.BinOp | ast.IfExp | ast.BoolOp | ast.Compare) else text
