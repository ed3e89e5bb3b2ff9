"""Sums weighted by exponentials, in parts of their terms: the same values, and what has another form stays."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.affine import Affine
from poly.dtypes import Array
from poly.interp import run_program
from poly.loops import For
from poly.program import Program
from poly.scheduling import weights_in_parts
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.weights_in_parts import weights_like, with_weights_in_parts
from tests.machines import AVX512, MESH

TEXT = """
program weighted
input q: f32[@H, @N, @W]
input k: f32[@H, @M, @W]
input v: f32[@H, @M, @W]
input bias: f32[@M]
output y: f32[@H, @N, @W]
temporary s: f32[@H, @N, @M]
temporary t: f32[@H, @N, @M]
temporary m: f32[@H, @N]
temporary e: f32[@H, @N, @M]
temporary sum: f32[@H, @N]
temporary r: f32[@H, @N]
temporary w: f32[@H, @N, @M]
S0[h, i, j]: s[h, i, j] = f32(0) where 0 <= h < @H and 0 <= i < @N and 0 <= j < @M
S[h, i, j, d]: s[h, i, j] += q[h, i, d]*k[h, j, d] where 0 <= h < @H and 0 <= i < @N and 0 <= j < @M and 0 <= d < @W
T[h, i, j]: t[h, i, j] = @SCORE where 0 <= h < @H and 0 <= i < @N and 0 <= j < @M
M0[h, i]: m[h, i] = f32(-inf) where 0 <= h < @H and 0 <= i < @N
M1[h, i, j]: m[h, i] max= t[h, i, j] where 0 <= h < @H and 0 <= i < @N and 0 <= j < @M @OPTIONAL
E[h, i, j]: e[h, i, j] = exp(t[h, i, j] - m[h, i]) where 0 <= h < @H and 0 <= i < @N and 0 <= j < @M
U0[h, i]: sum[h, i] = f32(0) where 0 <= h < @H and 0 <= i < @N
U[h, i, j]: sum[h, i] += e[h, i, j] where 0 <= h < @H and 0 <= i < @N and 0 <= j < @M @OPTIONAL
R[h, i]: r[h, i] = 1.0/sum[h, i] where 0 <= h < @H and 0 <= i < @N
W[h, i, j]: w[h, i, j] = e[h, i, j]*r[h, i] where 0 <= h < @H and 0 <= i < @N and 0 <= j < @M
Y0[h, i, d]: y[h, i, d] = f32(0) where 0 <= h < @H and 0 <= i < @N and 0 <= d < @W
Y[h, i, d, j]: y[h, i, d] += w[h, i, j]*v[h, j, d] where 0 <= h < @H and 0 <= i < @N and 0 <= d < @W and 0 <= j < @M @OPTIONAL
"""  # noqa: E501
ADDED = "s[h, i, j] + bias[j]"
CAUSAL = "select(index(j) <= index(i), s[h, i, j] + bias[j], f32(-inf))"
BEHIND = "optional j >= i + 1"


def weighted(
    heads: int, rows: int, terms: int, width: int, score: str = ADDED, optional: str = "", text: str = TEXT
) -> Program:
    values = {"H": heads, "N": rows, "M": terms, "W": width, "SCORE": score, "OPTIONAL": optional}
    return poly.parse(re.sub(r"@([A-Z]+)", lambda found: str(values[found.group(1)]), text))


def values(program: Program, given: dict[str, Array]) -> np.ndarray:
    return np.asarray(run_program(program, given)["y"], np.float32)


def in_parts(program: Program, size: int) -> Program:
    """With parts of so many terms, as another program has them."""
    found, terms = program.tensor["m"], program.tensor["e"].extents({})[-1]
    like = replace(found, shape=(Affine.of(terms // size), *found.shape))
    return weights_like(program, Program("like", (like,), ()))


def arrays(program: Program) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {t.name: random.standard_normal(t.extents({}), dtype=np.float32) for t in program.inputs}


@pytest.mark.parametrize(("score", "optional"), [(ADDED, ""), (CAUSAL, ""), (CAUSAL, BEHIND)])
def test_values_stay(score: str, optional: str) -> None:
    program = weighted(2, 10, 12, 3, score, optional)
    parts = in_parts(program, 4)
    assert parts.tensor["e"].extents({}) == (3, 2, 10, 4)
    assert parts.tensor["v_parts"].extents({}) == (2, 3, 4, 3)
    given = arrays(program)
    expected = values(program, given)
    np.testing.assert_allclose(values(parts, given), expected, rtol=1e-5, atol=1e-6)
    found = poly.compile(parts)(*given.values())
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, rtol=1e-5, atol=1e-6)


def test_parts_of_which_no_term_counts() -> None:
    program = weighted(1, 6, 12, 3)
    given = arrays(program)
    given["bias"][4:] = -np.inf
    expected = values(program, given)
    assert np.isfinite(expected).all()
    found = values(in_parts(program, 4), given)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    given["bias"][:] = -np.inf
    found, expected = (values(p, given) for p in (in_parts(program, 4), program))
    assert np.isnan(found).all() and np.isnan(expected).all()
    given["bias"][:], given["q"][0, 2, 1] = 0, np.nan
    found, expected = (values(p, given) for p in (in_parts(program, 4), program))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_optional_terms_are_those_of_their_parts() -> None:
    parts = in_parts(weighted(1, 10, 12, 3, CAUSAL, BEHIND), 4)
    said = {s.name: [str(c.expr) for c in s.spare] for s in parts.statements if s.spare}
    assert said == dict.fromkeys(("M1", "U", "y_part_made"), ["-i + j + 4*part - 1"])


LEFT = {
    "weights are wanted": (TEXT.replace("temporary w", "output w"), ADDED),
    "the sum is wanted": (TEXT.replace("temporary sum", "output sum"), ADDED),
    "a bias for each row": (TEXT.replace("bias: f32[@M]", "bias: f32[@N, @M]"), "s[h, i, j] + bias[i, j]"),
    "twice the inverse": (TEXT.replace("1.0/sum", "2.0/sum"), ADDED),
    "squares are added up": (TEXT.replace("+= e[h, i, j] where", "+= e[h, i, j]*e[h, i, j] where"), ADDED),
    "another score": (TEXT, "s[h, i, j] + s[h, i, 0]"),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_forms_stay(name: str) -> None:
    text, score = LEFT[name]
    program = weighted(2, 10, 12, 3, score, text=text)
    assert in_parts(program, 4) == program


def test_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(heads: int, rows: int, terms: int, width: int) -> int:
        found = with_weights_in_parts(weighted(heads, rows, terms, width), MESH)
        return found.tensor["e"].rank - 3 and terms // found.tensor["e"].extents({})[-1]

    assert parts(1, 4096, 4096, 64) == 4
    assert parts(2, 8192, 8192, 64) == 8
    assert parts(2, 2048, 2048, 64) == 0  # all keys and values stay beside a block of rows
    assert parts(2, 256, 8192, 64) == 0  # copies for few rows
    assert parts(2, 8192, 8191, 64) == 0  # a prime number of terms
    assert parts(32, 8192, 8192, 64) == 0  # results of parts that fill the last cache
    near = weighted(1, 4096, 4096, 64)
    assert with_weights_in_parts(near, AVX512) is near  # whose last cache is near
    monkeypatch.setattr(weights_in_parts, "LEAST_ROWS", 256)
    assert parts(2, 256, 8192, 64) == 8


def test_products_and_rows_of_a_part_share_blocks() -> None:
    """And loops end at the diagonal, wherever it is in a part."""
    parts = with_weights_in_parts(weighted(1, 4096, 4096, 64, CAUSAL, BEHIND), MESH)
    schedule = schedule_for_cpu(parts, MESH)
    blocks = {schedule.program.statement[n].write.tensor for n in schedule.under("i.o")}
    assert {"m_row", "e_block"} & {t.name for t in schedule.program.tensors} and "y_part" in blocks
    ends = [str(n.ends[0]) for n in schedule.lower().nodes() if isinstance(n, For) and n.ends]
    assert len(ends) >= 3 and all("part" in e and "i.o" in e for e in ends)


def test_a_schedule_of_it_is_one_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    program = weighted(1, 10, 12, 3)
    monkeypatch.setattr(weights_in_parts, "_best_part", lambda *_: 4)
    kernel = poly.compile(program)
    assert kernel.schedule is not None and "y_part" in kernel.schedule.program.tensor
    monkeypatch.undo()
    given = arrays(program)
    again = poly.compile(program, schedule=kernel.schedule)(*given.values())
    np.testing.assert_allclose(np.asarray(again, np.float32), values(program, given), rtol=1e-5, atol=1e-6)
