"""`Kernel`: compiled loops as a Python callable on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np
import numpy.typing as npt

from poly.arguments import in_order, named_sizes
from poly.codegen.arguments import (
    constant_memory,
    copies_of,
    expected_arrays,
    infer_sizes,
    plain,
    unsolved,
    unwritten,
)
from poly.codegen.call import Entry, Expected, NativeCall, Record, attach
from poly.codegen.call_ir import MAX_GIVEN, NO_MEMORY
from poly.codegen.function import Module, lower
from poly.codegen.here import absent_here
from poly.codegen.jit import assembly, compile_object, link
from poly.codegen.pool import pool
from poly.codegen.pool_ir import MAX_THREADS
from poly.codegen.sized_calls import MOST_CALLS, Names, SizedCall, names_of
from poly.codegen.status import decode_status
from poly.codegen.work import work_of
from poly.dtypes import Array
from poly.errors import ArgumentTypeError, IndexRangeError, MachineError, RunError
from poly.given_arrays import check_shape, results_of, shares_any, typed
from poly.interp import run_program
from poly.interp_arrays import check_context, extents, lacks_elements, pack, unpack
from poly.locks import cached_property
from poly.loops import Alloc, Compute, LoopTree
from poly.machine import Machine
from poly.pointers import ALIGN, address
from poly.program import Program, Tensor
from poly.scheduling.cpu_calls import CallWork
from poly.scheduling.schedule import Schedule
from poly.tuning import Measured

BRIEF: Final = 1 << 14  # operations of a call that is over before another Python thread could use the time
NATIVE_RECORDS: Final = 8  # shapes of a kernel with free sizes whose calls are native
MAX_RECORDS: Final = 64
ADDRESSES: Final = 1 << 47  # bytes that a process may have, at the most


@dataclass(frozen=True)
class Origin:
    """Where a kernel's loops come from: a program, and a schedule of it, or a function that gives that, called when it
    is asked for. `refused`: why the schedule is not the policy's first. `measured`: where it was chosen by measuring.
    """

    source: Program | None = None
    schedule: Schedule | Callable[[], Schedule] | None = None
    refused: str = ""
    measured: Measured | None = None


@dataclass(frozen=True)
class Code:
    """What was made of a kernel's loops before: their IR, and its object code where that is there, too."""

    module: Module
    compiled: bytes | None = None


class Kernel(NativeCall):
    """`kernel(*inputs, out=None)`: inputs in the program's order, or by name as `kernel(A=a, B=b)`; gives the output
    array, or a tuple of several.

    An input must have the declared dtype and shape. Sizes left free are taken from the shapes; one that is in no shape
    is given by name, as `kernel(a, T=10)`. An array that is not C-contiguous is copied, one whose tensor has a layout
    is packed; arrays of other libraries come in through DLPack, where they are. `out`: an array (a tuple for several
    outputs) to write to, apart from the inputs; where it is not C-contiguous, through a copy. An inout tensor is an
    input and an output: the caller's array is only modified where it is passed as `out`; the only one, if named `out`,
    is both then.
    `stored`: constants that are in memory as their layouts say, as often as the code reads them. Calls may run at the
    same time: one of them has the worker threads, the others run alone, with the same results. Code for a machine that
    this one is not can be looked at, and not called. Raises `RunError`; an argument missing or too many is a
    `TypeError`, too; `MachineError`.
    """

    def __init__(
        self,
        tree: LoopTree,
        machine: Machine,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        constants: Mapping[str, Array] | None = None,
        threads: int = 1,
        *,
        stored: Mapping[str, Array] | None = None,
        origin: Origin | None = None,
        code: Code | None = None,
    ) -> None:
        start = perf_counter()
        self.loops, self.machine, self.threads = tree, machine, min(max(1, threads), MAX_THREADS)
        self._origin = origin or Origin()
        self._source, self.refused = self._origin.source, self._origin.refused
        self.measured = self._origin.measured
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        made = code or Code(lower(tree, machine, f"poly.{tree.name}"))
        self.module = made.module
        self._sizes = dict(tree.sizes)
        known = {t.name: t for t in (*tree.tensors, *inputs, *outputs)}
        self._tensors = [known[name] for name in self.module.tensors]
        self.constants = self._constants(constants or {}, stored or {})
        compiled = made.compiled or compile_object(self.module.ir, machine)
        self._absent = absent_here(machine)
        self._linked = None if self._absent else link(compiled, [self.module.entry])
        self.partial = unwritten(self._source, outputs)
        arrays = (*inputs, *outputs)
        self._plain = len(arrays) <= MAX_GIVEN and all(known[t.name].layout is None for t in arrays)
        self._begin_calls()
        self.seconds = perf_counter() - start

    def _begin_calls(self) -> None:
        """No call was made; where all sizes are known, native code knows the only kind of call."""
        work = work_of(self.loops)
        self._long = work is None or work > BRIEF
        self._sharing = None if self._source is None else CallWork(self._source)
        self._records: dict[tuple[int, ...], Record] = {}
        self._native: list[Record] = []
        self._calls: dict[Names, SizedCall] = {}
        self._parameters = self.module.parameters if self._source is None else self._source.parameters
        # Native calls know sizes by their shapes only.
        self._open = unsolved(self.inputs, self._sizes, self.module.parameters)
        attach(self, None)
        if not self.module.parameters and self._linked is not None:
            self._prepare(self._sizes)

    def _constants(self, given: Mapping[str, Array], stored: Mapping[str, Array]) -> dict[str, Array]:
        """The constants that the code uses, as their layouts say. Raises `RunError` where a tensor has no array."""
        used = {t.name: t for t in self._tensors}
        found = {n: constant_memory(used[n], a, self._sizes) for n, a in given.items() if n in used}
        for n in found.keys() & {*self.loops.per_thread}:
            found[n] = copies_of(used[n], found[n], self._sizes, self.threads)
        found |= {n: a for n, a in stored.items() if n in used}
        there = {t.name for t in (*self.inputs, *self.outputs)} | found.keys()
        for t in self._tensors:
            if t.name not in there and t.role != "temporary":
                hint = "pass it, or its value in constants"
                raise RunError(f"{t.role} {t.name} has no array", where=self.loops.name, hint=hint)
        return found

    if TYPE_CHECKING:

        def __call__(
            self, /, *inputs: npt.ArrayLike, out: Array | Sequence[Array] | None = None, **named: npt.ArrayLike
        ) -> Array | tuple[Array, ...]: ...

    @cached_property
    def schedule(self) -> Schedule | None:
        """The schedule that the loops come from."""
        given = self._origin.schedule
        return given() if callable(given) else given

    @property
    def parallel(self) -> bool:
        """Whether several threads share a call."""
        return self.threads > 1 and any(self.module.parallel)

    def _careful(
        self, /, *inputs: npt.ArrayLike, out: Array | Sequence[Array] | None = None, **named: npt.ArrayLike
    ) -> Array | tuple[Array, ...]:
        """A call whose arguments native code did not take as they are."""
        known = self._calls.get(names) if named and self._calls and (names := names_of(named)) else None
        return self._by_name(*inputs, out=out, **named) if known is None else known(*inputs, out=out)

    def _by_name(
        self, /, *inputs: npt.ArrayLike, out: Array | Sequence[Array] | None = None, **named: npt.ArrayLike
    ) -> Array | tuple[Array, ...]:
        if isinstance(out, np.ndarray) and self._is_inout("out", len(inputs)):
            named = {**named, "out": out}
        if named:  # it may take them in their order
            rest = [named.get(t.name) for t in self.inputs[len(inputs) :]]
            if len(rest) == len(named) and all(isinstance(a, np.ndarray) for a in rest):
                return self(*inputs, *(a for a in rest if a is not None), out=out)
        by_name = named_sizes(named, self._sizes, self._parameters, self.loops.name)
        arrays_by_name = {n: a for n, a in named.items() if n not in by_name}
        names, updated = [t.name for t in self.inputs], [t.name for t in self.inputs if t.role == "inout"]
        ordered = in_order(names, inputs, arrays_by_name, self.loops.name, updated)
        given = [typed(t, a) for t, a in zip(self.inputs, ordered, strict=True)]
        if self._plain and not by_name and not shares_any(out, given):
            ready = [plain(a) for a in given]
            if named or any(a is not i for a, i in zip(ready, inputs, strict=True)):
                return self(*ready, out=out)
        sizes = self._sizes
        if self.module.parameters:
            sizes = infer_sizes(self.inputs, [a.shape for a in given], self._sizes | by_name, self.loops.parameters)
        result = self._computed(given, sizes, out)
        if by_name and not arrays_by_name and self._plain:
            self._remember(by_name, sizes)
        return result

    def _remember(self, by_name: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        """Let calls like the last one, of these sizes, be native."""
        record = self._records.get(tuple(sizes[p] for p in self.module.parameters))
        if record is None:
            return
        names = tuple(by_name.items())
        if names not in self._calls:
            if len(self._calls) >= MOST_CALLS:
                self._calls = {}
            self._calls[names] = SizedCall(partial(self._by_name, **by_name), self._fail)
        self._calls[names].add(record)

    def _computed(
        self, given: Sequence[Array], sizes: Mapping[str, int], out: Array | Sequence[Array] | None
    ) -> Array | tuple[Array, ...]:
        """A call for arrays in the inputs' order and the values of all sizes, through copies where these are needed."""
        source = None if self.constants else self._source
        empty = source is not None and lacks_elements(source, sizes)
        record = None if empty else self._prepare(sizes)
        shapes = {t.name: t.extents(sizes) for t in (*self.inputs, *self.outputs)}
        for tensor, array in zip(self.inputs, given, strict=True):
            check_shape(tensor, array, shapes[tensor.name], "input")
        results = results_of(out, self.inputs, given, self.outputs, shapes, self.loops.name)
        if out is not None:
            for name in self.partial - {t.name for t in self.inputs}:
                results[name][...] = 0
        for tensor, array in zip(self.inputs, given, strict=True):
            target = results.get(tensor.name)
            if target is not None and target is not array:
                np.copyto(target, array)
        written = {name: plain(array) for name, array in results.items()}
        arrays = {t.name: plain(a) for t, a in zip(self.inputs, given, strict=True)} | written
        if record is not None:
            self._run_packed(record, sizes, arrays, written)
        elif source is not None:  # code is made under the program's context, which these sizes are outside of
            bound = {p: sizes[p] for p in source.parameters if p in sizes}
            for name, array in run_program(source, arrays, sizes=bound).items():
                np.copyto(written[name], array)
        for name, array in results.items():
            if written[name] is not array:
                np.copyto(array, written[name])
        found = tuple(results[t.name] for t in self.outputs)
        return found[0] if len(found) == 1 else found

    def _is_inout(self, name: str, given: int) -> bool:
        """Whether a name is that of the only output, which is an input too and not among the first ones `given`."""
        return [t.name for t in self.outputs] == [name] and any(t.name == name for t in self.inputs[given:])

    def _run_packed(
        self, record: Record, sizes: Mapping[str, int], arrays: Mapping[str, Array], results: Mapping[str, Array]
    ) -> None:
        """Run on arrays that fit; those of tensors with a layout are copied into it, and results back."""
        packed = {t.name: t for t in self._tensors if t.layout is not None and t.name in arrays}
        memory = {**arrays, **{n: pack(t, sizes, arrays[n]) for n, t in packed.items()}}
        self._check(record.run([address(memory[t.name]) for t in (*self.inputs, *self.outputs)]), sizes)
        for name in packed.keys() & results.keys():
            np.copyto(results[name], unpack(packed[name], sizes, memory[name]))

    # ---- ways to enter

    def entry(self, names: Sequence[str], sizes: Mapping[str, int] | None = None) -> Entry:
        """How native code enters with pointers of the tensors `names`; a name given twice takes the last.

        What is not among them is a constant of the kernel, or a temporary in the buffers of the call. Raises `RunError`
        for free sizes that the loops were not proven for, `MachineError` where the code is another machine's.
        """
        if self._linked is None:
            text, hint = f"this CPU has no {', '.join(self._absent)}", 'compile it with target="cpu" to call it here'
            raise MachineError(text, where=f"kernel {self.loops.name} for {self.machine.name}", hint=hint)
        known = self._sizes | dict(sizes or {})
        if missing := [p for p in self.module.parameters if p not in known]:
            text = f"size {missing[0]} is free and has no value"
            raise RunError(text, where=self.loops.name, hint=f"sizes={{{missing[0]!r}: ...}}")
        if absent := [t.name for t in (*self.inputs, *self.outputs) if t.name not in names]:
            raise RunError(f"{absent[0]} has no address", where=self.loops.name, hint="name all inputs and outputs")
        self._require_sizes(known)
        slot = {name: k for k, name in enumerate(self.module.tensors)}
        last = {name: k for k, name in enumerate(names)}
        template = [address(self.constants[n]) if n in self.constants else 0 for n in slot]
        shared, private = self.module.scratch(known)
        parts = self.threads if self.parallel and self._is_shared(known) else 1
        moves: list[tuple[int, int]] = []
        end = 0
        for tensor in self._tensors:
            if tensor.name not in last and tensor.name not in self.constants:
                moves.append((slot[tensor.name], end))
                end += -(-tensor.nbytes(known) // ALIGN) * ALIGN
        template += [known[p] for p in self.module.parameters]
        moves += [(len(template), end), (len(template) + 1, end + shared)]
        total = end + shared + private * parts
        if total >= ADDRESSES:  # native code counts bytes in 64 bits
            raise self.failure(NO_MEMORY, known)
        positions = tuple(slot.get(n, -1) if last[n] == k else -1 for k, n in enumerate(names))
        return Entry(
            self._linked.addresses[self.module.entry], parts, pool().run if parts > 1 else 0,
            (*template, 0, 0, private), positions, tuple(moves), total,
        )  # fmt: skip

    def _is_shared(self, sizes: Mapping[str, int]) -> bool:
        """Whether threads share a call under values of the free sizes, as the policies say."""
        if self._sharing is None or not self.module.parameters:
            return True
        return self._sharing.is_shared(sizes, self.module.meetings(sizes))

    def _require_sizes(self, sizes: Mapping[str, int]) -> None:
        """The program's context and extents hold for values of the free sizes; outside, the loops prove nothing."""
        if not self.module.parameters:
            return
        tensors = {t.name: t for t in (*self.inputs, *self.outputs)}
        if (source := self._source) is not None:
            check_context(source, {p: sizes[p] for p in source.parameters if p in sizes})
            tensors |= source.tensor
        for t in tensors.values():
            extents(t, sizes)

    def _prepare(self, sizes: Mapping[str, int]) -> Record:
        """The record of calls under values of the free sizes; from now on native calls know it."""
        key = tuple(sizes[p] for p in self.module.parameters)
        found = self._records.get(key)
        if found is not None:
            return found
        if len(self._records) >= MAX_RECORDS:
            self._records = {}
        names = [t.name for t in (*self.inputs, *self.outputs)]
        entry = self.entry(names, sizes)
        shapes = {t.name: t.extents(sizes) for t in (*self.inputs, *self.outputs)}
        arrays = expected_arrays(self.inputs, self.outputs, shapes, self.partial)
        record = Record(entry, arrays, len(self.outputs), release=self._long, key=key)
        native = self._plain and not self._open and len(self._native) < NATIVE_RECORDS
        if self._records.setdefault(key, record) is record and native:
            self._native.append(record.before(self._native[-1] if self._native else None))
            attach(self, record)
        return record

    def record(
        self,
        names: Sequence[str],
        arrays: Sequence[Expected],
        outputs: int = 1,
        *,
        sizes: Mapping[str, int],
        release: bool,
        scalar: bool = False,
    ) -> Record:
        """A record for other callers, who see to it that `arrays` fit the kernel; it keeps the kernel."""
        return Record(self.entry(names, sizes), arrays, outputs, release=release, scalar=scalar, keep=self)

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run on arrays that are known to fit (shapes, dtypes, C-contiguous), sizes all bound; for engines."""
        arrays = {t.name: a for t, a in zip(self.inputs, inputs, strict=True)}
        for tensor, array in zip(self.outputs, outputs, strict=True):
            if tensor.name in arrays and arrays[tensor.name] is not array:
                np.copyto(array, arrays[tensor.name])
        record = self._prepare(self._sizes)
        self._check(record.run([address(a) for a in (*inputs, *outputs)]), self._sizes)

    def run(self, addresses: Sequence[int], sizes: Mapping[str, int] | None = None) -> None:
        """Run on memory given by addresses, in the order of `module.tensors`; nothing about them is checked.

        `sizes`: values of the free sizes. Raises `RunError` for an index out of range.
        """
        self.runner(self.module.tensors, sizes)(addresses)

    def runner(self, names: Sequence[str], sizes: Mapping[str, int] | None = None) -> Callable[[Sequence[int]], None]:
        """`run` for many calls: what does not depend on the addresses is done beforehand.

        The function takes the addresses of the tensors `names`, which must be all inputs and outputs. `sizes`: values
        of the free sizes. The function raises `RunError` as `run` does.
        """
        known = self._sizes | dict(sizes or {})
        record = Record(self.entry(names, known))

        def run(addresses: Sequence[int]) -> None:
            if status := record.run(addresses):
                raise self.failure(status, known)

        return run

    # ---- what goes wrong

    def _failed(self, at: int, status: int) -> None:
        """Called by native code."""
        self._fail(next(r for r in self._native if r.address == at), status)

    def _fail(self, record: Record, status: int) -> NoReturn:
        raise self.failure(status, dict(zip(self.module.parameters, record.key, strict=True)))

    def _check(self, status: int, sizes: Mapping[str, int]) -> None:
        if status:
            raise self.failure(status, sizes)

    def failure(self, status: int, sizes: Mapping[str, int]) -> RunError:
        """The error that a status other than 0 stands for."""
        if status == NO_MEMORY:
            return RunError("no memory for the buffers", where=self.loops.name)
        found = decode_status(self.module.statements, status)
        node = next(n for n in self.loops.nodes() if isinstance(n, Compute) and n.statement == found.statement)
        access = node.write if found.read is None else node.reads[found.read]
        buffers = [n.tensor for n in self.loops.nodes() if isinstance(n, Alloc)]
        tensor = next(t for t in (*self.loops.tensors, *self._tensors, *buffers) if t.name == access.tensor)
        extent = tensor.extents(self._sizes | dict(sizes))[found.dimension]
        written = None if self._source is None else self._source.statement.get(found.statement)
        where = f"statement {found.statement}"
        if written is not None and written.written_at:
            where = f"{where}, {written.written_at}"
        return IndexRangeError(where, found.statement, tensor.source_name, found.dimension, found.value, extent)

    @property
    def ir(self) -> str:
        """The LLVM IR as emitted."""
        return self.module.ir

    @cached_property
    def asm(self) -> str:
        """The assembly of the machine."""
        return assembly(self.module.ir, self.machine)

    def __reduce__(self) -> NoReturn:
        hint = "pickle its schedule, kernel.schedule, and compile that again where it is read"
        raise ArgumentTypeError("a kernel is code in this process, which is not pickled or copied",
                                where=f"kernel {self.loops.name}", hint=hint)  # fmt: skip

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


Kernel._careful.__qualname__ = "Kernel.__call__"  # pyright: ignore[reportPrivateUsage]  # in Python's own errors
