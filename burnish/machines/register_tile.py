"""Register tiles of products: accumulators that fit the register file, and the cycles of a step of one."""

from __future__ import annotations

from collections.abc import Callable

from burnish.machines.target import Target

UNEVEN = 1.15  # what the busiest core may have over an even share, before a less efficient tile is looked for


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


def unevenness(jobs: int, cores: int) -> float:
    """Load of the busiest of ``cores`` over an even share of ``jobs`` equal ones; 1 up to ``UNEVEN``."""
    most = -(-jobs // cores) * cores / jobs
    return most if most > UNEVEN else 1.0


def most_positions(target: Target, vectors: int) -> int:
    """Positions of the largest tile of ``vectors`` vectors."""
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
) -> tuple[int, int]:
    """(positions, vectors) of the accumulator tile for ``width`` positions and ``blocks`` channel blocks.

    Minimises cycles: a step costs ``positions * vectors / 2`` (two multiply-adds a cycle), and no less than the
    multiply-add latency of 4; the last, partial tile of a row counts as its own size. The tile, one vector of each
    operand's block and one broadcast must fit the register file, and the tile's channels divide the blocks there are.
    ``whole``: prefer tiles that divide the width, so that they can run in parallel. ``padded``: the last tile of a row
    is computed as a whole. ``shared``: the neighbouring positions whose factors lie in one vector, of a target that
    multiplies by elements. ``jobs``: what the cores of a target share, by positions and vectors of a tile.
    """
    best: tuple[float, int, int] | None = None
    for vectors in (v for v in (4, 3, 2, 1) if blocks % v == 0):
        most = most_positions(target, vectors)
        for positions in range(1, min(width, most) + 1):
            if target.element_lanes and positions > 1 and not fits_elements(target, positions, vectors, shared):
                break
            full, rest = divmod(width, positions)
            if whole and rest and positions > 1 and any(width % p == 0 for p in range(5, most + 1)):
                continue
            last = tile_step(positions if padded else rest, vectors, target, shared) if rest else 0
            cost = full * tile_step(positions, vectors, target, shared) + last
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
