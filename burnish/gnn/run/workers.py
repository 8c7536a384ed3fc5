"""Shares of a graph for workers that train a network: each a range of vertices with their in-edges (thesis-jia §4.3).

Rows of other workers that in-edges read come by one exchange for each aggregation; gradients of weights are summed over
workers. So all have the same weights and losses, and those of one worker but for rounding.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from burnish.base.arguments import refusal
from burnish.comm.protocol import Comm
from burnish.errors import DataError
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
from burnish.gnn.run.train import PLANNER, GraphOptions, Made, blocked, budget_of
from burnish.gnn.run.whole import NUMBER
from burnish.runtime.pool import available_cores
from burnish.train.evaluation import Metric
from burnish.train.step import Train


@dataclass(frozen=True, eq=False)
class WorkerJob:
    """Job of every worker. ``graph``: a .bngraph file; ``cuts``: where the workers' vertices begin and end."""

    network: Network
    graph: str
    cuts: np.ndarray
    partition: str
    train: Train | None
    budget: int | None = None
    block: int | None = None
    threads: int | None = None
    cache_dir: str | None = None
    together: bool = False  # all workers are of one process


def job_of(
    network: Network, graph: Graph | str | Path, train: Train | None, options: GraphOptions, workers: int, *,
    folder: Path, threads: int | None = None, cache_dir: str | Path | None = None, together: bool = False,
    partitioner: Partitioner | None = None, labelled: bool = True,
) -> WorkerJob:  # fmt: skip
    """Job of ``workers`` workers, with a file of the graph written to ``folder`` if it is in none that they can read.

    ``partitioner``: cuts the graph in place of ``options``. ``labelled``: the graph must have labels to train with.
    Raises ParameterError for more workers than the graph has ranges of vertices for, DataError and OSError.
    """
    if options.sampling is not None:
        raise refusal("sampling", options.sampling, "None with several workers")
    if options.planner != PLANNER:
        raise refusal("planner", options.planner, f"{PLANNER} with several workers")
    budget = None if train is None or train.memory_budget is None else budget_of(train)
    path, csr = _file(graph, folder, labelled)
    most = max(csr.rows // LEAST_ROWS, 1)
    if workers > most:
        raise refusal("workers", workers, f"1 to {most}, with {LEAST_ROWS} vertices each")
    if partitioner is not None:
        cuts = partitioner.cuts(partitioner.features(csr), workers)
    else:
        cuts = equal_vertices(csr.rows, workers) if options.partition == "vertices" else equal_edges(csr, workers)
    cuts = occupied(cuts, LEAST_ROWS) if workers > 1 else cuts
    own = max(available_cores() // workers, 1) if threads is None else threads
    return WorkerJob(
        network, str(path), cuts, options.partition, train, budget, options.block, own,
        None if cache_dir is None else str(cache_dir), together,
    )  # fmt: skip


def moving_share(comm: Comm, job: WorkerJob, epochs: int) -> Moving:
    """One worker's training over its share of the graph, of which ranges may move for ``epochs``."""
    file = GraphFile.open(job.graph)
    learner = _learner(comm, job, file) if job.partition == "learned" and comm.size > 1 else None
    return Moving(comm, partial(_made, comm, job), job.cuts, epochs, file.vertices, learner)


def metrics_over(comm: Comm, multilabel: bool) -> dict[str, Metric]:
    """The metrics of a graph's labels, over the vertices of all workers."""
    return {name: partial(_over_all, comm, metric) for name, metric in scores(multilabel).items()}


def _made(comm: Comm, job: WorkerJob, cuts: np.ndarray, stack: ExitStack) -> Made:
    """Step and evaluation of a share: in memory at once where the budget holds that, else over blocks of vertices."""

    def made_by(own: WorkerJob, stack: ExitStack) -> Made:
        share = shared_by(comm, own, cuts)
        return blocked(own.network, share, own.train, stack, budget=own.budget, threads=own.threads,
                       cache_dir=own.cache_dir, comm=comm)  # fmt: skip

    if job.budget is None or job.block is not None or _least(comm, job, cuts) > job.budget:
        return made_by(job, stack)
    with ExitStack() as tried:
        found = made_by(replace(job, budget=None), tried)
        whole = _working(comm, job, found)
        if whole <= job.budget:
            stack.enter_context(tried.pop_all())
            return found
    del found
    try:
        return made_by(job, stack)
    except BudgetError as error:
        if whole >= error.least:
            raise
        raise BudgetError(job.budget, whole, "what a whole share takes at once") from None


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


def shared_by(comm: Comm, job: WorkerJob, cuts: np.ndarray, labelled: bool = True) -> Shared:
    """This worker's share: its vertices' rows and in-edges, read from the file, and with whom it exchanges what.

    ``labelled``: with labels by mask. Raises DataError.
    """
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
    masks, multilabel = file_labels(job.network, file, begin, end) if labelled else ({}, False)
    if masks:
        known = comm.all_reduce(np.array([float((found >= 0).any()) for found in masks.values()]), "max")
        pairs = zip(masks.items(), known, strict=True)
        masks = {name: found for (name, found), some in pairs if some or name == "train"}
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


def _file(graph: Graph | str | Path, folder: Path, labelled: bool) -> tuple[Path, CSR]:
    """The graph as a file that all workers can read, and its edges; ``labelled``: with a mask to train."""
    if not isinstance(graph, Graph) and Path(graph).suffix == SUFFIX:
        file = GraphFile.open(graph)
        if labelled and "train" not in file.sections:
            raise DataError(f"'{graph}': found no mask to train; allowed: a graph with one")
        if labelled:
            some_of("train", file.read("train"))
        return Path(graph).absolute(), CSR(file.read("offsets"), file.read("sources"), file.vertices)
    whole = graph if isinstance(graph, Graph) else read(graph)
    if labelled:
        mask_of(whole, "train")
    path = folder / f"graph{SUFFIX}"
    save(path, whole)
    return path, whole.csr
