"""Compile a model for an accelerator that Burnish does not know: the back end is the package `toy` next to this file.

`python examples/accelerator.py`
"""

from dataclasses import replace

import numpy as np
from toy.backend import MACHINE, TOY, Device

import burnish as bn
from burnish.graph import Graph, GraphBuilder
from burnish.graph.evaluate import evaluate


def model(random: np.random.Generator) -> Graph:
    """A small network: two convolutions, the second strided, a residual addition, pooling and a classifier."""
    g = GraphBuilder()

    def conv(x: str, name: str, shape: tuple[int, ...], stride: int = 1) -> str:
        w = g.constant(random.standard_normal(shape).astype("float32") / 9, f"{name}.weight")
        b = g.constant(random.standard_normal(shape[0]).astype("float32"), f"{name}.bias")
        return g.add("conv2d", x, w, b, pads=(1, 1, 1, 1), strides=(stride, stride))

    x = g.input("x", (1, 8, 8, 8))
    y = g.add("relu", g.add("add", conv(g.add("relu", conv(x, "first", (8, 8, 3, 3))), "second", (8, 8, 3, 3)), x))
    y = g.add("max_pool2d", g.add("relu", conv(y, "third", (8, 8, 3, 3))), kernel=(2, 2), strides=(2, 2))
    w = g.constant(random.standard_normal((8 * 4 * 4, 10)).astype("float32") / 9, "classifier")
    return g.build(g.add("matmul", g.add("reshape", y, shape=(1, 8 * 4 * 4)), w))


def main() -> None:
    random = np.random.default_rng(0)
    graph, device = model(random), Device()
    module = bn.compile(graph, target=replace(TOY, machine=MACHINE.with_(device=lambda: device)))
    x = random.standard_normal((1, 8, 8, 8)).astype("float32")
    found, (expected,) = module(x), evaluate(graph, {"x": x}).values()
    error = abs(found - expected).max() / abs(expected).max()
    print(f"{device.products} products of 4 x 4 tiles; max error {error:.1e} of the largest result")
    assert error < 1e-5


if __name__ == "__main__":
    main()
