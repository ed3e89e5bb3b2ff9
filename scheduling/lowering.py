"""A schedule as loops: one recursion over its tree, from the loop vectors of the statements.

Every loop gets bounds that hold for all statements under it (`poly.scheduling.bounds`); what a statement demands beyond
them becomes an `If` as far out as it can be told. Loops with one iteration are replaced by their value, unless they are
marked to stay. Subscripts are functions of the loop variables (`poly.scheduling.loop_vectors`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import islpy as isl

from poly.affine import Affine, Constraint
from poly.coefficients import bounded, set_of
from poly.errors import UnsupportedError
from poly.expr import with_indices
from poly.loops import Alloc, Compute, External, For, If, LoopTree, Node
from poly.program import Access, Tensor
from poly.relations import free_sizes
from poly.scheduling.asked_blocks import asked_block
from poly.scheduling.asked_copies import asked, copies_into
from poly.scheduling.bounds import LoopBounds, holds_always, loop_bounds, same, with_last
from poly.scheduling.loop_vectors import LoopVectors, loop_vectors
from poly.scheduling.paths import Band, Leaf, Ordered, TreeNode, common_prefix, statements_of
from poly.scheduling.schedule import Mark, Schedule
from poly.scheduling.shortening import ends_of
from poly.sets import conjunctions_of, fix_sizes

BUDGET = 20_000_000  # operations of isl
Names = tuple[str, ...]


def lower(schedule: Schedule) -> LoopTree:
    """The loops of a schedule under the binding of its program's sizes.

    Raises `ScheduleError` where loops do not tell a statement's instances apart, `UnsupportedError` where a bound or an
    index has no quasi-affine form, or where isl needs more than its budget of operations.
    """
    with bounded(BUDGET, "lowering", schedule.source.name):
        return _lower(schedule)


def _lower(schedule: Schedule) -> LoopTree:
    """`lower`, inside of the budget."""
    program = schedule.program
    sizes = schedule.source.binding | program.binding
    context = fix_sizes(program.context.align_params(_parameter_space(program.parameters)), sizes)
    placed = {
        s.name: loop_vectors(
            s,
            schedule.nests[s.name].names,
            schedule.nests[s.name].expressions(schedule.nests[s.name].names),
            program.parameters,
            program.context,
            sizes,
        )
        for s in program.statements
    }
    work = _Lowering(
        schedule, {name: p for name, p in placed.items() if not p.vectors.is_empty()}, _allocations(schedule),
        ends_of(schedule),
    )  # fmt: skip
    start = isl.Set.universe(context.get_space().set_from_params()).intersect_params(context)
    body = work.scoped("", work.node(schedule.tree, start, (), {}))
    inside = {t.name for tensors in work.allocations.values() for t in tensors}
    used = {a.tensor for s in program.statements for a, _ in s.accesses}
    outside = tuple(t for t in program.tensors if t.name not in inside and (t.name in used or not t.origin))
    free = tuple(p for p in program.parameters if p not in sizes)
    return LoopTree(program.name, outside, body, free, tuple(sorted(sizes.items())))


def _parameter_space(parameters: Sequence[str]) -> isl.Space:
    space = isl.Space.params_alloc(isl.DEFAULT_CONTEXT, len(parameters))
    for k, name in enumerate(parameters):
        space = space.set_dim_name(isl.dim_type.param, k, name)
    return space


def _allocations(schedule: Schedule) -> dict[str, list[Tensor]]:
    """Promoted tensors by the loop that allocates them in its body: the innermost of their scope around all users."""
    result: dict[str, list[Tensor]] = {}
    for tensor in schedule.program.tensors:
        users = _users(schedule, tensor.name)
        if users and (tensor.scope or tensor.origin):
            shared = common_prefix(*(schedule.nests[s].path for s in users))
            around = [step for step in shared if isinstance(step, str) and step in tensor.scope]
            result.setdefault(around[-1] if around else "", []).append(tensor)
    return result


def _users(schedule: Schedule, tensor: str) -> list[str]:
    touched: list[str] = []
    for s in schedule.program.statements:
        names = {a.tensor for a, _ in s.accesses} | (set(s.external.reads + s.external.writes) if s.external else set())
        if tensor in names:
            touched.append(s.name)
    return touched


@dataclass(frozen=True)
class _Segment:
    """Loops made from one child of the tree, with the statements in them."""

    nodes: tuple[Node, ...]
    statements: frozenset[str]


@dataclass(frozen=True)
class _Lowering:
    """`placed`: the statements that have instances; `allocations`: see `_allocations`; `ends`: early ones."""

    schedule: Schedule
    placed: Mapping[str, LoopVectors]
    allocations: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)
    ends: Mapping[str, Affine] = field(default_factory=dict[str, Affine])

    def node(self, tree: TreeNode, context: isl.Set, names: Names, values: Mapping[str, Affine]) -> list[_Segment]:
        """A part of the tree inside the loops `names`; `context`: their vectors; `values`: of the dropped loops."""
        match tree:
            case Leaf(statement):
                return [self.leaf(statement, context, names, values)] if statement in self.placed else []
            case Ordered(children):
                return [segment for child in children for segment in self.node(child, context, names, values)]
            case Band():
                return self.band(tree, context, names, values)

    def band(self, tree: Band, context: isl.Set, names: Names, values: Mapping[str, Affine]) -> list[_Segment]:
        """One loop, or its body with the loop's only value."""
        members = [s for s in statements_of(tree) if s in self.placed]
        if not members:
            return []
        inner = (*names, tree.loop)
        outer = self.placed[members[0]].prefixes[len(names)]
        prefixes = [self.placed[s].prefixes[len(inner)] for s in members]
        bounds = loop_bounds(prefixes, outer, context, inner, [self.placed[s].ends for s in members])
        mark = self.schedule.marks.get(tree.loop, Mark())
        bounds = with_last(bounds, prefixes) if mark.kind == "vector" else bounds
        stays = mark.kind in ("parallel", "unit") or self.may_end(tree.loop, bounds, inner)
        dropped = bounds.value is not None and not stays
        guard = bounds.guard + (bounds.value_guard if dropped else ())
        if dropped and bounds.value is not None:
            known = {**values, tree.loop: bounds.value.substitute(values)}
            body = self.scoped(tree.loop, self.node(tree.child, bounds.context, inner, known))
        else:
            inside = self.scoped(tree.loop, self.node(tree.child, bounds.context, inner, values))
            lower = tuple(b.substitute(values) for b in bounds.lower)
            upper = tuple(b.substitute(values) for b in bounds.upper)
            how = For(tree.loop, lower, upper, inside, bounds.step, mark.kind, mark.engine, mark.fill)
            ahead = mark.ahead if mark.ahead and mark.ahead[0] in names and mark.ahead[0] not in values else None
            asks = self.asks(mark, inner, values) if mark.kind == "serial" else ()
            leaves = mark.leaves if mark.leaves and _right_inside(inside, mark.leaves) else None
            more = replace(
                how, nontemporal=mark.nontemporal, ahead=ahead, asks=asks, nowait=mark.nowait, leaves=leaves,
                ends=(self.ends[tree.loop].substitute(values),) if tree.loop in self.ends else (),
            )  # fmt: skip
            body = (more,)
        return [_Segment(guarded([guard], body, values), frozenset(members))]

    def may_end(self, loop: str, bounds: LoopBounds, names: Names) -> bool:
        """Whether a loop with one value ends before it in some iterations of those around; `names`: all of them."""
        if loop not in self.ends or bounds.value is None:
            return False
        beyond = [Constraint(bounds.value - self.ends[loop])]
        return not bounds.context.intersect(set_of(beyond, names, free_sizes(self.schedule.program))).is_empty()

    def asks(self, mark: Mark, around: Names, values: Mapping[str, Affine]) -> tuple[Access, ...]:
        """What the innermost of the loops around asks for: of what is copied next into a buffer, of a next block."""
        users = [p for p in self.placed.values() if p.loops[: len(around)] == around]
        found: tuple[Access, ...] = ()
        if mark.asks is not None:
            buffer, line = mark.asks
            copy = next((self.placed[n] for n in copies_into(self.schedule, buffer) if n in self.placed), None)
            found += asked(self.schedule, copy, users[0], around, line) if copy is not None else ()
        if mark.block is not None:
            name, line, along = mark.block
            reader = next((p for p in users if any(r.tensor == name for r in p.statement.reads)), None)
            tensor = self.schedule.program.tensor.get(name)
            found += asked_block(reader, tensor, around, line, along) if reader and tensor else ()
        return tuple(a.substitute(values) for a in found)

    def leaf(self, name: str, context: isl.Set, names: Names, values: Mapping[str, Affine]) -> _Segment:
        """A statement, inside an `If` for what it demands beyond the loops."""
        placed = self.placed[name]
        body: tuple[Node, ...] = (self.compute(placed, values),)
        if not same(placed.vectors, context):
            pieces = conjunctions_of(placed.vectors.gist(context).coalesce(), names)
            if pieces is None:
                raise UnsupportedError("its domain has an existential without a closed form", where=f"statement {name}")
            body = guarded(pieces, body, values)
        return _Segment(body, frozenset([name]))

    def compute(self, placed: LoopVectors, values: Mapping[str, Affine]) -> Compute | External:
        """The instance of a statement in one iteration of the loops around."""
        s = placed.statement
        if s.external is not None:
            return External(s.name)

        def by_loops(access: Access) -> Access:
            return placed.access(access).substitute(values)

        instance = tuple(e.substitute(values) for e in placed.instance)
        body = with_indices(placed.body(s.body), values)
        return Compute(
            s.name, instance, by_loops(s.write), tuple(by_loops(r) for r in s.reads), body, s.combiner, s.contract
        )

    def scoped(self, loop: str, segments: Sequence[_Segment]) -> tuple[Node, ...]:
        """The body of a loop with its allocations, each around the smallest span of children that holds its users."""
        spans = list(segments)
        for tensor in reversed(self.allocations.get(loop, ())):
            users = frozenset(_users(self.schedule, tensor.name))
            hit = [k for k, span in enumerate(spans) if span.statements & users]
            if hit:
                merged = spans[hit[0] : hit[-1] + 1]
                body = _joined([node for span in merged for node in span.nodes])
                whole = _Segment((Alloc(tensor, body),), frozenset().union(*(span.statements for span in merged)))
                spans[hit[0] : hit[-1] + 1] = [whole]
        return _joined([node for span in spans for node in span.nodes])


def _right_inside(nodes: Sequence[Node], statement: str) -> bool:
    """Whether a statement runs in each iteration of a loop with this body."""
    return any(
        (isinstance(n, Compute) and n.statement == statement)
        or ((isinstance(n, Alloc) or (isinstance(n, For) and n.kind == "vector")) and _right_inside(n.body, statement))
        for n in nodes
    )


def _joined(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Neighbours under the same guard share it."""
    result: list[Node] = []
    for node in nodes:
        last = result[-1] if result else None
        if isinstance(node, If) and isinstance(last, If) and node.any_of == last.any_of:
            result[-1] = If(node.any_of, _joined([*last.body, *node.body]))
        else:
            result.append(node)
    return tuple(result)


def guarded(
    pieces: Sequence[Sequence[Constraint]], body: tuple[Node, ...], values: Mapping[str, Affine]
) -> tuple[Node, ...]:
    """The body where one of the conjunctions holds; without an `If` where one is known to hold."""
    any_of: list[tuple[Constraint, ...]] = []
    for piece in pieces:
        conditions = [c.substitute(values) for c in piece]
        kept = tuple(c for c in conditions if not holds_always(c))
        if not kept:
            return body
        if not any(c.expr.is_constant for c in kept):
            any_of.append(kept)
    return (If(tuple(any_of), body),) if any_of else ()
