"""Steps of training of residual networks: right results of kernels of several results, and of sums that are put off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import target
from burnish.pipeline import plan
from burnish.simulators.gpu.emulator import emulated


def residual(channels: int = 8, batch: int = 4) -> Graph:
    """A convolution, a pool, and a block with a shortcut of stride 2, all with normalizations; classes."""
    rng, b = np.random.default_rng(0), GraphBuilder()

    def normalized(x: str, wide: int, kernel: int, stride: int, name: str) -> str:
        inner = b.types[x].shape[1]
        weight = rng.standard_normal((wide, inner, kernel, kernel), "f4") / np.float32(kernel * inner**0.5)
        y = b.add("conv2d", x, b.constant(weight, f"{name}.weight"), strides=(stride,) * 2, pads=(kernel // 2,) * 4)
        ones, zeros = np.ones(wide, "f4"), np.zeros(wide, "f4")
        vectors = {"scale": ones, "bias": zeros, "mean": zeros, "variance": ones}
        return b.add("batch_norm", y, *(b.constant(v.copy(), f"{name}.{n}") for n, v in vectors.items()))

    x = b.add("relu", normalized(b.input("x", (batch, 3, 8, 8)), channels, 3, 1, "first"))
    x = b.add("max_pool2d", x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    y = normalized(b.add("relu", normalized(x, 2 * channels, 3, 2, "left")), 2 * channels, 3, 1, "right")
    y = b.add("relu", b.add("add", y, normalized(x, 2 * channels, 1, 2, "shortcut")))
    y = b.add("reshape", b.add("reduce_mean", y, axes=(2, 3)), shape=(batch, 2 * channels))
    return b.build(b.add("matmul", y, b.constant(rng.standard_normal((2 * channels, 4), "f4"), "last.weight")))


def same_steps(path: Path, precision: str | None, calls: int = 2) -> list[str]:
    """Checks steps on an emulated GPU against those on the CPU; the operators of the GPU's kernels."""
    recipe = bn.Train("mse", bn.SGD(0.05, momentum=0.9), precision=precision)
    machines = (emulated(target("cuda:sm_80")), "cpu")
    there, here = (bn.compile(residual(), train=recipe, target=t, cache_dir=path) for t in machines)
    rng, allowed = np.random.default_rng(1), 1e-4 if precision is None else 4e-2
    x, label = rng.standard_normal((4, 3, 8, 8), "f4"), rng.standard_normal((4, 4), "f4")
    for _ in range(calls):
        np.testing.assert_allclose(there(x, label), here(x, label), rtol=allowed)
    for name in here.state:
        wanted = np.asarray(here.state[name])
        np.testing.assert_allclose(there.state[name], wanted, atol=allowed * max(np.abs(wanted).max(), 1.0), err_msg=name)
    return [str(row) for row in there.info["kernels"]]


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_steps_are_right(precision: str | None, tmp_path: Path) -> None:
    found = same_steps(tmp_path, precision)
    print(found)


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_partial_sums(precision: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_parts", lambda made, machine: lambda graph, group: 1 if group.anchor.op == "partial_sums" else 2)
    found = same_steps(tmp_path, precision)
    print(found)
