"""The disk cache of planned programs: the same results from it, and damaged or foreign entries are as good as none."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, sleep

import islpy as isl
import numpy as np
import pytest

import poly
from poly.ahead import FEWEST, prepared_ahead
from poly.cache_content import pickled
from poly.codegen.host import host_machine
from poly.codegen.jit import compile_object
from poly.disk_cache import cache_entry, cache_size, read_entry, trim, write_entry
from poly.errors import CapacityError, IllegalEdit
from poly.graph import Graph, Node
from poly.prepared import is_prepared, prepare, prepare_edited, prepare_free, prepare_scheduled
from poly.program import Program
from poly.scheduling.edits import unchecked

pytestmark = pytest.mark.usefixtures("own_cache")

MACHINE = host_machine()
TEXT = "C[i,k] += A[i,j] * B[j,k]; D[i,k] = max(C[i,k] + bias[k], 0)"
PROGRAM = poly.parse(TEXT, A=(9, 17), B=(17, 21), bias=(21,))


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("prepared/*/*.pickle"))


def test_what_comes_from_the_cache_is_what_was_made(own_cache: Path) -> None:
    made = prepare(PROGRAM, MACHINE, 1)
    assert len(entries(own_cache)) == 1
    found = prepare(PROGRAM, MACHINE, 1)
    assert found.schedule is not made.schedule
    assert str(found.schedule) == str(made.schedule) and found.split == made.split and found.after == made.after
    found.schedule.check()
    a, b, bias = (np.random.default_rng(0).standard_normal(s, "f4") for s in ((9, 17), (17, 21), (21,)))
    found = np.asarray(poly.compile(PROGRAM)(a, b, bias), "f4")
    np.testing.assert_allclose(found, np.maximum(a @ b + bias, 0), rtol=1e-5, atol=1e-5)


def test_everything_that_decides_is_in_the_key(own_cache: Path) -> None:
    other = replace(MACHINE, engines=tuple(replace(e, features=()) for e in MACHINE.engines))
    statements = tuple(replace(s, contract=False) for s in PROGRAM.statements)
    kept = tuple(replace(s, reorder=False) if s.combiner else s for s in PROGRAM.statements)
    constant = tuple(replace(t, role="constant") if t.name == "B" else t for t in PROGRAM.tensors)
    ways = [
        (PROGRAM, MACHINE, 1), (PROGRAM, MACHINE, 2), (PROGRAM, other, 1),
        (replace(PROGRAM, tensors=constant), MACHINE, 1),
        (replace(PROGRAM, statements=statements), MACHINE, 1), (replace(PROGRAM, statements=kept), MACHINE, 1),
        (poly.parse(TEXT, A=(9, 17), B=(17, 22), bias=(22,)), MACHINE, 1),
    ]  # fmt: skip
    for k, (program, machine, threads) in enumerate(ways):
        prepare(program, machine, threads)
        assert len(entries(own_cache)) == k + 1


def test_a_program_is_edited_once_and_only_by_its_own_entry(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edits: list[Program] = []
    monkeypatch.setattr("poly.scheduling.cpu_program.known_for_cpu", lambda p, *_: edits.append(p) or p)
    for _ in range(2):
        assert prepare_edited(PROGRAM, {}, MACHINE, 1)[0] is PROGRAM
        assert len(entries(own_cache)) == 1
    prepare(PROGRAM, MACHINE, 1)  # a group of a model, say, that has been edited
    assert edits == [PROGRAM] and len(entries(own_cache)) == 2


def test_what_is_kept_is_found_without_the_policy() -> None:
    """The first call of a process does not even import it."""
    call = "import numpy, poly, sys; a = numpy.ones((64, 64), 'f4'); poly.einsum('ij,jk->ik', a, a)"
    code = f"{call}; print('poly.scheduling.cpu' in sys.modules)"
    root = Path(poly.__file__).parents[1]
    runs = [subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True).stdout
            for _ in range(2)]  # fmt: skip
    assert runs == ["True\n", "False\n"]


@pytest.mark.parametrize("damage", [b"", b"polyloom", lambda c: c[:-5], lambda c: c[:80] + b"?" + c[81:]])
def test_a_damaged_entry_is_made_again(own_cache: Path, damage: object) -> None:
    expected = str(prepare(PROGRAM, MACHINE, 1).schedule)
    (path,) = entries(own_cache)
    whole = path.read_bytes()
    path.write_bytes(damage(whole) if callable(damage) else damage)  # type: ignore[arg-type]
    assert str(prepare(PROGRAM, MACHINE, 1).schedule) == expected
    assert read_entry(path) is not None


@pytest.mark.parametrize("content", [b"not a pickle", pickle.dumps("something else")])
def test_an_entry_that_cannot_be_read_is_made_again(own_cache: Path, content: bytes) -> None:
    expected = str(prepare(PROGRAM, MACHINE, 1).schedule)
    (path,) = entries(own_cache)
    write_entry(path, content)
    assert str(prepare(PROGRAM, MACHINE, 1).schedule) == expected


def test_a_cache_that_cannot_be_written_is_no_error(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_cache / "file").write_text("")
    monkeypatch.setenv("POLYLOOM_CACHE", str(own_cache / "file"))
    prepare(PROGRAM, MACHINE, 1)
    path = cache_entry("kind", ["a"], ".x")
    write_entry(path, b"1")
    assert read_entry(path) is None
    monkeypatch.setenv("POLYLOOM_CACHE", "off")
    assert cache_entry("kind", ["a"], ".x") is None and read_entry(None) is None
    prepare(PROGRAM, MACHINE, 1)


def test_a_given_schedule_is_kept_by_what_it_holds(own_cache: Path) -> None:
    plain = poly.Schedule(PROGRAM)
    loop = next(iter(plain.nests.values())).names[0]
    tiled = plain.tile({loop: 4})
    by_hand = replace(plain, nests=tiled.nests)  # the same script, other loops
    for k, schedule in enumerate((plain, tiled, by_hand, replace(tiled, checked=False))):
        made = prepare_scheduled(schedule, MACHINE, 1)
        assert len(entries(own_cache)) == k + 1
        found = prepare_scheduled(schedule, MACHINE, 1)
        assert len(entries(own_cache)) == k + 1
        assert (found.split, found.after, found.before) == (made.split, made.after, made.before)
        assert found.schedule.checked and str(found.schedule) == str(schedule)


def test_a_wrong_schedule_is_refused_every_time(own_cache: Path) -> None:
    program = poly.parse("Y[i] = X[i] + 1; Z[i] = 2 * Y[i]", X=(8,))
    plain = poly.Schedule(program)
    first, second = plain.nests
    nests = {first: replace(plain.nests[first], path=plain.nests[second].path),
             second: replace(plain.nests[second], path=plain.nests[first].path)}  # fmt: skip
    nests = {n: replace(nest, loops={s: next(iter(nest.loops.values())) for s in nest.path if isinstance(s, str)})
             for n, nest in nests.items()}  # fmt: skip
    for _ in range(2):
        with pytest.raises(poly.PolyError):
            prepare_scheduled(replace(plain, nests=nests, checked=False), MACHINE, 1)
    assert not entries(own_cache)


def test_free_sizes_are_kept_apart(own_cache: Path) -> None:
    program = poly.parse("Y[i] = X[i] + 1", X=("N",))
    made = prepare_free(program, MACHINE, 1)
    assert len(entries(own_cache)) == 1
    assert prepare_free(program, MACHINE, 1).after == made.after
    prepare(program, MACHINE, 1)
    assert len(entries(own_cache)) == 2


def test_the_folder_stays_below_its_size(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries used longest ago go first, a use counts, and what is not an entry stays."""
    paths = [cache_entry("kind", [str(k)], ".x") for k in range(10)]
    for k, path in enumerate(paths):
        assert path is not None
        write_entry(path, bytes(1000))
        os.utime(path, (1e9 + k, 1e9 + k))
    foreign = own_cache / "kind" / "ab" / "notes.txt"
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_bytes(bytes(5000))
    old = foreign.with_name("unfinished-1")
    old.write_bytes(bytes(10))
    os.utime(old, (0, 0))
    new = foreign.with_name("unfinished-2")
    new.write_bytes(bytes(10))
    trim(own_cache, 20_000)
    assert all(p is not None and p.exists() for p in paths)
    assert read_entry(paths[0]) == bytes(1000)  # a use
    trim(own_cache, 8_000)  # down to 6,000: five entries of 1,049 bytes
    assert [p is not None and p.exists() for p in paths] == [True] + [False] * 5 + [True] * 4
    assert foreign.exists() and new.exists() and not old.exists()
    monkeypatch.setenv("POLYLOOM_CACHE_SIZE", "3")
    assert cache_size() == 3 << 20


def test_writing_trims_now_and_then(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYLOOM_CACHE_SIZE", "0")
    paths = [p for k in range(2000) if (p := cache_entry("kind", [str(k)], ".x")) is not None and p.name[0] == "0"]
    for path in sorted(paths, key=lambda p: p.name[:2] == "00"):
        write_entry(path, b"1")
    assert not any(p.exists() for p in paths)


def _use(folder: str, seed: int) -> int:
    """Write, read and trim a small cache for a while; gives the number of entries that came back wrong."""
    os.environ["POLYLOOM_CACHE"] = folder
    wrong = 0
    for k in range(300):
        number = (k * 7 + seed) % 40
        path = cache_entry("kind", [str(number)], ".x")
        assert path is not None
        write_entry(path, bytes([number]) * 500)
        found = read_entry(path)
        wrong += found is not None and found != bytes([number]) * 500
        if k % 5 == 0:
            trim(Path(folder), 6000)
    return wrong


def test_processes_share_a_cache_that_is_trimmed(own_cache: Path) -> None:
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(_use, [str(own_cache)] * 3, range(3))) == [0, 0, 0]
    trim(own_cache, 6000)
    assert sum(p.stat().st_size for p in own_cache.glob("*/??/*")) <= 6000


def programs(count: int) -> list[Program]:
    return [poly.parse("Y[i] = X[i] + 1", X=(n + 1,)) for n in range(count)]


def test_another_process_fills_the_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYLOOM_JOBS", "2")
    wanted = programs(FEWEST)
    with prepared_ahead(wanted, MACHINE, 1):
        deadline = monotonic() + 60
        while not all(is_prepared(p, MACHINE, 1) for p in wanted) and monotonic() < deadline:
            sleep(0.05)
    assert all(is_prepared(p, MACHINE, 1) for p in wanted)
    made = [prepare(p, MACHINE, 1) for p in wanted]
    assert [sorted(m.after.tensors) for m in made] == [["X", "Y"]] * FEWEST


@pytest.mark.parametrize(("jobs", "count", "cache"), [("1", 50, True), ("8", FEWEST - 1, True), ("8", 50, False)])
def test_no_process_starts_where_it_does_not_pay(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, jobs: str, count: int, cache: bool
) -> None:
    monkeypatch.setenv("POLYLOOM_JOBS", jobs)
    started = list[object]()
    monkeypatch.setattr("subprocess.Popen", lambda *args, **_: started.append(args))
    if not cache:
        monkeypatch.setenv("POLYLOOM_CACHE", "off")
    with prepared_ahead(programs(count), MACHINE, 1):
        pass
    assert not started


def test_a_process_that_cannot_start_is_no_error(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYLOOM_JOBS", "2")
    monkeypatch.setattr("sys.executable", str(own_cache / "nothing"))
    tried, start = list[object](), subprocess.Popen[bytes]
    monkeypatch.setattr("subprocess.Popen", lambda *args, **more: (tried.append(args[0][0]), start(*args, **more))[1])
    with prepared_ahead(programs(FEWEST), MACHINE, 1):
        assert tried == [str(own_cache / "nothing")]
    assert not any(path.is_file() for path in own_cache.rglob("*"))


def test_entry_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that took another's place is as good as none."""
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path))
    one, two = cache_entry("kind", ["a"], ".x"), cache_entry("kind", ["b"], ".x")
    assert one is not None and two is not None
    write_entry(one, b"1")
    two.parent.mkdir(parents=True, exist_ok=True)
    two.write_bytes(one.read_bytes())
    assert read_entry(one) == b"1" and read_entry(two) is None


def test_the_groups_of_a_model_come_from_the_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("g", PROGRAM.tensors, (Node("n", "Op", (), (), PROGRAM.statements),))
    arrays = {t.name: np.ones([int(e.constant) for e in t.shape], "f4") for t in PROGRAM.inputs}
    made = poly.compile(graph)
    (path,) = own_cache.glob("groups/*/*.pickle")
    with monkeypatch.context() as patch:
        patch.setattr("poly.engine_build.group_program", lambda *_: pytest.fail("grouped again"))
        found = poly.compile(graph)
    assert str(found) == str(made) and found.plan == made.plan
    for name, array in made.run(arrays).items():
        np.testing.assert_array_equal(found.run(arrays)[name], array)
    path.write_bytes(b"damaged")
    assert str(poly.compile(graph)) == str(made)


def test_sets_in_entries_come_back_as_they_were() -> None:
    texts = ("[N] -> { S[i, j] : 0 <= i < N and j = 2i }", "{ [a, b] : a >= b }", "[M] -> { : M >= 3 }", "{ S[] }")
    domains = [isl.Set(text) for text in texts]
    domains.append(domains[0].set_tuple_name("a name/with: signs"))
    found = pickle.loads(pickled(domains))
    for domain, again in zip(domains, found, strict=True):
        assert again.is_equal(domain) and str(again) == str(domain)


def test_code_made_while_the_checks_run_is_that_of_the_checked_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYLOOM_CACHE", "off")
    early, late = prepare(PROGRAM, MACHINE, 1, early=True), prepare(PROGRAM, MACHINE, 1)
    assert (early.split, early.after, early.before) == (late.split, late.after, late.before)
    assert early.schedule.checked and str(early.schedule) == str(late.schedule)
    assert early.code(early.after) == compile_object(late.after.ir, MACHINE) and late.code(late.after) is None


def test_code_made_early_is_kept_on_disk(own_cache: Path) -> None:
    made = prepare(PROGRAM, MACHINE, 1, early=True)
    code = made.code(made.after)
    assert len([*own_cache.glob("objects/*/*.o")]) == 1 and code == compile_object(made.after.ir, MACHINE)
    assert prepare(PROGRAM, MACHINE, 1).begun is None


def test_a_wrong_schedule_is_refused_though_its_code_was_begun() -> None:
    program = poly.parse("S[i] += X[i, j]", X=(64, 64))
    plain = poly.Schedule(program)
    loop = plain.nests[program.statements[-1].name].names[-1]
    with pytest.raises(IllegalEdit, match="carries a dependence"):
        prepare_scheduled(unchecked(plain).parallelise(loop), MACHINE, 2, early=True)
    nests = {n: replace(nest, path=nest.path[:1], loops={}) for n, nest in plain.nests.items()}
    with pytest.raises(poly.PolyError):
        prepare_scheduled(replace(plain, nests=nests, checked=False), MACHINE, 1, early=True)


def test_what_does_not_fit_is_refused_before_its_code_is_made() -> None:
    program = poly.parse("C[i,k] += A[i,j] * B[j,k]", A=(64, 64), B=(64, 64))
    schedule = unchecked(poly.Schedule(program)).promote("B", None, MACHINE.register_space)
    with pytest.raises(CapacityError):
        prepare_scheduled(schedule, MACHINE, 1, early=True)


def test_streams_come_from_the_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of programs, of schedules, and of constants by what they hold; the data of constants is not kept."""
    tensors = tuple(replace(t, role="constant") if t.name == "B" else t for t in PROGRAM.tensors)
    program = replace(PROGRAM, tensors=tensors)
    a, b, bias = (np.random.default_rng(0).standard_normal(s, "f4") for s in ((9, 17), (17, 21), (21,)))
    made = [poly.compile(program, "s16", constants={"B": b}), poly.compile(program, "s16", constants={"B": 2 * b})]
    schedule = made[0].schedule
    assert schedule is not None
    made += [poly.compile(schedule, "s16", constants={"B": b})]
    assert len([*own_cache.glob("streams/*/*.pickle")]) == 3
    assert b.tobytes() not in b"".join(p.read_bytes() for p in own_cache.glob("streams/*/*.pickle"))
    monkeypatch.setattr("poly.prepared_streams.compile_stream", lambda *_, **__: pytest.fail("made again"))
    found = [poly.compile(program, "s16", constants={"B": b}), poly.compile(program, "s16", constants={"B": 2 * b}),
             poly.compile(schedule, "s16", constants={"B": b})]  # fmt: skip
    for one, again in zip(made, found, strict=True):
        assert str(one) == str(again) and str(one.schedule) == str(again.schedule) and one.loops == again.loops
        np.testing.assert_array_equal(one(a, bias), again(a, bias))
    result = np.asarray(found[1](a, bias), "f4")
    np.testing.assert_allclose(result, np.maximum(2 * a @ b + bias, 0), rtol=1e-5, atol=1e-5)


def test_a_model_on_an_accelerator_comes_from_the_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("g", PROGRAM.tensors, (Node("n", "Op", (), (), PROGRAM.statements),))
    made = poly.compile(graph, "s16")
    monkeypatch.setattr("poly.prepared_streams.compile_stream", lambda *_, **__: pytest.fail("made again"))
    assert str(poly.compile(graph, "s16")) == str(made)
    with pytest.raises(pytest.fail.Exception):
        poly.compile(graph, "m32")
