"""The text form of a command stream: one line a command. `parse_stream(str(s)) == s`.

    stream relu for s16
    symbol x: f32[256] input
    semaphore full: ve = 0
    queue ld {
      rep 4 {
        dma acc[0x0 + 0x100*r0]:f32(1) <- @x[0 + 64*r0]:f32(1) {64} post full ; load x
      }
    }
    queue ve {
      vec acc[0x0]:f32(1) = {256} %0 load acc[0x0]:f32(1), %1 imm 0.0:f32, %2 max %0 %1 wait full*4
    }

A region is `memory[start]:dtype(strides)` on chip and `@symbol[start]:dtype(strides)` in DRAM; r0, r1 ... count the
`rep`s around, i0, i1 ... the command's own loops. Constants print as their sha256; pass their data to `parse_stream`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, cast

import numpy as np

from poly.accel.isa import (
    MAX_TOKENS,
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
    Number,
    Op,
    Queue,
    Region,
    Rep,
    Semaphore,
    Symbol,
    SymbolRole,
    Tokens,
    Vec,
)
from poly.errors import ParseError, PolyError

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9.]*")
_PLAIN_TAG: Final = re.compile(r"[^\s\";][^\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]*(?<!\s)")


def _name(name: str) -> str:
    plain = _IDENTIFIER.fullmatch(name) and not name.startswith(("inf", "nan"))
    return name if plain else json.dumps(name)


def _terms(base: str, terms: Iterable[tuple[int, str]], number: str = "d") -> str:
    def shown(value: int) -> str:
        return f"{value:#x}" if number == "x" else str(value)

    return " + ".join([base, *(f"{shown(factor)}*{name}" for factor, name in terms if factor)])


def _list(values: Iterable[int]) -> str:
    return ",".join(map(str, values))


def print_region(r: Region) -> str:
    """`acc[0x40 + 0x10*r0]:i32(16,1)` or `@x[128]:i8(1)`."""
    steps = [(s, f"r{d}") for d, s in enumerate(r.steps)]
    if r.symbol is None:
        place = f"{_name(r.memory)}[{_terms(f'{r.offset:#x}', steps, 'x')}]"
    else:
        place = f"{'' if r.memory == 'dram' else _name(r.memory)}@{_name(r.symbol)}[{_terms(str(r.offset), steps)}]"
    return f"{place}:{r.dtype}({_list(r.strides)})"


def _linear(value: Linear) -> str:
    loops = [(c, f"i{k}") for k, c in enumerate(value.coefficients)]
    return f"({_terms(str(value.base), [*loops, *((s, f'r{d}') for d, s in enumerate(value.steps))])})"


def _micro(micro: Micro) -> str:
    match micro:
        case Load(region, guard, fill, gather):
            guards = f" if {' '.join(map(_linear, guard))} else {fill}" if guard else ""
            return f"load {print_region(region)}{guards}" + "".join(
                f" at %{g.register}*{g.stride}<{g.extent}" for g in gather
            )
        case Imm(value, dtype):
            return f"imm {value}:{dtype}"
        case Index(value):
            return f"index {_linear(value)}"
        case Op(name, args):
            return " ".join([name, *(f"%{a}" for a in args)])
        case Convert(dtype, arg):
            return f"convert {dtype} %{arg}"


def _tokens(word: str, tokens: Tokens) -> str:
    return f" {word} " + ", ".join(_name(n) + (f"*{c}" if c != 1 else "") for n, c in tokens) if tokens else ""


def print_command(command: Command) -> str:
    """One line."""
    match command:
        case Dma(dst, src, counts, pad, fill):
            pads = f" pad {''.join(f'({lo},{hi})' for lo, hi in pad)} = {fill}" if pad else ""
            text = f"dma {print_region(dst)} <- {print_region(src)} {{{_list(counts)}}}{pads}"
        case Mm(c, a, b, trips, roles, accumulate):
            loops = ",".join(f"{r}{t}" for r, t in zip(roles, trips, strict=True))
            sign = "+=" if accumulate else "="
            text = f"mm {print_region(c)} {sign} {print_region(a)} * {print_region(b)} {{{loops}}}"
        case Vec(dst, code, trips, combine, accumulate, where):
            how = f" {'accumulate' if accumulate else 'reduce'} {json.dumps(combine)}" if combine else ""
            lines = ", ".join(f"%{i} {_micro(m)}" for i, m in enumerate(code))
            wheres = f" where {' '.join(map(_linear, where))}" if where else ""
            text = f"vec {print_region(dst)} ={how} {{{_list(trips)}}} {lines}{wheres}"
    tag = command.tag
    shown = tag if _PLAIN_TAG.fullmatch(tag) else json.dumps(tag)
    return text + _tokens("wait", command.wait) + _tokens("post", command.post) + (f" ; {shown}" if tag else "")


def _items(items: Iterable[Item], indent: str) -> Iterable[str]:
    for item in items:
        if isinstance(item, Rep):
            yield f"{indent}rep {item.count} {{"
            yield from _items(item.body, indent + "  ")
            yield f"{indent}}}"
        else:
            yield indent + print_command(item)


def print_stream(stream: CommandStream) -> str:
    """The text form; see the module text."""
    hashed = f" hash={stream.machine_hash}" if stream.machine_hash else ""
    lines = [f"stream {_name(stream.name)} for {_name(stream.machine)}{hashed}"]
    for s in stream.symbols:
        where = "" if s.memory == "dram" else f" in {_name(s.memory)}"
        digest = f" sha256={s.digest}" if s.digest else ""
        lines.append(f"symbol {_name(s.name)}: {s.dtype}[{s.elements}] {s.role}{where}{digest}")
    for sem in stream.semaphores:
        limit = "" if sem.limit == MAX_TOKENS else f" limit {sem.limit}"
        lines.append(f"semaphore {_name(sem.name)}: {_name(sem.consumer)} = {sem.initial}{limit}")
    for queue in stream.queues:
        lines += [f"queue {_name(queue.engine)} {{", *_items(queue.items, "  "), "}"]
    return "\n".join(lines) + "\n"


_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<number>-?(?:0x[0-9a-f]+|inf\b|nan\b|\d+(?:\.\d+)?(?:e[+-]?\d+)?))
    |(?P<name>[A-Za-z_][A-Za-z_0-9.]*)
    |(?P<tag>;.*)
    |(?P<punct><-|\+=|[][(){}:=,*<@%+]))""",
    re.VERBOSE,
)


class _Line:
    """Tokens of one line, with a cursor."""

    def __init__(self, text: str, line: int, whole: str) -> None:
        self.line, self.whole, self.position = line, whole, 0
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise ParseError("unexpected character", text=whole, line=line, column=at)
            self.tokens.append((match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
            at = match.end()

    def fail(self, message: str) -> ParseError:
        column = self.tokens[self.position][2] if self.position < len(self.tokens) else 0
        return ParseError(message, text=self.whole, line=self.line, column=column)

    def peek(self) -> str:
        return self.tokens[self.position][1] if self.position < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.position][0] if self.position < len(self.tokens) else "end"

    def take(self) -> str:
        self.position += 1
        return self.tokens[self.position - 1][1]

    def accept(self, text: str) -> bool:
        if self.peek() == text and self.kind() != "string":
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.fail(f"expected {text!r}")

    def name(self) -> str:
        if self.kind() == "string":
            return self.string(self.take())
        if self.kind() != "name":
            raise self.fail("expected a name")
        return self.take()

    def string(self, text: str) -> str:
        try:
            return str(json.loads(text))
        except ValueError:
            raise self.fail("not a string") from None

    def integer(self) -> int:
        if self.kind() != "number":
            raise self.fail("expected an integer")
        try:
            value = int(self.peek(), 0)
        except ValueError:
            raise self.fail("expected an integer") from None
        self.position += 1
        return value

    def number(self) -> Number:
        if self.peek() in ("True", "False"):
            return self.take() == "True"
        if self.kind() != "number":
            raise self.fail("expected a number")
        text = self.take()
        return int(text, 0) if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", text) else float(text)

    def integers(self, opening: str, closing: str) -> tuple[int, ...]:
        self.expect(opening)
        values: list[int] = []
        while not self.accept(closing):
            if values:
                self.expect(",")
            values.append(self.integer())
        return tuple(values)

    def terms(self, letters: str) -> tuple[int, dict[str, dict[int, int]]]:
        """`base + factor*r0 + ...`: the base and the factors by letter and number."""
        base, found = self.integer(), {letter: dict[int, int]() for letter in letters}
        while self.accept("+"):
            factor = self.integer()
            self.expect("*")
            counter = self.name()
            if counter[:1] not in found or not counter[1:].isdigit():
                raise self.fail(f"no counter {counter!r}")
            found[counter[0]][int(counter[1:])] = factor
        return base, found

    def region(self) -> Region:
        memory = "dram" if self.peek() == "@" else self.name()
        symbol = self.name() if self.accept("@") else None
        self.expect("[")
        offset, found = self.terms("r")
        self.expect("]")
        self.expect(":")
        dtype = self.name()
        return Region(memory, offset, dtype, self.integers("(", ")"), _dense(found["r"]), symbol)

    def linear(self, rank: int) -> Linear:
        self.expect("(")
        base, found = self.terms("ir")
        self.expect(")")
        return Linear(base, _dense(found["i"], rank), _dense(found["r"]))

    def linears(self, rank: int) -> tuple[Linear, ...]:
        found = [self.linear(rank)]
        while self.peek() == "(":
            found.append(self.linear(rank))
        return tuple(found)

    def semaphores(self, word: str) -> Tokens:
        if not self.accept(word):
            return ()
        found: list[tuple[str, int]] = []
        while not found or self.accept(","):
            found.append((self.name(), self.integer() if self.accept("*") else 1))
        return tuple(found)

    def tail(self) -> tuple[Tokens, Tokens, str]:
        wait, post, tag = self.semaphores("wait"), self.semaphores("post"), ""
        if self.kind() == "tag":
            tag = self.take()[1:].strip(" ")
            tag = self.string(tag) if tag.startswith('"') else tag
        self.end()
        return wait, post, tag

    def end(self) -> None:
        if self.kind() != "end":
            raise self.fail("unexpected text at the end of the line")


def _dense(found: Mapping[int, int], rank: int = 0) -> tuple[int, ...]:
    return tuple(found.get(i, 0) for i in range(max(rank, max(found, default=-1) + 1)))


def _register(line: _Line) -> int:
    line.expect("%")
    return line.integer()


def _parse_micro(line: _Line, rank: int) -> Micro:
    word = line.name()
    if word == "load":
        region, guard, fill = line.region(), (), None
        if line.accept("if"):
            guard = line.linears(rank)
            line.expect("else")
            fill = line.number()
        gather: list[Gather] = []
        while line.accept("at"):
            register = _register(line)
            line.expect("*")
            stride = line.integer()
            line.expect("<")
            gather.append(Gather(register, stride, line.integer()))
        return Load(region, guard, fill, tuple(gather))
    if word == "imm":
        value = line.number()
        line.expect(":")
        return Imm(value, line.name())
    if word == "index":
        return Index(line.linear(rank))
    if word == "convert":
        return Convert(line.name(), _register(line))
    args: list[int] = []
    while line.peek() == "%":
        args.append(_register(line))
    return Op(word, tuple(args))


def _parse_dma(line: _Line) -> Dma:
    dst = line.region()
    line.expect("<-")
    src, counts = line.region(), line.integers("{", "}")
    pads: list[tuple[int, int]] = []
    fill: Number = 0
    if line.accept("pad"):
        while line.peek() == "(":
            pads.append(cast("tuple[int, int]", line.integers("(", ")")))
        line.expect("=")
        fill = line.number()
    return Dma(dst, src, counts, tuple(pads), fill, *line.tail())


def _parse_mm(line: _Line) -> Mm:
    c = line.region()
    accumulate = line.accept("+=")
    if not accumulate:
        line.expect("=")
    a = line.region()
    line.expect("*")
    b = line.region()
    line.expect("{")
    roles: list[str] = []
    trips: list[int] = []
    while not line.accept("}"):
        if roles:
            line.expect(",")
        loop = line.name()
        if not loop[1:].isdigit():
            raise line.fail("expected a loop, such as m16")
        roles.append(loop[0])
        trips.append(int(loop[1:]))
    return Mm(c, a, b, tuple(trips), "".join(roles), accumulate, *line.tail())


def _parse_vec(line: _Line) -> Vec:
    dst = line.region()
    line.expect("=")
    accumulate = line.accept("accumulate")
    combine = line.name() if accumulate or line.accept("reduce") else None
    trips = line.integers("{", "}")
    code: list[Micro] = []
    while not code or line.accept(","):
        if _register(line) != len(code):
            raise line.fail(f"expected %{len(code)}")
        code.append(_parse_micro(line, len(trips)))
    where = line.linears(len(trips)) if line.accept("where") else ()
    return Vec(dst, tuple(code), trips, combine, accumulate, where, *line.tail())


class _Parser:
    def __init__(self, text: str) -> None:
        rows = [(number, row) for number, row in enumerate(text.split("\n"), 1) if row.strip()]
        self.lines = [_Line(row, number, text) for number, row in rows]
        self.at = 0

    def more(self, word: str) -> _Line | None:
        """The next line if it starts with the word, cursor behind the word."""
        if self.at < len(self.lines) and self.lines[self.at].accept(word):
            self.at += 1
            return self.lines[self.at - 1]
        return None

    def items(self) -> tuple[Item, ...]:
        found: list[Item] = []
        while not self.more("}"):
            if self.at >= len(self.lines):
                raise ParseError("the text ends inside a block", hint="a closing }")
            line = self.lines[self.at]
            try:
                found.append(self.item(line))
            except ParseError:
                raise
            except PolyError as error:
                raise line.fail(str(error)) from error
        return tuple(found)

    def item(self, line: _Line) -> Item:
        self.at += 1
        match line.name():
            case "rep":
                count = line.integer()
                line.expect("{")
                line.end()
                return Rep(count, self.items())
            case "dma":
                return _parse_dma(line)
            case "mm":
                return _parse_mm(line)
            case "vec":
                return _parse_vec(line)
            case word:
                raise line.fail(f"no command {word!r}")

    def symbol(self, line: _Line) -> Symbol:
        name = line.name()
        line.expect(":")
        dtype = line.name()
        extents = line.integers("[", "]")
        if len(extents) != 1:
            raise line.fail(f"a symbol has one extent, its number of elements, not {len(extents)}")
        role = line.name()
        memory = line.name() if line.accept("in") else "dram"
        digest = ""
        if line.accept("sha256"):
            line.expect("=")
            # A hexadecimal digest is cut into numbers and names by the tokeniser.
            digest = "".join(token for _, token, _ in line.tokens[line.position :])
            line.position = len(line.tokens)
        line.end()
        try:
            return Symbol(name, dtype, extents[0], cast("SymbolRole", role), memory, digest)
        except PolyError as error:
            raise line.fail(str(error)) from error

    def semaphore(self, line: _Line) -> Semaphore:
        name = line.name()
        line.expect(":")
        consumer = line.name()
        line.expect("=")
        initial = line.integer()
        limit = line.integer() if line.accept("limit") else MAX_TOKENS
        line.end()
        return Semaphore(name, consumer, initial, limit)

    def stream(self, constants: Mapping[str, np.ndarray]) -> CommandStream:
        head = self.more("stream")
        if head is None:
            raise ParseError("a stream starts with: stream NAME for MACHINE")
        name = head.name()
        head.expect("for")
        machine, hashed = head.name(), ""
        if head.accept("hash"):
            head.expect("=")
            hashed = "".join(token for _, token, _ in head.tokens[head.position :])
            head.position = len(head.tokens)
        head.end()
        symbols: list[Symbol] = []
        semaphores: list[Semaphore] = []
        queues: list[Queue] = []
        while self.at < len(self.lines):
            if line := self.more("symbol"):
                symbols.append(self.symbol(line))
            elif line := self.more("semaphore"):
                semaphores.append(self.semaphore(line))
            elif line := self.more("queue"):
                engine = line.name()
                line.expect("{")
                line.end()
                queues.append(Queue(engine, self.items()))
            else:
                raise self.lines[self.at].fail("expected symbol, semaphore or queue")
        return CommandStream(name, machine, tuple(symbols), tuple(semaphores), tuple(queues), hashed, dict(constants))


def parse_stream(text: str, constants: Mapping[str, np.ndarray] | None = None) -> CommandStream:
    """The stream of a text. `constants`: data for its constants. Raises `ParseError` with line and column."""
    return _Parser(text).stream(constants or {})
