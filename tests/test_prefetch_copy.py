"""Lines of the next copy that are asked for while this one's is used: which, where that is refused, its text forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.codegen.function import lower
from poly.codegen.host import host_machine
from poly.errors import ParseError, ScheduleError
from poly.loops import Alloc, Compute, For, If, LoopTree, Node, walk
from poly.pictures import blocks_of
from poly.scheduling.asked_copies import MOST_ASKS
from poly.scheduling.cpu_block import block_group
from poly.scheduling.cpu_ways import TileSizes
from poly.scheduling.edits import unchecked
from poly.scheduling.schedule import Schedule
from poly.scheduling.schedule_text import parse_schedule
from poly.text import parse_loops, print_loops
from tests.test_cpu_block import AVX512, GEMM, facts_on, rated_ways

HOST = host_machine()
LINE = 8


def product(rows: int, columns: int, steps: int, *, marked: bool = True) -> Schedule:
    """Tiles of 3 rows and 16 columns in blocks of 32 columns and 12 steps, for which B is copied."""
    s = Schedule(poly.parse("C[i, j] += A[i, k] * B[k, j]", A=(rows, steps), B=(steps, columns)))
    s = s.tile({"C_update.j": 32}).tile({"C_update.j.p": 16}).tile({"C_update.i": 3}).tile({"k": 12})
    s = s.reorder("k.o", "C_update.j.o", "C_update.i.o", "C_update.j.p.o", "k.p", "C_update.i.p", "C_update.j.p.p")
    s = s.promote("B", "C_update.j.o", HOST.cache_space(1), name="P").vectorise("C_update.j.p.p")
    return s.prefetch_copy("k.p", "P", LINE) if marked else s


def loops_of(tree: LoopTree) -> list[For]:
    return [n for n in walk(tree.body) if isinstance(n, For)]


def events(nodes: tuple[Node, ...], values: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What is asked for and what the copy into P reads, in order."""
    for node in nodes:
        if isinstance(node, For):
            low = max(int(e.evaluate(values)) for e in node.lower)
            for i in range(low, min(int(e.evaluate(values)) for e in node.upper), node.step):
                inside = {**values, node.variable: i}
                for a in node.asks:
                    yield "ask", tuple(int(c.evaluate(inside)) for c in a.affine_index)
                yield from events(node.body, inside)
        elif isinstance(node, Compute) and node.write.tensor == "P":
            yield "copy", tuple(int(c.evaluate(values)) for c in node.reads[0].affine_index)
        elif isinstance(node, If | Alloc):
            yield from events(node.body, values)


@pytest.mark.parametrize(("rows", "columns", "steps"), [(6, 96, 24), (3, 64, 36), (30, 64, 24), (7, 96, 24)])
def test_each_line_of_the_next_copy_is_asked_for(rows: int, columns: int, steps: int) -> None:
    """Behind the last block what would be next."""
    tree = product(rows, columns, steps).lower()
    rounds: list[tuple[set[tuple[int, ...]], set[tuple[int, ...]]]] = []
    before = "ask"
    for what, (k, j) in events(tree.body, dict(tree.sizes)):
        if what == "copy" and before == "ask":
            rounds.append((set(), set()))
        rounds[-1][what == "ask"].add((k, j // LINE))
        before = what
    assert len(rounds) == -(-columns // 32) * (steps // 12)
    for (_, asked), (copied, _) in zip(rounds, rounds[1:], strict=False):
        assert copied <= asked
        assert len(asked) <= 12 * 32 // LINE * 9 / 8  # shares are rounded up


def test_it_is_in_all_text_forms() -> None:
    s = product(6, 96, 24)
    assert "prefetch_copy(loop='k.p', buffer='P', line=8)" in s.script
    assert parse_schedule(str(s)) == s
    assert "asks (P, 8)" in str(s)
    assert "asks" not in str(blocks_of(s)[1])
    tree = s.lower()
    (loop,) = [f for f in loops_of(tree) if f.asks]
    assert loop.variable == "k.p"
    assert {a.tensor for a in loop.asks} == {"B"}
    assert parse_loops(print_loops(tree)) == tree
    text = print_loops(tree)
    for wrong in (text.replace(" asks (", " unroll asks ("), text.replace("asks (B[", "asks (3*B[")):
        with pytest.raises(ParseError):
            parse_loops(wrong)


def test_values_stay_as_they_are() -> None:
    random = np.random.default_rng(5)
    a, b = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((7, 24), (24, 80)))
    kernel = poly.compile(product(7, 80, 24), threads=1)
    np.testing.assert_array_equal(kernel(a, b), a @ b)
    assert lower(kernel.loops, HOST, "entry").ir.count("call void @llvm.prefetch") == 1
    assert "llvm.prefetch" not in lower(product(7, 80, 24, marked=False).lower(), HOST, "entry").ir


def test_refusals() -> None:
    s = product(6, 96, 24, marked=False)
    for loop, buffer, line, why in (
        ("C_update.j.p.p", "P", 8, "not serial"),
        ("k.p", "B", 8, "nothing is copied"),
        ("k.p", "Q", 8, "nothing is copied"),
        ("C_update.j.o", "P", 8, "does not use"),
        ("ld_P.0", "P", 8, "does not use"),
        ("C_init.i", "P", 8, "does not use"),
        ("k.p", "P", 0, "a line of 0"),
    ):
        with pytest.raises(ScheduleError, match=why):
            s.prefetch_copy(loop, buffer, line)
    with pytest.raises(ScheduleError, match="'k.p' asks already for what is copied into 'P'"):
        product(6, 96, 24).prefetch_copy("k.p", "P", 8)
    held = Schedule(s.source).promote("C", "C_update.j", "l2")
    with pytest.raises(ScheduleError, match="nothing is copied into a buffer 'C' in a loop"):
        held.prefetch_copy("C_init.j", "C", 8)  # it is copied out to C, which lives in no loop


def test_where_it_means_nothing_nothing_is_asked_for() -> None:
    s = product(6, 96, 24)
    assert {n.variable: len(n.asks) for n in loops_of(s.tile({"k.p": 3}).lower()) if n.asks} == {"k.p.o": 3}
    assert not any(f.asks for f in loops_of(s.unroll("k.p").lower()))
    assert not any(f.asks for f in loops_of(s.double_buffer("P", "C_update.j.o", 2).lower()))
    free = Schedule(poly.parse("C[i, j] += A[i, k] * B[k, j]", A=("M", "K"), B=("K", "N"))).tile({"C_update.j": 32})
    free = free.reorder("C_update.j.o", "C_update.i", "k", "C_update.j.p").promote("B", "C_update.j.o", "l2", name="P")
    assert not any(f.asks for f in loops_of(free.prefetch_copy("k", "P", 8).lower()))
    few = product(3, 96, 24, marked=False).prefetch_copy("k.p", "P", 1)  # 384 elements in 24 iterations
    assert 12 * 32 // 24 == MOST_ASKS
    assert {len(f.asks) for f in loops_of(few.lower())} == {0, MOST_ASKS}
    more = product(3, 96, 24, marked=False).prefetch_copy("C_update.j.p.o", "P", 1)
    assert not any(f.asks for f in loops_of(more.lower()))


@pytest.mark.parametrize(
    ("rows", "columns", "steps", "inside", "threads", "on_way", "asks"),
    [
        (48, 832, 4096, False, 2, False, True),  # 13 blocks
        (48, 832, 4096, True, 2, False, False),  # every tile of rows meets all of a block
        (48, 832, 1024, False, 2, False, False),  # from the last cache
        (480, 832, 4096, False, 2, False, False),  # a small part of the time
        (48, 4096, 256, True, 1, True, True),
        (48, 2048, 512, True, 1, True, False),  # two blocks of 512 KB, and the rows, do not fit
        (48, 256, 512, True, 1, True, False),  # near
    ],
)
def test_operands_from_afar_that_few_rows_use_are_asked_for(
    rows: int, columns: int, steps: int, inside: bool, threads: int, on_way: bool, asks: bool
) -> None:
    program = poly.parse(GEMM, A=(rows, steps), B=(steps, columns))
    facts = replace(facts_on(program, AVX512), threads=threads)
    choice = rated_ways(facts, 1)
    ways = [w for w in choice.ways() if w.packs == ((1, "lanes"),) and not w.lanes_outside]
    way = next(w for w in ways if w.lanes_inside == inside)
    plan = choice.plan(way, TileSizes(6, 4, 1 if threads > 1 else 4, 0, 0))
    assert [(p.on_way, p.asked) for p in plan.packs] == [(on_way, asks)]
    schedule = block_group(unchecked(Schedule(facts.program)), facts.group, plan, AVX512)
    found = {mark.asks for mark in schedule.marks.values() if mark.asks}
    assert found == ({("B_C_update_p", 16)} if asks else set())
