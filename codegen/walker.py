"""Prints the nodes of a loop tree: loops, lanes, unrolled copies, guards, buffers, statements.

A loop is what its kind says, a register tensor is SSA values, everything else is memory. Two exceptions: a vector loop
with a buffer inside, or with a loop inside whose bounds depend on the lane, has no form across lanes and runs one
iteration after another; of parallel loops only the one at the top of a phase is split over threads. Loops become blocks
with phis for their counter and for the register elements that live across iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from poly.affine import Constraint, var
from poly.codegen.addresses import Linear
from poly.codegen.asks import ask_for
from poly.codegen.loads import load
from poly.codegen.loop_ends import Ends, ends_of
from poly.codegen.matrix import begin_buffer, command, require_no_tiles, told_shapes
from poly.codegen.predicates import both, predicate, prefix_mask
from poly.codegen.registers import Entry, Place
from poly.codegen.state import Lanes, State, first_lanes
from poly.codegen.statements import compute, needed_reads
from poly.codegen.stores import register_writes
from poly.codegen.text import Region
from poly.codegen.values import Value
from poly.codegen.written import RegisterWrites
from poly.errors import UnsupportedError
from poly.loops import MAX_LANES, Alloc, Compute, External, For, If, Node, Sync, walk

MAX_STATEMENTS = 50_000  # statements after unrolling: beyond, the code would neither compile in time nor fit a cache
MAX_LENGTH = 16_000  # instructions of an unrolled loop, for which LLVM needs some seconds


class Walker:
    """Emits nodes at the current place of `state.writer`.

    `allocate` gives the base pointer of a memory buffer; `taken`: the SSA values (begin, end), which iterations of the
    first parallel loop met are run, counted from 0; None to run every parallel loop in one piece.
    """

    def __init__(self, state: State, allocate: Callable[[Alloc], str], taken: tuple[str, str] | None) -> None:
        self.s, self.allocate, self.taken = state, allocate, taken
        self.emitted = 0  # statements
        self.guarded: dict[int, For] = {}  # unrolled loops with ragged ends, as they are printed
        self.needed: dict[int, list[int]] = {}
        self.fixed: dict[int, Ends] = {}  # of loops whose bounds are numbers
        self.writes = RegisterWrites(state.in_registers)
        self.probed: dict[object, frozenset[Place]] = {}
        self.going: dict[str, str] = {}  # the statement that says when the loop ends that is printed, and what it wrote

    def nodes(self, nodes: Sequence[Node]) -> None:
        if not self.s.tiles.spaces:
            for node in nodes:
                self.node(node)
            return
        with told_shapes(self.s, nodes) as alike:
            for node in nodes:
                if alike or len(nodes) == 1:
                    self.node(node)
                else:
                    self.nodes((node,))

    def node(self, node: Node) -> None:
        match node:
            case Compute():
                self.compute(node)
            case For():
                self.loop(node)
            case If():
                self.branch(node)
            case Alloc():
                self.buffer(node)
            case Sync():
                if self.s.lanes is not None:
                    raise UnsupportedError("threads cannot meet inside a vector loop", hint="move the sync out of it")
            case External():
                raise UnsupportedError(
                    "an external statement has no compiled form", where=f"statement {node.statement}"
                )

    # -- statements

    def compute(self, node: Compute) -> None:
        self.emitted += 1
        if self.emitted > MAX_STATEMENTS:
            raise UnsupportedError(
                f"more than {MAX_STATEMENTS} statements after unrolling", where=f"statement {node.statement}"
            )
        needed = self.needed.get(id(node))
        if needed is None:
            needed = self.needed[id(node)] = needed_reads(node)
            require_no_tiles(self.s, node)
        compute(self.s, node, needed)
        if node.statement in self.going:
            self.going[node.statement] = self.s.ops.any_lane(load(self.s, node.write, {}, 0)).text

    # -- loops

    def loop(self, node: For) -> None:
        if node.kind == "parallel" and any(isinstance(n, Sync) for n in walk(node.body)):
            raise UnsupportedError(f"threads meet inside parallel loop {node.variable}", hint="move the sync out of it")
        if node.kind == "unit" and self.s.tiles.spaces and command(self.s, node):
            return
        ends = self.fixed.get(id(node)) or self._ends(node)
        if ends.trips == 0:
            return
        if node.kind == "vector" and ends.trips != 1 and not node.one_by_one:
            return self._vector(node, ends)
        if node.kind == "unroll" and ends.trips is None:
            return self._ragged(node, ends)
        splitting = node.kind == "parallel" and self.taken is not None
        if node.kind == "unroll" or (ends.trips == 1 and not splitting):
            return self._copies(node, ends.lower[0], ends.trips or 0)
        self._counted(node, ends)

    def _ends(self, node: For) -> Ends:
        found = ends_of(self.s.indices, node)
        if all(len(b) == 1 and not b[0].terms for b in (node.lower, node.stops)):
            self.fixed[id(node)] = found
        return found

    def _ragged(self, node: For, ends: Ends) -> None:
        """Copies for all values that an unrolled loop takes anywhere, each under the bounds that hold here."""
        known = self.s.indices.interval
        intervals = [[r for f in forms if (r := known(f)) is not None] for forms in (ends.lower, ends.upper)]
        least, most = (max((r[0] for r in intervals[0]), default=None), min((r[1] for r in intervals[1]), default=None))
        if least is None or most is None or (node.step > 1 and [f.is_constant for f in ends.lower] != [True]):
            low, high = (
                f"{name}({', '.join(texts)})" if len(texts) > 1 else "".join(texts)
                for name, texts in (("max", [str(e) for e in node.lower]), ("min", [str(e) for e in node.upper]))
            )
            raise UnsupportedError(
                f"the bounds of unrolled loop {node.variable} are not constant: from {low} to {high}",
                hint="a tile that divides the extent, or a split of the loop before it is tiled, where whole tiles end",
            )
        if id(node) not in self.guarded:
            at = var(node.variable)
            inside = tuple(Constraint(at - e) for e in node.lower) + tuple(Constraint(e - 1 - at) for e in node.upper)
            self.guarded[id(node)] = replace(node, body=(If((inside,), node.body),))
        self._copies(self.guarded[id(node)], Linear((), least), max(0, -((least - most) // node.step)))

    def _copies(self, node: For, lower: Linear, trips: int) -> None:
        """The body once for every iteration. Raises `UnsupportedError` where the code gets too long for LLVM."""
        s = self.s
        before = len(s.writer.lines)
        for i in range(trips):
            s.indices.values[node.variable] = lower.plus(Linear((), i * node.step))
            self.nodes(node.body)
            length = len(s.writer.lines) - before
            if length > MAX_LENGTH and trips > 1:
                fits = MAX_LENGTH * (i + 1) // length
                tiled = f"tile it by {fits} or less and unroll the inner loop"
                hint = tiled if fits > 1 else "leave it, or loops inside of it, a loop"
                raise UnsupportedError(
                    f"unrolled loop {node.variable} is more than {MAX_LENGTH} instructions long: its {trips} copies "
                    f"have some {length // (i + 1)} each",
                    hint=hint,
                )

    def _counted(self, node: For, ends: Ends) -> None:
        """A loop that stays a loop: header with phis, body, latch; guarded where it may not run at all."""
        s, writer = self.s, self.s.writer
        written = self._written(node)
        interval = ends.interval(s.indices)
        first, last, certain = ends.first(s.indices), ends.last(s.indices), ends.trips is not None
        if node.kind == "parallel" and self.taken is not None:
            first, last = self._partition(first, node.step)
            certain, self.taken = False, None
        label = writer.fresh_label()
        before = s.registers.snapshot()
        carried = [(place, before[place]) for place in s.registers.starts(written)]
        writer.emit(f"br label %{label}p")
        writer.label(f"{label}p")
        if certain:
            writer.emit(f"br label %{label}")
        else:
            writer.emit(f"br i1 {writer.value(f'icmp slt i64 {first}, {last}')}, label %{label}, label %{label}x")
        counter, following = writer.name("i"), writer.name("i")
        phis = {place: writer.name("c") for place, _ in carried}
        for place, entry in carried:
            s.registers.entries[place] = entry.named(phis[place])
        s.registers.left.append({})
        region = Region()
        writer.depth_of[counter] = writer.depth + 1
        s.indices.set_variable(node.variable, counter, interval)
        with writer.region(region) as lines:
            going = self._iteration(node)
            for place, entry in carried:
                s.registers.same_form(place, entry)
            left = s.registers.end_of_iteration()
        writer.label(label)
        writer.emit(f"{counter} = phi i64 [{first}, %{label}p], [{following}, %{label}l]")
        carries = [(entry.value.text, entry.named(phis[p]), s.registers.entries[p].value.text) for p, entry in carried]
        for start, phi, end in [*carries, *left]:
            writer.emit(f"{phi.value.text} = phi {phi.type} [{start}, %{label}p], [{end}, %{label}l]")
        writer.lines += [*region.head, *lines]
        writer.latch(label, counter, following, node.step, last, going)
        if not certain:
            self._join(before, f"{label}p", f"{label}l")

    def _iteration(self, node: For) -> str | None:
        """The body of a loop, with what it asks for; the bit that is set where it goes on, if something says so."""
        around = self.s.written
        self.s.written = _targets(node)
        for element in node.asks:
            ask_for(self.s, element)
        outside, self.going = self.going, {} if node.leaves is None else {node.leaves: ""}
        self.nodes(node.body)
        found, self.going = self.going, outside
        self.s.written = around
        return next(iter(found.values()), "") or None

    def _partition(self, first: str, step: int) -> tuple[str, str]:
        """The bounds of the iterations that are run."""
        assert self.taken is not None
        emit = self.s.writer.value
        begin, end = (emit(f"add i64 {first}, {emit(f'mul i64 {at}, {step}')}") for at in self.taken)
        return begin, end

    def _join(self, before: dict[Place, Entry], skipped: str, done: str) -> None:
        """After code that may have been skipped: phis for every register element that it changed."""
        s = self.s
        for place, entry in list(s.registers.entries.items()):
            old = before.get(place)
            if old is not None and old.value.text == entry.value.text:
                continue
            skip = old.value if old is not None and old.value.lanes == entry.value.lanes else None
            if old is None:
                skip = s.registers.phi_for_skipped(place, entry)
            start = "poison" if skip is None else skip.text
            text = s.writer.value(f"phi {entry.type} [{start}, %{skipped}], [{entry.value.text}, %{done}]")
            s.registers.entries[place] = entry.named(text)

    # -- registers written in a body, found by a walk without output

    def _written(self, node: For) -> set[Place]:
        s = self.s
        if not self.writes.below(node):
            return set()
        inside = [n for n in walk(node.body) if isinstance(n, Compute | Alloc)]
        own = {n.tensor.name for n in inside if isinstance(n, Alloc)}  # ends with the body
        written = {n.write.tensor for n in inside if isinstance(n, Compute)} - own
        if not any(map(s.in_registers, written)):
            return set()
        probe = Probe(self)
        with s.probing():
            probe.loop(node)
        return probe.written

    # -- lanes

    def _vector(self, node: For, ends: Ends) -> None:
        s, trips = self.s, ends.trips
        if s.lanes is not None:
            raise UnsupportedError(f"vector loop {node.variable} lies inside another vector loop")
        bound = trips if trips is not None else ends.most_lanes(s.indices, node.variable)
        if bound > MAX_LANES:
            raise UnsupportedError(
                f"vector loop {node.variable} has {bound} iterations", hint=f"split it: at most {MAX_LANES} lanes"
            )
        width = max(2, 1 << (bound - 1).bit_length())
        start = ends.lower[0] if len(ends.lower) == 1 else Linear(((ends.first(s.indices), 1),))
        s.indices.values[node.variable] = start._replace(lane=node.step)
        s.indices.lane_range = (0, bound - 1)
        s.past, s.ahead = node.nontemporal, node.ahead
        if trips is not None:
            s.lanes = first_lanes(width, trips)
            self.nodes(node.body)
        else:
            extent = ends.extent(s.indices)
            s.lanes = Lanes(width, bound, prefix_mask(s, extent, width), False)
            some = Value("bool", 0, s.writer.pure(f"icmp sgt i64 {extent}, 0", extent))
            self._guarded(some, node.body)
        s.lanes, s.past, s.ahead = None, False, None
        s.indices.lane_range = (0, 0)

    # -- conditions and buffers

    def branch(self, node: If) -> None:
        s = self.s
        condition = predicate(s, node.any_of)
        if isinstance(condition, bool):
            return self.nodes(node.body) if condition else None
        if not condition.lanes:
            return self._guarded(condition, node.body)
        assert s.lanes is not None
        outer = s.lanes
        mask = both(s, Value("bool", outer.width, outer.mask) if outer.mask else True, condition)
        assert isinstance(mask, Value)
        s.lanes = replace(outer, mask=mask.text, constant=False)
        self._guarded(s.ops.any_lane(mask), node.body)
        s.lanes = outer

    def _guarded(self, condition: Value, body: Sequence[Node]) -> None:
        """The body under a branch."""
        s, writer = self.s, self.s.writer
        saved = s.registers.snapshot()
        outside, self.going = self.going, {}
        with writer.branch(condition.text, own=True) as labels:
            self.nodes(body)
            for place, entry in saved.items():
                if s.registers.entries.get(place) is not entry:
                    s.registers.same_form(place, entry)
            writer.emit(f"br label %{labels.end}t")
            writer.label(f"{labels.end}t")
        self._join(saved, labels.before, f"{labels.end}t")
        self.going = outside

    def buffer(self, node: Alloc) -> None:
        s, tensor = self.s, node.tensor
        if s.in_registers(tensor.name):
            s.indices.set_strides(tensor.name, tensor.storage_shape)
            s.registers.begin(tensor.name)
            self.nodes(node.body)
            s.registers.forget(tensor.name)
            return
        if s.lanes is not None:
            raise UnsupportedError(f"buffer {tensor.name} is allocated inside a vector loop", hint="promote it outside")
        if s.in_tiles(tensor.name):
            s.indices.set_strides(tensor.name, tensor.storage_shape)
            before = begin_buffer(s, tensor)
            self.nodes(node.body)
            s.tiles.taken = before
            return
        s.bases[tensor.name] = self.allocate(node)
        s.indices.set_strides(tensor.name, tensor.storage_shape)
        self.nodes(node.body)


class Probe(Walker):
    """Walks inside of `State.probing`, to learn which register elements are written."""

    def __init__(self, walker: Walker) -> None:
        super().__init__(walker.s, walker.allocate, None)
        self.writes, self.probed, self.fixed = walker.writes, walker.probed, walker.fixed
        self.written: set[Place] = set()

    def node(self, node: Node) -> None:
        if self.writes.below(node):
            super().node(node)

    def loop(self, node: For) -> None:
        """Every loop once for the values that decide what it writes."""
        s, names = self.s, self.writes.names(node) or frozenset()
        key = (id(node), s.lanes, *(s.indices.values.get(name) for name in sorted(names)))
        found = self.probed.get(key)
        if found is None:
            around, self.written = self.written, set()
            super().loop(node)
            found = self.probed[key] = frozenset(self.written)
            self.written = around
        self.written |= found

    def _counted(self, node: For, ends: Ends) -> None:
        indices = self.s.indices
        indices.set_variable(node.variable, self.s.writer.name("i"), ends.interval(indices))
        self.nodes(node.body)

    def _guarded(self, condition: Value, body: Sequence[Node]) -> None:  # noqa: ARG002  # it goes everywhere
        self.nodes(body)

    def compute(self, node: Compute) -> None:
        if self.s.in_registers(node.write.tensor):
            with self.s.at_statement(node.statement):
                self.written |= set(register_writes(self.s, node.write))

    def buffer(self, node: Alloc) -> None:
        self.s.indices.set_strides(node.tensor.name, node.tensor.storage_shape)
        self.nodes(node.body)


def _targets(loop: For) -> frozenset[str]:
    """The tensors that are written inside of a loop."""
    return frozenset(n.write.tensor for n in walk(loop.body) if isinstance(n, Compute))
