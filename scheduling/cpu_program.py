"""A program as the policies for a CPU take it: the edits of the whole program, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, combinations

from poly.dtypes import Array
from poly.expr import DOTS, Apply, walk
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.byte_tables import with_byte_tables
from poly.scheduling.cpu_channels import channels_like, with_channels_first
from poly.scheduling.cpu_columns import column_choices, columns_like, with_columns
from poly.scheduling.cpu_padding import filled_like, padding_like, whole_windows, without_padding
from poly.scheduling.cpu_planes import planes_in_blocks, planes_like
from poly.scheduling.dot_sums import sums_by_dots
from poly.scheduling.exact_sums import sums_in_f32
from poly.scheduling.joined_axes import join_axes
from poly.scheduling.joined_maps import with_maps_joined
from poly.scheduling.joined_parts import with_parts_joined
from poly.scheduling.outer_sums import with_outer_sums_first
from poly.scheduling.paired_sums import sums_of_pairs
from poly.scheduling.separated import with_windows_separated
from poly.scheduling.single_terms import without_single_terms
from poly.scheduling.step_order import with_steps_in_order
from poly.scheduling.uneven import finite_factors
from poly.scheduling.weights_in_parts import weights_like, with_weights_in_parts
from poly.scheduling.widened import sums_of_widened
from poly.scheduling.wider_elements import with_wider_elements
from poly.scheduling.written_places import with_written_places

_Edit = Callable[[Program], Program]


def model_for_cpu(program: Program, constants: Mapping[str, Array], machine: Machine) -> Program:
    """The program of a whole model with sums of narrow numbers as a machine multiplies them, and what several groups
    would walk in one statement; others than CPUs take it as it is.
    """
    if machine.kind != "cpu":
        return program
    joined = with_maps_joined(sums_in_f32(_narrow_sums(program, machine.dot_operators), constants))
    return with_weights_in_parts(with_byte_tables(joined, machine), machine)


def for_cpu(program: Program, finite: Collection[str], machine: Machine, threads: int) -> Program:
    """A program as the policies for a CPU take it. `finite`: constants, see `finite_factors` of `uneven`."""
    before = with_weights_in_parts(_before_columns(program, _padding(finite, machine, threads)), machine)
    columns = with_columns(before, machine, threads)
    return planes_in_blocks(columns, machine)


def known_for_cpu(program: Program, constants: Mapping[str, Array], machine: Machine, threads: int) -> Program:
    """Like `for_cpu`, from the values of the constants, with sums of narrow numbers as it multiplies them."""
    program = _narrow_sums(program, machine.dot_operators) if machine.kind == "cpu" else program
    return for_cpu(program, finite_factors(program, constants), machine, threads)


def ways_for_cpu(
    program: Program, finite: Collection[str], machine: Machine, threads: int
) -> list[tuple[Program, float]]:
    """The program of `for_cpu`, then others that it might have chosen, each with the cycles of the copies that its
    contraction needs.
    """

    def ways(padding: _Edit) -> Iterator[tuple[Program, float]]:
        before = with_weights_in_parts(_before_columns(program, padding), machine)
        for p, copies in column_choices(before, machine, threads):
            yield planes_in_blocks(p, machine), copies

    chosen = for_cpu(program, finite, machine, threads)
    both = (_as_it_is, _padding(finite, machine, threads))
    found = {str(p): (p, copies) for padding in both for p, copies in ways(padding)}
    first = found.pop(str(chosen), (chosen, 0.0))
    return [first, *found.values()]


def known_ways_for_cpu(
    program: Program, constants: Mapping[str, Array], machine: Machine, threads: int
) -> list[tuple[Program, float]]:
    """Like `ways_for_cpu`, of what `known_for_cpu` takes."""
    program = _narrow_sums(program, machine.dot_operators)
    return ways_for_cpu(program, finite_factors(program, constants), machine, threads)


def _as_it_is(program: Program) -> Program:
    return program


def _padding(finite: Collection[str], machine: Machine, threads: int) -> _Edit:
    def edit(program: Program) -> Program:
        whole = whole_windows(with_channels_first(program, finite, machine, threads), machine)
        return without_padding(whole, finite, machine, threads)

    return edit


def like_another(program: Program, other: Program, constants: Mapping[str, Array]) -> Iterator[Program]:
    """The programs that `known_for_cpu` may give where it chooses as for another one, on any machine."""
    used = sorted({e.operator for s in other.statements for e in walk(s.body) if isinstance(e, Apply)} & DOTS.keys())
    dots = chain.from_iterable(combinations(used, n) for n in range(len(used) + 1))
    for start in (program, *(_narrow_sums(program, d) for d in dots)):
        finite = finite_factors(start, constants)
        before = _before_columns(start, lambda p, f=finite: _padding_like(channels_like(p, other, f), other, f))
        yield planes_like(columns_like(weights_like(before, other), other), other)


def _padding_like(program: Program, other: Program, finite: Collection[str]) -> Program:
    return padding_like(filled_like(program, other), other, finite)


def _before_columns(program: Program, padding: _Edit) -> Program:
    """The order of the edits up to the last ones; `padding` as it is chosen."""
    padded = padding(without_single_terms(program))
    program = with_maps_joined(with_windows_separated(padded), codes=True)
    program = join_axes(with_wider_elements(program))
    return with_outer_sums_first(with_steps_in_order(with_written_places(with_parts_joined(program))))


def _narrow_sums(program: Program, dots: Collection[str]) -> Program:
    """The program with sums of products of small integers by instructions, those of 16-bit floats of wide operands."""
    return sums_of_widened(sums_of_pairs(sums_by_dots(program, dots), dots))
