"""What a notebook shows of the core's classes: HTML and SVG made of text alone, no matplotlib, no scripts.

`poly.figures` has the pictures that need matplotlib: iteration domains, footprints, time lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Final, Protocol

from poly.document import CSS, Document, Text, bytes_text, counted, table

if TYPE_CHECKING:
    from poly.graph import Graph
    from poly.machine import Engine, Machine, Memory
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
    count = counted(len(script), "edit")
    folded = f"<details><summary>script, {count}</summary>{text_html(chr(10).join(script))}</details>"
    title = escape(repr(schedule).strip("<>"))
    return f'<div style="{CSS}"><b>{title}</b><div>{schedule_svg(schedule)}</div>{folded if script else ""}</div>'


class HasSchedule(Protocol):
    """A kernel for any machine."""

    @property
    def schedule(self) -> object: ...


def kernel_html(kernel: HasSchedule, *, facts: Sequence[tuple[str, str]] = (), text: str = "") -> str:
    """What is compiled: facts, the schedule it came from, and a text, folded."""
    document = Document(repr(kernel).strip("<>"), tuple(facts), (Text("text", text or str(kernel), folded=True),))
    tree = schedule_svg(kernel.schedule) if kernel.schedule is not None else ""
    return f"<div>{document.html()}<details><summary>schedule</summary>{tree}</details></div>"


def machine_html(machine: Machine) -> str:
    """Memories and engines."""

    def capacity(m: Memory) -> str:
        if m.capacity is None:
            return "unbounded"
        return f"{m.capacity} vectors" if m.kind == "register" else bytes_text(m.capacity)

    def size(e: Engine) -> str:
        return f"{e.rows} x {e.cols}" if e.kind == "array" else f"{e.lanes} lanes" if e.lanes else "-"

    memories = [
        (m.name, m.kind, capacity(m), m.banks, m.bytes_per_cycle or "-", m.latency or "-") for m in machine.memories
    ]
    engines = [(e.name, e.kind, size(e), ", ".join(f"{a} to {b}" for a, b in e.paths)) for e in machine.engines]
    facts = (("clock", f"{machine.clock_mhz} MHz"), ("cores", str(machine.cores)))
    return Document(
        f"machine {machine.name}, {machine.kind}",
        facts,
        (
            table("memories", ("memory", "kind", "capacity", "banks", "bytes a cycle", "latency"), memories),
            table("engines", ("engine", "kind", "size", "paths"), engines),
        ),
    ).html()


def graph_html(graph: Graph) -> str:
    """The nodes as a picture where there are few enough, else how many there are of each operator; the text folded."""
    counts = Counter(n.operator for n in graph.nodes)
    facts = (
        ("nodes", f"{len(graph.nodes)}: {', '.join(f'{c} {name}' for name, c in counts.most_common())}"),
        ("inputs", ", ".join(graph.label(t.name) for t in graph.inputs)),
        ("outputs", ", ".join(graph.label(t.name) for t in graph.outputs)),
        ("constants", bytes_text(sum(a.nbytes for a in graph.constants.values()))),
    )
    document = Document(f"graph {graph.name}", facts, (Text("text", str(graph), folded=True),))
    picture = graph_svg(graph) if 0 < len(graph.nodes) <= _MOST_NODES else ""
    return f"<div>{document.html()}{picture}</div>"


_MOST_NODES, _NODE_WIDTH, _NODE_HEIGHT = 120, 132, 34


def graph_svg(graph: Graph) -> str:
    """The nodes in rows by their distance from the inputs, edges from producer to consumer."""
    maker = {t: k for k, node in enumerate(graph.nodes) for t in node.outputs}
    rows: list[list[int]] = []
    depth: list[int] = []
    for k, node in enumerate(graph.nodes):
        depth.append(max((depth[maker[t]] + 1 for t in node.inputs if t in maker and maker[t] < k), default=0))
        rows += [[] for _ in range(depth[k] + 1 - len(rows))]
        rows[depth[k]].append(k)
    widest = max(len(row) for row in rows)
    place = {
        k: (((widest - len(row)) / 2 + c) * (_NODE_WIDTH + 14) + 8, r * (_NODE_HEIGHT + 16) + 8)
        for r, row in enumerate(rows) for c, k in enumerate(row)
    }  # fmt: skip
    lines: list[str] = []
    boxes: list[str] = []
    for k, node in enumerate(graph.nodes):
        x, y = place[k]
        for t in node.inputs:
            if t in maker and maker[t] < k:
                a, b = place[maker[t]]
                lines.append(
                    f'<line x1="{a + _NODE_WIDTH / 2:.0f}" y1="{b + _NODE_HEIGHT:.0f}" x2="{x + _NODE_WIDTH / 2:.0f}" '
                    f'y2="{y:.0f}" stroke="#8aa0b8"/>'
                )
        fill, stroke = KIND_COLOURS["vector" if node.external else "serial"]
        shape = "x".join(str(e) for e in graph.tensor[node.outputs[0]].shape) if node.outputs else ""
        boxes.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{_NODE_WIDTH}" height="{_NODE_HEIGHT}" rx="4" fill="{fill}" '
            f'stroke="{stroke}"><title>{escape(node.name)}</title></rect>'
            + _text(x + 6, y + 14, node.operator[:16], "#1c2733", bold=True)
            + _text(x + 6, y + 28, shape[:17], "#51606f")
        )
    width, height = widest * (_NODE_WIDTH + 14) + 2, len(rows) * (_NODE_HEIGHT + 16)
    return _svg(width, height, "".join([*lines, *boxes]))


def _svg(width: float, height: float, shapes: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="12">'
        f'<rect width="100%" height="100%" rx="6" fill="#ffffff"/>{shapes}</svg>'
    )


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


_FOR: Final = re.compile(
    r"for (?P<loop>.+?)(?P<kind> (?:parallel|vector|unroll|unit))?(?: nontemporal)?(?: ahead \(.+\))?(?: asks \(.+\))?"
    r"(?: next \(.+\))?(?: nowait \S+)?(?: leaves \S+)?(?: ends [^:]+?)?(?P<engine> on .+)?:$"
)


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
    return _svg(width, height, "".join(shapes) + legend)


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

    def __repr__(self) -> str:
        return f"<Svg, {len(self.text):,} characters: save(path), or a notebook shows it>"

    def _repr_svg_(self) -> str:
        return self.text

    def save(self, path: str) -> None:
        """Write an SVG file."""
        from pathlib import Path

        Path(path).write_text(self.text + "\n")


def schedule_tree(schedule: object) -> Svg:
    """`schedule_svg` as a picture."""
    return Svg(schedule_svg(schedule))
