"""Windows that a condition keeps inside a tensor, as whole windows whose reads have guards.

    if 0 <= i + d - 1 < N:                    y[i] += (w[d] if inside else 0) * (x[i + d - 1] if inside else 0)
        y[i] += w[d]*x[i + d - 1]       ->

The other way round than `uneven`: lanes cannot run along places whose windows have ends of their own. Every read is
guarded, so that no infinity meets a zero, and what the body gives of the fills leaves the target as it is (floats: up
to the sign of a zero).
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import numpy as np

from poly.affine import Affine, Constraint
from poly.coefficients import conditions_of
from poly.dtypes import is_float, numpy_dtype
from poly.expr import Const, IndexValue, Read, evaluate, walk
from poly.program import Program, Statement
from poly.relations import bound_domain, intervals_of
from poly.scheduling.contraction import names_of
from poly.scheduling.uneven import uneven_axes
from poly.sets import SET


def with_filled_sums(program: Program) -> Program:
    """The program whose windows are whole along the last axis of what they write: same values, see the module text."""
    statements = tuple(_filled(program, s) for s in program.statements)
    return program if statements == program.statements else replace(program, statements=statements)


def _filled(program: Program, s: Statement) -> Statement:
    if s.combiner is None or not s.reorder or s.external is not None or not s.write.index:
        return s
    if any(a.indirect or a.guard for a, _ in s.accesses) or any(r.tensor == s.write.tensor for r in s.reads):
        return s
    axes = [i for i in s.iterators if i in names_of(s.write)]
    uneven = uneven_axes(program, s, axes) or {}
    if not uneven.keys() & s.write.affine_index[-1].names:
        return s
    fills, limits = _fills(program, s), intervals_of(program, s)
    if not fills or any(r is None for r in limits.values()):
        return s
    domain = isl.Set.universe(s.domain.get_space())
    for k, i in enumerate(s.iterators):
        low, high = limits[i] or (0, 0)
        domain = domain.lower_bound_val(SET, k, low).upper_bound_val(SET, k, high)
    guard = _between_loops(program, s)
    reads = tuple(replace(r, guard=guard, fill=fill) for r, fill in zip(s.reads, fills, strict=True))
    return replace(s, domain=domain, reads=reads)


def _between_loops(program: Program, s: Statement) -> tuple[Constraint, ...]:
    """The conditions of an uneven domain on more than one of its loops: what makes it less than a box."""
    (piece,) = bound_domain(program, s).get_basic_sets()
    found = [c for c in conditions_of(piece, s.iterators) if c is not None and len(c.expr.names) > 1]
    return tuple(sorted(found, key=str))


def _fills(program: Program, s: Statement) -> tuple[Const, ...]:
    """What the reads may be where the body is to change nothing: the neutral value of a sum of elements as they are,
    else zeros; () where that would change something.
    """
    assert s.combiner is not None
    dtypes = [program.tensor[r.tensor].dtype for r in s.reads]
    target = program.tensor[s.write.tensor].dtype
    if "bool" in dtypes or any(isinstance(e, IndexValue) for e in walk(s.body)):
        return ()
    neutral = s.combiner.identity(target).value
    own = dtypes == [target] and isinstance(s.body, Read)
    values = [neutral if own else 0.0 if is_float(d) else 0 for d in dtypes]
    with np.errstate(all="ignore"):
        reads = [np.asarray(v, numpy_dtype(d)) for v, d in zip(values, dtypes, strict=True)]
        result = evaluate(s.body, reads, _no_index, target)
    return tuple(map(Const, values)) if result == np.asarray(neutral, result.dtype) else ()


def _no_index(_: Affine) -> int:
    raise AssertionError("bodies with indices are left as they are")
