"""What differs between versions of PyTorch, without the other versions."""

from types import SimpleNamespace

import pytest
import torch

import burnish as bn
from burnish.frontend.torch.export import children_of


def test_the_children_of_a_structure_by_either_name() -> None:
    assert children_of(SimpleNamespace(children_specs=[1, 2])) == [1, 2]
    assert children_of(SimpleNamespace(children=lambda: [1, 2])) == [1, 2]
    _, spec = torch.utils._pytree.tree_flatten(((1, 2), {"a": 3}))
    assert [child.num_leaves for child in children_of(spec)] == [2, 1]


def test_states_of_an_lstm_are_mended_while_torch_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._decomp import decompositions

    right = decompositions.one_layer_lstm

    def as_in_2_11(inp: torch.Tensor, *args: object, **kwargs: object) -> object:
        out, states = right(inp, *args, **kwargs)
        return out, tuple(s.unsqueeze(0) if s.dim() == 2 and s.shape[0] > 1 else s for s in states)

    monkeypatch.setattr(decompositions, "one_layer_lstm", as_in_2_11)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y, (h, _) = self.lstm(x)
            return y, h[-1]

    network, x = Network().eval(), torch.randn(5, 3, 3)
    module = bn.compile(network, x)
    assert decompositions.one_layer_lstm is as_in_2_11
    for found, wanted in zip(module(x), network(x), strict=True):
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-5, atol=1e-6)
