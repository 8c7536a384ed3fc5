"""Out-of-core training: the models of the training in memory, bit for bit, within a budget that is kept or refused."""

import threading
from dataclasses import fields, replace

import numpy as np
import pytest

from burnish.boost import booster
from burnish.boost.binning import Cuts
from burnish.boost.data import Dataset, Sparse
from burnish.boost.external import ExternalGrower, train_external
from burnish.boost.fixed import Quantizer
from burnish.boost.grower import HistGrower
from burnish.boost.model import dumps
from burnish.boost.outofcore import store as files
from burnish.boost.outofcore.accumulate import BlockQuantizer
from burnish.boost.outofcore.ingest import ingest
from burnish.boost.outofcore.spool import rows_of
from burnish.boost.outofcore.store import ColumnStore
from burnish.boost.params import Params
from burnish.boost.sampling import column_sampler
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers

ROWS, FEATURES = 5000, 9
CASES = ("dense", "complete", "outlier", "sparse", "weight", "categories")


def case(name):
    """Data of a kind, with a gradient and a Hessian that it explains in part."""
    generator = np.random.default_rng(7)
    x = generator.standard_normal((ROWS, FEATURES)).astype(np.float32)
    x[:, 2] = np.round(x[:, 2])
    x[:, 5] = x[:, 6]
    gradient = (x[:, 0] * x[:, 1] + x[:, 2] + 0.1 * generator.standard_normal(ROWS)).astype(np.float32)
    hessian = generator.random(ROWS).astype(np.float32)
    weight, categories = None, ()
    if name != "complete":
        x[generator.random((ROWS, FEATURES)) < np.linspace(0, 0.98, FEATURES)] = np.nan
        x[:, 4] = np.nan
    if name == "outlier":
        gradient[5] = 1e6
    if name == "weight":
        weight = generator.random(ROWS).astype(np.float32)
    if name == "categories":
        x[:, 3] = generator.integers(0, 30, ROWS)
        gradient += np.sin(x[:, 3])
        categories = tuple(tuple(range(30)) if feature == 3 else None for feature in range(FEATURES))
    table = x
    if name == "sparse":
        there = ~np.isnan(x)
        start = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int64)
        table = Sparse(start, np.nonzero(there)[1].astype(np.int32), x[there])
    return Dataset(table, ROWS, FEATURES, weight=weight, categories=categories), gradient, hessian


def chunks(dataset, rows=777):
    for first in range(0, dataset.rows, rows):
        yield replace(rows_of(dataset, first, min(first + rows, dataset.rows)), categories=dataset.categories)


def assert_same(found, expected):
    for field in fields(expected):
        assert np.array_equal(getattr(found, field.name), getattr(expected, field.name)), field.name


@pytest.mark.parametrize("name", CASES)
def test_cuts_are_those_in_memory(tmp_path, name):
    dataset, _, _ = case(name)
    workers = Workers(2)
    expected = Cuts.of(dataset, 32, workers, dataset.weight)
    for memory in (64 * ROWS, 10**8):
        folder = tmp_path / str(memory)
        with ingest(chunks(dataset), folder, 32, workers, memory=memory, block_rows=512) as store:
            assert np.array_equal(store.arrays["cut_values"], expected.values)
            assert np.array_equal(store.arrays["cut_start"], expected.start)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("threads", "folders", "block_rows"), [(1, 1, 65536), (2, 2, 640), pytest.param(3, 3, 333, marks=pytest.mark.slow)]
)
def test_trees_are_those_in_memory(tmp_path, name, threads, folders, block_rows):
    dataset, gradient, hessian = case(name)
    workers = Workers(threads)
    params = Params(max_depth=5, max_bin=32, monotone_constraints=(1, -1) if name == "dense" else ())
    paths = [tmp_path / str(k) for k in range(folders)]
    variants = [{}, {"colsample_bytree": 0.5}, {"colsample_bynode": 0.5, "gamma": 1.0}, {"max_leaves": 13}]
    variants.append({"min_data_in_leaf": 150, "min_child_weight": 0.0})
    with ingest(chunks(dataset), paths, 32, workers, memory=10**7, block_rows=block_rows) as store:
        for variant in variants:
            chosen = replace(params, **variant)
            columns = column_sampler(chosen, FEATURES, 3)
            expected, leaf = HistGrower(dataset, chosen, Workers(1)).grow(gradient, hessian, columns)
            assert expected.leaves > 4
            grower = ExternalGrower(store, chosen, workers)
            least = grower.plan.total - grower.plan.slot * (grower.plan.slots - 1)
            few = ExternalGrower(store, chosen, workers, least + 2 * grower.plan.slot)
            assert few.plan.slots <= 3  # a level takes several passes
            everything = ExternalGrower(store, chosen, workers, 10**9)
            assert everything.plan.resident == len(store.pieces)
            for each in (grower, few, everything, grower):
                tree, leaves = each.grow(gradient, hessian, columns)
                assert_same(tree, expected)
                assert np.array_equal(leaves, leaf)


@pytest.mark.parametrize("name", ["dense", "outlier"])
def test_units_are_those_of_the_quantizer_in_memory(name):
    _, gradient, hessian = case(name)
    expected = Quantizer(ROWS, Workers(2))(gradient, hessian)
    found = BlockQuantizer(ROWS, Workers(3)).statistics(gradient, hessian)
    assert found.packed == expected.packed == (name == "dense")
    assert (found.gradient_unit, found.hessian_unit) == (expected.gradient_unit, expected.hessian_unit)
    assert found.total == expected.total


def labelled(name):
    dataset, gradient, _ = case(name)
    return replace(dataset, label=(gradient > 0).astype(np.float32))


@pytest.mark.parametrize(
    "params",
    [
        {"objective": "logistic"},
        {"objective": "softmax", "num_class": 3, "max_depth": 3},
        {"objective": "quantile", "max_depth": 3},
        {"objective": "logistic", "subsample": 0.5, "colsample_bytree": 0.5, "scale_pos_weight": 2.0},
    ],
)
@pytest.mark.parametrize("name", ["weight", "sparse"])
def test_models_are_those_in_memory(tmp_path, params, name):
    dataset = labelled(name)
    expected = booster.train(params, dataset, 4, threads=1)
    source = (rows_of(dataset, first, min(first + 900, ROWS)) for first in range(0, ROWS, 900))
    folders = [tmp_path / "a", tmp_path / "b"]
    model = train_external(params, source, 4, folders=folders, memory_budget="60MB", block_rows=1024)
    assert dumps(model) == dumps(expected)
    assert not list(tmp_path.iterdir())  # the store is gone


def test_a_kept_store_serves_again(tmp_path):
    dataset = labelled("dense")
    params = {"objective": "logistic", "max_depth": 3}
    first = train_external(params, chunks_of(dataset), 3, folders=tmp_path / "s", keep=True)
    with ColumnStore.open(tmp_path / "s") as store:
        again = train_external(params, store, 3, memory_budget=50_000_000)
        with pytest.raises(ParameterError, match="max_bin: found 64; allowed with this store: 256"):
            train_external({**params, "max_bin": 64}, store, 3)
    assert dumps(first) == dumps(again)
    files.remove(tmp_path / "s")
    assert not (tmp_path / "s").exists()


def chunks_of(dataset, rows=1111):
    return (rows_of(dataset, first, min(first + rows, dataset.rows)) for first in range(0, dataset.rows, rows))


def test_files_are_read_in_chunks(tmp_path):
    dataset = labelled("complete")
    lines = ["label," + ",".join(f"c{k}" for k in range(FEATURES))]
    values = np.column_stack([dataset.label, dataset.table])[:500]
    lines += [",".join(repr(float(value)) for value in row) for row in values]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    params = {"objective": "logistic", "max_depth": 3}
    model = train_external(params, tmp_path / "t.csv", 2, folders=tmp_path / "s", read={"label": "label"})
    small = replace(rows_of(dataset, 0, 500), feature_names=tuple(f"c{k}" for k in range(FEATURES)))
    assert dumps(model) == dumps(booster.train(params, small, 2))


def test_a_budget_that_is_too_small_is_refused_with_the_smallest_possible(tmp_path):
    dataset = labelled("dense")
    params = {"objective": "logistic", "max_depth": 3}
    with pytest.raises(ParameterError, match="memory_budget: found 1000 bytes"):
        train_external(params, chunks_of(dataset), 2, folders=tmp_path / "s", memory_budget=1000)
    with pytest.raises(ParameterError, match="memory_budget: found 1000 bytes"):
        train_external(params, chunks_of(dataset), 2, folders=tmp_path / "s", memory_budget="1 KB")
    with pytest.raises(ParameterError, match="memory_budget: found 'much'; allowed: bytes, a number with a unit"):
        train_external(params, chunks_of(dataset), 2, folders=tmp_path / "s", memory_budget="much")
    assert not list(tmp_path.iterdir())
    with ingest(chunks_of(dataset), tmp_path / "s", 256, Workers(1), memory=10**7) as store:
        with pytest.raises(ParameterError, match="the least that is possible with these 5000 rows is") as refused:
            ExternalGrower(store, Params(), Workers(1), 1000)
        least = int(str(refused.value).split(" rows is ")[1].split(" ")[0])
        assert ExternalGrower(store, Params(), Workers(1), least).plan.total == least
        with pytest.raises(ParameterError, match="memory_budget"):
            ExternalGrower(store, Params(), Workers(1), least - 1)
        for budget in (least, least + 100_000, least + 10**7):
            assert ExternalGrower(store, Params(), Workers(1), budget).plan.total <= budget


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"grow_policy": "lossguide", "max_leaves": 8}, "grow_policy: found 'lossguide'"),
        ({"booster": "dart", "rate_drop": 0.5}, "booster: found 'dart'"),
    ],
)
def test_what_needs_the_data_in_memory_is_refused(tmp_path, params, match):
    with pytest.raises(ParameterError, match=match):
        train_external(params, chunks_of(labelled("dense")), 2, folders=tmp_path / "s")
    assert not list(tmp_path.iterdir())


def test_continuing_and_missing_folders_are_refused(tmp_path):
    dataset = labelled("dense")
    model = booster.train({"max_depth": 2}, dataset, 1)
    with pytest.raises(ParameterError, match="continue_from: found a model"):
        train_external({}, chunks_of(dataset), 1, folders=tmp_path / "s", continue_from=model)
    with pytest.raises(ParameterError, match="folders: found None"):
        train_external({}, chunks_of(dataset), 1)


def test_an_interrupted_ingest_leaves_nothing(tmp_path):
    def broken():
        yield from list(chunks_of(labelled("dense")))[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_external({}, broken(), 1, folders=[tmp_path / "a", tmp_path / "b"])
    assert not list(tmp_path.iterdir())


def test_an_altered_store_ends_training(tmp_path):
    train_external(
        {"max_depth": 2}, chunks_of(labelled("dense")), 1, folders=tmp_path / "s", keep=True, block_rows=1024
    )
    with ColumnStore.open(tmp_path / "s") as store:
        offset = int(store.pieces[2, 0]["offset"])
    with open(tmp_path / "s" / files.BLOCKS, "r+b") as file:
        file.seek(offset)
        file.write(b"\x55\xaa\x55")
    with ColumnStore.open(tmp_path / "s") as store, pytest.raises(DataError, match="piece 0 of block 2"):
        train_external({"max_depth": 2}, store, 1)
    assert not [thread for thread in threading.enumerate() if thread.name == "burnish-prefetch"]


@pytest.mark.parametrize(
    ("second", "match"),
    [
        (np.zeros((3, FEATURES + 1), np.float32), "number of features differs"),
        ((np.zeros((3, FEATURES), np.float32), np.zeros(3, np.float32)), "row arrays differs"),
    ],
)
def test_chunks_that_do_not_fit_together(tmp_path, second, match):
    with pytest.raises(DataError, match=match):
        ingest([np.zeros((3, FEATURES), np.float32), second], tmp_path / "s", 32, Workers(1), memory=10**6)
    assert not list(tmp_path.iterdir())


def test_sources_without_rows_and_blocks_that_are_too_large(tmp_path):
    with pytest.raises(DataError, match="source has no chunks"):
        ingest([], tmp_path / "s", 32, Workers(1), memory=10**6)
    with pytest.raises(DataError, match="source has no rows"):
        ingest([np.zeros((0, 3), np.float32)], tmp_path / "s", 32, Workers(1), memory=10**6)
    with pytest.raises(ParameterError, match="block_rows: found 65537"):
        ingest([np.zeros((4, 3), np.float32)], tmp_path / "s", 32, Workers(1), memory=10**6, block_rows=65537)
    with pytest.raises(ParameterError, match="memory_budget: found 10 bytes; the least"):
        ingest([np.zeros((4, 3), np.float32)], tmp_path / "s", 32, Workers(1), memory=10)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rows", [1, 2])
def test_the_smallest_data(tmp_path, rows):
    x, y = np.ones((rows, 2), np.float32), np.arange(rows, dtype=np.float32)
    expected = booster.train({}, Dataset.of(x, y), 2)
    model = train_external({}, [(x, y)], 2, folders=tmp_path / "s", memory_budget=50_000_000)
    assert dumps(model) == dumps(expected)
