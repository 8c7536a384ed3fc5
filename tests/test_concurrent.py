"""Kernels that do not depend on each other run side by side: the same bits, memory apart, by the model's word only."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.driver import compilation, concurrent
from burnish.driver.compilation import compile_kernels, make_module
from burnish.driver.recompute import trained_within
from burnish.driver.stages import Compilation
from burnish.errors import VerificationError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.machines.target import host
from burnish.pipeline.plan import DEFAULTS
from burnish.runtime.executable import Executable, KernelCall
from burnish.runtime.module import Module
from burnish.train.optimizers import SGD
from burnish.train.step import Train, training_graph

RANDOM = np.random.default_rng(3)


def weight(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32) * np.float32(0.1)


def branches(size: int = 14) -> Graph:
    """An inception module: four branches of the same input, joined."""
    g = GraphBuilder()
    x = g.input("x", (1, 64, size, size))

    def conv(value: str, inside: int, outside: int, window: int) -> str:
        kernel = g.constant(weight(outside, inside, window, window))
        return g.add("relu", g.add("conv2d", value, kernel, pads=(window // 2,) * 4))

    wide = conv(conv(x, 64, 48, 1), 48, 64, 3)
    wider = conv(conv(x, 64, 16, 1), 16, 32, 5)
    pooled = conv(g.add("max_pool2d", x, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1)), 64, 32, 1)
    return g.build(g.add("concat", conv(x, 64, 32, 1), wide, wider, pooled, axis=1))


def small() -> Graph:
    """Two maps too small for a second thread, and their sum."""
    g = GraphBuilder()
    x = g.input("x", (37, 11))
    return g.build(g.add("matmul", g.add("softmax", x, axis=1), g.add("transpose", g.add("softmax", x, axis=0))))


def compiled(graph: Graph, cores: int, apart: bool = False) -> Compilation:
    machine = replace(host(), cores=cores)
    if not apart:
        return compile_kernels(graph, machine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "side_by_side", lambda made: made)
        return compile_kernels(graph, machine)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever may run side by side does."""
    monkeypatch.setattr(concurrent, "GAIN", -1e9)


def given(graph: Graph) -> list[np.ndarray]:
    return [RANDOM.standard_normal(graph.types[name].shape, dtype=np.float32) for name in graph.inputs]


def outputs(module: Callable[..., object], values: list[np.ndarray]) -> list[np.ndarray]:
    found = module(*values)
    return [np.array(a) for a in (found if isinstance(found, tuple) else (found,))]  # type: ignore[arg-type]


def test_a_step_of_training_in_no_more_memory(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    g = GraphBuilder()
    x = g.input("x", (8, 24))
    hidden = [g.add("relu", g.add("matmul", x, g.constant(weight(24, 32), f"w{i}"))) for i in range(2)]
    model = g.build(g.add("matmul", g.add("mul", *hidden), g.constant(weight(32, 5), "v")))
    step = training_graph(model, Train("softmax_cross_entropy", SGD(0.1)))
    made = compile_kernels(step, replace(host(), cores=16))
    together = trained_within(made, None, DEFAULTS, 3)
    monkeypatch.setattr(concurrent, "MOST", 1)
    alone = trained_within(made, None, DEFAULTS, 3)
    assert together.executable.concurrent and not alone.executable.concurrent
    assert together.memory["arena"] <= alone.memory["arena"]
    batch = RANDOM.standard_normal((8, 24), dtype=np.float32), RANDOM.integers(0, 5, 8)
    for _ in range(3):
        np.testing.assert_array_equal(together(*batch), alone(*batch))
    for name in alone.state:
        np.testing.assert_array_equal(together.state[name], alone.state[name])


@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize("graph", [branches(9), small()], ids=["branches", "on one thread"])
def test_no_bit_changes(graph: Graph, threads: int, always: None) -> None:
    made, values = compiled(graph, 16), given(graph)
    assert made.concurrent
    module = make_module(made, threads)
    expected = outputs(make_module(compiled(graph, 16, apart=True), threads), values)
    for _ in range(20):
        for one, other in zip(outputs(module, values), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    module.profile(*values, repeat=2)  # calls them one after another
    np.testing.assert_array_equal(outputs(module, values)[0], expected[0])


def test_the_model_decides_by_the_number_of_threads() -> None:
    graph = branches(28)
    assert compiled(graph, 16).concurrent and not compiled(graph, 1).concurrent
    regions = [(64, 400e-6)]
    for threads, gains in ((2, False), (16, True)):
        alone = concurrent._alone(*regions[0], threads)
        shares = [[concurrent.StageShare(place, 0, *regions[0]) for place in range(2)]]
        saved = 2 * alone - concurrent._together(shares, threads)
        assert (saved > concurrent.GAIN * 2 * alone) == gains


def counted_regions(module: Module, values: list[np.ndarray]) -> list[int]:
    """The extents of the parallel regions that a call enters, which runs them on the calling thread."""
    extents, runtime = list[int](), module._runner.runtime
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    def enter(pool: int, function: int, context: int, extent: int) -> None:
        extents.append(extent)
        body(function)(context, 0, extent, 0)

    kept, runtime.parallel = runtime.parallel, ctypes.cast(enter, ctypes.c_void_p).value
    try:
        module(*values)
    finally:
        runtime.parallel = kept
    return extents


@pytest.mark.parametrize(("region", "threads"), [((64, 400e-6), 16), ((4, 8e-6), 4)], ids=["long", "short"])
def test_the_fewest_threads_are_those_for_which_it_still_gains(region: tuple[int, float], threads: int) -> None:
    run = concurrent._Run(replace(compiled(small(), 1), target=replace(host(), cores=16)), ())
    run._regions = {0: [region], 1: [region]}
    found = run.concurrent(7, [0, 1])
    assert (found.first, found.count, found.threads) == (7, 2, threads)


def test_fewer_threads_run_one_kernel_after_another() -> None:
    """They enter each kernel's own regions, as if nothing was side by side."""
    graph = branches(28)
    made, apart, values = compiled(graph, 16), compiled(graph, 16, apart=True), given(graph)
    assert made.concurrent
    made = replace(made, concurrent=tuple(replace(group, threads=4) for group in made.concurrent))
    for threads in (3, 4):
        regions = counted_regions(make_module(made, threads), values)
        others = counted_regions(make_module(apart, threads), values)
        assert sorted(regions) == sorted(others) if threads < 4 else len(regions) < len(others)


def test_what_runs_side_by_side_works_on_memory_of_its_own(always: None) -> None:
    executable: Executable = make_module(compiled(branches(), 16), 2).executable
    assert executable.concurrent
    for group in executable.concurrent:
        calls = executable.steps[group.first : group.first + group.count]
        written = []
        for call in calls:
            assert isinstance(call, KernelCall)
            written.append(call.args[-1])
        for one, other in combinations(range(len(calls)), 2):
            for slot in calls[other].slots:
                same = (slot.memory, slot.index) == (written[one].memory, written[one].index)
                begin, end = written[one].offset, written[one].offset + written[one].nbytes
                assert not same or slot.offset >= end or slot.offset + slot.nbytes <= begin


def test_a_file_keeps_what_runs_side_by_side(tmp_path: Path, always: None) -> None:
    graph = branches()
    module, values = make_module(compiled(graph, 16), 2), given(graph)
    module.save(tmp_path / "m.bn")
    loaded = bn.load(tmp_path / "m.bn")
    assert loaded.executable.concurrent == module.executable.concurrent != ()
    np.testing.assert_array_equal(outputs(loaded, values)[0], outputs(module, values)[0])


def test_calls_that_do_not_fit_are_refused(always: None) -> None:
    executable = make_module(compiled(branches(), 16), 2).executable
    (first, *rest) = executable.concurrent
    for wrong, message in (
        (replace(first, first=len(executable.steps)), "steps"),
        (replace(first, count=first.count + 1), "not all"),
        (replace(first, threads="two"), "integers"),
        (replace(first, regions=((), *first.regions)), "without shares"),
        (
            replace(first, regions=((replace(first.regions[0][0], symbol="none"), *first.regions[0][1:]),)),
            "undefined|all",
        ),
    ):
        with pytest.raises(VerificationError, match=message):
            replace(executable, concurrent=(wrong, *rest))


def test_kernels_of_open_sizes_and_those_that_write_states_stay_alone(always: None) -> None:
    g = GraphBuilder()
    x = g.input("x", (dim("rows", 1, 64), 32))
    opened = g.build(g.add("matmul", x, g.constant(weight(32, 48))), g.add("softmax", x, axis=1))
    assert not compiled(opened, 16).concurrent
    b = GraphBuilder()
    x = b.input("x", (64, 64))
    for name in ("one", "other"):
        b.update(name, b.add("softmax", b.add("add", b.state(name, np.zeros((64, 64), np.float32)), x), axis=1))
    assert not compiled(b.build(b.add("relu", x)), 16).concurrent
