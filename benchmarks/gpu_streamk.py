"""Stream-K products on a GPU, predicted against tiles by waves of blocks and depth split over a second launch.

No GPU is needed: both sides are of the model that chooses kernels (``burnish/kernels/gpu/product_time.py``), with the
rates of an H100. Stream-K gives every block as many steps of the depth as any other, of one tile or several; a tile
that several blocks share is added up by the one that has its end, in the order of the depth, from partial sums that the
others leave in the second-level cache. Registers and code of the second loop are left out, so its times are bounds from
below.

`python -m benchmarks.gpu_streamk [--json FILE]` prints the table. Source: Osama et al. 2023 (Stream-K), section 4.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product as product_of
from math import ceil, exp, log
from pathlib import Path

from benchmarks.provenance import stored
from burnish.kernels.gpu.forms import product
from burnish.kernels.gpu.product import thread_blocks
from burnish.kernels.gpu.product_time import (
    BEGIN,
    FAR,
    FETCHED,
    LAUNCH,
    MEMORY,
    ProductSize,
    TileBlock,
    overlapped,
    step_seconds,
    store_seconds,
)
from burnish.kernels.gpu.split_product import MARGIN
from burnish.kernels.gpu.tensor_product import tensor_blocks
from burnish.kernels.gpu.warpgroup_product import warpgroup_blocks
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import first_match
from burnish.loops.tensor import placeholder
from burnish.machines.nvptx.occupancy import resident_blocks
from burnish.machines.target import Target, target
from burnish.ops import OPERATORS

DECODE = (1, 8, 16, 32, 64)  # rows of a batch of tokens
LAYERS = ((4096, 11008), (11008, 4096), (4096, 4096))  # columns and depth
SIDES = (512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
BLOCKS = (warpgroup_blocks, tensor_blocks, thread_blocks)


@dataclass(frozen=True)
class Predicted:
    """Predictions of a product of ``rows`` x ``columns`` x ``depth``: the template taken today, its parts of the depth,
    and microseconds of it and of Stream-K with the best tile; ``gain`` is their quotient.
    """

    rows: int
    columns: int
    depth: int
    dtype: str
    template: str
    splits: int
    today_us: float
    tile: str
    streamk_us: float
    gain: float


def streamk_seconds(work: ProductSize, block: TileBlock, target: Target) -> float:
    """Seconds of one launch whose blocks have equal numbers of steps; a bound from below."""
    tiles = work.batch * -(-work.rows // block.rows) * -(-work.columns // block.columns)
    steps = -(-work.depth // block.depth)
    most = max(1, resident_blocks(target.cpu, block.threads, block.registers, block.shared))
    l2 = FETCHED * target.cache_bandwidth / target.cores
    tile_bytes = 4.0 * min(block.rows, work.rows) * min(block.columns, work.columns)
    moved = work.factors + work.batch * work.rows * work.columns * work.stored
    found = []
    for count in range(1, most + 1):
        blocks = min(target.cores * count, tiles * steps)
        own = ceil(tiles * steps / blocks)
        others = 0 if own % steps == 0 else ceil(steps / own)  # blocks that leave sums of a tile to its last one
        fixed = 0.0 if others == 0 else count * tile_bytes / l2 + 2 * FAR + others * count * tile_bytes / l2
        busy = own * step_seconds(work, block, target, count) + tiles / target.cores * store_seconds(
            work, block, target
        )
        found.append(LAUNCH + BEGIN + overlapped(busy + fixed, moved / (MEMORY * target.memory_bandwidth)))
    return min(found)


def predicted(rows: int, columns: int, depth: int, dtype: str, machine: Target) -> Predicted:
    """Both sides of one product, whose right factor is a weight."""
    a, b = placeholder((rows, depth), dtype, "a"), placeholder((depth, columns), dtype, "b")
    task = KernelTask("kernel", (a, b), tuple(OPERATORS["matmul"].define("y", [a, b], {})), "", {}, frozenset({"b"}))
    form = product(task)
    match = first_match(task, machine)
    assert form is not None and match.seconds is not None, (rows, columns, depth)
    work = ProductSize.of(form, task, machine)
    ways = [b for blocks in BLOCKS if dtype != "float32" or blocks is thread_blocks for b in blocks(form, machine)]
    best, block = min(((streamk_seconds(work, b, machine), b) for b in ways), key=lambda pair: pair[0])
    splits = int(match.space.default.get("splits", 1))
    today = match.seconds / (MARGIN if match.name == "split_product" else 1.0)  # which stands for what predictions err
    return Predicted(
        rows, columns, depth, dtype, match.name, splits, today * 1e6, f"{block.rows}x{block.columns}", best * 1e6,
        today / best,
    )  # fmt: skip


def table(machine: Target) -> list[Predicted]:
    """Products of decoding, and of squares."""
    sizes = [(rows, *layer) for rows, layer in product_of(DECODE, LAYERS)]
    return [predicted(*size, "bfloat16", machine) for size in (*sizes, *((n, n, n) for n in SIDES))]


def mean(rows: Sequence[Predicted]) -> float:
    """Geometric mean of gains."""
    return exp(sum(log(row.gain) for row in rows) / len(rows))


def main() -> None:
    """Prints the table, and stores it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--target", default="cuda:sm_90a")
    args = parser.parse_args()
    rows = table(target(args.target))
    for row in rows:
        print(f"{row.rows:5} x {row.columns:5} x {row.depth:5} {row.template:17} /{row.splits:2} "
              f"{row.today_us:8.2f} us, Stream-K {row.tile:8} {row.streamk_us:8.2f} us: {row.gain:.3f}")  # fmt: skip
    print(f"geometric mean {mean(rows):.3f}, greatest {max(row.gain for row in rows):.3f}")
    if args.json is not None:
        report = {"mean": mean(rows), "rows": [asdict(row) for row in rows]}
        args.json.write_text(stored(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
