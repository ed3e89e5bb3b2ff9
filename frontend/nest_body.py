"""The body of a nest: loops, conditions and assignments as statements with their domains, in the order written.

A loop keeps its variable as iterator. One that runs backwards gets the negated variable, one with another step the
number of the iteration, so that the original order is always that of increasing iterators.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Final

from poly.affine import Affine, var
from poly.document import counted
from poly.errors import ParseError
from poly.expr import Apply, Const, Expr, Read, apply, reads_of, with_reads_at
from poly.frontend import nest_hints as hints
from poly.frontend.nest_branches import Branches, live_after_branches, with_loops_outside
from poly.frontend.nest_comparisons import of_two_values
from poly.frontend.nest_conditions import is_condition, isl_condition
from poly.frontend.nest_counting import with_ranges
from poly.frontend.nest_leaving import without_leaving
from poly.frontend.nest_literals import Number
from poly.frontend.nest_places import is_whole, place_of, put_in_place
from poly.frontend.nest_scope import Scope
from poly.frontend.nest_signature import last_name, read_annotation
from poly.frontend.nest_targets import one_target_each
from poly.frontend.nest_values import Values, dtype_of_name
from poly.frontend.places_in_bounds import Elements, names_of_data
from poly.program import Access, PathStep, places_of
from poly.sets import identifier

_UPDATES: Final[dict[type[ast.operator], str]] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.BitOr: "or", ast.BitAnd: "and",
}  # fmt: skip
_ALLOCATIONS: Final = {  # what fills the array
    "empty": None, "zeros": 0, "ones": 1, "empty_like": None, "zeros_like": 0, "ones_like": 1, "full": 0,
}  # fmt: skip
_NONE: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True)
class Draft:
    """A statement whose body has no conversions yet. `symbol`: of its combiner, "-" where what is added was
    negated, or ""; `places`: where reads stand.
    """

    node: ast.stmt
    target: ast.expr
    iterators: tuple[str, ...]
    conditions: tuple[str, ...]
    path: tuple[PathStep, ...]
    write: Access
    body: Expr
    reads: tuple[Access, ...]
    places: tuple[ast.expr, ...]
    symbol: str = ""


@dataclass(frozen=True)
class Local:
    """A scalar or an array made inside the function. `dtype` "" where its values decide."""

    name: str
    shape: tuple[Affine, ...]
    dtype: str


@dataclass(frozen=True)
class Around:
    """The loops and conditions around a place, and what names mean there."""

    scope: Scope
    iterators: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()

    def with_names(
        self, literals: Mapping[str, Number] = _NONE, indices: Mapping[str, Affine] = _NONE,
        places: Mapping[str, ast.expr] = _NONE,
    ) -> Around:  # fmt: skip
        """The same place with more names."""
        scope = self.scope
        return replace(self, scope=replace(
            scope, literals={**scope.literals, **literals}, indices={**scope.indices, **indices},
            places={**scope.places, **places},
        ))  # fmt: skip


@dataclass
class Reader:
    """Collects the statements and the local tensors of a function body. `arguments`: the names of its arguments;
    `safe`: locals made for places, which are in bounds.
    """

    arguments: frozenset[str]
    scalars: frozenset[str]
    exact: bool = False
    drafts: list[Draft] = field(default_factory=list)
    locals: dict[str, Local] = field(default_factory=dict)
    context: list[str] = field(default_factory=list)
    uses: Counter[tuple[str, type[ast.expr_context]]] = field(default_factory=Counter)
    live: dict[ast.stmt, frozenset[str]] = field(default_factory=dict)
    safe: set[str] = field(default_factory=set[str])

    def read(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """The whole body of a function."""
        body = of_two_values(_without_docstring(body))
        taken = self.arguments | {*scope.sizes, *scope.literals}
        body = without_leaving(with_ranges(one_target_each(body, taken), taken), taken, scope.sizes)
        self.uses = Counter((n.id, type(n.ctx)) for s in body for n in ast.walk(s) if isinstance(n, ast.Name))
        self.live = dict(live_after_branches(body, frozenset()))
        self._block(body, Around(scope), ())

    # ---- blocks

    def _block(self, body: Sequence[ast.stmt], around: Around, prefix: tuple[PathStep, ...]) -> None:
        """Statements one after another: positions in the path where there is more than one, and at the top."""
        numbered = not prefix or sum(self._count(s) for s in body) > 1
        self._sequence(body, around, prefix, 0, numbered)

    def _sequence(
        self, body: Sequence[ast.stmt], around: Around, prefix: tuple[PathStep, ...], position: int, numbered: bool
    ) -> int:
        readers = _readers(body)
        for k, written in enumerate(body):
            around = self._with_locals(around)
            once = self._named_once(written, k, readers)
            if once is not None and (literal := _literal(once[1], around.scope)) is not None:
                around = around.with_names(literals={once[0]: literal})
                continue
            if (alias := self._alias(written, around)) is not None:
                around = around.with_names(indices=alias)
                continue
            if once is not None and (place := place_of(once[1], around.scope)) is not None:
                around = around.with_names(places={once[0]: place})  # and a value, left out where nobody reads it
            node = put_in_place(written, around.scope.places)
            if isinstance(node, ast.If):
                if node is not written:
                    self.live[node] = self.live[written]
                position = self._if(node, around, prefix, position, numbered)
                continue
            parts = self._elements(around.scope, node).in_bounds(node)
            numbered = numbered or len(parts) > 1
            for part in parts:
                self._single(part, self._with_locals(around), (*prefix, position) if numbered else prefix)
                position += self._count(part)
        return position

    def _elements(self, scope: Scope, place: ast.stmt) -> Elements:
        names = (n for n in self._names("at", place) if n not in scope.source.made)
        inside = names_of_data(place, scope.is_element)
        data = inside.union(scope.shapes)

        def is_element(node: ast.expr) -> bool:
            return scope.is_element(node) or _is_name_in(node, inside)

        def is_computed(node: ast.Subscript, place: ast.expr) -> bool:
            if isinstance(place, ast.Slice) or is_element(place) or scope.is_affine(place):
                return False
            chosen = isinstance(node.ctx, ast.Load) and Values(scope).chosen(node) is not None
            return any(_is_name_in(n, data) for n in ast.walk(place)) or is_whole(place, scope) and not chosen

        decided = partial(is_condition, scope)
        return Elements(is_element, decided, names, scope.source.made, self.safe, is_computed)

    def _with_locals(self, around: Around) -> Around:
        known = {name: local.shape for name, local in self.locals.items()}
        return replace(around, scope=replace(around.scope, shapes={**around.scope.shapes, **known}))

    def _count(self, node: ast.stmt) -> int:
        """How many things of a sequence a statement is."""
        match node:
            case ast.If(body=body, orelse=orelse):
                return sum(self._count(s) for s in (*body, *orelse))
            case ast.Pass() | ast.Assert() | ast.Expr():
                return 0
            case ast.Assign(value=ast.Call(func=function)) | ast.AnnAssign(value=ast.Call(func=function)):
                return 0 if last_name(function) in ("empty", "empty_like") else 1
            case _:
                return 1

    def _single(self, node: ast.stmt, around: Around, path: tuple[PathStep, ...]) -> None:
        error = around.scope.source.error
        match node:
            case ast.For():
                self._for(node, around, path)
            case ast.Assign(targets=[ast.Tuple() | ast.List()]):
                raise error(node, *hints.targets(node))
            case ast.Assign(targets=[target], value=value):
                self._assign(node, target, value, around, path, "")
            case ast.AnnAssign(target=target, value=ast.expr() as value, annotation=annotation):
                found = read_annotation(around.scope.source, annotation)
                self._assign(node, target, value, around, path, "i64" if found is None else found[0])
            case ast.AugAssign(target=target, op=op, value=value):
                self._update(node, target, op, value, around, path)
            case ast.Assert(test=test):
                self._assert(node, test, around)
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Assign():
                raise error(node, *hints.targets(node))
            case _:
                raise error(node, *hints.statement(node))

    # ---- loops and conditions

    def _for(self, node: ast.For, around: Around, path: tuple[PathStep, ...]) -> None:
        scope = around.scope
        match node.iter:
            case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]) if 1 <= len(arguments) <= 3:
                pass
            case _:
                raise scope.source.error(node.iter, "loops run over range(...)", hints.iterable(node.iter))
        if not isinstance(node.target, ast.Name):
            raise scope.source.error(node.target, "one loop variable a loop", "for i in range(...)")
        name = node.target.id
        if name in scope.indices or name in scope.sizes or name in scope.shapes or name in self.arguments:
            raise scope.source.error(node.target, f"the name {name!r} is taken", "every loop has a variable of its own")
        iterator, value, conditions = self._range(name, arguments, around)
        inner = Around(
            replace(scope, indices={**scope.indices, name: value}), (*around.iterators, iterator),
            (*around.conditions, *conditions),
        )  # fmt: skip
        self._block(node.body, inner, (*path, iterator))

    def _range(self, name: str, arguments: Sequence[ast.expr], around: Around) -> tuple[str, Affine, tuple[str, ...]]:
        """The iterator of a loop, the loop variable by it, and the conditions on it."""
        scope = around.scope
        start: ast.expr = ast.Constant(0) if len(arguments) == 1 else arguments[0]
        stop = arguments[0] if len(arguments) == 1 else arguments[1]
        step = scope.affine(arguments[2]) if len(arguments) == 3 else Affine((), 1)
        if not step.is_constant:
            text = f"the step of a range is a number, as the places by {ast.unparse(arguments[2])} are not affine"
            raise scope.source.error(arguments[2], text, "2 or the like; places that vary are elements: A[T[k]]")
        if step.constant == 0:
            raise scope.source.error(arguments[-1], "the step of a range is an integer, not zero", "-1 or 2")
        by = step.constant
        stem = name.lstrip("_") or "t"  # `for _ in range(steps)`
        iterator = _fresh(identifier(stem if by == 1 else f"{stem}_r" if by == -1 else f"{stem}_s"), around)
        first, last = scope.bound(start), scope.bound(stop)
        if by == 1:
            return iterator, var(iterator), (f"{first} <= {iterator} < {last}",)
        if by == -1:
            return iterator, -var(iterator), (f"{last} < -{iterator} <= {first}",)
        value = scope.affine(start) + var(iterator) * by
        inside = f"({value.isl_text}) {'<' if by > 0 else '>'} {last}"
        return iterator, value, (f"{iterator} >= 0", inside)

    def _if(self, node: ast.If, around: Around, prefix: tuple[PathStep, ...], position: int, numbered: bool) -> int:
        try:
            condition = isl_condition(around.scope, node.test)
        except ParseError:
            scope, loops = around.scope, partial(is_condition, around.scope)
            if _reads_data(node.test, scope):
                if (outer := with_loops_outside(node, loops)) is not None:
                    self.live[outer.body[0]] = self.live[node]
                    return self._if(outer, around, prefix, position, numbered)
                elements = self._elements(scope, node)
                truths = self._names("taken", node)
                branches = Branches(truths, loops, elements.under, self.exact, self.live, scope.source.made)
                chosen = branches.choices(node, self.live[node])
                if chosen is not None:
                    return self._sequence(chosen, around, prefix, position, numbered or len(chosen) > 1)
                for leaving in (n for n in ast.walk(node) if isinstance(n, ast.Break | ast.Continue)):
                    raise scope.source.error(leaving, *hints.statement(leaving)) from None
                raise around.scope.source.error(
                    node.test, f"the condition {ast.unparse(node.test)} depends on data",
                    hints.branch(node),
                ) from None  # fmt: skip
            raise
        for branch, text in ((node.body, condition), (node.orelse, f"(not {condition})")):
            inner = replace(around, conditions=(*around.conditions, text))
            position = self._sequence(branch, inner, prefix, position, numbered)
        return position

    def _names(self, stem: str, node: ast.stmt) -> Iterator[str]:
        """Names for locals that a statement needs."""
        names = (f"{stem}{k}" for k in count(node.lineno))
        taken = {name for name, _ in self.uses} | self.arguments | {*self.locals}
        return (n for n in names if n not in taken)

    def _assert(self, node: ast.Assert, test: ast.expr, around: Around) -> None:
        if around.iterators or around.conditions:
            raise around.scope.source.error(node, "assertions on sizes stand before the loops", "move it up")
        self.context.append(isl_condition(around.scope, test))

    # ---- assignments

    def _alias(self, node: ast.stmt, around: Around) -> dict[str, Affine] | None:
        """Names for affine expressions: `m = N - 1` where m is assigned once, and `N, M = A.shape`."""
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="int"), value=ast.expr() as value)
            ) if self.uses[name, ast.Store] == 1 and name not in self.arguments and not isinstance(value, ast.Constant):
                return {name: around.scope.affine(value)} if around.scope.is_affine(value) else None
            case ast.Assign(
                targets=[ast.Tuple(elts=names)], value=ast.Attribute(value=ast.Name(id=array), attr="shape")
            ):
                shape = around.scope.shapes.get(array, ())
                if len(names) != len(shape) or not all(isinstance(n, ast.Name) for n in names):
                    text = f"{array} has {counted(len(shape), 'dimension')}, here are {counted(len(names), 'name')}"
                    raise around.scope.source.error(node, text)
                return {n.id: e for n, e in zip(names, shape, strict=True) if isinstance(n, ast.Name)}
            case _:
                return None

    def _named_once(
        self, node: ast.stmt, k: int, readers: Mapping[str, Sequence[int]]
    ) -> tuple[str, ast.expr] | None:
        """The name and the value of an assignment that is the only one to a local, all of whose readers come behind it
        in its sequence, of which it is number k.
        """
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in self.arguments:
                behind = readers.get(name, ())
                every = len(behind) == self.uses[name, ast.Load] and (not behind or behind[0] > k)
                return (name, value) if every and self.uses[name, ast.Store] == 1 else None
            case _:
                return None

    def _assign(
        self, node: ast.stmt, target: ast.expr, value: ast.expr, around: Around, path: tuple[PathStep, ...], dtype: str,
        in_place: bool = False,
    ) -> None:  # fmt: skip
        if isinstance(target, ast.Name) and isinstance(value, ast.Call) and last_name(value.func) in _ALLOCATIONS:
            self._allocate(node, target, value, around, path, dtype)
            return
        values = Values(around.scope)
        body = values.value(value)
        write = self._target(target, around, dtype, values, in_place)
        write, symbol, body = _as_update(write, body, values)
        self._add(node, target, around, path, write, body, values, symbol)

    def _update(
        self, node: ast.stmt, target: ast.expr, op: ast.operator, value: ast.expr, around: Around,
        path: tuple[PathStep, ...],
    ) -> None:  # fmt: skip
        values = Values(around.scope)
        symbol = _UPDATES.get(type(op), "")
        if not symbol:
            combined = ast.copy_location(ast.BinOp(left=target, op=op, right=value), node)
            self._assign(node, target, ast.fix_missing_locations(combined), around, path, "", in_place=True)
            return
        if isinstance(target, ast.Name) and target.id not in around.scope.shapes:
            raise around.scope.source.error(target, f"{target.id!r} has no value here", "assign it first")
        body = values.value(value)
        write = self._target(target, around, "", values, in_place=True)
        self._add(
            node, target, around, path, write, _negated(body) if isinstance(op, ast.Sub) else body, values, symbol
        )

    def _target(
        self, target: ast.expr, around: Around, dtype: str, values: Values, in_place: bool = False
    ) -> Access:
        """What is written. `in_place`: by `+=` and its like, which change an array of rank 0 and do not rebind it.
        `values`: takes what its subscripts read.
        """
        scope = around.scope
        match target:
            case ast.Subscript():
                return values.subscripted(target)
            case ast.Name(id=name):
                if name in self.scalars:
                    raise scope.source.error(
                        target, f"{name!r} is an argument: assigning it does not reach the caller",
                        f'{name}: f64[Array, ""] and {name}[()] = ..., or a name of its own',
                    )  # fmt: skip
                if name in scope.indices or name in scope.sizes:
                    raise scope.source.error(target, f"{name!r} is a loop variable or a size", "a name of its own")
                if scope.shapes.get(name):
                    raise scope.source.error(target, f"{name} is an array: assign its elements", "in loops over them")
                if name in self.arguments:  # an array of rank 0
                    if in_place:
                        return Access(name, ())
                    raise scope.source.error(
                        target, f"{name!r} is an argument: assigning it does not reach the caller",
                        f"{name}[()] = ..., or a name of its own",
                    )  # fmt: skip
                if identifier(name) != name:
                    raise scope.source.error(
                        target, f"{name!r} cannot name a tensor", f"for example {identifier(name)}"
                    )
                if name not in self.locals:
                    self.locals[name] = Local(name, (), dtype)
                return Access(name, ())
            case _:
                raise scope.source.error(target, "assign to A[i, j] or to a scalar")

    def _allocate(
        self, node: ast.stmt, target: ast.Name, call: ast.Call, around: Around, path: tuple[PathStep, ...], dtype: str
    ) -> None:
        """`t = np.zeros((N, M))`: a temporary, and a statement that fills it."""
        kind, scope, name = last_name(call.func), around.scope, target.id
        if name in self.arguments or name in self.locals or not call.args or identifier(name) != name:
            raise scope.source.error(target, f"the array {name!r} cannot be made here", "a name of its own, a shape")
        if kind.endswith("_like"):
            shape = scope.shapes.get(last_name(call.args[0]), ())
        else:
            extents = call.args[0].elts if isinstance(call.args[0], ast.Tuple | ast.List) else [call.args[0]]
            shape = tuple(scope.affine(e) for e in extents)
        for extent in shape:
            if not extent.names <= set(scope.sizes):
                raise scope.source.error(call.args[0], f"the extent {extent} of {name} changes with a loop")
        for keyword in call.keywords:
            found = dtype_of_name(last_name(keyword.value)) or dtype_of_name(_text(keyword.value))
            if keyword.arg != "dtype" or found is None:
                raise scope.source.error(keyword.value, f"unknown argument of {kind}", "dtype=np.float32")
            dtype = found
        unsaid = f"like {last_name(call.args[0])}" if kind.endswith("_like") else "f64"
        self.locals[name] = Local(name, shape, dtype or unsaid)
        if _ALLOCATIONS[kind] is None:
            return
        values = Values(self._with_locals(around).scope)
        body = values.value(call.args[1]) if kind == "full" and len(call.args) == 2 else Const(_ALLOCATIONS[kind] or 0)
        fresh = [_fresh(f"{name}_{d}", around) for d in range(len(shape))]
        inside = Around(
            values.scope, (*around.iterators, *fresh),
            (*around.conditions, *(f"0 <= {i} < ({e.isl_text})" for i, e in zip(fresh, shape, strict=True))),
        )  # fmt: skip
        write = Access(name, tuple(var(i) for i in fresh))
        self._add(node, target, inside, (*path, *fresh), write, body, values, "")

    def _add(
        self, node: ast.stmt, target: ast.expr, around: Around, path: tuple[PathStep, ...], write: Access, body: Expr,
        values: Values, symbol: str,
    ) -> None:  # fmt: skip
        reads, places = tuple(values.reads), tuple(values.places)
        self.drafts.append(
            Draft(node, target, around.iterators, around.conditions, path, write, body, reads, places, symbol)
        )


def _as_update(write: Access, body: Expr, values: Values) -> tuple[Access, str, Expr]:
    """`x = max(x, e)`, `x = x + e`: an update of x by e. The read of x goes away where e does not use it."""
    if not isinstance(body, Apply) or write not in values.reads:
        return write, "", body
    own = Read(values.reads.index(write))
    symbol = {"add": "+", "sub": "-", "mul": "*", "max": "max", "min": "min"}.get(body.operator, "")
    if not symbol or own not in body.arguments or (body.operator == "sub" and body.arguments[0] != own):
        return write, "", body
    k = body.arguments.index(own)
    rest = body.arguments[1 - k]
    if own.position in {*reads_of(rest), *places_of([write, *values.reads])}:
        return write, "", body
    renumbered = {j: j - (j > own.position) for j in range(len(values.reads)) if j != own.position}
    rest = with_reads_at(rest, renumbered)
    values.reads.pop(own.position)
    values.places.pop(own.position)
    values.reads[:] = [r.moved(renumbered) for r in values.reads]
    return write.moved(renumbered), symbol, _negated(rest) if body.operator == "sub" else rest


def _negated(body: Expr) -> Expr:
    return Const(-body.value, body.dtype) if isinstance(body, Const) else apply("neg", body)


def _is_name_in(node: ast.AST, names: Collection[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _readers(body: Sequence[ast.stmt]) -> dict[str, list[int]]:
    """For every plain name the numbers of the statements that read it, one for each time."""
    found: dict[str, list[int]] = {}
    for k, s in enumerate(body):
        for n in ast.walk(s):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
                found.setdefault(n.id, []).append(k)
    return found


def _literal(value: ast.expr, scope: Scope) -> Number | None:
    """`a = 0.5`: a name for a number, which takes the dtype of what it meets as the number would."""
    try:
        body = Values(scope).value(value)
    except ParseError:
        return None
    return body.value if isinstance(body, Const) and body.dtype is None else None


def _reads_data(node: ast.expr, scope: Scope) -> bool:
    """Whether a condition reads arrays or scalars, of which literals such as `t = 2.5` are some."""
    return any(isinstance(n, ast.Name) and (n.id in scope.shapes or n.id in scope.literals) for n in ast.walk(node))


def _without_docstring(body: Sequence[ast.stmt]) -> Sequence[ast.stmt]:
    head = body[0] if body else None
    return body[1:] if isinstance(head, ast.Expr) and isinstance(head.value, ast.Constant) else body


def _fresh(name: str, around: Around) -> str:
    scope = around.scope
    while name in around.iterators or name in scope.sizes or name in scope.shapes:
        name += "_"
    return name


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
