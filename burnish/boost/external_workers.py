"""Out-of-core training on several workers (thesis-chen §2.5.6): each reads its own rows from its own disks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.boost.booster import History, Valid, named_datasets
from burnish.boost.distributed import shard
from burnish.boost.external import train_external
from burnish.boost.model import Model
from burnish.boost.outofcore.codec import AUTO
from burnish.boost.outofcore.store import folder_paths
from burnish.boost.params import Params
from burnish.comm.launchers import launcher
from burnish.comm.local import TIMEOUT
from burnish.comm.protocol import Comm
from burnish.errors import ParameterError

_Folders = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def train_external_distributed(
    params: Mapping[str, Any] | Params | None,
    sources: Sequence[Any],
    rounds: int | None = None,
    *,
    folders: Sequence[_Folders],
    worker_kind: str = "process",
    memory_budget: str | int | None = None,
    compression: str = AUTO,
    block_rows: int | None = None,
    threads: int | None = None,
    read: Mapping[str, Any] | None = None,
    validation_data: Valid = (),
    early_stopping_rounds: int | None = None,
    history: History | None = None,
    timeout: float = TIMEOUT,
) -> Model:
    """Trains as `train_external` does, on one worker for each source, of whose rows no other worker sees any.

    The model is the one that `train` makes in memory of the sources' rows, one source after another, bit for bit (with
    `sketch_eps` but for the cuts). sources: of each worker a file or folder, or chunks, as of `train_external`, that
    are sent to it. folders: of each worker those to write its store to, removed afterwards. memory_budget, threads: of
    each worker. validation_data: shared out in parts. worker_kind, timeout: as of `train_distributed`.

    Raises WorkerError, with the rank, when a worker dies or is not heard of; ParameterError and DataError.
    """
    if not sources or len(folders) != len(sources):
        raise ParameterError(
            f"folders: found those of {len(folders)} workers for {len(sources)} sources; allowed: as many, at least one"
        )
    start, named, size = launcher(worker_kind, timeout), named_datasets(validation_data), len(sources)
    threads = threads or max(1, len(os.sched_getaffinity(0)) // size)
    options = {
        "memory_budget": memory_budget, "compression": compression, "block_rows": block_rows, "threads": threads,
        "read": read, "early_stopping_rounds": early_stopping_rounds,
    }  # fmt: skip
    arguments = [
        (
            params,
            rounds,
            _sent(source),
            [os.fspath(path) for path in folder_paths(own)],
            options,
            {name: shard(data, rank, size, True) for name, data in named.items()},
        )
        for rank, (source, own) in enumerate(zip(sources, folders, strict=True))
    ]
    model, found = start(_work, arguments)[0]
    if history is not None:
        history.update(found)
    return model


def _sent(source: Any) -> Any:
    """A source as it goes to its worker."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else list(source)


def _work(
    comm: Comm, params: Any, rounds: int | None, source: Any, folders: _Folders, options: dict[str, Any],
    validation_data: dict[str, Any],
) -> tuple[Model, History] | None:  # fmt: skip
    """Training of one worker on its source; the first returns the model."""
    history: History = {}
    model = train_external(
        params, source, rounds, folders=folders, comm=comm, validation_data=validation_data, history=history, **options
    )
    return (model, history) if comm.rank == 0 else None
