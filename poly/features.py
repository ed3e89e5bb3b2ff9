"""What a core's features, by LLVM's names, say together: with those that each needs, without those taken away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

# Of the features that somebody asks for, the ones that each needs.
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "sse2": ("sse",), "sse3": ("sse2",), "ssse3": ("sse3",), "sse4.1": ("ssse3",), "sse4.2": ("sse4.1",),
    "avx": ("sse4.2",), "avx2": ("avx",), "fma": ("avx",), "f16c": ("avx",), "avxvnni": ("avx2",),
    "avx512f": ("avx2", "fma", "f16c"), "avx512vl": ("avx512f",), "avx512bw": ("avx512f",), "avx512dq": ("avx512f",),
    "avx512vnni": ("avx512f",), "avx512bf16": ("avx512bw",), "avx512fp16": ("avx512bw", "avx512dq", "avx512vl"),
    "avx512vbmi": ("avx512bw",), "amx-int8": ("amx-tile",), "amx-bf16": ("amx-tile",),
}  # fmt: skip


def known_features(features: Iterable[str]) -> frozenset[str]:
    """The features there are after one another, as LLVM takes them: with those that they need, and without those that
    need one which a minus takes away.
    """
    has: set[str] = set()
    for feature in features:
        name = feature.removeprefix("-")
        if name == feature:
            has |= _with_needs(name)
        elif name in has:  # what needs one that is not there is not there either
            has -= {f for f in has if name in _with_needs(f)}
    return frozenset(has)


@cache
def _with_needs(feature: str) -> frozenset[str]:
    return frozenset({feature}).union(*(_with_needs(f) for f in _NEEDS.get(feature, ())))
