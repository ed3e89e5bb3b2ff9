"""Tiles of matrices: commands of a core's matrix unit, from loops that a schedule gives to it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import poly
from poly.codegen import here, jit
from poly.codegen.function import lower
from poly.codegen.host import host_machine, machine_of_features, tiles_granted, without_matrix_unit
from poly.errors import CapacityError, IllegalEdit, UnsupportedError
from poly.interp import run_program
from poly.interp_loops import run_loops
from poly.loops import For
from poly.machine import Engine, Machine
from poly.machine_text import machine_of_table
from poly.scheduling.capacity import check_capacity
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_contract import best_rated, least_of_plans
from poly.scheduling.cpu_facts import facts_of
from poly.scheduling.dot_sums import sums_by_dots
from poly.scheduling.groups import groups_of
from poly.scheduling.paired_sums import sums_of_pairs
from poly.scheduling.prediction import predict
from poly.scheduling.schedule import Schedule
from poly.text import parse_program
from tests.onnx_helpers import node_model, reference
from tests.other_cpus import CACHES, CPUS, DOT_CPUS, TRIPLE, run_here

FEATURES = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512vnni", "avx512bf16", "amx-bf16",
    "amx-tile", "amx-int8",
)  # fmt: skip
MATRIX = machine_of_features("sapphirerapids", FEATURES, TRIPLE, CACHES, 2, 3000)
here_only = pytest.mark.skipif(host_machine().matrix_unit is None, reason="no matrix unit here")


def product(rows: int, columns: int, steps: int, first: str = "A[i,k]", second: str = "B[k,j]") -> poly.Program:
    a = f"A: i32[{rows}, {steps}]" if first == "A[i,k]" else f"A: i32[{steps}, {rows}]"
    text = f"{a}; B: i32[{steps}, {columns}]; C: i32[{rows}, {columns}]; C[i,j] += dot4({first}, {second})"
    return poly.parse(text)


def tiled(space: str = "tiles") -> Schedule:
    """16 x 32 sums, from zero, of 16 steps: two tiles of sums, one for A, two for B; `space`: of the sums."""
    s = Schedule(product(16, 32, 16)).tile({"C_init.j": 16}).tile({"C_update.j": 16})
    s = s.reorder("C_init.j.o", "C_init.i", "C_init.j.p").reorder("C_update.j.o", "C_update.i", "k", "C_update.j.p")
    s = s.promote("C", None, space, name="Ct").promote("A", None, "tiles", name="At")
    s = s.promote("B", None, "tiles", name="Bt")
    for copy in ("st_Ct", "ld_Bt"):
        s = s.tile({f"{copy}.1": 16}).reorder(f"{copy}.1.o", f"{copy}.0", f"{copy}.1.p").unroll(f"{copy}.1.o")
    return s.unroll("C_init.j.o").unroll("C_update.j.o")


CHAINS = (
    ("C_init.i", "C_init.j.p"), ("ld_At.0", "ld_At.1"), ("C_update.i", "k", "C_update.j.p"), ("ld_Bt.0", "ld_Bt.1.p"),
    ("st_Ct.0", "st_Ct.1.p"),
)  # fmt: skip


def commands(schedule: Schedule, without: str = "") -> Schedule:
    """All loops given to the unit, but for the chain of a statement."""
    for chain in (c for c in CHAINS if not without or not c[0].startswith(without)):
        schedule = schedule.tensorise(chain, "matrix")
    return schedule


def bytes_product(a: NDArray[Any], b: NDArray[Any], left: str = "u1", right: str = "i1") -> NDArray[np.int32]:
    """Sums over four parts of each element, in i32."""
    parts = np.ascontiguousarray(b.T).view(right).reshape(b.shape[1], -1).astype(np.int64)
    return (a.view(left).astype(np.int64) @ parts.T).astype(np.int32)


def words(*shape: int) -> NDArray[np.int32]:
    return np.random.default_rng(len(shape)).integers(-(2**31), 2**31, shape).astype(np.int32)


def test_a_core_has_a_unit_where_its_features_say_so() -> None:
    unit = MATRIX.matrix_unit
    assert unit is not None and unit.writes == ("tiles",) and MATRIX.memory["tiles"].capacity == 8192
    assert machine_of_features("x", FEATURES[:-1], TRIPLE, CACHES, 2, 3000).matrix_unit is None
    bare = without_matrix_unit(MATRIX)
    assert bare.matrix_unit is None and "tiles" not in bare.memory and len(bare.engines) == 1
    read_again = machine_of_table(__import__("tomllib").loads(str(MATRIX)))
    assert read_again.matrix_unit == unit


def test_an_array_that_no_instruction_fits_is_not_used() -> None:
    unit = MATRIX.matrix_unit
    assert unit is not None
    for other in (replace(unit, rows=8), replace(unit, features=("amx-fp16",)), replace(unit, features=())):
        machine = replace(MATRIX, engines=(MATRIX.engines[0], other))
        assert machine.matrix_unit is None
        assert "matrix" not in str(schedule_for_cpu(product(64, 64, 64), machine).lower())


def test_commands_of_a_schedule() -> None:
    tree = commands(tiled()).lower()
    ir = lower(tree, MATRIX, "f").ir
    calls = re.findall(r"call void @llvm\.x86\.(\w+)\(([^)]*)", ir)
    assert [n for n, _ in calls if n.startswith("ld") or n == "tilerelease"] == ["ldtilecfg", "tilerelease"]
    counted = {n: sum(m == n for m, _ in calls) for n, _ in calls}
    assert counted == {
        "ldtilecfg": 1, "tilezero": 2, "tileloadd64": 3, "tdpbusd": 2, "tilestored64": 2, "tilerelease": 1,
    }  # fmt: skip
    sums, rows, columns = zip(*(given.split(", ") for n, given in calls if n == "tdpbusd"), strict=True)
    assert (len({*sums}), len({*rows}), len({*columns})) == (2, 1, 2) and len({*sums, *rows, *columns}) == 5
    a, b = words(16, 16), words(16, 32)
    np.testing.assert_array_equal(run_loops(tree, {"A": a, "B": b})["C"], bytes_product(a, b))
    assert len(jit.compile_object(ir, MATRIX)) > 0


def test_what_is_no_command_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no command"):
        lower(commands(tiled("l1"), "C_init").lower(), MATRIX, "f")  # of sums in memory
    with pytest.raises(UnsupportedError, match="Ct is in tiles"):
        lower(commands(tiled(), "C_init").lower(), MATRIX, "f")
    with pytest.raises(UnsupportedError, match="no command"):
        lower(commands(tiled(), "C_init").tensorise(("C_init.j.p",), "matrix").lower(), MATRIX, "f")  # of one row
    turned = Schedule(product(16, 16, 16)).promote("A", None, "tiles", name="At", order=(1, 0))
    with pytest.raises(UnsupportedError, match="no command"):  # rows of the tile are columns of A
        lower(turned.tensorise(("ld_At.1", "ld_At.0"), "matrix").lower(), MATRIX, "f")
    odd = Schedule(product(24, 16, 16)).promote("A", None, "tiles", name="At")
    with pytest.raises(UnsupportedError, match="is no tiles of 16 x 16"):
        lower(odd.tensorise(("ld_At.0", "ld_At.1"), "matrix").lower(), MATRIX, "f")


def test_loops_of_a_target_without_the_instructions() -> None:
    core, unit = replace(MATRIX.engines[0], features=FEATURES[:-1]), MATRIX.engines[1]
    tree = commands(tiled()).lower()
    assert "@llvm.x86.t" not in lower(tree, replace(MATRIX, engines=(core, unit)), "f").ir
    with pytest.raises(UnsupportedError, match="has no tdpbusd"):
        lower(tree, replace(MATRIX, engines=(core, replace(unit, features=("amx-tile",)))), "f")


def test_the_unit_has_eight_tiles() -> None:
    s = Schedule(product(48, 48, 16)).promote("C", None, "tiles", name="Ct")
    with pytest.raises(CapacityError, match="memory tiles holds 8192 B"):
        check_capacity(s.lower(), MATRIX)


def test_a_unit_adds_up_but_carries_nothing_else() -> None:
    program = poly.parse("X: i32[17, 16]; X[0, j] = Y[j]; X[i + 1, j] = X[i, j] + 1 where 0 <= i < 16; Y: i32[16]")
    name = program.statements[-1].name
    with pytest.raises(IllegalEdit):
        Schedule(program).tensorise(Schedule(program).nests[name].names, "matrix")


@pytest.mark.parametrize(
    ("rows", "columns", "steps"),
    [(32, 32, 16), (64, 96, 48), (16, 16, 16), (48, 80, 25), (33, 35, 32), (70, 100, 16), (40, 40, 160), (16, 300, 9)],
)
def test_plans_compute_the_same(rows: int, columns: int, steps: int) -> None:
    """Whole tiles on the unit, with pieces for vectors beside them, as loops and here as code."""
    schedule = schedule_for_cpu(product(rows, columns, steps), MATRIX)
    tree = schedule.lower()
    a, b = words(rows, steps), words(steps, columns)
    np.testing.assert_array_equal(run_loops(tree, {"A": a, "B": b})["C"], bytes_product(a, b))
    if any(isinstance(n, For) and n.engine == "matrix" for n in tree.nodes()) and host_machine().matrix_unit:
        kernel: Any = poly.compile(schedule)
        np.testing.assert_array_equal(kernel(a, b), bytes_product(a, b))


def test_a_way_without_whole_commands_hides_no_other() -> None:
    """Its cycles were no number, which the rating for threads multiplied by 0."""
    text = "C[i,j] += f32(A[i,k,l])*f32(B[k,l,j])"
    program = poly.parse(text, A=(40, 9, 65), B=(9, 65, 48), dtypes={"A": "bf16", "B": "bf16", "C": "f32"})
    with np.errstate(invalid="raise"):
        tree = schedule_for_cpu(sums_of_pairs(program, MATRIX.dot_operators), MATRIX, 2).lower()
    assert any(isinstance(n, For) and n.engine == "matrix" for n in tree.nodes())


def test_large_products_are_the_units() -> None:
    for threads in (1, 2):
        tree = schedule_for_cpu(product(128, 128, 64), MATRIX, threads).lower()
        assert any(isinstance(n, For) and n.engine == "matrix" for n in tree.nodes())
    assert "matrix" not in str(schedule_for_cpu(product(8, 64, 64), MATRIX).lower())
    assert "matrix" not in str(schedule_for_cpu(product(64, 64, 64), without_matrix_unit(MATRIX)).lower())


@pytest.mark.parametrize("threads", [1, 2])
def test_no_plan_of_the_unit_takes_less_than_what_is_told_without_rating(threads: int) -> None:
    facts = facts_of(product(256, 256, 128), groups_of(product(256, 256, 128))[0], MATRIX, threads)
    lanes = facts.lanes()
    assert lanes is not None
    rated = best_rated(facts, lanes)
    assert rated is not None and rated.plan.matrix is not None
    assert least_of_plans(facts, lanes) <= rated.cycles


def passing(schedule: Schedule) -> list[str]:
    """The loops whose commands load what need not stay in the first cache."""
    return [n.variable for n in schedule.lower().nodes() if isinstance(n, For) and n.kind == "unit" and n.nontemporal]


def test_lanes_pass_the_first_cache_where_it_holds_no_two_operands() -> None:
    """Rows of a tile stay there then: blocks of lanes are inside of them."""
    large, small = (schedule_for_cpu(product(64, 96, n), MATRIX) for n in (256, 64))
    (loop,) = passing(large)
    assert loop.startswith("ld_B") and not passing(small)
    ir = lower(large.lower(), MATRIX, "f").ir
    assert ir.count("call void @llvm.x86.tileloaddt164") == 2


def joined(machine: Machine, spec: str, rows: int, columns: int, steps: int) -> Schedule:
    """A product of bf16, its operands joined in pairs."""
    text = f"C[i,j] += f32(A[{spec[:3]}])*f32(B[{spec[4:]}])"
    sizes = {"i": rows, "j": columns, "k": steps}
    shapes = {t: tuple(sizes[n] for n in names.split(",")) for t, names in zip("AB", spec.split(" "), strict=True)}
    program = poly.parse(text, **shapes, dtypes={"A": "bf16", "B": "bf16", "C": "f32"})
    return schedule_for_cpu(sums_of_pairs(program, machine.dot_operators), machine)


@pytest.mark.parametrize(
    ("spec", "steps", "left"),
    [("i,k k,j", 96, 0), ("i,k j,k", 96, 0), ("i,k k,j", 97, 1), ("k,i k,j", 96, 2)],
    ids=["as they lie", "columns turned", "an odd step", "rows turned"],
)
def test_copies_join_pairs_on_their_way(spec: str, steps: int, left: int) -> None:
    """One copy of each operand: of B for blocks of lanes, of A for a tile of rows. What is joined behind the last step
    of a row, or against the rows of memory, has tensors of its own.
    """
    schedule = joined(MATRIX, spec, 64, 48, steps)
    pairs = [t for t in schedule.program.tensors if "pairs" in t.name and not t.origin]
    assert len(pairs) == left
    random, sizes = np.random.default_rng(4), {"i": 64, "j": 48, "k": steps}
    a, b = (random.integers(-4, 5, [sizes[n] for n in names.split(",")]) for names in spec.split(" "))
    subscripts = [names.replace(",", "") for names in spec.split(" ")]
    wanted = np.einsum(f"{','.join(subscripts)}->ij", a, b)
    given = {"A": a.astype(ml_dtypes.bfloat16), "B": b.astype(ml_dtypes.bfloat16)}
    np.testing.assert_array_equal(run_loops(schedule.lower(), given)["C"], wanted)


@here_only
def test_an_explanation_says_what_lies_in_tiles() -> None:
    rows = str(poly.explain(poly.compile(product(128, 128, 64)))), str(poly.explain(poly.compile(product(8, 64, 64))))
    assert "unit loops on tiles of C, A, B" in rows[0] and "matrix unit" not in rows[1]


@here_only
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("spec", ["ij,jk->ik", "ij,kj->ik", "ji,jk->ik", "bij,bjk->bik", "ij,jk->ki"])
def test_products_of_bytes(spec: str, threads: int) -> None:
    left, right = [("u1", "i1"), ("i1", "u1"), ("i1", "i1"), ("u1", "u1")][(len(spec) + threads) % 4]
    sizes, random = {"b": 2, "i": 130, "j": 100, "k": 67}, np.random.default_rng(3)
    first, second = spec.split("->")[0].split(",")
    a, b = (
        random.integers(np.iinfo(d).min, np.iinfo(d).max + 1, [sizes[n] for n in names]).astype(d)
        for d, names in ((left, first), (right, second))
    )
    found = poly.einsum(spec, a, b, dtype=np.int32, casting="unsafe", threads=threads)
    np.testing.assert_array_equal(found, np.einsum(spec, a.astype(np.int64), b.astype(np.int64)).astype(np.int32))


@here_only
@pytest.mark.parametrize("quantised", [False, True])
def test_what_starts_and_uses_sums_meets_them_in_memory(quantised: bool) -> None:
    random = np.random.default_rng(5)
    a, b = random.integers(0, 256, (70, 192)).astype(np.uint8), random.integers(-128, 128, (192, 96)).astype(np.int8)
    zeros = {"az": np.array(117, np.uint8), "bz": np.array(-3, np.int8)}
    scales = {n: np.array(v, np.float32) for n, v in (("as", 0.02), ("bs", 0.01), ("ys", 1.5))}
    vectors = without_matrix_unit(host_machine())
    if quantised:
        given = [a, scales["as"], zeros["az"], b, scales["bs"], zeros["bz"], scales["ys"], np.array(100, np.uint8)]
        model, arrays = node_model("QLinearMatMul", given, constant=range(1, 8))
    else:
        model, arrays = node_model("MatMulInteger", [a, b, zeros["az"], zeros["bz"]])
    found, wanted = (poly.compile(model, target=m).run(arrays)["y0"] for m in (host_machine(), vectors))
    np.testing.assert_array_equal(found, wanted)
    if not quantised:
        np.testing.assert_array_equal(found, reference(model, arrays)["y0"])


@here_only
def test_code_runs_only_where_tiles_are_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiles_granted()
    other = replace(host_machine(), name="other")
    assert here.absent_here(other) == ()
    monkeypatch.setattr(here, "tiles_granted", lambda: False)
    assert here.absent_here(other) == ("amx-tile",)


def test_what_a_unit_takes_is_predicted() -> None:
    found = predict(schedule_for_cpu(product(64, 64, 64), MATRIX), MATRIX)
    assert found.compute_cycles == 64 * 64 * 64 / 256 and found.operations == 2 * 64**3


def test_a_unit_of_a_core_costs_what_its_operators_cost() -> None:
    unit = MATRIX.matrix_unit
    assert isinstance(unit, Engine) and unit.cost["dot4"] == 16 and dict(unit.dots)["dot4"] == 16


# ---- bytes of one kind


def bytes_of(left: str, right: str, spec: str, rows: int, columns: int, steps: int) -> poly.Program:
    first, second = spec.split(" ")
    sizes = {"i": rows, "j": columns, "k": steps}
    shapes = {t: tuple(sizes[n] for n in names.split(",")) for t, names in (("A", first), ("B", second))}
    return poly.parse(f"C[i,j] += i32(A[{first}])*i32(B[{second}])", **shapes, dtypes={"A": left, "B": right})


@pytest.mark.parametrize(
    ("left", "right", "name"), [("i8", "i8", "dot4_i8"), ("u8", "u8", "dot4_u8"), ("u8", "i8", "dot4")]
)
@pytest.mark.parametrize("spec", ["i,k k,j", "k,i j,k"])
def test_bytes_of_one_kind_are_as_they_are(left: str, right: str, name: str, spec: str) -> None:
    """Nothing is added to them, no sums are put right; what the unit has in rows lies along its steps."""
    program = bytes_of(left, right, spec, 40, 64, 130)
    changed = sums_by_dots(program, MATRIX.dot_operators)
    assert f" += {name}(" in str(changed) and not any("sum" in t.name for t in changed.tensors)
    assert any("turned" in t.name for t in changed.tensors) == (spec == "k,i j,k")
    assert str(parse_program(str(changed))) == str(changed)
    random = np.random.default_rng(7)
    given = {
        t.name: random.integers(-128, 128, t.extents({})).astype(np.int8).view({"i8": "i1", "u8": "u1"}[t.dtype])
        for t in program.inputs
    }
    np.testing.assert_array_equal(run_program(changed, given)["C"], run_program(program, given)["C"])


@pytest.mark.parametrize("rows", [16, 17, 23])
def test_few_rows_of_bf16(rows: int) -> None:
    """As many as a tile has: vectors of pairs are slower than they are rated."""
    tree = joined(MATRIX, "i,k k,j", rows, 256, 256).lower()
    assert any(isinstance(n, For) and n.engine == "matrix" for n in tree.nodes())
    assert "dot2_bf16" not in str(joined(MATRIX, "i,k k,j", 15, 256, 256).program)


def test_small_sums_and_other_machines_have_bytes_of_both_kinds() -> None:
    small, large = (bytes_of("i8", "i8", "i,k k,j", n, n, 128) for n in (16, 64))
    vectors = without_matrix_unit(MATRIX).dot_operators
    assert "dot4_i8" in str(sums_by_dots(large, MATRIX.dot_operators))
    for program, dots in ((small, MATRIX.dot_operators), (large, vectors)):
        assert " += dot4(" in str(sums_by_dots(program, dots))


@pytest.mark.parametrize("name", ["vnni", "avxvnni", "avx2", "sse"])
@pytest.mark.parametrize("operator", ["dot4_i8", "dot4_u8"])
def test_vectors_of_bytes_of_one_kind(operator: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left over for vectors is the same, to the ends of their range."""
    run_here(monkeypatch)
    machine = (DOT_CPUS | CPUS)[name]
    program = poly.parse(f"A: i32[5, 9]; B: i32[9, 37]; C: i32[5, 37]; C[i,j] += {operator}(A[i,k], B[k,j])")
    a, b = words(5, 9), words(9, 37)
    a[0], b[:, 0], a[1], b[:, 1] = -0x7F7F7F80, -0x7F7F7F80, -1, 0x7F7F7F7F
    found: Any = poly.compile(program, machine)
    np.testing.assert_array_equal(found(a, b), run_program(program, {"A": a, "B": b})["C"])


# ---- bf16


def halves(*shape: int, most: int = 8) -> NDArray[Any]:
    """Small integers, whose products and sums f32 holds."""
    return np.random.default_rng(sum(shape)).integers(-most, most + 1, shape).astype(ml_dtypes.bfloat16)


@here_only
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [None, np.float32])
@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ("ij,jk->ik", (64, 64, 64)), ("ij,kj->ik", (70, 131, 50)), ("ji,jk->ik", (96, 100, 67)),
        ("ji,kj->ik", (40, 96, 64)), ("bij,bjk->bik", (33, 65, 64)), ("ij,jk->ki", (64, 96, 64)),
    ],
)  # fmt: skip
def test_products_of_bf16(spec: str, sizes: tuple[int, int, int], dtype: Any, threads: int) -> None:
    extents = dict(zip("ijkb", (*sizes, 2), strict=True))
    a, b = (halves(*(extents[n] for n in names)) for names in spec.split("->")[0].split(","))
    wanted = np.einsum(spec, a.astype(np.float32), b.astype(np.float32)).astype(dtype or ml_dtypes.bfloat16)
    np.testing.assert_array_equal(poly.einsum(spec, a, b, dtype=dtype, threads=threads), wanted)


@here_only
def test_infinities_and_nan_of_bf16() -> None:
    a, b = halves(64, 64), halves(64, 64)
    a[3, 5], a[7, 9], b[11, 13] = np.inf, np.nan, -np.inf
    found = poly.einsum("ij,jk->ik", a, b, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, np.einsum("ij,jk->ik", a.astype(np.float32), b.astype(np.float32)))


def test_sums_of_bf16_in_pairs() -> None:
    """Two steps in each element, zeros behind the last one; sums that are no products of matrices stay."""
    text = "C[i,j] += f32(A[i,k])*f32(B[k,j])"
    program = poly.parse(text, A=(64, 67), B=(67, 64), dtypes={"A": "bf16", "B": "bf16", "C": "f32"})
    paired = sums_of_pairs(program, MATRIX.dot_operators)
    assert "dot2_bf16" in str(paired) and str(parse_program(str(paired))) == str(paired)
    a, b = halves(64, 67), halves(67, 64)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(run_program(paired, {"A": a, "B": b})["C"], wanted)
    tree = schedule_for_cpu(paired, MATRIX).lower()
    assert any(isinstance(n, For) and n.engine == "matrix" for n in tree.nodes())
    assert sums_of_pairs(program, {"dot4"}) is program
    for other in ("C[i] += f32(A[i,k])*f32(B[k])", "C[i,j] += f32(A[i,2*k])*f32(B[k,j])"):
        shapes = {"A": (40, 67), "B": (67,)} if "B[k])" in other else {"A": (40, 134), "B": (67, 48)}
        same = poly.parse(other, **shapes, dtypes={"A": "bf16", "B": "bf16", "C": "f32"})
        assert sums_of_pairs(same, MATRIX.dot_operators) is same


@pytest.mark.parametrize("target", ["vectors", "parts"])
def test_pairs_on_vectors(target: str) -> None:
    """What is left over of a product: by an instruction, or by its parts."""
    if target == "vectors" and host_machine().matrix_unit is None:
        pytest.skip("no such instruction")
    core = host_machine().engines_of("core")[0]
    machine = replace(without_matrix_unit(host_machine()), name=target)
    if target == "parts":
        machine = replace(machine, engines=(replace(core, dots=()),))
    program = poly.parse("A: i32[5, 16]; B: i32[16, 40]; C: f32[5, 40]; C[i,j] += dot2_bf16(A[i,k], B[k,j])")
    a, b = halves(5, 32), halves(32, 40)
    pairs = np.ascontiguousarray(b.reshape(16, 2, 40).transpose(0, 2, 1)).view(np.int32)[..., 0]
    kernel: Any = poly.compile(program, target=machine)
    np.testing.assert_array_equal(kernel(a.view(np.int32), pairs), a.astype(np.float32) @ b.astype(np.float32))
