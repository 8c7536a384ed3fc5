"""NEON: factors as elements of vectors, dot products of bytes and float16, executed where the emulator has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import burnish as bn
from burnish.codegen.llvm import emit
from burnish.codegen.objects import compile_ir
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import GraphBuilder
from burnish.loops.expr import cast
from burnish.loops.tensor import Tensor, compute, create_program, placeholder, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.lower.pipeline import lower
from burnish.machines.aarch64.dot import DOTS
from burnish.machines.intrinsics import TensorIntrinsic
from burnish.machines.target import target
from burnish.measure.accuracy import scaled_error
from burnish.runtime.link import link
from burnish.runtime.module import Module
from burnish.schedule.schedule import Schedule
from burnish.simulators.emulated import AARCH64
from burnish.simulators.emulator import CpuEmulator

ROWS, COLUMNS, DEPTH = 2, 8, 12
USDOT = 0x4E809C00  # usdot v.4s, v.16b, v.16b


def executed(code: bytes, arrays: Sequence[np.ndarray]) -> CpuEmulator:
    """Runs the kernel of an object on arrays, the output last."""
    emulator = CpuEmulator(count=True)
    kernels = emulator.kernels(link({"kernel": code}))
    emulator.run(kernels["kernel"], [a.reshape(-1).view(np.uint8) for a in arrays])
    return emulator


def multiply_adds(emulator: CpuEmulator) -> int:
    return sum(block.runs * block.multiply_adds for block in emulator.blocks.values())


@pytest.mark.parametrize("intrinsic", DOTS, ids=lambda i: i.name)
def test_dot_products_of_bytes(intrinsic: TensorIntrinsic) -> None:
    a, b = (operand.dtype for operand in intrinsic.operands[1:])
    x, w = placeholder((ROWS, DEPTH), a, name="x"), placeholder((COLUMNS, DEPTH), b, name="w")
    k = reduce_axis(DEPTH, "k")

    def product(m: object, n: object) -> Tensor:
        return sum_over(cast("int32", x[m, k.var]) * cast("int32", w[n, k.var]), (k,))  # type: ignore[index,return-value]

    s = Schedule(create_program("kernel", [x, w], [compute((ROWS, COLUMNS), product, "y")]))  # type: ignore[arg-type]
    s.transform_layout("w", "AB4a4b")
    m, n, depth = s.loops("y")
    over, lane = s.split(n, 4)
    deep, inner = s.split(depth, 4)
    s.reorder(m, over, deep, lane, inner)
    s.tensorize(lane, intrinsic)
    machine = target("aarch64-neoverse-v1")
    code = compile_ir(emit(lower(s.program), machine).text, machine)
    count = ROWS * COLUMNS // 4 * DEPTH // 4
    if "i8mm" in intrinsic.needs:  # the emulator's newest core has no usdot: what is checked is that it is there
        words = np.frombuffer(link({"kernel": code}).data, np.uint32)
        assert ((words & 0xFFE0FC00) == USDOT).any()
        return
    random, info = np.random.default_rng(0), np.iinfo(a)
    left, right = (random.integers(info.min, info.max + 1, shape).astype(a) for shape in (x.shape, w.shape))
    left[0], right[0] = info.min, info.min
    packed = right.reshape(COLUMNS // 4, 4, DEPTH // 4, 4).transpose(0, 2, 1, 3).copy()
    found = np.zeros((ROWS, COLUMNS), np.int32)
    emulator = executed(code, [left, packed, found])
    assert (found == left.astype(np.int32) @ right.astype(np.int32).T).all()
    assert multiply_adds(emulator) == count


def test_halves_are_multiplied_and_added_in_vectors_of_eight() -> None:
    x, y = placeholder((64,), "float16", name="x"), placeholder((64,), "float16", name="y")
    s = Schedule(create_program("kernel", [x, y], [compute((64,), lambda i: x[i] * y[i] + x[i], "z")]))
    s.vectorize(s.split(s.loops("z")[0], 8)[1])
    machine = target("aarch64-neoverse-n1")
    left, right = (np.random.default_rng(n).standard_normal(64).astype(np.float16) for n in (0, 1))
    found = np.zeros(64, np.float16)
    emulator = executed(compile_ir(emit(lower(s.program), machine).text, machine), [left, right, found])
    wanted = left.astype(np.float64) * right + left
    assert np.abs(found - wanted).max() <= 2e-3 * np.abs(wanted).max()
    assert multiply_adds(emulator) == 64 // 8


@pytest.mark.parametrize(
    ("word", "counted"),
    [
        (0x4E21CC00, True),  # fmla v0.4s, v0.4s, v1.4s
        (0x4F811000, True),  # fmla v0.4s, v0.4s, v1.s[0]
        (0x4FA11800, True),  # fmla v0.4s, v0.4s, v1.s[3]
        (0x4E410C00, True),  # fmla v0.8h, v0.8h, v1.8h
        (0x1F020020, True),  # fmadd s0, s1, s2, s0
        (0x4E819400, True),  # sdot v0.4s, v0.16b, v1.16b
        (0x6E819400, True),  # udot
        (0x4E21D400, False),  # fadd v0.4s, v0.4s, v1.4s
        (0x6E21DC00, False),  # fmul v0.4s, v0.4s, v1.4s
        (0x3DC00020, False),  # ldr q0, [x1]
        (0x91000421, False),  # add x1, x1, 1
    ],
)
def test_multiply_adds_are_told_by_their_encoding(word: int, counted: bool) -> None:
    assert AARCH64.decode is not None
    assert AARCH64.decode(np.array([word], np.uint32).tobytes()) == (1, int(counted))


def convolutions(channels: int, size: int, stride: int) -> GraphBuilder:
    """Three convolutions in a row: what the second one reads and writes is in blocks of channels."""
    random, b = np.random.default_rng(0), GraphBuilder()
    y = b.input("x", (1, channels, size, size))
    for layer in range(3):
        weight = random.standard_normal((channels, channels, 3, 3)) / np.sqrt(9 * channels)
        steps = (stride if layer == 1 else 1,) * 2
        y = b.add("relu", b.add("conv2d", y, b.constant(weight.astype(np.float32)), pads=(1,) * 4, strides=steps))
    b.result = y  # type: ignore[attr-defined]
    return b


@pytest.mark.parametrize(("channels", "size", "stride", "share"), [(32, 10, 1, 0.8), (32, 14, 2, 0.78)])
def test_the_inner_loop_of_a_direct_convolution_multiplies_and_adds(
    channels: int, size: int, stride: int, share: float
) -> None:
    b = convolutions(channels, size, stride)
    graph = b.build(b.result)  # type: ignore[attr-defined]
    emulator = CpuEmulator(count=True)
    executable = bn.compile(graph, target="aarch64-cortex-a53", threads=1, exact=True, rewrite=False).executable
    x = np.random.default_rng(1).standard_normal((1, channels, size, size)).astype(np.float32)
    found = Module(executable, 1, device=emulator)(x)
    assert scaled_error([found], list(evaluate(graph, {"x": x}).values())) <= 1e-5
    begin, end = (
        executable.code.symbols[call.kernel] for call in executable.calls[:2]
    )  # loops lie before their kernel
    blocks = [block for at, block in emulator.blocks.items() if begin < at < end]
    inner = max(blocks, key=lambda block: block.runs * block.instructions)
    assert inner.multiply_adds / inner.instructions >= share


def test_products_of_bytes_take_the_instruction_where_there_is_one() -> None:
    """A convolution of bytes for a CPU with i8mm: unsigned by signed bytes, four at a time."""
    b = GraphBuilder()
    x = b.input("x", (1, 16, 6, 6), "uint8")
    weight = np.random.default_rng(0).integers(-128, 128, (16, 16, 3, 3)).astype(np.int8)
    graph = b.build(b.add("conv2d", x, b.constant(weight), pads=(1,) * 4))
    with_dots, without = (
        bn.compile(graph, target=f"aarch64-neoverse-{core}", threads=1, rewrite=False).executable
        for core in ("v1", "n1")
    )
    for executable, expected in ((with_dots, True), (without, False)):
        words = np.frombuffer(executable.code.data[: len(executable.code.data) // 4 * 4], np.uint32)
        assert bool(((words & 0xFFE0FC00) == USDOT).any() or ((words & 0xFFC0F400) == 0x4F80F000).any()) == expected
    pixels = np.random.default_rng(1).integers(0, 256, (1, 16, 6, 6)).astype(np.uint8)
    (wanted,) = evaluate(graph, {"x": pixels}).values()
    assert (Module(without, 1, device=CpuEmulator())(pixels) == wanted).all()
