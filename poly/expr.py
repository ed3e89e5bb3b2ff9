"""Statement bodies: a small closed language of scalar expressions over the statement's reads.

`Read(k)` is the value of the statement's k-th read; everything else is arithmetic on values. Which operators exist is
the table `OPERATORS`: one row an operator, with its arity, its numpy meaning and how it prints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from sys import float_info
from typing import Final, Literal

import numpy as np

from poly.affine import Affine
from poly.dtypes import converted, is_float, is_integer, numpy_dtype, size_bytes
from poly.errors import ShapeError


@dataclass(frozen=True)
class Const:
    """A literal. `dtype` None means: takes the dtype of what it is combined with."""

    value: float | int | bool
    dtype: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.value, int) and abs(self.value) > float_info.max:
            raise ShapeError("a literal is beyond the range of f64", hint="inf, in an expression of floats")


@dataclass(frozen=True)
class Read:
    """The value of read number `position` of the statement."""

    position: int


@dataclass(frozen=True)
class IndexValue:
    """The value of an affine expression of the iterators and sizes, as i64."""

    index: Affine


@dataclass(frozen=True)
class Apply:
    """An operator of `OPERATORS` on arguments."""

    operator: str
    arguments: tuple[Expr, ...]

    def __post_init__(self) -> None:
        assert OPERATORS[self.operator].arity == len(self.arguments), self


@dataclass(frozen=True)
class Cast:
    """Conversion; float to integer truncates toward zero."""

    dtype: str
    argument: Expr


Expr = Const | Read | IndexValue | Apply | Cast
Cost = Literal["instruction", "slow", "exponential", "function"]
Result = Literal["same", "bool", "float", "integer", "bits", "f32"]
BITS: Final = {"f32": "i32", "i32": "f32", "f64": "i64", "i64": "f64"}
MOST_EXPRESSIONS: Final = 48  # in a body that has a value in several places


@dataclass(frozen=True)
class Operator:
    """`cost` on a core: an instruction or a few, one that keeps its unit busy for several cycles, a polynomial as of an
    exponential, or more. `result`: the dtype of the arguments, bool, the arguments' (which must be floating or
    integers), `BITS`, or f32 of integers.
    """

    name: str
    arity: int
    evaluate: Callable[..., object]
    cost: Cost
    result: Result = "same"
    infix: str | None = None
    precedence: int = 100


def _quiet(function: Callable[..., object]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return call


def _erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x)).astype(np.asarray(x).dtype)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x)
    wide = x if x.dtype.itemsize > 2 else x.astype(np.float32)  # as numpy does in its own functions of f16
    e = np.exp(-np.abs(wide))
    return np.where(wide >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C's `pow`; of integers, modulo their width, and truncated toward zero for negative exponents (0 for a base 0)."""
    a, b = np.asarray(a), np.asarray(b)
    dtype = np.result_type(a, b)
    if dtype.kind in "iu":
        a, b = a.astype(dtype), b.astype(dtype)
        unit = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 1, -1, 1), 0))
        return np.where(b < 0, unit.astype(dtype), np.power(a, np.where(b < 0, 0, b).astype(dtype)))
    found = np.asarray(np.power(a, b))
    if dtype.kind != "f":
        return found
    # numpy takes a root for the exponent 1/2, which is not a number at -infinity and keeps the sign of -0
    root = (b == 0.5) & ((a == -np.inf) | (a == 0))
    return np.where(root, np.abs(a), found).astype(dtype)


def _integers(*operands: np.ndarray) -> tuple[np.ndarray, ...]:
    found = tuple(np.asarray(a) for a in operands)
    if any(a.dtype.kind not in "iu" for a in found):
        raise TypeError("an operator on integers only")
    return found


def _truncated_division(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C's `/` of integers: the fraction is dropped; 0 for a divisor 0."""
    a, b = _integers(a, b)
    with np.errstate(all="ignore"):
        return np.floor_divide(a, b) + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0)))


def _shift_left(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """0 where the count is not below the width (as a negative one is not)."""
    a, b = _integers(a, b)
    inside = (b >= 0) & (b < 8 * a.dtype.itemsize)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0).astype(a.dtype)


def _shift_right(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sign (0 or -1) where the count is not below the width."""
    a, b = _integers(a, b)
    inside = (b >= 0) & (b < 8 * a.dtype.itemsize)
    sign = np.where(a < 0, -1, 0).astype(a.dtype)  # of its own dtype: u64 beside i64 would be f64, which rounds
    return np.where(inside, np.right_shift(a, np.where(inside, b, 0)), sign)


def _bits(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x)
    return x.view({"i": "f", "f": "i"}[x.dtype.kind] + str(x.dtype.itemsize))


def _parts(x: np.ndarray, dtype: str) -> np.ndarray:
    """The 8- or 16-bit integers that numbers of 32 bits hold, the lowest bits first, along a new last axis."""
    x = np.asarray(x, "<i4")
    return x[..., None].view(dtype).astype(np.int32)


def _dot(left: str, right: str) -> Callable[..., object]:
    def call(a: np.ndarray, b: np.ndarray) -> object:
        a, b = np.broadcast_arrays(*_integers(a, b))
        if (a.dtype, b.dtype) != (np.int32, np.int32):
            raise TypeError("an operator on integers of 32 bits only")
        return np.sum(_parts(a, left) * _parts(b, right), -1, dtype=np.int32)

    return call


def _dot_of_bf16(a: np.ndarray, b: np.ndarray) -> object:
    a, b = np.broadcast_arrays(*_integers(a, b))
    if (a.dtype, b.dtype) != (np.int32, np.int32):
        raise TypeError("an operator on integers of 32 bits only")
    (low, high), (first, second) = (
        ((x << 16).view(np.float32), (x & -(1 << 16)).view(np.float32)) for x in (a, b)
    )  # fmt: skip
    return low * first + high * second


_TABLE: Final[Sequence[Operator]] = (
    Operator("or", 2, np.logical_or, "instruction", "bool", "or", 1),
    Operator("and", 2, np.logical_and, "instruction", "bool", "and", 2),
    Operator("not", 1, np.logical_not, "instruction", "bool"),
    Operator("eq", 2, np.equal, "instruction", "bool", "==", 4),
    Operator("ne", 2, np.not_equal, "instruction", "bool", "!=", 4),
    Operator("lt", 2, np.less, "instruction", "bool", "<", 4),
    Operator("le", 2, np.less_equal, "instruction", "bool", "<=", 4),
    Operator("gt", 2, np.greater, "instruction", "bool", ">", 4),
    Operator("ge", 2, np.greater_equal, "instruction", "bool", ">=", 4),
    Operator("add", 2, _quiet(np.add), "instruction", "same", "+", 10),
    Operator("sub", 2, _quiet(np.subtract), "instruction", "same", "-", 10),
    Operator("mul", 2, _quiet(np.multiply), "instruction", "same", "*", 20),
    Operator("div", 2, _quiet(np.divide), "slow", "float", "/", 20),
    Operator("trunc_div", 2, _truncated_division, "slow", "integer"),
    Operator("floor_div", 2, _quiet(np.floor_divide), "function", "same", "//", 20),
    Operator("mod", 2, _quiet(np.remainder), "function", "same", "%", 20),
    Operator("neg", 1, np.negative, "instruction"),
    Operator("max", 2, _quiet(np.maximum), "instruction"),
    Operator("min", 2, _quiet(np.minimum), "instruction"),
    Operator("abs", 1, np.abs, "instruction"),
    Operator("sign", 1, _quiet(np.sign), "instruction"),
    Operator("floor", 1, np.floor, "instruction", "float"),
    Operator("ceil", 1, np.ceil, "instruction", "float"),
    Operator("round", 1, np.rint, "instruction", "float"),
    Operator("exp", 1, _quiet(np.exp), "exponential", "float"),
    Operator("log", 1, _quiet(np.log), "function", "float"),
    Operator("log2", 1, _quiet(np.log2), "function", "float"),
    Operator("log10", 1, _quiet(np.log10), "function", "float"),
    Operator("sqrt", 1, _quiet(np.sqrt), "slow", "float"),
    Operator("tanh", 1, np.tanh, "function", "float"),
    Operator("sigmoid", 1, _quiet(_sigmoid), "function", "float"),
    Operator("erf", 1, _erf, "function", "float"),
    Operator("sin", 1, _quiet(np.sin), "function", "float"),
    Operator("cos", 1, _quiet(np.cos), "function", "float"),
    Operator("atan2", 2, np.arctan2, "function", "float"),
    Operator("pow", 2, _quiet(_power), "function", "same"),
    Operator("fmod", 2, _quiet(np.fmod), "function", "float"),  # the exact remainder, with the sign of the dividend
    Operator("bit_and", 2, np.bitwise_and, "instruction", "integer"),
    Operator("bit_or", 2, np.bitwise_or, "instruction", "integer"),
    Operator("bit_xor", 2, np.bitwise_xor, "instruction", "integer"),
    Operator("shift_left", 2, _shift_left, "instruction", "integer"),
    Operator("shift_right", 2, _shift_right, "instruction", "integer"),  # of signed integers: copies of the sign
    Operator("bits", 1, _bits, "instruction", "bits"),  # of a float as an integer, or the other way round
    Operator("select", 3, np.where, "instruction", "same"),
    # Sums of products of what two i32 hold: of two i16 each; of four u8 and four i8, of four of one kind.
    Operator("dot2", 2, _dot("<i2", "<i2"), "instruction", "integer"),
    Operator("dot4", 2, _dot("u1", "i1"), "instruction", "integer"),
    Operator("dot4_i8", 2, _dot("i1", "i1"), "instruction", "integer"),
    Operator("dot4_u8", 2, _dot("u1", "u1"), "instruction", "integer"),
    Operator("dot2_bf16", 2, _quiet(_dot_of_bf16), "instruction", "f32"),  # of two bf16 each, in f32
)
DOT_BF16: Final = "dot2_bf16"
ALIKE: Final = ("dot4_i8", "dot4_u8")
FOR_UNITS: Final = frozenset((*ALIKE, DOT_BF16))  # only sums for a matrix unit are made of these
DOTS: Final[dict[str, int]] = {"dot2": 2, "dot4": 4, **dict.fromkeys(ALIKE, 4), DOT_BF16: 2}  # how many products each
OPERATORS: Final[dict[str, Operator]] = {row.name: row for row in _TABLE}


@dataclass(frozen=True)
class Combiner:
    """How a reduction merges a new value into its target: target = operator(target, value).

    All rows are associative and commutative on exact values, so instances may be reordered unless the statement says
    otherwise.
    """

    symbol: str
    operator: str

    def identity(self, dtype: str) -> Const:
        """The value that leaves every other unchanged."""
        if self.symbol in ("max", "min"):
            if is_float(dtype):
                return Const(float("-inf") if self.symbol == "max" else float("inf"), dtype)
            if dtype == "bool":
                return Const(self.symbol == "min", dtype)
            limits = np.iinfo(numpy_dtype(dtype).name)
            return Const(int(limits.min if self.symbol == "max" else limits.max), dtype)
        if self.symbol in ("and", "or"):
            return Const(self.symbol == "and", dtype)
        return Const({"+": 0, "*": 1}[self.symbol], dtype)


COMBINERS: Final[dict[str, Combiner]] = {
    symbol: Combiner(symbol, operator)
    for symbol, operator in (("+", "add"), ("*", "mul"), ("max", "max"), ("min", "min"), ("and", "and"), ("or", "or"))
}


def apply(operator: str, *arguments: Expr) -> Apply:
    """`Apply` with the arguments spelled out."""
    return Apply(operator, arguments)


def children(body: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions."""
    match body:
        case Apply(_, arguments):
            return arguments
        case Cast(_, argument):
            return (argument,)
        case _:
            return ()


def walk(body: Expr) -> Iterator[Expr]:
    """The expression and everything inside it, parents first."""
    left = [body]
    while left:
        node = left.pop()
        yield node
        left.extend(reversed(children(node)))


def stays_short(body: Expr, value: Expr, uses: int) -> bool:
    """Whether a body with a value in place of so many of its reads has at most `MOST_EXPRESSIONS`: what computes bodies
    finds the repeated value, but goes through all of them, and values of values would double them each time.
    """
    return uses * sum(1 for _ in walk(value)) + sum(1 for _ in walk(body)) <= MOST_EXPRESSIONS


def rewrite(body: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Replace bottom-up: where `rule` gives an expression it takes the place of the (already rewritten) node."""
    match body:
        case Apply(operator, arguments):
            body = Apply(operator, tuple(rewrite(a, rule) for a in arguments))
        case Cast(dtype, argument):
            body = Cast(dtype, rewrite(argument, rule))
        case _:
            pass
    replacement = rule(body)
    return body if replacement is None else replacement


def with_reads_at(body: Expr, places: Mapping[int, int] | Sequence[int]) -> Expr:
    """The body for a list of reads that has those of its own at other places."""
    return rewrite(body, lambda node: Read(places[node.position]) if isinstance(node, Read) else None)


def with_indices(body: Expr, values: Mapping[str, Affine]) -> Expr:
    """The body with expressions in place of names in its index values."""
    return rewrite(body, lambda e: IndexValue(e.index.substitute(values)) if isinstance(e, IndexValue) else None)


def reads_of(body: Expr) -> list[int]:
    """Positions of the reads that occur, ascending, once each."""
    return sorted({node.position for node in walk(body) if isinstance(node, Read)})


def dtype_of(body: Expr, reads: Sequence[str]) -> str | None:
    """The dtype of a body whose reads have the dtypes `reads`; None where it is made of free literals only.

    Raises `ShapeError` where operands disagree (conversions are always written: `Cast`), and for a literal that the
    integers it is combined with do not have.
    """
    match body:
        case Const(_, dtype):
            return dtype
        case Read(position):
            return reads[position]
        case IndexValue():
            return "i64"
        case Cast(dtype, argument):
            dtype_of(argument, reads)
            return dtype
        case Apply(name, arguments):
            found = [dtype_of(a, reads) for a in arguments][1 if name == "select" else 0 :]
            known = {d for d in found if d is not None}
            if len(known) > 1:
                raise ShapeError(
                    f"{name}: operands of dtypes {' and '.join(sorted(known))}", hint=_conversion(arguments, known)
                )
            operator = OPERATORS[name]
            dtype = next(iter(known), None)
            if operator.result == "bits":
                return _bits_dtype(dtype)
            other = next((str(a.index) for a in arguments if isinstance(a, IndexValue)), "x")
            for argument in arguments if dtype is not None else ():
                require_literals(argument, dtype or "", name, other)
            if operator.result == "float" and dtype is not None and not is_float(dtype) and dtype[0] != "c":
                hint = f"f32(x) or f64(x) inside {name}"
                hint = "f64(x) / f64(y), or trunc_div(x, y), which drops the fraction" if name == "div" else hint
                raise ShapeError(f"{operator.infix or name}: takes floating operands, not {dtype}", hint=hint)
            _require_kind(operator, dtype)
            return operator.result if operator.result in ("bool", "f32") else dtype


_OF_NUMBERS: Final = ("sub", "neg", "sign", "pow", "floor_div", "mod")  # not of truths


def _require_kind(operator: Operator, dtype: str | None) -> None:
    name, integer = operator.name, operator.result in ("integer", "f32")
    if integer and dtype is None:
        raise ShapeError(f"{name}: of literals only", hint=f"the number itself, or {name}(i64(...), ...)")
    if integer and dtype is not None and not is_integer(dtype) and not (dtype == "bool" and name.startswith("bit_")):
        more = {"bit_xor": "; a power is x**y", "bit_and": "; (x > 0) & (y > 0)", "bit_or": "; (x > 0) | (y > 0)"}
        hint = f"i32(x) or i64(x) inside {name}{more.get(name, '')}"
        raise ShapeError(f"{name}: takes integers, not {dtype}", hint=hint)
    if name in DOTS and dtype != "i32":
        raise ShapeError(f"{name}: takes i32, not {dtype}", hint="each holds two i16 or bf16, or four 8-bit integers")
    if dtype is not None and dtype[0] == "c" and name in ("floor_div", "mod"):
        raise ShapeError(f"{operator.infix}: takes integers and floats, not {dtype}", hint="/ of complex numbers")
    if dtype == "bool" and name in _OF_NUMBERS:
        raise ShapeError(f"{name}: takes numbers, not bool", hint="i32(x) or f32(x) for 0 and 1; x != y, not x")


def _bits_dtype(dtype: str | None) -> str:
    if dtype not in BITS:
        given = dtype or "a literal"
        raise ShapeError(f"bits: takes {', '.join(BITS)}, not {given}", hint="bits(f32(x)), bits(i32(x))")
    return BITS[dtype]


def _values(body: Expr) -> Iterator[Expr]:
    """What the value of a body is made of: every sub-expression outside of conditions, the whole first."""
    yield body
    conditional = isinstance(body, Apply) and body.operator == "select"
    for child in children(body)[conditional:]:
        yield from _values(child)


def require_literals(body: Expr, dtype: str, where: str, other: str = "") -> None:
    """Raise `ShapeError` where free literals of a body are no numbers of the integers `dtype` (NEP 50 refuses them), or
    are truths to which an operator of numbers is applied.

    `other`: what they are combined with, if anything.
    """
    if not (is_integer(dtype) or dtype == "bool") or not is_free(body):
        return
    limits = np.iinfo("u1" if dtype == "bool" else numpy_dtype(dtype).name)
    convert = f"convert the other operand: f32({other})" if other else "a whole number, or f32 for the target"
    for node in _values(body):
        if isinstance(node, Apply):
            if OPERATORS[node.operator].result == "float":
                shown = OPERATORS[node.operator].infix or node.operator
                raise ShapeError(f"{where}: {shown} of literals is no {dtype}", hint=convert)
            _require_kind(OPERATORS[node.operator], dtype)
        if isinstance(node, Const) and dtype != "bool":
            if not isfinite(node.value) or node.value != int(node.value):
                raise ShapeError(f"{where}: the literal {node.value} is no {dtype}", hint=convert)
            if not limits.min <= int(node.value) <= limits.max:
                hint = "convert the other operand to a wider dtype, e.g. i64(x)"
                hint = f"{limits.max} for all bits, or {hint}" if node.value == -1 else hint
                values = f"{limits.min} .. {limits.max}"
                raise ShapeError(f"{where}: the literal {node.value} does not fit {dtype} ({values})", hint=hint)


def _conversion(arguments: Sequence[Expr], dtypes: Collection[str]) -> str:
    """What to write where operands disagree."""
    floats = [d for d in dtypes if is_float(d)]
    index = next((n.index for a in arguments for n in walk(a) if isinstance(n, IndexValue)), None)
    if len(floats) == 1 and index is not None and set(dtypes) == {floats[0], "i64"}:
        return f"a cast: {floats[0]}({index}), as indices and sizes are i64"
    if not floats and index is not None and all(map(is_integer, dtypes)):
        return f"a cast: {next(d for d in dtypes if d != 'i64')}({index}), as indices and sizes are i64"
    wide = max(dtypes, key=lambda d: (is_float(d), size_bytes(d)))
    if all(map(is_integer, dtypes)) and not all(np.can_cast(numpy_dtype(d), numpy_dtype(wide)) for d in dtypes):
        wide = "i32" if size_bytes(wide) < 4 else "i64"  # with and without a sign: neither has the other's values
        return f"convert both with casts, e.g. {wide}(x)"
    return f"convert one with a cast, e.g. {wide if all(map(is_integer, dtypes)) else 'f32'}(x)"


def evaluate(
    body: Expr, reads: Sequence[np.ndarray], index: Callable[[Affine], np.ndarray | int], dtype: str | None = None
) -> np.ndarray:
    """The value on numpy arrays (or scalars), the oracle of every compiled form.

    `index` gives the value of an affine expression; `dtype` is what free literals become at the top.
    """
    match body:
        case Const(value, own):
            name = own or dtype
            return np.asarray(value) if name is None else np.asarray(value, numpy_dtype(name))
        case Read(position):
            return reads[position]
        case IndexValue(expression):
            return np.asarray(index(expression), np.int64)
        case Cast(target, argument):
            return converted(evaluate(argument, reads, index, dtype_of_literals((argument,))), target)
        case Apply(name, arguments):
            return _apply(name, arguments, reads, index, dtype)


def is_free(body: Expr) -> bool:
    """True where an expression's value is made of literals without a dtype: it takes that of what it is combined with.

    A condition does not count: of a select only the two values do, and a comparison is a bool.
    """
    match body:
        case Const(_, dtype):
            return dtype is None
        case Apply(name, arguments):
            values = arguments[1:] if name == "select" else arguments
            return OPERATORS[name].result not in ("bool", "bits", "f32") and all(is_free(a) for a in values)
        case _:
            return False


def dtype_of_literals(literals: Sequence[Expr]) -> str | None:
    """The dtype in which literals, and what is computed from them alone, are compared, or computed before a cast: f64
    where one is a float or beyond i64, or an exponent is negative, i64 where integers meet truths; None: all are of one
    dtype.
    """
    nodes = [e for a in literals for e in walk(a)]
    kinds = {type(e.value) for e in nodes if isinstance(e, Const)}
    real = any(isinstance(e, Apply) and (OPERATORS[e.operator].result == "float" or _is_fraction(e)) for e in nodes)
    beyond = len(nodes) > 1 and any(isinstance(e, Const) and not -(2**63) <= e.value < 2**63 for e in nodes)
    return "f64" if real or beyond or float in kinds else "i64" if kinds == {bool, int} else None


def is_known(body: Expr) -> bool:
    """Whether an expression is made of literals and nothing else, conditions included."""
    return not any(isinstance(e, Read | IndexValue) for e in walk(body))


def known_value(body: Expr, dtype: str | None = None) -> float | int | bool:
    """The value of an expression that `is_known`."""
    value: float | int | bool = evaluate(body, (), lambda _: 0, dtype).item()
    return value


def _is_fraction(body: Apply) -> bool:
    """Whether it is a power with a negative literal as its exponent: as in Python, no integer."""
    if body.operator != "pow" or not is_known(exponent := body.arguments[1]) or not is_free(exponent):
        return False
    return known_value(exponent) < 0


def _apply(
    name: str,
    arguments: Sequence[Expr],
    reads: Sequence[np.ndarray],
    index: Callable[[Affine], np.ndarray | int],
    dtype: str | None,
) -> np.ndarray:
    from poly.dtypes import dtype_name

    values = [None if is_free(a) else evaluate(a, reads, index) for a in arguments]
    typed = [v for v in (values[1:] if name == "select" else values) if v is not None]
    compared = OPERATORS[name].result == "bool"
    literal = dtype_name(typed[0].dtype) if typed else dtype_of_literals(arguments) if compared else dtype
    filled = [evaluate(a, reads, index, literal) if v is None else v for a, v in zip(arguments, values, strict=True)]
    return np.asarray(OPERATORS[name].evaluate(*filled))
