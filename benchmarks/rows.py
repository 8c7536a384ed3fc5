"""One module for every number of rows against the same model compiled for each: an MLP, and a block of normalization,
softmax and products.

`python -m benchmarks.rows [--rows N …] [--target cpu,-amx] [--threads N] [--seconds S] [--json]`; fails if a model's
geometric mean over the numbers of rows is above 1.15. Both sides run alternately in one process; answers are held
against NumPy. `first call` is how much longer the first call at a number of rows takes than the next ones.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import burnish as bn
from benchmarks.provenance import stored
from burnish.measure import peers
from burnish.runtime.module import Module

ALLOWED = 1.15  # times as long as compiled for the size
HIGH = 512  # rows
WIDTH = 256
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Row:
    """One model at one number of rows: median microseconds of both modules, their ratio, the largest difference from
    NumPy relative to the largest value, and microseconds of the first call beyond the next.
    """

    model: str
    rows: int
    symbolic_us: float
    static_us: float
    ratio: float
    error: float
    first_call_us: float


@dataclass(frozen=True)
class Model:
    """Nodes from x [rows, WIDTH] to y, their constants, and the same in NumPy."""

    nodes: list[onnx.NodeProto]
    constants: Arrays
    reference: Callable[[np.ndarray, Arrays], np.ndarray]

    def proto(self) -> onnx.ModelProto:
        """The ONNX model, its first extent open under the name "rows"."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "g", [x], [onnx.ValueInfoProto(name="y")], weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def draw(random: np.random.Generator, *shape: int) -> np.ndarray:
    return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def mlp() -> Model:
    """Three dense layers, 256 to 512, 512 and 64, relu between them."""
    random = np.random.default_rng(0)
    widths = [WIDTH, 512, 512, 64]
    constants = {f"w{i}": draw(random, a, b) for i, (a, b) in enumerate(pairwise(widths))}
    constants |= {f"b{i}": draw(random, b) for i, b in enumerate(widths[1:])}
    nodes = []
    for i in range(3):
        nodes.append(helper.make_node("Gemm", [f"h{i}" if i else "x", f"w{i}", f"b{i}"], [f"g{i}" if i < 2 else "y"]))
        nodes += [helper.make_node("Relu", [f"g{i}"], [f"h{i + 1}"])] if i < 2 else []

    def reference(x: np.ndarray, c: Arrays) -> np.ndarray:
        for i in range(3):
            x = x @ c[f"w{i}"] + c[f"b{i}"]
            x = np.maximum(x, 0) if i < 2 else x
        return x

    return Model(nodes, constants, reference)


def block() -> Model:
    """Layer normalization, scores of 128 keys, softmax, their mixture, and the input added: one head of attention."""
    random = np.random.default_rng(1)
    constants = {
        "gain": draw(random, WIDTH), "bias": draw(random, WIDTH), "keys": draw(random, WIDTH, 128),
        "values": draw(random, 128, WIDTH),
    }  # fmt: skip
    nodes = [
        helper.make_node("LayerNormalization", ["x", "gain", "bias"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "keys"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "values"], ["m"]),
        helper.make_node("Add", ["m", "x"], ["y"]),
    ]

    def reference(x: np.ndarray, c: Arrays) -> np.ndarray:
        centred = x - x.mean(1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * c["gain"] + c["bias"]
        scores = normal @ c["keys"]
        weights = np.exp(scores - scores.max(1, keepdims=True))
        return weights / weights.sum(1, keepdims=True) @ c["values"] + x

    return Model(nodes, constants, reference)


MODELS: dict[str, Callable[[], Model]] = {"mlp": mlp, "block": block}


def measure(name: str, made: Model, symbolic: Module, static: Module, rows: int, seconds: float) -> Row:
    """Both modules at one number of rows."""
    x = np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)
    start = time.perf_counter()
    found = symbolic(x)
    first = time.perf_counter() - start
    wide = {key: array.astype(np.float64) for key, array in made.constants.items()}
    expected = made.reference(x.astype(np.float64), wide)
    timed = peers.alternate({"symbolic": lambda: symbolic(x), "static": lambda: static(x)}, seconds=seconds)
    one, other = timed["symbolic"].median, timed["static"].median
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    return Row(name, rows, one * 1e6, other * 1e6, one / other, error, (first - one) * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 7, 32, 100, 512])
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each number of rows")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    table: list[Row] = []
    compiled: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in MODELS.items():
            made = make()
            options = {"target": arguments.target, "threads": arguments.threads, "rewrite": False}
            start = time.perf_counter()
            symbolic = bn.compile(made.proto(), shapes={"rows": (1, HIGH)}, cache_dir=Path(folder), **options)
            spent = [time.perf_counter() - start]
            for rows in arguments.rows:
                start = time.perf_counter()
                static = bn.compile(made.proto(), shapes={"x": (rows, WIDTH)}, cache_dir=Path(folder), **options)
                spent.append(time.perf_counter() - start)
                table.append(measure(name, made, symbolic, static, rows, arguments.seconds))
            compiled[name] = {"symbolic": spent[0], "static": statistics.median(spent[1:])}
    means = {name: statistics.geometric_mean(row.ratio for row in table if row.model == name) for name in MODELS}
    if arguments.json:
        report = {"target": arguments.target, "threads": arguments.threads, "means": means, "compile_seconds": compiled}
        print(stored({**report, "rows": [asdict(row) for row in table]}, indent=2))
    else:
        for row in table:
            print(
                f"{row.model:6} {row.rows:4} rows: {row.symbolic_us:9.1f} us, for the size {row.static_us:9.1f}, ratio "
                f"{row.ratio:5.3f}, error {row.error:.1e}, first call {row.first_call_us:+7.0f} us"
            )
        for name, mean in means.items():
            took = compiled[name]
            print(f"{name}: mean {mean:.3f}; compiled in {took['symbolic']:.2f} s, for a size {took['static']:.2f} s")
    if max(means.values()) > ALLOWED:
        sys.exit(f"the geometric mean is {max(means.values()):.3f}; allowed: {ALLOWED}")


if __name__ == "__main__":
    main()
