"""Cooperative fetching counted: a matrix product with tiles that the threads of a block fetch together, and without.

No GPU is needed: kernels run on coroutines, which record every load. The bar is 8 times fewer loads from global
memory (thesis-chen section 4.3.2, figure 4.7; loads per multiply-add do not depend on the size of whole tiles).

`python -m benchmarks.gpu_counts [--size N] [--json FILE]`; needs `pip install "burnish[dev]"` for greenlet.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from burnish.codegen.grid import compile_grid
from burnish.kernels.task import Task
from burnish.kernels.templates import template_called
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS
from burnish.runtime.gpu.emulator import Emulator
from burnish.target import target

BAR = 8.0  # times fewer global loads with cooperative fetching
TILE = {"tile_m": 64, "tile_n": 64, "depth": 16}


def counted(size: int, fetch: str) -> dict[str, Any]:
    """Loads, sectors, bank conflicts and the error of a square matrix product with one way of fetching."""
    machine = target("cuda:sm_80")
    a, b = (placeholder((size, size), name=name) for name in "ab")
    (y,) = OPERATORS["matmul"].define("y", [a, b], {})
    task = Task("kernel", (a, b), (y,), "product", {}, frozenset())
    match = template_called("shared_product", machine).on(task, machine)
    code = compile_grid(match.apply({**TILE, "fetch": fetch}).program, machine)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((size, size)).astype("float32") for _ in range(2))
    out = np.zeros((size, size), "float32")
    device = Emulator()
    device.run(code.packed(), [m.reshape(-1).view(np.uint8) for m in (x, w, out)])
    (launch,) = code.launches
    return {
        "fetch": fetch,
        "size": size,
        "error": float(np.max(np.abs(out - x @ w)) / np.max(np.abs(out))),
        "loads_per_multiply_add": device.counts.global_loads / size**3,
        "sectors_per_ideal": device.counts.sectors_per_ideal,
        "shared_passes_per_ideal": device.counts.conflicts_per_ideal,
        "resources": asdict(launch.resources) if launch.resources else None,
        **asdict(device.counts),
    }


def main() -> None:
    """Prints both ways and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [counted(args.size, fetch) for fetch in ("global", "shared")]
    for row in rows:
        print(
            f"{row['fetch']:7} {row['global_loads']:>9} global loads, {row['load_sectors']:>8} sectors, "
            f"{row['barriers']} barriers, error {row['error']:.1e}"
        )
    ratio = rows[0]["global_loads"] / rows[1]["global_loads"]
    print(f"cooperative fetching loads {ratio:.1f} times less (bar: {BAR:.0f})")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "ratio": ratio, "bar": BAR, "met": ratio >= BAR}, indent=1))


if __name__ == "__main__":
    main()
