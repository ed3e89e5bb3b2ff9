"""The values of one import by their names in the file: what comes in, constants, what nodes make; and who uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from poly.affine import Affine
from poly.dtypes import Array, dtype_name
from poly.errors import OnnxError, PolyError
from poly.frontend.onnx_terms import Names, Shape, Value, logical_dtype, storage, stored
from poly.program import Tensor

if TYPE_CHECKING:
    import onnx

MOST_ELEMENTS: Final = 2**36


class Moment(NamedTuple):
    """What a table says at one time, for its return to it."""

    values: dict[str, Value]
    called: dict[str, tuple[str, ...]]
    uses: Counter[str]


class Values:
    """`by_name`: values by their names in the file. `labels`: the name in the file that a tensor was made for.
    `arrays`: contents of constants; `inputs`: what comes in at run time. `uses`: how often the file names a value.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.names = Names()
        self.by_name: dict[str, Value] = {}
        self.labels: dict[str, str] = {}
        self.arrays: dict[str, Array] = {}
        self.inputs: list[Tensor] = []
        self.uses = Counter(_uses(graph))
        self._origins: dict[str, frozenset[str]] = {}
        self._called: dict[str, tuple[str, ...]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def __getitem__(self, name: str) -> Value:
        return self.by_name[name]

    def input(self, name: str, shape: Shape, dtype: str) -> Value:
        """Declare a tensor that comes in at run time."""
        value = Value(self.names.fresh(name, len(shape)), shape, dtype)
        self.define(name, value)
        self.inputs.append(Tensor(value.name, literal_shape(shape), storage(dtype), "input"))
        return value

    def own_input(self, name: str, shape: Shape, dtype: str) -> None:
        """Declare an input of the import, which what is made of it has as its origin."""
        self._origins[self.input(name, shape, dtype).name] = frozenset({name})

    def constant(self, name: str, array: Array) -> Value:
        """Declare a tensor whose content is known. Raises `OnnxError` where its dtype has no compiled form."""
        try:
            dtype = logical_dtype(array.dtype)
        except PolyError as error:
            raise OnnxError(error.message, where=f"constant {name!r}", hint=error.hint) from None
        value = Value(self.names.fresh(name, array.ndim), array.shape, dtype, array)
        self.arrays[value.name] = stored(array)
        self.define(name, value)
        return value

    def unnamed_constant(self, name: str, array: Array) -> Value:
        """A constant that the file does not have."""
        value = Value(self.names.fresh(name, array.ndim), array.shape, dtype_name(array.dtype), array)
        self.arrays[value.name] = array
        return value

    def define(self, name: str, value: Value) -> None:
        """`name` in the file is a new value. Raises `OnnxError` where it is too large."""
        if prod(value.shape) > MOST_ELEMENTS:
            hint = "bind smaller extents, or look for a wrong shape before this"
            where = f"tensor {name!r} of shape {list(value.shape)}"
            raise OnnxError(f"more than {MOST_ELEMENTS} elements", where=where, hint=hint)
        self.bind(name, value)
        self.labels.setdefault(value.name, name)

    def bind(self, name: str, value: Value) -> None:
        """`name` in the file is this value from here on."""
        self.by_name[name] = value
        self._called[value.name] = (*self._called.get(value.name, ()), name)

    def origins(self, value: Value) -> frozenset[str]:
        """The inputs of the import that a value depends on."""
        return self._origins.get(value.name, frozenset())

    def trace(self, inputs: Iterable[Value | None], outputs: Iterable[str]) -> None:
        """Note which inputs of the import a node's outputs depend on."""
        whole = frozenset[str]().union(*(self.origins(v) for v in inputs if v is not None))
        for name in outputs:
            value = self.by_name.get(name)
            if value is not None and value.array is None:
                self._origins.setdefault(value.name, whole)

    def used_in(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Nodes that are not in the file, but stand for one of it, use values, too."""
        self.uses.update(_uses_of(nodes))

    def readers(self, value: Value) -> int:
        """How often a tensor is read, by any of its names; what only gives it another name does not count."""
        names = self._called[value.name]
        return sum(self.uses[name] for name in names) - (len(names) - 1)

    def moment(self) -> Moment:
        """What the table says now. Names stay taken and keep their origins after a return."""
        return Moment(self.by_name.copy(), self._called.copy(), self.uses.copy())

    def back_to(self, moment: Moment) -> None:
        """Return to an earlier time."""
        self.by_name, self._called, self.uses = moment


def literal_shape(shape: Sequence[int]) -> tuple[Affine, ...]:
    """Extents as those of a `Tensor`."""
    return tuple(Affine.of(int(extent)) for extent in shape)


def _uses(graph: onnx.GraphProto) -> list[str]:
    """Every use of a name, subgraphs and outputs included."""
    return [*_uses_of(graph.node), *(o.name for o in graph.output)]


def _uses_of(nodes: Iterable[onnx.NodeProto]) -> list[str]:
    found: list[str] = []
    for node in nodes:
        found += node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _uses(attribute.g)
            for inner in attribute.graphs:
                found += _uses(inner)
    return found
