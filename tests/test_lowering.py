"""Lowering against enumeration: the loops run exactly the instances of the program, in the order of the schedule.

The oracle uses no isl: domains are lists of conditions tested on every point of a box, the order is the order of the
schedule's 2d+1 vectors, and a loop tree is run by a dozen lines of Python.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import islpy as isl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poly.affine import Affine, Constraint, parse_affine, var
from poly.errors import Bug, IllegalEdit, ParseError, ScheduleError
from poly.expr import COMBINERS, Const, Read, apply
from poly.loops import Alloc, Compute, External, For, If, LoopTree, Node
from poly.program import Access, Program, Statement, Tensor
from poly.scheduling.instances import check_instances
from poly.scheduling.lowering import lower
from poly.scheduling.paths import Nest
from poly.scheduling.schedule import Mark, Schedule
from poly.scheduling.schedule_text import parse_schedule, print_schedule

Values = dict[str, int]


@dataclass(frozen=True)
class Spec:
    """A statement for tests. `where`: conditions such as `i <= j`, on top of `0 <= iterator < extent`."""

    name: str
    extents: Mapping[str, str | int]
    write: str
    reads: tuple[str, ...] = ()
    where: tuple[str, ...] = ()


def condition(text: str) -> Constraint:
    """`a <= b`, `a < b` or `a == b` of affine expressions."""
    for sign, equality, less in (("<=", False, 0), ("<", False, 1), ("==", True, 0)):
        if sign in text:
            left, right = text.split(sign)
            return Constraint(parse_affine(right) - parse_affine(left) - less, equality)
    raise ValueError(text)


def conditions(spec: Spec) -> list[Constraint]:
    limits = [c for i, n in spec.extents.items() for c in (Constraint(var(i)), Constraint(Affine.of(n) - var(i) - 1))]
    return limits + [condition(text) for text in spec.where]


def access(text: str) -> Access:
    """`A[i, 2*j+1]`, or `A[i] if 0 <= i and i < N` with the fill value 0."""
    element, _, guard = text.partition(" if ")
    name, _, inside = element.rstrip().rstrip("]").partition("[")
    index = tuple(parse_affine(e) for e in inside.split(",")) if inside.strip() else ()
    guards = tuple(condition(g) for g in guard.split(" and ")) if guard else ()
    return Access(name, index, guards, Const(0.0) if guards else None)


def program(
    specs: Sequence[Spec], tensors: Mapping[str, Sequence[str | int]], sizes: Mapping[str, int], bind: bool = True
) -> Program:
    """The program of some specs, each statement a nest of its own; bound to `sizes` where `bind`."""
    parameters = tuple(sizes)
    statements: list[Statement] = []
    for k, spec in enumerate(specs):
        iterators = tuple(spec.extents)
        text = " and ".join(c.isl_text for c in conditions(spec)) or "true"
        domain = isl.Set(f"[{', '.join(parameters)}] -> {{ {spec.name}[{', '.join(iterators)}] : {text} }}")
        reads = tuple(access(r) for r in spec.reads)
        body = Const(1.0, "f32") if not reads else Read(0)
        for r in range(1, len(reads)):
            body = apply("mul", body, Read(r))
        combiner = (
            COMBINERS["+"] if set(iterators) - {n for e in access(spec.write).affine_index for n in e.names} else None
        )
        statements.append(
            Statement(spec.name, iterators, domain, access(spec.write), reads, body, combiner, path=(k, *iterators))
        )
    arrays = tuple(Tensor(name, tuple(Affine.of(e) for e in shape), role="inout") for name, shape in tensors.items())
    context = isl.Set(f"[{', '.join(parameters)}] -> {{ : {' and '.join(f'{p} >= 1' for p in parameters) or 'true'} }}")
    bound = tuple(sorted(sizes.items())) if bind else ()
    return Program("p", arrays, tuple(statements), parameters, context, bound)


def schedule(p: Program, nests: Mapping[str, tuple[Sequence[int | str], Mapping[str, str]]]) -> Schedule:
    """A schedule by hand: per statement its path and its loop expressions."""
    made = {s: Nest({n: parse_affine(e) for n, e in loops.items()}, tuple(path)) for s, (path, loops) in nests.items()}
    return Schedule(p).with_nests(made)


def expected(specs: Sequence[Spec], s: Schedule, sizes: Values) -> list[tuple[str, tuple[int, ...]]]:
    """Every instance, in the order of the schedule."""
    found: list[tuple[list[tuple[int, int]], str, tuple[int, ...]]] = []
    for spec in specs:
        ranges = [range(int(Affine.of(n).evaluate(sizes))) for n in spec.extents.values()]
        nest = s.nests[spec.name]
        for point in itertools.product(*ranges):
            values = {**sizes, **dict(zip(spec.extents, point, strict=True))}
            if all(c.holds(values) for c in conditions(spec)):
                vector = [
                    (0, step) if isinstance(step, int) else (0, int(nest.loops[step].evaluate(values)))
                    for step in nest.path
                ]
                found.append((vector, spec.name, point))
    return [(name, point) for _, name, point in sorted(found, key=lambda row: row[0])]


def executed(nodes: Sequence[Node], values: Values) -> Iterator[tuple[Compute, Values]]:
    """The instances that a loop tree runs, in order."""
    for node in nodes:
        match node:
            case Compute():
                yield node, dict(values)
            case For():
                low = max(int(b.evaluate(values)) for b in node.lower)
                high = min(int(b.evaluate(values)) for b in node.upper)
                for value in range(low, high, node.step):
                    yield from executed(node.body, {**values, node.variable: value})
            case If():
                if any(all(c.holds(values) for c in piece) for piece in node.any_of):
                    yield from executed(node.body, values)
            case Alloc():
                yield from executed(node.body, values)
            case _:
                raise AssertionError(node)


def agrees(tree: LoopTree, specs: Sequence[Spec], s: Schedule, sizes: Values) -> None:
    """The tree runs what it should, in order, and every access touches the element that the program says."""
    ran: list[tuple[str, tuple[int, ...]]] = []
    for compute, values in executed(tree.body, sizes):
        point = tuple(int(e.evaluate(values)) for e in compute.instance)
        ran.append((compute.statement, point))
        statement = s.program.statement[compute.statement]
        instance = {**sizes, **dict(zip(statement.iterators, point, strict=True))}
        for new, old in zip((compute.write, *compute.reads), (statement.write, *statement.reads), strict=True):
            holds = all(c.holds(values) for c in new.guard)
            assert holds == all(c.holds(instance) for c in old.guard)
            if holds:
                assert [e.evaluate(values) for e in new.affine_index] == [
                    e.evaluate(instance) for e in old.affine_index
                ]
    assert ran == expected(specs, s, sizes)


def check(
    specs: Sequence[Spec],
    tensors: Mapping[str, Sequence[str | int]],
    sizes: Values,
    nests: Mapping[str, tuple[Sequence[int | str], Mapping[str, str]]],
) -> LoopTree:
    """Lower with bound sizes and with free ones, compare both with the oracle; gives the bound one."""
    for bind in (False, True):
        s = schedule(program(specs, tensors, sizes, bind), nests)
        tree = lower(s)
        agrees(tree, specs, s, sizes)
        check_instances(tree, s.program)
    return tree


def loops(tree: LoopTree) -> dict[str, For]:
    return {n.variable: n for n in tree.nodes() if isinstance(n, For)}


def kinds(tree: LoopTree) -> list[str]:
    return [type(n).__name__ for n in tree.nodes()]


MATMUL = (
    Spec("init", {"i": "M", "j": "N"}, "C[i, j]"),
    Spec("upd", {"i": "M", "j": "N", "k": "K"}, "C[i, j]", ("A[i, k]", "B[k, j]")),
)
MATMUL_TENSORS = {"A": ("M", "K"), "B": ("K", "N"), "C": ("M", "N")}
TILED = {
    "init": (("i.o", "j.o", 0, "i.p", "j.p"), {"i.o": "i // 4", "j.o": "j // 8", "i.p": "i % 4", "j.p": "j % 8"}),
    "upd": (
        ("i.o", "j.o", 1, "k.o", "i.q", "j.q", "k.p"),
        {"i.o": "i // 4", "j.o": "j // 8", "k.o": "k // 2", "i.q": "i - 4*(i // 4)", "j.q": "j % 8", "k.p": "k % 2"},
    ),
}


@pytest.mark.parametrize("sizes", [{"M": 8, "N": 16, "K": 4}, {"M": 7, "N": 9, "K": 5}, {"M": 1, "N": 3, "K": 1}])
def test_tiled_matmul(sizes: Values) -> None:
    check(MATMUL, MATMUL_TENSORS, sizes, TILED)


def test_whole_tiles_have_constant_bounds_and_clean_subscripts() -> None:
    tree = lower(schedule(program(MATMUL, MATMUL_TENSORS, {"M": 8, "N": 16, "K": 4}), TILED))
    assert all(b.is_constant for loop in loops(tree).values() for b in (*loop.lower, *loop.upper))
    assert "If" not in kinds(tree)
    (upd,) = (n for n in tree.nodes() if isinstance(n, Compute) and n.statement == "upd")
    assert [str(e) for e in upd.write.affine_index] == ["4*i.o + i.q", "8*j.o + j.q"]


def test_last_tile_is_cut_by_a_second_bound() -> None:
    tree = lower(schedule(program(MATMUL, MATMUL_TENSORS, {"M": 7, "N": 16, "K": 4}), TILED))
    assert [str(b) for b in loops(tree)["i.p"].upper] == ["4", "-4*i.o + 7"]
    assert [str(b) for b in loops(tree)["j.p"].upper] == ["8"]


def test_one_trip_loops_vanish_unless_marked() -> None:
    p = program(MATMUL, MATMUL_TENSORS, {"M": 3, "N": 16, "K": 4})
    s = schedule(p, TILED)
    assert "i.o" not in loops(lower(s))
    kept = lower(Schedule(p, nests=s.nests, marks={"i.o": Mark("parallel")}))
    assert loops(kept)["i.o"].kind == "parallel"
    agrees(kept, MATMUL, s, {"M": 3, "N": 16, "K": 4})


CONV = (
    Spec("init", {"o": "O", "y": "H"}, "Y[o, y]"),
    Spec(
        "conv",
        {"o": "O", "y": "H", "c": "C", "r": 3},
        "Y[o, y]",
        ("X[c, 2*y + r - 1] if 0 <= 2*y + r - 1 and 2*y + r - 1 < 2*H", "W[o, c, r]"),
    ),
)


def test_convolution_with_stride_and_padding() -> None:
    tensors = {"X": ("C", "2*H"), "W": ("O", "C", 3), "Y": ("O", "H")}
    nests = {
        "init": (("y.o", 0, "o", "y.p"), {"y.o": "y // 3", "o": "o", "y.p": "y % 3"}),
        "conv": (("y.o", 1, "c", "r", "o'", "y.q"), {"y.o": "y // 3", "c": "c", "r": "r", "o'": "o", "y.q": "y % 3"}),
    }
    tree = check(CONV, tensors, {"O": 2, "H": 7, "C": 2}, nests)
    (conv,) = (n for n in tree.nodes() if isinstance(n, Compute) and n.statement == "conv")
    assert len(conv.reads[0].guard) == 1, "the upper condition holds everywhere and is dropped"


def test_triangle_tiled() -> None:
    specs = (Spec("t", {"i": "N", "j": "N"}, "L[i, j]", ("A[j, i]",), ("j <= i",)),)
    tensors = {"L": ("N", "N"), "A": ("N", "N")}
    nests = {"t": (("i.o", "j.o", "i.p", "j.p"), {"i.o": "i // 3", "j.o": "j // 3", "i.p": "i % 3", "j.p": "j % 3"})}
    for n in (1, 3, 8, 9):
        check(specs, tensors, {"N": n}, nests)
    check(specs, tensors, {"N": 6}, {"t": (("j", "i"), {"i": "i", "j": "j"})})


def test_skewed_stencil_in_time_tiled() -> None:
    specs = (
        Spec("a", {"t": "T", "i": "N"}, "B[i]", ("A[i - 1]", "A[i]", "A[i + 1]"), ("1 <= i", "i < N - 1")),
        Spec("b", {"t": "T", "i": "N"}, "A[i]", ("B[i]",), ("1 <= i", "i < N - 1")),
    )
    tensors = {"A": ("N",), "B": ("N",)}
    skewed = {"a": (("t", "i", 0), {"t": "t", "i": "2*t + i"}), "b": (("t", "i", 1), {"t": "t", "i": "2*t + i + 1"})}
    check(specs, tensors, {"T": 4, "N": 9}, skewed)
    blocks = {
        "a": (
            ("t.o", "x.o", "t.p", "x.p", 0),
            {"t.o": "t // 2", "x.o": "(2*t + i) // 4", "t.p": "t % 2", "x.p": "(2*t + i) % 4"},
        ),
        "b": (
            ("t.o", "x.o", "t.p", "x.p", 1),
            {"t.o": "t // 2", "x.o": "(2*t + i + 1) // 4", "t.p": "t % 2", "x.p": "(2*t + i + 1) % 4"},
        ),
    }
    check(specs, tensors, {"T": 5, "N": 11}, blocks)


def test_shifted_fusion_guards_each_statement() -> None:
    specs = (Spec("a", {"i": "N"}, "B[i]", ("A[i]",)), Spec("b", {"i": "N"}, "C[i]", ("B[i - 2]",), ("2 <= i",)))
    tensors = {"A": ("N",), "B": ("N",), "C": ("N",)}
    tree = check(specs, tensors, {"N": 7}, {"a": (("i", 0), {"i": "i"}), "b": (("i", 1), {"i": "i + 1"})})
    assert [str(b) for b in loops(tree)["i"].upper] == ["8"]
    assert kinds(tree).count("If") == 2


def test_fusion_of_two_extents() -> None:
    specs = (Spec("a", {"i": "N"}, "A[i]"), Spec("b", {"i": "M"}, "B[i]"))
    for n, m in ((3, 5), (5, 3), (4, 4)):
        check(
            specs,
            {"A": ("N",), "B": ("M",)},
            {"N": n, "M": m},
            {"a": (("i", 0), {"i": "i"}), "b": (("i", 1), {"i": "i"})},
        )


def test_copies_with_the_tile_in_their_domain() -> None:
    specs = (
        Spec("ld", {"t": "N", "e": "N"}, "B[e - 4*t]", ("A[e]",), ("4*t <= e", "e < 4*t + 4")),
        Spec("use", {"i": "N"}, "C[i]", ("B[i - 4*(i // 4)]",)),
    )
    nests = {
        "ld": (("i.o", 0, "B.0"), {"i.o": "t", "B.0": "e - 4*t"}),
        "use": (("i.o", 1, "i.p"), {"i.o": "i // 4", "i.p": "i % 4"}),
    }
    tree = check(specs, {"A": ("N",), "B": (4,), "C": ("N",)}, {"N": 10}, nests)
    (use,) = (n for n in tree.nodes() if isinstance(n, Compute) and n.statement == "use")
    assert str(use.reads[0].affine_index[0]) == "i.p"


def test_strided_loops_get_a_step() -> None:
    specs = (Spec("a", {"i": "N", "j": 3}, "A[i, j]"),)
    tree = check(specs, {"A": ("N", 3)}, {"N": 5}, {"a": (("u", "v"), {"u": "3*i + 1", "v": "2*j + 3*i"})})
    assert loops(tree)["u"].step == 3 and loops(tree)["v"].step == 2
    both = (Spec("a", {"i": "N"}, "A[i]"), Spec("b", {"i": "N"}, "B[i]"))
    check(
        both, {"A": ("N",), "B": ("N",)}, {"N": 5}, {"a": (("u", 0), {"u": "4*i"}), "b": (("u", 1), {"u": "6*i + 2"})}
    )


def test_pieces_of_a_split_loop() -> None:
    low = Spec("low", {"i": "N"}, "A[i]", (), ("i < 4",))
    high = Spec("high", {"i": "N"}, "A[i]", (), ("4 <= i",))
    tree = check(
        (low, high), {"A": ("N",)}, {"N": 11}, {"low": ((0, "i"), {"i": "i"}), "high": ((1, "i'"), {"i'": "i"})}
    )
    assert str(loops(tree)["i"].upper[0]) == "4" and str(loops(tree)["i'"].lower[0]) == "4"


def test_reversed_and_wavefront_loops() -> None:
    specs = (Spec("s", {"i": "N", "j": "M"}, "A[i, j]"),)
    tensors = {"A": ("N", "M")}
    check(specs, tensors, {"N": 4, "M": 6}, {"s": (("i", "j"), {"i": "-i", "j": "j"})})
    check(specs, tensors, {"N": 4, "M": 6}, {"s": (("w", "j"), {"w": "i + j", "j": "j"})})
    check(specs, tensors, {"N": 4, "M": 6}, {"s": (("w", "j"), {"w": "2*i + 3*j", "j": "j"})})


def test_union_domain_and_an_empty_one() -> None:
    domain = isl.Set("[N] -> { s[i] : 0 <= i < N and (i < 2 or i >= 5) }")
    p = program(
        (Spec("s", {"i": "N"}, "A[i]"), Spec("e", {"i": "N"}, "A[i]", (), ("N <= i",))), {"A": ("N",)}, {"N": 9}
    )
    s = Schedule(
        Program(
            p.name,
            p.tensors,
            (Statement("s", ("i",), domain, access("A[i]"), (), Const(0.0), path=(0, "i")), p.statements[1]),
            p.parameters,
            p.context,
            p.sizes,
        )
    )
    tree = lower(s)
    assert [v["i"] if "i" in v else v["s.i"] for _, v in executed(tree.body, {"N": 9})] == [0, 1, 5, 6, 7, 8]
    check_instances(tree, s.program)


def test_loops_that_do_not_tell_instances_apart() -> None:
    p = program(MATMUL, MATMUL_TENSORS, {"M": 4, "N": 4, "K": 4})
    s = schedule(p, {"init": ((0, "i", "j"), {"i": "i", "j": "j"}), "upd": ((1, "a", "b"), {"a": "i", "b": "j + k"})})
    with pytest.raises(ScheduleError, match="statement upd"):
        lower(s)


# ---- the check


def simple(upper: str = "N", lower_: str = "0", step: int = 1, instance: str = "i") -> tuple[LoopTree, Program]:
    p = program((Spec("s", {"i": "N"}, "A[i]"),), {"A": ("N",)}, {"N": 6}, bind=False)
    s = p.statement["s"]
    write = Access("A", (parse_affine(instance),))
    body = For(
        "i",
        (parse_affine(lower_),),
        (parse_affine(upper),),
        (Compute("s", (parse_affine(instance),), write, (), s.body),),
        step,
    )
    return LoopTree("p", p.tensors, (body,), ("N",)), p


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"upper": "N - 1"}, "does not run"),
        ({"lower_": "1"}, r"s\[i=0\] does not run"),
        ({"upper": "N + 1"}, "is no instance"),
        ({"step": 2}, "does not run"),
        ({"instance": "i // 2"}, "runs twice"),
    ],
)
def test_wrong_trees_are_found(change: dict[str, str], why: str) -> None:
    tree, p = simple(**change)  # type: ignore[arg-type]
    with pytest.raises(Bug, match=why):
        check_instances(tree, p)


def test_wrong_elements_are_found() -> None:
    specs = (Spec("s", {"i": "N"}, "B[i]", ("A[i - 1] if 1 <= i",)),)
    p = program(specs, {"A": ("N",), "B": ("N",)}, {"N": 6})
    tree = lower(Schedule(p))
    (loop,) = tree.body
    assert isinstance(loop, For)
    (right,) = loop.body
    assert isinstance(right, Compute)
    for change in (
        {"write": access("B[5 - i]")},
        {"write": access("A[i]")},
        {"reads": (access("A[i] if 1 <= i"),)},
        {"reads": (access("A[i - 1] if 2 <= i"),)},
        {"reads": (access("A[i - 1]"),)},
    ):
        wrong = replace(tree, body=(replace(loop, body=(replace(right, **change),)),))
        with pytest.raises(Bug, match="touches|guard"):
            check_instances(wrong, p)
    same = replace(right, reads=(access("A[2*i - i - 1] if 0 < 2*i"),))
    check_instances(replace(tree, body=(replace(loop, body=(same,)),)), p)


def test_right_and_doubled_trees() -> None:
    tree, p = simple()
    check_instances(tree, p)
    with pytest.raises(Bug, match="two places"):
        check_instances(LoopTree("p", tree.tensors, tree.body * 2, ("N",)), p)
    with pytest.raises(Bug, match="does not run"):
        check_instances(LoopTree("p", tree.tensors, (), ("N",)), p)


def test_subscripts_out_of_bounds_are_refused_with_a_witness() -> None:
    specs = (Spec("s", {"i": "N"}, "B[i]", ("A[i + 1]",)),)
    for bind in (True, False):
        p = program(specs, {"A": ("N",), "B": ("N",)}, {"N": 6}, bind)
        with pytest.raises(IllegalEdit, match="outside") as error:
            check_instances(lower(Schedule(p)), p)
        assert error.value.kind == "bounds" and error.value.witness is not None
    guarded = (Spec("s", {"i": "N"}, "B[i]", ("A[i + 1] if i + 1 < N",)),)
    p = program(guarded, {"A": ("N",), "B": ("N",)}, {"N": 6})
    check_instances(lower(Schedule(p)), p)


# ---- random programs under random loops

EXPRESSIONS = ("tile", "shift", "skew", "reverse", "stretch")


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[Spec, ...], dict[str, tuple[tuple[int | str, ...], dict[str, str]]], Values]:
    """One to three statements of depth 1 to 3 with extra conditions, fused on a random number of outer loops."""
    sizes = {"N": draw(st.integers(1, 7)), "M": draw(st.integers(1, 5))}
    shared = draw(st.integers(0, 2))
    count = draw(st.integers(1, 3))
    specs: list[Spec] = []
    nests: dict[str, tuple[tuple[int | str, ...], dict[str, str]]] = {}
    for k in range(count):
        depth = draw(st.integers(max(1, shared), 3))
        names = [f"i{d}" for d in range(depth)]
        extents = {n: draw(st.sampled_from(["N", "M", 4])) for n in names}
        where = draw(st.lists(st.sampled_from(_conditions(names)), max_size=2, unique=True))
        specs.append(Spec(f"s{k}", extents, f"A{k}[{', '.join(names)}]", (), tuple(where)))
        order = draw(st.permutations(names))
        values = [draw(_loop(name, order)) for name in order]
        loops_: dict[str, str] = {}
        for d, value in enumerate(values):
            loops_[f"l{d}" if d < shared else f"s{k}.l{d}"] = value
        path: list[int | str] = list(loops_)
        extra = draw(st.integers(0, 2))
        for d, name in enumerate(order[:extra]):
            loops_[f"s{k}.p{d}"] = name
            path.append(f"s{k}.p{d}")
        own = [e for d, name in enumerate(order) for e in draw(_telling(name, order[:d]))]  # tell instances apart
        for d, value in enumerate(own):
            loops_[f"s{k}.e{d}"] = value
            path.append(f"s{k}.e{d}")
        path.insert(min(shared, len(values)), k)
        nests[f"s{k}"] = (tuple(path), loops_)
    return tuple(specs), nests, sizes


def _conditions(names: Sequence[str]) -> list[str]:
    found = [f"{a} <= {b}" for a, b in itertools.permutations(names, 2)] + [
        f"{a} + {b} < N" for a, b in itertools.combinations(names, 2)
    ]
    return found + [f"1 <= {names[0]}", f"2*{names[-1]} <= N", f"{names[0]} % 2 == 0"]


def _telling(name: str, before: Sequence[str]) -> st.SearchStrategy[list[str]]:
    """Loops that give an iterator once the ones before are known."""
    simple = [[name], [f"-{name}"], [f"3*{name} + 1"], [f"{name} // 4", f"{name} % 4"], [f"{name} % 2", f"{name} // 2"]]
    return st.sampled_from(
        simple + [e for b in before for e in ([f"{name} + 2*{b}"], [f"({name} + {b}) // 3", f"({name} + {b}) % 3"])]
    )


def _loop(name: str, order: Sequence[str]) -> st.SearchStrategy[str]:
    other = st.sampled_from(list(order))
    return st.one_of(
        st.sampled_from([name, f"-{name}", f"2*{name}", f"{name} + 3"]),
        st.integers(2, 4).map(lambda t: f"{name} // {t}"),
        st.integers(2, 3).map(lambda t: f"{name} % {t}"),
        st.tuples(other, st.integers(-2, 2)).map(
            lambda o: f"{name} + {o[1]}*{o[0]}" if o[1] >= 0 else f"{name} - {-o[1]}*{o[0]}"
        ),
        st.tuples(other, st.integers(2, 3)).map(lambda o: f"({name} + {o[0]}) // {o[1]}"),
    )


@settings(derandomize=True, max_examples=120, deadline=None)
@given(cases())
def test_random_loops(
    case: tuple[tuple[Spec, ...], dict[str, tuple[tuple[int | str, ...], dict[str, str]]], Values],
) -> None:
    specs, nests, sizes = case
    tensors = {f"A{k}": tuple(spec.extents.values()) for k, spec in enumerate(specs)}
    check(specs, tensors, sizes, nests)


def test_external_statements_run_whole() -> None:
    from poly.program import External as Payload

    p = program((Spec("x", {}, "A[]"),), {"A": ()}, {"N": 2})
    s = p.statements[0]
    outside = replace(s, external=Payload("onnx", b"", (), ("A",)))
    tree = lower(Schedule(replace(p, statements=(outside,))))
    assert tree.body == (External("x"),)


# ---- the other forms of a schedule


def edited() -> Schedule:
    s = Schedule(program(MATMUL, MATMUL_TENSORS, {"M": 7, "N": 9, "K": 5}))
    s = s.tile({"upd.i": 4, "upd.j": 4, "k": 2}).promote("A", at="k.o", space="spm")
    return s.promote("C", at="upd.j.o", space="acc").unroll("k.p")


def test_schedule_text_replays() -> None:
    s = edited()
    text = print_schedule(s)
    again = parse_schedule(text)
    assert again == s and again.log == s.log and print_schedule(again) == text
    assert "for k.p unroll:" in text and "A_spm: f32[4, 2] in spm" in text


def test_schedule_text_that_does_not_replay_is_refused() -> None:
    text = print_schedule(edited())
    for old, new, why in (
        ("for k.p unroll:", "for k.p:", r"another tree[^^]*\n +\^\n  try: .*leave the tree out"),
        ("unroll(loop='k.p')", "unroll('k.p')", "name.key=value"),
        ("unroll(loop='k.p')", "unrol(loop='k.p')", "(?s)no edit 'unrol'.*try: unroll$"),
        ("unroll(loop='k.p')", "unroll(loop=k)", "literals"),
        ("\nscript\n", "\n", "script"),
    ):
        assert old in text
        with pytest.raises(ParseError, match=why):
            parse_schedule(text.replace(old, new))


def test_isl_tree_has_the_same_order() -> None:
    sizes = {"M": 5, "N": 6, "K": 3}
    s = schedule(program(MATMUL, MATMUL_TENSORS, sizes), TILED)
    tree = s.isl_tree()
    assert "serial i.o" in str(tree)
    fixed = isl.Set("[M, N, K] -> { : M = 5 and N = 6 and K = 3 }")
    order = tree.get_map().intersect_domain(tree.get_domain().intersect_params(fixed))
    place: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
    vectors: list[tuple[int, ...]] = []
    for m in (order.get_map_list().get_at(k) for k in range(order.get_map_list().n_map())):
        points: list[isl.Point] = []
        m.wrap().foreach_point(points.append)
        for point in points:
            values = [
                point.get_coordinate_val(isl.dim_type.set, d).to_python() for d in range(m.wrap().dim(isl.dim_type.set))
            ]
            depth = m.dim(isl.dim_type.in_)
            place[m.get_tuple_name(isl.dim_type.in_) or "", tuple(values[:depth])] = tuple(values[depth:])
    vectors = [place[row] for row in expected(MATMUL, s, sizes)]
    assert vectors == sorted(vectors) and len(vectors) == 5 * 6 + 5 * 6 * 3
