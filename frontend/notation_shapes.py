"""Domains of statements from shapes, and shapes of tensors from the domains of what writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import islpy as isl

from poly.affine import Affine, Var, var
from poly.document import counted
from poly.dtypes import DTYPES
from poly.errors import ParseError, ShapeError, WantedShape
from poly.expr import Expr, IndexValue, walk
from poly.frontend.ranges import (
    Range,
    Subscripted,
    bounded,
    end_of,
    extreme,
    infer_ranges,
    likely_ends,
    ranges_of_set,
)
from poly.lexical import names_in
from poly.program import Access, ReadIndex, Statement
from poly.relations import access_map, box
from poly.sets import SET, affine_of_pw, header, witness
from poly.text_printed import access_text, read_text
from poly.text_sets import read_terms
from poly.text_syntax import StatementLine


@dataclass
class Draft:
    """A statement on its way: `condition` is its `where`, `ranges` has the indices that the `where` does not bound.

    `chosen`: positions of reads that have a guard since they stand in a choice. `scalars`: names that are no index.
    `step`: its position in its own loops, where others share them.
    """

    line: StatementLine
    write: Access
    body: Expr
    reads: tuple[Access, ...]
    iterators: tuple[str, ...]
    condition: isl.Set
    chosen: frozenset[int] = frozenset()
    ranges: dict[str, Range] = field(default_factory=dict[str, Range])
    domain: isl.Set | None = None
    scalars: frozenset[str] = frozenset()
    step: int | None = None

    @property
    def tensor(self) -> str:
        """What it writes."""
        return self.write.tensor

    @property
    def shown(self) -> str:
        """For messages: the statement as written."""
        return self.line.place.shown

    @property
    def around(self) -> tuple[str, ...]:
        """The iterators of the `for` lines around it."""
        return tuple(i for i in self.iterators if i in self.line.prefix)

    @property
    def kept(self) -> tuple[str, ...]:
        """The iterators of what sets the target of a sum: those around, and those that say where it is written."""
        own = {n for subscript in self.write.affine_index for n in ordered_names(subscript)}
        return tuple(i for i in self.iterators if i in own or i in self.line.prefix)

    def statement(self, name: str = "S") -> Statement:
        """The statement with the domain found so far; for access relations."""
        domain = self.condition if self.domain is None else self.domain
        return Statement(name, self.iterators, domain.set_tuple_name(name), self.write, self.reads, self.body)


def ordered_names(expression: Affine) -> Iterator[str]:
    """Every name in an expression, in the order of its text."""
    for atom, _ in expression.terms:
        if isinstance(atom, Var):
            yield atom.name
        else:
            yield from ordered_names(atom.argument)


def affine_parts(write: Access, reads: Sequence[Access], body: Expr) -> Iterator[Affine]:
    """Every affine expression of a statement: subscripts, guards, index values."""
    for access in (write, *reads):
        yield from (s for s in access.index if isinstance(s, Affine))
        yield from (c.expr for c in access.guard)
    yield from (node.index for node in walk(body) if isinstance(node, IndexValue))


def _any_shape(access: Access) -> WantedShape:
    """A shape of the tensor of an access, as an example."""
    return WantedShape(access.tensor, (None,) * len(access.index), named=True)


def _how_to_give(read: Access) -> tuple[str, WantedShape | None]:
    """A hint, and the shape that it asks for."""
    if read.tensor in DTYPES:
        return f"{read.tensor}(x), which converts x", None
    wanted = _any_shape(read)
    declared = f"{read.tensor}: f32[{', '.join(wanted.shown())}]"
    return f"{wanted} as an argument, or {declared} in the text", wanted


def range_box(name: str, iterators: Sequence[str], ranges: Mapping[str, Range], parameters: Sequence[str]) -> isl.Set:
    """`{ name[iterators] : bounds of those that have a range }`"""
    bounds = [f"{low.isl_text} <= {i}" for i in iterators if i in ranges for low in ranges[i].lower]
    bounds += [f"{i} < {high.isl_text}" for i in iterators if i in ranges for high in ranges[i].upper]
    text = " and ".join(bounds) or "true"
    return isl.Set(f"{header(parameters)}{{ {name}[{', '.join(iterators)}] : {text} }}")


def image(domain: isl.Set, iterators: Sequence[str], values: Sequence[Affine], parameters: Sequence[str]) -> isl.Map:
    """`{ [iterators] -> [values] }` on the domain."""
    domain = domain.reset_tuple_id() if domain.has_tuple_id() else domain
    text = ", ".join(f"({v.isl_text})" for v in values)
    return isl.Map(f"{header(parameters)}{{ [{', '.join(iterators)}] -> [{text}] }}").intersect_domain(domain)


def target_domain(draft: Draft, kept: Sequence[str], parameters: Sequence[str]) -> isl.Set:
    """The domain without its reduction: the ranges of `kept`, and of the `where` what speaks of nothing else.

    A triangular sum that has no terms at some place is still set there, and its shape includes that place.
    """
    where = draft.line.clauses.get("where")
    dropped = [d for d, i in enumerate(draft.iterators) if i not in kept]
    domain = draft.statement().domain.reset_tuple_id()
    for d in reversed(dropped):
        domain = domain.project_out(SET, d, 1)
    terms = None if where is None else read_terms(where, draft.iterators, parameters, kept)
    if where is not None and terms is None:
        return domain
    ranges = range_box("", kept, draft.ranges, parameters)
    ranges = ranges if terms is None else ranges.intersect(terms)
    closed = all(bounded(ranges, d) for d in range(len(kept)))
    return ranges if closed else domain


def _one_dimension(parameters: Sequence[str], rank: int, d: int, condition: str) -> str:
    names = ", ".join("d_" if k == d else f"d{k}_" for k in range(rank))
    return f"{header(parameters)}{{ [{names}] : {condition} }}"


class Shapes:
    """Shapes known so far, and the condition on the sizes that they bring. `solve` finds the rest."""

    def __init__(self, shapes: dict[str, tuple[Affine, ...]], parameters: tuple[str, ...], context: isl.Set) -> None:
        self.shapes, self.parameters, self.context = shapes, parameters, context
        self._bounded: dict[tuple[isl.Set, tuple[str, ...]], dict[str, Range]] = {}

    def solve(self, drafts: Sequence[Draft]) -> None:
        """Give every draft its domain and every tensor its shape, in the order in which they become known."""
        self._check_given(drafts)
        pending = list(drafts)
        while pending:
            draft = self._next(pending)
            if draft is None:  # what other statements write of a tensor is all that there is to bound the rest
                for tensor in dict.fromkeys(d.tensor for d in pending):
                    self._find_shape(tensor, [d for d in drafts if d.domain is not None])
                draft = self._next(pending) or pending[0]
            asked = next((a for a in (0, 1, 2) if self._resolvable(draft, a)), 1)
            draft.ranges = self._ranges(draft, asked)
            found = draft.condition.intersect(range_box("S", draft.iterators, draft.ranges, self.parameters))
            draft.domain = found.remove_redundancies()  # as its text is read again
            if draft.domain.intersect_params(self.context).is_empty() and not self._has_no_terms(draft):
                hint = "a larger tensor, or another `where`: no index satisfies it within the shapes"
                raise ShapeError("the ranges of the indices are empty", where=draft.shown, hint=hint)
            if asked:
                self._check_choices(draft, asked)
            pending.remove(draft)
            self._find_shape(draft.tensor, drafts)
        for draft in drafts:
            self._check_bounds(draft)

    def _next(self, pending: Sequence[Draft]) -> Draft | None:
        """A statement whose ranges are found: best one that reads what is known, then also under conditions."""
        ready = [d for d in pending if all(r.tensor in self.shapes for r in d.reads)]
        found = next((d for d in ready if any(self._resolvable(d, a) for a in (0, 1, 2))), None)
        return found or next((d for d in pending if self._resolvable(d)), None)

    def _has_no_elements(self, draft: Draft) -> bool:
        """Whether a tensor of the statement has an extent of 0, so that nothing is what is asked for."""
        shapes = [self.shapes.get(a.tensor, ()) for a in (draft.write, *draft.reads)]
        return any(e == Affine() for shape in shapes for e in shape)

    def _has_no_terms(self, draft: Draft) -> bool:
        """Whether it does nothing for good reason: no elements, or the condition of a sum leaves no term anywhere."""
        return self._has_no_elements(draft) or (
            draft.line.combiner is not None and not self._in_ranges(draft).intersect_params(self.context).is_empty()
        )

    def _in_ranges(self, draft: Draft) -> isl.Set:
        """What the ranges of the indices contain, each by itself."""
        known = self._ranges_of(draft.condition.intersect_params(self.context), draft.iterators)
        return range_box("S", draft.iterators, {**known, **draft.ranges}, self.parameters)

    def _started(self, draft: Draft) -> isl.Set:
        """Where a sum without terms sets its target: in the ranges, under what the `where` says of the target alone."""
        ranges, where = self._in_ranges(draft), draft.line.clauses.get("where")
        own = {n for subscript in draft.write.affine_index for n in ordered_names(subscript)}
        kept = tuple(i for i in draft.iterators if i in own)
        terms = None if where is None else read_terms(where, draft.iterators, self.parameters, kept)
        if terms is None:
            return ranges
        onto = image(ranges, draft.iterators, [*map(var, kept)], self.parameters)
        return onto.intersect_range(terms).domain()

    def _check_given(self, drafts: Sequence[Draft]) -> None:
        for k, draft in enumerate(drafts):
            for read in draft.reads:
                scan = read.tensor == draft.tensor and draft.line.combiner is None
                if read.tensor not in self.shapes and not scan and not any(d.tensor == read.tensor for d in drafts[:k]):
                    text = f"the shape of {read.tensor} is not given"
                    hint, wanted = _how_to_give(read)
                    raise draft.line.body.error(text, hint=hint, wanted=wanted)

    def _subscripts(self, draft: Draft, asked: int) -> Iterator[Subscripted]:
        """What bounds the indices: subscripts of reads without conditions; where more is `asked` also an index that is
        the whole subscript of a read under one, and then all subscripts of what stands in a choice.
        """
        for k, access in enumerate((*draft.reads, draft.write)):
            shape = self.shapes.get(access.tensor)
            if shape is None:
                continue
            if len(shape) != len(access.index):
                subscripts = counted(len(access.index), "subscript")
                message = f"{access.tensor} has rank {len(shape)}, accessed with {subscripts}"
                hint = f"{access.tensor}[{', '.join('ijklmnop'[: len(shape)])}]"
                raise ShapeError(message, where=draft.shown, hint=hint)
            free = not access.guard or (asked > 1 and k in draft.chosen)
            for d, (subscript, extent) in enumerate(zip(access.index, shape, strict=True)):
                bare = asked and isinstance(subscript, Affine) and subscript in map(var, draft.iterators)
                if isinstance(subscript, Affine) and (bare or free):
                    reads = access is not draft.write and not access.guard
                    yield Subscripted(access.tensor, d, subscript, extent, reads)

    def _check_choices(self, draft: Draft, asked: int) -> None:
        """Ranges from reads under conditions leave no choice without a read, nor, from all, one that is none."""
        inside = draft.statement()
        domain = inside.domain.intersect_params(self.context)
        for k, read in enumerate(draft.reads):
            if not read.guard or domain.is_empty() or read.tensor not in self.shapes:
                continue
            relation = access_map(inside, read, self.parameters, self.shapes[read.tensor])
            taken = relation.domain().intersect(domain)
            if taken.is_empty() or (asked > 1 and k in draft.chosen and domain.is_subset(taken)):
                index = next((n for c in read.guard for n in ordered_names(c.expr) if n in draft.ranges), "")
                shown, which = access_text(read, draft.reads), "not one" if taken.is_empty() else "each"
                if k in draft.chosen:  # what was written may choose in a subscript, and name no such read
                    reason = f"{draft.line.body.shown} chooses where it reads, which bounds no index"
                else:
                    reason = f"{which} of those in bounds reads {shown}"
                why = f"the range of index {index!r} is not determined: {reason}"
                known = [(r.index, self.shapes.get(r.tensor, ())) for r in draft.reads]
                end = end_of(index, (pair for reads in known for pair in zip(*reads, strict=False)))
                hint = f"where 0 <= {index} < {end}, or give the shape of the tensor it writes"
                raise draft.line.place.error(why, hint=hint)

    def _resolvable(self, draft: Draft, asked: int = 0) -> bool:
        try:
            self._ranges(draft, asked)
        except ParseError:
            return False
        return True

    def _ranges(self, draft: Draft, asked: int = 0) -> dict[str, Range]:
        condition = draft.condition.intersect_params(self.context)
        known = self._ranges_of(condition, draft.iterators)

        def beside(ranges: Mapping[str, Range]) -> dict[str, Range]:
            inside = range_box("S", draft.iterators, ranges, self.parameters)
            return self._ranges_of(condition.intersect(inside), draft.iterators)

        def ends(name: str) -> tuple[str, str]:
            return likely_ends(condition, draft.iterators.index(name))

        where = draft.line.clauses.get("where")
        loose = names_in(where.text) if where else ()
        try:
            subscripts = list(self._subscripts(draft, asked))
            found = infer_ranges(draft.iterators, subscripts, known, self.context, loose, beside, ends)
        except ShapeError as error:
            raise ShapeError(error.message, where=draft.shown, hint=error.hint, wanted=error.wanted) from None
        except ParseError as error:
            raise draft.line.place.error(error.message, hint=error.hint, wanted=error.wanted) from None
        return {name: r for name, r in found.items() if name not in known}

    def _ranges_of(self, domain: isl.Set, iterators: Sequence[str]) -> dict[str, Range]:
        """`ranges_of_set`, once for each set: where an index has no range, a dozen ways ask for the same ones."""
        key = (domain, tuple(iterators))
        if key not in self._bounded:
            self._bounded[key] = ranges_of_set(domain, iterators)
        return self._bounded[key]

    def _find_shape(self, tensor: str, drafts: Sequence[Draft]) -> None:
        """The shape of a tensor whose writers all have domains: one more than the greatest subscripts."""
        writers = [d for d in drafts if d.tensor == tensor]
        if not writers or tensor in self.shapes or any(w.domain is None for w in writers):
            return
        ranks = {len(w.write.index) for w in writers}
        if len(ranks) > 1:
            message = f"{tensor} is written with {' and with '.join(map(str, sorted(ranks)))} subscripts"
            raise ShapeError(message, where=writers[-1].shown, hint=f"as many everywhere, or {tensor}_2")
        if any(isinstance(s, ReadIndex) for w in writers for s in w.write.index):
            message = f"the shape of {tensor} does not follow from what writes it"
            wanted = self._as_written(writers[-1])
            writer = writers[-1]
            places = [s for s, e in zip(writer.write.index, wanted.extents, strict=True) if e is None]
            which = next((f"{read_text(s.position, writer.reads)}" for s in places if isinstance(s, ReadIndex)), "")
            hint = f"{wanted}, with a number above every {which} for 512" if which else str(wanted)
            raise writer.line.place.error(message, hint=hint, wanted=wanted)
        domains = [w.statement().domain for w in writers]
        if all(d.intersect_params(self.context).is_empty() for d in domains):
            domains = [self._started(w) for w in writers]
        images = [self._written(w, d) for w, d in zip(writers, domains, strict=True)]
        written = images[0]
        for each in images[1:]:
            written = written.union(each)
        written = written.intersect_params(self.context)
        self.shapes[tensor] = tuple(self._extent(tensor, written, d, writers[0]) for d in range(ranks.pop()))

    def _written(self, writer: Draft, domain: isl.Set) -> isl.Set:
        """The elements that a statement writes on a domain, with those that a sum sets before."""
        values, kept = writer.write.affine_index, writer.kept
        found = image(domain, writer.iterators, values, self.parameters).range()
        if writer.line.combiner is None:
            return found
        return found.union(image(target_domain(writer, kept, self.parameters), kept, values, self.parameters).range())

    def _as_written(self, writer: Draft) -> WantedShape:
        """A shape for what is written where data say: any extent there, elsewhere what the indices need."""
        extents: list[int | str | None] = []
        for subscript in writer.write.index:
            most = extreme(subscript, writer.ranges, most=True) if isinstance(subscript, Affine) else None
            if most is None or not most.names <= {*self.parameters}:
                extents.append(None)
            else:
                extents.append(most.constant + 1 if most.is_constant else str(most + 1))
        return WantedShape(writer.tensor, tuple(extents))

    def _extent(self, tensor: str, written: isl.Set, d: int, writer: Draft) -> Affine:
        wanted = _any_shape(writer.write)
        if not bounded(written, d):
            raise ShapeError(f"dimension {d} of {tensor} has no greatest index", where=writer.shown, wanted=wanted)
        greatest = self._simple(writer, written, d) or affine_of_pw(written.dim_max(d).coalesce(), ())
        if greatest is None:
            message = f"the extent of dimension {d} of {tensor} is not one expression: {written.dim_max(d)}"
            raise ShapeError(message, where=writer.shown, wanted=wanted)
        extent = greatest + 1
        if extent == Affine() and self._has_no_elements(writer):
            return extent
        enough = isl.Set(f"{header(self.parameters)}{{ : {extent.isl_text} >= 1 }}")
        hint = "subscripts that count from the start, as in x[N-1-i]" if self._counts_back(writer) else None
        self._require(enough, f"{tensor} would have no elements", writer, hint)
        return extent

    def _counts_back(self, draft: Draft) -> bool:
        """Whether a subscript is below 0 wherever its index is not: `x[-1-i]`."""
        found = (s for r in draft.reads for s in r.index if isinstance(s, Affine))
        return any(s.constant < 0 and all(c < 0 for _, c in s.terms) for s in found)

    def _simple(self, writer: Draft, written: isl.Set, d: int) -> Affine | None:
        """The greatest subscript from the ranges of the indices, where that is the greatest written."""
        subscript = writer.write.affine_index[d]
        if not subscript.names <= {*writer.ranges, *self.parameters}:
            return None
        found = extreme(subscript, writer.ranges, most=True)
        if found is None:
            return None
        beyond = written.intersect(
            isl.Set(_one_dimension(self.parameters, written.dim(SET), d, f"d_ > {found.isl_text}"))
        )
        at = written.intersect(isl.Set(_one_dimension(self.parameters, written.dim(SET), d, f"d_ = {found.isl_text}")))
        return found if beyond.is_empty() and written.params().is_subset(at.params()) else None

    def _require(self, sizes: isl.Set, otherwise: str, draft: Draft, hint: str | None = None) -> None:
        """Add a condition on the sizes to the context. Raises `ShapeError` where it never holds."""
        if self.context.is_subset(sizes):
            return
        context = self.context.intersect(sizes).coalesce()
        if context.is_empty():
            raise ShapeError(otherwise, where=draft.shown, hint=hint)
        self.context = context

    def _check_bounds(self, draft: Draft) -> None:
        """No access leaves its tensor; where that is a matter of the sizes, the context says so from here on."""
        inside = draft.statement()
        inside_context = inside.domain.intersect_params(self.context)
        for access in (*draft.reads, draft.write):
            shape = self.shapes[access.tensor]
            relation = access_map(inside, access, self.parameters, shape).intersect_domain(inside_context)
            outside = relation.subtract_range(box(access.tensor, shape, self.parameters))
            if outside.is_empty():
                continue
            first, second = witness(outside, (draft.iterators, [f"d{d}" for d in range(len(shape))]))
            extents = ", ".join(map(str, shape))
            message = f"{access.tensor} of shape [{extents}] is accessed out of bounds: {first} -> {second}"
            self._require(outside.params().complement(), message, draft, self._remedy(draft, access, outside))

    def _remedy(self, draft: Draft, access: Access, outside: isl.Map) -> str:
        """What to write so that an access stays inside: a name that is a size is easily taken for an index."""
        free = ", ".join(draft.iterators)
        remedy = f"a larger {access.tensor}"
        remedy += f", or fewer iterations: ... where <condition on {free}>" if free else ""
        left: list[str] = []
        for d, (subscript, extent) in enumerate(zip(access.index, self.shapes[access.tensor], strict=True)):
            if not isinstance(subscript, Affine):
                continue
            if subscript.is_constant and subscript.constant < 0:
                return f"{extent + subscript.constant} for {subscript}: subscripts count from the start"
            if subscript.is_constant and extent.is_constant and subscript.constant >= extent.constant:
                return f"a larger {access.tensor}"  # as no condition on an index makes it one
            if subscript in map(var, self.parameters):
                return f"{subscript} is a size here: another name for the index, or for the size"
            below, beyond = (
                not outside.range().reset_tuple_id().is_disjoint(self._one(access, d, f"d_ {end}"))
                for end in ("< 0", f">= {extent.isl_text}")
            )
            if below and not left:
                remedy = f"... where {subscript} >= 0"
            if below or beyond:
                left.append(f"{'0 <= ' if below else ''}{subscript}{f' < {extent}' if beyond else ''}")
        if access is draft.write or access.guard or not left:
            return remedy
        also = " (a condition with `or` guards no read)" if " or " in draft.shown else ""
        return f"{remedy}, or ({access_text(access, draft.reads)} if {' and '.join(left)} else 0) for 0 there{also}"

    def _one(self, access: Access, d: int, condition: str) -> isl.Set:
        return isl.Set(_one_dimension(self.parameters, len(access.index), d, condition))
