"""The onnx package's backend cases against the committed table: what passed once has to pass.

All of them take some minutes (POLYLOOM_SLOW=1); else a sample, one part of `_PARTS`, which POLYLOOM_PART chooses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import onnx
import pytest

from tests.onnx_coverage import KINDS, REPORT, cases, judged, read_table, report

_PARTS: Final = 15
_PLAIN: Final = ("affine", "loops", "indirect")
SLOW: Final = "POLYLOOM_SLOW" in os.environ
TABLE: Final = read_table()


def expected(kind: str) -> list[Any]:
    """The cases of a kind that the table says are compiled, and that this version of the package still has."""
    return [c for c in cases(kind) if (row := TABLE.get(f"{kind}/{c.name}")) is not None and row.result == "compiled"]


def differences(listed: list[Any]) -> Mapping[str, tuple[str, str]]:
    found = {case.name: judged(case) for case in listed}
    return {name: result for name, result in found.items() if result[0] != "compiled"}


def test_the_page_is_made_from_the_table() -> None:
    text = report(list(TABLE.values()))
    head, body = REPORT.read_text().split("\n", 1)
    assert text.split("\n", 1)[1] == body
    assert head.startswith("# ONNX backend cases, onnx ")


def test_almost_all_is_compiled_and_nothing_is_wrong() -> None:
    plain = [row for row in TABLE.values() if row.group in _PLAIN]
    assert len(plain) == 1638
    assert sum(row.result == "compiled" for row in plain) >= 0.99 * len(plain)
    assert [row.name for row in TABLE.values() if row.result in ("wrong", "crashed")] == []


def test_a_sample_of_the_cases_that_are_compiled() -> None:
    part = int(os.environ.get("POLYLOOM_PART", "0"))
    sample = expected("node")[part::_PARTS] + expected("pytorch-converted")[part::_PARTS] + expected("simple")
    assert len(sample) > 100 or onnx.__version__ != "1.23.2"
    assert differences(sample) == {}


@pytest.mark.skipif(not SLOW, reason="minutes; set POLYLOOM_SLOW=1")
@pytest.mark.parametrize("kind", KINDS)
def test_all_cases_that_are_compiled(kind: str) -> None:
    assert differences(expected(kind)) == {}
