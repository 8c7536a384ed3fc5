"""Loads counted: a matrix product with tiles that the threads of a block fetch together, and without; attention, rows
and windows, beside a program whose every multiply-add or stage loads what it needs.

No GPU is needed: kernels run on coroutines, which record every load. The bar is 8 times fewer loads from global
memory (thesis-chen section 4.3.2, figure 4.7; loads per multiply-add do not depend on the size of whole tiles).

`python -m benchmarks.gpu_counts [--size N] [--json FILE]`; needs `pip install "burnish[dev]"` for greenlet.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import stored
from burnish.codegen.grid import compile_grid
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import template_called
from burnish.loops.tensor import Tensor, placeholder
from burnish.machines.target import target
from burnish.ops import OPERATORS
from burnish.simulators.gpu.emulator import GridEmulator

BAR = 8.0  # times fewer global loads with cooperative fetching
TILE = {"tile_m": 64, "tile_n": 64, "depth": 16}


def counted(size: int, fetch: str) -> dict[str, Any]:
    """Loads, sectors, bank conflicts and the error of a square matrix product with one way of fetching."""
    machine = target("cuda:sm_80")
    a, b = (placeholder((size, size), name=name) for name in "ab")
    (y,) = OPERATORS["matmul"].define("y", [a, b], {})
    task = KernelTask("kernel", (a, b), (y,), "product", {}, frozenset())
    match = template_called("shared_product", machine).on(task, machine)
    code = compile_grid(match.apply({**TILE, "fetch": fetch}).program, machine)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((size, size)).astype("float32") for _ in range(2))
    out = np.zeros((size, size), "float32")
    device = GridEmulator()
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


def _kernel(name: str, inputs: list[Tensor], output: Tensor, template: str, choice: dict[str, Any]) -> dict[str, Any]:
    """Elements that a kernel loads from global memory, with coalescing, bank conflicts and barriers."""
    machine = target("cuda:sm_80")
    task = KernelTask("kernel", tuple(inputs), (output,), "", {}, frozenset())
    match = template_called(template, machine).on(task, machine)
    code = compile_grid(match.apply({**match.space.default, **choice}).program, machine, assembled=False)
    arrays = [np.zeros(t.shape, "float32") for t in (*inputs, output)]
    device = GridEmulator()
    device.run(code.packed(), [m.reshape(-1).view(np.uint8) for m in arrays])
    counts = device.counts
    return {
        "kernel": name,
        "elements_loaded": counts.global_load_bytes / 4,
        "sectors_per_ideal": counts.sectors_per_ideal,
        "shared_passes_per_ideal": counts.conflicts_per_ideal,
        "barriers_per_block": counts.barriers / counts.blocks,
    }


def others(rows: int = 32, keys: int = 64, depth: int = 32, width: int = 256) -> list[dict[str, Any]]:
    """Attention, softmax and a window, each with the elements that are loaded where nothing is shared or kept."""

    def applied(op: str, name: str, *given: Tensor, **attrs: Any) -> Tensor:
        return OPERATORS[op].define(name, list(given), attrs)[0]

    q, k, v = (placeholder(s, name=n) for s, n in (((rows, depth), "q"), ((keys, depth), "k"), ((keys, depth), "v")))
    weights = applied("softmax", "weights", applied("matmul", "scores", q, k, transpose_b=True))
    x, image = placeholder((8, width), name="x"), placeholder((1, 2, 18, 32), name="image")
    pooled = applied("max_pool2d", "pooled", image, kernel=(3, 3), strides=(1, 1))
    found = [
        (_kernel("attention", [q, k, v], applied("matmul", "y", weights, v), "attention", {"warps": 4, "rows": 8}),
         2 * rows * keys * 2 * depth),
        (_kernel("softmax", [x], applied("softmax", "s", x), "rows", {}), 3 * 8 * width),
        (_kernel("max_pool2d", [image], pooled, "elements", {"own": 8}), 9 * pooled.buffer.size),
    ]  # fmt: skip
    return [{**row, "unshared": alone, "times_fewer": alone / row["elements_loaded"]} for row, alone in found]


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
    beside = others()
    for row in beside:
        print(
            f"{row['kernel']:10} loads {row['elements_loaded']:.0f} elements of {row['unshared']} "
            f"({row['times_fewer']:.1f} times fewer), {row['barriers_per_block']:.0f} barriers a block, sectors "
            f"{row['sectors_per_ideal']:.2f} and banks {row['shared_passes_per_ideal']:.2f} times the fewest"
        )
    if args.json:
        args.json.write_text(
            stored({"rows": rows, "others": beside, "ratio": ratio, "bar": BAR, "met": ratio >= BAR}, indent=1)
        )


if __name__ == "__main__":
    main()
