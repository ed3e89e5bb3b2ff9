"""Sums of complex products: as real matrices, as sums of parts, and by planes."""

from typing import Any

import numpy as np
import pytest

import poly
from tests.test_einsum import check, compiled_forms
from tests.test_einsum_frontend import random_of


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize(
    "spec",
    ["ij,jk->ik", "ji,jk->ik", "ji,kj->ik", "jk,ij->ik", "ij,jk->ki", "aij,jak->aik", "iij,jk->ik", "ij,jkk->ik"],
)
def test_complex_sums_as_real_ones(spec: str, dtype: str, monkeypatch: Any) -> None:
    forms = compiled_forms(monkeypatch)
    sizes, terms = {"i": 33, "j": 21, "k": 19, "a": 3}, spec.split("->")[0].split(",")
    given = [random_of(tuple(sizes[i] for i in term), dtype, n) for n, term in enumerate(terms)]
    check(spec, *given)
    wide = [random_of((*x.shape[:-1], x.shape[-1] + 3), dtype, n)[..., : x.shape[-1]] for n, x in enumerate(given)]
    check(spec, *wide)
    check(spec, *(x.transpose() for x in map(np.ascontiguousarray, (x.transpose() for x in given))))
    assert all(form.real for form in forms) and len(forms) == 3


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("ijb,jkb->ikb", [(6, 7, 33), (7, 5, 33)]),  # both step along the result's last index
        ("ij,jk->ik", [(6, 3), (3, 300)]),  # six rows are too few for a matrix of each element, sums of three too short
        ("jiab,jc->icab", [(3, 3, 20, 20), (3, 4)]),
    ],
)
def test_complex_sums_by_planes(spec: str, shapes: list[tuple[int, ...]], monkeypatch: Any) -> None:
    forms = compiled_forms(monkeypatch)
    check(spec, *(random_of(shape, "c8", n) for n, shape in enumerate(shapes)))
    assert [(form.planar, form.real) for form in forms] == [(True, None)]


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize(
    "spec",
    ["bc,bcd->dc", "ac,cae->ec", "i,ij->j", "bai,bij->baj", "bij,bi->jb", "bija,bi->jab", "ii,ijk->jk", "iia,ib->ab"],
)
def test_complex_sums_of_parts(spec: str, dtype: str, monkeypatch: Any) -> None:
    forms = compiled_forms(monkeypatch)
    sizes, terms = {"a": 5, "b": 20, "c": 7, "d": 33, "e": 18, "i": 19, "j": 37, "k": 6}, spec.split("->")[0].split(",")
    given = [random_of(tuple(sizes[i] for i in term), dtype, n) for n, term in enumerate(terms)]
    check(spec, *given)
    check(spec, *(random_of((x.shape[0] + 3, *x.shape[1:]), dtype, n)[: x.shape[0]] for n, x in enumerate(given)))
    wide = [random_of((*x.shape[:-1], x.shape[-1] + 3), dtype, n)[..., : x.shape[-1]] for n, x in enumerate(given)]
    check(spec, *wide)
    assert all(form.apart for form in forms) and len(forms) > 1


def test_complex_squares_summed_are_real() -> None:
    x = random_of((30, 20), "c8", 1)
    assert not poly.einsum("ij,ik->jk", x, x.conj()).diagonal().imag.any()
    y = poly.einsum("i,ij->j", x[:, 3].copy(), x.conj())
    assert y[3].imag == 0


@pytest.mark.parametrize("dtypes", [("c16", "c8"), ("c8", "c16")])
@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("ij,jk->ik", [(8, 8), (8, 8)]),
        ("ab,cb->ac", [(33, 21), (19, 21)]),
        ("ij,jk->ki", [(33, 21), (21, 19)]),
        ("ij,j->i", [(33, 21), (21,)]),
        ("i,ij->j", [(19,), (19, 37)]),
        ("i,i->", [(700,), (700,)]),
        ("bai,bij->baj", [(20, 5, 19), (20, 19, 37)]),
        ("ijb,jkb->ikb", [(6, 7, 33), (7, 5, 33)]),
        ("ij,jk->ik", [(6, 3), (3, 300)]),
        ("ij,ij->ij", [(9, 40), (9, 40)]),
        ("i,j->ij", [(9,), (40,)]),
    ],
)
def test_complex_numbers_of_two_widths(spec: str, shapes: list[tuple[int, ...]], dtypes: tuple[str, str]) -> None:
    given = [random_of(shape, d, n) for n, (shape, d) in enumerate(zip(shapes, dtypes, strict=True))]
    check(spec, *given)
    wide = [random_of((*x.shape[:-1], x.shape[-1] + 3), str(x.dtype), 3)[..., : x.shape[-1]] for x in given]
    check(spec, *wide)
