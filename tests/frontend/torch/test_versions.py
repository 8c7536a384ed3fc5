"""What differs between versions of PyTorch, without the other versions."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import burnish as bn
from burnish.frontend.torch.export import import_torch
from burnish.frontend.torch.signature import children_of
from burnish.graph.evaluate import evaluate


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


def test_composite_operators_are_searched_once_until_others_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.export import decomp_utils, exported_program

    searches, search = [], exported_program._collect_all_valid_cia_ops

    def counted() -> set[Any]:
        searches.append(1)
        return search()

    for module in (decomp_utils, exported_program):
        monkeypatch.setattr(module, "_collect_all_valid_cia_ops", counted)

    class Network(torch.nn.Module):
        def __init__(self, function: Callable[..., torch.Tensor]) -> None:
            super().__init__()
            self.function = function

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.function(torch.nn.functional.celu(x))

    x, library = torch.linspace(-1, 1, 5), torch.library.Library("burnish_tests", "DEF")
    import_torch(Network(torch.neg), x, training=True)
    before = len(searches)
    import_torch(Network(torch.neg), x, training=True)
    assert len(searches) == before
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
    graph = import_torch(Network(torch.ops.burnish_tests.twice), x, training=True).graph
    assert len(searches) == before + 1
    (found,) = evaluate(graph, {graph.inputs[0]: x.numpy()}).values()
    torch.testing.assert_close(torch.from_numpy(found), 2 * torch.nn.functional.celu(x))
    assert exported_program._collect_all_valid_cia_ops is counted  # torch's own is back
