"""Gradients of convolutions on tensor cores: of the image by phases where there is a stride, of the weight by taps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.graph import GraphBuilder
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
