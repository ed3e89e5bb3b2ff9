"""Affine expressions to isl objects and back by coefficient matrices: no text is parsed, which is 5-10 times faster.

A floor becomes an extra dimension q with `0 <= argument - divisor*q < divisor`, projected out at the end; isl then
keeps sets of tiled loops free of existentials where it can. Columns: constant, parameters, inputs, outputs.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

import islpy as isl

from poly.affine import Affine, Atom, Constraint, FloorDiv, Mod, Var, sum_of, var
from poly.errors import Bug, ShapeError, UnsupportedError
from poly.sets import DIV, IN, OUT, PARAM, SET, floors_of, number, operation_budget, parameter_names

CST = isl.dim_type.cst
Row = dict[int, int]

LARGEST = 2**62  # no coefficient or constant of a set is larger


@contextmanager
def bounded(operations: int, what: str, where: str) -> Generator[None]:
    """Run isl calls under a budget of operations; past it, an `UnsupportedError` that says `what` at `where`."""
    try:
        with operation_budget(operations):
            yield
    except isl.Error as error:
        if "number of operations" not in str(error):
            if "domain_factor" not in str(error):
                raise Bug(f"{where}: {error}") from None
            text, hint = f"{what} is beyond isl's dataflow analysis", "fewer buffers made of one another"
            raise UnsupportedError(text, where=where, hint=hint) from None
        raise UnsupportedError(
            f"{what} takes more than {operations:,} isl operations, and is given up without a verdict", where=where,
            hint="bind the sizes, promote at a loop further out or before tiling, or fewer and simpler skews and tiles",
        ) from None  # fmt: skip


class _Rows:
    """Rows over the columns of named dimensions; floors get columns of their own behind `first_free`."""

    def __init__(self, columns: Mapping[str, int], first_free: int) -> None:
        self.columns, self.first_free = columns, first_free
        self.floors: dict[tuple[Affine, int], int] = {}

    def row(self, expression: Affine) -> Row:
        row: Row = {0: expression.constant}
        for atom, c in expression.terms:
            match atom:
                case Var(name):
                    _add(row, self.columns[name], c)
                case FloorDiv(argument, divisor):
                    _add(row, self.floor(argument, divisor), c)
                case Mod(argument, divisor):
                    for column, value in self.row(argument).items():
                        _add(row, column, c * value)
                    _add(row, self.floor(argument, divisor), -c * divisor)
        return row

    def floor(self, argument: Affine, divisor: int) -> int:
        return self.floors.setdefault((argument, divisor), self.first_free + len(self.floors))

    def definitions(self) -> list[Row]:
        """The inequalities that define the floors; a definition may bring in more floors."""
        rows: list[Row] = []
        done = 0
        while done < len(self.floors):
            (argument, divisor), column = list(self.floors.items())[done]
            low = self.row(argument)
            _add(low, column, -divisor)
            high = {k: -v for k, v in low.items()}
            high[0] = high.get(0, 0) + divisor - 1
            rows += [low, high]
            done += 1
        return rows


def _add(row: Row, column: int, value: int) -> None:
    row[column] = row.get(column, 0) + value


def _matrix(rows: Sequence[Row], width: int) -> isl.Mat:
    matrix = isl.Mat.alloc(isl.DEFAULT_CONTEXT, 0, 0).add_zero_cols(width).add_zero_rows(len(rows))
    for r, row in enumerate(rows):
        for c, value in row.items():
            if not -LARGEST <= value <= LARGEST:
                raise ShapeError(f"the number {value} is beyond {LARGEST}", hint="subscripts and sizes are smaller")
            if value:
                matrix = matrix.set_element_val(r, c, number(value))
    return matrix


def relation_of(
    expressions: Sequence[Affine], inputs: Sequence[str], parameters: Sequence[str], tuple_name: str = ""
) -> isl.Map:
    """`[parameters] -> { tuple_name[inputs] -> [expressions] }`."""
    return _relation(tuple(expressions), tuple(inputs), tuple(parameters), tuple_name)


@lru_cache(maxsize=1024)
def _relation(
    expressions: tuple[Affine, ...], inputs: tuple[str, ...], parameters: tuple[str, ...], tuple_name: str
) -> isl.Map:
    """Each edit of a schedule asks for the same relations again."""
    first_out = 1 + len(parameters) + len(inputs)
    columns = {name: 1 + k for k, name in enumerate([*parameters, *inputs])}
    rows = _Rows(columns, first_out + len(expressions))
    equalities = [rows.row(e) for e in expressions]
    for k, row in enumerate(equalities):
        row[first_out + k] = -1
    inequalities = rows.definitions()
    width = first_out + len(expressions) + len(rows.floors)
    space = isl.Space.alloc(isl.DEFAULT_CONTEXT, len(parameters), len(inputs), width - first_out)
    for k, name in enumerate(parameters):
        space = space.set_dim_name(PARAM, k, name)
    matrices = (_matrix(equalities, width), _matrix(inequalities, width))
    basic = isl.BasicMap.from_constraint_matrices(space, *matrices, CST, PARAM, IN, OUT, DIV)
    result = basic.project_out(OUT, len(expressions), len(rows.floors)).to_map()
    return result.set_tuple_name(IN, tuple_name) if tuple_name else result


def set_of(
    conditions: Sequence[Constraint], names: Sequence[str], parameters: Sequence[str], tuple_name: str = ""
) -> isl.Set:
    """`[parameters] -> { tuple_name[names] : conditions }`."""
    first_free = 1 + len(parameters) + len(names)
    rows = _Rows({name: 1 + k for k, name in enumerate([*parameters, *names])}, first_free)
    equalities = [rows.row(c.expr) for c in conditions if c.equality]
    inequalities = [rows.row(c.expr) for c in conditions if not c.equality]
    inequalities += rows.definitions()
    space = isl.Space.set_alloc(isl.DEFAULT_CONTEXT, len(parameters), len(names) + len(rows.floors))
    for k, name in enumerate(parameters):
        space = space.set_dim_name(PARAM, k, name)
    width = first_free + len(rows.floors)
    matrices = (_matrix(equalities, width), _matrix(inequalities, width))
    basic = isl.BasicSet.from_constraint_matrices(space, *matrices, CST, PARAM, SET, DIV)
    result = basic.project_out(SET, len(names), len(rows.floors)).to_set()
    return result.set_tuple_name(tuple_name) if tuple_name else result


def conditions_of(basic: isl.BasicSet, names: Sequence[str], about: int | None = None) -> list[Constraint | None]:
    """The constraints of a basic set by names of its dimensions; None for an existential of no closed form.

    `about`: only those with this dimension.
    """
    column = 0 if about is None else 1 + basic.dim(PARAM) + about
    local = basic.get_local_space()
    divs = floors_of(local, names)
    atoms: list[Affine | None] = [*map(var, parameter_names(basic)), *map(var, names), *divs]
    result: list[Constraint | None] = []
    for equality, matrix in (
        (True, basic.equalities_matrix(CST, PARAM, SET, DIV)),
        (False, basic.inequalities_matrix(CST, PARAM, SET, DIV)),
    ):
        for r in range(matrix.rows()):
            if column and not entry(matrix, r, column):
                continue
            expression = expression_of_row(matrix, r, atoms)
            result.append(None if expression is None else Constraint(expression, equality))
    return result


def expression_of_row(matrix: isl.Mat, row: int, atoms: Sequence[Affine | None]) -> Affine | None:
    """constant + sum of coefficient * atom; None where an atom that takes part is None."""
    terms: list[tuple[Atom, int]] = []
    value = matrix.get_element_val
    constant = value(row, 0).get_num_si()
    for k, atom in enumerate(atoms, 1):
        if c := value(row, k).get_num_si():
            if atom is None:
                return None
            terms += [(a, factor * c) for a, factor in atom.terms]
            constant += atom.constant * c
    return sum_of(terms, constant)


def entry(matrix: isl.Mat, row: int, column: int) -> int:
    """One coefficient as an int."""
    return matrix.get_element_val(row, column).get_num_si()


def outputs_of_hull(relation: isl.Map, inputs: Sequence[str]) -> list[Affine | None]:
    """Every output of a relation as a function of its inputs where the affine hull gives one, else None."""
    hull = relation.affine_hull()
    count, before = hull.dim(OUT), hull.dim(PARAM) + hull.dim(IN)
    wrapped = hull.wrap()
    local = wrapped.get_local_space()
    names = [*inputs, *(f"output {k}" for k in range(count))]
    divs = [None if d is None or not d.names.isdisjoint(names[len(inputs) :]) else d for d in floors_of(local, names)]
    atoms = [*map(var, parameter_names(hull)), *map(var, names), *divs]
    matrix = wrapped.equalities_matrix(CST, PARAM, SET, DIV)
    result: list[Affine | None] = [None] * count
    for r in range(matrix.rows()):
        outs = [(d, c) for d in range(count) if (c := entry(matrix, r, 1 + before + d))]
        if len(outs) == 1 and (whole := expression_of_row(matrix, r, atoms)) is not None:
            d, c = outs[0]
            own = Var(names[len(inputs) + d])
            rest = Affine(tuple(term for term in whole.terms if term[0] != own), whole.constant)
            result[d] = rest * -c if abs(c) == 1 else (-rest // c if c > 0 else rest // -c)
    return result
