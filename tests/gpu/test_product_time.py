"""Predicted times of products on GPUs: beside those that were measured, and what they choose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.codegen.grid import compile_grid
from burnish.kernels.gpu.forms import product
from burnish.kernels.gpu.product import thread_blocks
from burnish.kernels.gpu.product_time import ProductSize, TileBlock, seconds
from burnish.kernels.gpu.tensor_product import tensor_blocks
from burnish.kernels.gpu.warpgroup_product import warpgroup_blocks
from burnish.kernels.task import KernelTask
from burnish.kernels.template import TemplateMatch
from burnish.kernels.templates import first_match
from burnish.loops.tensor import placeholder
from burnish.lower.threads import launches
from burnish.machines.target import target
from burnish.ops import OPERATORS
from tests.gpu.cases import SM80, Case, check, execute
from tests.marks import slow, slow_except

H100 = target("cuda:sm_90a")
STORED = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu-products-h200.json"
BLOCKS = {"warpgroup_product": warpgroup_blocks, "tensor_product": tensor_blocks, "shared_product": thread_blocks}
ERROR = 0.21  # of a prediction, relative to what was measured
NOW = {"warpgroup_product": 1, "tensor_product": 0, "shared_product": 0}  # runs of the kernels as they are


def matmul(rows: int, columns: int, depth: int, dtype: str, weights: bool = False) -> KernelTask:
    """Task of a product, whose right factor is known when it is compiled where it is ``weights``."""
    a, b = placeholder((rows, depth), dtype, "a"), placeholder((depth, columns), dtype, "b")
    y = OPERATORS["matmul"].define("y", [a, b], {})
    return KernelTask("kernel", (a, b), tuple(y), "", {}, frozenset({"b"} if weights else ()))


def measured() -> Iterator[tuple[str, int, str, dict[str, Any], float]]:
    """Template, side of the square, dtype, knobs and seconds of stored measurements."""
    for number, run in enumerate(json.loads(STORED.read_text())["runs"]):
        for row in run["rows"]:
            template, dtype, size, *rest = row["name"].split()
            side, words = int(size.split("x")[0].split("^")[0]), dict(w.split("=") for w in rest if "=" in w)
            if NOW.get(template) != number or side < 4096 or not rest:
                continue
            if template == "warpgroup_product":
                if rest[0].count("x") != 1 or len(rest) != 2:
                    continue
                words = {"tile": rest[0], "stages": rest[1][1:]}
            elif words.get("depth", "16") != "16":
                continue
            yield template, side, dtype, {k: v if k == "tile" else int(v) for k, v in words.items()}, row["ms"] / 1e3


def predicted(template: str, side: int, dtype: str, knobs: dict[str, Any]) -> float:
    """Seconds by the model."""
    task = matmul(side, side, side, dtype)
    form = product(task)
    assert form is not None

    def fits(block: TileBlock) -> bool:
        own = dict(block.choice)
        return all(own[knob] == value for knob, value in knobs.items() if knob in own)

    (block,) = filter(fits, BLOCKS[template](form, H100))
    return seconds(ProductSize.of(form, task, H100), block, H100)


def test_predictions_are_near_what_was_measured() -> None:
    rows = [(row, predicted(*row[:4]) / row[4]) for row in measured() if row[2] in ("bfloat16", "float32")]
    assert {row[0] for row, _ in rows} == BLOCKS.keys() and len(rows) >= 11
    assert all(1 - ERROR < ratio < 1 + ERROR for _, ratio in rows), rows
    for size in {row[1] for row, _ in rows}:
        own = [(row, ratio) for row, ratio in rows if row[0] == "warpgroup_product" and row[1] == size]
        best = min(own, key=lambda pair: pair[0][4])[0]
        assert min(own, key=lambda pair: pair[0][4] * pair[1])[0][3]["tile"] == best[3]["tile"]


def chosen(*sizes: Any) -> tuple[TemplateMatch, int]:
    """The default of a product, and the blocks of its first launch."""
    match = first_match(matmul(*sizes), H100)
    first = launches(match.apply(match.space.default).program, H100.machine).launches[0]
    return match, first.grid[0] * first.grid[1] * first.grid[2]


@pytest.mark.parametrize("sizes", [(64, 11008, 4096), (64, 4096, 11008), (16, 4096, 4096), (1, 11008, 4096)])
def test_few_rows_read_their_matrix_on_most_multiprocessors(sizes: tuple[int, int, int]) -> None:
    """Decoding: as fast as memory, but for a launch and a half; tiles are no higher than there are rows."""
    match, blocks = chosen(*sizes, "bfloat16")
    rows, columns, depth = sizes
    memory = 2 * (rows * depth + depth * columns) / H100.memory_bandwidth
    assert match.seconds is not None and match.seconds < 1.3 * memory + 8e-6
    assert blocks >= H100.cores * 0.6
    knobs = match.space.default
    assert int(knobs.get("tile_m") or str(knobs["tile"]).split("x")[0]) <= max(rows, 16)


def test_streamk_is_predicted_by_the_same_model() -> None:
    """Where tiles fill waves it is what blocks of whole tiles take; never faster than memory or the tensor cores."""
    from benchmarks.gpu_streamk import predicted as both
    from benchmarks.gpu_streamk import streamk_seconds

    task = matmul(1408, 1536, 4096, "bfloat16")  # 132 tiles of 128 x 128
    form = product(task)
    assert form is not None
    work = ProductSize.of(form, task, H100)
    whole = [b for b in warpgroup_blocks(form, H100) if (b.rows, b.columns) == (128, 128)]
    for block in whole:
        assert streamk_seconds(work, block, H100) == pytest.approx(seconds(work, block, H100), rel=0.02)
    for sizes in ((16, 4096, 4096), (2048, 2048, 2048)):
        row = both(*sizes, "bfloat16", H100)
        rows, columns, depth = sizes
        least = max(2 * depth * columns / H100.memory_bandwidth, 2 * rows * columns * depth / 989e12)
        assert least < row.streamk_us * 1e-6 <= 1.05 * row.today_us * 1e-6


def test_layers_of_one_sentence_split_only_deep_products() -> None:
    """BERT at 128 tokens: of its four products one has a depth that is worth another launch."""
    layers = [(128, 768, 768), (128, 2304, 768), (128, 3072, 768), (128, 768, 3072)]
    names = [chosen(*sizes, "float16", True)[0].name for sizes in layers]
    assert [name == "split_product" for name in names] == [False, False, False, True]


def test_large_products_take_groups_of_warps_and_large_tiles() -> None:
    for side in (2048, 4096, 8192):
        match, _ = chosen(side, side, side, "bfloat16")
        assert match.name == "warpgroup_product" and match.space.default["tile"] == "128x256"
    wave, _ = chosen(3072, 3072, 3072, "bfloat16")
    assert wave.space.default["tile"] == "128x192"  # three waves of 132 blocks, as of larger ones
    old = first_match(matmul(4096, 4096, 4096, "bfloat16"), target("cuda:sm_80"))
    assert old.name == "tensor_product"


@pytest.mark.parametrize("transpose_b", [False, True])
def test_shared_memory_of_narrow_tiles_is_as_predicted_and_there(transpose_b: bool) -> None:
    """Few columns that are stored as such take a whole panel of 64."""
    sizes = [(256, 128), (128, 128)]
    knobs = {"tile_m": 128, "tile_n": 16, "stages": 8}
    case = Case("matmul", sizes, {"transpose_b": transpose_b}, ("float16",) * 2, "tensor_product", knobs)
    form = product(case.task())
    assert form is not None
    (launch,) = compile_grid(case.program()[0], SM80, assembled=False).launches
    found = [b for b in tensor_blocks(form, SM80) if (b.rows, b.columns) == (128, 16)]
    assert launch.dynamic == max(b.shared for b in found) == (8 * 144 if transpose_b else 6 * 192) * 128
    assert launch.dynamic <= SM80.shared_bytes


TILES = [(16, 64), (16, 256), (32, 128), (16, 16), (64, 32)]


@pytest.mark.parametrize("tile", slow_except(TILES, (16, 64), (16, 16)), ids=str)
@pytest.mark.parametrize("rows", [1, 9])
def test_tiles_of_few_rows_are_right(rows: int, tile: tuple[int, int]) -> None:
    knobs = {"tile_m": tile[0], "tile_n": tile[1], "stages": 3}
    halves = ("float16", "float16")
    check(Case("matmul", [(rows, 192), (192, 136)], {}, halves, "tensor_product", knobs), 2e-3)


@pytest.mark.parametrize("transpose_b", slow([False, True], True))
@pytest.mark.parametrize(
    ("template", "knobs"), [("tensor_product", {"tile_n": 32}), ("warpgroup_product", {"tile": "64x192"})]
)
def test_blocks_of_the_depth_are_as_short_as_that(template: str, knobs: dict[str, Any], transpose_b: bool) -> None:
    """80 elements are two blocks of 48, not of 64; a tile of fewer columns leaves the rest of a row alone."""
    machine = H100 if template == "warpgroup_product" else SM80
    right = (136, 80) if transpose_b else (80, 136)
    case = Case("matmul", [(70, 80), right], {"transpose_b": transpose_b}, ("float16",) * 2, template, knobs, machine)
    form = product(case.task())
    assert form is not None and form.depth(64, 16).block == 48 and form.depth(64).block == 64
    (found,), (wanted,), counts = execute(compile_grid(case.program()[0], machine, assembled=False), case)
    np.testing.assert_allclose(found, wanted, atol=2e-3 * np.abs(wanted).max())
    assert counts.conflicts_per_ideal < 1.1


def test_layers_of_few_channels_are_on_tensor_cores() -> None:
    """Of MobileNet: 16 to 96 channels of one image."""
    for rows, columns, depth in ((12544, 16, 32), (12544, 96, 16), (3136, 24, 96), (784, 32, 144), (49, 320, 960)):
        match = first_match(matmul(rows, columns, depth, "float16", True), H100)
        assert match.name in ("tensor_product", "warpgroup_product", "split_product")
