"""Row-sharded training on worker processes of this machine: same model, time per tree, death, all-reduce."""

import os
import signal
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.boosting.datasets import higgs_like
from benchmarks.boosting.report import Row, row
from burnish.boost.booster import RoundProgress, train
from burnish.boost.checkpoint import checkpoints
from burnish.boost.data import Dataset
from burnish.boost.distributed import shard, train_distributed
from burnish.boost.model import Model, dumps
from burnish.boost.params import Params
from burnish.comm import Comm, launch
from burnish.errors import WorkerError

_ORDER = "BURNISH_BENCH_KILL"  # names a file while which exists the last worker kills itself


def measure(quick: bool = False) -> list[Row]:
    """Rows of the table; `quick` takes fewer and smaller ones."""
    training = _training(50_000, 5, (2,)) if quick else _training(1_000_000, 20, (2, 4))
    return [*training, _death(2 if quick else 4), *_all_reduce(quick)]


def _training(rows: int, rounds: int, sizes: tuple[int, ...]) -> list[Row]:
    """One worker of two threads, and several workers of one thread each; their models must be equal."""
    table = higgs_like(rows)
    data = Dataset.of(table.features, table.label)
    found = []
    for method in ("hist", "approx"):
        each = rounds if method == "hist" else max(3, rounds // 2)
        params = Params(
            objective="logistic", max_depth=8, learning_rate=0.1, rounds=each, tree_method=method, threads=2
        )
        alone = launch(timed, [(data, params)], "process")[0]
        for workers in sizes:
            one = Params(**{**vars(params), "threads": 1})
            answers = launch(timed, [(shard(data, rank, workers), one) for rank in range(workers)], "process")
            same = dumps(answers[0][0]) == dumps(alone[0])
            name = f"{method} {rows // 1000}K × 28, depth 8: {workers} workers, s per tree"
            note = (
                f"model {'identical' if same else 'DIFFERENT'}; set-up and first tree "
                f"{answers[0][1]:.2f} s beside {alone[1]:.2f} s; 2 cores"
            )
            found.append(row(name, answers[0][2], {"1 worker, 2 threads": alone[2]}, "the same model", note))
    return found


def timed(comm: Comm, data: Dataset, params: Params) -> tuple[Model, float, float]:
    """The model, seconds up to the end of the first round, and seconds of a later one (median)."""
    ends: list[float] = []

    def note(progress: RoundProgress) -> bool:
        ends.append(progress.seconds)
        return False

    train(Params(**{**vars(params), "rounds": 1}), data, comm=comm)  # loads the compiled kernels
    model = train(params, data, comm=comm, callbacks=[note])
    return model, ends[0], statistics.median(np.diff(ends).tolist())


def fatal(margin: NDArray[np.float32], data: Dataset) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Squared error; the worker that holds the label 9 kills itself once, in the middle of training."""
    label = data.label
    assert label is not None
    order = Path(os.environ.get(_ORDER, "/nonexistent"))
    fatal.calls = getattr(fatal, "calls", 0) + 1  # type: ignore[attr-defined]
    if (label == 9).any() and fatal.calls == 12 and order.exists():  # type: ignore[attr-defined]
        order.write_text(repr(time.time()))
        order.rename(order.with_suffix(".done"))
        os.kill(os.getpid(), signal.SIGKILL)
    return margin - label, np.ones_like(label)


def _death(workers: int) -> Row:
    """SIGKILL to one of the workers: how soon it is reported, and whether the resumed model is the undisturbed one."""
    table = higgs_like(50_000)
    table.label[-1] = 9
    data = Dataset.of(table.features, table.label)
    params = Params(objective=fatal, rounds=20)
    with tempfile.TemporaryDirectory() as folder:
        order = Path(folder) / "order"
        order.touch()
        os.environ[_ORDER] = str(order)
        home = Path(folder) / "checkpoints"
        message, seconds = "no death was reported", float("nan")
        try:
            train_distributed(params, data, workers=workers, threads=1, checkpoint=home, checkpoint_every=5)
        except WorkerError as error:
            message, seconds = str(error), time.time() - float(order.with_suffix(".done").read_text())
        finally:
            del os.environ[_ORDER]
        kept = checkpoints(home)[-1].stem
        resumed = train_distributed(params, data, workers=workers, threads=1, checkpoint=home, checkpoint_every=5)
    same = dumps(resumed) == dumps(train(params, data))
    note = f"{message}; resumed from {kept}: model {'identical' if same else 'DIFFERENT'}"
    return row("killed worker: s until the error", seconds, {}, "reported and resumed", note)


def _all_reduce(quick: bool) -> list[Row]:
    """Seconds of an all-reduce (sum of int64) between processes, against gloo's own where torch is installed."""
    found = []
    workers = 2 if quick else 4
    sizes = ((8, 300), (1_000_000, 50)) if quick else ((8, 300), (1_000_000, 100), (40_000_000, 8))
    with tempfile.TemporaryDirectory() as folder:
        peers = launch(gloo_all_reduce, [(f"file://{folder}/store", sizes)] * workers, "process")[0]
    ours = launch(own_all_reduce, [(sizes,)] * workers, "process")[0]
    for (nbytes, _), own, peer in zip(sizes, ours, peers, strict=True):
        name, gloo = f"all_reduce of {nbytes} bytes, {workers} processes, s", {} if peer is None else {"gloo": peer}
        found.append(row(name, own, gloo, note="int64 sum, no torch needed"))
    return found


def own_all_reduce(comm: Comm, sizes: tuple[tuple[int, int], ...]) -> list[float]:
    """Seconds of one call for each size."""
    arrays = [np.ones(nbytes // 8, np.int64) for nbytes, _ in sizes]
    return [_median(partial(comm.all_reduce, a), comm, count) for a, (_, count) in zip(arrays, sizes, strict=True)]


def gloo_all_reduce(comm: Comm, store: str, sizes: tuple[tuple[int, int], ...]) -> list[float | None]:
    """The same by torch.distributed; None where torch is not installed."""
    try:
        import torch
        import torch.distributed as gloo
    except ModuleNotFoundError:
        return [None] * len(sizes)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    gloo.init_process_group("gloo", init_method=store, rank=comm.rank, world_size=comm.size)
    arrays = [torch.ones(nbytes // 8, dtype=torch.int64) for nbytes, _ in sizes]
    found: list[float | None] = [
        _median(partial(gloo.all_reduce, a), comm, count) for a, (_, count) in zip(arrays, sizes, strict=True)
    ]
    gloo.destroy_process_group()
    return found


def _median(call: Any, comm: Comm, count: int) -> float:
    samples = []
    for _ in range(count + 3):
        comm.barrier()
        begin = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples[3:])
