"""Training of graph networks: on the whole graph, within a memory budget, on samples, or by several workers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from burnish.base.arguments import refusal
from burnish.comm.launchers import launcher
from burnish.comm.protocol import Comm
from burnish.driver.api import compile
from burnish.fitting.checkpoint import ReadFolder
from burnish.fitting.loop import States, Trainer
from burnish.fitting.report import TrainingProgress, TrainingReport
from burnish.fitting.result import Fitted
from burnish.fitting.single import LoopOptions
from burnish.gnn.data.graph import Graph
from burnish.gnn.model.losses import scores
from burnish.gnn.model.models import Extents, Network
from burnish.gnn.run.inference import logits_of, open_model, size_of
from burnish.gnn.run.train import GraphOptions, prepared
from burnish.gnn.run.whole import loaded
from burnish.gnn.run.workers import WorkerJob, job_of, metrics_over, moving_share
from burnish.parallel.programs.calibration import LaunchConfig
from burnish.train.step import Train

EPOCHS = 200  # of training on a graph, unless said
SAVE_EVERY = 10  # calls between checkpoints of it


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A trained graph network: ``last``, and ``best``, that of the evaluation with the least loss, if there was one.

    ``size``: of the graph that it was trained on.
    """

    last: Network
    size: Extents
    best: Network | None = None

    @property
    def model(self) -> Network:
        """The best network, else the last."""
        return self.last if self.best is None else self.best

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """The network's, by name."""
        return self.model.weights

    def compile(self, arguments: Mapping[str, Any]) -> Any:
        """As :meth:`Fitted.compile`: the network for graphs of any number of vertices and edges."""
        return compile(open_model(self.model, self.size), **{"rewrite": False, **arguments})

    def predict(self, data: Any, batch: int | None, arguments: Mapping[str, Any]) -> np.ndarray:
        """Logits of all vertices of a graph, [V, classes]; see :func:`burnish.gnn.run.inference.logits_of`."""
        if batch is not None:
            raise refusal("batch", batch, "None for graph networks, which compute all vertices of a graph")
        return logits_of(self.model, data, **arguments)

    def with_states(self, states: Mapping[str, np.ndarray]) -> TrainedNetwork:
        """The network with other weights."""
        return TrainedNetwork(replace(self.last, weights={n: states[n] for n in self.last.weights}), self.size)

    def copy_to(self, network: Any) -> None:
        """Refused."""
        raise refusal("copy_to", type(network).__name__, "for a network of PyTorch that was trained")


class BestWeights:
    """Callback of training: keeps the states at the evaluation with the least loss, and calls another function."""

    def __init__(self, then: Callable[[TrainingProgress], object] | None) -> None:
        self.states: States = {}
        self.best: dict[str, np.ndarray] = {}
        self._loss, self._then = np.inf, then

    def __call__(self, progress: TrainingProgress) -> object:
        """As ``fit`` calls its ``progress``."""
        if progress.evaluation is not None and progress.evaluation.loss < self._loss:
            self._loss = progress.evaluation.loss
            self.best = {name: self.states[name] for name in self.states}
        return None if self._then is None else self._then(progress)


def fit_graph(
    network: Network,
    graph: Graph | str | Path,
    train: Train | None,
    loop: LoopOptions,
    options: GraphOptions,
    launch: LaunchConfig,
    workers: int,
    threads: int | None,
    on_step: Callable[[Any], object] | None,
) -> Fitted:
    """Trains ``network`` as :func:`burnish.fit` does. ``threads``: of each worker; ``on_step`` is given the step of one
    worker before it runs.
    """
    if loop.validation_data is not None:
        raise refusal("validation_data", "some", "None for graph networks: the graph has a mask of vertices")
    if loop.metrics:
        raise refusal("metrics", [*loop.metrics], "none for graph networks, which have accuracy or micro F1")
    if workers == 1:
        graph = loaded(graph, whole=False)
        with ExitStack() as stack:
            made = prepared(network, graph, train, options, stack, threads=threads, cache_dir=launch.cache_dir)
            best = BestWeights(loop.progress)
            trainer = Trainer(
                made.step, made.source, loop.limits, evaluation=made.evaluation, validation_data=made.validation_data,
                metrics=scores(made.multilabel), checkpoint=loop.checkpoint, progress=best,
                facts={"network": str(network)},
            )  # fmt: skip
            best.states = trainer.step.state
            if on_step is not None:
                on_step(trainer.step)
            return _fitted(network, size_of(graph), trainer.run(), trainer.step, best.best)
    if on_step is not None:
        raise refusal("on_step", on_step, "None with several workers")
    together = launch.worker_kind == "thread"
    with tempfile.TemporaryDirectory(prefix="burnish-gnn-") as folder:
        start = launcher(launch.worker_kind, launch.timeout)
        job = job_of(network, graph, train, options, workers, folder=Path(folder), threads=threads,
                     cache_dir=launch.cache_dir, together=together)  # fmt: skip
        rest = replace(loop, checkpoint=None if loop.checkpoint is None else str(loop.checkpoint))
        found: Fitted = start(train_share, [(job, rest)] * workers)[0]
    return found


def train_share(comm: Comm, job: WorkerJob, loop: LoopOptions) -> Fitted | None:
    """One worker's training; the result is that of worker 0."""
    with moving_share(comm, job, loop.limits.epochs or 0) as moving:
        best = BestWeights(loop.progress if comm.rank == 0 else None)
        folder = loop.checkpoint if loop.checkpoint is None or comm.rank == 0 else ReadFolder(loop.checkpoint)
        trainer = Trainer(
            moving.step, moving.source, loop.limits, evaluation=moving.evaluation,
            validation_data=moving.validation_data, metrics=metrics_over(comm, moving.made.multilabel),
            checkpoint=folder, progress=best, facts={"network": str(job.network)},
        )  # fmt: skip
        best.states = trainer.step.state
        report = trainer.run()
        comm.barrier()
        if comm.rank:
            return None
        made = _fitted(job.network, size_of(job.graph), report, trainer.step, best.best)
        known = None if moving.learner is None else moving.learner.partitioner
        known = known if known is not None and known.ready else None
        return replace(made, cuts=tuple(int(c) for c in moving.cuts), moves=moving.moves, partitioner=known)


def _fitted(
    network: Network, size: Extents, report: TrainingReport, step: Any, best: Mapping[str, np.ndarray]
) -> Fitted:
    """The result of training, from a step's states."""
    states = {name: step.state[name] for name in step.state}
    last = replace(network, weights={name: states[name] for name in network.weights})
    chosen = replace(network, weights={name: best[name] for name in network.weights}) if best else None
    plan = step.info.get("plan", "")
    parts: tuple[str, ...] = (f"<h2>Network</h2><p>{network}</p>".replace("->", "&rarr;"),)
    parts += (f"<h2>Memory plan</h2><p>{plan}</p>",) if plan else ()
    notes = (f"memory plan: {plan}",) if plan else ()
    return Fitted(report, TrainedNetwork(last, size, chosen), states, (report.memory,), notes=notes, parts=parts)
