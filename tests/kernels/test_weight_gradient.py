"""Weight gradients of convolutions against the interpreter of definitions, between forbidden pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from burnish.graph.gradient import gradients
from burnish.graph.graph import Graph, GraphBuilder
from burnish.kernels.cpu.weight_gradient import WEIGHT_GRADIENT
from burnish.kernels.task import KernelTask
from burnish.loops.layout import layout
from burnish.loops.tensor import Tensor, compute, placeholder
from burnish.machines.target import host, target
from burnish.ops import OPERATORS
from burnish.pipeline.plan import plan_kernels

LANES = host().lanes
BLOCKED = f"ABCD{LANES}b"


def gradient(x: tuple[int, ...], w: tuple[int, ...], given: Tensor | None = None, **attrs: Any) -> Tensor:
    """The gradient by a convolution's weight, of placeholders ``x`` and, unless it is given, ``dy``."""
    (y,) = OPERATORS["conv2d"].define("y", [placeholder(x), placeholder(w, name="w")], attrs)
    types = ((x, "float32"), (w, "float32"))
    own = {
        "operator": "conv2d", "attributes": tuple(sorted(attrs.items())), "types": types, "wrt": 1, "seeded": (0,),
        "reads": (0, 3),
    }  # fmt: skip
    dy = placeholder(y.shape, name="dy") if given is None else given
    (dw,) = OPERATORS["adjoint"].define("dw", [placeholder(x, name="x"), dy], own)
    return dw


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 16, 9, 11), (32, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((3, 32, 8, 7), (48, 32, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 20, 5, 6), (24, 20, 1, 1), {}),
    ((2, 40, 7, 7), (40, 40, 1, 1), {"strides": (2, 2)}),
    ((2, 16, 12, 9), (16, 16, 5, 3), {"pads": (2, 0, 1, 3), "dilations": (2, 1)}),
    ((1, 24, 8, 1), (80, 24, 3, 1), {}),
    ((3, 64, 1, 1), (80, 64, 1, 1), {}),
    ((2, 17, 6, 5), (33, 17, 2, 2), {}),
]


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize(("x", "w", "attrs"), SHAPES)
def test_gradients_agree_with_the_definition(
    check: Callable[..., object], x: tuple[int, ...], w: tuple[int, ...], attrs: Mapping[str, Any], edge: str
) -> None:
    layouts = {"x": BLOCKED, "dy": BLOCKED}
    check(WEIGHT_GRADIENT, "dw", [gradient(x, w, **attrs)], layouts=layouts, edge=edge)


def test_few_channels_stay_row_major(check: Callable[..., object]) -> None:
    dw = gradient((2, 3, 17, 15), (40, 3, 7, 7), strides=(2, 2), pads=(3, 3, 3, 3))
    check(WEIGHT_GRADIENT, "dw", [dw], layouts={"dy": BLOCKED})


@pytest.mark.parametrize(("x", "w", "attrs"), SHAPES)
def test_an_adjoint_in_rows_is_copied_into_blocks(
    check: Callable[..., object], x: tuple[int, ...], w: tuple[int, ...], attrs: Mapping[str, Any]
) -> None:
    for outer in ("bands", "channels"):
        check(WEIGHT_GRADIENT, "dw", [gradient(x, w, **attrs)], choice={"outer": outer}, threads=2)


def test_an_adjoint_that_is_sliced_is_copied_into_blocks(check: Callable[..., object]) -> None:
    x, w = (2, 16, 9, 11), (32, 16, 3, 3)
    whole, old = placeholder((5, 40, 9, 11), name="whole"), placeholder(w, name="old")
    dy = compute((2, 32, 9, 11), lambda n, c, i, j: whole[n + 3, c + 4, i, j], "dy")
    dw = gradient(x, w, given=dy, pads=(1, 1, 1, 1))
    out = compute(w, lambda *i: old[i] - dw[i], "out")
    check(WEIGHT_GRADIENT, "dw", [out], layouts={"x": BLOCKED}, threads=2)


@pytest.mark.parametrize("channels", [LANES, 40, 3 * LANES])
def test_depthwise(check: Callable[..., object], channels: int) -> None:
    dw = gradient((2, channels, 9, 8), (channels, 1, 3, 3), pads=(1, 1, 1, 1), groups=channels)
    chosen = check(WEIGHT_GRADIENT, "dw", [dw], layouts={"x": BLOCKED, "dy": BLOCKED})
    assert chosen["tile_kh"] == 3  # type: ignore[index]
    dw = gradient((1, channels, 9, 8), (channels, 1, 5, 5), strides=(2, 2), pads=(2, 2, 2, 2), groups=channels)
    check(WEIGHT_GRADIENT, "dw", [dw], layouts={"x": BLOCKED, "dy": BLOCKED})


@pytest.mark.parametrize(
    "choice",
    [
        {"outer": "channels", "groups": 2}, {"outer": "bands", "groups": 1}, {"outer": "channels", "groups": 4},
        {"band": 1}, {"band": 8}, {"tile_kw": 1, "tile_ic": 8},
        {"tile_kh": 3, "tile_kw": 3, "tile_ic": 1, "vectors": 2},
        {"ic": 16}, {"ic": 2}, {"kh": 1}, {"ic": 8, "kh": 1, "tile_kh": 3, "groups": 2, "outer": "channels"},
    ],
)  # fmt: skip
def test_all_choices_compute_the_same(check: Callable[..., object], choice: Mapping[str, Any]) -> None:
    own = {"vectors": 1, "tile_ic": 4, **choice}
    dw = gradient((2, 32, 8, 6), (4 * LANES, 32, 3, 3), pads=(1, 1, 1, 1))
    check(WEIGHT_GRADIENT, "dw", [dw], layouts={"x": BLOCKED, "dy": BLOCKED}, choice=own)


def test_an_epilogue_follows_and_a_share_of_channels_is_a_threads_own(check: Callable[..., object]) -> None:
    dw, old = gradient((2, 16, 7, 9), (64, 16, 3, 3), pads=(1, 1, 1, 1)), placeholder((64, 16, 3, 3), name="old")
    out = compute(dw.shape, lambda *i: old[i] * 0.9 + dw[i], "out")
    check(WEIGHT_GRADIENT, "dw", [out], layouts={"x": BLOCKED, "dy": BLOCKED}, threads=3)


@pytest.mark.parametrize("cores", [2, 3, 16])
@pytest.mark.parametrize(("channels", "depth", "kernel"), [(64, 64, 3), (512, 512, 3), (64, 3, 7), (48, 16, 3)])
def test_every_core_has_a_share(cores: int, channels: int, depth: int, kernel: int) -> None:
    dw = gradient((2, depth, 14, 14), (channels, depth, kernel, kernel))
    own = replace(target("x86-64-v4"), cores=cores)
    match = WEIGHT_GRADIENT.match(KernelTask("kernel", tuple(dw.inputs), (dw,), "", {}, frozenset()), own)
    assert match is not None
    chosen = match.space.default
    groups = -(-channels // (int(chosen["vectors"]) * own.lanes))
    count = groups // int(chosen["groups"]) * (depth // int(chosen["ic"])) * (kernel // int(chosen["kh"]))
    assert count >= min(cores, 7), chosen
    match.apply(chosen)


@pytest.mark.parametrize("machine", ["x86-64-v4", "x86-64-v3", "aarch64-neoverse-n1"])
def test_what_is_matched(machine: str) -> None:
    own = target(machine)
    blocked = layout(f"ABCD{own.lanes}b")

    def task(dw: Tensor, **layouts: Any) -> KernelTask:
        return KernelTask("kernel", tuple(dw.inputs), (dw,), "", layouts, frozenset())

    dw = gradient((2, 32, 8, 8), (32, 32, 3, 3))
    x, dy = sorted(dw.inputs, key=lambda t: -t.shape[2])
    match = WEIGHT_GRADIENT.match(task(dw, **{x.name: blocked, dy.name: blocked}), own)
    assert match is not None
    match.apply(match.space.default)
    rows = WEIGHT_GRADIENT.match(task(dw), own)
    assert rows is not None
    rows.apply(rows.space.default)
    (y,) = OPERATORS["conv2d"].define("y", [placeholder((2, 32, 8, 8), name="x"), placeholder((32, 32, 3, 3))], {})
    assert WEIGHT_GRADIENT.match(task(y, x=blocked, y=blocked), own) is None


def convolutions(batch: int = 2) -> Graph:
    b = GraphBuilder()
    x = b.input("x", (batch, 32, 10, 10))
    w, v = b.input("w", (48, 32, 3, 3)), b.input("v", (48, 1, 3, 3))
    h = b.add("relu", b.add("conv2d", x, w, pads=(1, 1, 1, 1)))
    y = b.add("conv2d", h, v, pads=(1, 1, 1, 1), groups=48, strides=(2, 2))
    return gradients(b.build(b.add("reduce_sum", b.add("mul", y, y), keepdims=False)), "reduce_sum", ("w", "v"))


def test_gradients_of_a_graph_keep_channel_blocks_and_have_the_same_bits_on_any_number_of_threads() -> None:
    import burnish as bn

    graph = convolutions()
    plan = plan_kernels(graph, host(), exact=True)
    for group in plan.groups:
        if group.anchor is not None and group.anchor.op == "adjoint" and "w.grad" in "".join(group.outputs):
            assert all(name in plan.layouts for name in group.inputs)
            assert group.outputs[0] not in plan.layouts
    rng = np.random.default_rng(0)
    feeds = [rng.normal(size=graph.types[name].shape).astype("f4") for name in graph.inputs]
    one, three = (bn.compile(graph, threads=n) for n in (1, 3))
    assert [k["template"] for k in one.executable.info["kernels"]].count("weight_gradient") == 2
    for a, b in zip(one(*feeds), three(*feeds), strict=True):
        assert np.array_equal(a, b)
