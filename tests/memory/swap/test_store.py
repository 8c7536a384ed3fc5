"""Executing plans between main memory and a file: the same bits as without a plan, and as many bytes as planned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.yardsticks.swap_choice import Rates, choose
from benchmarks.yardsticks.swap_exact import exact
from burnish.errors import InputError, ParameterError
from burnish.graph.evaluate import evaluate, evaluate_node
from burnish.graph.graph import Graph, GraphBuilder, TensorType
from burnish.memory.lifetimes import LifetimeStep
from burnish.memory.swap import (
    SwapFile,
    SwapPlan,
    execute,
    fixed,
    least_recently_used,
    streaming,
    swap_problem,
)  # fmt: skip
from burnish.memory.swap.problem import of_graph
from burnish.train.optimizers import SGD
from burnish.train.step import Train, training_graph


def step_graph() -> Graph:
    """A training step of a small convolutional network: forward, backward and update."""
    random = np.random.default_rng(0)
    b = GraphBuilder()

    def weight(*shape: int) -> str:
        return b.constant(random.normal(size=shape).astype("f4") / 4, b.fresh("w"))

    x = b.input("x", (4, 3, 8, 8))
    x = b.add("relu", b.add("conv2d", x, weight(6, 3, 3, 3), pads=(1, 1, 1, 1)))
    x = b.add("relu", b.add("conv2d", x, weight(6, 6, 3, 3), pads=(1, 1, 1, 1)))
    x = b.add("reduce_mean", x, axes=(2, 3), keepdims=False)
    return training_graph(b.build(b.add("matmul", x, weight(6, 5))), Train(optimizer=SGD(0.1)))


def plans(graph: Graph) -> list[SwapPlan]:
    problem = of_graph(graph)
    capacity = int(problem.least_capacity * 1.1)
    rates = Rates(1e9, (1e-6,) * len(problem.steps))
    return [
        fixed(problem, capacity), choose(problem, capacity, rates, most=0), streaming(problem, capacity),
        least_recently_used(problem, capacity), least_recently_used(problem, capacity, drop_dead=True),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(5))
def test_a_training_step_has_the_same_bits(tmp_path: Path, number: int) -> None:
    graph = step_graph()
    problem, plan = of_graph(graph), plans(graph)[number]
    random = np.random.default_rng(1)
    feeds = {name: state.initial for name, state in graph.states.items()}
    feeds |= {"x": random.normal(size=(4, 3, 8, 8)).astype("f4"), "label": random.integers(0, 5, 4)}
    expected = evaluate(graph, feeds)

    def compute(step: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        node = graph.nodes[step]
        by_name = dict(zip(problem.steps[step].reads, inputs, strict=True))
        for out, value in zip(outputs, evaluate_node(node, [by_name[n] for n in node.inputs]), strict=True):
            np.copyto(out, value)

    with SwapFile(tmp_path / "slow", graph.types) as store:
        for name, array in {**graph.constants, **feeds}.items():
            store.write(name, np.asarray(array))
        done = execute(problem, plan, store, compute)
        for name in problem.results:
            np.testing.assert_array_equal(store.read(name), expected[name])
    assert (done.loaded, done.stored, done.peak) == (plan.loaded, plan.stored, plan.peak)
    assert plan.peak <= plan.capacity
    assert not (tmp_path / "slow").exists()


SMALL = swap_problem(
    [LifetimeStep(("x",), ("a",)), LifetimeStep(("a", "x"), ("y",))], {"x": 40, "a": 40, "y": 40}, ["y"]
)
TYPES = dict.fromkeys("xay", TensorType((10,)))


def add_one(step: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    outputs[0][:] = inputs[0] + 1


def test_a_plan_runs_in_its_budget(tmp_path: Path) -> None:
    with SwapFile(tmp_path / "slow", TYPES) as store:
        store.write("x", np.arange(10, dtype="f4"))
        plan = exact(SMALL, SMALL.least_capacity)
        execute(SMALL, plan, store, add_one)
        np.testing.assert_array_equal(store.read("y"), np.arange(10, dtype="f4") + 2)


def test_wrong_stores_are_refused(tmp_path: Path) -> None:
    plan = exact(SMALL, SMALL.least_capacity)
    with SwapFile(tmp_path / "slow", TYPES) as store:
        with pytest.raises(InputError, match="'x' was never written"):
            execute(SMALL, plan, store, add_one)
        with pytest.raises(InputError, match=r"'x': found float64\[10\]; allowed: float32\[10\]"):
            store.write("x", np.arange(10.0))
        with pytest.raises(InputError, match="'z': found no such tensor; allowed: x, a, y"):
            store.read("z")
        with pytest.raises(InputError, match="allowed: a new file"):
            SwapFile(tmp_path / "slow", TYPES)
    other = {**TYPES, "a": TensorType((11,))}
    with (
        SwapFile(tmp_path / "other", other) as store,
        pytest.raises(ParameterError, match="'a': found 44 bytes in the store; allowed: 40"),
    ):
        execute(SMALL, plan, store, add_one)


def test_a_file_cut_short_is_an_error(tmp_path: Path) -> None:
    with SwapFile(tmp_path / "slow", TYPES) as store:
        store.write("x", np.arange(10, dtype="f4"))
        with (tmp_path / "slow").open("r+b") as file:
            file.truncate(20)
        with pytest.raises(InputError, match="ends at byte 20"):
            store.read("x")
