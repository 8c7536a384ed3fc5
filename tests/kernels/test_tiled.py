"""The tiled template: random points of its space for very different operators, run natively, and what it refuses."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from burnish.errors import ScheduleError
from burnish.kernels.cpu.tiled_nests import TILED
from burnish.kernels.cpu.tiling import find_nest, sizes
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.templates import first_match, matches, tunable_matches
from burnish.loops.expr import maximum
from burnish.loops.layout import layout
from burnish.loops.program import For, walk_stmt
from burnish.loops.tensor import Tensor, compute, placeholder, stages
from burnish.machines.target import host, target
from burnish.ops import OPERATORS
from burnish.pipeline.kernel import KernelConfig, compile_recipe

Shape = tuple[int, ...]
BLOCKED = f"ABCD{host().lanes}b"
POINTS = 6


def define(op: str, *shapes: Shape, **attrs: object) -> Tensor:
    """An operator on inputs x, w, v."""
    inputs = [placeholder(shape, name=name) for shape, name in zip(shapes, "xwv", strict=False)]
    return OPERATORS[op].define("y", inputs, attrs)[-1]


def convolution(x: Shape, w: Shape, **attrs: object) -> Tensor:
    """relu(conv2d(x, w) + b)."""
    y, b = define("conv2d", x, w, **attrs), placeholder((w[0], 1, 1), name="b")
    return compute(y.shape, lambda n, c, h, v: maximum(y[n, c, h, v] + b[c, 0, 0], 0.0), "out")


def task_of(op: str, out: Tensor, constants: str = "", layouts: Mapping[str, str] | None = None) -> KernelTask:
    inputs = tuple(sorted((t for t in stages([out]) if t.body is None), key=lambda t: t.name))
    tags = {name: layout(tag) for name, tag in (layouts or {}).items()}
    return KernelTask("kernel", inputs, (out,), op, tags, frozenset(constants))


def random_points(space: ScheduleSpace, seed: int, count: int = POINTS) -> list[Choice]:
    """Uniform points of a space, every knob on its own."""
    rng = random.Random(seed)
    return [{name: rng.choice(choices) for name, choices in space.knobs.items()} for _ in range(count)]


BOTH = {"x": BLOCKED, "out": BLOCKED}
POOLED = {"x": BLOCKED, "y": BLOCKED}
OPERATIONS: dict[str, tuple[str, Tensor, str, Mapping[str, str]]] = {
    "convolution": ("conv2d", convolution((1, 20, 4, 7), (24, 20, 3, 3), pads=(1, 1, 1, 1)), "wb", BOTH),
    "strided, dilated, row-major": (
        "conv2d", convolution((2, 5, 9, 8), (19, 5, 3, 2), pads=(1, 2, 1, 2), strides=(2, 1), dilations=(1, 2)),
        "wb", {}),
    "channels last": ("conv2d", convolution((1, 6, 5, 7), (18, 6, 3, 3), pads=(1, 1, 1, 1)), "wb",
                      {"x": "ACDB", "out": "ACDB"}),
    "grouped": ("conv2d", convolution((1, 24, 4, 5), (36, 8, 3, 2), pads=(2, 1, 2, 1), dilations=(2, 2), groups=3),
                "wb", BOTH),
    "depthwise": ("conv2d", convolution((1, 20, 6, 7), (20, 1, 3, 3), pads=(1, 1, 1, 1), groups=20), "wb", BOTH),
    "matrix product": ("matmul", define("matmul", (37, 50), (50, 70)), "w", {}),
    "computed factors": ("matmul", define("matmul", (13, 33), (33, 29)), "", {}),
    "batched product, transposed": ("matmul", define("matmul", (3, 10, 24), (3, 24, 18)), "", {"w": "ACB", "y": "BAC"}),
    "pooling": ("max_pool2d", define("max_pool2d", (1, 20, 9, 8), kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
                "", POOLED),
    "mean of rows": ("reduce_mean", define("reduce_mean", (3, 5, 70), axes=(2,), keepdims=True), "", {}),
    "mean of images": ("reduce_mean", define("reduce_mean", (2, 12, 5, 7), axes=(2, 3), keepdims=False), "", {}),
    "greatest of columns": ("reduce_max", define("reduce_max", (30, 4, 9), axes=(0,), keepdims=False), "", {}),
    "product of all": ("reduce_prod", define("reduce_prod", (1, 40), axes=(1,), keepdims=True), "", {}),
    "map": ("add", define("add", (3, 5, 70), (70,)), "", {}),
}  # fmt: skip


@pytest.mark.parametrize("points", [slice(0, 3), pytest.param(slice(3, None), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_random_points(name, points, check):
    op, out, constants, layouts = OPERATIONS[name]
    space = TILED.on(task_of(op, out, constants, layouts), host()).space
    assert all(space.default[knob] in choices for knob, choices in space.knobs.items())
    choices = [space.default, *random_points(space, seed=len(name))]
    for number, choice in list(enumerate(choices))[points]:
        check(TILED, op, [out], constants, layouts, choice, edge="end" if number % 2 else "start", rtol=1e-4)


def test_every_choice_of_a_knob(check):
    """Each knob through all its choices, the others at their default: none is refused."""
    op, out, constants, layouts = OPERATIONS["convolution"]
    space = TILED.on(task_of(op, out, constants, layouts), host()).space
    for knob in ("vectors", "unroll", "parallel", "innermost_reduction", "accumulate", "producers"):
        for value in space.knobs[knob]:
            check(TILED, op, [out], constants, layouts, {"step_ic": 4, "block_h": 2, knob: value})


def test_the_space_is_that_of_the_definition():
    """The size is a product of at most a dozen choices a knob: billions for a convolution, thousands for a row."""
    there = target("x86-64-v4")
    out = convolution((1, 64, 56, 56), (64, 64, 3, 3), pads=(1, 1, 1, 1))
    task = task_of("conv2d", out, "wb", {"x": "ABCD16b", "out": "ABCD16b"})
    space = TILED.on(task, there).space
    assert space.size > 10**9
    assert max(len(choices) for choices in space.knobs.values()) <= 13
    assert {"block_c", "tile_h", "tile_v", "step_ic", "step_kh", "step_kw", "producers"} <= {*space.knobs}
    assert list(space.knobs["vector"]) == ["c"], "whose elements lie side by side"
    assert "tile_c" not in space.knobs, "its tile is a number of vectors"
    assert not {"producers", "accumulate"} & {*TILED.on(task_of("add", OPERATIONS["map"][1]), there).space.knobs}


def test_sizes_divide_and_others():
    assert sizes(56, 32) == [1, 2, 3, 4, 6, 7, 8, 12, 14, 16, 24, 28]
    assert sizes(13, 32, 5) == [1, 2, 3, 4, 5, 6, 8, 12, 13]
    assert len(sizes(3600, 3600)) == 12


def test_sums_of_a_default_tile_stay_in_registers():
    there = target("x86-64-v4")
    out = convolution((1, 64, 56, 56), (64, 64, 3, 3), pads=(1, 1, 1, 1))
    task = task_of("conv2d", out, "wb", {"x": "ABCD16b", "out": "ABCD16b"})
    choice = TILED.on(task, there).space.default
    assert 8 <= int(choice["tile_v"]) * int(choice["vectors"]) < there.vector_registers
    loops = [s for s in walk_stmt(TILED.on(task, there).apply(choice).program.body) if isinstance(s, For)]
    assert next(s.kind for s in loops if s.extent > 1) == "parallel"
    assert {s.extent for s in loops if s.kind == "vectorize"} == {there.lanes}


@pytest.mark.parametrize(
    ("op", "out"),
    [
        ("softmax", define("softmax", (3, 64), axis=-1)),
        ("layer_norm", define("layer_norm", (6, 96), (96,), (96,), axis=1)),
    ],
)
def test_several_reductions_are_left_to_others(op: str, out: Tensor) -> None:
    assert find_nest(task_of(op, out)) is None


@pytest.mark.parametrize("change", [{"step_k": 7}, {"tile_i0": 0}, {"block_i1": 0}])
def test_an_illegal_point_is_refused(change: Choice) -> None:
    op, out, constants, layouts = OPERATIONS["matrix product"]
    task = task_of(op, out, constants, layouts)
    with pytest.raises(ScheduleError, match="tiled: "):
        TILED.on(task, host()).apply({**TILED.on(task, host()).space.default, **change})


def product_without_template(op: str, x: Shape, w: Shape, dtype: str, **attrs: object) -> KernelTask:
    inputs = placeholder(x, dtype, "x"), placeholder(w, dtype, "w")
    (y,) = OPERATORS[op].define("y", list(inputs), attrs)
    return KernelTask("kernel", inputs, (y,), op, {}, frozenset("w") if op == "conv2d" else frozenset())


@pytest.mark.parametrize(
    ("op", "x", "w", "dtype", "attrs"),
    [
        ("conv2d", (1, 33, 17, 9), (3, 33, 5, 5), "float64", {"pads": (2, 2, 2, 2), "strides": (2, 2)}),
        ("conv2d", (1, 8, 9, 20), (12, 4, 3, 3), "float64", {"groups": 2, "dilations": (2, 2)}),
        ("conv2d", (1, 16, 6, 20), (16, 1, 3, 3), "float64", {"groups": 16, "pads": (1, 1, 1, 1)}),
        ("conv2d_transpose", (1, 6, 5, 7), (6, 4, 3, 3), "float64", {"pads": (1, 1, 1, 1)}),
        ("matmul", (19, 40), (40, 21), "float64", {}),
        ("matmul", (33, 16), (16, 33), "float64", {"transpose_a": True, "transpose_b": True}),
        ("matmul", (16, 33), (40, 16), "float64", {"transpose_a": True, "transpose_b": True}),
        ("matmul", (40, 19), (40, 1), "float64", {"transpose_a": True}),
        ("matmul", (3, 17, 30), (3, 30, 5), "int32", {}),
    ],
)
def test_products_without_a_template_are_tiled(op, x, w, dtype, attrs, check):
    """In vectors of their own elements, each operand of a register tile read once."""
    task = product_without_template(op, x, w, dtype, **attrs)
    assert first_match(task, host()).name == "tiled"
    check(TILED, op, [task.outputs[0]], [*task.constants], rtol=1e-14)
    lanes = host().lanes * 4 // (8 if dtype == "float64" else 4)
    made = first_match(task, host())
    wide = [s.extent for s in walk_stmt(made.apply(made.space.default).program.body)
            if isinstance(s, For) and s.kind == "vectorize"]  # fmt: skip
    assert wide and max(wide) <= lanes


def test_it_is_offered_to_the_tuner_and_the_first_choice_for_products_alone() -> None:
    op, out, constants, layouts = OPERATIONS["mean of rows"]
    task = task_of(op, out, constants, layouts)
    names = [match.name for match in matches(task, host())]
    assert names[0] == first_match(task, host()).name == "generic"
    assert "tiled" not in names
    assert [t.name for t in tunable_matches(task, host())] == [*names, "tiled"]
    assert compile_recipe(task, host(), KernelConfig("tiled", {})).template == "tiled"


@pytest.mark.parametrize("machine", ["x86-64-v3", "aarch64-cortex-a53", "riscv64"])
def test_other_machines(machine: str) -> None:
    """The default's vectors are those of the machine."""
    there = target(machine)
    task = task_of("matmul", OPERATIONS["matrix product"][1], "w")
    made = TILED.on(task, there).apply(TILED.on(task, there).space.default)
    assert {s.extent for s in walk_stmt(made.program.body) if isinstance(s, For) and s.kind == "vectorize"} == {
        there.lanes
    }
    wide = product_without_template("matmul", (19, 40), (40, 32), "float64")
    match = first_match(wide, there)
    kinds = [s for s in walk_stmt(match.apply(match.space.default).program.body) if isinstance(s, For)]
    assert match.name == "tiled"
    assert {s.extent for s in kinds if s.kind == "vectorize"} == {there.lanes // 2}
