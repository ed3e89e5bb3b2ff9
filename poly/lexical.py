"""Names and lines of every text form. Expressions are read by Python's own parser; this makes our names fit it.

Names may hold dots and `@` (`i.o`), or anything at all between backquotes; a tensor of rank 0 is written `s[]`.
`encode` puts letters that Python takes for identifier letters in the place of every other character, one for one, so
that columns stay true; `decode` gives the name back. Comments become blanks.
"""

from __future__ import annotations

import ast
import keyword
import re
import unicodedata
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from poly.errors import ParseError, WantedShape

# Words that begin a clause outside brackets; a tensor or statement named like that is printed in backquotes.
_CLAUSES: Final = frozenset("where ordered exact origin reads path external copies tile layout scope".split())
_SHIFT: Final = 0xA000  # Yi syllables: letters to Python, which its normalisation of identifiers leaves alone
_TO_LETTERS: Final = {c: chr(_SHIFT + c) for c in range(128) if not (chr(c).isalnum() or chr(c) == "_")}
_FROM_LETTERS: Final = {_SHIFT + c: chr(c) for c in _TO_LETTERS}
_TOKEN: Final = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?:`[^`\n]*` | (?<![\w.])[^\W\d]\w*(?:[.@]\w+)*)(?:\[[ \t]*\])?""",
    re.VERBOSE,
)
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*(?:[.@]\w+)*", re.ASCII)
_TAKEN: Final = frozenset(keyword.kwlist) - frozenset("if else and or not in is for None True False".split())
_WORD: Final = re.compile(r"[^\W\d]\w*")


def encode(text: str) -> str:
    """The text with every name as an identifier and every comment blank; length and columns stay."""

    def replace(match: re.Match[str]) -> str:
        found = match[0]
        return " " * len(found) if match["comment"] else found.translate(_TO_LETTERS)

    return _TOKEN.sub(replace, text)


def decode(identifier: str) -> str:
    """The name that `encode` made this identifier from, without the `[]` of a scalar."""
    return _plain(identifier)[0]


def written(node: ast.expr) -> str:
    """A syntax tree of encoded text as one would write it."""
    return ast.unparse(node).translate(_FROM_LETTERS)


def is_scalar(identifier: str) -> bool:
    """True where the identifier was written `name[]`."""
    return _plain(identifier)[1]


def _plain(identifier: str) -> tuple[str, bool]:
    name = identifier.translate(_FROM_LETTERS)
    scalar = name.endswith("]")
    if scalar:
        name = name[: name.rindex("[")]
    if name[:1] in '`"' and name:
        name = name[1:-1].encode("ascii", "backslashreplace").decode("unicode_escape")
    return name, scalar


def quote(name: str, inside: bool = False) -> str:
    """A name as it is written: plain where it can be, else in backquotes. `inside`: it stands between brackets."""
    if _PLAIN.fullmatch(name) and not keyword.iskeyword(name) and (inside or name not in _CLAUSES):
        return name
    return f"`{name.encode('unicode_escape').decode('ascii').replace('`', chr(92) + 'x60')}`"


def quote_string(text: str) -> str:
    """Free text between double quotes, on one line."""
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', chr(92) + "x22") + '"'


@dataclass(frozen=True)
class Source:
    """A text and its encoded form, of the same length."""

    original: str
    encoded: str

    @staticmethod
    def of(text: str) -> Fragment:
        """The whole of a text as a fragment."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if odd := next((c for c in text if ord(c) in _FROM_LETTERS), ""):
            raise ParseError(f"the character {odd!r} cannot stand in a program")
        whole = Fragment(Source(text, encode(text)), 0, len(text))
        if not text.isascii():
            whole.check_names()
        return whole


def _of_brackets(message: str, before: str, at_end: bool) -> str:
    """What Python says of an expression in brackets of ours, of its own brackets. `before`: the text up to there."""
    found = re.fullmatch(r"closing parenthesis '(.)' does not match opening parenthesis '(.)'( on line \d+)?", message)
    if found is None:
        return message
    if at_end:
        return f"{found[2]!r} was never closed"
    opened = sum((c in "([{") - (c in ")]}") for c in before)
    return message if opened else f"unmatched {found[1]!r}"


@dataclass(frozen=True)
class Fragment:
    """A piece of a source, `start` to `end` (exclusive), that knows its line and column."""

    source: Source
    start: int
    end: int

    def check_names(self) -> None:
        """Raise `ParseError` for a name that Python's parser reads as another one."""
        for match in _TOKEN.finditer(self.shown):
            if match["comment"] or match["string"]:
                continue
            read = unicodedata.normalize("NFKC", match[0])
            if read != match[0]:
                raise self.error(f"Python reads the name {match[0]} as {read}", match.start(), read)
            for at in range(match.start(), min(match.end() + 1, len(self.shown))):
                c = self.shown[at]
                if not c.isascii() and not c.isalnum() and (at < match.end() or f"a{c}".isidentifier()):
                    raise self.error(f"the character {c!r} stands in no name", at, f"`\\u{ord(c):04x}`")

    @property
    def text(self) -> str:
        """The encoded text."""
        return self.source.encoded[self.start : self.end]

    @property
    def shown(self) -> str:
        """The text as it was written."""
        return self.source.original[self.start : self.end]

    def part(self, start: int, end: int | None = None) -> Fragment:
        """From `start` to `end`, relative, without blanks around."""
        text = self.text[start:end]
        stripped = text.strip()
        first = self.start + start + (len(text) - len(text.lstrip()) if stripped else 0)
        return Fragment(self.source, first, first + len(stripped))

    def error(
        self, message: str, at: int = 0, hint: str | None = None, wanted: WantedShape | None = None
    ) -> ParseError:
        """A `ParseError` with the caret `at` characters into the fragment."""
        before = self.source.original[: self.start + at]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n") - 1
        return ParseError(message, text=self.source.original, line=line, column=column, hint=hint, wanted=wanted)

    def error_at(self, line: int, column: int, message: str, hint: str | None = None) -> ParseError:
        """The same at a line (from 1) and byte column that Python's parser gave for `expression`."""
        lines = self.text.split("\n")
        if not 0 < line <= len(lines):
            return self.error(message, max(len(self.text) - 1, 0), hint)
        skipped = sum(len(each) + 1 for each in lines[: line - 1])
        within = lines[line - 1].encode()[: column - 1 if line == 1 else column]
        return self.error(message, skipped + len(within.decode(errors="ignore")), hint)

    @contextmanager
    def within_depth(self) -> Generator[None]:
        """Where Python does not recurse deeply enough for what stands here, a `ParseError`."""
        try:
            yield
        except RecursionError:
            raise self.error("nested too deeply") from None

    def node_error(self, node: ast.AST, message: str, hint: str | None = None) -> ParseError:
        """The same at a node of the fragment's `expression`."""
        return self.error_at(getattr(node, "lineno", 1), getattr(node, "col_offset", 1), message, hint)

    def expression(self) -> ast.expr:
        """Python's syntax tree of the fragment. Raises `ParseError`."""
        if not self.text.strip():
            raise self.error("an expression is missing here", hint="0 where nothing is meant")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # isl's `2i` is tried as Python first
                return ast.parse(f"({self.text}\n)", mode="eval").body
        except SyntaxError as error:
            lines = f"({self.text}".split("\n")
            line, offset = error.lineno or 1, (error.offset or 1) - 1
            column = len(lines[line - 1][:offset].encode()) if line <= len(lines) else 0
            if (word := next((m[0] for m in _WORD.finditer(self.text) if m[0] in _TAKEN), None)) is not None:
                at = re.search(rf"\b{word}\b", self.text)
                text = f"{word!r} is a keyword of Python, and no name"
                raise self.error(text, at.start() if at else 0, f"{word}_") from None
            before = "\n".join([*lines[: line - 1], *(each[:offset] for each in lines[line - 1 : line])])[1:]
            text = f"not an expression: {_of_brackets(error.msg, before, line > len(lines))}"
            raise self.error_at(line, max(column, 1), text, _other_syntax(self.shown)) from None
        except (ValueError, RecursionError, MemoryError):
            raise self.error("nested too deeply, or not text") from None

    def find(self, characters: str) -> Iterator[int]:
        """Positions of any of the characters outside brackets."""
        depth = 0
        for position, c in enumerate(self.text):
            depth += (c in "([{") - (c in ")]}")
            if c in characters and depth == 0:
                yield position

    def words(self) -> Iterator[tuple[int, str]]:
        """Identifiers outside brackets, with their positions."""
        depth, last = 0, 0
        text = self.text
        for match in _WORD.finditer(text):
            for c in text[last : match.start()]:
                depth += (c in "([{") - (c in ")]}")
            last = match.end()
            if depth == 0:
                yield match.start(), match[0]

    def split(self, separator: str) -> list[Fragment]:
        """The parts between separators outside brackets; none for a blank fragment."""
        cuts = [-1, *self.find(separator), len(self.text)]
        parts = [self.part(a + 1, b) for a, b in zip(cuts, cuts[1:], strict=False)]
        return [] if len(parts) == 1 and not parts[0].text else parts

    def name(self) -> str:
        """The fragment as one name. Raises `ParseError`."""
        if not self.text.isidentifier() or is_scalar(self.text):
            raise self.error("a name is expected here", hint="letters, digits and _, or anything between backquotes")
        return decode(self.text)

    def integer(self) -> int:
        """The fragment as a literal. Raises `ParseError`."""
        try:
            return int(self.text)
        except ValueError:
            raise self.error("an integer is expected here", hint="64") from None


def _other_syntax(text: str) -> str:
    """What to write for an expression that is not Python's: of other languages, or broken off."""
    text = text.rstrip()
    for sign, hint in (("&&", "a and b"), ("||", "a or b"), ("?", "a if c else b"), ("!", "not a, or a != b")):
        if sign in text.replace("!=", ""):
            return hint
    if text.count("(") != text.count(")") or text.count("[") != text.count("]"):
        return "as many brackets closed as opened"
    if re.search(r"\bif\b", text) and not re.search(r"\belse\b", text):
        return "a if c else b: what it is otherwise, too"
    if text[-1:] in "+-*/%,<>=&|^":
        return f"a value behind {text[-1]}"
    return "a op b, f(a), `a if c else b`, T[i, j] and numbers, as in Python"


@dataclass(frozen=True)
class Line:
    """A line, or one `;` part of it; a block has a body, and its head is without the colon."""

    head: Fragment
    body: tuple[Line, ...] | None = None


def read_lines(whole: Fragment, blocks: Sequence[str]) -> tuple[Line, ...]:
    """The text as a tree by indentation. `blocks`: the words that open one. Raises `ParseError`."""
    pending = list(_indented(whole))
    if len(pending) > 1 and pending[0][0] == 0 and not _opens(pending[0][1], blocks):
        # a text that begins right after its quotes has no indentation on its first line only
        rest = min(indent for indent, _ in pending[1:])
        pending[0] = (rest, pending[0][1])
    lines, left = _block(pending, 0, pending[0][0] if pending else 0, blocks)
    if left < len(pending):
        raise pending[left][1].error("unexpected indentation")
    return lines


def _indented(whole: Fragment) -> Iterator[tuple[int, Fragment]]:
    """Logical lines with their indentation: brackets hold lines together."""
    start = depth = 0
    for position, c in enumerate(whole.text + "\n"):
        depth = max(depth + (c in "([{") - (c in ")]}"), 0)
        if c == "\n" and (depth == 0 or position == len(whole.text)):
            line = whole.text[start:position]
            if line.strip():
                indent = len(line.expandtabs(8)) - len(line.expandtabs(8).lstrip())
                yield indent, whole.part(start, position)
            start = position + 1


def _opens(line: Fragment, blocks: Sequence[str]) -> bool:
    return next(line.words(), (0, ""))[1] in blocks


def _block(
    lines: list[tuple[int, Fragment]], at: int, indent: int, blocks: Sequence[str]
) -> tuple[tuple[Line, ...], int]:
    """The lines from `at` on that are indented so far, with the blocks inside of them; and the line behind."""
    found: list[Line] = []
    while at < len(lines) and lines[at][0] == indent:
        line = lines[at][1]
        at += 1
        if not _opens(line, blocks):
            found += [Line(part) for part in line.split(";") if part.text]
            continue
        colon = len(line.text) - 1 if line.text.endswith(":") else next(line.find(":"), None)
        if colon is None:
            raise line.error("a colon ends the head of a block", len(line.text))
        head, inline = line.part(0, colon), line.part(colon + 1)
        if inline.text:
            found.append(Line(head, tuple(Line(part) for part in inline.split(";") if part.text)))
            continue
        if at == len(lines) or lines[at][0] <= indent:
            raise line.error("the block is empty: indent its lines below it")
        body, at = _block(lines, at, lines[at][0], blocks)
        found.append(Line(head, body))
    return tuple(found), at


def names_in(encoded: str) -> tuple[str, ...]:
    """Every name in encoded text, in the order in which they first come."""
    return tuple(dict.fromkeys(decode(word) for word in _WORD.findall(encoded)))
