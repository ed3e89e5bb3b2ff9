"""Loop and Scan with a known number of turns as statements: one loop over the turns, without a call for each.

A value of the body has the turn as a first subscript, so that none is overwritten; of a state, `S[t]` is what turn t
begins with, and the body's output is written to `S[t + 1]`. What a scan takes is read, and what it stacks is written,
where it lies. Nodes that read no state are loops of their own over all turns, as are those that no state needs; only
what is between the two runs turn by turn. What depends on no turn stays outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Final

import islpy as isl

from poly.affine import Affine, var
from poly.frontend.onnx_control import int_attribute, ints_attribute
from poly.frontend.onnx_fold import Imported
from poly.frontend.onnx_notation import Call, NoCompiledForm, Notation
from poly.frontend.onnx_terms import Names, Shape, Value
from poly.graph import Node
from poly.program import Access, PathStep, Statement
from poly.sets import SET

if TYPE_CHECKING:
    import onnx

TURN: Final = "turn"
MOST_ELEMENTS: Final = 1 << 22  # of the values of all turns; where turns run one by one, each uses the same memory


@dataclass(frozen=True)
class Border:
    """What goes in and out of a body. `states`: what they begin with; `scanned`: with the axis and whether backwards;
    `stacked`: the same of outputs. `count`: the turns, None where only the run can tell; `numbered`: a turn is told its
    number, and whether to go on.
    """

    states: Sequence[Value]
    scanned: Sequence[tuple[Value, int, bool]]
    stacked: Sequence[tuple[int, bool]]
    count: int | None
    numbered: bool

    @property
    def inner(self) -> list[tuple[Shape, str]]:
        """Shapes and dtypes of what a turn is given: its number, the states, slices."""
        number: list[tuple[Shape, str]] = [((), "i64")] if self.numbered else []
        slices = [((*v.shape[:axis], *v.shape[axis + 1 :]), v.dtype) for v, axis, _ in self.scanned]
        return [*number, *((v.shape, v.dtype) for v in self.states), *slices]


def border_of(call: Call, proto: onnx.NodeProto, graph: onnx.GraphProto) -> Border:
    """The border of a Loop or Scan. Raises `NoCompiledForm` where turns may end early, or sequences."""
    if call.operator == "Loop":
        trips, condition, *given = [*call.inputs, None, None][: max(len(call.inputs), 2)]
        states = [v for v in given if v is not None]
        if trips is None or (condition is not None and (condition.array is None or not condition.array.all())):
            raise NoCompiledForm("a condition may end it")
        stacked = [(0, False)] * (len(graph.output) - 1 - len(states))
        count = None if trips.array is None else int(trips.array.reshape(-1)[0])
        return Border(states, (), stacked, count, True)
    values = [v for v in call.inputs if v is not None]
    scans = int_attribute(proto, "num_scan_inputs")
    if len(values) != len(graph.input) or any(a.name == "directions" for a in proto.attribute):
        raise NoCompiledForm("a scan of batches")
    states, arrays = values[: len(values) - scans], values[len(values) - scans :]
    axes = ints_attribute(proto, "scan_input_axes", scans)
    axes = [axis % max(v.rank, 1) for v, axis in zip(arrays, axes, strict=True)]
    backwards = map(bool, ints_attribute(proto, "scan_input_directions", scans))
    lengths = {v.shape[axis] for v, axis in zip(arrays, axes, strict=True) if v.rank}
    if len(lengths) != 1:
        raise NoCompiledForm("lengths that differ")
    outputs = len(graph.output) - len(states)
    places = zip(
        ints_attribute(proto, "scan_output_axes", outputs),
        map(bool, ints_attribute(proto, "scan_output_directions", outputs)), strict=True,
    )  # fmt: skip
    return Border(states, [*zip(arrays, axes, backwards, strict=True)], [*places], lengths.pop(), False)


@dataclass(frozen=True)
class Place:
    """Where a value of a turn is: in `tensor`, at `turn` (of the iterator `TURN`) along `axis`."""

    tensor: str
    axis: int
    turn: Affine

    @staticmethod
    def of(tensor: str, axis: int, backwards: bool, count: int) -> Place:
        return Place(tensor, axis, count - 1 - var(TURN) if backwards else var(TURN))

    def access(self, access: Access, turn: str) -> Access:
        at = self.turn.substitute({TURN: var(turn)})
        return replace(access, tensor=self.tensor, index=(*access.index[: self.axis], at, *access.index[self.axis :]))


@dataclass(frozen=True)
class State:
    """A value that turns hand on: `initial`; `inner`, what a turn reads, and `made`, what it makes."""

    initial: Value
    inner: Value
    made: Value


@dataclass(frozen=True)
class Turns:
    """A Loop or Scan of `count` turns. `scanned`: what a turn reads, and where; `stacked`: what it makes, and where in
    the tensor that it becomes.
    """

    call: Call
    count: int
    states: Sequence[State]
    scanned: Mapping[str, Place]
    stacked: Mapping[str, Place]


def turns_of(
    call: Call, border: Border, count: int, inner: Sequence[Value], made: Sequence[Value], numbers: Value | None
) -> Turns:
    """How `inner`, what a body reads, and `made`, what it makes, lie. `numbers`: of the turns, where these are told.

    Raises `NoCompiledForm` for states that change their shapes.
    """
    scanned: dict[str, Place] = {}
    if numbers is not None:
        scanned[inner[0].name] = Place.of(numbers.name, 0, False, count)
        inner = inner[1:]
    states = [State(*s) for s in zip(border.states, inner, made, strict=False)]
    if any((s.made.shape, s.made.dtype) != (s.initial.shape, s.initial.dtype) for s in states):
        raise NoCompiledForm("a state changes its shape")
    for v, (array, axis, backwards) in zip(inner[len(states) :], border.scanned, strict=True):
        scanned[v.name] = Place.of(array.name, axis, backwards, count)
    stacked = {
        v.name: Place.of(v.name, axis % (v.rank + 1), backwards, count)
        for v, (axis, backwards) in zip(made[len(states) :], border.stacked, strict=True)
    }
    return Turns(call, count, states, scanned, stacked)


def nodes_of_turns(turns: Turns, body: Sequence[Imported], names: Names) -> tuple[list[Imported], dict[str, Value]]:
    """The nodes for those of a body, and what has become of the values of a turn, by their names: `made` of a state is
    its last one. Raises `NoCompiledForm`.
    """
    first, again = {s.inner.name for s in turns.states}, {s.made.name for s in turns.states}
    moving = _reached([*first, *again, *turns.scanned, *turns.stacked], body)
    within = [n for n in body if moving & {*n.node.outputs}]
    if any(n.node.external for n in within):
        raise NoCompiledForm("a part of the body is left to the reference evaluator")
    made = sum(prod(v.shape) for n in within for v in n.results)
    made += sum(prod(e.constant for e in t.shape) for n in within for t in n.node.temporaries)
    if made * turns.count > MOST_ELEMENTS:
        raise NoCompiledForm("the values of all turns are many")
    changing, needed = _reached([*first, *again], within), _needed(again, within)
    parts: dict[str, list[Imported]] = {"before": [], "core": [], "after": []}
    for n in within:
        outputs = {*n.node.outputs}
        parts["before" if not outputs & changing else "core" if outputs & needed else "after"].append(n)
    moved = _Moved(turns, within, names.fresh(f"turn{turns.call.serial}"))
    core, ends = moved.together(parts["core"], names)
    kept = [n for n in body if n not in within]
    nodes = [*kept, *map(moved.alone, parts["before"]), *core, *map(moved.alone, parts["after"])]
    return nodes, {v.name: moved.value(v) for n in within for v in n.results} | ends


def _reached(start: Iterable[str], nodes: Iterable[Imported]) -> set[str]:
    """What depends on some values, themselves included."""
    found = {*start}
    for n in nodes:
        if found & {*n.node.inputs}:
            found |= {*n.node.outputs}
    return found


def _needed(end: Iterable[str], nodes: Sequence[Imported]) -> set[str]:
    """What some values depend on, themselves included."""
    found = {*end}
    for n in reversed(nodes):
        if found & {*n.node.outputs}:
            found |= {*n.node.inputs}
    return found


class _Moved:
    """Nodes of a body, moved into the loop over its turns."""

    def __init__(self, turns: Turns, within: Sequence[Imported], turn: str) -> None:
        self.turns, self.turn = turns, turn
        own = [name for n in within for name in (*(v.name for v in n.results), *(t.name for t in n.node.temporaries))]
        self.places = {name: Place(name, 0, var(TURN)) for name in own} | {**turns.scanned, **turns.stacked}
        for s in turns.states:
            self.places[s.inner.name] = Place(s.inner.name, 0, var(TURN))
            self.places[s.made.name] = Place(s.inner.name, 0, var(TURN) + 1)

    def value(self, v: Value) -> Value:
        """A value of all turns."""
        axis = self.places[v.name].axis
        return replace(v, shape=(*v.shape[:axis], self.turns.count, *v.shape[axis:]))

    def alone(self, n: Imported) -> Imported:
        """A node in a loop of its own."""
        statements = [self._statement(s, (s.path[0], self.turn, *s.path[1:])) for s in n.node.statements]
        return self._imported([n], n.node.name, n.node.operator, statements, [self.value(v) for v in n.results])

    def together(self, core: Sequence[Imported], names: Names) -> tuple[list[Imported], dict[str, Value]]:
        """The nodes that hand on states as one, its loop between what the states are first and last; these by name."""
        if not core:
            return [], {}
        b, count = Notation(self.turns.call, names), self.turns.count
        whole = [b.declare(replace(s.inner, shape=(count + 1, *s.inner.shape))) for s in self.turns.states]
        points = [{f"i{k}": extent for k, extent in enumerate(s.initial.shape)} for s in self.turns.states]
        for k, (s, all_turns, ranges) in enumerate(zip(self.turns.states, whole, points, strict=True)):
            at = tuple(map(var, ranges))
            b.assign(all_turns, ranges, s.initial[at], (0, *at), suffix=f"_first{k}")
        loop = len(b.statements)
        for k, (all_turns, ranges) in enumerate(zip(whole, points, strict=True)):
            last = b.output(all_turns.shape[1:], all_turns.dtype, k)
            b.assign(last, ranges, all_turns[(count, *map(var, ranges))], suffix=f"_last{k}")
        heads = list(dict.fromkeys((id(n), s.path[0]) for n in core for s in n.node.statements))
        inner = [
            self._statement(s, (loop, self.turn, heads.index((id(n), s.path[0])), *s.path[1:]))
            for n in core for s in n.node.statements
        ]  # fmt: skip
        ends = [replace(s, path=(loop + 1 + k, *s.path[1:])) for k, s in enumerate(b.statements[loop:])]
        made = [s.made.name for s in self.turns.states]
        results = [self.value(v) for n in core for v in n.results if v.name not in made]
        results += [*whole, *b.results.values()]
        call = self.turns.call
        node = self._imported(core, call.name, call.operator, [*b.statements[:loop], *inner, *ends], results)
        return [node], dict(zip(made, b.results.values(), strict=True))

    def _statement(self, s: Statement, path: tuple[PathStep, ...]) -> Statement:
        def moved(access: Access) -> Access:
            place = self.places.get(access.tensor)
            return access if place is None else place.access(access, self.turn)

        iterators = (self.turn, *s.iterators)
        turns = isl.Set(f"{{ {s.name}[{', '.join(iterators)}] : 0 <= {self.turn} < {self.turns.count} }}")
        domain = s.domain.insert_dims(SET, 0, 1).set_tuple_name(s.name).intersect(turns)
        reads = tuple(map(moved, s.reads))
        return replace(s, iterators=iterators, domain=domain, write=moved(s.write), reads=reads, path=path)

    def _imported(
        self, nodes: Sequence[Imported], name: str, operator: str, statements: Sequence[Statement],
        results: Sequence[Value],
    ) -> Imported:  # fmt: skip
        count = Affine.of(self.turns.count)
        temporaries = tuple(replace(t, shape=(count, *t.shape)) for n in nodes for t in n.node.temporaries)
        own = {*(v.name for v in results), *(t.name for t in temporaries)}
        inputs = dict.fromkeys(r.tensor for s in statements for r in s.reads if r.tensor not in own)
        node = Node(name, operator, (*inputs,), tuple(v.name for v in results), tuple(statements), temporaries)
        return Imported(node, self.turns.call, tuple(results))
