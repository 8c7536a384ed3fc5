"""Convolutions whose weights are inputs against the same with constant weights: what packing at every call costs.

Layers of the TVM paper's Table 4.2 with bias and ReLU, in alternating calls of one process. `ratio` is the time with
constant weights over that with weights as inputs, packing included; C2, C6 and C9 should reach 0.85.

`python -m benchmarks.packing [LAYER ...] [--batch N] [--calls N] [--threads N] [--target NAME] [--json]`
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks import layers
from benchmarks.harness import check_names
from benchmarks.provenance import stored
from burnish.driver.compilation import Compilation, assemble, compile_kernels
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import target
from burnish.measure.accuracy import scaled_error
from burnish.runtime.module import Module

WANTED = 0.85  # of the speed with constant weights
DEFAULT = ("C2", "C6", "C9")
COPIES = ("pack", "transpose", "generic")  # templates of kernels that only move elements


@dataclass(frozen=True)
class Row:
    """One layer: medians in microseconds, and the templates; ``same``: whether both are by the same algorithm."""

    layer: str
    batch: int
    constant_us: float
    input_us: float
    ratio: float
    template: str
    same: bool
    error: float


def graph_of(layer: layers.Convolution, constant: bool, batch: int = 1) -> tuple[Graph, dict[str, np.ndarray]]:
    """The layer as a graph, and its feeds."""
    shape = (batch, *layer.input_shape[1:])
    random = np.random.default_rng(0)
    scale = np.float32(np.sqrt(2 / np.prod(layer.weight_shape[1:])))
    weights = {
        "w": random.standard_normal(layer.weight_shape, np.float32) * scale,
        "b": random.standard_normal(layer.channels_out, np.float32) * np.float32(0.1),
    }
    feeds = {"x": random.standard_normal(shape, np.float32)}
    g = GraphBuilder()
    x = g.input("x", shape)
    for name, value in weights.items():
        if constant:
            g.constant(value, name)
        else:
            g.input(name, value.shape)
            feeds[name] = value
    pads = (layer.kernel // 2,) * 4
    y = g.add("conv2d", x, "w", "b", strides=(layer.stride,) * 2, pads=pads, groups=layer.groups)
    return g.build(g.add("relu", y)), feeds


def templates_of(made: Compilation) -> list[tuple[str, str]]:
    """(template, operator) of the kernels that compute."""
    return [(s.kernel.template, s.task.label) for s in made.stages if s.kernel.template not in COPIES]


def alternated(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Median seconds of each call, taken in turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        order = range(len(calls)) if number % 2 else reversed(range(len(calls)))
        for which in order:
            began = time.perf_counter()
            calls[which]()
            seconds[which].append(time.perf_counter() - began)
    return [statistics.median(each) for each in seconds]


def measure(layer: layers.Convolution, batch: int, rounds: int, threads: int | None, machine: str) -> Row:
    """A layer both ways."""
    calls, names, error = [], [], 0.0
    for constant in (True, False):
        graph, feeds = graph_of(layer, constant, batch)
        made = compile_kernels(graph, target(machine))
        module, arrays = Module(assemble(made), threads), tuple(feeds.values())
        found = module(*arrays)
        error = scaled_error([found], [evaluate(graph, feeds, "float64")[graph.outputs[0]]])
        names.append(templates_of(made))
        calls.append(lambda module=module, arrays=arrays: module(*arrays))
    constant_s, input_s = alternated(calls, rounds)
    same = [op for _, op in names[0]] == [op for _, op in names[1]]
    words = " + ".join(f"{template}/{op}" for template, op in names[1])
    return Row(layer.name, batch, constant_s * 1e6, input_s * 1e6, constant_s / input_s, words, same, error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {layer.name: layer for layer in (*layers.CONVOLUTIONS, *layers.DEPTHWISE)}
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"among {', '.join(known)}; default {DEFAULT}")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    check_names(parser, args.layers, known)
    names = args.layers or DEFAULT
    rows = [measure(known[name], args.batch, args.calls, args.threads, args.target) for name in names]
    if args.json:
        print(stored([asdict(row) for row in rows], indent=1))
        return
    for row in rows:
        word = "same algorithm" if row.same else "ANOTHER ALGORITHM"
        times = f"constant {row.constant_us:8.1f} us   input {row.input_us:8.1f} us   ratio {row.ratio:.2f}"
        print(f"{row.layer:4s} {times}   {row.template} ({word})   error {row.error:.1e}")


if __name__ == "__main__":
    main()
