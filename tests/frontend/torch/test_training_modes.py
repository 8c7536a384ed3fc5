"""Networks of PyTorch as they train: modes of modules, buffers that forward changes, own backwards, and refusals."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import burnish as bn
from burnish.errors import UnsupportedOperator
from burnish.frontend.torch.export import import_torch
from burnish.frontend.torch.training import asks_for_mode

nn = torch.nn
F = torch.nn.functional
X = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def network(*between: Any) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *between, nn.Tanh(), nn.Linear(8, 5)).double()


def assert_trains_as_torch(net: Any, calls: int = 3, own: Any = None) -> Any:
    """Losses, parameters and buffers of a few steps; the network itself stays what it is. Returns the step."""
    own = copy.deepcopy(net) if own is None else own
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [m.training for m in net.modules()]
    step = bn.compile(net, X, train=bn.Train("mse", bn.SGD(0.1)), threads=1)
    optimizer = torch.optim.SGD([p for p in own.parameters() if p.requires_grad], 0.1)
    for _ in range(calls):
        loss = F.mse_loss(own(X), Y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert float(step(X.numpy(), Y.numpy())) == pytest.approx(loss.item(), rel=1e-10)
    for name, value in [*own.named_parameters(), *own.named_buffers()]:
        for key in (f"{kind}_{name.replace('.', '_')}" for kind in "pb"):
            if key in step.state:
                np.testing.assert_allclose(step.state[key], value.detach(), rtol=1e-7, atol=1e-9)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert modes == [m.training for m in net.modules()]
    return step


def test_what_asks_for_training_trains_by_that_branch() -> None:
    class Scaled(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Any) -> Any:
            return self.inner(x * 2 if self.training else x)

    net = Scaled()
    assert_trains_as_torch(net)
    assert_trains_as_torch(net.eval(), own=copy.deepcopy(net).train())  # as a whole
    done = bn.fit(
        net, (X.numpy(), Y.numpy()), bn.Train("mse"), example_inputs=X, epochs=2, threads=1,
        validation_data=(X.numpy(), Y.numpy()),
    )  # fmt: skip
    own = copy.deepcopy(net).eval()
    done.copy_to(own)
    assert done.report.evaluations[-1].loss == pytest.approx(F.mse_loss(own(X), Y).item(), rel=1e-9)
    np.testing.assert_allclose(done.compile(threads=1, rewrite=False)(X), own(X).detach(), rtol=1e-9)


def test_a_batch_norm_in_eval_mode_is_frozen() -> None:
    net = network(nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8))
    net[1].running_mean.uniform_(-1, 1)
    net[1].running_var.uniform_(0.5, 2)
    net[1].eval()
    step = assert_trains_as_torch(net)
    assert np.array_equal(step.state["1.running_mean"], net[1].running_mean)
    assert not np.array_equal(step.state["3.running_mean"], net[3].running_mean)
    assert_trains_as_torch(net.eval(), own=copy.deepcopy(net).train())


def test_a_dropout_in_eval_mode_drops_nothing() -> None:
    net = network(nn.Dropout(0.5), nn.Dropout(0.9))
    net[2].eval()
    rates = [n.attrs["rate"] for n in import_torch(net, X, training=True).graph.nodes if n.op == "dropout"]
    assert rates == [0.5]
    net[1].eval()
    assert_trains_as_torch(net)


def test_buffers_that_forward_changes_are_states() -> None:
    norm = nn.utils.parametrizations.spectral_norm

    class Averaged(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()
            self.register_buffer("mean", torch.zeros(6, dtype=torch.float64))

        def forward(self, x: Any) -> Any:
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return self.inner(x - self.mean)

    torch.manual_seed(0)
    assert_trains_as_torch(nn.Sequential(norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 5)).double())
    step = assert_trains_as_torch(Averaged())
    assert step.state["mean"].any()


class Rounded(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """Rounds; its gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


class Scaled(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """A product and its square, with gradients that are not theirs."""

    @staticmethod
    def forward(x: Any, w: Any, factor: float) -> Any:
        return x * w, x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, ctx.factor = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        x, w = ctx.saved_tensors
        return ctx.factor * g * w + h, g * torch.sin(x) if ctx.needs_input_grad[1] else None, None


class Clipped(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """Limits its gradient, which is no linear map."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g.clamp(-1, 1)


class Applied(nn.Module):  # type: ignore[misc, name-defined]
    """A function between the layers."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 8).double(), nn.Linear(8, 5).double(), function

    def forward(self, x: Any) -> Any:
        return self.last(self.function(self.first(x)))


def test_a_function_is_differentiated_by_its_own_backward() -> None:
    torch.manual_seed(0)
    assert_trains_as_torch(Applied(lambda h: Rounded.apply(h * 3).sin()))
    assert_trains_as_torch(Applied(lambda h: sum(Scaled.apply(h, h.cos(), -0.5))))
    with pytest.raises(UnsupportedOperator, match=r"autograd.Function 'Clipped': found a backward that is not linear"):
        import_torch(Applied(Clipped.apply), X, training=True)
    import_torch(Applied(Clipped.apply), X)  # inference has no gradient


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_has_the_gradient_of_what_it_calls(reentrant: bool) -> None:
    checkpoint = torch.utils.checkpoint.checkpoint
    torch.manual_seed(0)
    assert_trains_as_torch(Applied(lambda h: checkpoint(torch.sin, h, use_reentrant=reentrant)))


def test_forward_hooks_are_followed() -> None:
    net = network()
    net[0].register_forward_hook(lambda module, given, result: result * 2)
    net[2].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    net.register_forward_hook(lambda module, given, result: result * 0.5)
    assert_trains_as_torch(net)
    old, same = (nn.utils.weight_norm(nn.Linear(6, 5)).double() for _ in range(2))
    same.load_state_dict(old.state_dict())
    assert_trains_as_torch(old, own=same)
    assert_trains_as_torch(nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)).double())


def hooked(register: Callable[[Any], Any]) -> Any:
    net = network()
    register(net)
    return net


class Counting(nn.Module):  # type: ignore[misc, name-defined]
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.inner = 0, network()

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.inner(x) / self.calls


class Freezing(Counting):
    """Trains not all of its parameters."""

    def forward(self, x: Any) -> Any:
        self.inner[0].requires_grad_(False)
        return self.inner(x)


def listening(h: Any) -> Any:
    h.register_hook(lambda g: -g)
    return h


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda: hooked(lambda n: n[0].register_full_backward_hook(lambda m, i, o: None)),
            "module '0': found a backward",
        ),
        (
            lambda: hooked(lambda n: n[0].register_full_backward_pre_hook(lambda m, o: None)),
            "module '0': found a backward",
        ),
        (
            lambda: hooked(lambda n: n[0].weight.register_hook(lambda g: -g)),
            "parameter '0.weight': found a hook on its",
        ),
        (
            lambda: hooked(lambda n: n[0].weight.register_post_accumulate_grad_hook(lambda p: None)),
            "parameter '0.weight': found a hook on its",
        ),
        (lambda: Applied(listening), "forward: found a hook on a tensor's gradient, 'listening"),
        (Freezing, r"forward: found requires_grad_\(False\)"),
        (Counting, "module '': found attribute 'calls' that forward changes"),
        (lambda: Applied(lambda h: h * random.random()), "forward: found random numbers of Python or NumPy"),
        (lambda: Applied(lambda h: h * torch.rand(8, 1)), "random numbers are not supported"),
    ],
)
def test_what_no_graph_has_is_refused_by_name(made: Callable[[], Any], message: str) -> None:
    net = made()
    with pytest.raises(UnsupportedOperator, match=message):
        import_torch(net, X, training=True)
    assert getattr(net, "calls", 0) == 0


def test_zeros_and_ones_by_chance_are_the_steps_own() -> None:
    class Depth(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x * x.new_empty(8, 1).bernoulli_(0.75).div_(0.75) if self.training else x

    net = network(Depth())
    assert asks_for_mode(net) and not asks_for_mode(network())
    with pytest.warns(UserWarning, match="train: 'bernoulli_' draws random numbers of the step's own seed"):
        step = bn.compile(nn.Sequential(nn.Linear(6, 6).double(), Depth()), X, train=bn.Train("mse"), threads=1)
    step.state["0.weight"], step.state["0.bias"] = np.zeros((6, 6)), np.ones(6)
    step.state["optimizer.learning_rate"] = np.array(0.0)
    kept = [round(float(step(X.numpy(), np.zeros((8, 6)))) * 0.75**2 * 8, 6) for _ in range(200)]
    assert all(k == int(k) for k in kept) and len({*kept}) > 3 and 5.5 < np.mean(kept) < 6.5  # rows of 8
    plain = import_torch(net, X, training=True, inference=True).graph
    assert not [n for n in plain.nodes if n.op == "dropout"]


def test_weights_of_attention_are_dropped() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    graph = import_torch(layer, torch.randn(2, 3, 8), training=True).graph
    shapes = [graph.types[n.inputs[0]].shape for n in graph.nodes if n.op == "dropout"]
    assert len(shapes) == 4 and shapes[0][-2:] == (3, 3)
