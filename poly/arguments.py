"""Arguments of the wrong kind become errors of ours before they get anywhere.

`checks_kinds` reads the annotations of a function, which are texts, and knows the plain ones: `str`, `int`, `float`,
`SupportsIndex` (an int of Python or numpy), `bool`, `None`, `Sequence[...]`, `Mapping[..., ...]`, `tuple[..., ...]` and
unions of these. Any other takes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar

import numpy as np

from poly.document import counted
from poly.dtypes import dtype_name
from poly.errors import ArgumentTypeError, PolyError, RunError

P = ParamSpec("P")
R = TypeVar("R")
Fits = Callable[[object], bool]
Hint = str | Callable[[tuple[object, ...], Mapping[str, object]], str]  # of a wrong call's arguments
_LONGEST: Final = 80
MOST_SIZE: Final = 1 << 63
_MANY: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def checks_kinds(
    error: type[PolyError], *classes: str, hint: Hint = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: raise `error` for an argument that is not of the kind its annotation says.

    `classes`: other classes that the annotations name and that are looked at too. `hint`: a call, in place of the
    signature; a function of the arguments gives "" where it knows none. Missing and unknown arguments are an
    `ArgumentTypeError`, which is Python's `TypeError`, too.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        kinds = _Kinds.of(function, classes)
        named, tests, more, other = kinds.named, tuple(kinds.named.values()), kinds.more, kinds.other

        def refuse(args: tuple[object, ...], keywords: Mapping[str, object]) -> None:
            given = _bound(function.__name__, kinds.parameters, args, keywords, hint)
            wrong = _first_wrong(given, kinds.parameters.parameters, kinds.written)
            if wrong is not None:
                raise error(f"{function.__name__}: {wrong[0]}", hint=_hint(hint, args, keywords) or wrong[1])

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for test, value in zip(tests, args, strict=False):
                if not test(value):
                    refuse(args, kwargs)
            for value in args[len(tests) :]:
                if not more(value):
                    refuse(args, kwargs)
            for name, value in kwargs.items():
                if not named.get(name, other)(value):
                    refuse(args, kwargs)
            try:
                return function(*args, **kwargs)
            except TypeError:
                _bound(function.__name__, kinds.parameters, args, kwargs, hint)
                raise

        return call

    return decorate


@dataclass(frozen=True)
class _Kinds:
    """What a function's annotations say of its arguments. `written`: annotations that are text, with their tests;
    `named`: the tests of its parameters, in order; `more`, `other`: of further ones, by position and by name.
    """

    parameters: Signature
    written: Mapping[str, tuple[str, Fits]]
    named: Mapping[str, Fits]
    more: Fits
    other: Fits

    @classmethod
    def of(cls, function: Callable[..., object], classes: Sequence[str]) -> _Kinds:
        parameters = signature(function)
        takes = parameters.parameters.values()
        written = {p.name: (p.annotation, fits(p.annotation, classes)) for p in takes if isinstance(p.annotation, str)}
        tests = {p.name: written[p.name][1] if p.name in written else _anything for p in takes}
        named = {p.name: tests[p.name] for p in takes if p.kind not in _MANY}
        more, other = (next((tests[p.name] for p in takes if p.kind is many), _anything) for many in _MANY)
        return cls(parameters, written, named, more, other)


def knows_arguments(name: str = "", hint: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: missing and unknown arguments are an `ArgumentTypeError`, looked for where a call fails.

    `name`: what the function is called there; `hint`: in place of its near name or signature.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError:
                _bound(name or function.__name__, signature(function), args, kwargs, hint)
                raise

        return call

    return decorate


def _bound(
    name: str, parameters: Signature, args: tuple[object, ...], given: Mapping[str, object], hint: Hint = ""
) -> Mapping[str, Any]:
    """The arguments by their names. Raises `ArgumentTypeError` for those that a function of this name does not take."""
    try:
        return parameters.bind(*args, **given).arguments
    except TypeError as wrong:
        text = _hint(hint, args, given) or _signature_hint(name, parameters, given)
        raise ArgumentTypeError(str(wrong), where=name, hint=text) from None


def _hint(hint: Hint, args: tuple[object, ...], given: Mapping[str, object]) -> str:
    return hint if isinstance(hint, str) else hint(args, given)


def _signature_hint(name: str, parameters: Signature, given: Mapping[str, object]) -> str:
    """The name that is meant by an unknown one, else how the function is called."""
    names = [p.name for p in parameters.parameters.values() if p.kind not in _MANY and p.name != "self"]
    for unknown in (n for n in given if n not in names):
        if near := get_close_matches(unknown, names, 1, 0.5):
            return f"{near[0]}="
    plain = [p.replace(annotation=Parameter.empty) for p in parameters.parameters.values() if p.name != "self"]
    return f"{name}{parameters.replace(parameters=plain, return_annotation=Signature.empty)}"


def _first_wrong(
    given: Mapping[str, Any], parameters: Mapping[str, Parameter], kinds: Mapping[str, tuple[str, Fits]]
) -> tuple[str, str] | None:
    """What is wrong with the first argument that does not fit, and a hint; None where all fit."""
    for name, value in ((n, v) for n, v in given.items() if n in kinds):
        kind, test = kinds[name]
        match parameters[name].kind:
            case Parameter.VAR_POSITIONAL:
                values: Sequence[object] = value
            case Parameter.VAR_KEYWORD:
                values = [*value.values()]
            case _:
                values = (value,)
        for wrong in (v for v in values if not test(v)):
            entry, part = _entry(wrong, test)
            wanted = kind.replace("SupportsIndex", "int")
            return f"{name}{entry} is {shown(part)}", _own_name(part) or f"{name}: {wanted}"
    return None


def in_order(
    names: Sequence[str],
    given: Sequence[object],
    named: Mapping[str, object],
    where: str,
    updated: Sequence[str] = (),
) -> tuple[object, ...]:
    """The arrays of a call in the order of `names`: the first ones by position, the others by name.

    `updated`: those that are outputs, too, of which a caller may not think.
    Raises `ArgumentTypeError` where one is missing, there twice, or not known.
    """
    takes = f"takes {counted(len(names), 'array')} ({', '.join(names)})"
    call = f"kernel({', '.join(names)})"
    if len(given) > len(names) or (not named and len(given) < len(names)):
        hint = (_of_inout(updated) if len(given) < len(names) else "") or call
        absent = f": {', '.join(names[len(given) :])} missing" if 0 < len(given) < len(names) else ""
        raise ArgumentTypeError(f"{takes}, got {len(given)}{absent}", where=where, hint=hint)
    for name in named:
        if name not in names:
            near = get_close_matches(name, (*names, "out"), 1)
            hint = f"{near[0]}=" if near else call
            raise ArgumentTypeError(f"{takes}, none is called {name!r}", where=where, hint=hint)
        if names.index(name) < len(given):
            raise ArgumentTypeError(f"{name} is given by position and by name", where=where, hint=call)
    if absent := [n for n in names[len(given) :] if n not in named]:
        hint = "give it by position: out= is where results go" if absent[0] == "out" else ""
        hint = hint or _of_inout([n for n in updated if n == absent[0]]) or f"{absent[0]}=..., too"
        raise ArgumentTypeError(f"{takes}, {absent[0]} is missing", where=where, hint=hint)
    return (*given, *(named[n] for n in names[len(given) :]))


def _of_inout(updated: Sequence[str]) -> str:
    each = ", ".join(updated)
    return f"pass {each}, too: inout, an input as well as an output" if updated else ""


def named_sizes(
    named: Mapping[str, object], known: Mapping[str, int], sizes: Sequence[str], where: str
) -> dict[str, int]:
    """Of the arguments by name those that are sizes; `known`: the sizes that are bound.

    Raises `ArgumentTypeError` for one that is no int, `RunError` for one beyond 64 bits, or bound to another value.
    """
    found: dict[str, int] = {}
    for name, value in ((n, v) for n, v in named.items() if n in sizes):
        if not isinstance(value, Integral) or value is True or value is False:
            raise ArgumentTypeError(f"size {name} is {shown(value)}", where=where, hint="a size is an int")
        if not -MOST_SIZE < int(value) < MOST_SIZE:
            raise RunError(f"size {name} is {shown(value)}", where=where, hint="sizes have 64 bits")
        if known.get(name, value) != value:
            hint = "leave it free when compiling to call with any"
            raise RunError(f"size {name} is {known[name]} in this kernel, given {value}", where=where, hint=hint)
        found[name] = int(value)
    return found


def _anything(_: object) -> bool:
    return True


def _entry(value: object, test: Fits) -> tuple[str, object]:
    """Of a mapping the first entry that does not fit, as "['name']" and its value; else nothing and the value."""
    for key, item in value.items() if isinstance(value, Mapping) else ():
        if not test({key: item}):
            return f"[{key!r}]", item
    return "", value


def _own_name(value: object) -> str:
    """Our name of a dtype that is numpy's; nothing for any other value."""
    if not isinstance(value, np.dtype) and not (isinstance(value, type) and issubclass(value, np.generic)):
        return ""
    try:
        return repr(dtype_name(value))
    except PolyError:
        return ""


def shown(value: object) -> str:
    """A value for a message, short, with its type where the value does not tell."""
    plain = value is None or isinstance(value, str | bool | int | float | np.generic)
    if plain or (isinstance(value, tuple | list) and all(isinstance(v, str | int | float) for v in value)):  # pyright: ignore
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    if isinstance(value, type | np.dtype):
        return f"the type {value.__name__}" if isinstance(value, type) else f"numpy's dtype {value}"
    return f"of type {type(value).__name__}"


BY_NAME: Final = "run({name: array}, out=None): all outputs by name; out={name: array} takes them"


class RunByName:
    """Base of engines: `run` takes arrays by name; a call as of a kernel says so, and what copies does. `inputs`: their
    names.
    """

    if not TYPE_CHECKING:  # type checkers say by themselves that an engine is not called

        def __call__(self, *_: object, **__: object) -> NoReturn:
            hint = f"run({{{', '.join(f'{name!r}: ...' for name in self.inputs)}}})"
            where = type(self).__name__
            raise ArgumentTypeError("an engine is run with arrays by name, not called", where=where, hint=hint)

    def __reduce__(self) -> NoReturn:
        hint = "pickle its graph or model, and compile that again where it is read: the cache on disk has its code"
        raise ArgumentTypeError("an engine is code in this process, which is not pickled or copied",
                                where=type(self).__name__, hint=hint)  # fmt: skip


def fits(annotation: str, classes: Sequence[str] = ()) -> Fits:
    """The test of an annotation's text; of classes it knows those named, by their names."""
    parts = _split(annotation, "|")
    if len(parts) > 1:
        tests = [fits(p, classes) for p in parts]
        return lambda value: any(t(value) for t in tests)
    head, _, rest = annotation.strip().partition("[")
    inner = _split(rest[:-1], ",") if rest else []
    match head.strip(), inner:
        case "str", []:
            return lambda value: isinstance(value, str)
        case "int" | "SupportsIndex", []:
            return lambda value: isinstance(value, Integral) and value is not True and value is not False
        case "float", []:
            return lambda value: isinstance(value, Real) and value is not True and value is not False
        case "bool", []:
            return lambda value: isinstance(value, bool)
        case "None", []:
            return lambda value: value is None
        case "Sequence", [item]:
            each = fits(item, classes)
            return lambda v: isinstance(v, Sequence) and not isinstance(v, str | bytes) and all(map(each, v))
        case "tuple", [item, "..."]:
            each = fits(item, classes)
            return lambda v: isinstance(v, tuple) and all(map(each, v))
        case "tuple", [_, *_]:
            each_of = [fits(item, classes) for item in inner]
            return lambda v: (
                isinstance(v, tuple) and len(v) == len(each_of) and all(t(i) for t, i in zip(each_of, v, strict=True))
            )
        case "Mapping", [key, item]:
            of_key, of_item = fits(key, classes), fits(item, classes)
            return lambda v: isinstance(v, Mapping) and all(of_key(k) and of_item(i) for k, i in v.items())
        case name, [] if name in classes:
            return lambda value: any(c.__name__ == name for c in type(value).__mro__)
        case _:
            return _anything


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators that are in no brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "[") - (c == "]")
        if c == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts]
