"""The command `poly`: run, show, check, demo, machines. Exit codes: 1 failure or mismatch, 2 wrong usage."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from poly.errors import FallbackWarning, PolyError, SettingWarning

if TYPE_CHECKING:
    from poly.work import Named

_EXAMPLES = """\
examples:
  poly demo
  poly run "ij,jk->ik" --shape 64,96 --shape 96,32 --check
  poly run model.onnx --shape data=1,3,224,224 --target s16 --check
  poly show "C[i,k] += A[i,j]*B[j,k]" --shape A=64,96 --shape B=96,32 --level loops
  poly show model.onnx --group 3 --level asm
  poly check model.onnx --bind batch=1 --bind sequence=128
"""
_CHECK = """\
Dynamic dimensions that are not bound get extents that are assumed, and the report says so. Exit code 0: the model can
be compiled; 1: it cannot, or with --strict a node is left to the reference evaluator.
"""
_MEANT = {"explain": "poly show WHAT --level explain", "profile": "poly.compile(model).profile(inputs), in Python",
          "compile": "poly run WHAT"}  # fmt: skip
_WHAT = "a path to an ONNX file, a path to a text file, Einstein notation, or an einsum spec"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = _parser()
    given = sys.argv[1:] if arguments is None else [*arguments]
    if given and given[0] in _MEANT:
        parser.error(f"no command {given[0]!r}; try: {_MEANT[given[0]]}")
    options = parser.parse_args(given)
    if options.command is None:
        parser.print_help()
        return 2
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _shown_as_ours(warnings.showwarning)
            return int(options.run(options))
    except BrokenPipeError:  # the reader of a pipe has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except PolyError as error:
        return _fail(error)
    except (OSError, MemoryError) as error:
        print(f"poly: {str(error) or 'out of memory'}", file=sys.stderr)
        return 1


def _shown_as_ours(others: Callable[..., None]) -> Callable[..., None]:
    """What prints warnings: ours as a line of this command, those of libraries as `others` does."""

    def show(message: Warning | str, category: type[Warning], *place: object) -> None:
        if issubclass(category, SettingWarning | FallbackWarning):
            print(f"poly: {message}", file=sys.stderr)
        else:
            others(message, category, *place)

    return show


def _fail(error: PolyError) -> int:
    from poly.work import UsageError

    print(f"poly: {type(error).__name__}: {error}", file=sys.stderr)
    return 2 if isinstance(error, UsageError) else 1


def _parser() -> argparse.ArgumentParser:
    from poly import __version__

    parser = argparse.ArgumentParser(
        "poly", description="A polyhedral compiler for tensor programs.", epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"polyloom {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for add_command in (_add_run, _add_show, _add_check, _add_demo, _add_machines):
        add_command(commands.add_parser)
    return parser


_Add: TypeAlias = Callable[..., argparse.ArgumentParser]


def _add_run(add: _Add) -> None:
    run = add("run", help="compile and run a model, a program or an einsum", epilog=_EXAMPLES,
              formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    _add_what(run)
    run.add_argument("--input", action="append", default=[], metavar="[NAME=]FILE",
                     help="an input's array, FILE.npy or FILE.npz:ARRAY; without a name in the order of the inputs;"
                          " a .npz alone is all its arrays, by their names; what is not given is random")  # fmt: skip
    run.add_argument("--seed", type=_natural, default=0, help="of the random inputs (default 0)")
    run.add_argument("--check", action="store_true", help="compare with numpy or onnx.reference; 1 on a mismatch")
    run.add_argument("--tune", type=_positive, default=0, metavar="N",
                     help="measure N plans of each contraction, and keep the fastest on disk")  # fmt: skip
    run.add_argument("--save", metavar="OUT.npz", help="write the outputs")
    run.set_defaults(run=_run)


def _add_show(add: _Add) -> None:
    show = add("show", help="print a level of what is made", epilog=_EXAMPLES,
               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    _add_what(show)
    show.set_defaults(target=None)
    levels = ("program", "schedule", "loops", "ir", "asm", "stream", "explain")
    show.add_argument("--level", default="program", choices=levels,
                      help="which level (default program); stream needs an accelerator (default s16)")  # fmt: skip
    show.add_argument("--group", type=int, metavar="N", help="the group of a model that is shown")
    show.set_defaults(run=_show)


def _add_check(add: _Add) -> None:
    check = add("check", help="coverage, memory and work of a model, before anything is compiled",
                epilog=_CHECK, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    check.add_argument("what", metavar="MODEL.onnx")
    _add_bindings(check)
    check.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,224,224", help="an input's shape")
    check.add_argument("--json", action="store_true", help="the report as JSON")
    check.add_argument("--strict", action="store_true", help="nodes left to the reference evaluator are a failure too")
    check.set_defaults(run=_check)


def _add_demo(add: _Add) -> None:
    demo = add("demo", help="compile an einsum and a network for CPU and accelerator, and check both")
    demo.add_argument("--threads", type=_positive, default=None, help="for the CPU (default: all cores)")
    demo.add_argument("--target", default="s16", metavar="PROFILE", help="the accelerator (default s16)")
    demo.set_defaults(run=_demo)


def _add_machines(add: _Add) -> None:
    machines = add("machines", help="list the targets, or print one")
    machines.add_argument("target", metavar="NAME", nargs="?", help="the one to print")
    machines.set_defaults(run=_machines)


def _add_bindings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bind", action="append", default=[], metavar="NAME=N",
                        help="the extent of a model's dynamic dimension")  # fmt: skip
    parser.add_argument("--constant", action="append", default=[], metavar="NAME=VALUE",
                        help="a model's input that is fixed: a number, FILE.npy or FILE.npz:ARRAY; a .npz alone is all"
                             " its arrays, by their names")  # fmt: skip


def _add_what(parser: argparse.ArgumentParser) -> None:
    _add_bindings(parser)
    parser.add_argument("what", metavar="WHAT", help=_WHAT)
    parser.add_argument("--target", default="cpu", help="cpu, a profile's name (see poly machines) or a TOML file")
    parser.add_argument("--shape", action="append", default=[], metavar="[NAME=]1,3,224,224",
                        help="a tensor's shape; einsum operands have no names, in their order")  # fmt: skip
    parser.add_argument("--dtype", default="", help="of einsum operands without an array (default f32)")
    parser.add_argument("--threads", type=_positive, default=1, help="for the CPU (default 1)")


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _named(texts: Sequence[str]) -> list[Named]:
    """NAME=VALUE or VALUE."""
    parts = [text.rpartition("=") for text in texts]
    return [(name or None, value) for name, _, value in parts]


def _run(options: argparse.Namespace) -> int:
    from poly.commands import run
    from poly.work import input_files, load

    arrays = input_files(_named(options.input))
    work = load(options.what, _named(options.shape), options.dtype, arrays, _named(options.bind),
                _named(options.constant))  # fmt: skip
    good = run(work, options.target, options.threads, arrays, options.seed, options.check, options.save, options.tune)
    return 0 if good else 1


def _show(options: argparse.Namespace) -> int:
    from poly.commands import DEFAULT_PROFILE, show
    from poly.console import print_code
    from poly.work import load

    target = options.target or "cpu"
    if options.level == "stream" and options.target is None:
        target = DEFAULT_PROFILE
        print(f"poly: the stream for {target}; another accelerator: --target NAME (see poly machines)", file=sys.stderr)
    work = load(options.what, _named(options.shape), options.dtype, None, _named(options.bind),
                _named(options.constant))  # fmt: skip
    text = show(work, options.level, target, options.group, options.threads).rstrip("\n")
    if options.level in ("program", "schedule", "loops"):
        print_code(text)
    else:
        print(text)
    return 0


def _check(options: argparse.Namespace) -> int:
    from poly.model_check import check_model
    from poly.work import bindings

    shapes, constants = bindings(options.what, _named(options.shape), _named(options.bind), _named(options.constant))
    found = check_model(options.what, shapes, constants)
    if options.json:
        import json

        print(json.dumps(found.as_dict(), indent=2))
    else:
        print(found)
    return 0 if found.ok and not (options.strict and found.fallbacks) else 1


def _demo(options: argparse.Namespace) -> int:
    from poly.demo import demo

    return 0 if demo(options.target, options.threads) else 1


def _machines(options: argparse.Namespace) -> int:
    from poly.accel.profile import profile, profile_names
    from poly.codegen.host import host_machine
    from poly.console import print_table
    from poly.document import bytes_text

    if options.target is not None:
        print(host_machine() if options.target == "cpu" else profile(options.target))
        return 0
    rows: list[tuple[str, ...]] = []
    for name, machine in [("cpu", host_machine()), *((n, profile(n)) for n in profile_names())]:
        memories = ", ".join(
            f"{m.name} {m.capacity} vectors" if m.kind == "register" else f"{m.name} {bytes_text(m.capacity)}"
            for m in machine.memories
            if m.capacity is not None
        )
        engines = ", ".join(
            f"{e.name} {e.rows}x{e.cols}" if e.kind == "array" else f"{e.name} {e.lanes} lanes" if e.lanes else e.name
            for e in machine.engines
        )
        rows.append((name, machine.kind, f"{machine.clock_mhz} MHz", str(machine.cores), engines, memories))
    print_table("", ("target", "kind", "clock", "cores", "engines", "memories"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
