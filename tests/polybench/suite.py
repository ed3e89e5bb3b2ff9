"""The thirty kernels with their data: initial arrays by formula, problem sizes, and which elements are results.

The formulas and sizes are those of PolyBench/C 4.2.1, so that results can be compared with its dumps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

import poly
from poly.dtypes import numpy_dtype
from poly.frontend.nest import Nest
from poly.program import Program
from poly.scheduling.schedule import Schedule
from tests.polybench import algebra, solvers, stencils

Array = npt.NDArray[np.generic]
Data = dict[str, Array | float]
Class = Literal["MINI", "SMALL", "MEDIUM", "LARGE"]
CLASSES: Final[tuple[Class, ...]] = ("MINI", "SMALL", "MEDIUM", "LARGE")


@dataclass(frozen=True)
class Kernel:
    """`sizes`: by size argument, its value in each class. `data`: arrays and scalars from the sizes. `results`: the
    arrays of the dump, in its order; `triangle`: which part of them.
    """

    name: str
    nest: Nest[..., None]
    sizes: Mapping[str, tuple[int, int, int, int]]
    data: Callable[..., Data]
    results: tuple[str, ...]
    triangle: Literal["", "lower", "upper"] = ""

    def binding(self, size: Class = "MINI") -> dict[str, int]:
        """The sizes of a class."""
        return {name: values[CLASSES.index(size)] for name, values in self.sizes.items()}

    def program(self, sizes: Mapping[str, int]) -> Program:
        """The program with these sizes."""
        return self.nest.program.bind(**sizes)

    def arguments(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Fresh arrays for all arguments that are no sizes; scalars have rank 0."""
        data = self.data(**sizes)
        return {t.name: np.array(data[t.name], numpy_dtype(t.dtype)) for t in self.nest.program.inputs}

    def select(self, values: Mapping[str, Array]) -> npt.NDArray[np.float64]:
        """The elements that the dump holds, one after another."""
        parts: list[npt.NDArray[np.float64]] = []
        for name in self.results:
            array = np.asarray(values[name])
            if self.triangle:
                rows, columns = np.indices(array.shape)
                array = array[rows >= columns if self.triangle == "lower" else rows <= columns]
            parts.append(array.ravel().astype(np.float64))
        return np.concatenate(parts)

    def run_python(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """The arrays after running the function as plain Python."""
        values = self.arguments(sizes)
        with np.errstate(all="ignore"):
            self.nest.python(**sizes, **{name: a if a.ndim else a.item() for name, a in values.items()})
        return values

    def run_compiled(
        self, sizes: Mapping[str, int], schedule: Schedule | None = None, program: Program | None = None
    ) -> dict[str, Array]:
        """All arrays after running compiled code; by the policy of the CPU unless a schedule is given."""
        program, values = program or self.program(sizes), self.arguments(sizes)
        kernel = poly.compile(program, schedule=schedule)
        outputs = [values[t.name] for t in program.outputs]
        kernel(*[values[t.name] for t in program.inputs], out=outputs if len(outputs) > 1 else outputs[0])
        return values


def _grid(*extents: int) -> tuple[npt.NDArray[np.float64], ...]:
    return tuple(g.astype(np.float64) for g in np.indices(extents))


def _gemm(NI: int, NJ: int, NK: int) -> Data:
    (i, j), (ia, ja), (ib, jb) = _grid(NI, NJ), _grid(NI, NK), _grid(NK, NJ)
    return {"alpha": 1.5, "beta": 1.2, "C": (i * j + 1) % NI / NI, "A": ia * (ja + 1) % NK / NK,
            "B": ib * (jb + 2) % NJ / NJ}  # fmt: skip


def _two_mm(NI: int, NJ: int, NK: int, NL: int) -> Data:
    (ia, ja), (ib, jb), (ic, jc), (i, j) = _grid(NI, NK), _grid(NK, NJ), _grid(NJ, NL), _grid(NI, NL)
    return {"alpha": 1.5, "beta": 1.2, "A": (ia * ja + 1) % NI / NI, "B": ib * (jb + 1) % NJ / NJ,
            "C": (ic * (jc + 3) + 1) % NL / NL, "D": i * (j + 2) % NK / NK}  # fmt: skip


def _three_mm(NI: int, NJ: int, NK: int, NL: int, NM: int) -> Data:
    (ia, ja), (ib, jb), (ic, jc), (i, j) = _grid(NI, NK), _grid(NK, NJ), _grid(NJ, NM), _grid(NM, NL)
    return {"A": (ia * ja + 1) % NI / (5 * NI), "B": (ib * (jb + 1) + 2) % NJ / (5 * NJ),
            "C": ic * (jc + 3) % NL / (5 * NL), "D": (i * (j + 2) + 2) % NK / (5 * NK),
            "G": np.zeros((NI, NL))}  # fmt: skip


def _gemver(N: int) -> Data:
    i, (r, c) = np.arange(N, dtype=np.float64), _grid(N, N)
    step = (i + 1) / N
    return {"alpha": 1.5, "beta": 1.2, "A": r * c % N / N, "u1": i, "u2": step / 2, "v1": step / 4, "v2": step / 6,
            "y": step / 8, "z": step / 9, "x": np.zeros(N), "w": np.zeros(N)}  # fmt: skip


def _gesummv(N: int) -> Data:
    i, (r, c) = np.arange(N, dtype=np.float64), _grid(N, N)
    return {"alpha": 1.5, "beta": 1.2, "x": i % N / N, "y": np.zeros(N), "A": (r * c + 1) % N / N,
            "B": (r * c + 2) % N / N}  # fmt: skip


def _symm(M: int, N: int) -> Data:
    (i, j), (r, c) = _grid(M, N), _grid(M, M)
    return {"alpha": 1.5, "beta": 1.2, "C": (i + j) % 100 / M, "B": (N + i - j) % 100 / M,
            "A": np.where(c <= r, (r + c) % 100 / M, -999.0)}  # fmt: skip


def _syr2k(M: int, N: int) -> Data:
    (i, j), (r, c) = _grid(N, M), _grid(N, N)
    return {"alpha": 1.5, "beta": 1.2, "A": (i * j + 1) % N / N, "B": (i * j + 2) % M / M, "C": (r * c + 3) % N / M}


def _syrk(M: int, N: int) -> Data:
    (i, j), (r, c) = _grid(N, M), _grid(N, N)
    return {"alpha": 1.5, "beta": 1.2, "A": (i * j + 1) % N / N, "C": (r * c + 2) % M / M}


def _trmm(M: int, N: int) -> Data:
    (r, c), (i, j) = _grid(M, M), _grid(M, N)
    return {"alpha": 1.5, "A": np.where(c < r, (r + c) % M / M, 0) + np.eye(M), "B": (N + i - j) % N / N}


def _atax(M: int, N: int) -> Data:
    i, j = _grid(M, N)
    return {"x": 1 + np.arange(N) / N, "A": (i + j) % N / (5 * M), "y": np.zeros(N)}


def _bicg(M: int, N: int) -> Data:
    i, j = _grid(N, M)
    return {"p": np.arange(M) % M / M, "r": np.arange(N) % N / N, "A": i * (j + 1) % N / N, "s": np.zeros(M),
            "q": np.zeros(N)}  # fmt: skip


def _doitgen(NQ: int, NR: int, NP: int) -> Data:
    (i, j, k), (r, c) = _grid(NR, NQ, NP), _grid(NP, NP)
    return {"A": (i * j + k) % NP / NP, "C4": r * c % NP / NP}


def _mvt(N: int) -> Data:
    i, (r, c) = np.arange(N), _grid(N, N)
    return {"x1": i % N / N, "x2": (i + 1) % N / N, "y1": (i + 3) % N / N, "y2": (i + 4) % N / N, "A": r * c % N / N}


def _positive_definite(N: int) -> npt.NDArray[np.float64]:
    i, j = _grid(N, N)
    lower = np.where(j < i, 1 - j / N, 0) + np.eye(N)
    return lower @ lower.T


def _matrix(N: int) -> Data:
    return {"A": _positive_definite(N)}


def _durbin(N: int) -> Data:
    return {"r": N + 1.0 - np.arange(N), "y": np.zeros(N)}


def _gramschmidt(M: int, N: int) -> Data:
    i, j = _grid(M, N)
    return {"A": i * j % M / M * 100 + 10, "R": np.zeros((N, N)), "Q": np.zeros((M, N))}


def _ludcmp(N: int) -> Data:
    return {"A": _positive_definite(N), "b": (np.arange(N) + 1) / N / 2 + 4, "x": np.zeros(N), "y": np.zeros(N)}


def _trisolv(N: int) -> Data:
    i, j = _grid(N, N)
    return {"x": np.full(N, -999.0), "b": np.arange(N), "L": np.where(j <= i, (i + N - j + 1) * 2 / N, 0)}


def _correlation(M: int, N: int) -> Data:
    i, j = _grid(N, M)
    return {"count": float(N), "data": i * j / M + i, "corr": np.zeros((M, M))}


def _covariance(M: int, N: int) -> Data:
    i, j = _grid(N, M)
    return {"count": float(N), "data": i * j / M, "cov": np.zeros((M, M))}


def _adi(STEPS: int, N: int) -> Data:
    i, j = _grid(N, N)
    return {"u": (i + N - j) / N}


def _fdtd(STEPS: int, NX: int, NY: int) -> Data:
    i, j = _grid(NX, NY)
    return {"source": np.arange(STEPS), "ex": i * (j + 1) / NX, "ey": i * (j + 2) / NY, "hz": i * (j + 3) / NX}


def _heat(STEPS: int, N: int) -> Data:
    i, j, k = _grid(N, N, N)
    return {"A": (i + j + N - k) * 10 / N, "B": (i + j + N - k) * 10 / N}


def _jacobi_1d(STEPS: int, N: int) -> Data:
    return {"A": (np.arange(N) + 2) / N, "B": (np.arange(N) + 3) / N}


def _jacobi_2d(STEPS: int, N: int) -> Data:
    i, j = _grid(N, N)
    return {"A": (i * (j + 2) + 2) / N, "B": (i * (j + 3) + 3) / N}


def _seidel(STEPS: int, N: int) -> Data:
    i, j = _grid(N, N)
    return {"A": (i * (j + 2) + 2) / N}


def _deriche(W: int, H: int) -> Data:
    i, j = _grid(W, H)
    return {"alpha": 0.25, "image": (313 * i + 991 * j) % 65536 / 65535, "out": np.zeros((W, H))}


def _floyd(N: int) -> Data:
    i, j = np.indices((N, N))
    far = ((i + j) % 13 == 0) | ((i + j) % 7 == 0) | ((i + j) % 11 == 0)
    return {"path": np.where(far, 999, i * j % 7 + 1)}


def _nussinov(N: int) -> Data:
    return {"seq": (np.arange(N) + 1) % 4, "table": np.zeros((N, N))}


_STEPS = (20, 40, 100, 500)
_SQUARE = {"N": (40, 120, 400, 2000)}
_RECTANGLE = {"M": (20, 60, 200, 1000), "N": (30, 80, 240, 1200)}
_THIN = {"M": (38, 116, 390, 1900), "N": (42, 124, 410, 2100)}
_SAMPLES = {"M": (28, 80, 240, 1200), "N": (32, 100, 260, 1400)}

KERNELS: Final[tuple[Kernel, ...]] = (
    Kernel("2mm", algebra.two_mm, {"NI": (16, 40, 180, 800), "NJ": (18, 50, 190, 900), "NK": (22, 70, 210, 1100),
                                   "NL": (24, 80, 220, 1200)}, _two_mm, ("D",)),
    Kernel("3mm", algebra.three_mm, {"NI": (16, 40, 180, 800), "NJ": (18, 50, 190, 900), "NK": (20, 60, 200, 1000),
                                     "NL": (22, 70, 210, 1100), "NM": (24, 80, 220, 1200)}, _three_mm, ("G",)),
    Kernel("adi", stencils.adi, {"STEPS": _STEPS, "N": (20, 60, 200, 1000)}, _adi, ("u",)),
    Kernel("atax", algebra.atax, _THIN, _atax, ("y",)),
    Kernel("bicg", algebra.bicg, _THIN, _bicg, ("s", "q")),
    Kernel("cholesky", solvers.cholesky, _SQUARE, _matrix, ("A",), "lower"),
    Kernel("correlation", solvers.correlation, _SAMPLES, _correlation, ("corr",)),
    Kernel("covariance", solvers.covariance, _SAMPLES, _covariance, ("cov",)),
    Kernel("deriche", stencils.deriche, {"W": (64, 192, 720, 4096), "H": (64, 128, 480, 2160)}, _deriche, ("out",)),
    Kernel("doitgen", algebra.doitgen, {"NQ": (8, 20, 40, 140), "NR": (10, 25, 50, 150), "NP": (12, 30, 60, 160)},
           _doitgen, ("A",)),
    Kernel("durbin", solvers.durbin, _SQUARE, _durbin, ("y",)),
    Kernel("fdtd-2d", stencils.fdtd_2d, {"STEPS": _STEPS, "NX": (20, 60, 200, 1000), "NY": (30, 80, 240, 1200)},
           _fdtd, ("ex", "ey", "hz")),
    Kernel("floyd-warshall", stencils.floyd_warshall, {"N": (60, 180, 500, 2800)}, _floyd, ("path",)),
    Kernel("gemm", algebra.gemm, {"NI": (20, 60, 200, 1000), "NJ": (25, 70, 220, 1100), "NK": (30, 80, 240, 1200)},
           _gemm, ("C",)),
    Kernel("gemver", algebra.gemver, _SQUARE, _gemver, ("w",)),
    Kernel("gesummv", algebra.gesummv, {"N": (30, 90, 250, 1300)}, _gesummv, ("y",)),
    Kernel("gramschmidt", solvers.gramschmidt, _RECTANGLE, _gramschmidt, ("R", "Q")),
    Kernel("heat-3d", stencils.heat_3d, {"STEPS": _STEPS, "N": (10, 20, 40, 120)}, _heat, ("A",)),
    Kernel("jacobi-1d", stencils.jacobi_1d, {"STEPS": _STEPS, "N": (30, 120, 400, 2000)}, _jacobi_1d, ("A",)),
    Kernel("jacobi-2d", stencils.jacobi_2d, {"STEPS": _STEPS, "N": (30, 90, 250, 1300)}, _jacobi_2d, ("A",)),
    Kernel("lu", solvers.lu, _SQUARE, _matrix, ("A",)),
    Kernel("ludcmp", solvers.ludcmp, _SQUARE, _ludcmp, ("x",)),
    Kernel("mvt", algebra.mvt, _SQUARE, _mvt, ("x1", "x2")),
    Kernel("nussinov", stencils.nussinov, {"N": (60, 180, 500, 2500)}, _nussinov, ("table",), "upper"),
    Kernel("seidel-2d", stencils.seidel_2d, {"STEPS": _STEPS, "N": (40, 120, 400, 2000)}, _seidel, ("A",)),
    Kernel("symm", algebra.symm, _RECTANGLE, _symm, ("C",)),
    Kernel("syr2k", algebra.syr2k, _RECTANGLE, _syr2k, ("C",)),
    Kernel("syrk", algebra.syrk, _RECTANGLE, _syrk, ("C",)),
    Kernel("trisolv", solvers.trisolv, _SQUARE, _trisolv, ("x",)),
    Kernel("trmm", algebra.trmm, _RECTANGLE, _trmm, ("B",)),
)  # fmt: skip
