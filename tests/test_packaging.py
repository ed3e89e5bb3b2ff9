"""The package list, its mapping, the links and the folders say the same thing; every folder refuses its bare name."""

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("frontend", "scheduling", "codegen", "accel")


def test_package_list_mapping_and_folders_agree() -> None:
    tool = PROJECT["tool"]["setuptools"]
    expected = {"poly": "poly"} | {f"poly.{name}": name for name in FOLDERS}
    assert tool["package-dir"] == expected
    assert tool["packages"] == list(expected)
    found = {init.parent.name for init in ROOT.glob("*/__init__.py")} - {"benchmarks", "tests"}
    assert found == set(expected.values())


def test_type_checker_sees_every_folder() -> None:
    seen = {"poly", "tests", "benchmarks"} | {f"poly/{name}" for name in FOLDERS}
    assert set(PROJECT["tool"]["pyright"]["include"]) == seen


@pytest.mark.parametrize("folder", ("poly", *FOLDERS))
def test_folders_stay_flat(folder: str) -> None:
    links = [ROOT / folder / name for name in FOLDERS]
    nested = [p for p in (ROOT / folder).glob("*/**/*.py") if not set(links) & set(p.parents)]
    assert not nested, f"{folder}/ has modules in subfolders, which no wheel would contain: {nested}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_link_is_relative_and_points_to_its_folder(folder: str) -> None:
    link = ROOT / "poly" / folder
    assert link.is_symlink() and os.readlink(link) == f"../{folder}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_imports_only_under_poly(folder: str) -> None:
    importlib.import_module(f"poly.{folder}")
    bare = [sys.executable, "-c", f"import {folder}"]
    done = subprocess.run(bare, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and f"import poly.{folder}" in done.stderr


def test_every_data_file_is_packaged() -> None:
    data = PROJECT["tool"]["setuptools"]["package-data"]
    mapping = PROJECT["tool"]["setuptools"]["package-dir"]
    declared = {p for package, globs in data.items() for g in globs for p in (ROOT / mapping[package]).glob(g)}
    sources = (p for f in ("poly", *FOLDERS) for p in (ROOT / f).glob("**/*") if p.is_file())
    present = {p for p in sources if p.suffix != ".py" and "__pycache__" not in p.parts and p.resolve() == p}
    assert present == declared


def test_versions_and_commands_of_the_readme() -> None:
    version = PROJECT["project"]["version"]
    poly = importlib.import_module("poly")
    assert poly.__version__ == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    readme = (ROOT / "README.md").read_text().splitlines()
    assert "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/poly demo" in readme
    assert sum("python3 -m venv" in line and ".[test]" in line and "pytest" in line for line in readme) == 1
