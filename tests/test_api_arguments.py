"""Wrong arguments at every public function: only `PolyError` comes out (`TypeError` where one is missing), and soon."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import poly
from poly.cli import main
from poly.errors import Bug, PolyError
from poly.frontend.nest import Array, f64
from poly.model_check import check_model

TEXT = "C[i,k] += A[i,j] * B[j,k]"
PROGRAM = poly.parse(TEXT, A=(8, 6), B=(6, 4))
FREE = poly.parse(TEXT, A=("N", 6), B=(6, 4))
SCHEDULE = poly.Schedule(PROGRAM)
WRONG: dict[str, Any] = {
    "None": None, "int": 5, "negative": -3, "zero": 0, "huge": 2**70, "near 2**63": 2**63 - 1, "empty": "",
    "word": "no such thing", "zero byte": "\0", "nan": float("nan"), "list": [], "tuple": (), "dict": {},
    "object": object(), "bytes": b"\xff", "array": np.zeros(3), "bool": True, "dict of None": {None: None},
    "list of None": [None], "function": print, "class": int, "set": {1}, "complex": 1j,
}  # fmt: skip


@cache
def kernel() -> Any:
    return poly.compile(PROGRAM)


# what is called, with arguments that are right
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "einsum": (poly.einsum, ("ij,jk->ik", np.ones((2, 3)), np.ones((3, 2))), {
        "out": None, "optimize": False, "dtype": None, "order": "K", "casting": "safe", "threads": 1}),
    "einsum of lists": (poly.einsum, (np.ones((2, 3)), [0, 1], [0]), {}),
    "parse": (poly.parse, (TEXT,), {"A": (8, 6), "B": (6, 4), "dtypes": {"A": "f32"}}),
    "compile": (poly.compile, (PROGRAM,), {
        "target": "cpu", "constants": None, "threads": 1, "schedule": None, "progress": None}),
    "explain": (poly.explain, (SCHEDULE,), {}),
    "from_onnx": (poly.from_onnx, ("none.onnx",), {"shapes": None, "constants": None}),
    "check_model": (check_model, ("none.onnx",), {"shapes": None, "constants": None}),
    "nest": (poly.nest, (), {}),
    "read_machine": (poly.read_machine, ("none.toml",), {}),
    "run_program": (poly.run_program, (PROGRAM, {"A": np.ones((8, 6), "f4"), "B": np.ones((6, 4), "f4")}), {}),
    "Schedule": (poly.Schedule, (PROGRAM,), {}),
    "Schedule.parse": (poly.Schedule.parse, (str(SCHEDULE),), {}),
    "bind": (FREE.bind, (), {"N": 4}),
    "kernel": (lambda *given: kernel()(*given), (np.ones((8, 6), "f4"), np.ones((6, 4), "f4")), {}),
    "carried": (SCHEDULE.carried, ("j",), {}),
    "tile": (SCHEDULE.tile, ({"j": 2},), {}),
    "tile by name": (SCHEDULE.tile, (), {"j": 2}),
    "interchange": (SCHEDULE.interchange, ("C_update.i", "C_update.k"), {}),
    "reorder": (SCHEDULE.reorder, ("C_update.i", "C_update.k"), {}),
    "fuse": (SCHEDULE.fuse, ("C_init.i", "C_update.i"), {}),
    "distribute": (SCHEDULE.distribute, ("j",), {"at": 1}),
    "shift": (SCHEDULE.shift, ("C_update", "j", 1), {}),
    "skew": (SCHEDULE.skew, ("j", "C_update.i"), {"factor": 1}),
    "split": (SCHEDULE.split, ("j", 3), {}),
    "unroll": (SCHEDULE.unroll, ("j",), {}),
    "vectorise": (SCHEDULE.vectorise, ("C_init.k",), {}),
    "nontemporal": (SCHEDULE.nontemporal, ("C_init.k",), {}),
    "prefetch": (SCHEDULE.prefetch, ("C_init.k", "C_init.i"), {"ahead": 1}),
    "repeat": (SCHEDULE.repeat, ("N", []), {}),
    "prefetch_copy": (SCHEDULE.prefetch_copy, ("j", "A", 16), {}),
    "prefetch_block": (SCHEDULE.prefetch_block, ("j", "A", 16), {"along": None}),
    "nowait": (SCHEDULE.nowait, ("C_init.i", "C_update.i"), {}),
    "leave": (SCHEDULE.leave, ("C_init.i", "C_init"), {}),
    "shorten": (SCHEDULE.shorten, ("C_init.k", "C_init.i + 1"), {}),
    "parallelise": (SCHEDULE.parallelise, ("C_init.i",), {}),
    "tensorise": (SCHEDULE.tensorise, (("j",), "matrix"), {}),
    "promote": (SCHEDULE.promote, ("A", "C_update.i", "l1"), {
        "name": None, "users": None, "order": None, "pad": False, "fold": None, "block": None}),
    "inline": (SCHEDULE.inline, ("C_init",), {}),
    "recompute": (SCHEDULE.recompute, ("A", "C_update.i"), {"space": "dram", "name": None}),
    "overlay": (SCHEDULE.overlay, ("C", "A"), {}),
    "rfactor": (SCHEDULE.rfactor, ("C_update", "j"), {"at": None, "name": None}),
    "double_buffer": (SCHEDULE.double_buffer, ("A", "j"), {"depth": 2}),
    "arrange": (SCHEDULE.arrange, ([],), {}),
    "under": (SCHEDULE.under, ("j",), {}),
    "outer": (SCHEDULE.outer, ("j",), {}),
    "kind": (SCHEDULE.kind, ("j",), {}),
    "statement": (SCHEDULE.statement, ("C_init",), {}),
}  # fmt: skip


@contextmanager
def time_limit(seconds: int) -> Generator[None]:
    def stop(_signal: int, _frame: object) -> None:
        raise AssertionError(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def variants(name: str) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Calls with one argument replaced, with one too few and one too many."""
    _, arguments, keywords = CALLS[name]
    for word, wrong in WRONG.items():
        for k in range(len(arguments)):
            yield f"{k}: {word}", (*arguments[:k], wrong, *arguments[k + 1 :]), keywords
        for keyword in keywords:
            yield f"{keyword}: {word}", arguments, {**keywords, keyword: wrong}
        yield f"one more: {word}", (*arguments, wrong), keywords
    yield "none", (), {}
    if arguments:
        yield "one less", arguments[:-1], keywords


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments(name: str) -> None:
    function, _, _ = CALLS[name]
    escaped: list[str] = []
    for what, arguments, keywords in variants(name):
        try:
            with time_limit(20):
                function(*arguments, **keywords)
        except PolyError as error:
            assert str(error), what
        except TypeError as error:
            if not any(w in str(error) for w in ("argument", "keyword")) or "one" not in what and what != "none":
                escaped.append(f"{what}: {error!r}")
        except (Exception, Bug) as error:
            escaped.append(f"{what}: {error!r}"[:200])
    assert not escaped, "\n".join(escaped)


def test_every_public_name_is_tried() -> None:
    edits = {n for n, _ in inspect.getmembers(poly.Schedule, inspect.isfunction) if not n.startswith("_")}
    plain = {"lower", "isl_tree", "check", "with_nests", "parse"}
    assert edits - plain <= set(CALLS)
    functions = {n for n in poly.__all__ if inspect.isfunction(getattr(poly, n))}
    assert functions <= set(CALLS)


@pytest.mark.parametrize(("text", "dtype", "message"), [
    ("b[i] = a[i] + 300", "i8", "300 does not fit i8"), ("b[i] = a[i] * 1.5", "i8", "1.5 is no i8"),
    ("b[i] = a[i] + 1.5", "i64", "1.5 is no i64"), ("b[i] = a[i] + (-1)", "u8", "-1 does not fit u8"),
    ("b[i] = max(a[i], 300)", "i8", "does not fit"),
    ("b[i] = select(a[i] > 0, 300, a[i])", "i8", "does not fit"), ("b[i] = a[i] + 2147483648", "i32", "does not fit"),
    ("b[i] = a[i] + 99999999999999999999", "i64", "does not fit"),
])  # fmt: skip
def test_literals_that_integers_do_not_have(text: str, dtype: str, message: str) -> None:
    with pytest.raises(PolyError, match=message):
        poly.parse(text, a=(4,), dtypes={"a": dtype})


@pytest.mark.parametrize(("text", "dtype", "value"), [
    ("b[i] = a[i] + 126", "i8", 127), ("b[i] = a[i] - 127", "i8", -126), ("b[i] = a[i] * 2.0", "i32", 2),
    ("b[i] = a[i] + 255 - 1", "u8", 255), ("b[i] = a[i] + 300", "f32", 301),
    ("b[i] = a[i] < 300", "i8", True),
])  # fmt: skip
def test_literals_that_fit(text: str, dtype: str, value: float) -> None:
    program = poly.parse(text, a=(4,), dtypes={"a": dtype})
    ones = np.ones(4, {"i8": "i1", "i32": "i4", "u8": "u1", "f32": "f4"}[dtype])
    assert poly.run_program(program, {"a": ones})["b"].tolist() == [value] * 4
    assert np.asarray(poly.compile(program)(ones)).tolist() == [value] * 4


@pytest.mark.parametrize("size", [2**48 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 2**100])
def test_sizes_near_the_end_of_integers(size: int) -> None:
    for text in ("b[i] = a[i]", "s[] += a[i]", "c[i,j] = a[i]*a[j]"):
        with pytest.raises(PolyError, match="is more than"):
            poly.parse(text, a=(size,))
    with pytest.raises(PolyError, match="is more than"):
        FREE.bind(N=size)
    with pytest.raises(PolyError):
        SCHEDULE.tile({"j": size})
    for text in (f"b[i] = a[i + {size}]", f"b[i + {size}] = a[i]", f"b[i] = a[i // {size}]", f"b[{size}*i] = a[i]"):
        with time_limit(20), suppress(PolyError):
            poly.compile(poly.parse(text, a=(4,)))


@poly.nest
def doubled(N: int, A: f64[Array, "N"]) -> None:  # noqa: F821, UP037
    for i in range(N):
        A[i] = A[i] * 2


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: poly.compile(TEXT, A=(8, 6), B=(6, 4)), "compile(parse(text, A=(8, 6), B=(6, 4)))"),  # type: ignore
        (lambda: poly.compile(TEXT, shapes={"A": (8, 6), "B": [6, 4]}), "compile(parse(text, A=(8, 6), B=[6, 4]))"),  # type: ignore
        (lambda: poly.compile(TEXT, A=np.ones((8, 6)), B=4), "compile(parse(text, A=(8, 6), B=4))"),  # type: ignore
        (lambda: poly.compile("m.onnx", shapes={"x": (1, 3)}), "compile(from_onnx('m.onnx', shapes={'x': (1, 3)}))"),  # type: ignore
        (lambda: poly.compile(Path("m.onnx"), x=(1, 3)), "compile(from_onnx('m.onnx', shapes={'x': (1, 3)}))"),  # type: ignore
        (lambda: poly.compile("ij,jk->ik", np.ones((8, 6)), np.ones((6, 4))), "einsum('ij,jk->ik', a, b)"),  # type: ignore
        (lambda: poly.compile("y[i] = x[i]", np.ones(3)), "arrays go to what it returns: compile(what)(array)"),  # type: ignore
        (lambda: poly.compile(PROGRAM, thread=2), "threads="),  # type: ignore
        (lambda: poly.parse(TEXT, (8, 6), (6, 4)), "shapes have names: parse(text, A=(64, 96))"),  # type: ignore
        (lambda: poly.parse(TEXT, A=np.ones((8, 6))), "A=A.shape; the array itself goes to the kernel"),  # type: ignore
    ],
)
def test_shapes_where_they_are_not_taken_are_met_with_the_call_that_takes_them(
    call: Callable[[], object], hint: str
) -> None:
    with pytest.raises(PolyError) as error:
        call()
    assert error.value.hint == hint


def test_a_nest_is_compiled_as_it_is() -> None:
    found = poly.compile(doubled)(np.arange(5.0))
    assert isinstance(found, np.ndarray) and found.tolist() == [0, 2, 4, 6, 8]


def test_an_error_without_a_hint_ends_with_its_message() -> None:
    assert str(PolyError("B is missing", where="here")) == "here: B is missing"


@pytest.mark.parametrize("seed", ["-1", "x", "1.5", ""])
def test_a_seed_is_a_number_from_0_on(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "ij->ji", "--shape", "3,4", "--seed", seed])
    assert "is not a number from 0 on" in capsys.readouterr().err


def test_inputs_that_do_not_fit_into_memory_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    import_module("poly.commands")  # which takes what is there
    monkeypatch.setattr("poly.work.random_array", fails)
    assert main(["run", "ij->ji", "--shape", "3,4"]) == 1
    assert capsys.readouterr().err.strip() == "poly: out of memory"
