"""The signature of a nest: which arguments are sizes, which are tensors, of what dtype and shape.

An annotation is read as it is written, it need not be evaluated:

    N: int                            a size
    alpha: float                      a scalar of dtype f64
    beta: f32[float, ""]              a scalar of dtype f32
    A: f64[Array, "N, M + 1"]         a tensor; f64, f32, ... are names for typing.Annotated to a type checker
    A: f64[Array, 4, 8]               the same of numbers
    A: Annotated[Array, "f64[N, M + 1]"], or a name of the module for such a type
    A: "f64[N, M + 1]"                the same for who does not check types

Names in shapes that are not arguments are sizes too.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from poly.affine import Affine, affine_of_ast
from poly.dtypes import DTYPES
from poly.errors import ParseError
from poly.frontend.nest_source import Source, Written
from poly.sets import identifier

_PLAIN = {"float": "f64", "bool": "bool"}
_ARRAYS = ("Array", "ndarray", "NDArray")  # what stands before a shape, for a type checker


@dataclass(frozen=True)
class Argument:
    """`shape` None: a size."""

    name: str
    dtype: str
    shape: tuple[Affine, ...] | None
    node: ast.arg


def read_signature(text: Written) -> tuple[tuple[Argument, ...], tuple[str, ...]]:
    """The arguments, and the sizes in order of appearance. Raises `ParseError`."""
    source, definition, given = text.source, text.definition, text.definition.args
    for star in (given.vararg, given.kwarg):
        if star is not None:
            raise source.error(star, f"argument {star.arg!r}: a nest takes named arguments only", "a name for each")
    nodes = (*given.posonlyargs, *given.args, *given.kwonlyargs)
    arguments = tuple(_argument(source, a, text.annotations) for a in nodes)
    tensors = {a.name for a in arguments if a.shape is not None}
    sizes = [a.name for a in arguments if a.shape is None]
    for argument in arguments:
        for name in (n for e in argument.shape or () for n in sorted(e.names)):
            if name in tensors:
                wrong = f"{name!r} in the shape of {argument.name!r} is not a size"
                raise source.error(argument.node, wrong, f"{name}: int among the arguments")
            if name not in sizes:
                sizes.append(name)
    for name in (*sizes, *tensors):
        if identifier(name) != name:
            where = next((a.node for a in arguments if a.name == name), definition)
            raise source.error(
                where, f"{name!r} cannot name a size or a tensor", hint=f"for example {identifier(name)}"
            )
    return arguments, tuple(sizes)


def _argument(source: Source, node: ast.arg, names: Mapping[str, str]) -> Argument:
    if node.annotation is None:
        hint = 'N: int for a size, A: f64[Array, "N, M"] for a tensor'
        raise source.error(node, f"argument {node.arg!r} has no annotation", hint)
    named = names.get(last_name(node.annotation))
    annotation = node.annotation if named is None else ast.copy_location(ast.Constant(named), node.annotation)
    found = read_annotation(source, annotation)
    if found is None:
        return Argument(node.arg, "i64", None, node)
    dtype, shape = found
    return Argument(node.arg, dtype, shape, node)


def read_annotation(source: Source, node: ast.expr) -> tuple[str, tuple[Affine, ...]] | None:
    """dtype and shape of an annotation; None for a size. Raises `ParseError`."""
    match node:
        case ast.Constant(value=str(text)):
            try:
                inner = ast.parse(text.strip(), mode="eval").body
            except SyntaxError:
                raise _unreadable(source, node) from None
            return _read(source, node, inner)
        case _:
            return _read(source, node, node)


def _read(source: Source, place: ast.expr, node: ast.expr) -> tuple[str, tuple[Affine, ...]] | None:
    name = last_name(node.value if isinstance(node, ast.Subscript) else node)
    if not isinstance(node, ast.Subscript):
        if name in ("int", "size"):
            return None
        if name in _PLAIN or name in DTYPES:
            return _PLAIN.get(name, name), ()
        raise _unreadable(source, place)
    parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Annotated" and len(parts) == 2 and isinstance(parts[1], ast.Constant):
        return read_annotation(source, parts[1])
    name = "bool" if name == "boolean" else name
    if name not in DTYPES:
        raise _unreadable(source, place)
    if len(parts) > 1 and (last_name(parts[0]) in _ARRAYS or (_is_text(parts[1]) and not _is_text(parts[0]))):
        parts = parts[1:]  # f64[Array, "N, M"], f64[Array, 4, 8]
    return name, tuple(e for part in parts for e in _extents(source, place, part))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _extents(source: Source, place: ast.expr, node: ast.expr) -> tuple[Affine, ...]:
    """The extents that one subscript stands for: a text may hold several."""
    try:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.strip()
            if not text:
                return ()
            tree = ast.parse(text, mode="eval").body
            return tuple(affine_of_ast(e) for e in (tree.elts if isinstance(tree, ast.Tuple) else [tree]))
        return (affine_of_ast(node),)
    except (SyntaxError, ParseError):
        text, hint = f"the extent {ast.unparse(node)} is not affine in sizes", "a size of its own: L, with L: int"
        raise source.error(place, text, hint) from None


def last_name(node: ast.expr) -> str:
    """`sqrt` of `sqrt`, `math.sqrt` and `np.linalg.sqrt`; "" for what is no name."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _unreadable(source: Source, node: ast.expr) -> ParseError:
    return source.error(
        node, f"the annotation {ast.unparse(node)} says neither a size nor dtype and shape",
        hint='N: int for a size, alpha: float for an f64 scalar, A: f64[Array, "N, M"] for a tensor',
    )  # fmt: skip
