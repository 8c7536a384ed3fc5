"""Beyond walks: dynamic programming, recomputation within memory, pipelines, and bounds that count transfers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from burnish.errors import PlanError
from burnish.graph.graph import GraphBuilder
from burnish.parallel.model.costs import Roofline
from burnish.parallel.model.machine import DeviceCluster
from burnish.parallel.model.operations import OperationGraph, operations
from burnish.parallel.model.presets import machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.model.strategy import parse_strategy
from burnish.parallel.programs.pipelines import best_pipeline
from burnish.parallel.programs.plans import splits_of, stages_of
from burnish.parallel.simulate.baselines import data_parallel, pipeline
from burnish.parallel.simulate.bound import lower_bound
from burnish.parallel.simulate.elimination import _solve, eliminate
from burnish.parallel.simulate.recompute import within_memory
from burnish.parallel.simulate.search import search
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.taskgraph import Problem
from burnish.search.budget import Budget
from tests.parallel.problems import branches, layers, weight


def simulator(model: OperationGraph, where: DeviceCluster, recompute: bool = False) -> Simulator:
    return Simulator(
        Problem(StrategySpace(model, where, also=[data_parallel(model, where)], recompute=recompute), Roofline())
    )


def start_of(sim: Simulator) -> np.ndarray:
    return sim.problem.space.choice(data_parallel(sim.problem.model, sim.problem.machine))


def limited(where: DeviceCluster, memory: int) -> DeviceCluster:
    """The machine with so many bytes a device."""
    return DeviceCluster(where.name, tuple(replace(d, memory=memory) for d in where.devices), where.links)


def recurrent(steps: int = 3, width: int = 256) -> OperationGraph:
    """Steps of one dense layer, which share its weights: a repeated block."""
    b = GraphBuilder()
    h, w = b.input("h", (64, width)), weight(b, width, width)
    for _ in range(steps):
        h = b.add("tanh", b.add("matmul", h, w))
    return operations(b.build(h))


@pytest.fixture(scope="module")
def branched() -> Simulator:
    return simulator(branches(), machine("p100:1x2"))


@pytest.mark.parametrize("seed", range(5))
def test_elimination_finds_the_least_sum(seed: int) -> None:
    """Of random costs of a series-parallel graph (two chains between two nodes, a leaf), against all choices."""
    rng = np.random.default_rng(seed)
    costs = [rng.random(3) for _ in range(6)]
    pairs = [(0, 1), (1, 2), (0, 3), (2, 3), (2, 4), (0, 2), (1, 5)]
    between = {pair: rng.random((3, 3)) for pair in pairs}
    chosen, total, exact = _solve([c.copy() for c in costs], between)

    def value(choice: tuple[int, ...]) -> float:
        return sum(c[k] for c, k in zip(costs, choice, strict=True)) + sum(
            table[choice[a], choice[b]] for (a, b), table in between.items()
        )

    least = min(map(value, itertools.product(range(3), repeat=6)))
    assert exact
    assert total == pytest.approx(least)
    assert value(tuple(chosen)) == pytest.approx(least)


def test_a_complete_graph_is_not_eliminated_exactly() -> None:
    rng = np.random.default_rng(0)
    costs = [rng.random(3) for _ in range(5)]
    between = {pair: rng.random((3, 3)) for pair in itertools.combinations(range(5), 2)}
    chosen, total, exact = _solve([c.copy() for c in costs], between)
    assert not exact
    found = sum(c[k] for c, k in zip(costs, chosen, strict=True))
    assert total == pytest.approx(found + sum(t[chosen[a], chosen[b]] for (a, b), t in between.items()))


def test_elimination_gives_one_configuration_to_steps_of_a_layer(branched: Simulator) -> None:
    found = eliminate(branched)
    space = branched.problem.space
    cells = [i for i, op in enumerate(branched.problem.model.operations) if "lstm_cell" in {n.op for n in op.nodes}]
    assert len({int(found.choice[i] - space.first[i]) for i in cells}) == 1
    assert branched.full(found.choice) > 0


def test_a_strategy_that_recomputes_fits_where_the_plain_one_does_not() -> None:
    model, where = layers(12, 4096, 64), machine("p100:1x2")
    plain = simulator(model, where, recompute=True)
    choice = start_of(plain)
    needed = float(plain.memory(choice).max())
    sim = simulator(model, limited(where, int(0.75 * needed)), recompute=True)
    assert not sim.fits(choice)
    kept = within_memory(sim, choice)
    assert sim.fits(kept)
    dropped = kept >= sim.problem.space.first + sim.problem.space.plain
    assert 0 < dropped.sum() < len(choice)
    assert sim.full(kept) > sim.full(choice)
    assert (within_memory(sim, kept) == kept).all()
    found = search(sim, {"data": choice}, Budget(trials=60))
    assert sim.fits(found.choice)
    assert found.ns <= sim.full(kept)
    with pytest.raises(PlanError, match="no strategy was found that fits"):
        tiny = simulator(model, limited(where, 1000), recompute=True)
        search(tiny, {"data": choice}, Budget(trials=5))


def test_recomputed_operations_have_a_text_and_a_program_with_the_bytes_of_a_device() -> None:
    sim = simulator(layers(3), machine("p100:1x2"), recompute=True)
    model, where = sim.problem.model, sim.problem.machine
    choice = start_of(sim)
    choice[1] += sim.problem.space.plain[1]
    strategy = sim.problem.space.strategy(choice)
    text = strategy.text(model, where)
    assert text.splitlines()[2].endswith(" on 0 1 recomputed")
    assert parse_strategy(text, model, where) == strategy
    with pytest.raises(PlanError, match="is recomputed; allowed: with the bytes of each device in the first line"):
        splits_of(model, strategy)
    bounded = replace(strategy, memory=123456)
    again = parse_strategy(bounded.text(model, where), model, where)
    assert again == bounded and splits_of(model, again).memory == 123456


def test_peak_memory_is_at_most_that_of_everything_at_once(branched: Simulator) -> None:
    for seed in range(5):
        choice = branched.problem.space.random(seed)
        assert (branched.peak_memory(choice) <= branched.memory(choice) + 1e-6).all()


def test_1f1b_needs_the_memory_of_its_stages_in_flight() -> None:
    where = machine("p100:1x2")
    peaks = []
    for count in (4, 8):
        made = pipeline(layers(4, 512, 64), where, 2, count)
        space = StrategySpace(made.model, where, strided=False, also=[made.strategy])
        sim = Simulator(Problem(space, Roofline(), order=made.order))
        choice = space.choice(made.strategy)
        peaks.append(sim.peak_memory(choice).max() / sim.memory(choice).max())
    assert peaks[1] < 0.7 * peaks[0] < 0.7


def test_the_best_pipeline_is_no_slower_than_the_plain_ones() -> None:
    def micro(count: int, devices: int) -> OperationGraph | None:
        assert devices in (1, 2)
        return layers(4, 64 // count, 128) if count <= 4 else None

    found = best_pipeline(micro, machine("p100:1x4"), Roofline(), Budget(trials=20))
    assert found.ns <= min(found.times.values())
    assert found.strategy.micro_batches == found.micro_batches
    assert len(stages_of(found.model, found.strategy).devices) == found.stages
    assert {stages for stages, _ in found.times} == {2, 4}
    assert found.simulator.full(found.choice) == found.ns
    small = limited(machine("p100:1x4"), 1000)
    with pytest.raises(PlanError, match="no pipeline fits"):
        best_pipeline(micro, small, Roofline(), Budget(trials=5))


def test_stages_move_where_that_makes_a_step_shorter() -> None:
    """The last layer has most of the arithmetic; a device does it in little more time than another layer."""
    b = GraphBuilder()
    h = b.input("x", (8, 64))
    for width in (64, 64, 64, 64, 64, 64, 4096):
        h = b.add("matmul", h, weight(b, 64, width))
    model = operations(b.build(h))
    found = best_pipeline(lambda count, _: model, machine("p100:1x2"), Roofline(), Budget(trials=20), counts=(4,))
    assert found.ns < found.times[2, 4]


def test_bounds_that_count_transfers_are_below_every_strategy() -> None:
    """All strategies of three equal steps on two nodes of one device, and a sample of those on two of two."""
    for name, stride in (("p100:2x1", 1), ("p100:2x2", 997)):
        sim = simulator(recurrent(), machine(name))
        space = sim.problem.space
        bound = lower_bound(sim.problem).ns
        own = itertools.product(*(range(int(f), int(f + c)) for f, c in zip(space.first, space.count, strict=True)))
        times = [sim.full(np.array(c, np.int32)) for c in itertools.islice(own, 0, None, stride)]
        assert 0 < bound <= min(times)
