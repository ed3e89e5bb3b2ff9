"""A loop tree as Python source, for `poly.interp_loops`: one line of the tree, one obvious block of Python.

Names of the tree are arbitrary, so loops become `v0, v1 ...`, storage `t0 ...`; sizes are literals. Inside of vector
loops `lanes` is the list of active lanes, each a tuple of the values of the vector loops' variables.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from poly.affine import Affine, Constraint, var
from poly.dtypes import converted, numpy_dtype
from poly.errors import RunError
from poly.expr import OPERATORS, Apply, Cast, Const, Expr, IndexValue, Read, dtype_of, dtype_of_literals, is_free
from poly.interp_arrays import extents
from poly.loops import Alloc, Compute, External, For, If, LoopTree, Node, Sync, walk
from poly.program import Access, Program, Tensor

BLOCKS: Final = 12  # CPython allows 20 nested loops in a function; deeper ones go on in a function of their own
INDENT: Final = "    "


@dataclass(frozen=True)
class Source:
    """`text` defines `run(storage of the tree's tensors ...)`. `names`: constants it uses besides the helpers.

    `sites`: (statement, tensor, extents) of each bounds check. `tensors`: all tensors by name, allocated ones included.
    """

    text: str
    names: Mapping[str, object]
    sites: Sequence[tuple[str, str, tuple[int, ...]]]
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class _Scope:
    """Python names in force: loop variables, storage, and inside a vector loop the lanes (list name, variables)."""

    variables: Mapping[str, Affine | int]
    storage: Mapping[str, str]
    lanes: str = ""
    lane: tuple[str, ...] = ()
    blocks: int = 0
    yields: bool = False

    @property
    def each(self) -> str:
        """`for (v0, v1,) in lanes0`."""
        return f"for {self.key} in {self.lanes}"

    @property
    def key(self) -> str:
        return f"({', '.join(self.lane)},)"

    def affine(self, e: Affine) -> str:
        renamed = e.substitute(self.variables)
        unknown = {n for n in e.names if n not in self.variables}
        if unknown:
            raise RunError(f"{sorted(unknown)} in {e} are neither loops around nor sizes")
        return f"({renamed})"

    def conjunction(self, constraints: Sequence[Constraint]) -> str:
        tests = [f"{self.affine(c.expr)} {'==' if c.equality else '>='} 0" for c in constraints]
        return f"({' and '.join(tests)})" if tests else "True"


def source_of(tree: LoopTree, program: Program | None, sizes: Mapping[str, int], trace: bool) -> Source:
    """The source that runs a tree under a complete binding of the sizes."""
    writer = _Writer(program, sizes, trace, {t.name: t for t in tree.tensors})
    storage = {t.name: writer.fresh("t") for t in tree.tensors}
    writer.line(f"def run({', '.join(storage.values())}):")
    with writer.indented():
        writer.nodes(tree.body, _Scope(dict(sizes), storage))
    return Source("\n".join(writer.lines) + "\n", writer.names, writer.sites, writer.tensors)


@dataclass
class _Writer:
    program: Program | None
    sizes: Mapping[str, int]
    trace: bool
    tensors: dict[str, Tensor]
    lines: list[str] = field(default_factory=list)
    names: dict[str, object] = field(default_factory=dict)
    sites: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    depth: int = 0
    count: int = 0

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def line(self, text: str) -> None:
        self.lines.append(INDENT * self.depth + text)

    @contextmanager
    def indented(self) -> Generator[None]:
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1

    def nodes(self, nodes: Sequence[Node], scope: _Scope) -> None:
        for node in nodes:
            match node:
                case Compute():
                    self.compute(node, scope)
                case For() if scope.blocks >= BLOCKS:
                    self.function(node, scope)
                case For():
                    self.loop(node, scope)
                case If(any_of, body):
                    self.condition(any_of, body, scope)
                case Alloc():
                    self.alloc(node, scope)
                case External(statement):
                    self.external(statement, scope)
                case Sync():
                    self.line("yield" if scope.yields else "pass")

    def function(self, node: For, scope: _Scope) -> None:
        """A loop in a function of its own, called in place."""
        name = self.fresh("inner")
        self.line(f"def {name}():")
        with self.indented():
            if scope.yields:
                self.line("yield from ()")
            self.loop(node, replace(scope, blocks=0))
        self.line(f"yield from {name}()" if scope.yields else f"{name}()")

    def loop(self, node: For, scope: _Scope) -> None:
        name = self.fresh("v")
        span = self.span(node, scope)
        variables = {**scope.variables, node.variable: var(name)}
        inner = replace(scope, variables=variables, blocks=scope.blocks + 1)
        if node.kind == "vector":
            self.vector(node, name, span, inner)
            return
        if node.kind == "parallel" and not scope.lanes and any(isinstance(n, Sync) for n in walk(node.body)):
            part = self.fresh("part")
            self.line(f"def {part}({name}):")
            with self.indented():
                self.line("yield from ()")
                self.nodes(node.body, replace(inner, blocks=0, yields=True))
            self.line(f"together([{part}({name}) for {name} in ordered({span})])")
            return
        split = bool(scope.lanes) and self.depends(node, scope)
        values = f"sorted({{{name} {scope.each} for {name} in {span}}})" if split else span
        self.line(f"for {name} in {f'ordered({values})' if node.kind == 'parallel' else values}:")
        with self.indented():
            if split:
                lanes = self.fresh("lanes")
                self.line(f"{lanes} = [{scope.key} {scope.each} if {name} in {span}]")
                inner = replace(inner, lanes=lanes)
            self.nodes(node.body, inner)

    def vector(self, node: For, name: str, span: str, inner: _Scope) -> None:
        """The lanes of a vector loop; inside of another one, every pair."""
        lanes = self.fresh("lanes")
        lane = (*inner.lane, name)
        around = f"{inner.each} " if inner.lanes else ""
        self.line(f"{lanes} = [({', '.join(lane)},) {around}for {name} in {span}]")
        self.nodes(node.body, replace(inner, lanes=lanes, lane=lane, blocks=inner.blocks - 1))

    def span(self, node: For, scope: _Scope) -> str:
        lower, upper = ([scope.affine(e) for e in bounds] for bounds in (node.lower, node.stops))
        start = lower[0] if len(lower) == 1 else f"max({', '.join(lower)})"
        stop = upper[0] if len(upper) == 1 else f"min({', '.join(upper)})"
        return f"range({start}, {stop}, {node.step})"

    def depends(self, node: For, scope: _Scope) -> bool:
        """Whether the bounds differ from lane to lane."""
        found = {n for e in (*node.lower, *node.stops) for n in e.substitute(scope.variables).names}
        return bool(found & set(scope.lane))

    def condition(self, any_of: Sequence[Sequence[Constraint]], body: Sequence[Node], scope: _Scope) -> None:
        test = " or ".join(scope.conjunction(c) for c in any_of) or "False"
        if scope.lanes:
            lanes = self.fresh("lanes")
            self.line(f"{lanes} = [{scope.key} {scope.each} if {test}]")
            self.nodes(body, replace(scope, lanes=lanes))
            return
        self.line(f"if {test}:")
        with self.indented():
            self.nodes(body, scope)

    def alloc(self, node: Alloc, scope: _Scope) -> None:
        tensor, name = node.tensor, self.fresh("t")
        self.tensors[tensor.name] = tensor
        shape = extents(tensor, self.sizes, storage=True)
        fresh = f"poisoned({shape}, {tensor.dtype!r})"
        self.line(f"{name} = {{{scope.key}: {fresh} {scope.each}}}" if scope.lanes else f"{name} = {fresh}")
        place = f"{name}[{scope.key}]" if scope.lanes else name
        self.nodes(node.body, replace(scope, storage={**scope.storage, tensor.name: place}))

    def external(self, statement: str, scope: _Scope) -> None:
        found = None if self.program is None else self.program.statement[statement].external
        if found is None:
            raise RunError(f"{statement} is external, its program is needed", hint="run_loops(..., program=...)")
        storage = ", ".join(f"{n!r}: {self.storage(n, scope)}" for n in dict.fromkeys((*found.reads, *found.writes)))
        self.line(f"external({statement!r}, {{{storage}}})")

    def storage(self, tensor: str, scope: _Scope) -> str:
        if tensor not in scope.storage:
            raise RunError(f"no tensor {tensor!r} in scope", hint=f"tensors here: {', '.join(scope.storage)}")
        return scope.storage[tensor]

    def compute(self, node: Compute, scope: _Scope) -> None:
        """All active lanes evaluate, then all write; without lanes the one instance does both."""
        target = self.storage(node.write.tensor, scope)
        if not scope.lanes:
            place = self.evaluation(node, scope)
            self.write(node, target, place)
            return
        self.line("pending = []")
        self.line(f"{scope.each}:")
        with self.indented():
            place = self.evaluation(node, scope)
            self.line(f"pending.append(({target}, {place}, value))")
        self.line("for target, place, value in pending:")
        with self.indented():
            self.write(node, "target", "place")

    def write(self, node: Compute, target: str, place: str) -> None:
        value = "value"
        if node.combiner is not None:
            value = self.operation(node.combiner.operator, [f"{target}[{place}]", "value"])
        self.line(f"{target}[{place}] = {value}")

    def evaluation(self, node: Compute, scope: _Scope) -> str:
        """Lines that leave the body in `value`; the place that is written."""
        instance = f"({''.join(scope.affine(e) + ', ' for e in node.instance)})"
        if self.trace:
            self.line(f"trace({node.statement!r}, {instance})")
        for position, access in enumerate(node.reads):
            name = f"r{position}"
            if not access.guard:
                place = self.place(node, access, instance, scope)
                self.line(f"{name} = {self.storage(access.tensor, scope)}[{place}]")
                continue
            assert access.fill is not None
            self.line(f"if {scope.conjunction(access.guard)}:")
            with self.indented():
                place = self.place(node, access, instance, scope)
                self.line(f"{name} = {self.storage(access.tensor, scope)}[{place}]")
            self.line(f"else: {name} = {self.constant(access.fill.value, self.tensors[access.tensor].dtype)}")
        dtypes = [self.tensors[r.tensor].dtype for r in node.reads]
        target = self.tensors[node.write.tensor].dtype
        value = self.expression(node.body, dtypes, target, scope)
        found = dtype_of(node.body, dtypes)
        self.line(f"value = {value if found in (None, target) else self.cast(target, value)}")
        return self.place(node, node.write, instance, scope, "w")

    def place(self, node: Compute, access: Access, instance: str, scope: _Scope, prefix: str = "x") -> str:
        """Lines that compute and check where an element lies; the subscript of its storage."""
        self.storage(access.tensor, scope)
        tensor = self.tensors[access.tensor]
        index = [f"{prefix}{k}" for k in range(tensor.rank)]
        for name, e in zip(index, access.index, strict=True):
            self.line(f"{name} = {scope.affine(e) if isinstance(e, Affine) else f'int(r{e.position})'}")
        self.check(node, tensor.name, index, extents(tensor, self.sizes), instance)
        if tensor.layout is not None:
            names = dict(zip(tensor.layout.index, (var(n) for n in index), strict=True))
            inside = replace(scope, variables={**self.sizes, **names})
            index = [f"{prefix}p{k}" for k in range(len(tensor.layout.shape))]
            for name, e in zip(index, tensor.layout.coordinates, strict=True):
                self.line(f"{name} = {inside.affine(e)}")
            shape = extents(tensor, self.sizes, storage=True)
            self.check(node, f"storage of {tensor.name}", index, shape, instance)
        return f"({''.join(name + ', ' for name in index)})"

    def check(self, node: Compute, tensor: str, index: Sequence[str], shape: tuple[int, ...], instance: str) -> None:
        if index:
            test = " and ".join(f"0 <= {name} < {extent}" for name, extent in zip(index, shape, strict=True))
            self.line(f"if not ({test}): fail({len(self.sites)}, {instance}, ({', '.join(index)},))")
            self.sites.append((node.statement, tensor, shape))

    def constant(self, value: object, dtype: str | None) -> str:
        name = self.fresh("c")
        self.names[name] = np.asarray(value)[()] if dtype is None else np.asarray(value, numpy_dtype(dtype))[()]
        return name

    def cast(self, dtype: str, value: str) -> str:
        self.names["converted"] = converted
        return f"converted({value}, {dtype!r})[()]"

    def operation(self, name: str, arguments: Sequence[str]) -> str:
        operator = OPERATORS[name]
        if name in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge"):  # the same on numpy scalars, and quicker
            return f"({arguments[0]} {operator.infix} {arguments[1]})"
        self.names[f"op_{name}"] = operator.evaluate
        return f"op_{name}({', '.join(arguments)})"

    def expression(self, body: Expr, reads: Sequence[str], dtype: str | None, scope: _Scope) -> str:
        """The body as Python; literals without a dtype take that of the other operands, as in `poly.expr.evaluate`."""
        match body:
            case Const(value, own):
                return self.constant(value, own or dtype)
            case Read(position):
                return f"r{position}"
            case IndexValue(index):
                return f"np.int64({scope.affine(index)})"
            case Cast(target, argument):
                return self.cast(target, self.expression(argument, reads, dtype_of_literals((argument,)), scope))
            case Apply(name, arguments):
                operands = arguments[1:] if name == "select" else arguments
                typed = [dtype_of(a, reads) for a in operands if not is_free(a)]
                compared = OPERATORS[name].result == "bool"
                literal = typed[0] if typed else dtype_of_literals(arguments) if compared else dtype
                texts = [self.expression(a, reads, literal if is_free(a) else None, scope) for a in arguments]
                return self.operation(name, texts)
