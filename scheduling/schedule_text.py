"""Schedules as text: the source program, the script of edits, and the tree that they give.

    program matmul(M, N, K) where ...
    ...

    script
        tile(sizes=(('i', 16), ('j', 32)))
        promote(tensor='A', at='k.o', space='l1', name='A_l1')

    tree
        A_l1: f32[16, 8] in l1 scope (i.o, j.o, k.o) origin A
        for i.o parallel:
            for j.o:
                init[i, j]: C[i, j] = 0.0
                    at i.o = i // 16, j.o = j // 32

The tree is what the script gives; `parse_schedule` replays the script and refuses a text whose tree is another one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from poly.errors import ParseError
from poly.program import Tensor
from poly.scheduling.paths import Band, Leaf, Ordered, TreeNode
from poly.scheduling.schedule import Edit, Mark, Schedule
from poly.scheduling.script import PRIMITIVES, replay
from poly.text import parse_program, print_program
from poly.text_printed import assignment_text
from poly.text_syntax import tensor_text

INDENT = "    "
_SCRIPT, _TREE = "script", "tree"


def print_schedule(schedule: Schedule) -> str:
    """The source program, the script and the tree, see the module text."""
    script = [INDENT + str(edit) for edit in schedule.log]
    tree = [INDENT + line for line in tree_lines(schedule)]
    return "\n".join([print_program(schedule.source), _SCRIPT, *script, "", _TREE, *tree, ""])


def tree_lines(schedule: Schedule) -> Iterator[str]:
    """The promoted tensors and the tree: loops with how they run, statements with their loop expressions."""
    known = schedule.source.tensor
    for tensor in schedule.program.tensors:
        if tensor.name not in known:
            yield _promoted(tensor)
    yield from _node_lines(schedule, schedule.tree, "")


def _promoted(tensor: Tensor) -> str:
    return tensor_text(tensor, role=False)


def _node_lines(schedule: Schedule, node: TreeNode, indent: str) -> Iterator[str]:
    match node:
        case Band(loop, child):
            yield f"{indent}for {loop}{_mark_text(schedule.marks.get(loop, Mark()))}:"
            yield from _node_lines(schedule, child, indent + INDENT)
        case Ordered(children):
            for child in children:
                yield from _node_lines(schedule, child, indent)
        case Leaf(name):
            s, nest = schedule.program.statement[name], schedule.nests[name]
            what = "external" if s.external else assignment_text(s.write, s.combiner, s.body, s.reads)
            yield f"{indent}{s.tuple_text}: {what}"
            if nest.names:
                yield f"{indent}{INDENT}at {', '.join(f'{n} = {nest.loops[n]}' for n in nest.names)}"


def _mark_text(mark: Mark) -> str:
    kind = "" if mark.kind == "serial" else f" {mark.kind}"
    kind += " nontemporal" if mark.nontemporal else ""
    kind += f" ahead ({mark.ahead[0]}, {mark.ahead[1]})" if mark.ahead else ""
    kind += f" asks ({mark.asks.buffer}, {mark.asks.line})" if mark.asks else ""
    kind += f" next ({', '.join(str(part) for part in mark.block if part is not None)})" if mark.block else ""
    kind += f" nowait {mark.nowait}" if mark.nowait else ""
    kind += f" leaves {mark.leaves}" if mark.leaves else ""
    kind += f" ends {mark.ends}" if mark.ends else ""
    kind += f" on {mark.engine}" if mark.engine else ""
    return f"{kind} fill {mark.fill}" if mark.fill else kind


def parse_schedule(text: str) -> Schedule:
    """The schedule that a text describes: its script, replayed on its program.

    Raises `ParseError` where the text is not in the grammar or where the script gives another tree, and whatever the
    edits raise (`IllegalEdit`, `ScheduleError`).
    """
    program, script, tree = _sections(text)
    edits = [edit for number, line in script if (edit := parse_edit(line, number, text))]
    schedule = replay(parse_program(program), edits)
    if tree is not None:
        _same_tree(schedule, tree, text)
    return schedule


Lines = list[tuple[int, str]]


def _sections(text: str) -> tuple[str, Lines, Lines | None]:
    """Program text, script lines and tree lines (numbered from 1)."""
    lines = text.splitlines()
    heads = {line.rstrip(): k for k, line in enumerate(lines) if line.rstrip() in (_SCRIPT, _TREE)}
    if _SCRIPT not in heads:
        hint = "str(schedule) is such a text; of a program alone: Schedule(poly.parse(text))"
        raise ParseError("a schedule has a line `script` after its program, and the edits below it", hint=hint)
    start = heads[_SCRIPT]
    end = heads.get(_TREE, len(lines))
    if end < start:
        raise ParseError("the tree stands after the script", text=text, line=end + 1)
    numbered = list(enumerate(lines, 1))
    tree = [(n, line) for n, line in numbered[end + 1 :] if line.strip()] if _TREE in heads else None
    return "\n".join(lines[:start]) + "\n", numbered[start + 1 : end], tree


def parse_edit(line: str, number: int, text: str) -> Edit | None:
    """`name(key=literal, ...)`; None for a line without one."""
    if not line.strip():
        return None
    try:
        call = ast.parse(line.strip(), mode="eval").body
    except SyntaxError as error:
        raise ParseError("not an edit", text=text, line=number, column=error.offset or 0) from None
    except (ValueError, MemoryError, RecursionError):
        raise ParseError("nested too deeply, or not text", text=text, line=number) from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise ParseError("an edit is name(key=value, ...)", text=text, line=number)
    if call.func.id not in PRIMITIVES:
        indent = len(line) - len(line.lstrip())
        near = get_close_matches(call.func.id, PRIMITIVES, 1, 0.7)
        hint = near[0] if near else f"one of {', '.join(PRIMITIVES)}"
        raise ParseError(f"no edit {call.func.id!r}", text=text, line=number, column=indent, hint=hint)
    arguments: list[tuple[str, object]] = []
    for keyword in call.keywords:
        try:
            arguments.append((keyword.arg or "", ast.literal_eval(keyword.value)))
        except (ValueError, TypeError, MemoryError, RecursionError):
            raise ParseError("arguments are literals", text=text, line=number, column=keyword.col_offset) from None
    return Edit(call.func.id, tuple(arguments))


def _same_tree(schedule: Schedule, tree: Lines, text: str) -> None:
    found: Sequence[str] = [INDENT + line for line in tree_lines(schedule)]
    for k in range(max(len(found), len(tree))):
        expected = tree[k][1].rstrip() if k < len(tree) else "(nothing)"
        got = found[k] if k < len(found) else "(nothing)"
        if expected != got:
            line = tree[k][0] if k < len(tree) else tree[-1][0] if tree else 0
            column = len(expected) - len(expected.lstrip()) if k < len(tree) else 0
            hint = "edit the script and leave the tree out: it is made from the script"
            message = f"the script gives another tree: {got.strip()!r}"
            raise ParseError(message, text=text, line=line, column=column, hint=hint)
