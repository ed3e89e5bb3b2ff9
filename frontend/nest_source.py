"""Where a Python function is written: its syntax tree, with positions of the file it stands in.

Errors about a nest point into that file, with line, column and a caret.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from poly.errors import ParseError


@dataclass(frozen=True)
class Source:
    """The text of a file, and the name to show for it. `made`: for locals that reading adds, what they stand for."""

    file: str
    text: str
    made: dict[str, str] = field(default_factory=dict[str, str], compare=False)

    def error(self, node: ast.AST, message: str, hint: str | None = None) -> ParseError:
        """A `ParseError` at a node of the file's syntax tree."""
        line = getattr(node, "lineno", 1)
        return self.error_at(line, self.column(line, getattr(node, "col_offset", 0)), message, hint)

    def error_at(self, line: int, column: int, message: str, hint: str | None = None) -> ParseError:
        """The same at a line (from 1) and a column (from 0) in characters."""
        place = f"{self.file}:{line}:{column + 1}"
        hint = None if hint is None else self._as_written(hint)
        message = self._as_written(message)
        return ParseError(f"{place}: {message}", text=self.text, line=line, column=column, hint=hint)

    def _as_written(self, text: str) -> str:
        """A text without names that reading made; later ones stand for texts with earlier ones."""
        for name, meaning in reversed(self.made.items()):
            text = re.sub(rf"(?<![\w.]){name}\b", lambda _, m=meaning: m, text)
        return text

    def column(self, line: int, offset: int) -> int:
        """Characters before a byte offset, which is what Python's parser counts."""
        lines = self.text.splitlines()
        return len(lines[line - 1].encode()[:offset].decode(errors="ignore")) if 0 < line <= len(lines) else offset


@dataclass(frozen=True)
class Written:
    """A function as it is written.

    `names`: values of the module's and the enclosing functions' variables it sees; `annotations`: texts in the names
    for `Annotated` types that its arguments have.
    """

    source: Source
    definition: ast.FunctionDef
    names: dict[str, object]
    annotations: dict[str, str]


def written(function: Callable[..., object]) -> Written:
    """The definition of a function. Raises `ParseError` where its text is not available."""
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", "?")
    if code is None or not inspect.isfunction(function):
        raise ParseError(f"{function!r} is not a Python function", hint="decorate a `def` of for loops")
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    source = Source(code.co_filename, text)
    try:
        definition = _definition(ast.parse(text), name, code.co_firstlineno)
    except SyntaxError:
        definition = None
    if definition is None:
        raise ParseError(f"the text of {name!r} cannot be read", hint="write the function in a file or a notebook cell")
    seen = inspect.getclosurevars(function)
    return Written(
        source, definition, {**seen.globals, **seen.nonlocals}, _annotations(definition, function.__globals__)
    )


def placed_as(place: ast.stmt, made: ast.stmt) -> ast.stmt:
    """A statement with positions in the text, those of the one it stands for where it has none."""
    return ast.fix_missing_locations(ast.copy_location(made, place))


def _annotations(definition: ast.FunctionDef, names: Mapping[str, object]) -> dict[str, str]:
    """`Matrix = Annotated[Array, "f64[N, M]"]` of the module, as far as annotations are such names."""
    found: dict[str, str] = {}
    for node in ast.walk(definition.args):
        if isinstance(node, ast.Name):
            for text in getattr(names.get(node.id), "__metadata__", ()):
                if isinstance(text, str):
                    found[node.id] = text
    return found


def _definition(tree: ast.Module, name: str, first_line: int) -> ast.FunctionDef | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if start == first_line or node.lineno == first_line:
                return node
    return None
