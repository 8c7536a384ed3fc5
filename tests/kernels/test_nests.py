"""Nests as arrays against the schedules they stand for, and what they touch against enumeration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product as cartesian
from math import prod

import numpy as np
import pytest

from burnish.errors import ScheduleError
from burnish.kernels.cpu.strides import strides
from burnish.kernels.nest import ANNOTATIONS, Arrangement, CandidateNests, LoopKind, NestLevel, main_stage, statement
from burnish.kernels.scheduled import ScheduledNests
from burnish.kernels.task import KernelTask
from burnish.kernels.template import Template
from burnish.kernels.templates import template_called
from burnish.loops.expr import INDEX, Const, Expr, Load, Reduce, Var, maximum
from burnish.loops.layout import layout
from burnish.loops.program import For, Store
from burnish.loops.simplify import simplify
from burnish.loops.tensor import Tensor, compute, placeholder, reduce_axis, stages
from burnish.loops.tensor import sum as sum_over
from burnish.loops.traverse import loads, substitute, walk
from burnish.machines.target import target
from burnish.ops import OPERATORS
from burnish.schedule.nest import sites
from burnish.schedule.schedule import Schedule
from tests.marks import slow

MACHINE = target("x86-64-v4")
LANES = MACHINE.lanes
BLOCKED = f"ABCD{LANES}b"
IMAGES = ("x", "out")


def phases() -> KernelTask:
    """The phases of a transposed convolution with stride 2, apart from each other; the kernel's phases are constant."""
    image, kernel = placeholder((1, 32, 9, 9), name="x"), placeholder((48, 2, 2, 32, 2, 2), name="w")

    def element(n: Var, oc: Var, rh: Var, rw: Var, qh: Var, qw: Var) -> Expr:
        ic, th, tw = reduce_axis(32, "ic"), reduce_axis(2, "th"), reduce_axis(2, "tw")
        pixel, tap = image[n, ic.var, qh + th.var, qw + tw.var], kernel[oc, rh, rw, ic.var, th.var, tw.var]
        return sum_over(pixel * tap, (ic, th, tw))

    parts = compute((1, 48, 2, 2, 8, 8), element, "y.phases")
    made = compute((1, 48, 16, 16), lambda n, c, h, w: maximum(parts[n, c, h % 2, w % 2, h // 2, w // 2], 0.0), "out")
    layouts = {name: layout(BLOCKED) for name in IMAGES}
    return KernelTask("kernel", (image, kernel), (made,), "conv2d_transpose", layouts, frozenset({"w"}))


def recurrent() -> KernelTask:
    gates, h, c = placeholder((3, 4 * 150), name="g"), placeholder((3, 150), name="h"), placeholder((3, 150), name="c")
    outputs = OPERATORS["lstm_cell"].define("y", [gates, h, c, placeholder((4, 150, 150), name="w")], {})
    inputs = tuple(t for t in stages(outputs) if t.body is None)
    return KernelTask("kernel", inputs, outputs, "lstm_cell", {}, frozenset({"w"}))


def heads() -> KernelTask:
    """A product whose columns become two axes of the output, as attention's: out[h, s, d] = (x w)[s, h * 64 + d]."""
    (y,) = OPERATORS["matmul"].define("y", [placeholder((128, 256), name="x"), placeholder((256, 256), name="w")], {})
    made = compute((4, 128, 64), lambda h, s, d: maximum(y[s, h * 64 + d], 0.0), "out")
    return KernelTask(
        "kernel", tuple(t for t in stages([made]) if t.body is None), (made,), "matmul", {}, frozenset({"w"})
    )


def words(rows: int) -> KernelTask:
    """A product with numbers of 4 bits in blocks of 32, and relu."""
    operands = [placeholder((rows, 256), name="x"), placeholder((32, 160), "int32", "w")]
    operands += [placeholder((8, 160), name="s"), placeholder((1, 1), name="z")]
    (y,) = OPERATORS["block_matmul"].define("y", operands, {"bits": 4, "block": 32})
    made = compute(y.shape, lambda *i: maximum(y[i], 0.0), "out")
    return KernelTask("kernel", tuple(operands), (made,), "block_matmul", {}, frozenset({"w", "s", "z"}))


def task_of(
    op: str, shapes: Mapping[str, tuple[int, ...]], attrs: Mapping[str, object], blocked: Sequence[str] = ()
) -> KernelTask:
    """relu(op(...)); the input ``w`` is constant."""
    (y,) = OPERATORS[op].define("y", [placeholder(s, name=n) for n, s in shapes.items()], attrs)
    made = compute(y.shape, lambda *i: maximum(y[i], 0.0), "out")
    inputs = tuple(t for t in stages([made]) if t.body is None)
    return KernelTask("kernel", inputs, (made,), op, {n: layout(BLOCKED) for n in blocked}, frozenset({"w"}))


def conv(
    channels: int, size: int, outputs: int, kernel: int, stride: int = 1, blocked: Sequence[str] = ()
) -> KernelTask:
    """A layer of ResNet-18 (thesis-chen table 5.1)."""
    attrs = {"pads": (kernel // 2,) * 4, "strides": (stride, stride)}
    shapes = {"x": (1, channels, size, size), "w": (outputs, channels, kernel, kernel)}
    return task_of("conv2d", shapes, attrs, blocked)


DEPTHWISE = ({"x": (1, 64, 28, 28), "w": (64, 1, 3, 3)}, {"pads": (1, 1, 1, 1), "groups": 64})
STEM = ({"x": (1, 3, 64, 64), "w": (7, 7, 3, 2, 64)}, {"m": 4, "kernel_w": 7, "strides": (2, 2), "pads": (3,) * 4})
STRIDED = ({"x": (2, 32, 28, 28), "w": (5, 3, 32, 2, 64)}, {"m": 4, "kernel_w": 3, "strides": (2, 2), "pads": (1,) * 4})
POOL = ({"x": (1, 64, 56, 56)}, {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)})
TASKS: dict[str, tuple[str, KernelTask]] = {
    "C1": ("direct_conv2d", conv(3, 224, 64, 7, 2, ("out",))),
    "C2": ("direct_conv2d", conv(64, 56, 64, 3, 1, IMAGES)),
    "C4": ("direct_conv2d", conv(64, 56, 128, 3, 2, IMAGES)),
    "C8": ("direct_conv2d", conv(128, 28, 256, 1, 2, IMAGES)),
    "row of pixels": ("direct_conv2d", task_of("conv2d", {"x": (1, 64, 1, 56), "w": (64, 64, 1, 1)}, {}, IMAGES)),
    "pointwise": ("pointwise_conv2d", task_of("conv2d", {"x": (1, 32, 1, 512), "w": (48, 32, 1, 1)}, {})),
    "row-major": ("direct_conv2d", conv(64, 28, 64, 3, 1, ("x",))),
    "plain": ("plain_conv2d", conv(64, 28, 64, 3, 1, ("x",))),
    "winograd": ("winograd_conv2d", task_of("winograd_conv2d", {"x": (1, 64, 28, 28), "w": (6, 6, 64, 64)}, {},
                                            IMAGES)),
    "strided winograd": ("winograd_conv2d", task_of("winograd_conv2d", {"x": (1, 64, 28, 28), "w": (5, 5, 64, 64)},
                                                    {"m": 2, "strides": (2, 2)}, IMAGES)),
    "grouped winograd": ("winograd_conv2d", task_of("winograd_conv2d", {"x": (1, 64, 28, 28), "w": (6, 6, 96, 32)},
                                                    {"groups": 2}, IMAGES)),
    "raw winograd": ("winograd_raw_weight", task_of("winograd_conv2d", {"x": (1, 64, 28, 28), "w": (64, 64, 3, 3)},
                                                    {"transforms_weight": True}, IMAGES)),
    "stem": ("polyphase_conv2d", task_of("polyphase_conv2d", *STEM, ("out",))),
    "row-major stem": ("polyphase_conv2d", task_of("polyphase_conv2d", *STEM)),
    "polyphase": ("polyphase_conv2d", task_of("polyphase_conv2d", *STRIDED, IMAGES)),
    "depthwise": ("depthwise_conv2d", task_of("conv2d", *DEPTHWISE, IMAGES)),
    "depthwise rows": ("depthwise_rows", task_of("conv2d", *DEPTHWISE)),
    "groups": ("grouped_conv2d", task_of("conv2d", {"x": (1, 64, 28, 28), "w": (64, 4, 3, 3)},
                                         {"pads": (1, 1, 1, 1), "groups": 16}, IMAGES)),
    "matmul": ("matmul", task_of("matmul", {"x": (128, 768), "w": (768, 3072)}, {})),
    "heads": ("matmul", heads()),
    "one row": ("matmul", task_of("matmul", {"x": (1, 512), "w": (512, 1000)}, {})),
    "batches": ("matmul", task_of("matmul", {"x": (12, 128, 64), "v": (12, 64, 128)}, {})),
    "transposed": ("matmul", task_of("matmul", {"x": (12, 128, 64), "v": (12, 128, 64)}, {"transpose_b": True})),
    "words": ("block_product", words(6)),
    "one row of words": ("block_product", words(1)),
    "pool rows": ("pool_rows", task_of("max_pool2d", *POOL)),
    "pool": ("pool2d", task_of("max_pool2d", *POOL, IMAGES)),
    "lrn": ("neighbouring_channels", task_of("lrn", {"x": (1, 64, 14, 14)}, {"size": 5}, IMAGES)),
    "map": ("generic", task_of("relu", {"x": (1, 24, 56, 56)}, {})),
    "blocked map": ("generic", task_of("relu", {"x": (1, 64, 56, 56)}, {}, IMAGES)),
    "phases": ("conv2d_transpose_phases", phases()),
    "recurrent": ("recurrent", recurrent()),
    "tiled image": ("tiled", conv(64, 28, 64, 3, 1, IMAGES)),
    "tiled row-major": ("tiled", conv(16, 28, 32, 1)),
    "tiled product": ("tiled", task_of("matmul", {"x": (128, 96), "w": (96, 144)}, {})),
    "tiled map": ("tiled", task_of("relu", {"x": (1, 24, 56, 56)}, {})),
}  # fmt: skip


def template_named(name: str) -> Template:
    return template_called(name, MACHINE)


def candidates(template: Template, task: KernelTask, count: int) -> list[dict[str, int | str]]:
    """The default and random choices."""
    space, rng = template.on(task, MACHINE).space, np.random.default_rng(len(task.name))
    drawn = [{k: v[rng.integers(len(v))] for k, v in space.knobs.items()} for _ in range(count)]
    return [dict(space.default), *drawn]


def arrays(choices: Sequence[Mapping[str, int | str]]) -> dict[str, np.ndarray]:
    return {knob: np.array([c[knob] for c in choices]) for knob in choices[0]}


def scheduled(
    template: Template, task: KernelTask, choice: Mapping[str, int | str], reads: set[str]
) -> tuple[Schedule, Store, list[For]]:
    """The schedule, the statement of its main stage, and the loops around that."""
    made = template.on(task, MACHINE).apply(choice)
    found = []
    for site in sites(made.program.body):
        if isinstance(site.stmt, Store):
            loaded = {x.buffer.name for x in walk(site.stmt.value) if isinstance(x, Load)}
            found.append((site.stmt.reduce is not None, reads <= loaded, site))
    *_, site = max(found, key=lambda f: f[:2])
    assert isinstance(site.stmt, Store)
    return made, site.stmt, [s for s in site.path if isinstance(s, For)]


def own_levels(nest: CandidateNests, row: int, copied: int) -> list[int]:
    """The levels that are loops of a candidate, but for an axis with a copy of the code for each iteration."""
    return [k for k, axis in enumerate(nest.axes) if nest.extent[k, row] > 1 and axis != copied]


def described(nest: CandidateNests, row: int, copied: int) -> list[tuple[int, str]]:
    """(iterations, annotation) of the loops that a candidate has; neighbours that run in parallel as one."""
    loops: list[tuple[int, str]] = []
    for k in own_levels(nest, row, copied):
        extent, code = int(nest.extent[k, row]), int(nest.annotation[k, row])
        if code == LoopKind.PARALLEL and loops and loops[-1][1] == "parallel":
            loops[-1] = (loops[-1][0] * extent, "parallel")
        else:
            loops.append((extent, ANNOTATIONS[code]))
    return loops


@pytest.mark.parametrize("name", slow(TASKS, "raw winograd"))
def test_nests_are_those_of_the_schedules(name: str) -> None:
    """Loops in order with extents and annotations, and the distance every load moves in each."""
    template, task = template_named(TASKS[name][0]), TASKS[name][1]
    assert template.match(task, MACHINE)
    choices = candidates(template, task, 24)
    nest = template.on(task, MACHINE).nests(arrays(choices), len(choices))
    reads = {b.name for b in nest.buffers[1:]}
    valid = 0
    for row, choice in enumerate(choices):
        if valid == 4:
            break
        if name == "tiled image" and choice["accumulate"] == "scratch":
            continue  # fuses the blocks of several axes, which the nest has one by one
        try:
            made, store, loops = scheduled(template, task, choice, reads)
        except ScheduleError:
            continue
        valid += 1
        copied = -1 if template.name != "conv2d_transpose_phases" else 3 if choice["tile_h"] == 1 else 2
        real = [(loop.extent, loop.kind) for loop in loops if loop.extent > 1]
        assert described(nest, row, copied) == real, choice
        inner = [k for k in own_levels(nest, row, copied) if nest.annotation[k, row] != LoopKind.PARALLEL]
        compare_strides(made, store, loops, nest, row, inner)
    assert valid >= 2


def test_a_pool_of_a_whole_image_is_about_its_sums() -> None:
    """They are as many as the elements of the image, however large the window is."""
    for kernel in (6, 7):
        attrs = {"kernel": (kernel, kernel), "pads": (0, 0, kernel - 6, kernel - 6)}
        task = task_of("max_pool2d", {"x": (1, 64, 6, 6)}, attrs, IMAGES)
        nest = template_called("pool2d", MACHINE).on(task, MACHINE).nests({"tile_ow": np.array([1])}, 1)
        assert described(nest, 0, -1)[1:] == [(6, "serial"), (6, "unroll"), (16, "vectorize")]


def compare_strides(
    made: Schedule, store: Store, loops: Sequence[For], nest: CandidateNests, row: int, levels: Sequence[int]
) -> None:
    inner = [loop for loop in loops if loop.extent > 1 and loop.kind != "parallel"]
    names = [x.buffer.name for e in (store.value, *store.indices) for x in walk(e) if isinstance(x, Load)]
    for loop, level in zip(inner, levels, strict=True):
        real = strides(made, store.buffer.name, loop.var).loads
        for x, buffer in enumerate(nest.buffers[1:], 1):
            own = {s for s, n in zip(real, names, strict=True) if n == buffer.name and s is not None}
            assert not own or own == {nest.stride[x, level, row]}, (loop.var, buffer.name)


def matrix_unit(op: str, x: tuple[int, ...], w: tuple[int, ...], attrs: Mapping[str, object]) -> KernelTask:
    """relu(op(...)) with the weight as parts of whole tiles."""
    (y,) = OPERATORS[op].define("y", [placeholder(x, name="x"), placeholder((2, *w), "bfloat16", "w")], attrs)
    made = compute(y.shape, lambda *i: maximum(y[i], 0.0), "out")
    inputs = tuple(t for t in stages([made]) if t.body is None)
    return KernelTask("kernel", inputs, (made,), op, {}, frozenset({"w"}))


SAME = {"pads": (1, 1, 1, 1), "outputs": 64}
UNIT_TASKS: dict[str, tuple[str, KernelTask]] = {
    "window": ("split_conv2d", matrix_unit("split_conv2d", (1, 40, 28, 28), (64, 64, 3, 3), {"rows": 7, **SAME})),
    "strided": ("split_conv2d", matrix_unit("split_conv2d", (2, 64, 28, 28), (64, 64, 5, 3),
                                            {"rows": 5, "strides": (2, 2), **SAME})),
    "stem": ("split_conv2d", matrix_unit("split_stem", (1, 3, 64, 64), (64, 32, 7),
                                         {"kernel_w": 7, "strides": (2, 2), "pads": (3,) * 4, "outputs": 64})),
    "product": ("split_matmul", matrix_unit("split_matmul", (128, 96), (96, 192), {"columns": 192})),
}  # fmt: skip
UNIT = replace(MACHINE, features=MACHINE.features | {"amx-bf16", "amx-tile"})


@pytest.mark.parametrize("name", UNIT_TASKS)
def test_nests_around_a_matrix_unit_are_those_of_the_schedules(name: str) -> None:
    """The loops around the instruction; those of a tile, the last three levels, are its own."""
    template, task = template_named(UNIT_TASKS[name][0]), UNIT_TASKS[name][1]
    assert template.match(task, UNIT)
    knobs = template.on(task, UNIT).space.knobs
    choices = [dict(zip(knobs, each, strict=True)) for each in cartesian(*knobs.values())]
    nest = template.on(task, UNIT).nests(arrays(choices), len(choices))
    assert nest.extent[-3:, 0].tolist() == [32, 16, 16]
    assert [b.name for b in nest.buffers] == ["y.tile", "y.parts", "w"]
    outer = replace(nest, axes=nest.axes[:-3])
    valid = 0
    for row, choice in enumerate(choices):
        try:
            made = template.on(task, UNIT).apply(choice)
        except ScheduleError:
            continue
        valid += 1
        (own,) = (s for s in sites(made.program.body) if getattr(s.stmt, "name", "") == "amx_dot_bf16")
        real = [(s.extent, s.kind) for s in own.path if isinstance(s, For) and s.extent > 1]
        assert described(outer, row, -1) == real, choice
    assert valid >= 8


def test_every_template_has_a_nest() -> None:
    """A template that is not known here is described by its stage's own loops."""
    task = task_of("softmax", {"x": (8, 100)}, {"axis": 1})
    nest = template_named("generic").on(task, MACHINE).nests({"vectors": np.array([1, 2, 4])}, 3)
    assert nest.extent.shape[1] == 3
    assert (nest.extent.prod(axis=0) == 800).all()
    assert nest.points == 800


def conv1d(width: int, taps: int, stride: int, dilation: int) -> Tensor:
    columns = (width - 1) * stride + (taps - 1) * dilation + 1
    image, kernel = placeholder((3, columns), name="x"), placeholder((3, taps), name="w")

    def element(w: Var) -> Expr:
        c, k = reduce_axis(3, "c"), reduce_axis(taps, "k")
        return sum_over(image[c.var, w * stride + k.var * dilation] * kernel[c.var, k.var], (c, k))

    return compute((width,), element, "out")


def shuffled() -> Tensor:
    """Rows whose elements are read through a reshape: quotients and remainders in the index."""
    image, kernel = placeholder((6, 4), name="x"), placeholder((24,), name="w")

    def element(w: Var) -> Expr:
        k = reduce_axis(8, "k")
        at = w * 8 + k.var
        return sum_over(image[at // 4, at % 4] * kernel[at], k)

    return compute((3,), element, "out")


def enumerated(stage: Tensor, levels: Sequence[NestLevel], inside: int) -> dict[str, int]:
    """Distinct elements of each buffer that are touched in the loops from ``inside`` inwards, all outer ones at 0."""
    body = stage.body
    assert isinstance(body, Reduce)
    names = [v.name for v in stage.axes] + [a.var.name for a in body.axes]
    extents = [*stage.shape, *(a.extent for a in body.axes)]
    accesses = {stage.name: tuple(stage.axes), **{x.buffer.name: x.indices for x in loads(body.body)}}
    seen: dict[str, set[tuple[int, ...]]] = {name: set() for name in accesses}
    for position in cartesian(*(range(int(level.extent)) for level in levels[inside:])):
        values = dict.fromkeys(names, 0)
        for level, i in zip(levels[inside:], position, strict=True):
            values[names[level.axis]] += i * int(level.step)
        if any(values[n] >= e for n, e in zip(names, extents, strict=True)):
            continue
        at = {n: Const(v, INDEX) for n, v in values.items()}
        for name, indices in accesses.items():
            seen[name].add(tuple(simplify(substitute(i, at)).value for i in indices))  # type: ignore[attr-defined]
    return {name: len(found) for name, found in seen.items()}


@pytest.mark.parametrize(
    ("stage", "levels"),
    [
        (conv1d(10, 3, 1, 1), [NestLevel(0, 3, 4), NestLevel(1, 3), NestLevel(2, 3), NestLevel(0, 4)]),
        (conv1d(10, 3, 2, 1), [NestLevel(2, 3), NestLevel(0, 2, 5), NestLevel(1, 3), NestLevel(0, 5)]),
        (conv1d(8, 2, 2, 1), [NestLevel(0, 4, 2), NestLevel(1, 3), NestLevel(0, 2), NestLevel(2, 2)]),
        (conv1d(6, 2, 4, 1), [NestLevel(0, 2, 3), NestLevel(2, 2), NestLevel(0, 3), NestLevel(1, 3)]),
        (shuffled(), [NestLevel(0, 3), NestLevel(1, 2, 4), NestLevel(1, 4)]),
        (shuffled(), [NestLevel(1, 4, 2), NestLevel(0, 3), NestLevel(1, 2)]),
    ],
)
def test_touched_elements_by_enumeration(stage: Tensor, levels: list[NestLevel]) -> None:
    """Windows that overlap, that leave gaps, ragged tiles, indices through a reshape."""
    inputs = tuple(t for t in stages([stage]) if t.body is None)
    task = KernelTask("kernel", inputs, (stage,), "", {}, frozenset({"w"}))
    nest = statement(task, main_stage(task)).nest(levels, 2)
    for k in range(len(levels) + 1):
        found = {b.name: int(nest.elements[x, k, 0]) for x, b in enumerate(nest.buffers)}
        assert found == enumerated(stage, levels, k), k
    assert (nest.elements[..., 0] == nest.elements[..., 1]).all()


def test_arrangement_with_blocks_that_differ() -> None:
    """The distance of a step in a packed weight, by packing: for each candidate its own block."""
    shape, blocks, block = (64, 32, 3, 3), np.array([16, 32, 64]), 16
    parts = ((0, 0), (1, 0), (2, 0), (3, 0), (1, block), (0, blocks))
    found = Arrangement(shape, parts).strides()
    for row, wide in enumerate(blocks):
        packed = np.empty(prod(shape), np.int64)
        elements = layout(f"ABCD{block}b{wide}a").pack(np.arange(prod(shape)).reshape(shape))
        packed[elements.ravel()] = np.arange(prod(shape))
        for dim, step in ((0, 1), (0, 16), (1, 1), (1, 16), (2, 1), (3, 1)):
            at = [0, 0, 0, 0]
            at[dim] = step
            carried = max((np.broadcast_to(s, 3)[row], np.broadcast_to(d, 3)[row]) for s, d in found[dim]
                          if np.broadcast_to(s, 3)[row] <= step)  # fmt: skip
            assert packed.reshape(shape)[tuple(at)] == step // carried[0] * carried[1], (wide, dim, step)


def test_nests_of_a_small_space_come_from_its_schedules() -> None:
    """A row of 28 pixels in tiles of 14 and of 10, the window inside, its columns unrolled; twice the same is one."""
    template, task = template_named("pool2d"), TASKS["pool"][1]
    assert template.nests is None
    nest = template.on(task, MACHINE).nests({"tile_ow": np.array([14, 10, 14])}, 3)
    assert nest.axes == (1, 2, 3, 4, 5, 3, 1)
    blocks = 64 // LANES
    assert nest.extent.T.tolist() == [
        [blocks, 28, 2, 3, 3, 14, LANES], [blocks, 28, 3, 3, 3, 10, LANES], [blocks, 28, 2, 3, 3, 14, LANES],
    ]  # fmt: skip
    kinds = [[ANNOTATIONS[int(code)] for code in row] for row in nest.annotation.T]
    assert kinds == [["parallel", "parallel", "serial", "serial", "unroll", "unroll", "vectorize"]] * 3
    row, column = LANES * 56, LANES  # of the image, in floats: it is stored in blocks of a vector of channels
    assert nest.stride[1, :, 0].tolist() == [row * 56, 2 * row, 28 * column, row, column, 2 * column, 1]


def test_a_large_space_wants_a_description() -> None:
    match = template_named("direct_conv2d").on(TASKS["C2"][1], MACHINE)
    with pytest.raises(ScheduleError, match="found a space of 241920 choices; allowed: 80, or a description"):
        ScheduledNests(match.task, match.space, match.apply)
