"""One module for every size against the same model compiled for each, and against onnxruntime and OpenVINO: BERT-base
at 20 sequence lengths, ResNet-18 at 20 batch sizes, both exported from PyTorch with an open dimension.

`python -m benchmarks.sizes [bert_base] [resnet18] [--sizes N …] [--target cpu,-amx] [--threads N] [--seconds S]
[--json]`; fails where the geometric mean is above 1.10 or a size above 1.25. All run alternately in one process;
answers are held against onnxruntime. `pause`: how much longer the first call at a size takes than the next ones, in
milliseconds. `memory`: what the process grew by over 200 calls at random sizes, in MB.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import burnish as bn
from benchmarks import models
from benchmarks.provenance import stored
from burnish.base.optional import require
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error
from burnish.runtime.module import Module

PEERS = ("onnxruntime", "openvino")
MEAN, WORST = 1.10, 1.25  # times as long as compiled for the size


@dataclass(frozen=True)
class Case:
    """A benchmark model: its input, the axis that is open with a name and a hint, and the sizes to try."""

    input: str
    axis: int
    dim: str
    high: int
    hint: int
    sizes: tuple[int, ...]
    draw: Callable[[np.random.Generator, int], np.ndarray]


CASES = {
    "bert_base": Case(
        "ids", 1, "sequence", 512, 128,
        (1, 2, 5, 7, 8, 12, 16, 24, 32, 33, 48, 64, 77, 96, 100, 128, 192, 256, 384, 512),
        lambda random, n: random.integers(0, 1000, (1, n)),
    ),
    "resnet18": Case(
        "image", 0, "batch", 32, 4, (*range(1, 17), 20, 24, 28, 32),
        lambda random, n: random.standard_normal((n, 3, 224, 224)).astype(np.float32),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One model at one size: median milliseconds of both modules and of each peer, given the open model too; their
    ratio, the fastest peer's time over the symbolic module's, the error, the first call's pause.
    """

    model: str
    size: int
    symbolic_ms: float
    static_ms: float
    peers_ms: dict[str, float]
    ratio: float
    speedup: float
    error: float
    pause_ms: float


def export(name: str, case: Case, path: Path) -> None:
    """The model with an open axis (needs torch)."""
    torch = require("torch", extra="torch")
    network, _ = models.network(name)
    example = torch.from_numpy(case.draw(np.random.default_rng(0), 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network, (example,), path, input_names=[case.input], output_names=["y"], opset_version=17, dynamo=False,
            dynamic_axes={case.input: {case.axis: case.dim}},
        )  # fmt: skip


def measure(name: str, path: Path, case: Case, sizes: list[int], options: dict[str, Any], seconds: float) -> dict:
    """All rows of a model, and what its compilations took."""
    random = np.random.default_rng(1)
    shape = case.draw(random, 3).shape
    others = {peer: peers.prepare(peer, path, options["threads"]) for peer in PEERS}
    start = time.perf_counter()
    open_ = {case.dim: (1, case.high, 1, case.hint)}
    with tempfile.TemporaryDirectory() as folder:
        symbolic = bn.compile(path, shapes=open_, cache_dir=folder, rewrite=False, **options)
        assert isinstance(symbolic, Module), "the dimension did not stay open"
        spent, rows = [time.perf_counter() - start], list[Row]()
        for size in sizes:
            start = time.perf_counter()
            own = tuple(size if d == case.axis else e for d, e in enumerate(shape))
            static = bn.compile(path, shapes={case.input: own}, cache_dir=folder, rewrite=False, **options)
            spent.append(time.perf_counter() - start)
            x = case.draw(random, size)
            start = time.perf_counter()
            found = symbolic(x)
            first = time.perf_counter() - start
            error = scaled_error([found], others["onnxruntime"]({case.input: x}))
            contenders = {peer: partial(run, {case.input: x}) for peer, run in others.items()}
            timed = peers.alternate(
                {"symbolic": partial(symbolic, x), "static": partial(static, x), **contenders}, seconds
            )
            one, other = timed["symbolic"].median, timed["static"].median
            spent_by = {peer: timed[peer].median * 1e3 for peer in others}
            speedup = min(spent_by.values()) / (one * 1e3)
            rows.append(
                Row(name, size, one * 1e3, other * 1e3, spent_by, one / other, speedup, error, (first - one) * 1e3)
            )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for size in random.integers(1, min(case.high, 64) + 1, 200):
        symbolic(case.draw(random, int(size)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {
        "rows": [asdict(row) for row in rows],
        "mean": statistics.geometric_mean(row.ratio for row in rows),
        "worst": max(row.ratio for row in rows),
        "speedup": statistics.geometric_mean(row.speedup for row in rows),
        "least_speedup": min(row.speedup for row in rows),
        "pause_ms": max(row.pause_ms for row in rows),
        "memory_mb": grown,
        "compile_seconds": {"symbolic": spent[0], "static": statistics.median(spent[1:])},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="bert_base, resnet18 (default: both)")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each size")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    options = {"target": arguments.target, "threads": arguments.threads}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names or CASES:
            path = Path(folder) / f"{name}.onnx"
            export(name, CASES[name], path)
            sizes = arguments.sizes or list(CASES[name].sizes)
            found[name] = measure(name, path, CASES[name], sizes, options, arguments.seconds)
    if arguments.json:
        print(stored({**options, "models": found}, indent=2))
    else:
        for name, result in found.items():
            for row in result["rows"]:
                print(
                    f"{name:10} {row['size']:4}: {row['symbolic_ms']:8.2f} ms, for the size {row['static_ms']:8.2f}, "
                    f"ratio {row['ratio']:5.3f}, {row['speedup']:5.3f} of the fastest peer, "
                    f"error {row['error']:.1e}, pause {row['pause_ms']:+6.1f} ms"
                )
            took = result["compile_seconds"]
            print(
                f"{name}: mean {result['mean']:.3f}, worst {result['worst']:.3f}; beside the fastest peer "
                f"{result['speedup']:.3f}, least {result['least_speedup']:.3f}; 200 random sizes: "
                f"{result['memory_mb']:+.1f} MB; "
                f"compiled in {took['symbolic']:.2f} s, for a size {took['static']:.2f} s"
            )
    bad = [name for name, result in found.items() if result["mean"] > MEAN or result["worst"] > WORST]
    if bad:
        sys.exit(f"{', '.join(bad)}: allowed are {MEAN} in the mean and {WORST} at each size")


if __name__ == "__main__":
    main()
