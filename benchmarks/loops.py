"""Loops written as IR, which measure what the machine allows: loaded into this process, over memory from a line on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Generic, TypeVar

from poly.codegen.jit import Linked

LINE = 64  # bytes of a cache's line
FLOATS = LINE // 4  # of a line
BESIDE = 16  # bytes from the start of a line to where numpy's large arrays begin, and so the operands of the cases
PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
T = TypeVar("T")


@dataclass(frozen=True)
class Loops(Generic[T]):
    """Functions by name, good as long as this object lives: their code is its own."""

    code: Linked
    functions: Mapping[str, T]


def loops_of(text: str, names: Sequence[str], prototype: Callable[[int], T]) -> Loops[T]:
    """Compile a module for this machine; `prototype` makes a function of the address of one."""
    from poly.codegen.host import host_machine
    from poly.codegen.jit import compile_object, link

    code = link(compile_object(text, host_machine()), names)
    return Loops(code, {n: prototype(code.addresses[n]) for n in names})


def stored_both_ways(name: str, text: Callable[[str, int, str], str], prototype: Callable[[int], T]) -> Loops[T]:
    """A loop that moves lines, `name`, and the same one that stores past the caches, `name_past`. `text` writes it, of
    a name, the floats of a vector (a line at most) and how vectors are stored.
    """
    from poly.codegen.host import host_machine

    lanes, names = min(host_machine().lanes(4), FLOATS), (name, f"{name}_past")
    aligned = f"align {4 * lanes}"
    loops = [text(n, lanes, how) for n, how in zip(names, (aligned, f"{aligned}, !nontemporal !0"), strict=True)]
    return loops_of("\n".join([*loops, "!0 = !{i32 1}", PREFETCH, ""]), names, prototype)


def at_line(address: int) -> int:
    """The first start of a line from an address on."""
    return -(-address // LINE) * LINE


def together(work: Callable[[int], None], threads: int) -> float:
    """Seconds of the thread that takes longest, all at work at once; waking them is no part of it."""

    def timed(k: int) -> float:
        start = perf_counter()
        work(k)
        return perf_counter() - start

    if threads == 1:
        return timed(0)
    waiting = [_pool(threads - 1).submit(timed, k) for k in range(1, threads)]
    return max(timed(0), *(w.result() for w in waiting))


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers)
