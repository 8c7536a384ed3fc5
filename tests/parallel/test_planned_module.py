"""Modules of plans: inference and training on several devices, of fixed and of open sizes, against one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import burnish as bn
from burnish.errors import ClosedError, InputError, ParameterError, PlanError, UnsupportedMethod, WorkerError
from burnish.graph.evaluate import evaluate
from burnish.parallel.model.costs import Roofline
from burnish.parallel.model.operations import operations
from burnish.parallel.model.presets import machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.model.strategy import Configuration, Strategy, resized
from burnish.parallel.programs.micro import micro_graph
from burnish.parallel.programs.plans import Stages, TensorSplits
from burnish.parallel.simulate.baselines import data_parallel, pipeline
from burnish.parallel.simulate.bound import lower_bound
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.taskgraph import Problem
from tests.parallel.networks import NETWORKS, batch_of
from tests.parallel.problems import branches, layers
from tests.parallel.test_simulate import Constant, linked


def network() -> torch.nn.Module:
    """Two dense layers."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4))


def rows_of(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Examples and labels."""
    rng = np.random.default_rng((count, seed))
    return rng.standard_normal((count, 6)).astype("f4"), rng.integers(0, 4, count)


def losses(sizes: list[int], rate: float) -> tuple[list[float], np.ndarray]:
    """Losses of steps on batches of these sizes, by PyTorch in float64, and the first weight after them."""
    net, found = network().double(), []
    optimizer = torch.optim.SGD(net.parameters(), rate)
    for step, count in enumerate(sizes):
        x, y = rows_of(count, step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(x).double()), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found, next(net.parameters()).detach().numpy()


# --- simulation of inference ------------------------------------------------------------------------------------------


def inference(model, where, costs=None) -> Simulator:
    return Simulator(Problem(StrategySpace(model, where), costs or Roofline(), trains=False))


def test_inference_is_the_way_there_alone() -> None:
    for where in (linked(2), replace(linked(2), copied=True)):
        sim = inference(layers(2), where, Constant())
        names = [op.name for op in sim.problem.model.operations]
        strategy = Strategy({names[0]: Configuration((1, 1), (0,)), names[1]: Configuration((1, 1), (1,))})
        choice = sim.problem.space.choice(strategy)
        sent = 8 * 16 * 4
        took = 1_000 + sent  # at 1 GB/s, after a latency of 1 µs
        assert sim.full(choice) == 2_000 + took
        assert sim.bytes(choice) == (sent, 0)
        assert {e.what for e in sim.timeline(choice).entries} == {"forward", "send"}
        both = sim.problem.space.choice(data_parallel(sim.problem.model, where))
        assert sim.full(both) == 2_000 and sim.bytes(both) == (0, 0)


@pytest.mark.parametrize("name", ["p100:2x2", "host:4"])
def test_inference_is_simulated_alike_in_full_and_by_changes(name: str) -> None:
    sim = inference(branches(), machine(name))
    trains = Simulator(Problem(sim.problem.space, Roofline()))
    space, rng = sim.problem.space, np.random.default_rng(0)
    current = space.random(1)
    sim.start(current)
    bound = lower_bound(sim.problem).ns
    for n in range(40):
        ops = rng.choice(len(current), size=1 + n % 3, replace=False)
        other = current.copy()
        other[ops] = space.first[ops] + rng.integers(0, space.count[ops])
        want = sim.full(other)
        assert sim.propose(ops, other[ops]) == want
        assert max(sim.loads(other).max(), sim.path(other), bound) <= want < trains.full(other)
        assert (sim.memory(other) <= trains.memory(other, 0) + 1).all()
        if n % 10 == 0:
            current = other
            sim.accept()


# --- strategies of other sizes ----------------------------------------------------------------------------------------


def test_a_strategy_keeps_its_degrees_as_far_as_extents_go() -> None:
    whole, two, one = (layers(2, batch) for batch in (8, 2, 1))
    names = [op.name for op in whole.operations]
    strategy = Strategy({names[0]: Configuration((4, 1), (3, 2, 1, 0)), names[1]: Configuration((2, 2), (0, 1, 2, 3))})
    found = resized(strategy, whole, two).configurations
    assert found[names[0]] == Configuration((2, 1), (3, 2))
    assert found[names[1]] == Configuration((2, 2), (0, 1, 2, 3))
    found = resized(strategy, whole, one).configurations  # which has no axis of samples
    assert found[names[0]] == Configuration((1,), (3,)) and found[names[1]] == Configuration((2,), (0, 1))
    with pytest.raises(PlanError, match="a pipeline for other extents; allowed: splits"):
        resized(replace(strategy, micro_batches=2), whole, two)


# --- modules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_inference_by_a_plan_is_that_of_one_process(name: str, tmp_path: Path) -> None:
    graph = NETWORKS[name]()
    found = bn.plan(graph, devices="host:2", seconds=0.1, bound=False)
    assert found.train is None and not found.is_pipeline
    batch = batch_of(graph)
    wanted = evaluate(graph, batch)["y"]
    space = found.simulator.problem.space
    strategies = [found.strategy, data_parallel(found.model, found.machine), space.strategy(space.random(3))]
    for strategy in strategies[: 3 if name == "mlp" else 2]:
        with replace(found, strategy=strategy).compile(cache_dir=tmp_path) as module:
            np.testing.assert_allclose(module(batch["x"]), wanted, rtol=1e-5, atol=1e-5)


def test_inference_takes_all_sizes_of_its_dimensions(tmp_path: Path) -> None:
    net = network()
    found = bn.plan(net, (torch.zeros(4, 6),), devices="host:2", seconds=0.1, dynamic={"rows": (1, 8)}, bound=False)
    split = replace(found, strategy=data_parallel(found.model, found.machine))
    with split.compile(cache_dir=tmp_path) as module:
        for count in (4, 1, 3, 8, 4):
            x = rows_of(count)[0]
            wanted = net.double()(torch.from_numpy(x).double()).detach().numpy()
            np.testing.assert_allclose(module(x), wanted, atol=1e-6)
            assert torch.is_tensor(module(torch.from_numpy(x)))
        assert "2 devices" in repr(module) and "5 sizes compiled" in repr(module)  # the hint is none of the four
        assert module.memory["arena"] == sum(each["arena"] for each in module.device_memory)
        assert {row.node[:2] for row in module.profile(rows_of(3)[0], repeat=1)} == {"0:", "1:"}
        with pytest.raises(InputError, match="found 9; allowed: rows from 1 to 8"):
            module(rows_of(9)[0])
        with pytest.raises(UnsupportedMethod, match=r"allowed: Plan\.save"):
            module.save(tmp_path / "m.bn")
    with pytest.raises(ClosedError):
        module(rows_of(4)[0])


def test_training_takes_all_sizes_by_splits_and_by_a_pipeline(tmp_path: Path) -> None:
    example, train = (torch.zeros(4, 6),), bn.Train(bn.CrossEntropy(), bn.SGD(0.2))
    found = bn.plan(
        network(), example, train, "host:2", dynamic={"rows": (1, 8)}, seconds=0.1, bound=False, pipelines=False
    )
    sizes = [4, 3, 1, 8, 3]
    wanted, weights = losses(sizes, 0.2)
    model = operations(micro_graph(found.graph, 2), found.model.parameters)
    staged = replace(found, model=model, strategy=pipeline(model, found.machine, 2, 2).own)
    split = replace(found, strategy=data_parallel(found.model, found.machine))
    places = [staged.placement_at(bn.plan(network(), (torch.zeros(n, 6),), train, seconds=0.01).graph) for n in (8, 3)]
    assert [place.micro_batches for place in places if isinstance(place, Stages)] == [2, 1]
    assert isinstance(split.placement, TensorSplits)
    for own in (split, staged):
        with own.compile(cache_dir=tmp_path) as step:
            got = [float(step(*rows_of(n, k))) for k, n in enumerate(sizes)]
            np.testing.assert_allclose(got, wanted, rtol=1e-5)
            name = next(n for n in step.state if step.state[n].shape == weights.shape)
            np.testing.assert_allclose(step.state[name], weights, atol=1e-6)
            step.state[name] = np.zeros(weights.shape, "f4")
            assert float(np.abs(step.state[name]).max()) == 0
            with pytest.raises(InputError, match="found label 9"):
                step(rows_of(4)[0], np.full(4, 9))
            assert np.isfinite(float(step(*rows_of(4))))  # a refused call does no harm


def test_a_plan_of_an_open_batch_trains_by_the_loop(tmp_path: Path) -> None:
    example, train = (torch.zeros(4, 6),), bn.Train(bn.CrossEntropy(), bn.SGD(0.2))
    found = bn.plan(
        network(), example, train, dynamic={"rows": (1, 8, 1, 2)}, seconds=0.1, bound=False, pipelines=False
    )
    assert found.graph.types[found.graph.inputs[0]].shape == (2, 6)  # the hint
    data = tuple(
        np.concatenate(arrays) for arrays in zip(*(rows_of(n, k) for k, n in enumerate((4, 4, 2))), strict=True)
    )
    done = bn.fit(
        network(), data, train, plan=found, example_inputs=example, worker_kind="thread", epochs=1, shuffle=False,
        cache_dir=tmp_path,
    )  # fmt: skip
    np.testing.assert_allclose(done.report.losses, losses([4, 4, 2], 0.2)[0], rtol=1e-5)


def test_inference_refuses_what_is_of_training(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="recompute: found True; allowed: None or False for inference"):
        bn.plan(NETWORKS["mlp"](), recompute=True)
    train = bn.Train(bn.CrossEntropy(), bn.SGD(0.1), memory_budget="1MB")
    found = bn.plan(NETWORKS["mlp"](), train=train, seconds=0.05, bound=False, pipelines=False)
    with pytest.raises(ParameterError, match="allowed: None where a plan says what each device keeps"):
        found.compile(cache_dir=tmp_path)


@pytest.mark.slow
def test_inference_is_measured_where_it_will_run(tmp_path: Path) -> None:
    from burnish.parallel.programs.calibration import LaunchConfig

    ranks = LaunchConfig(worker_kind="thread", steps=2, cache_dir=tmp_path)
    found = bn.plan(NETWORKS["mlp"](), devices="host:2", seconds=0.2, measure=ranks)
    assert found.allocated and found.milliseconds > 0
    with found.compile(cache_dir=tmp_path) as module:
        batch = batch_of(NETWORKS["mlp"]())
        np.testing.assert_allclose(module(batch["x"]), evaluate(NETWORKS["mlp"](), batch)["y"], rtol=1e-5, atol=1e-5)


def test_a_worker_that_fails_ends_later_orders() -> None:
    from burnish.comm.local import WorkerThreads

    workers = WorkerThreads(2, timeout=120)
    assert workers.run(lambda comm: int(comm.all_reduce(np.array([comm.rank + 1]))[0])) == [3, 3]

    def fails(comm) -> None:
        if comm.rank:
            raise ValueError("no")
        comm.recv(1)

    with pytest.raises(WorkerError, match="worker 1 failed: ValueError: no"):
        workers.run(fails)
    with pytest.raises(WorkerError, match="worker 1 failed"):
        workers.run(lambda comm: comm.rank)
    workers.close()
