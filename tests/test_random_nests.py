"""Random nests of `benchmarks.random_nests`: the same for a seed, of every kind, with the values of plain Python."""

from __future__ import annotations

import pytest

from benchmarks.cliffs_of_nests import beside_python
from benchmarks.random_nests import random_nest


def test_a_seed_is_a_nest() -> None:
    texts = [random_nest(seed).text for seed in range(60)]
    assert texts == [random_nest(seed).text for seed in range(60)] and len({*texts}) == 60
    together = "".join(texts)
    for part in (" if ", "else:", "-1, -1)", ", 2)", "+= ", "= max(", "min(", " - ", "2*", "s3 += ", "i64[", "f32["):
        assert part in together, part


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_values_are_those_of_python(first: int) -> None:
    found = [beside_python(seed) for seed in range(first, first + 8)]
    assert sum(f is not None for f in found) > 4 and not any(found), "\n".join(filter(None, found))
