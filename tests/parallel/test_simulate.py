"""Simulator: full against resumed and stopped, against times worked out by hand; memory; timelines."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from burnish.base.jit import njit
from burnish.errors import PlanError
from burnish.parallel.model.costs import Roofline
from burnish.parallel.model.machine import DeviceCluster, Processor, spread
from burnish.parallel.model.presets import machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.model.strategy import Configuration, Strategy
from burnish.parallel.simulate.baselines import data_parallel, pipeline
from burnish.parallel.simulate.core import BEFORE, IN
from burnish.parallel.simulate.sharing import SOURCE
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.taskgraph import Problem
from burnish.parallel.simulate.walk import resume_point
from tests.parallel.problems import branches, layers


class Constant:
    """Costs of 1 µs forward and 2 µs backward for every task."""

    def seconds(self, op, work, device):
        ones = np.ones(work.sizes.shape[1])
        return ones * 1e-6, ones * 2e-6


def linked(count, latency=1e-6, bandwidth=1e9):
    devices = tuple(Processor("D", 0, 1e12, 1e12, 1 << 30) for _ in range(count))
    return DeviceCluster(
        "line", devices, tuple(spread("l", latency, bandwidth, [range(count)], "device", "node", "send"))
    )


def simulator(model, where, **options):
    return Simulator(Problem(StrategySpace(model, where), options.pop("costs", Roofline()), **options))


@pytest.fixture(scope="module")
def sim():
    return simulator(branches(), machine("p100:2x2"))


@pytest.mark.parametrize("synchronization", ["overlapped", "after"])
@pytest.mark.parametrize("name", ["p100:2x2", "summit:1x6", "h100:1x4", "host:4"])
def test_delta_equals_full_simulation(name, synchronization):
    sim = simulator(branches(), machine(name), synchronization=synchronization)
    space, rng = sim.problem.space, np.random.default_rng(0)
    current = space.random(1)
    sim.start(current)
    for n in range(150):
        ops = rng.choice(len(current), size=1 + n % 3, replace=False)
        numbers = space.first[ops] + rng.integers(0, space.count[ops])
        other = current.copy()
        other[ops] = numbers
        want = sim.full(other)
        limit = int(want * rng.uniform(0.8, 1.2))
        assert sim.propose(ops, numbers) == want
        assert sim.propose(ops, numbers, limit) == (want if want <= limit else -1)
        assert sim.full(other, limit) == (want if want <= limit else -1)
        assert max(sim.loads(other).max(), sim.path(other)) <= want
        if n % 10 == 0:
            assert sim.accept() == want
            current = other


def test_walks_do_not_depend_on_how_they_are_simulated(sim):
    start = sim.problem.space.choice(data_parallel(sim.problem.model, sim.problem.machine))
    walks = [sim.walk(start, 300, 0.01, 3, None, resume, stop) for resume in (False, True) for stop in (False, True)]
    assert len({(w.best_ns, w.current_ns, w.accepted) for w in walks}) == 1
    assert all((w.best == walks[0].best).all() for w in walks)
    assert walks[0].best_ns < sim.full(start)
    assert sim.full(walks[0].best) == walks[0].best_ns
    assert walks[3].events < walks[0].events


def test_a_chain_on_one_device_takes_the_sum_of_its_tasks():
    sim = simulator(layers(3), linked(2), costs=Constant())
    whole = {op.name: Configuration((1, 1), (0,)) for op in sim.problem.model.operations}
    assert sim.full(sim.problem.space.choice(Strategy(whole))) == 9_000


def test_transfers_take_latency_and_bytes():
    sim = simulator(layers(2), linked(2), costs=Constant())
    names = [op.name for op in sim.problem.model.operations]
    strategy = Strategy({names[0]: Configuration((1, 1), (0,)), names[1]: Configuration((1, 1), (1,))})
    choice = sim.problem.space.choice(strategy)
    one_way = 1_000 + 8 * 16 * 4  # bytes at 1 GB/s
    assert sim.full(choice) == 6_000 + 2 * one_way
    assert sim.bytes(choice) == (2 * 8 * 16 * 4, 0)
    assert "send" in {e.what for e in sim.timeline(choice).entries}


def test_devices_that_copy_messages_do_nothing_else():
    """The sender's half follows its task, the receiver's is a task; sums of gradients are work of both."""
    where = replace(linked(2), copied=True)
    sim = simulator(layers(2), where, costs=Constant())
    names = [op.name for op in sim.problem.model.operations]
    strategy = Strategy({names[0]: Configuration((1, 1), (0,)), names[1]: Configuration((1, 1), (1,))})
    choice = sim.problem.space.choice(strategy)
    one_way = 1_000 + 8 * 16 * 4
    assert sim.full(choice) == 6_000 + 2 * one_way
    assert sim.loads(choice).tolist()[:2] == [3_000 + one_way] * 2
    line = sim.timeline(choice)
    assert sorted((e.what, e.resource) for e in line.entries if e.what in ("send", "gradient")) == [
        ("gradient", 0), ("gradient", 1), ("send", 0), ("send", 1),
    ]  # fmt: skip
    weight = 16 * 16 * 4
    choice = sim.problem.space.choice(data_parallel(sim.problem.model, sim.problem.machine))
    assert sim.full(choice) == 6_000 + 2 * 2 * (1_000 + weight // 2)
    later = simulator(layers(2), where, costs=Constant(), synchronization="after")
    assert later.full(choice) == 6_000 + 2 * weight


def test_a_device_computes_while_another_copies():
    """A message that is copied late does not hold up what its receiver has to do meanwhile."""
    where = replace(linked(2), copied=True)
    sim = simulator(branches(), where, costs=Constant())
    for seed in range(40):
        choice = sim.problem.space.random(seed)
        line = sim.timeline(choice)
        for r in range(2):
            own = [e for e in line.entries if e.resource == r]
            assert all(a.end <= b.start for a, b in pairwise(own))
        assert sum(e.end - e.start for e in line.entries) == sum(sim.loads(choice))
        assert max(sim.loads(choice).max(), sim.path(choice)) <= sim.full(choice)


def test_sums_of_gradients_overlap_or_follow_the_step():
    weight = 16 * 16 * 4
    for synchronization, want in (
        ("overlapped", 4_000 + 2 * 2 * (1_000 + weight // 2)),  # two rings of 2 (n - 1) steps, from the first on
        ("after", 6_000 + 2 * weight),  # both, (n - 1) times the bytes each
    ):
        sim = simulator(layers(2), linked(2), costs=Constant(), synchronization=synchronization)
        choice = sim.problem.space.choice(data_parallel(sim.problem.model, sim.problem.machine))
        assert sim.full(choice) == want
        assert sim.bytes(choice) == (0, 2 * 2 * weight)


def test_memory_of_data_parallel_and_of_shards():
    weights, results = 2 * 16 * 16 * 4, 2 * 4 * 16 * 4
    buffers = 16 * 16 * 4 + 4 * 16 * 4
    for sharded, states in ((False, 4.0), (True, 1 + 3 / 2)):
        sim = simulator(layers(2), linked(2), costs=Constant(), sharded=sharded)
        choice = sim.problem.space.choice(data_parallel(sim.problem.model, sim.problem.machine))
        assert sim.memory(choice).tolist() == [states * weights + results + buffers] * 2
        assert sim.fits(choice)


def test_memory_counts_received_copies_and_distinct_pieces():
    sim = simulator(layers(2), linked(2), costs=Constant())
    names = [op.name for op in sim.problem.model.operations]
    strategy = Strategy({names[0]: Configuration((2, 1), (0, 1)), names[1]: Configuration((1, 2), (0, 1))})
    weights = 4 * (16 * 16 * 4) + 4 * (16 * 8 * 4)
    held = weights + 2 * 8 * 16 * 4 // 2 + 4 * 16 * 4 + 16 * 16 * 4 + 8 * 16 * 4 // 2
    assert sim.memory(sim.problem.space.choice(strategy)).tolist() == [held] * 2


def test_a_pipeline_of_equal_stages_takes_its_bubble():
    """(micro-batches + stages - 1) of a stage's forward and backward task, on links that cost next to nothing."""
    where = linked(4, 0.0, 1e15)
    made = pipeline(layers(4), where, 4, 6)
    space = StrategySpace(made.model, where, also=[made.strategy])
    sim = Simulator(Problem(space, Constant(), order=made.order))
    time = sim.full(space.choice(made.strategy))
    assert time == pytest.approx((6 + 4 - 1) * 3_000, rel=0.001)
    started = [e for e in sim.timeline(space.choice(made.strategy)).entries if e.resource == 0]
    flight = most = 0
    for entry in started:
        flight += 1 if entry.what == "forward" else -1
        most = max(most, flight)
    assert most == 4


def test_timelines_hold_every_task_once_and_no_two_at_a_time(sim):
    choice = sim.problem.space.random(5)
    line = sim.timeline(choice)
    assert line.time + line.after == sim.full(choice)
    tables = sim.problem.tables
    tasks = [e for e in line.entries if e.what in ("forward", "backward")]
    assert len(tasks) == 2 * int(tables.configurations[choice, 2].sum())
    for r in range(len(line.resources)):
        own = [e for e in line.entries if e.resource == r]
        assert all(a.end <= b.start for a, b in pairwise(own))
    assert line.svg().count("<rect") >= len(line.entries)
    assert f"{(line.time + line.after) / 1e6:.3f} ms" in line.text()


def test_wrong_use_is_refused(sim):
    choice = sim.problem.space.random(0)
    with pytest.raises(PlanError, match="no current strategy"):
        simulator(layers(1), linked(1)).propose([0], [0])
    wrong = choice.copy()
    wrong[0] = sim.problem.space.size
    with pytest.raises(PlanError, match="operation 'relu': configuration"):
        sim.full(wrong)
    with pytest.raises(PlanError, match="choice of shape"):
        sim.full(choice[1:])
    with pytest.raises(PlanError, match="synchronization 'never'; allowed: overlapped, after"):
        simulator(layers(1), linked(1), synchronization="never")


@njit(cache=False)
def drawn(seed, proposals, moves, counts):
    """What a walk draws: for each proposal a number from 0 to 1, a move, and a configuration."""
    np.random.seed(seed)
    found = np.empty((proposals, 3))
    for n in range(proposals):
        found[n, 0] = np.random.random()
        found[n, 1] = np.random.randint(0, moves)
        found[n, 2] = np.random.randint(0, counts[int(found[n, 1])])
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.02, 0.2])
def test_a_walk_accepts_by_the_rule_of_metropolis(sim, temperature):
    """A worse time T with probability exp((now - T) / (temperature * now)), by the same random numbers."""
    space, proposals = sim.problem.space, 400
    start = space.choice(data_parallel(sim.problem.model, sim.problem.machine))
    found = sim.walk(start, proposals, temperature, 5)
    current, accepted, worse = start.copy(), 0, 0
    now = least = sim.full(start)
    for u, move, number in drawn(5, proposals, len(start), space.count):
        other = current.copy()
        other[int(move)] = space.first[int(move)] + int(number)
        if (other == current).all():
            continue
        time = sim.full(other)
        if time <= now or (temperature and u <= np.exp((now - time) / (temperature * now))):
            accepted, worse = accepted + 1, worse + (time > now)
            current, now = other, time
            least = min(least, now)
    assert (found.accepted, found.current_ns, found.best_ns) == (accepted, now, least)
    assert (found.current == current).all()
    assert (worse > 0) == (temperature > 0)


@njit(cache=False)
def point(t, ops, first, every, ck):
    return resume_point(t, ops, first, every, ck)


def test_simulations_go_on_from_checkpoints_before_the_change(sim):
    """From the last that was taken in time: one behind what changes, or that was never taken, is passed over."""
    sim.start(sim.problem.space.random(3))
    t, ck, first, every = sim.t, sim._ck, sim._first, sim._every
    passed = 0
    for i in range(len(first)):
        ops = np.array([i])
        sources = [t.geometry.edges[t.lists[q], SOURCE] for q in range(t.pointer[IN, i], t.pointer[IN, i + 1])]
        before = [t.lists[q] for q in range(t.pointer[BEFORE, i], t.pointer[BEFORE, i + 1])]
        if not sources and not before:
            assert point(t, ops, first, every, ck) == 0
            continue
        least = min(first[j] for j in (*sources, *before))
        z = point(t, ops, first, every, ck)
        assert z == 0 or (ck.scalars[z, 0] >= 0 and ck.scalars[z, 1] <= least)
        for column, value in ((1, least + 1), (0, -1)):
            kept = ck.scalars[z].copy()
            ck.scalars[z, column] = value
            assert z == 0 or point(t, ops, first, every, ck) == z - 1
            ck.scalars[z] = kept
            passed += z > 0
    assert passed > 4
