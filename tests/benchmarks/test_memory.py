"""The networks of `benchmarks.memory`, and what it calls a miss."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from benchmarks.memory import missed, planned, slope_of
from benchmarks.memory_networks import THESIS, Network, Residual, UnrolledLstm, residual, resnet
from benchmarks.resident import forget_peak, resident, torch_network
from burnish.graph.verify import verify
from burnish.memory.budget import Planner
from burnish.memory.strategies import by_strategy


def test_depths_are_counted_as_in_the_thesis() -> None:
    assert [residual(depth).layers for depth in (18, 34, 50, 101, 152)] == [18, 34, 50, 101, 152]
    assert residual(1000).layers == 998 and residual(1202).layers == 1202
    verify(resnet(residual(18), 2, 32))


def test_a_recurrent_step_is_that_of_the_thesis() -> None:
    small = UnrolledLstm(layers=2, units=8, batch=4, inputs=5, classes=7)
    graph = small.graph(3, 0)
    verify(graph)
    weights = [graph.constants[name] for name in graph.constants if name[0] in "wu" or name == "head"]
    assert sum(w.nbytes for w in weights) == small.gradient_bytes and len(weights) == 5
    assert sum(node.op == "lstm_cell" for node in graph.nodes) == 6
    assert graph.types[graph.outputs[0]].shape == (12, 7)
    assert (THESIS.layers, THESIS.units, THESIS.batch, THESIS.inputs, THESIS.classes) == (4, 1024, 64, 50, 5000)


@pytest.mark.slow
def test_a_recurrent_step_grows_with_its_length_but_not_with_a_plan() -> None:
    small = UnrolledLstm(layers=2, units=16, batch=64, inputs=16, classes=8)
    steps = [small.graph(length) for length in (4, 16)]
    whole = [by_strategy(Planner(planned(graph).work), "packed").arena for graph in steps]
    divided = [by_strategy(Planner(planned(graph, segments=True).work), "sublinear").arena for graph in steps]
    assert whole[1] > 2.5 * whole[0] and divided[1] < 2.5 * divided[0] and divided[1] < whole[1] / 2


def test_missed_bars_are_told() -> None:
    plans = [{"process": {"off": 0.01}}, {}]
    kept = {"model": "m", "violations": 0, "slower_with_more": 0, "unequal": 0, "plans": plans}
    good = {"budgets": [kept], "offsets": [{"of_bound": 1.02, "seconds": 1.0}]}
    assert missed(good) == []
    bad = {"budgets": [{**kept, "violations": 1, "plans": [{"process": {"off": 0.06}}]}],
           "residual": [{"depth": 50, "budgets": [{"extra": 0.09}, {"refused": "no"}], "arena_of_live": 1.0,
                         "sharing": {"bytes": 2}, "operators": 5, "operations": 4000}],
           "deep": [{"plans": [{"arena": 3, "budget": 2, "process": {"off": 0.0}, "equal": True}]}]}  # fmt: skip
    assert len(missed(bad)) == 6


def test_a_plan_that_takes_long_is_a_miss_up_to_4000_operations() -> None:
    row = {"depth": 18, "budgets": [{"extra": 0.0, "planner_seconds": 5.1}], "arena_of_live": 1.0, "operators": 6,
           "sharing": {"bytes": 2}}  # fmt: skip
    assert len(missed({"residual": [{**row, "operations": 4000}]})) == 1
    assert missed({"residual": [{**row, "operations": 4001}]}) == []


def test_the_slope_is_that_of_logarithms() -> None:
    rows = [{"depth": d, "sublinear": {"bytes": 7 * d**0.5}} for d in (18, 50, 1001)]
    assert slope_of(rows) == pytest.approx(0.5) and slope_of(rows[:1]) == 0.0
    longer = [{"length": n, "gradients": 10, "sublinear": {"bytes": 10 + 3 * n**0.5}} for n in (16, 64)]
    assert slope_of(longer, "length") == pytest.approx(0.5)
    assert missed({"recurrent": [{**row, "sublinear": {"bytes": 10 + row["length"]}} for row in longer]})
    kept = {"size": 64, "equal": True, "measured": 0.3, "times_below_sharing": 4.5}
    assert missed({"lengths": [kept]}) == [] and len(missed({"lengths": [{**kept, "measured": 0.5}]})) == 1


@pytest.mark.parametrize("form", [3, Residual((1, 2, 1, 1), False, 8), Residual((1, 2, 1, 1), True, 8)])
def test_networks_are_those_that_pytorch_trains(form: Residual | int) -> None:
    import torch

    network = Network(form, (2, 40) if isinstance(form, int) else (2, 3, 32, 32))
    graph = network.graph()
    verify(graph)
    net = torch_network(network)
    statistics = {n for n in graph.constants if n.endswith((".mean", ".variance"))}
    own = sum(array.size for n, array in graph.constants.items() if n not in statistics)
    assert own == sum(p.numel() for p in net.parameters())
    assert tuple(net(torch.zeros(network.shape)).shape) == graph.types[graph.outputs[0]].shape


def test_resident_memory_grows_by_what_is_written() -> None:
    gc.collect()
    forget_peak()
    before = resident("VmRSS")
    array = np.ones(40 << 20, np.uint8)
    grown = resident("VmHWM") - before
    assert array[-1] == 1 and 39 << 20 < grown < 60 << 20
