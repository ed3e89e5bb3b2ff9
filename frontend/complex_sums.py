"""Sums of products of complex numbers as one product of real matrices.

x*m summed is [re, im] of x times [[re, im], [-im, re]], which each m becomes: where m is used often enough, a copy
of it pays, while x and the result stay as they are, read and written as twice as many real numbers.

Where it is not, the four products of parts are summed each by itself: both parts of x times [re, im] of m, which is
read as it is. What the sums come to is put together last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from poly.affine import Affine, var
from poly.expr import COMBINERS, Const, Expr, IndexValue, Read, apply
from poly.frontend.contraction import HALVES, PART, Contractions, cast, kept_alone
from poly.frontend.contraction_forms import Form
from poly.program import Access, Tensor

P, Q = "p", "q"  # the result's last index with its parts; the last summed one with its parts, or the parts alone
W = "w"  # the last index of an operand with its parts
ZERO, ONE, TWO = (Affine((), n) for n in range(3))


def real_operands(form: Form) -> tuple[int, int] | None:
    """The operands x and m of a sum of complex products, where m alone steps along the result's last index."""
    if len(form.operands) != 2 or not form.result or form.lanes is not None or form.dtype not in HALVES:
        return None
    indices = [v.indices for v in form.operands]
    own = [n for n in (0, 1) if form.result[-1] in indices[n]]
    summed = {*indices[0], *indices[1]} - {*form.result}
    if len(own) != 1 or not summed or kept_alone(indices, form.result):
        return None
    return (1 - own[0], own[0]) if all(v.dtype in HALVES for v in form.operands) else None


def apart_operands(form: Form) -> tuple[int, int] | None:
    """The operands x and m of a sum of complex products, where m steps most finely along an index of the result that x
    has not."""
    if len(form.operands) != 2 or not form.result or form.lanes is not None or form.dtype not in HALVES:
        return None
    views, indices = form.operands, [v.indices for v in form.operands]
    summed = {*indices[0], *indices[1]} - {*form.result}
    if not summed or kept_alone(indices, form.result) or any(v.dtype not in HALVES for v in views):
        return None
    for x, m in ((0, 1), (1, 0)):
        last = indices[m][-1]
        if views[m].dense[-1] and last in form.result and last not in indices[x] and indices[m].count(last) == 1:
            return x, m
    return None


def sums_along(form: Form, x: int) -> bool:
    """Whether the parts of x lie between steps of a summed index, so that both are one index."""
    view = form.operands[x]
    last = view.indices[-1]
    return view.dense[-1] and last not in form.result and view.indices.count(last) == 1


@dataclass(frozen=True)
class _Parts:
    """An operand as real numbers. `dense`: its parts lie between the steps of its last subscript.

    `source` is their dtype, and `target` the one that they are computed in.
    """

    name: str
    subscripts: tuple[Affine, ...]
    dense: bool
    source: str
    target: str

    def value(self, position: int) -> Expr:
        """A part that is read at this position of a statement's reads."""
        return cast(Read(position), self.source, self.target)

    def at(self, part: Affine) -> Access:
        """One part."""
        *outer, last = self.subscripts
        return Access(self.name, (*outer, last * 2 + part) if self.dense else (*outer, last, part))

    def along(self, index: str) -> Access:
        """Both parts, by an index with twice as many steps."""
        return Access(self.name, (*self.subscripts[:-1], var(index)))


def real_sums(form: Form, x: int, m: int) -> Contractions:
    """Tensors and statements of a form whose operands `real_operands` gave."""
    sizes: Mapping[str, Affine] = {i: var(f"N{i}") for i in form.indices}
    build = Contractions(sizes, form.parameters, HALVES[form.dtype], pairs=False)
    operands = [_operand(form, n, build) for n in (0, 1)]
    *outer, last = form.result
    inside = form.operands[m].indices
    shared, own = ([i for i in outer if i in inside and (i in form.operands[x].indices) is b] for b in (True, False))
    summed = list(dict.fromkeys(i for i in form.operands[x].indices if i not in form.result))
    joined = sums_along(form, x)
    if joined:
        summed = [*(i for i in summed if i != form.operands[x].indices[-1]), form.operands[x].indices[-1]]
    steps = [*summed[:-1], Q] if joined else [*summed, Q]
    build.extents |= {P: sizes[last] * 2, Q: sizes[summed[-1]] * 2 if joined else TWO}

    def row(q: Affine, p: Affine) -> Access:
        """Where a number stands: row q and column p of what an element of m becomes."""
        fine = (*map(var, summed[:-1]), var(summed[-1]) * 2 + q) if joined else (*map(var, summed), q)
        return Access("rows", (*map(var, shared), *fine, *map(var, own), p))

    extents = [build.extents[i] for i in (*shared, *steps, *own, P)]
    build.tensors.append(Tensor("rows", tuple(extents), build.stored, "temporary"))
    out = Tensor("out", tuple(build.extents[i] for i in (*outer, P)), build.stored, "output")
    build.tensors.append(out)
    _rows(build, operands[m], [*shared, *summed, *own], last, row)
    reads = [
        operands[x].along(Q) if joined else operands[x].at(var(Q)),
        Access("rows", tuple(map(var, (*shared, *steps, *own, P)))),
    ]
    result = Access("out", (*map(var, outer), var(P)))
    build.state("out_init", [*outer, P], result, (), Const(0.0, build.stored), None)
    product = apply("mul", operands[x].value(0), Read(1))
    build.state("out_update", [*outer, P, *steps], result, reads, product, COMBINERS["+"])
    return build


def apart_sums(form: Form, x: int, m: int) -> Contractions:
    """Tensors and statements of a form whose operands `apart_operands` gave."""
    sizes: Mapping[str, Affine] = {i: var(f"N{i}") for i in form.indices}
    build = Contractions(sizes, form.parameters, HALVES[form.dtype], pairs=False)
    operands = [_operand(form, n, build) for n in (0, 1)]
    last = form.operands[m].indices[-1]
    order = sorted((i for i in form.result if i != last), key=lambda i: i not in form.operands[x].indices)
    summed = [i for i in form.indices if i not in form.result]
    build.extents |= {W: sizes[last] * 2, Q: TWO, PART: TWO}
    extents = [build.extents[i] for i in (*order, Q, W)]
    build.tensors.append(Tensor("sums", tuple(extents), build.stored, "temporary"))
    *outer, inner = form.result
    build.tensors.append(Tensor("out", (*(sizes[i] for i in outer), sizes[inner] * 2), build.stored, "output"))

    def sums(q: Affine, p: Affine) -> Access:
        """The sum of products of part q of x, at an element of m with its part."""
        return Access("sums", (*map(var, order), q, p))

    target = sums(var(Q), var(W))
    build.state("sums_init", [*order, Q, W], target, (), Const(0.0, build.stored), None)
    reads = [operands[x].at(var(Q)), operands[m].along(W)]
    product = apply("mul", operands[x].value(0), operands[m].value(1))
    build.state("sums_update", [*order, Q, W, *summed], target, reads, product, COMBINERS["+"])
    reads = [sums(q, var(last) * 2 + p) for q, p in ((ZERO, ZERO), (ONE, ONE), (ZERO, ONE), (ONE, ZERO))]
    parts = apply("sub", Read(0), Read(1)), apply("add", Read(2), Read(3))
    body = apply("select", apply("lt", IndexValue(var(PART)), Const(1)), *parts)
    result = Access("out", (*map(var, outer), var(inner) * 2 + var(PART)))
    build.state("out_set", [*form.result, PART], result, reads, body, None)
    return build


def _operand(form: Form, n: int, build: Contractions) -> _Parts:
    view = form.operands[n]
    extents, subscripts = form.place(n, view, build.extents)
    dense = view.dense[-1]
    extents = [*extents[:-1], extents[-1] * 2] if dense else [*extents, TWO]
    half = HALVES[view.dtype]
    gaps = 2 * form.has_gaps(n, view, build.extents)
    build.tensors.append(Tensor(f"x{n}", tuple(extents), half, "input", gaps=gaps))
    return _Parts(f"x{n}", tuple(subscripts), dense, half, build.stored)


def _rows(
    build: Contractions, m: _Parts, order: Sequence[str], last: str, row: Callable[[Affine, Affine], Access]
) -> None:
    """The statements that make a matrix of each element of m: its first row is the element itself."""
    column, alike = var(last) * 2, m.dense and m.subscripts[-1] == var(last)
    if alike and all(last not in s.names for s in m.subscripts[:-1]):
        build.state("rows_first", [*order, P], row(ZERO, var(P)), [m.along(P)], m.value(0), None)
    else:
        for suffix, part in (("re", ZERO), ("im", ONE)):
            write = row(ZERO, column + part)
            build.state(f"rows_first_{suffix}", [*order, last], write, [m.at(part)], m.value(0), None)
    build.state("rows_re", [*order, last], row(ONE, column + 1), [m.at(ZERO)], m.value(0), None)
    build.state("rows_im", [*order, last], row(ONE, column), [m.at(ONE)], apply("neg", m.value(0)), None)
