"""Small networks, data and the steps of PyTorch that tests of training compare with."""

from __future__ import annotations

import numpy as np

from burnish.graph.graph import Graph, GraphBuilder

INPUTS, HIDDEN, CLASSES = 12, 24, 5
_RNG = np.random.default_rng(0)
W1, W2 = (_RNG.normal(size=s).astype("f4") / 4 for s in ((INPUTS, HIDDEN), (HIDDEN, CLASSES)))
B1, B2 = np.zeros(HIDDEN, "f4"), np.zeros(CLASSES, "f4")


def perceptron(batch: int = 16, hidden: int = HIDDEN) -> Graph:
    """Two layers: parameters w1, b1, w2, b2."""
    b = GraphBuilder()
    x = b.input("x", (batch, INPUTS))
    h = b.add("tanh", b.add("add", b.add("matmul", x, b.constant(W1[:, :hidden], "w1")), b.constant(B1[:hidden], "b1")))
    return b.build(b.add("add", b.add("matmul", h, b.constant(W2[:hidden], "w2")), b.constant(B2, "b2")))


def rows(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of classes that can be learned."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CLASSES, count)
    centers = np.random.default_rng(7).normal(size=(CLASSES, INPUTS))
    return {"x": (centers[label] + rng.normal(size=(count, INPUTS))).astype("f4"), "label": label}
