"""Indices out of range: refused at a call, as torch refuses them, by name."""

from pathlib import Path

import numpy as np
import pytest
import torch

import burnish as bn
from burnish.errors import InputError
from burnish.measure.samples import module_inputs


class _Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.table(i.reshape(-1).long()) * 2


class _Taken(torch.nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        if self.way == "gather":
            return x.gather(1, i.reshape(1, -1).expand(2, -1))
        if self.way == "index_select":
            return x.index_select(1, i)
        return x[:, i] if self.way == "index" else x[torch.zeros_like(i), i]


@pytest.mark.parametrize("bad", [10**9, 10, -1])
def test_embeddings_take_numbers_of_rows_alone(bad: int, tmp_path: Path) -> None:
    network, good = _Table().eval(), torch.tensor([[0, 9, 3]], dtype=torch.int32)
    module = bn.compile(network, good)
    assert torch.equal(module(good), network(good).detach())
    wrong = torch.tensor([[0, bad, 3]], dtype=torch.int32)
    module.save(tmp_path / "table.bn")
    loaded = bn.load(tmp_path / "table.bn")
    for call, given in ((module, wrong), (module, wrong.numpy()), (loaded, wrong.numpy())):
        with pytest.raises(InputError, match=rf"input 'i': found index {bad} at \[0, 1\].*allowed: 0 to 9"):
            call(given)
    out = np.empty((3, 4), np.float32)
    with pytest.raises(InputError):
        loaded.run_into([wrong.numpy()], [out])
    loaded(**module_inputs(loaded))  # those drawn at random are allowed


@pytest.mark.parametrize("way", ["gather", "index_select", "index", "indices"])
def test_other_reads_at_positions(way: str) -> None:
    x, network = torch.arange(10.0).reshape(2, 5), _Taken(way)
    module = bn.compile(network, (x, torch.tensor([0, 1])))
    from_end = way.startswith("ind") and way != "index_select"
    for given in ([0, 4], [-5, 4], [0, -1], [0, 5], [-6, 0]):
        index = torch.tensor(given)
        if min(given) < (-5 if from_end else 0) or max(given) > 4:
            with pytest.raises(InputError, match="input 'i': found index"):
                module(x, index)
        else:
            assert torch.equal(module(x, index), network(x, index))


def test_the_backend_of_torch_compile_refuses_them_with_and_without_gradients() -> None:
    network = _Table()
    compiled = torch.compile(network, backend="burnish")
    good, wrong = torch.tensor([1, 2]), torch.tensor([1, -1])
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            torch.testing.assert_close(compiled(good), network(good))
            with pytest.raises(InputError, match=r"found index -1 at \[1\].*allowed: 0 to 9"):
                compiled(wrong)


def test_a_step_of_training_refuses_them() -> None:
    network = torch.nn.Sequential(_Table(), torch.nn.Linear(4, 1))
    train = bn.Train(loss="mse", optimizer=bn.SGD(0.1))
    step = bn.compile(network, torch.tensor([1, 2]), train=train)
    label = np.zeros((2, 1), np.float32)
    assert np.isfinite(step(np.array([1, 9]), label))
    with pytest.raises(InputError, match="found index 10 at"):
        step(np.array([1, 10]), label)
