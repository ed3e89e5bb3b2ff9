"""Random valid models (NNSmith's, 10 operators each, PyTorch's outputs) through `poly.compile`, every one of them.

Minutes, so only with POLYLOOM_SLOW=1, and only where the models are.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import poly
from poly.errors import FallbackWarning

_FOLDER: Final = Path(os.environ.get("POLYLOOM_MODELS", "../shared/models")) / "nnsmith"
_FILES: Final = sorted(_FOLDER.glob("*.onnx")) if "POLYLOOM_SLOW" in os.environ else []
# Where we and PyTorch differ, and why.
_EXPLAINED: Final = {"0028": "PyTorch computed an output in f64 that the exported model declares, and computes, as f32"}


@pytest.mark.skipif("POLYLOOM_SLOW" not in os.environ, reason="minutes; set POLYLOOM_SLOW=1")
@pytest.mark.skipif(not _FOLDER.is_dir(), reason="the models are not here")
@pytest.mark.parametrize("path", _FILES, ids=lambda p: p.stem)
def test_random_model_agrees_with_pytorch(path: Path) -> None:
    stored = np.load(path.with_suffix(".npz"), allow_pickle=True)
    inputs = {name[3:]: stored[name] for name in stored.files if name.startswith("in:")}
    engine = poly.compile(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        found = engine.run(inputs)
    for name in (n for n in stored.files if n.startswith("out:")):
        have, want = np.asarray(found[name[4:]]), stored[name]
        assert have.shape == want.shape
        assert have.dtype == want.dtype or path.stem in _EXPLAINED
        if want.dtype.kind == "f":
            finite = np.abs(want[np.isfinite(want)])
            largest = max(1.0, float(finite.max())) if finite.size else 1.0
            np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-5 * largest, equal_nan=True)
        else:
            np.testing.assert_array_equal(have, want)
