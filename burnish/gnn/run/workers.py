"""Training of graph networks by several workers: each has a range of vertices with their in-edges (thesis-jia §4.3).

Rows of other workers that in-edges read come by one exchange for each aggregation; gradients of weights are summed over
workers. So all have the same weights and losses, and those of one worker but for rounding.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from burnish.base.arguments import check_count, refusal
from burnish.comm.launchers import KINDS, launcher
from burnish.comm.local import TIMEOUT, launch
from burnish.comm.protocol import Comm
from burnish.errors import DataError
from burnish.fitting.checkpoint import ReadFolder
from burnish.fitting.loop import Trainer, TrainingLimits
from burnish.fitting.report import TrainingProgress
from burnish.gnn.data.cost import FeatureSums, block_size
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.formats import read
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.halo import GraphPart, exchange
from burnish.gnn.data.partition import Graphs, Partitioner, equal_edges, equal_vertices, occupied
from burnish.gnn.data.regions import resident_bytes, trim
from burnish.gnn.data.rows import check_finite
from burnish.gnn.data.share import LEAST_ROWS, Edges, Share, SomeRows, blocks_of, edges_of
from burnish.gnn.data.store import SUFFIX, GraphFile, save
from burnish.gnn.model.losses import scores
from burnish.gnn.model.models import FEATURES, Network, structure_names
from burnish.gnn.model.structures import adapted, mean_weights
from burnish.gnn.run.blocked import BudgetError
from burnish.gnn.run.feeds import check_weighted, mask_of, scales_of, some_of
from burnish.gnn.run.moving import Learner, Moving
from burnish.gnn.run.outofcore import Shared, block_rows, file_labels
from burnish.gnn.run.train import Best, Made, Trained, blocked, finished
from burnish.gnn.run.whole import NUMBER
from burnish.memory.sizes import parse_budget
from burnish.runtime.pool import available_cores
from burnish.train.evaluation import Metric
from burnish.train.step import Train

PARTITIONS = ("edges", "vertices", "learned")


@dataclass(frozen=True, eq=False)
class WorkerJob:
    """What every worker is told. ``graph``: a .bngraph file; ``cuts``: where the workers' vertices begin and end."""

    network: Network
    graph: str
    cuts: np.ndarray
    partition: str
    train: Train | None
    limits: TrainingLimits
    checkpoint: str | None = None
    budget: int | None = None
    block: int | None = None
    threads: int | None = None
    cache_dir: str | None = None
    together: bool = False  # all workers are of one process


def fit_workers(
    network: Network,
    graph: Graph | str | Path,
    train: Train | None = None,
    *,
    workers: int,
    worker_kind: str = "thread",
    partition: str = "edges",
    epochs: int = 200,
    memory_budget: str | int | None = None,
    block: int | None = None,
    evaluate_every: int | None = None,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    save_every: int = 10,
    keep: int = 2,
    resume: bool = False,
    threads: int | None = None,
    cache_dir: str | Path | None = None,
    timeout: float = TIMEOUT,
    progress: Callable[[TrainingProgress], object] | None = None,
) -> Trained:
    """Trains as :func:`burnish.gnn.run.train.fit` on a whole graph, by several workers.

    ``workers``: how many, each with a range of vertices. ``worker_kind``: a "thread" of this process, a "process" of
    this machine, one that talks through torch.distributed ("torch"), or an actor of Ray ("ray"). ``partition``: ranges
    of as many "edges" or "vertices"; "learned" begins with edges, and moves ranges in training where a model that
    learns from each worker's seconds says that it pays (thesis-jia §4.4). ``memory_budget``: of each worker's process;
    where it holds less than training without one takes, shares are read in blocks. ``progress`` is called by threads
    only. A worker that dies is named by WorkerError, and ``resume`` goes on from the newest checkpoint, with any number
    of workers. Raises ParameterError, DataError, WorkerError and OSError.
    """
    _check(workers, worker_kind, partition)
    budget = None if memory_budget is None else parse_budget("memory_budget", memory_budget)
    limits = TrainingLimits(None, epochs, evaluate_every, patience, 0.0, save_every, keep, resume)
    with tempfile.TemporaryDirectory(prefix="burnish-gnn-") as folder:
        path, csr = _file(graph, Path(folder))
        most = max(csr.rows // LEAST_ROWS, 1)
        if workers > most:
            raise refusal("workers", workers, f"1 to {most}, with {LEAST_ROWS} vertices each")
        cuts = equal_vertices(csr.rows, workers) if partition == "vertices" else equal_edges(csr, workers)
        cuts = occupied(cuts, LEAST_ROWS) if workers > 1 else cuts
        del csr
        own = max(available_cores() // workers, 1) if threads is None else threads
        job = WorkerJob(
            network, str(path), cuts, partition, train, limits, None if checkpoint is None else str(checkpoint), budget,
            block, own, None if cache_dir is None else str(cache_dir), worker_kind == "thread",
        )  # fmt: skip
        orders: list[tuple[Any, ...]] = [(job,)] * workers
        if worker_kind == "thread":
            found = launch(partial(train_share, progress=progress), orders, worker_kind, timeout)
        else:
            found = launcher(worker_kind, timeout)(train_share, orders)
    result = found[0]
    trained: Trained = result
    return trained


def train_share(
    comm: Comm, job: WorkerJob, progress: Callable[[TrainingProgress], object] | None = None
) -> Trained | None:
    """One worker's training; the result is that of worker 0."""
    file = GraphFile.open(job.graph)
    learner = _learner(comm, job, file) if job.partition == "learned" and comm.size > 1 else None

    def made_by(own: WorkerJob, cuts: np.ndarray, stack: ExitStack) -> Made:
        return blocked(own.network, _shared(comm, own, cuts), own.train, stack, budget=own.budget, threads=own.threads,
                       cache_dir=own.cache_dir, comm=comm)  # fmt: skip

    def make(cuts: np.ndarray, stack: ExitStack) -> Made:
        if job.budget is None or job.block is not None or _least(comm, job, cuts) > job.budget:
            return made_by(job, cuts, stack)
        with ExitStack() as tried:
            found = made_by(replace(job, budget=None), cuts, tried)
            whole = _working(comm, job, found)
            if whole <= job.budget:
                stack.enter_context(tried.pop_all())
                return found
        del found
        try:
            return made_by(job, cuts, stack)
        except BudgetError as error:
            if whole >= error.least:
                raise
            raise BudgetError(job.budget, whole, "what a whole share takes at once") from None

    with Moving(comm, make, job.cuts, job.limits.epochs or 0, file.vertices, learner) as moving:
        watch = Best(progress if comm.rank == 0 else None)
        metrics: dict[str, Metric] = {
            name: partial(_over_all, comm, metric) for name, metric in scores(moving.made.multilabel).items()
        }
        folder = job.checkpoint if job.checkpoint is None or comm.rank == 0 else ReadFolder(job.checkpoint)
        trainer = Trainer(
            moving.step, moving.source, job.limits, evaluation=moving.evaluation,
            validation_data=moving.validation_data, metrics=metrics, checkpoint=folder, progress=watch,
            facts={"network": str(job.network)},
        )  # fmt: skip
        watch.states = trainer.step.state
        report = trainer.run()
        comm.barrier()
        if comm.rank:
            return None
        made = finished(job.network, report, trainer.step, watch.best)
        return replace(made, cuts=tuple(int(c) for c in moving.cuts), moves=moving.moves)


def _over_workers(comm: Comm, value: int, reduction: str) -> int:
    """A number of bytes of all workers, which then do the same."""
    return int(comm.all_reduce(np.array([float(value)]), reduction)[0])


def _least(comm: Comm, job: WorkerJob, cuts: np.ndarray) -> int:
    """Bytes without which no whole share is in memory: what is resident, its rows, and its in-edges; the most of all
    workers.
    """
    begin, end = int(cuts[comm.rank]), int(cuts[comm.rank + 1])
    edges = GraphFile.open(job.graph).part(begin, end).edges
    return _over_workers(comm, resident_bytes() + NUMBER * ((end - begin) * job.network.features + edges), "max")


def _working(comm: Comm, job: WorkerJob, made: Made) -> int:
    """Bytes of a process while the step and the evaluation of a whole share are called; the most of all workers."""
    gc.collect()
    trim()
    steps = [step for step in (made.step, made.evaluation) if step is not None]
    own = max(step.memory["tensors"] for step in steps) + sum(step.memory["workspace"] for step in steps)
    if job.together:
        own = _over_workers(comm, own, "sum")
    return _over_workers(comm, resident_bytes() + own, "max")


def _shared(comm: Comm, job: WorkerJob, cuts: np.ndarray) -> Shared:
    """This worker's share: its vertices' rows and in-edges, read from the file, and with whom it exchanges what."""
    file = GraphFile.open(job.graph)
    begin, end = int(cuts[comm.rank]), int(cuts[comm.rank + 1])
    rows = file.rows(cached=job.budget is None)
    if rows is None or rows.shape[1] != job.network.features:
        found = "no features" if rows is None else f"{rows.shape[1]} features"
        raise DataError(f"'{job.graph}': found {found}; allowed: {job.network.features}, as the network has")
    check_weighted(job.network, "weights" in file.sections)
    whole = job.budget is None and job.block is None
    blocks = blocks_of(
        end - begin, max(end - begin, 1) if whole else block_rows(file.vertices, rows.shape[1], job.block)
    )
    part = file.part(begin, end)
    back, means = part if file.symmetric else _out_edges(file, begin, end), mean_weights(part, begin)
    edges: dict[str, Edges] = {}
    tensors: dict[str, np.ndarray] = {}
    for structure in job.network.structures:
        names = structure_names(structure)
        own = adapted(structure, part, begin, means)
        edges[names[0]] = _local(comm, own, cuts, blocks)
        if not file.symmetric:
            edges[names[2]] = _local(comm, adapted(structure, back, begin, means), cuts, blocks)
        if structure == "bare" and job.network.scaled:
            tensors |= scales_of(part, own, begin)
    features = None
    if whole:
        tensors[FEATURES] = rows.read(begin, end)
        check_finite(tensors[FEATURES], begin)
    else:
        features = SomeRows(rows, begin, end)
    masks, multilabel = file_labels(job.network, file, begin, end)
    known = np.array([float((found >= 0).any()) for found in masks.values()])
    known = comm.all_reduce(known, "max")
    masks = {name: found for (name, found), some in zip(masks.items(), known, strict=True) if some or name == "train"}
    share = Share(begin, end, file.vertices, blocks, features, tensors, edges)
    return Shared(share, file.edges, file.symmetric, masks, multilabel, job.network)


def _out_edges(file: GraphFile, begin: int, end: int) -> CSR:
    """The out-edges of vertices: rows of the transpose, for which all edges are read once."""
    weights = file.read("weights") if "weights" in file.sections else None
    whole = CSR(file.read("offsets"), file.read("sources"), file.vertices, weights)
    return whole.transpose.slice(begin, end)


def _local(comm: Comm, rows: CSR, cuts: np.ndarray, blocks: Sequence[tuple[int, int]]) -> Edges:
    part = GraphPart.of(rows, cuts, comm)
    if comm.size == 1:
        return edges_of(part.csr, blocks)

    def fill(out: np.ndarray) -> None:
        exchange(comm, part, out[: part.vertices], out)

    return edges_of(part.csr, blocks, fill)


def _over_all(comm: Comm, metric: Metric, output: np.ndarray, label: np.ndarray) -> float:
    """A metric over the vertices of all workers."""
    outputs, labels = comm.all_gather_v(output), comm.all_gather_v(label)
    return metric(np.concatenate(outputs), np.concatenate(labels))


def _learner(comm: Comm, job: WorkerJob, file: GraphFile) -> Learner:
    """A model of what ranges cost. Worker 0 reads the edges for its features, in blocks, and tells the others."""
    widths = [layer.width(0) for layer in job.network.layers[:-1]] or [job.network.features]
    width = max(widths)
    found = None
    if comm.rank == 0:
        ranges = blocks_of(file.vertices, block_rows(file.vertices, 4 * width))
        found = FeatureSums.of_parts((file.part(begin, end) for begin, end in ranges), file.vertices, width)
    sums, table = (comm.broadcast(None if found is None else getattr(found, name)) for name in ("sums", "table"))
    return Learner(Partitioner((width,)), Graphs((FeatureSums(sums, table, block_size(file.vertices), width),)))


def _file(graph: Graph | str | Path, folder: Path) -> tuple[Path, CSR]:
    """The graph as a file that all workers can read, and its edges."""
    if not isinstance(graph, Graph) and Path(graph).suffix == SUFFIX:
        file = GraphFile.open(graph)
        if "train" not in file.sections:
            raise DataError(f"'{graph}': found no mask to train; allowed: a graph with one")
        some_of("train", file.read("train"))
        return Path(graph).absolute(), CSR(file.read("offsets"), file.read("sources"), file.vertices)
    whole = graph if isinstance(graph, Graph) else read(graph)
    mask_of(whole, "train")
    path = folder / f"graph{SUFFIX}"
    save(path, whole)
    return path, whole.csr


def _check(workers: int, worker_kind: str, partition: str) -> None:
    check_count("workers", workers, 1)
    if worker_kind not in KINDS:
        raise refusal("worker_kind", worker_kind, ", ".join(KINDS))
    if partition not in PARTITIONS:
        raise refusal("partition", partition, ", ".join(PARTITIONS))
