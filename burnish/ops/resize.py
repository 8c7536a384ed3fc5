"""Resampling to another size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import frexp
from typing import NamedTuple

import numpy as np

from burnish.loops.expr import FLOATS, INDEX, Const, Expr, cast, math, maximum, minimum, wrap
from burnish.loops.sizes import is_size, least
from burnish.loops.tensor import Tensor, compute
from burnish.ops.operator import (
    Application,
    Composed,
    Floats,
    Ints,
    declare,
    differentiated,
    operator,
    require,
    require_input,
    wide,
)
from burnish.ops.separable import separable


class _Line(NamedTuple):
    """Output position i reads the source coordinate ``(i * factor + shift) / divisor - shift``, in float64."""

    factor: float
    shift: float
    divisor: float

    def at(self, i: np.ndarray) -> np.ndarray:
        return (i * self.factor + self.shift) / self.divisor - self.shift

    def expr(self, i: Expr) -> Expr:
        moved = cast("float64", i) * self.factor + self.shift
        exact = frexp(self.divisor)[0] == 0.5  # a power of two, whose reciprocal rounds nothing
        return (moved * (1.0 / self.divisor) if exact else moved / self.divisor) - self.shift


_ORIGIN = _Line(0.0, 0.0, 1.0)
# Extent in, extent out, scale -> line.
_COORDINATES: Mapping[str, Callable[[int, int, float], _Line]] = {
    "half_pixel": lambda n, m, scale: _Line(1.0, 0.5, scale),
    "pytorch_half_pixel": lambda n, m, scale: _Line(1.0, 0.5, scale) if m > 1 else _ORIGIN,
    "asymmetric": lambda n, m, scale: _Line(1.0, 0.0, scale),
    "align_corners": lambda n, m, scale: _Line(float(n - 1), 0.0, float(m - 1)) if m > 1 else _ORIGIN,
}
# Rounding of a coordinate: shift, then floor or ceil.
_ROUNDINGS: Mapping[str, tuple[str, float]] = {
    "round_prefer_floor": ("ceil", -0.5),
    "round_prefer_ceil": ("floor", 0.5),
    "floor": ("floor", 0.0),
    "ceil": ("ceil", 0.0),
}


def _resampled(a: Application) -> list[str | None] | None:
    """Gradient of resize by matrices along each resampled dimension; of an image whose elements are only repeated, the
    definition's.
    """
    shape, attrs = a.types[0][0], a.attrs
    sizes = attrs["sizes"]
    whole = all(m % n == 0 for m, n in zip(sizes, shape, strict=True) if n and m != n)
    if attrs["mode"] == "nearest" and whole and attrs["scales"] is None:
        return None
    scales = attrs["scales"] or tuple(1.0 if m == n or not n else m / n for m, n in zip(sizes, shape, strict=True))

    def along(x: Tensor, d: int) -> Tensor:
        own = {**attrs, "sizes": (sizes[d], shape[d]), "scales": (scales[d], 1.0)}
        return resize.define("y", [x], own)[0]

    moved = [d for d, (m, n, s) in enumerate(zip(sizes, shape, scales, strict=True)) if m != n or s != 1.0]
    return [separable(a, moved, along)]


@differentiated(Composed(_resampled))
@declare(layout_affinity=1.0)
@operator
def resize(
    name: str,
    x: Tensor,
    *,
    sizes: Ints,
    scales: Floats | None = None,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
) -> Tensor:
    """``x`` resampled to shape ``sizes``; ``scales`` (output / input, one a dimension) places the samples.

    ``mode`` is nearest or linear, ``coordinates`` and ``rounding`` are ONNX's coordinate_transformation_mode and
    nearest_mode. Positions beyond the edge read the edge. An extent that is open stays what it is.
    """
    rank = len(x.shape)
    ok = len(sizes) == rank and min(map(least, sizes), default=0) >= 0
    require(ok, "attribute 'sizes'", list(sizes), f"{rank} extents")
    kept = [m == n and is_size(m) for m, n in zip(sizes, x.shape, strict=True)]
    for d, (m, n) in enumerate(zip(sizes, x.shape, strict=True)):
        fixed = kept[d] or not (is_size(m) or is_size(n))
        require(fixed, "attribute 'sizes'", list(sizes), f"a number in dimension {d}, resampled from {n}")
    scales = scales or tuple(m / n if n and not k else 1.0 for m, n, k in zip(sizes, x.shape, kept, strict=True))
    ok = len(scales) == rank and min(scales, default=1) > 0
    require(ok, "attribute 'scales'", list(scales), f"{rank} positive numbers")
    require(mode in ("nearest", "linear"), "attribute 'mode'", mode, "nearest, linear")
    require(coordinates in _COORDINATES, "attribute 'coordinates'", coordinates, ", ".join(_COORDINATES))
    require(rounding in _ROUNDINGS, "attribute 'rounding'", rounding, ", ".join(_ROUNDINGS))
    lines = [
        _ORIGIN if k else _COORDINATES[coordinates](n, m, scale)
        for k, n, m, scale in zip(kept, x.shape, sizes, scales, strict=True)
    ]
    same = [k or (n == m and (n == 1 or line.factor == line.divisor))
            for k, n, m, line in zip(kept, x.shape, sizes, lines, strict=True)]  # fmt: skip
    moved = [d for d in range(rank) if not same[d]]
    if mode == "nearest":

        def nearest(*i: Expr) -> Expr:
            source = list(i)
            for d in moved:
                source[d] = _nearest(i[d], x.shape[d], sizes[d], lines[d], rounding)
            return x[tuple(source)]

        return compute(sizes, nearest, name)
    require_input(x, "x", dtype=FLOATS)

    grows = [d for d in moved if not is_size(sizes[d]) and sizes[d] > x.shape[d]]
    ahead = moved[1:] if len(grows) == len(moved) > 1 else []
    columns = _interpolated(f"{name}.columns", x, sizes, ahead, lines) if ahead else x
    rest = [d for d in moved if d not in ahead]

    def linear(*i: Expr) -> Expr:
        return cast(x.dtype, _interpolate(columns, list(i), rest, lines))

    return compute(sizes, linear, name)


def _nearest(i: Expr, extent: int, size: int, line: _Line, rounding: str) -> Expr:
    """The source position of output position ``i``: integer arithmetic where that is the same for every ``i``."""
    direction, shift = _ROUNDINGS[rounding]
    places = np.arange(size, dtype=np.int64)
    rounded = (np.ceil if direction == "ceil" else np.floor)(line.at(places.astype(np.float64)) + shift)
    table = np.clip(rounded, 0, extent - 1).astype(np.int64)
    up = max(round(line.divisor / line.factor), 1) if line.factor else size
    if np.array_equal(table, places // up):
        return i // up
    down = int(table[1] - table[0]) if size > 1 else 1
    if np.array_equal(table, places * down + table[0]):
        return i * down + int(table[0])
    position = math(direction, line.expr(i) + shift)
    return minimum(maximum(cast(INDEX, position), 0), extent - 1)


def _interpolated(name: str, x: Tensor, sizes: Ints, dims: list[int], lines: list[_Line]) -> Tensor:
    """``x`` resampled along ``dims`` alone: what all rows that lie between two of these read."""
    shape = tuple(sizes[d] if d in dims else n for d, n in enumerate(x.shape))
    return compute(shape, lambda *i: _interpolate(x, list(i), dims, lines), name)


def _interpolate(x: Tensor, index: list[Expr], dims: list[int], lines: list[_Line]) -> Expr:
    """Linear interpolation along ``dims``, the last one innermost; ``index`` holds output positions at ``dims``."""
    if not dims:
        return wide(x[tuple(index)])
    d, rest = dims[0], dims[1:]
    top = x.shape[d] - 1
    if top == 0:
        return _interpolate(x, [*index[:d], wrap(0), *index[d + 1 :]], rest, lines)
    coordinate = minimum(maximum(lines[d].expr(index[d]), 0), Const(float(top), "float64"))
    before = cast(INDEX, coordinate)  # truncation is floor: the coordinate is not negative
    after = minimum(before + 1, top)
    low = _interpolate(x, [*index[:d], before, *index[d + 1 :]], rest, lines)
    high = _interpolate(x, [*index[:d], after, *index[d + 1 :]], rest, lines)
    weight = cast(low.dtype, coordinate - cast("float64", before))
    return low + (high - low) * weight


OPERATORS = (resize,)
