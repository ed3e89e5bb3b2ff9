"""Writing LLVM IR as text: names, nested loop regions with hoisted heads, constants, declarations.

The text is in SSA form from the start. Index arithmetic goes through `Writer.pure`, which puts an instruction into the
head of the innermost loop that owns one of its operands and reuses an equal one that is already there; so addresses
are computed where their iterators change, without any optimisation pass.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from poly.dtypes import is_float, numpy_dtype
from poly.errors import UnsupportedError

_IR_TYPES: Final[dict[str, str]] = {
    "f64": "double", "f32": "float", "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8",
    "u64": "i64", "u32": "i32", "u16": "i16", "u8": "i8",
    "bool": "i1", "f16": "half", "bf16": "i16",
}  # fmt: skip


def scalar_type(dtype: str) -> str:
    """The IR type of a value; bool is i1, bf16 its bits. Raises `UnsupportedError` where there is no compiled form."""
    if dtype not in _IR_TYPES:
        hint = "poly.run_program(program, {name: array}) interprets it"
        if dtype.startswith("c"):
            hint += "; poly.einsum compiles sums of products of complex arrays"
        raise UnsupportedError(f"no compiled form for values of dtype {dtype}", hint=hint)
    return _IR_TYPES[dtype]


@cache
def value_type(dtype: str, lanes: int) -> str:
    """The IR type of a scalar (`lanes` 0) or a vector."""
    scalar = scalar_type(dtype)
    return f"<{lanes} x {scalar}>" if lanes else scalar


@cache
def memory_type(dtype: str, lanes: int = 0) -> str:
    """The IR type in memory: bool is one byte, 0 or 1."""
    scalar = "i8" if dtype == "bool" else scalar_type(dtype)
    return f"<{lanes} x {scalar}>" if lanes else scalar


def suffix(dtype: str, lanes: int) -> str:
    """The overload suffix of an intrinsic: `f32`, `v8f32`, `v4i64`."""
    bits = _IR_TYPES[dtype].removeprefix("i")
    scalar = {"float": "f32", "double": "f64", "half": "f16"}.get(bits, f"i{bits}")
    return f"v{lanes}{scalar}" if lanes else scalar


def constant_text(dtype: str, value: float | int | bool) -> str:
    """A scalar literal of the dtype; floats in hexadecimal, so that nothing is lost."""
    if dtype in ("f16", "bf16"):
        bits = rounded(dtype, value).view(np.uint16)
        return f"0xH{int(bits):04X}" if dtype == "f16" else str(int(bits))
    if is_float(dtype):
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(rounded(dtype, value))))[0]:016X}"
    if dtype == "bool":
        return "true" if value else "false"
    bits = int(scalar_type(dtype)[1:])
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def rounded(dtype: str, value: float) -> np.generic:
    """A number as the floating dtype holds it."""
    with np.errstate(over="ignore"):
        return numpy_dtype(dtype).type(value)


def symbol(name: str) -> str:
    """A name made fit for a global symbol."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", name)


LOCAL: Final = 1 << 30  # the depth of an integer that is not known in any loop's head, such as a loaded index


@dataclass
class Region:
    """The inside of a loop (or the function): instructions that belong to its start, and what they computed.

    `pointers`: those that hold everywhere inside, by what they were made of.
    """

    head: list[str] = field(default_factory=lambda: [])
    known: dict[str, str] = field(default_factory=lambda: {})
    pointers: dict[object, str] = field(default_factory=lambda: {})


class Branch(NamedTuple):
    """Labels of a branch: the block of the test, where it has its own, the first one under it, the one behind."""

    before: str
    then: str
    end: str


class Writer:
    """The text of one function in the making.

    Labels are fresh names `L`, and with a letter behind blocks that belong to one: of a loop `Lp`, in front of it, its
    latch `Ll` and its exit `Lx`; of a branch whose values meet `Lt`, where what is under it ends. Those of what threads
    do are in `poly.codegen.phases`.
    """

    def __init__(self, globals_prefix: str = "@.fill") -> None:
        self.globals_prefix = globals_prefix
        self.lines: list[str] = []
        self.regions: list[Region] = [Region()]
        self.local: dict[str, str] = {}
        self.depth_of: dict[str, int] = {}
        self.declarations: set[str] = set()
        self._called: set[str] = set()  # intrinsics that are declared
        self.globals: dict[str, str] = {}
        self.functions: dict[str, str] = {}
        self.probing = False  # only names are given, see `State.probing`
        self.block = 0  # tells the blocks apart; what follows an inner one belongs to the outer one again
        self._blocks = 0
        self._count = 0

    @property
    def depth(self) -> int:
        """Number of loops around the current place."""
        return len(self.regions) - 1

    def name(self, prefix: str = "v") -> str:
        """A fresh SSA name."""
        self._count += 1
        return f"%{'?' if self.probing else ''}{prefix}{self._count}"

    def emit(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append("  " + text)

    def value(self, text: str) -> str:
        """An instruction at the current place; gives its name."""
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def cached(self, text: str) -> str:
        """Like `value`, but an equal instruction of this block or a block around serves again."""
        found = self.local.get(text)
        if found is None:
            found = self.local[text] = self.value(text)
        return found

    def pure(self, text: str, *operands: str) -> str:
        """An instruction without side effects whose operands are all known in loop heads; hoisted as far as they allow.

        `operands` are names that occur in the text (literals are ignored).
        """
        depth, depths = 0, self.depth_of
        for operand in operands:
            depth = max(depth, depths.get(operand, 0))
        if self.probing:
            name = self.name()
            self.depth_of[name] = depth
            return name
        if depth >= len(self.regions):
            name = self.cached(text)
            self.depth_of[name] = LOCAL
            return name
        region = self.regions[depth]
        if text not in region.known:
            name = self.name("x")
            region.head.append(f"  {name} = {text}")
            region.known[text] = name
            self.depth_of[name] = depth
        return region.known[text]

    def latch(self, label: str, counter: str, following: str, step: int, last: str, going: str | None = None) -> None:
        """The end of a counted loop `label`: the next value of its counter, back while it is below `last`, and while
        the bit `going` is set; its exit.
        """
        self.emit(f"br label %{label}l")
        self.label(f"{label}l")
        self.emit(f"{following} = add nsw i64 {counter}, {step}")
        again = self.value(f"icmp slt i64 {following}, {last}")
        again = again if going is None else self.value(f"and i1 {again}, {going}")
        self.emit(f"br i1 {again}, label %{label}, label %{label}x")
        self.label(f"{label}x")

    @contextmanager
    def branch(self, condition: str, own: bool = False) -> Generator[Branch]:
        """What is emitted inside runs where a bit is set; then both ways go on. `own`: the test has a block of its own,
        which a phi behind can name.
        """
        before = self.fresh_label() if own else ""
        labels = Branch(before, self.fresh_label(), self.fresh_label())
        if own:
            self.emit(f"br label %{before}")
            self.label(before)
        self.emit(f"br i1 {condition}, label %{labels.then}, label %{labels.end}")
        self.label(labels.then)
        with self.region() as lines:
            yield labels
        self.lines += lines
        self.emit(f"br label %{labels.end}")
        self.label(labels.end)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def declare(self, text: str) -> None:
        """A declaration; equal ones appear once."""
        self.declarations.add(f"declare {text}")

    def intrinsic(
        self, result: str, name: str, arguments: tuple[tuple[str, str], ...], pure: bool = False, again: bool = False
    ) -> str:
        """A call of a function that returns `result`; `arguments` are (type, text). `again`: an equal one of this block
        serves again.
        """
        if name not in self._called:
            self._called.add(name)
            self.declare(f"{result} @{name}({', '.join(t for t, _ in arguments)})")
        text = f"call {result} @{name}({', '.join([f'{t} {a}' for t, a in arguments])})"
        if pure:
            return self.pure(text, *(a for _, a in arguments))
        return self.cached(text) if again else self.value(text)

    def constant(self, element: str, lanes: int, text: str) -> str:
        """A read-only global filled with one value; gives its name."""
        return self._global(element, [text] * max(lanes, 1))

    def bytes_constant(self, data: Sequence[int]) -> str:
        """A read-only global of some bytes; gives its name."""
        return self._global("i8", [*map(str, data)])

    def _global(self, element: str, items: Sequence[str]) -> str:
        key = f"[{len(items)} x {element}] [{', '.join([f'{element} {item}' for item in items])}]"
        if key not in self.globals:
            self.globals[key] = f"{self.globals_prefix}{len(self.globals)}"
        return self.globals[key]

    def fresh_label(self) -> str:
        """A label that no block has."""
        return self.name("L")[1:]

    @contextmanager
    def region(self, loop: Region | None = None) -> Generator[list[str]]:
        """A nested block with its own lines, which are yielded; with `loop` the inside of a loop."""
        outer, local, block = self.lines, self.local, self.block
        self.lines, self.local = [], dict(local)
        self._blocks += 1
        self.block = self._blocks
        if loop is not None:
            self.regions.append(loop)
        try:
            yield self.lines
        finally:
            if loop is not None:
                self.regions.pop()
            self.lines, self.local, self.block = outer, local, block

    def globals_text(self) -> list[str]:
        """The read-only globals of the module."""
        return [f"{name} = private unnamed_addr constant {text}, align 64" for text, name in self.globals.items()]
