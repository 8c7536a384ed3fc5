"""Exact trees by columns over workers: the model of one worker bit for bit, from a part of the table each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.boost.booster import train
from burnish.boost.column_workers import columns_of_worker, shares_of_columns
from burnish.boost.data import Dataset, Sparse
from burnish.boost.distributed import train_distributed
from burnish.boost.model import dumps
from burnish.errors import DataError, ParameterError
from tests.boost.test_distributed import dense, quantile, ranking, sparse, weighted

SMALL = {"rounds": 3, "max_depth": 4, "learning_rate": 0.4, "tree_method": "exact"}


def sampled() -> tuple[Dataset, dict[str, Any]]:
    data, params = dense()
    more = {"subsample": 0.6, "colsample_bytree": 0.8, "colsample_bynode": 0.7, "seed": 3, "max_leaves": 9}
    return data, {**params, **more, "min_data_in_leaf": 20}


def constrained() -> tuple[Dataset, dict[str, Any]]:
    data, params = dense()
    return data, {
        **params,
        "interaction_constraints": ((0, 1, 2), (3, 4, 5)),
        "monotone_constraints": (1, 0, -1, 0, 0, 0),
    }


@pytest.mark.parametrize(
    "case", [dense, weighted, sampled, constrained, sparse, ranking, quantile], ids=lambda case: case.__name__
)
def test_any_number_of_workers_makes_the_same_model(case: Callable[[], tuple[Dataset, dict[str, Any]]]) -> None:
    data, params = case()
    params = {**params, **SMALL}
    history: dict[str, dict[str, list[float]]] = {}
    sets = {"train": data, "some": Dataset.of(np.zeros((3, data.features), np.float32), np.ones(3))}
    sets = {"train": data} if data.group_start is not None else sets
    alone = train(params, data, validation_data=sets, history=history, threads=2)
    assert sum(tree.leaves for tree in alone.trees) > 4 * len(alone.trees)
    for workers in (2, 3):
        found: dict[str, dict[str, list[float]]] = {}
        model = train_distributed(
            params, data, workers=workers, worker_kind="thread", threads=1, validation_data=sets, history=found
        )
        assert dumps(model) == dumps(alone), workers
        assert found == history


def test_workers_resume_from_a_checkpoint(tmp_path: Path) -> None:
    """The trees of a checkpoint are followed by columns, as no worker can predict by itself."""
    data, params = dense()
    params = {**params, **SMALL, "rounds": 4}
    kept: dict[str, Any] = {"worker_kind": "thread", "threads": 1, "checkpoint": tmp_path, "checkpoint_every": 1}
    train_distributed({**params, "rounds": 2}, data, workers=2, **kept)
    model = train_distributed(params, data, workers=2, **kept)
    assert dumps(model) == dumps(train(params, data, threads=1))


def test_each_worker_has_its_columns_alone() -> None:
    for data in (dense()[0], sparse()[0]):
        shares = shares_of_columns(data, 3)
        assert (np.sum(shares, axis=0) == 1).all() and all(share.any() for share in shares)
        tables = [columns_of_worker(data, share).table for share in shares]
        entries = []
        for table, share in zip(tables, shares, strict=True):
            assert isinstance(table, Sparse) and share[table.columns].all()
            entries.append(len(table.values))
        assert max(entries) < 0.6 * sum(entries)


def test_what_workers_cannot_do_by_columns_is_refused() -> None:
    data, params = dense()
    with pytest.raises(DataError, match="workers: found 7 for 6 columns"):
        train_distributed({**params, **SMALL}, data, workers=7, worker_kind="thread")
    with pytest.raises(ParameterError, match="booster: found 'dart'"):
        train_distributed({**params, **SMALL, "booster": "dart"}, data, worker_kind="thread")
