"""Tiles of a reduction on a decoupled accelerator: what fits its memories, and a model of the cycles that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

from burnish.errors import ScheduleError
from burnish.kernels.task import Choice, ScheduleSpace
from burnish.machines.vdla.config import Config

AXES = ("channels", "rows", "columns")


@dataclass(frozen=True)
class BlockedConv:
    """A convolution in blocks of channels; a matrix product is one of single taps on an image of one column.

    ``rows`` and ``columns`` of the output; ``kernel``, ``strides`` and ``dilations`` by dimension. ``vectors``: ALU
    operations for each vector of the output. ``beside``: further images that are read into accumulators.
    """

    batch: int
    outputs: int
    inputs: int
    rows: int
    columns: int
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    vectors: int = 0
    beside: int = 0

    @property
    def taps(self) -> int:
        """Elements of the window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def products(self) -> int:
        """Cycles in which the core multiplies, at least."""
        return self.batch * self.outputs * self.inputs * self.rows * self.columns * self.taps

    def window(self, rows: int, columns: int) -> tuple[int, int]:
        """Receptive field: rows and columns of the input that ``rows`` x ``columns`` of the output read."""
        return (
            (rows - 1) * self.strides[0] + (self.kernel[0] - 1) * self.dilations[0] + 1,
            (columns - 1) * self.strides[1] + (self.kernel[1] - 1) * self.dilations[1] + 1,
        )


@dataclass(frozen=True)
class VdlaTile:
    """Blocks of output channels, rows and columns of a tile; blocks of input channels of a step; virtual threads, and
    the dimension of the output, one of AXES, that they divide.
    """

    channels: int
    rows: int
    columns: int
    depth: int
    threads: int = 1
    axis: str = AXES[0]

    @staticmethod
    def of(choice: Choice) -> VdlaTile:
        """The tile that a choice of knobs is."""
        channels, rows, columns = (int(choice[name]) for name in AXES)
        return VdlaTile(channels, rows, columns, int(choice["depth"]), int(choice["threads"]), str(choice["axis"]))

    @property
    def choice(self) -> dict[str, int | str]:
        """Its knobs."""
        return {name: getattr(self, name) for name in ("channels", "rows", "columns", "depth", "threads", "axis")}


def tiles_along(work: BlockedConv, tile: VdlaTile) -> dict[str, int]:
    """The number of tiles along each dimension of the output."""
    extents = {"channels": work.outputs, "rows": work.rows, "columns": work.columns}
    return {axis: extents[axis] // getattr(tile, axis) for axis in AXES}


def reason_against(work: BlockedConv, tile: VdlaTile, config: Config) -> str | None:
    """Reason against a tile: its parts do not divide the whole, or do not fit the memories; None if it can."""
    extents = {"channels": work.outputs, "rows": work.rows, "columns": work.columns, "depth": work.inputs}
    for name, extent in extents.items():
        if extent % getattr(tile, name):
            return f"{name} {getattr(tile, name)} does not divide {extent}"
    if tiles_along(work, tile)[tile.axis] % tile.threads:
        return f"{tiles_along(work, tile)[tile.axis]} tiles along {tile.axis} are not for {tile.threads} threads"
    height, width = work.window(tile.rows, tile.columns)
    needed = {
        "inp": tile.depth * height * width,
        "wgt": tile.channels * tile.depth * work.taps,
        "acc": tile.channels * tile.rows * tile.columns * (1 + work.beside) + work.outputs,
    }
    for name, entries in needed.items():
        if entries * tile.threads > config.memories[name].entries:
            return f"{tile.threads} x {entries} entries of '{name}' do not fit its {config.memories[name].entries}"
    return None


def cycles(work: BlockedConv, tile: VdlaTile, config: Config) -> float:
    """Cycles by a model: transfers of one thread run while another one computes; else one waits for the other."""
    b, count = config.block, work.batch
    for n in tiles_along(work, tile).values():
        count *= n
    steps = work.inputs // tile.depth
    height, width = work.window(tile.rows, tile.columns)
    results = tile.channels * tile.rows * tile.columns

    def moved(rows: int, row_bytes: int) -> float:
        return rows * -(-row_bytes // config.dram_burst) * config.dram_burst / config.dram_bytes

    images = tile.depth * (config.dram_latency + moved(height, width * b))
    weights = config.dram_latency + moved(tile.channels, tile.depth * work.taps * b * b)
    stored = tile.channels * (config.dram_latency + moved(tile.rows, tile.columns * b))
    multiplied = config.pipeline + results * tile.depth * work.taps
    others = (1 + work.vectors) * (config.pipeline + results) + work.beside * stored
    load, compute = steps * (images + weights), steps * multiplied + others
    if tile.threads == 1:
        return count * (load + compute + stored)
    bus = load + stored - (steps * (tile.depth + 1) + tile.channels) * config.dram_latency
    return count * max(load, compute, bus) + load / steps + stored


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def candidates(work: BlockedConv, config: Config, threads: tuple[int, ...] = (1, 2)) -> Iterator[VdlaTile]:
    """All tiles that fit."""
    extents = (work.outputs, work.rows, work.columns, work.inputs)
    most = config.memories["acc"].entries
    for channels, rows, columns in product(*map(_divisors, extents[:3])):
        if channels * rows * columns > most:
            continue
        for depth, count, axis in product(_divisors(extents[3]), threads, AXES):
            tile = VdlaTile(channels, rows, columns, depth, count, axis)
            if (count > 1 or axis == AXES[0]) and reason_against(work, tile, config) is None:
                yield tile


@cache
def best_tile(work: BlockedConv, config: Config, threads: tuple[int, ...] = (1, 2)) -> VdlaTile | None:
    """The tile of the fewest modelled cycles; None where none fits."""
    return min(candidates(work, config, threads), key=lambda t: cycles(work, t, config), default=None)


def space_of(work: BlockedConv, config: Config) -> ScheduleSpace:
    """The knobs of a tile; by default the best by the model. Raises ScheduleError where none fits."""
    best = best_tile(work, config)
    if best is None:
        raise ScheduleError(f"no tile of {work} fits the memories of '{config.name}'")
    knobs: dict[str, tuple[int | str, ...]] = {
        "channels": tuple(_divisors(work.outputs)), "rows": tuple(_divisors(work.rows)),
        "columns": tuple(_divisors(work.columns)), "depth": tuple(_divisors(work.inputs)), "threads": (1, 2, 4),
        "axis": AXES,
    }  # fmt: skip
    return ScheduleSpace(knobs, best.choice)


def checked_tile(work: BlockedConv, choice: Choice, config: Config) -> VdlaTile:
    """The tile of a choice. Raises ScheduleError where it cannot be."""
    tile = VdlaTile.of(choice)
    reason = reason_against(work, tile, config)
    if reason:
        raise ScheduleError(f"tile {dict(tile.choice)}: {reason}")
    return tile
