"""`Kernel`: compiled loops as a Python callable on numpy arrays."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from time import perf_counter

import numpy as np
import numpy.typing as npt

from poly.affine import Affine, Var
from poly.codegen.function import ALIGN, Module, decode_status, lower
from poly.codegen.jit import Linked, assembly, compile_object, link
from poly.dtypes import numpy_dtype
from poly.errors import RunError
from poly.interp_arrays import pack, unpack
from poly.loops import Compute, LoopTree
from poly.machine import Machine
from poly.pointers import address
from poly.program import Tensor
from poly.scheduling.schedule import Schedule

Array = npt.NDArray[np.generic]
Entry = Callable[[bytes, int, int], int]
_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Kernel:
    """`kernel(*inputs, out=None)`: inputs in the program's order; gives the output array, or a tuple of several.

    An input must have the declared dtype and shape; sizes left free are taken from the shapes. An array that is not
    C-contiguous is copied, one whose tensor has a layout is packed. `out`: an array (a tuple for several outputs) to
    write to, C-contiguous and apart from the inputs. An inout tensor is an input and an output: the caller's array is
    only modified where it is passed as `out`. `stored`: constants that are in memory as their layouts say. Calls may
    run at the same time. Raises `RunError`.
    """

    def __init__(
        self,
        tree: LoopTree,
        machine: Machine,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        constants: Mapping[str, Array] | None = None,
        threads: int = 1,
        schedule: Schedule | None = None,
        stored: Mapping[str, Array] | None = None,
    ) -> None:
        start = perf_counter()
        self.loops, self.machine, self.threads = tree, machine, max(1, threads)
        self.schedule = schedule
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.module: Module = lower(tree, machine, f"poly.{tree.name}")
        self._sizes = sizes = dict(tree.sizes)
        known = {t.name: t for t in (*tree.tensors, *inputs, *outputs)}
        self._tensors = [known[name] for name in self.module.tensors]
        self.constants = {
            n: _constant(known[n], a, sizes) for n, a in (constants or {}).items() if n in self.module.tensors
        }
        self.constants |= {n: a for n, a in (stored or {}).items() if n in self.module.tensors}
        given = {t.name for t in (*inputs, *outputs)} | self.constants.keys()
        for t in self._tensors:
            if t.name not in given and t.role != "temporary":
                raise RunError(
                    f"{t.role} {t.name} has no array", where=tree.name, hint="pass it, or its value in constants"
                )
        free = bool(self.module.parameters)
        self._scratch = (0, 0) if free else self.module.scratch({})
        self._shapes = None if free else self._all_shapes(sizes)
        self._dtypes = {t.name: numpy_dtype(t.dtype) for t in known.values()}
        self._linked: Linked = link(compile_object(self.module.ir, machine), [*self.module.entries])
        self._entries: list[Entry] = [_ENTRY(self._linked.addresses[name]) for name in self.module.entries]
        self.seconds = perf_counter() - start

    def __call__(self, *inputs: npt.ArrayLike, out: Array | Sequence[Array] | None = None) -> Array | tuple[Array, ...]:
        if len(inputs) != len(self.inputs):
            names = ", ".join(t.name for t in self.inputs)
            raise RunError(f"{self.loops.name} takes {len(self.inputs)} arrays ({names}), got {len(inputs)}")
        given = [_typed(t, self._dtypes[t.name], a) for t, a in zip(self.inputs, inputs, strict=True)]
        sizes = self._sizes
        if self._shapes is None:
            sizes = infer_sizes(self.inputs, [a.shape for a in given], self._sizes, self.loops.parameters)
        shapes = self._shapes or self._all_shapes(sizes)
        for tensor, array in zip(self.inputs, given, strict=True):
            _check_shape(tensor, array, shapes[tensor.name], "input")
        results = self._results(out, given, shapes)
        for tensor, array in zip(self.inputs, given, strict=True):
            target = results.get(tensor.name)
            if target is not None and target is not array:
                np.copyto(target, array)
        arrays = {t.name: _plain(a) for t, a in zip(self.inputs, given, strict=True)} | results
        packed = {t.name: t for t in self._tensors if t.layout is not None and t.name in arrays}
        memory = self.constants | arrays | {n: pack(t, sizes, arrays[n]) for n, t in packed.items()}
        for tensor in self._tensors:
            if tensor.name not in memory:
                memory[tensor.name] = np.empty(memory_shape(tensor, sizes), self._dtypes[tensor.name])
        self.run([address(memory[name]) for name in self.module.tensors], sizes)
        for name in packed.keys() & results.keys():
            np.copyto(results[name], unpack(packed[name], sizes, memory[name]))
        found = tuple(results[t.name] for t in self.outputs)
        return found[0] if len(found) == 1 else found

    def _all_shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        return {t.name: t.extents(sizes) for t in (*self.inputs, *self.outputs)}

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run on arrays that are known to fit (shapes, dtypes, C-contiguous), sizes all bound; for engines."""
        arrays = self.constants | {t.name: a for t, a in zip(self.inputs, inputs, strict=True)}
        for tensor, array in zip(self.outputs, outputs, strict=True):
            if tensor.name in arrays and arrays[tensor.name] is not array:
                np.copyto(array, arrays[tensor.name])
            arrays[tensor.name] = array
        for tensor in self._tensors:
            if tensor.name not in arrays:
                arrays[tensor.name] = np.empty(memory_shape(tensor, self._sizes), self._dtypes[tensor.name])
        self.run([address(arrays[name]) for name in self.module.tensors])

    def run(self, addresses: Sequence[int], sizes: Mapping[str, int] | None = None) -> None:
        """Run on memory given by addresses, in the order of `module.tensors`; nothing about them is checked.

        `sizes`: values of the free sizes. Raises `RunError` for an index out of range.
        """
        sizes = sizes or {}
        shared, private = self.module.scratch(sizes) if self.module.parameters else self._scratch
        buffer = np.empty(shared + private * self.threads + ALIGN, np.uint8) if shared + private else None
        start = 0 if buffer is None else -(-address(buffer) // ALIGN) * ALIGN
        values = [*addresses, *(sizes[p] for p in self.module.parameters), start, start + shared, private]
        self._enter(struct.pack(f"{len(values)}q", *values), sizes)

    def runner(self, names: Sequence[str], sizes: Mapping[str, int] | None = None) -> Callable[[Sequence[int]], None]:
        """`run` for calls by the million: all that does not depend on the addresses is done beforehand.

        The function takes the addresses of the tensors `names`, which must be all inputs and outputs; temporaries are
        allocated at each call. `sizes`: values of the free sizes. The function raises `RunError` as `run` does.
        """
        known = self._sizes | dict(sizes or {})
        shared, private = self.module.scratch(known)
        position = {name: k for k, name in enumerate(names)}
        offsets: dict[str, int] = {}
        total = 0
        for tensor in self._tensors:
            if tensor.name not in position and tensor.name not in self.constants:
                offsets[tensor.name] = total
                total += -(-tensor.nbytes(known) // ALIGN) * ALIGN
        order = [position.get(name) for name in self.module.tensors]
        fixed = [address(self.constants[n]) if n in self.constants else 0 for n in self.module.tensors]
        free = [known[p] for p in self.module.parameters]
        need = total + shared + private * self.threads
        block = struct.Struct(f"{len(order) + len(free) + 3}q").pack
        if order == list(range(len(names))) and not need and len(self._entries) == 1:
            entry = self._entries[0]

            def run_plain(addresses: Sequence[int]) -> None:
                if status := entry(block(*addresses, *free, 0, 0, private), 0, 1):
                    raise self._failure(status, known)

            if self.threads == 1 or not self.module.parallel[0]:
                return run_plain

        def run(addresses: Sequence[int]) -> None:
            buffer = np.empty(need + ALIGN, np.uint8)
            start = -(-address(buffer) // ALIGN) * ALIGN
            given = [
                f or (addresses[p] if p is not None else start + offsets[n])
                for n, p, f in zip(self.module.tensors, order, fixed, strict=True)
            ]
            self._enter(block(*given, *free, start + total, start + total + shared, private), known)

        return run

    def _enter(self, block: bytes, sizes: Mapping[str, int]) -> None:
        for entry, parallel in zip(self._entries, self.module.parallel, strict=True):
            status = self._split(entry, block) if parallel and self.threads > 1 else entry(block, 0, 1)
            if status:
                raise self._failure(status, sizes)

    def _split(self, entry: Entry, block: bytes) -> int:
        """One phase on all threads; the first non-zero status."""
        parts = self.threads
        pool = _pool(os.getpid(), parts - 1)
        waiting = [pool.submit(entry, block, part, parts) for part in range(1, parts)]
        statuses = [entry(block, 0, parts), *(w.result() for w in waiting)]
        return next((s for s in statuses if s), 0)

    def _results(
        self, out: Array | Sequence[Array] | None, given: Sequence[Array], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Array]:
        if out is None:
            return {t.name: np.zeros(shapes[t.name], self._dtypes[t.name]) for t in self.outputs}
        chosen = (out,) if isinstance(out, np.ndarray) else tuple(out)
        if len(chosen) != len(self.outputs):
            raise RunError(f"{len(self.outputs)} outputs, out has {len(chosen)}", where=self.loops.name)
        results: dict[str, Array] = {}
        for tensor, array in zip(self.outputs, chosen, strict=True):
            results[tensor.name] = self._target(tensor, array, given, shapes[tensor.name])
            if any(np.may_share_memory(array, other) for name, other in results.items() if name != tensor.name):
                raise RunError(f"out for {tensor.name} overlaps another output", where=self.loops.name)
        return results

    def _target(self, tensor: Tensor, array: object, given: Sequence[Array], shape: tuple[int, ...]) -> Array:
        where = self.loops.name
        if not isinstance(array, np.ndarray) or array.dtype != self._dtypes[tensor.name]:
            got = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise RunError(f"out for {tensor.name} is {got}, expected {tensor.dtype}", where=where)
        _check_shape(tensor, array, shape, "out for")
        flags = array.flags
        if not (flags.writeable and flags.c_contiguous and flags.aligned):
            need = {"writable": flags.writeable, "C-contiguous": flags.c_contiguous, "aligned": flags.aligned}
            missing = ", ".join(name for name, there in need.items() if not there)
            raise RunError(f"out for {tensor.name} is not {missing}", where=where)
        for source, other in zip(self.inputs, given, strict=True):
            same = source.name == tensor.name and other is array
            if not same and np.may_share_memory(array, other):
                raise RunError(
                    f"out for {tensor.name} overlaps input {source.name}", where=where, hint="pass another array"
                )
        return array

    def _failure(self, status: int, sizes: Mapping[str, int]) -> RunError:
        found = decode_status(self.module, status)
        node = next(n for n in self.loops.nodes() if isinstance(n, Compute) and n.statement == found.statement)
        access = node.write if found.read is None else node.reads[found.read]
        tensor = next(t for t in (*self.loops.tensors, *self._tensors) if t.name == access.tensor)
        extent = tensor.extents(self._sizes | dict(sizes))[found.dimension]
        return RunError(
            f"index {found.value} of dimension {found.dimension} of {access.tensor} is outside 0 .. {extent - 1}",
            where=f"statement {found.statement}",
        )

    @property
    def ir(self) -> str:
        """The LLVM IR as emitted."""
        return self.module.ir

    @cached_property
    def asm(self) -> str:
        """The assembly of the machine."""
        return assembly(self.module.ir, self.machine)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(t.name for t in ts) for ts in (self.inputs, self.outputs))
        return f"<Kernel {self.loops.name}({inputs}) -> {outputs or 'nothing'} for {self.machine.name}>"

    def _repr_html_(self) -> str:
        from poly.pictures import kernel_html

        return kernel_html(self)

    def __str__(self) -> str:
        def shown(t: Tensor) -> str:
            return f"{t.name}: {t.dtype}[{', '.join(map(str, t.shape))}]"

        lines = [f"kernel {self.loops.name} for {self.machine.name}, {self.threads} thread{'s' * (self.threads > 1)}"]
        lines += [f"  input {shown(t)}" for t in self.inputs] + [f"  output {shown(t)}" for t in self.outputs]
        return "\n".join([*lines, str(self.loops)])


@cache
def _pool(_process: int, workers: int) -> ThreadPoolExecutor:
    """Worker threads, kept for the life of the process; a forked child gets its own."""
    return ThreadPoolExecutor(workers, thread_name_prefix="polyloom")


def memory_shape(tensor: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of the memory behind a tensor, which is packed where the tensor has a layout."""
    return tuple(int(e.evaluate(sizes)) for e in tensor.storage_shape)


def infer_sizes(
    tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], known: Mapping[str, int], names: Sequence[str]
) -> dict[str, int]:
    """Values of the free sizes from the shapes of the inputs. Raises `RunError` where one cannot be found."""
    sizes = dict(known)
    equations = [
        (extent, length)
        for tensor, shape in zip(tensors, shapes, strict=True)
        if len(shape) == tensor.rank
        for extent, length in zip(tensor.shape, shape, strict=True)
    ]
    missing = [n for n in names if n not in sizes]
    while missing:
        before = len(missing)
        for extent, length in equations:
            solved = _solve(extent.substitute(sizes), length)
            if solved is not None:
                sizes.setdefault(*solved)
        missing = [n for n in missing if n not in sizes]
        if len(missing) == before:
            raise RunError(
                f"size {missing[0]} does not follow from the shapes of the inputs", hint="bind it when compiling"
            )
    return sizes


def _solve(extent: Affine, length: int) -> tuple[str, int] | None:
    """The value of the one unknown of `extent == length`, if it has one."""
    match extent.terms:
        case ((Var(name), c),) if (length - extent.constant) % c == 0:
            return name, (length - extent.constant) // c
        case _:
            return None


def _typed(tensor: Tensor, expected: np.dtype[np.generic], array: npt.ArrayLike) -> Array:
    if not isinstance(array, np.ndarray | np.generic):
        try:
            return np.asarray(array, expected)
        except (TypeError, ValueError, OverflowError) as error:
            raise RunError(
                f"input {tensor.name}: {type(array).__name__} is no array of {tensor.dtype}: {error}"
            ) from error
    found = np.asarray(array)
    if found.dtype != expected:
        hint = f"{tensor.name}.astype({expected.name!r})"
        raise RunError(f"input {tensor.name} is {found.dtype}, expected {tensor.dtype}", hint=hint)
    return found


def _check_shape(tensor: Tensor, array: Array, expected: tuple[int, ...], what: str) -> None:
    if array.shape == expected:
        return
    shown = ", ".join(map(str, tensor.shape))
    text = f"{what} {tensor.name} has shape {list(array.shape)}, expected {list(expected)}"
    raise RunError(text if all(e.is_constant for e in tensor.shape) else f"{text} from [{shown}]")


def _plain(array: Array) -> Array:
    """C-contiguous and aligned, copied where it is not."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, requirements=["C", "A"])


def _constant(tensor: Tensor, array: Array, sizes: Mapping[str, int]) -> Array:
    found = _plain(_typed(tensor, numpy_dtype(tensor.dtype), array))
    _check_shape(tensor, found, tensor.extents(sizes), "constant")
    return pack(tensor, sizes, found)
