"""Register tiles of products: accumulators that fit the register file, and the cycles of a step of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from burnish.machines.target import Target

MOST_ACROSS, MOST_HIGH = 6, 8  # vectors of a row and rows of a register tile of columns
LINE_BYTES = 64  # of a cache line
FAR = 140.0  # cycles until a run of memory arrives that nobody fetches ahead
SHUFFLE = 3.0  # cycles to gather a vector of strided columns out of whole ones
COUNTED, ON_THE_WAY = 3, 6  # instructions of a product of words of bits, and registers of what is being counted
UNEVEN = 1.25  # what the busiest core may have over an even share, before a less efficient tile is looked for


def fits_elements(target: Target, positions: int, vectors: int, shared: int = 1) -> bool:
    """Whether a tile fits the register file, with the vectors of a step and those whose elements are its factors.

    The latter are one for ``shared`` positions; where that is one, it holds those of several steps.
    """
    return positions * vectors + -(-positions // shared) + vectors + 1 <= target.vector_registers


def element_step(target: Target, positions: int, vectors: int, shared: int = 1) -> float:
    """Instructions of one reduction step of a tile whose factors are elements: multiply-adds, no fewer than their
    latency, loads of two vectors each, and a part of what a loop takes.
    """
    factors = positions / target.element_lanes if shared == 1 else positions // shared + positions % shared
    return max(positions * vectors, 8) + (factors + vectors) / 2 + 3 / target.element_lanes


def fits_counted(target: Target, positions: int, vectors: int) -> bool:
    """Whether a tile of products of words of bits fits the register file, with what is on the way to its sums."""
    return positions * vectors + vectors + ON_THE_WAY <= target.vector_registers


def counted_step(positions: int, vectors: int, target: Target) -> float:
    """Cycles of one reduction step of a tile of products of words of bits, whose instructions begin in order, by twos:
    a word of each position is broadcast.
    """
    del target
    return (COUNTED * positions * vectors + positions + vectors) / 2


def unevenness(jobs: int, cores: int) -> float:
    """Load imbalance of equal ``jobs``: what the busiest of ``cores`` has over an even share; 1 up to ``UNEVEN``."""
    most = -(-jobs // cores) * cores / jobs
    return most if most > UNEVEN else 1.0


def most_positions(target: Target, vectors: int) -> int:
    """Largest register tile with ``vectors`` vectors: its positions."""
    # Of single vectors: with few registers a broadcast is an instruction, of which LLVM begins several at once.
    single = max(1, target.vector_registers - (4 if target.vector_registers < 32 else 2))
    return (target.vector_registers - vectors - 1) // vectors if vectors > 1 else single


def register_tile(
    target: Target,
    width: int,
    blocks: int,
    whole: bool = False,
    padded: bool = False,
    shared: int = 1,
    jobs: Callable[[int, int], int] | None = None,
    counted: bool = False,
) -> tuple[int, int]:
    """(positions, vectors) of the accumulator tile for ``width`` positions and ``blocks`` channel blocks.

    Minimises cycles: a step costs ``positions * vectors / 2`` (two multiply-adds a cycle), and no less than the
    multiply-add latency of 4; the last, partial tile of a row counts as its own size. The tile, one vector of each
    operand's block and one broadcast must fit the register file, and the tile's channels divide the blocks there are.
    ``whole``: prefer tiles that divide the width, so that they can run in parallel. ``padded``: the last tile of a row
    is computed as a whole. ``shared``: the neighbouring positions whose factors lie in one vector, of a target that
    multiplies by elements. ``jobs``: what the cores of a target share, by positions and vectors of a tile. ``counted``:
    products are of words of bits, by several instructions, none of which takes an element.
    """
    best: tuple[float, int, int] | None = None
    counted = counted and target.element_lanes > 0
    step = counted_step if counted else partial(tile_step, shared=shared)
    fits = fits_counted if counted else partial(fits_elements, shared=shared)
    for vectors in (v for v in (4, 3, 2, 1) if blocks % v == 0):
        most = most_positions(target, vectors)
        for positions in range(1, min(width, most) + 1):
            if target.element_lanes and positions > 1 and not fits(target, positions, vectors):
                break
            full, rest = divmod(width, positions)
            if whole and rest and positions > 1 and any(width % p == 0 for p in range(5, most + 1)):
                continue
            last = step(positions if padded else rest, vectors, target) if rest else 0
            cost = full * step(positions, vectors, target) + last
            uneven = unevenness(jobs(positions, vectors), target.cores) if jobs else 1.0
            key = (cost * (blocks // vectors) * uneven + 0.01 * abs(vectors - 2), -positions, vectors)
            if best is None or key < best:
                best = key
    assert best is not None
    return -best[1], best[2]


def tile_step(positions: int, vectors: int, target: Target, shared: int = 1) -> float:
    """Cycles of one reduction step of a tile: multiply-adds, loads (two a cycle), latency."""
    if target.element_lanes:
        return element_step(target, positions, vectors, shared) / 2
    return max(positions * vectors / 2, (positions + vectors) / 2, 4.0) + 0.5


@dataclass(frozen=True)
class RowTile:
    """A register tile of ``channels`` times ``rows`` times ``vectors`` of ``length`` neighbouring columns."""

    channels: int
    rows: int
    vectors: int
    length: int

    @property
    def columns(self) -> int:
        """Columns of a row."""
        return self.vectors * self.length


@dataclass(frozen=True)
class Rows:
    """Row-major images that a convolution writes: ``channels`` of a group, ``height``, ``width``.

    ``stride``: that of its columns; ``whole``: tiles of channels must be equal, so that none reaches into two groups;
    ``far``: each step reads a run of memory of its own, from behind the second cache.
    """

    channels: int
    height: int
    width: int
    stride: int = 1
    whole: bool = False
    far: bool = False


ROW_REGISTERS = 3  # of the smallest tile of `row_tile`: a sum, a vector of columns, a weight


def row_tile(target: Target, rows: Rows) -> tuple[RowTile, float]:
    """(the register tile of vectors of columns, its cycles for one reduction step of all elements of an image).

    The target has `ROW_REGISTERS` vector registers or more.
    Whole and half vectors are considered: few columns fill the latter better, and cores that multiply half a register
    at once lose nothing by them. The last tile of a row is a whole one, that of the channels has those that are left.
    """
    best: tuple[float, int, RowTile] | None = None
    for length in lengths(target):
        across = -(-rows.width // length)
        for vectors in range(1, min(across, MOST_ACROSS) + 1):
            most_high = (
                MOST_HIGH if vectors == across else 1
            )  # of parts of rows, runs of memory are longer than of several
            for high in (n for n in range(1, most_high + 1) if rows.height % n == 0):
                step, pixels = partial(_row_step, target, rows.stride, high * vectors, length), high * vectors
                most = (target.vector_registers - pixels - 1) // pixels
                tiles = -(-across // vectors) * (rows.height // high)
                for channels in range(1, min(most, rows.channels) + 1):
                    full, rest = divmod(rows.channels, channels)
                    if rest and rows.whole:
                        continue
                    own = full * step(channels) + (step(rest) if rest else 0.0)
                    cycles = tiles * (own + high * FAR * rows.far)
                    key = (cycles, -length * vectors, RowTile(channels, high, vectors, length))
                    if best is None or key[:2] < best[:2]:
                        best = key
    assert best is not None
    return best[2], best[0]


def lengths(target: Target) -> tuple[int, ...]:
    """Lengths of vectors of columns: whole registers, and half ones of more than four elements."""
    return tuple(dict.fromkeys((target.lanes, max(target.lanes // 2, 4))))


def _row_step(target: Target, stride: int, pixels: int, length: int, channels: int) -> float:
    """Cycles of one reduction step of a tile with ``pixels`` vectors: multiply-adds, loads, of which those of whole
    registers straddle cache lines, shuffles of strided ones, latency.
    """
    multiply = max(1.0, 4 * length / target.multiply_bytes) / 2
    loads = pixels * (2 if 4 * length >= LINE_BYTES else 1) * stride
    if target.element_lanes:  # whose instructions begin in order
        whole, rest = divmod(channels, target.element_lanes)
        return (max(channels * pixels, 8) + whole + rest + loads + pixels * (stride - 1) * SHUFFLE) / 2 + 0.5
    shuffles = pixels * (stride - 1) * SHUFFLE
    return max(channels * pixels * multiply + shuffles, (channels + loads) / 2, 4.0) + 0.5


def direct_cycles(target: Target, width: int, height: int, blocks: int, arriving: float = 0.0) -> float:
    """Cycles of one reduction step of all elements of an image in tiles of channel vectors.

    ``arriving``: those until a tile's run of memory is there, which each group of channels reads.
    """
    positions, vectors = register_tile(target, width, blocks)
    slower = target.vector_bytes / target.multiply_bytes

    def step(pixels: int) -> float:
        if target.element_lanes:
            return tile_step(pixels, vectors, target)
        return max(pixels * vectors * slower / 2, (pixels + vectors) / 2, 4.0) + 0.5

    full, rest = divmod(width, positions)
    row = full * step(positions) + (step(rest) if rest else 0.0) + arriving * -(-width // positions)
    return height * (blocks // vectors) * row
