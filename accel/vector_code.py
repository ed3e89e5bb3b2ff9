"""The code of a statement body for the vector engine: each load, literal and operation once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poly.accel.isa import Convert, Imm, Index, Linear, Load, Micro, Op
from poly.affine import Affine
from poly.errors import ShapeError
from poly.expr import OPERATORS, Apply, Cast, Const, Expr, IndexValue, Read, dtype_of, is_known, known_value


def code_of(
    body: Expr, loads: Sequence[Load], linear: Callable[[Affine], Linear], dtype: str, first: int = 0
) -> tuple[Micro, ...]:
    """The micro-operations of a statement body whose k-th read is `loads[k]`, each load and literal once.

    `linear` turns an index value into one of the command's counters; `dtype` is the target's, which free literals take
    where nothing else says. `first`: registers that come before. Raises `ShapeError` where dtypes disagree.
    """
    maker = _Maker([load.region.dtype for load in loads], loads, linear, first)
    maker.emit(body, dtype)
    return tuple(maker.code)


class _Maker:
    """Emits each distinct micro-operation once; the last register is the body's value."""

    def __init__(
        self, dtypes: Sequence[str], loads: Sequence[Load], linear: Callable[[Affine], Linear], first: int
    ) -> None:
        self.dtypes, self.loads, self.linear, self.first = dtypes, loads, linear, first
        self.code: list[Micro] = []
        self.known: dict[tuple[object, ...], int] = {}

    def add(self, micro: Micro) -> int:
        # True == 1 == 1.0 in Python: the type is part of the key.
        key = (micro, type(micro.value), str(micro.value)) if isinstance(micro, Imm) else (micro,)
        if key not in self.known:
            self.code.append(micro)
            self.known[key] = self.first + len(self.code) - 1
        return self.known[key]

    def emit(self, body: Expr, dtype: str | None) -> int:
        match body:
            case Const(value, own):
                found = own or dtype
                if found is None:
                    raise ShapeError(f"the literal {value} has no dtype here")
                return self.add(Imm(value, found))
            case Read(position):
                return self.add(self.loads[position])
            case IndexValue(index):
                return self.add(Index(self.linear(index)))
            case Cast(target) if is_known(body):
                return self.add(Imm(known_value(body), target))
            case Cast(target, argument):
                return self.add(Convert(target, self.emit(argument, dtype_of(argument, self.dtypes) or target)))
            case Apply(name, arguments):
                values = arguments[1:] if name == "select" else arguments
                own = next((d for d in (dtype_of(a, self.dtypes) for a in values) if d is not None), None)
                inner = own or (
                    "f32" if OPERATORS[name].result == "bool" and name not in ("and", "or", "not") else dtype
                )
                first = (self.emit(arguments[0], "bool"),) if name == "select" else ()
                return self.add(Op(name, (*first, *(self.emit(a, inner) for a in values))))
