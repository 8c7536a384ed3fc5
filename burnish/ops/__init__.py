"""Operators: one block each, an index-expression definition with its attributes. `OPERATORS` lists them all."""

from __future__ import annotations

from collections.abc import Mapping

from burnish.ops import (
    convolution,
    elementwise,
    indexing,
    matmul,
    movement,
    normalize,
    pool,
    recurrent,
    reduce,
    resize,
)
from burnish.ops.operator import REQUIRED, Operator, infer

__all__ = ["OPERATORS", "REQUIRED", "Operator", "infer"]

_FAMILIES = (elementwise, matmul, convolution, pool, reduce, normalize, movement, indexing, resize, recurrent)
OPERATORS: Mapping[str, Operator] = {op.name: op for family in _FAMILIES for op in family.OPERATORS}
