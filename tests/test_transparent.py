"""Buffers that change no values: without them a schedule is judged as with all of them."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import poly
from poly.errors import IllegalEdit, ScheduleError, UnsupportedError
from poly.expr import Const
from poly.program import Access
from poly.scheduling.arrange import places_of
from poly.scheduling.cpu_first_use import with_first_use
from poly.scheduling.schedule import Schedule
from poly.scheduling.transparent import without_transparent
from poly.scheduling.values import _follow, check_values, concerned_tensors
from poly.scheduling.vectors import Vectors
from tests.mutation_programs import program
from tests.mutations import mutants


def followed(schedule: Schedule) -> bool:
    """Whether the values are right, every copy followed."""
    try:
        _follow(schedule, Vectors(schedule))
    except IllegalEdit:
        return False
    return True


def taken(schedule: Schedule) -> Schedule | None:
    """What is left of a schedule without such buffers; None where there are none."""
    left = without_transparent(schedule, Vectors(schedule))
    return None if left is schedule else left


def test_mutants_are_judged_alike() -> None:
    fewer = wrong = 0
    for kind in ("promote", "missing_copy", "short_halo", "early_reuse", "recompute", "rfactor"):
        for _, mutant in zip(range(8), mutants(kind, 23), strict=False):
            for schedule in (mutant.base, mutant.schedule):
                try:
                    left = taken(schedule)
                    right = followed(schedule)
                except UnsupportedError:
                    continue
                if left is not None:
                    fewer += 1
                    assert followed(left) == right, f"{mutant}"
                wrong += not right
    assert fewer >= 20 and wrong >= 8, (fewer, wrong)


def product() -> Schedule:
    """A product with a packed operand and its result in registers, sums in blocks, sizes that tiles do not divide."""
    p = poly.parse("C[i, j] += A[i, k] * B[k, j]", A=(11, 10), B=(10, 19))
    s = Schedule(p)
    s = s.tile(k=4).reorder("k.o", "C_update.i", "C_update.j", "k.p").tile({"C_update.j": 8})
    s = s.reorder("C_update.j.o", "C_update.i", "C_update.j.p", "k.p")
    s = s.promote("B", "C_update.j.o", "l2", name="Bp").tile({"C_update.i": 4})
    s = s.reorder("C_update.i.o", "k.p", "C_update.i.p", "C_update.j.p")
    return s.promote("C", "C_update.i.o", "reg", name="Cr")


def test_packed_operands_and_register_tiles_go() -> None:
    schedule = product()
    left = taken(schedule)
    assert left is not None and not concerned_tensors(left)
    assert [t.name for t in left.program.tensors] == ["C", "A", "B"]
    assert followed(schedule)


def changed(schedule: Schedule, name: str, change: Callable[[Access], Access], write: bool) -> Schedule:
    """A schedule with another write or another first read of a statement."""
    s = schedule.program.statement[name]
    new = replace(s, write=change(s.write)) if write else replace(s, reads=(change(s.reads[0]), *s.reads[1:]))
    statements = tuple(new if t is s else t for t in schedule.program.statements)
    return replace(schedule, program=replace(schedule.program, statements=statements))


def moved(by: int, axis: int = 0) -> Callable[[Access], Access]:
    def change(access: Access) -> Access:
        index = list(access.affine_index)
        index[axis] = index[axis] + by
        return replace(access, index=tuple(index))

    return change


@pytest.mark.parametrize(
    ("name", "write", "by", "axis"),
    [
        ("ld_Bp", False, 1, 0),
        ("ld_Bp", True, -1, 1),
        ("ld_Cr", False, 1, 1),
        ("st_Cr", True, 1, 0),
        ("C_update", False, 1, 1),
    ],
)
def test_a_wrong_subscript_is_refused(name: str, write: bool, by: int, axis: int) -> None:
    """Copies that move the wrong elements, and users that read the wrong ones of a buffer."""
    schedule = product()
    if name == "C_update":
        users = schedule.program.statement[name]
        at = next(k for k, r in enumerate(users.reads) if r.tensor == "Bp")
        reads = tuple(moved(by, axis)(r) if k == at else r for k, r in enumerate(users.reads))
        statements = tuple(replace(t, reads=reads) if t is users else t for t in schedule.program.statements)
        wrong = replace(schedule, program=replace(schedule.program, statements=statements))
    else:
        wrong = changed(schedule, name, moved(by, axis), write)
    with pytest.raises(IllegalEdit):
        check_values(wrong)


def test_a_buffer_that_is_stale_stays() -> None:
    """Somebody writes the tensor while a copy of it is used."""
    p = poly.parse("B[i] = A[i] + 1\nC[i, j] = B[i] * X[j]\nD[i] = B[i] + C[i, 0]", A=(6,), X=(4,))
    s = Schedule(p)
    loops = [s.nests[n.name].names[0] for n in p.statements]
    s = s.fuse(loops[0], loops[1])
    reader = p.statements[1].name
    early = s.promote("B", s.nests[reader].names[0], "reg", name="Br", users=[reader])
    assert taken(early) is None, "its writer stands in the same loop"
    assert followed(early)


def on_way(step: str = "e0", after: bool = False) -> Schedule:
    """The first row of a product makes the copy that all rows read, at a step of its own or after its use."""
    p = poly.parse("C[i, j] += A[i, k] * B[k, j]", A=(7, 10), B=(10, 16))
    s = Schedule(p).tile({"C_update.j": 8}).reorder("C_update.j.o", "C_update.i", "k", "C_update.j.p")
    s = s.promote("B", "C_update.j.o", "l2", name="Bp").split("C_update.i", at=1)
    s = s.vectorise("ld_Bp.1").vectorise("C_update.j.p.lo")
    made = with_first_use(s, "C_update_lo", "ld_Bp", {"i": 0})
    (copy, user) = (x for x in places_of(made) if x[0] in ("ld_Bp", "C_update_lo"))
    depth = copy[1].index("k.lo") + 1
    assert copy[1][:depth] == user[1][:depth]
    loops = tuple((n, step if n == "k.lo" else e) for n, e in copy[2])
    order = [(*x[1][:depth], k, *x[1][depth + 1 :]) for k, x in ((int(after), copy), (int(not after), user))]
    return made.arrange([(copy[0], order[0], loops), (user[0], order[1], user[2])])


def test_a_copy_on_the_way_of_its_first_use_goes() -> None:
    left = taken(on_way())
    assert left is not None and not concerned_tensors(left)
    assert followed(on_way())


def test_loops_that_do_not_say_what_is_copied_have_no_copy_on_their_way() -> None:
    """A subscript of two iterators, and a copy that has no vectors."""
    window = poly.parse("C[i, j] += A[i, k] * B[k + j]", A=(7, 10), B=(25,), C=(7, 16))
    s = Schedule(window).tile({"C_update.j": 8}).reorder("C_update.j.o", "C_update.i", "k", "C_update.j.p")
    s = s.promote("B", "C_update.j.o", "l2", name="Bp").split("C_update.i", at=1)
    with pytest.raises(ScheduleError, match="C_update_lo reads Bp by other than iterators"):
        with_first_use(s, "C_update_lo", "ld_Bp", {"i": 0})
    product = poly.parse("C[i, j] += A[i, k] * B[k, j]", A=(7, 10), B=(10, 16))
    s = Schedule(product).tile({"C_update.j": 8}).reorder("C_update.j.o", "C_update.i", "k", "C_update.j.p")
    s = s.promote("B", "C_update.j.o", "l2", name="Bp").split("C_update.i", at=1)
    with pytest.raises(ScheduleError, match="the loops of C_update_lo do not say what ld_Bp copies"):
        with_first_use(s, "C_update_lo", "ld_Bp", {"i": 0})


@pytest.mark.parametrize(("step", "after"), [("e0", True), ("9 - e0", False)])
def test_a_copy_that_comes_late_is_refused(step: str, after: bool) -> None:
    with pytest.raises(IllegalEdit, match="reads Bp and does not get the value"):
        check_values(on_way(step, after))


def test_padding_goes_with_its_guard_and_another_fill_does_not() -> None:
    p = program("conv_padded")
    update = next(s for s in p.statements if s.combiner is not None)
    schedule = Schedule(p).promote("X", None, "l2", name="Xp", users=[update.name], pad=True)
    left = taken(schedule)
    assert left is not None and not concerned_tensors(left)
    one = changed(schedule, "ld_Xp", lambda access: replace(access, fill=Const(1.0, "f32")), write=False)
    assert taken(one) is None


def test_free_sizes() -> None:
    p = replace(program("matmul"), sizes=())
    schedule = Schedule(p).tile({"upd.j": 4}).promote("B", "upd.j.o", "l2", name="Bp")
    schedule = schedule.promote("C", "upd.j.p", "reg", name="Cr")
    left = taken(schedule)
    assert left is not None and not concerned_tensors(left)
    assert followed(schedule)
