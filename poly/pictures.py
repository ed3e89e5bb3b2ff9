"""What a notebook shows of the core's classes: HTML and SVG made of text alone, no matplotlib, no scripts.

`poly.figures` has the pictures that need matplotlib: iteration domains, footprints, time lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Final

from poly.document import CSS, Document, Text, table

if TYPE_CHECKING:
    from poly.program import Program, Tensor

KIND_COLOURS: Final = {
    "serial": ("#f3f6fa", "#8aa0b8"), "parallel": ("#e6f4ea", "#4f9d69"), "vector": ("#fdeedd", "#d9822b"),
    "unroll": ("#fbf6d9", "#b59f1f"), "unit": ("#efe7fa", "#8460c0"),
}  # fmt: skip
_LEAF: Final = ("#ffffff", "#c7cfd8")
_KEYWORD: Final = re.compile(
    r"\b(for|in|alloc|if|where|program|graph|loops|stream|input|output|inout|constant|temporary|queue|rep|script|tree)\b"
)
_KIND: Final = re.compile(r"\b(parallel|vector|unroll|unit)\b")


def text_html(text: str) -> str:
    """Any level's text form, with its keywords set off."""
    marked = _KIND.sub(r'<span style="color:#c2691c">\1</span>', escape(text, quote=False))
    marked = _KEYWORD.sub(r'<b style="color:#5b7fa6">\1</b>', marked)
    return f'<pre style="{CSS};overflow-x:auto">{marked}</pre>'


def program_html(program: Program) -> str:
    """Tensors, statements with their domains, and the text."""
    from poly.text import print_statement

    def shape(t: Tensor) -> str:
        return f"{t.dtype}[{', '.join(map(str, t.shape))}]"

    statements = [
        (s.name, str(len(s.iterators)), print_statement(s).removeprefix(f"{s.tuple_text}: "))
        for s in program.statements
    ]
    tensors = [(t.name, t.role, shape(t), t.space) for t in program.tensors]
    document = Document(
        repr(program).strip("<>"),
        (("sizes", ", ".join(f"{p} = {program.binding.get(p, 'free')}" for p in program.parameters)),)
        if program.parameters
        else (),
        (
            table("statements", ("statement", "loops", "does"), statements),
            table("tensors", ("tensor", "role", "type", "memory"), tensors),
            Text("text", str(program), folded=True),
        ),
    )
    return document.html()


def schedule_html(schedule: object) -> str:
    """The tree as nested boxes, the script below it. `schedule`: whatever prints as a schedule does."""
    _, script, _ = _sections(str(schedule))
    folded = f"<details><summary>script, {len(script)} edits</summary>{text_html(chr(10).join(script))}</details>"
    title = escape(repr(schedule).strip("<>"))
    return f'<div style="{CSS}"><b>{title}</b><div>{schedule_svg(schedule)}</div>{folded if script else ""}</div>'


# ---- the tree of a schedule as nested boxes


@dataclass
class Block:
    """A loop (`kind`) with what is inside, or a statement (kind "")."""

    title: str
    kind: str = ""
    note: str = ""
    children: list[Block] = field(default_factory=list)


def _sections(text: str) -> tuple[list[str], list[str], list[str]]:
    """Program, script and tree of a schedule's text, dedented."""
    lines = text.splitlines()
    script, tree = lines.index("script"), lines.index("tree")
    return lines[:script], [s[4:] for s in lines[script + 1 : tree] if s.strip()], [s[4:] for s in lines[tree + 1 :]]


_FOR: Final = re.compile(r"for (?P<loop>.+?)(?P<kind> (?:parallel|vector|unroll|unit))?(?P<engine> on .+)?:$")


_BUFFER: Final = re.compile(r"\S+: \w+(?:\[[^\]]*\])? in \w+")


def blocks_of(schedule: object) -> tuple[list[str], list[Block]]:
    """The promoted tensors, as text, and the tree of a schedule."""
    _, _, tree = _sections(str(schedule))
    roots: list[Block] = []
    buffers: list[str] = []
    open_at: list[tuple[int, Block]] = []
    for line in tree:
        depth, text = (len(line) - len(line.lstrip())) // 4, line.strip()
        while open_at and open_at[-1][0] >= depth:
            open_at.pop()
        siblings = open_at[-1][1].children if open_at else roots
        if match := _FOR.fullmatch(text):
            block = Block(match["loop"], (match["kind"] or " serial").strip(), (match["engine"] or "").strip())
            siblings.append(block)
            open_at.append((depth, block))
        elif text.startswith("at ") and siblings:
            siblings[-1].note = text
        elif not open_at and _BUFFER.match(text):
            buffers.append(text)
        elif text:
            siblings.append(Block(text))
            open_at.append((depth, siblings[-1]))
    return buffers, [_without_notes(b) for b in roots]


def _without_notes(block: Block) -> Block:
    """Lines below a statement are its note, not its children."""
    if not block.kind:
        block.note = " ".join([block.note, *(c.title for c in block.children)]).strip()
        block.children = []
    for child in block.children:
        _without_notes(child)
    return block


_LINE, _PAD, _CHAR, _LONGEST = 20, 7, 7.25, 124


def schedule_svg(schedule: object) -> str:
    """The tree of a schedule as one SVG picture: a box for each loop, coloured by how it runs; statements inside."""
    buffers, roots = blocks_of(schedule)
    shapes: list[str] = []
    top = _PAD
    for buffer in buffers:
        shapes.append(_text(_PAD + 4, top + 13, _short(buffer), "#8460c0"))
        top += _LINE - 2
    width = max([_width(b) for b in roots] + [len(_short(b)) * _CHAR + 4 * _PAD for b in buffers] + [120.0])
    for block in roots:
        top += _draw(block, _PAD, top, width - 2 * _PAD, shapes) + 4
    legend, legend_width = _legend(roots, top + 2)
    width, height = max(width, legend_width), top + (_LINE + 4 if legend else 4)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="12">'
        f'<rect width="100%" height="100%" rx="6" fill="#ffffff"/>{"".join(shapes)}{legend}</svg>'
    )


def _walk(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        yield from _walk(block.children)


def _width(block: Block) -> float:
    own = len(_short(_label(block))) * _CHAR + 3 * _PAD
    return max([own, *(_width(c) for c in block.children)]) + 2 * _PAD


def _label(block: Block) -> str:
    if not block.kind:
        return block.title
    return f"for {block.title}" + (f"  {block.kind} {block.note}".rstrip() if block.kind != "serial" else "")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\u2026"


def _draw(block: Block, left: float, top: float, width: float, shapes: list[str]) -> float:
    """Add the shapes of a block; its height."""
    at = len(shapes)
    height = float(_LINE)
    for child in block.children:
        height += _draw(child, left + _PAD, top + height, width - 2 * _PAD, shapes) + 4
    height += 2 if block.children else 0
    fill, stroke = KIND_COLOURS.get(block.kind, _LEAF) if block.kind else _LEAF
    tip = f"<title>{escape(' '.join([block.title, block.note]).strip())}</title>"
    box = (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" '
        f'fill="{fill}" stroke="{stroke}">{tip}</rect>'
    )
    colour = stroke if block.kind else "#1c2733"
    shapes[at:at] = [box, _text(left + _PAD, top + 14, _short(_label(block)), _darker(colour), bold=bool(block.kind))]
    return height


def _darker(colour: str) -> str:
    return "#" + "".join(f"{int(int(colour[k : k + 2], 16) * 0.7):02x}" for k in (1, 3, 5))


def _text(x: float, y: float, text: str, colour: str, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}"{weight} xml:space="preserve">{escape(text)}</text>'


def _legend(roots: Sequence[Block], top: float) -> tuple[str, float]:
    """One swatch for each kind of loop that occurs, where there is more than one kind; and its width."""
    kinds = [k for k in KIND_COLOURS if any(b.kind == k for b in _walk(roots))]
    if len(kinds) < 2:
        return "", 0.0
    parts: list[str] = []
    x = float(_PAD)
    for kind in kinds:
        fill, stroke = KIND_COLOURS[kind]
        parts.append(
            f'<rect x="{x:.1f}" y="{top + 2:.1f}" width="12" height="12" rx="3" fill="{fill}" stroke="{stroke}"/>'
        )
        parts.append(_text(x + 17, top + 12, kind, "#51606f"))
        x += 17 + len(kind) * _CHAR + 14
    return "".join(parts), x


@dataclass(frozen=True)
class Svg:
    """A picture for a notebook or a file."""

    text: str

    def _repr_svg_(self) -> str:
        return self.text

    def save(self, path: str) -> None:
        """Write an SVG file."""
        from pathlib import Path

        Path(path).write_text(self.text + "\n")


def schedule_tree(schedule: object) -> Svg:
    """`schedule_svg` as a picture."""
    return Svg(schedule_svg(schedule))
