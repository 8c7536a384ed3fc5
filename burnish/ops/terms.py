"""Terms of tensors: what compositions of operators are written with, as one writes arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.loops.sizes import is_size
from burnish.ops.operator import Application


@dataclass(frozen=True, eq=False)
class GraphTerm:
    """Graph term: a tensor in a graph that is being made; arithmetic with numbers and other terms adds nodes to it."""

    a: Application
    name: str
    dtype: str

    @classmethod
    def of(cls, a: Application, number: int) -> GraphTerm:
        """An input of the operator."""
        return cls(a, a.inputs[number], a.types[number][1])

    @classmethod
    def constant(cls, a: Application, value: Any, dtype: str) -> GraphTerm:
        """An array, or a number."""
        return cls(a, a.emit.constant(np.asarray(value), dtype=dtype), dtype)

    @classmethod
    def places(cls, a: Application, extent: int) -> GraphTerm:
        """The numbers from 0 to ``extent``, int64 [extent]: a constant unless the extent is open."""
        if not is_size(extent):
            return cls.constant(a, np.arange(extent), "int64")
        return cls.constant(a, 0, "int64").apply("iota", extent=extent)

    def apply(self, op: str, *others: GraphTerm | float | int, dtype: str | None = None, **attrs: Any) -> GraphTerm:
        """The result of an operator, of the same dtype or of another; numbers are constants of this term's dtype."""
        names = [o.name if isinstance(o, GraphTerm) else GraphTerm.constant(self.a, o, self.dtype).name for o in others]
        return GraphTerm(self.a, self.a.add(op, self.name, *names, **attrs), dtype or self.dtype)

    def cast(self, dtype: str) -> GraphTerm:
        """The same numbers in another dtype."""
        return self if dtype == self.dtype else self.apply("cast", dtype=dtype, to=dtype)

    def reshape(self, *shape: int) -> GraphTerm:
        """Reshape to another shape."""
        return self.apply("reshape", shape=shape)

    def transpose(self, *perm: int) -> GraphTerm:
        """Transpose: dimensions in another order."""
        return self if perm == tuple(range(len(perm))) else self.apply("transpose", perm=perm)

    def expand(self, *shape: int) -> GraphTerm:
        """Broadcast."""
        return self.apply("expand", shape=shape)

    def part(self, shape: Sequence[int], axis: int, start: int, extent: int = 1) -> GraphTerm:
        """``extent`` elements along one axis; ``shape`` is this term's own."""
        starts = tuple(start if d == axis else 0 for d in range(len(shape)))
        extents = tuple(extent if d == axis else n for d, n in enumerate(shape))
        return self.apply("slice", starts=starts, extents=extents)

    def rows(self, index: GraphTerm) -> GraphTerm:
        """Rows, the elements of the first dimension, at the positions of ``index``."""
        return self.apply("gather", index, axis=0)

    def choose(self, yes: GraphTerm, no: GraphTerm | float) -> GraphTerm:
        """Select by this condition: ``yes`` where it holds, else ``no``."""
        other = no if isinstance(no, GraphTerm) else GraphTerm.constant(self.a, no, yes.dtype)
        return self.apply("where", yes, other, dtype=yes.dtype)

    def clip(self, low: float, high: float) -> GraphTerm:
        """Within bounds."""
        return self.apply("clip", min=low, max=high)

    def __add__(self, other: GraphTerm | float) -> GraphTerm:
        return self.apply("add", other)

    def __sub__(self, other: GraphTerm | float) -> GraphTerm:
        return self.apply("sub", other)

    def __mul__(self, other: GraphTerm | float) -> GraphTerm:
        return self.apply("mul", other)

    def __truediv__(self, other: GraphTerm | float) -> GraphTerm:
        return self.apply("div", other)

    def __mod__(self, other: GraphTerm | float) -> GraphTerm:
        return self.apply("mod", other)

    def __lt__(self, other: GraphTerm | float) -> GraphTerm:
        return self.apply("less", other, dtype="bool")

    def __le__(self, other: GraphTerm | float) -> GraphTerm:
        return self.apply("less_equal", other, dtype="bool")

    def __gt__(self, other: GraphTerm | float) -> GraphTerm:
        return self.apply("greater", other, dtype="bool")

    def __ge__(self, other: GraphTerm | float) -> GraphTerm:
        return self.apply("greater_equal", other, dtype="bool")

    def __and__(self, other: GraphTerm) -> GraphTerm:
        return self.apply("logical_and", other)

    def __or__(self, other: GraphTerm) -> GraphTerm:
        return self.apply("logical_or", other)

    __radd__ = __add__
    __rmul__ = __mul__
