"""A loop tree as a module: entry functions, arguments, buffers.

The top of the tree is cut into phases (`poly.codegen.phases`), each of which becomes a function. Registers do not
outlive a phase: a register tensor above several phases with a parallel loop is refused. Buffers allocated above the
phases are shared, the others belong to one part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from poly.codegen.addresses import Indices
from poly.codegen.buffers import Buffers, Placed, bytes_of, copy_bytes, memory_map
from poly.codegen.operators import Ops
from poly.codegen.phases import Phase, Step, entry_text, loop_values, meetings, passed, phases_of, steps_of
from poly.codegen.registers import Registers
from poly.codegen.state import State
from poly.codegen.status import MOST_NUMBERED
from poly.codegen.target import Target, target_of
from poly.codegen.text import Writer, symbol
from poly.codegen.walker import Walker
from poly.errors import UnsupportedError
from poly.locks import cached_property
from poly.loops import Alloc, Compute, LoopTree
from poly.machine import Machine
from poly.program import Tensor

STACK_ALIGN = 16  # bytes, by the calling convention


@dataclass(frozen=True)
class Module:
    """IR text and how to call it.

    The function `entry` is `i64 f(ptr args, i64 part, i64 parts, ptr team)`. It is called once by each of `parts`
    threads at once, or by one with (0, 1, null), and runs the phases in order, those in a loop again and again: of a
    parallel one what it takes, of another one all where it is part 0. After a phase the parts meet: the first word at
    `team` points to a function `i64 (i64 status, i64 parts)` that gives all of them the same status, the second to
    `{i64, i64} (i64 part, i64 parts, i64 count)`, which hands out the next range of iterations. `parallel`: which
    phases are shared out.
    `args` points to 8-byte slots: a pointer for each tensor of `tensors`, each free size of `parameters`, then three
    for buffers: shared memory, private memory, and bytes of private memory for each part (all aligned to 64).
    What the tree has once for each thread lies there so, one after the other (`poly.codegen.arguments.copies_of`).
    Tensors must not overlap. The result is 0, or a status (see `poly.codegen.status`).
    """

    ir: str
    entry: str
    parallel: tuple[bool, ...]
    tensors: tuple[str, ...]
    parameters: tuple[str, ...]
    statements: tuple[str, ...]
    tree: LoopTree
    registers: frozenset[str]

    def scratch(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Bytes of shared memory, and of private memory for each part, under values of the free sizes."""
        sizes = dict(self.tree.sizes) | dict(sizes)
        above = max(sum(bytes_of(a.tensor, sizes) for a in p.shared) for p in phases_of(self._steps))
        own = [sum(bytes_of(t, sizes) for t in (*b.around, b.alloc.tensor)) for b in self._buffers]
        return above, max(own, default=0)

    def meetings(self, sizes: Mapping[str, int]) -> int:
        """How often threads meet in a call, about, under values of the free sizes."""
        return meetings(self._steps, dict(self.tree.sizes) | dict(sizes))

    @cached_property
    def _steps(self) -> tuple[Step, ...]:
        return steps_of(self.tree, self.registers)

    @cached_property
    def _buffers(self) -> tuple[Placed, ...]:
        """The private ones of all phases."""
        known = dict(self.tree.sizes)
        return tuple(b for p in phases_of(self._steps) for b in memory_map(p.nodes, known).private)


def lower(tree: LoopTree, machine: Machine, entry: str) -> Module:
    """A loop tree as a module, see `Module`. Raises `UnsupportedError` naming what has no compiled form."""
    entry = symbol(entry)
    registers = frozenset(m.name for m in machine.memories if m.kind == "register")
    allocated = {n.tensor.name: n.tensor.space for n in tree.nodes() if isinstance(n, Alloc)}
    tiles = machine.tile_spaces.intersection(allocated.values())
    inside = registers | tiles  # the memories without addresses
    steps = steps_of(tree, inside)
    phases = [*phases_of(steps)]
    outside = tuple(t for t in tree.tensors if t.name not in allocated and t.space not in inside)
    statements = tuple(dict.fromkeys(n.statement for n in tree.nodes() if isinstance(n, Compute)))
    context = _Context(tree, machine, registers, tiles, outside, statements)
    names = tuple(f"{entry}.{i}" for i in range(len(phases)))
    parts: list[str] = []
    globals_: list[str] = []
    declarations: set[str] = set()
    functions: dict[str, str] = {}
    for number, (name, phase) in enumerate(zip(names, phases, strict=True)):
        writer = Writer(f"@.fill{number}.")
        parts.append(context.function(name, phase, writer))
        globals_ += writer.globals_text()
        declarations |= writer.declarations
        functions |= writer.functions
    header = [
        f"; {symbol(tree.name)} for {machine.name}: "
        + ", ".join(f"%t{i} = {symbol(t.name)}" for i, t in enumerate(outside))
    ]
    main, declared = entry_text(entry, names, steps, tree.parameters, len(outside), dict(tree.sizes))
    text = [*header, *globals_, *parts, *functions.values(), main, *sorted(declarations | declared)]
    text += _metadata(parts, context.target)
    parallel = tuple(p.parallel for p in phases)
    tensors = tuple(t.name for t in outside)
    return Module("\n".join(text) + "\n", entry, parallel, tensors, tree.parameters, statements, tree, inside)


def _metadata(parts: Sequence[str], target: Target) -> Iterator[str]:
    """What the functions of a module refer to, and the alignment of their stack."""
    if target.x86 and target.vector > STACK_ALIGN:  # a vector that is kept there crosses no line
        yield "!llvm.module.flags = !{!1}"
        yield f'!1 = !{{i32 1, !"override-stack-alignment", i32 {target.vector}}}'
    if any("!nontemporal" in part for part in parts):
        yield "!0 = !{i32 1}"


class _Context:
    """What the functions of one module have in common."""

    def __init__(
        self,
        tree: LoopTree,
        machine: Machine,
        registers: frozenset[str],
        tiles: frozenset[str],
        outside: tuple[Tensor, ...],
        statements: tuple[str, ...],
    ) -> None:
        self.tree, self.registers, self.tiles, self.outside = tree, registers, tiles, outside
        self.target = target_of(machine)
        self.statements = {name: i for i, name in enumerate(statements)}
        self.all = {t.name: t for t in tree.tensors} | {
            n.tensor.name: n.tensor for n in tree.nodes() if isinstance(n, Alloc)
        }
        if len(statements) > MOST_NUMBERED:
            raise UnsupportedError(f"{len(statements)} statements in one loop tree", hint="split it into groups")

    def function(self, name: str, phase: Phase, writer: Writer) -> str:
        """One phase with its wrapper that takes the argument block. Where stores go past the caches it is there twice:
        for tensors anywhere, and for those aligned to vectors.
        """
        state, head = self._body(phase, writer)
        slots = [f"ptr noalias %t{i}" for i in range(len(self.outside))]
        slots += [f"i64 %n{i}" for i in range(len(self.tree.parameters))]
        slots += ["ptr noalias %shared", "ptr noalias %private", "i64 %stride"]

        def text(kind: str, lines: Sequence[str]) -> str:
            signature = f"define internal i64 @{name}.{kind}({', '.join(slots)}, {passed(phase)}) nounwind"
            return "\n".join([f"{signature} {{", "entry:", *head, *lines, "  ret i64 0", "}", ""])

        if state.tiles.told:
            writer.declare("void @llvm.x86.tilerelease()")
            writer.emit("call void @llvm.x86.tilerelease()")
        plain = text("body", [state.unaligned.get(line, line) for line in writer.lines])
        if state.streamed and self.target.x86:  # such stores keep no order until then
            writer.declare("void @llvm.x86.sse.sfence()")
            writer.emit("call void @llvm.x86.sse.sfence()")
        tested = [i for i, t in enumerate(self.outside) if t.name in state.streamed]
        aligned = text("aligned", writer.lines) if tested else ""
        given = [s.replace(" noalias", "") for s in slots]
        return plain + aligned + _wrapper(name, given, passed(phase), tested, self.target.vector)

    def _body(self, phase: Phase, writer: Writer) -> tuple[State, list[str]]:
        """One phase in the writer; gives what it was emitted with, and what stands before the writer's lines."""
        indices = Indices(writer, dict(self.tree.sizes), self.target.many_registers)
        ops = Ops(writer, self.target)
        bases = {t.name: self._base(writer, i, t) for i, t in enumerate(self.outside)}
        registers = Registers(ops)
        state = State(writer, ops, indices, registers, self.all, bases, self.registers, self.statements, self.target)
        state.tiles.spaces, state.sizes = self.tiles, dict(self.tree.sizes)
        for i, parameter in enumerate(self.tree.parameters):
            indices.values[parameter] = indices.of_value(f"%n{i}", None)
            writer.depth_of[f"%n{i}"] = 0
        loop_values(phase, indices)
        for tensor in self.all.values():
            if not tensor.scope or tensor.name in bases:
                self._strides(indices, tensor)
        sizes = dict(self.tree.sizes)
        buffers = Buffers(indices, sizes, memory_map(phase.nodes, sizes))
        for alloc in phase.shared:
            bases[alloc.tensor.name] = buffers.shared(alloc)
            self._strides(indices, alloc.tensor)
        walker = Walker(state, buffers.allocate, ("%begin", "%end") if phase.parallel else None)
        buffers.place()
        walker.nodes(phase.nodes)
        return state, [*buffers.prologue, *writer.regions[0].head]

    def _base(self, writer: Writer, position: int, tensor: Tensor) -> str:
        """The pointer of a tensor that is an argument: of what each thread has for itself, this part's."""
        if tensor.name not in self.tree.per_thread:
            return f"%t{position}"
        offset = writer.pure(f"mul i64 %part, {copy_bytes(tensor, dict(self.tree.sizes))}")
        return writer.pure(f"getelementptr i8, ptr %t{position}, i64 {offset}", offset)

    def _strides(self, indices: Indices, tensor: Tensor) -> None:
        known = set(indices.values)
        if all(e.names <= known for e in tensor.storage_shape):
            indices.set_strides(tensor.name, tensor.storage_shape)


def _wrapper(name: str, slots: Sequence[str], given: str, tested: Sequence[int], vector: int) -> str:
    """Loads the arguments and calls the body: the one for aligned tensors, where all that are `tested` are so, to a
    vector of so many bytes.
    """
    lines = [f"define internal i64 @{name}(ptr %args, {given}) nounwind {{"]
    arguments: list[str] = []
    for i, slot in enumerate(slots):
        kind = slot.split()[0]
        lines += [f"  %p{i} = getelementptr i64, ptr %args, i64 {i}", f"  %a{i} = load {kind}, ptr %p{i}, align 8"]
        arguments.append(f"{kind} %a{i}")
    given = f"{', '.join(arguments)}, {given}"
    if tested:
        lines += [f"  %i{k} = ptrtoint ptr %a{k} to i64" for k in tested]
        total = f"%i{tested[0]}"
        for k in tested[1:]:
            lines.append(f"  %o{k} = or i64 {total}, %i{k}")
            total = f"%o{k}"
        lines += [f"  %rest = and i64 {total}, {vector - 1}", "  %fits = icmp eq i64 %rest, 0"]
        lines += ["  br i1 %fits, label %past, label %usual", "past:"]
        lines += [f"  %s = call i64 @{name}.aligned({given})", "  ret i64 %s", "usual:"]
    return "\n".join([*lines, f"  %r = call i64 @{name}.body({given})", "  ret i64 %r", "}"])
