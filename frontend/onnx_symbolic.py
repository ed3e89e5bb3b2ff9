"""Models whose sizes stay free: one program for a whole range of shapes, made from imports at a few of them.

The importer works on literal shapes. Here a model is imported at some sizes of its dynamic dimensions, the graphs are
laid over one another, and every integer in which they differ (extents, bounds, subscripts, guards, literals) is fitted
as an affine function of the sizes; some imports more must agree with the fit. Where they do not, or where the graphs
differ in more than integers, the model is not affine in its sizes, and the error says where. That a fit holds between
the sizes tried is not proven: `agrees` compares it with the import at one more, which an engine does before it first
uses a size (it costs an import, no compilation).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import islpy as isl
import numpy as np
import numpy.typing as npt

from poly.affine import Affine, Atom, Constraint, FloorDiv, Mod, Var, var
from poly.dtypes import Array
from poly.errors import OnnxError
from poly.expr import Apply, Cast, Const, Expr, IndexValue, rewrite
from poly.graph import Graph, Node, SizedGraph
from poly.program import Access, ReadIndex, Statement, Tensor
from poly.sets import SET

Sizes = Mapping[str, int]
Import = Callable[[Sizes], Graph]
_STEPS: Final = (3, 5, 7, 11, 13, 17, 19, 23)  # sizes to try are not 1, which broadcasts, and no multiples


class NotAffine(Exception):
    """The graphs differ in more than affine functions of the sizes; the text says where."""


def symbolic_graph(at: Import, ranges: Mapping[str, tuple[int, int]], name: str) -> SizedGraph:
    """The graph with the dimensions in `ranges` (inclusive) as sizes. Raises `OnnxError` where it is not affine."""
    for size, (low, high) in ranges.items():
        if not 0 <= low <= high:
            raise OnnxError(f"the range of {size!r} is {low} .. {high}", where=f"model {name!r}", hint="(1, 64)")
    samples = [(sizes, at(sizes)) for sizes in _samples(ranges)]
    try:
        return _overlay(samples, ranges, at)
    except NotAffine as reason:
        raise OnnxError(
            f"is not affine in {', '.join(ranges)}: {reason}", where=f"model {name!r}",
            hint="poly.compile(Path(model)) compiles anew for each shape; or bind the dimension",
        ) from None  # fmt: skip


def _overlay(samples: Sequence[tuple[Sizes, Graph]], ranges: Mapping[str, tuple[int, int]], at: Import) -> SizedGraph:
    """The samples laid over one another: without extents of 1, which broadcast, and 0, where the others are enough."""
    try:
        return _Overlay(samples, ranges, at).graph()
    except NotAffine:
        left = [(sizes, graph) for sizes, graph in samples if min(sizes.values()) > 1]
        if len(left) == len(samples) or np.linalg.matrix_rank(_rows([s for s, _ in left], ranges)) <= len(ranges):
            raise
    return _Overlay(left, ranges, at).graph()


def _rows(samples: Sequence[Sizes], ranges: Mapping[str, tuple[int, int]]) -> npt.NDArray[np.float64]:
    return np.array([[1, *(s[n] for n in ranges)] for s in samples], dtype=np.float64)


def _samples(ranges: Mapping[str, tuple[int, int]]) -> list[dict[str, int]]:
    """The top of the ranges, then sizes inside: one for each coefficient, and two more."""
    top = {name: high for name, (_, high) in ranges.items()}
    inside = [{n: _inside(low, high, k + 2 * j) for j, (n, (low, high)) in enumerate(ranges.items())} for k in (0, 1)]
    steps = [{**inside[0], n: _inside(low, high, k + 3)} for k, (n, (low, high)) in enumerate(ranges.items())]
    found: list[dict[str, int]] = []
    for sizes in (top, *inside, *steps):
        if sizes not in found:
            found.append(sizes)
    return found


def _inside(low: int, high: int, k: int) -> int:
    """A size in the range, the `k`-th one after its start or before its end."""
    step = _STEPS[k % len(_STEPS)]
    return low + step if low + step < high else max(low, high - 1 - k % max(1, high - low))


class _Overlay:
    """Graphs of one model at several sizes, the one at the top of the ranges first."""

    def __init__(
        self, samples: Sequence[tuple[Sizes, Graph]], ranges: Mapping[str, tuple[int, int]], at: Import
    ) -> None:
        self._sizes = [sizes for sizes, _ in samples]
        self._graphs = [graph for _, graph in samples]
        self._ranges, self._at = ranges, at
        self._place = "the graph"
        first = self._graphs[0]
        self._dtypes = {t.name: t.dtype for t in (*first.tensors, *(t for n in first.nodes for t in n.temporaries))}
        self._matrix = _rows(self._sizes, ranges)
        self._parameters = _names_of(ranges, self._graphs[0])

    def graph(self) -> SizedGraph:
        first = self._graphs[0]
        for other in self._graphs[1:]:
            self._same([n.name for n in first.nodes], [n.name for n in other.nodes], "nodes")
            self._same([t.name for t in first.tensors], [t.name for t in other.tensors], "tensors")
            self._same(dict(first.labels), dict(other.labels), "names")
        kept = {n for n in first.constants if self._constant(n)}
        tensors = tuple(
            t if t.name in kept else self._tensor(*(g.tensor[t.name] for g in self._graphs)) for t in first.tensors
        )
        nodes = tuple(self._node(*nodes) for nodes in zip(*(g.nodes for g in self._graphs), strict=True))
        names = self._parameters
        bounds = [f"{low} <= {names[n]} <= {high}" for n, (low, high) in self._ranges.items()]
        context = isl.Set(f"[{', '.join(names.values())}] -> {{ : {' and '.join(bounds)} }}")
        labels = {**first.labels, **{parameter: size for size, parameter in names.items()}}
        return SizedGraph(
            first.name, tensors, nodes, first.constants, tuple(names.values()), context, labels=labels,
            literal=_Literal(self._at, names),
        )  # fmt: skip

    def _same(self, first: object, other: object, what: str) -> None:
        if first != other:
            raise NotAffine(f"{self._place} has other {what} at other sizes")

    def _constant(self, name: str) -> bool:
        """True where all graphs hold the same content, or leading parts of the largest."""
        largest = self._graphs[0].constants[name]
        for graph in self._graphs[1:]:
            array = graph.constants.get(name)
            if array is None or not leads(array, largest):
                raise NotAffine(f"the content of constant {self._graphs[0].label(name)!r} depends on a size")
        return True

    # -- integers ----------------------------------------------------------------------------------------------------

    def _fit(self, *values: int) -> Affine:
        """The affine function of the sizes that takes these values."""
        if len(set(values)) == 1:
            return Affine((), values[0])
        solved, *_ = np.linalg.lstsq(self._matrix, np.array(values, dtype=np.float64), rcond=None)
        whole = [round(float(c)) for c in solved]
        found = Affine((), whole[0])
        for name, c in zip(self._ranges, whole[1:], strict=True):
            found = found + var(self._parameters[name]) * c
        expected = [found.evaluate({self._parameters[n]: v for n, v in s.items()}) for s in self._sizes]
        if list(expected) != list(values):
            shown = ", ".join(f"{v} at {dict(s)}" for v, s in zip(values, self._sizes, strict=True))
            raise NotAffine(f"{self._place}: {shown}")
        return found

    def _affine(self, *expressions: Affine) -> Affine:
        """Expressions with the same atoms and coefficients; only constants may differ."""
        constant = self._fit(*(e.constant for e in expressions))
        terms: list[tuple[Atom, int]] = []
        for row in zip(*self._terms(expressions), strict=True):
            self._same([c for _, c in row], [row[0][1]] * len(row), "coefficients")
            terms.append((self._atom(*(a for a, _ in row)), row[0][1]))
        return Affine(tuple(terms)) + constant

    def _terms(self, expressions: Sequence[Affine]) -> list[tuple[tuple[Atom, int], ...]]:
        for e in expressions[1:]:
            self._same(len(expressions[0].terms), len(e.terms), "terms")
        return [e.terms for e in expressions]

    def _atom(self, *atoms: Atom) -> Atom:
        first = atoms[0]
        if isinstance(first, Var):
            for a in atoms[1:]:
                self._same(first, a, "iterators")
            return first
        arguments: list[Affine] = []
        for a in atoms:
            if not isinstance(a, FloorDiv | Mod) or type(a) is not type(first) or a.divisor != first.divisor:
                raise NotAffine(f"{self._place} divides by a size")
            arguments.append(a.argument)
        return type(first)(self._affine(*arguments), first.divisor)

    # -- parts of a graph --------------------------------------------------------------------------------------------

    def _tensor(self, *tensors: Tensor) -> Tensor:
        first = tensors[0]
        self._place = f"tensor {self._graphs[0].label(first.name)!r}"
        for t in tensors[1:]:
            self._same((first.rank, first.dtype, first.role), (t.rank, t.dtype, t.role), "rank or dtype")
        shape = tuple(self._affine(*extents) for extents in zip(*(t.shape for t in tensors), strict=True))
        return replace(first, shape=shape)

    def _node(self, *nodes: Node) -> Node:
        first = nodes[0]
        self._place = f"node {first.name!r} ({first.operator})"
        if any(n.external for n in nodes):
            raise NotAffine(f"{self._place} runs by the reference evaluator")
        for n in nodes[1:]:
            self._same(
                (n.inputs, n.outputs, [s.name for s in n.statements], [t.name for t in n.temporaries]),
                (first.inputs, first.outputs, [s.name for s in first.statements], [t.name for t in first.temporaries]),
                "statements",
            )
        temporaries = tuple(self._tensor(*ts) for ts in zip(*(n.temporaries for n in nodes), strict=True))
        self._place = f"node {first.name!r} ({first.operator})"
        statements = tuple(self._statement(*ss) for ss in zip(*(n.statements for n in nodes), strict=True))
        return replace(first, statements=statements, temporaries=temporaries)

    def _statement(self, *statements: Statement) -> Statement:
        first = statements[0]
        for s in statements[1:]:
            ours, theirs = ((x.iterators, x.combiner, x.reorder, x.path) for x in (s, first))
            self._same(ours, theirs, "loops")
            self._same(len(s.reads), len(first.reads), "reads")
        reads = tuple(self._access(*rs) for rs in zip(*(s.reads for s in statements), strict=True))
        return replace(
            first, domain=self._domain(*statements), write=self._access(*(s.write for s in statements)), reads=reads,
            body=self._body(self._dtypes[first.write.tensor], *(s.body for s in statements)),
        )  # fmt: skip

    def _access(self, *accesses: Access) -> Access:
        first = accesses[0]
        for a in accesses[1:]:
            self._same((a.tensor, len(a.guard), a.fill), (first.tensor, len(first.guard), first.fill), "accesses")
        index: list[Affine | ReadIndex] = []
        for row in zip(*(a.index for a in accesses), strict=True):
            if isinstance(row[0], ReadIndex):
                for s in row[1:]:
                    self._same(s, row[0], "subscripts")
                index.append(row[0])
            else:
                index.append(self._affine(*(s for s in row if isinstance(s, Affine))))
        guard = tuple(
            replace(cs[0], expr=self._affine(*(c.expr for c in cs)))
            for cs in zip(*(a.guard for a in accesses), strict=True)
        )
        return replace(first, index=tuple(index), guard=guard)

    def _domain(self, *statements: Statement) -> isl.Set:
        """The domain: constraints with the same coefficients of iterators, and fitted constants."""
        first = statements[0]
        if all(s.domain.is_equal(first.domain) for s in statements[1:]):
            return first.domain
        parts = [_constraints(s) for s in statements]
        for p in parts[1:]:
            self._same([list(b) for b in p], [list(b) for b in parts[0]], "bounds")
        texts: list[str] = []
        for k, part in enumerate(parts[0]):
            conditions = []
            for row in part:
                coefficients, equal = row
                constant = self._fit(*(p[k][row] for p in parts))
                terms = sum((var(i) * c for i, c in zip(first.iterators, coefficients, strict=True)), Affine())
                conditions.append(f"{(terms + constant).isl_text} {'=' if equal else '>='} 0")
            texts.append(f"{first.tuple_text} : {' and '.join(conditions) or 'true'}")
        return isl.Set(f"[{', '.join(self._parameters.values())}] -> {{ {'; '.join(texts)} }}")

    def _body(self, dtype: str, *bodies: Expr) -> Expr:
        first = bodies[0]
        if all(b == first for b in bodies[1:]):
            return first
        if any(type(b) is not type(first) for b in bodies):
            raise NotAffine(f"{self._place} computes something else at other sizes")
        if isinstance(first, Const):
            values = [b.value for b in bodies if isinstance(b, Const)]
            if any(v != int(v) for v in values):
                raise NotAffine(f"{self._place} has the literals {sorted(set(values))}")
            return Cast(first.dtype or dtype, IndexValue(self._fit(*(int(v) for v in values))))
        if isinstance(first, IndexValue):
            return IndexValue(self._affine(*(b.index for b in bodies if isinstance(b, IndexValue))))
        if isinstance(first, Cast):
            self._same([b.dtype for b in bodies if isinstance(b, Cast)], [first.dtype] * len(bodies), "casts")
            return Cast(first.dtype, self._body(first.dtype, *(b.argument for b in bodies if isinstance(b, Cast))))
        applied = [b for b in bodies if isinstance(b, Apply)]
        if not isinstance(first, Apply) or any(b.operator != first.operator for b in applied):
            raise NotAffine(f"{self._place} computes something else at other sizes")
        rows = zip(*(b.arguments for b in applied), strict=True)
        return Apply(first.operator, tuple(self._body(dtype, *row) for row in rows))


# -- comparing with one more import ----------------------------------------------------------------------------------


class _Literal:
    """The import of a model at sizes by the names of the graph's parameters."""

    def __init__(self, at: Import, names: Mapping[str, str]) -> None:
        self._at, self._names = at, names

    def __call__(self, sizes: Sizes) -> Graph:
        return self._at({name: sizes[parameter] for name, parameter in self._names.items()})


def agrees(graph: Graph, literal: Graph, sizes: Sizes) -> bool:
    """True where a graph with free sizes is at these sizes what was imported at them.

    Loops of one iteration do not count: a literal import leaves them out or reads at 0.
    """
    if [n.outputs for n in graph.nodes] != [n.outputs for n in literal.nodes]:
        return False
    for name, array in literal.constants.items():
        if name not in graph.constants or not leads(array, graph.constants[name]):
            return False
    known = {t.name: t.extents(sizes) for t in graph.tensors}
    for ours, theirs in zip(graph.nodes, literal.nodes, strict=True):
        if len(ours.statements) != len(theirs.statements) or theirs.external:
            return False
        shapes = known | {t.name: t.extents(sizes) for t in ours.temporaries}
        for t in (*theirs.temporaries, *(literal.tensor[n] for n in theirs.outputs)):
            if shapes.get(t.name) != t.extents({}):
                return False
        pairs = zip(ours.statements, theirs.statements, strict=True)
        if not all(s == t or _normal(s, sizes) == _normal(t, {}) for s, t in pairs):  # most have no size
            return False
    return True


def leads(part: Array, whole: Array) -> bool:
    """True where `part` is the leading box of `whole`, bit by bit."""
    if part is whole:
        return True
    if part.dtype != whole.dtype or part.ndim != whole.ndim:
        return False
    if any(p > w for p, w in zip(part.shape, whole.shape, strict=True)):
        return False
    box = whole[tuple(slice(0, p) for p in part.shape)]
    return part.tobytes() == np.ascontiguousarray(box).tobytes()


def _normal(s: Statement, sizes: Sizes) -> object:
    """A statement under sizes without its loops of one iteration, iterators by position; `==` compares."""
    domain = s.domain
    for name, value in sizes.items():
        position = domain.find_dim_by_name(isl.dim_type.param, name)
        if position >= 0:
            domain = domain.fix_val(isl.dim_type.param, position, value)
    domain = domain.project_out(isl.dim_type.param, 0, domain.dim(isl.dim_type.param))
    values: dict[str, Affine | int] = dict(sizes)
    for k in reversed(range(len(s.iterators))):
        fixed = domain.plain_get_val_if_fixed(SET, k)
        if fixed.is_int():
            values[s.iterators[k]] = int(str(fixed))
            domain = domain.project_out(SET, k, 1)
    left = [i for i in s.iterators if i not in values]
    values |= {i: var(f"i{k}_") for k, i in enumerate(left)}
    path = tuple(p for p in s.path if isinstance(p, int) or p in left)
    places = tuple(left.index(p) if isinstance(p, str) else -1 for p in path)
    return (
        _Domain(domain.set_tuple_name("s")), s.combiner, s.reorder, places, _read(s.write, values),
        tuple(_read(r, values) for r in s.reads), rewrite(s.body, lambda e: _plain(e, values)),
    )  # fmt: skip


class _Domain:
    """A set that compares by its elements. (What isl projects loses its name.)"""

    def __init__(self, domain: isl.Set) -> None:
        self._domain = domain

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Domain) and bool(self._domain.plain_is_equal(other._domain)
                                                   or self._domain.is_equal(other._domain))  # fmt: skip

    __hash__ = None  # type: ignore[assignment]


def _read(access: Access, values: Mapping[str, Affine | int]) -> object:
    """An access under values; a guard's conditions that always hold are left out."""
    new = access.substitute(values)
    guard = tuple(c for c in new.guard if not (c.expr.is_constant and _holds(c)))
    return new.tensor, new.index, guard, new.fill if guard else None


def _holds(constraint: Constraint) -> bool:
    return bool(constraint.holds({}))


def _plain(e: Expr, values: Mapping[str, Affine | int]) -> Expr | None:
    match e:
        case Cast(_, IndexValue(index)) if (inner := index.substitute(values)).is_constant:
            return Const(float(inner.constant))
        case IndexValue(index):
            return IndexValue(index.substitute(values))
        case Const(value):
            return Const(float(value))
        case _:
            return None


# -- small things ----------------------------------------------------------------------------------------------------


def _names_of(ranges: Mapping[str, object], graph: Graph) -> dict[str, str]:
    """A parameter's name for each dynamic dimension, one that no tensor, iterator or word of isl has."""
    from poly.frontend.onnx_terms import Names

    names = Names()
    taken = {t.name for t in graph.tensors} | {t.name for n in graph.nodes for t in n.temporaries}
    taken |= {i for n in graph.nodes for s in n.statements for i in (s.name, *s.iterators)}
    found: dict[str, str] = {}
    for name in ranges:
        new = names.fresh(name)
        while new in taken:
            new = names.fresh(name)
        found[name] = new
    return found


def _constraints(s: Statement) -> list[dict[tuple[tuple[int, ...], bool], int]]:
    """For each part of a domain: (coefficients of the iterators, is an equality) -> constant.

    Raises `NotAffine` for existential dimensions.
    """
    found: list[dict[tuple[tuple[int, ...], bool], int]] = []
    for part in s.domain.get_basic_sets():
        if part.dim(isl.dim_type.div):
            raise NotAffine(f"statement {s.name} has a domain with holes")
        part = part.remove_redundancies()  # isl leaves them out where it has compared the set before
        rows: dict[tuple[tuple[int, ...], bool], int] = {}
        for c in part.get_constraints():
            coefficients = tuple(int(str(c.get_coefficient_val(SET, k))) for k in range(len(s.iterators)))
            rows[(coefficients, bool(c.is_equality()))] = int(str(c.get_constant_val()))
        found.append(dict(sorted(rows.items())))
    return found
