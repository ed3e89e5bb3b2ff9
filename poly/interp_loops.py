"""The reference interpreter of loop trees: every iteration in turn, as straightforward generated Python.

The tree is printed once as Python source (`loops_source` shows it) and executed on numpy storage; arithmetic is on
numpy scalars of the program's dtypes. Nothing is reordered or simplified:

- `serial`, `unroll` and `unit` loops run in order.
- `parallel` loops run in order, or shuffled on request; at a `Sync` inside of one every iteration waits for the others.
- `vector` loops run statement by statement across their lanes: all lanes read and evaluate, then all write in order (a
  reduction combines then). `If` and loops inside choose the lanes that go on.
- A buffer starts as poison each time its `Alloc` is entered; inside of a vector loop each lane has one of its own.
- Storage is as the tensor's layout says; logical subscripts and physical coordinates are checked against their extents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Never

import numpy as np

from poly.errors import RunError
from poly.interp_access import out_of_bounds
from poly.interp_arrays import (
    Array,
    RunExternal,
    bind_arrays,
    bind_sizes,
    check_given,
    check_writable,
    pack,
    poisoned,
    results,
    run_external,
    unpack,
)
from poly.interp_source import Source, source_of
from poly.loops import Compute, LoopTree
from poly.program import Program

TraceLoops = Callable[[str, tuple[int, ...]], None]


def run_loops(
    tree: LoopTree,
    inputs: Mapping[str, Array],
    *,
    sizes: Mapping[str, int] | None = None,
    program: Program | None = None,
    shuffle: int | None = None,
    trace: TraceLoops | None = None,
    keep: Iterable[str] = (),
    externals: Mapping[str, RunExternal] | None = None,
) -> dict[str, Array]:
    """The values of outputs, inouts and states, and of the tensors named in `keep`, as logical arrays.

    `inputs`, `sizes`, `keep` and `externals` as for `poly.interp.run_program`, on the tensors of the tree. `program`:
    where external statements are looked up. `shuffle`: a seed; parallel iterations run in an order drawn from it.
    `trace` is called with (statement, instance) for every instance as it is evaluated. Raises `RunError` on wrong
    arguments, on an index out of bounds and on a tensor that is not in scope.
    """
    given = {name: np.asarray(array) for name, array in inputs.items()}
    names = tuple(dict.fromkeys((*tree.parameters, *(name for name, _ in tree.sizes))))
    check_given(tree.tensors, given)
    bound = bind_sizes(tree.tensors, names, dict(tree.sizes) | dict(sizes or {}), given)
    declared = {t.name: t for t in tree.tensors}
    written = [(n.statement, n.write.tensor) for n in tree.nodes() if isinstance(n, Compute)]
    check_writable([(s, name) for s, name in written if name in declared], declared)
    logical = bind_arrays(tree.tensors, bound, given)
    storage = {name: pack(declared[name], bound, array) for name, array in logical.items()}
    source = source_of(tree, program, bound, trace is not None)
    space = _namespace(source, bound, program, shuffle, trace, externals or {})
    exec(compile(source.text, f"<loops {tree.name}>", "exec"), space)
    with np.errstate(all="ignore"):
        space["run"](*storage.values())  # type: ignore[operator]
    done = {name: unpack(declared[name], bound, array) for name, array in storage.items()}
    return results(tree.tensors, done, keep)


def loops_source(tree: LoopTree, *, sizes: Mapping[str, int] | None = None, program: Program | None = None) -> str:
    """The Python that runs a tree under a complete binding of its sizes, for debugging."""
    return source_of(tree, program, dict(tree.sizes) | dict(sizes or {}), False).text


def _namespace(
    source: Source,
    sizes: Mapping[str, int],
    program: Program | None,
    shuffle: int | None,
    trace: TraceLoops | None,
    externals: Mapping[str, RunExternal],
) -> dict[str, object]:
    """What the generated source calls."""
    generator = None if shuffle is None else random.Random(shuffle)

    def ordered(iterations: Iterable[int]) -> list[int]:
        found = list(iterations)
        if generator is not None:
            generator.shuffle(found)
        return found

    def fail(site: int, instance: Sequence[int], index: Sequence[int]) -> Never:
        statement, tensor, shape = source.sites[site]
        raise out_of_bounds(statement, instance, tensor, index, shape)

    def external(statement: str, storage: Mapping[str, Array]) -> None:
        assert program is not None
        logical = {name: unpack(source.tensors[name], sizes, array) for name, array in storage.items()}
        run_external(program, statement, logical, externals)
        for name, array in storage.items():
            array[...] = pack(source.tensors[name], sizes, logical[name])

    return {
        "np": np,
        "poisoned": poisoned,
        "ordered": ordered,
        "together": together,
        "fail": fail,
        "external": external,
        "trace": trace,
        **source.names,
    }


def together(parts: Sequence[Generator[None]]) -> None:
    """Run generators by turns, each up to its next `yield`, until all end. Raises `RunError` if some end early."""
    while parts:
        running = [part for part in parts if next(part, "ended") != "ended"]
        if running and len(running) < len(parts):
            message = "a sync is reached by some iterations of a parallel loop only"
            raise RunError(message, hint="move it out of the condition")
        parts = running
