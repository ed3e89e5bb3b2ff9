"""The notebooks run from top to bottom, in the folder they are in, and show what their files show."""

import os
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 150_000
OF_A_CORE = ("kernel", "why")  # cells with these names show what depends on the CPU, or on time


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert path.stat().st_size < LARGEST
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel sets its own, which draws into the notebook
    notebook, kept = (nbformat.read(path, as_version=4) for _ in range(2))
    nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    assert any("image/png" in o.get("data", {}) for o in outputs)
    assert any("image/svg+xml" in o.get("data", {}) for o in outputs)
    for found, shown in zip(notebook.cells, kept.cells, strict=True):
        assert _kinds(found) == _kinds(shown), f"{found.source}\nrun docs/run_notebooks.py"
        if not any(name in found.source for name in OF_A_CORE):
            assert _texts(found) == _texts(shown), f"{found.source}\nrun docs/run_notebooks.py"


def _kinds(cell: Any) -> list[list[str]]:
    """Of the outputs; what is printed may come in several."""
    return [kinds for kinds, _ in groupby(sorted(o.get("data", {"text": ""})) for o in cell.get("outputs", []))]


def _texts(cell: Any) -> str:
    return "".join(o.text for o in cell.get("outputs", []) if o.output_type == "stream")
