"""The table: ONNX operator -> index notation. A row knows nothing but domains, accesses and bodies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from poly.frontend import (
    onnx_attention,
    onnx_elementwise,
    onnx_formats,
    onnx_indexing,
    onnx_logarithms,
    onnx_normalisations,
    onnx_products,
    onnx_quantized,
    onnx_recurrent,
    onnx_reductions,
    onnx_resize,
    onnx_sampling,
    onnx_selection,
    onnx_shapes,
    onnx_spectral,
    onnx_transposed,
    onnx_windows,
)
from poly.frontend.onnx_notation import Row

OPERATORS: Final[Mapping[str, Row]] = MappingProxyType(
    onnx_elementwise.ROWS
    | onnx_logarithms.ROWS
    | onnx_formats.ROWS
    | onnx_shapes.ROWS
    | onnx_indexing.ROWS
    | onnx_windows.ROWS
    | onnx_transposed.ROWS
    | onnx_products.ROWS
    | onnx_reductions.ROWS
    | onnx_normalisations.ROWS
    | onnx_quantized.ROWS
    | onnx_recurrent.ROWS
    | onnx_resize.ROWS
    | onnx_selection.ROWS
    | onnx_sampling.ROWS
    | onnx_spectral.ROWS
    | onnx_attention.ROWS
)

# Rows that only move elements, so that codes of a format may go through them.
MOVES: Final = frozenset(
    """Cast CastLike QuantizeLinear DequantizeLinear Identity Reshape Flatten Squeeze Unsqueeze Transpose Concat Split
    Slice Gather GatherElements GatherND Expand Tile DepthToSpace SpaceToDepth Where""".split()
)
