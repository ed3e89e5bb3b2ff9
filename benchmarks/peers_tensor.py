"""torch, eager and compiled, and JAX. Each kind of case is written once, on the library's own functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

import numpy as np

from benchmarks.calls import Call
from benchmarks.cases import Array, Case


def _torch_function(case: Case) -> Callable[..., object] | None:
    """A function of the case's operands, inputs first, then consts."""
    import torch
    from torch.nn import functional as nn

    match case.kind:
        case "einsum":
            return _torch_einsum(case)
        case "conv":
            return lambda x, w: torch.conv2d(x, w, None, case.stride, case.pad, 1, case.groups)
        case "linear":
            return lambda x, w, b: torch.relu(torch.addmm(b, x, w))
        case "softmax":
            return lambda x: torch.softmax(x, -1)
        case "muladdrelu":
            return lambda x, y, z: torch.relu(x * y + z)
        case "bias_gelu":
            return lambda x, b: nn.gelu(x + b)
        case "layernorm":
            return lambda x, g, b: nn.layer_norm(x, g.shape, g, b)
        case "attention":
            return lambda q, k, v: nn.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        case "noop":
            return lambda x: x + x
        case _:
            return None


def _torch_einsum(case: Case) -> Callable[..., object]:
    import torch

    terms, result = case.spec.split("->")
    parts = terms.split(",")
    if len(parts) == 1 and sorted(parts[0]) == sorted(result):
        order = [parts[0].index(i) for i in result]
        return lambda x: x.permute(order).contiguous()
    if len(parts) == 1:
        axes = [k for k, i in enumerate(parts[0]) if i not in result]
        return lambda x: x.sum(axes)
    return lambda *x: torch.einsum(case.spec, *x).contiguous()


def torch_peer(case: Case, threads: int) -> Call | None:
    """Eager torch."""
    return _torch(case, threads, compiled=False)


def torch_compiled_peer(case: Case, threads: int) -> Call | None:
    """torch.compile, weights frozen."""
    return _torch(case, threads, compiled=True)


def _torch(case: Case, threads: int, *, compiled: bool) -> Call | None:
    import torch

    if (found := _torch_function(case)) is None:
        return None
    function = found
    torch.set_num_threads(threads)
    inputs, consts = case.operands()
    given = [torch.from_numpy(a) for a in inputs.values()]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(
                [torch.nn.Parameter(torch.from_numpy(a), requires_grad=False) for a in consts.values()]
            )

        def forward(self, *x: object) -> object:
            return function(*x, *self.weights)

    module = Model().eval()
    run = torch.compile(module) if compiled else module

    def call() -> Sequence[Array]:
        with torch.inference_mode():
            return (run(*given).numpy(),)

    call()
    return call


def jax_peer(case: Case, _threads: int) -> Call | None:
    """Compiled ahead of time; consts are constants of the program."""
    import jax
    import jax.numpy as jnp
    from jax import lax, nn

    padding = [(case.pad, case.pad)] * 2
    functions: Mapping[str, Callable[..., object]] = {
        "conv": lambda x, w: lax.conv_general_dilated(
            x, w, (case.stride,) * 2, padding, feature_group_count=case.groups
        ),
        "linear": lambda x, w, b: nn.relu(x @ w + b),
        "softmax": lambda x: nn.softmax(x, -1),
        "muladdrelu": lambda x, y, z: nn.relu(x * y + z),
        "bias_gelu": lambda x, b: nn.gelu(x + b, approximate=False),
        "layernorm": lambda x, g, b: (x - x.mean(-1, keepdims=True))
        / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b,
        "attention": lambda q, k, v: nn.softmax(q @ k.swapaxes(1, 2) / sqrt(q.shape[-1]), -1) @ v,
        "noop": lambda x: x + x,
        "einsum": lambda *x: jnp.einsum(case.spec, *x, optimize="optimal"),
    }  # fmt: skip
    if case.kind not in functions:
        return None
    function = functions[case.kind]
    inputs, consts = case.operands()
    given = [jax.device_put(a) for a in inputs.values()]
    fixed = [jax.device_put(a) for a in consts.values()]
    compiled = jax.jit(lambda *x: function(*x, *fixed)).lower(*given).compile()
    return lambda: (np.asarray(compiled(*given).block_until_ready()),)
