"""A back end from outside in one package of at most 200 lines: `examples/toy`, from a graph to its simulated device."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import burnish
from burnish.errors import ScheduleError, TargetError
from burnish.graph import GraphBuilder
from burnish.graph.evaluate import evaluate
from burnish.loops.interpret import run_program
from burnish.loops.program import Intrinsic, walk_stmt
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.loops.verify import verify
from burnish.machines.intrinsics import reference
from burnish.pipeline.kernel import build, compile_program
from burnish.schedule.schedule import Schedule, replay

EXAMPLES = Path(burnish.__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def toy() -> ModuleType:
    sys.path.insert(0, str(EXAMPLES))
    try:
        from toy import backend
    finally:
        sys.path.remove(str(EXAMPLES))
    return backend


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def convolution(
    shape: tuple[int, ...], weight: tuple[int, ...], bias: bool = False, relu: bool = True, **attrs: object
):
    g = GraphBuilder()
    operands = [g.input("x", shape), g.constant(array(*weight, seed=1), "w")]
    operands += [g.constant(array(weight[0], seed=2), "b")] if bias else []
    y = g.add("conv2d", *operands, **attrs)
    return g.build(g.add("relu", y) if relu else y)


def test_it_is_one_small_package_that_burnish_knows_nothing_of() -> None:
    files = sorted((EXAMPLES / "toy").glob("*.py"))
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= 200
    for file in (EXAMPLES.parent / "burnish").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "mm4" not in text and '"toy"' not in text, file


@pytest.mark.parametrize(
    ("shape", "weight", "options", "tiles"),
    [
        ((1, 8, 10, 8), (8, 8, 3, 3), {"pads": (1, 1, 1, 1)}, 10 * 2 * 2 * 2 * 9),
        ((1, 8, 10, 8), (8, 8, 3, 3), {"pads": (1, 1, 1, 1), "bias": True}, 10 * 2 * 2 * 2 * 9),
        ((2, 4, 6, 8), (4, 4, 1, 1), {"relu": False}, 2 * 6 * 2),
        ((1, 4, 9, 16), (8, 4, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}, 5 * 2 * 2 * 9),
        ((1, 4, 6, 10), (4, 4, 2, 3), {"bias": True}, 5 * 2 * 6),
        ((1, 8, 6, 8), (4, 8, 3, 3), {"pads": (0, 1, 2, 1), "relu": False}, 6 * 2 * 2 * 9),
        ((1, 8, 6, 7), (4, 8, 3, 3), {"pads": (1, 1, 1, 1)}, 0),  # rows of 7 pixels: the scalar unit's
        ((1, 4, 6, 8), (8, 2, 3, 3), {"pads": (1, 1, 1, 1), "groups": 2}, 0),
        ((1, 3, 6, 8), (4, 3, 3, 3), {"pads": (1, 1, 1, 1)}, 0),
    ],
)
def test_convolutions_run_on_the_device(toy, shape, weight, options, tiles) -> None:
    graph, device, feeds = convolution(shape, weight, **options), toy.Device(), {"x": array(*shape)}
    (found,), (expected,) = toy.run(graph, feeds, device).values(), evaluate(graph, feeds).values()
    np.testing.assert_allclose(found, expected, atol=1e-5 * abs(expected).max())
    assert device.products == tiles


def test_a_network_runs_kernel_by_kernel(toy) -> None:
    """Convolutions whose results stay in blocks between them, a residual addition, and pooling on the scalar unit."""
    g = GraphBuilder()
    x = g.input("x", (1, 4, 8, 8))
    a = g.add("relu", g.add("conv2d", x, g.constant(array(8, 4, 3, 3), "a"), pads=(1, 1, 1, 1)))
    b = g.add("conv2d", a, g.constant(array(8, 8, 3, 3, seed=1), "b"), pads=(1, 1, 1, 1))
    y = g.add("max_pool2d", g.add("add", a, b), kernel=(2, 2), strides=(2, 2))
    graph, device, feeds = g.build(y), toy.Device(), {"x": array(1, 4, 8, 8)}
    found, expected = toy.run(graph, feeds, device)[y], evaluate(graph, feeds)[y]
    np.testing.assert_allclose(found, expected, atol=1e-5 * abs(expected).max())
    assert device.products == 8 * 2 * 2 * 9 * (1 + 2)


def test_its_schedule_means_what_the_definition_means_and_replays(toy) -> None:
    made = toy.plan_kernels(convolution((1, 4, 6, 8), (4, 4, 3, 3), pads=(1, 1, 1, 1)), toy.TOY, exact=True)
    task, names = toy.make_task(made, made.groups[0], dict(made.graph.constants))
    s = toy.MACHINE.templates[0].on(task, toy.TOY).apply({})
    verify(s.program, scopes=["global", "sram"])
    calls = [each for each in walk_stmt(s.program.body) if isinstance(each, Intrinsic)]
    assert [call.name for call in calls] == ["mm4"]
    assert replay(task.program(), s.trace, toy.MACHINE.named_intrinsics.values(), toy.MACHINE.scopes) == s.program
    feeds = {name: array(*made.graph.types[value].shape) for name, value in names.items()}
    weight = next(name for name in task.constants)
    expected = run_program(task.program(), feeds)
    feeds[weight] = toy.layout("ABCD4b4a").pack(feeds[weight])
    found = run_program(s.program, feeds, {"mm4": reference(toy.TILES)})
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)


def test_what_the_device_has_not_is_refused_by_name(toy) -> None:
    x = placeholder((8, 8), name="x")

    def doubled() -> Schedule:
        return Schedule(create_program("kernel", [x], [compute((8, 8), lambda i, j: x[i, j] * 2.0, "y")]))

    s = doubled()
    s.vectorize(s.loops("y")[1])
    with pytest.raises(ScheduleError, match=r"loop 'y\.j' is 'vectorize', which target 'toy' .* lowers serial$"):
        compile_program(s.program, toy.TOY, {}, "mine", {})
    s = doubled()
    s.cache_read("x", "register", "y")
    with pytest.raises(ScheduleError, match=r"in scope 'register', which target 'toy' .* lowers global, sram$"):
        compile_program(s.program, toy.TOY, {}, "mine", {})
    s = doubled()
    s.cache_read("x", toy.SRAM, "y")
    small = replace(toy.TOY, machine=toy.MACHINE.with_(scopes=[replace(toy.SRAM, capacity=128)]))
    with pytest.raises(ScheduleError, match=r"scope 'sram' of target 'toy' .* holds 128 bytes, 256 would be in it"):
        compile_program(s.program, small, {}, "mine", {})


def test_a_function_that_it_cannot_compute_is_refused(toy) -> None:
    g = GraphBuilder()
    graph = g.build(g.add("exp", g.input("x", (8,))))
    with pytest.raises(ScheduleError, match="the scalar unit has no instruction for 'exp"):
        toy.run(graph, {"x": array(8)}, toy.Device())


def test_a_task_that_no_template_matches_is_refused_by_name(toy) -> None:
    made = toy.plan_kernels(convolution((1, 4, 6, 8), (4, 4, 3, 3)), toy.TOY, exact=True)
    task, _ = toy.make_task(made, made.groups[0], dict(made.graph.constants))
    none = replace(toy.MACHINE.templates[0], form=lambda task, target: None)
    bare = replace(toy.TOY, machine=toy.MACHINE.with_(templates=(none,)))
    with pytest.raises(ScheduleError, match="no template of target 'toy' matches; there are tiles"):
        build(task, bare, None)


def test_a_module_for_it_is_refused_by_name(toy) -> None:
    """Its kernels are made, but no runner of this process calls them."""
    with pytest.raises(TargetError, match="runtime: no driver for 'toy-none', allowed: x86_64, aarch64"):
        burnish.compile(convolution((1, 4, 6, 8), (4, 4, 3, 3)), target=toy.TOY)
