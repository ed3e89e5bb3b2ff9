"""The reference interpreter of programs: `run_program`, the meaning every compiled form is compared with.

Per instance: the instances of all statements are enumerated, sorted by their 2d+1 paths and executed one by one, in
plain Python; every intermediate value has the dtype of the program. Vectorised (`poly.interp_vector`): the same for
whole models; integers are equal bit for bit, sums and products of floats are accumulated in f64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import islpy as isl
import numpy as np

from poly.affine import Affine, var
from poly.arguments import checks_kinds, shown
from poly.dtypes import numpy_dtype
from poly.errors import RunError
from poly.expr import OPERATORS, evaluate
from poly.interp_access import out_of_bounds
from poly.interp_arrays import (
    Array,
    RunExternal,
    bind_arrays,
    bind_sizes,
    check_context,
    check_given,
    check_writable,
    lacks_elements,
    results,
    run_external,
)
from poly.interp_vector import run_vectorised
from poly.program import Access, PathStep, Program, Statement, Tensor, default_path, program_of

Element = tuple[str, tuple[int, ...]]
Trace = Callable[[Statement, tuple[int, ...], list[Element], Element], None]

FEW_INSTANCES: Final = 2000


@checks_kinds(RunError)
def run_program(
    program: Program,
    inputs: Mapping[str, Array],
    *,
    sizes: Mapping[str, int] | None = None,
    vectorised: bool | None = None,
    trace: Trace | None = None,
    order: Mapping[str, Sequence[Affine | int]] | None = None,
    keep: Iterable[str] = (),
    externals: Mapping[str, RunExternal] | None = None,
) -> dict[str, Array]:
    """The values of outputs, inouts and states, and of the tensors named in `keep`.

    `inputs`: one array per input, inout, state and constant, of the tensor's shape and dtype; arrays of other tensors
    are taken as their first content. Nothing passed in is written. Outputs start as zero, temporaries as poison: NaN in
    floats, bytes 0xA5 in integers. `sizes` completes the program's own binding and the extents of the inputs; sizes of
    0 are taken where 1 would be.
    `vectorised`: None takes the per-instance interpreter below 2000 instances. `trace` (per instance only) is called
    for each instance, in order, before it writes: (statement, instance, elements read, element written); a read whose
    guard does not hold is left out, the target of a reduction is read last. `order` (per instance only) replaces paths:
    for each statement a time vector, affine in its iterators, compared lexicographically. `externals`: evaluators of
    external statements by kind. Raises `RunError` on wrong arguments and on an index out of bounds.
    """
    _check_kind(program)
    if vectorised and (trace is not None or order is not None):
        raise RunError("trace and order need the per-instance interpreter", hint="vectorised=False")
    given = {name: np.asarray(array) for name, array in inputs.items()}
    check_given(program.tensors, given)
    bound = bind_sizes(program.tensors, program.parameters, program.binding | dict(sizes or {}), given)
    if not lacks_elements(program, bound):
        check_context(program, bound)
    arrays = bind_arrays(program.tensors, bound, given)
    check_writable(((s.name, name) for s in program.statements for name in _written(s)), program.tensor)
    domains = {s.name: instances_of(s, bound) for s in program.statements}
    if vectorised is None:
        vectorised = trace is None and order is None and sum(count_bound(d) for d in domains.values()) >= FEW_INSTANCES
    if vectorised:
        paths = {s.name: full_path(s, position) for position, s in enumerate(program.statements)}
        run_vectorised(program, bound, domains, paths, arrays, externals or {})
    else:
        times = time_vectors(program) if order is None else order
        _run_per_instance(program, bound, domains, times, arrays, externals or {}, trace)
    return results(program.tensors, arrays, keep)


def _check_kind(program: object) -> None:
    """Refuse what is no program; `checks_kinds` does not know what else was meant."""
    if not isinstance(program, Program):
        own = program_of(program) is not None
        hint = "the `program` of what is given" if own else "poly.compile, or graph.to_program()"
        raise RunError(f"runs a Program, not {shown(program)}", hint=hint)


def _written(s: Statement) -> tuple[str, ...]:
    return (s.write.tensor,) if s.external is None else s.external.writes


def instances_of(s: Statement, sizes: Mapping[str, int]) -> isl.Set:
    """A statement's domain with all sizes put in. Raises `RunError` where it is unbounded or has an unknown one."""
    domain = s.domain
    count = domain.dim(isl.dim_type.param)
    for position in range(count):
        name = domain.get_dim_name(isl.dim_type.param, position) or ""
        if name not in sizes:
            raise RunError(f"size {name} of the domain is not known", where=f"statement {s.name}")
        domain = domain.fix_val(isl.dim_type.param, position, sizes[name])
    domain = domain.project_out(isl.dim_type.param, 0, count)
    if not domain.is_bounded():
        raise RunError(f"domain {domain} is not bounded", where=f"statement {s.name}")
    return domain


def count_bound(domain: isl.Set) -> int:
    """An upper bound of the number of points: the volume of the bounding box."""
    if domain.is_empty():
        return 0
    volume = 1
    for k in range(domain.dim(isl.dim_type.set)):
        volume *= domain.dim_max_val(k).to_python() - domain.dim_min_val(k).to_python() + 1
    return volume


def full_path(s: Statement, position: int) -> tuple[PathStep, ...]:
    """The path of statement number `position`, every iterator included (those it does not name come last, in order)."""
    path = s.path or default_path(position, s.iterators)
    named = [step for step in path if isinstance(step, str)]
    if sorted(named) != sorted(set(named)) or not set(named) <= set(s.iterators):
        raise RunError(f"path {path} does not name iterators {s.iterators} once each", where=f"statement {s.name}")
    return (*path, *(i for i in s.iterators if i not in named))


def time_vectors(program: Program) -> dict[str, Sequence[Affine | int]]:
    """The paths as time vectors over each statement's iterators."""
    return {
        s.name: tuple(var(step) if isinstance(step, str) else step for step in full_path(s, position))
        for position, s in enumerate(program.statements)
    }


def points(domain: isl.Set) -> list[tuple[int, ...]]:
    """Every point of a bounded set, sorted."""
    found: list[tuple[int, ...]] = []
    rank = domain.dim(isl.dim_type.set)

    def add(point: isl.Point) -> None:
        found.append(tuple(point.get_coordinate_val(isl.dim_type.set, k).to_python() for k in range(rank)))

    domain.foreach_point(add)
    return sorted(found)


def _run_per_instance(
    program: Program,
    sizes: Mapping[str, int],
    domains: Mapping[str, isl.Set],
    times: Mapping[str, Sequence[Affine | int]],
    arrays: Mapping[str, Array],
    externals: Mapping[str, RunExternal],
    trace: Trace | None,
) -> None:
    """Instances of all statements, sorted by their time vectors."""
    longest = max((len(time) for time in times.values()), default=0)
    schedule: list[tuple[tuple[int, ...], int, tuple[int, ...]]] = []
    for position, s in enumerate(program.statements):
        for instance in points(domains[s.name]):
            values = {**sizes, **dict(zip(s.iterators, instance, strict=True))}
            time = tuple(int(Affine.of(step).evaluate(values)) for step in times[s.name])
            schedule.append((time + (0,) * (longest - len(time)), position, instance))
    for _, position, instance in sorted(schedule):
        s = program.statements[position]
        if s.external is not None:
            run_external(program, s.name, arrays, externals)
        else:
            _run_instance(program, s, instance, sizes, arrays, trace)


def _run_instance(
    program: Program,
    s: Statement,
    instance: tuple[int, ...],
    sizes: Mapping[str, int],
    arrays: Mapping[str, Array],
    trace: Trace | None,
) -> None:
    """Reads in their order, a fill where a guard does not hold; the body; the write."""
    values = {**sizes, **dict(zip(s.iterators, instance, strict=True))}
    read: list[Array] = []
    touched: list[Element] = []
    for access in s.reads:
        if all(c.holds(values) for c in access.guard):
            index = _element(s, instance, access, values, read, arrays)
            touched.append((access.tensor, index))
            read.append(np.asarray(arrays[access.tensor][index]))
        else:
            assert access.fill is not None
            read.append(np.asarray(access.fill.value, arrays[access.tensor].dtype))
    target = program.tensor[s.write.tensor]
    value = evaluate(s.body, read, lambda e: e.evaluate(values), target.dtype)
    value = np.asarray(value).astype(numpy_dtype(target.dtype))
    index = _element(s, instance, s.write, values, read, arrays)
    if s.combiner is not None:
        touched.append((target.name, index))
    if trace is not None:
        trace(s, instance, touched, (target.name, index))
    _store(s, target, arrays[target.name], index, value)


def _store(s: Statement, target: Tensor, array: Array, index: tuple[int, ...], value: Array) -> None:
    if s.combiner is not None:
        combine = OPERATORS[s.combiner.operator].evaluate
        value = np.asarray(combine(np.asarray(array[index]), value)).astype(numpy_dtype(target.dtype))
    array[index] = value


def _element(
    s: Statement,
    instance: tuple[int, ...],
    access: Access,
    values: Mapping[str, int],
    read: Sequence[Array],
    arrays: Mapping[str, Array],
) -> tuple[int, ...]:
    index = tuple(int(e.evaluate(values)) if isinstance(e, Affine) else int(read[e.position]) for e in access.index)
    shape = arrays[access.tensor].shape
    if not all(0 <= i < extent for i, extent in zip(index, shape, strict=True)):
        raise out_of_bounds(s.name, instance, access.tensor, index, shape)
    return index
