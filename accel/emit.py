"""Loop trees to a command stream: a walk over the loops with their bounds as numbers.

Serial loops are unrolled (and rolled up again as hardware loops where the commands repeat); a chain of `unit` loops
around one statement is one command of the engine it names. What is not a box, or not linear, is cut in several
commands. Order and place of everything are the tree's; semaphores follow from what the commands touch.

A statement without a unit loop names no engine and is refused. A copy whose box is padding only has no source that a
DMA could read: the engine that its loops name for that fills it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from poly.accel.commands import Operand, Site, command
from poly.accel.isa import Command, CommandStream, Symbol, Vec, constant
from poly.accel.memory import MemoryPlan, plan_memory
from poly.accel.regions import Bent, Form, Ints, Scope
from poly.accel.roll import roll
from poly.accel.synchronise import synchronise
from poly.affine import Affine, Constraint
from poly.dtypes import numpy_dtype
from poly.errors import UnsupportedError
from poly.loops import Alloc, Compute, External, For, If, LoopTree, Node, Sync
from poly.machine import Engine, Machine
from poly.program import Tensor

MAX_COMMANDS = 500_000
MAX_TABLE = 1_000_000


def emit_stream(
    tree: LoopTree, machine: Machine, constants: Mapping[str, np.ndarray] | None = None, *, name: str | None = None
) -> CommandStream:
    """The stream that runs a tree. Tensors outside of it are DRAM symbols of their names.

    `constants`: data of the symbols of role constant. Raises `UnsupportedError` naming the statement that the machine
    cannot run and `CapacityError` where buffers do not fit.
    """
    constants, sizes = constants or {}, dict(tree.sizes)
    operands = _operands(tree, plan_memory(tree, machine), machine)
    symbols = [_symbol(o.tensor, sizes, constants, o.memory) for o in operands.values() if o.symbol is not None]
    program: list[tuple[str, Command]] = []
    walk = _Walk(tree, machine, operands, program)
    walk.nodes(tree.body, Scope({n: Form(v, {}) for n, v in tree.sizes}, {}), ())
    data = {s.name: np.ascontiguousarray(constants[s.name]) for s in symbols if s.role == "constant" and constants}
    return roll(synchronise(name or tree.name, machine, symbols, program, data))


def _operands(tree: LoopTree, plan: MemoryPlan, machine: Machine) -> dict[str, Operand]:
    found: dict[str, Operand] = {}
    for t in (*tree.tensors, *plan.buffers.values()):
        memory = machine.memory.get(t.space)
        if memory is None or memory.kind == "dram":
            found[t.name] = Operand(t, machine.dram.name if memory is None else t.space, 0, t.name)
        else:
            found[t.name] = Operand(t, t.space, plan.offset(t))
    return found


def _symbol(t: Tensor, sizes: Mapping[str, int], constants: Mapping[str, np.ndarray], memory: str) -> Symbol:
    if t.role == "constant" and t.name in constants:
        return constant(t.name, np.asarray(constants[t.name], numpy_dtype(t.dtype)), memory)
    elements = t.nbytes(sizes) // numpy_dtype(t.dtype).itemsize
    return Symbol(t.name, t.dtype, elements, t.role, memory)


@dataclass
class _Walk:
    tree: LoopTree
    machine: Machine
    operands: Mapping[str, Operand]
    out: list[tuple[str, Command]]
    sizes: dict[str, int] = field(init=False)
    addresses: dict[int, Affine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Loops that surely run more often than a stream has commands are refused here, before any is unrolled."""
        self.sizes = dict(self.tree.sizes)
        if self.tree.parameters:
            free = ", ".join(self.tree.parameters)
            raise UnsupportedError(
                f"sizes {free} are free: a stream has fixed ones", where=self.tree.name, hint="bind them"
            )
        if (name := next(_without_engine(self.tree.body), None)) is not None:
            engines = ", ".join(self.machine.engine)
            raise UnsupportedError(
                "no engine is named", where=f"statement {name}",
                hint=f"tensorise its loops, or tensorise((), engine, statement={name!r}), with one of {engines}",
            )  # fmt: skip
        if len(self.out) + _at_least(self.tree.body, self.sizes) > MAX_COMMANDS:
            raise self.too_many()

    def nodes(self, nodes: Sequence[Node], scope: Scope, tile: tuple[tuple[str, int], ...]) -> None:
        """Run nodes in order; all loop variables of `scope` are numbers. `tile`: the serial loops, for tags."""
        for node in nodes:
            match node:
                case For():
                    self.loop(node, scope, tile)
                case If(any_of, body):
                    if any(all(holds(c, scope) for c in piece) for piece in any_of):
                        self.nodes(body, scope, tile)
                case Alloc(_, body):
                    self.nodes(body, scope, tile)
                case Compute():
                    raise AssertionError(f"{node.statement} is in no chain")
                case External(statement):
                    raise UnsupportedError("is computed outside of the program", where=f"statement {statement}")
                case Sync():
                    raise UnsupportedError(
                        "a stream has no command that drains all engines", where=self.tree.name,
                        hint="leave the sync out: semaphores follow from what the commands touch",
                    )  # fmt: skip

    def loop(self, node: For, scope: Scope, tile: tuple[tuple[str, int], ...]) -> None:
        """One loop: a command, or its iterations one by one."""
        if node.kind == "unit" and (chain := chain_of(node)) is not None:
            compute = chain[-1]
            assert isinstance(compute, Compute)
            fill = None if node.fill is None else self.engine(node.fill, compute.statement)
            _Chain(self, self.engine(node.engine or "", compute.statement), fill, tile).run(chain, scope, ())
            return
        low = max(number(b, scope) for b in node.lower)
        high = min(number(b, scope) for b in node.upper)
        for value in range(low, high, node.step):
            self.nodes(node.body, scope.fixed(node.variable, value), (*tile, (node.variable, value)))

    def engine(self, name: str, statement: str) -> Engine:
        if name not in self.machine.engine:
            raise UnsupportedError(
                f"{self.machine.name} has no engine {name!r}", where=f"statement {statement}",
                hint=f"engines: {', '.join(self.machine.engine)}",
            )  # fmt: skip
        return self.machine.engine[name]

    def add(self, engine: str, made: Command) -> None:
        if len(self.out) >= MAX_COMMANDS:
            raise self.too_many()
        self.out.append((engine, made))

    def too_many(self) -> UnsupportedError:
        hint = "larger tiles, and loops that one command takes: tensorise((...), engine), linear in their addresses"
        return UnsupportedError(f"more than {MAX_COMMANDS} commands", where=self.tree.name, hint=hint)


@dataclass(frozen=True)
class _Chain:
    """The unit loops around one statement, for one tile, and the engines that they name (`For.engine`, `For.fill`)."""

    walk: _Walk
    engine: Engine
    fill: Engine | None
    tile: tuple[tuple[str, int], ...]

    def run(self, nodes: Sequence[Node], scope: Scope, where: tuple[Affine, ...]) -> None:
        """Take the loops and conditions into the scope from the outside in; cut it where they are no box.

        `where`: expressions that must not be negative and that the box does not express.
        """
        try:
            match nodes[0]:
                case For() as node:
                    low, high = bounds(node, scope)
                    if high > low:
                        trips = -(-(high - low) // node.step)
                        self.run(nodes[1:], scope.moving(node.variable, low, node.step, trips), where)
                case If() as node:
                    left = condition(node, scope)
                    if left is not None:
                        self.run(nodes[1:], scope, (*where, *left))
                case Compute() as compute:
                    self.emit(compute, scope, where)
                case _:
                    raise AssertionError(nodes[0])
        except Bent as bent:
            for part in bent.parts:
                self.run(nodes, part, where)

    def emit(self, compute: Compute, scope: Scope, where: Sequence[Affine]) -> None:
        forms = [scope.form(e) for e in where]
        if any(scope.interval(f)[1] < 0 for f in forms):
            return
        left = tuple(f for f in forms if scope.interval(f)[0] < 0)
        tag = f"{compute.statement}({', '.join(f'{n}={v}' for n, v in self.tile)})" if self.tile else compute.statement
        site = Site(compute, scope, self.walk.operands, self.walk.sizes, tag, self.walk.addresses, left)
        made = command(site, self.engine)
        padding = isinstance(made, Vec) and self.engine.kind != "vector"
        self.walk.add(self.filling(site).name if padding else self.engine.name, made)

    def filling(self, site: Site) -> Engine:
        """The engine for a copy that is padding only. Raises `UnsupportedError` where none is named that can."""
        target = site.operands[site.compute.write.tensor].memory
        if self.fill is None:
            raise site.refuse(
                "a part of the copy is padding only, and no engine is named that fills it",
                f"tensorise(loops, engine, fill=...), a vector engine that writes {target}",
            )
        if self.fill.kind != "vector" or target not in self.fill.writes:
            raise site.refuse(
                f"a part of the copy is padding only, and engine {self.fill.name} does not fill {target}",
                "promote into a memory that the vector engine writes",
            )
        return self.fill


def _without_engine(nodes: Sequence[Node]) -> Iterator[str]:
    """The statements that no unit loop gives to an engine."""
    for node in nodes:
        match node:
            case For(kind="unit") if chain_of(node) is not None:
                pass
            case For(body=body) | If(_, body) | Alloc(_, body):
                yield from _without_engine(body)
            case Compute():
                yield node.statement
            case External() | Sync():
                pass


def _at_least(nodes: Sequence[Node], sizes: Mapping[str, int]) -> int:
    """Commands that nodes take at least: what hangs on conditions, or on bounds by other loops, counts as none."""
    found = 0
    for node in nodes:
        match node:
            case Compute():
                found += 1
            case Alloc(_, body):
                found += _at_least(body, sizes)
            case For() if all(b.names <= sizes.keys() for b in (*node.lower, *node.upper)):
                low = max(int(b.evaluate(sizes)) for b in node.lower)
                high = min(int(b.evaluate(sizes)) for b in node.upper)
                inside = _at_least(node.body, sizes) * max(0, -(-(high - low) // node.step))
                found += min(inside, 1) if node.kind == "unit" else inside
            case _:
                pass
    return found


def condition(node: If, scope: Scope) -> tuple[Affine, ...] | None:
    """What is left of a condition in a box: expressions that must not be negative; None where it never holds.

    Raises `Bent` for a part of the box that is a box, and for one of several alternatives.
    """
    pieces = [p for p in (_open(piece, scope) for piece in node.any_of) if p is not None]
    if not pieces or any(not p for p in pieces):
        return () if pieces else None
    if len(pieces) > 1:
        raise Bent(scope.singles(scope.outermost({a: 0 for p in pieces for _, f in p for a in f.terms})))
    left: list[Affine] = []
    for expression, form in pieces[0]:
        if len(form.terms) > 1:
            left.append(expression)
            continue
        ((axis, c),) = form.terms.items()
        trips = scope.axes[axis]
        first = max(0, -(form.base // c)) if c > 0 else 0
        last = min(trips, form.base // -c + 1) if c < 0 else trips
        raise Bent([scope.cut(axis, first, last - first)])
    return tuple(left)


def chain_of(node: For) -> list[Node] | None:
    """The unit loops and conditions down to the only statement inside; None where there is more than one."""
    found: list[Node] = [node]
    while True:
        match found[-1]:
            case For(kind="unit", body=(only,)) | If(body=(only,)):
                found.append(only)
            case Compute():
                return found
            case _:
                return None


def number(expression: Affine, scope: Scope) -> int:
    """The value of an expression whose names all stand still."""
    return scope.form(expression).base


def holds(condition: Constraint, scope: Scope) -> bool:
    value = number(condition.expr, scope)
    return value == 0 if condition.equality else value >= 0


def bounds(node: For, scope: Scope) -> tuple[int, int]:
    """First value and end of a loop. Raises `Bent` where they vary over the scope."""
    found: list[int] = []
    for expressions, combine in ((node.lower, np.maximum), (node.upper, np.minimum)):
        forms = [scope.form(e) for e in expressions]
        moving = [a for a in scope.axes if any(a in f.terms for f in forms)]
        size = int(np.prod([scope.axes[a] for a in moving], dtype=np.int64)) if moving else 1
        if size > MAX_TABLE:
            raise Bent(scope.singles(moving[0]))
        values: Ints = scope.values(forms[0], moving)
        for f in forms[1:]:
            values = combine(values, scope.values(f, moving))
        if moving and (values != values.flat[0]).any():
            whole = np.broadcast_to(values, tuple(scope.axes[a] for a in moving))
            parts = scope.runs(moving[0], whole)
            raise Bent(parts if len(parts) > 1 else scope.singles(moving[0]))
        found.append(int(values.flat[0]))
    return found[0], found[1]


def _open(piece: Sequence[Constraint], scope: Scope) -> list[tuple[Affine, Form]] | None:
    """What is left to test of a conjunction: expressions that must not be negative; None where it never holds."""
    left: list[tuple[Affine, Form]] = []
    for c in piece:
        for side in (c.expr, -c.expr) if c.equality else (c.expr,):
            form = scope.form(side)
            low, high = scope.interval(form)
            if high < 0:
                return None
            if low < 0:
                left.append((side, form))
    return left
