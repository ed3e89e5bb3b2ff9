"""Seeded mutants of legal schedules: one random edit of every primitive, and direct corruptions of every kind.

A `Mutant` is a schedule that has not been checked; whether it is legal is for the oracle and the checker to say. None
is its base again. The seed is `POLYLOOM_SEED`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count as numbers
from itertools import pairwise
from typing import Final

import islpy as isl

from poly.affine import Affine, Mod, var
from poly.errors import ScheduleError, UnsupportedError
from poly.program import Access, PathStep, Program, Statement
from poly.scheduling.edits import unchecked
from poly.scheduling.paths import Band, Leaf, Nest, Ordered, TreeNode, canonical, paths_of, statements_of
from poly.scheduling.schedule import Mark, Schedule
from tests.mutation_programs import NAMES
from tests.mutation_programs import program as program_of

SEED: Final = int(os.environ.get("POLYLOOM_SEED", "20240607"))
Change = Callable[[random.Random, Schedule], tuple[str, Schedule]]


class NoSuchMutant(Exception):
    """A schedule has nothing that a kind of mutation could change."""


@dataclass(frozen=True)
class Mutant:
    """`base` is legal, `schedule` the same with one unchecked change. `edit`: that change by the checked primitive."""

    kind: str
    program: str
    description: str
    base: Schedule
    schedule: Schedule
    edit: Callable[[], Schedule] | None = None

    def __str__(self) -> str:
        return f"{self.kind} of {self.program}: {self.description}\nafter:\n{self.base.script}"


# ---- random edits


def some(rng: random.Random, options: Sequence[object]) -> object:
    if not options:
        raise NoSuchMutant
    return options[rng.randrange(len(options))]


def pick(rng: random.Random, options: Sequence[str]) -> str:
    return str(some(rng, options))


def loops_of(schedule: Schedule) -> list[str]:
    return list(schedule.loop_statements)


def band_from(rng: random.Random, schedule: Schedule) -> list[str]:
    """Some loops that follow one another directly."""
    path = schedule.nests[pick(rng, list(schedule.nests))].path
    runs: list[list[str]] = [[]]
    for step in path:
        runs[-1].append(step) if isinstance(step, str) else runs.append([])
    run = some(rng, [r for r in runs if r])
    assert isinstance(run, list)
    start = rng.randrange(len(run) - 1) if len(run) > 1 and rng.random() < 0.7 else rng.randrange(len(run))
    return run[start : start + rng.randint(1, 3)]


def random_tile(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    return "tile", ({loop: rng.randint(2, 4) for loop in band_from(rng, schedule)},)


def random_interchange(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    path = schedule.nests[pick(rng, list(schedule.nests))].path
    pairs = [(a, b) for a, b in zip(path, path[1:], strict=False) if isinstance(a, str) and isinstance(b, str)]
    triples = zip(path, path[1:], path[2:], strict=False)
    pairs += [(a, c) for a, b, c in triples if isinstance(a, str) and isinstance(b, str) and isinstance(c, str)]
    pair = some(rng, pairs)
    assert isinstance(pair, tuple)
    return "interchange", pair


def sequences(node: TreeNode) -> Iterator[Ordered]:
    """The sequences of a tree."""
    match node:
        case Ordered(children):
            yield node
            for child in children:
                yield from sequences(child)
        case Band(_, child):
            yield from sequences(child)
        case Leaf():
            pass


def random_fuse(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    pairs = [
        (a.loop, b.loop)
        for sequence in sequences(schedule.tree)
        for k, a in enumerate(sequence.children)
        for b in sequence.children[k + 1 : k + 3]
        if isinstance(a, Band) and isinstance(b, Band)
    ]  # fmt: skip
    pair = some(rng, pairs)
    assert isinstance(pair, tuple)
    return "fuse", pair


def random_distribute(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    shared = [loop for loop, names in schedule.loop_statements.items() if len(names) > 1]
    return "distribute", (pick(rng, shared), rng.randint(1, 2))


def random_shift(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    statement = pick(rng, [s for s, nest in schedule.nests.items() if nest.names])
    return "shift", (statement, pick(rng, schedule.nests[statement].names), rng.choice([-2, -1, 1, 2]))


def random_skew(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    nests = [nest.names for nest in schedule.nests.values() if len(nest.names) > 1]
    names = some(rng, nests)
    assert isinstance(names, tuple)
    k = rng.randrange(1, len(names))
    return "skew", (names[k], names[rng.randrange(k)], rng.choice([-1, 1, 1, 2]))


def random_split(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    return "split", (pick(rng, loops_of(schedule)), rng.randint(1, 4))


def random_unroll(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    return "unroll", (pick(rng, loops_of(schedule)),)


def random_vectorise(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    innermost = [nest.names[-1] for nest in schedule.nests.values() if nest.names]
    return "vectorise", (pick(rng, innermost),)


def random_nontemporal(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    return "nontemporal", (pick(rng, [loop for loop in loops_of(schedule) if schedule.kind(loop) == "vector"]),)


def random_prefetch(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    loop = pick(rng, [loop for loop in loops_of(schedule) if schedule.kind(loop) == "vector"])
    return "prefetch", (loop, pick(rng, list(schedule.outer(loop))), rng.randint(1, 2))


def random_prefetch_copy(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    tensor = some(rng, [t for t in schedule.program.tensors if t.scope])
    loop = pick(rng, [loop for loop in loops_of(schedule) if schedule.kind(loop) == "serial"])
    return "prefetch_copy", (loop, tensor.name, rng.randint(1, 8))  # type: ignore[attr-defined]


def random_prefetch_block(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    loop = pick(rng, [loop for loop in loops_of(schedule) if schedule.kind(loop) == "serial"])
    tensor = pick(rng, [t.name for t in schedule.program.tensors if not t.scope])
    along = pick(rng, ["", *schedule.outer(loop)]) or None
    return "prefetch_block", (loop, tensor, rng.randint(1, 8), along)


def random_parallelise(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    return "parallelise", (pick(rng, loops_of(schedule)),)


def random_nowait(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    pairs = [
        (a.loop, b.loop)
        for sequence in sequences(schedule.tree)
        for a, b in pairwise(sequence.children)
        if isinstance(a, Band) and isinstance(b, Band) and {schedule.kind(c.loop) for c in (a, b)} == {"parallel"}
    ]  # fmt: skip
    pair = some(rng, pairs)
    assert isinstance(pair, tuple)
    return "nowait", pair


def random_tensorise(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    names = schedule.nests[pick(rng, [s for s, nest in schedule.nests.items() if nest.names])].names
    return "tensorise", (names[-rng.randint(1, len(names)) :], "mm")


def random_promote(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    statement = schedule.program.statement[pick(rng, list(schedule.nests))]
    names = schedule.nests[statement.name].names
    at = None if rng.random() < 0.1 or not names else pick(rng, names)
    tensor = pick(rng, [a.tensor for a, _ in statement.accesses])
    options: dict[str, object] = {}
    users = [s for s in (schedule.nests if at is None else schedule.under(at))
             if any(a.tensor == tensor for a, _ in schedule.program.statement[s].accesses)]  # fmt: skip
    if len(users) > 1 and rng.random() < 0.3:
        options["users"] = tuple(rng.sample(users, rng.randint(1, len(users) - 1)))
    rank = schedule.program.tensor[tensor].rank
    if rank > 1 and rng.random() < 0.2:
        options["order"] = tuple(rng.sample(range(rank), rank))
    if rng.random() < 0.2:
        options["pad"] = True
    again = [k for k, r in enumerate(statement.reads) if r.tensor == tensor]
    if len(again) > 1 and rng.random() < 0.5:
        options["reads"] = tuple(rng.sample(again, rng.randint(1, len(again) - 1)))
    return "promote", (tensor, at, "l2", options)


def random_recompute(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    written = {s.write.tensor for s in schedule.program.statements}
    pairs = [
        (read.tensor, loop)
        for s in schedule.program.statements
        for read in s.reads
        for loop in schedule.nests[s.name].names
        if read.tensor in written
    ]  # fmt: skip
    pair = some(rng, pairs)
    assert isinstance(pair, tuple)
    return "recompute", pair


def random_inline(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    return "inline", (pick(rng, [s.name for s in copies_of(schedule) if s.tile_rank]),)


def random_double_buffer(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    tensor = some(rng, [t for t in schedule.program.tensors if t.scope])
    return "double_buffer", (tensor.name, tensor.scope[-1], rng.choice([2, 2, 3]))  # type: ignore[attr-defined]


def random_rfactor(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    reductions = [s.name for s in schedule.program.statements if s.combiner and schedule.nests[s.name].names]
    statement = pick(rng, reductions)
    names = schedule.nests[statement].names
    loop = rng.randrange(len(names))
    options: dict[str, object] = {}
    if rng.random() < 0.5:
        options["at"] = rng.choice(("", *names[: loop + 1]))
    return "rfactor", (statement, names[loop], options)


def random_overlay(rng: random.Random, schedule: Schedule) -> tuple[str, tuple[object, ...]]:
    tensors = schedule.program.tensors
    pairs = [
        (a.name, b.name) for a in tensors for b in tensors
        if a.role == "temporary" and not a.origin and a is not b and a.shape == b.shape
    ]  # fmt: skip
    pair = some(rng, pairs)
    assert isinstance(pair, tuple)
    return "overlay", pair


PRIMITIVES: Final[Mapping[str, Callable[[random.Random, Schedule], tuple[str, tuple[object, ...]]]]] = {
    "tile": random_tile, "interchange": random_interchange, "fuse": random_fuse, "distribute": random_distribute,
    "shift": random_shift, "skew": random_skew, "split": random_split, "unroll": random_unroll,
    "vectorise": random_vectorise, "nontemporal": random_nontemporal, "prefetch": random_prefetch,
    "prefetch_copy": random_prefetch_copy, "prefetch_block": random_prefetch_block, "parallelise": random_parallelise,
    "nowait": random_nowait, "tensorise": random_tensorise,
    "promote": random_promote, "recompute": random_recompute, "inline": random_inline,
    "double_buffer": random_double_buffer, "rfactor": random_rfactor, "overlay": random_overlay,
}  # fmt: skip


def applied(schedule: Schedule, name: str, arguments: tuple[object, ...]) -> Schedule:
    """An edit by the method of its name; a last dict of `promote` and `rfactor` is its keywords."""
    keywords: dict[str, object] = {}
    if name in ("promote", "rfactor"):
        *positional, options = arguments
        assert isinstance(options, dict)
        arguments, keywords = tuple(positional), options
    return getattr(schedule, name)(*arguments, **keywords)


def random_legal(rng: random.Random, start: Schedule, edits: int, kinds: Sequence[str]) -> Schedule:
    """A schedule after some random edits that the checker accepts."""
    schedule = start
    for _ in range(edits):
        try:
            schedule = applied(schedule, *PRIMITIVES[rng.choice(list(kinds))](rng, schedule))
        except (NoSuchMutant, ScheduleError, UnsupportedError):
            continue
    return schedule


MOVES: Final = ("tile", "tile", "interchange", "fuse", "distribute", "shift", "skew", "split", "parallelise", "unroll")
ANY: Final = (*MOVES, "promote", "promote", "recompute", "double_buffer", "rfactor")


def base_for(rng: random.Random, kind: str, start: Schedule) -> Schedule:
    """A legal schedule that a kind of mutation is likely to have something to work on in."""
    if kind in ("double_buffer", "prefetch_copy", "early_reuse", "missing_copy", "short_halo"):
        schedule = random_legal(rng, start, rng.randint(0, 2), ("tile", "tile", "interchange", "fuse"))
        for _ in range(4):
            kinds = ("promote", "promote", "rfactor", "recompute") if kind == "short_halo" else ("promote", "rfactor")
            schedule = random_legal(rng, schedule, 1, kinds)
        if kind == "early_reuse":
            schedule = random_legal(rng, schedule, 3, ("double_buffer",))
        return schedule
    if kind == "inline":
        return random_legal(rng, start, rng.randint(2, 7), ("tile", "promote", "promote", "fuse", "interchange"))
    if kind == "nowait":
        schedule = random_legal(rng, start, rng.randint(0, 3), ("split", "split", "distribute", "promote", "tile"))
        return random_legal(rng, schedule, 8, ("parallelise", "parallelise", "parallelise", "nowait"))
    if kind in ("nontemporal", "prefetch"):
        schedule = random_legal(rng, start, rng.randint(0, 2), ("tile", "interchange", "split"))
        return random_legal(rng, schedule, 6, ("vectorise",))
    if kind in ("distribute", "recompute"):
        return random_legal(rng, start, rng.randint(0, 3), ("fuse", "fuse", "tile", "interchange", "promote"))
    return random_legal(rng, start, rng.randint(0, 4), ANY)


# ---- corruptions


def swap_children(rng: random.Random, schedule: Schedule) -> tuple[str, Schedule]:
    """Two things of one sequence change places."""
    found = [s for s in sequences(schedule.tree) if len(s.children) > 1]
    sequence = some(rng, found)
    assert isinstance(sequence, Ordered)
    k = rng.randrange(len(sequence.children) - 1)

    def swapped(node: TreeNode) -> TreeNode:
        if node is sequence:
            children = list(sequence.children)
            children[k], children[k + 1] = children[k + 1], children[k]
            return Ordered(tuple(children))
        match node:
            case Ordered(children):
                return Ordered(tuple(swapped(c) for c in children))
            case Band(loop, child):
                return Band(loop, swapped(child))
            case Leaf():
                return node

    paths = paths_of(swapped(schedule.tree))
    nests = {name: Nest(nest.loops, paths[name]) for name, nest in schedule.nests.items()}
    what = [statements_of(c)[0] for c in sequence.children[k : k + 2]]
    return f"{what[1]} before {what[0]}", schedule.with_nests(nests)


def swap_loops(rng: random.Random, schedule: Schedule) -> tuple[str, Schedule]:
    """Two loops of a band change places."""
    first, second = (str(loop) for loop in random_interchange(rng, schedule)[1])
    swap: dict[PathStep, PathStep] = {first: second, second: first}
    nests = {
        name: Nest(nest.loops, tuple(swap.get(s, s) for s in nest.path)) if {first, second} <= {*nest.path} else nest
        for name, nest in schedule.nests.items()
    }
    return f"{first} and {second} swapped", schedule.with_nests(nests)


def reverse_loop(rng: random.Random, schedule: Schedule) -> tuple[str, Schedule]:
    """A loop runs backwards."""
    loop = pick(rng, loops_of(schedule))
    nests = {
        name: Nest({**nest.loops, loop: -nest.loops[loop]}, nest.path) if loop in nest.loops else nest
        for name, nest in schedule.nests.items()
    }
    _unscoped(schedule, loop)
    return f"{loop} backwards", schedule.with_nests(nests)


def _unscoped(schedule: Schedule, loop: str) -> None:
    if any(loop in t.scope for t in schedule.program.tensors):
        raise NoSuchMutant


def move_statement(rng: random.Random, schedule: Schedule) -> tuple[str, Schedule]:
    """A statement runs some iterations earlier or later."""
    name, (statement, loop, by) = random_shift(rng, schedule)
    _unscoped(schedule, str(loop))
    nest = schedule.nests[str(statement)]
    moved = Nest({**nest.loops, str(loop): nest.loops[str(loop)] + int(str(by))}, nest.path)
    return f"{name} {statement} in {loop} by {by}", schedule.with_nests({**schedule.nests, str(statement): moved})


def wrong_order(rng: random.Random, schedule: Schedule) -> tuple[str, Schedule]:
    return rng.choice([swap_children, swap_children, swap_loops, reverse_loop, move_statement])(rng, schedule)


def copies_of(schedule: Schedule) -> list[Statement]:
    return [s for s in schedule.program.statements if s.copies]


def missing_copy(rng: random.Random, schedule: Schedule) -> tuple[str, Schedule]:
    """A copy, or a statement of partial results, is forgotten."""
    copy = some(rng, [s for s in schedule.program.statements if s.copies or s.partial])
    assert isinstance(copy, Statement)
    rest = tuple(s for s in schedule.program.statements if s is not copy)
    nests = {n: nest for n, nest in schedule.nests.items() if n != copy.name}
    program = replace(schedule.program, statements=rest)
    return f"no {copy.name}", replace(schedule, program=program, nests=canonical(nests))


def with_statement(schedule: Schedule, s: Statement) -> Schedule:
    """Another statement in the place of the one of its name."""
    statements = tuple(s if old.name == s.name else old for old in schedule.program.statements)
    return replace(schedule, program=replace(schedule.program, statements=statements))


def moved_domain(s: Statement, iterator: str, by: int) -> isl.Set:
    """The domain with one iterator larger by a number."""
    k = s.iterators.index(iterator)
    labels = ", ".join(f"i{d}" for d in range(len(s.iterators)))
    image = ", ".join(f"i{d} + {by}" if d == k else f"i{d}" for d in range(len(s.iterators)))
    moved = s.domain.apply(isl.Map(f"{{ {s.name}[{labels}] -> {s.name}[{image}] }}"))
    for d, name in enumerate(s.iterators):
        moved = moved.set_dim_name(isl.dim_type.set, d, name)
    return moved


def short_halo(rng: random.Random, schedule: Schedule) -> tuple[str, Schedule]:
    """A copy, a recomputation or a clear or merge is one short or one off; or one takes the element beside."""
    derived = [s for s in schedule.program.statements if s.copies or s.recomputed or s.partial]
    found = [s for s in derived if len(s.iterators) > s.tile_rank]
    s = some(rng, found)
    assert isinstance(s, Statement)
    iterator, by = pick(rng, s.iterators[s.tile_rank :]), rng.choice([-1, 1])
    how = rng.choice(["short", "short", "off"]) if s.recomputed else rng.choice(["short", "short", "off", "beside"])
    match how:
        case "short":
            changed = replace(s, domain=s.domain.intersect(moved_domain(s, iterator, by)).coalesce())
        case "off":
            changed = replace(s, domain=moved_domain(s, iterator, by))
        case _:
            changed = replace(s, reads=tuple(r.substitute({iterator: var(iterator) + by}) for r in s.reads))
    return f"{s.name} is {how} by one in {iterator}, {by}", with_statement(schedule, changed)


def fewer_slots(expression: Affine, depth: int) -> Affine:
    """Remainders by `depth` become remainders by one less."""
    result = Affine((), expression.constant)
    for atom, c in expression.terms:
        if isinstance(atom, Mod) and atom.divisor == depth:
            result = result + atom.argument % (depth - 1) * c
        else:
            result = result + Affine(((atom, c),))
    return result


def early_reuse(rng: random.Random, schedule: Schedule) -> tuple[str, Schedule]:
    """A buffer has a slot too few, or is loaded an iteration too early."""
    rotating = {str(dict(e.arguments)["tensor"]): e for e in schedule.log if e.name == "double_buffer"}
    tensors = schedule.program.tensor
    loads = [s for s in copies_of(schedule) if tensors[s.write.tensor].origin == s.copies or s.write.tensor in rotating]
    load = some(rng, loads)
    assert isinstance(load, Statement)
    tensor = load.write.tensor
    if tensor in rotating and rng.random() < 0.5:
        depth = int(str(dict(rotating[tensor].arguments)["depth"]))

        def reuse(access: Access) -> Access:
            if access.tensor != tensor:
                return access
            slot = access.affine_index[0]
            return replace(access, index=(fewer_slots(slot, depth), *access.index[1:]))

        old = schedule.program
        statements = tuple(replace(s, write=reuse(s.write), reads=tuple(map(reuse, s.reads))) for s in old.statements)
        return f"{tensor} in {depth - 1} slots", replace(schedule, program=replace(old, statements=statements))
    names = schedule.nests[load.name].names[: load.tile_rank]
    loop, by = pick(rng, names), rng.choice([1, 1, 2])
    nest = schedule.nests[load.name]
    nests = {**schedule.nests, load.name: Nest({**nest.loops, loop: nest.loops[loop] - by}, nest.path)}
    return f"{load.name} runs {by} earlier in {loop}", schedule.with_nests(nests)


def marked(schedule: Schedule, loop: str, kind: str) -> Schedule:
    return replace(schedule, marks={**schedule.marks, loop: Mark(kind)})  # type: ignore[arg-type]


def parallel_reduction(rng: random.Random, schedule: Schedule) -> tuple[str, Schedule]:
    """A loop that a reduction runs over is parallel."""
    reducing = [
        loop
        for s in schedule.program.statements
        if s.combiner is not None
        for loop, value in schedule.nests[s.name].loops.items()
        if not value.names & {n for i in s.write.index if isinstance(i, Affine) for n in i.names}
    ]  # fmt: skip
    loop = pick(rng, reducing)
    return f"{loop} parallel", marked(schedule, loop, "parallel")


def vector_over_carried(rng: random.Random, schedule: Schedule) -> tuple[str, Schedule]:
    """An innermost loop is a vector."""
    _, (loop,) = random_vectorise(rng, schedule)
    if any(schedule.nests[s].names[-1] != loop for s in schedule.under(str(loop))):
        raise NoSuchMutant
    return f"{loop} vector", marked(schedule, str(loop), "vector")


FAULTS: Final[Mapping[str, Change]] = {
    "wrong_order": wrong_order, "missing_copy": missing_copy, "short_halo": short_halo, "early_reuse": early_reuse,
    "parallel_reduction": parallel_reduction, "vector_over_carried": vector_over_carried,
}  # fmt: skip
KINDS: Final = (*PRIMITIVES, *FAULTS)


# ---- mutants


def same_place(a: Schedule, b: Schedule) -> bool:
    """True where two schedules differ in nothing."""
    return dict(a.nests) == dict(b.nests) and dict(a.marks) == dict(b.marks) and same_programs(a.program, b.program)


def same_programs(a: Program, b: Program) -> bool:
    return a is b or a == b


def mutate(rng: random.Random, kind: str, base: Schedule) -> Mutant:
    """One mutant of a legal schedule. Raises `NoSuchMutant`, and `ScheduleError` where the change does not apply."""
    edit: Callable[[], Schedule] | None = None
    if kind in PRIMITIVES:
        call = PRIMITIVES[kind](rng, base)
        changed, edit = applied(unchecked(base), *call), partial(applied, base, *call)
        description = f"{call[0]}{call[1]}"
    else:
        description, changed = FAULTS[kind](rng, base)
    if same_place(base, changed):
        raise NoSuchMutant
    return Mutant(kind, base.source.name, description, base, replace(changed, checked=True), edit)


def mutants(kind: str, seed: int = SEED) -> Iterator[Mutant]:
    """Mutants of a kind without end, over all programs in turn; dear bases (with promotions) serve for two."""
    rng = random.Random(f"{seed} {kind}")
    names = list(NAMES)
    rng.shuffle(names)
    failed = 0
    for attempt in numbers():
        base = base_for(rng, kind, Schedule(program_of(names[attempt % len(names)])))
        seen: list[Schedule] = []
        for _ in range(2 if any(e.name == "promote" for e in base.log) else 1):
            try:
                mutant = mutate(rng, kind, base)
            except (NoSuchMutant, ScheduleError, UnsupportedError):
                failed += 1
                assert failed < 2000, f"hardly any mutants of kind {kind}"
                continue
            if not any(same_place(mutant.schedule, other) for other in seen):
                failed = 0
                seen.append(mutant.schedule)
                yield mutant
