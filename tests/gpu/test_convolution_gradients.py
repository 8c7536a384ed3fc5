"""Gradients of convolutions on tensor cores: of the image by phases where there is a stride, of the weight by taps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.graph import GraphBuilder
from burnish.graph.channels import pad_channels
from burnish.graph.evaluate import evaluate
from burnish.machines.target import target
from burnish.simulators.gpu.emulator import emulated
from tests.gpu.test_channels_last import numpy_of


@pytest.mark.parametrize(
    ("kernel", "stride", "machine"),
    [
        (1, 2, "cuda:sm_80"),
        pytest.param(3, 2, "cuda:sm_80", marks=pytest.mark.slow),
        pytest.param(3, 1, "cuda:sm_80", marks=pytest.mark.slow),
        pytest.param(3, 2, "cuda:sm_90a", marks=pytest.mark.slow),
    ],
)
def test_gradients_of_convolutions_are_right(kernel: int, stride: int, machine: str, tmp_path: Path) -> None:
    b, pads = GraphBuilder(), (kernel // 2,) * 4
    x, weight = b.input("x", (2, 16, 14, 14), "bfloat16"), b.input("w", (24, 16, kernel, kernel), "bfloat16")
    y = b.add("conv2d", b.add("relu", x), weight, pads=pads, strides=(stride, stride))
    graph = bn.gradients(b.build(y), y, ["x", "w"])
    rng, own = np.random.default_rng(0), numpy_of("bfloat16")
    feeds = {n: rng.standard_normal(graph.types[n].shape).astype(own) for n in graph.inputs}
    module = bn.compile(graph, target=emulated(target(machine)), cache_dir=tmp_path)
    used = [str(row["template"]) for row in module.executable.info["kernels"]]
    assert sum(name in ("tensor_product", "warpgroup_product", "split_product") for name in used) >= 3, used
    assert not {"shared_product", "launches"} & {*used}
    found: Any = module(*(feeds[n] for n in graph.inputs))
    wanted = evaluate(graph, feeds)
    for name, value in zip(graph.outputs, found, strict=True):
        error = np.abs(np.asarray(value).astype("f4") - wanted[name].astype("f4")).max()
        assert error <= 4 * 2**-8 * np.abs(wanted[name].astype("f4")).max(), name


def images_of_three_channels() -> tuple[Any, dict[str, np.ndarray]]:
    """The first layer of a network with the gradient of its weight, and values."""
    b = GraphBuilder()
    x, weight = b.input("x", (2, 3, 12, 12), "bfloat16"), b.input("w", (16, 3, 3, 3), "bfloat16")
    y = b.add("conv2d", b.add("relu", x), weight, pads=(1, 1, 1, 1), strides=(2, 2))
    graph = bn.gradients(b.build(y), y, ["w"])
    rng = np.random.default_rng(0)
    return graph, {n: rng.standard_normal(graph.types[n].shape).astype(numpy_of("bfloat16")) for n in graph.inputs}


def test_channels_are_padded_once_for_a_convolution_and_its_weights_gradient() -> None:
    graph, feeds = images_of_three_channels()
    padded = pad_channels(graph, target("cuda:sm_90a"))
    (image,) = [n.outputs[0] for n in padded.nodes if n.op == "pad" and padded.types[n.outputs[0]].shape[0] == 2]
    readers = {n.op for n in padded.nodes if image in n.inputs}
    assert readers == {"conv2d", "adjoint"} and padded.types[image].shape == (2, 4, 12, 12)
    found, wanted = evaluate(padded, feeds), evaluate(graph, feeds)
    for name in graph.outputs:
        np.testing.assert_array_equal(found[name].view(np.uint16), wanted[name].view(np.uint16))
    assert pad_channels(graph, target("cpu")) is graph


@pytest.mark.slow
def test_the_gradient_of_the_first_layers_weight_is_right_on_tensor_cores(tmp_path: Path) -> None:
    graph, feeds = images_of_three_channels()
    module = bn.compile(graph, target=emulated(target("cuda:sm_80")), cache_dir=tmp_path)
    used = [str(row["template"]) for row in module.executable.info["kernels"]]
    assert used.count("tensor_product") + used.count("split_product") == 2, used
    found: Any = module(*(feeds[n] for n in graph.inputs))
    for name, value in zip(graph.outputs, found, strict=True):
        wanted = evaluate(graph, feeds)[name].astype("f4")
        assert np.abs(np.asarray(value).astype("f4") - wanted).max() <= 4 * 2**-8 * np.abs(wanted).max(), name
