"""Programs of the cases whose contractions have a choice, and kernels of what could be chosen: what is measured by
`benchmarks.choices`, with the code of `compile(..., tune=N)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.cases import Case
from benchmarks.graphs import model_of
from poly.codegen.kernel import Code, Kernel, Origin
from poly.compiler import constant_kernel
from poly.dtypes import numpy_dtype
from poly.machine import Machine
from poly.pointers import aligned_zeros
from poly.prepared import Prepared
from poly.program import Program, Tensor
from poly.scheduling.cpu_candidates import Candidate, candidates_of
from poly.scheduling.cpu_program import ways_for_cpu
from poly.scheduling.grouping import group_program
from poly.scheduling.uneven import finite_factors

Array = npt.NDArray[np.generic]
THREADS = 1  # of plans and kernels: sharing comes after them


@dataclass(frozen=True)
class Nest:
    """A program, or a group of a model, with a contraction: after the edits that are chosen, and after others."""

    name: str
    ways: tuple[tuple[Program, float], ...]
    machine: Machine

    @property
    def program(self) -> Program:
        return self.ways[0][0]

    def candidates(self, count: int, far: float) -> list[Candidate]:
        """The choice, then others that may be better."""
        return candidates_of(self.ways, self.machine, THREADS, count, far)

    def arrays(self) -> dict[str, Array]:
        """Operands of a seed, and room for the results."""
        random, sizes = np.random.default_rng(0), self.program.binding

        def made(t: Tensor) -> Array:
            shape = t.extents(sizes)
            if t.is_output:  # at a line, as results of kernels do: elsewhere nothing goes past the caches
                return aligned_zeros(shape, numpy_dtype(t.dtype))
            return _values(random, shape, t.dtype)

        return {t.name: made(t) for t in self.program.tensors if t.is_output or t.role in ("input", "constant")}

    def kernel(self, candidate: Candidate, made: Prepared, constants: Mapping[str, Array]) -> Kernel:
        """A candidate as a kernel between arrays in the shapes of the choice; axes that are joined lie in them as they
        were.
        """
        shapes = {t.name: t.extents(candidate.program.binding) for t in candidate.program.with_role("constant")}
        given = {n: np.reshape(a, shapes[n]) for n, a in constants.items()}
        compute = constant_kernel(made, self.machine, THREADS)
        origin = Origin(self.program, lambda: made.schedule, made.refused)  # says that results need not be cleared
        return Kernel(
            made.split.after, self.machine, self.program.inputs, self.program.outputs, given, THREADS,
            stored=compute(given) if compute is not None else {}, origin=origin,
            code=Code(made.after),
        )  # fmt: skip


def _values(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    return random.standard_normal(shape).astype(numpy_dtype(dtype))


def nests_of(case: Case, machine: Machine) -> list[Nest]:
    """The programs of a case that have a choice: its einsum, or the groups of its model."""
    import poly
    from poly.frontend.einsum import einsum_program

    if case.kind == "einsum":
        program = einsum_program(case.spec, list(case.inputs.values()), ["f32"] * len(case.inputs))
        programs, finite = [program], frozenset[str]()
    else:
        graph = poly.from_onnx(model_of(case))
        source = graph.to_program()
        finite = frozenset(finite_factors(source, graph.constants))
        programs = list(group_program(source, machine, THREADS).parts.values())
    ways = (tuple(ways_for_cpu(p, finite, machine, THREADS)) for p in programs)
    named = (Nest(f"{case.name}.{k}" if k else case.name, found, machine) for k, found in enumerate(ways))
    return [nest for nest in named if len(nest.candidates(2, 10.0)) > 1]
