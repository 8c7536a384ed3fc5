"""Small networks of the usual kinds by both doors, against eager."""

import warnings

import pytest
import torch

import burnish as bn
from burnish.errors import UnsupportedOperator
from burnish.torch import register, report
from tests.frontend.torch.architectures import ARCHITECTURES, inputs_of, made
from tests.frontend.torch.networks import assert_same, compiled
from tests.marks import slow, slow_except

register()
STAYS_OPEN = ("mlp", "resnet", "mobilenet", "convnext", "vit", "swin", "bert", "gpt", "llama", "unet")


@pytest.mark.parametrize("name", slow(ARCHITECTURES, "swin", "vit", "unet", "mobilenet", "resnet", "bert"))
def test_a_network_compiles_by_export(name: str) -> None:
    network, inputs = made(name), inputs_of(name)
    assert_same(compiled(network, inputs)(*inputs), network(*inputs), name)


@pytest.mark.parametrize(
    "name", slow_except([name for name in ARCHITECTURES if name != "recurrent"], "resnet", "llama")
)  # which dynamo leaves to torch
def test_a_network_is_one_graph_of_torch_compile(name: str) -> None:
    network, inputs = made(name), inputs_of(name)
    torch._dynamo.reset()
    before = len(report())
    fast = torch.compile(network, backend="burnish", options={"threads": 1})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "burnish")
        assert_same(fast(*inputs), network(*inputs), name)
    (graph,) = report()[before:]
    assert graph.whole and len(graph.parts) == 1, str(graph)


@pytest.mark.parametrize("name", slow_except(STAYS_OPEN, "mlp"))
def test_one_module_takes_every_batch(name: str) -> None:
    network = made(name)
    module = compiled(network, inputs_of(name, 1), dynamic={"batch": (1, 8)})
    for batch in (1, 3, 8):
        inputs = inputs_of(name, batch)
        assert_same(module(*inputs), network(*inputs), f"{name} of {batch}")


@pytest.mark.slow
def test_recurrent_layers_keep_a_batch_open() -> None:
    network = made("recurrent")
    module = compiled(network, inputs_of("recurrent", 1), dynamic={"batch": (1, 8)})
    for batch in (1, 8):
        assert_same(module(*inputs_of("recurrent", batch)), network(*inputs_of("recurrent", batch)))


def test_a_saved_network_runs_without_torch(tmp_path) -> None:
    network, inputs = made("bert"), inputs_of("bert")
    compiled(network, inputs).save(tmp_path / "bert.bn")
    loaded = bn.load(tmp_path / "bert.bn", 1)
    states, pooled = loaded(*(x.numpy() for x in inputs))
    expected = network(*inputs)
    assert_same({"states": torch.from_numpy(states), "pooled": torch.from_numpy(pooled)}, expected)
    assert [spec.name for spec in loaded.outputs] == ["states", "pooled"]


def test_every_operator_that_is_missing_is_named_at_once() -> None:
    class Network(torch.nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x) + torch.igamma(x, x) + torch.fft.fft(x).real

    with pytest.raises(UnsupportedOperator, match=r"(?s)aten\.special_bessel_j0.*aten\.igamma.*fft"):
        bn.compile(Network(), torch.ones(3))
