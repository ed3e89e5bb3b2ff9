"""Reports as data: facts, tables and texts in sections, printed as plain text or as HTML for notebooks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import Final

_COLUMN: Final = 80  # characters of names
_NUMBER: Final = re.compile(r"-?\d|-?$|not counted$")
CSS: Final = (
    "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px;line-height:1.4;text-align:left;"
    "color:inherit;background:transparent"
)


def some(names: Sequence[str], between: str = ", ") -> str:
    """The first name, others as far as a column is wide, and how many more there are."""
    shown = [n for k, n in enumerate(names) if k == 0 or len(between.join(names[: k + 1])) <= _COLUMN]
    left = len(names) - len(shown)
    return between.join(shown) + (f", and {left} more" if left else "")


def counted(number: int, noun: str, several: str = "") -> str:
    """A number of things: "1 edit", "2 edits"; `several` where that is no "s" more."""
    return f"{number} {noun}" if number == 1 else f"{number} {several or f'{noun}s'}"


@dataclass(frozen=True)
class Table:
    """Rows of text under column heads. Columns whose cells are all numbers (with a unit) are set to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def lines(self) -> Iterator[str]:
        widths = [max(len(row[k]) for row in (self.columns, *self.rows)) for k in range(len(self.columns))]
        right = self.numeric
        for row in (self.columns, *self.rows):
            cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
            yield "  ".join(cells).rstrip()

    @property
    def numeric(self) -> tuple[bool, ...]:
        """For each column whether it holds numbers."""
        columns = list(zip(*self.rows, strict=True)) if self.rows else [()] * len(self.columns)
        return tuple(bool(c) and all(_NUMBER.match(cell) for cell in c) for c in columns)

    def html(self) -> str:
        style = "border:none;padding:1px 12px 1px 0;vertical-align:top;background:transparent;text-align:"
        sides = ["right" if n else "left" for n in self.numeric]

        def cell(text: str, side: str, tag: str = "td") -> str:
            return f'<{tag} style="{style}{side}">{escape(text)}</{tag}>'

        head = "".join(cell(c, s, "th") for c, s in zip(self.columns, sides, strict=True))
        rows = ["".join(cell(c, s) for c, s in zip(row, sides, strict=True)) for row in self.rows]
        body = "".join(f"<tr>{row}</tr>" for row in ([head] if any(self.columns) else []) + rows)
        return f'<table style="border-collapse:collapse;margin:2px 0 8px 0;{CSS}">{body}</table>'


@dataclass(frozen=True)
class Text:
    """Preformatted lines; `folded`: closed at first in a notebook."""

    title: str
    text: str
    folded: bool = False

    def lines(self) -> Iterator[str]:
        yield from self.text.rstrip("\n").splitlines()

    def html(self) -> str:
        return f'<pre style="margin:2px 0 8px 0;{CSS}">{escape(self.text)}</pre>'


@dataclass(frozen=True)
class Document:
    """A title, facts (label and value), and sections, which may be documents again."""

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[Table | Text | Document, ...] = ()
    folded: bool = False

    @property
    def shown(self) -> tuple[Table | Text | Document, ...]:
        """The sections without empty tables."""
        return tuple(s for s in self.sections if not isinstance(s, Table) or s.rows)

    def lines(self) -> Iterator[str]:
        width = max((len(label) for label, _ in self.facts), default=0)
        for label, value in self.facts:
            first, *rest = value.splitlines() or [""]
            yield f"{label.ljust(width)}  {first}"
            yield from (" " * (width + 2) + line for line in rest)
        for section in self.shown:
            yield ""
            yield section.title
            yield from (f"  {line}" if line else "" for line in section.lines())

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"  {line}" if line else "" for line in self.lines())])

    def html(self, level: int = 0) -> str:
        """Sections as `details`, closed where they are folded; no scripts, no style sheet."""
        parts = [Table("", ("", ""), self.facts).html()] if self.facts else []
        for section in self.shown:
            inner = section.html(level + 1) if isinstance(section, Document) else section.html()
            opened = " open" if isinstance(section, Table) or not section.folded else ""
            head = f"<summary><b>{escape(section.title)}</b></summary>"
            parts.append(f'<details{opened} style="margin-left:8px">{head}{inner}</details>')
        title = f"<b>{escape(self.title)}</b>" if level == 0 else ""
        return f'<div style="{CSS}">{title}{"".join(parts)}</div>'


class Explanation:
    """Base of the explanations: `document` is what prints, by itself too where a shell shows one."""

    @property
    def document(self) -> Document:
        raise TypeError("an explanation is made by poly.explain")

    def __str__(self) -> str:
        return str(self.document)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.document.html()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table of any values by their `str`; short rows are filled up."""
    full = [tuple(str(c) for _, c in zip_longest(columns, row, fillvalue="")) for row in rows]
    return Table(title, tuple(columns), tuple(full))


def bytes_text(count: int | None) -> str:
    """`96 B`, `1.50 MiB`; `not counted` for None."""
    if count is None:
        return "not counted"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{value:.4g} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def count_text(count: int | None) -> str:
    """`1,234,567`; `not counted` for None."""
    return "not counted" if count is None else f"{count:,}"


def seconds_text(seconds: float) -> str:
    """`4.2 us`, `850 us`, `12.3 ms`, `1.20 s`."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.{1 if seconds < 9.95e-6 else 0}f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.99995 else f"{seconds:.2f} s"


def ratio_text(ratio: float | None) -> str:
    return "not counted" if ratio is None else f"{ratio:.2f}x"
