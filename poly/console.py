"""What the command line prints with: tables, and progress that shows only where work takes longer than a second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from textwrap import wrap
from time import monotonic
from typing import TYPE_CHECKING, Final

from poly.document import Document, Table
from poly.settings import progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

Progress = Callable[[int, int], None]  # told how much is done, of how much

PATIENCE: Final = 1.0


def console(*, stderr: bool = False) -> Console:
    """A console; wide where nobody watches, so that no cell of a piped table is cut."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else 160)


def print_code(text: str) -> None:
    """A text of ours; on a terminal long lines go on below, indented: in a file each stays one."""
    if sys.stdout.isatty():
        width = max(40, get_terminal_size().columns)
        text = "\n".join(part for line in text.split("\n") for part in _broken(line, width))
    print(text)


def _broken(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = " " * min(len(line) - len(line.lstrip()), width // 2)
    return wrap(line.strip(), width, initial_indent=indent, subsequent_indent=f"{indent}        ",
                break_long_words=False, break_on_hyphens=False)  # fmt: skip


class Steps:
    """`steps(done, all)`: a progress bar on stderr, from the second second on; on a terminal or in a notebook only."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._start = monotonic()
        self._progress: Bar | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._progress is None and _watched() and monotonic() - self._start > PATIENCE and done < total:
            from rich.progress import Progress as Bar

            self._progress = Bar(console=console(stderr=True), transient=True)
            self._progress.start()
            self._task = self._progress.add_task(self.what, total=total)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _notebook() -> bool:
    """Whether this runs in a notebook, whose streams are no terminals."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _watched() -> bool:
    return progress() != "off" and (sys.stderr.isatty() or _notebook())


def interactive() -> bool:
    """Whether calls of the library show how far they are: where somebody types, or the setting says so."""
    typed = hasattr(sys, "ps1") or bool(sys.flags.interactive) or "IPython" in sys.modules
    return _watched() and (typed or progress() == "on")


@contextmanager
def steps(what: str) -> Generator[Callable[[int, int], None], None, None]:
    """A progress callback for the length of a block."""
    found = Steps(what)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def busy(what: str) -> Generator[None, None, None]:
    """A spinner for work without steps, on a terminal."""
    if not sys.stderr.isatty() or progress() == "off":
        yield
        return
    with console(stderr=True).status(what):
        yield


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; columns of numbers are set to the right."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table as RichTable

    cells = [tuple(map(str, row)) for row in rows]
    numeric = Table(title, tuple(columns), tuple(cells)).numeric
    shown = RichTable(
        title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False,
        show_edge=False,
    )  # fmt: skip
    for column, right in zip(columns, numeric, strict=True):
        shown.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in cells:
        shown.add_row(*map(escape, row))
    terminal = console()
    with terminal.capture() as text:
        terminal.print(shown)
    print("\n".join(line.rstrip() for line in text.get().splitlines()))


def print_facts(title: str, facts: Sequence[tuple[str, str]]) -> None:
    """A title and lines of label and value."""
    print(Document(title, tuple(facts)))
