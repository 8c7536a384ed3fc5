"""Two-dimensional pooling over NCHW windows. Pooling over all positions is a reduction."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.loops.expr import FLOATS, Axis, Expr, Var, all_of, cast, maximum, minimum, select
from burnish.loops.reduction import identity
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import max as max_over
from burnish.loops.tensor import sum as sum_over
from burnish.ops.convolution import padded, require_window, window_extent
from burnish.ops.operator import NUMBERS, Ints, declare, operator, require, require_input, wide


def _windows(size: int, kernel: int, stride: int, low: int, high: int, dilation: int, ceil_mode: bool) -> int:
    """Number of windows; with ``ceil_mode`` also a last partial one that starts inside the input or its low padding."""
    if not ceil_mode:
        return window_extent(size, kernel, stride, low, high, dilation)
    count = -(-(size + low + high - dilation * (kernel - 1) - 1) // stride) + 1
    return count - 1 if (count - 1) * stride >= size + low else count


def _extents(
    x: Tensor, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: bool
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Output height and width, and the padding below and to the right that the last windows reach into."""
    require_input(x, "x", 4, "[N, C, H, W]")
    require_window(strides, pads, dilations)
    require(len(kernel) == 2 and min(kernel) > 0, "attribute 'kernel'", list(kernel), "two positive integers")
    size, high = [], []
    for d in (0, 1):
        count = _windows(x.shape[2 + d], kernel[d], strides[d], pads[d], pads[2 + d], dilations[d], ceil_mode)
        found = f"shape {list(x.shape)} with pads {list(pads)}"
        require(count > 0, "input 'x'", found, f"an input of at least the dilated kernel, {list(kernel)}")
        end = (count - 1) * strides[d] + dilations[d] * (kernel[d] - 1) + 1
        size.append(count)
        high.append(max(pads[2 + d] if not ceil_mode else 0, end - pads[d] - x.shape[2 + d]))
    return (size[0], size[1]), (high[0], high[1])


class _Taps:
    """The elements of a window. One that is larger than the image has no more than the image has, along a dimension."""

    def __init__(self, x: Tensor, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints) -> None:
        self._kernel, self._strides, self._pads, self._dilations = kernel, strides, pads, dilations
        self._size = x.shape[2:]
        self._larger = [dilations[d] == 1 and kernel[d] > x.shape[2 + d] for d in (0, 1)]

    def around(self, pads: Sequence[int]) -> tuple[int, ...]:
        """The padding that is read: none where elements of the image are counted instead of those of the window."""
        return tuple(0 if larger else pad for larger, pad in zip(self._larger, pads, strict=True))

    def of(self, oh: Expr, ow: Expr) -> tuple[tuple[Axis, ...], tuple[Expr, ...], Expr | None]:
        """Reduction axes, the row and the column in the padded image, and where they count (None: everywhere)."""
        axes, places, inside = [], [], []
        for d, position in enumerate((oh, ow)):
            begin = position * self._strides[d]
            axis = reduce_axis(self._size[d] if self._larger[d] else self._kernel[d], ("kh", "kw")[d])
            axes.append(axis)
            if self._larger[d]:
                tap = axis.var - begin + self._pads[d]
                inside += [tap >= 0, tap < self._kernel[d]]
            places.append(axis.var if self._larger[d] else begin + axis.var * self._dilations[d])
        return tuple(axes), tuple(places), all_of(*inside) if inside else None


@declare(layout_affinity=2.0)
@operator
def max_pool2d(
    name: str,
    x: Tensor,
    *,
    kernel: Ints,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    dilations: Ints = (1, 1),
    ceil_mode: bool = False,
) -> Tensor:
    """Greatest element of each window of ``x`` [N, C, H, W]; ``pads``: top, left, bottom, right. Stage ``name.pad``."""
    require_input(x, "x", dtype=NUMBERS)
    size, high = _extents(x, kernel, strides, pads, dilations, ceil_mode)
    lowest = identity("max", x.dtype).value
    taps = _Taps(x, kernel, strides, pads, dilations)
    image = padded(f"{name}.pad", x, (0, 0, *taps.around(pads[:2])), (0, 0, *taps.around(high)), lowest)

    def element(n: Var, c: Var, oh: Var, ow: Var) -> Expr:
        axes, (row, column), inside = taps.of(oh, ow)
        value = image[n, c, row, column]
        return max_over(select(inside, value, lowest) if inside is not None else value, axes)

    return compute((*x.shape[:2], *size), element, name)


@declare(layout_affinity=2.0)
@operator
def avg_pool2d(
    name: str,
    x: Tensor,
    *,
    kernel: Ints,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    dilations: Ints = (1, 1),
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Tensor:
    """Mean of each window of ``x`` [N, C, H, W]; ``count_include_pad`` counts padding (never what ``ceil_mode`` adds).

    Stages ``name.pad``, ``name.sum``, and ``name.count`` [OH, OW] where windows hold unequal numbers of elements.
    """
    require_input(x, "x", dtype=FLOATS)
    size, high = _extents(x, kernel, strides, pads, dilations, ceil_mode)
    found = _Taps(x, kernel, strides, pads, dilations)
    image = padded(f"{name}.pad", x, (0, 0, *found.around(pads[:2])), (0, 0, *found.around(high)))

    def window(n: Var, c: Var, oh: Var, ow: Var) -> Expr:
        axes, (row, column), inside = found.of(oh, ow)
        value = wide(image[n, c, row, column])
        return sum_over(select(inside, value, 0) if inside is not None else value, axes)

    total = compute((*x.shape[:2], *size), window, f"{name}.sum")
    counted = pads if count_include_pad else (0, 0, 0, 0)

    def taps(position: Var, d: int) -> Expr:
        """Number of taps of the window at ``position`` that fall on counted elements along dimension ``d``."""
        start = position * strides[d] - pads[d]
        first = maximum((-counted[d] - start + dilations[d] - 1) // dilations[d], 0)
        last = minimum((x.shape[2 + d] + counted[2 + d] - 1 - start) // dilations[d] + 1, kernel[d])
        return last - first

    if all(counted[d] == pads[d] and high[d] <= counted[2 + d] for d in (0, 1)):
        area = float(kernel[0] * kernel[1])
        return compute(total.shape, lambda *i: cast(x.dtype, total[i] / area), name)
    count = compute(size, lambda oh, ow: cast(total.dtype, taps(oh, 0) * taps(ow, 1)), f"{name}.count")
    return compute(total.shape, lambda *i: cast(x.dtype, total[i] / count[i[2:]]), name)


OPERATORS = (max_pool2d, avg_pool2d)
