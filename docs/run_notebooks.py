"""Runs the notebooks and writes what they show into them, pictures with few colours: `python docs/run_notebooks.py`.

What they show is for whoever reads them where nothing runs. `tests/test_notebooks.py` runs them again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from PIL import Image

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
_COLOURS = 32


def executed(path: Path) -> Any:
    """A notebook after a run from top to bottom in its folder."""
    notebook: Any = nbformat.read(path, as_version=4)  # pyright: ignore[reportUnknownMemberType]
    nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(path.parent)}}).execute()
    return notebook


def shown(notebook: Any) -> list[Any]:
    """The outputs of all cells."""
    return [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]


def _few_colours(png: str) -> str:
    file = BytesIO()
    Image.open(BytesIO(b64decode(png))).convert("RGB").quantize(_COLOURS).save(file, "PNG", optimize=True)
    return b64encode(file.getvalue()).decode()


def _write(path: Path) -> None:
    notebook = executed(path)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
    for output in shown(notebook):
        if "image/png" in output.get("data", {}):
            output.data["image/png"] = _few_colours(output.data["image/png"])
    nbformat.write(notebook, path)  # pyright: ignore[reportUnknownMemberType]


if __name__ == "__main__":
    for each in sorted(NOTEBOOKS.glob("*.ipynb")):
        _write(each)
