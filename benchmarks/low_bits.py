"""Convolutions of 2-bit activations and 1-bit weights against float32 and int8: C2…C12 (thesis-chen, Fig 4.16).

All are Burnish's own, of the same images: uint8 codes go in and int32 sums come out, so that the time of packing bits
is in; float32 has any algorithm. Weights are unipolar, 0 and 1, or bipolar, -1 and 1. Calls take turns in one process,
and the least time of each counts: what else runs on the machine takes a core away from two threads before it does from
one. Every answer is held against NumPy's integers.

`python -m benchmarks.low_bits [LAYER ...] [--threads 1,2] [--seconds S] [--json]`; fails if the geometric mean over
float32 is below 3 for either kind of weights and either number of threads. `--target aarch64-cortex-a53 --size 14`
instead counts the instructions of one thread in an emulator, on images of at most 14 x 14 pixels (needs unicorn).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from math import exp, log
from typing import Any

import numpy as np

import burnish as bn
from benchmarks import harness, layers
from benchmarks.emulated import smaller
from benchmarks.provenance import stored
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import target
from burnish.runtime.module import Module

NAMES = tuple(layer.name for layer in layers.CONVOLUTIONS if layer.name != "C1")
BITS, WEIGHT_BITS = 2, 1
LEAST = 3.0  # times as fast as float32
KINDS = ("unipolar", "bipolar")
Case = tuple[Graph, np.ndarray, np.ndarray]  # a graph of one input, what goes in, what comes out


@dataclass(frozen=True)
class Row:
    """One layer: least microseconds of each, or instructions; how often as fast as float32 and int8 few bits are."""

    layer: str
    threads: int
    cost: dict[str, float]
    over_float32: dict[str, float]
    over_int8: dict[str, float]
    exact: bool


def sums(x: np.ndarray, weight: np.ndarray, stride: int) -> np.ndarray:
    """The convolution of integers, padded by half of the kernel, by products in float64, which are exact."""
    pad = weight.shape[2] // 2
    around = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    seen = np.lib.stride_tricks.sliding_window_view(around, weight.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    _, _, height, width = seen.shape[:4]
    columns = seen[0].transpose(0, 3, 4, 1, 2).reshape(-1, height * width)
    return (weight.reshape(len(weight), -1).astype(np.float64) @ columns).reshape(1, -1, height, width)


def cases(layer: layers.Convolution) -> dict[str, Case]:
    """The layer in float32, int8 and few bits."""
    random = np.random.default_rng(0)
    x = random.integers(0, 1 << BITS, layer.input_shape).astype(np.uint8)
    codes = random.integers(0, 1 << WEIGHT_BITS, layer.weight_shape).astype(np.uint8)
    signed = (2 * codes.astype(np.int8) - 1).astype(np.int8)
    attrs: dict[str, Any] = {"strides": (layer.stride,) * 2, "pads": (layer.kernel // 2,) * 4}
    products = {KINDS[0]: sums(x, codes, layer.stride), KINDS[1]: sums(x, signed, layer.stride)}

    def case(op: str, image: np.ndarray, weight: np.ndarray, answer: np.ndarray, **more: Any) -> Case:
        g = GraphBuilder()
        made = g.add(op, g.input("x", image.shape, str(image.dtype)), g.constant(weight), **attrs, **more)
        return g.build(made), image, answer

    few = {"bits": BITS, "weight_bits": WEIGHT_BITS}
    return {
        "float32": case("conv2d", x.astype(np.float32), signed.astype(np.float32), products["bipolar"]),
        "int8": case("conv2d", x, signed, products["bipolar"]),
        **{kind: case("low_bit_conv2d", x, codes, products[kind], bipolar=kind == "bipolar", **few) for kind in KINDS},
    }


def right(kind: str, found: np.ndarray, answer: np.ndarray) -> bool:
    """Whether an answer is the reference's: of integers bit by bit."""
    if kind == "float32":
        return bool(np.allclose(found, answer, rtol=1e-3, atol=1e-3 * np.abs(answer).max()))
    return found.dtype == np.int32 and bool(np.array_equal(found, answer.astype(np.int32)))


def row_of(layer: str, threads: int, cost: dict[str, float], exact: bool) -> Row:
    """Ratios to float32 and to int8."""
    floats, bytes_ = ({kind: round(cost[base] / cost[kind], 3) for kind in KINDS} for base in ("float32", "int8"))
    return Row(layer, threads, {k: round(v, 2) for k, v in cost.items()}, floats, bytes_, exact)


def measure(layer: layers.Convolution, threads: int, seconds: float, name: str) -> Row:
    """The least times of calls in turns."""
    calls: dict[str, Callable[[], object]] = {}
    exact = True
    for kind, (graph, image, answer) in cases(layer).items():
        module = bn.compile(graph, target=name, threads=threads, rewrite=False)
        exact = exact and right(kind, np.asarray(module(image)), answer)
        calls[kind] = partial(module, image)
    least = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for kind, call in calls.items():
            began = time.perf_counter()
            call()
            least[kind] = min(least[kind], time.perf_counter() - began)
    return row_of(layer.name, threads, {kind: 1e6 * found for kind, found in least.items()}, exact)


def count(layer: layers.Convolution, name: str) -> Row:
    """Instructions of one call, in an emulator."""
    from burnish.simulators.emulator import CpuEmulator

    cost, exact = {}, True
    for kind, (graph, image, answer) in cases(layer).items():
        emulator = CpuEmulator(count=True)
        executable = bn.compile(graph, target=name, threads=1, rewrite=False).executable
        exact = exact and right(kind, np.asarray(Module(executable, 1, device=emulator)(image)), answer)
        cost[kind] = float(sum(b.runs * b.instructions for b in emulator.blocks.values()))
    return row_of(layer.name, 1, cost, exact)


def means(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Geometric means over layers, by the number of threads and what is compared."""
    found = {}
    for threads in dict.fromkeys(row.threads for row in rows):
        own = [row for row in rows if row.threads == threads]
        found[str(threads)] = {
            f"{kind} over {base}": round(exp(statistics.mean(log(getattr(r, f"over_{base}")[kind]) for r in own)), 3)
            for kind in KINDS
            for base in ("float32", "int8")
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.low_bits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="layers (default: all)")
    parser.add_argument("--threads", default="1,2", help="default: %(default)s")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--size", type=int, default=0, help="pixels a side at most (default: as they are)")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each layer and number of threads")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    harness.check_names(parser, arguments.names, NAMES)
    own = target(arguments.target)
    rows = []
    for name in arguments.names or NAMES:
        layer = smaller(layers.LAYERS[name], arguments.size)
        assert isinstance(layer, layers.Convolution)
        for threads in map(int, arguments.threads.split(",")) if own.is_host else (1,):
            rows.append(
                measure(layer, threads, arguments.seconds, arguments.target)
                if own.is_host
                else count(layer, arguments.target)
            )
            if not arguments.json:
                row = rows[-1]
                costs = ", ".join(f"{kind} {cost:,.0f}" for kind, cost in row.cost.items())
                print(f"{name:>4} {threads} thread: {costs}; over float32 {row.over_float32}, int8 {row.over_int8}"
                      f"{'' if row.exact else ' WRONG'}", flush=True)  # fmt: skip
    mean = means(rows)
    report = {
        "target": arguments.target, "size": arguments.size, "unit": "microseconds" if own.is_host else "instructions",
        "geometric means": mean, "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    print(stored(report, indent=1) if arguments.json else mean)
    short = any(value < LEAST for own in mean.values() for what, value in own.items() if what.endswith("float32"))
    return int(short or not all(row.exact for row in rows))


if __name__ == "__main__":
    sys.exit(main())
