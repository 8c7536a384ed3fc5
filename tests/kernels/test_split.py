"""Split products on matrix tiles: by the interpreter on any machine, natively where it has the unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from burnish.kernels.task import Choice, KernelTask
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import maximum
from burnish.loops.interpret import run_program
from burnish.loops.layout import layout
from burnish.loops.numeric import numpy_dtype
from burnish.loops.program import Intrinsic, walk_stmt
from burnish.loops.tensor import Tensor, compute, placeholder, stages
from burnish.machines.intrinsics import reference
from burnish.machines.known import INTRINSICS
from burnish.machines.target import host, target
from burnish.ops import OPERATORS
from burnish.pipeline.kernel import schedule
from burnish.schedule.schedule import Schedule
from tests.marks import slow

TILES = frozenset({"amx-bf16", "amx-tile"})
MACHINE = replace(target("x86-64-v4"), features=target("x86-64-v4").features | TILES)
REFERENCES = {name: reference(intrinsic) for name, intrinsic in INTRINSICS.items()}
needs_tiles = pytest.mark.skipif(not host().has("amx-bf16"), reason="this machine has no AMX for bfloat16")
Native = Callable[..., dict[str, np.ndarray]]


def epilogue(y: Tensor) -> Tensor:
    bias = placeholder((y.shape[1], 1, 1), name="b")
    return compute(y.shape, lambda n, c, h, w: maximum(y[n, c, h, w] + bias[c, 0, 0], 0.0), "out")


def convolution(x: tuple[int, ...], w: tuple[int, ...], **attrs: Any) -> Tensor:
    """relu(split_conv2d + bias); ``w`` as in the model."""
    whole = (-(-w[0] // 16) * 16, -(-w[1] // 32) * 32)
    data, parts = placeholder(x, name="x"), placeholder((2, *whole, *w[2:]), "bfloat16", "w")
    return epilogue(OPERATORS["split_conv2d"].define("y", [data, parts], {"outputs": w[0], **attrs})[0])


def stem(x: tuple[int, ...], w: tuple[int, ...], **attrs: Any) -> Tensor:
    depth = -(-w[1] * w[3] // 32) * 32
    data, parts = placeholder(x, name="x"), placeholder((2, -(-w[0] // 16) * 16, depth, w[2]), "bfloat16", "w")
    return epilogue(OPERATORS["split_stem"].define("y", [data, parts], {"outputs": w[0], "kernel_w": w[3], **attrs})[0])


def product(a: tuple[int, ...], columns: int) -> Tensor:
    """relu(split_matmul + bias)."""
    width = -(-columns // 32) * 32 if columns > 16 else 16
    left, parts = placeholder(a, name="x"), placeholder((2, -(-a[-1] // 32) * 32, width), "bfloat16", "w")
    (y,) = OPERATORS["split_matmul"].define("y", [left, parts], {"columns": columns})
    bias = placeholder((columns,), name="b")
    return compute(y.shape, lambda *i: maximum(y[i] + bias[i[-1]], 0.0), "out")


def scheduled(out: Tensor, op: str, choice: Choice | None, in_blocks: str) -> tuple[Schedule, list[Tensor]]:
    """The kernel's schedule, by the template of its operator. ``in_blocks``: images that are in channel blocks."""
    inputs = [t for t in stages([out]) if t.body is None]
    blocked = {n: layout("ABCD16b") for n in in_blocks.split()}
    task = KernelTask("kernel", tuple(inputs), (out,), op, blocked, frozenset({"w", "b"}))
    made, template, _ = schedule(task, MACHINE, choice)
    assert template == ("split_matmul" if op == "split_matmul" else "split_conv2d")
    assert {s.name for s in walk_stmt(made.program.body) if isinstance(s, Intrinsic)} >= {
        "amx_zero", "amx_dot_bf16", "amx_store",
    }  # fmt: skip
    return made, inputs


def check(
    out: Tensor, op: str, run: Callable[..., dict[str, np.ndarray]], choice: Choice | None = None, in_blocks: str = ""
) -> None:
    made, inputs = scheduled(out, op, choice, in_blocks)
    rng = np.random.default_rng(0)
    feeds = {t.name: rng.standard_normal(t.shape).astype(numpy_dtype(t.dtype)) for t in inputs}
    tags = {args[0]: layout(args[1]) for name, args in made.trace if name == "transform_layout"}
    found = run(made.program, {n: tags[n].pack(a) if n in tags else a for n, a in feeds.items()})["out"]
    result = tags["out"].unpack(found, out.shape) if "out" in tags else found
    expected = evaluate([out], feeds)[0]
    np.testing.assert_allclose(result, expected, atol=2e-5 * abs(expected).max())


def interpreted(program: Any, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return run_program(program, arrays, REFERENCES)


@pytest.mark.parametrize("in_blocks", slow(["x out", ""], ""))
def test_a_convolution_by_the_interpreter(in_blocks: str) -> None:
    out = convolution((1, 16, 4, 3), (5, 16, 2, 1), pads=(1, 0, 0, 0), rows=2)
    check(out, "split_conv2d", interpreted, in_blocks=in_blocks)


@pytest.mark.parametrize("in_blocks", slow(["out", ""], ""))
def test_a_stem_by_the_interpreter(in_blocks: str) -> None:
    out = stem((1, 3, 4, 5), (5, 3, 2, 2), strides=(2, 1), pads=(0, 1, 0, 0))
    check(out, "split_stem", interpreted, in_blocks=in_blocks)


def test_a_product_by_the_interpreter() -> None:
    check(product((5, 20), 17), "split_matmul", interpreted)


@needs_tiles
@pytest.mark.parametrize("edge", slow(["start", "end"], "start"))
@pytest.mark.parametrize("in_blocks", ["x out", "x", "out", ""])
@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 24, 3, 37), (40, 24, 3, 3), {"pads": (1, 1, 1, 1), "rows": 3}),
        ((1, 32, 7, 7), (64, 32, 3, 3), {"pads": (1, 1, 1, 1), "rows": 7}),
        ((2, 48, 9, 13), (20, 48, 3, 3), {"pads": (1, 1, 1, 1), "rows": 4}),
        ((1, 64, 14, 14), (48, 64, 1, 1), {"rows": 5}),
        ((1, 32, 15, 15), (32, 32, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2), "rows": 3}),
        ((1, 16, 8, 8), (16, 16, 5, 2), {"pads": (2, 0, 2, 1), "strides": (1, 2), "rows": 8}),
    ],
)
def test_native_convolutions(
    native: Native, x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], in_blocks: str, edge: str
) -> None:
    out = convolution(x, w, **attrs)
    check(out, "split_conv2d", lambda p, a: native(p, a, edge=edge), in_blocks=in_blocks)


@needs_tiles
@pytest.mark.parametrize("tiles_n", [1, 2])
@pytest.mark.parametrize("tiles_m", [1, 2])
@pytest.mark.parametrize("outer", ["oc", "block"])
@pytest.mark.parametrize("in_blocks", slow(["x out", ""], ""))
def test_every_choice_of_tiles(native: Native, tiles_n: int, tiles_m: int, outer: str, in_blocks: str) -> None:
    out = convolution((1, 32, 9, 9), (60, 32, 3, 3), pads=(1, 1, 1, 1), rows=5)
    check(out, "split_conv2d", native, {"tiles_n": tiles_n, "tiles_m": tiles_m, "outer": outer}, in_blocks)


@needs_tiles
@pytest.mark.parametrize("in_blocks", ["out", ""])
@pytest.mark.parametrize(
    ("x", "w", "strides", "tiles_m"),
    [
        ((1, 3, 20, 23), (32, 3, 7, 7), (2, 2), 1),
        ((1, 3, 20, 23), (32, 3, 7, 7), (2, 2), 2),
        ((2, 1, 9, 9), (7, 1, 3, 3), (1, 1), 1),
    ],
)
def test_native_stems(
    native: Native, x: tuple[int, ...], w: tuple[int, ...], strides: tuple[int, int], tiles_m: int, in_blocks: str
) -> None:
    pad = w[2] // 2
    out = stem(x, w, strides=strides, pads=(pad, pad, pad, pad))
    check(out, "split_stem", native, {"tiles_m": tiles_m}, in_blocks)


@needs_tiles
@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize(("a", "columns"), [((128, 64), 96), ((33, 70), 50), ((2, 9, 40), 17), ((300, 32), 16)])
def test_native_products(native: Native, a: tuple[int, ...], columns: int, edge: str) -> None:
    check(product(a, columns), "split_matmul", lambda p, arrays: native(p, arrays, edge=edge))


@needs_tiles
@pytest.mark.parametrize(("heads", "size"), [(4, 64), (4, 8), (3, 24), (1, 17)])
def test_products_whose_columns_are_several_axes(native: Native, heads: int, size: int) -> None:
    """The heads of an attention layer: out[b, head, row, i] = product[b, row, head * size + i]."""
    data = placeholder((2, 33, 40), name="x")
    width = -(-heads * size // 32) * 32
    parts = placeholder((2, 64, width), "bfloat16", "w")
    (y,) = OPERATORS["split_matmul"].define("y", [data, parts], {"columns": heads * size})
    bias = placeholder((heads * size,), name="b")
    out = compute((2, heads, 33, size), lambda n, h, r, i: y[n, r, h * size + i] + bias[h * size + i], "out")
    check(out, "split_matmul", native)
