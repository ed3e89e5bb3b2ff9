"""Programs, graphs and loop trees as text: they print, and what is printed parses back to the same."""

from dataclasses import replace

import islpy as isl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import poly
from poly import loops
from poly.affine import Affine, Constraint, parse_affine, var
from poly.dtypes import DTYPES
from poly.errors import ParseError, PolyError
from poly.expr import COMBINERS, OPERATORS, Apply, Cast, Const, Expr, IndexValue, Read
from poly.graph import Graph, Node
from poly.lexical import Source, decode, encode, quote
from poly.program import Access, External, Layout, Program, ReadIndex, Statement, Tensor, box_domain
from poly.text import parse_loops, parse_program, print_graph, print_loops, print_program
from poly.text_body import BodyReader
from poly.text_printed import body_text, reading_order
from poly.text_sets import print_condition, read_condition
from tests.strategies import programs

FIXED = settings(derandomize=True, max_examples=150, deadline=None)
NAMES = st.sampled_from(
    ["i", "j.o", "k@2", "upd.i.p", "lambda", "where", "a b", "x`y", "é", "mod", "0", "N", "tile", "a[]"]
)


def same(p: Program) -> Program:
    again = parse_program(print_program(p))
    assert print_program(again) == print_program(p)
    assert again == p
    return again


@FIXED
@given(programs())
def test_random_programs_come_back(p: Program) -> None:
    same(p)


# ---- names and affine expressions


@FIXED
@given(st.one_of(NAMES, st.text(max_size=5)))
def test_names_come_back(name: str) -> None:
    text = quote(name)
    assert decode(encode(text)) == name and len(encode(text)) == len(text)
    assert encode(text).isidentifier() and "\n" not in text


@st.composite
def affines(draw: st.DrawFn, depth: int = 2) -> Affine:
    total = Affine((), draw(st.integers(-9, 9)))
    for _ in range(draw(st.integers(0, 3))):
        atom = var(draw(NAMES.filter(bool)))
        if depth and draw(st.booleans()):
            inner, divisor = draw(affines(depth - 1)), draw(st.integers(2, 5))
            atom = inner // divisor if draw(st.booleans()) else inner % divisor
        total = total + atom * draw(st.integers(-4, 4))
    return total


@FIXED
@given(affines())
def test_affine_expressions_come_back(expression: Affine) -> None:
    assert parse_affine(str(expression)) == expression


# ---- conditions


@FIXED
@given(st.data())
def test_conditions_come_back(data: st.DataObject) -> None:
    names = data.draw(st.lists(NAMES.filter(lambda n: n != "0"), min_size=3, max_size=3, unique=True))
    texts = [
        "0 <= x < M",
        "y = 2x",
        "(x + y) mod 3 = 1",
        "exists (e0: x = 3e0 + 5y)",
        "x < 3 or y > M",
        "floor(x/2) >= y",
        "x != 2",
    ]
    chosen = data.draw(st.lists(st.sampled_from(texts), max_size=4))
    domain = isl.Set(f"[M] -> {{ S[x, y] : {' and '.join(f'({t})' for t in chosen) or 'true'} }}")
    domain = domain.set_dim_name(isl.dim_type.param, 0, names[2])
    text = print_condition(domain, names[:2])
    again = read_condition(Source.of(text) if text else None, names[:2], names[2:], "S")
    assert again == domain
    assert [again.get_dim_name(isl.dim_type.set, d) for d in (0, 1)] == names[:2]


def test_python_conditions() -> None:
    def read(text: str) -> isl.Set:
        return read_condition(Source.of(text), ["i", "j"], ["N"], "S")

    assert read("0 <= i < N and j == i // 3 or not i % 4 != j") == read(
        "(0 <= i < N and j = floor(i/3)) or (i mod 4 = j)"
    )
    for bad in ("0 <= q < N", "i*j < 3", "0 <= i <", "i < N }", "x[i] > 0", "i ) < 3"):
        with pytest.raises(ParseError):
            read(bad)


# ---- bodies

LITERALS = st.one_of(st.integers(-9, 9), st.floats(allow_nan=False), st.booleans())
CONSTS = st.builds(Const, LITERALS, st.one_of(st.none(), st.sampled_from(sorted(DTYPES))))
SUBSCRIPTS = st.one_of(affines(1), st.builds(ReadIndex, st.integers(0, 0)))
GUARDS = st.builds(Constraint, affines(1), st.booleans())


@st.composite
def accesses(draw: st.DrawFn, indirect: bool = True) -> Access:
    index = tuple(draw(st.lists(SUBSCRIPTS if indirect else affines(1), max_size=2)))
    guard = tuple(draw(st.lists(GUARDS, max_size=2)))
    name = draw(st.sampled_from(["A", "B", "max", "where", "conv/w:0", "s.x"]))
    return Access(name, index, guard, Const(draw(LITERALS)) if guard else None)


def bodies(reads: int) -> st.SearchStrategy[Expr]:
    leaves = st.one_of(CONSTS, st.builds(Read, st.integers(0, reads - 1)), st.builds(IndexValue, affines(1)))
    return st.recursive(leaves, lambda inner: st.one_of(casts(inner), applied(inner)), max_leaves=8)


def casts(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.builds(Cast, st.sampled_from(sorted(DTYPES)), inner)


@st.composite
def applied(draw: st.DrawFn, inner: st.SearchStrategy[Expr]) -> Expr:
    row = draw(st.sampled_from(list(OPERATORS.values())))
    return Apply(row.name, tuple(draw(inner) for _ in range(row.arity)))


@st.composite
def bodies_with_reads(draw: st.DrawFn) -> tuple[Expr, tuple[Access, ...]]:
    first = draw(accesses(indirect=False))
    reads = (first, *draw(st.lists(accesses(), max_size=3)))
    return draw(bodies(len(reads))), reads


@FIXED
@given(bodies_with_reads())
def test_bodies_come_back(content: tuple[Expr, tuple[Access, ...]]) -> None:
    body, reads = content
    reader = BodyReader(reads=list(reads), fixed=True)
    text = body_text(body, reads)
    assert repr(reader.body(Source.of(text))) == repr(body), text
    assert set(reading_order(Access("C", ()), body, reads)) <= set(range(len(reads)))


def test_fewest_parentheses() -> None:
    for text in (
        "a[i] - (b[i] - c[i])*2 / d[i]", "-a[i]*-b[i]", "-(a[i] + b[i])", "(a[i] < b[i]) == c[i]", "max(a[i], -2)",
        "not (a[i] and b[i]) or c[i]", "a[i] / (b[i]*c[i])", "(not a[i]) == b[i]", "f32(a[i] + 1)", "neg(-2)",
        "cast(f32, 2)", "f32(-inf)",
    ):  # fmt: skip
        reader = BodyReader()
        body = reader.body(Source.of(text))
        assert body_text(body, reader.reads) == text


# ---- programs by hand


def simple(
    name: str = "S", path: tuple[int | str, ...] = (0, "i", "j"), iterators: tuple[str, ...] = ("i", "j")
) -> Statement:
    domain = box_domain(name, [(i, 0, 4) for i in iterators])
    return Statement(name, iterators, domain, Access("C", (var(iterators[0]),)), (), Const(1), path=path)


def program_of(*statements: Statement, tensors: tuple[Tensor, ...] = ()) -> Program:
    return Program("p", (Tensor("C", (Affine((), 4),), "f32", "output"), *tensors), statements)


@pytest.mark.parametrize(
    "paths",
    [
        [(0, "i", "j"), (1, "i", "j")],
        [(0, "i", 0, "j"), (0, "i", 1, "j"), (1, "i", "j")],
        [(0, "i", 0, "j"), (0, "i", 1, "j", 0), (0, "i", 1, "j", 1), (0, "i", 2, "j")],
        [(0, "i", "j", 0), (0, "i", "j", 1)],
        [(0, "j", "i"), (3, "i", "j"), (2, "j", 5, "i")],
        [(1, "i", 0, "j"), (0, "i", 1, "j")],
        [("i", 0, "j"), (), (0,)],
        [(0, "i", "j"), (0, "i", 1, "j")],
    ],
)
def test_any_path_comes_back(paths: list[tuple[int | str, ...]]) -> None:
    same(program_of(*(simple(f"S{k}", path) for k, path in enumerate(paths))))


@FIXED
@given(st.data())
def test_random_paths_come_back(data: st.DataObject) -> None:
    steps = st.one_of(st.integers(0, 2), st.sampled_from(["i", "j"]))
    paths = data.draw(st.lists(st.lists(steps, max_size=4).map(tuple), min_size=1, max_size=4))
    same(program_of(*(simple(f"S{k}", path) for k, path in enumerate(paths))))


def test_everything_a_statement_says_comes_back() -> None:
    a, b = Access("A", (var("i"),)), Access("A", (ReadIndex(0),), (Constraint(var("i") - 1),), Const(-0.5, "f32"))
    extent = Affine((), 4)
    layout = Layout(("i",), (var("i") // 2, var("i") % 2), (Affine((), 2), Affine((), 2)))
    tensors = (
        Tensor("A", (extent,), "i32", "input", "scratch.pad", layout, ("i.o", "lambda"), "C"),
        Tensor("conv/w:0", (extent,), "i32", "constant", gaps=2),
        Tensor("where", (), "bool", "state"),
    )
    full = replace(
        simple("T", (1, "i")), reads=(a, b, a), body=Cast("f32", Apply("add", (Read(1), Read(2)))),
        combiner=COMBINERS["max"], reorder=False, contract=False, origin="S", copies="A", tile_rank=1,
    )  # fmt: skip
    outside = replace(full, name="X", external=External("onnx", b"\x00\xff", ("A", "conv/w:0"), ("C",)))
    outside = replace(outside, domain=full.domain.set_tuple_name("X"))
    domain = full.domain
    for d, name in enumerate(("i.o", "or")):
        domain = domain.set_dim_name(isl.dim_type.set, d, name)
    odd = Statement("mod", ("i.o", "or"), domain.set_tuple_name("mod"), Access("C", (var("i.o"),)), (), Const(2))
    same(program_of(simple(), full, outside, odd, tensors=tensors))


def test_sizes_and_context() -> None:
    p = parse_program(
        "program p(M, N) where M >= 2*N and N >= 1  # comment\nsizes M = 8, N = 3\n"
        "output C: f32[M, N + 1, (M - N) // 2]\nS[]: C[0, 0, 0] = 1"
    )
    assert p.binding == {"M": 8, "N": 3} and same(p).context == isl.Set("[M, N] -> { : M >= 2N and N >= 1 }")
    with pytest.raises(PolyError):
        parse_program("program p(N) where N >= 4\nsizes N = 3\noutput C: f32[N]")


def test_lines_may_be_wrapped_in_brackets() -> None:
    p = parse_program("output C: f32[4]\nS[i]: C[i] = max(1,  # first\n    2) where (0 <= i\n and i < 4)")
    assert p.statements[0].body == Apply("max", (Const(1), Const(2)))


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("input A: f33[3]", 1, 9),
        ("output C: f32[3]\nS[i]: C[i] = 3 +* 4 where 0 <= i < 3", 2, 16),
        ("output C: f32[3]\nS[i]: C[i] = foo(3) where 0 <= i < 3", 2, 13),
        ("output C: f32[3]\nS[i]: C[i*i] = 3 where 0 <= i < 3", 2, 8),
        ("output C: f32[3]\nS[i]: C[i] = 3 where 0 <= q < 3", 2, 26),
        ("output C: f32[3]\nS[i]: C[i] = é[2] + foo(3)", 2, 20),
        ("output C: f32[N]", 1, 0),
        ("C: f32[3]", 1, 0),
        ("S[i]: C[i] /= 3", 1, 11),
        ("for i:\nS[i]: C[i] = 3", 1, 0),
        ("x = 3\n   y = 4\nz = 3", 2, 3),
        ("C[i] = 3", 1, 0),
        ("S[i]: C[i] = i where 0 <= i < 3", 1, 13),
        ("S[i]: C[i] = (3", 1, 13),
        ("S[i]: 3 = C[i]", 1, 6),
        ("S[i]: C[i] = 3 where i = 2 where i = 3", 1, 27),
        ("sizes N 4", 1, 6),
        ("S[]: x[] = " + "(" * 5000, 1, None),
        ("S[]: x[] = " + "-" * 5000 + "2", 1, None),
        ("S[]: x[] = " + "+".join("1" * 5000), 1, None),
        ("[" * 5000, 1, None),
    ],
)
def test_errors_point_at_the_place(text: str, line: int, column: int | None) -> None:
    with pytest.raises(ParseError) as caught:
        parse_program(text)
    assert caught.value.line == line
    assert column is None or caught.value.column == column, str(caught.value)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(programs(), st.data())
def test_broken_text_is_refused_in_words(p: Program, data: st.DataObject) -> None:
    text = str(p)
    at = data.draw(st.integers(0, len(text) - 1))
    change = data.draw(
        st.sampled_from(["", "[", ")", "=", " ", "\n", "`", '"', "i", "9", "where ", ";", ":", "é", "\x00", "."])
    )
    keep = data.draw(st.integers(0, 2))
    try:
        parse_program(text[:at] + change + text[at + keep :])
    except PolyError as error:
        assert str(error)


# ---- loop trees and graphs

BOUNDS = st.lists(affines(1), min_size=1, max_size=2).map(tuple)
CHOICES = st.lists(st.lists(GUARDS, max_size=2).map(tuple), max_size=2).map(tuple)


@st.composite
def computes(draw: st.DrawFn) -> loops.Compute:
    body, reads = draw(bodies_with_reads())
    write = draw(accesses())
    combiner = draw(st.one_of(st.none(), st.sampled_from(list(COMBINERS.values()))))
    instance = tuple(draw(st.lists(affines(1), max_size=3)))
    write = Access(write.tensor, write.index)
    return loops.Compute(draw(NAMES), instance, write, reads, body, combiner, draw(st.booleans()))


LEAVES = st.one_of(computes(), st.builds(loops.External, NAMES), st.builds(loops.Sync, st.text(max_size=4)))
BUFFER = Tensor("Cr", (Affine((), 6), var("N")), "f32", "temporary", "reg", None, ("i.o",))


def nests(inner: st.SearchStrategy[loops.Node]) -> st.SearchStrategy[loops.Node]:
    body = st.lists(inner, max_size=3).map(tuple)
    kinds = st.sampled_from(["serial", "unroll", "vector", "parallel", "unit"])
    past = st.tuples(st.just("vector"), st.none(), st.none(), st.just(True))
    return st.one_of(
        st.builds(
            loops.For,
            NAMES,
            BOUNDS,
            BOUNDS,
            body,
            st.integers(1, 4),
            kinds,
            st.sampled_from([None, "mac"]),
            st.sampled_from([None, "alu"]),
        ),
        st.builds(
            lambda name, low, high, inside, how: loops.For(name, low, high, inside, 1, *how),
            NAMES,
            BOUNDS,
            BOUNDS,
            body,
            past,
        ),
        st.builds(loops.If, CHOICES, body),
        st.builds(loops.Alloc, st.just(BUFFER), body),
    )


TREES = st.lists(st.recursive(LEAVES, nests, max_leaves=6), max_size=3).map(tuple)


@settings(FIXED, max_examples=80)
@given(TREES, st.lists(NAMES, unique=True, max_size=2))
def test_loop_trees_come_back(body: tuple[loops.Node, ...], parameters: list[str]) -> None:
    tree = loops.LoopTree("a tree", (BUFFER,), body, tuple(parameters), tuple((p, 3) for p in parameters[:1]))
    again = parse_loops(print_loops(tree))
    assert repr_of(again) == repr_of(tree), print_loops(tree)


def repr_of(tree: loops.LoopTree) -> tuple[object, ...]:
    """By text: the literals True, 1 and 1.0 are equal, and have to stay apart."""
    return tree.name, tree.tensors, tree.parameters, tree.sizes, tuple(map(plain, tree.body))


def plain(node: loops.Node) -> tuple[object, ...]:
    match node:
        case loops.For() | loops.If() | loops.Alloc():
            return (replace(node, body=()), *map(plain, node.body))
        case loops.Compute():
            return (node, repr(node.body))
        case _:
            return (node,)


def test_loops_read_as_written() -> None:
    text = """loops matmul(N)
sizes N = 64
input A: f32[64, N]
output C: f32[64, N]
for i.o in range(0, 64, 16) parallel:
    alloc temporary Cr: f32[16, 4] in reg scope (i.o):
        for i.p in range(max(0, -i.o + 1), min(16, N - i.o)) unroll:
            if i.o + i.p >= 3 and N >= 4 or i.p == 0:
                upd[i.o + i.p, 0]: Cr[i.p, 0] += A[i.o + i.p, 0] exact
        for x@1 in range(0, N) unit engine mac:
            copy[]: C[0, x@1] = (A[0, (x@1 // 3)] if x@1 >= 3 else 0.0)
    sync "copies have landed"
external Sort
"""
    assert print_loops(parse_loops(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "loops", "for i in range(0, 3):\n    S[i]: C[i] = 1", "loops a\nfor i in range(3):\n    pass",
        "loops a\nfor i:\n    pass", "loops a\nif x[3] > 2:\n    pass", "loops a\nfor i in range(0, 3) fast:\n    pass",
        "loops a\nS[i]: C[i] = 1 where i = 3", "loops a\nfor i in range(0, 3) unroll vector:\n    pass",
        "loops a\nC[i] = 3", "loops a\nalloc Cr:\n    pass",
    ],
)  # fmt: skip
def test_broken_loops_are_refused(text: str) -> None:
    with pytest.raises(PolyError):
        parse_loops(text)


def test_graph_prints() -> None:
    s = simple()
    graph = Graph("g", (Tensor("C", (Affine((), 4),), "f32", "output"),), (Node("n/1", "Relu", (), ("C",), (s,)),))
    assert "`n/1`: Relu() -> C\n    S[i, j]: C[i] = 1 where" in print_graph(graph)


@pytest.mark.parametrize(
    "text",
    [
        "y[i] = (2*x[a[i]] if i != 3 else 5) where 0 <= i < 9",
        "y[i] = (x[i-1] if i != 0 and i < 7 else 0) where 0 <= i < 9",
        "y[i, j] = x[i - j] if i != j and j <= i else 0 where 0 <= i < 9 and 0 <= j < 9",
    ],
)
def test_places_that_differ_come_back(text: str) -> None:
    shapes = {"x": (9,), "a": (9,)} if "a[" in text else {"x": (9,)}
    program = same(poly.parse(text, dtypes={"a": "i32"} if "a[" in text else {}, **shapes))
    tree = poly.compile(program).loops
    assert parse_loops(print_loops(tree)) == tree
    assert " % " not in print_program(program) + print_loops(tree)
