"""Products of integers of few bits: exact on every machine, by words of bits, at sizes that fill none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ModelError
from burnish.graph.bit_products import multiply_bits
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.expr import BIT_COUNTS, math
from burnish.loops.interpret import run_program
from burnish.loops.numeric import FUNCTIONS
from burnish.loops.sizes import dim
from burnish.loops.tensor import compute, create_program, placeholder, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.machines.aarch64.dot import COUNTS as AARCH64
from burnish.machines.intrinsics import TensorIntrinsic, reference
from burnish.machines.target import host, target
from burnish.machines.x86.dot import COUNTS as X86
from burnish.ops.bit_words import MOST_WORDS, pack
from burnish.runtime.module import Module
from burnish.schedule.schedule import Schedule
from burnish.simulators.emulator import CpuEmulator

# channels, outputs, rows, columns, kernel, stride, dilation, groups, bits, bits of weights, bipolar
WINDOWS = (
    (64, 32, 9, 11, 3, 1, 1, 1, 2, 1, False),
    (64, 32, 7, 7, 3, 2, 1, 1, 2, 1, True),
    (33, 17, 5, 6, 1, 2, 1, 1, 1, 1, True),
    (20, 5, 8, 8, 3, 1, 2, 1, 3, 2, True),
    (64, 16, 6, 6, 3, 1, 1, 2, 2, 2, True),
    (24, 12, 5, 5, 3, 1, 1, 4, 2, 1, True),  # groups of six channels: products of bytes
)
SIZES = ((1, 1, 1, 2, 1), (5, 100, 33, 2, 1), (17, 64, 16, 1, 1), (7, 31, 70, 4, 2))


def codes(bits: int, *shape: int) -> np.ndarray:
    """Integers of a number of bits; where that is odd, a higher bit is set as well, which must be ignored."""
    random = np.random.default_rng(sum(shape))
    return random.integers(0, (1 << bits, 256)[bits % 2], shape).astype(np.uint8)


def meant(value: np.ndarray, bits: int, bipolar: bool) -> np.ndarray:
    """The integers that codes stand for."""
    low = value.astype(np.int64) & ((1 << bits) - 1)
    return 2 * low - ((1 << bits) - 1) if bipolar else low


def convolved(x: np.ndarray, w: np.ndarray, stride: int, dilation: int, groups: int) -> np.ndarray:
    """A convolution of int64 arrays, padded by one less than what is seen on each side."""
    pad = w.shape[2] // 2
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    reach = tuple(dilation * (k - 1) + 1 for k in w.shape[2:])
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, (2, 3))
    seen = seen[:, :, ::stride, ::stride, ::dilation, ::dilation]
    parts = zip(np.split(seen, groups, 1), np.split(w, groups, 0), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", *part) for part in parts], 1)


def window(case: tuple[int, ...], known: bool = True) -> tuple[Graph, dict[str, np.ndarray], np.ndarray]:
    """A graph of one convolution, what it is fed, and what it gives."""
    c, o, h, w, k, stride, dilation, groups, bits, weight_bits, bipolar = case
    x, weight = codes(bits, 2, c, h, w), codes(weight_bits, o, c // groups, k, k)
    g = GraphBuilder()
    feeds = {g.input("x", x.shape, "uint8"): x}
    name = g.constant(weight) if known else g.input("w", weight.shape, "uint8")
    feeds |= {} if known else {name: weight}
    attrs = {"strides": (stride, stride), "pads": (k // 2,) * 4, "dilations": (dilation, dilation), "groups": groups}
    graph = g.build(
        g.add("low_bit_conv2d", "x", name, bits=bits, weight_bits=weight_bits, bipolar=bool(bipolar), **attrs)
    )
    answer = convolved(meant(x, bits, False), meant(weight, weight_bits, bool(bipolar)), stride, dilation, groups)
    return graph, feeds, answer


def test_counts_are_of_halves_of_words() -> None:
    x = np.array([0x0001FFFF, -1, -(1 << 31), 0x00070000], np.int32)
    y = np.array([-1, -1, -1, 0x00050001], np.int32)
    assert FUNCTIONS[BIT_COUNTS](x, y).tolist() == [1 << 16 | 16, 16 << 16 | 16, 1 << 16, 2 << 16]


@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_convolutions_are_exact(case: tuple[int, ...]) -> None:
    graph, feeds, answer = window(case)
    found = bn.compile(graph, threads=2, rewrite=False)(**feeds)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, answer)
    (defined,) = evaluate(graph, feeds).values()
    np.testing.assert_array_equal(defined, answer)


@pytest.mark.parametrize("case", WINDOWS[1:3], ids=str)
def test_convolutions_are_exact_on_other_cpus(case: tuple[int, ...]) -> None:
    """By counts of NEON in an emulator, and on this one by bytes and by counts of no vector."""
    graph, feeds, answer = window(case)
    executable = bn.compile(graph, target="aarch64-cortex-a53", threads=1, rewrite=False).executable
    np.testing.assert_array_equal(Module(executable, 1, device=CpuEmulator())(**feeds), answer)
    for name in ("cpu,-avx512bitalg", "cpu,-avx512") if host().has("avx512bitalg") else ():
        np.testing.assert_array_equal(bn.compile(graph, target=name, rewrite=False)(**feeds), answer)


def test_weights_that_come_at_a_call_are_packed_there() -> None:
    graph, feeds, answer = window(WINDOWS[1], known=False)
    np.testing.assert_array_equal(bn.compile(graph, rewrite=False)(**feeds), answer)


@pytest.mark.parametrize("bipolar", [False, True])
def test_products_are_exact(bipolar: bool) -> None:
    for rows, depth, columns, bits, weight_bits in SIZES:
        x, w = codes(bits, 2, rows, depth), codes(weight_bits, depth, columns)
        attrs = {"bits": bits, "weight_bits": weight_bits, "bipolar": bipolar}
        g = GraphBuilder()
        graph = g.build(g.add("low_bit_matmul", g.input("x", x.shape, "uint8"), g.constant(w), **attrs))
        wanted = meant(x, bits, False) @ meant(w, weight_bits, bipolar)
        np.testing.assert_array_equal(bn.compile(graph, rewrite=False)(x), wanted, err_msg=f"{rows} {depth} {columns}")


def test_sums_that_outgrow_half_a_word_are_cut() -> None:
    """All bits are set: counts are as large as they get."""
    depth = MOST_WORDS * 16 + 40
    x, w = np.full((2, depth), 3, np.uint8), np.ones((depth, 3), np.uint8)
    g = GraphBuilder()
    graph = g.build(g.add("low_bit_matmul", g.input("x", x.shape, "uint8"), g.constant(w)))
    assert [n.op for n in multiply_bits(graph, host()).nodes].count("bit_matmul") == 2
    np.testing.assert_array_equal(bn.compile(graph, rewrite=False)(x), np.full((2, 3), 3 * depth))


def test_weights_are_packed_when_compiled() -> None:
    graph, _, _ = window(WINDOWS[0])
    made = multiply_bits(graph, host())
    assert [n.op for n in made.nodes] == ["bit_words", "bit_conv2d"]
    (words,) = made.constants.values()
    assert words.dtype == np.int32 and words.shape == (32, 4, 3, 3)
    for machine in (target("cuda:sm_90a"), target("x86-64-v3")):
        ops = {n.op for n in multiply_bits(graph, machine).nodes}
        assert ("conv2d" in ops) == (machine.machine.dialect.grid is not None)


def test_words_of_constants_are_those_of_the_operator() -> None:
    x = codes(2, 3, 37, 4)
    for planes in ((0,), (1,), (0, 1), (1, 1), (2, 3)):
        for axis in (0, 1, 2):
            g = GraphBuilder()
            graph = g.build(g.add("bit_words", g.input("x", x.shape, "uint8"), axis=axis, planes=planes))
            (words,) = evaluate(graph, {"x": x}).values()
            np.testing.assert_array_equal(words, pack(x, axis, planes))


def test_it_is_a_function_of_arrays_and_symbols_and_survives_a_file(tmp_path: Path) -> None:
    x, w = codes(2, 1, 40, 6, 6), codes(1, 8, 40, 3, 3)
    wanted = convolved(meant(x, 2, False), meant(w, 1, True), 1, 1, 1)
    attrs = {"bits": 2, "weight_bits": 1, "bipolar": True, "pads": (1, 1, 1, 1)}
    found = bn.nd.low_bit_conv2d(bn.nd.array(x), bn.nd.array(w), **attrs)
    np.testing.assert_array_equal(found.asnumpy(), wanted)
    image = bn.sym.low_bit_conv2d(bn.sym.variable("x"), bn.sym.variable("w"), **attrs)
    graph = bn.sym.graph(image, {"x": (x.shape, "uint8"), "w": (w.shape, "uint8")})
    module = bn.compile(graph, rewrite=False)
    module.save(tmp_path / "low.bn")
    np.testing.assert_array_equal(bn.load(tmp_path / "low.bn")(x=x, w=w), wanted)


def test_what_is_refused_is_named() -> None:
    g = GraphBuilder()
    x = g.input("x", (1, 8, 4, 4), "uint8")
    for dtype, bits, words in (("int8", 2, "weight.*int8"), ("uint8", 5, "'bits'.*found 5.*1 to 4")):
        weight = g.constant(np.zeros((4, 8, 1, 1), dtype))
        with pytest.raises(ModelError, match=words):
            g.add("low_bit_conv2d", x, weight, bits=bits)


def test_a_batch_may_be_open() -> None:
    n = dim("n", 1, 8)
    w = codes(1, 16, 40, 3, 3)
    g = GraphBuilder()
    image = g.input("x", (n, 40, 6, 6), "uint8")
    graph = g.build(g.add("low_bit_conv2d", image, g.constant(w), bipolar=True, pads=(1, 1, 1, 1)))
    module = bn.compile(graph, rewrite=False)
    for batch in (1, 3):
        x = codes(2, batch, 40, 6, 6)
        wanted = convolved(meant(x, 2, False), meant(w, 1, True), 1, 1, 1)
        np.testing.assert_array_equal(module(x), wanted)


@pytest.mark.parametrize("intrinsic", [X86, AARCH64], ids=lambda i: i.name)
def test_the_intrinsic_is_what_it_declares(intrinsic: TensorIntrinsic, native: Callable[..., dict]) -> None:
    """By its declaration, and by its code where this machine has it."""
    depth, lanes = (b.shape[0] for b in intrinsic.operands[1::-1])
    x, w = placeholder((3, 2 * depth), "int32", name="x"), placeholder((2 * depth, lanes), "int32", name="w")
    k = reduce_axis(2 * depth, "k")
    y = compute((3, lanes), lambda m, n: sum_over(math(BIT_COUNTS, x[m, k.var], w[k.var, n]), (k,)), "y")
    s = Schedule(create_program("kernel", [x, w], [y]))
    row, lane, steps = s.loops("y")
    outer, inner = s.split(steps, depth)
    s.reorder(row, outer, lane, inner)
    s.tensorize(lane, intrinsic)
    random = np.random.default_rng(0)
    arrays = {t.name: random.integers(-(1 << 31), 1 << 31, t.shape).astype(np.int32) for t in (x, w)}
    wanted = FUNCTIONS[BIT_COUNTS](arrays["x"][:, :, None], arrays["w"]).sum(1, dtype=np.int32)
    found = run_program(s.program, arrays, {intrinsic.name: reference(intrinsic)})["y"]
    np.testing.assert_array_equal(found, wanted)
    if host().machine.named_intrinsics.get(intrinsic.name) is intrinsic and all(map(host().has, intrinsic.needs)):
        np.testing.assert_array_equal(native(s.program, arrays)["y"], wanted)
