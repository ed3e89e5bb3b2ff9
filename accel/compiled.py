"""`StreamKernel`: a program for an accelerator as a Python callable: its command stream, run by the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np
import numpy.typing as npt

from poly.accel.emit import emit_stream
from poly.accel.isa import CommandStream
from poly.accel.simulate import Counters, run
from poly.accel.timing import Report, simulate
from poly.accel.verify import require_verified
from poly.arguments import in_order, named_sizes
from poly.dtypes import Array
from poly.given_arrays import check_shape, results_of, typed
from poly.locks import cached_property
from poly.loops import LoopTree
from poly.machine import Machine
from poly.program import Program, Tensor
from poly.scheduling.accelerate import schedule_for_accelerator
from poly.scheduling.instances import check_instances
from poly.scheduling.schedule import Schedule


class StreamKernel:
    """`kernel(*inputs, out=None)`: inputs in the program's order, or by name as `kernel(A=a, B=b)`; gives the output
    array, or a tuple of several.

    `stream`: what the machine runs, verified; `report`: cycles and bytes; `loops`, `schedule`: what it came from.
    """

    def __init__(
        self,
        program: Program,
        machine: Machine,
        tree: LoopTree,
        stream: CommandStream,
        schedule: Schedule,
        seconds: float,
    ) -> None:
        self.program, self.machine, self.loops, self.stream, self.schedule = program, machine, tree, stream, schedule
        self.inputs, self.outputs = program.inputs, program.outputs
        self.seconds = seconds

    @cached_property
    def report(self) -> Report:
        """Cycles, stalls and bytes over DRAM, by the timing simulator."""
        return simulate(self.stream, self.machine)

    @property
    def cycles(self) -> int:
        return self.report.cycles

    def __call__(
        self, /, *inputs: npt.ArrayLike, out: Array | Sequence[Array] | None = None, **named: npt.ArrayLike
    ) -> Array | tuple[Array, ...]:
        sizes = named_sizes(named, self.program.binding, self.program.parameters, self.program.name)
        arrays_by_name = {n: a for n, a in named.items() if n not in sizes}
        names, updated = [t.name for t in self.inputs], [t.name for t in self.inputs if t.role == "inout"]
        ordered = in_order(names, inputs, arrays_by_name, self.program.name, updated)
        given = [typed(t, a) for t, a in zip(self.inputs, ordered, strict=True)]
        shapes = {t.name: t.extents(self.program.binding) for t in (*self.inputs, *self.outputs)}
        for t, a in zip(self.inputs, given, strict=True):
            check_shape(t, a, shapes[t.name], "input")
        found = results_of(out, self.inputs, given, self.outputs, shapes, self.program.name)
        results = [found[t.name] for t in self.outputs]
        self.run_into(given, results)
        return results[0] if len(results) == 1 else tuple(results)

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Counters:
        """Run on arrays that are known to fit (shapes, dtypes); for engines."""
        values = {t.name: a for t, a in zip(self.inputs, inputs, strict=True) if t.name in self.stream.symbol}
        found, counters = run(self.stream, values, checked=False)
        given = {t.name: a for t, a in zip(self.inputs, inputs, strict=True)}
        for t, target in zip(self.outputs, outputs, strict=True):
            source = found[t.name].reshape(target.shape) if t.name in found else given.get(t.name, target)
            np.copyto(target, source)
        return counters

    def __repr__(self) -> str:
        def shown(t: Tensor) -> str:
            return f"{t.name}: {t.dtype}[{', '.join(map(str, t.extents(self.program.binding)))}]"

        inside, outside = (", ".join(map(shown, ts)) for ts in (self.inputs, self.outputs))
        return f"<StreamKernel {self.program.name} on {self.machine.name}: ({inside}) -> {outside}>"

    def __str__(self) -> str:
        return f"{self!r}\n{self.report}\n{self.stream}"

    def _repr_html_(self) -> str:
        from poly.pictures import kernel_html

        return kernel_html(self, facts=(("report", str(self.report)),), text=str(self.stream))


def compile_stream(
    program: Program,
    machine: Machine,
    constants: Mapping[str, Array] | None = None,
    *,
    schedule: Schedule | None = None,
) -> StreamKernel:
    """A program with bound sizes for an accelerator: scheduled (unless a schedule is given), lowered, emitted,
    verified.

    Several fusion groups follow one another in one stream, with temporaries in DRAM between them. Raises
    `UnsupportedError`, `CapacityError`, and `StreamError` where the verifier finds a fault.
    """
    start = perf_counter()
    chosen = schedule if schedule is not None else schedule_for_accelerator(program, machine)
    tree = chosen.lower()
    check_instances(tree, chosen.program)
    stream = emit_stream(tree, machine, constants, name=program.name)
    require_verified(stream, machine)
    return StreamKernel(program, machine, tree, stream, chosen, perf_counter() - start)
