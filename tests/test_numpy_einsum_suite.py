"""numpy's own tests of einsum (numpy._core.tests.test_einsum), run against `poly.einsum` in the place of `np.einsum`.

Tests that do not pass are waived by name, with the reason.
"""

import importlib.util
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

import poly
from poly import einsum_call, einsum_plan
from poly.errors import ArgumentTypeError

pytestmark = pytest.mark.filterwarnings("ignore::poly.errors.FallbackWarning")

WAIVED = {
    "test_einsum_object_errors": "arrays of objects are refused: their operators are Python's",
    "test_einsum_sums_object": "arrays of objects are refused: their operators are Python's",
    "test_object_loop": "arrays of objects are refused: their operators are Python's",
}


def numpys_tests() -> ModuleType:
    """A fresh copy of numpy's test module whose decorators have seen `poly.einsum`."""
    spec = importlib.util.find_spec("numpy._core.tests.test_einsum")
    if spec is None or spec.loader is None:
        pytest.skip("numpy was installed without its tests", allow_module_level=True)
    module = importlib.util.module_from_spec(spec)
    before, np.einsum = np.einsum, poly.einsum
    try:
        spec.loader.exec_module(module)
    finally:
        np.einsum = before
    return module


@pytest.fixture(autouse=True)
def replaced(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    name = request.node.originalname
    if name in WAIVED:
        pytest.skip(WAIVED[name])
    monkeypatch.setattr(np, "einsum", poly.einsum)
    yield


NUMPY = numpys_tests()
TestEinsum, TestEinsumPath = NUMPY.TestEinsum, NUMPY.TestEinsumPath
test_overlap, test_einsum_chunking_precision = NUMPY.test_overlap, NUMPY.test_einsum_chunking_precision


def test_the_suite_runs_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy's tests reach compiled kernels, and see what they compute."""
    made: list[einsum_plan.Plan] = []
    make = einsum_plan.make_plan

    def recorded(*arguments: object) -> einsum_plan.Plan:
        made.append(make(*arguments))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(einsum_call, "make_plan", recorded)
    einsum_call.forget()
    TestEinsum().test_einsum_all_contig_non_contig_output()
    assert len(made) == 3 and all(isinstance(p, einsum_plan.Compiled) and p.run is not None for p in made)
    monkeypatch.setattr(einsum_plan.Compiled, "__call__", lambda self, arrays, out: out)
    with pytest.raises(AssertionError):
        TestEinsum().test_einsum_all_contig_non_contig_output()


def test_objects_are_refused() -> None:
    objects = np.array([1, 2], object)
    for call in (("i->", objects), ("i,i", objects, [1, 2]), (objects, [0], [])):
        with pytest.raises(ArgumentTypeError, match="object"):
            poly.einsum(*call)


def test_all_of_numpys_tests_are_here() -> None:
    names = {n for n in vars(NUMPY) if n.startswith(("test_", "Test"))}
    assert names == {"TestEinsum", "TestEinsumPath", "test_overlap", "test_einsum_chunking_precision"}
    assert all(hasattr(TestEinsum, n) for n in WAIVED)
