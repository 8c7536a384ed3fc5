"""Templates for convolutions, pooling and channel windows against the definitions, with epilogues, on uneven shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from burnish.kernels.constants import split_constants
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import first_match
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import Call, Expr, maximum, minimum
from burnish.loops.layout import layout
from burnish.loops.tensor import Tensor, compute, placeholder
from burnish.loops.verify import verify
from burnish.machines.target import host
from burnish.ops import operator_named
from burnish.pipeline.kernel import packing

Shape = tuple[int, ...]
Native = Callable[..., dict[str, np.ndarray]]
LANES = host().lanes
BLOCKED = f"ABCD{LANES}b"

EPILOGUES: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "none": lambda y, r: y,
    "clip": lambda y, r: minimum(maximum(y, 0.0), 6.0),
    "residual": lambda y, r: maximum(y + r, 0.0),
    "tanh": lambda y, r: Call("tanh", (y,)),
}


def with_epilogue(y: Tensor, bias: Tensor | None, residual: Tensor | None, kind: str) -> Tensor:
    """``y`` plus a bias for each channel, and what follows."""

    def element(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        value: Expr = y[n, c, h, w] if bias is None else y[n, c, h, w] + bias[c, 0, 0]
        return EPILOGUES[kind](value, residual[n, c, h, w] if residual is not None else value)

    return compute(y.shape, element, "out")


def check(
    native: Native, template: str, op: str, shapes: Sequence[Shape], attrs: Mapping[str, object],
    layouts: tuple[str, str], epilogue: str = "none", bias: bool = True, **choice: int | str,
) -> None:  # fmt: skip
    """One fused kernel by the template that is chosen for it, which must be ``template``, and its definition."""
    inputs = [placeholder(shape, name=name) for shape, name in zip(shapes, "xw", strict=False)]
    (y,) = operator_named(op).define("y", inputs, attrs)
    extra = [placeholder((y.shape[1], 1, 1), name="b")] if bias else []
    residual = placeholder(y.shape, name="r") if epilogue == "residual" else None
    out = with_epilogue(y, extra[0] if bias else None, residual, epilogue)
    every = [*inputs, *extra, *([residual] if residual is not None else [])]
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in every}
    (expected,) = evaluate([out], arrays)

    known, outputs, derived = split_constants(every, [out], {"w", "b"})
    arrays.update(zip((t.name for t in derived), evaluate(derived, arrays), strict=True))
    tags = {"x": layouts[0], "out": layouts[1], "r": layouts[1]}
    blocked = {n: layout(tags[n]) for n in tags if tags[n] == BLOCKED}
    constants = frozenset(t.name for t in known if t.name not in tags)
    task = KernelTask("kernel", tuple(known), tuple(outputs), op, blocked, constants)
    chosen = first_match(task, host())
    assert chosen.name == template
    made = chosen.apply({**chosen.space.default, **choice})
    verify(made.program)
    packed = {n: layout(tag) for n, tag in packing(made.trace, task).items()} | blocked
    found = native(made.program, {n: packed[n].pack(a) if n in packed else a for n, a in arrays.items() if n in
                                  {p.name for p in made.program.params}})["out"]  # fmt: skip
    got = packed["out"].unpack(found, expected.shape) if "out" in packed else found
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("size", "channels", "kernel", "attrs", "epilogue", "choice"),
    [
        ((9, 17), 32, (3, 3), {"pads": (1, 1, 1, 1)}, "clip", {}),
        ((9, 17), 40, (3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}, "none", {"tile_ow": 4}),
        ((1, 3), 16, (3, 3), {"pads": (1, 1, 1, 1)}, "none", {}),
        ((8, 9), 24, (5, 5), {"pads": (2, 2, 2, 2)}, "residual", {}),
        ((10, 13), 16, (7, 3), {"pads": (3, 0, 3, 0), "strides": (1, 2)}, "tanh", {"weights": "row"}),
        ((10, 13), 16, (3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2)}, "none", {"weights": "window"}),
    ],
)
def test_depthwise(size, channels, kernel, attrs, epilogue, choice, native: Native) -> None:
    shapes = [(2, channels, *size), (channels, 1, *kernel)]
    attrs = {**attrs, "groups": channels}
    check(native, "depthwise_conv2d", "conv2d", shapes, attrs, (BLOCKED, BLOCKED), epilogue, **choice)


@pytest.mark.parametrize(
    ("template", "x", "weight", "groups", "attrs"),
    [
        ("grouped_conv2d", (1, 32, 7, 9), (32, LANES // 4, 3, 3), 128 // LANES, {"pads": (1, 1, 1, 1)}),
        ("grouped_conv2d", (2, 20, 6, 5), (40, 1, 3, 3), 20, {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
        ("direct_conv2d", (1, 64, 5, 6), (64, 32, 3, 3), 2, {"pads": (1, 1, 1, 1)}),
        ("direct_conv2d", (1, 24, 5, 6), (24, 3, 3, 3), 8, {"pads": (1, 1, 1, 1)}),
        ("direct_conv2d", (1, 68, 4, 4), (34, 34, 1, 1), 2, {}),
    ],
)
def test_groups(template, x, weight, groups, attrs, native: Native) -> None:
    check(native, template, "conv2d", [x, weight], {**attrs, "groups": groups}, (BLOCKED, BLOCKED), "clip")


def test_bands(native: Native) -> None:
    attrs = {"pads": (1, 1, 1, 1), "outputs": 20, "depth": 20, "block": 16}
    check(native, "direct_conv2d", "banded_conv2d", [(1, 60, 5, 6), (60, 40, 3, 3)], attrs, (BLOCKED, BLOCKED), "clip")


@pytest.mark.parametrize(
    ("x", "weight", "attrs", "epilogue"),
    [
        ((1, 16, 7, 37), (40, 16, 3, 3), {"pads": (1, 1, 1, 1)}, "residual"),
        ((1, 3, 11, 11), (24, 3, 5, 5), {"strides": (2, 2), "pads": (2, 1, 1, 2)}, "clip"),
        ((2, 20, 4, 9), (16, 20, 1, 1), {}, "none"),
    ],
)
def test_direct_convolution(x, weight, attrs, epilogue, native: Native) -> None:
    source = BLOCKED if x[1] >= host().lanes else "ABCD"
    check(native, "direct_conv2d", "conv2d", [x, weight], attrs, (source, BLOCKED), epilogue)


@pytest.mark.parametrize(
    ("x", "weight", "attrs", "epilogue"),
    [
        ((1, 16, 7, 37), (9, 16, 3, 3), {"pads": (1, 1, 1, 1)}, "tanh"),
        ((1, 32, 5, 16), (35, 32, 3, 3), {"pads": (1, 1, 1, 1)}, "residual"),
    ],
)
def test_convolution_to_plain_channels(x, weight, attrs, epilogue, native: Native) -> None:
    check(native, "direct_conv2d", "conv2d", [x, weight], attrs, (BLOCKED, "ABCD"), epilogue)


@pytest.mark.parametrize(
    ("template", "x", "weight", "attrs", "out"),
    [
        ("conv2d_transpose_phases", (1, 32, 4, 4), (32, 16, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, BLOCKED),
        ("conv2d_transpose_phases", (2, 24, 5, 9), (24, 40, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, BLOCKED),
        ("conv2d_transpose_phases", (1, 16, 9, 6), (16, 16, 3, 5), {"strides": (3, 2), "pads": (0, 2, 0, 1)}, BLOCKED),
        ("conv2d_transpose_pixel", (2, 24, 1, 1), (24, 40, 4, 4), {}, BLOCKED),
        ("conv2d_transpose_pixel", (1, 24, 1, 1), (24, 16, 5, 37), {"pads": (1, 0, 0, 2)}, BLOCKED),
        ("direct_conv2d", (1, 16, 6, 7), (16, 24, 3, 3), {"pads": (1, 1, 1, 1)}, BLOCKED),
        ("plain_conv2d", (1, 16, 5, 6), (16, 3, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, "ABCD"),
        ("plain_conv2d", (1, 16, 5, 6), (16, 2, 3, 3), {"strides": (2, 3), "output_padding": (1, 0)}, "ABCD"),
    ],
)
def test_transposed_convolution(template, x, weight, attrs, out, native: Native) -> None:
    source = "ABCD" if x[2:] == (1, 1) else BLOCKED
    check(native, template, "conv2d_transpose", [x, weight], attrs, (source, out), "tanh")


@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize(
    ("x", "attrs"),
    [
        ((2, 24, 13, 14), {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": True}),
        ((1, 16, 9, 35), {"kernel": (3, 3), "pads": (1, 1, 1, 1)}),
        ((1, 16, 7, 7), {"kernel": (7, 7)}),
        ((1, 32, 8, 6), {"kernel": (2, 2), "strides": (2, 2)}),
    ],
)
def test_pooling(op, x, attrs, native: Native) -> None:
    check(native, "pool2d", op, [x], attrs, (BLOCKED, BLOCKED), bias=False)


@pytest.mark.parametrize(("x", "size"), [((2, 48, 5, 3), 5), ((1, 16, 4, 4), 3), ((1, 32, 3, 3), 4)])
def test_neighbouring_channels(x, size, native: Native) -> None:
    check(native, "neighbouring_channels", "lrn", [x], {"size": size, "alpha": 0.5}, (BLOCKED, BLOCKED), bias=False)
