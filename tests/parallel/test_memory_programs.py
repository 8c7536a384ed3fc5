"""The search's estimate of memory against the programs of plans, and the plans that it lets through."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.graph.graph import GraphBuilder
from burnish.machines.target import target
from burnish.parallel.model.costs import Roofline
from burnish.parallel.model.operations import OperationGraph, operations
from burnish.parallel.model.presets import machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.programs.plans import splits_of
from burnish.parallel.programs.ranks import kept_bytes, rank_memory
from burnish.parallel.simulate.baselines import data_parallel
from burnish.parallel.simulate.memory import program_bytes
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.taskgraph import Problem
from tests.parallel.networks import step_of, weight

SLOTS = 1  # a velocity for each parameter, as in ``networks.TRAIN``


def dense(rows: int = 64, width: int = 256) -> OperationGraph:
    """Three dense layers, so large that nothing but their tensors counts."""
    b = GraphBuilder()
    h = b.input("x", (rows, width))
    for i, (a, c) in enumerate(((width, 2 * width), (2 * width, width))):
        h = b.add("relu", b.add("matmul", h, weight(b, f"w{i}", a, c), name=f"d{i}"), name=f"r{i}")
    return operations(b.build(b.add("matmul", h, weight(b, "w2", width, width), name="y")))


@pytest.fixture(scope="module")
def problem() -> Problem:
    model, here = dense(), machine("host:2")
    return Problem(StrategySpace(model, here, also=[data_parallel(model, here)]), Roofline())


def test_bytes_of_data_parallelism_by_use(problem: Problem) -> None:
    """States of all parameters; a gradient that is sent and one that is received; results, the largest of weights."""
    choice = problem.space.choice(data_parallel(problem.model, problem.machine))
    weights = 4 * 256 * (512 + 512 + 256)
    found = program_bytes(problem, choice, SLOTS)
    assert found.state.tolist() == [2 * weights] * 2
    assert found.messages.tolist() == [2 * weights] * 2
    results = 4 * 32 * np.array([512, 256, 256])
    most = max(results[: i + 1].sum() + results[i] + n for i, n in enumerate([4 * 256 * 512] * 2 + [4 * 256 * 256]))
    assert (found.arena >= most).all() and (found.arena <= most + results.sum()).all()
    assert Simulator(problem).memory(choice, SLOTS).tolist() == found.total.tolist()


@pytest.mark.parametrize("seed", [None, 0, 3, 5])
def test_the_estimate_is_near_the_programs(problem: Problem, seed: int | None) -> None:
    space = problem.space
    choice = space.choice(data_parallel(problem.model, problem.machine)) if seed is None else space.random(seed)
    plan = splits_of(problem.model, space.strategy(choice))
    step = step_of(problem.model.graph)
    needed = np.array([kept_bytes(memory) for memory in rank_memory(step, plan, 2, target("cpu"))])
    ratio = program_bytes(problem, choice, SLOTS).total / needed
    assert (ratio > 0.85).all() and (ratio < 1.25).all()
