"""Convolutions of channel blocks to few channels against the definition, between forbidden pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from burnish.kernels.cpu.few_outputs import FEW_OUTPUTS
from burnish.kernels.task import KernelTask
from burnish.loops.expr import maximum
from burnish.loops.layout import layout
from burnish.loops.tensor import Tensor, compute, placeholder
from burnish.machines.target import host, target
from burnish.ops import OPERATORS
from burnish.pipeline.kernel import schedule

FORMS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 32, 9, 21), (3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 16, 5, 37), (1, 3, 3), {"pads": (0, 2, 2, 0)}),
    ((1, 48, 11, 40), (2, 5, 1), {"strides": (2, 2), "pads": (2, 0, 2, 0)}),
    ((1, 32, 7, 33), (4, 3, 5), {"dilations": (1, 2), "pads": (1, 3, 1, 3)}),
    ((1, 64, 8, 19), (1, 1, 1), {}),
]


def parts(shape: tuple[int, ...], taps: tuple[int, ...], attrs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """An image, its weight, and their convolution with a bias and a relu behind it."""
    x, w = placeholder(shape, name="x"), placeholder((taps[0], shape[1], *taps[1:]), name="w")
    bias = placeholder((taps[0], 1, 1), name="b")
    (y,) = OPERATORS["conv2d"].define("y", [x, w], attrs)
    return x, w, compute(y.shape, lambda n, c, i, j: maximum(y[n, c, i, j] + bias[c, 0, 0], 0.0), "out")


@pytest.mark.parametrize(("shape", "taps", "attrs"), FORMS)
def test_few_channels_agree_with_the_definition(
    check: Callable[..., object], shape: tuple[int, ...], taps: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    _, _, out = parts(shape, taps, attrs)
    check(FEW_OUTPUTS, "conv2d", [out], ["w", "b"], {"x": f"ABCD{host().lanes}b"}, edge="start")


def test_every_tile(check: Callable[..., object]) -> None:
    _, w, out = parts((1, 16, 7, 37), (2, 3, 3), {"pads": (1, 1, 1, 1)})
    assert w.shape[0] == 2
    for tile in (1, 3, 6):
        check(FEW_OUTPUTS, "conv2d", [out], ["w", "b"], {"x": f"ABCD{host().lanes}b"}, choice={"tile_ow": tile})


@pytest.mark.parametrize(("outputs", "depth", "template"), [(3, 64, "few_outputs"), (12, 64, "direct_conv2d")])
def test_it_is_taken_where_blocks_of_outputs_are_nearly_empty(outputs: int, depth: int, template: str) -> None:
    x, w, out = parts((1, depth, 32, 32), (outputs, 3, 3), {"pads": (1, 1, 1, 1)})
    bias = next(t for t in out.inputs if t.name == "b")
    task = KernelTask("kernel", (x, w, bias), (out,), "conv2d", {"x": layout("ABCD16b")}, frozenset({"w", "b"}))
    assert schedule(task, target("x86-64-v4"))[1] == template
