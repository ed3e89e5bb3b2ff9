"""Shapes that nobody chose: `python -m benchmarks.random_cases --seed 3 --count 200 > cases.json`

A JSON list of cases for `python -m benchmarks r3_ --cases cases.json`: products in all layouts, batches, contractions
of random axes, convolutions, rows with functions, reductions, permutations and attention, extents spread evenly over
their logarithms. A seed always gives the same list.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import exp, log, prod
from random import Random
from typing import Final

from benchmarks.cases import Case, Shape, attention, conv, dense, einsum, pointwise

LEAST, MOST = 2e4, 6e8  # operations; less is but a call, more takes all the time
MOST_ELEMENTS = 4_000_000  # of an operand or the result
PRODUCTS: Final = ("ik,kj->ij", "ki,kj->ij", "ik,jk->ij", "ki,jk->ij")
BATCHES: Final = ("bik,bkj->bij", "bik,bjk->bij", "ibk,jbk->bij", "bki,bkj->bij", "bij,bj->bi", "ibk,jbk->ibj")
WINDOWS: Final = ((1, 1), (1, 1), (3, 3), (3, 3), (5, 5), (7, 7), (1, 7), (3, 1), (2, 2))


def extent(choose: Random, least: int, most: int) -> int:
    """A whole number, even over the logarithms; one in three is a multiple of 8."""
    found = round(exp(choose.uniform(log(least), log(most))))
    return max(8, found // 8 * 8) if found >= 8 and choose.random() < 1 / 3 else found


def _sized(choose: Random, spec: str, least: int, most: int) -> Case:
    """An equation of f32 with an extent for every index."""
    terms = spec.split("->")[0].split(",")
    sizes = {i: extent(choose, least, most) for i in sorted({*"".join(terms)})}
    shapes = [tuple(sizes[i] for i in t) for t in terms]
    return einsum(f"{spec}:{','.join('x'.join(map(str, s)) for s in shapes)}", spec, *shapes)


def _product(choose: Random) -> Case:
    return _sized(choose, choose.choice(PRODUCTS), 1, 3000)


def _batch(choose: Random) -> Case:
    return _sized(choose, choose.choice(BATCHES), 2, 600)


def _contraction(choose: Random) -> Case:
    """Two operands with some indices of their own, some that are summed, in any order; sometimes a common one."""
    letters = [*"abcdefg"]
    counts = [choose.randint(1, 2), choose.randint(1, 2), choose.randint(1, 2), int(choose.random() < 0.25)]
    rows, columns, steps, batch = ([letters.pop(0) for _ in range(n)] for n in counts)
    first, second, result = rows + steps + batch, columns + steps + batch, rows + columns + batch
    for each in (first, second, result):
        choose.shuffle(each)
    return _sized(choose, f"{''.join(first)},{''.join(second)}->{''.join(result)}", 3, 200)


def _moved(choose: Random) -> Case:
    """A permutation or a sum of some axes of one operand."""
    axes = [*"abcd"][: choose.randint(2, 4)]
    kept = axes if choose.random() < 0.6 else choose.sample(axes, choose.randint(1, len(axes) - 1))
    result = kept[:]
    while result == axes:
        choose.shuffle(result)
    return _sized(choose, f"{''.join(axes)}->{''.join(result)}", 3, 3000 if len(axes) == 2 else 150)


def _windows(choose: Random) -> Case:
    """A convolution: dense, of groups, or of each channel."""
    height, width = choose.choice(WINDOWS)
    stride = choose.choice((1, 1, 1, 2, 2, 3))
    groups = choose.choice((1, 1, 1, 1, 2, 4))
    channels, results = (groups * extent(choose, 1, 512 // groups) for _ in range(2))
    if choose.random() < 0.25:
        groups = results = channels
    x = (choose.choice((1, 1, 1, 2, 4)), channels, *(max(height, width) + extent(choose, 1, 160) for _ in range(2)))
    pad = choose.randint(0, min(height, width) // 2)
    w = (results, channels // groups, height, width)
    name = f"conv:{'x'.join(map(str, x))}:{'x'.join(map(str, w))}:s{stride}p{pad}g{groups}"
    return conv(name, x, w, stride, pad, groups)


def _rows(choose: Random) -> Case:
    """Softmax, layer norm, a bias with gelu, attention, or a layer of a network."""
    rows, columns = extent(choose, 1, 4000), extent(choose, 4, 4000)
    x: Shape = (rows, columns)
    match choose.choice(("softmax", "layernorm", "bias_gelu", "attention", "linear")):
        case "softmax":
            return pointwise(f"softmax:{rows}x{columns}", "softmax", {"x": x}, {}, 4, exp=1)
        case "layernorm":
            weights = {"g": (columns,), "b": (columns,)}
            return pointwise(f"layernorm:{rows}x{columns}", "layernorm", {"x": x}, weights, 8)
        case "bias_gelu":
            return pointwise(f"bias_gelu:{rows}x{columns}", "bias_gelu", {"x": x}, {"b": (columns,)}, 5, erf=1)
        case "attention":
            return attention(extent(choose, 1, 24), extent(choose, 8, 1500), choose.choice((16, 32, 48, 64, 80, 128)))
        case _:
            return dense(f"linear:{rows}x{columns}", rows, columns, extent(choose, 2, 4000))


MAKERS: Final[Mapping[Callable[[Random], Case], int]] = {
    _product: 6, _batch: 3, _contraction: 5, _moved: 4, _windows: 7, _rows: 4
}  # fmt: skip


def random_cases(seed: int) -> Iterator[Case]:
    """Cases of a seed without end. Names begin with `r<seed>_`."""
    choose, seen = Random(seed), set[str]()
    while True:
        case = choose.choices([*MAKERS], [*MAKERS.values()])[0](choose)
        shapes = [*case.inputs.values(), *case.consts.values()]
        largest = max(case.writes // 4, *map(prod, shapes))
        work = max(case.flops, case.traffic // 4)
        if LEAST <= work <= MOST and largest <= MOST_ELEMENTS and case.name not in seen:
            seen.add(case.name)
            yield replace(case, name=f"r{seed}_{case.name}")


def entry(case: Case) -> dict[str, object]:
    """What `--cases` reads of one."""
    shapes = {k: {n: [*s] for n, s in given.items()} for k, given in (("inputs", case.inputs), ("consts", case.consts))}
    found: dict[str, object] = {"name": case.name, "kind": case.kind, **shapes}
    if case.kind == "einsum":
        found["spec"] = case.spec
    if case.kind == "conv":
        found |= {"stride": case.stride, "pad": case.pad, "groups": case.groups}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.random_cases", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="another list for another number (default: 1)")
    parser.add_argument("--count", type=int, default=200, metavar="N", help="cases (default: 200)")
    options = parser.parse_args()
    if options.count < 1:
        parser.error("--count is positive")
    made = random_cases(options.seed)
    print(json.dumps([entry(next(made)) for _ in range(options.count)], indent=1))


if __name__ == "__main__":
    main()
