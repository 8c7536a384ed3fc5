"""Train a multilayer perceptron on generated data: one compiled graph is forward, loss, backward and update.

`python examples/train_mlp.py [--steps N]`
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import burnish as bn
from burnish.graph.graph import GraphBuilder

BATCH, INPUTS, HIDDEN, CLASSES = 64, 20, 64, 4


def network(rng: np.random.Generator) -> bn.Graph:
    """Two layers with random weights, which are the parameters."""
    b = GraphBuilder()
    h = b.input("x", (BATCH, INPUTS))
    for layer, (rows, columns) in enumerate(((INPUTS, HIDDEN), (HIDDEN, CLASSES))):
        weight = rng.normal(size=(rows, columns), scale=rows**-0.5).astype(np.float32)
        h = b.add("matmul", h, b.constant(weight, f"weight{layer}"))
        h = b.add("add", h, b.constant(np.zeros(columns, np.float32), f"bias{layer}"))
        h = b.add("relu", h) if layer == 0 else h
    return b.build(h)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(CLASSES, INPUTS)).astype(np.float32)

    def batch() -> tuple[np.ndarray, np.ndarray]:
        label = rng.integers(0, CLASSES, BATCH)
        return centers[label] + rng.normal(size=(BATCH, INPUTS)).astype(np.float32), label

    step = bn.compile(network(rng), train=bn.Train("softmax_cross_entropy", bn.AdamW(0.003)))
    losses = []
    for number in range(steps):
        losses.append(float(step(*batch())))
        if number % max(steps // 6, 1) == 0:
            print(f"step {number:4}: loss {losses[-1]:.4f}")
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10]), "the loss has not fallen"

    step.state["optimizer.learning_rate"] = np.array(0.0003)  # what the optimizer knows is state, as the parameters are
    with tempfile.TemporaryDirectory() as folder:
        step.save(Path(folder) / "step.bn")
        again = bn.load(Path(folder) / "step.bn")
        x, label = batch()
        print(f"goes on from the file: {float(again(x, label)):.4f}, here: {float(step(x, label)):.4f}")
    print(f"a parameter: {step.state['weight0'].shape}, after {int(step.state['optimizer.step'])} steps")


if __name__ == "__main__":
    main()
