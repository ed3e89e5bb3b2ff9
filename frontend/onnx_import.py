"""`from_onnx`: an ONNX file to a `Graph` of static shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, overload

from poly.arguments import checks_kinds, shown
from poly.dtypes import Array
from poly.errors import OnnxError
from poly.frontend.onnx_extents import extent_of
from poly.frontend.onnx_importer import Importer
from poly.frontend.onnx_model import load_model
from poly.graph import Graph, SizedGraph

if TYPE_CHECKING:
    import onnx

Ends = Sequence[int] | str  # the least and the greatest, or from others; looked at by `_checked_ranges`


@overload
def from_onnx(
    path: str | Path | bytes | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    constants: Mapping[str, Array] | None = None,
    ranges: None = None,
) -> Graph: ...
@overload
def from_onnx(
    path: str | Path | bytes | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    constants: Mapping[str, Array] | None = None,
    *,
    ranges: Mapping[str, Ends],
) -> SizedGraph: ...
@checks_kinds(OnnxError)
def from_onnx(
    path: str | Path | bytes | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    constants: Mapping[str, Array] | None = None,
    ranges: Mapping[str, Ends] | None = None,
) -> Graph:
    """Read a model: of a file, of its bytes, or a `ModelProto`. Its dynamic extents must be bound, or stay free in
    `ranges`.

    `shapes` maps an input's name to its shape, or the name of a dynamic dimension to its extent. `ranges` maps the name
    of a dynamic dimension to its least and greatest extent; it becomes a size of the graph, and one compilation serves
    them all (`poly.frontend.onnx_symbolic`). One that follows from others has their expression there, as `"past + 1"`,
    or is called so in the model. `constants` fixes the content of inputs (lengths, flags), which then are
    inputs no longer. The graph's tensors have mangled names; `Graph.labels` gives the names in the file. Initialisers
    are referenced, not copied. Raises `OnnxError`.
    """
    model = load_model(path)
    given = {n: tuple(map(int, v)) if isinstance(v, Sequence) else int(v) for n, v in (shapes or {}).items()}
    links = {name: ends for name, ends in (ranges or {}).items() if isinstance(ends, str)}
    free = _checked_ranges(model, ranges or {}, given)
    single = {name: low for name, (low, high) in free.items() if low == high}
    given |= single

    at = _AtSizes(model, given, links, dict(constants or {}), sized=len(single) < len(free))
    if not at.sized:
        return at({})
    from poly.frontend.onnx_symbolic import symbolic_graph

    return symbolic_graph(at, {n: ends for n, ends in free.items() if n not in single}, model.graph.name)


@dataclass(frozen=True)
class _AtSizes:
    """The graph of a model at given sizes; `sized`: there are sizes to give. No closure, so that graphs are pickled.

    `read`: initialisers that an import has read: the next takes the same arrays.
    """

    model: onnx.ModelProto
    shapes: Mapping[str, tuple[int, ...] | int]
    links: Mapping[str, str]
    constants: Mapping[str, Array]
    sized: bool
    read: dict[str, Array] = field(default_factory=dict[str, Array], compare=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "read": {}}  # the model has them

    def __call__(self, sizes: Mapping[str, int]) -> Graph:
        importer = Importer(self.model, sized=self.sized, read=self.read)
        known = {**self.shapes, **sizes}
        importer.declare_inputs({**known, **_linked(self.links, known)}, dict(self.constants))
        importer.walk(self.model.graph.node)
        return importer.graph()


def _linked(links: Mapping[str, str], given: Mapping[str, object]) -> dict[str, int]:
    """The dimensions that follow from others. Raises `OnnxError`."""
    sizes = {name: extent for name, extent in given.items() if isinstance(extent, int)}
    found: dict[str, int] = {}
    for name, text in links.items():
        extent = extent_of(text, sizes)
        if extent is None:
            some = f"'{next(iter(sizes), 'past')} + 1', an expression of sizes and numbers with + - *"
            hint = f"ranges={{{name!r}: (1, 64)}}, least and greatest, or {some}"
            raise OnnxError(f"ranges[{name!r}] is {text!r}", hint=hint)
        found[name] = extent
    return found


def _checked_ranges(
    model: onnx.ModelProto, ranges: Mapping[str, Ends], shapes: Mapping[str, object]
) -> dict[str, tuple[int, int]]:
    known = sorted({d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param})
    found: dict[str, tuple[int, int]] = {}
    for name, ends in ranges.items():
        if name not in known:
            hint = f"one of {', '.join(known)}" if known else "the model has none: from_onnx without ranges"
            raise OnnxError(f"ranges: {name!r} is no dynamic dimension", hint=hint)
        if name in shapes:
            raise OnnxError(f"{name!r} is in shapes and in ranges", hint="bind it, or leave it free: one of the two")
        if isinstance(ends, str):
            continue
        pair = isinstance(ends, Sequence) and len(ends) == 2  # pyright: ignore[reportUnnecessaryIsInstance]
        if not pair or not all(isinstance(e, Integral) for e in ends):
            most = ends if isinstance(ends, int) else 64
            hint = f"ranges={{{name!r}: (1, {most})}}, least and greatest; one extent is shapes={{{name!r}: {most}}}"
            raise OnnxError(f"ranges[{name!r}] is {shown(ends)}", hint=hint)
        found[name] = (int(ends[0]), int(ends[1]))
    return found
