"""Train a small residual network of PyTorch with Burnish: schedule, evaluation, checkpoints, and going on from one.

`python examples/train_resnet.py [--epochs N]`
"""

import argparse
import tempfile

import numpy as np
import torch
from torch import nn

import burnish as bn

BATCH, CLASSES, SIZE = 32, 4, 16


class Residual(nn.Module):
    """Two convolutions and the way around them."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.around = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.around(x))


def network() -> nn.Module:
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))
    return nn.Sequential(stem, Residual(16, 16, 1), Residual(16, 32, 2), head)


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise with stripes, whose direction is the class."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CLASSES, count)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    stripes = np.stack([np.sin(rows), np.sin(columns), np.sin(rows + columns), np.sin(rows - columns)])
    x = 0.7 * stripes[label][:, None] + rng.normal(size=(count, 3, SIZE, SIZE))
    return x.astype(np.float32), label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    epochs = parser.parse_args().epochs
    data, valid = images(512, 0), images(128, 1)
    net, example = network(), torch.zeros(BATCH, 3, SIZE, SIZE)
    steps = epochs * len(data[0]) // BATCH
    train = bn.Train(
        "softmax_cross_entropy", bn.AdamW(0.003), schedule=bn.WarmUp(4, bn.CosineDecay(steps - 4)), clip_norm=1.0
    )
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "epochs": epochs, "example_inputs": example, "validation_data": valid, "metrics": ["accuracy"],
            "checkpoint": folder, "save_every": 8,
        }  # fmt: skip
        first = bn.fit(net, data, train, steps=steps // 2, **asked)
        print(f"stopped after {first.report.calls} steps, with {first.report.checkpoint.name}")
        done = bn.fit(net, data, train, resume=True, progress=True, **asked)
    report = done.report
    print(f"went on from step {report.resumed}: loss {report.losses[0]:.3f} -> {report.losses[-1]:.3f}")
    print(f"best: {report.best.loss:.3f}, accuracy {report.best.metrics['accuracy']:.2f}")
    print(f"a step takes {report.memory['arena'] / 1e6:.1f} MB for activations")
    assert report.losses[-1] < 0.7 * report.losses[0], "the loss has not fallen"
    done.copy_to(net)
    with torch.no_grad():
        accuracy = (net.eval()(torch.from_numpy(valid[0])).argmax(1).numpy() == valid[1]).mean()
    print(f"the network itself, with its new weights: accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
