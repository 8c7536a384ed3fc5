"""Polyphase kernels: strides, odd sizes, plain and blocked images, epilogues, knobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from burnish.kernels.cpu.polyphase import POLYPHASE_CONV
from burnish.kernels.task import Choice
from burnish.loops.expr import maximum
from burnish.loops.tensor import Tensor, compute, placeholder
from burnish.machines.target import host
from burnish.ops import OPERATORS
from burnish.ops.polyphase import taps_of

LANES = host().lanes
BLOCKED = f"ABCD{LANES}b"
Check = Callable[..., Choice]


def convolution(x: tuple[int, ...], outputs: int, kernel: int, stride: int, m: int = 4) -> Tensor:
    """relu(polyphase(x, w) + bias + residual)."""
    shape = (m + taps_of(kernel, stride) - 1, kernel, x[1], stride, outputs)
    data, weight, pad = placeholder(x, name="x"), placeholder(shape, name="w"), kernel // 2
    attrs = {"m": m, "kernel_w": kernel, "strides": (stride, stride), "pads": (pad, pad, pad - 1, pad)}
    (y,) = OPERATORS["polyphase_conv2d"].define("y", [data, weight], attrs)
    bias, residual = placeholder((outputs, 1, 1), name="b"), placeholder(y.shape, name="r")
    return compute(
        y.shape, lambda n, c, h, w: maximum(y[n, c, h, w] + bias[c, 0, 0] + residual[n, c, h, w], 0.0), "out"
    )


@pytest.mark.parametrize("rows", [(), ("x",), ("out", "r"), ("x", "out", "r")])
@pytest.mark.parametrize(
    ("shape", "outputs", "kernel", "stride", "m"),
    [
        ((1, 3, 22, 22), 2 * LANES, 7, 2, 4), ((2, LANES, 15, 15), LANES, 5, 1, 4),
        ((1, 2 * LANES, 17, 17), LANES + 4, 5, 1, 2), ((1, 2, 31, 31), LANES, 11, 4, 2),
        ((1, LANES, 9, 9), 3 * LANES, 3, 2, 4),
    ],
)  # fmt: skip
def test_default_schedules(
    check: Check, rows: tuple[str, ...], shape: tuple[int, ...], outputs: int, kernel: int, stride: int, m: int
) -> None:
    """``rows``: which images are row-major; the others are in channel blocks."""
    out = convolution(shape, outputs, kernel, stride, m)
    layouts = {name: BLOCKED for name in ("x", "out", "r") if name not in rows}
    check(POLYPHASE_CONV, "polyphase_conv2d", [out], ["w", "b"], layouts)


@pytest.mark.parametrize(("band", "positions", "vectors"), [(1, 1, 1), (4, 3, 2), (11, 6, 1)])
def test_every_knob(check: Check, band: int, positions: int, vectors: int) -> None:
    """Bands and register tiles that do not divide the rows and columns, groups that are not whole."""
    out = convolution((1, 3, 22, 26), LANES + 3, 7, 2)
    choice = {"band": band, "positions": positions, "vectors": vectors}
    for edge in ("start", "end"):
        layouts = {"out": BLOCKED, "r": BLOCKED}
        check(POLYPHASE_CONV, "polyphase_conv2d", [out], ["w", "b"], layouts, choice, edge=edge, threads=3)
