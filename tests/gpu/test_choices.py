"""Default choices for the papers' layers: enough blocks for all multiprocessors, Winograd where it should pay."""

from __future__ import annotations

from math import prod

import pytest

from benchmarks.layers import CONVOLUTIONS, DEPTHWISE, Convolution
from burnish.graph.estimates import ConvSizes, estimates, label_of
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import first_match
from burnish.loops.tensor import placeholder
from burnish.lower.threads import launches
from burnish.machines.target import target
from burnish.ops import OPERATORS

H100 = target("cuda:sm_90a")


def blocks_of(layer: Convolution, batch: int) -> tuple[str, int]:
    """The template of a convolution by default, and the blocks of its largest launch."""
    x = placeholder((batch, *layer.input_shape[1:]), name="x")
    weight = placeholder(layer.weight_shape, name="w")
    attrs = {"pads": (layer.kernel // 2,) * 4, "strides": (layer.stride,) * 2, "groups": layer.groups}
    found = OPERATORS["conv2d"].define("y", [x, weight], attrs)
    match = first_match(KernelTask("kernel", (x, weight), tuple(found), "", {}, frozenset()), H100)
    program = match.apply(match.space.default).program
    return match.name, max(prod(launch.grid) for launch in launches(program, H100.machine).launches)


def best(layer: Convolution, batch: int) -> str:
    """The algorithm that is estimated to be fastest."""
    window = ConvSizes(
        batch, layer.channels_in, layer.channels_out, (layer.kernel,) * 2, (layer.stride,) * 2, (layer.size,) * 2,
        (layer.size_out,) * 2,
    )  # fmt: skip
    return label_of(min(estimates(window, (layer.kernel // 2,) * 4, H100), key=lambda e: e.seconds))


@pytest.mark.parametrize("layer", [*CONVOLUTIONS, *DEPTHWISE], ids=lambda layer: layer.name)
def test_one_image_keeps_most_multiprocessors_busy(layer: Convolution) -> None:
    """Layers of a few microseconds (1 x 1, strided) have fewer blocks: another launch would take as long."""
    name, blocks = blocks_of(layer, 1)
    deep = prod(layer.weight_shape[1:]) >= 1024
    assert blocks >= (90 if deep or layer.groups > 1 or layer.stride == 1 else 50)
    assert (name == "split_product") == (deep or layer.name in ("C2", "C4"))


def test_winograd_pays_for_many_images() -> None:
    chosen = {layer.name: best(layer, 64) for layer in CONVOLUTIONS}
    assert {name for name, label in chosen.items() if label == "winograd_conv2d m=4"} == {"C2", "C6", "C9", "C12"}
    assert all(best(layer, 1) == "conv2d" for layer in CONVOLUTIONS)  # launches take longer than they save
    assert {*chosen.values()} == {"conv2d", "winograd_conv2d m=4"}
