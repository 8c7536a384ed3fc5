"""Training on several workers that hold a part of the rows each: the model of one worker, bit for bit (§2.2.3, §2.4).

Workers exchange histograms (integer sums), counts for cuts, and sums of metrics; rows stay where they are. A worker
that dies ends training with an error that names it; training goes on from the last checkpoint, by hand or by itself.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.booster import Callback, History, RoundProgress, Valid, named_datasets, train
from burnish.boost.checkpoint import checkpoints, save_every
from burnish.boost.column_workers import (
    column_grower,
    columns_of_worker,
    refuse_by_columns,
    shares_of_columns,
)
from burnish.boost.data import Dataset, Sparse, check_dataset
from burnish.boost.model import Model, loads
from burnish.boost.params import Params
from burnish.comm.launchers import launcher
from burnish.comm.local import TIMEOUT
from burnish.comm.protocol import Comm
from burnish.errors import DataError, ParameterError, WorkerError

_IDENTITY = "training.json"  # in a folder of checkpoints: which training they belong to
_SAMPLE = 1 << 20  # table entries that tell one data set from another


def train_distributed(
    params: Mapping[str, Any] | Params | None,
    dataset: Dataset,
    rounds: int | None = None,
    *,
    workers: int = 2,
    worker_kind: str = "process",
    validation_data: Valid = (),
    early_stopping_rounds: int | None = None,
    history: History | None = None,
    threads: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    restarts: int = 0,
    timeout: float = TIMEOUT,
) -> Model:
    """Trains as `train` does, on `workers` workers among which the rows are shared out, of "exact" trees the columns.

    worker_kind: "process", "thread", "torch" (processes that talk through gloo) or "ray" (actors). threads: of each
    worker; by default the cores of this process are shared out. checkpoint: a folder where the model is saved every
    `checkpoint_every` rounds; a training that finds its own checkpoints there goes on after the last whole one, and its
    result is that of a training never interrupted, bit for bit. restarts: how often training is begun again by itself,
    from the last checkpoint, after a worker has died. timeout: seconds that a worker waits for another.

    Raises WorkerError, with the rank, when a worker dies or is not heard of; ParameterError and DataError.
    """
    check_dataset("train_distributed", dataset)
    settled = _settled(params, dataset, rounds, early_stopping_rounds)
    named = named_datasets(validation_data)
    if workers < 1 or restarts < 0 or checkpoint_every < 1:
        raise ParameterError(
            f"train_distributed: found workers={workers}, restarts={restarts}, checkpoint_every={checkpoint_every}; "
            "allowed: at least 1, 0 and 1"
        )
    start = launcher(worker_kind, timeout)
    threads = threads or settled.threads or max(1, len(os.sched_getaffinity(0)) // workers)
    arguments = _arguments(settled, dataset, named, workers)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(checkpoint) if checkpoint is not None else Path(temporary) if restarts else None
        if folder is not None:
            _claim(folder, settled, dataset)
        home = str(folder) if folder else None
        every = [(settled, *own, threads, home, checkpoint_every) for own in arguments]
        try:
            model, found = _persist(lambda: start(work, every)[0], restarts)
        except WorkerError as error:
            if checkpoint is not None:
                error.add_note(f"the rounds up to the last checkpoint are kept in {checkpoint}")
            raise
    if history is not None:
        history.update(found)
    return model


def _arguments(params: Params, dataset: Dataset, named: Mapping[str, Dataset], workers: int) -> list[tuple[Any, ...]]:
    """Arguments of each worker: its part of the data, which columns are its own (None: rows are), evaluation sets."""
    if params.tree_method == "exact" and workers > 1:
        refuse_by_columns(params)
        whole = {name: None if data is dataset else data for name, data in named.items()}
        return [(columns_of_worker(dataset, own), own, whole) for own in shares_of_columns(dataset, workers)]
    shards = [shard(dataset, rank, workers) for rank in range(workers)]
    parts = [
        {name: None if data is dataset else shard(data, rank, workers, True) for name, data in named.items()}
        for rank in range(workers)
    ]
    return [(own, None, sets) for own, sets in zip(shards, parts, strict=True)]


def work(
    comm: Comm,
    params: Params,
    dataset: Dataset,
    owned: NDArray[np.bool_] | None,
    validation_data: dict[str, Dataset | None],
    threads: int,
    folder: str | None,
    every: int,
) -> tuple[Model, History] | None:
    """Training of one worker on its shard; the first one saves checkpoints and returns the model, others return None.

    `owned`: which columns the worker has, with all rows; None: it has rows. `validation_data`: parts of the evaluation
    sets, or with columns the whole sets; None is the training data.
    """
    check_shards(comm, dataset)
    sets = {name: dataset if data is None else data for name, data in validation_data.items()}
    callbacks: Sequence[Callback] = ()
    if folder is not None:
        callbacks = [save_every(every, folder) if comm.rank == 0 else _go_on]
    history: History = {}
    grower = None if owned is None else column_grower(comm, params, dataset, owned, threads)
    model = train(
        params, dataset, validation_data=sets, callbacks=callbacks, history=history, threads=threads,
        comm=comm if owned is None else None, grower=grower, resume_from=_agreed_checkpoint(comm, folder),
    )  # fmt: skip
    return (model, history) if comm.rank == 0 else None


def shard(dataset: Dataset, rank: int, size: int, may_be_empty: bool = False) -> Dataset:
    """The rows of one of `size` workers: about as many for each, in order, and queries whole; shares their memory.

    Raises DataError if there are fewer rows, or queries, than workers, unless shards may be empty.
    """
    borders = np.arange(dataset.rows + 1) if dataset.group_start is None else np.unique(dataset.group_start)
    if len(borders) <= size and not may_be_empty:
        what = "rows" if dataset.group_start is None else "queries that have rows"
        raise DataError(f"workers: found {size} for {len(borders) - 1} {what}; allowed: at most as many")
    chosen = [int(np.searchsorted(borders, dataset.rows * edge / size)) for edge in range(size + 1)]
    if not may_be_empty:  # at least one unit for each worker before it, and for each after
        for edge in range(1, size):
            chosen[edge] = min(max(chosen[edge], chosen[edge - 1] + 1), len(borders) - 1 - (size - edge))
    return part(dataset, int(borders[chosen[rank]]), int(borders[chosen[rank + 1]]))


def part(dataset: Dataset, begin: int, end: int) -> Dataset:
    """The rows ``begin … end - 1`` of a data set, which share its memory. Queries must not be cut."""
    table = dataset.table
    if isinstance(table, Sparse):
        first, last = int(table.start[begin]), int(table.start[end])
        start = table.start[begin : end + 1] - table.start[begin]
        cut: Any = Sparse(start, table.columns[first:last], table.values[first:last])
    else:
        cut = table[begin:end]
    groups = dataset.group_start
    if groups is not None:
        if begin not in groups or end not in groups:
            raise DataError(f"part: rows {begin} to {end} cut a query; allowed: borders of queries")
        low, high = np.searchsorted(groups, begin), np.searchsorted(groups, end, side="right")
        groups = groups[low:high] - begin
    return replace(
        dataset,
        table=cut,
        rows=end - begin,
        label=None if dataset.label is None else dataset.label[begin:end],
        weight=None if dataset.weight is None else dataset.weight[begin:end],
        base_margin=None if dataset.base_margin is None else dataset.base_margin[begin:end],
        group_start=groups,
    )


def check_shards(comm: Comm, dataset: Dataset) -> None:
    """Raises DataError, naming the worker, unless all workers' shards are parts of one data set."""
    present = {name: getattr(dataset, name) is not None for name in ("label", "weight", "base_margin", "group_start")}
    own = json.dumps(
        {
            "features": dataset.features,
            "feature names": list(dataset.feature_names),
            "categories": [None if values is None else list(map(repr, values)) for values in dataset.categories],
            "kind of table": "sparse" if isinstance(dataset.table, Sparse) else "dense",
            **present,
        }
    )
    texts = [part.tobytes().decode() for part in comm.all_gather_v(np.frombuffer(own.encode(), np.uint8))]
    first = json.loads(texts[0])
    for rank, text in enumerate(texts):
        facts = json.loads(text)
        for what, value in facts.items():
            if value != first[what]:
                raise DataError(f"shard of worker {rank}: {what} is {value}; allowed: {first[what]}, as of worker 0")


def _settled(
    params: Mapping[str, Any] | Params | None, dataset: Dataset, rounds: int | None, early: int | None
) -> Params:
    """Checked parameters, with what cannot be done by several workers refused."""
    settled = Params.of(params, dataset.feature_names)
    settled = replace(settled, rounds=settled.rounds if rounds is None else rounds)
    settled = Params.of(settled if early is None else replace(settled, early_stopping_rounds=early))
    for metric in settled.eval_metric:
        if callable(metric):
            raise ParameterError(
                f"parameter 'eval_metric': found the function {metric.__name__!r} with several workers, each of which "
                "would see its own rows; allowed: names of metrics"
            )
    return settled


def _persist(run: Callable[[], tuple[Model, History]], restarts: int) -> tuple[Model, History]:
    """Retries `run` up to `restarts` times after WorkerError; returns its model and history."""
    for _ in range(restarts):
        with contextlib.suppress(WorkerError):
            return run()
    return run()


def _claim(folder: Path, params: Params, dataset: Dataset) -> None:
    """Notes in a new folder which training its checkpoints belong to. Raises ParameterError if that is another."""
    folder.mkdir(parents=True, exist_ok=True)
    identity = {"parameters": _parameters(params), "data": _fingerprint(dataset)}
    file = folder / _IDENTITY
    if not file.exists():
        if checkpoints(folder):
            raise ParameterError(f"checkpoint: {folder} holds models of an unknown training; allowed: an empty folder")
        unfinished = file.with_suffix(".part")
        unfinished.write_text(json.dumps(identity), encoding="utf-8")
        os.replace(unfinished, file)
        return
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        found = {}
    for what, value in identity.items():
        if not isinstance(found, dict) or found.get(what) != value:
            raise ParameterError(
                f"checkpoint: {folder} belongs to a training with other {what}; allowed: the same, or an empty folder"
            )


def _parameters(params: Params) -> dict[str, Any]:
    """Parameters that decide the trees, as JSON values: not `rounds`, which may be more later, nor `threads`."""
    values = {name: value for name, value in asdict(params).items() if name not in ("rounds", "threads")}
    plain: dict[str, Any] = json.loads(json.dumps(values, default=lambda f: getattr(f, "__qualname__", repr(f))))
    return plain


def _fingerprint(dataset: Dataset) -> str:
    """A hash of a data set's size, labels, weights and queries, and of a part of its table."""
    table = dataset.table
    entries = table.values if isinstance(table, Sparse) else table.reshape(-1)
    some = entries[:: max(1, len(entries) // _SAMPLE)]
    found = hashlib.sha256(f"{dataset.rows} {dataset.features} {len(entries)}".encode())
    for array in (dataset.label, dataset.weight, dataset.base_margin, dataset.group_start, some):
        found.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _agreed_checkpoint(comm: Comm, folder: str | None) -> Model | None:
    """The last whole checkpoint that the first worker finds, on every worker; damaged ones are passed over."""
    if folder is None:
        return None
    found = None
    if comm.rank == 0:
        for path in reversed(checkpoints(folder)):
            try:
                Model.load(path)
            except DataError:
                continue
            found = np.frombuffer(path.read_bytes(), np.uint8)
            break
        else:
            found = np.empty(0, np.uint8)
    text = comm.broadcast(found).tobytes()
    return loads(text, "checkpoint") if text else None


def _go_on(progress: RoundProgress) -> bool:
    """The workers other than the first have the same number of callbacks, as they agree after each round."""
    return False
