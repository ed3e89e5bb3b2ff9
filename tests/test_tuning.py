"""`compile(..., tune=N)`: plans that are measured, by a clock of the tests' own; what is chosen is kept, and computes
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import poly
from poly import compiler
from poly.codegen.host import host_machine
from poly.codegen.kernel import Code, Kernel
from poly.compiler import constant_kernel
from poly.engine import CompiledGroup, Engine
from poly.engine_build import build_engine
from poly.frontend.einsum import einsum_program
from poly.graph import Graph, Node
from poly.interp import run_program
from poly.prepared import Prepared
from poly.program import Program
from poly.scheduling.cpu_candidates import candidates_of
from poly.scheduling.cpu_program import for_cpu, ways_for_cpu
from poly.trials import STAGES, Trial
from poly.tuned_engine import EngineTuner
from poly.tuner import GAIN, TuningContext, fastest, tuned
from poly.tuning import ALONE, Measured, Tuning, measured_groups, tuning_of

pytestmark = pytest.mark.usefixtures("own_cache", "one_process")

MACHINE = replace(host_machine(), cores=2)
PRODUCT = einsum_program("ij,jk->ik", [(40, 24), (24, 48)], ["f32", "f32"])
CHAIN = einsum_program("ij,jk,kl->il", [(24, 16), (16, 32), (32, 20)], ["f32"] * 3)


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYLOOM_JOBS", "1")


class Time:
    """A clock that calls move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Slow:
    """A kernel whose calls take a time that the test says."""

    kernel: Kernel
    time: Time
    seconds: float

    @property
    def inputs(self) -> object:
        return self.kernel.inputs

    @property
    def outputs(self) -> object:
        return self.kernel.outputs

    def runner(self, names: Sequence[str]) -> Callable[[Sequence[int]], None]:
        run = self.kernel.runner(names)

        def call(places: Sequence[int]) -> None:
            run(places)
            self.time.now += self.seconds

        return call


def kernel_of(program: Program, made: Prepared, threads: int = 1) -> Kernel:
    compute = constant_kernel(made, MACHINE, threads)
    assert compute is None
    return Kernel(made.split.after, MACHINE, program.inputs, program.outputs, {}, threads, code=Code(made.after))


class Slower:
    """`ready` of `tuned`: kernels that take the seconds that `of` gives for their loops; counts them."""

    def __init__(self, time: Time, of: Callable[[str], float]) -> None:
        self.time, self.of, self.seen = time, of, list[str]()

    def __call__(self, program: Program, made: Prepared) -> Kernel:
        self.seen.append(str(made.split.after))
        return cast("Kernel", Slow(kernel_of(program, made), self.time, self.of(self.seen[-1])))


def choose(program: Program, ready: Slower, plans: int = 6, seconds: float = 1e9) -> tuple[Program, Measured]:
    context = TuningContext(Tuning(plans, seconds), MACHINE, 1, ready.time)
    found = tuned(program, lambda: [(program, 0.0)], (), ready, context)
    assert found is not None
    return found.program, found.measured


def test_the_fastest_is_chosen_kept_and_found_again(own_cache: Path) -> None:
    time = Time()
    seconds: dict[str, float] = {}
    ready = Slower(time, lambda t: seconds.setdefault(t, (1.0, 0.9, 0.8, 0.5, 0.7, 0.6)[len(seconds)]))
    _, measured = choose(PRODUCT, ready)
    assert (measured.seconds, measured.unmeasured) == (0.5, 1.0) and measured.chosen
    assert measured.plans == measured.listed == len(seconds) >= 4  # of six, some are the same code
    assert len([*own_cache.glob("tuned/*/*.pickle")]) == 1
    seen = len(ready.seen)
    assert choose(PRODUCT, ready)[1] == measured and len(ready.seen) == seen
    choose(PRODUCT, ready, plans=3)
    assert len(ready.seen) == seen  # more were measured before
    assert not choose(PRODUCT, Slower(time, lambda _: 1.0), plans=7)[1].chosen  # measured anew, as more are wanted
    assert len([*own_cache.glob("tuned/*/*.pickle")]) == 1


def test_without_time_nothing_is_chosen(own_cache: Path) -> None:
    ticks = count()
    ready = Slower(Time(), lambda _: 1.0)
    context = TuningContext(Tuning(4, 1e-9), MACHINE, 1, lambda: float(next(ticks)))
    assert tuned(PRODUCT, lambda: [(PRODUCT, 0.0)], (), ready, context) is None
    assert not ready.seen and not [*own_cache.glob("tuned/*/*.pickle")]


def test_what_is_hardly_faster_is_not_chosen() -> None:
    seconds: dict[str, float] = {}
    _, measured = choose(PRODUCT, Slower(Time(), lambda t: seconds.setdefault(t, 0.995 if seconds else 1.0)))
    assert not measured.chosen and measured.seconds == measured.unmeasured == 1.0
    assert "the model's choice" in str(measured)


def test_the_best_plans_of_two_contractions_are_taken_together() -> None:
    context = TuningContext(Tuning(), MACHINE, 1)
    first = context.prepared(candidates_of([(CHAIN, 0.0)], MACHINE, 1, 2)[0])
    assert first is not None

    def of(loops: str) -> float:  # faster with each line that is another
        return 1.0 - 0.005 * min(150, len({*loops.splitlines()} ^ {*str(first.split.after).splitlines()}))

    _, measured = choose(CHAIN, Slower(Time(), of), plans=12)
    assert measured.chosen.count("tiles of") == 2 and measured.plans == measured.listed


def test_rounds_take_turns_and_end_in_time() -> None:
    ticks, called = count(), list[int]()
    trial = Trial(1e9, lambda: float(next(ticks)))
    calls = {k: lambda k=k: called.append(k) for k in (0, 1)}
    times = trial._rounds(calls, 5, 1e9)  # pyright: ignore[reportPrivateUsage]
    assert called == [0, 1, 0, 0, 1, 1, *[0, 1] * 4]  # once to know its time, once before it is long
    assert [len(t) for t in times.values()] == [5, 5]
    ended = trial._rounds({0: lambda: None}, 5, 0.0)  # pyright: ignore[reportPrivateUsage]
    assert [len(t) for t in ended.values()] == [1]
    shown = Trial(1e9, lambda: float(next(ticks))).run(3, lambda k: None if k == 1 else calls[0])
    assert {*shown} == {0, 2} and all(t.stage == len(STAGES) - 1 and t.ratio == 1 for t in shown.values())
    assert fastest(shown) == 0 and GAIN < 1
    assert Trial(1.0).run(2, lambda _: None) == {} and fastest({}) == 0


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("spec", "shapes"), [
    ("ij,jk->ik", [(40, 24), (24, 48)]), ("ji,jk->ik", [(32, 40), (32, 48)]),
    ("ij,jk,kl->il", [(24, 16), (16, 32), (32, 20)]), ("aebf,dfce->abcd", [(6, 5, 7, 4), (3, 4, 20, 5)]),
])  # fmt: skip
def test_candidates_differ_and_compute_the_same(spec: str, shapes: list[tuple[int, ...]], threads: int) -> None:
    program = einsum_program(spec, shapes, ["f32"] * len(shapes))
    ways = ways_for_cpu(program, (), MACHINE, threads)
    assert ways[0][0] == for_cpu(program, (), MACHINE, threads)
    random = np.random.default_rng(0)
    arrays = {t.name: random.integers(-4, 5, t.extents(program.binding)).astype("f4") for t in program.inputs}
    expected = run_program(program, arrays)["out"]
    found = candidates_of(ways, MACHINE, threads, 12)
    assert not found[0].plans and all(c.plans for c in found[1:]) and len(found) > 4
    assert len({(str(c.program), repr(c.plans)) for c in found}) == len(found)
    context = TuningContext(Tuning(), MACHINE, threads)
    made = [one for c in found if (one := context.prepared(c)) is not None]
    assert len(made) > len(found) // 2
    for one in made:
        kernel = kernel_of(program, one, threads)
        np.testing.assert_array_equal(kernel(*arrays.values()), expected)


def test_compiling_by_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((40, 24), "f4"), random.standard_normal((24, 48), "f4")
    kernel = poly.compile(PRODUCT, tune=Tuning(4, 300.0))
    assert isinstance(kernel, Kernel) and kernel.measured is not None and 1 < kernel.measured.plans <= 4
    np.testing.assert_allclose(np.asarray(kernel(a, b), "f4"), a @ b, rtol=1e-4, atol=1e-5)
    assert f"measured    {kernel.measured.plans} of" in str(poly.explain(kernel))

    def refuse(*_: object) -> object:
        raise AssertionError("measured again")

    monkeypatch.setattr(Trial, "run", refuse)
    again = poly.compile(PRODUCT, tune=4)
    assert isinstance(again, Kernel) and again.measured == kernel.measured
    assert str(again.schedule) == str(kernel.schedule)
    plain = poly.compile(PRODUCT)
    assert isinstance(plain, Kernel) and plain.measured is None
    assert "measured" not in str(poly.explain(plain))


def test_constants_of_a_tuned_program() -> None:
    program = poly.parse("constant w: f32[24, 48]; y[i,k] += x[i,j] * w[j,k]", x=(40, 24))
    random = np.random.default_rng(0)
    x, w = random.standard_normal((40, 24), "f4"), random.standard_normal((24, 48), "f4")
    kernel = poly.compile(program, constants={"w": w}, tune=Tuning(4, 300.0))
    np.testing.assert_allclose(np.asarray(kernel(x), "f4"), x @ w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        np.asarray(poly.compile(program, constants={"w": 2 * w}, tune=4)(x), "f4"), x @ w * 2, rtol=1e-4, atol=1e-5
    )


def test_einsum_by_measuring() -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((64, 40), "f4"), random.standard_normal((40, 64), "f4")
    found = poly.einsum("ij,jk->ik", a, b, tune=poly.Tuning(3, 300.0))
    np.testing.assert_allclose(np.asarray(found, "f4"), a @ b, rtol=1e-4, atol=1e-5)
    assert poly.einsum("ij->i", a, tune=3).shape == (64,)


def test_where_there_is_nothing_to_choose() -> None:
    kernel = poly.compile(poly.parse("y[i] = exp(x[i])", x=(100,)), tune=True)
    assert isinstance(kernel, Kernel) and kernel.measured == ALONE
    assert "measured    nothing to choose from" in str(poly.explain(kernel))


def test_what_is_said_of_groups() -> None:
    same, other = Measured(3, 3, 1.0, 2e-6, 2e-6, ""), Measured(4, 5, 1.0, 6e-6, 8e-6, "another")
    assert measured_groups([]) == ""
    assert measured_groups([same]) == "3 plans of 1 different group: the model's choices"
    text = "7 plans of 2 different groups: for 1 another than the model's choice, in 0.75 of its time"
    assert measured_groups([same, other]) == text


@pytest.mark.parametrize(("tune", "found"), [
    (None, None), (0, None), (False, None), (True, Tuning()), (5, Tuning(5)), (Tuning(3, 1.0), Tuning(3, 1.0)),
])  # fmt: skip
def test_what_a_caller_asks(tune: Tuning | int | None, found: Tuning | None) -> None:
    assert tuning_of(tune) == found


@pytest.mark.parametrize(("compile", "message"), [
    (lambda: poly.compile(PRODUCT, tune=1), "plans=1 to measure"),
    (lambda: Tuning(4, 0.0), "seconds=0.0"),
    (lambda: poly.einsum("i,i->", np.ones(3), np.ones(3), tune=cast("int", "many")), "plans='many'"),
    (lambda: tuning_of(cast("int", 2.5)), "plans=2.5"),
    (lambda: poly.compile(PRODUCT, tune=cast("int", "many")), "tune"),
    (lambda: poly.compile(poly.Schedule(PRODUCT), tune=4), "a schedule leaves nothing to tune"),
    (lambda: poly.compile(PRODUCT, target="s16", tune=4), "no CPU"),
    (lambda: poly.compile(poly.parse("y[i,k] += a[i,j]*b[j,k]", a=("I", 8), b=(8, 9)), tune=4), "size .* is free"),
])  # fmt: skip
def test_what_cannot_be_measured_is_said(compile: Callable[[], object], message: str) -> None:
    with pytest.raises(poly.PolyError, match=message):
        compile()


def layers() -> Graph:
    """Two products in a row, of different sizes."""
    text = "constant v: f32[16, 48]; constant w: f32[48, 32]; h[i,j] += x[i,k] * v[k,j]; y[i,j] += h[i,k] * w[k,j]"
    program = poly.parse(text, x=(40, 16))
    random = np.random.default_rng(0)
    constants = {n: random.standard_normal(s, "f4") for n, s in (("v", (16, 48)), ("w", (48, 32)))}
    return Graph("layers", program.tensors, (Node("n", "Op", (), (), program.statements),), constants)


def test_groups_of_a_model_are_measured_in_it(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = layers()
    x = np.random.default_rng(1).standard_normal((40, 16), "f4")
    v, w = (np.asarray(graph.constants[n], "f4") for n in "vw")
    plain = poly.compile(graph)
    tuned_engine = poly.compile(graph, tune=Tuning(4, 300.0))
    found = np.asarray(tuned_engine.run({"x": x})["y"], "f4")
    np.testing.assert_allclose(found, x @ v @ w, rtol=1e-3, atol=1e-3)
    kernels = [cast("Kernel", u.kernel) for u in tuned_engine.compiled_groups]
    assert len(kernels) == 2 and all(k.measured is not None and k.measured.plans > 1 for k in kernels)
    assert "plans of 2 different groups" in str(poly.explain(tuned_engine))
    assert "measured" not in str(poly.explain(plain))
    assert len([*own_cache.glob("tuned/*/*.pickle")]) == 2

    def refuse(*_: object) -> object:
        raise AssertionError("measured again")

    monkeypatch.setattr("poly.tuned_engine.seconds_of_groups", refuse)
    again = poly.compile(graph, tune=4)
    assert [cast("Kernel", u.kernel).measured for u in again.compiled_groups] == [k.measured for k in kernels]


def test_the_fastest_plan_of_each_group_is_taken() -> None:
    """Times by the test: of each group one plan is faster, at different places in the list."""
    graph, machine = layers(), MACHINE
    best = dict[str, str]()

    def seconds(engine: Engine, inputs: Mapping[str, np.ndarray]) -> dict[str, float]:
        engine.run(dict(inputs))
        found: dict[str, float] = {}
        for group in engine.compiled_groups:
            key, loops = str(group.program), str(cast("Kernel", group.kernel).loops)
            seen.setdefault(key, []).append(loops)
            wanted = [*dict.fromkeys(seen[key])]
            if len(wanted) == 3:
                best.setdefault(key, wanted[2])
            found[key] = 0.5 if best.get(key) == loops else 1.0
        return found

    seen: dict[str, list[str]] = {}
    ticks = count()
    context = TuningContext(Tuning(5, 1e6), machine, 1, lambda: float(next(ticks)))
    tuner = EngineTuner(context, compiled_group, seconds=seconds)
    engine = tuner.engine(lambda compile, ahead: build_engine(graph, machine, compile, prepare_ahead=ahead))
    assert len(best) == 2
    assert {str(u.program): str(cast("Kernel", u.kernel).loops) for u in engine.compiled_groups} == best
    assert engine.seconds == next(ticks) - 1  # all of it, measuring too


def compiled_group(program: Program, made: Prepared, measured: Measured | None) -> CompiledGroup:
    return compiler._compiled_group(program, made, MACHINE, 1, 0.0, measured)  # pyright: ignore[reportPrivateUsage]
