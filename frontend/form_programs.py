"""The programs of contractions' forms."""

from __future__ import annotations

from collections.abc import Sequence

from poly.affine import var
from poly.frontend.complex_sums import apart_sums, real_sums
from poly.frontend.contraction import Contractions, contract_in_lanes, contract_steps
from poly.frontend.contraction_forms import Form
from poly.program import Program


def form_program(form: Form, values: Sequence[int] | None = None) -> Program:
    """The program on tensors `x0`, `x1`, ... and `out`; `values` bind the parameters, None leaves all free.

    A complex tensor has a last dimension of extent 2.
    """
    if form.real is not None:
        return form.finished((apart_sums if form.apart else real_sums)(form, *form.real), values)
    extents = {i: var(f"N{i}") for i in form.indices}
    summed = any(i not in form.result for i in form.indices)
    interleaved = values is not None and bool(form.result) and form.lanes is None and (form.planar or not summed)
    build = Contractions(extents, form.parameters, form.dtype, True, form.planar, interleaved)
    sizes = build.extents
    terms = [
        build.operand(f"x{n}", *form.place(n, v, sizes), v.dtype, form.has_gaps(n, v, sizes))
        for n, v in enumerate(form.operands)
    ]
    if form.planar:
        terms = [build.planes(t) for t in terms]
    if form.lanes is None:
        contract_steps(build, terms, form.result, form.steps, "out", turn=values is not None)
    else:
        contract_in_lanes(build, terms, form.result, form.lanes, "out")
    return form.finished(build, values)
