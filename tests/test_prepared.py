"""The disk cache of planned programs: the same results from it, and damaged or foreign entries are as good as none."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

import poly
from poly.ahead import FEWEST, prepared_ahead
from poly.codegen.host import host_machine
from poly.disk_cache import cache_entry, read_entry, write_entry
from poly.prepared import is_prepared, prepare
from poly.program import Program

MACHINE = host_machine()
TEXT = "C[i,k] += A[i,j] * B[j,k]; D[i,k] = max(C[i,k] + bias[k], 0)"
PROGRAM = poly.parse(TEXT, A=(9, 17), B=(17, 21), bias=(21,))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path))
    return tmp_path


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


@pytest.mark.parametrize("damage", [b"", b"polyloom", lambda c: c[:-5], lambda c: c[:80] + b"?" + c[81:]])
def test_a_damaged_entry_is_made_again(own_cache: Path, damage: object) -> None:
    expected = str(prepare(PROGRAM, MACHINE, 1).schedule)
    (path,) = entries(own_cache)
    whole = path.read_bytes()
    path.write_bytes(damage(whole) if callable(damage) else damage)  # type: ignore[arg-type]
    assert str(prepare(PROGRAM, MACHINE, 1).schedule) == expected
    assert path.read_bytes()[:60] == whole[:60]


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


def test_a_given_schedule_is_not_kept(own_cache: Path) -> None:
    poly.compile(poly.Schedule(PROGRAM))
    assert not entries(own_cache)


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
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process started"))
    if not cache:
        monkeypatch.setenv("POLYLOOM_CACHE", "off")
    with prepared_ahead(programs(count), MACHINE, 1):
        pass


def test_a_process_that_cannot_start_is_no_error(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYLOOM_JOBS", "2")
    monkeypatch.setattr("sys.executable", str(own_cache / "nothing"))
    with prepared_ahead(programs(FEWEST), MACHINE, 1):
        pass


def test_entry_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that took another's place is as good as none."""
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path))
    one, two = cache_entry("kind", ["a"], ".x"), cache_entry("kind", ["b"], ".x")
    assert one is not None and two is not None
    write_entry(one, b"1")
    two.parent.mkdir(parents=True, exist_ok=True)
    two.write_bytes(one.read_bytes())
    assert read_entry(one) == b"1" and read_entry(two) is None
