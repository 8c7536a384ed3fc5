"""Delta simulation on the thesis' networks at full size; `python -m benchmarks.parallel_simulators` compares 10,000."""

from __future__ import annotations

import pytest

from benchmarks.parallel_networks import NETWORKS
from benchmarks.parallel_simulators import RECURRENT, THESIS, simulator, unequal
from burnish.parallel.model.operations import operations


@pytest.mark.slow
@pytest.mark.parametrize("name", THESIS)
def test_delta_equals_full_simulation_on_the_networks(name: str) -> None:
    sim = simulator(name, 16)
    assert unequal(sim, sim.problem.space.random(0), 300) == 0


def test_networks_have_the_operations_of_the_published_ones() -> None:
    counts = {name: len(make(4).operations) for name, make in NETWORKS.items() if name not in RECURRENT}
    assert counts["alexnet"] == 11
    assert 130 <= counts["resnet101"] <= 145
    assert 110 <= counts["inception_v3"] <= 125
    assert counts["dlrm"] == 3 + 26 + 1 + 4
    assert counts["candle_uno"] == 3 * 3 + 1 + 4


def test_steps_of_a_layer_are_joined_into_the_published_granularity() -> None:
    """Five operations of eight steps for each of eight layers, and one that joins the encoder's results."""
    model = NETWORKS["nmt"](4, steps=8, units=64, words=100, chunk=8)
    whole = NETWORKS["nmt"](4, steps=8, units=64, words=100)
    assert len(model.operations) == 8 + 1
    assert sorted(n.outputs[0] for op in model.operations for n in op.nodes) == sorted(
        n.outputs[0] for op in whole.operations for n in op.nodes
    )
    assert len(whole.operations) > 8 * len(model.operations) - 8
    assert len(operations(whole.graph).operations) >= len(whole.operations)
