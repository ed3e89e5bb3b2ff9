"""`poly.einsum` against numpy's: values, dtypes, memory layouts, views, keywords, refusals; opt_einsum and DLPack."""

import json
import pickle
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import opt_einsum
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided, sliding_window_view

import poly
from poly import einsum_call, einsum_plan, opt_einsum_backend
from poly.codegen.call import NATIVE
from poly.errors import (
    ArgumentError,
    ArgumentTypeError,
    FallbackWarning,
    ParseError,
    PathError,
    PolyError,
    ShapeError,
)
from poly.frontend.contraction_forms import Form, View
from poly.frontend.form_programs import form_program
from poly.frontend.strides import dense_strides, dimensions_of, strides_like
from poly.pointers import address
from tests.test_einsum_frontend import MODELS, operands, random_of

BACKEND: Any = "poly.opt_einsum_backend"
REAL = ["bool", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]


def tolerance(dtype: Any) -> float:
    return 16 * float(np.finfo(dtype).eps) if np.dtype(dtype).kind in "fc" else 0.0


def compiled_forms(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The forms of the kernels that einsums compile from here on, as they come."""
    forms: list[Any] = []
    bound = einsum_plan._bound_kernel  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(einsum_plan, "_bound_kernel", lambda form, *rest: forms.append(form) or bound(form, *rest))
    einsum_call.forget()
    return forms


def check(*arguments: Any, **keywords: Any) -> Any:
    """The same result as numpy: type, dtype, shape, order of the axes in memory, values."""
    expected: Any = np.einsum(*arguments, **keywords)
    found: Any = poly.einsum(*arguments, **keywords)
    assert type(found) is type(expected) and found.dtype == expected.dtype and found.shape == expected.shape
    if isinstance(expected, np.ndarray):
        assert found.flags.c_contiguous == expected.flags.c_contiguous
        assert found.flags.f_contiguous == expected.flags.f_contiguous
    np.testing.assert_allclose(found, expected, rtol=tolerance(found.dtype), atol=tolerance(found.dtype))
    return found


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every call gets a kernel for its own extents, however small."""
    einsum_call.forget()
    monkeypatch.setattr(einsum_plan, "FREE_WORK", -1)
    yield
    einsum_call.forget()


# ---- values


@pytest.mark.parametrize("dtype", [*REAL, "c8", "c16"])
def test_dtypes(dtype: str) -> None:
    a, b = random_of((3, 4), dtype, 1), random_of((4, 5), dtype, 2)
    for arguments in (("ij,jk->ik", a, b), ("ij->", a), ("ij,ij->ij", a, a), ("ij,jk,ik->i", a, b, a @ b)):
        check(*arguments)


@pytest.mark.parametrize(
    "dtypes", [("i1", "u1"), ("f4", "i8"), ("?", "f2"), ("c8", "i4"), ("u8", "i8"), (">f4", "<f8")]
)
def test_mixed_dtypes(dtypes: tuple[str, str]) -> None:
    check("ij,jk->ki", random_of((3, 4), dtypes[0], 1), random_of((4, 5), dtypes[1], 2))
    check("i,->i", random_of((3,), dtypes[0], 1), 2)
    check("i,->", random_of((3,), dtypes[0], 1), np.array(2, dtypes[1]))


def test_every_known_equation() -> None:
    path = MODELS / "einsum_equations.json"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    done = 0
    for equation in sorted({entry["eq"] for entry in json.loads(path.read_text())}):
        arrays = operands(equation, ellipsis=1)
        try:
            np.einsum(equation, *arrays)
        except ValueError:
            with pytest.raises(ValueError) as refusal:
                poly.einsum(equation, *arrays)
            assert isinstance(refusal.value, PolyError)
        else:
            check(equation, *arrays)
            done += 1
    assert done >= 200


@pytest.mark.parametrize(
    ("equation", "shapes", "dtypes"),
    [
        ("ij,jk->ik", [(13, 7), (7, 19)], ["f4"]),
        ("ij,jk->ik", [(6, 5), (5, 9)], ["c8"]),
        ("ij,jk->ki", [(6, 5), (5, 9)], ["c8", "f4"]),
        ("ij,jk->ki", [(24, 40), (40, 25)], ["c8"]),
        ("ij,jk,kl->il", [(24, 40), (40, 24), (24, 20)], ["c16", "f8"]),
        ("ij,jk->ik", [(6, 5), (5, 9)], ["f2"]),
        ("ij,jk->ik", [(6, 5), (5, 9)], ["i1", "i4"]),
        ("i,i->i", [(37,), (37,)], ["c16"]),
        ("ii->", [(23, 23)], ["f8"]),
        ("iij->ji", [(5, 5, 4)], ["f4"]),
        ("i->", [(1003,)], ["f4"]),
        ("ij,ij->", [(31, 33), (31, 33)], ["f8", "f4"]),
        ("kij,kij->k", [(3, 40, 30), (3, 40, 30)], ["i2"]),
        ("i,i->", [(999,), (999,)], ["c8"]),
        ("i->", [(1003,)], ["f2"]),
        ("i->", [(1003,)], ["?"]),
        ("i,i,i,i->", [(600,)] * 4, ["u1"]),
        ("abc,bd,cd,d->ad", [(4, 5, 6), (5, 7), (6, 7), (7,)], ["f8"]),
        ("...ij,...jk", [(2, 1, 3, 4), (5, 4, 6)], ["f4"]),
        (",", [(), ()], ["f4"]),
    ],
)
@pytest.mark.usefixtures("bound")
def test_kernels_for_known_extents(equation: str, shapes: list[tuple[int, ...]], dtypes: list[str]) -> None:
    arrays = [random_of(s, dtypes[n % len(dtypes)], n) for n, s in enumerate(shapes)]
    check(equation, *arrays)


@pytest.mark.usefixtures("bound")
def test_strided_operands_of_kernels_for_known_extents() -> None:
    a, b = random_of((20, 30), "f4", 1), random_of((40, 30), "f4", 2)
    check("ij,jk->ik", a[::2, 3:20], b.T[:17, ::4])
    check("ij,ij->i", a[:, :17], a[::-1, :17])
    check("ij,kj->ik", a.T[:, 3:], b.T[:, 5:22])
    z = random_of((6, 8, 3), "c8", 3)
    check("ij,kj->ik", z[:, :, 1], z[:4, :, 0])


def test_threads() -> None:
    a, b = random_of((70, 50), "f4", 1), random_of((50, 60), "f4", 2)
    for threads in (2, np.int64(2)):
        np.testing.assert_array_equal(poly.einsum("ij,jk->ik", a, b, threads=threads), a @ b)


def test_calls_from_many_threads() -> None:
    a, b = random_of((5, 6), "f8", 1), random_of((6, 7), "f8", 2)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for n in (*range(2, 30), *range(2, 30)):
            x = random_of((n, 6), "f8", seed + n)
            if not np.array_equal(poly.einsum("ij,jk->ik", x, b), x @ b):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and np.array_equal(poly.einsum("ij,jk", a, b), a @ b)


# ---- memory


def variants(array: Any, how: int) -> Any:
    """The same values in another place: permuted, strided, reversed, with gaps, broadcast, not aligned, swapped."""
    match how:
        case 1:
            return np.asfortranarray(array)
        case 2:
            wide = np.zeros(tuple(2 * n for n in array.shape), array.dtype)
            inner = wide[(*(slice(0, 2 * n, 2) for n in array.shape), ...)]
        case 3:
            wide = np.zeros(tuple(n + 2 for n in array.shape), array.dtype)
            inner = wide[(*(slice(1, n + 1) for n in array.shape), ...)]
        case 4:
            backwards = (*(slice(None, None, -1) for _ in array.shape), ...)
            return array[backwards].copy()[backwards]
        case 5:
            raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
            inner = raw.view(array.dtype).reshape(array.shape)
        case 6:
            return array.astype(array.dtype.newbyteorder(">"))
        case 7 if array.ndim:
            return np.broadcast_to(array[:1], array.shape)
        case _:
            return array
    inner[...] = array
    return inner


@settings(derandomize=True, max_examples=250, deadline=None)
@given(st.data())
def test_random_calls_as_numpy(data: st.DataObject) -> None:
    """Any string over a small alphabet, operands anywhere in memory, any keywords: as numpy, or both refuse."""
    count = data.draw(st.integers(1, 3))
    sizes = {c: data.draw(st.sampled_from([0, 1, 2, 3, 3])) for c in "abc"}
    terms = [
        data.draw(st.sampled_from(["", "a", "ab", "ba", "cb", "abc", "cba", "aab", "bb", "...a", "a...", "..."]))
        for _ in range(count)
    ]
    letters = sorted({c for t in terms for c in t if c != "."})
    output = data.draw(st.permutations(letters).map(lambda s: s[: data.draw(st.integers(0, len(s)))]))
    equation = ",".join(terms)
    if data.draw(st.booleans()):
        equation += "->" + ("..." if "." in equation else "") + "".join(output)
    arrays = []
    for n, term in enumerate(terms):
        extra = data.draw(st.sampled_from([(), (2,), (1,), (3, 2)])) if "..." in term else ()
        shape = tuple(e for part in term.replace("...", ".") for e in (extra if part == "." else (sizes[part],)))
        dtype = data.draw(st.sampled_from(["f8", "f4", "i4", "c8", "?"]))
        arrays.append(variants(random_of(shape, dtype, n), data.draw(st.integers(0, 7))))
    keywords: dict[str, Any] = {}
    if data.draw(st.booleans()):
        keywords = {"order": data.draw(st.sampled_from("CFAK")), "optimize": data.draw(st.sampled_from([False, True]))}
        keywords |= data.draw(st.sampled_from([{}, {}, {"dtype": "f8"}, {"dtype": "c16", "casting": "same_kind"}]))
    try:
        expected = np.einsum(equation, *arrays, **keywords)
    except IndexError:
        return  # numpy's path of operands without dimensions
    except (ValueError, TypeError) as error:
        if keywords.get("optimize"):
            return  # numpy's path and product of matrices refuse more than its einsum does
        with pytest.raises(type(error)):
            poly.einsum(equation, *arrays, **keywords)
        return
    found = poly.einsum(equation, *arrays, **keywords)
    np.testing.assert_array_equal(found, expected)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if isinstance(expected, np.ndarray) and expected.size > 1:
        assert [abs(s) for s, n in zip(found.strides, found.shape, strict=True) if n > 1] == [
            abs(s) for s, n in zip(expected.strides, expected.shape, strict=True) if n > 1
        ]


def test_windows_and_other_overlaps() -> None:
    a = random_of((20,), "f4", 1)
    check("ij,j->i", sliding_window_view(a, 5), random_of((5,), "f4", 2))
    check("ij,j->i", sliding_window_view(random_of((600,), "c8", 3), 20), random_of((20,), "c8", 4))
    check("iji->j", random_of((3, 4, 3), "f4", 3))
    check("ij,ij->", as_strided(a, (3, 4), (8, 12)), as_strided(a, (3, 4), (0, 4)))


def test_views_are_numpys() -> None:
    a = random_of((3, 3, 4), "f4", 1)
    for equation in ("ijk->kij", "iij->ij", "...", "...ij->ji...", "iij->ji"):
        found, expected = poly.einsum(equation, a), np.einsum(equation, a)
        assert address(found) == address(expected) and found.strides == expected.strides and found.flags.writeable
    poly.einsum("iij->ij", a)[:] = 7
    assert (a[1, 1] == 7).all()
    assert not np.shares_memory(poly.einsum("ij->ji", a[0], out=np.empty((4, 3), "f4")), a)
    assert poly.einsum("ij->ji", np.array([["a"]], object)).dtype == object


_LINE, _PLANE = np.arange(9000, dtype="f4") % 7, np.arange(7000, dtype="f4").reshape(70, 100) % 7
_WINDOWS, _SQUARES = sliding_window_view(_LINE, 16), sliding_window_view(_PLANE, (5, 5))
SLIDING = [
    ("ij,j->i", _WINDOWS), ("ij,j->i", _WINDOWS[::3]), ("ij,j->i", _WINDOWS[:, ::3]), ("ij,j->i", _WINDOWS[::4, ::2]),
    ("ij->i", _WINDOWS), ("ij->j", _WINDOWS), ("ij->", _WINDOWS), ("ii->", sliding_window_view(_LINE, 4000)[:4000]),
    ("ij,ik->jk", _WINDOWS, _WINDOWS), ("ijk,j,k->i", sliding_window_view(_WINDOWS, 5, axis=1)),
    ("ijkl,kl->ij", _SQUARES), ("ijkl,kl->ij", _SQUARES[::2, ::3]), ("ijkl,kl->ij", _SQUARES[:, :, ::2, ::2]),
    ("ijk,k->ij", sliding_window_view(_PLANE[:, ::2], 5, axis=1)),
    ("ijk,k->ij", sliding_window_view(_PLANE, 5, axis=0)), ("ij,j->i", as_strided(_LINE, (1700, 24), (20, 8))),
    ("ij,j->i", as_strided(_LINE, (2900, 24), (12, 8))),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "given"), [(spec, given) for spec, *given in SLIDING])
def test_windows_that_overlap(spec: str, given: list[Any]) -> None:
    """Of whole numbers, so that sums are exact."""
    sizes = dict(zip(spec, given[0].shape, strict=False))
    others = spec.partition("->")[0].split(",")[len(given) :]
    arrays = [*given, *(np.arange(np.prod([sizes[i] for i in t])).reshape([sizes[i] for i in t]) % 5 for t in others)]
    arrays = [a.astype("f4", copy=False) for a in arrays]
    np.testing.assert_array_equal(poly.einsum(spec, *arrays), np.einsum(spec, *arrays))


def test_strides_to_dimensions() -> None:
    assert dimensions_of((2, 3), (12, 4), 4, "ij") == [("i", 3), ("j", 1)]
    assert dimensions_of((2, 3), (4, 8), 4, "ij") == [("j", 2), ("i", 1)]
    assert dimensions_of((2, 1, 3), (40, 4, 8), 4, "ijk") == [("i", 10), ("k", 2)]
    assert dimensions_of((2, 3), (0, 4), 4, "ij") == [("j", 1)]
    for shape, strides in (((2, 3), (-12, 4)), ((2, 3), (8, 4)), ((2, 3), (20, 8)), ((2,), (6,))):
        assert dimensions_of(shape, strides, 4, "ij"[: len(shape)]) is None
    assert dimensions_of((2, 3), (8, 4), 4, "ij", overlap=True) == [("i", 2), ("j", 1)]
    assert dimensions_of((2, 3), (20, 8), 4, "ij", overlap=True) is None
    assert strides_like((2, 3, 4), (4, 100, 20), 8) == (8, 64, 16)
    assert strides_like((2, 3), (), 8) == dense_strides((2, 3), 8) == (24, 8)


# ---- sums


def test_half_floats_are_summed_in_single() -> None:
    for dtype in ("f2", ml_dtypes.bfloat16):
        ones = np.ones(5000, dtype)
        assert poly.einsum("i->", ones) == np.float32(5000).astype(dtype)
        assert poly.einsum("i,i->", ones[:300], ones[:300]) == np.float32(300).astype(dtype)


@pytest.mark.parametrize("spec", ["cef,bd->c", "dba,aa->a", "c,bdec->de", "e,adbf->", "cad,eadc->"])
@pytest.mark.parametrize("dtype", ["f4", "i8", "c8", "?"])
def test_sums_of_one_operand_alone(spec: str, dtype: str) -> None:
    """Of every size, as long sums of few results are made in lanes, and small ones by kernels for any size."""
    random = np.random.default_rng(6)
    for n in (3, 20):
        operands = [random.integers(-1, 2, [n] * len(t)).astype(dtype) for t in spec.split("->")[0].split(",")]
        np.testing.assert_array_equal(poly.einsum(spec, *operands), np.einsum(spec, *operands))


def test_long_sums_are_accurate() -> None:
    a = np.full(1_000_003, 0.1, "f4")
    total: Any = poly.einsum("i->", a)
    assert abs(total / (np.float64(a[0]) * a.size) - 1) < 1e-5
    assert poly.einsum("i->", np.ones(1 << 20, "f4")) == 1 << 20
    b = random_of((4, 100_001), "f4", 1)
    np.testing.assert_array_equal(poly.einsum("ij,ij->i", b, b), (b.astype("f8") ** 2).sum(1))


def test_sums_of_repeated_elements() -> None:
    for value in (np.float64(3.5), np.float32("inf"), np.int8(100), np.uint16(65535), np.complex64(1 + 2j), np.True_):
        repeated = np.broadcast_to(value, 1000)
        found = poly.einsum("i->", repeated)
        assert found.dtype == value.dtype and found == repeated.sum(dtype=value.dtype)
    for times in (1000, 100_000):  # by a kernel with free sizes, and by one for its own
        assert poly.einsum("i->", np.broadcast_to(np.complex64(1 + 2j), times)) == times * (1 + 2j)
    x = np.broadcast_to(random_of((3, 1), "f8", 1), (3, 7))
    np.testing.assert_array_equal(poly.einsum("ij,ij->i", x, x), (x * x).sum(1))
    assert poly.einsum("i->", np.broadcast_to(np.float32("nan"), 0)) == 0
    assert np.array_equal(poly.einsum("i,j->j", np.broadcast_to(1.0, 4), np.ones(3)), np.full(3, 4.0))


def test_complex_numbers_as_numpy() -> None:
    z = (np.random.default_rng(1).standard_normal((2, 40)) * [[1], [1e-3]]).T @ [1, 1j]
    assert (poly.einsum("i,i->i", z, z.conj()).imag == 0).all()
    odd = np.array([np.inf, -np.inf, np.nan, 0.0, 1.0])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(poly.einsum("i,j->ij", odd, odd + 1j), np.einsum("i,j->ij", odd, odd + 1j))


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("spec", ["ijk->kji", "ijk->jik", "ijk->ik", "ijk->k", "ijk->ij"])
def test_complex_numbers_that_nothing_multiplies_are_moved_as_floats(spec: str, dtype: str, monkeypatch: Any) -> None:
    forms = compiled_forms(monkeypatch)
    x = random_of((34, 33, 32), dtype, 1)
    check(spec, x)
    check(spec, x, out=np.empty_like(np.einsum(spec, x)))
    check(spec, x[:, :17], out=np.empty_like(np.einsum(spec, x[:, :17])))
    pairs, halves = {"c8": ("c64", "f32"), "c16": ("c128", "f64")}[dtype]
    assert {form.dtype for form in forms} == {pairs if spec == "ijk->ij" else halves}  # a sum over what is finest


def test_sums_shorter_than_a_vector_know_their_sizes(monkeypatch: Any) -> None:
    seen: list[Any] = []
    for name in ("_bound_kernel", "_free_kernel"):
        made = getattr(einsum_plan, name)
        monkeypatch.setattr(einsum_plan, name, lambda *a, name=name, made=made: seen.append(name) or made(*a))
    einsum_call.forget()
    for spec, shapes in (
        ("cba,ac->bc", [(8, 20, 4), (4, 8)]),
        ("ij,j->i", [(600, 3), (3,)]),
        ("ij,jk->ik", [(40, 4), (4, 7)]),
        ("ji,j->i", [(4, 300), (4,)]),
        ("ij,j->i", [(60, 30), (30,)]),
    ):
        check(spec, *(random_of(shape, "f4", n) for n, shape in enumerate(shapes)))
    assert seen == ["_bound_kernel", "_bound_kernel", "_free_kernel", "_free_kernel", "_free_kernel"]


def test_empty_extents() -> None:
    for arrays in ([np.ones((2, 0)), np.ones((0, 3))], [np.ones((0, 2)), np.ones((2, 3))]):
        check("ij,jk->ik", *arrays)
        check("ij,jk", *arrays, out=np.full((arrays[0].shape[0], 3), 9.0))
    check("i->", np.ones(0, "c8"))


# ---- keywords


def test_lists_of_subscripts() -> None:
    a, b = random_of((2, 3), "f4", 1), random_of((3, 4), "f4", 2)
    for arguments in (
        (a, [0, 1], b, [1, 2], [2, 0]),
        (a, [27, 3], b, [3, 1]),
        (a, (0, ...), b, np.array([1, 2]), [0, 2, ...]),
    ):
        check(*arguments)
    check(a, [Ellipsis, 0], b[:, 0], [0, Ellipsis], [Ellipsis])


def test_errors_of_lists_say_what_the_letters_are() -> None:
    a, b = np.zeros((3, 4)), np.zeros((5, 2))
    for arguments, refusal in (
        ((a, [0, 30], b, [30, 2], [0, 2]), r"(?s)extent 4 in operand 0 and 5 in .*\n  where A is 0, C is 2, e is 30$"),
        ((a, [0, ...], [0, 7]), "(?s)index 'H' of the output.*where A is 0, H is 7$"),
    ):
        for _ in range(2):
            with pytest.raises(ValueError, match=refusal):
                poly.einsum(*arguments)
    with pytest.raises(ValueError, match="(?s)^((?!where A).)*$"):
        poly.einsum("AB,BC", a, b)


def test_out_whose_elements_are_interleaved() -> None:
    memory = np.zeros(24, np.float32)
    out = as_strided(memory, (2, 3), (8, 12))  # at 0, 12, 24, 8, 20, 32: no two of them share memory
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(poly.einsum("ij->ij", a, out=out), a)
    np.testing.assert_array_equal(poly.einsum("ij->ij", a, out=out[::-1, ::-1]), a)


def test_out() -> None:
    a, b = random_of((3, 3), "f8", 1), random_of((3, 3), "f8", 2)
    product = a @ b
    for out in (
        np.empty((3, 3)), np.empty((3, 3), order="F"), np.empty((3, 6))[:, ::2], np.empty((3, 3))[::-1],
        np.zeros(73, np.uint8)[1:].view("f8").reshape(3, 3), np.empty((3, 3), "c16"), np.empty((3, 3), ">f8"),
    ):  # fmt: skip
        assert poly.einsum("ij,jk->ik", a, b, out=out) is out
        np.testing.assert_array_equal(out, product)
    left, right = a.copy(), b.copy()
    assert poly.einsum("ij,jk->ik", left, b, out=left) is left and np.array_equal(left, product)
    assert poly.einsum("ij,jk->ik", a, right, out=right) is right and np.array_equal(right, product)
    both = a.copy()
    assert np.array_equal(poly.einsum("ij->ji", both, out=both.T), a.T)
    total = np.array(0)
    assert poly.einsum("i,i->", a[0], a[0], out=total, optimize="optimal") is total and total == int(a[0] @ a[0])
    wide = np.empty(())
    poly.einsum("i->", np.full(3, 0.1, "f4"), out=wide)
    assert wide == 3 * np.float64(np.float32(0.1))


def test_dtype_and_casting() -> None:
    a = np.array([1.5, 2.5, 300.0])
    check("i,i->i", a, a, dtype="f4", casting="same_kind")
    check("i->", a[:2], dtype="i4", casting="unsafe")
    check("i->", np.arange(5, dtype=object), dtype="f8", casting="unsafe")
    check("i,i->", np.array([1, 2], "u1"), np.array([200, 100], "u1"), dtype="i8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(np.exceptions.ComplexWarning):
            poly.einsum("i->", a + 1j, dtype="f8", casting="unsafe")


@pytest.mark.parametrize("order", ["C", "F", "A", "K", "f", None])
def test_order(order: Any) -> None:
    a, b = random_of((2, 3, 5), "f8", 1), random_of((4, 3), "f8", 2)
    keywords = {} if order is None else {"order": order}
    for x, y in (
        (a, b),
        (np.asfortranarray(a), np.asfortranarray(b)),
        (a.transpose(1, 2, 0).copy().transpose(2, 0, 1), b),
    ):
        expected = np.einsum("kft,mf->kmt", x, y, **keywords)
        assert poly.einsum("kft,mf->kmt", x, y, order=order).strides == expected.strides


def test_order_of_large_batches() -> None:
    a, b = random_of((2, 48, 3, 16), "f4", 1), random_of((2, 40, 3, 16), "f4", 2)
    expected = np.einsum("bqhd,bkhd->bhqk", a, b)
    assert expected.strides[1] == 4  # of other products, side by side
    for _ in range(2):
        found = poly.einsum("bqhd,bkhd->bhqk", a, b)
        assert found.flags.c_contiguous and np.array_equal(found, expected)
    turned = poly.einsum("bqhd,bkhd->khqb", a, b)
    assert 4 in (turned.strides[0], turned.strides[2]) and turned.strides[1] == 48 * 40 * 4 < turned.strides[3]
    assert np.array_equal(turned, expected.transpose(3, 1, 2, 0))
    out = np.empty_like(expected)
    assert poly.einsum("bqhd,bkhd->bhqk", a, b, out=out) is out and np.array_equal(out, expected)
    fortran = poly.einsum("bqhd,bkhd->bhqk", a, b, order="F")
    assert fortran.flags.f_contiguous and np.array_equal(fortran, expected)
    x, y = a[0].transpose(0, 2, 1).copy(), b[0].transpose(0, 2, 1).copy()  # side by side along h
    assert poly.einsum("qdh,kdh->hqk", x, y).strides == np.einsum("qdh,kdh->hqk", x, y).strides


def test_which_kernels_have_free_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of the source where there is little work and no long sum; tiled ones for products of floats."""
    made: list[tuple[bool, bool]] = []

    def kernel(memory: Any, dtype: str, steps: Any, how: Any, threads: int) -> Any:
        made.append((how.free, how.plain))
        return wanted(memory, dtype, steps, how, threads)

    wanted = vars(einsum_plan)["_kernel"]
    monkeypatch.setattr(einsum_plan, "_kernel", kernel)
    einsum_call.forget()
    for equation, shapes, dtype in (
        ("ij,jk->ik", [(8, 8), (8, 8)], "f4"), ("ij,jk->ik", [(8, 8), (8, 8)], "i4"), ("ij->", [(16, 16)], "f4"),
        ("ij,jk->ik", [(16, 16), (16, 16)], "f4"), ("ij,jk->ik", [(16, 16), (16, 16)], "i4"),
        ("ij->", [(16, 17)], "f4"), ("ij,jk->ik", [(8, 8), (8, 8)], "c8"), ("ij,ij->", [(60, 60), (60, 60)], "f4"),
    ):  # fmt: skip
        check(equation, *(random_of(s, dtype, n) for n, s in enumerate(shapes)))
    assert [free for free, _ in made] == [True, True, True, True, False, False, False, False]
    assert [plain for free, plain in made if free] == [True, True, True, False]
    einsum_call.forget()


def test_optimize() -> None:
    arrays = [random_of(s, "f8", n) for n, s in enumerate([(3, 4), (4, 5), (5, 6), (6, 3)])]
    expected = np.einsum("ab,bc,cd,da->ac", *arrays)
    paths = (True, None, "greedy", "optimal", ("greedy", 10), ["einsum_path", (0, 1), (0, 1), (0, 1)],
             [(1, 3), (0, 1, 2)], "auto", "dp", "branch-2", ["einsum_path", (0, 1, 2, 3)])  # fmt: skip
    for optimize in paths:
        np.testing.assert_array_equal(poly.einsum("ab,bc,cd,da->ac", *arrays, optimize=optimize), expected)
    for optimize in ([(0, 1)], ["einsum_path", (0, 1), (0, 9), (0, 1)], "no such", [(0, 1), (0, 1), (0,)]):
        with pytest.raises((PathError, ArgumentTypeError)):
            poly.einsum("ab,bc,cd,da->ac", *arrays, optimize=optimize)
    with pytest.raises(KeyError, match="^no optimizer 'no such'\n"):  # numpy's kind, and no quotes around all of it
        poly.einsum("ab,bc,cd,da->ac", *arrays, optimize="no such")


def test_plans_and_kernels_are_kept() -> None:
    a = random_of((4, 5), "f4", 1)
    poly.einsum("ij,kj->ik", a, a)
    plans, kernels = einsum_call._plan.cache_info(), einsum_plan._free_kernel.cache_info()
    for n in range(2, 9):
        b = random_of((n, 11 - n), "f4", n)
        poly.einsum("pq,rq->pr", b, b[: n // 2 + 1])
        poly.einsum("ij,kj->ik", a, a)
    assert einsum_call._plan.cache_info().misses <= plans.misses + 7
    assert einsum_plan._free_kernel.cache_info().misses <= kernels.misses + 1


@pytest.mark.skipif(not NATIVE, reason="objects are not laid out as in CPython")
def test_calls_that_only_ever_give_out_are_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `out` is what a call without it would make; another one stays in Python, and changes no fresh result."""
    a, b = random_of((3, 4), "f4", 1), random_of((4, 5), "f4", 2)
    same, wider, turned = np.empty((3, 5), "f4"), np.empty((3, 5), "f8"), np.empty((3, 5), "f4", order="F")
    einsum_call.forget()
    for out in (wider, turned, same):
        assert poly.einsum("ij,jk->ik", a, b, out=out) is out
        np.testing.assert_allclose(out, a @ b, rtol=1e-6)
    seen: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(einsum_call, "_einsum", lambda *args, **keywords: seen.append((args, keywords)))
        poly.einsum("ij,jk->ik", a, b, out=same)
        fresh = poly.einsum("ij,jk->ik", a, b)
        assert not seen
        for out in (wider, turned):
            poly.einsum("ij,jk->ik", a, b, out=out)
    assert len(seen) == 2 and fresh.dtype == np.float32 and fresh.flags.c_contiguous
    np.testing.assert_array_equal(fresh, same)


@pytest.mark.skipif(not NATIVE, reason="objects are not laid out as in CPython")
def test_repeated_calls_are_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that decides about a plan is compared, and whatever differs goes to Python."""
    a, b, out = random_of((3, 4), "f4", 1), random_of((4, 5), "f4", 2), np.empty((3, 5), np.float32)
    spec, seen = "ij,jk->ik", list[object]()
    einsum_call.forget()
    expected = poly.einsum(spec, a, b)
    monkeypatch.setattr(einsum_call, "_einsum", lambda *args, **keywords: seen.append((args, keywords)))
    np.testing.assert_array_equal(poly.einsum(spec, a, b), expected)
    assert poly.einsum(spec, a, b, out=out) is out and not seen
    np.testing.assert_array_equal(out, expected)
    fixed = out.copy()
    fixed.flags.writeable = False
    others: list[tuple[tuple[object, ...], dict[str, object]]] = [
        ((spec, a.astype("f8"), b), {}), ((spec, a[:2], b), {}), ((spec, np.asfortranarray(a), b), {}),
        ((spec, a.tolist(), b), {}), (("ij,jk->ki", a, b), {}), ((spec, a), {}), ((spec, a, b, b), {}),
        ((a, [0, 1], b, [1, 2]), {}), ((), {}), ((spec,), {}), ((spec, a, b), {"out": fixed}),
        ((spec, a, b), {"out": out[:2]}), ((spec, a, b), {"out": a}), ((spec, a, b), {"order": "F"}),
        ((spec, a, b), {"out": out, "optimize": True}), ((spec, random_of((3, 9), "f4", 1)[:, ::2][:, :4], b), {}),
    ]  # fmt: skip
    for args, keywords in others:
        poly.einsum(*args, **keywords)  # type: ignore[arg-type]
    assert len(seen) == len(others)
    monkeypatch.undo()
    number = poly.einsum("ij,ij->", a, a)
    again = poly.einsum("ij,ij->", a, a)
    assert type(again) is np.float32 and again == number
    turned = [poly.einsum("ij,jk->ik", a.T.copy().T, b) for _ in range(3)]
    np.testing.assert_allclose(np.asarray(turned[0], "f4"), np.asarray(expected, "f4"), rtol=1e-6)
    assert all(t.strides == turned[0].strides and np.array_equal(t, turned[0]) for t in turned)
    assert pickle.loads(pickle.dumps(poly.einsum)) is poly.einsum and "Raises" in (poly.einsum.__doc__ or "")


def test_longdouble_is_numpys() -> None:
    a = np.arange(5, dtype="g")
    with pytest.warns(FallbackWarning, match="'i,i->'.*has no compiled form") as told:
        found = poly.einsum("i,i->", a, a)
    assert told[0].filename == __file__  # where the call is, not where we found out
    assert type(found) is np.longdouble and found == 30


class Own:
    """A class with its own meaning for numpy's functions."""

    def __array_function__(self, function: Any, kinds: Any, arguments: Any, keywords: Any) -> Any:
        return function.__name__, arguments[0]


def test_classes_with_their_own_einsum() -> None:
    assert poly.einsum("i,i->", Own(), np.ones(2)) == ("einsum", "i,i->")
    assert poly.einsum("ij->", np.ma.masked_array(np.ones((2, 2)), np.eye(2) > 0)) == 4


# ---- refusals


@pytest.mark.parametrize(
    ("arguments", "keywords", "kind", "words"),
    [
        ((), {}, ArgumentError, "string of subscripts"),
        (("",), {}, ShapeError, "1 operand, 0 are given"),
        ((0, 0), {}, ArgumentTypeError, "subscripts are"),
        ((np.ones(2), [0.5]), {}, ArgumentTypeError, "ints below 52"),
        ((np.ones(2), [52]), {}, ParseError, "52 is outside"),
        (("i,i->", np.ones(2), np.ones(3)), {}, ShapeError, "'i' has extent 2"),
        (("i->j", np.ones(2)), {}, ParseError, "'j' of the output"),
        (("i\t->i", np.ones(2)), {}, ParseError, "no meaning"),
        (("i,i->", [1, 2], [[1], [2, 3]]), {}, ArgumentError, "list is no array"),
        (("i->", np.array(["a"])), {}, ArgumentTypeError, "no compiled form"),
        (("i->", np.array([1], "m8[s]")), {}, ArgumentTypeError, "no compiled form"),
        (("i->", np.array([1], object)), {}, ArgumentTypeError, "object.*(?s:.)*casting='unsafe'"),
        (("i->", np.ones(3, ml_dtypes.float8_e5m2)), {}, ArgumentTypeError, "e5m2(?s:.)*dtype='float32'"),
        (("i->", np.ones(3).astype(ml_dtypes.float8_e4m3fn)), {}, ArgumentTypeError, "e4m3fn(?s:.)*dtype='float32'"),
        (("i,i->", np.ones(2), np.ones(2)), {"dtype": "f4"}, ArgumentTypeError, "(?s)operand 0.*casting="),
        (("i->", np.ones(2)), {"out": np.array(1)}, ArgumentTypeError, "int64"),
        (("i->", np.ones(2)), {"out": np.ones(2)}, ShapeError, r"out has shape \(2,\)"),
        (("i->", np.ones(2)), {"out": 3}, ArgumentTypeError, "out is int(?s:.)*numpy.empty"),
        (("i->i", np.ones(2)), {"out": np.broadcast_to(0.0, 2)}, ArgumentError, "read-only"),
        (("ij->ij", np.ones((2, 3))), {"out": as_strided(np.ones(9), (2, 3), (8, 8))}, ArgumentError, "share memory"),
        (("i->i", np.ones(4)), {"out": as_strided(np.ones(9), (4,), (0,))}, ArgumentError, "share memory"),
        (("i->i", np.ones(4)), {"out": as_strided(np.ones(9), (4,), (4,))}, ArgumentError, "share memory"),
        (("i->", np.ones(2)), {"order": "W"}, ArgumentError, "order 'W'"),
        (("i->", np.ones(2)), {"casting": "blah"}, ArgumentError, "casting 'blah'"),
        (("i->", np.ones(2)), {"dtype": "bad"}, ArgumentTypeError, "'bad'"),
        (("i->", np.ones(2)), {"optimize": object()}, ArgumentTypeError, "no path"),
        (("i->", np.ones(2)), {"threads": 0}, ArgumentError, "threads=0"),
        (("i->", np.ones(2)), {"threads": 1.5}, ArgumentTypeError, "threads=1.5"),
    ],
)
def test_refusals(arguments: Any, keywords: Any, kind: type[PolyError], words: str) -> None:
    with pytest.raises(kind, match=words) as refusal:
        poly.einsum(*arguments, **keywords)
    assert isinstance(refusal.value, ValueError | TypeError)
    if not {"threads", "optimize"} & keywords.keys() and "object" not in words and "share" not in words:
        with pytest.raises((ValueError, TypeError)) as numpys:
            np.einsum(*arguments, **keywords)
        assert isinstance(refusal.value, type(numpys.value))


# ---- other libraries


class Foreign:
    """An array of another library: numpy's memory behind DLPack and nothing else."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __array_namespace__(self) -> Any:
        return types.SimpleNamespace(from_dlpack=lambda x: Foreign(np.from_dlpack(x)))


class Remote(Foreign):
    """Memory that cannot be reached from here."""

    def __dlpack__(self, **keywords: Any) -> Any:
        raise BufferError("on another device")


def test_dlpack_in_and_out() -> None:
    a, b = random_of((3, 4), "f4", 1), random_of((4, 5), "f4", 2)
    found = poly.einsum("ij,jk->ik", Foreign(a), b)
    np.testing.assert_array_equal(np.from_dlpack(Foreign(found)), a @ b)
    assert address(poly.einsum("ij->ji", Foreign(a))) == address(a)
    with pytest.raises(ArgumentTypeError, match="another device"):
        poly.einsum("ij->i", Remote(a))


def test_opt_einsum_backend() -> None:
    rng = np.random.default_rng(3)
    for equation in ("ij,jk,kl->il", "ab,bc,cd,de->ea", "abc,bd,cd->a", "a,b,c->abc", "ab,ab->", "αβ,βγ,γα->"):
        views = [rng.integers(-3, 4, (4,) * len(t)).astype("f8") for t in equation.split("->")[0].split(",")]
        expected = opt_einsum.contract(equation, *views)
        found = opt_einsum.contract(equation, *views, backend=BACKEND)
        np.testing.assert_array_equal(found, expected)
        expression = opt_einsum.contract_expression(equation, *(v.shape for v in views))
        np.testing.assert_array_equal(expression(*views, backend=BACKEND), expected)
    out = np.empty((4, 4))
    a = rng.integers(-3, 4, (4, 4)).astype("f8")
    assert opt_einsum.contract("ij,jk,kl->il", a, a, a, out=out, backend=BACKEND) is out
    np.testing.assert_array_equal(out, a @ a @ a)


def test_tensordot_and_transpose() -> None:
    a, b = random_of((2, 3, 4), "f4", 1), random_of((4, 3, 5), "f4", 2)
    for axes in (1, ([2, 1], [0, 1]), ((-1,), (0,)), (1, 1), 0, ([], [])):
        np.testing.assert_array_equal(opt_einsum_backend.tensordot(a, b, axes), np.tensordot(a, b, axes))
    assert opt_einsum_backend.transpose(a, (2, 0, 1)).strides == a.transpose(2, 0, 1).strides  # type: ignore[attr-defined]
    for axes in (4, -1, ([5], [0]), ([0], [0, 1]), ([1, 1], [1, 1]), ([0], [0])):
        with pytest.raises(ArgumentError):
            opt_einsum_backend.tensordot(a, b, axes)


def test_results_go_back_to_their_library() -> None:
    a, b = random_of((3, 4), "f4", 1), random_of((4, 5), "f4", 2)
    found = opt_einsum_backend.einsum("ij,jk->ik", Foreign(a), Foreign(b))
    assert isinstance(found, Foreign)
    np.testing.assert_array_equal(found.array, a @ b)
    dot = opt_einsum_backend.tensordot(Foreign(a), b, 1)
    assert isinstance(dot, Foreign) and np.array_equal(dot.array, a @ b)
    turned = opt_einsum_backend.transpose(Foreign(a))
    assert isinstance(turned, Foreign) and address(turned.array) == address(a)


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_bfloat16_of_other_libraries(library: str) -> None:
    module = pytest.importorskip(library)
    a, b = random_of((3, 4), "f4", 1), random_of((4, 5), "f4", 2)
    x, y = (module.asarray(v, dtype=module.bfloat16) for v in (a, b))
    p, q = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    found = poly.einsum("ij,jk->ki", x, y)
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found, poly.einsum("ij,jk->ki", p, q))
    np.testing.assert_array_equal(poly.einsum("ij->ji", x), p.T)  # of the same memory, which x keeps


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_installed_libraries(library: str) -> None:
    module = pytest.importorskip(library)
    a, b = random_of((3, 4), "f4", 1), random_of((4, 5), "f4", 2)
    x, y = module.asarray(a), module.asarray(b)
    before = np.from_dlpack(x)
    np.testing.assert_array_equal(poly.einsum("ij,jk->ik", x, y), a @ b)
    assert address(poly.einsum("ij->ji", x)) == address(before)
    found = opt_einsum.contract("ij,jk->ki", x, y, backend=BACKEND)
    assert type(found) is type(x)
    np.testing.assert_array_equal(np.asarray(found), (a @ b).T)


@pytest.mark.parametrize("spec", ["ij->ji", "ij", "ba", "ii->i", "iij->ij", "ijk->kji", "...j->j...", "iji->ji"])
def test_views_are_numpys_at_every_call(spec: str) -> None:
    rank = 3 if "." in spec else len(spec.partition("-")[0])
    for extent in (3, 4, 3, 1):
        for array in (np.arange(extent**rank).reshape((extent,) * rank), np.zeros((2 * extent,) * rank)):
            given = array if array.dtype.kind == "i" else array[(slice(None, None, -2),) * rank]
            for _ in range(2):
                found, want = poly.einsum(spec, given), np.einsum(spec, given)
                assert found.__array_interface__ == want.__array_interface__, given.shape
                assert found.flags.writeable and (found.size == 0 or np.shares_memory(found, given))
    if spec in ("ii->i", "iij->ij"):
        with pytest.raises(ShapeError):
            poly.einsum(spec, np.zeros((3, 4, 5)[:rank]))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("i,i->", [((1100,), (1100,)), ((32768,), (32768,)), ((2047,), (2047,))]),
        ("ij,j->i", [((1, 1200), (1200,)), ((180, 181), (181,)), ((1200, 1), (1,))]),
        ("ij,jk->ik", [((11, 10), (10, 12)), ((32, 32), (32, 32)), ((1, 500), (500, 3)), ((2, 1), (1, 900))]),
        ("ij->j", [((33, 40), ), ((180, 180), ), ((2, 2000), )]),
        ("bij,bkj->bik", [((3, 9, 8), (3, 7, 8)), ((1, 20, 30), (1, 25, 30))]),
    ],
)  # fmt: skip
def test_one_kernel_for_all_small_sizes(spec: str, shapes: list[tuple[tuple[int, ...], ...]], dtype: str) -> None:
    """Between the loops of the source and a kernel for each size; strided operands, too."""
    random = np.random.default_rng(0)
    for each in shapes:
        arrays = [random.integers(-4, 5, s).astype(dtype) for s in each]
        np.testing.assert_array_equal(poly.einsum(spec, *arrays), np.einsum(spec, *arrays))
        wide = [np.repeat(a, 2, axis=-1)[..., ::2] for a in arrays]
        np.testing.assert_array_equal(poly.einsum(spec, *wide), np.einsum(spec, *wide))


@pytest.mark.parametrize(
    ("spec", "turned"),
    [
        ("bij,bjk->kib", True), ("bij,bjk->ikb", True), ("baij,bajk->kiab", True), ("bij,bj->ib", True),
        ("bij,bjk->bik", False), ("jib,jkb->kib", False), ("bij,bij->b", False), ("bi,bk->kib", False),
        ("ij,jk->ki", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "f2"])
def test_batches_that_lie_innermost_in_the_result_alone_are_put_there_last(spec: str, turned: bool, dtype: str) -> None:
    sizes = dict(zip("abijk", (3, 40, 17, 19, 21), strict=True))
    rng = np.random.default_rng(0)
    operands = [(rng.random([sizes[i] for i in t]) * 8).astype(dtype) for t in spec.split("->")[0].split(",")]
    tolerance = {"f4": 1e-5, "f8": 1e-12, "i4": 0, "f2": 2e-3}[dtype]
    want = np.einsum(spec, *(a.astype("f8") for a in operands))
    np.testing.assert_allclose(poly.einsum(spec, *operands).astype("f8"), want, rtol=tolerance)
    terms, result = spec.split("->")
    views = tuple(View(tuple(t), (True,) * len(t), "f32") for t in terms.split(","))
    form = Form(views, tuple(result), ((0, 1),), "f32")
    found = form_program(form, [sizes[p[1:]] for p in form.parameters])
    assert any(t.role == "temporary" for t in found.tensors) == turned
    assert not any(t.role == "temporary" for t in form_program(form).tensors)


def test_float8_computes_with_its_values_where_a_dtype_is_given() -> None:
    """Also e5m2, whose dtype numpy itself does not find by its text."""
    for kind in (ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn):
        a, b = (np.array(v, "f4").astype(kind) for v in ([[0.5, 1.5, -3], [2, 0, 1]], [[1, 4], [0.25, 2], [8, -1]]))
        found = poly.einsum("ij,jk->ik", a, b, dtype="f4")
        np.testing.assert_array_equal(found, a.astype("f4") @ b.astype("f4"))
        np.testing.assert_array_equal(poly.einsum("ij->ji", a[:, ::-1]), a[:, ::-1].T)
