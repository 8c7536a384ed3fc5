"""A back end from outside in one package of at most 200 lines: `examples/toy`, from a graph to its simulated device."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import burnish
from burnish.errors import ArtifactError, ParameterError, ScheduleError, TargetError, UnsupportedOperator
from burnish.graph import Graph, GraphBuilder
from burnish.graph.evaluate import evaluate
from burnish.loops.interpret import run_program
from burnish.loops.layout import layout
from burnish.loops.program import Intrinsic, walk_stmt
from burnish.loops.sizes import dim
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.loops.verify import verify
from burnish.machines.intrinsics import reference
from burnish.pipeline.kernel import build, compile_program
from burnish.pipeline.plan import make_task, plan_kernels
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


def run(toy: ModuleType, graph: Graph, feeds: dict[str, np.ndarray], device: Any) -> dict[str, np.ndarray]:
    """The outputs of a graph, compiled for the machine with this device in the place of its own."""
    machine = replace(toy.TOY, machine=toy.MACHINE.with_(device=lambda: device))
    module = burnish.compile(graph, target=machine, exact=True)
    found = module(**feeds)
    outputs = found if isinstance(found, tuple) else (found,)
    return dict(zip(graph.outputs, outputs, strict=True))


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
    (found,), (expected,) = run(toy, graph, feeds, device).values(), evaluate(graph, feeds).values()
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
    found, expected = run(toy, graph, feeds, device)[y], evaluate(graph, feeds)[y]
    np.testing.assert_allclose(found, expected, atol=1e-5 * abs(expected).max())
    assert device.products == 8 * 2 * 2 * 9 * (1 + 2)


def test_its_schedule_means_what_the_definition_means_and_replays(toy) -> None:
    made = plan_kernels(convolution((1, 4, 6, 8), (4, 4, 3, 3), pads=(1, 1, 1, 1)), toy.TOY, exact=True)
    task, names = make_task(made, made.groups[0], dict(made.graph.constants))
    s = toy.MACHINE.templates[0].on(task, toy.TOY).apply({})
    verify(s.program, scopes=["global", "sram"])
    calls = [each for each in walk_stmt(s.program.body) if isinstance(each, Intrinsic)]
    assert [call.name for call in calls] == ["mm4"]
    assert replay(task.program(), s.trace, toy.MACHINE.named_intrinsics.values(), toy.MACHINE.scopes) == s.program
    feeds = {name: array(*made.graph.types[value].shape) for name, value in names.items()}
    weight = next(name for name in task.constants)
    expected = run_program(task.program(), feeds)
    feeds[weight] = layout("ABCD4b4a").pack(feeds[weight])
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
    named = r"^node .*exp.*no schedule for operands float32\[8\]: .*the scalar unit has no instruction for 'exp"
    with pytest.raises(UnsupportedOperator, match=named):
        burnish.compile(graph, target=toy.TOY)


def test_a_task_that_no_template_matches_is_refused_by_name(toy) -> None:
    made = plan_kernels(convolution((1, 4, 6, 8), (4, 4, 3, 3)), toy.TOY, exact=True)
    task, _ = make_task(made, made.groups[0], dict(made.graph.constants))
    none = replace(toy.MACHINE.templates[0], form=lambda task, target: None)
    bare = replace(toy.TOY, machine=toy.MACHINE.with_(templates=(none,)))
    with pytest.raises(ScheduleError, match="no template of target 'toy' matches; there are tiles"):
        build(task, bare, None)


def test_a_machine_without_device_is_refused_by_name(toy) -> None:
    """Its kernels are made, but nothing of this process runs them."""
    bare = replace(toy.TOY, machine=toy.MACHINE.with_(device=None))
    with pytest.raises(TargetError, match="runtime: no driver for 'toy-none', allowed: x86_64, aarch64"):
        burnish.compile(convolution((1, 4, 6, 8), (4, 4, 3, 3)), target=bare)


def model() -> Graph:
    """Convolutions, a residual addition, pooling, a reshape and a product: on tiles and on the scalar unit."""
    g = GraphBuilder()
    x = g.input("x", (1, 4, 8, 8))
    y = g.add("conv2d", x, g.constant(array(8, 4, 3, 3), "a"), g.constant(array(8), "bias"), pads=(1, 1, 1, 1))
    y = g.add("relu", y)
    z = g.add("conv2d", y, g.constant(array(8, 8, 3, 3, seed=1), "b"), pads=(1, 1, 1, 1), strides=(2, 2))
    z = g.add("add", g.add("relu", z), g.add("avg_pool2d", y, kernel=(2, 2), strides=(2, 2)))
    flat = g.add("reshape", z, shape=(1, 8 * 4 * 4))
    return g.build(g.add("matmul", flat, g.constant(array(128, 5, seed=2), "c")), z)


def test_a_whole_model_through_the_front_door(toy, tmp_path) -> None:
    """Compiled, called, profiled, copied, saved and loaded as for any machine."""
    graph, x = model(), array(1, 4, 8, 8)
    module = burnish.compile(graph, target=toy.TOY, cache_dir=tmp_path)
    expected = [*evaluate(graph, {"x": x}).values()]

    def check(found: tuple[np.ndarray, ...]) -> None:
        for one, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, wanted, atol=1e-5 * abs(wanted).max())

    check(module(x))
    check(copy.copy(module)(x=x))
    rows = module.profile(x, repeat=1)
    assert len(rows) == len(module.executable.steps) and all(row.microseconds > 0 for row in rows)
    module.save(tmp_path / "toy.bn")
    check(burnish.load(tmp_path / "toy.bn", device=toy.Device())(x))
    with pytest.raises(ArtifactError, match="the model was compiled for toy-none, but this machine is"):
        burnish.load(tmp_path / "toy.bn")


def test_state_and_opaque_operators_run_beside_the_device(toy) -> None:
    """A counter that is kept from call to call, and a sort in Python in the middle."""
    g = GraphBuilder()
    x = g.input("x", (2, 8))
    total = g.add("add", g.state("total", np.zeros((2, 8), np.float32)), x)
    g.update("total", total)
    ordered, _ = g.add_many("sort", total, axis=1)
    graph = g.build(g.add("mul", ordered, g.constant(np.float32(2.0), "two")))
    module = burnish.compile(graph, target=toy.TOY)
    given = array(2, 8)
    np.testing.assert_allclose(module(given), np.sort(2 * given), atol=1e-6)
    np.testing.assert_allclose(module(given), np.sort(4 * given), atol=1e-6)
    module.reset()
    np.testing.assert_allclose(module(given), np.sort(2 * given), atol=1e-6)


def test_tuning_for_a_device_is_refused(toy, tmp_path) -> None:
    with pytest.raises(ParameterError, match=r"tune.*None for target 'toy'"):
        burnish.compile(model(), target=toy.TOY, tune=burnish.Tune(seconds=1), records=tmp_path / "r.jsonl")


def test_open_dimensions_are_refused_by_name(toy) -> None:
    g = GraphBuilder()
    graph = g.build(g.add("relu", g.input("x", (dim("rows", 1, 8), 4))))
    with pytest.raises((TargetError, UnsupportedOperator), match="'rows'"):
        burnish.compile(graph, target=toy.TOY)
