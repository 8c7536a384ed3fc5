"""Training steps of PyTorch through torch.compile(backend="burnish") against eager; plans of what to compute again.

`python -m benchmarks.torch_training [MODEL ...] [--threads 1] [--json]`: a step is forward, backward and SGD with
momentum. "error": that of the first step's gradients, relative to each parameter's greatest, which 99 % of the elements
do not exceed: a unit at the kink of a relu may be on either side of it. The note tells checkpointing plans: the share
of the peak without one that was asked for, the share that was measured, and the share of the forward pass that is
computed again.
"""

import copy
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from rich.progress import track

from benchmarks import harness
from burnish.base.optional import require
from burnish.errors import ParameterError
from burnish.measure import peers

SHARES = (0.8, 0.6)  # of the peak without a plan
Made = tuple[Any, Any, Any]  # network, inputs, labels


def _perceptron(torch: Any) -> Made:
    nn = torch.nn
    layers = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    return nn.Sequential(*layers), torch.randn(128, 784), torch.randint(0, 10, (128,))


def _convolutional(torch: Any) -> Made:
    nn = torch.nn
    layers: list[Any] = []
    for channels, out, stride in ((3, 32, 1), (32, 64, 2), (64, 128, 2), (128, 128, 1)):
        convolution = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        layers.append(nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU()))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))


def _language(torch: Any) -> Made:
    nn, width, words = torch.nn, 256, 5000
    block = {"batch_first": True, "norm_first": True, "dropout": 0.0, "activation": "gelu"}
    blocks = [nn.TransformerEncoderLayer(width, 8, 4 * width, **block) for _ in range(4)]
    layers = [nn.Embedding(words, width), *blocks, nn.LayerNorm(width), nn.Linear(width, words), nn.Flatten(0, 1)]
    return nn.Sequential(*layers), torch.randint(0, words, (8, 64)), torch.randint(0, words, (8 * 64,))


NETWORKS: Mapping[str, Callable[[Any], Made]] = {
    "mlp": _perceptron, "cnn": _convolutional, "transformer": _language,
}  # fmt: skip


def step_of(torch: Any, made: Made, backend: str | None, threads: int) -> tuple[Callable[[], Any], Any]:
    """One step of a copy of the network, and the copy."""
    network, x, label = copy.deepcopy(made[0]).train(), made[1], made[2]

    def loss() -> Any:
        return torch.nn.functional.cross_entropy(network(x), label)

    call = loss if backend is None else torch.compile(loss, backend=backend, options={"threads": threads})
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)

    def step() -> float:
        optimizer.zero_grad()
        value = call()
        value.backward()
        optimizer.step()
        return float(value.detach())

    return step, network


def plans(torch: Any, made: Made) -> list[dict[str, float]]:
    """Checkpointing plans for shares of the peak without one; shares that cannot be had are left out."""
    from burnish.torch import checkpoint_plan

    network, x, _ = made
    baseline = checkpoint_plan(network, x, 1 << 50).baseline
    found = []
    for share in SHARES:
        try:
            plan = checkpoint_plan(network, x, int(share * baseline))
        except ParameterError:
            continue
        shares = {"predicted": plan.predicted / baseline, "measured": plan.measured / baseline}
        found.append({"asked": share, **shares, "extra": plan.extra, "blocks": len(plan.blocks)})
    return found


def measure(name: str, threads: int, seconds: float) -> tuple[harness.Row, list[dict[str, float]]]:
    """One network: the row, and its plans."""
    torch = require("torch", extra="torch")
    from burnish.torch import register

    register()
    torch.set_num_threads(threads)
    torch._dynamo.reset()
    torch.manual_seed(0)
    made = NETWORKS[name](torch)
    steps, gradients = {}, {}
    for contender, backend in (("eager", None), ("backend", "burnish")):
        step, network = step_of(torch, made, backend, threads)
        step()
        gradients[contender] = [p.grad.numpy() for p in network.parameters()]
        steps[contender] = step
    pairs = [*zip(gradients["backend"], gradients["eager"], strict=True)]
    errors = [np.abs(a - b).ravel() / max(float(np.abs(b).max()), 1e-9) for a, b in pairs]
    error = float(np.quantile(np.concatenate(errors), 0.99))
    found = plans(torch, made)
    timings = peers.alternate(steps, seconds)
    note = ", ".join("{asked:.1f}: {measured:.2f} +{extra:.0%}".format(**plan) for plan in found)
    times = {contender: timing.median * 1e6 for contender, timing in timings.items()}
    speedup = peers.speedup(timings["backend"], timings["eager"])
    return harness.Row(name, "step", times, speedup, error, note), found


def main() -> int:
    parser = harness.options(__doc__, seconds=8)
    arguments = parser.parse_args()
    names = harness.chosen(arguments, parser, [*NETWORKS])
    measured = [
        measure(name, arguments.threads, arguments.seconds)
        for name in track(names, "networks", disable=arguments.json, transient=True)
    ]
    extra: dict[str, object] = {"plans": {row.name: found for row, found in measured}}
    title = f"Training steps of PyTorch, {arguments.threads} threads"
    return harness.show(title, [row for row, _ in measured], arguments.json, unit="ms", extra=extra)


if __name__ == "__main__":
    sys.exit(main())
