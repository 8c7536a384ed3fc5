"""Networks of PyTorch by both doors, against eager, torch.compile and onnxruntime: first answer, then steady.

`python -m benchmarks.torch_models [MODEL ...] [--threads 2] [--json]`: the first answer counts all that a contender
does from the nn.Module on, with empty caches, and is noted in the order of the columns; then all take turns. "backend"
is torch.compile with Burnish; inductor takes part where there is a C++ compiler.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import burnish as bn
from benchmarks import harness, models
from burnish.base.optional import require
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error

NAMES = (
    "dqn", "dcgan", "resnet18", "mobilenet_v2", "squeezenet", "repvgg_a0", "resnet50", "resnext50", "inception_v3",
    "lstm_lm", "nasrnn", "bert_base",
)  # fmt: skip
Call = Callable[[], Any]


def contenders(
    network: Any, inputs: Mapping[str, np.ndarray], threads: int, folder: Path, opset: int
) -> dict[str, Callable[[], Call]]:
    """Constructor of each contender's call, from the network."""
    torch = require("torch", extra="torch")
    from burnish.torch import register

    register()
    tensors = [torch.from_numpy(array) for array in inputs.values()]

    def direct() -> Call:
        module = bn.compile(network, tuple(tensors), threads=threads, cache_dir=folder / "direct")
        return lambda: module(*tensors)

    def backend() -> Call:
        options = {"threads": threads, "cache_dir": str(folder / "backend")}
        compiled = torch.compile(network, backend="burnish", options=options)
        return lambda: compiled(*tensors)

    def inductor() -> Call:
        compiled = torch.compile(network)
        return lambda: compiled(*tensors)

    def onnxruntime() -> Call:
        path = folder / "model.onnx"
        peers.export_onnx(network, inputs, path, opset, dynamo=opset > 17)
        run = peers.onnxruntime(path, threads)
        return lambda: run(inputs)

    made = {"burnish": direct, "backend": backend, "eager": lambda: lambda: network(*tensors)}
    if shutil.which("g++"):
        made["inductor"] = inductor
    return {**made, "onnxruntime": onnxruntime}


def measure(
    name: str, network: Any, inputs: Mapping[str, np.ndarray], threads: int, seconds: float, opset: int = 17
) -> tuple[harness.Row, dict[str, float]]:
    """One network: the row of steady times, and the seconds to each contender's first answer.

    An `opset` above 17 has onnxruntime's file written by the exporter that stands on torch.export.
    """
    torch = require("torch", extra="torch")
    torch.set_num_threads(threads)
    torch._dynamo.reset()
    first: dict[str, float] = {}
    calls: dict[str, Call] = {}
    answers: dict[str, list[np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for contender, make in contenders(network, inputs, threads, Path(folder), opset).items():
            at = time.perf_counter()
            calls[contender] = make()
            found = calls[contender]()
            first[contender] = time.perf_counter() - at
            parts = found if isinstance(found, (tuple, list)) else [found]
            answers[contender] = [np.asarray(part) for part in parts]
        errors = [scaled_error(answers[ours], answers["eager"]) for ours in ("burnish", "backend")]
        note = "first in " + " ".join(f"{spent:.1f}" for spent in first.values()) + " s"
        return harness.compare(name, "hot", calls, seconds, max(errors), note=note), first


def main() -> int:
    parser = harness.options(__doc__, seconds=8)
    arguments = parser.parse_args()
    names = harness.chosen(arguments, parser, NAMES)
    measured = [
        measure(name, *models.network(name), arguments.threads, arguments.seconds)
        for name in track(names, "networks", disable=arguments.json, transient=True)
    ]
    extra: dict[str, object] = {"first_seconds": {row.name: first for row, first in measured}}
    title = f"Networks of PyTorch, {arguments.threads} threads"
    return harness.show(title, [row for row, _ in measured], arguments.json, unit="ms", extra=extra)


if __name__ == "__main__":
    sys.exit(main())
