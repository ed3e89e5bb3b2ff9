"""The verifier: every code has a stream that shows it, and no mutant that changes results gets through."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from poly.accel.footprint import commands_of
from poly.accel.isa import (
    Command,
    CommandStream,
    Dma,
    Imm,
    Item,
    Linear,
    Load,
    Mm,
    Op,
    Queue,
    Region,
    Rep,
    Symbol,
    Vec,
    chip,
    dram,
)
from poly.accel.simulate import run
from poly.accel.stream import parse_stream
from poly.accel.synchronise import synchronise
from poly.accel.verify import require_verified, verify
from poly.errors import PolyError
from poly.machine_text import read_machine

MACHINE = read_machine(Path(__file__).parent.parent / "accel" / "profiles" / "s16.toml")
Array = npt.NDArray[Any]

# Load, double, store; two buffers each way, credits, hardware loops.
GOOD = """
stream good for s16
symbol x: i32[256] input
symbol y: i32[256] output
semaphore full: ve = 0
semaphore free: ld = 2
semaphore done: st = 0
semaphore room: ve = 2
queue ld {
  rep 2 {
    rep 2 {
      dma ifmap[0x0 + 0x0*r0 + 0x100*r1]:i32(1) <- @x[0 + 128*r0 + 64*r1]:i32(1) {64} wait free post full ; load
    }
  }
}
queue ve {
  rep 2 {
    rep 2 {
      vec acc[0x0 + 0x0*r0 + 0x100*r1]:i32(1) = {64} %0 load ifmap[0x0 + 0x0*r0 + 0x100*r1]:i32(1), %1 imm 2:i32, %2 mul %0 %1 wait full, room post free, done ; double
    }
  }
}
queue st {
  rep 2 {
    rep 2 {
      dma @y[0 + 128*r0 + 64*r1]:i32(1) <- acc[0x0 + 0x0*r0 + 0x100*r1]:i32(1) {64} wait done post room ; store
    }
  }
}
"""  # noqa: E501


def codes(stream: CommandStream | str) -> set[str]:
    return {f.code for f in verify(parse_stream(stream) if isinstance(stream, str) else stream, MACHINE)}


def test_a_good_stream_has_no_findings() -> None:
    assert verify(parse_stream(GOOD), MACHINE) == []
    require_verified(parse_stream(GOOD), MACHINE)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("queue ld", "queue ldx", "engine"),
        ("vec acc", "vec accu", "memory"),
        ("<- @x[", "<- @z[", "symbol"),
        ("@x[0 + 128*r0 + 64*r1]:i32", "@x[0 + 128*r0 + 64*r1]:f32", "symbol"),
        ("dma @y[", "dma dram[", "memory"),
        ("<- acc[0x0 + 0x0*r0", "<- filter[0x0 + 0x0*r0", "uninitialised"),
        ("dma ifmap[0x0", "dma ifmap[0x2", "align"),
        ("dma ifmap[0x0", "dma ifmap[0xff00", "bounds"),
        ("@x[0 +", "@x[1 +", "bounds"),
        ("symbol y: i32[256] output", "symbol y: i32[256] input", "read-only"),
        ("symbol y: i32[256] output", "symbol y: i32[260] output", "output"),
        ("@y[0 + 128*r0 + 64*r1]:i32(1)", "@y[0 + 128*r0 + 64*r1]:i32(0)", "overlap"),
        ("%0 load ifmap[0x0 +", "%0 load acc[0x4 +", "alias"),
        ("wait free", "wait done", "consumer"),
        ("wait free post full", "post full", "raw"),
        ("wait free", "wait never", "semaphore"),
        ("semaphore free: ld = 2", "semaphore free: ld = 0", "deadlock"),
        ("post full", "", "starved"),
        ("post full", "post full*2", "unbalanced"),
        ("semaphore full: ve = 0", "semaphore full: ve = 0 limit 1", "overflow"),
        ("semaphore full: ve = 0", "semaphore full: ve = 1", "raw"),
        ("semaphore free: ld = 2", "semaphore free: ld = 3", "war"),
        ("semaphore room: ve = 2", "semaphore room: ve = 3", "war"),
        ("= {64} %0", '= accumulate "+" {64} %0', "accumulate"),
        ("dma ifmap[0x0 + 0x0*r0 + 0x100*r1]", "dma ifmap[0x0 + 0x0*r0 + 0x100*r1 + 0x4*r2]", "rank"),
    ],
)
def test_every_code(old: str, new: str, code: str) -> None:
    assert old in GOOD
    assert code in codes(GOOD.replace(old, new))


def one(command: Item, engine: str, *symbols: Symbol) -> CommandStream:
    return CommandStream("s", "s16", symbols, (), (Queue(engine, (command,)),))


def test_codes_of_single_commands() -> None:
    i8 = chip("ifmap", 0, "i8", (0, 0, 1))
    c, b = chip("acc", 0, "i32", (0, 1, 0)), chip("filter", 0, "i8", (0, 1, 32))
    assert "size" in codes(one(Mm(c, i8, b, (1, 32, 16), "mnk"), "mm"))
    assert "path" in codes(one(Mm(c, b.__class__("filter", 0, "i8", (0, 0, 1)), b, (1, 16, 16), "mnk"), "mm"))
    assert "dtype" in codes(one(Mm(chip("acc", 0, "f32", (0, 1, 0)), i8, b, (1, 16, 16), "mnk"), "mm"))
    x = Symbol("x", "i8", 64, "input")
    load = Dma(chip("ifmap", 0, "i8", (1,)), dram("x", 0, "i8", (1,)), (64,))
    assert codes(one(load, "ld", x)) == set()
    assert "path" in codes(one(load, "st", x))
    assert "engine" in codes(one(load, "ve", x))
    move = Dma(chip("ifmap", 8, "i8", (1,)), chip("ifmap", 0, "i8", (1,)), (64,))
    assert "alias" in codes(one(move, "st"))
    crossing = Dma(chip("ifmap", 0, "i8", (1,), (64,)), chip("ifmap", 128, "i8", (1,), (-64,)), (64,))
    assert "alias" in codes(one(Rep(3, (crossing,)), "st"))  # in the second of three only
    between = replace(crossing, src=chip("ifmap", 192, "i8", (1,), (-64,)))
    assert "alias" not in codes(one(Rep(4, (between,)), "st"))
    spread = Vec(chip("ifmap", 4, "f32", (1,)), (Load(chip("ifmap", 0, "f32", (2,))),), (3,))
    assert "alias" not in codes(one(spread, "ve"))  # the second point is read and written by itself
    assert "alias" in codes(one(replace(spread, trips=(4,)), "ve"))  # what the third reads the fourth writes
    single = Dma(chip("ifmap", 0, "i8", (1,), (2,)), chip("ifmap", 4, "i8", (1,), (1,)), (1,))
    assert "alias" not in codes(one(Rep(9, (single,)), "st"))  # onto itself in the fifth
    deep = Rep(2, (Rep(2, (Rep(2, (Rep(2, (Rep(2, (load,)),)),)),)),))
    assert "rank" in codes(CommandStream("s", "s16", (x,), (), (Queue("ld", (deep,)),)))


def test_what_is_beyond_the_budget_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three repetitions meets, where all are tried; else nobody says that none does."""
    crossing = Dma(chip("ifmap", 0, "i8", (1,), (64,)), chip("ifmap", 128, "i8", (1,), (-64,)), (64,))
    stream = one(Rep(3, (crossing,)), "st")
    assert "alias" in codes(stream)
    monkeypatch.setattr("poly.accel.verify.MAX_WAYS", 2)
    (finding,) = (f for f in verify(stream, MACHINE) if f.code in ("alias", "untried"))
    assert (finding.code, finding.severity) == ("untried", "warning")


def test_findings_tell_where_and_why() -> None:
    early = parse_stream(GOOD.replace("semaphore free: ld = 2", "semaphore free: ld = 3"))
    finding = next(f for f in verify(early, MACHINE) if f.code == "raw")
    assert finding.commands == ("ld#2 load r=(1, 0)", "ve#0 double r=(0, 0)")
    assert "byte 0x0 of ifmap, in no fixed order with ld#2" in finding.message
    (cycle,) = [
        f for f in verify(parse_stream(GOOD.replace("free: ld = 2", "free: ld = 0")), MACHINE) if f.code == "deadlock"
    ]
    assert (
        "ld#0 load r=(0, 0) waits for free, posted by ve#0" in cycle.message
        and "ve#0 double r=(0, 0) waits for full" in cycle.message
    )
    with pytest.raises(PolyError, match="deadlock"):
        require_verified(parse_stream(GOOD.replace("free: ld = 2", "free: ld = 0")), MACHINE)


def test_strided_regions_that_interleave_are_no_hazard() -> None:
    """Even and odd elements, and a transposed pair of columns: boxes overlap, bytes do not."""
    text = """
stream s for s16
symbol x: f32[256] input
symbol y: f32[128] output
queue ld {
  dma acc[0x0]:f32(2) <- @x[0]:f32(1) {64}
}
queue ve {
  vec acc[0x4]:f32(2) = {64} %0 imm 1.0:f32
}
"""
    assert codes(text) == {"output"}
    assert "waw" in codes(text.replace("acc[0x4]", "acc[0x8]"))
    columns = text.replace("acc[0x0]:f32(2)", "acc[0x0]:f32(5,1)").replace("@x[0]:f32(1) {64}", "@x[0]:f32(2,1) {13,2}")
    columns = columns.replace("acc[0x4]:f32(2) = {64}", "acc[0x8]:f32(5,1) = {13,3}")
    assert codes(columns) == {"output"}
    assert "waw" in codes(columns.replace("acc[0x8]", "acc[0x4]"))


def test_guarded_loads_touch_only_where_the_guard_holds() -> None:
    """A window that hangs over the ends of its buffer is in bounds with guards, out of bounds without."""
    x = Symbol("x", "f32", 16, "input")
    load = Dma(chip("ifmap", 0, "f32", (1,)), dram("x", 0, "f32", (1,)), (16,))
    region = chip("ifmap", -4, "f32", (1, 1))
    guards = (Linear(-1, (1, 1)), Linear(16, (-1, -1)))

    def blur(micro: Load) -> CommandStream:
        command = Vec(chip("acc", 0, "f32", (1, 0)), (micro,), (16, 3), "+")
        return synchronise("s", MACHINE, (x,), [("ld", load), ("ve", command)])

    assert codes(blur(Load(region, guards, 0.0))) == set()
    assert "bounds" in codes(one(Vec(chip("acc", 0, "f32", (1, 0)), (Load(region),), (16, 3), "+"), "ve"))
    assert "uninitialised" in codes(
        blur(Load(chip("ifmap", -4, "f32", (1, 1)), (Linear(-1, (1, 1)), Linear(17, (-1, -1))), 0.0))
    )


def test_conditions_that_move_with_a_repetition() -> None:
    """Row r of a triangle has r + 1 points; only those are read and written, in place of the box."""
    text = """
stream s for s16
symbol x: i32[13] input
symbol y: i32[16] output
semaphore go: ve = 0
semaphore out: st = 0
queue ld {
  dma ifmap[0x0]:i32(1) <- @x[0]:i32(1) {13} post go
}
queue ve {
  vec acc[0x0]:i32(1) = {16} %0 imm 0:i32 wait go
  rep 4 {
    vec acc[0x0 + 0x10*r0]:i32(1) = {4} %0 load ifmap[0x0 + 0xc*r0]:i32(1) where (0 + -1*i0 + 1*r0) post out
  }
}
queue st {
  dma @y[0]:i32(1) <- acc[0x0]:i32(1) {16} wait out*4
}
"""
    stream = parse_stream(text)
    assert verify(stream, MACHINE) == []
    got, _ = run(stream, {"x": np.arange(13, dtype=np.int32)})
    # One element fewer is missed by the last row alone.
    assert codes(text.replace("{13}", "{12}")) == {"uninitialised"}
    np.testing.assert_array_equal(got["y"].reshape(4, 4), [[0, 0, 0, 0], [3, 4, 0, 0], [6, 7, 8, 0], [9, 10, 11, 12]])


def test_several_producers_of_one_semaphore() -> None:
    """Two loads on two engines, both posting one semaphore: two tokens mean both, one token means neither."""
    text = """
stream s for s16
symbol x: f32[32] input
symbol y: f32[16] output
semaphore ready: ve = 0
semaphore done: st = 0
queue ld {
  dma ifmap[0x0]:f32(1) <- @x[0]:f32(1) {16} post ready
  dma acc[0x100]:f32(1) <- @x[16]:f32(1) {16} post ready
}
queue mm {
  mm acc[0x200]:f32(16,1,0) = ifmap[0x0]:f32(0,0,0) * filter[0x0]:f32(0,0,0) {m1,n16,k1} post ready
}
queue ve {
  vec acc[0x0]:f32(1) = {16} %0 load ifmap[0x0]:f32(1), %1 load acc[0x100]:f32(1), %2 add %0 %1 wait ready*3 post done
}
queue st {
  dma @y[0]:f32(1) <- acc[0x0]:f32(1) {16} wait done
}
"""
    assert {f.code for f in verify(parse_stream(text), MACHINE)} == {"raw", "uninitialised"}  # of mm only
    found = verify(parse_stream(text), MACHINE)
    assert all("mm#0" in f.commands for f in found)
    few = verify(parse_stream(text.replace("ready*3", "ready*2")), MACHINE)
    assert any(f.code == "raw" and f.commands[1] == "ve#0" for f in few)


# ---- mutations ----


def chain(tiles: int, depth: int) -> CommandStream:
    """load a, load b -> mm (two k steps) -> vector epilogue -> store; `depth` buffers everywhere."""
    program: list[tuple[str, Command]] = []
    for t in range(tiles):
        out, back = (
            chip("acc", 1024 * (t % depth), "i32", (16, 1)),
            chip("ifmap", 8192 + 256 * (t % depth), "i8", (16, 1)),
        )
        for k in range(2):
            at = 256 * ((2 * t + k) % depth)
            program += [
                (
                    "ld",
                    Dma(
                        chip("ifmap", at, "i8", (16, 1)),
                        dram("a", 512 * t + 16 * k, "i8", (32, 1)),
                        (16, 16),
                        tag=f"a({t},{k})",
                    ),
                ),
                (
                    "ld",
                    Dma(
                        chip("filter", at, "i8", (16, 1)),
                        dram("b", 256 * k, "i8", (16, 1)),
                        (16, 16),
                        tag=f"b({t},{k})",
                    ),
                ),
                (
                    "mm",
                    Mm(
                        chip("acc", 1024 * (t % depth), "i32", (16, 1, 0)),
                        chip("ifmap", at, "i8", (16, 0, 1)),
                        chip("filter", at, "i8", (0, 1, 16)),
                        (16, 16, 16),
                        "mnk",
                        k > 0,
                    ),
                ),
            ]
        relu = (Load(out), Imm(0, "i32"), Op("max", (0, 1)))
        program += [
            ("ve", Vec(chip("acc", 16384 + 1024 * (t % depth), "i32", (16, 1)), relu, (16, 16), tag=f"relu({t})")),
            (
                "st",
                Dma(
                    dram("c", 256 * t, "i32", (16, 1)),
                    chip("acc", 16384 + 1024 * (t % depth), "i32", (16, 1)),
                    (16, 16),
                ),
            ),
        ]
        assert back.unit == 1
    symbols = (
        Symbol("a", "i8", 512 * tiles, "input"),
        Symbol("b", "i8", 512, "input"),
        Symbol("c", "i32", 256 * tiles, "output"),
    )
    return synchronise("chain", MACHINE, symbols, program)


def rewrite(items: tuple[Item, ...], at: int, change: Callable[[Command], Item | None]) -> tuple[tuple[Item, ...], int]:
    """Change the at-th static command; the counter left over."""
    out: list[Item] = []
    for item in items:
        if isinstance(item, Rep):
            body, at = rewrite(item.body, at, change)
            out += [replace(item, body=body)] if body else []
            continue
        changed = change(item) if at == 0 else item
        at -= 1
        out += [changed] if changed is not None else []
    return tuple(out), at


def shifted(command: Command, operand: Region, by: int) -> Command:
    moved = replace(operand, offset=operand.offset + by)
    match command:
        case Dma():
            return replace(command, dst=moved) if command.dst is operand else replace(command, src=moved)
        case Mm():
            return replace(command, **{name: moved for name in "abc" if getattr(command, name) is operand})
        case Vec():
            if command.dst is operand:
                return replace(command, dst=moved)
            code = tuple(
                replace(m, region=moved) if isinstance(m, Load) and m.region is operand else m for m in command.code
            )
            return replace(command, code=code)


def mutants(stream: CommandStream) -> Iterator[tuple[str, CommandStream]]:
    """Drop each wait and post, drop each command's whole work, shift each address, change each initial count."""
    for q, queue in enumerate(stream.queues):

        def put(at: int, change: Callable[[Command], Item | None], q: int = q, queue: Queue = queue) -> CommandStream:
            items, _ = rewrite(queue.items, at, change)
            return replace(stream, queues=(*stream.queues[:q], replace(queue, items=items), *stream.queues[q + 1 :]))

        for at, command in enumerate(c for c, _ in commands_of(queue.items)):
            for name, _ in command.wait:
                yield (
                    f"{queue.engine}{at} wait {name}",
                    put(at, lambda c, n=name: replace(c, wait=tuple(t for t in c.wait if t[0] != n))),
                )
            for name, _ in command.post:
                yield (
                    f"{queue.engine}{at} post {name}",
                    put(at, lambda c, n=name: replace(c, post=tuple(t for t in c.post if t[0] != n))),
                )
            for name in {n for n, _ in command.wait} & {s.name for s in stream.semaphores}:
                # A dropped pair keeps the semaphore in balance: only hazards can show it.
                one_less = put(at, lambda c, n=name: replace(c, wait=tuple(t for t in c.wait if t[0] != n)))
                semaphores = tuple(replace(s, initial=s.initial + (s.name == name)) for s in stream.semaphores)
                yield f"{queue.engine}{at} early {name}", replace(one_less, semaphores=semaphores)
            for k, operand in enumerate(command.operands):
                for by in (operand.unit, -operand.unit, 256 // operand.unit * operand.unit):
                    yield (
                        f"{queue.engine}{at} shift {k} {by}",
                        put(at, lambda c, k=k, by=by: shifted(c, c.operands[k], by)),
                    )
    for semaphore in stream.semaphores:
        more = tuple(replace(s, initial=s.initial + (s is semaphore)) for s in stream.semaphores)
        yield f"initial {semaphore.name}", replace(stream, semaphores=more)


def outcome(stream: CommandStream, inputs: dict[str, Array], seed: int | None, checked: bool) -> dict[str, bytes] | str:
    try:
        outputs, _ = run(stream, inputs, seed=seed, checked=checked)
        return {n: a.tobytes() for n, a in outputs.items()}
    except PolyError as error:
        return type(error).__name__


@pytest.mark.parametrize("which", ["loops", "chain1", "chain2"])
def test_mutants(which: str) -> None:
    """The oracle is the simulator: a mutant that is wrong under some order, or fails, must have a finding.

    A shifted source address may compute another right-synchronised program; that is the value check's business, not the
    verifier's, so those count only when two orders of the mutant disagree.
    """
    stream = parse_stream(GOOD) if which == "loops" else chain(1 + int(which[-1]), int(which[-1]))
    rng = np.random.default_rng(0)
    inputs: dict[str, Array] = {
        s.name: rng.integers(-99, 100, s.elements).astype({"i8": np.int8, "i32": np.int32}[s.dtype])
        for s in stream.symbols
        if s.role == "input"
    }
    want = outcome(stream, inputs, None, True)
    assert verify(stream, MACHINE) == [] and isinstance(want, dict)
    seen = caught = 0
    for name, mutant in mutants(stream):
        findings = verify(mutant, MACHINE)
        results = [outcome(mutant, inputs, seed, checked=False) for seed in (None, 0, 1, 2)]
        failed = [outcome(mutant, inputs, seed, checked=True) for seed in (None, 0)]
        differs = any(r != results[0] for r in results) or any(isinstance(r, str) for r in (*results, *failed))
        wrong = differs or (
            ("wait" in name or "post" in name or "early" in name or "initial" in name)
            and any(r != want for r in results)
        )
        seen += 1
        caught += bool(findings)
        assert findings or not wrong, name
    assert seen >= 30 and caught >= 20


def test_every_token_of_a_synchronised_stream_is_needed() -> None:
    """Without any one post and wait pair the verifier finds a hazard: no token is redundant."""
    stream = chain(3, 2)
    early = [(name, mutant) for name, mutant in mutants(stream) if "early" in name]
    assert len(early) >= 1
    for name, mutant in early:
        assert any(f.code in ("raw", "war", "waw", "uninitialised") for f in verify(mutant, MACHINE)), name


def test_large_streams_in_seconds() -> None:
    """Hardware loops of 4 * 25,000 commands, double buffered, verified in a few seconds."""
    text = (
        GOOD.replace("  rep 2 {\n    rep 2 {", "  rep 16666 {\n    rep 2 {")
        .replace("128*r0", "0*r0")
        .replace("x: i32[256]", "x: i32[128]")
    )
    text = text.replace("y: i32[256]", "y: i32[128]")
    stream = parse_stream(text)
    start = time.perf_counter()
    assert verify(stream, MACHINE) == []
    assert time.perf_counter() - start < 30
