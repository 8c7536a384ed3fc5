"""Predicted time of a product on a GPU: by blocks of threads that share multiprocessors, and by what these move.

A multiprocessor holds as many blocks at once as their registers and shared memory leave room for. Each goes through the
depth in steps, of which some are fetched ahead. A step takes as long as the slowest of its products, what it moves
through shared memory, and what it fetches from the second-level cache; a block that is alone waits for its copies, too.
The slowest multiprocessor has one block more than the others unless they share evenly; memory may be slower than all.

Rates are the target's. The constants beside them are of the products that were measured on an H100 and an H200
(``benchmarks/results/gpu-products-h200.json``, ``gpu-h100.json``), which ``tests/gpu/test_product_time.py`` holds the
predictions against.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from burnish.kernels.gpu.fetching import PIECE, vector_of
from burnish.kernels.gpu.forms import ContractionForm, moves_fastest, narrow
from burnish.kernels.task import KernelTask
from burnish.loops.expr import ITEM_BYTES
from burnish.loops.traverse import loads
from burnish.machines.nvptx.occupancy import resident_blocks
from burnish.machines.target import Target

LAUNCH = 1.5e-6  # seconds from the end of a launch to the beginning of the next one's work
BEGIN = 1.2e-6  # until a block's first step has been fetched
LATENCY, FAR = 0.2e-6, 0.6e-6  # of a copy from the second-level cache, and from memory
SHARED = 187e9  # bytes a second through the shared memory of a multiprocessor: filled, and read
FETCHED = 1.8  # bytes a second of the second-level cache, by what is declared
MEMORY = 0.9  # of its declared bandwidth
STORED = 0.5  # of what memory takes, where a warp stores a few bytes of each row
SENT = 28e9  # bytes a second that the warps of a multiprocessor store, a piece of PIECE bytes a cycle; calculated
SHARPNESS = 4
COPY = 45e-12  # seconds of a multiprocessor for each copy that a thread makes
ADDED = 1.2e-6  # the second launch, which adds up parts of the depth, at least


def matrix_rate(target: Target) -> float:
    """Rate of the tensor cores of a multiprocessor, in operations a second, as declared."""
    return target.rates.matrix_flops if target.rates else 0.0


def flop_rate(target: Target) -> float:
    """Rate of a multiprocessor without its tensor cores, in operations a second."""
    return target.flops / target.cores


@dataclass(frozen=True)
class TileBlock:
    """Block of threads: what it computes, and what it takes.

    A tile of ``rows`` x ``columns``, ``depth`` elements of the depth a step, ``ahead`` steps fetched ahead;
    ``registers`` of each of its ``threads``, ``shared`` bytes, of which ``read`` are read in a step. ``rate``:
    operations a second of a multiprocessor. ``least``: seconds of a step of a block that is alone; ``delay``: what a
    step takes longer, divided by the blocks that are there.
    ``copies``: of a step, beyond those of PIECE bytes. ``choice``: the knobs. ``persistent``: as many blocks as run at
    a time go over all tiles.
    """

    rows: int
    columns: int
    depth: int
    ahead: int
    threads: int
    registers: int
    shared: int
    read: int
    rate: float
    least: float
    delay: float = 0.0
    copies: float = 0.0
    choice: tuple[tuple[str, int | str], ...] = ()
    persistent: bool = False

    def resident(self, target: Target) -> int:
        """Blocks of this kind on a multiprocessor at a time."""
        return max(1, resident_blocks(target.cpu, self.threads, self.registers, self.shared))

    def at_once(self, target: Target) -> int:
        """Blocks of this kind on all multiprocessors at a time."""
        return target.cores * self.resident(target)


@dataclass(frozen=True)
class ProductSize:
    """Product: sizes of batch, rows, columns and depth, bytes of an element of a factor and of the output, and bytes
    of both factors in memory. ``far``: whether these come from memory, as a model's weights do.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    item: int
    stored: int
    factors: float
    far: bool

    @staticmethod
    def of(form: ContractionForm, task: KernelTask, target: Target) -> ProductSize:
        """ProductSize of a form."""
        batch, rows, columns, depth = form.sizes
        left, right = narrow(form.left), narrow(form.right)
        item = max(ITEM_BYTES[e.dtype] for e in (left, right))
        read = {x.buffer.name: x.buffer.size * ITEM_BYTES[x.buffer.dtype] for e in (left, right) for x in loads(e)}
        factors = min(sum(read.values()), batch * depth * (rows + columns) * item)
        far = factors > target.l2_bytes // 2 or not task.constants.isdisjoint(read)
        return ProductSize(batch, rows, columns, depth, item, ITEM_BYTES[form.output.dtype], factors, far)

    def tiles(self, block: TileBlock) -> int:
        """Number of tiles of a block's size."""
        return self.batch * -(-self.rows // block.rows) * -(-self.columns // block.columns)

    def split(self, parts: int) -> ProductSize:
        """Product of all parts of the depth, as a batch of float32 sums."""
        if parts == 1:
            return self
        return replace(self, batch=self.batch * parts, depth=-(-self.depth // parts), stored=4)


def small_copies(form: ContractionForm, depth: int, sides: Sequence[int]) -> float:
    """Number of copies by which a step of ``depth`` takes more than pieces of PIECE bytes, of tiles of both factors."""
    found = 0.0
    for factor, group, side in zip((form.left, form.right), (form.rows, form.columns), sides, strict=True):
        stored, deep = narrow(factor), form.depth(depth)
        nearest = moves_fastest(factor, (deep, group))
        vector = vector_of(stored, group if nearest == 1 else deep)
        found += side * depth * (1.0 / vector - ITEM_BYTES[stored.dtype] / PIECE)
    return max(found, 0.0)


def overlapped(*parts: float) -> float:
    """Seconds of what goes on at a time: hardly more than the slowest, unless others take as long."""
    return float(sum(part**SHARPNESS for part in parts) ** (1 / SHARPNESS))


def fetch_seconds(nbytes: float, target: Target) -> float:
    """Seconds in which a multiprocessor fetches bytes from the second-level cache, of which it has its share."""
    return nbytes * target.cores / (FETCHED * target.cache_bandwidth)


def step_seconds(work: ProductSize, block: TileBlock, target: Target, count: int) -> float:
    """Seconds of a step of the depth, of ``count`` blocks at once on a multiprocessor."""
    rows, columns = min(block.rows, work.rows), min(block.columns, work.columns)
    filled = (block.rows + block.columns) * block.depth * work.item
    fetched = (rows + columns) * block.depth * work.item
    products = 2.0 * block.rows * block.columns * block.depth / block.rate
    busy = max(products, (filled + block.read) / SHARED, fetch_seconds(fetched, target)) + block.copies * COPY
    waits = max((FAR if work.far else LATENCY) / block.ahead, block.least)
    return overlapped(count * busy + block.delay / count, waits)


def store_seconds(work: ProductSize, block: TileBlock, target: Target) -> float:
    """Seconds in which a multiprocessor stores a tile of the output."""
    rows, columns = min(block.rows, work.rows), min(block.columns, work.columns)
    return rows * columns * work.stored / (target.memory_bandwidth / target.cores * STORED)


def seconds(work: ProductSize, block: TileBlock, target: Target) -> float:
    """Seconds of one launch, in which blocks of this kind compute the product."""
    steps, each = -(-work.depth // block.depth), ceil(work.tiles(block) / target.cores)
    resident, stored = block.resident(target), store_seconds(work, block, target)
    sent = min(block.rows, work.rows) * min(block.columns, work.columns) * work.stored / SENT

    def together(count: int, last: bool = True) -> float:
        """Seconds of some blocks at once on a multiprocessor. Persistent ones that go on after it leave their tile to
        memory meanwhile, whose bytes their warps have sent.
        """
        computed, storing = steps * step_seconds(work, block, target, count), count * stored
        if last or not block.persistent:
            return computed + storing
        return overlapped(computed + count * sent, storing)

    rounds, rest = divmod(each, resident)
    if rest:
        slowest = rounds * together(resident, False) + together(rest)
    else:
        slowest = (rounds - 1) * together(resident, False) + together(resident)
    beginnings = 1 if block.persistent else 1 + (ceil(each / resident) - 1) / resident
    moved = work.factors + work.batch * work.rows * work.columns * work.stored
    return LAUNCH + BEGIN * beginnings + overlapped(slowest, moved / (MEMORY * target.memory_bandwidth))


def added_seconds(work: ProductSize, parts: int, target: Target) -> float:
    """Seconds of the launch that adds up parts of the depth."""
    elements = work.batch * work.rows * work.columns
    moved = elements * (4.0 * parts / (FETCHED * target.cache_bandwidth) + work.stored / target.memory_bandwidth)
    return LAUNCH + ADDED + moved


def best(work: ProductSize, blocks: Iterable[TileBlock], target: Target) -> tuple[float, TileBlock]:
    """Fastest of some blocks, and its seconds; of equal ones that with the larger tile."""
    found = ((seconds(work, b, target), b) for b in blocks)
    return min(found, key=lambda pair: (pair[0], -pair[1].rows * pair[1].columns))
