"""Polyloom: a polyhedral compiler for tensor programs.

    import poly
    C = poly.einsum("ij,jk->ik", A, B)
    program = poly.parse("C[i,k] += A[i,j]*B[j,k]", A=(64, 32), B=(32, 48))
    kernel = poly.compile(program)
    engine = poly.compile(poly.from_onnx("model.onnx"), target="s16")

Names load on first use, so that `import poly` is quick.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from poly import errors as errors
    from poly import figures as figures
    from poly.codegen.pool import pool
    from poly.compiler import compile
    from poly.einsum_call import einsum
    from poly.engine import Engine
    from poly.errors import PolyError
    from poly.explainer import explain
    from poly.frontend.nest import nest
    from poly.frontend.notation import parse
    from poly.frontend.onnx_import import from_onnx
    from poly.graph import Graph
    from poly.interp import run_program
    from poly.loops import LoopTree
    from poly.machine import Machine
    from poly.machine_text import read_machine
    from poly.program import Program
    from poly.scheduling.schedule import Schedule
    from poly.tuning import Tuning

__version__ = "0.1.0"

_HOMES: Final = {
    "Engine": "engine", "Graph": "graph", "LoopTree": "loops", "Machine": "machine", "PolyError": "errors",
    "Program": "program", "Schedule": "scheduling.schedule", "compile": "compiler", "einsum": "einsum_call",
    "explain": "explainer", "from_onnx": "frontend.onnx_import", "nest": "frontend.nest", "parse": "frontend.notation",
    "pool": "codegen.pool", "Tuning": "tuning",
    "read_machine": "machine_text", "run_program": "interp",
}  # fmt: skip

_MODULES: Final = frozenset(("errors", "figures"))

__all__ = [
    "Engine", "Graph", "LoopTree", "Machine", "PolyError", "Program", "Schedule", "Tuning", "compile", "einsum",
    "explain", "from_onnx", "nest", "parse", "pool", "read_machine", "run_program",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(f"poly.{_HOMES[name]}"), name)  # asked for only once
        return found
    if name in _MODULES:
        return import_module(f"poly.{name}")
    module = sys.modules[__name__]  # by which Python says what was meant
    raise AttributeError(f"module 'poly' has no attribute {name!r}", name=name, obj=module)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
