"""Functions as networks, and the comparison of what is compiled with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import burnish as bn


class Functions(nn.Module):
    """Several functions of the same inputs: their results in a tuple."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = tuple(functions)

    def forward(self, *inputs: Any) -> Any:
        return tuple(function(*inputs) for function in self.functions)


def compiled(network: nn.Module, inputs: Any, **options: Any) -> bn.Module:
    """The network compiled on one thread, without a search for substitutions."""
    return bn.compile(network, inputs, threads=1, rewrite=False, **options)


def assert_same(found: Any, expected: Any, what: str = "", tolerance: float = 2e-5) -> None:
    """Compares structure, dtypes, shapes and values, relative to the greatest finite one."""
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected), what
        for i, (f, e) in enumerate(zip(found, expected, strict=True)):
            assert_same(f, e, f"{what}[{i}]", tolerance)
        return
    if isinstance(expected, dict):
        assert list(found) == list(expected), what
        for key in expected:
            assert_same(found[key], expected[key], f"{what}[{key!r}]", tolerance)
        return
    if not isinstance(expected, torch.Tensor):
        assert found == expected, what
        return
    assert isinstance(found, torch.Tensor), what
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
    if expected.dtype.is_floating_point:
        a, b = found.detach().double().numpy(), expected.detach().double().numpy()
        finite = np.isfinite(b)
        np.testing.assert_array_equal(np.where(finite, 0, a), np.where(finite, 0, b), what)
        scale = max(np.abs(b[finite]).max(initial=0), 1e-6)
        np.testing.assert_allclose(a[finite] / scale, b[finite] / scale, atol=tolerance, rtol=0, err_msg=what)
    else:
        assert torch.equal(found, expected), what
