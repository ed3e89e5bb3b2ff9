"""Random loop nests as Python functions: triangles, strides, reversed and doubled subscripts, conditions, sums and
recurrences in local scalars, several statements, integers and floats.

A seed is a text, whose arrays are declared as large as its subscripts reach for any sizes. `benchmarks.cliffs` runs
them beside numba; the tests compare a few with plain Python.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

import numpy as np

from poly.affine import Affine, var
from poly.dtypes import Array, numpy_dtype

SHORT: Final = (1, 2, 3, 4, 5, 6, 7, 9, 17, 18)
LONG: Final = (24, 33, 40, 48, 64, 100, 130, 200, 257, 400)
_HEAD: Final = "import numpy as np\nfrom poly.frontend.nest import Array, f32, f64, i32, i64\n\n\n"


@dataclass(frozen=True)
class RandomNest:
    """A function with sizes to run it with, the dtypes of its arrays, and their shapes by sizes."""

    text: str
    function: Callable[..., object]
    sizes: Mapping[str, int]
    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[Affine, ...]]

    def extents(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays with the sizes put in."""
        return {name: tuple(int(e.evaluate(self.sizes)) for e in shape) for name, shape in self.shapes.items()}

    def arrays(self, seed: int) -> dict[str, Array]:
        """Small whole numbers for all arrays."""
        rng = np.random.default_rng(seed)
        extents = self.extents()
        return {n: rng.integers(-3, 4, extents[n]).astype(numpy_dtype(d)) for n, d in self.dtypes.items()}


def random_nest(seed: int, extents: tuple[int, ...] = SHORT) -> RandomNest:
    """The nest of a seed, with sizes among some."""
    choose = Random(seed)
    writer = _Writer(choose)
    for _ in range(choose.choice([1, 1, 1, 2])):
        writer.block(1, (), choose.choice([1, 2, 2, 3, 3]))
    body = "\n".join(writer.lines)
    arrays = [n for n in writer.shapes if f"{n}[" in body]
    named = {m for n in arrays for e in writer.shapes[n] for m in e.names}
    sizes = [n for n in writer.sizes if n in named or re.search(rf"\b{n}\b", body)]
    declared = [f'{n}: {writer.dtypes[n]}[Array, "{", ".join(map(str, writer.shapes[n]))}"]' for n in arrays]
    text = f"{_HEAD}def f({', '.join([*(f'{n}: int' for n in sizes), *declared])}):\n{body}\n"
    return RandomNest(
        text, _function(text, f"<nest {seed}>"), {n: choose.choice(extents) for n in sizes},
        {n: writer.dtypes[n] for n in arrays}, {n: tuple(writer.shapes[n]) for n in arrays},
    )  # fmt: skip


def _function(text: str, file: str) -> Callable[..., object]:
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module: dict[str, object] = {"__name__": file}
    exec(compile(text, file, "exec", dont_inherit=True), module)
    found = module["f"]
    assert callable(found)
    return found


@dataclass(frozen=True)
class _Loop:
    """A loop around a place, and the largest value of its variable, by sizes; all begin at 0 or later."""

    name: str
    most: Affine


_Around = tuple[_Loop, ...]


def _larger(a: Affine, b: Affine) -> Affine:
    """At least as large as both, for sizes from 0 on."""
    terms = [var(n) * max(a.coefficient(n), b.coefficient(n)) for n in sorted(a.names | b.names)]
    return sum(terms, Affine((), max(a.constant, b.constant)))


@dataclass
class _Writer:
    """The lines of a function as they are made; `shapes` grow with the subscripts."""

    choose: Random
    lines: list[str] = field(default_factory=list[str])
    sizes: list[str] = field(init=False)
    shapes: dict[str, list[Affine]] = field(init=False)
    dtypes: dict[str, str] = field(init=False)
    real: bool = field(init=False)
    made: int = 0

    def __post_init__(self) -> None:
        r = self.choose
        usual = r.choice(["f64", "f64", "f64", "f32", "i64", "i32"])
        names = "ABCD"[: r.randint(1, 4)]
        self.real = usual[0] == "f"
        self.sizes = ["N", "M", "K"][: r.randint(1, 3)]
        self.shapes = {n: [Affine((), 1)] * r.choice([1, 2, 2, 3]) for n in names}
        self.dtypes = {n: usual if r.random() < 0.8 else r.choice(["f64", "f32", "i32", "i64"]) for n in names}

    def fresh(self, stem: str) -> str:
        self.made += 1
        return f"{stem}{self.made}"

    # ---- statements

    def block(self, depth: int, around: _Around, deeper: int) -> None:
        """One or two things at a depth of indentation, with up to `deeper` loops inside."""
        r, pad = self.choose, "    " * depth
        for _ in range(r.choice([1, 1, 1, 1, 2]) if deeper else 1):
            kind = r.random()
            if deeper > 0 and (kind < 0.6 or not around):
                loop = self.loop(pad, around)
                self.block(depth + 1, (*around, loop), deeper - 1)
            elif not around or kind >= 0.84:
                self.statement(pad, around)
            elif kind < 0.69:
                self.lines.append(f"{pad}if {self.condition(around)}:")
                self.block(depth + 1, around, deeper - 1 if deeper and r.random() < 0.5 else 0)
                if r.random() < 0.3:
                    self.lines.append(f"{pad}else:")
                    self.statement(pad + "    ", around)
            elif kind < 0.76:
                self.local_sum(pad, around)
            else:
                self.recurrence(pad, around)

    def loop(self, pad: str, around: _Around) -> _Loop:
        """A loop's head."""
        r, size = self.choose, self.choose.choice(self.sizes)
        name = self.fresh(r.choice("ijkl"))
        last = var(size) - 1
        outer = r.choice(around) if around else None
        kinds = [(f"range({size})", last)] * 9 + [
            (f"range({r.randint(1, 2)}, {size})", last), (f"range(1, {size} - 1)", last),
            (f"range({size} - 1, -1, -1)", last), (f"range({size} - 1, -1, -1)", last),
            (f"range({r.randint(0, 1)}, {size}, {r.choice([2, 3])})", last),
            (f"range({(few := r.randint(2, 5))})", Affine((), few - 1)),
        ]  # fmt: skip
        if outer is not None:
            kinds += [(f"range({outer.name} + 1)", outer.most), (f"range({outer.name})", outer.most),
                      (f"range({outer.name}, {size})", _larger(last, Affine()))]  # fmt: skip
        source, most = r.choice(kinds)
        self.lines.append(f"{pad}for {name} in {source}:")
        return _Loop(name, most)

    def statement(self, pad: str, around: _Around) -> None:
        """An assignment or an update of an element, in which every loop around is met."""
        r, kind = self.choose, self.choose.random()
        names = [x.name for x in around][r.random() < 0.1 :]
        target = self.element(around, names[:-1] if kind < 0.2 else names)
        value = self.value(around, [n for n in names if not re.search(rf"\b{n}\b", target)])
        value = value if re.search(r"\w\[|[a-z]\d", value) else "2"  # arrays of integers take no fraction
        damped = f"0.25*{value}" if self.real else value
        kinds = [f"{target} += {damped}"] * 7 + [f"{target} -= {damped}", f"{target} = max({target}, {value})",
                 f"{target} *= {r.choice([2, -1])}"] + [f"{target} = {damped}"] * 10  # fmt: skip
        self.lines.append(pad + r.choice(kinds))

    def local_sum(self, pad: str, around: _Around) -> None:
        name = self.fresh("s")
        self.lines.append(f"{pad}{name} = {'0.0' if self.real else '0'}")
        loop = self.loop(pad, around)
        inside = (*around, loop)
        self.lines.append(f"{pad}    {name} += {self.value(inside, [loop.name], 1)}")
        if self.choose.random() < 0.3:  # a running one
            self.lines.append(f"{pad}    {self.element(inside, [x.name for x in inside])} = {name}")
        else:
            self.lines.append(f"{pad}{self.element(around, [x.name for x in around])} = {name}")

    def recurrence(self, pad: str, around: _Around) -> None:
        """Two scalars that a loop hands around, through a third one, or that keep the largest and its place."""
        r, place, (a, b, t) = self.choose, [x.name for x in around], [self.fresh("v") for _ in "abt"]
        self.lines.append(f"{pad}{a} = {self.value(around, place, 0)}")
        self.lines.append(f"{pad}{b} = {r.choice(['0.0', '1.0']) if self.real else '0'}")
        loop = self.loop(pad, around)
        value, half = self.value((*around, loop), [loop.name], 1), "0.5*" if self.real else ""
        inside = [f"{t} = {half}{a} + {value}", f"{a} = {half}{b} - {a if self.real else value}", f"{b} = {t}"]
        if r.random() < 0.3:
            inside = [f"{b} = {loop.name} if {value} > {a} else {b}", f"{a} = {value} if {value} > {a} else {a}"]
        self.lines += [f"{pad}    {line}" for line in inside]
        for name in r.choice([[a], [b], [a, b]]):
            self.lines.append(f"{pad}{self.element(around, place)} = {half}{name}")

    # ---- expressions

    def subscript(self, around: _Around) -> tuple[str, Affine]:
        """A subscript, and its largest value."""
        r, kind = self.choose, self.choose.random()
        if not around or kind < 0.03:
            place = r.randint(0, 2)
            return str(place), Affine((), place)
        loop, other = r.choice(around[-3:]), r.choice(around[-3:])
        if kind < 0.72 or (kind >= 0.91 and loop is other):
            return loop.name, loop.most
        if kind < 0.80:
            by = r.randint(1, 2)
            return f"{loop.name} + {by}", loop.most + by
        if kind < 0.86:
            return f"{loop.most} - {loop.name}", loop.most
        if kind < 0.91:
            return f"2*{loop.name} + {r.randint(0, 1)}", loop.most * 2 + 1
        return f"{loop.name} + {other.name}", loop.most + other.most

    def element(self, around: _Around, met: list[str]) -> str:
        """An element of an array, in whose subscripts these loops are met where a few tries find such ones."""
        found = ""
        for attempt in range(40):
            name = self.choose.choice([*self.shapes])
            subscripts = [self.subscript(around) for _ in self.shapes[name]]
            found = f"{name}[{', '.join(text for text, _ in subscripts)}]"
            if attempt == 39 or all(re.search(rf"\b{n}\b", found) for n in met[attempt // 15 :]):
                self.shapes[name] = [
                    _larger(e, most + 1) for e, (_, most) in zip(self.shapes[name], subscripts, strict=True)
                ]
                break
        return found

    def guarded(self, around: _Around, met: list[str]) -> str:
        """An element, now and then the one before where there is one."""
        found = self.element(around, met)
        name = self.choose.choice(around).name if around and self.choose.random() < 0.1 else ""
        if not name or f"- {name}" in found or not re.search(rf"\b{name}\b", found):
            return found
        before = re.sub(rf"\b{name}\b", f"({name} - 1)", found)
        return f"({before} if {name} > 0 else {'0.0' if self.real else '0'})"

    def leaf(self, around: _Around, met: list[str]) -> str:
        if met or self.choose.random() < 0.85:
            return self.guarded(around, met)
        numbers = ["1", "2", "-1", "0.5" if self.real else "3"]
        return self.choose.choice([x.name for x in around] * 2 or numbers) if self.choose.random() < 0.6 else (
            self.choose.choice(numbers)
        )  # fmt: skip

    def value(self, around: _Around, met: list[str], depth: int = 2) -> str:
        """An expression, in whose first operand some loops are met."""
        r = self.choose
        if depth == 0 or r.random() < 0.25:
            return self.leaf(around, met)
        a, b = self.value(around, met, depth - 1), self.value(around, [], depth - 1)
        kinds = [f"({a} + {b})"] * 4 + [f"({a} - {b})"] * 2 + [f"{a}*{b}"] * 4 + [
            f"max({a}, {b})", f"min({a}, {b})", f"(-{a})", f"({a} + {'0.5' if self.real else '2'}*{b})",
            f"({a} if {self.leaf(around, [])} > {self.leaf(around, [])} else {b})",
        ]  # fmt: skip
        return r.choice(kinds)

    def condition(self, around: _Around) -> str:
        r = self.choose
        a, b = r.choice(around).name, r.choice(around).name
        kinds = [
            f"{a} % {r.choice([2, 3])} == {r.choice([0, 1])}",
            f"{a} {r.choice(['<', '>', '>=', '=='])} {r.randint(0, 4)}",
            f"({a} > 1 and {b} < {r.choice(self.sizes)} - 1)",
        ]
        if a != b:
            kinds += [f"{a} {r.choice(['<', '<=', '>', '>=', '==', '!='])} {b}", f"{a} + {b} < {r.choice(self.sizes)}"]
        return r.choice(kinds)
