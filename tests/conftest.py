"""Options and shared set-up of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Examples of property tests are the same whatever was imported before: hypothesis draws a few numbers and texts
    from the source of the modules that it finds, and has no setting for that.
    """
    from hypothesis.internal.conjecture import providers
    from hypothesis.internal.constants_ast import Constants

    assert "_get_local_constants" in providers.__dict__  # else this would set what nobody reads
    providers.__dict__["_get_local_constants"] = Constants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite the expected sections of tests/nests/*.nest")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The disk cache in a folder of the test's own."""
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYLOOM_CACHE", "off")
