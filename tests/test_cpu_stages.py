"""Groups of row blocks: which products are joined with what follows them, what a block holds, results."""

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.loops import Alloc, For
from poly.machine import Memory
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_stages import stages_of
from poly.scheduling.row_groups import groups_for
from poly.scheduling.schedule import Schedule
from tests.machines import avx2_core

SMALL = avx2_core(32 * 1024, 4 * 1024)
ATTENTION = (
    "t[b,i,j] += q[b,i,d] * k[b,d,j]; u[b,i,j] = t[b,i,j] * 0.125; m[b,i] max= u[b,i,j]; "
    "e[b,i,j] = exp(u[b,i,j] - m[b,i]); s[b,i] += e[b,i,j]; p[b,i,j] = e[b,i,j] / s[b,i]; "
    "y[b,i,c] += p[b,i,j] * v[b,j,c]"
)
PRODUCTS = "t[i,j] += a[i,k] * b[k,j]; u[i,j] = max(t[i,j], 0); y[i,l] += u[i,j] * c[j,l]"


def attention(heads: int, rows: int, keys: int, width: int) -> Program:
    return poly.parse(ATTENTION, q=(heads, rows, width), k=(heads, width, keys), v=(heads, keys, width))


def agrees(schedule: Schedule, threads: int = 1) -> None:
    """Compiled results against the interpreter's."""
    program = schedule.source
    random = np.random.default_rng(0)
    arrays = {
        t.name: random.standard_normal([int(e.evaluate(program.binding)) for e in t.shape]).astype("f4")
        for t in program.inputs
    }
    expected = run_program(program, arrays)
    found = poly.compile(program, threads=threads, schedule=schedule)(*[arrays[t.name] for t in program.inputs])
    wanted = np.asarray(expected[program.outputs[0].name], "f8")
    np.testing.assert_allclose(np.asarray(found, "f8"), wanted, rtol=2e-5, atol=1e-5)


def test_attention_is_one_group_of_row_blocks() -> None:
    program = attention(2, 64, 96, 8)
    (group,) = groups_for(program, SMALL)
    assert len(group.parts) == 3 and group.box == ((0, 1), (0, 63)) and 64 % group.block == 0
    assert {group.axes[s.name] for s in program.statements} == {("b", "i")}
    assert any("rows at a time" in why for why in group.why)


def test_what_is_handed_on_is_a_block_in_the_cache() -> None:
    schedule = schedule_for_cpu(attention(2, 64, 96, 8), SMALL)
    (group,) = groups_for(schedule.source, SMALL)
    assert not [t.name for t in schedule.program.tensors if t.role == "temporary" and not t.origin]
    blocks = [n.tensor for n in schedule.lower().nodes() if isinstance(n, Alloc) and n.tensor.name.endswith("_block")]
    assert blocks and {t.space for t in blocks} == {"l2"}
    assert all(t.extents({})[:2] == (1, group.block) for t in blocks)
    assert len([n for n in schedule.lower().nodes() if isinstance(n, For) and n.variable == "i.o"]) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_no_block_divides_are_one(threads: int) -> None:
    core = avx2_core(64 * 1024, 4 * 1024)
    schedule = schedule_for_cpu(attention(8, 131, 24, 8), core, threads)
    (group,) = groups_for(schedule.source, core)
    assert group.block == 131 and "_block" in schedule.script
    agrees(schedule, threads)
    assert not any(g.block for g in groups_for(attention(8, 131, 64, 8), core))  # more than half of a cache


def test_the_script_makes_the_same_schedule() -> None:
    schedule = schedule_for_cpu(attention(2, 64, 96, 8), SMALL)
    assert "_block" in schedule.script
    assert str(Schedule.parse(str(schedule)).lower()) == str(schedule.lower())


@pytest.mark.parametrize("sizes", [(2, 64, 96, 8), (1, 48, 101, 13), (3, 27, 150, 9)])
@pytest.mark.parametrize("threads", [1, 2])
def test_results(sizes: tuple[int, int, int, int], threads: int) -> None:
    schedule = schedule_for_cpu(attention(*sizes), SMALL, threads)
    assert "_block" in schedule.script
    agrees(schedule, threads)


@pytest.mark.parametrize(("keys", "width", "joined"), [(640, 64, True), (1024, 64, False), (512, 128, False)])
def test_what_all_rows_use_stays_in_a_cache_of_the_core(keys: int, width: int, joined: bool) -> None:
    """Though the plan for all rows cuts the sum over keys."""
    schedule = schedule_for_cpu(attention(1, 512, keys, width), avx2_core(256 * 1024, 16 * 1024))
    assert ("_block" in schedule.script) == joined


def test_chains_of_products() -> None:
    program = poly.parse(PRODUCTS, a=(64, 8), b=(8, 120), c=(120, 16))
    schedule = schedule_for_cpu(program, SMALL)
    assert len(groups_for(program, SMALL)) == 1 and "u_block" in schedule.script
    agrees(schedule)


def test_what_all_rows_use_must_pay() -> None:
    narrow, wide = (poly.parse(PRODUCTS, a=(64, 8), b=(8, n), c=(n, m)) for n, m in ((120, 16), (120, 512)))
    assert len(groups_for(narrow, SMALL)) == 1
    assert len(groups_for(wide, SMALL)) == 2


def test_what_others_need_is_made_whole() -> None:
    for more, joined in (("", True), ("; z[i,j] = u[j,i]", False)):
        program = poly.parse(PRODUCTS + more, a=(80, 8), b=(8, 80), c=(80, 16))
        assert any(g.block for g in groups_for(program, SMALL)) == joined


@pytest.mark.parametrize(("width", "groups"), [(5, 2), (64, 1)])
def test_rows_that_leave_lanes_empty_are_not_joined(width: int, groups: int) -> None:
    """Functions of all elements in one row fill vectors, in rows of five they do not."""
    program = poly.parse("g[i,j] = a[i,j] * erf(a[i,j]); y[i,l] += g[i,j] * b[j,l]", a=(4096, width), b=(width, 40))
    assert len(groups_for(program, SMALL)) == groups


def test_what_fits_a_cache_is_not_joined() -> None:
    program = attention(2, 64, 96, 8)
    large = replace(SMALL, memories=(*SMALL.memories[:1], Memory("l2", 1 << 20, "cache"), *SMALL.memories[2:]))
    assert not any(g.block for g in groups_for(program, large))


def test_other_groups_have_no_stages() -> None:
    program = poly.parse("y[i,l] += u[i,j] * c[j,l]", u=(64, 64), c=(64, 64))
    (group,) = groups_for(program, SMALL)
    assert stages_of(program, group, SMALL) is None


def test_rows_are_changed_in_place() -> None:
    elsewhere = f"{ATTENTION}; z[b,i,j] = e[b,i,j] + u[b,i,j]"
    for text, inside in ((ATTENTION, True), (elsewhere, False)):
        program = poly.parse(text, q=(2, 64, 8), k=(2, 8, 96), v=(2, 96, 8))
        script = schedule_for_cpu(program, SMALL).script
        assert ("overlay(tensor='e', inside='p')" in script) == inside
        assert ("overlay(tensor='u', inside='p')" in script) == inside
        assert "_block" in script


def test_a_product_stays_before_what_overwrites_its_operand() -> None:
    text = PRODUCTS.replace("; u", "; b[k,j] = d[j,k]; u")
    program = poly.parse(text, a=(64, 16), b=(16, 96), d=(96, 16), c=(96, 16))
    order = [name for g in groups_for(program, SMALL) for name in g.names]
    assert order.index("t_update") < order.index("b_set")
