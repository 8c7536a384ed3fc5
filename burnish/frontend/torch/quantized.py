"""Translators of PyTorch's quantization: fake quantization, as of training that knows it, and pairs of quantize and
dequantize, as its exporters write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from burnish.frontend.torch.context import Ref, TorchContext, Translator
from burnish.frontend.torch.dtypes import dtype_name


def _along(c: TorchContext, x: Ref, parameter: Any, axis: int | None, dtype: str) -> Ref:
    """A scale or zero point in a shape that broadcasts against ``x``: one number, or one along an axis."""
    value = c.operand(np.float32(parameter) if isinstance(parameter, float) else parameter, dtype)
    if axis is None:
        return c.reshape(value, ())
    return c.reshape(value, tuple(c.shape(value)[0] if d == c.axis(x, axis) else 1 for d in range(c.rank(x))))


def _steps(c: TorchContext, x: Ref, scale: Ref, zero: Ref) -> Ref:
    """Numbers of steps of ``scale`` from the zero point, rounded: by the reciprocal, as PyTorch does."""
    return c.add("add", c.add("round", c.add("mul", x, c.add("div", c.scalar(1, scale), scale))), zero)


def _held(c: TorchContext, steps: Ref, low: int, high: int) -> Ref:
    """``steps`` within a range; NaN becomes its least number."""
    least = c.scalar(low, steps)
    return c.add("clip", c.add("where", c.add("greater", steps, least), steps, least), max=float(high))


def _fake(
    c: TorchContext, x: Ref, scale: Any, zero_point: Any, axis: int | None, low: int, high: int
) -> tuple[Ref, Ref]:
    """``x`` in steps of the scale, and where it is within the range, whose gradient passes."""
    factor, zero = (_along(c, x, p, axis, c.dtype(x)) for p in (scale, zero_point))
    steps = _steps(c, x, factor, zero)
    inside = c.add(
        "logical_and",
        c.add("greater_equal", steps, c.scalar(low, steps)), c.add("less_equal", steps, c.scalar(high, steps)),
    )  # fmt: skip
    value = c.add("stop_gradient", c.add("mul", c.add("sub", _held(c, steps, low, high), zero), factor))
    slope = c.add("where", inside, c.add("sub", x, c.add("stop_gradient", x)), c.scalar(0, x))
    return c.add("add", value, slope), inside


def _per_tensor(c: TorchContext, x: Ref, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Any:
    return _fake(c, x, scale, zero_point, None, quant_min, quant_max)


def _per_channel(
    c: TorchContext, x: Ref, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int
) -> Any:
    return _fake(c, x, scale, zero_point, axis, quant_min, quant_max)


def _switched(
    c: TorchContext, x: Ref, scale: Any, zero_point: Any, fake_quant_enabled: Ref, quant_min: int, quant_max: int
) -> Any:
    """Fake quantization where the tensor ``fake_quant_enabled`` is on, else ``x``."""
    value, inside = _fake(c, x, scale, zero_point, None, quant_min, quant_max)
    on = c.cast(c.reshape(fake_quant_enabled, ()), "bool")
    return c.add("where", on, value, x), c.add("logical_or", inside, c.add("logical_not", on))


def _quantize(c: TorchContext, input: Ref, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: Any,
              axis: int | None = None) -> Ref:  # fmt: skip
    factor, zero = (_along(c, input, p, axis, "float32") for p in (scale, zero_point))
    steps = _steps(c, c.cast(input, "float32"), factor, zero)
    return c.cast(c.add("clip", steps, min=float(quant_min), max=float(quant_max)), dtype_name(dtype, c.label))


def _dequantize(c: TorchContext, input: Ref, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: Any,
                axis: int | None = None, out_dtype: Any = None) -> Ref:  # fmt: skip
    steps = c.cast(input, "float32")
    if zero_point is not None:
        steps = c.add("sub", steps, _along(c, input, zero_point, axis, "float32"))
    return c.real(c.add("mul", steps, _along(c, input, scale, axis, "float32")))


def _channels(
    translate: Translator,
    c: TorchContext,
    input: Ref,
    scales: Ref,
    zero_points: Any,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    out_dtype: Any = None,
) -> Ref:
    return translate(c, input, scales, zero_points, quant_min, quant_max, dtype, axis)


TRANSLATORS: Mapping[str, Translator] = {
    "aten.fake_quantize_per_tensor_affine_cachemask": _per_tensor,
    "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _switched,
    "aten.fake_quantize_per_channel_affine_cachemask": _per_channel,
    "quantized_decomposed.quantize_per_tensor": _quantize,
    "quantized_decomposed.dequantize_per_tensor": _dequantize,
    "quantized_decomposed.quantize_per_channel": partial(_channels, _quantize),
    "quantized_decomposed.dequantize_per_channel": partial(_channels, _dequantize),
}
