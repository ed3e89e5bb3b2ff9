"""`Schedule`: a program, where each statement runs (`poly.scheduling.paths`), and the log of edits.

Edits are pure: each gives a new, checked `Schedule`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, NamedTuple, SupportsIndex

from poly.arguments import checks_kinds, shown
from poly.errors import NoSuchEdit, ScheduleError
from poly.locks import cached_property
from poly.loops import LoopKind
from poly.program import Program, Statement, program_of
from poly.scheduling.paths import Nest, TreeNode, build_tree, canonical, original_nests

if TYPE_CHECKING:
    import islpy as isl

    from poly.frontend.nest import Nest as NestFunction
    from poly.loops import LoopTree
    from poly.scheduling.arrange import Place
    from poly.scheduling.dependences import SourceFacts
    from poly.scheduling.explanation import Loops

EditValue = int | str | tuple["EditValue", ...] | tuple[tuple[str, int], ...] | None


class AskedCopy(NamedTuple):
    """What `prefetch_copy` lets a loop ask for: what the next copy into a buffer reads; `line`: elements of a line."""

    buffer: str
    line: int


class AskedBlock(NamedTuple):
    """What `prefetch_block` lets a loop ask for: what the next iteration of `along` reads of a tensor; None: what lies
    behind all that the loop reads of it. `line`: elements of a line.
    """

    tensor: str
    line: int
    along: str | None


@dataclass(frozen=True)
class Mark:
    """How a loop runs (see `poly.loops.For`, where what `asks` and `block` say are elements)."""

    kind: LoopKind = "serial"
    engine: str | None = None
    fill: str | None = None
    nontemporal: bool = False
    ahead: tuple[str, int] | None = None
    asks: AskedCopy | None = None
    block: AskedBlock | None = None
    nowait: str | None = None
    leaves: str | None = None
    ends: str | None = None


@dataclass(frozen=True)
class Edit:
    """One line of the script: a primitive's name and its arguments, which are plain values."""

    name: str
    arguments: tuple[tuple[str, object], ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.arguments if v is not None or k == 'at')})"


@dataclass(frozen=True)
class Schedule:
    """See the module text. `Schedule(program)` is the program in its own order.

    The primitives are methods (`tile`, `interchange`, `fuse`, ... see `poly.scheduling.edits`); each returns a new
    schedule or raises `IllegalEdit` with a witness, or `ScheduleError` where it does not apply.
    """

    source: Program
    program: Program = field(default=None)  # type: ignore[assignment]
    nests: Mapping[str, Nest] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict)
    log: tuple[Edit, ...] = ()
    checked: bool = field(default=True, compare=False)
    facts: SourceFacts = field(default=None, compare=False)  # type: ignore[assignment]

    if TYPE_CHECKING:

        def __init__(
            self, source: Program | NestFunction[..., object], program: Program = ..., nests: Mapping[str, Nest] = ...,
            marks: Mapping[str, Mark] = ..., log: tuple[Edit, ...] = ..., checked: bool = ..., facts: SourceFacts = ...,
        ) -> None: ...  # fmt: skip

    def __post_init__(self) -> None:
        if not isinstance(self.source, Schedule):
            object.__setattr__(self, "source", program_of(self.source) or self.source)
        for program in (self.source, self.source if self.program is None else self.program):  # type: ignore
            if not isinstance(program, Program):  # pyright: ignore[reportUnnecessaryIsInstance]
                hint = "Schedule(poly.parse(...)), or of a nest"
                raise ScheduleError(f"a schedule is of a program; this is {shown(program)}", hint=hint)
        if not isinstance(self.nests, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ScheduleError(f"nests is {shown(self.nests)}", hint="edits make them: Schedule(program).tile(i=8)")
        if self.program is None:  # type: ignore[comparison-overlap]
            object.__setattr__(self, "program", self.source)
        if not self.nests:
            object.__setattr__(self, "nests", canonical(original_nests(self.program)))
        if self.facts is None:  # type: ignore[comparison-overlap]
            from poly.scheduling.dependences import SourceFacts

            object.__setattr__(self, "facts", SourceFacts(self.source))

    @staticmethod
    @checks_kinds(ScheduleError)
    def parse(text: str) -> Schedule:
        """The schedule that `str(schedule)` describes: its program, with its script replayed and its tree compared.

        Raises `ParseError`, and what the edits raise. Whether every access of the program is in bounds is proven on the
        loops: `lower`, and so `compile`, refuses what leaves its tensor.
        """
        from poly.scheduling.schedule_text import parse_schedule

        return parse_schedule(text)

    @cached_property
    def tree(self) -> TreeNode:
        """The paths as a tree; raises `ScheduleError` where they do not form one."""
        return build_tree({name: nest.path for name, nest in self.nests.items()})

    @cached_property
    def loop_statements(self) -> Mapping[str, tuple[str, ...]]:
        """For every loop, outermost and first ones first, the statements under it in program order."""
        found: dict[str, list[str]] = {}
        for statement in sorted(self.nests, key=lambda name: self.nests[name].path):  # canonical paths: tree order
            for loop in self.nests[statement].names:
                found.setdefault(loop, []).append(statement)
        return {loop: tuple(names) for loop, names in found.items()}

    @checks_kinds(ScheduleError)
    def under(self, loop: str) -> tuple[str, ...]:
        """The statements under a loop. Raises `ScheduleError` where there is no such loop."""
        found = [name for name, nest in self.nests.items() if loop in nest.loops]
        if not found:
            named = self.loop_statements
            meant = [name for name in named if name.endswith(f".{loop}") or name in (f"{loop}.o", f"{loop}.p")]
            hint = " or ".join(meant) if meant else f"loops: {', '.join(self.loop_statements)}"
            raise ScheduleError(f"no loop {loop!r}", where=self.source.name, hint=hint)
        return tuple(sorted(found, key=lambda name: self.nests[name].path) if len(found) > 1 else found)

    @checks_kinds(ScheduleError)
    def outer(self, loop: str) -> tuple[str, ...]:
        """The loops around a loop, and it, outermost first."""
        names = self.nests[self.under(loop)[0]].names
        return names[: names.index(loop) + 1]

    @cached_property
    def loops(self) -> Loops:
        """Every loop in the order of the tree: name, depth, how it runs, how many values it takes, statements."""
        from poly.scheduling.explanation import Loops, loop_facts

        return Loops(loop_facts(self, self.tree))

    @checks_kinds(ScheduleError)
    def carried(self, loop: str) -> tuple[str, ...]:
        """What a loop carries from one iteration to another, so that it cannot be parallel: each time the tensor and
        one pair of instances. Empty where it can be.
        """
        from poly.scheduling.legality import carried
        from poly.sets import witness

        pairs = [(tensor, *witness(p, (a.iterators, b.iterators))) for a, b, tensor, p in carried(self, loop)]
        return tuple(dict.fromkeys(f"{tensor}: {first} -> {second}" for tensor, first, second in pairs))

    @checks_kinds(ScheduleError)
    def kind(self, loop: str) -> LoopKind:
        return self.marks.get(loop, Mark()).kind

    @checks_kinds(ScheduleError)
    def statement(self, name: str) -> Statement:
        """A statement of the current program. Raises `ScheduleError` where there is none."""
        if name not in self.program.statement:
            known = ", ".join(self.program.statement)
            raise ScheduleError(f"no statement {name!r}", where=self.source.name, hint=f"statements: {known}")
        return self.program.statement[name]

    def with_nests(self, nests: Mapping[str, Nest], **changes: object) -> Schedule:
        """A copy with other nests, paths made canonical; keeps the log and does not check."""
        return changed(self, nests=canonical(nests), **changes)

    def lower(self) -> LoopTree:
        """The loops (see `poly.scheduling.lowering`)."""
        from poly.scheduling.lowering import lower

        return lower(self)

    def isl_tree(self) -> isl.Schedule:
        """The same tree as isl's, for its tools and for pictures."""
        from poly.scheduling.isl_tree import isl_schedule

        return isl_schedule(self)

    def check(self) -> None:
        """Check everything again; raises `IllegalEdit` with a witness (see `poly.scheduling.legality`)."""
        from poly.scheduling.legality import check

        check(self)

    @property
    def script(self) -> str:
        """The edits, one a line; `replay` on the source program gives this schedule."""
        return "\n".join(str(edit) for edit in self.log)

    def __str__(self) -> str:
        from poly.scheduling.schedule_text import print_schedule

        return print_schedule(self)

    def __repr__(self) -> str:
        from poly.document import counted

        parts = ((len(self.nests), "statement"), (len(self.loop_statements), "loop"), (len(self.log), "edit"))
        return f"<Schedule {self.source.name}: {', '.join(counted(n, noun) for n, noun in parts)}>"

    def _repr_html_(self) -> str:
        from poly.pictures import schedule_html

        return schedule_html(self)

    def __reduce__(self) -> tuple[object, ...]:
        """Without what is derived: isl's relations cannot all be pickled."""
        return Schedule, (self.source, self.program, self.nests, self.marks, self.log, self.checked)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if hasattr(type(self), name):  # a property that failed: its own error
                return object.__getattribute__(self, name)
            from difflib import get_close_matches

            known = [n for n in dir(type(self)) if not n.startswith("_")]
            near = get_close_matches(name, known, 1, 0.7)
            near = ["poly.explain(program).dependences"] if name == "dependences" else near
            raise NoSuchEdit(f"a schedule has no {name!r}", hint=near[0] if near else f"one of {', '.join(known)}")

    # The primitives, so that they chain. Their meaning and checks are in the modules they come from.

    @checks_kinds(ScheduleError, hint='tile({"i": 4, "j": 8}), or tile(i=4, j=8)')
    def tile(self, sizes: Mapping[str, SupportsIndex] | None = None, **named: SupportsIndex) -> Schedule:
        """Cut a band's loops into tiles: i becomes i.o over tiles, i.p inside. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.edits import tile

        return tile(self, {loop: int(size) for loop, size in {**(sizes or {}), **named}.items()})

    @checks_kinds(ScheduleError)
    def interchange(self, first: str, second: str) -> Schedule:
        """Swap two loops of one band. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.edits import interchange

        return interchange(self, first, second)

    @checks_kinds(ScheduleError)
    def reorder(self, *loops: str) -> Schedule:
        """Put the loops of one band in the order given, outermost first. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.edits import reorder

        return reorder(self, loops)

    @checks_kinds(ScheduleError)
    def fuse(self, first: str, second: str) -> Schedule:
        """Make two loops of one sequence one loop. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.edits import fuse

        return fuse(self, first, second)

    @checks_kinds(ScheduleError)
    def distribute(self, loop: str, at: SupportsIndex = 1) -> Schedule:
        """Cut a loop in two: the first `at` things inside, the rest in loop.2. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.edits import distribute

        return distribute(self, loop, int(at))

    @checks_kinds(ScheduleError)
    def shift(self, statement: str, loop: str, by: SupportsIndex) -> Schedule:
        """Run a statement `by` iterations of a loop later. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.edits import shift

        return shift(self, statement, loop, int(by))

    @checks_kinds(ScheduleError)
    def skew(self, loop: str, by: str, factor: SupportsIndex = 1) -> Schedule:
        """Add `factor` times the outer loop `by` to a loop (time skewing). Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.edits import skew

        return skew(self, loop, by, int(factor))

    @checks_kinds(ScheduleError)
    def split(self, loop: str, at: SupportsIndex | str) -> Schedule:
        """Cut a loop's range at `at`: S_lo in loop.lo, then S_hi in loop.hi. Raises IllegalEdit/ScheduleError.

        `at`: a number or a quasi-affine expression of loops around it and sizes, such as "8*(i//8)"; S_lo has what lies
        below. Or a condition on these, such as "M >= 24": S_lo has all iterations where it holds, S_hi the others.
        """
        from poly.scheduling.splitting import split

        return split(self, loop, at if isinstance(at, str) else int(at))

    @checks_kinds(ScheduleError)
    def unroll(self, loop: str) -> Schedule:
        """Run a loop as literal copies of its body. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.marks import unroll

        return unroll(self, loop)

    @checks_kinds(ScheduleError)
    def vectorise(self, loop: str) -> Schedule:
        """Run an innermost loop that carries nothing as the lanes of one vector. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.marks import vectorise

        return vectorise(self, loop)

    @checks_kinds(ScheduleError)
    def nontemporal(self, loop: str) -> Schedule:
        """Let a vector loop store past the caches, to tensors not soon read, or a unit loop's command load what
        need not stay in the first one. Raises ScheduleError.
        """
        from poly.scheduling.marks import nontemporal

        return nontemporal(self, loop)

    @checks_kinds(ScheduleError)
    def prefetch(self, loop: str, along: str, ahead: SupportsIndex = 1) -> Schedule:
        """Let a vector loop ask for what it touches `ahead` iterations of loop `along` later. Raises ScheduleError."""
        from poly.scheduling.marks import prefetch

        return prefetch(self, loop, along, int(ahead))

    @checks_kinds(ScheduleError)
    def prefetch_copy(self, loop: str, buffer: str, line: SupportsIndex) -> Schedule:
        """Let a serial loop ask for its share of the lines that the next copy into a buffer reads.

        Raises ScheduleError.
        """
        from poly.scheduling.asked_copies import prefetch_copy

        return prefetch_copy(self, loop, buffer, int(line))

    @checks_kinds(ScheduleError)
    def prefetch_block(self, loop: str, tensor: str, line: SupportsIndex, along: str | None = None) -> Schedule:
        """Let a serial loop ask for its share of the lines that the next iteration of `along` reads of a whole tensor.

        `along`: None for what lies behind all that is read. Raises ScheduleError.
        """
        from poly.scheduling.asked_blocks import prefetch_block

        return prefetch_block(self, loop, tensor, int(line), along)

    @checks_kinds(ScheduleError)
    def parallelise(self, loop: str) -> Schedule:
        """Run a loop that carries nothing, reductions included, over threads. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.marks import parallelise

        return parallelise(self, loop)

    @checks_kinds(ScheduleError)
    def nowait(self, loop: str, following: str) -> Schedule:
        """Let threads go from a parallel loop to the next without a meeting. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.marks import nowait

        return nowait(self, loop, following)

    @checks_kinds(ScheduleError)
    def leave(self, loop: str, statement: str) -> Schedule:
        """Let a serial loop end after an iteration in which a statement in it writes false. Raises ScheduleError."""
        from poly.scheduling.marks import leave

        return leave(self, loop, statement)

    @checks_kinds(ScheduleError)
    def shorten(self, loop: str, at: str) -> Schedule:
        """Let a serial loop end before `at`, of loops around it: what is left changes nothing that is wanted.

        Raises IllegalEdit/ScheduleError.
        """
        from poly.scheduling.shortening import shorten

        return shorten(self, loop, at)

    @checks_kinds(ScheduleError)
    def tensorise(
        self, loops: Sequence[str], engine: str, *, statement: str | None = None, fill: str | None = None
    ) -> Schedule:
        """Give innermost loops around one statement to one command of an engine. Raises IllegalEdit/ScheduleError.

        `statement`: instead of loops, where each instance is a command of its own: it gets a loop of one iteration,
        S.once. `fill`: the engine that writes what is padding only, where the engine is a DMA.
        """
        from poly.scheduling.marks import tensorise

        return tensorise(self, tuple(loops), engine, statement, fill)

    @checks_kinds(ScheduleError)
    def promote(
        self,
        tensor: str,
        at: str | None,
        space: str,
        *,
        name: str | None = None,
        users: Sequence[str] | None = None,
        order: Sequence[int] | None = None,
        pad: bool = False,
        fold: Mapping[int, int] | None = None,
        block: Mapping[int, int] | None = None,
        reads: Sequence[int] | None = None,
    ) -> Schedule:
        """Keep what an iteration of loop `at` uses of a tensor in memory `space`. Raises IllegalEdit/ScheduleError.

        `space`: any name; compiling for a target refuses those that it does not have.
        `at`: None for the whole tensor, once. `name`: of the buffer. `users`: the statements that see the buffer
        (default: all under `at` that touch the tensor). `order`: the buffer's axes from slow to fast. `pad`: the buffer
        also holds the padding of guarded reads. `fold`: {axis: n}, every n-th element of the axis lies together, so
        that a walk with step n is contiguous. `block`: {axis: n}, the axis is cut into blocks of n elements, which vary
        fastest of all, so that a tile is one piece of memory. `reads`: the positions among the users' reads that see
        the buffer, where not all that they do with the tensor goes through it.

        A schedule is of no machine yet: compiling refuses a `space` that the machine does not have, and names its own.
        """
        from poly.scheduling.promotion import promote

        return promote(
            self, tensor, at, space, name=name, users=users, order=order, pad=pad, fold=fold, block=block, reads=reads
        )

    @checks_kinds(ScheduleError)
    def recompute(self, tensor: str, at: str, space: str = "dram", *, name: str | None = None) -> Schedule:
        """Compute a tensor's part anew in each iteration of loop `at`. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.recompute import recompute

        return recompute(self, tensor, at, space, name=name)

    @checks_kinds(ScheduleError)
    def inline(self, copy: str) -> Schedule:
        """Let a copy into a buffer make what it copies itself. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.inlining import inline

        return inline(self, copy)

    @checks_kinds(ScheduleError)
    def overlay(self, tensor: str, inside: str) -> Schedule:
        """Keep a temporary in the memory of another tensor of its form. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.overlay import overlay

        return overlay(self, tensor, inside)

    @checks_kinds(ScheduleError)
    def rfactor(self, statement: str, loop: str, *, at: str | None = None, name: str | None = None) -> Schedule:
        """Let a reduction have partial results, one for every value of a loop. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.rfactor import rfactor

        return rfactor(self, statement, loop, at=at, name=name)

    @checks_kinds(ScheduleError)
    def double_buffer(self, tensor: str, loop: str, depth: SupportsIndex = 2) -> Schedule:
        """Let a promoted tensor rotate over `depth` slots, loaded ahead. Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.buffering import double_buffer

        return double_buffer(self, tensor, loop, int(depth))

    @checks_kinds(ScheduleError)
    def repeat(self, size: str, edits: Sequence[str]) -> Schedule:
        """Edit the program of one item, and repeat it for all, of which there are `size`. Raises as the edits do.

        Items are slices along a free first axis, each computed by itself; `edits` are lines of a script.
        """
        from poly.scheduling.items import repeat

        return repeat(self, size, edits)

    @checks_kinds(ScheduleError)
    def arrange(self, nests: Sequence[Place]) -> Schedule:
        """Give statements other nests: (statement, path, ((loop, value), ...)). Raises IllegalEdit/ScheduleError."""
        from poly.scheduling.arrange import arrange

        return arrange(self, nests)


def changed(schedule: Schedule, /, **changes: object) -> Schedule:
    """`dataclasses.replace` by what primitives have made, which is not looked at again."""
    found, own = object.__new__(Schedule), schedule.__dict__
    found.__dict__.update({name: own[name] for name in _FIELDS}, **changes)
    return found



_FIELDS: Final = tuple(f.name for f in fields(Schedule))
