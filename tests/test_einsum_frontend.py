"""Einsum strings as programs, against numpy: values, dtypes and refusals."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poly.affine import var
from poly.dtypes import dtype_name
from poly.errors import PolyError
from poly.frontend.einsum import einsum_program
from poly.interp import run_program
from poly.program import Program
from poly.text import parse_program

MODELS = Path(__file__).resolve().parent.parent / os.environ.get("POLYLOOM_MODELS", "../shared/models")

EQUATIONS = [
    "ij,jk->ik", "ij,jk", "ii", "ii->i", "iij->j", "iji->ij", "i,j->ij", "i,i", "ij->ji", "ij", "ba", "aB",
    "Aa,aB->AB", ",i->i", ",", "", "->", "i->", "...", "...->...", "...ii->...i", "i...->...i", "...,...",
    "...ij,...jk->...ik", "ij,jk->ik...", "i...,...i->...", "ab,bc,cd->ad", "a,b,c->abc", "ab,bc,ca->", "ab,ab,c->c",
    "aab,bcc,c->ac", "abc,bd,d,e->ac", "i,i,i,i->", "bij,bjk,bkl,bl->bi", " i j , j k -> i k ", "ij,j->i", "e,ef->f",
    "...a,...b->ab...", "or,rn->on", "ab,cd,ef->acdf",
]  # fmt: skip


def random_of(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    low = 0 if dtype[0] in "ub" else -3
    return np.random.default_rng(seed).integers(low, 2 if dtype == "bool" else 4, shape).astype(dtype)


def operands(equation: str, dtypes: tuple[str, ...] = ("float32",), ellipsis: int = 2) -> list[Any]:
    """Arrays that fit an equation: extents 2 .. 4 by letter, `ellipsis` leading dimensions."""
    arrays: list[Any] = []
    seed = zlib.crc32(equation.encode())
    if "->" in equation and "..." not in equation.split("->")[1]:
        ellipsis = 0
    for n, term in enumerate(equation.replace(" ", "").split("->")[0].split(",")):
        shape: list[int] = []
        for part in term.replace("...", ".").strip():
            shape += (
                [3, 2][-ellipsis:]
                if part == "." and ellipsis
                else []
                if part == "."
                else [2 + (ord(part) * 7 + seed) % 3]
            )
        arrays.append(random_of(tuple(shape), dtypes[n % len(dtypes)], seed + n))
    return arrays


def check(equation: str, arrays: list[Any]) -> Program:
    p = einsum_program(equation, [a.shape for a in arrays], [dtype_name(a.dtype) for a in arrays])
    assert parse_program(str(p)) == p
    expected = np.asarray(np.einsum(equation, *arrays))
    found = run_program(p, {f"x{n}": a for n, a in enumerate(arrays)})["out"]
    assert found.dtype == expected.dtype and found.shape == expected.shape, str(p)
    np.testing.assert_array_equal(found, expected)
    return p


@pytest.mark.parametrize("equation", EQUATIONS)
def test_values(equation: str) -> None:
    check(equation, operands(equation))


@pytest.mark.parametrize(
    "dtypes",
    [("int8",), ("int8", "uint8"), ("bool",), ("bool", "float16"), ("float32", "int64"), ("complex64", "int8")],
)
@pytest.mark.parametrize("equation", ["ij,jk->ik", "i->", "i,j->ij", "ij,jk,kl->il"])
def test_dtypes(equation: str, dtypes: tuple[str, ...]) -> None:
    check(equation, operands(equation, dtypes))


def test_known_equations() -> None:
    path = MODELS / "einsum_equations.json"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    done = 0
    for entry in json.loads(path.read_text()):
        equation = entry["eq"]
        arrays = operands(equation, ellipsis=1)
        try:
            np.einsum(equation, *arrays)
        except ValueError:
            with pytest.raises(PolyError):
                einsum_program(equation, [a.shape for a in arrays], ["f32"] * len(arrays))
        else:
            check(equation, arrays)
            done += 1
    assert done > 190


def test_extents_one_spread() -> None:
    for equation, shapes in (
        ("ij,ij->ij", [(1, 3), (2, 3)]), ("ij,jk->ik", [(2, 1), (3, 4)]), ("i,i", [(1,), (3,)]),
        ("...,...", [(2, 1), (4,)]), ("...ij,...jk->...ik", [(2, 1, 3, 2), (5, 2, 4)]),
        ("ab,bc,cd->ad", [(2, 1), (3, 1), (4, 5)]), ("i,i", [(1,), (1,)]),
    ):  # fmt: skip
        check(equation, [random_of(s, "float32", n) for n, s in enumerate(shapes)])


def test_empty_extents() -> None:
    check("ij,jk->ik", [np.ones((2, 0), "f4"), np.ones((0, 3), "f4")])
    check("i->i", [np.ones((0,), "f4")])


def test_one_contraction_for_two_operands() -> None:
    p = einsum_program("ij,jk->ik", [(2, 3), (3, 4)], ["f32", "f32"])
    assert [s.name for s in p.statements] == ["out_init", "out_update"]
    assert p.parameters == ("Ni", "Nj", "Nk") and p.binding == {"Ni": 2, "Nj": 3, "Nk": 4}
    assert p.statement["out_update"].iterators == ("i", "k", "j")


def test_what_one_operand_sums_alone_is_summed_first() -> None:
    p = einsum_program("cef,bd->c", [(2, 3, 4), (5, 6)], ["f32", "f32"])
    assert [s.iterators for s in p.statements if s.combiner is not None] == [("c", "e", "f"), ("b", "d")]
    p = einsum_program("abk,kj,a->aj", [(2, 3, 4), (4, 5), (2,)], ["f32"] * 3)
    assert p.statement["t0_update"].iterators == ("a", "k", "b")


def test_many_operands_go_in_pairs() -> None:
    p = einsum_program("ab,bc,cd,e->ad", [(9, 9), (9, 9), (9, 2), (5,)], ["f32"] * 4)
    assert all(len(s.reads) <= 2 and len(s.iterators) <= 3 for s in p.statements)
    assert p.tensor["t0"].shape == () and p.statement["t0_update"].iterators == ("e",)
    texts = {str(einsum_program("ab,bc,cd,ea,fe,df->", [(4, 4)] * 6, ["f32"] * 6)) for _ in range(3)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("equation", "between"),
    [
        ("ijk,jl,kl->il", "jkl"), ("ab,cb,db->acd", "cdb"),  # all have it
        ("ab,bc,cd->ad", "bd"), ("nhd,mhd,mhe->nhe", "hde"), ("cf,fb,ae->abec", "cb"),  # one alone has it
        ("abc,ai,bj->ijc", "bic"), ("bij,jk,ki->bk", "jik"), ("fd,cf,ae->adec", "dc"),  # so has the result
        ("dac,abcd,ba->db", "abd"), ("bac,cda,abdc->ba", "abc"), ("bca,cdab,cd->dbc", "cdb"),  # nothing is used twice
        ("fdc,cbf,ae->adbec", "dcb"),  # both are turned in any case
    ],
)
def test_vectors_along_what_comes_between_products_turn_few_operands(equation: str, between: str) -> None:
    extent = dict(zip("abcdehijklmnf", (9, 8, 7, 6, 5, 4, 11, 12, 13, 3, 14, 15, 10), strict=True))
    shapes = [tuple(extent[i] for i in term) for term in equation.split("->")[0].split(",")]
    p = einsum_program(equation, shapes, ["f32"] * 3)
    assert p.tensor["t0"].shape == tuple(var(f"N{i}") for i in between)


@pytest.mark.parametrize(
    ("equation", "shapes", "words"),
    [
        ("ij,jk->ik", [(2, 3), (4, 5)], "'j'.* 3 in operand 0 .*4 in operand 1"),
        ("ii->i", [(2, 3)], "operand 0 .* 2 and 3 .*'i'"),
        ("ii->i", [(1, 3)], "operand 0"),
        ("ij", [(3,)], "operand 0 has 1"),
        ("i", [(3, 2)], "operand 0 has 2"),
        ("i->ii", [(3,)], "'i' is in the output twice"),
        ("ij->k", [(3, 2)], "'k' of the output"),
        ("i,j", [(3,)], "2 operands, 1 is given"),
        ("i", [(3,), (3,)], "1 operand, 2 are given"),
        ("...i->i", [(2, 3)], "leaves out the 1"),
        ("i1", [(2, 3)], "'1' has no meaning"),
        ("..i", [(2, 3)], r"'\.' has no meaning"),
        ("i...j...", [(2, 3)], "ellipsis"),
        ("i->j->", [(2,)], "no meaning"),
        ("é", [(2,)], "a-z"),
        ("i-j", [(2, 3)], "'-' has no meaning"),
    ],
)
def test_refusals(equation: str, shapes: list[tuple[int, ...]], words: str) -> None:
    with pytest.raises((ValueError, UnicodeEncodeError)):
        np.einsum(equation, *(np.ones(s) for s in shapes))
    with pytest.raises(PolyError, match=f"(?s){words}"):
        einsum_program(equation, shapes, ["f64"] * len(shapes))


@settings(derandomize=True, max_examples=150, deadline=None)
@given(st.data())
def test_random_equations_as_numpy(data: st.DataObject) -> None:
    """Any string over a small alphabet: the same result as numpy, or both refuse."""
    count = data.draw(st.integers(1, 4))
    terms = [
        data.draw(st.text("abC.", max_size=3)).replace(".", "...", 1).replace(".....", "...") for _ in range(count)
    ]
    output = data.draw(
        st.one_of(st.none(), st.text("abC", max_size=2), st.text("abC", max_size=2).map(lambda s: "..." + s))
    )
    equation = ",".join(terms) + ("" if output is None else f"->{output}")
    shapes = [tuple(data.draw(st.lists(st.sampled_from([1, 2, 2, 2, 3]), min_size=0, max_size=3))) for _ in terms]
    arrays = [random_of(s, "float64", n) for n, s in enumerate(shapes)]
    try:
        np.einsum(equation, *arrays)
    except ValueError:
        with pytest.raises(PolyError):
            einsum_program(equation, shapes, ["f64"] * count)
    else:
        check(equation, arrays)
