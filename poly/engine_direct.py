"""A model's run as one native call, for a caller's arrays that fit as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from poly.dtypes import Array
from poly.graph import Graph

if TYPE_CHECKING:
    from poly.codegen.sequence import KernelSequence, SequenceCall


class DirectRun:
    """`run(inputs, out)` by labels as of an engine; None where something does not fit, and nothing has run then."""

    def __init__(self, call: SequenceCall, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._call, self._inputs, self._outputs = call, tuple(inputs), tuple(outputs)

    def run(self, inputs: Mapping[str, Array], out: Mapping[str, Array] | None) -> dict[str, Array] | None:
        given = _in_order(inputs, self._inputs)
        if given is None:
            return None
        if out is None:
            found = self._call(*given)
        else:
            targets = _in_order(out, self._outputs)
            if targets is None:
                return None
            found = self._call(*given, out=targets[0] if len(targets) == 1 else tuple(targets))
        if found is None:
            return None
        return dict(zip(self._outputs, found if isinstance(found, tuple) else (found,), strict=True))


def direct_run(
    sequence: KernelSequence, graph: Graph, sizes: Mapping[str, int], cleared: frozenset[str],
    within: Mapping[str, tuple[str, int]],
) -> DirectRun | None:  # fmt: skip
    """A graph's run as one native call, under values of its free sizes; None where it has too many arrays. `cleared`:
    the outputs that are zeros before; `within`: see `KernelSequence.placed`.
    """
    from poly.codegen.arguments import expected_arrays
    from poly.codegen.call_ir import MAX_GIVEN
    from poly.codegen.sequence import SequenceCall

    tensors = (*graph.inputs, *graph.outputs)
    if len(tensors) > MAX_GIVEN:
        return None
    shapes = {t.name: t.extents(sizes) for t in tensors}
    arrays = expected_arrays(graph.inputs, graph.outputs, shapes, cleared)
    call = SequenceCall(sequence, sequence.placed([t.name for t in tensors], within), arrays, len(graph.outputs))
    labels = ([graph.label(t.name) for t in own] for own in (graph.inputs, graph.outputs))
    return DirectRun(call, *labels)


def _in_order(arrays: Mapping[str, Array], labels: tuple[str, ...]) -> list[Array] | None:
    """The arrays of a dict that has these labels and no others."""
    if type(arrays) is not dict or len(arrays) != len(labels):
        return None
    try:
        return [arrays[label] for label in labels]
    except KeyError:
        return None
