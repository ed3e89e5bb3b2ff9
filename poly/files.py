"""What to say of a file that is not there, or is something else."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

_SHOWN = 5
_CLOSE = 0.75
_DATA = (".onnx", ".npy", ".npz")  # what a neighbour may stand for


def near_file(path: str | Path) -> str:
    """For a file that is missing: one with a similar name in its folder, or the folder that is missing, too."""
    path = Path(path)
    folder = path.parent
    try:
        if path.is_dir():
            return f"a file: {path} is a folder"
        if path.exists() and not path.is_file():
            return f"a file on disk: {path} is a device or a pipe"
        names = sorted(p.name for p in folder.iterdir())
    except (OSError, ValueError):
        return f"a folder that there is: {folder} is none"
    near = get_close_matches(path.name, names, 1, _CLOSE)
    same = [n for n in names if path.suffix in _DATA and Path(n).suffix == path.suffix][:_SHOWN]
    found = near or same
    other = f"a path that there is: {folder.absolute()} has no {path.suffix or 'such'} file"
    return ", ".join(str(folder / n) for n in found) or other


def what_instead(path: str | Path) -> str:
    """For a path that is no model: the models of a folder, or what the file seems to be."""
    path = Path(path)
    try:
        if path.is_dir():
            models = sorted(str(p) for p in path.glob("*.onnx"))[:_SHOWN]
            return ", ".join(models) or f"the path of a file, not of a folder: {path / 'model.onnx'}"
        with path.open("rb") as file:
            first = file.read(64)
    except (OSError, ValueError):
        return "a file that can be read"
    if first.startswith(b"version https://git-lfs"):
        return "`git lfs pull` first: the file is a pointer of Git LFS"
    if path.suffix.lower() == ".onnx":
        return "write or fetch the file again: onnx.checker.check_model(path) says the same"
    return "a file that onnx.save or torch.onnx.export has written; a program's text goes to poly.parse"


def model_instead(value: object) -> str:
    """For a value that is no model: how other libraries make one of it."""
    if hasattr(value, "model_proto"):  # of torch.onnx.export(..., dynamo=True)
        return "from_onnx(program.model_proto)"
    if hasattr(value, "state_dict"):  # a module of torch
        return 'torch.onnx.export(module, inputs, "model.onnx"), then from_onnx("model.onnx")'
    return "from_onnx(file.read())" if hasattr(value, "read") else 'from_onnx("model.onnx")'
