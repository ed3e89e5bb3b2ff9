"""The policies for a core ask the machine for its memories: a machine that calls them otherwise gets the same code."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

import poly
from poly.codegen.host import host_machine, machine_of_features, named_cpu
from poly.compiler import machine_of
from poly.errors import MachineError
from poly.machine import Engine, Machine, Memory
from poly.machine_text import machine_of_table
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_contract import contraction_of, contraction_plan
from poly.scheduling.cpu_core import core_of
from poly.scheduling.cpu_each import schedule_each
from poly.scheduling.cpu_facts import facts_of, own_capacity
from poly.scheduling.cpu_plan import BlockPlan
from poly.scheduling.groups import groups_of
from poly.scheduling.schedule import Schedule


def _other(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"core_{n}" for n in names)


RENAMED = replace(
    host_machine(), name="renamed",
    memories=tuple(m if m.kind == "dram" else replace(m, name=f"core_{m.name}") for m in host_machine().memories),
    engines=tuple(replace(e, reads=_other(e.reads), writes=_other(e.writes)) for e in host_machine().engines),
)  # fmt: skip
PROGRAMS: dict[str, tuple[str, dict[str, tuple[int | str, ...]]]] = {
    "product": ("C[i,j] += A[i,k]*B[k,j]", {"A": (37, 40), "B": (40, 70)}),
    "packed": ("C[i,j] += A[i,k]*B[j,k]", {"A": (200, 256), "B": (256, 256)}),
    "turned": ("C[i,j] += A[j,i,k]", {"A": (19, 3, 16)}),
    "row sums": ("C[i] += A[i,k]*B[k]", {"A": (33, 200), "B": (200,)}),
    "column sums": ("C[j] += A[k,j]*B[k]", {"A": (200, 900), "B": (200,)}),
    "window": ("Y[c,y,x] += X[c,y+r,x+s]*W[c,r,s]", {"X": (3, 18, 21), "W": (3, 3, 3), "Y": (3, 16, 19)}),
    "permutation": ("B[j,i] = A[i,j]", {"A": (40, 33)}),
    "softmax": (
        "m[i] max= x[i,j]; e[i,j] = exp(x[i,j] - m[i]); s[i] += e[i,j]; y[i,j] = e[i,j]/s[i]", {"x": (12, 50)}
    ),
    "free": ("C[b,k] += A[b,j]*B[j,k]", {"A": ("M", 9), "B": (9, 32)}),
}  # fmt: skip


def scheduled(program: Program, machine: Machine) -> Schedule:
    return schedule_each(program, machine) if program.parameters else schedule_for_cpu(program, machine)


@pytest.mark.parametrize("name", PROGRAMS)
def test_memories_have_the_machines_names(name: str) -> None:
    text, shapes = PROGRAMS[name]
    program = poly.parse(text, dtypes=None, **shapes)
    usual, renamed = scheduled(program, host_machine()), scheduled(program, RENAMED)
    spaces = [t.space for t in usual.program.tensors if t.origin]
    wanted = [s if s == "dram" else f"core_{s}" for s in spaces]
    assert RENAMED.register_space in wanted
    assert [t.space for t in renamed.program.tensors if t.origin] == wanted
    rng = np.random.default_rng(5)
    arrays = [rng.integers(-3, 4, t.extents({"M": 7})).astype(np.float32) for t in program.inputs]
    found = poly.compile(program, RENAMED)(*arrays)
    np.testing.assert_array_equal(found, poly.compile(program)(*arrays))


def test_what_a_description_leaves_out() -> None:
    dram, core = Memory("main", None, "dram"), Engine("core", "core", lanes=4)
    bare = Machine("bare", "cpu", (dram,), (core,))
    assert (bare.register_space, bare.cache_space(0), bare.cache_space(1)) == ("main", "main", "main")
    assert bare.vector_registers == 16 and bare.nearest_cache == 32768 and bare.caches == ()
    far, near = Memory("far", 1 << 20, "cache"), Memory("near", 1 << 14, "cache")
    cached = Machine("cached", "cpu", (dram, far, near, Memory("v", 8, "register")), (core,))
    assert [m.name for m in cached.caches] == ["near", "far"] and cached.nearest_cache == 1 << 14
    assert [cached.cache_space(k) for k in range(3)] == ["near", "far", "far"]
    assert cached.register_space == "v" and cached.vector_registers == 8


@pytest.mark.parametrize(("shared", "own"), [
    ((None,), 1), ((None, None), 1), ((None, False), 2), ((None, None, None), 2), ((None, True, None), 1),
    ((False, False, False), 3), ((None, None, None, None), 3),
])  # fmt: skip
def test_which_caches_are_a_cores_own(shared: tuple[bool | None, ...], own: int) -> None:
    """Those that a description does not call shared; where it says nothing, all but the last of several."""
    machine = caches_shared(*shared)
    assert [m.name for m in machine.own_caches] == [f"l{k + 1}" for k in range(own)]
    core = core_of(machine, 4)
    assert len(core.own) == own and own_capacity(machine) == sum(c.capacity for c in core.own)
    parts = [core.counted_on(level) / c.capacity for level, c in enumerate(core.caches)]
    assert parts == [1 / 2] * own + [1 / 8] * (len(shared) - own)


@pytest.mark.parametrize("shared", [(True,), (True, True), (None, True, False)])
def test_shared_caches_lie_behind_own_ones(shared: tuple[bool | None, ...]) -> None:
    with pytest.raises(MachineError, match="are not those behind a core's own"):
        caches_shared(*shared)


def caches_shared(*shared: bool | None) -> Machine:
    caches = [Memory(f"l{k + 1}", 1 << 14 + 3 * k, "cache", shared=found) for k, found in enumerate(shared)]
    return Machine("x", "cpu", (Memory("main", None, "dram"), *caches), (Engine("core", "core", lanes=8),))


def test_a_model_takes_what_is_usual_where_a_description_leaves_it_out() -> None:
    """As a CPU has it whose features alone are known; memory is memory behind however many caches."""
    dram, core = Memory("main", None, "dram"), Engine("core", "core", lanes=8)
    caches = (Memory("l1", 32768, "cache"), Memory("l2", 1 << 20, "cache", shared=False))
    known = machine_of_features("x", ("avx", "avx2"), "x86_64-unknown-linux-gnu", {1: 32768, 2: 1 << 20}, 1, 3000)
    assert core_of(Machine("x", "cpu", (dram, *caches), (core,)), 4) == core_of(known, 4)
    assert [c.rate for c in core_of(Machine("x", "cpu", (dram,), (core,)), 4).caches] == [6]


@pytest.mark.parametrize(("old", "new", "message"), [
    ("clock_mhz = 1000", "clock_mhz = 0", "clock_mhz is 0"),
    ("clock_mhz = 1000", "clock_mhz = nan", "clock_mhz is nan"),
    ("clock_mhz = 1000", "clock_mhz = true", "clock_mhz is True"), ("lanes = 16", "lanes = 0", "lanes is 0"),
    ("lanes = 16", "lanes = -4", "lanes is -4"), ("fill = 30", "fill = -300", "fill is -300"),
    ("setup = 4", "setup = -40", "setup is -40"), ("banks = 1", "banks = 0", "banks is 0"),
    ("bytes_per_cycle = 8", "bytes_per_cycle = 0", "dram: bytes_per_cycle is 0"),
    ("align = 64", "align = 0", "align is 0"), ("exp = 4", "exp = -1", "cost of exp is -1"),
    ("capacity = 65536", "capacity = -1", "capacity is -1"), ("cores = 1", "cores = 4", "an accelerator has one core"),
    ("latency = 64", "latency = -1", "latency is -1"), ("rows = 16", "rows = 1.5", "rows is 1.5"),
])  # fmt: skip
def test_numbers_of_a_description_mean_something(old: str, new: str, message: str) -> None:
    text = str(machine_of("s16"))
    assert old in text
    with pytest.raises(MachineError, match=message):
        machine_of_table(tomllib.loads(text.replace(old, new)), "mine.toml")


@pytest.mark.parametrize("row", [
    {"cost": 5}, {"dots": [1]}, {"dots": [["dot4", 0]]}, {"cost": {"fma": 0}}, {"cost": {"latency": 0}},
    {"cost": {"overlap": 0}}, {"cost": {"guarded": 0}}, {"lanes": 3}, {"lanes": 24},
])  # fmt: skip
def test_numbers_of_a_core_mean_something(row: dict[str, object]) -> None:
    engine = {"name": "core", "kind": "core", "lanes": 8, **row}
    table = {"schema": 1, "name": "x", "kind": "cpu", "memory": [{"name": "dram", "kind": "dram"}], "engine": [engine]}
    with pytest.raises(MachineError):
        machine_of_table(table, "mine.toml")
    usual = {**engine, "cost": {"near": 0}, "dots": [], "lanes": 8}
    assert machine_of_table({**table, "engine": [usual]}).lanes(4) == 8


@pytest.mark.parametrize("line", [1, 4, 7])
def test_a_line_holds_an_element(line: int) -> None:
    """How many it holds is divided by."""
    memories = Memory("main", None, "dram", line=64), Memory("l1", 32768, "cache", line=line)
    with pytest.raises(MachineError, match=f"memory l1: line is {line}"):
        Machine("short", "cpu", memories, (Engine("core", "core", lanes=8),))


def test_a_core_has_two_registers_at_least() -> None:
    memories = Memory("main", None, "dram"), Memory("reg", 1, "register")
    with pytest.raises(MachineError, match="memory reg: capacity is 1"):
        Machine("one", "cpu", memories, (Engine("core", "core", lanes=8),))


@pytest.mark.parametrize(("kind", "name", "hint"), [
    ("core", "fmaa", "fma, it seems"), ("core", "x", "it has fma, load, "),
    ("vector", "expo", "exp, it seems"), ("vector", "+", "it has or, and, "),
])  # fmt: skip
def test_costs_of_an_engine_are_known(kind: Literal["core", "vector"], name: str, hint: str) -> None:
    with pytest.raises(MachineError, match=f"{kind} has no cost {re.escape(repr(name))}(.|\\n)*{hint}"):
        Engine(kind, kind, lanes=8, cost={name: 9})


WIDE_FEATURES = ("avx", "avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq")
MESH = machine_of_features(
    "x", (*WIDE_FEATURES, "avx512fp16", "amx-tile"), "x86_64-unknown-linux-gnu",
    {1: 48 << 10, 2: 2 << 20, 3: 480 << 20}, 2, 2600,
)  # fmt: skip
ZEN5 = machine_of_features(
    "znver5", WIDE_FEATURES, "x86_64-unknown-linux-gnu", {1: 48 << 10, 2: 1 << 20, 3: 32 << 20}, 2, 3000
)


def product_plan(machine: Machine, rows: int, steps: int, columns: int) -> BlockPlan:
    program = poly.parse("C[i,j] += A[i,k]*B[k,j]", A=(rows, steps), B=(steps, columns))
    (group,) = groups_of(program)
    plan = contraction_plan(facts_of(program, group, machine), 1)
    assert plan is not None
    return plan


def test_what_kind_of_core_it_is_follows_from_features() -> None:
    """A core with tiles has its last cache a mesh away; any other with wide vectors has what a Zen 5 has."""
    mesh, near = core_of(MESH, 4), core_of(ZEN5, 4)
    assert [c.rate for c in near.caches] == [56, 28, 10] and not near.afar and near.asked_into == 0
    assert mesh.caches[1].rate < near.caches[1].rate / 2 and mesh.afar and mesh.asked_into == 1
    assert mesh.remote < near.remote / 2  # what another core wrote
    assert mesh.guarded < near.guarded == 14 and mesh.unpadded > near.unpadded == 100
    half = machine_of_features("x", (*WIDE_FEATURES, "avx512fp16"), ZEN5.triple, {1: 48 << 10, 2: 2 << 20}, 2, 2600)
    assert half.engines[0].cost == ZEN5.engines[0].cost


@pytest.mark.parametrize(
    ("found", "features", "name"),
    [
        ("rocketlake", MESH.engines[0].features, "sapphirerapids"),
        ("graniterapids", MESH.engines[0].features, "graniterapids"),
        ("rocketlake", (*WIDE_FEATURES, "avx512fp16"), "rocketlake"),
        ("znver5", WIDE_FEATURES, "znver5"),
    ],
)
def test_code_is_for_a_core_that_has_all_features(found: str, features: tuple[str, ...], name: str) -> None:
    """Guests hide what they are, and LLVM then takes a core that never had tiles."""
    assert named_cpu(found, features) == name


@pytest.mark.parametrize(
    ("shape", "width", "heights", "block", "depth"),
    [
        ((16, 2048, 2048), 3, [8], 1, ("k", 512)),
        ((512, 512, 512), 4, [6, 6, 5], 4, None),
        ((2048, 2048, 2048), 4, [6, 5], 4, None),
        ((128, 768, 3072), 3, [8, 8], 16, ("k", 128)),
    ],
)
def test_plans_of_a_zen_5_stay(
    shape: tuple[int, int, int], width: int, heights: list[int], block: int, depth: tuple[str, int] | None
) -> None:
    """Those that were measured there (0031, 0061, 0072)."""
    plan = product_plan(ZEN5, *shape)
    strip = plan.strips[0]
    assert (strip.width, [r.tile for r in strip.rows], strip.block, plan.depth) == (width, heights, block, depth)


def test_few_rows_ask_a_slow_last_cache_for_the_next_block() -> None:
    """In blocks of few steps: pieces of more rows, pages apart, meet in few sets of the second cache."""
    plan = product_plan(MESH, 16, 2048, 2048)
    assert [(p.tensor, p.asked) for p in plan.packs] == [("B", True)] and plan.depth == ("k", 128)


def test_few_rows_take_a_matrix_that_the_last_cache_holds_as_it_lies() -> None:
    """Bytes from there are no traffic of their own (0133): beside few operations a copy does not pay."""
    assert product_plan(MESH, 17, 2000, 400).packs == ()


def test_tiles_go_along_sums_whose_rows_are_in_pages_of_their_own() -> None:
    """More pages than a core knows: below a tile each row of sums is in another one, beside it in the same."""
    known = replace(MESH, engines=(replace(MESH.engines[0], cost={**MESH.engines[0].cost, "anew": 0}),))
    plan, other = product_plan(MESH, 128, 768, 3072), product_plan(known, 128, 768, 3072)
    assert plan.depth == other.depth == ("k", 128) and plan.lanes_inside and not other.lanes_inside
    assert product_plan(MESH, 32, 1024, 1024) == product_plan(known, 32, 1024, 1024)


def test_threads_share_columns_that_are_left_over() -> None:
    """Four of 100, which take a core as long as sixteen; each piece is a loop of its own that both threads run."""
    schedule = schedule_for_cpu(poly.parse("C[i,j] += A[i,k]*B[k,j]", A=(100, 100), B=(100, 100)), MESH, threads=2)
    kinds = [
        [schedule.kind(n) for n in schedule.nests[s.name].names]
        for s in schedule.program.statements
        if s.combiner is not None
    ]
    assert len(kinds) > 1 and all("parallel" in k for k in kinds)


def test_blocks_that_are_asked_for_lie_side_by_side_or_are_whole_rows() -> None:
    """Side by side they go on on the same pages, and the first cache holds one; whole rows are one walk anyway."""
    beside, whole = product_plan(MESH, 16, 2048, 2048), product_plan(MESH, 48, 8192, 1024)
    assert beside.strips[0].block == 1 and not beside.lanes_outside
    assert whole.strips[0].block * whole.strips[0].width * whole.vector == 1024


@pytest.mark.parametrize("machine", [MESH, ZEN5], ids=["mesh", "zen5"])
def test_what_is_copied_with_its_padding_is_not_turned(machine: Machine) -> None:
    """That goes element by element; a window's lanes are where it is contiguous."""
    guard = "h + p >= 1 and h + p <= 128 and w + q >= 1 and w + q <= 128"
    program = poly.parse(
        f"Y[h,w] += (X[c,h+p-1,w+q-1] if {guard} else 0)*W[c,p,q] where 0<=h<128 and 0<=w<128", X=(32, 128, 128),
        W=(32, 3, 3),
    )  # fmt: skip
    (group,) = groups_of(program)
    plan = contraction_of(program, group, machine)
    assert plan is not None and (plan.rows, plan.lanes) == (0, 1)
