"""The instruction set: construction is checked, and the text form says everything."""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poly.accel.isa import (
    Command,
    CommandStream,
    Convert,
    Dma,
    Gather,
    Imm,
    Index,
    Item,
    Linear,
    Load,
    Micro,
    Mm,
    Op,
    Queue,
    Region,
    Rep,
    Semaphore,
    StreamError,
    Symbol,
    Vec,
    chip,
    command_count,
    constant,
    dram,
)
from poly.accel.profile import profile, profile_names
from poly.accel.stream import parse_stream, print_command
from poly.errors import MachineError, ParseError, PolyError
from poly.expr import OPERATORS

PROFILES = Path(__file__).parent.parent / "accel" / "profiles"

names = st.one_of(
    st.sampled_from(["x", "acc", "spm.0", "a b", "", "inf", "nanx", "/conv1/Relu_0", 'q"\\', "ü;\n"]),
    st.text(max_size=5),
)
ints = st.integers(-300, 300)
small = st.integers(1, 9)
steps = st.lists(ints, max_size=3).map(tuple)
numbers = st.one_of(st.integers(-(2**40), 2**40), st.floats(), st.booleans())
dtypes = st.sampled_from(["f32", "i8", "u8", "i32", "i64", "bool"])
tokens = st.lists(st.tuples(names, small), max_size=2, unique_by=lambda t: t[0]).map(tuple)


def vectors(rank: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(ints, min_size=rank, max_size=rank).map(tuple)


def regions(rank: int, dtype: str | None = None) -> st.SearchStrategy[Region]:
    kind = dtypes if dtype is None else st.just(dtype)
    return st.builds(Region, names, ints, kind, vectors(rank), steps, st.one_of(st.none(), names))


def linears(rank: int) -> st.SearchStrategy[Linear]:
    return st.builds(Linear, ints, vectors(rank), steps)


@st.composite
def dmas(draw: st.DrawFn) -> Dma:
    rank = draw(st.integers(1, 4))
    counts = tuple(draw(st.lists(small, min_size=rank, max_size=rank)))
    pad = draw(
        st.one_of(
            st.just(()),
            st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=rank, max_size=rank).map(tuple),
        )
    )
    return Dma(
        draw(regions(rank)),
        draw(regions(rank)),
        counts,
        pad,
        draw(numbers),
        draw(tokens),
        draw(tokens),
        draw(st.text(max_size=8)),
    )


@st.composite
def mms(draw: st.DrawFn) -> Mm:
    roles = "o" * draw(st.integers(0, 3)) + "".join(draw(st.lists(st.sampled_from("mnk"), max_size=4)))
    trips = tuple(draw(st.lists(small, min_size=len(roles), max_size=len(roles))))

    def still(region: Region, role: str) -> Region:
        strides = tuple(0 if r == role else s for s, r in zip(region.strides, roles, strict=True))
        return Region(region.memory, region.offset, region.dtype, strides, region.steps, region.symbol)

    c, a, b = (still(draw(regions(len(roles))), role) for role in "knm")
    return Mm(c, a, b, trips, roles, draw(st.booleans()), draw(tokens), draw(tokens), draw(st.text(max_size=8)))


@st.composite
def vecs(draw: st.DrawFn) -> Vec:
    rank = draw(st.integers(0, 3))
    trips = tuple(draw(st.lists(small, min_size=rank, max_size=rank)))
    code: list[Micro] = [Index(draw(linears(rank))), Imm(draw(numbers), draw(dtypes))]
    for _ in range(draw(st.integers(0, 3))):
        guard = tuple(draw(st.lists(linears(rank), max_size=2)))
        gather = tuple(draw(st.lists(st.builds(Gather, st.integers(0, 1), ints, small), max_size=2)))
        code.append(Load(draw(regions(rank)), guard, draw(numbers) if guard else None, gather))
    code.append(Convert("f32", draw(st.integers(0, len(code) - 1))))
    last = len(code) - 1
    operator = draw(
        st.sampled_from(sorted(n for n, row in OPERATORS.items() if row.result in ("same", "float") and n != "select"))
    )
    code.append(Op(operator, (last,) * OPERATORS[operator].arity))
    combine = draw(st.one_of(st.none(), st.sampled_from(["+", "max"])))
    where = tuple(draw(st.lists(linears(rank), max_size=2)))
    accumulate = combine is not None and draw(st.booleans())
    return Vec(
        draw(regions(rank, "f32")),
        tuple(code),
        trips,
        combine,
        accumulate,
        where,
        draw(tokens),
        draw(tokens),
        draw(names),
    )


commands: st.SearchStrategy[Command] = st.one_of(dmas(), mms(), vecs())
items: st.SearchStrategy[Item] = st.recursive(
    commands, lambda inner: st.builds(Rep, small, st.lists(inner, min_size=1, max_size=3).map(tuple)), max_leaves=5
)


@st.composite
def streams(draw: st.DrawFn) -> CommandStream:
    symbols = draw(
        st.lists(
            st.builds(
                Symbol,
                names,
                dtypes,
                st.integers(0, 10**9),
                st.sampled_from(["input", "output", "constant", "temporary"]),
                names,
            ),
            max_size=3,
            unique_by=lambda s: s.name,
        )
    )
    semaphores = draw(
        st.lists(
            st.builds(Semaphore, names, names, st.integers(0, 9), st.integers(1, 255)),
            max_size=3,
            unique_by=lambda s: s.name,
        )
    )
    queues = draw(
        st.lists(
            st.builds(Queue, names, st.lists(items, max_size=3).map(tuple)), max_size=2, unique_by=lambda q: q.engine
        )
    )
    return CommandStream(
        draw(names),
        draw(names),
        tuple(symbols),
        tuple(semaphores),
        tuple(queues),
        draw(st.sampled_from(["", "0e1f", "123"])),
    )


@settings(derandomize=True, max_examples=80, deadline=None)
@given(streams())
def test_text_says_everything(stream: CommandStream) -> None:
    text = str(stream)
    again = parse_stream(text)
    assert again == stream
    assert str(again) == text
    assert repr(again) == repr(stream)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(streams(), st.data())
def test_damaged_text_is_an_error_or_another_stream(stream: CommandStream, data: st.DataObject) -> None:
    text = str(stream)
    at = data.draw(st.integers(0, len(text) - 1))
    for damaged in (text[:at] + text[at + 1 :], text[:at] + data.draw(st.sampled_from('%{}()x9;"=,* ')) + text[at:]):
        try:
            found = parse_stream(damaged)
        except PolyError:
            continue
        assert parse_stream(str(found)) == found


def test_one_line_a_command() -> None:
    load = Dma(
        chip("spm", 0x400, "i8", (58, 1), (64,)), dram("x", 3, "i8", (224, 1), (-8,)), (56, 56), ((1, 1), (1, 1)), -1
    )
    assert (
        print_command(load)
        == "dma spm[0x400 + 0x40*r0]:i8(58,1) <- @x[3 + -8*r0]:i8(224,1) {56,56} pad (1,1)(1,1) = -1"
    )
    relu = Vec(
        chip("acc", 0, "f32", (1,)),
        (Load(chip("acc", 0, "f32", (1,))), Imm(0.0, "f32"), Op("max", (0, 1))),
        (64,),
        wait=(("full", 2),),
        post=(("free", 1),),
        tag="relu/tile(0,0)",
    )
    code = "%0 load acc[0x0]:f32(1), %1 imm 0.0:f32, %2 max %0 %1"
    assert print_command(relu) == f"vec acc[0x0]:f32(1) = {{64}} {code} wait full*2 post free ; relu/tile(0,0)"


def test_repetitions_are_counted() -> None:
    copy = Dma(chip("spm", 0, "i8", (1,), (4,)), dram("x", 0, "i8", (1,), (4,)), (4,))
    assert command_count((copy, Rep(3, (copy, Rep(5, (copy,)))))) == 1 + 3 * 6


def test_constants_are_text_by_digest() -> None:
    weights = np.arange(6, dtype=np.float32)
    stream = CommandStream("s", "s16", (constant("w", weights),), (), (), constants={"w": weights})
    again = parse_stream(str(stream), {"w": weights})
    assert again == stream and again.constants["w"] is weights
    with pytest.raises(StreamError, match="another dtype or size"):
        parse_stream(str(stream), {"w": weights[:3]})


R1, R2 = chip("spm", 0, "i8", (1,)), chip("spm", 0, "i8", (8, 1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dma(R1, R2, (8,)), "2 strides for 1 loops"),
        (lambda: Dma(R1, R1, (0,)), "trip below 1"),
        (lambda: Dma(R1, R1, (8,), ((1, -1),)), "negative pad"),
        (lambda: Dma(R1, R1, (8,), wait=(("s", 1), ("s", 1))), "semaphore twice"),
        (lambda: Dma(R1, R1, (8,), post=(("s", 0),)), "token count below 1"),
        (lambda: Mm(R2, R2, R2, (2, 2), "mo"), "outer loops come first"),
        (lambda: Mm(R2, R2, R2, (2, 2), "mx"), "not of o, m, n, k"),
        (lambda: Mm(R2, R2, R2, (2, 2), "mn"), "a moves with n"),
        (lambda: Mm(R1, R1, R1, (2,), "k"), "c moves with k"),
        (lambda: Vec(R1, (), (8,)), "dst is i8"),
        (lambda: Vec(R1, (Load(R1), Convert("f32", 0)), (8,)), "dst is i8"),
        (lambda: Vec(R1, (Load(R1), Imm(1.0, "f32"), Op("add", (0, 1))), (8,)), "convert first"),
        (lambda: Vec(R1, (Load(R1), Op("add", (0,))), (8,)), "operands of add"),
        (lambda: Vec(R1, (Load(R1), Op("frobnicate", (0,))), (8,)), "unknown operator"),
        (lambda: Vec(R1, (Load(R1),), (8,), accumulate=True), "needs a combiner"),
        (lambda: Vec(R1, (Load(R1, (Linear(0, (1,)),)),), (8,)), "guard and a fill"),
        (lambda: Vec(R1, (Load(R1),), (8,), where=(Linear(0, ()),)), "one coefficient per loop"),
        (lambda: Rep(0, (Dma(R1, R1, (8,)),)), "a count of 0"),
        (lambda: Region("spm", 0, "i7", (1,)), "unknown dtype"),
        (lambda: CommandStream("s", "m", (Symbol("x", "i8", 1), Symbol("x", "i8", 1)), (), ()), "a symbol twice"),
    ],
)
def test_malformed_commands_are_refused(make: object, message: str) -> None:
    with pytest.raises(StreamError, match=message):
        make()  # type: ignore[operator]


def test_parse_errors_point_at_the_place() -> None:
    text = "stream s for m\nqueue ld {\n  dma spm[0x0]:i8(1) <- @x[0]:i8(1,1) {4}\n}\n"
    with pytest.raises(ParseError, match="2 strides for 1 loops") as caught:
        parse_stream(text)
    assert caught.value.line == 3
    with pytest.raises(ParseError, match="no command 'dmb'"):
        parse_stream(text.replace("dma", "dmb"))
    with pytest.raises(ParseError, match="ends inside a block"):
        parse_stream(text.replace("(1,1)", "(1)").replace("\n}", ""))


@pytest.mark.parametrize(
    ("name", "rows", "bandwidth", "sizes"),
    [("s16", 16, 8, (64, 64, 64)), ("g16", 16, 16, (128, 128, 64)), ("m32", 32, 16, (256,) * 3)],
)
def test_profiles(name: str, rows: int, bandwidth: int, sizes: tuple[int, ...]) -> None:
    machine = profile(name)
    assert machine == profile(str(PROFILES / f"{name}.toml"))
    array = machine.engines_of("array")[0]
    assert machine.name == name and (array.rows, array.cols, array.fill) == (rows, rows, 2 * rows - 2)
    assert machine.memory["dram"].bytes_per_cycle == bandwidth and machine.memory["dram"].latency == 64
    assert tuple(machine.memory[m].capacity for m in ("ifmap", "filter", "acc")) == tuple(1024 * s for s in sizes)


def test_unknown_profile_names_the_known() -> None:
    assert {"s16", "g16", "m32"} <= set(profile_names())
    with pytest.raises(MachineError, match="g16, m32, s16"):
        profile("s17")


def test_nan_is_equal_to_itself() -> None:
    assert Imm(float("nan"), "f32") == Imm(-math.nan, "f32")
    assert repr(Imm(cast("float", np.float32(0.5)), "f32")) == "Imm(value=0.5, dtype='f32')"


@pytest.mark.parametrize("extents", ["", "3, 4"])
def test_a_symbol_has_one_extent(extents: str) -> None:
    with pytest.raises(PolyError, match="a symbol has one extent"):
        parse_stream(f"stream program for s16 hash=0\nsymbol x: f32[{extents}] input\n")
