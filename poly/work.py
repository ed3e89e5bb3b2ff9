"""What `poly run` and `poly show` work on: from a word on the command line to a program or a graph, and its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np

from poly.affine import Affine
from poly.console import busy
from poly.document import counted
from poly.dtypes import Array, dtype_name, is_float, numpy_dtype
from poly.errors import OnnxError, ParseError, PolyError, ShapeError
from poly.files import near_file, what_instead
from poly.graph import Graph
from poly.program import Program, Tensor
from poly.scheduling.schedule import Schedule
from poly.sets import identifier

if TYPE_CHECKING:
    import onnx

Named = tuple[str | None, str]


class UsageError(PolyError):
    """Arguments that do not go together; the command ends with 2."""


@dataclass(frozen=True)
class Work:
    """What a command works on. `spec`: of an einsum; `model`: of a graph, `constants` its fixed inputs; `schedule`:
    where the text brought one. `refused`: why a model has no static graph; it then compiles while it runs, for
    `tensors`, its inputs by the names a user knows them by.
    """

    name: str
    program: Program | None = None
    graph: Graph | None = None
    spec: str = ""
    model: onnx.ModelProto | None = None
    schedule: Schedule | None = None
    constants: Mapping[str, Array] = field(default_factory=dict)
    refused: OnnxError | None = None
    tensors: tuple[tuple[str, Tensor], ...] = ()

    @property
    def inputs(self) -> tuple[tuple[str, Tensor], ...]:
        """Inputs by the names a user knows them by."""
        if self.graph is not None:
            return tuple((self.graph.label(t.name), t) for t in self.graph.inputs)
        if self.program is None:
            return self.tensors
        return tuple((t.name, t) for t in self.program.with_role("input", "inout", "state", "constant"))


def load(
    what: str, shapes: Sequence[Named] = (), dtype: str = "", arrays: Sequence[Named] | None = None,
    bind: Sequence[Named] = (), constants: Sequence[Named] = (),
) -> Work:  # fmt: skip
    """Read an ONNX file, a text file, Einstein notation or an einsum spec.

    `shapes`: (tensor or None, "64,32"); for einsum in the order of the operands. `arrays`: (name or None, file), which
    also give shapes and dtypes of einsum operands, and shapes that notation leaves out; None where the command takes
    none. `bind`, `constants`: dynamic dimensions and fixed inputs of a model.
    Raises `UsageError` for a word that is none of these.
    """
    path, files = Path(what), arrays or ()
    if dtype and (what.endswith(".onnx") or path.suffix == ".nest" or "[" in what or "=" in what):
        own = "a model has dtypes of its own" if what.endswith(".onnx") else f'in the text: "input x: {dtype}[8]; ..."'
        raise UsageError("--dtype is for einsum specs", hint=own)
    if what.endswith(".onnx"):
        given, fixed = bindings(what, shapes, bind, constants)
        return _load_onnx(path, given, fixed, files)
    if bind or constants:
        raise UsageError("--bind and --constant are for ONNX files", hint="--shape NAME=64,64")
    if path.suffix == ".toml":
        raise UsageError(f"{what} is a machine", hint=f'--target {what}, of a program: "C[i,k] += A[i,j]*B[j,k]"')
    if len(what) < 4096 and "\n" not in what and path.is_file():
        text = _text_of(path)
        return _load_nest(path, text) if path.suffix == ".nest" else _load_text(text, shapes, path.stem, files)
    if "[" in what or "=" in what:
        return _load_text(what, shapes, "", files)
    if what and path.is_dir():
        raise UsageError(f"{what} is a folder", hint=what_instead(path))
    if not what.strip() or not any(c in what for c in ",>. ") and not what.isalpha():
        raise UsageError(f"{what!r} is no file, no notation and no einsum spec", hint='"C[i,k] += A[i,j]*B[j,k]"')
    return _load_einsum(what, shapes, dtype, arrays)


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        hint = "arrays are given by --input" if path.suffix in (".npy", ".npz") else "a model's file ends in .onnx"
        raise UsageError(f"{path} is no text", hint=hint) from error


def _extents(text: str) -> tuple[int | str, ...]:
    parts = [p.strip() for p in text.strip("()[] ").split(",") if p.strip()]
    return tuple(int(p) if p.lstrip("-").isdigit() else p for p in parts)


def _ints(text: str, what: str, name: str = "") -> tuple[int, ...]:
    extents = _extents(text)
    found = tuple(e for e in extents if isinstance(e, int) and e >= 0)
    if len(found) < len(extents):
        own, whole = name and f"{name}=", ",".join(str(e if e in found else 8) for e in extents)
        raise UsageError(f"--shape {own}{text}: {what} have extents of ints", hint=f"--shape {own}{whole}")
    return found


def read_array(file: str) -> Array:
    """An array from a .npy file, or FILE.npz:NAME. Raises `UsageError` where it is none."""
    path, name = _archived(file)
    try:
        found = np.load(path)
        if isinstance(found, np.ndarray):
            return found
        with found:
            names = list(found)
            if name in names or (not name and len(names) == 1):
                return found[name or names[0]]
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise UsageError(f"{path}: {str(error).splitlines()[0]}", hint="a file that numpy.save has written") from error
    if name:
        raise UsageError(f"{path} has no array {name!r}", hint=f"arrays: {', '.join(names) or 'none'}")
    text = f"{path} holds {'several' if names else 'no'} arrays"
    raise UsageError(text, hint=f"{path}:{names[0] if names else 'NAME'}, one for each input")


def _archived(file: str) -> tuple[str, str]:
    """The file and the array's name of FILE.npz:NAME."""
    path, archive, name = file.partition(".npz:")
    return (f"{path}.npz", name) if archive else (file, "")


def bindings(
    file: str, shapes: Sequence[Named], bind: Sequence[Named], constants: Sequence[Named]
) -> tuple[dict[str, tuple[int, ...] | int], dict[str, Array]]:
    """What binds a model: shapes of inputs and extents of dynamic dimensions; the arrays of fixed inputs.

    Raises `UsageError` for what is no NAME=VALUE, or where there is no such file.
    """
    if not Path(file).is_file():
        notation = "[" in file or "=" in file or "->" in file
        sizes = "".join(f" --shape {name + '=' if name else ''}{text}" for name, text in shapes)
        if not sizes and "=" not in file and "[" not in file:  # an einsum
            sizes = "".join(f" --shape {','.join('8' * len(t.strip()))}" for t in file.partition("->")[0].split(","))
        hint = f'poly run "{file}"{sizes or " --shape NAME=64,64"} --check' if notation else near_file(file)
        raise UsageError(f"{file!r} is no model" if notation else f"no file {file}", hint=hint)
    given: dict[str, tuple[int, ...] | int] = {}
    for name, text in shapes:
        if name is None:
            raise UsageError(f"--shape {text}: of which input?", hint=f"--shape INPUT={text}")
        given[name] = _ints(text, "inputs of a model", name)
    for name, text in bind:
        if name is None or not text.isdigit():
            given_as = f"{name}={text}" if name else text
            hint = f"--bind {name or text or 'batch'}=1"
            raise UsageError(f"--bind {given_as}: no extent of a dimension", hint=hint)
        given[name] = int(text)
    return given, {name or "": _fixed(file, name, text) for name, text in _constants(constants)}


def _constants(given: Sequence[Named]) -> list[Named]:
    """Each fixed input by itself: a .npz without a name is all its arrays."""
    return [one for each in given for one in (input_files([each]) if _is_data(each[1]) else [each])]


def _is_data(file: str) -> bool:
    return _archived(file)[0].endswith((".npy", ".npz"))


def _fixed(file: str, name: str | None, text: str) -> Array:
    """The array of a fixed input: a file's, or a number in the dtype that the model declares."""
    if name is None:
        raise UsageError(f"--constant {text}: of which input?", hint=f"--constant INPUT={text}")
    if _is_data(text):
        return read_array(text)
    from poly.frontend.onnx_model import input_dtype, load_model

    dtype = input_dtype(load_model(file), name)
    try:
        return np.array(float(text) if is_float(dtype) else int(text), numpy_dtype(dtype))
    except (ValueError, OverflowError) as error:
        hint = f"{name}=NUMBER, {name}=FILE.npy or {name}=FILE.npz:ARRAY"
        raise UsageError(f"--constant {name}={text}: no number of {dtype} and no file of arrays", hint=hint) from error


def _load_onnx(
    path: Path, given: Mapping[str, tuple[int, ...] | int], constants: Mapping[str, Array], arrays: Sequence[Named]
) -> Work:
    import onnx

    from poly.frontend.onnx_import import from_onnx
    from poly.frontend.onnx_model import load_model

    with busy(f"reading {path.name}"):
        given = {**_shapes_of(load_model(path), constants, arrays), **given}
        try:
            graph = from_onnx(path, given, constants)
        except OnnxError as error:
            refused = _as_options(error, path, given, constants)
            tensors = _inputs_at_run_time(load_model(path), given, constants)
            if tensors is None:
                raise refused from None
            return Work(path.stem, model=load_model(path), constants=dict(constants), refused=refused, tensors=tensors)
        model = onnx.load(str(path))
    return Work(path.stem, graph=graph, model=model, constants=dict(constants))


def _shapes_of(
    model: onnx.ModelProto, constants: Mapping[str, Array], arrays: Sequence[Named]
) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs that files give, by name or in order."""
    free = [i.name for i in _free_inputs(model, constants)]
    unnamed = [file for name, file in arrays if name is None]
    pairs = [(n, f) for n, f in arrays if n is not None] + list(zip(free, unnamed, strict=False))
    return {name: read_array(file).shape for name, file in pairs if name in free}


def _free_inputs(model: onnx.ModelProto, constants: Mapping[str, Array]) -> list[onnx.ValueInfoProto]:
    fixed = {i.name for i in model.graph.initializer} | constants.keys()
    return [i for i in model.graph.input if i.name not in fixed]


def _inputs_at_run_time(
    model: onnx.ModelProto, given: Mapping[str, tuple[int, ...] | int], constants: Mapping[str, Array]
) -> tuple[tuple[str, Tensor], ...] | None:
    """The inputs of a model that compiles while it runs; None where a shape is open, or one is no array of numbers."""
    from poly.frontend.onnx_model import input_dtype, input_shapes

    free = _free_inputs(model, constants)
    try:
        shapes = input_shapes(list(model.graph.input), given, constants)
        known = {
            i.name: tuple(Affine((), n) for n in shape) for i, (shape, _) in zip(model.graph.input, shapes, strict=True)
        }
        tensors = [Tensor(identifier(i.name), known[i.name], input_dtype(model, i.name), "input") for i in free]
    except PolyError:
        return None
    return tuple(zip([i.name for i in free], tensors, strict=True))


def _as_options(
    error: OnnxError, path: Path, given: Mapping[str, tuple[int, ...] | int], constants: Mapping[str, Array]
) -> OnnxError:
    """An error whose hint is a call of `from_onnx`, with options of the command instead."""
    if not (error.hint or "").startswith("from_onnx("):
        return error
    from poly.frontend.onnx_model import dynamic_dimensions, load_model
    from poly.model_check import assumed_sizes

    model = load_model(path)
    free = dynamic_dimensions(model, given, constants)
    sizes = assumed_sizes(model, given, constants)
    hint = " ".join(f"--bind {name}={sizes.get(name, 1)}" for name in free) or "--shape INPUT=1,3,224,224"
    return OnnxError(error.message, where=error.where, hint=f"{hint}, with the extents you need")


def _load_text(text: str, shapes: Sequence[Named], name: str, arrays: Sequence[Named]) -> Work:
    if any(line.rstrip() == "script" for line in text.splitlines()):
        from poly.scheduling.schedule_text import parse_schedule

        schedule = parse_schedule(text)
        return Work(schedule.source.name, program=schedule.source, schedule=schedule)
    given: dict[str, tuple[int | str, ...]] = {}
    for tensor, extents in shapes:
        if tensor is None:
            raise UsageError(f"--shape {extents}: notation needs the tensor's name", hint=f"--shape A={extents}")
        given[tensor] = _extents(extents)
    if "dtypes" in given:
        raise UsageError("--shape dtypes: a tensor of this name is declared in the text", hint="input dtypes: f32[8]")
    program = _parsed(text, given, arrays)
    return Work(name or program.name, program=program)


def _parsed(text: str, given: Mapping[str, tuple[int | str, ...]], arrays: Sequence[Named]) -> Program:
    """Notation as a program. A shape or dtype that the text leaves out is that of the tensor's array, where a file
    gives one.
    """
    from poly.frontend.notation import inputs_of, parse

    files, dtypes = dict[str, str](), dict[str, str]()
    if arrays:
        try:
            inputs = inputs_of(text, **given)
        except ParseError:  # parse has more to say
            inputs = dict[str, str | None]()
        unnamed = [file for name, file in arrays if name is None]
        files = dict(zip(inputs, unnamed, strict=False)) | {name: file for name, file in arrays if name is not None}
        dtypes = {n: dtype_name(read_array(f).dtype) for n, f in files.items() if n in inputs and inputs[n] is None}
    try:
        return parse(text, dtypes=dtypes, **given)
    except (ParseError, ShapeError) as error:
        if (wanted := error.wanted) is None:
            raise
        tensor = wanted.tensor
        if tensor not in given and tensor in files:
            return _parsed(text, {**given, tensor: read_array(files[tensor]).shape}, arrays)
        if not wanted.extents:  # an index, most likely
            raise
        file = f", or --input {tensor}=FILE.npy" if arrays else ""
        extents = ",".join("64" if e is None else str(e).replace(" ", "") for e in wanted.extents)
        raise UsageError(error.message, where=error.where, hint=f"--shape {tensor}={extents}{file}") from None


def _load_nest(path: Path, text: str) -> Work:
    """A case of the regression tests: its sections `[program]` and `[script]`."""
    from poly.frontend.notation import parse
    from poly.scheduling.schedule_text import parse_edit
    from poly.scheduling.script import apply_edit

    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]") and line[1:-1].isidentifier():
            current = sections.setdefault(line[1:-1], [])
        else:
            current.append(line)
    if "program" not in sections:
        raise UsageError("has no section [program]", where=str(path))
    schedule = Schedule(parse("\n".join(sections["program"])))
    script = sections.get("script", [])
    for number, line in enumerate(script, 1):
        edit = parse_edit(line, number, "\n".join(script))
        schedule = schedule if edit is None else apply_edit(schedule, edit)
    return Work(path.stem, program=schedule.source, schedule=schedule if schedule.log else None)


def _load_einsum(spec: str, shapes: Sequence[Named], dtype: str, arrays: Sequence[Named] | None) -> Work:
    from poly.frontend.einsum import einsum_program

    operands = spec.split("->")[0].count(",") + 1
    if arrays and (shapes or dtype):
        raise UsageError(f"--input beside {'--shape' if shapes else '--dtype'}", hint="files say both: --input alone")
    if arrays:
        given = [read_array(file) for _, file in arrays]
        found, dtypes = [a.shape for a in given], [dtype_name(a.dtype) for a in given]
    else:
        found = [_ints(text, "operands of an einsum") for _, text in shapes]
        dtypes = [dtype or "f32"] * len(found)
    if len(found) != operands:
        raise UsageError(
            f"{spec!r} has {counted(operands, 'operand')}, not {len(found)}",
            hint=" ".join(["--shape 64,64"] * operands) + ("" if arrays is None else ", or --input FILE.npy for each"),
        )
    return Work(spec, program=einsum_program(spec, found, dtypes), spec=spec)


# ---- inputs


def random_array(tensor: Tensor, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """Seeded values: normal floats, small integers (not negative where they may be subscripts), bools."""
    shape, dtype = tensor.extents(sizes), numpy_dtype(tensor.dtype)
    if tensor.dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if is_float(tensor.dtype):
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.integers(-8 if tensor.dtype in ("i8", "i16") else 0, 8, shape).astype(dtype)


def read_inputs(work: Work, given: Sequence[Named], seed: int) -> dict[str, Array]:
    """Arrays by input name: from files (by name, or in order), random where none is given. Raises `UsageError`."""
    known = dict(work.inputs)
    found: dict[str, Array] = {}
    unnamed = [file for name, file in given if name is None]
    for name, file in [(n, f) for n, f in given if n is not None] + list(zip(known, unnamed, strict=False)):
        if name not in known:
            first = f"; --input {next(iter(known))}={file} gives it to one" if known and _archived(file)[1] else ""
            raise UsageError(f"no input {name!r}", hint=f"inputs: {', '.join(known)}{first}")
        found[name] = read_array(file)
    if len(unnamed) > len(known):
        text = f"{counted(len(unnamed), 'array')} for {counted(len(known), 'input')}"
        raise UsageError(text, hint=f"inputs: {', '.join(known)}")
    rng = np.random.default_rng(seed)
    sizes = known_sizes(work, found)
    return {n: found[n] if n in found else random_array(t, sizes, rng) for n, t in known.items()}


def known_sizes(work: Work, arrays: Mapping[str, Array]) -> dict[str, int]:
    """Values of all sizes: bound ones, and those that the arrays give. Raises `UsageError` where one stays open."""
    if work.program is None:
        return {}
    sizes = work.program.binding
    for name, tensor in work.inputs:
        for extent, length in zip(tensor.shape, np.shape(arrays[name]) if name in arrays else (), strict=False):
            if len(extent.names) == 1 and extent.constant == 0:
                sizes.setdefault(next(iter(extent.names)), length)
    if free := [p for p in work.program.parameters if p not in sizes]:
        raise UsageError(
            f"size {free[0]} is not known", hint="give arrays with --input, or shapes of ints with --shape"
        )
    return sizes


def input_files(given: Sequence[Named]) -> list[Named]:
    """One file, or FILE.npz:NAME, for each array: a .npz without a name is all its arrays, by theirs, or in order where
    `numpy.savez` has numbered them. Raises `UsageError` for files that are not there, before anything is compiled.
    """
    found = list[Named]()
    for name, file in given:
        path, member = _archived(file)
        if not Path(path).is_file():
            raise UsageError(f"no file {path}", hint=near_file(path))
        if name is not None or member or not path.endswith(".npz"):
            found.append((name, file))
            continue
        try:
            with np.load(path) as archive:
                names = list(archive)
        except (OSError, ValueError, EOFError, BadZipFile, AttributeError, TypeError) as error:
            raise UsageError(f"{path} is no archive of arrays", hint="a file that numpy.savez has written") from error
        numbered = sorted(names) == sorted(f"arr_{i}" for i in range(len(names)))
        found += [(None if numbered else n, f"{path}:{n}") for n in names]
    return found
