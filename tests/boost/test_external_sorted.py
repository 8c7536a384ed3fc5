"""Out-of-core exact and approximate trees: those in memory bit for bit, by spans of sorted columns, within a budget."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.boost import booster
from burnish.boost.blocks import column_block
from burnish.boost.exact import ExactGrower
from burnish.boost.external import rows_of_store, train_external
from burnish.boost.external_sorted import exact_grower
from burnish.boost.growth.column_source import DiskColumns
from burnish.boost.model import dumps
from burnish.boost.outofcore.sorted_columns import ingest_sorted
from burnish.boost.params import Params
from burnish.boost.sampling import column_sampler
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers
from tests.boost.test_external import ROWS, assert_same, case, chunks, labelled

EXACT, GLOBAL = {"tree_method": "exact"}, {"tree_method": "approx", "max_bin": 32}
LOCAL = {**GLOBAL, "proposal": "local"}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("dense", EXACT), ("complete", EXACT), ("sparse", EXACT), ("weight", EXACT),
        ("dense", GLOBAL), ("complete", GLOBAL), ("sparse", GLOBAL), ("categories", GLOBAL), ("weight", GLOBAL),
        ("dense", LOCAL), ("sparse", LOCAL), ("categories", LOCAL),
    ],
)  # fmt: skip
def test_models_are_those_in_memory(tmp_path: Path, name: str, method: dict[str, Any]) -> None:
    dataset = labelled(name)
    params = {**method, "objective": "logistic", "max_depth": 4, "subsample": 0.8, "colsample_bynode": 0.7}
    expected = booster.train(params, dataset, 3, threads=1)
    assert sum(tree.leaves for tree in expected.trees) > 12
    folders = [tmp_path / "a", tmp_path / "b"]
    found = train_external(params, chunks_of(dataset), 3, folders=folders, memory_budget="40MB", threads=2)
    assert dumps(found) == dumps(expected)
    assert not list(tmp_path.iterdir())


def chunks_of(dataset: Any) -> Any:
    return chunks(dataset, 900)


@pytest.mark.parametrize("name", ["dense", "sparse", "complete"])
def test_columns_on_disk_are_those_of_a_block_span_by_span(tmp_path: Path, name: str) -> None:
    dataset, gradient, hessian = case(name)
    workers = Workers(2)
    block = column_block(dataset, workers)
    most = int(np.diff(block.start).max())
    with ingest_sorted(chunks(dataset), tmp_path / "s", workers, memory=24 * most) as store:
        disk = DiskColumns(store, most)
        seen = []
        for columns, (start, rows, values) in disk.parts(np.array([0, 2, 3, 5, 8])):
            seen.append(columns)
            for f in columns.tolist():
                own, here = slice(start[f], start[f + 1]), slice(block.start[f], block.start[f + 1])
                assert np.array_equal(rows[own], block.rows[here]) and np.array_equal(values[own], block.values[here])
        assert np.concatenate(seen).tolist() == [0, 2, 3, 5, 8] and len(seen) > 1
        params = Params(tree_method="exact", max_depth=5, monotone_constraints=(1, -1, *[0] * 7))
        columns = column_sampler(params, dataset.features, 3)
        expected, leaf = ExactGrower(dataset, params, Workers(1)).grow(gradient, hessian, columns)
        grower = ExactGrower(rows_of_store(store), params, workers, disk)
        for _ in range(2):
            tree, leaves = grower.grow(gradient, hessian, columns)
            assert_same(tree, expected)
            assert np.array_equal(leaves, leaf) and np.array_equal(grower.follow(tree), leaf)


def test_a_budget_is_kept_or_the_least_one_named(tmp_path: Path) -> None:
    dataset = labelled("dense")
    with ingest_sorted(chunks(dataset), tmp_path / "s", Workers(1), memory=10**7) as store:
        data, params = rows_of_store(store), Params(tree_method="exact")
        with pytest.raises(ParameterError, match=f"the least that is possible with these {ROWS} rows is") as refused:
            exact_grower(store, data, params, Workers(1), 1000, 20)
        least = int(str(refused.value).split(" rows is ")[1].split(" ")[0])
        exact_grower(store, data, params, Workers(1), least, 20)
        with pytest.raises(ParameterError, match="memory_budget"):
            exact_grower(store, data, params, Workers(1), least - 1, 20)
    with pytest.raises(ParameterError, match="while one column of 5000 rows is sorted"):
        ingest_sorted(chunks(dataset), tmp_path / "t", Workers(1), memory=1000)
    assert not (tmp_path / "t").exists()


def test_a_store_serves_the_methods_of_its_form(tmp_path: Path) -> None:
    dataset = replace(labelled("dense"))
    first = train_external({**EXACT, "max_depth": 3}, chunks_of(dataset), 2, folders=tmp_path / "s", keep=True)
    from burnish.boost.outofcore.store import ColumnStore

    with ColumnStore.open(tmp_path / "s") as store:
        assert dumps(train_external({**EXACT, "max_depth": 3}, store, 2)) == dumps(first)
        again = train_external({**GLOBAL, "max_depth": 3}, store, 2)
        assert dumps(again) == dumps(booster.train({**GLOBAL, "max_depth": 3}, dataset, 2))
        with pytest.raises(ParameterError, match="'hist' with a store of sorted columns; allowed: of bins"):
            train_external({"max_depth": 3}, store, 2)
