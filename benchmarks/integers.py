"""Models in integers against onnxruntime's and OpenVINO's: quantized by onnxruntime's tool, and by Burnish.

`python -m benchmarks.integers [MODEL ...] [--seconds S] [--own]`: CPU seconds of one thread, the least of calls in
turns. `speedup` is over the faster peer on the same file, `float` over Burnish's own model in floats; `error` of the
answers beside onnxruntime's, by their norm. `--own` quantizes as users do, with layers timed; else all layers are.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import burnish as bn
from benchmarks import models
from burnish.measure import peers
from burnish.quantization.choose import relative_error

NAMES = ("resnet50", "mobilenet_v2", "bert_base")
BATCHES = 4


def by_onnxruntime(path: Path, batches: list[dict[str, np.ndarray]], to: Path, operators: bool = False) -> None:
    """Writes the model as onnxruntime's tool quantizes it, a scale for each channel of weights: in QDQ, or with its
    quantized ``operators``.
    """
    from onnxruntime import quantization as tools
    from onnxruntime.quantization.preprocess import quant_pre_process

    class Reader(tools.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(batches)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before.onnx"
        quant_pre_process(str(path), str(before), skip_symbolic_shape=True)
        tools.quantize_static(
            str(before), str(to), Reader(),
            quant_format=tools.QuantFormat.QOperator if operators else tools.QuantFormat.QDQ,
            activation_type=tools.QuantType.QUInt8, weight_type=tools.QuantType.QInt8, per_channel=True,
        )  # fmt: skip


def seconds_of(runs: dict[str, peers.Run], feeds: dict[str, np.ndarray], seconds: float) -> dict[str, float]:
    """The least CPU seconds of a call of each, in turns."""
    least = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + seconds
    for run in runs.values():
        run(feeds)
    while time.perf_counter() < end:
        for name, run in runs.items():
            began = time.process_time()
            run(feeds)
            least[name] = min(least[name], time.process_time() - began)
    return least


def measured(name: str, seconds: float, own: bool) -> list[dict[str, Any]]:
    """Rows of one model: by either tool."""
    source = models.build(name)
    batches = [models.inputs(name, seed) for seed in range(BATCHES)]
    plain = peers.compiled(bn.compile(source, threads=1, rewrite=False))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = {"onnxruntime": Path(folder) / "theirs.onnx", "burnish": Path(folder) / "ours.onnx"}
        by_onnxruntime(source, batches, files["onnxruntime"])
        made = bn.quantize(source, batches, threads=1, measure=own, error=0.1 if own else 1e9)
        made.save(files["burnish"])
        for tool, path in files.items():
            runs = {
                "burnish": peers.compiled(bn.compile(path, threads=1, rewrite=False)), "float": plain,
                **{peer: peers.prepare(peer, path, 1) for peer in ("onnxruntime", "openvino")},
            }  # fmt: skip
            error = relative_error(*([run(batches[0])] for run in (runs["burnish"], runs["onnxruntime"])))
            times = seconds_of(runs, batches[0], seconds)
            peer = min(times["onnxruntime"], times["openvino"])
            rows.append({
                "model": name, "quantized by": tool, "ms": {k: round(1e3 * v, 2) for k, v in times.items()},
                "speedup": round(peer / times["burnish"], 3), "float": round(times["float"] / times["burnish"], 3),
                "error": error, "of float": made.report.error if tool == "burnish" else None,
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--own", action="store_true")
    options = parser.parse_args()
    rows = [row for name in options.names or NAMES for row in measured(name, options.seconds, options.own)]
    print(f"geometric mean {np.exp(np.mean(np.log([row['speedup'] for row in rows]))):.2f}")


if __name__ == "__main__":
    main()
