"""Every `.nest` file: what its script gives is what it says, and all levels compute the same.

`pytest tests/test_nests.py --update` rewrites the expected sections; read the difference before committing it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.nest_file import ORDER, actual, read_nest, run_levels
from tests.strategies import is_poison

FILES = sorted((Path(__file__).parent / "nests").glob("*.nest"))
EXPECTED = ("error", "schedule", "loops", "stream")


def test_there_are_cases() -> None:
    assert len(FILES) >= 40


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_nest(path: Path, request: pytest.FixtureRequest) -> None:
    nest = read_nest(path)
    found = actual(nest)
    if request.config.getoption("--update"):
        kept = {name: text for name, text in nest.sections.items() if name not in EXPECTED}
        merged = kept | found
        path.write_text(replace(nest, sections={n: merged[n] for n in ORDER if n in merged}).text())
        nest = read_nest(path)
    expected = {name: text for name, text in nest.sections.items() if name in EXPECTED}
    assert found.keys() == expected.keys()
    for name, text in expected.items():
        assert found[name] == text, f"[{name}] differs; --update rewrites it"


@pytest.mark.parametrize("path", [p for p in FILES if "\n[run]" in p.read_text()], ids=lambda p: p.stem)
def test_levels_agree(path: Path) -> None:
    levels = run_levels(read_nest(path))
    reference = levels.pop("program")
    for level, outputs in levels.items():
        assert outputs.keys() == reference.keys()
        for name, array in outputs.items():
            written = ~is_poison(reference[name])
            np.testing.assert_array_equal(array[written], reference[name][written], err_msg=f"{level}: {name}")
