"""Growth of compile time: models of one kind at three sizes, each twice the one before, compiled in turns.

`python -m benchmarks.compile_time [KIND …] [--rounds N] [--json FILE]`; fails if doubling a model more than doubles its
time plus 10 %. Every compilation starts from an empty kernel cache and looks for no substitutions, which have a time
limit of their own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import burnish as bn
from benchmarks.harness import check_names
from benchmarks.provenance import stored
from burnish.machines.target import target

ALLOWED = 2.2  # times as long for twice the model
Nodes = list[onnx.NodeProto]


def model(
    nodes: Nodes, inputs: Mapping[str, tuple[int, ...]], output: str, constants: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """A float32 model of one output."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=output)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 10
    return made


def chain(count: int) -> onnx.ModelProto:
    """Element-wise operators, one after the other."""
    ops = ("Relu", "Tanh", "Neg", "Abs", "Sigmoid")
    nodes = [helper.make_node(ops[i % len(ops)], [f"t{i}"], [f"t{i + 1}"]) for i in range(count)]
    return model(nodes, {"t0": (4, 4)}, f"t{count}", {})


def shared(count: int) -> onnx.ModelProto:
    """``x * sigmoid(x)``, one after the other: each value is used twice."""
    nodes = []
    for i in range(count):
        nodes += [
            helper.make_node("Sigmoid", [f"t{i}"], [f"s{i}"]),
            helper.make_node("Mul", [f"s{i}", f"t{i}"], [f"t{i + 1}"]),
        ]
    return model(nodes, {"t0": (4, 4)}, f"t{count}", {})


def moved(count: int) -> onnx.ModelProto:
    """``x + transpose(x)``, one after the other: each value is used twice, at two places."""
    nodes = []
    for i in range(count):
        nodes += [
            helper.make_node("Transpose", [f"t{i}"], [f"s{i}"], perm=[1, 0]),
            helper.make_node("Add", [f"s{i}", f"t{i}"], [f"u{i}"]),
            helper.make_node("Sigmoid", [f"u{i}"], [f"t{i + 1}"]),
        ]
    return model(nodes, {"t0": (4, 4)}, f"t{count}", {})


def concat(count: int) -> onnx.ModelProto:
    """One join of many inputs."""
    inputs = {f"x{i}": (1 + i % 3, 5) for i in range(count)}
    return model([helper.make_node("Concat", list(inputs), ["y"], axis=0)], inputs, "y", {})


def sum_(count: int) -> onnx.ModelProto:
    """One sum of many inputs."""
    inputs = {f"x{i}": (4, 5) for i in range(count)}
    return model([helper.make_node("Sum", list(inputs), ["y"])], inputs, "y", {})


def products(count: int) -> onnx.ModelProto:
    """Matrix products with biases and ReLUs."""
    nodes, constants = [], {}
    rng = np.random.default_rng(0)
    for i in range(count):
        constants[f"w{i}"] = rng.standard_normal((32, 32)).astype(np.float32)
        constants[f"b{i}"] = rng.standard_normal(32).astype(np.float32)
        nodes += [
            helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"m{i}"]),
            helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"]),
            helper.make_node("Relu", [f"a{i}"], [f"t{i + 1}"]),
        ]
    return model(nodes, {"t0": (4, 32)}, f"t{count}", constants)


def _layer(op: str, gates: int) -> Callable[[int], onnx.ModelProto]:
    def recurrent(count: int) -> onnx.ModelProto:
        rng = np.random.default_rng(0)
        w, r = (rng.standard_normal((1, gates * 16, n)).astype(np.float32) for n in (8, 16))
        node = helper.make_node(op, ["x", "w", "r"], ["y"], hidden_size=16)
        return model([node], {"x": (count, 1, 8)}, "y", {"w": w, "r": r})

    recurrent.__doc__ = f"The steps of one {op} layer."
    return recurrent


def cumsum(count: int) -> onnx.ModelProto:
    """A running sum of many elements."""
    axis = {"axis": np.array(0, np.int64)}
    return model([helper.make_node("CumSum", ["x", "axis"], ["y"])], {"x": (count,)}, "y", axis)


KINDS: Mapping[str, tuple[Callable[[int], onnx.ModelProto], int]] = {  # name -> model of a size, the least size
    "chain": (chain, 100),
    "shared": (shared, 50),
    "moved": (moved, 25),
    "concat": (concat, 64),
    "sum": (sum_, 64),
    "products": (products, 50),
    "lstm": (_layer("LSTM", 4), 128),
    "gru": (_layer("GRU", 3), 128),
    "rnn": (_layer("RNN", 1), 128),
    "cumsum": (cumsum, 250_000),
}


def seconds(made: onnx.ModelProto) -> float:
    """Time of one compilation, kernels included."""
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        bn.compile(made, cache_dir=cache, rewrite=False, threads=1)
        return time.perf_counter() - start


@dataclass(frozen=True)
class Growth:
    """Median seconds at three sizes, and how often the time of one size is that of the next."""

    sizes: list[int]
    seconds: list[float]
    ratios: list[float]

    @property
    def holds(self) -> bool:
        return max(self.ratios) <= ALLOWED


def growth(kind: str, rounds: int) -> Growth:
    """Compiles models of one kind in turns."""
    make, least = KINDS[kind]
    sizes = [least, 2 * least, 4 * least]
    models = [make(size) for size in sizes]
    seconds(models[0])  # what is imported and warmed up once is no model's time
    times = [[seconds(made) for made in models] for _ in range(rounds)]
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    return Growth(sizes, medians, [b / a for a, b in pairwise(medians)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="a file to write what was measured to")
    args = parser.parse_args()
    check_names(parser, args.kinds, KINDS)
    found: dict[str, Growth] = {}
    for kind in args.kinds or KINDS:
        row = found[kind] = growth(kind, args.rounds)
        times = "  ".join(f"{n}: {s:.3f} s" for n, s in zip(row.sizes, row.seconds, strict=True))
        ratios = ", ".join(f"{r:.2f}" for r in row.ratios)
        print(f"{kind:9s} {times}   growth {ratios}{'' if row.holds else f'   MORE THAN {ALLOWED}'}", flush=True)
    if args.json:
        measured = {kind: asdict(row) for kind, row in found.items()}
        args.json.write_text(stored({"machine": target("cpu").cpu, "growth": measured}, indent=1))
    if not all(row.holds for row in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
