"""Out-of-core training on several workers: the model of all rows in memory, bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from burnish.boost import booster
from burnish.boost.data import Dataset
from burnish.boost.distributed import part
from burnish.boost.external_workers import train_external_distributed
from burnish.boost.model import dumps
from burnish.errors import ParameterError
from tests.boost.test_external import ROWS, labelled


def sources(dataset: Dataset, edges: tuple[int, ...]) -> list[list[Dataset]]:
    """Of each worker its rows, in two chunks."""
    found = []
    for begin, end in zip((0, *edges), (*edges, ROWS), strict=True):
        middle = (begin + end) // 2
        found.append([part(dataset, begin, middle), part(dataset, middle, end)])
    return found


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("dense", {}), ("sparse", {}), ("weight", {"subsample": 0.7}), ("categories", {}),
        ("complete", {"min_data_in_leaf": 60, "min_child_weight": 0.0}),
        ("dense", {"tree_method": "approx", "proposal": "local"}),
    ],
)  # fmt: skip
def test_models_are_those_of_all_rows_in_memory(tmp_path: Path, name: str, params: dict[str, Any]) -> None:
    dataset = labelled(name)
    params = {"objective": "logistic", "max_depth": 4, "max_bin": 32, **params}
    history: dict[str, dict[str, list[float]]] = {}
    expected = booster.train(params, dataset, 3, threads=1, validation_data={"same": dataset}, history=history)
    found: dict[str, dict[str, list[float]]] = {}
    folders = [tmp_path / "a", [tmp_path / "b", tmp_path / "c"]]
    model = train_external_distributed(
        params, sources(dataset, (1900,)), 3, folders=folders, worker_kind="thread", memory_budget="40MB", threads=1,
        block_rows=640, validation_data={"same": dataset}, history=found,
    )  # fmt: skip
    assert dumps(model) == dumps(expected)
    assert found["same"]["logloss"] == pytest.approx(history["same"]["logloss"], rel=1e-6)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_processes_make_the_same_model(tmp_path: Path) -> None:
    dataset = labelled("dense")
    params = {"objective": "logistic", "max_depth": 3, "max_bin": 16}
    folders = [tmp_path / str(rank) for rank in range(3)]
    model = train_external_distributed(params, sources(dataset, (1000, 3000)), 2, folders=folders, threads=1)
    assert dumps(model) == dumps(booster.train(params, dataset, 2, threads=1))


def test_what_workers_cannot_do_is_refused(tmp_path: Path) -> None:
    dataset = labelled("dense")
    for params in ({"tree_method": "exact"}, {"tree_method": "approx"}):
        with pytest.raises(ParameterError, match="allowed with memory_budget and several workers: 'hist'"):
            train_external_distributed(
                params, sources(dataset, (2000,)), 1, folders=[tmp_path / "a", tmp_path / "b"], worker_kind="thread"
            )
    with pytest.raises(ParameterError, match="folders: found those of 1 workers for 2 sources"):
        train_external_distributed({}, sources(dataset, (2000,)), 1, folders=[tmp_path / "a"])
    assert not list(tmp_path.iterdir())
