"""Random programs under random edits: the loops compute what the program computes, and the text form replays."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import islpy as isl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import poly
from poly.codegen.kernel import Kernel
from poly.errors import IllegalEdit, PolyError, ScheduleError
from poly.frontend.einsum import einsum_program
from poly.interp import run_program
from poly.interp_loops import run_loops
from poly.loops import Alloc, If
from poly.program import Program, Statement
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.instances import check_instances
from poly.scheduling.lowering import lower
from poly.scheduling.schedule import Edit, Schedule
from poly.scheduling.schedule_text import parse_schedule, print_schedule
from poly.scheduling.script import apply_edit
from poly.sets import constraints_of
from poly.text import parse_program
from tests.strategies import inputs_for, programs


def test_what_was_checked_before_does_not_hide_what_an_edit_breaks() -> None:
    """`settle` looks at what has changed since: a nest cut in two moves those behind it, a swap changes their order."""
    plain = Schedule(poly.parse("Y[i] = X[i] + 1; Z[i] = 2 * Y[i]; W[i] = Z[i] - Y[i]", X=(8,)))
    names = [*plain.nests]
    cut = settle(unchecked(plain).split("Y_set.i", 4), plain)
    assert cut.checked and len(cut.nests) == 4
    for one, other in ((0, 1), (1, 2), (0, 2)):
        nests = {**plain.nests}
        for name, to in ((names[one], names[other]), (names[other], names[one])):
            path = (plain.nests[to].path[0], *plain.nests[name].path[1:])
            nests[name] = replace(plain.nests[name], path=path)
        with pytest.raises(IllegalEdit):
            settle(replace(plain, nests=nests, checked=False), plain)


def edited(program: Program, choice: random.Random, count: int) -> Schedule:
    """Some random edits; those that are refused are left out."""
    schedule = Schedule(program)
    for _ in range(count):
        loops = list(schedule.loop_statements)
        if not loops:
            break
        first, second = choice.choice(loops), choice.choice(loops)
        try:
            schedule = one_edit(schedule, choice, first, second)
        except PolyError:
            continue
    return schedule


def one_edit(s: Schedule, choice: random.Random, first: str, second: str) -> Schedule:
    tensor = choice.choice(list(s.program.tensor))
    edits: tuple[Callable[[], Schedule], ...] = (
        lambda: s.tile({first: choice.randint(2, 4)}),
        lambda: s.tile({first: choice.randint(2, 4)}),
        lambda: s.interchange(first, second),
        lambda: s.fuse(first, second),
        lambda: s.distribute(first),
        lambda: s.shift(choice.choice(list(s.nests)), first, choice.randint(-2, 2)),
        lambda: s.skew(first, second, choice.randint(1, 2)),
        lambda: s.split(first, choice.randint(1, 3)),
        lambda: s.promote(tensor, at=first, space="spm", pad=choice.random() < 0.5),
        lambda: s.promote(tensor, at=first, space="spm"),
        lambda: s.unroll(first),
        lambda: s.parallelise(first),
    )
    return choice.choice(edits)()


@settings(derandomize=True, max_examples=40, deadline=None)
@given(programs(), st.integers(0, 10**6), st.booleans())
def test_loops_compute_what_the_program_computes(program: Program, seed: int, bind: bool) -> None:
    sizes, inputs = program.binding, inputs_for(program)
    s = edited(program if bind else replace(program, sizes=()), random.Random(seed), seed % 6)
    tree = lower(s)
    try:
        check_instances(tree, s.program)
    except IllegalEdit:  # some of the programs are in bounds for their own sizes only
        assert not bind
        return
    if not bind and any(e.evaluate(sizes) < 0 for t in s.program.tensors for e in t.storage_shape):
        return
    expected = run_program(program, {k: v.copy() for k, v in inputs.items()}, sizes=sizes)
    found = run_loops(tree, {k: v.copy() for k, v in inputs.items()}, sizes=sizes, program=s.program)
    for tensor in program.outputs:
        np.testing.assert_array_equal(np.asarray(found[tensor.name]), np.asarray(expected[tensor.name]))
    assert parse_schedule(print_schedule(s)) == s


CHAIN = """program chain(N) where N >= 4
input X: f32[N]
temporary T: f32[N]
temporary U: f32[N]
output Y: f32[N]
a[i]: T[i] = X[i]*2.0 where 0 <= i < N
b[i]: U[i] = T[i] + 1.0 where 2 <= i < N
c[i]: Y[i] = U[i]*T[i] where 2 <= i < N
"""


def test_neighbours_share_a_guard() -> None:
    s = Schedule(parse_program(CHAIN)).fuse("a.i", "b.i")
    (loop,) = [name for name in s.loop_statements if "b" in s.loop_statements[name]]
    s = s.fuse(loop, "c.i")
    guards = [n for n in lower(s).nodes() if isinstance(n, If)]
    assert len(guards) == 1 and len(guards[0].body) == 2


@pytest.mark.parametrize("size", [4, 7])
def test_a_promoted_buffer_is_allocated_around_its_users(size: int) -> None:
    s = Schedule(parse_program(CHAIN).bind(N=size)).tile({"a.i": 3}).promote("X", at="a.i.o", space="spm")
    text = str(lower(s))
    assert text.index("for a.i.o") < text.index("alloc") < text.index("ld_X_spm[") < text.index("a[")
    assert text.index("b[") > text.index("a["), "the buffer does not reach into the next nest"


@pytest.mark.parametrize("size", [2, 4000, 4001, 4500])
def test_a_buffer_of_nothing_takes_no_room(size: int) -> None:
    """Its extent, N - 4000, is negative where none of it is used: the next buffer lies behind it all the same."""
    text = "y[i] = x[i]*2 where 0 <= i < N; z[i] = w[i] + 1 where 4000 <= i < N"
    s = Schedule(poly.parse(text, x=("N",), w=("N",), z=("N",))).promote("w", None, "l2").promote("x", None, "l2")
    kernel, x = poly.compile(s), np.arange(size, dtype="f4")
    assert isinstance(kernel, Kernel) and sum(kernel.module.scratch({"N": size})) >= 4 * size
    buffers = [n.tensor for n in kernel.loops.nodes() if isinstance(n, Alloc)]
    assert {t.source_name: t.extents({"N": size}) for t in buffers} == {"x": (size,), "w": (max(0, size - 4000),)}
    y, z = kernel(x, x)
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(z[4000:], x[4000:] + 1)
    np.testing.assert_array_equal(run_loops(kernel.loops, {"x": x, "w": x})["y"], y)


def test_a_schedule_that_was_not_checked_is_checked_when_it_is_compiled() -> None:
    from poly.compiler import compile_program, machine_of
    from poly.errors import IllegalEdit
    from poly.frontend.notation import parse
    from poly.scheduling.edits import unchecked

    program = parse("B[i] = A[i]*2; C[i] = B[i] + 1", A=(40,))
    wrong = unchecked(Schedule(program)).fuse("B_set.i", "C_set.i").shift("B_set", "i", 3)
    for target in ("cpu", "s16"):
        with pytest.raises(IllegalEdit):
            compile_program(program, machine_of(target), {}, 1, wrong)


def clashing(names: tuple[str, ...], size: int) -> Program:
    """Products, one statement a name, with the names that `split` would choose."""
    one = einsum_program("ik,kj->ij", [(size, 5), (5, size)], ["f32", "f32"])
    first, last = one.statements
    result = one.tensor[last.write.tensor]
    tensors = [t for t in one.tensors if t.role == "input"]
    statements: list[Statement] = []
    for k, name in enumerate(names):
        tensors.append(replace(result, name=f"out{k}"))
        for s, own in ((first, f"zero{k}"), (last, name)):
            write, domain = replace(s.write, tensor=f"out{k}"), s.domain.set_tuple_name(own)
            statements.append(replace(s, name=own, domain=domain, path=(k, *s.path), write=write))
    return replace(one, tensors=tuple(tensors), statements=tuple(statements))


@pytest.mark.parametrize("names", [("a", "a_lo", "a_hi"), ("a_hi", "a_lo", "a"), ("a", "a_lo", "a_lo_2", "a_lo_lo")])
def test_pieces_get_names_that_are_free(names: tuple[str, ...]) -> None:
    program = clashing(names, 37)
    schedule = Schedule(program)
    for name in names:
        loop = schedule.nests[name].names[0]
        schedule = schedule.split(loop, 30)
    assert {s.origin or s.name for s in schedule.program.statements} >= set(names)
    choice = np.random.default_rng(0)
    left, right = (choice.integers(-4, 5, shape).astype("f4") for shape in ((37, 5), (5, 37)))
    for result in poly.compile(program)(left, right):
        np.testing.assert_array_equal(result, left @ right)


def test_loops_of_pieces_get_names_that_are_free() -> None:
    program = clashing(("a", "b"), 8)
    schedule = Schedule(program)
    loops = {n: schedule.nests[n].names[0] for n in ("a", "b")}
    nest = schedule.nests["b"]
    clash = f"{loops['a']}.lo"
    path = tuple(clash if step == loops["b"] else step for step in nest.path)
    values = tuple((clash if n == loops["b"] else n, str(v)) for n, v in nest.loops.items())
    schedule = schedule.arrange([("b", path, values)]).split(loops["a"], 4)
    assert schedule.under(clash) == ("b",)
    assert schedule.under(f"{clash}_2") == ("a_lo",)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("tile", {"size": {"i": 2}}), ("tile", {"sizes": {"i": "2"}}), ("split", {"loop": "i", "at": "x"}),
        ("reorder", {"loops": 3}), ("promote", {"tensor": "A", "at": None}), ("nothing", {}),
    ],
)  # fmt: skip
def test_calls_that_are_wrong_are_refused(name: str, arguments: dict[str, object]) -> None:
    schedule = Schedule(clashing(("a",), 8))
    with pytest.raises(ScheduleError):
        apply_edit(schedule, Edit(name, tuple(arguments.items())))


def test_an_existential_without_a_closed_form_gives_no_constraints() -> None:
    text = "{ [i] : exists e, f : e <= 8 and 3e - i < 2f <= i - 3e and 5f <= 7e - i and 11f <= 3i + 4e }"
    assert constraints_of(isl.BasicSet(text), ["i"]) is None


def test_no_loop_comes_inside_of_a_vector_loop() -> None:
    s = Schedule(poly.parse("y[i,j] = x[i,j] + 1", x=(4, 8)))
    with pytest.raises(ScheduleError, match="has j inside"):
        s.vectorise("i")
    for swapped in (lambda: s.vectorise("j").interchange("i", "j"), lambda: s.vectorise("j").reorder("j", "i")):
        with pytest.raises(ScheduleError, match="the vector loop 'j' would have i inside"):
            swapped()
    assert s.interchange("i", "j").vectorise("i").nests["y_set"].names == ("j", "i")


@pytest.mark.parametrize("name", ["t", "x", "b", "t_set", "ld_c"])
def test_names_of_new_tensors_are_free(name: str) -> None:
    """Also those that an edit has removed: what was accessed before is looked up by name."""
    s = Schedule(poly.parse("t[i,j] = x[i,j]*2\ny[i] += t[i,j]", x=(8, 8)))
    s = s.promote("t", None, "dram", name="b").promote("x", None, "dram", name="c")
    assert "t" not in s.program.tensor and "ld_c" in s.program.statement
    makes = (
        lambda: s.promote("b", None, "dram", name=name),
        lambda: s.promote("x", None, "dram", name=name),
        lambda: s.rfactor("y_update", "y_update.j", name=name),
        lambda: s.recompute("b", "y_update.i", name=name),
    )
    for make in makes:
        with pytest.raises(ScheduleError, match=f"tensor '{name}': the name is taken"):
            make()
    free = s.promote("b", None, "dram").rfactor("y_update", "y_update.j")
    assert free.program.tensor.keys() > s.program.tensor.keys() - {"b"}
