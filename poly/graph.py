"""`Graph`: a model as nodes over tensors; each node already carries its index notation as statements.

A node is what the front end read (for errors, reports and pictures) together with the statements that compute it. The
compiler only looks at the one `Program` that `to_program` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import islpy as isl
import numpy as np

from poly.document import counted
from poly.dtypes import Array, numpy_dtype
from poly.locks import cached_property
from poly.program import Program, Statement, Tensor
from poly.sets import PARAM, SET, interval, parameter_names


@dataclass(frozen=True)
class Node:
    """One operator of a model. `temporaries`: tensors that only this node's statements use. `reason`: why it is
    external, where it is, and `hint` what to change in the model."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    statements: tuple[Statement, ...]
    temporaries: tuple[Tensor, ...] = ()
    reason: str = field(default="", compare=False)
    hint: str = field(default="", compare=False)

    @property
    def external(self) -> bool:
        """True where numpy or the reference evaluator has to run it."""
        return any(s.external is not None for s in self.statements)


@dataclass(frozen=True)
class Graph:
    """`tensors`: the model's edges (inputs, outputs, constants, temporaries); `constants`: arrays of the constant ones.

    Nodes are in execution order. Arrays are referenced, never copied, and must not be written. `labels`: the names in
    the model's file, by tensor name (which are made to fit the text forms). `formats`: inputs and outputs that hold
    codes of a type of ml_dtypes (int4, 8-bit floats), by tensor name.
    """

    name: str
    tensors: tuple[Tensor, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    context: isl.Set = field(default_factory=lambda: isl.Set("{ : }"))
    sizes: tuple[tuple[str, int], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def tensor(self) -> Mapping[str, Tensor]:
        return {t.name: t for t in self.tensors}

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.is_input)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.is_output)

    def label(self, name: str) -> str:
        """What the model's file calls a tensor, or a size."""
        return self.labels.get(name, name)

    def border_dtype(self, t: Tensor) -> np.dtype[np.generic]:
        """The numpy type of the caller's array of an input or output."""
        if t.name not in self.formats:
            return numpy_dtype(t.dtype)
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, self.formats[t.name]))

    def to_program(self) -> Program:
        """One program: every node's statements in order, one nest each."""
        statements: list[Statement] = []
        for node in self.nodes:
            base = len(statements)
            for s in node.statements:
                head, *rest = s.path
                assert isinstance(head, int)
                statements.append(replace(s, path=(base + head, *rest)))
        temporaries = tuple(t for node in self.nodes for t in node.temporaries)
        return Program(
            self.name, (*self.tensors, *temporaries), tuple(statements), self.parameters, self.context, self.sizes
        )

    def __str__(self) -> str:
        from poly.text import print_graph

        return print_graph(self)

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {counted(len(self.nodes), 'node')}, {counted(len(self.constants), 'constant')}>"

    def _repr_html_(self) -> str:
        from poly.pictures import graph_html

        return graph_html(self)


@dataclass(frozen=True)
class SizedGraph(Graph):
    """A graph with free sizes: `parameters`, in the ranges of `context`; `labels` has their names in the file too.

    `literal`: the graph that the front end makes for given sizes, where there is a front end; a program that was fitted
    (`poly.frontend.onnx_symbolic`) is compared with it.
    """

    literal: Callable[[Mapping[str, int]], Graph] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def ranges(self) -> Mapping[str, tuple[int, int]]:
        """The least and the greatest value of each size, by its name here."""
        names = parameter_names(self.context)
        box = self.context.move_dims(SET, 0, PARAM, 0, len(names))
        return {n: found for k, n in enumerate(names) if (found := interval(box, k)) is not None}

    def shown_ranges(self, sizes: Iterable[str]) -> str:
        """`batch from 1 to 64`, in the words of the model's file."""
        known = [(self.label(n), *self.ranges[n]) for n in sizes if n in self.ranges]
        return ", ".join(f"{name} from {low} to {high}" for name, low, high in known)

    def __repr__(self) -> str:
        sizes = ", ".join(map(self.label, self.parameters))
        return f"<Graph {self.name}({sizes}): {counted(len(self.nodes), 'node')}>"
