"""Batch of a model that leaves it open: the default of every door of fit, and the gradients that it leads to."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import burnish as bn
from burnish.errors import DataError, ModelError
from burnish.fitting.data import DEFAULT_BATCH, default_batch
from burnish.frontend.onnx import to_onnx
from burnish.loops.sizes import dim
from tests.train.networks import perceptron, rows

DATA = rows(70)
RECIPE = bn.Train(optimizer=bn.SGD(0.1))


@pytest.fixture
def file(tmp_path: Path) -> str:
    """The perceptron as an ONNX file with an open batch."""
    model = to_onnx(perceptron())
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


def fitted(model: Any, data: Any = DATA, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is assumed of the batch
        return bn.fit(model, data, RECIPE, epochs=1, threads=1, **{"shuffle": False, **more})


def test_a_batch_is_of_32_rows_or_of_all(file: str, tmp_path: Path) -> None:
    wanted = fitted(perceptron(32))
    np.savez(tmp_path / "data.npz", **DATA)
    for data in (DATA, (DATA["x"], DATA["label"]), tmp_path / "data.npz"):
        done = fitted(file, data)
        assert done.report.calls == 3 and done.trained.batch == 32  # 32, 32 and 6 rows
        np.testing.assert_allclose(done.report.losses, wanted.report.losses, rtol=1e-6)
        np.testing.assert_allclose(done.weights["w1"], wanted.weights["w1"], atol=1e-6)
    assert fitted(file, rows(20)).trained.batch == 20
    assert fitted(file, batch=16).report.calls == 5
    assert fitted(perceptron(16), batch=16).report.left_out == 0


@pytest.mark.slow
def test_a_dimension_is_a_batch_within_its_bounds() -> None:
    for high, calls in ((64, 3), (10, 7)):
        graph = perceptron(dim("n", 1, high))
        done = fitted(graph)
        assert done.report.calls == calls
        wanted = fitted(perceptron(min(high, DEFAULT_BATCH)))
        np.testing.assert_allclose(done.report.losses, wanted.report.losses, rtol=1e-6)
        np.testing.assert_allclose(done.predict(DATA["x"][:7]), wanted.predict(DATA["x"][:7]), atol=1e-6)
    assert fitted(perceptron(dim("n", 1, 64)), batch=48).report.calls == 2
    with pytest.raises(ModelError, match="found 100; allowed: 1 to 64"):
        fitted(perceptron(dim("n", 1, 64)), batch=100)


def test_an_exported_program_of_any_batch_is_trained_by_32_rows() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(12, 5))
    opened = {0: torch.export.Dim("rows", min=1, max=512)}
    program = torch.export.export(network, (torch.randn(4, 12),), dynamic_shapes=(opened,))
    done = fitted(program, (DATA["x"], DATA["label"]))
    assert done.report.calls == 3
    peer = torch.optim.SGD(network.parameters(), 0.1)
    for begin in (0, 32, 64):
        peer.zero_grad()
        x, label = (torch.from_numpy(DATA[name][begin : begin + 32]) for name in ("x", "label"))
        torch.nn.functional.cross_entropy(network(x), label).backward()
        peer.step()
    np.testing.assert_allclose(done.weights["0.weight"], network[0].weight.detach().numpy(), atol=1e-5)


def test_batches_that_come_are_the_batch(file: str) -> None:
    tensors = torch.utils.data.TensorDataset(*(torch.from_numpy(DATA[name]) for name in ("x", "label")))
    for workers in (0, 1):
        loader = torch.utils.data.DataLoader(tensors, batch_size=25, shuffle=True, num_workers=workers)
        torch.manual_seed(3)
        first = next(iter(loader))[0]
        torch.manual_seed(3)
        assert default_batch(loader) == 25
        assert torch.equal(next(iter(loader))[0], first)  # asking draws nothing
    assert fitted(file, loader).report.calls == 3
    with pytest.raises(DataError, match="data: found"):
        fitted(file, {"x": np.zeros((0, 12), "f4"), "label": np.zeros(0, np.int64)})


@pytest.mark.slow
def test_workers_and_plans_have_the_same_batch(file: str) -> None:
    alone = fitted(file)
    found = fitted(file, workers=2, worker_kind="thread")
    np.testing.assert_allclose(found.report.losses, alone.report.losses, rtol=1e-5)
    assert fitted(file, rows(31), workers=2, worker_kind="thread").trained.batch == 30
    assert fitted(file, rows(3), workers=4, worker_kind="thread").report.calls == 1  # fewer rows than devices
    plan = bn.plan(file, train=RECIPE, devices="host:2", seconds=0.2)
    assert plan.graph.types["x"].shape[0] == DEFAULT_BATCH
    np.testing.assert_allclose(
        fitted(file, plan=plan, worker_kind="thread").report.losses, alone.report.losses, rtol=1e-5
    )
    other = bn.plan(file, train=RECIPE, devices="host:2", seconds=0.2, shapes={"x": (8, 12)})
    assert fitted(file, plan=other, worker_kind="thread").trained.batch == 8


class Endless:
    """Batches without end, each iteration from the first."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        while True:
            yield rows(9)


def test_the_first_batch_of_an_iterable_is_enough(file: str) -> None:
    done = bn.fit(file, Endless(), RECIPE, steps=3, threads=1)
    assert done.report.calls == 3 and done.trained.batch == 9
