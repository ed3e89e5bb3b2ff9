"""What threads share out: the top of a loop tree cut into phases, and the function that runs them in order.

A parallel loop is a phase whose iterations threads share: each takes ranges of them as long as there are some, first of
its own even share (`poly.codegen.pool_ir`). What lies between two of them is a phase for one thread. The serial
loops around parallel ones are run by all threads, and buffers between them are shared; every phase but the last ends in
a meeting, but for one whose loop names that of the next (`nowait`). A condition is a loop that runs once or not at
all, but for alternatives and equations: what stands inside of these, of a register buffer or of any other kind of loop
is part of one phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from poly.affine import Affine
from poly.codegen.addresses import Indices, Linear
from poly.codegen.loop_ends import ends_of
from poly.codegen.team_ir import TAKE
from poly.codegen.text import Region, Writer
from poly.errors import UnsupportedError
from poly.loops import MOST_NOWAIT, Alloc, For, If, LoopTree, Node, Sync, walk


@dataclass(frozen=True)
class Phase:
    """Nodes between two meetings of all threads. `parallel`: the iterations of its one loop may be shared out.

    `loops`: the loops around that all threads run; `shared`: the buffers around, each behind the one before.
    """

    nodes: tuple[Node, ...]
    parallel: bool
    loops: tuple[For, ...] = ()
    shared: tuple[Alloc, ...] = ()

    def goes_on_to(self, following: Step | None) -> bool:
        """Whether threads need not meet before another phase: buffers that are not around both may lie in one place."""
        if not (isinstance(following, Phase) and self.parallel and following.parallel):
            return False
        (loop,), (other,) = self.nodes, following.nodes
        assert isinstance(loop, For) and isinstance(other, For)
        return loop.nowait == other.variable and self.shared == following.shared


@dataclass(frozen=True)
class Repeated:
    """A serial loop that all threads run, with what is in it."""

    loop: For
    steps: tuple[Step, ...]


Step = Phase | Repeated


def steps_of(tree: LoopTree, registers: frozenset[str]) -> tuple[Step, ...]:
    """A tree's phases in the loops that all threads run.

    Register tensors that live across phases make them one; raises `UnsupportedError` where one of those is parallel, or
    more loops are in a row without a meeting than a thread keeps its place in.
    """
    steps = _steps(tree.body, registers, (), ())
    if _longest_run(steps) > MOST_NOWAIT:
        raise UnsupportedError(
            f"more than {MOST_NOWAIT} parallel loops in a row without a meeting", where=tree.name,
            hint="leave out one `nowait` of them",
        )  # fmt: skip
    phases = [*phases_of(steps)]
    inner = {n.tensor.name for p in phases for n in walk(p.nodes) if isinstance(n, Alloc)}
    crossing = [t.name for t in tree.tensors if t.space in registers and t.name not in inner]
    if len(phases) > 1 and crossing:
        if any(p.parallel for p in phases):
            raise UnsupportedError(
                f"register tensor {crossing[0]} lives across a parallel loop", where=tree.name,
                hint="promote it inside of the loop, or leave the loop serial",
            )  # fmt: skip
        return (Phase(tree.body, False),)
    return steps or (Phase((), False),)


def phases_of(steps: Sequence[Step]) -> Iterator[Phase]:
    """All phases, in order."""
    for step in steps:
        if isinstance(step, Phase):
            yield step
        else:
            yield from phases_of(step.steps)


def _with_next(steps: Sequence[Step]) -> Iterator[tuple[Step, bool]]:
    """Each step, and whether threads go on from it to the next one without a meeting."""
    for step, following in zip_longest(steps, steps[1:]):
        yield step, isinstance(step, Phase) and step.goes_on_to(following)


def _longest_run(steps: Sequence[Step]) -> int:
    """Most phases in a row without a meeting in between."""
    most = run = 1
    for step, goes_on in _with_next(steps):
        run = run + 1 if goes_on else 1
        most = max(most, run, _longest_run(step.steps) if isinstance(step, Repeated) else 1)
    return most


def meetings(steps: Sequence[Step], sizes: Mapping[str, int]) -> int:
    """How often a phase ends, about: loops inside of others run as often as in their first iteration."""
    total = 0
    for step, goes_on in _with_next(steps):
        if isinstance(step, Phase):
            total += not goes_on
            continue
        first = max(int(e.evaluate(sizes)) for e in step.loop.lower)
        trips = -(-(min(int(e.evaluate(sizes)) for e in step.loop.upper) - first) // step.loop.step)
        total += meetings(step.steps, {**sizes, step.loop.variable: first}) * trips if trips > 0 else 0
    return total


def _steps(
    nodes: Sequence[Node], registers: frozenset[str], loops: tuple[For, ...], shared: tuple[Alloc, ...]
) -> tuple[Step, ...]:
    """Phases in order, inside `loops` that all threads walk and buffers that they share: a parallel loop is one by
    itself, and so is what lies between two.
    """
    found: list[Step] = []
    pending: list[Node] = []

    def close() -> None:
        if pending:
            found.append(Phase(tuple(pending), False, loops, shared))
            pending.clear()

    for node in nodes:
        if isinstance(node, Sync):
            close()
        elif isinstance(node, For) and node.kind == "parallel":
            close()
            found.append(Phase((node,), True, loops, shared))
        elif not _cut(node, registers):
            pending.append(node)
        elif isinstance(node, For):
            close()
            inner = _steps(node.body, registers, (*loops, node), shared)
            found += [Repeated(node, inner)] if inner else []
        elif isinstance(node, If):
            close()
            found += _steps((_once(node),), registers, loops, shared)
        elif isinstance(node, Alloc):
            close()
            found += _steps(node.body, registers, loops, (*shared, node))
    close()
    return tuple(found)


def _cut(node: Node, registers: frozenset[str]) -> bool:
    """Whether threads share out something below a node, or meet there."""
    match node:
        case For(kind="parallel") | Sync():
            return True
        case For(kind="serial", body=body):
            return any(_cut(n, registers) for n in body)
        case If(any_of=(conditions,), body=body) if not any(c.equality for c in conditions):
            return any(_cut(n, registers) for n in body)
        case Alloc(tensor, body):
            return tensor.space not in registers and any(_cut(n, registers) for n in body)
        case _:
            return False


def _once(node: If) -> For:
    """A condition as a loop that all threads run once, or not at all."""
    (conditions,) = node.any_of
    upper = (Affine((), 1), *(c.expr + 1 for c in conditions))
    return For(" and ".join(map(str, conditions)), (Affine(),), upper, node.body)


# ---- the function that runs them


def passed(phase: Phase) -> str:
    """The parameters of a phase's function behind its arguments: the part, which iterations of a parallel loop, counted
    from 0, and where the loops around are.
    """
    taken = ["i64 %begin", "i64 %end"] if phase.parallel else []
    return ", ".join(["i64 %part", *taken, *(f"i64 %l{k}" for k in range(len(phase.loops)))])


def loop_values(phase: Phase, indices: Indices) -> None:
    """Tell `indices` the loops around a phase."""
    for k, loop in enumerate(phase.loops):
        name = f"%l{k}"
        indices.writer.depth_of[name] = 0
        interval = ends_of(indices, loop).interval(indices)
        indices.set_variable(loop.variable, name, interval)


class _EntryText:
    """Text of the entry function: steps in order, the parts meeting after each phase but the last.

    Blocks of a phase `L`: `Lt` takes a range, `Lw` works, `Ld` is done; `Lm` meets, `Lc` comes from there or did not
    have to, `Lx` leaves with a status, `Lg` goes on.
    """

    def __init__(self, writer: Writer, indices: Indices, names: Sequence[str]) -> None:
        self.writer, self.indices, self.names = writer, indices, iter(names)
        self.counters: list[str] = []
        self.statuses: list[str] = []  # of phases since the last meeting

    def steps(self, steps: Sequence[Step], last: bool) -> None:
        for k, (step, goes_on) in enumerate(_with_next(steps)):
            ends = last and k == len(steps) - 1
            if isinstance(step, Phase):
                self.phase(step, ends, goes_on)
            else:
                self.repeated(step)
                if ends:
                    self.writer.emit("ret i64 0")

    def phase(self, phase: Phase, ends: bool, goes_on: bool) -> None:
        """A phase with what ends it. Threads that go on tell what they found at the next meeting."""
        writer, label = self.writer, self.writer.fresh_label()
        self.statuses.append(self._taken(phase, label) if phase.parallel else self._single(label))
        if goes_on:
            return
        status, *before = reversed(self.statuses)
        for found in before:
            status = writer.value(f"select i1 {writer.value(f'icmp eq i64 {found}, 0')}, i64 {status}, i64 {found}")
        self.statuses.clear()
        if ends:
            writer.emit(f"ret i64 {status}")
            return
        writer.emit(f"br i1 %alone, label %{label}c, label %{label}m")
        writer.label(f"{label}m")
        meet = writer.value("load ptr, ptr %team, align 8")
        agreed = writer.value(f"call i64 {meet}(i64 {status}, i64 %parts)")
        writer.emit(f"br label %{label}c")
        writer.label(f"{label}c")
        found = writer.value(f"phi i64 [{status}, %{label}d], [{agreed}, %{label}m]")
        fine = writer.value(f"icmp eq i64 {found}, 0")
        writer.emit(f"br i1 {fine}, label %{label}g, label %{label}x")
        writer.label(f"{label}x")
        writer.emit(f"ret i64 {found}")
        writer.label(f"{label}g")

    def _single(self, label: str) -> str:
        """A phase for the first part; the status."""
        writer = self.writer
        writer.emit(f"br label %{label}")
        writer.label(label)
        writer.emit(f"br i1 %first, label %{label}w, label %{label}d")
        writer.label(f"{label}w")
        result = self._call(())
        writer.emit(f"br label %{label}d")
        writer.label(f"{label}d")
        return writer.value(f"phi i64 [0, %{label}], [{result}, %{label}w]")

    def _taken(self, phase: Phase, label: str) -> str:
        """A phase whose iterations the parts take in ranges, a part that is alone all at once; the status."""
        writer, (loop,) = self.writer, phase.nodes
        assert isinstance(loop, For)
        extent = ends_of(self.indices, loop).extent(self.indices)
        count = writer.intrinsic("i64", "llvm.smax.i64", (("i64", extent), ("i64", "0")))
        writer.emit(f"br label %{label}")
        writer.label(label)
        writer.emit(f"br i1 %alone, label %{label}w, label %{label}t")
        writer.label(f"{label}t")
        at = writer.value(f"getelementptr i8, ptr %team, i64 {TAKE}")
        take = writer.value(f"load ptr, ptr {at}, align 8")
        given = f"i64 %part, i64 %parts, i64 {count}, i64 {len(self.statuses)}"
        found = writer.value(f"call {{i64, i64}} {take}({given})")
        start, stop = (writer.value(f"extractvalue {{i64, i64}} {found}, {k}") for k in (0, 1))
        some = writer.value(f"icmp ult i64 {start}, {stop}")
        writer.emit(f"br i1 {some}, label %{label}w, label %{label}d")
        writer.label(f"{label}w")
        begin = writer.value(f"phi i64 [0, %{label}], [{start}, %{label}t]")
        end = writer.value(f"phi i64 [{count}, %{label}], [{stop}, %{label}t]")
        result = self._call((begin, end))
        over = writer.value(f"or i1 %alone, {writer.value(f'icmp ne i64 {result}, 0')}")
        writer.emit(f"br i1 {over}, label %{label}d, label %{label}t")
        writer.label(f"{label}d")
        return writer.value(f"phi i64 [0, %{label}t], [{result}, %{label}w]")

    def _call(self, taken: Sequence[str]) -> str:
        given = ", ".join(["ptr %args", "i64 %part", *(f"i64 {c}" for c in (*taken, *self.counters))])
        return self.writer.value(f"call i64 @{next(self.names)}({given})")

    def repeated(self, step: Repeated) -> None:
        writer, label, loop = self.writer, self.writer.fresh_label(), step.loop
        ends = ends_of(self.indices, loop)
        first, last = ends.first(self.indices), ends.last(self.indices)
        counter, following, region = writer.name("i"), writer.name("i"), Region()
        writer.emit(f"br label %{label}p")
        writer.label(f"{label}p")
        writer.emit(f"br i1 {writer.value(f'icmp slt i64 {first}, {last}')}, label %{label}, label %{label}x")
        writer.depth_of[counter] = writer.depth + 1
        self.indices.values[loop.variable] = Linear(((counter, 1),))
        with writer.region(region) as lines:
            self.counters.append(counter)
            self.steps(step.steps, False)
            self.counters.pop()
        writer.label(label)
        writer.emit(f"{counter} = phi i64 [{first}, %{label}p], [{following}, %{label}l]")
        writer.lines += [*region.head, *lines]
        writer.latch(label, counter, following, loop.step, last)


def entry_text(
    entry: str,
    names: Sequence[str],
    steps: Sequence[Step],
    free: Sequence[str],
    tensors: int,
    sizes: Mapping[str, int],
) -> tuple[str, set[str]]:
    """The function `entry` that calls the phases `names`, see `Module`; and what it declares.

    `free`: the free sizes, whose arguments stand behind those of `tensors` tensors.

    It aligns the stack for all below, whatever its caller left.
    """
    writer = Writer("@.entry")
    indices = Indices(writer, sizes)
    for k, parameter in enumerate(free):
        at = writer.pure(f"getelementptr i64, ptr %args, i64 {tensors + k}")
        indices.values[parameter] = Linear(((writer.pure(f"load i64, ptr {at}, align 8", at), 1),))
    _EntryText(writer, indices, names).steps(steps, True)
    lines = [
        f"define i64 @{entry}(ptr %args, i64 %part, i64 %parts, ptr %team) nounwind \"stackrealign\" {{", "entry:",
        "  %alone = icmp eq i64 %parts, 1", "  %first = icmp eq i64 %part, 0",
        *writer.regions[0].head, *writer.lines, "}",
    ]  # fmt: skip
    return "\n".join(lines), writer.declarations
