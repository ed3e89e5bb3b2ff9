"""Weights of 4 bits of ONNX Runtime's own domain, two in a byte, with a scale for each block: as floats by ONNX's
operators, which constants become when compiling, or, for few rows, as they are: eight bytes of floats that few read
cost more than to unpack one byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from poly.affine import var
from poly.dtypes import numpy_dtype
from poly.frontend.onnx_contrib_text import FunctionText
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_terms import Array, Term, fn, literal

_FEW_ROWS: Final = 2  # 1024 x 1024: 54 us a row, 145 us as floats, which come from the third cache
_HALF: Final = 4  # bits


def _two_of_each(b: FunctionText, packed: str, shape: tuple[int, ...]) -> str:
    """The halves of bytes, the low one first, along the last axis."""
    low = b.add(f"BitwiseAnd({packed}, {b.byte(15)})")
    high = b.add(f'BitShift <direction = "RIGHT"> ({packed}, {b.byte(4)})')
    pair = ", ".join(b.add(f"Unsqueeze({half}, {b.ints(len(shape))})") for half in (low, high))
    return b.add(f"Reshape({b.add(f'Concat <axis = {len(shape)}> ({pair})')}, {b.ints(*shape[:-1], 2 * shape[-1])})")


def product_of_blocks(b: FunctionText) -> None:
    """A product with codes [columns, blocks, bytes of a block]."""
    rows, columns, size, bits = (b.integer(n) for n in ("K", "N", "block_size", "bits"))
    b.require(bits in (4, 8), f"codes of {bits} bits have no compiled form")
    b.require(b.given(4) is None, "groups of rows by index have no compiled form")
    blocks = -(-rows // size)
    codes = "B" if bits == 8 else _two_of_each(b, "B", (columns, blocks, size // 2))
    scale = b.add(f"Reshape(scales, {b.ints(columns, blocks, 1)})")
    zero, given = b.like(float(1 << (bits - 1)), "A"), b.given(3)
    if given is not None and given.dtype == "u8":
        found = "zero_points"
        if bits == 4:
            pairs = -(-blocks // 2)
            found = b.add(f"Reshape({found}, {b.ints(columns, pairs)})")
            found = b.of("Slice", _two_of_each(b, found, (columns, pairs)), b.ints(0), b.ints(blocks), b.ints(1))
        zero = b.add(f"Reshape({b.add(f'CastLike({found}, A)')}, {b.ints(columns, blocks, 1)})")
    elif given is not None:
        zero = b.add(f"Reshape(zero_points, {b.ints(columns, blocks, 1)})")
    codes = b.add(f"Reshape({codes}, {b.ints(columns, blocks, size)})")
    weights = b.of("Mul", b.of("Sub", b.of("CastLike", codes, "A"), zero), scale)
    weights = b.add(f"Reshape({weights}, {b.ints(columns, blocks * size)})")
    if blocks * size > rows:
        weights = b.add(f"Slice({weights}, {b.ints(0)}, {b.ints(rows)}, {b.ints(1)})")
    product = b.add(f"MatMul(A, {b.add(f'Transpose <perm = [1, 0]> ({weights})')})")
    b.add(f"Add({product}, bias)" if b.given(5) is not None else f"Identity({product})", "Y")


def gathered_blocks(b: FunctionText) -> None:
    """Rows of codes by their places, then as floats."""
    data, size, bits = b.known(0), b.integer("block_size"), b.integer("bits")
    axis = b.integer("quantize_axis") % data.rank
    b.require(b.integer("gather_axis") % data.rank == 0 and axis == data.rank - 1 > 0, "axes have no compiled form")
    packed = data.dtype == "u8" and bits == 4
    width = data.shape[-1] * (2 if packed else 1)
    b.require(width % size == 0, f"rows of {width} are not blocks of {size}")
    shape = (*b.known(1).shape, *data.shape[1:])
    rows = b.add("Gather <axis = 0> (data, indices)")
    rows = _two_of_each(b, rows, shape) if packed else rows
    blocks = b.ints(*shape[:-1], width // size, size)
    values = b.add(f"CastLike({b.add(f'Reshape({rows}, {blocks})')}, scales)")
    if b.given(3) is not None:
        zero = b.add("Gather <axis = 0> (zero_points, indices)")
        if packed:
            pairs = -(-width // size // 2)
            zero = _two_of_each(b, zero, (*shape[:-1], pairs))
            zero = b.add(f"Slice({zero}, {b.ints(0)}, {b.ints(width // size)}, {b.ints(len(shape) - 1)})")
        zero = b.add(f"Unsqueeze({b.add(f'CastLike({zero}, scales)')}, {b.ints(len(shape))})")
        values = b.add(f"Sub({values}, {zero})")
    elif data.dtype == "u8":
        values = b.add(f"Sub({values}, {b.like(float(1 << (bits - 1)), 'scales')})")
    factor = b.add(f"Unsqueeze({b.add('Gather <axis = 0> (scales, indices)')}, {b.ints(len(shape))})")
    b.add(f"Reshape({b.add(f'Mul({values}, {factor})')}, {b.ints(*shape[:-1], width)})", "output")


# -- few rows ------------------------------------------------------------------------------------------------------


def few_rows(b: Notation) -> None:
    """y[.., n] = sum over blocks of scale[block, n] * sum over pairs of x * (code - zero), with columns as lanes."""
    x, codes = b.input(0), b.input(1).array
    rows, columns, size, bits = (b.int_attribute(n) for n in ("K", "N", "block_size", "bits"))
    scales, lead = b.input(2).array, x.shape[:-1]
    b.supported(codes is not None and scales is not None and bits == _HALF, "only known codes of 4 bits are unpacked")
    b.supported(b.optional(4) is None and rows % size == 0 and x.dtype == "f32", "no whole blocks of f32")
    b.supported(int(np.prod(lead)) <= _FEW_ROWS, "what many rows read is unpacked before")
    assert codes is not None and scales is not None
    blocks = rows // size
    shape = (columns, blocks, size // 2)
    packed = b.new_constant("codes", np.ascontiguousarray(codes.reshape(shape).transpose(1, 2, 0)))
    scale = b.new_constant("scale", np.ascontiguousarray(scales.reshape(columns, blocks).T))
    block, pair, column = map(var, ("b", "j", "n"))
    zero, place = _zeros(b, columns, blocks), tuple(var(f"i{d}") for d in range(len(lead)))
    code, at = packed[block, pair, column], block * size + pair * 2
    halves = fn("bit_and", code, 15), fn("shift_right", code, _HALF)
    first, second = (x[*place, at + k] * (half.cast(x.dtype) - zero) for k, half in enumerate(halves))
    y = b.output((*lead, columns), x.dtype)
    ranges = {**{f"i{d}": e for d, e in enumerate(lead)}, "n": columns}
    bias = None if b.optional(5) is None else b.input(5)[column]
    over = {"b": blocks, "j": size // 2}
    b.reduce(y, ranges, over, (first + second) * scale[block, column], index=(*place, column), start=bias)


def _zeros(b: Notation, columns: int, blocks: int) -> Term:
    """The zero point of a block and a column: of 4 bits, or as the scales are."""
    given = b.optional(3)
    if given is None:
        return literal(float(1 << (_HALF - 1)))
    b.supported(given.array is not None, "zero points are only known at run time")
    assert given.array is not None
    found: Array = given.array
    if given.dtype == "u8":
        pairs = found.reshape(columns, -1).astype(np.uint8)
        found = np.stack([pairs & 15, pairs >> _HALF], axis=-1).reshape(columns, -1)[:, :blocks]
    zeros = np.ascontiguousarray(found.reshape(columns, blocks).T.astype(numpy_dtype(b.input(0).dtype)))
    return b.new_constant("zero", zeros)[var("b"), var("n")]


ROWS: Final[Mapping[str, Row]] = {"MatMulNBits": few_rows}
