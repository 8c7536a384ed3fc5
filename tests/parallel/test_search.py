"""Search, bound and branch and bound on small problems, and the plan that the front door gives."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.parallel_networks import rnnlm
from burnish.cli import app
from burnish.errors import PlanError
from burnish.fitting.planned import plan, read_plan
from burnish.frontend.onnx import to_onnx
from burnish.graph.graph import Graph, GraphBuilder
from burnish.parallel.model.costs import Roofline
from burnish.parallel.model.operations import operations
from burnish.parallel.model.presets import machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.model.strategy import Configuration, Strategy
from burnish.parallel.programs.export_torch import torch_annotations
from burnish.parallel.programs.parallel_plan import Plan
from burnish.parallel.programs.plans import TensorSplits
from burnish.parallel.programs.program import programs
from burnish.parallel.simulate.baselines import data_parallel
from burnish.parallel.simulate.bound import lower_bound
from burnish.parallel.simulate.exact import optimum
from burnish.parallel.simulate.search import PlanObjective, blocks_of, search
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.taskgraph import Problem
from burnish.search.budget import Budget
from tests.parallel.networks import NETWORKS, TRAIN, batch_of, step_of, trained_alone, trained_apart, worst_error


def dense(*widths: int, rows: int = 64) -> Graph:
    """Dense layers: a space small enough to look at all of it."""
    b = GraphBuilder()
    x = b.input("x", (rows, widths[0]))
    for i, (a, c) in enumerate(itertools.pairwise(widths)):
        x = b.add("matmul", x, b.constant(np.zeros((a, c), np.float32), f"w{i}"), name=f"y{i}")
    return b.build(x)


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    model, cluster = operations(dense(512, 1024, 256)), machine("p100:1x2")
    return Simulator(Problem(StrategySpace(model, cluster, also=[data_parallel(model, cluster)]), Roofline()))


def everything(simulator: Simulator) -> dict[tuple[int, ...], int]:
    """The times of all strategies."""
    space = simulator.problem.space
    ranges = [range(int(f), int(f) + int(c)) for f, c in zip(space.first, space.count, strict=True)]
    return {(a, b): simulator.full(np.array([a, b], np.int32)) for a in ranges[0] for b in ranges[1]}


def test_branch_and_bound_finds_the_fastest_of_all(simulator: Simulator) -> None:
    times = everything(simulator)
    start = simulator.problem.space.choice(data_parallel(simulator.problem.model, simulator.problem.machine))
    found = optimum(simulator, start)
    assert found.proven
    assert found.ns == min(times.values())
    assert times[tuple(found.choice.tolist())] == found.ns


def test_no_strategy_is_below_the_bound(simulator: Simulator) -> None:
    for integer in (False, True):
        bound = lower_bound(simulator.problem, integer=integer)
        assert bound.solved
        assert 0 < bound.ns <= min(everything(simulator).values())
    assert lower_bound(simulator.problem).ns <= lower_bound(simulator.problem, integer=True).ns * (1 + 1e-5)


def test_the_search_finds_the_optimum_of_a_small_space(simulator: Simulator) -> None:
    space = simulator.problem.space
    start = space.choice(data_parallel(simulator.problem.model, simulator.problem.machine))
    found = search(simulator, {"data": start}, Budget(trials=400))
    assert found.ns == min(everything(simulator).values())
    assert found.ns <= found.times["data"] == simulator.full(start)


def test_steps_that_share_weights_are_dealt_out_where_that_is_the_optimum() -> None:
    model, cluster = rnnlm(4, steps=2), machine("p100:1x4")
    space = StrategySpace(model, cluster, strided=False, also=[data_parallel(model, cluster)])
    sim = Simulator(Problem(space, Roofline()))
    start = space.choice(data_parallel(model, cluster))
    found = search(sim, {"data": start}, Budget(trials=1000))
    best = optimum(sim, found.choice)
    assert best.proven
    assert found.ns == best.ns
    devices = [set(space.configuration(int(c)).devices) for c in found.choice[-2:]]
    assert not devices[0] & devices[1]


def test_a_walk_accepts_by_the_metropolis_rule(simulator: Simulator) -> None:
    space, walks = simulator.problem.space, 3000
    times = everything(simulator)
    start = np.array(min(times, key=times.__getitem__), np.int32)
    now, first, count = simulator.full(start), int(space.first[0]), int(space.count[0])
    numbers = [number for number in range(first, first + count) if number != start[0]]
    slower = np.array([times[number, int(start[1])] - now for number in numbers])
    temperature = float(np.median(slower)) / now
    chance = np.minimum(1.0, np.exp(-slower / (temperature * now))) / count  # to be drawn and accepted: equation 3.1
    assert ((chance * count > 0.2) & (chance * count < 0.8)).any()
    ends = [int(simulator.walk(start, 1, temperature, seed, [[0]]).current[0]) for seed in range(walks)]
    accepted = np.array([ends.count(number) for number in numbers]) / walks
    assert (np.abs(accepted - chance) <= 4 * np.sqrt(chance * (1 - chance) / walks) + 1e-9).all()


def test_a_space_holds_what_is_allowed() -> None:
    model, cluster = operations(dense(512, 1024, 256)), machine("p100:1x2")
    placed = StrategySpace(model, cluster, allowed=lambda _, chosen: len(chosen.devices) == 1)
    assert placed.count.tolist() == [2, 2] and StrategySpace(model, cluster).count.min() > 2
    with pytest.raises(PlanError, match="no configuration is allowed"):
        StrategySpace(model, cluster, allowed=lambda *_: False)


def test_steps_of_a_layer_are_one_block() -> None:
    b = GraphBuilder()
    w = b.constant(np.zeros((64, 64), np.float32), "w")
    h = b.input("h", (32, 64))
    for step in range(3):
        h = b.add("tanh", b.add("matmul", h, w, name=f"m{step}"), name=f"h{step}")
    model, cluster = operations(b.build(h)), machine("p100:1x2")
    simulator = Simulator(Problem(StrategySpace(model, cluster, also=[data_parallel(model, cluster)]), Roofline()))
    assert blocks_of(simulator) == [[0, 1, 2]]


def test_a_plan_beyond_memory_is_never_proposed(simulator: Simulator) -> None:
    problem = simulator.problem
    start = problem.space.choice(data_parallel(problem.model, problem.machine))
    least = min(float(simulator.memory(np.array(c, np.int32)).max()) for c in everything(simulator))
    devices = problem.machine.devices
    for device in devices:
        object.__setattr__(device, "memory", int(least) + 1)
    try:
        found = search(simulator, {"data": start}, Budget(trials=400))
        assert simulator.memory(found.choice).max() <= least + 1
        for device in devices:
            object.__setattr__(device, "memory", 1)
        with pytest.raises(PlanError, match="no strategy was found that fits"):
            search(simulator, {"data": start}, Budget(trials=40))
    finally:
        for device in devices:
            object.__setattr__(device, "memory", 16 * 10**9)


def test_a_penalty_on_bytes_moves_fewer(simulator: Simulator) -> None:
    start = simulator.problem.space.choice(data_parallel(simulator.problem.model, simulator.problem.machine))
    fast = search(simulator, {"data": start}, Budget(trials=200))
    frugal = search(simulator, {"data": start}, Budget(trials=200), objective=PlanObjective(per_byte=1e3))
    assert sum(simulator.bytes(frugal.choice)) <= sum(simulator.bytes(fast.choice))


# --- the front door ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(NETWORKS["cnn"](), train=TRAIN, devices="p100:1x2", seconds=0.5)


def test_a_plan_is_never_predicted_slower_than_data_parallelism(planned: Plan) -> None:
    assert planned.milliseconds <= planned.baselines["data parallel"]
    assert planned.gap is not None and 0 <= planned.gap < 1
    assert planned.memory.shape == (2,)
    report = planned.as_json()
    assert report["devices"] == 2 and report["strategy"] == planned.text()


def test_a_plan_is_read_back_and_trains(planned: Plan) -> None:
    model = NETWORKS["cnn"]()
    splits = read_plan(planned.text(), model, 2)
    assert isinstance(splits, TensorSplits) and splits == planned.placement
    step = step_of(model)
    made = programs(step, splits.splits, 2, inner=splits.inner)
    batch = batch_of(step)
    assert worst_error(made, trained_apart(made, batch, 3), trained_alone(step, batch, 3)) <= 1e-6


def test_a_plan_for_another_model_or_machine_is_refused(planned: Plan) -> None:
    with pytest.raises(PlanError, match="another model"):
        read_plan(planned.text(), NETWORKS["mlp"](), 2)
    with pytest.raises(PlanError, match="devices"):
        read_plan(planned.text(), NETWORKS["cnn"](), 4)


def test_placements_of_dtensor_where_they_exist() -> None:
    model, cluster = operations(dense(8, 16, 8, 4, rows=8)), machine("p100:1x4")
    names = [op.name for op in model.operations]
    made = Strategy({
        names[0]: Configuration((2, 2, 1), (0, 1, 2, 3)), names[1]: Configuration((1, 2, 1), (2, 3)),
        names[2]: Configuration((1, 2, 2), (0, 2, 1, 3)),
    })  # fmt: skip
    found = torch_annotations(model, cluster, made)
    assert found.mesh == (2, 2)
    assert found.results[names[0]] == ("Shard(0)", "Shard(1)")
    assert found.parameters["w0"] == ("Replicate()", "Shard(1)")
    assert found.results[names[2]] == ("Partial()", "Shard(1)")
    assert found.parameters["w2"] == ("Shard(0)", "Shard(1)")
    assert found.refused == {names[1]: "a set of devices of its own"}
    assert "not expressed: a set of devices of its own: y1" in found.statement()


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    path = tmp_path / "cnn.onnx"
    path.write_bytes(to_onnx(NETWORKS["cnn"]()).SerializeToString())
    files = {option: tmp_path / f"x{suffix}" for option, suffix in
             (("--output", ".txt"), ("--timeline", ".svg"), ("--annotations", ".json"))}  # fmt: skip
    given = [word for option, file in files.items() for word in (option, str(file))]
    found = CliRunner().invoke(app, ["plan", "devices", str(path), "p100:1x2", "--seconds", "0.3", *given])
    assert found.exit_code == 0, found.output
    for word in ("strategy of 4 operations on 2 devices", "data parallel", "a gap of", "memory of devices"):
        assert word in found.output
    assert files["--output"].read_text().startswith("strategy of 4 operations")
    assert files["--timeline"].read_text().startswith("<svg")
    assert CliRunner().invoke(app, ["plan", str(path), "--memory"]).exit_code == 2
    unknown = CliRunner().invoke(app, ["plan", "devices", str(path), "p1000"])
    assert isinstance(unknown.exception, PlanError)
