"""Limits on the shape of the code: module and function size, import direction, light import."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("poly", "frontend", "scheduling", "codegen", "accel")
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
LONGEST_MODULE = 800
LONGEST_FUNCTION_P90 = 35
HEAVY = ("llvmlite", "onnx", "onnxruntime", "sympy", "matplotlib", "rich", "opt_einsum", "IPython")
IMPORT_SECONDS = 0.3


def layers() -> list[str]:
    """The modules that the import-linter contract names, brackets removed."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    return [name.strip(" ()") for layer in contract["layers"] for name in re.split(r"[|:]", layer)]


def function_lengths() -> Iterator[tuple[int, str]]:
    """Lines of every function, decorators left out, with where it stands."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{path.relative_to(ROOT)}:{node.name}"


def test_no_module_is_too_long() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert not {name: size for name, size in sizes.items() if size > LONGEST_MODULE}


def test_functions_are_short() -> None:
    lengths = sorted(function_lengths(), reverse=True)
    if not lengths:
        pytest.skip("no functions yet")
    p90 = lengths[len(lengths) // 10]
    assert p90[0] <= LONGEST_FUNCTION_P90, f"nine in ten functions must have at most 35 lines; longest: {lengths[:20]}"


def test_layers_contract() -> None:
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, "run lint-imports to see the chain of imports"


def test_core_imports_no_layer() -> None:
    named = layers()
    graph = grimp.build_graph("poly", cache_dir=None)
    core = {m for m in graph.modules if m != "poly" and not any(m == n or m.startswith(n + ".") for n in named)}
    upward = {(m, t) for m in core for t in graph.find_modules_directly_imported_by(m) if t not in core}
    assert not upward, "a core module imports a layer or the package itself (if it is glue, name it in a layer)"


def test_no_folder_imports_the_facade() -> None:
    graph = grimp.build_graph("poly", cache_dir=None)
    below = {m for m in graph.modules if m.split(".")[1:2] and m.split(".")[1] in FOLDERS}
    assert not {m for m in below if "poly" in graph.find_modules_directly_imported_by(m)}


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light() -> None:
    loaded = run_python("import sys, poly; print(*sys.modules)").split()
    assert not set(HEAVY) & set(loaded)


def test_import_is_quick() -> None:
    code = "import time; t = time.process_time(); import poly; print(time.process_time() - t)"
    seconds = min(float(run_python(code)) for _ in range(4))
    assert seconds < IMPORT_SECONDS, f"import poly takes {seconds:.2f} s of processor time"
