"""Windows over three and more spatial dimensions, by those over two for every tap of the first one."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.frontend.onnx.context import Context
from burnish.graph.graph import Attribute


def _every(c: Context, x: str, axis: int, start: int, count: int, step: int) -> str:
    """``count`` positions of ``x`` along ``axis`` from ``start`` on, ``step`` apart."""
    rank, shape = c.rank(x), c.shape(x)
    starts = tuple(start if d == axis else 0 for d in range(rank))
    extents = tuple(count if d == axis else shape[d] for d in range(rank))
    steps = tuple(step if d == axis and count > 1 else 1 for d in range(rank))
    return c.add("slice", x, starts=starts, extents=extents, steps=steps)


def _padded(c: Context, x: str, axis: int, low: int, high: int) -> str:
    """``x`` with zeros before and behind along ``axis``."""
    if not low and not high:
        return x
    rank = c.rank(x)
    pads = [0] * (2 * rank)
    pads[axis], pads[rank + axis] = low, high
    return c.add("pad", x, pads=tuple(pads))


def _sum(c: Context, parts: Sequence[str]) -> str:
    total = parts[0]
    for part in parts[1:]:
        total = c.add("add", total, part)
    return total


def _batched(c: Context, x: str) -> str:
    """[N, C, D, ...] as [N * D, C, ...]."""
    rank, (batch, channels, depth, *rest) = c.rank(x), c.shape(x)
    return c.reshape(c.transpose(x, (0, 2, 1, *range(3, rank))), (batch * depth, channels, *rest))


def _unbatched(c: Context, x: str, batch: int) -> str:
    """[N * D, C, ...] as [N, C, D, ...]."""
    both, channels, *rest = c.shape(x)
    split = c.reshape(x, (batch, both // batch, channels, *rest))
    return c.transpose(split, (0, 2, 1, *range(3, 3 + len(rest))))


def convolution(
    c: Context, x: str, weight: str, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], groups: int
) -> str:
    """The convolution of ``x`` [N, C, D, ...] with ``weight`` [O, C / groups, KD, ...], without a bias."""
    rank = len(strides)
    if rank == 2:
        return c.add(
            "conv2d", x, weight, strides=tuple(strides), pads=tuple(pads), dilations=tuple(dilations), groups=groups
        )
    x = _padded(c, x, 2, pads[0], pads[rank])
    taps, depth, batch = c.shape(weight)[2], c.shape(x)[2], c.shape(x)[0]
    count = (depth - (taps - 1) * dilations[0] - 1) // strides[0] + 1
    if count < 1:
        c.invalid("input 0", f"{depth} padded positions", f"at least those of the dilated kernel of {taps}")
    inner = (strides[1:], [*pads[1:rank], *pads[rank + 1 :]], dilations[1:], groups)
    parts = []
    for tap in range(taps):
        part = _batched(c, _every(c, x, 2, tap * dilations[0], count, strides[0]))
        own = c.slice(weight, 2, tap, tap + 1)
        parts.append(convolution(c, part, c.reshape(own, (*c.shape(own)[:2], *c.shape(own)[3:])), *inner))
    return _unbatched(c, _sum(c, parts), batch)


def transposed(
    c: Context,
    x: str,
    weight: str,
    strides: Sequence[int],
    pads: Sequence[int],
    extra: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> str:
    """The transposed convolution of ``x`` [N, C, D, ...] with ``weight`` [C, O / groups, KD, ...], without a bias.

    Every tap of the first dimension writes to positions ``strides[0]`` apart; ``extra`` is the output's padding.
    """
    rank = len(strides)
    if rank == 2:
        return c.add(
            "conv2d_transpose", x, weight, strides=tuple(strides), pads=tuple(pads), output_padding=tuple(extra),
            dilations=tuple(dilations), groups=groups,
        )  # fmt: skip
    batch, depth, taps, step = c.shape(x)[0], c.shape(x)[2], c.shape(weight)[2], strides[0]
    whole = (depth - 1) * step + (taps - 1) * dilations[0] + 1
    inner = (strides[1:], [*pads[1:rank], *pads[rank + 1 :]], extra[1:], dilations[1:], groups)
    parts = []
    for tap in range(taps):
        own = c.slice(weight, 2, tap, tap + 1)
        flat = c.reshape(own, (*c.shape(own)[:2], *c.shape(own)[3:]))
        part = _unbatched(c, transposed(c, _batched(c, x), flat, *inner), batch)
        shape = c.shape(part)
        apart = _padded(c, c.reshape(part, (*shape[:3], 1, *shape[3:])), 3, 0, step - 1)
        spread = c.reshape(apart, (*shape[:2], depth * step, *shape[3:]))
        first = tap * dilations[0]
        spread = c.slice(spread, 2, 0, (depth - 1) * step + 1)
        parts.append(_padded(c, spread, 2, first, whole - first - (depth - 1) * step - 1))
    total = _padded(c, _sum(c, parts), 2, 0, extra[0])
    return c.slice(total, 2, pads[0], c.shape(total)[2] - pads[rank])


def pool(
    c: Context,
    op: str,
    x: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    **attrs: Attribute,
) -> str:
    """Pooling of ``x`` [N, C, D, ...]: along the first dimension, then along the others of its results.

    A maximum, and a mean whose windows hold as many elements in one dimension wherever they are in another, are the
    same in any order.
    """
    rank = len(kernel)
    if rank == 2:
        return c.add(
            op, x, kernel=tuple(kernel), strides=tuple(strides), pads=tuple(pads), dilations=tuple(dilations), **attrs
        )
    batch, channels, depth, *rest = c.shape(x)
    flat = c.reshape(x, (batch, channels, depth, _product(rest)))
    first = c.add(
        op, flat, kernel=(kernel[0], 1), strides=(strides[0], 1), pads=(pads[0], 0, pads[rank], 0),
        dilations=(dilations[0], 1), **attrs,
    )  # fmt: skip
    count = c.shape(first)[2]
    images = c.reshape(first, (batch, channels * count, *rest))
    second = pool(c, op, images, kernel[1:], strides[1:], [*pads[1:rank], *pads[rank + 1 :]], dilations[1:], **attrs)
    return c.reshape(second, (batch, channels, count, *c.shape(second)[2:]))


def _product(extents: Sequence[int]) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total
