"""Products with weights of 8, 4 and 2 bits in blocks, beside float64: one row and several, tails, files, open rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import burnish as bn
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.passes import optimize
from burnish.kernels.cpu.block_product import BLOCK_PRODUCT
from burnish.kernels.task import KernelTask
from burnish.loops.interpret import run_program
from burnish.loops.layout import layout
from burnish.loops.tensor import placeholder
from burnish.machines.target import host, target
from burnish.ops import OPERATORS
from burnish.ops.blocks import pack_words
from burnish.runtime.module import Module
from burnish.simulators.emulator import CpuEmulator

DOTS = target("x86-64-v4")
DOTS = replace(DOTS, features=DOTS.features | {"avx512vnni"})
MOMENT = 2.0**-22  # of the sum of magnitudes: what float32 products of as many terms keep


def drawn(depth: int, columns: int, bits: int, block: int, symmetric: bool) -> tuple[np.ndarray, ...]:
    """Integers, scales, zero points, and the matrix in float64."""
    rng, blocks = np.random.default_rng(depth + columns), -(-depth // block)
    integers = rng.integers(0, 1 << bits, (depth, columns), dtype=np.uint8)
    scale = rng.random((blocks, columns), np.float32) + 0.5
    zero = np.full(scale.shape, 1 << bits - 1, np.uint8) if symmetric else integers[:blocks]
    far = integers.astype(np.float64) - np.repeat(zero.astype(np.float64), block, 0)[:depth]
    return integers, scale, zero, far * np.repeat(scale.astype(np.float64), block, 0)[:depth]


def n_bits(
    integers: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, bits: int, block: int, level: int, rows: Any
) -> Any:
    """A model of one MatMulNBits with a bias."""
    depth, columns = integers.shape
    per, blocks = 8 // bits, len(scale)

    def packed(values: np.ndarray) -> np.ndarray:
        padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % per)])
        parts = padded.reshape(*values.shape[:-1], -1, per)
        return np.bitwise_or.reduce(parts << (bits * np.arange(per, dtype=np.uint8)), -1)

    whole = np.pad(integers, [(0, blocks * block - depth), (0, 0)]).T.reshape(columns, blocks, block)
    arrays = {"b": packed(whole), "s": np.ascontiguousarray(scale.T)}
    if zero is not None:
        arrays["z"] = packed(np.ascontiguousarray(zero.T))
    arrays["c"] = np.linspace(-1, 1, columns, dtype=np.float32)
    inputs = ["x", "b", "s", "z" if zero is not None else "", "", "c"]
    sizes = {"K": depth, "N": columns, "bits": bits, "block_size": block, "accuracy_level": level}
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **sizes)
    return model(node, arrays, (rows, depth), (rows, columns))


def model(node: Any, arrays: dict[str, np.ndarray], x: Any, y: Any, *more: Any) -> Any:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node, *more], "one", [info("x", TensorProto.FLOAT, x)], [info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(value, name) for name, value in arrays.items()],
    )  # fmt: skip
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


def near(found: np.ndarray, x: np.ndarray, matrix: np.ndarray, moment: float = MOMENT, bias: float = 0.0) -> None:
    exact, size = x.astype(np.float64) @ matrix + bias, np.abs(x).astype(np.float64) @ np.abs(matrix) + 1
    assert np.abs(found - exact).max() <= (moment * size).max()
    assert (np.abs(found - exact) <= 8 * moment * size).all()


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "bits", "block", "symmetric"),
    [(1, 96, 40, 4, 32, True), (5, 100, 33, 4, 16, False), (3, 256, 64, 8, 128, False), (2, 64, 16, 2, 64, True)],
)
def test_products_are_as_near_as_floats(
    rows: int, depth: int, columns: int, bits: int, block: int, symmetric: bool
) -> None:
    integers, scale, zero, matrix = drawn(depth, columns, bits, block, symmetric)
    x = np.random.default_rng(1).standard_normal((rows, depth), np.float32)
    x[:, ::7] *= 1000
    bias, points = np.linspace(-1, 1, columns, dtype=np.float32), None if symmetric else zero
    for level, moment in ((0, MOMENT), (4, 1 / 127)):
        made = bn.compile(n_bits(integers, scale, points, bits, block, level, rows), rewrite=False, threads=2)
        near(made(x=x), x, matrix, moment, bias)


def test_dots_of_bytes_of_one_row_are_rounded_once() -> None:
    """What is zero, tiny, huge, or no number stays what it is, in its own block."""
    integers, scale, _, matrix = drawn(64, 16, 4, 32, True)
    made = bn.compile(n_bits(integers, scale, None, 4, 32, 0, 1), rewrite=False, threads=1)
    bias = np.linspace(-1, 1, 16, dtype=np.float32)
    for x in (np.zeros((1, 64), np.float32), np.full((1, 64), 1e-38, np.float32)):
        np.testing.assert_allclose(made(x=x)[0], bias, atol=1e-30)
    huge = np.full((1, 64), 1e30, np.float32)
    near(made(x=huge) / np.float32(1e30), np.ones((1, 64), np.float32), matrix)
    for value in (np.nan, np.inf):
        huge[0, 40] = value
        assert not np.isfinite(made(x=huge)).any()


def by_blocks(axis: int, swap: bool, dtype: str) -> tuple[Any, np.ndarray]:
    """DequantizeLinear of int4, uint4 or int8 in blocks, perhaps transposed, in front of a product."""
    integers, scale, zero, matrix = drawn(64, 24, 4, 16, False)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    low = 8 if dtype.startswith("int") else 0
    values = {"w": integers.astype(np.int8) - low, "s": scale, "z": zero.astype(np.int8) - low}
    if axis:
        values = {name: np.ascontiguousarray(value.T) for name, value in values.items()}
    arrays = {name: value if name == "s" else value.astype(kind) for name, value in values.items()}
    node = helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=axis, block_size=16)
    turn = [helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0])] if swap else []
    last = helper.make_node("MatMul", ["x", "t" if swap else "d"], ["y"])
    return model(node, arrays, (2, 3, 64), (2, 3, 24), *turn, last), matrix


@pytest.mark.parametrize(("axis", "swap"), [(0, False), (1, True)])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8"])
def test_dequantized_blocks_are_multiplied_as_words(axis: int, swap: bool, dtype: str) -> None:
    made, matrix = by_blocks(axis, swap, dtype)
    x = np.random.default_rng(1).standard_normal((2, 3, 64), np.float32)
    for exact in (False, True):
        near(bn.compile(made, rewrite=False, threads=1, exact=exact)(x=x), x, matrix)


@pytest.mark.parametrize(("block", "dtype"), [(16, np.float16), (12, np.float32), (4096, np.float32)])
def test_other_blocks_and_halves(block: int, dtype: type) -> None:
    """Halves are multiplied as floats; blocks of other sizes are dequantized before."""
    depth = block if block > 64 else 48
    integers, scale, zero, matrix = drawn(depth, 24, 8, block, False)
    arrays = {"w": integers, "s": scale.astype(dtype), "z": zero}
    kind = TensorProto.FLOAT16 if dtype is np.float16 else TensorProto.FLOAT
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0, block_size=block)]
    nodes += [helper.make_node("Cast", ["x"], ["h"], to=kind), helper.make_node("MatMul", ["h", "d"], ["q"])]
    nodes += [helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT)]
    x = np.random.default_rng(1).standard_normal((2, depth), np.float32)
    made = bn.compile(model(nodes[0], arrays, (2, depth), (2, 24), *nodes[1:]), rewrite=False, threads=1)
    near(made(x=x), x, matrix, 2e-3 if dtype is np.float16 else MOMENT)


def test_files_and_open_rows(tmp_path: Path) -> None:
    integers, scale, zero, matrix = drawn(96, 48, 4, 32, False)
    bias = np.linspace(-1, 1, 48, dtype=np.float32)
    made = bn.compile(n_bits(integers, scale, zero, 4, 32, 0, "n"), shapes={"n": (0, 9)}, threads=1)
    made.save(tmp_path / "m.bn")
    loaded = bn.load(tmp_path / "m.bn")
    for rows in (0, 1, 4, 9):
        x = np.random.default_rng(rows).standard_normal((rows, 96), np.float32)
        assert np.array_equal(made(x=x), loaded(x=x))
        if rows:
            near(made(x=x), x, matrix, bias=bias)


def product(rows: int = 1) -> Graph:
    """One product of 64 by 32."""
    g = GraphBuilder()
    integers, scale, zero, _ = drawn(64, 32, 4, 32, True)
    parts = [g.constant(a) for a in (integers, scale, zero.astype(np.float32))]
    w = g.add("block_dequantize", *parts, bits=4, block=32)
    return g.build(g.add("matmul", g.input("x", (rows, 64)), w))


def test_words_are_for_machines_that_multiply_bytes() -> None:
    """Constants of half a byte a number there; floats elsewhere, and where rounding shall not change."""
    packed = optimize(product(), False, DOTS)
    assert [n.op for n in packed.nodes] == ["block_matmul"]
    assert sum(a.nbytes for a in packed.constants.values()) <= 64 * 32 // 2 + 4 * 2 * 32 + 4
    low, none = target("aarch64-neoverse-n1"), target("aarch64-cortex-a53")  # bytes below 128 alone; no dot products
    assert [n.op for n in optimize(product(), False, low).nodes] == ["block_matmul"]
    for graph, exact, machine in ((product(), False, none), (product(), True, DOTS), (product(5), False, low)):
        assert [n.op for n in optimize(graph, exact, machine).nodes] == ["matmul"]


def test_bytes_below_128_are_multiplied_where_others_are_not() -> None:
    """Natively where vectors have sums of two such products, and for a CPU of another kind in an emulator."""
    graph, matrix = product(), drawn(64, 32, 4, 32, True)[3]
    x = np.random.default_rng(2).standard_normal((1, 64), np.float32)
    arm = bn.compile(graph, rewrite=False, threads=1, target="aarch64-neoverse-n1")
    near(Module(arm.executable, 1, device=CpuEmulator())(x), x, matrix)
    if host().has("avx2"):
        near(bn.compile(graph, rewrite=False, threads=1, target="x86-64-v3")(x), x, matrix)


@pytest.mark.parametrize("choice", [None, {"tile": 2, "vectors": 2}], ids=["default", "tiles"])
def test_the_schedule_by_the_interpreter(choice: dict[str, int] | None) -> None:
    integers, scale, zero, matrix = drawn(64, 20, 4, 32, False)
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 64), np.float32), "w": pack_words(integers, 4)}
    feeds |= {"s": scale, "z": zero}
    tensors = [placeholder(a.shape, str(a.dtype), name) for name, a in feeds.items()]
    (y,) = OPERATORS["block_matmul"].define("y", tensors, {"bits": 4, "block": 32})
    task = KernelTask("kernel", tuple(tensors), (y,), "block_matmul", {}, frozenset({"w", "s", "z"}))
    match = BLOCK_PRODUCT.on(task, DOTS)
    made = match.apply(choice or match.space.default)
    tags = {args[0]: layout(args[1]) for name, args in made.trace if name == "transform_layout"}
    found = run_program(made.program, {n: tags[n].pack(a) if n in tags else a for n, a in feeds.items()})["y"]
    near(found, feeds["x"], matrix)
