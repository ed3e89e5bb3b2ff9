"""What the machine allows, measured beside every case: multiply-adds, bandwidth by pattern and working set, functions.

Loops are written as IR, one vector a machine instruction; functions are our own kernels on operands that fit the L1
cache. Rates are medians, as the kernels' times are (docs/decisions/0098).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.cases import Case
from benchmarks.limits_moved import Turn, seconds, turned
from benchmarks.loops import BESIDE, FLOATS, LINE, PREFETCH, Loops, at_line, loops_of, together

CHAINS = 12  # independent multiply-adds, enough for latency times units
TRIPS = 40_000
TRIES = 9
UNROLL = 8
MOST_READ = 3  # arrays read beside one that is written
SECONDS = 0.002  # of one measurement
Loop = Callable[[int, int, int, int], float]
_LOOP = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True)
class Stream:
    """A walk over arrays of one length, one behind the other: so many are read, which begin where numpy's do, so that a
    vector may lie in two lines; and the last one, which begins with a line, is written; `past` the caches. `ahead`:
    bytes before a line is touched at which it is asked for, 0 if it is not.
    """

    reads: int
    writes: bool
    past: bool = False
    ahead: int = 0

    @property
    def arrays(self) -> int:
        return self.reads + self.writes


_STREAMS: Mapping[str, Stream] = {
    "read": Stream(1, writes=False),
    "read_ahead": Stream(1, writes=False, ahead=8192),  # the hardware's own prefetchers stop where a page ends
    **{f"write{'_past' * past}": Stream(0, True, past) for past in (False, True)},
    "write_ahead": Stream(0, writes=True, ahead=8192),
    **{f"copy{n}{'_past' * past}": Stream(n, True, past) for n in range(1, MOST_READ + 1) for past in (False, True)},
}


@dataclass(frozen=True)
class Limits:
    """Of one case. `flops` and `bandwidth` a second, all threads together; `calls`: seconds of one, one thread."""

    pattern: str
    flops: float
    bandwidth: float
    calls: Mapping[str, float]

    def functions(self, case: Case, threads: int) -> float:
        """Seconds of a case's calls of functions."""
        return sum(n * self.calls[f] for f, n in case.calls.items()) / threads


def pattern_of(case: Case) -> str:
    """Mostly reading, mostly writing, or both, by how many bytes are read for one that is written."""
    if case.writes * 4 <= case.reads:
        return "read"
    if case.reads * 4 <= case.writes:
        return "write"
    return f"copy{min(MOST_READ, max(1, round(case.reads / case.writes)))}"


def measure(case: Case, threads: int) -> Limits:
    """The limits of a case now."""
    pattern = pattern_of(case)
    size = max(4096, case.traffic)
    ways = [way for way in (pattern, f"{pattern}_ahead", f"{pattern}_past") if way in _STREAMS]
    turn = turned(case)
    if turn is not None and turn.whole.elements:
        pattern, bandwidth = "turned", _turning(turn.whole, threads)
    else:
        bandwidth = max(_bandwidth(way, size, threads) for way in ways)
    calls = {f: median(_function(f) for _ in range(TRIES)) for f in case.calls}
    return Limits(pattern, peak(threads), bandwidth, calls)


def peak(threads: int, tries: int = TRIES) -> float:
    """Floating-point operations a second of vector multiply-adds, all threads together."""
    loop = _loops().functions["peak"]

    def work(_: int) -> None:
        loop(0, 0, 0, TRIPS)

    return 2 * _lanes() * CHAINS * TRIPS * threads / median(together(work, threads) for _ in range(tries))


# ---- loops


def _bandwidth(pattern: str, size: int, threads: int) -> float:
    """Bytes a second over a working set of `size` bytes, each thread on a part of its own."""
    loop, step = _loops().functions[pattern], 4 * _lanes() * UNROLL
    arrays = _STREAMS[pattern].arrays
    part = max(step, size // arrays // threads // step * step)
    memory = _memory(part * arrays + LINE * (arrays + 2), threads)
    starts = [at_line(m.ctypes.data) for m in memory]
    times = max(1, int(SECONDS * 2e10 / (part * arrays)))

    def work(k: int) -> None:
        loop(starts[k] + BESIDE, starts[k] + LINE + part * (arrays - 1), part // 4, times)

    return part * arrays * times * threads / median(together(work, threads) for _ in range(TRIES))


def _turning(turn: Turn, threads: int) -> float:
    """Bytes a second of moving the lines of whole squares to where those of the turned array are."""
    part = 4 * turn.elements
    (memory,) = _memory(2 * part + 4 * LINE, 1)
    source = at_line(memory.ctypes.data)
    return 2 * part / seconds(turn, source + BESIDE, source + LINE + part, threads)


@lru_cache(maxsize=1)  # the working set at hand: all of them together are several times the largest
def _memory(size: int, parts: int) -> tuple[np.ndarray, ...]:
    return tuple(np.ones(size, np.uint8) for _ in range(parts))


@cache
def _lanes() -> int:
    from poly.codegen.host import host_machine

    return host_machine().lanes(4)


@cache
def _loops() -> Loops[Loop]:
    names = ("peak", *_STREAMS)
    streams = [_stream_text(n, s, _lanes()) for n, s in _STREAMS.items()]
    text = "\n".join([_peak_text(_lanes()), *streams, "!0 = !{i32 1}"])
    kind = f"<{_lanes()} x float>"
    text += f"\ndeclare {kind} @llvm.fma.v{_lanes()}f32({kind}, {kind}, {kind})\n"
    return loops_of(f"{text}\n{PREFETCH}\n", names, _LOOP)


def _peak_text(lanes: int) -> str:
    """Independent chains of vector multiply-adds."""
    kind, chains = f"<{lanes} x float>", range(CHAINS)
    return "\n".join([
        "define float @peak(ptr %a, ptr %b, i64 %n, i64 %times) {", "entry:", "  br label %loop", "loop:",
        "  %i = phi i64 [0, %entry], [%j, %loop]",
        *(f"  %a{k} = phi {kind} [zeroinitializer, %entry], [%b{k}, %loop]" for k in chains),
        *(f"  %b{k} = call {kind} @llvm.fma.v{lanes}f32({kind} %a{k}, {kind} %a{k}, {kind} %a{k})" for k in chains),
        "  %j = add i64 %i, 1", "  %c = icmp slt i64 %j, %times", "  br i1 %c, label %loop, label %end", "end:",
        *_summed(kind, "b", CHAINS), "}",
    ])  # fmt: skip


def _stream_text(name: str, stream: Stream, lanes: int) -> str:
    """`times` passes over n floats from each array at a on; what is written, at b, is the sum of what was read."""
    kind = f"<{lanes} x float>"
    sums = 2 if stream.writes else UNROLL  # those that write return something, too
    how = f"align {4 * lanes}" + ", !nontemporal !0" * stream.past
    body: list[str] = []
    for k in range(UNROLL):
        body.append(f"  %p{k} = add i64 %i, {k * lanes}")
        value = "splat (float 1.0)" if stream.reads == 0 else f"%v{k}x0"
        for r in range(stream.reads):
            body += [f"  %q{k}x{r} = getelementptr float, ptr %a{r}, i64 %p{k}"]
            body += [f"  %v{k}x{r} = load {kind}, ptr %q{k}x{r}, align {BESIDE}"]
            if stream.ahead and k * lanes % FLOATS == 0:
                body += [f"  %f{k}x{r} = getelementptr i8, ptr %q{k}x{r}, i64 {stream.ahead}"]
                body += [f"  call void @llvm.prefetch.p0(ptr %f{k}x{r}, i32 0, i32 3, i32 1)"]
            if r:
                body.append(f"  %w{k}x{r} = fadd {kind} {value}, %v{k}x{r}")
                value = f"%w{k}x{r}"
        if stream.writes:
            body.append(f"  %r{k} = getelementptr float, ptr %b, i64 %p{k}")
            if stream.ahead and k * lanes % FLOATS == 0:
                body += [f"  %f{k} = getelementptr i8, ptr %r{k}, i64 {stream.ahead}"]
                body += [f"  call void @llvm.prefetch.p0(ptr %f{k}, i32 0, i32 3, i32 1)"]
            body.append(f"  store {kind} {value}, ptr %r{k}, {how}")
        if k < sums:
            body.append(f"  %t{k} = fadd {kind} %s{k}, {'zeroinitializer' if stream.writes else value}")
    return "\n".join([
        f"define float @{name}(ptr %a, ptr %b, i64 %n, i64 %times) {{", "entry:",
        *(f"  %o{r} = mul i64 %n, {r}" for r in range(stream.reads)),
        *(f"  %a{r} = getelementptr float, ptr %a, i64 %o{r}" for r in range(stream.reads)),
        "  br label %pass", "pass:", "  %x = phi i64 [0, %entry], [%y, %next]", "  br label %loop", "loop:",
        "  %i = phi i64 [0, %pass], [%j, %loop]",
        *(f"  %s{k} = phi {kind} [zeroinitializer, %pass], [%t{k}, %loop]" for k in range(sums)), *body,
        f"  %j = add i64 %i, {lanes * UNROLL}", "  %c = icmp slt i64 %j, %n", "  br i1 %c, label %loop, label %next",
        "next:", "  %y = add i64 %x, 1", "  %d = icmp slt i64 %y, %times", "  br i1 %d, label %pass, label %end",
        "end:", *_summed(kind, "t", sums), "}",
    ])  # fmt: skip


def _summed(kind: str, name: str, count: int) -> list[str]:
    lines = [f"  %z1 = fadd {kind} %{name}0, %{name}1"]
    lines += [f"  %z{k} = fadd {kind} %z{k - 1}, %{name}{k}" for k in range(2, count)]
    return [*lines, f"  %r = extractelement {kind} %z{count - 1}, i64 0", "  ret float %r"]


# ---- functions

_WIDTH, _PASSES = 1024, 2000


@cache
def _kernel(function: str) -> Callable[[], object]:
    import poly

    kernel = poly.compile(
        poly.parse(f"Y[i] += {function}(X[i] + C[r])", X=(_WIDTH,), C=(_PASSES,)), threads=1
    )
    arrays = np.linspace(-3, 3, _WIDTH, dtype=np.float32), np.linspace(-1, 1, _PASSES, dtype=np.float32)
    out = np.zeros(_WIDTH, np.float32)
    return lambda: kernel(*arrays, out=out)


def _function(function: str) -> float:
    """Seconds of one call on operands in the L1 cache; two additions are with it."""
    call = _kernel(function)
    call()
    start = perf_counter()
    call()
    return (perf_counter() - start) / (_WIDTH * _PASSES)
