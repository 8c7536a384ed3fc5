"""Cuts by the weighted quantile sketch: of ranks within ε, for streams and over workers, and the trees they give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.boost import booster
from burnish.boost.binning import Cuts
from burnish.boost.blocks import column_block
from burnish.boost.data import Dataset
from burnish.boost.distributed import part, train_distributed
from burnish.boost.external import train_external
from burnish.boost.model import dumps
from burnish.boost.sketch import Summary
from burnish.boost.sketched import SketchedColumns, StreamSketch, shared_summaries, sketched_cuts
from burnish.comm import launch
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers
from tests.boost.test_external import case, chunks, labelled

EPS, BINS = 0.01, 16


def rank_error(cuts: Cuts, dataset: Dataset) -> float:
    """How far the ranks of cuts are from equal steps, at most, as a share of the weight of a column."""
    worst, table = 0.0, np.asarray(dataset.table)
    for feature in range(dataset.features):
        column = table[:, feature]
        here = ~np.isnan(column)
        weight = np.ones(len(column)) if dataset.weight is None else dataset.weight.astype(float)
        own = cuts.values[cuts.start[feature] : cuts.start[feature + 1]][:-1]
        values = np.unique(column[here])
        if len(values) <= BINS:
            continue
        bins = BINS - int(not here.all())
        total = weight[here].sum()
        below = np.array([weight[here & (column < cut)].sum() for cut in own]) / total
        at = np.array([weight[here & (column == cut)].sum() for cut in own]) / total
        for target in np.arange(1, bins) / bins:  # a cut whose interval of ranks is near
            worst = max(worst, float(np.maximum(np.maximum(below - target, target - below - at), 0).min()))
    return worst


@pytest.mark.parametrize("name", ["complete", "weight"])
def test_cuts_of_a_stream_are_within_the_error(name: str) -> None:
    dataset, _, _ = case(name)
    sketch = StreamSketch(EPS, Workers(2))
    for chunk in chunks(dataset, 333):
        sketch.push(chunk)
    cuts = sketch.cuts(BINS)
    assert rank_error(cuts, dataset) <= EPS
    coarse = StreamSketch(0.9, Workers(1))
    for chunk in chunks(dataset, 333):
        coarse.push(chunk)
    assert len(coarse.cuts(BINS).values) <= len(cuts.values)
    with pytest.raises(DataError, match="found 2 features; allowed: 9"):
        sketch.push(Dataset.of(np.zeros((3, 2), np.float32)))


@pytest.mark.parametrize("name", ["complete", "weight"])
def test_cuts_of_workers_are_within_the_error_and_alike(name: str) -> None:
    dataset, _, _ = case(name)

    def job(comm: Any, own: Dataset) -> Cuts:
        return sketched_cuts(own, BINS, Workers(1), comm, own.weight, EPS)

    first, second = launch(job, [(part(dataset, 0, 2000),), (part(dataset, 2000, dataset.rows),)], kind="thread")
    assert np.array_equal(first.values, second.values) and np.array_equal(first.start, second.start)
    assert rank_error(first, dataset) <= EPS


def test_weights_that_change_move_the_proposals() -> None:
    """Hessians of a tree: all weight on the upper half of the rows moves all cuts there."""
    dataset, _, _ = case("complete")
    table = np.asarray(dataset.table)

    def job(comm: Any, own: Dataset) -> Any:
        columns = SketchedColumns(column_block(own, Workers(1)), comm, EPS)
        most = np.full(own.features, BINS)
        few = columns.few(most)
        weight = (np.asarray(own.table)[:, 0] > 0).astype(np.int32)
        return few, columns.cuts([0], weight, most)[0]

    (few, cuts), _ = launch(job, [(part(dataset, 0, 2000),), (part(dataset, 2000, dataset.rows),)], kind="thread")
    assert list(few) == [2] and np.array_equal(few[2], np.unique(table[:, 2]))
    upper = np.sort(table[table[:, 0] > 0, 0])
    ranks = np.searchsorted(upper, cuts) / len(upper)
    assert len(cuts) == BINS - 1 and np.abs(ranks - np.arange(1, BINS) / BINS).max() <= EPS


def test_what_is_sent_does_not_grow_with_the_rows() -> None:
    sent = []

    class Counting:
        rank, size = 0, 1

        def all_gather_v(self, array: np.ndarray) -> list[np.ndarray]:
            sent.append(array.nbytes)
            return [array]

    for rows in (2_000, 200_000):
        summary = Summary.of(np.random.default_rng(0).standard_normal(rows).astype(np.float32))
        shared_summaries([summary], EPS, Counting())  # type: ignore[arg-type]
    assert sent[1] == sent[3] <= 32 * (1 / EPS + 2)


@pytest.mark.parametrize("method", ["hist", "approx"])
def test_workers_and_streams_train_by_sketched_cuts(tmp_path: Path, method: str) -> None:
    dataset = labelled("complete")
    params = {"objective": "logistic", "max_depth": 4, "max_bin": BINS, "tree_method": method, "sketch_eps": EPS}
    losses: dict[str, dict[str, list[float]]] = {}
    exact = booster.train({**params, "sketch_eps": 0}, dataset, 3, validation_data={"t": dataset}, history=losses)
    found: dict[str, dict[str, list[float]]] = {}
    model = train_distributed(
        params, dataset, 3, workers=2, worker_kind="thread", threads=1, validation_data={"t": dataset}, history=found
    )
    assert dumps(model) != dumps(exact)  # other cuts, of nearly equal worth
    assert found["t"]["logloss"][-1] == pytest.approx(losses["t"]["logloss"][-1], rel=0.02)
    if method == "hist":
        streamed = train_external(params, chunks(dataset, 700), 3, folders=tmp_path / "s")
        assert dumps(streamed) != dumps(exact)


def test_an_error_out_of_range_is_refused() -> None:
    with pytest.raises(ParameterError, match="sketch_eps"):
        booster.train({"sketch_eps": 1.0}, labelled("complete"), 1)
