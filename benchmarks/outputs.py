"""Networks whose activations are all asked for, against those with one output, and plain copies of the rest.

`python -m benchmarks.outputs [NAME …] [--threads N] [--rounds N] [--json FILE]`; fails if an answer is wrong, or if the
outputs cost more than twice what copying them takes: each is written once and, where a network stores it in another
order, read once more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

import burnish as bn
from benchmarks import models
from benchmarks.harness import check_names
from benchmarks.paired import paired
from benchmarks.provenance import stored
from burnish.machines.target import target
from burnish.measure import peers

ALLOWED_ERROR = 1e-3
COPIES = 2.0


class Network:
    """An ONNX model under construction: convolutions with seeded weights."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.random = np.random.default_rng(0)
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.channels = {"x": shape[1]}

    def add(self, op: str, *inputs: str, channels: int = 0, **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        self.channels[name] = channels or self.channels[inputs[0]]
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def conv(self, x: str, channels: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> str:
        """A convolution and a ReLU."""
        fan_in = self.channels[x] // groups * kernel**2
        shape = (channels, self.channels[x] // groups, kernel, kernel)
        weight = self.constant((self.random.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32))
        y = self.add("Conv", x, weight, channels=channels, pads=[kernel // 2] * 4, strides=[stride] * 2, group=groups)
        return self.add("Relu", y)

    def up(self, x: str) -> str:
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        return self.add("Resize", x, "", scales, mode="nearest")

    def model(self, output: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        made.ir_version = 10
        return made


def pyramid(groups: Callable[[int], int]) -> onnx.ModelProto:
    """A feature pyramid: four levels down, laterals, and the way up."""
    n = Network((1, 32, 64, 64))
    levels = [n.conv("x", 32, groups=groups(32))]
    for channels in (64, 128, 256):
        levels.append(n.conv(levels[-1], channels, stride=2, groups=groups(min(channels, n.channels[levels[-1]]))))
    laterals = [n.conv(level, 64, kernel=1) for level in levels]
    top = laterals[-1]
    for lateral in reversed(laterals[:-1]):
        top = n.conv(n.add("Add", lateral, n.up(top)), 64, groups=groups(64))
    return n.model(top)


def u_net(groups: Callable[[int], int]) -> onnx.ModelProto:
    """Three levels down and up again, joined with what was on the way down."""
    n = Network((1, 32, 64, 64))
    x, skips = n.conv("x", 32, groups=groups(32)), []
    for channels in (64, 128, 128):
        skips.append(x)
        pooled = n.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        x = n.conv(n.conv(pooled, channels, groups=groups(n.channels[x])), channels, groups=groups(channels))
    for skip in reversed(skips):
        joined = n.add("Concat", n.up(x), skip, channels=n.channels[x] + n.channels[skip], axis=1)
        x = n.conv(joined, n.channels[skip], kernel=1)
        x = n.conv(x, n.channels[x], groups=groups(n.channels[x]))
    return n.model(x)


def dense(channels: int) -> int:
    return 1


def grouped(channels: int) -> int:
    return 4


def depthwise(channels: int) -> int:
    return channels


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "resnet18": lambda: onnx.load(models.build("resnet18")),
    **{
        f"{make.__name__}_{groups.__name__}": lambda make=make, groups=groups: make(groups)  # type: ignore[misc]
        for make in (pyramid, u_net)
        for groups in (dense, grouped, depthwise)
    },
}


def with_activations(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the result of every ReLU as an output, after its own."""
    made = shape_inference.infer_shapes(model, data_prop=True)
    known = {value.name: value for value in made.graph.value_info}
    own = {value.name for value in made.graph.output}
    for node in made.graph.node:
        if node.op_type == "Relu" and node.output[0] not in own:
            made.graph.output.append(known[node.output[0]])
    return made


def copies(shapes: list[tuple[int, ...]]) -> onnx.ModelProto:
    """A model that does nothing but copy tensors of these shapes."""
    sources, targets = (
        [helper.make_tensor_value_info(f"{side}{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(shapes)]
        for side in "xy"
    )
    nodes = [helper.make_node("Identity", [f"x{i}"], [f"y{i}"]) for i in range(len(shapes))]
    graph = helper.make_graph(nodes, "g", sources, targets)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 10
    return made


@dataclass(frozen=True)
class Row:
    """Microseconds a call, medians; ``extra``: what the outputs cost, in times of copying them."""

    outputs: int
    one: float
    every: float
    copies: float
    extra: float
    error: float


def measure(name: str, threads: int, rounds: int) -> Row:
    """One network with one output, with all, and the copies, in turns."""
    model = NETWORKS[name]()
    every = with_activations(model)
    feeds = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        feeds[value.name] = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    want = peers.onnxruntime(every.SerializeToString(), threads)(feeds)
    one_module, all_module = (bn.compile(m, threads=threads) for m in (model, every))
    got = all_module(*feeds.values())
    error = max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in zip(got, want, strict=True))
    extra = [array.shape for array in want[len(model.graph.output) :]]
    copy_module = bn.compile(copies(extra), threads=threads, rewrite=False)
    sources = [np.ones(shape, np.float32) for shape in extra]
    found = paired(
        {
            "one": lambda: one_module(*feeds.values()),
            "every": lambda: all_module(*feeds.values()),
            "copies": lambda: copy_module(*sources),
        },
        rounds,
    ).seconds
    one, all_, copied = (1e6 * found[key].median for key in ("one", "every", "copies"))
    return Row(len(extra), one, all_, copied, (all_ - one) / copied, error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", type=Path, help="a file to write what was measured to")
    args = parser.parse_args()
    check_names(parser, args.names, NETWORKS)
    rows: dict[str, Row] = {}
    for name in args.names or NETWORKS:
        row = rows[name] = measure(name, args.threads, args.rounds)
        print(
            f"{name:18s} one output {row.one:8.1f} µs   {row.outputs:2d} more {row.every:8.1f} µs   "
            f"copies {row.copies:7.1f} µs   extra {row.extra:5.2f} copies   error {row.error:.1e}",
            flush=True,
        )
    if args.json:
        measured = {name: asdict(row) for name, row in rows.items()}
        args.json.write_text(stored({"machine": target("cpu").cpu, "networks": measured}, indent=1))
    if any(row.error > ALLOWED_ERROR or row.extra > COPIES for row in rows.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
