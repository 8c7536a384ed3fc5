"""Layers of integers that tests compile."""

from __future__ import annotations

from typing import Any

import numpy as np

from burnish.graph import Graph, GraphBuilder


def integers(*shape: int, seed: int = 0, high: int = 128, dtype: str = "int8") -> np.ndarray:
    return np.random.default_rng(seed).integers(-high, high, shape, dtype=dtype)


def requantize(g: GraphBuilder, y: str, bias: np.ndarray, shift: int, beside: str = "", relu: bool = True) -> str:
    """``clip((y + bias >> shift) + beside)`` as int8."""
    y = g.add("shift_right", g.add("add", y, g.constant(bias)), g.constant(np.int32(shift)))
    y = g.add("add", y, g.add("cast", beside, to="int32")) if beside else y
    return g.add("cast", g.add("clip", y, min=0 if relu else -128, max=127), to="int8")


def convolution(
    shape: tuple[int, ...], weight: tuple[int, ...], beside: bool = False, relu: bool = True, **attrs: Any
) -> Graph:
    g = GraphBuilder()
    x = g.input("x", shape, "int8")
    y = g.add("conv2d", x, g.constant(integers(*weight, seed=1)), **attrs)
    bias = integers(weight[0], 1, 1, seed=2, high=3000, dtype="int32")
    return g.build(requantize(g, y, bias, 9, x if beside else "", relu))


def product(rows: int, depth: int, columns: int) -> Graph:
    g = GraphBuilder()
    y = g.add("matmul", g.input("x", (rows, depth), "int8"), g.constant(integers(depth, columns, seed=1)))
    return g.build(requantize(g, y, integers(columns, seed=2, high=3000, dtype="int32"), 8))
