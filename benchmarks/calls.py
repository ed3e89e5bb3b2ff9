"""What is timed: a call without arguments that computes the result once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Call = Callable[[], Sequence[npt.NDArray[np.generic]]]


def written_out(function: Callable[..., object], *arguments: object, **keywords: object) -> Callable[[], object]:
    """The call as one writes it, `function(a, b, out=c)`: `function(*arguments)` makes a tuple and a dict each time,
    which takes as long as the kernel of a small case.
    """
    names = {f"a{k}": value for k, value in enumerate(arguments)}
    given = ", ".join([*names, *(f"{name}={name}" for name in keywords)])
    made = eval(f"lambda function, {', '.join([*names, *keywords])}: lambda: function({given})")
    return made(function, *arguments, *keywords.values())
