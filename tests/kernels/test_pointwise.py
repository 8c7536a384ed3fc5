"""1×1 convolutions of row-major images in vectors of pixels, against the definition, between forbidden pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from burnish.kernels.cpu.pointwise import POINTWISE_CONV
from burnish.kernels.task import KernelTask
from burnish.loops.expr import maximum
from burnish.loops.layout import layout
from burnish.loops.tensor import Tensor, compute, placeholder, stages
from burnish.machines.target import host, target
from burnish.ops import OPERATORS
from burnish.pipeline.kernel import schedule

AVX512 = target("x86-64-v4")


def layer(shape: tuple[int, ...], outputs: int, **attrs: object) -> Tensor:
    """relu(conv2d(x, w) + b + r)."""
    x, w = placeholder(shape, name="x"), placeholder((outputs, shape[1], 1, 1), name="w")
    (y,) = OPERATORS["conv2d"].define("y", [x, w], attrs)
    bias, skip = placeholder((outputs, 1, 1), name="b"), placeholder(y.shape, name="r")
    return compute(y.shape, lambda n, c, h, v: maximum(y[n, c, h, v] + bias[c, 0, 0] + skip[n, c, h, v], 0.0), "out")


def task(result: Tensor, **layouts: str) -> KernelTask:
    inputs = tuple(t for t in stages([result]) if t.body is None)
    return KernelTask(
        "kernel", inputs, (result,), "conv2d", {n: layout(t) for n, t in layouts.items()}, frozenset("wb")
    )


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize(("batch", "depth", "outputs", "vectors"), [(1, 16, 32, 4), (2, 7, 13, 6), (1, 1, 1, 2)])
def test_default_tiles(
    check: Callable[..., object], batch: int, depth: int, outputs: int, vectors: int, edge: str
) -> None:
    """Channels that the tile does not divide, odd depths, and several images."""
    check(POINTWISE_CONV, "conv2d", [layer((batch, depth, 1, vectors * host().lanes), outputs)], "wb", edge=edge)


@pytest.mark.parametrize("unroll", [1, 2, 4])
@pytest.mark.parametrize(("rows", "vectors"), [(1, 1), (6, 4), (5, 3), (14, 2), (3, 8)])
def test_every_tile(check: Callable[..., object], rows: int, vectors: int, unroll: int) -> None:
    """Tiles that divide neither the channels nor the pixels, and steps that do not divide the depth."""
    choice = {"rows": rows, "vectors": vectors, "unroll_ic": unroll}
    out = layer((1, 10, 1, 10 * host().lanes), 16)
    for edge in ("start", "end"):
        check(POINTWISE_CONV, "conv2d", [out], "wb", choice=choice, edge=edge)


def test_it_takes_row_major_images_in_whole_tiles() -> None:
    """And leaves to others what is blocked, strided, too deep for the first cache, or of odd width."""
    assert POINTWISE_CONV.match(task(layer((1, 64, 1, 3136), 64)), AVX512)
    assert schedule(task(layer((1, 64, 1, 3136), 64)), AVX512)[1] == "pointwise_conv2d"
    others = [
        task(layer((1, 64, 1, 3136), 64), out="ABCD16b"),
        task(layer((1, 64, 1, 6272), 64, strides=(1, 2))),
        task(layer((1, 1024, 1, 3136), 64)),
        task(layer((1, 64, 1, 196), 64)),
        task(layer((1, 64, 56, 56), 64)),
    ]
    for other in others:
        assert not POINTWISE_CONV.match(other, AVX512)
        assert schedule(other, AVX512)[1] in ("direct_conv2d", "row_conv2d")


@pytest.mark.parametrize("machine", ["x86-64-v4", "x86-64-v3", "aarch64-cortex-a53"])
@pytest.mark.parametrize("outputs", [1, 16, 64, 100])
def test_default_tiles_fit_registers_and_cache(machine: str, outputs: int) -> None:
    """Accumulators, a step's pixels and one broadcast in registers; the inputs of a tile in the first cache."""
    there, depth = target(machine), 48
    choice = POINTWISE_CONV.on(task(layer((1, depth, 1, 3136), outputs)), there).space.default
    rows, vectors = int(choice["rows"]), int(choice["vectors"])
    assert rows * vectors + vectors + 1 <= there.vector_registers
    assert 3136 % (vectors * there.lanes) == 0
    assert vectors * there.vector_bytes * depth <= there.l1_bytes * 3 // 4
