"""Kernels on a GPU beside those of PyTorch (cuBLAS, cuDNN); without a GPU it says so and ends.

`python -m benchmarks.gpu [--json FILE]` times whole modules of `benchmarks.models`, median of 20 calls each in turn.
Not yet run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import burnish
from benchmarks import models
from burnish.errors import MissingDependencyError, TargetError
from burnish.optional import require

CALLS = 20
CAPABILITIES = {(8, 0): "cuda:sm_80", (9, 0): "cuda:sm_90a"}


def compared(name: str, torch: Any, target: str) -> dict[str, Any]:
    """Milliseconds of one model here and in PyTorch, which keeps inputs and outputs on the GPU; ours copies them."""
    network, arrays = models.network(name)
    (array,) = arrays.values()
    module: Any = network.cuda()  # type: ignore[attr-defined]
    x = torch.from_numpy(array).cuda()
    ours = burnish.compile(models.build(name), target=target)
    times: dict[str, list[float]] = {"ours": [], "torch": []}
    with torch.no_grad():
        expected = module(x).cpu().numpy()
        error = float(np.max(np.abs(ours(array) - expected)) / np.max(np.abs(expected)))
        for _ in range(CALLS):
            began = time.perf_counter()
            ours(array)
            times["ours"].append(time.perf_counter() - began)
            began = time.perf_counter()
            module(x)
            torch.cuda.synchronize()
            times["torch"].append(time.perf_counter() - began)
    return {"model": name, "error": error, **{side: 1e3 * median(found) for side, found in times.items()}}


def device() -> tuple[Any, str] | None:
    """PyTorch and the target of this machine's GPU; None, saying why, where there is no GPU that this can use."""
    try:
        torch = require("torch", extra="torch")
    except MissingDependencyError as error:
        print(f"no device: {error}")
        return None
    if not torch.cuda.is_available():
        print("no device: PyTorch finds no GPU")
        return None
    found = CAPABILITIES.get(torch.cuda.get_device_capability())
    if found is None:
        print(f"no device: {torch.cuda.get_device_name()}; allowed: compute capability 8.0 or 9.0")
    return None if found is None else (torch, found)


def main() -> None:
    """Compares the exported models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = device()
    rows = []
    for name in models.EXPORTED if found else ():
        try:
            rows.append(compared(name, *found))  # type: ignore[misc]
        except TargetError as error:
            print(f"{name}: {error}")
        else:
            print(rows[-1], flush=True)
    if args.json:
        args.json.write_text(json.dumps({"device": found is not None, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
