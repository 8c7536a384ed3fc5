"""Random convolutions against onnxruntime and OpenVINO, and against `exact=True`, which multiplies directly.

Sizes, channels, windows, strides, groups and batches are drawn: odd channels, small images and wide windows among them.
`regret` is the time of the default over that of `exact`: where it is above 1, the algorithm was chosen wrongly. Where
it seems to be, these two take turns once more without the peers, whose threads disturb kernels of microseconds, and the
regret is that of the second measurement.

`python -m benchmarks.random_convolutions [--count 200] [--seed S] [--target cpu,-amx] [--json]`
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx
from onnx import helper
from rich.progress import track

from benchmarks import harness, layers
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error

LEAST_FLOPS, MOST_FLOPS = 1e6, 1e9
SLOWER = 1.1  # ratio of the default to `exact` above which a choice counts as wrong
DOUBTFUL = 1.05  # ratio from which on both are measured again, alone, and what is found then counts
AGAIN = 21  # rounds of that
CHANNELS = (3, 8, 16, 24, 32, 48, 64, 65, 67, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class RandomConvolution:
    """A convolution with bias and ReLU, float32, padded so that strides alone make its output smaller."""

    batch: int
    size: int
    channels_in: int
    channels_out: int
    kernel: tuple[int, int]
    stride: int
    groups: int

    def __str__(self) -> str:
        batch = f"{self.batch} × " if self.batch > 1 else ""
        groups = f" in {self.groups}" if self.groups > 1 else ""
        window = "×".join(map(str, self.kernel))
        return f"{batch}{self.size}² {self.channels_in}→{self.channels_out} {window}/{self.stride}{groups}"

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Output channels, input channels of a group, window."""
        return (self.channels_out, self.channels_in // self.groups, *self.kernel)

    @property
    def flops(self) -> int:
        """Floating-point operations of the direct algorithm."""
        return 2 * self.batch * (-(-self.size // self.stride)) ** 2 * math.prod(self.weight_shape)

    def model(self, random: np.random.Generator) -> bytes:
        """The layer as a serialized ONNX model with random weights."""
        scale = np.float32(1 / math.sqrt(math.prod(self.weight_shape[1:])))
        weights = {
            "w": random.standard_normal(self.weight_shape, dtype=np.float32) * scale,
            "b": random.standard_normal(self.channels_out, dtype=np.float32),
        }
        pads = [k // 2 for k in self.kernel]
        nodes = [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], kernel_shape=self.kernel, strides=[self.stride] * 2,
                             pads=[*pads, *pads], group=self.groups),
            helper.make_node("Relu", ["c"], ["y"]),
        ]  # fmt: skip
        x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, self.input_shape)
        y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "layer", [x], [y], layers.initializers(weights))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Batch, channels, height, width."""
        return (self.batch, self.channels_in, self.size, self.size)


def draw(random: np.random.Generator) -> RandomConvolution:
    """A convolution whose work lies between the bounds."""
    while True:
        channels, outputs = (int(c) for c in random.choice(CHANNELS, 2))
        k = int(random.choice((1, 1, 3, 3, 3, 3, 5, 7)))
        kernel = (1, k) if random.random() < 0.08 else (k, 1) if random.random() < 0.08 else (k, k)
        kind, groups = random.random(), 1
        if kind < 0.15:
            groups, outputs = channels, channels
        elif kind < 0.22:
            groups = math.gcd(channels, outputs, int(random.choice((2, 4, 8, 32))))
        found = RandomConvolution(
            batch=int(random.choice((1, 1, 1, 2, 4))),
            size=int(2 ** random.uniform(math.log2(5), math.log2(112))),
            channels_in=channels,
            channels_out=outputs,
            kernel=kernel,
            stride=int(random.choice((1, 1, 1, 2))),
            groups=groups,
        )
        if LEAST_FLOPS <= found.flops <= MOST_FLOPS:
            return found


def measure(
    layer: RandomConvolution, seed: int, threads: int, target: str, seconds: float
) -> tuple[harness.Row, float]:
    """One row, whose note tells the regret, and the regret."""
    random = np.random.default_rng(seed)
    model = layer.model(random)
    inputs = {"x": random.standard_normal(layer.input_shape, dtype=np.float32)}
    runs = {
        "burnish": harness.burnish_run(model, threads, target),
        "exact": harness.burnish_run(model, threads, target, exact=True),
        "onnxruntime": peers.onnxruntime(model, threads, own_threads=False),
        "openvino": peers.openvino(model, threads),
    }
    outputs = {name: run(inputs) for name, run in runs.items()}
    error = scaled_error(outputs["burnish"], outputs[harness.ORACLE])
    calls: dict[str, Callable[[], object]] = {name: partial(run, inputs) for name, run in runs.items()}
    row = harness.compare(str(layer), "", calls, seconds, error)
    found = row.microseconds["burnish"] / row.microseconds["exact"]
    note = f"regret {found:.2f}"
    if found > DOUBTFUL:
        pair = peers.alternate({name: calls[name] for name in ("exact", "burnish")}, seconds, AGAIN)
        found = 1 / peers.speedup(pair["burnish"], pair["exact"])
        note += f", again {found:.2f}"
    return replace(row, note=note), found


def summary(rows: Sequence[harness.Row], regrets: Sequence[float]) -> dict[str, float]:
    """Shares of the rows."""
    speedups = [row.speedup for row in rows if row.speedup is not None]
    return {
        "below 0.9": sum(s < 0.9 for s in speedups) / len(rows),
        "slower than exact": sum(regret > SLOWER for regret in regrets) / len(rows),
    }


def main() -> int:
    parser = harness.options(__doc__, seconds=1.5)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    peers.share_onnxruntime_threads(arguments.threads)
    random = np.random.default_rng(arguments.seed)
    drawn = [draw(random) for _ in range(arguments.count)]
    found = [
        measure(layer, i, arguments.threads, arguments.target, arguments.seconds)
        for i, layer in enumerate(track(drawn, disable=arguments.json))
    ]
    rows = [row for row, _ in found]
    shares = summary(rows, [regret for _, regret in found])
    status = harness.show("Random convolutions", rows, arguments.json, extra={"seed": arguments.seed, **shares})
    if not arguments.json:
        print(", ".join(f"{name}: {share:.1%}" for name, share in shares.items()))
    return status


if __name__ == "__main__":
    sys.exit(main())
