"""Row-sharded training: the model of one worker bit for bit, deaths reported, training resumed as if undisturbed."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.boost.booster import train
from burnish.boost.checkpoint import checkpoints
from burnish.boost.data import Dataset
from burnish.boost.distributed import check_shards, part, shard, train_distributed
from burnish.boost.model import Model, dumps
from burnish.comm import Comm, WorkerError, launch
from burnish.errors import DataError, ParameterError
from tests.boost import distributed_jobs as jobs
from tests.marks import slow

SMALL = {"rounds": 4, "max_depth": 4, "max_bin": 32, "learning_rate": 0.4}


def weights(rows: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    random = np.random.default_rng(5)
    return (random.exponential(size=rows) * (random.random(rows) < 0.9)).astype(np.float32)


def dense() -> tuple[Dataset, dict[str, Any]]:
    x, label = jobs.table()
    return Dataset.of(x, label), {"objective": "logistic"}


def weighted() -> tuple[Dataset, dict[str, Any]]:
    x, label = jobs.table()
    params = {"objective": "poisson", "monotone_constraints": (1, 0, 0, 0, 0, 0)}
    return Dataset.of(x, label * 3, weights(len(x))), params


def sampled() -> tuple[Dataset, dict[str, Any]]:
    x, label = jobs.table()
    params = {"subsample": 0.6, "colsample_bytree": 0.8, "colsample_bynode": 0.7, "seed": 3, "max_leaves": 9}
    return Dataset.of(x, label), {**params, "grow_policy": "lossguide", "max_depth": 0}


def several() -> tuple[Dataset, dict[str, Any]]:
    x, label = jobs.table()
    x[:, 1] = np.nan_to_num(x[:, 1])
    data = Dataset.of(x, label + (x[:, 0] > 0), categorical=[1])
    return data, {"objective": "softmax", "num_class": 3, "max_cat_to_onehot": 2}


def sparse() -> tuple[Dataset, dict[str, Any]]:
    import scipy.sparse as scipy

    x, label = jobs.table()
    return Dataset.of(scipy.csr_array(np.nan_to_num(x)), label, weights(len(x))), {"objective": "logistic"}


def ranking() -> tuple[Dataset, dict[str, Any]]:
    x, label = jobs.table()
    sizes = np.random.default_rng(2).integers(1, 40, 200)
    sizes = sizes[np.cumsum(sizes) < len(x)]
    group = [*sizes.tolist(), len(x) - int(sizes.sum())]
    return Dataset.of(x, label, group=group), {"objective": "rank_ndcg", "lambdarank_pair_method": "mean"}


def quantile() -> tuple[Dataset, dict[str, Any]]:
    x, _ = jobs.table()
    return Dataset.of(x, np.nan_to_num(x[:, 0] * x[:, 4])), {"objective": "quantile", "quantile_alpha": 0.8}


CASES: tuple[Callable[[], tuple[Dataset, dict[str, Any]]], ...] = (
    dense, weighted, sampled, several, sparse, ranking, quantile,
)  # fmt: skip


@pytest.mark.parametrize("method", slow(["hist", "approx"], "approx"))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_any_number_of_workers_makes_the_same_model(
    case: Callable[[], tuple[Dataset, dict[str, Any]]], method: str
) -> None:
    data, params = case()
    params = {**SMALL, "tree_method": method, **params}
    history: dict[str, dict[str, list[float]]] = {}
    alone = train(params, data, validation_data={"train": data}, history=history, threads=2)
    assert sum(tree.leaves for tree in alone.trees) > 5 * len(alone.trees)
    for workers in (1, 2, 4):
        found: dict[str, dict[str, list[float]]] = {}
        model = train_distributed(
            params,
            data,
            workers=workers,
            worker_kind="thread",
            threads=1,
            validation_data={"train": data},
            history=found,
        )
        assert dumps(model) == dumps(alone), workers
        assert found == history


def test_processes_make_the_same_model_and_early_stopping_agrees() -> None:
    data, params = dense()
    params = {**SMALL, **params, "rounds": 40, "learning_rate": 1.0, "eval_metric": ("logloss", "auc")}
    x, label = jobs.table(301, seed=1)
    valid = {"train": data, "held out": Dataset.of(x, label), "tiny": Dataset.of(x[:2], label[:2])}
    valid["held out"], valid["tiny"] = valid.pop("held out"), valid.pop("tiny")
    valid = {"tiny": valid["tiny"], "train": data, "held out": valid["held out"]}
    history: dict[str, dict[str, list[float]]] = {}
    alone = train(params, data, validation_data=valid, early_stopping_rounds=3, history=history, threads=1)
    found: dict[str, dict[str, list[float]]] = {}
    model = train_distributed(
        params, data, workers=3, validation_data=valid, early_stopping_rounds=3, history=found, threads=1
    )
    assert alone.best_iteration is not None and alone.rounds < 40
    assert dumps(model) == dumps(alone)
    np.testing.assert_equal(found, history)


@pytest.fixture
def fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file while which exists the last worker kills itself at its eighth gradient."""
    file = tmp_path / "fatal"
    monkeypatch.setenv("BURNISH_TEST_FATAL", str(file))
    monkeypatch.setattr(jobs, "_calls", 0)
    file.write_text("kill")
    return file


def test_a_killed_worker_is_named_and_training_resumes_as_if_undisturbed(fatal: Path, tmp_path: Path) -> None:
    data, folder = jobs.marked(), tmp_path / "checkpoints"
    arguments: dict[str, Any] = {
        "checkpoint": folder,
        "checkpoint_every": 3,
        "validation_data": {"train": data},
        "threads": 1,
    }
    params = replace(jobs.FATAL, eval_metric=("rmse",))
    with pytest.raises(WorkerError, match=r"worker 1 \(process \d+\) was killed by SIGKILL") as caught:
        train_distributed(params, data, **arguments)
    assert caught.value.rank == 1 and not fatal.exists()
    assert [path.name for path in checkpoints(folder)] == ["round-000003.json", "round-000006.json"]
    history: dict[str, dict[str, list[float]]] = {}
    resumed = train_distributed(params, data, history=history, worker_kind="thread", **arguments)
    undisturbed: dict[str, dict[str, list[float]]] = {}
    alone = train(params, data, validation_data={"train": data}, history=undisturbed, threads=1)
    assert dumps(resumed) == dumps(alone) and history == undisturbed
    assert dumps(train_distributed(params, data, worker_kind="thread", **arguments)) == dumps(alone)  # at once


def test_training_restarts_by_itself(fatal: Path) -> None:
    data = jobs.marked()
    fatal.write_text("the disk is full")
    with pytest.raises(WorkerError, match="worker 2 failed: OSError: the disk is full") as caught:
        train_distributed(jobs.FATAL, data, workers=3, worker_kind="thread", threads=1)
    assert caught.value.rank == 2
    fatal.write_text("once more")
    model = train_distributed(
        jobs.FATAL, data, workers=3, worker_kind="thread", restarts=1, checkpoint_every=4, threads=1
    )
    assert not fatal.exists()
    assert dumps(model) == dumps(train(jobs.FATAL, data, threads=1))


def test_resuming_agrees_with_early_stopping_and_with_more_rounds(tmp_path: Path) -> None:
    data, params = dense()
    x, label = jobs.table(300, seed=1)
    valid = {"held out": Dataset.of(x, label)}
    params = {**SMALL, **params, "learning_rate": 1.0}
    options: dict[str, Any] = {"validation_data": valid, "early_stopping_rounds": 3}
    alone = train(params, data, 40, threads=1, **options)
    assert alone.best_iteration is not None
    for rounds in (alone.best_iteration + 2, 40):
        model = train_distributed(
            params, data, rounds, worker_kind="thread", threads=1, checkpoint=tmp_path, checkpoint_every=1, **options
        )
    assert dumps(model) == dumps(alone)
    again = train_distributed(params, data, 40, worker_kind="thread", threads=1, checkpoint=tmp_path, **options)
    assert dumps(again) == dumps(alone)


def test_damaged_and_foreign_checkpoints(tmp_path: Path) -> None:
    data, params = dense()
    arguments: dict[str, Any] = {"worker_kind": "thread", "threads": 1, "checkpoint": tmp_path, "checkpoint_every": 2}
    model = train_distributed({**SMALL, **params}, data, **arguments)
    newest = checkpoints(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:-100])  # training goes on from the one before it
    assert dumps(train_distributed({**SMALL, **params}, data, **arguments)) == dumps(model)
    with pytest.raises(ParameterError, match="belongs to a training with other parameters"):
        train_distributed({**SMALL, **params, "seed": 1}, data, **arguments)
    with pytest.raises(ParameterError, match="belongs to a training with other data"):
        train_distributed({**SMALL, **params}, part(data, 0, 1599), **arguments)
    os.unlink(tmp_path / "training.json")
    with pytest.raises(ParameterError, match="holds models of an unknown training"):
        train_distributed({**SMALL, **params}, data, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch", "ray"])
def test_workers_that_talk_through_gloo_make_the_same_model(kind: str) -> None:
    for package in ("torch", kind):
        if importlib.util.find_spec(package) is None:  # Ray must not be imported here: see comm.ray
            pytest.skip(f"{package} is not installed")
    data, params = dense()
    model = train_distributed({**SMALL, **params}, data, workers=2, worker_kind=kind, threads=1)
    assert dumps(model) == dumps(train({**SMALL, **params}, data))


def test_an_error_in_a_worker_is_the_users_error() -> None:
    data, params = dense()
    assert data.label is not None
    label = data.label.copy()
    label[-1] = 2.0
    for kind in ("thread", "process"):
        with pytest.raises(DataError, match="label"):
            train_distributed({**SMALL, **params}, replace(data, label=label), worker_kind=kind, threads=1)


@given(st.integers(1, 60), st.integers(1, 8), st.booleans(), st.randoms(use_true_random=False))
def test_shards_are_the_whole_in_order(rows: int, size: int, grouped: bool, random: Any) -> None:
    group = None
    if grouped:
        cuts = sorted(random.randint(0, rows) for _ in range(5))
        group = np.diff([0, *cuts, rows])
        group = group[group > 0]
    data = Dataset.of(np.arange(rows * 2.0).reshape(rows, 2), np.arange(rows), np.ones(rows), group=group)
    units = rows if group is None else len(group)
    if size > units:
        with pytest.raises(DataError, match=f"workers: found {size} for {units}"):
            shard(data, 0, size)
    shards = [shard(data, rank, size, size > units) for rank in range(size)]
    assert size > units or all(piece.rows for piece in shards)
    for name in ("table", "label", "weight"):
        assert np.array_equal(np.concatenate([getattr(piece, name) for piece in shards]), getattr(data, name))
    if group is not None:
        pieces = [np.diff(piece.group_start) for piece in shards if piece.group_start is not None]
        assert np.concatenate(pieces).tolist() == group.tolist()
        if size > 1:
            with pytest.raises(DataError, match="cut a query"):
                part(data, 0, rows + 1)


def test_shards_of_different_data_are_refused() -> None:
    def job(comm: Comm, data: Dataset) -> None:
        check_shards(comm, data)

    one = Dataset.of(np.zeros((2, 3)), [0, 1])
    with pytest.raises(DataError, match="shard of worker 1: features is 2; allowed: 3"):
        launch(job, [(one,), (Dataset.of(np.zeros((2, 2)), [0, 1]),)])
    with pytest.raises(DataError, match="shard of worker 1: weight is True; allowed: False"):
        launch(job, [(one,), (Dataset.of(np.zeros((2, 3)), [0, 1], [1, 1]),)])


def test_bad_arguments_are_refused() -> None:
    data, params = dense()
    for wrong, words in (
        ({"workers": 0}, "workers=0"),
        ({"restarts": -1}, "restarts=-1"),
        ({"worker_kind": "fibre"}, "worker_kind: found 'fibre'"),
    ):
        with pytest.raises(ParameterError, match=words):
            train_distributed(params, data, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="found the function 'own' with several workers"):

        def own(prediction: Any, dataset: Any) -> float:
            return 0.0

        train_distributed({**params, "eval_metric": own}, data)
    with pytest.raises(ParameterError, match="'exact' with comm"):
        launch(lambda comm, part: train({"tree_method": "exact"}, part, comm=comm), [(data,), (data,)], kind="thread")
    with pytest.raises(DataError, match="workers: found 4 for 3 rows"):
        train_distributed(params, part(data, 0, 3), workers=4)
    with pytest.raises(ParameterError, match="resume_from: the model's base_score"):
        model = train({**params, **SMALL}, data)
        train({**params, **SMALL}, data, resume_from=replace(model, base_score=model.base_score + 1))
    assert isinstance(model, Model)
