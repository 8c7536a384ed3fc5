"""Compile a model for an accelerator that Burnish does not know: the back end is the package `toy` beside this file.

`python examples/accelerator.py`
"""

import numpy as np
from toy.backend import Device, run

from burnish.graph import Graph, GraphBuilder
from burnish.graph.evaluate import evaluate


def model(random: np.random.Generator) -> Graph:
    """Two convolutions, the second strided, each with a bias and ReLU."""
    g = GraphBuilder()
    x = g.input("x", (1, 8, 10, 8))
    for number, (channels, outputs, stride) in enumerate([(8, 8, 1), (8, 4, 2)]):
        w = g.constant(random.standard_normal((outputs, channels, 3, 3)).astype("float32"), f"w{number}")
        b = g.constant(random.standard_normal(outputs).astype("float32"), f"b{number}")
        x = g.add("relu", g.add("conv2d", x, w, b, pads=(1, 1, 1, 1), strides=(stride, stride)))
    return g.build(x)


def main() -> None:
    random = np.random.default_rng(0)
    graph, device = model(random), Device()
    feeds = {"x": random.standard_normal((1, 8, 10, 8)).astype("float32")}
    (found,), (expected,) = run(graph, feeds, device).values(), evaluate(graph, feeds).values()
    error = abs(found - expected).max() / abs(expected).max()
    print(f"{device.products} products of 4 x 4 tiles; max error {error:.1e} of the largest result")
    assert error < 1e-5


if __name__ == "__main__":
    main()
