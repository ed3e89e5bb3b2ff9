"""What to write for a function that bodies do not have: other libraries' names in our functions, or a near spelling."""

from __future__ import annotations

import math
from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

import numpy as np

from poly.dtypes import NUMPYS_NAMES
from poly.function_forms import FORMS, NUMPYS_OPERATORS

_CLOSE: Final = 0.75
# No names that one writes.
INTERNAL: Final = frozenset("not neg trunc_div bits dot2 dot4 dot4_i8 dot4_u8 dot2_bf16".split())
ELSEWHERE: Final = {
    "clamp": "min(max(x, low), high)", "where": "x if condition else y",
    "gelu": "0.5 * x * (1 + erf(x * 0.7071067811865476))", "erfc": "1 - erf(x)",
    "argmin": "m min= x[i]; k min= select(x[i] == m, i, 1000000)",
    "argmax": "m max= x[i]; k min= select(x[i] == m, i, 1000000)",
    "mean": "S[i] += A[i,j]; M[i] = S[i] / 3", "dot": "s += x[i] * x[i]",
    "cumsum": "s[i] = (s[i-1] if i >= 1 else 0) + x[i]",
    "softmax": "m[i] max= A[i,j]; E[i,j] = exp(A[i,j] - m[i]); s[i] += E[i,j]; P[i,j] = E[i,j] / s[i]",
    "sum": "C[i] += A[i,j]", "prod": "C[i] *= A[i,j]", "matmul": "C[i,k] += A[i,j] * B[j,k]",
}  # fmt: skip


def suggestion(name: str, known: Collection[str]) -> str | None:
    """For an unknown function the expression or the known one that is meant; None where that is not clear."""
    bare = name.rpartition(".")[2]  # np.exp
    if bare in ELSEWHERE:  # `where` too, a word of the notation
        return ELSEWHERE[bare]
    if bare != name and bare in {*known, *FORMS, *NUMPYS_OPERATORS}:
        return f"{bare}(...)"
    name = bare
    if name in NUMPYS_NAMES and NUMPYS_NAMES[name] in known:
        return f"{NUMPYS_NAMES[name]}(...)"
    if name.lower() in known:
        return f"{name.lower()}(...)"
    near = get_close_matches(name.lower(), sorted({*known, *FORMS}), 1, _CLOSE)
    means_another = hasattr(math, name) or hasattr(np, name)
    return f"{near[0]}(...)" if near and len(name) > 3 and not means_another else None
