"""N-dimensional windows: those over three and more spatial dimensions, by those over two."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Protocol

from burnish.graph.graph import Attribute
from burnish.loops.tensor import HALVES


class VolumeBuilder(Protocol):
    """Graph builder as the translations of both front ends use it."""

    def add(self, op: str, *inputs: str, **attrs: Attribute) -> str:
        """The single output of ``op``."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""

    def dtype(self, name: str) -> str:
        """Dtype of a tensor."""

    def rank(self, name: str) -> int:
        """The number of its dimensions."""

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """``x`` in another shape."""

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        """``x`` with permuted dimensions."""


def _every(c: VolumeBuilder, x: str, axis: int, start: int, count: int, step: int) -> str:
    """``count`` positions of ``x`` along ``axis`` from ``start`` on, ``step`` apart."""
    rank, shape = c.rank(x), c.shape(x)
    starts = tuple(start if d == axis else 0 for d in range(rank))
    extents = tuple(count if d == axis else shape[d] for d in range(rank))
    steps = tuple(step if d == axis and count > 1 else 1 for d in range(rank))
    return c.add("slice", x, starts=starts, extents=extents, steps=steps)


def _tap(c: VolumeBuilder, weight: str, tap: int) -> str:
    """The weight of one tap of the first spatial dimension, without that."""
    outputs, depth, _, *rest = c.shape(weight)
    return c.reshape(_every(c, weight, 2, tap, 1, 1), (outputs, depth, *rest))


def _padded(c: VolumeBuilder, x: str, axis: int, low: int, high: int) -> str:
    """``x`` with zeros before and behind along ``axis``."""
    if not low and not high:
        return x
    rank = c.rank(x)
    pads = [0] * (2 * rank)
    pads[axis], pads[rank + axis] = low, high
    return c.add("pad", x, pads=tuple(pads))


def _sum(c: VolumeBuilder, parts: Sequence[str]) -> str:
    total = parts[0]
    for part in parts[1:]:
        total = c.add("add", total, part)
    return total


def _batched(c: VolumeBuilder, x: str) -> str:
    """[N, C, D, ...] as [N * D, C, ...]."""
    rank, (batch, channels, depth, *rest) = c.rank(x), c.shape(x)
    return c.reshape(c.transpose(x, (0, 2, 1, *range(3, rank))), (batch * depth, channels, *rest))


def _unbatched(c: VolumeBuilder, x: str, batch: int) -> str:
    """[N * D, C, ...] as [N, C, D, ...]."""
    both, channels, *rest = c.shape(x)
    split = c.reshape(x, (batch, both // batch, channels, *rest))
    return c.transpose(split, (0, 2, 1, *range(3, 3 + len(rest))))


def convolution(
    c: VolumeBuilder,
    x: str,
    weight: str,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> str:
    """The convolution of ``x`` [N, C, D, ...] with ``weight`` [O, C / groups, KD, ...], without a bias.

    The taps of the first spatial dimension are channels of one convolution over the others.
    The padded input is no smaller than the dilated kernel.
    """
    rank = len(strides)
    if rank == 2:
        return c.add(
            "conv2d", x, weight, strides=tuple(strides), pads=tuple(pads), dilations=tuple(dilations), groups=groups
        )
    x = _padded(c, x, 2, pads[0], pads[rank])
    batch, channels, depth, *rest = c.shape(x)
    outputs, own, taps, *kernel = c.shape(weight)
    count = (depth - (taps - 1) * dilations[0] - 1) // strides[0] + 1
    parts = [_batched(c, _every(c, x, 2, tap * dilations[0], count, strides[0])) for tap in range(taps)]
    grouped = [c.reshape(part, (batch * count, groups, channels // groups, *rest)) for part in parts]
    image = c.add("concat", *grouped, axis=2) if taps > 1 else grouped[0]
    image = c.reshape(image, (batch * count, channels * taps, *rest))
    flat = c.transpose(weight, (0, 2, 1, *range(3, 3 + len(kernel))))
    flat = c.reshape(flat, (outputs, taps * own, *kernel))
    inner = (strides[1:], [*pads[1:rank], *pads[rank + 1 :]], dilations[1:], groups)
    return _unbatched(c, convolution(c, image, flat, *inner), batch)


def transposed(
    c: VolumeBuilder,
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
    rank, dtype = len(strides), c.dtype(x)
    if rank == 2:
        return c.add(
            "conv2d_transpose", x, weight, strides=tuple(strides), pads=tuple(pads), output_padding=tuple(extra),
            dilations=tuple(dilations), groups=groups,
        )  # fmt: skip
    if c.dtype(x) in HALVES:  # taps add up
        x, weight = (c.add("cast", t, to="float32") for t in (x, weight))
        return c.add("cast", transposed(c, x, weight, strides, pads, extra, dilations, groups), to=dtype)
    batch, depth, taps, step = c.shape(x)[0], c.shape(x)[2], c.shape(weight)[2], strides[0]
    whole = (depth - 1) * step + (taps - 1) * dilations[0] + 1
    inner = (strides[1:], [*pads[1:rank], *pads[rank + 1 :]], extra[1:], dilations[1:], groups)
    parts = []
    for tap in range(taps):
        part = _unbatched(c, transposed(c, _batched(c, x), _tap(c, weight, tap), *inner), batch)
        shape = c.shape(part)
        apart = _padded(c, c.reshape(part, (*shape[:3], 1, *shape[3:])), 3, 0, step - 1)
        spread = c.reshape(apart, (*shape[:2], depth * step, *shape[3:]))
        first = tap * dilations[0]
        spread = _every(c, spread, 2, 0, (depth - 1) * step + 1, 1)
        parts.append(_padded(c, spread, 2, first, whole - first - (depth - 1) * step - 1))
    total = _padded(c, _sum(c, parts), 2, 0, extra[0])
    return _every(c, total, 2, pads[0], c.shape(total)[2] - pads[0] - pads[rank], 1)


def pool(
    c: VolumeBuilder,
    op: str,
    x: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    **attrs: Attribute,
) -> str:
    """Pooling of ``x`` [N, C, D, ...]: over the last dimensions, then of those results along the first one.

    A maximum, and a mean whose windows hold as many elements in one dimension wherever they are in another, are the
    same in any order; in this one the first of equal greatest elements is that of the window as a whole.
    """
    rank = len(kernel)
    if rank == 2:
        return c.add(
            op, x, kernel=tuple(kernel), strides=tuple(strides), pads=tuple(pads), dilations=tuple(dilations), **attrs
        )
    batch, channels, depth, *rest = c.shape(x)
    images = c.reshape(x, (batch, channels * depth, *rest))
    around = [*pads[1:rank], *pads[rank + 1 :]]
    first = pool(c, op, images, kernel[1:], strides[1:], around, dilations[1:], **attrs)
    sizes = c.shape(first)[2:]
    flat = c.reshape(first, (batch, channels, depth, prod(sizes)))
    second = c.add(
        op, flat, kernel=(kernel[0], 1), strides=(strides[0], 1), pads=(pads[0], 0, pads[rank], 0),
        dilations=(dilations[0], 1), **attrs,
    )  # fmt: skip
    return c.reshape(second, (batch, channels, c.shape(second)[2], *sizes))
