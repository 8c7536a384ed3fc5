"""Matrix-product kernels against their definition: constant and computed factors, odd sizes, epilogues, views."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burnish.kernels.cpu.matmul import MATMUL
from burnish.kernels.task import KernelTask
from burnish.loops.tensor import Tensor, compute, placeholder
from burnish.loops.verify import verify
from burnish.machines.target import host, target
from burnish.ops import OPERATORS


def apply(op: str, *inputs: Tensor, name: str, **attrs: object) -> Tensor:
    return OPERATORS[op].define(name, list(inputs), attrs)[0]


def scaled(x: Tensor, factor: float, name: str) -> Tensor:
    return compute(x.shape, lambda *i: x[i] * factor, name)


def weighted(*shape: int, weight: tuple[int, ...], **attrs: object) -> Tensor:
    return apply("matmul", placeholder(shape, name="x"), placeholder(weight, name="w"), name="y", **attrs)


SIZES = [(1, 5, 7), (1, 40, 200), (3, 9, 33), (4, 64, 100), (13, 30, 18), (26, 17, 96), (35, 77, 50), (128, 64, 48)]


@pytest.mark.parametrize(("rows", "depth", "columns"), SIZES)
def test_constant_weight(rows, depth, columns, check):
    y = weighted(rows, depth, weight=(depth, columns))
    check(MATMUL, "matmul", [apply("add", y, placeholder((columns,), name="b"), name="z")], ["b", "w"])


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(threads, check):
    y = weighted(40, 70, weight=(70, 130))
    check(MATMUL, "matmul", [y], ["w"], threads=threads)


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("choice", [{"tile": 1, "vectors": 1}, {"tile": 4, "vectors": 5}, {"tile": 12, "vectors": 2}])
def test_every_choice(choice, edge, check):
    y = weighted(2, 27, 150, weight=(150, 90))
    check(MATMUL, "matmul", [apply("relu", y, name="z")], ["w"], choice={**choice, "outer": "columns"}, edge=edge)


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("shape", [(27, 150), (2, 27, 150), (3, 1, 9, 150)])
@pytest.mark.parametrize(
    "choice",
    [
        {"tile": 8, "vectors": 3, "depth": 50, "unroll": 2},
        {"tile": 4, "vectors": 2, "depth": 75, "unroll": 4},
        {"tile": 1, "vectors": 1, "depth": 30, "unroll": 1},
    ],
)
def test_passes_over_part_of_the_depth(choice, shape, edge, check):
    """Tiles that do not divide the rows, steps that do not divide a pass, several dimensions of rows."""
    y = apply("add", weighted(*shape, weight=(150, 90)), placeholder((90,), name="b"), name="t")
    check(MATMUL, "matmul", [apply("relu", y, name="z")], ["b", "w"], choice={**choice, "outer": "columns"}, edge=edge)


@pytest.mark.parametrize("perm", [(0, 2, 1, 3), (0, 2, 3, 1)])
def test_passes_into_attention_heads(perm, check):
    heads = apply("reshape", weighted(1, 40, 96, weight=(96, 96)), name="h", shape=(1, 40, 3, 32))
    z = apply("transpose", heads, name="z", perm=perm)
    choice = {"tile": 8, "vectors": 2, "depth": 32, "unroll": 4, "outer": "columns"}
    check(MATMUL, "matmul", [z], ["w"], choice=choice)


def test_deep_panels_are_summed_in_passes(check):
    """By default, where many rows share a panel that does not fit the second cache next to the one after it."""
    there = target("x86-64-v4")

    def depth(rows: int, inner: int, columns: int) -> int:
        y = weighted(rows, inner, weight=(inner, columns))
        inputs = (placeholder((rows, inner), name="x"), placeholder((inner, columns), name="w"))
        return int(MATMUL.on(KernelTask("k", inputs, (y,), "matmul", {}, frozenset("w")), there).space.default["depth"])

    assert depth(128, 768, 768) == depth(1, 4096, 1000) == depth(128, 3067, 768) == 0
    assert 128 <= depth(128, 3072, 768) <= 341
    inner = host().l2_bytes // 64  # three vectors of columns
    check(MATMUL, "matmul", [weighted(36, inner, weight=(inner, 40))], ["w"])


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("shape", [(9, 24, 40), (30, 17, 33), (64, 96, 80)])
@pytest.mark.parametrize("choice", [{}, {"outer": "all"}, {"tile": 5, "vectors": 2}, {"outer": "columns", "depth": 3}])
def test_a_second_result_follows_the_first(choice, shape, edge, check):
    depth, rows, columns = shape
    x, dy = placeholder((depth, rows), name="x"), placeholder((depth, columns), name="dy")
    v, w, rate = (placeholder(s, name=n) for s, n in (((rows, columns), "v"), ((rows, columns), "w"), ((1,), "rate")))
    new = apply("add", scaled(v, 0.9, "slow"), apply("matmul", x, dy, name="g", transpose_a=True), name="new")
    moved = apply("sub", w, apply("mul", new, rate, name="step"), name="moved")
    check(MATMUL, "matmul", [new, moved], choice=choice if depth % choice.get("depth", 1) == 0 else {}, edge=edge)


def test_rows_in_parallel(check):
    y = weighted(64, 100, weight=(100, 16))
    assert check(MATMUL, "matmul", [y], ["w"])["outer"] == "all"


def test_gelu_and_residual_epilogues(check):
    y = apply("add", weighted(1, 20, 32, weight=(32, 80)), placeholder((80,), name="b"), name="t")
    inner = compute(y.shape, lambda *i: y[i] + 1.0, "u")
    gelu = scaled(apply("mul", y, apply("erf", inner, name="e"), name="m"), 0.5, "g")
    z = apply("add", gelu, placeholder(y.shape, name="r"), name="z")
    check(MATMUL, "matmul", [z], ["b", "w"])


@pytest.mark.parametrize("perm", [(0, 2, 1, 3), (0, 2, 3, 1)])
def test_attention_heads_behind(perm, check):
    y = apply("add", weighted(2, 20, 48, weight=(48, 96)), placeholder((96,), name="b"), name="t")
    heads = apply("reshape", y, name="h", shape=(2, 20, 3, 32))
    check(MATMUL, "matmul", [apply("transpose", heads, name="z", perm=perm)], ["b", "w"])


def test_heads_that_are_no_whole_vectors_are_left_to_others():
    heads = apply("reshape", weighted(6, 20, weight=(20, 90)), name="h", shape=(6, 6, 15))
    z = apply("transpose", heads, name="z", perm=(1, 0, 2))
    inputs = (placeholder((6, 20), name="x"), placeholder((20, 90), name="w"))
    assert not MATMUL.match(KernelTask("k", inputs, (z,), "matmul", {}, frozenset("w")), host())


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("batch", "rows", "depth", "columns"), [(3, 20, 16, 32), (4, 9, 7, 21), (1, 50, 60, 70)])
def test_computed_factors(batch, rows, depth, columns, transpose_b, check):
    right = (1, batch, columns, depth) if transpose_b else (1, batch, depth, columns)
    y = weighted(1, batch, rows, depth, weight=right, transpose_b=transpose_b)
    check(MATMUL, "matmul", [scaled(y, 0.125, "z")])


def test_a_transposed_computed_factor_on_one_core():
    x, w = placeholder((64, 60), name="x"), placeholder((70, 60), name="w")
    y, inputs = apply("matmul", x, w, name="y", transpose_b=True), (x, w)
    match = MATMUL.on(KernelTask("k", inputs, (y,), "matmul", {}, frozenset()), replace(host(), cores=1))
    verify(match.apply(match.space.default).program)  # the panels are not copied in parts of a batch: there is none


def test_views_in_front_and_behind(check):
    a, b = placeholder((1, 20, 3, 16), name="a"), placeholder((1, 20, 3, 16), name="b")
    left = apply("transpose", a, name="q", perm=(0, 2, 1, 3))
    right = apply("transpose", b, name="k", perm=(0, 2, 3, 1))
    y = apply("matmul", left, right, name="y")
    check(MATMUL, "matmul", [apply("transpose", y, name="z", perm=(0, 2, 1, 3))])


CASES = [
    ((30, 40), (40, 50), {}, "x"),  # the left factor is constant
    ((40, 30), (50, 40), {"transpose_a": True, "transpose_b": True}, ""),
    ((3, 1, 10, 20), (5, 20, 24), {}, "w"),  # a batch of weights
    ((4, 10, 20), (20, 33), {}, ""),
    ((40, 20), (20,), {}, "x"),  # matrix times vector
    ((40, 20), (20,), {}, ""),
    ((20,), (20, 50), {}, "w"),
    ((35, 1, 24), (24, 40), {}, "w"),
]


@pytest.mark.parametrize(("left", "right", "attrs", "constants"), CASES)
def test_other_forms(left, right, attrs, constants, check):
    check(MATMUL, "matmul", [weighted(*left, weight=right, **attrs)], list(constants))


@pytest.mark.parametrize("machine", ["x86-64-v4", "x86-64-v3", "aarch64-neoverse-n1"])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(128, 768, 768), (1, 4096, 1000), (35, 650, 10000), (3, 5, 7)])
def test_default_tiles_fit_the_registers(machine, rows, depth, columns):
    y = weighted(rows, depth, weight=(depth, columns))
    inputs = (placeholder((rows, depth), name="x"), placeholder((depth, columns), name="w"))
    task = KernelTask("k", inputs, (y,), "matmul", {}, frozenset("w"))
    choice = MATMUL.on(task, target(machine)).space.default
    tile, vectors = int(choice["tile"]), int(choice["vectors"])
    assert tile <= rows
    assert tile * vectors + (vectors if tile > 1 and vectors > 1 else 0) + 1 <= target(machine).vector_registers
