"""What is measured. A case is one line of `CASES`: an equation, or a kind of `benchmarks.graphs`, and shapes.

To add a row, add a line. All operands are float32, seeded, the same in every process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Shape = tuple[int, ...]
RESULT = "result"


@dataclass(frozen=True)
class Case:
    """`inputs` are given at run time, `consts` are known when compiling, to ours and to peers.

    `flops`: useful operations, taps in the padding left out; `reads` and `writes`: bytes if every operand and the
    result are touched once; `calls`: mathematical functions called, by name. `kind` "model": `path` is an ONNX file,
    `step` what the codes of its outputs differ by, relative to their greatest value, where they are quantised.
    """

    name: str
    kind: str
    inputs: Mapping[str, Shape]
    consts: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    spec: str = ""
    stride: int = 1
    pad: int = 0
    groups: int = 1
    flops: int = 0
    reads: int = 0
    writes: int = 0
    calls: Mapping[str, int] = field(default_factory=dict[str, int])
    path: str = ""
    step: float = 0.0

    @property
    def traffic(self) -> int:
        """Bytes read and written."""
        return self.reads + self.writes

    def operands(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Arrays for inputs and consts, the same in every process; not to be written to."""
        arrays = _arrays((*self.inputs.items(), *self.consts.items()))
        return {n: arrays[n] for n in self.inputs}, {n: arrays[n] for n in self.consts}


@lru_cache(maxsize=1)  # compiling is timed without making them
def _arrays(shapes: tuple[tuple[str, Shape], ...]) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {n: random.standard_normal(s).astype(np.float32) for n, s in shapes}


def einsum(name: str, spec: str, *shapes: Shape, flops: int | None = None) -> Case:
    """An equation. `flops`: where another order of its sums than all at once needs fewer operations."""
    terms, result = spec.split("->")
    extents = {(i, e) for t, s in zip(terms.split(","), shapes, strict=True) for i, e in zip(t, s, strict=True)}
    sizes = dict(extents)
    if len(sizes) < len(extents):
        raise ValueError(f"an index of {spec!r} has two extents")
    moves = len(shapes) == 1 and len(terms) == len(result)
    every = 0 if moves else prod(sizes.values()) * (1 if len(shapes) == 1 or len(sizes) == len(result) else 2)
    inputs = {f"x{k}": s for k, s in enumerate(shapes)}
    reads, writes = 4 * sum(map(prod, shapes)), 4 * prod(sizes[i] for i in result)
    return Case(
        name, "einsum", inputs, {}, spec, flops=every if flops is None else flops, reads=reads, writes=writes
    )


def gemm(m: int, n: int, k: int) -> Case:
    """Row-major matrices, C = A B."""
    return einsum(f"gemm_{m}" if m == n == k else f"gemm_{m}x{n}x{k}", "ik,kj->ij", (m, k), (k, n))


def conv(name: str, x: Shape, w: Shape, stride: int = 1, pad: int = 0, groups: int = 1) -> Case:
    """A convolution, NCHW, square stride and padding."""
    out = tuple((x[d] + 2 * pad - w[d]) // stride + 1 for d in (2, 3))
    taps = prod(
        sum(0 <= o * stride + r - pad < x[d] for o in range(out[d - 2]) for r in range(w[d])) for d in (2, 3)
    )
    return Case(
        name, "conv", {"x": x}, {"w": w}, "", stride, pad, groups, 2 * x[0] * w[0] * w[1] * taps,
        4 * (prod(x) + prod(w)), 4 * x[0] * w[0] * prod(out),
    )  # fmt: skip


def dense(name: str, rows: int, inner: int, columns: int) -> Case:
    """relu(x w + b) with constant w and b."""
    reads = 4 * (rows * inner + inner * columns + columns)
    return Case(
        name, "linear", {"x": (rows, inner)}, {"w": (inner, columns), "b": (columns,)},
        flops=2 * rows * inner * columns + 2 * rows * columns, reads=reads, writes=4 * rows * columns,
    )  # fmt: skip


def pointwise(
    name: str, kind: str, inputs: Mapping[str, Shape], consts: Mapping[str, Shape], flops: int, **calls: int
) -> Case:
    """Operations on the elements or rows of the first input, `flops` an element and `calls` functions an element."""
    shape = next(iter(inputs.values()))
    reads = 4 * sum(map(prod, (*inputs.values(), *consts.values())))
    return Case(
        name, kind, inputs, consts, flops=flops * prod(shape), reads=reads, writes=4 * prod(shape),
        calls={n: c * prod(shape) for n, c in calls.items()},
    )  # fmt: skip


def attention(heads: int, length: int, width: int) -> Case:
    """softmax(q k^T / sqrt(width)) v."""
    shape = heads, length, width
    return attended(f"attention_{heads}x{length}x{width}", shape, shape, shape)


def attended(name: str, q: Shape, k: Shape, v: Shape) -> Case:
    """Attention of [heads, queries, width] over [heads, keys, width] and values of a width of their own."""
    scores = q[0] * q[1] * k[1]
    return Case(
        name, "attention", {"q": q, "k": k, "v": v}, flops=2 * scores * (q[2] + v[2]) + 6 * scores,
        reads=4 * sum(map(prod, (q, k, v))), writes=4 * q[0] * q[1] * v[2], calls={"exp": scores},
    )  # fmt: skip


N = 2048
CASES: tuple[Case, ...] = (
    *(gemm(n, n, n) for n in (64, 128, 256, 512, 1024, 2048)),
    gemm(128, 3072, 768),
    gemm(16, 2048, 2048),
    gemm(2048, 16, 2048),
    gemm(64, 64, 4096),
    gemm(2048, 2048, 16),
    gemm(1, 4096, 4096),
    gemm(127, 255, 513),
    einsum("gemm_tn_512", "ki,kj->ij", (512, 512), (512, 512)),
    einsum("gemm_nt_512", "ik,jk->ij", (512, 512), (512, 512)),
    einsum("gemm_tt_512", "ki,jk->ij", (512, 512), (512, 512)),
    einsum("gemv_4096", "ij,j->i", (4096, 4096), (4096,)),
    einsum("gemv_t_4096", "ij,i->j", (4096, 4096), (4096,)),
    einsum("gemv_512", "ij,j->i", (512, 512), (512,)),
    einsum("outer_2048", "i,j->ij", (N,), (N,)),
    einsum("bmm_qk_12x128x64", "bid,bjd->bij", (12, 128, 64), (12, 128, 64)),
    einsum("bmm_pv_12x128x64", "bij,bjk->bik", (12, 128, 128), (12, 128, 64)),
    einsum("bmm_qk_12x512x64", "bid,bjd->bij", (12, 512, 64), (12, 512, 64)),
    einsum("bmm_pv_12x512x64", "bij,bjk->bik", (12, 512, 512), (12, 512, 64)),
    einsum("bmm_4096x8x8x8", "bij,bjk->bik", (4096, 8, 8), (4096, 8, 8)),
    einsum("abcd,dcef->abef", "abcd,dcef->abef", (32, 32, 16, 16), (16, 16, 32, 32)),
    einsum("tccg_abcd-aebf-dfce", "aebf,dfce->abcd", (24, 24, 24, 24), (24, 24, 24, 24)),
    einsum("tccg_abcdef-gdab-efgc", "gdab,efgc->abcdef", (24, 16, 16, 16), (16, 16, 24, 16)),
    einsum("tccg_abc-bda-dc", "bda,dc->abc", (96, 96, 96), (96, 96)),
    einsum("ttm_ijk,kl->ijl", "ijk,kl->ijl", (128, 128, 128), (128, 32)),
    einsum("ttm_ijk,jl->ilk", "ijk,jl->ilk", (128, 128, 128), (128, 32)),
    einsum("mttkrp_128x32", "ijk,jl,kl->il", (128, 128, 128), (128, 32), (128, 32)),
    einsum("bilinear_64x128", "bi,oij,bj->bo", (64, 128), (64, 128, 128), (64, 128)),
    einsum("chain_ij,jk,kl->il", "ij,jk,kl->il", (512, 16), (16, 512), (512, 512), flops=4 * 16 * 512 * 512),
    conv("conv7x7s2_3-64_224", (1, 3, 224, 224), (64, 3, 7, 7), stride=2, pad=3),
    conv("conv3x3_64_56", (1, 64, 56, 56), (64, 64, 3, 3), pad=1),
    conv("conv3x3_128_28", (1, 128, 28, 28), (128, 128, 3, 3), pad=1),
    conv("conv3x3_256_14", (1, 256, 14, 14), (256, 256, 3, 3), pad=1),
    conv("conv3x3_512_7", (1, 512, 7, 7), (512, 512, 3, 3), pad=1),
    conv("conv3x3s2_128_56", (1, 128, 56, 56), (128, 128, 3, 3), stride=2, pad=1),
    conv("conv1x1_64-256_56", (1, 64, 56, 56), (256, 64, 1, 1)),
    conv("conv1x1_1024-256_14", (1, 1024, 14, 14), (256, 1024, 1, 1)),
    conv("conv1x1s2_256-512_56", (1, 256, 56, 56), (512, 256, 1, 1), stride=2),
    conv("dw3x3_32_112", (1, 32, 112, 112), (32, 1, 3, 3), pad=1, groups=32),
    conv("dw3x3s2_96_112", (1, 96, 112, 112), (96, 1, 3, 3), stride=2, pad=1, groups=96),
    conv("dw3x3_576_14", (1, 576, 14, 14), (576, 1, 3, 3), pad=1, groups=576),
    dense("linear_relu_1x3072x200", 1, 3072, 200),
    dense("linear_relu_128x768x3072", 128, 768, 3072),
    pointwise("muladdrelu_2048", "muladdrelu", {"x": (N, N), "y": (N, N), "z": (N, N)}, {}, 3),
    pointwise("bias_gelu_512x3072", "bias_gelu", {"x": (512, 3072)}, {"b": (3072,)}, 5, erf=1),
    pointwise("softmax_12x512x512", "softmax", {"x": (12, 512, 512)}, {}, 4, exp=1),
    pointwise("layernorm_512x768", "layernorm", {"x": (512, 768)}, {"g": (768,), "b": (768,)}, 8),
    attention(12, 512, 64),
    einsum("reduce_row_2048", "ij->i", (N, N)),
    einsum("reduce_col_2048", "ij->j", (N, N)),
    einsum("transpose_2048", "ij->ji", (N, N)),
    einsum("permute_abcd->acbd", "abcd->acbd", (32, 128, 12, 64)),
    einsum("permute_abcd->dcba", "abcd->dcba", (48, 48, 48, 48)),
    einsum("nchw->nhwc_256x56", "nchw->nhwc", (1, 256, 56, 56)),
    pointwise("noop_add16", "noop", {"x": (16,)}, {}, 1),
)

MORE: tuple[Case, ...] = (
    gemm(1000, 1000, 1000),
    gemm(8, 1024, 1024),
    einsum("gemv_1024", "ij,j->i", (1024, 1024), (1024,)),
    einsum("gemv_t_1024", "ij,i->j", (1024, 1024), (1024,)),
    einsum("reduce_row_1024", "ij->i", (1024, 1024)),
    einsum("transpose_1024", "ij->ji", (1024, 1024)),
    einsum("transpose_1000", "ij->ji", (1000, 1000)),
    pointwise("softmax_12x256x256", "softmax", {"x": (12, 256, 256)}, {}, 4, exp=1),
)

MODELS = ("resnet50", "squeezenet", "pplcnet_orient", "espcn_subpixel", "mtcnn_pnet")  # where no words are given


KINDS = tuple(dict.fromkeys(c.kind for c in CASES))
FIELDS = """fields of a case: name, kind, inputs and consts (shapes by name: {"x": [64, 64]}); spec for the kind einsum;
stride, pad, groups for conv; flops, bytes (moved at least) and out (shape) where they are other than the shapes
say; these all optional"""
_NAMES = {"name", "kind", "group", "inputs", "consts", "spec", "stride", "pad", "groups", "flops", "bytes", "out"}


def load_cases(path: Path | None, models: Sequence[Case] = ()) -> tuple[Case, ...]:
    """The lists above, the models, and the new cases of a JSON file. Raises `ValueError` for what is no case."""
    known = (*CASES, *MORE, *models)
    if path is None:
        return known
    names = {c.name: c for c in known}
    entries = json.loads(path.read_text())
    entries = entries if isinstance(entries, list) else [entries]
    seen: set[str] = set()
    for k, entry in enumerate(entries):
        own = names.get(str(entry.get("name"))) if isinstance(entry, dict) else None
        if wrong := _other(entry, own) if own is not None else _wrong(entry, seen):
            raise ValueError(f"{path}, case {k}: {wrong}\n{FIELDS}")
        seen.add(entry["name"])
    return (*known, *(_case(entry) for entry in entries if entry["name"] not in names))


def _other(entry: Mapping[str, object], own: Case) -> str:
    """Why an entry with the name of a case of ours is another; "" where it is that one, or says nothing of shapes."""
    given = entry.get("inputs")
    same = not isinstance(given, dict) or [tuple(s) for s in given.values()] == [*own.inputs.values()]
    return "" if same else f"{own.name} is a case of ours with other shapes: give yours another name"


def _wrong(entry: object, seen: Set[str]) -> str:
    """Why an entry of a file is no case; "" where it is one. `seen`: names of entries before it."""
    if not isinstance(entry, dict):
        return "a file of cases is a JSON list of objects"
    if strange := sorted(entry.keys() - _NAMES):
        return f"no field {strange[0]!r}"
    if entry.get("name") in seen:
        return f"{entry['name']} is there twice"
    if left := [f for f in ("name", "kind", "inputs") if not entry.get(f)]:
        return f"no {left[0]}"
    like = next((c for c in CASES if c.kind == entry["kind"]), None)
    if like is None:
        return f"no kind {entry['kind']!r}: one of {', '.join(KINDS)}"
    for field_, names in (("inputs", like.inputs), ("consts", like.consts)):
        if like.kind != "einsum" and [*(entry.get(field_) or {})] != [*names]:
            return f"{field_} of kind {like.kind} are {', '.join(names) or 'none'}, as in {like.name}"
    try:
        _case(entry)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        if like.kind == "einsum":
            return f"spec {entry.get('spec')!r} is no equation for the inputs, such as {like.spec!r}"
        return f"shapes of kind {like.kind} are such as in {like.name}"
    return ""


def _case(entry: Mapping[str, object]) -> Case:
    def shapes(key: str) -> dict[str, Shape]:
        found = entry.get(key) or {}
        assert isinstance(found, dict)
        return {str(n): tuple(map(int, s)) for n, s in found.items()}

    def number(key: str, default: int) -> int:
        return int(str(entry.get(key, default)))

    case = _counted(
        str(entry["name"]), str(entry["kind"]), shapes("inputs"), shapes("consts"), str(entry.get("spec") or ""),
        number("stride", 1), number("pad", 0), number("groups", 1),
    )  # fmt: skip
    out = entry.get("out")
    writes = 4 * prod(map(int, out)) if isinstance(out, list) else case.writes
    reads = number("bytes", case.reads + writes) - writes
    return replace(case, flops=number("flops", case.flops), reads=reads, writes=writes)


def _counted(
    name: str, kind: str, inputs: dict[str, Shape], consts: dict[str, Shape], spec: str, stride: int, pad: int,
    groups: int,
) -> Case:  # fmt: skip
    """A case with its operations and bytes, as those of the lists above have them."""
    match kind:
        case "einsum":
            return replace(einsum(name, spec, *inputs.values()), inputs=inputs)
        case "conv":
            return conv(name, inputs["x"], consts["w"], stride, pad, groups)
        case "linear":
            rows, inner = inputs["x"]
            return dense(name, rows, inner, consts["w"][1])
        case "attention":
            return attended(name, inputs["q"], inputs["k"], inputs["v"])
        case _:
            like = next(c for c in CASES if c.kind == kind)
            elements = prod(next(iter(like.inputs.values())))
            calls = {n: c // elements for n, c in like.calls.items()}
            return pointwise(name, kind, inputs, consts, like.flops // elements, **calls)
