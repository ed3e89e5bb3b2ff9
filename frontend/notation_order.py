"""The statements of notation: updates split into an initial value and the update, names, places in the order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from poly.affine import Affine, var
from poly.errors import ParseError
from poly.expr import Const
from poly.frontend.notation_equalities import with_equalities
from poly.frontend.notation_shapes import Draft, image, ordered_names, range_box, target_domain
from poly.frontend.ranges import Range
from poly.program import Access, PathStep, Statement, Tensor
from poly.relations import box
from poly.sets import SET, identifier
from poly.text import make_statement
from poly.text_syntax import tensor_text


def ordered_statements(
    drafts: Sequence[Draft], tensors: Mapping[str, Tensor], parameters: Sequence[str], context: isl.Set
) -> tuple[Statement, ...]:
    """All statements with names and paths.

    An update of a target that is not inout gets a statement before it that sets the target to the combiner's identity.
    Names come from the label or the target: `C_set` for an assignment, `C_init` and `C_update`, numbered where taken.
    """
    names = {*tensors, *(d.line.label for d in drafts if d.line.label is not None)}
    result: list[Statement] = []
    for k, draft in enumerate(drafts):
        stem = draft.line.label or identifier(draft.tensor)
        if identifier(stem) != stem:
            raise draft.line.place.error(f"{stem!r} cannot name a statement", hint=identifier(stem))
        if draft.line.combiner is not None and tensors[draft.tensor].role != "inout":
            first = initial(draft, _fresh(f"{stem}_init", names), tensors[draft.tensor], parameters, context)
            _check_not_lost(first, drafts[: k + 1], tensors[draft.tensor], parameters)
            result.append(first)
        name = draft.line.label or _fresh(f"{stem}_{'update' if draft.line.combiner else 'set'}", names)
        s = draft.statement(name)
        path = _path(draft.line.prefix, draft.iterators, 1)
        path = path if draft.step is None else (*path, draft.step)
        made = make_statement(draft.line, name, s.iterators, s.domain, (s.write, s.body, s.reads), path)
        result.append(with_equalities(made) if _may_lose_indices(draft) else made)
    return tuple(_renumber(result))


def _may_lose_indices(draft: Draft) -> bool:
    """Whether to look for indices that follow from the others: not where a label lists them, or their loops are shared.

    Only where an equality is written: else one finds those of extent 1 at most, which stay, and to ask isl about a
    convolution with a condition takes as long as all else that reads it.
    """
    where = draft.line.clauses.get("where")
    return where is not None and "==" in where.text and draft.line.subscripts is None and not draft.around


def initial(draft: Draft, name: str, target: Tensor, parameters: Sequence[str], context: isl.Set) -> Statement:
    """The statement that sets every element that the update may write to the combiner's identity, once each."""
    assert draft.line.combiner is not None
    around = draft.around
    if draft.write.indirect:
        iterators = (*around, *_fresh_iterators(target.rank, (*draft.iterators, *parameters)))
        ranges = {i: Range((Affine(),), (e,)) for i, e in zip(iterators[len(around) :], target.shape, strict=True)}
        kept = target_domain(draft, around, parameters)
        domain = range_box(name, iterators, ranges, parameters).intersect(
            kept.insert_dims(SET, len(around), target.rank).set_tuple_name(name)
        )
        write = Access(target.name, tuple(var(i) for i in iterators[len(around) :]))
    else:
        iterators, write = draft.kept, draft.write
        domain = _within(target_domain(draft, iterators, parameters), iterators, write, target, parameters, context)
        places = image(domain, iterators, [*map(var, around), *write.affine_index], parameters)
        if not places.is_injective():
            domain = places.range().gist_params(context)
            iterators = (*around, *_fresh_iterators(target.rank, (*draft.iterators, *parameters)))
            write = Access(target.name, tuple(var(i) for i in iterators[len(around) :]))
    for d, iterator in enumerate(iterators):
        domain = domain.set_dim_name(SET, d, iterator)
    identity = draft.line.combiner.identity(target.dtype).value
    path = _path(draft.line.prefix, iterators, 0)
    domain = domain.remove_redundancies().set_tuple_name(name)
    return Statement(name, iterators, domain, write, (), Const(identity), path=path)


def _within(
    domain: isl.Set, iterators: Sequence[str], write: Access, target: Tensor, parameters: Sequence[str],
    context: isl.Set,
) -> isl.Set:  # fmt: skip
    """What of a domain writes inside of its target: a shape that is given may leave out places without terms."""
    places = image(domain, iterators, write.affine_index, parameters)
    inside = places.intersect_range(box("", target.shape, parameters).reset_tuple_id())
    return domain if places.intersect_params(context).is_subset(inside) else inside.domain()


def _check_not_lost(first: Statement, drafts: Sequence[Draft], target: Tensor, parameters: Sequence[str]) -> None:
    """An update that starts over may not wipe out what an earlier statement has written and nothing has read.

    What it starts from itself may be written before.
    """
    draft = drafts[-1]
    start = 0
    for k, other in enumerate(drafts[:-1]):
        start = k + 1 if any(r.tensor == target.name for r in other.reads) else start
    written = image(first.domain, first.iterators, first.write.affine_index, parameters).range()
    for other in drafts[start:-1]:
        same = isinstance(other.body, Const) and other.body == first.body and other.line.combiner is None
        if other.tensor != target.name or other.write.indirect or same:
            continue
        s = other.statement()
        if not image(s.domain, s.iterators, s.write.affine_index, parameters).range().is_disjoint(written):
            raise ParseError(
                f"{draft.shown!r} starts from {first.body.value if isinstance(first.body, Const) else 0}: "
                f"what {other.shown!r} wrote would be lost",
                hint=_to_go_on(draft, target),
            )


def _to_go_on(draft: Draft, target: Tensor) -> str:
    """What to write for an update that is to start from what is there."""
    symbol = draft.line.combiner.symbol if draft.line.combiner else ""
    declared = f"`{tensor_text(replace(target, role='inout'))}` in front for {symbol}= to go on from it"
    written = {n for s in draft.write.affine_index for n in ordered_names(s)}
    place = draft.line.target.text
    plain = f"{place} = {place} {symbol} ..., " if symbol in ("+", "*") and written.issuperset(draft.iterators) else ""
    return f"{plain}{declared}, or a tensor of its own"


def _fresh(name: str, names: set[str]) -> str:
    number, found = 0, name
    while found in names:
        number += 1
        found = f"{name}_{number}"
    names.add(found)
    return found


def _fresh_iterators(count: int, taken: Sequence[str]) -> tuple[str, ...]:
    prefix = "d"
    while any(t.startswith(prefix) for t in taken):
        prefix += "d"
    return tuple(f"{prefix}{k}" for k in range(count))


def _path(prefix: tuple[PathStep, ...], iterators: Sequence[str], second: int) -> tuple[PathStep, ...]:
    """The path with two places for every line, so that initial values find room; `_renumber` closes the gaps."""
    doubled = [2 * step if isinstance(step, int) else step for step in prefix]
    last = doubled.pop()
    assert isinstance(last, int)
    return (*doubled, last + second, *(i for i in iterators if i not in prefix))


def _renumber(statements: Sequence[Statement]) -> list[Statement]:
    """Positions counted from 0 without gaps in every loop."""
    positions: dict[tuple[PathStep, ...], set[int]] = {}
    for s in statements:
        for d, step in enumerate(s.path):
            if isinstance(step, int):
                positions.setdefault(s.path[:d], set()).add(step)
    rank = {outer: {step: k for k, step in enumerate(sorted(steps))} for outer, steps in positions.items()}

    def renumbered(path: tuple[PathStep, ...]) -> tuple[PathStep, ...]:
        return tuple(rank[path[:d]][step] if isinstance(step, int) else step for d, step in enumerate(path))

    return [replace(s, path=renumbered(s.path)) for s in statements]
