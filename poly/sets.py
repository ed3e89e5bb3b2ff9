"""The one place that speaks isl's language: sets and maps from named expressions, and back.

isl matches dimensions by position and says nothing when they are named differently; here everything comes in by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

import islpy as isl

from poly.affine import Affine, Constraint, FloorDiv, Mod, var
from poly.locks import Lock

IN, OUT, SET, PARAM, DIV = isl.dim_type.in_, isl.dim_type.out, isl.dim_type.set, isl.dim_type.param, isl.dim_type.div
_Others = ParamSpec("_Others")
_Result = TypeVar("_Result")
Domain = TypeVar("Domain", isl.Set, isl.Map)
Relation = TypeVar("Relation", isl.Set, isl.Map, isl.UnionMap)
_RESERVED = frozenset(  # isl reads them in any case
    "or and not mod min max exists floor ceil ceild floord implies true false infty infinity nan rat".split()
)


@lru_cache(maxsize=1024)
def number(value: int) -> isl.Val:
    """An integer of isl's; to make one takes longer than most of what is done with it."""
    return isl.Val(value)


def kept_by_name(
    function: Callable[Concatenate[isl.Set, _Others], _Result],
) -> Callable[Concatenate[isl.Set, _Others], _Result]:
    """An `lru_cache` for functions of a set, with its name beside it: isl's hash leaves that out, so that the sets of
    statements that differ in it alone would have one hash, and be compared one by one, which isl does slowly.
    """

    @lru_cache(maxsize=1024)
    def kept(_name: str | None, domain: isl.Set, *args: _Others.args, **kwargs: _Others.kwargs) -> _Result:
        return function(domain, *args, **kwargs)

    @wraps(function)
    def call(domain: isl.Set, *args: _Others.args, **kwargs: _Others.kwargs) -> _Result:
        return kept(domain.get_tuple_name(), domain, *args, **kwargs)

    return call


@lru_cache(maxsize=4096)
def interval(values: isl.Set, k: int) -> tuple[int, int] | None:
    """First and last value of a set's dimension; None where they depend on a size, or there is none."""
    low, high = values.dim_min_val(k), values.dim_max_val(k)
    return (low.to_python(), high.to_python()) if low.is_int() and high.is_int() else None


def identifier(name: str) -> str:
    """A name isl can parse, made from any loop or tensor name."""
    clean = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
    clean = clean if clean[:1].isalpha() else f"i{clean}"
    return f"{clean}_" if clean.lower() in _RESERVED else clean


def header(parameters: Sequence[str]) -> str:
    """`[M, N] -> `"""
    return f"[{', '.join(parameters)}] -> " if parameters else ""


def parameter_names(
    thing: isl.Aff | isl.PwAff | isl.Set | isl.Map | isl.BasicSet | isl.BasicMap | isl.Space,
) -> list[str]:
    """The names of the size parameters, by position."""
    return [thing.get_dim_name(PARAM, k) or "" for k in range(thing.dim(PARAM))]


def affine_of_aff(aff: isl.Aff, inputs: Sequence[str]) -> Affine | None:
    """An isl affine expression by names; `inputs` name its input dimensions.

    None where a coefficient is not integer.
    """
    if aff.is_nan() or aff.get_denominator_val().get_num_si() != 1:
        return None
    result = Affine((), _int(aff.get_constant_val()))
    for d, name in enumerate(inputs):
        if c := _int(aff.get_coefficient_val(IN, d)):
            result = result + var(name) * c
    for d, name in enumerate(parameter_names(aff)):
        if c := _int(aff.get_coefficient_val(PARAM, d)):
            result = result + var(name) * c
    for d in range(aff.dim(DIV)):
        if c := _int(aff.get_coefficient_val(DIV, d)):
            inner = floor_of_aff(aff.get_div(d), inputs)
            if inner is None:
                return None
            result = result + inner * c
    return result


def floor_of_aff(aff: isl.Aff, inputs: Sequence[str]) -> Affine | None:
    """floor of a rational isl affine expression."""
    denominator = aff.get_denominator_val().get_num_si()
    numerator = affine_of_aff(aff.scale_val(isl.Val(denominator)), inputs)
    return None if numerator is None else numerator // denominator


def _int(value: isl.Val) -> int:
    return int(str(value))


def affine_of_pw(pw: isl.PwAff, inputs: Sequence[str]) -> Affine | None:
    """The expression of a piecewise one that has a single piece, else None."""
    found: list[Affine | None] = []
    pw.foreach_piece(lambda _, aff: found.append(affine_of_aff(aff, inputs)))
    return found[0] if len(found) == 1 else None


def constraints_of(basic: isl.BasicSet, names: Sequence[str]) -> tuple[Constraint, ...] | None:
    """The constraints of a basic set by names of its dimensions, existentials as floors; None if not possible."""
    result: list[Constraint] = []
    divs = floors_of(basic.get_local_space(), names)
    for constraint in basic.get_constraints():
        total = Affine((), _int(constraint.get_constant_val()))
        for kind, labels in ((SET, names), (PARAM, parameter_names(basic))):
            for d, name in enumerate(labels):
                if c := _int(constraint.get_coefficient_val(kind, d)):
                    total = total + var(name) * c
        for d, div in enumerate(divs):
            if c := _int(constraint.get_coefficient_val(DIV, d)):
                if div is None:
                    return None
                total = total + div * c
        result.append(Constraint(total, constraint.is_equality()))
    return tuple(result)


def floors_of(local: isl.LocalSpace, names: Sequence[str]) -> list[Affine | None]:
    """The floors of a local space; None for an existential without a definition."""
    result: list[Affine | None] = []
    for d in range(local.dim(DIV)):
        try:
            div = local.get_div(d)
            result.append(None if div.is_nan() else floor_of_aff(div, names))
        except isl.Error:  # isl has no other way to say that a division is unknown
            result.append(None)
    return result


def conjunctions_of(domain: isl.Set, names: Sequence[str]) -> tuple[tuple[Constraint, ...], ...] | None:
    """A set as a disjunction of conjunctions; None where an existential has no closed form."""
    pieces: list[tuple[Constraint, ...]] = []
    for basic in domain.compute_divs().get_basic_sets():
        piece = constraints_of(basic, names)
        if piece is None:
            return None
        pieces.append(piece)
    return tuple(pieces)


def fix_sizes(domain: Domain, sizes: Mapping[str, int]) -> Domain:
    """Put in values for parameters and drop them."""
    for name, value in sizes.items():
        position = domain.find_dim_by_name(PARAM, name)
        if position >= 0:
            domain = domain.fix_val(PARAM, position, number(value)).project_out(PARAM, position, 1)
    return domain


def witness(relation: isl.Map, names: tuple[Sequence[str], Sequence[str]]) -> tuple[str, str]:
    """One pair of a non-empty relation, as `S[i=0, j=3]`, with values for free sizes where there are any."""
    point = relation.sample()
    wrapped = isl.Map.from_basic_map(point)
    return _instance(wrapped.domain(), names[0]), _instance(wrapped.range(), names[1])


def _instance(domain: isl.Set, names: Sequence[str]) -> str:
    point = domain.sample_point()
    values = [_int(point.get_coordinate_val(SET, d)) for d in range(domain.dim(SET))]
    sizes = [
        f"{domain.get_dim_name(PARAM, d)}={_int(point.get_coordinate_val(PARAM, d))}" for d in range(domain.dim(PARAM))
    ]
    inside = ", ".join(f"{n}={v}" for n, v in zip(names, values, strict=False))
    return f"{domain.get_tuple_name() or ''}[{inside}]" + (f" with {', '.join(sizes)}" if sizes else "")


def coalesced(relation: Relation) -> Relation:
    """The same relation in fewer pieces where isl finds them; its coalescing has inputs that it fails on."""
    try:
        return relation.coalesce()
    except isl.Error:
        return relation


def pickled_set(domain: isl.Set) -> tuple[Callable[[str, str], isl.Set], tuple[str, str]]:
    """How a set is pickled (as `__reduce__` gives it): its name apart, since many statements share one domain."""
    name = domain.get_tuple_name() if not domain.is_params() and domain.has_tuple_name() else None
    return read_set, (str(domain.reset_tuple_id() if name else domain), name or "")


def read_set(text: str, name: str) -> isl.Set:
    """The set of a text, which isl takes up to a millisecond to read; with the name of its tuple, "" for none."""
    found = _read(text)
    return found.set_tuple_name(name) if name else found


@lru_cache(maxsize=1024)
def _read(text: str) -> isl.Set:
    return isl.Set(text)


@contextmanager
def operation_budget(operations: int) -> Generator[None]:
    """Bound the isl calls of a block (about 10^6 operations a second); they raise `islpy.Error` past it.

    Parsing counts too, so texts are read outside. Restored on the way out. Inside another budget, that one holds; other
    threads wait for theirs.
    """
    context = isl.DEFAULT_CONTEXT
    with _BUDGET:
        if context.get_max_operations():
            yield
            return
        context.reset_operations()
        context.set_max_operations(operations)
        try:
            yield
        finally:
            _no_budget()


_BUDGET: Final = Lock()


def _no_budget() -> None:
    context = isl.DEFAULT_CONTEXT
    context.set_max_operations(0)
    context.reset_operations()


if hasattr(os, "register_at_fork"):  # a child has no block that would end the budget of another thread
    os.register_at_fork(after_in_child=_no_budget)


def within_budget(operations: int, compute: Callable[[], _Result], otherwise: Callable[[], _Result]) -> _Result:
    """`compute` under a budget, `otherwise` where it runs out."""
    try:
        with operation_budget(operations):
            return compute()
    except isl.Error:
        return otherwise()


def has_floor(expression: Affine) -> bool:
    """True where a floor division or a remainder occurs."""
    return any(isinstance(atom, FloorDiv | Mod) for atom, _ in expression.terms)
