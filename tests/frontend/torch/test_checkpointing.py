"""Activation checkpointing plans: measured peaks within budgets, the same gradients, costs that are passed in."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

nn = torch.nn

from burnish.errors import ParameterError  # noqa: E402
from burnish.torch import checkpoint_plan  # noqa: E402

LARGE = 1 << 40


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.Dropout(0.1),
            nn.Conv2d(channels, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return torch.relu(x + self.body(x))


class Network(nn.Module):
    def __init__(self, blocks: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList([Residual(8) for _ in range(blocks)])
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def gradients(network: Any, x: Any) -> list[Any]:
    network.zero_grad()
    torch.manual_seed(3)
    network(x).square().sum().backward()
    return [p.grad.clone() for p in network.parameters()]


def test_plans_keep_their_budgets_and_compute_the_same() -> None:
    torch.manual_seed(0)
    network, x = Network(), torch.randn(4, 3, 24, 24)
    state, random = copy.deepcopy(network.state_dict()), torch.random.get_rng_state()
    whole = checkpoint_plan(network, x, LARGE)
    assert whole.blocks == () and whole.measured == whole.baseline and whole.extra == 0
    plain = gradients(network, x)
    network.load_state_dict(state)
    more = 0
    for share in (0.8, 0.4):
        torch.random.set_rng_state(random)
        plan = checkpoint_plan(network, x, int(share * whole.baseline), costs={f"blocks.{i}": 1.0 for i in range(8)})
        assert plan.measured <= plan.memory_budget and len(plan.blocks) >= more
        assert abs(plan.predicted - plan.measured) <= 0.1 * plan.measured
        assert all(name.startswith("blocks.") for name in plan.blocks) and 0 < plan.extra <= 1
        torch.testing.assert_close(dict(network.state_dict()), dict(state), atol=0, rtol=0)
        assert torch.equal(torch.random.get_rng_state(), random)
        more = len(plan.blocks)
        plan.apply(network)
        for own, wanted in zip(gradients(network, x), plain, strict=True):
            torch.testing.assert_close(own, wanted, atol=0, rtol=0)
        plan.remove(network)
        assert not any("forward" in vars(m) for m in network.modules())
        network.load_state_dict(state)
    assert more >= 6


def test_a_budget_that_cannot_be_met_names_the_smallest() -> None:
    torch.manual_seed(0)
    network, x = Network(), torch.randn(4, 3, 24, 24)
    with pytest.raises(ParameterError, match=r"memory_budget: found 1000 bytes; allowed: (\d+) or more") as raised:
        checkpoint_plan(network, {"x": x}, 1000)
    least = int(str(raised.value).split("allowed: ")[1].split()[0])
    plan = checkpoint_plan(network, (x,), least)
    assert plan.measured <= least < plan.baseline


def test_cheap_blocks_are_computed_again_first() -> None:
    torch.manual_seed(0)
    network, x = Network(4), torch.randn(2, 3, 16, 16)
    base = checkpoint_plan(network, x, LARGE).baseline
    costs = {"blocks.0": 9.0, "blocks.1": 9.0, "blocks.2": 1.0, "blocks.3": 9.0, "stem": 9.0, "head": 9.0}
    plan = checkpoint_plan(network, x, int(0.85 * base), costs=costs)
    assert plan.blocks == ("blocks.2",) and plan.extra == pytest.approx(1 / 46)


def test_a_module_of_large_children_is_divided() -> None:
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Sequential(Network(6))), torch.randn(2, 3, 16, 16)
    plan = checkpoint_plan(network, x, int(0.6 * checkpoint_plan(network, x, LARGE).baseline))
    assert plan.blocks and all(name.startswith("0.0.blocks.") for name in plan.blocks)


def test_wrong_arguments_are_refused() -> None:
    network, x = Network(2), torch.randn(2, 3, 8, 8)
    for blocks, message in ((["bloks.0"], "blocks: found 'bloks.0'"), (["blocks.0", "blocks.0.body"], "contain each")):
        with pytest.raises(ParameterError, match=message):
            checkpoint_plan(network, x, 1 << 20, blocks=blocks)
    with pytest.raises(ParameterError, match="memory_budget: found -1"):
        checkpoint_plan(network, x, -1)
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ParameterError, match="module: found 'a result without gradients'"):
        checkpoint_plan(network, x, 1 << 20)
