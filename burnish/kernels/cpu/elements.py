"""Register tiles of CPUs that multiply a vector by an element of another: which fit, and what a step of one takes."""

from __future__ import annotations

from burnish.machines.target import Target


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
