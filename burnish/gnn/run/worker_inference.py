"""Inference by workers, also on graphs that training has not seen, cut by what training has learned (ROC, §4.4)."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from burnish.base.arguments import typed
from burnish.base.sizes import parse_budget
from burnish.comm.launchers import launcher
from burnish.comm.local import TIMEOUT
from burnish.comm.protocol import Comm
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.partition import Partitioner
from burnish.gnn.model.models import FEATURES, FIRST, Network
from burnish.gnn.model.program import build
from burnish.gnn.run.blocked import BlockedStep
from burnish.gnn.run.train import GraphOptions
from burnish.gnn.run.workers import WorkerJob, job_of, shared_by
from burnish.train.evaluation import without_dropout


@typed
def logits_by_workers(
    network: Network,
    graph: Graph | str | Path,
    workers: int = 2,
    *,
    partitioner: Partitioner | None = None,
    worker_kind: str = "process",
    threads: int | None = None,
    cache_dir: str | Path | None = None,
    memory_budget: str | int | None = None,
    block: int | None = None,
    timeout: float = TIMEOUT,
) -> np.ndarray:
    """Logits of all vertices, float32 [V, classes], computed by ``workers`` workers with a range of vertices each.

    ``partitioner``: what training has learned of the costs of ranges (``bn.fit(…).partitioner``), which cuts this graph
    into ranges of equal predicted time; None: of equal in-edges. ``memory_budget``: of each worker, as for ``fit``;
    ``threads``: of each. Labels and masks are not needed. Raises DataError for a graph that the network does not take,
    ParameterError for a budget that is too small or more workers than there are vertices for, WorkerError, OSError.
    """
    with tempfile.TemporaryDirectory(prefix="burnish-gnn-") as folder:
        job = job_of(
            network, graph, None, GraphOptions(block=block), workers, folder=Path(folder), threads=threads,
            cache_dir=cache_dir, together=worker_kind == "thread", partitioner=partitioner, labelled=False,
        )  # fmt: skip
        budget = None if memory_budget is None else parse_budget("memory_budget", memory_budget)
        job = replace(job, budget=budget)
        found: np.ndarray = launcher(worker_kind, timeout)(_infer, [(job,)] * workers)[0]
    return found


def _infer(comm: Comm, job: WorkerJob) -> np.ndarray | None:
    """One worker's vertices; worker 0 returns those of all."""
    shared = shared_by(comm, job, job.cuts, labelled=False)
    with ExitStack() as stack:
        model = without_dropout(shared.model())
        program = build(model, shared.share, FIRST, (), threads=job.threads, cache_dir=job.cache_dir)
        step = stack.enter_context(
            BlockedStep(program, shared.share, FEATURES, FIRST, job.budget, comm=comm, labels=())
        )
        parts = comm.all_gather_v(np.asarray(step()))
        comm.barrier()
    return np.concatenate(parts) if comm.rank == 0 else None
