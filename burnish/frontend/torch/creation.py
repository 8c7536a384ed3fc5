"""Translators of ATen operators that make tensors of a known value in the shape of others, or in open shapes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from burnish.frontend.torch.context import Ref, TorchContext, Translator


def _filled(value: float, c: TorchContext, x: Any = None, size: Any = None, dtype: Any = None) -> Ref:
    return c.expand(c.constant(value, c.out_dtype), c.out_shape)


def _full(c: TorchContext, fill_value: Any, x: Any = None, size: Any = None, dtype: Any = None) -> Ref:
    return c.expand(c.operand(fill_value, c.out_dtype), c.out_shape)


def _arange(c: TorchContext, end: Any, start: Any = 0, step: Any = 1, dtype: Any = None) -> Ref:
    """``start + step * i``, of as many elements as torch says."""
    numbers = c.iota(c.out_shape[0])
    if step != 1:
        numbers = c.add("mul", c.operand(numbers, _counting(step)), c.constant(step, _counting(step)))
    if isinstance(start, float) or not isinstance(start, int) or start != 0:
        kind = "float64" if "float64" in (_counting(start), c.dtype(numbers)) else "int64"
        numbers = c.add("add", c.cast(numbers, kind), c.operand(start, kind))
    return c.cast(numbers, c.out_dtype)


def _counting(number: Any) -> str:
    return "float64" if isinstance(number, float) else "int64"


def _scalar_tensor(c: TorchContext, s: Any, dtype: Any = None) -> Ref:
    return c.operand(s, c.out_dtype)


def _dropout(c: TorchContext, input: Ref, p: float = 0, train: bool = False) -> Ref:
    """Dropout in its form of inference."""
    if train and p:
        c.refuse("train", True, "False: random numbers are not supported")
    return input


TRANSLATORS: Mapping[str, Translator] = {
    "aten.zeros": partial(_filled, 0), "aten.zeros_like": partial(_filled, 0), "aten.new_zeros": partial(_filled, 0),
    "aten.ones": partial(_filled, 1), "aten.ones_like": partial(_filled, 1), "aten.new_ones": partial(_filled, 1),
    "aten.empty": partial(_filled, 0), "aten.empty_like": partial(_filled, 0), "aten.new_empty": partial(_filled, 0),
    "aten.full": _full, "aten.full_like": _full, "aten.new_full": _full, "aten.arange": _arange,
    "aten.scalar_tensor": _scalar_tensor, "aten.dropout": _dropout, "aten.feature_dropout": _dropout,
}  # fmt: skip
