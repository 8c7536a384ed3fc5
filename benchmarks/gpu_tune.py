"""Models before and after `burnish tune` on a GPU; without a GPU it says so.

`python -m benchmarks.gpu_tune [MODEL ...] [--seconds S] [--json FILE]`: models of `benchmarks.models`. Times are the
GPU's own, of graphs that are replayed, median of CALLS: of the model as it is compiled untuned, and by the records that
tuning wrote, whether or not it was faster; the two take turns.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np

import burnish
from benchmarks import models
from benchmarks.gpu import CALLS, device
from benchmarks.provenance import stored
from burnish.driver.api import tuned
from burnish.driver.tuned import described
from burnish.measure.samples import module_inputs
from burnish.runtime.module import Module

TURNS = 5


def measured(name: str, target: str, seconds: float, gpu: str) -> dict[str, Any]:
    """Microseconds of a model untuned and tuned, and what tuning reports."""
    path = models.build(name)
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.jsonl"
        made = tuned(path, burnish.Tune(seconds=seconds), target=target, records=records, rewrite=False)
        pair = [cast("Module", burnish.compile(path, target=target, rewrite=False, records=r)) for r in (None, records)]
    feeds = module_inputs(pair[0])
    outcomes = [np.asarray(m(**feeds) if len(m.outputs) == 1 else m(**feeds)[0], np.float64) for m in pair]
    error = float(np.linalg.norm(outcomes[1] - outcomes[0]) / max(float(np.linalg.norm(outcomes[0])), 1e-30))
    turns = [[float(np.median(m.replays(CALLS))) for m in pair] for _ in range(TURNS)]
    before, after = (round(1e6 * float(np.median([turn[i] for turn in turns])), 2) for i in range(2))
    report = described(made)
    kernels = report.pop("kernels")
    return {
        "model": name, "gpu": gpu, "untuned_us": before, "tuned_us": after, "times_as_fast": round(before / after, 3),
        "difference": error, "changed": sum(k["kept"] for k in kernels), "kernels": len(kernels), **report,
    }  # fmt: skip


def main() -> None:
    """Tunes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet18"])
    parser.add_argument("--seconds", type=float, default=60.0, help="of tuning, of each model")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = device()
    if found is None:
        return
    torch, target = found
    rows = []
    for name in args.models:
        rows.append(measured(name, target, args.seconds, torch.cuda.get_device_name()))
        print(json.dumps(rows[-1]), flush=True)
        if args.json:
            args.json.write_text(stored({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
