"""Candidates of a nest and their times: what `benchmarks.choices` says about them."""

from __future__ import annotations

import pytest

from benchmarks.choices import main, summary
from benchmarks.trials import Found, Shown
from poly.trials import STAGES


def found(nest: str, *ratios: float) -> Found:
    """A nest whose choice is measured with others, of which the last one drops out early."""
    shown = [Shown("", 1.0, len(STAGES) - 1, 40, 1e-3 * r, 1e-3 * r, r) for r in (1.0, *ratios)]
    return Found(nest, (*shown, Shown("", 1.0, 1, 3, 1e-4, 1e-4, 0.1)), 200)


def test_only_what_was_measured_to_the_end_counts() -> None:
    assert found("a", 0.8, 1.2).ratio == pytest.approx(1.25)
    assert found("a", 1.2).ratio == 1.0
    assert "3 of 200 (3x3 2x40)" in str(found("a", 1.2))


def test_a_summary_names_what_is_far_off() -> None:
    text = summary([found("near", 0.95), found("far", 0.5)])
    assert "1 of 2 (50%)" in text and text.endswith("more than 10 % off: far 2.00")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["=nothing_like_it"], "no contraction or convolution has one of =nothing_like_it"),
        (["softmax"], "no contraction"),
        (["=gemm_64", "--candidates", "0"], "positive"),
        (["--only", "show"], "--json"),
        (["--only", "show", "--json", "missing.json"], "--json"),
    ],
)
def test_wrong_options_are_said(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["choices", *words])
    with pytest.raises(SystemExit):
        main()
    assert message in capsys.readouterr().err
