"""The benchmarks measure the right thing: every kind of case has a model and a reference that agree, rows add up."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper, save

from benchmarks import choices, random_cases
from benchmarks.__main__ import main
from benchmarks.candidates import THREADS, nests_of
from benchmarks.cases import CASES, Case, attention, conv, dense, einsum, load_cases, pointwise
from benchmarks.driver import Row
from benchmarks.graphs import NODES
from benchmarks.limits_moved import Turn, move, moving_loops, seconds, tables, turned
from benchmarks.limits_turned import turning_loops
from benchmarks.peers import numpy_peer, ours
from benchmarks.reference import ROUNDING, error_of, model_cases, reference
from benchmarks.report import draw, line, read_json, summary, write_json
from benchmarks.trials import Found, Shown, Trials
from poly.codegen.host import host_machine
from poly.pointers import aligned_zeros
from poly.tuner import TuningContext, different
from poly.tuning import Tuning

SMALL = (
    einsum("product", "ik,kj->ij", (5, 7), (7, 6)),
    einsum("turned", "ki,jk->ij", (7, 5), (6, 7)),
    einsum("sum", "ij->j", (5, 7)),
    einsum("permuted", "abc->cba", (2, 3, 4)),
    conv("convolution", (1, 4, 6, 6), (8, 2, 3, 3), stride=2, pad=1, groups=2),
    dense("dense", 3, 8, 5),
    pointwise("muladdrelu", "muladdrelu", {"x": (4, 8), "y": (4, 8), "z": (4, 8)}, {}, 3),
    pointwise("gelu", "bias_gelu", {"x": (4, 8)}, {"b": (8,)}, 5, erf=1),
    pointwise("softmax", "softmax", {"x": (2, 3, 8)}, {}, 4, exp=1),
    pointwise("layernorm", "layernorm", {"x": (3, 8)}, {"g": (8,), "b": (8,)}, 8),
    attention(2, 6, 4),
    pointwise("noop", "noop", {"x": (5,)}, {}, 1),
)


def test_there_are_sixty_cases_of_known_kinds() -> None:
    assert len({c.name for c in CASES}) == len(CASES) == 60
    assert {c.kind for c in CASES} <= NODES.keys() == {c.kind for c in SMALL}


@pytest.mark.parametrize("case", SMALL, ids=[c.name for c in SMALL])
def test_ours_and_numpy_agree_with_the_reference(case: Case) -> None:
    expected = reference(case)
    for prepare in (ours, numpy_peer):
        call = prepare(case, 1)
        assert call is not None or prepare is numpy_peer
        if call is not None:
            assert error_of(call(), expected) < ROUNDING


def test_a_wrong_result_is_an_error() -> None:
    expected = reference(SMALL[0])
    wrong = expected[0].astype(np.float32)
    wrong[0, 0] += 1
    assert error_of([wrong], expected) > 0.01
    assert error_of([np.full_like(wrong, np.nan)], expected) == np.inf


def test_operations_leave_out_the_padding() -> None:
    assert conv("c", (1, 1, 3, 3), (1, 1, 3, 3), pad=1).flops == 2 * 49


def row(name: str, ours: float, peer: float, wrong: tuple[str, ...] = ()) -> Row:
    return Row(name, 1, {"ours": ours, "numpy": peer}, {}, {}, wrong, {"tvm": "?"}, 0.5e-6, {}, {"ours": 0.1}, 0.01)


def test_rows_give_ratios_only_where_both_are_right(tmp_path: Path) -> None:
    rows = [row("a", 1e-6, 2e-6), row("b", 4e-6, 2e-6)]
    rows += [row("c", 1e-6, 2e-6, ("numpy",)), row("d", 1e-6, 2e-6, ("ours",))]
    assert [r.ratio for r in rows] == [0.5, 2.0, None, None] and rows[0].share == 0.5
    text = summary(rows)
    assert "geometric mean of 2: 1.000" in text and "b 2.00" in text
    assert "50%" in line(rows[0], ["ours", "numpy"]) and "2.0!" in line(rows[2], ["ours", "numpy"])
    write_json(tmp_path / "out.json", rows, {"processor": "p"})
    assert [r["ratio"] for r in json.loads((tmp_path / "out.json").read_text())["rows"]] == [0.5, 2.0, None, None]
    assert read_json(tmp_path / "out.json") == rows and read_json(tmp_path / "none.json") == []
    draw(tmp_path / "out.svg", rows, {"processor": "p", "date": "2026-11-21", "commit": "abc"})
    drawn = (tmp_path / "out.svg").read_text()
    assert all(part in drawn for part in ("time of the best peer", "p, 2026-11-21, commit abc", "peers, of numpy"))
    assert ">0.2<" in drawn and ">0.05<" not in drawn and ">50<" not in drawn
    draw(tmp_path / "out.svg", [*rows, row("fast", 1e-6, 25e-6), row("slow", 6e-5, 1e-6)], {})
    assert all(f">{tick}<" in (tmp_path / "out.svg").read_text() for tick in (0.05, 0.2, 20, 50))


def test_a_file_adds_cases(tmp_path: Path) -> None:
    entry = {"name": "mine", "kind": "einsum", "spec": "ij->i", "inputs": {"x0": [3, 4]}, "out": [3], "bytes": 60}
    (tmp_path / "cases.json").write_text(json.dumps([entry, {"name": "gemm_64", "kind": "einsum"}]))
    found = load_cases(tmp_path / "cases.json")
    assert [c.name for c in found].count("gemm_64") == 1
    assert (found[-1].name, found[-1].reads, found[-1].writes) == ("mine", 48, 12)


def test_random_cases_are_those_of_their_seed_and_a_file_of_cases(tmp_path: Path) -> None:
    made = [*islice(random_cases.random_cases(2), 60)]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([random_cases.entry(c) for c in made]))
    assert {c.name: c for c in load_cases(path)}.items() >= {c.name: c for c in made}.items()
    assert [c.name for c in islice(random_cases.random_cases(2), 60)] == [c.name for c in made]
    assert {c.kind for c in made} >= {"einsum", "conv", "softmax", "linear"}
    assert {c.name for c in made}.isdisjoint(c.name for c in islice(random_cases.random_cases(3), 60))


def test_a_case_of_a_file_counts_what_its_shapes_say(tmp_path: Path) -> None:
    """So that it has a limit: the lists' own cases, read from a file under other names, count the same."""
    fields = ("kind", "inputs", "consts", "spec", "stride", "pad", "groups")
    entries = [{"name": f"own_{c.name}", **{f: getattr(c, f) for f in fields}} for c in CASES]
    (tmp_path / "cases.json").write_text(json.dumps(entries))
    found = {c.name: c for c in load_cases(tmp_path / "cases.json")}
    given_flops = ("chain_ij,jk,kl->il",)  # fewer than an equation says
    for c in CASES:
        own = found[f"own_{c.name}"]
        assert c.name in given_flops or own.flops == c.flops
        assert (own.reads, own.writes, own.calls) == (c.reads, c.writes, c.calls)


@pytest.mark.parametrize(("entry", "message"), [
    ({"name": "mine", "kind": "einsum", "inputs": {"x0": [3, 4]}}, "spec None is no equation"),
    ({"name": "mine", "kind": "einsum", "spec": "ij->i", "inputs": {"x0": [3]}}, "spec 'ij->i' is no equation"),
    ({"name": "mine", "kind": "einsum", "spec": "ij,jk->ik", "inputs": {"a": [3, 4], "b": [5, 6]}}, "spec 'ij,jk->ik'"),
    ({"name": "mine", "kind": "softmax", "inputs": {"x": [3, 4]}, "Stride": 2}, "no field 'Stride'"),
    ({"name": "gemm_64", "kind": "softmax", "inputs": {"x": [3, 4]}}, "gemm_64 is a case of ours with other shapes"),
    ({"name": "mine", "kind": "sort", "inputs": {"x": [3]}}, "no kind 'sort': one of einsum, conv"),
    ({"name": "mine", "kind": "conv", "inputs": {"x": [1, 3, 8, 8]}}, "consts of kind conv are w, as in conv7x7s2"),
    ({"name": "mine", "kind": "attention", "inputs": {"q": [3], "k": [3], "v": [3]}}, "shapes of kind attention are"),
    ({"kind": "softmax", "inputs": {"x": [3]}}, "no name"), ("mine", "a file of cases is a JSON list of objects"),
])  # fmt: skip
def test_what_is_no_case_is_told(entry: object, message: str, tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text(json.dumps([entry]))
    with pytest.raises(ValueError, match=f"case 0: {message}(?s:.*)fields of a case: name, kind"):
        load_cases(tmp_path / "cases.json")


def test_a_name_that_is_there_twice_is_told(tmp_path: Path) -> None:
    entry = {"name": "mine", "kind": "softmax", "inputs": {"x": [3, 4]}}
    (tmp_path / "cases.json").write_text(json.dumps([entry, entry]))
    with pytest.raises(ValueError, match="case 1: mine is there twice"):
        load_cases(tmp_path / "cases.json")


@pytest.mark.usefixtures("own_cache")
def test_choices_are_measured_against_other_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYLOOM_JOBS", "1")
    machine = replace(host_machine(), cores=1)
    (nest,) = nests_of(einsum("product", "ik,kj->ij", (24, 16), (16, 40)), machine)
    listed = nest.candidates(6, far=10.0)
    assert not listed[0].plans and len(listed) == 6
    context = TuningContext(Tuning(), machine, THREADS)
    made = different(listed, context.made(listed, 1e6, lambda _done, _all: None))
    assert not nest.kernel(made[0].candidate, made[0].made, {}).partial  # results are not cleared in every call
    assert nest.arrays()["out"].ctypes.data % machine.line == 0
    assert Trials(nest).found(made[:1], 6, 1.0) is None  # nothing to choose from
    found = Trials(nest).found(made, 6, 1.0)
    assert found is not None and len(found.candidates) == len(made) > 2 and found.candidates[0].plan == "()"


def test_a_product_with_a_copy_before_it_has_a_choice() -> None:
    """Also what it would be without the copy."""
    machine = replace(host_machine(), cores=1)
    (case,) = [c for c in CASES if c.name == "conv1x1s2_256-512_56"]
    (nest,) = nests_of(case, machine)
    assert {len(p.statements) for p, _ in nest.ways} >= {len(nest.program.statements)}
    assert all(c.plans for c in nest.candidates(4, far=10.0)[1:])


def test_choices_near_the_best_are_counted() -> None:
    near, far = (
        Found("n", (Shown("a", 1.0, 3, 9, t, t, 1.0), Shown("b", 2.0, 3, 9, 1.0, 1.0, 1 / t)), 2)
        for t in (1.05, 2.0)
    )
    assert "1 of 2 (50%)" in choices.summary([near, far])


@pytest.mark.parametrize(("words", "said"), [
    ("--peers onnxruntme", "no peer 'onnxruntme': one of numpy"), ("--threads 1 0", "positive"),
    ("--rounds 0", "positive"), ("--seconds 0", "positive"), ("--json nowhere/x.json", "no folder .*nowhere"),
    ("--picture x.bmp", "no .png or .svg"),
])  # fmt: skip
def test_a_wrong_option_is_said_before_anything_is_measured(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "=gemm_64", *words.split()])
    with pytest.raises(SystemExit):
        main()
    assert re.search(said, capsys.readouterr().err)


def test_a_word_that_no_case_has_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "=gemm_64", "gemmm", "--only", "kernels", "--list"])
    main()
    shown = capsys.readouterr()
    assert "gemm_64" in shown.out and shown.err == "no case has gemmm in its name; --list shows them\n"


def test_any_model_whose_outputs_are_known_is_a_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without words only those that are shown; codes may differ by one step."""
    scale, zero = (numpy_helper.from_array(np.array(v), n) for v, n in ((np.float32(0.5), "s"), (np.uint8(0), "z")))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
         helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])],
        "codes", [value("x", 1, [3])], [value("y", 1, [3])], [scale, zero],
    )  # fmt: skip
    x = np.array([1, 2.6, 100], np.float32)
    for name in ("codes", "unknown"):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        save(model, tmp_path / f"{name}.onnx")
    known: dict[str, Any] = {"in:x": x, "out:y": np.array([1, 2.5, 100], np.float32)}
    np.savez(tmp_path / "codes.npz", **known)
    for words, shown in (("", ""), ("cod", "codes\n"), ("=codes", "codes\n")):
        monkeypatch.setattr("sys.argv", ["benchmarks", *words.split(), "--models", str(tmp_path), "--list"])
        main()
        found = capsys.readouterr().out
        assert found == shown if shown else "codes" not in found
    work = tmp_path / "work"
    work.mkdir()
    (case,) = model_cases(tmp_path, work, lambda _name: True)
    call = ours(case, 1)
    assert case.step == pytest.approx(0.005) and call is not None
    assert error_of(call(), reference(case)) == 0


def test_permutations_that_turn_rows_into_columns() -> None:
    """Axes of one element do not count, those that stay together are one; what stays contiguous is copied."""

    def turn(spec: str, *shape: int) -> Turn | None:
        return turned(einsum("t", spec, shape))

    assert turn("ij->ji", 64, 48) == Turn((64, 48), (1, 0))
    assert turn("nchw->nhwc", 1, 32, 4, 8) == Turn((32, 32), (1, 0))
    assert turn("nchw->nhwc", 2, 32, 4, 8) == Turn((2, 32, 32), (0, 2, 1))
    assert turn("abcd->dcba", 4, 5, 6, 7) == Turn((4, 5, 6, 7), (3, 2, 1, 0))
    assert turn("abcd->cdab", 4, 5, 6, 7) == Turn((20, 42), (1, 0))
    assert turned(einsum("counted", "ij->ji", (64, 48), flops=9)) == Turn((64, 48), (1, 0))
    assert turn("abcd->acbd", 4, 5, 6, 7) is turn("ij->j", 64, 48) is turn("ij->ij", 64, 48) is None


@pytest.mark.parametrize("turn", [
    Turn((64, 50), (1, 0)), Turn((3, 32, 5, 48), (3, 2, 0, 1)), Turn((16, 5, 7, 35), (3, 2, 1, 0)),
    Turn((5, 16, 16), (2, 0, 1)),
])  # fmt: skip
def test_the_limit_of_a_permutation_moves_every_line_to_its_place(turn: Turn) -> None:
    """Line k of a square's rows becomes line k of its columns, in every order and way."""
    turn = turn.whole
    assert turn.elements > 0 < len(tables(turn))
    a = aligned_zeros(turn.shape, np.dtype(np.float32))
    a[:] = np.arange(a.size, dtype=np.float32).reshape(a.shape)
    squares = a.copy()
    for index in np.ndindex(*(n // 16 if k in (turn.down, turn.across) else n for k, n in enumerate(turn.shape))):
        place = [slice(16 * i, 16 * i + 16) if k in (turn.down, turn.across) else i for k, i in enumerate(index)]
        squares[tuple(place)] = a[tuple(place)].T
    for loop in moving_loops().functions.values():
        for table in tables(turn):
            b = aligned_zeros(tuple(turn.shape[k] for k in turn.order), np.dtype(np.float32))
            move(turn, loop, table, 8, a.ctypes.data, b.ctypes.data)
            np.testing.assert_array_equal(b, squares.transpose(turn.order))


def test_threads_move_all_parts_of_a_permutation() -> None:
    turn = Turn((3, 32, 5, 48), (3, 2, 0, 1))
    a = aligned_zeros(turn.shape, np.dtype(np.float32))
    a[:] = np.arange(a.size, dtype=np.float32).reshape(a.shape)
    one, two = (aligned_zeros(tuple(turn.shape[k] for k in turn.order), np.dtype(np.float32)) for _ in range(2))
    for threads, b in ((1, one), (2, two)):
        assert seconds(turn, a.ctypes.data, b.ctypes.data, threads) > 0
    assert np.count_nonzero(one) == a.size - 1
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("strip", [16, 48, 1 << 40])
def test_the_limit_of_turning_moves_every_line_to_its_place(strip: int) -> None:
    rows, columns = 64, 48
    a = aligned_zeros((rows, columns), np.dtype(np.float32))
    a[:] = np.arange(a.size, dtype=np.float32).reshape(a.shape)
    squares = a.reshape(rows // 16, 16, columns // 16, 16).transpose(2, 1, 0, 3).reshape(columns, rows)
    for loop in turning_loops().functions.values():
        b = aligned_zeros((columns, rows), np.dtype(np.float32))
        loop(a.ctypes.data, b.ctypes.data, rows, columns, strip)
        np.testing.assert_array_equal(b, squares)
