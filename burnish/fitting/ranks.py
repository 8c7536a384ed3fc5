"""Training on several devices by a plan: compiles the program of each, and runs the loop on all of them at once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from burnish.base.arguments import refusal
from burnish.comm.launchers import launcher
from burnish.comm.local import TIMEOUT
from burnish.comm.protocol import Comm
from burnish.driver.api import compile
from burnish.driver.assembly import make_module
from burnish.driver.compilation import compile_kernels
from burnish.errors import DataError
from burnish.fitting.checkpoint import Folder, ReadFolder
from burnish.fitting.companions import step_companions
from burnish.fitting.data import Source, bound, read_npz, source
from burnish.fitting.loop import Companions, Trainer, TrainingLimits
from burnish.fitting.report import Evaluation, TrainingProgress, TrainingReport
from burnish.graph.graph import Graph
from burnish.machines.target import target as find_target
from burnish.measure.together import seconds_in_turns
from burnish.parallel.programs.execute import RankStep
from burnish.parallel.programs.plans import Stages, TensorSplits
from burnish.parallel.programs.ranks import Settings, rank_programs
from burnish.runtime import module as modules
from burnish.runtime.module import Module
from burnish.train.evaluation import evaluation_graph, metrics_named, trained
from burnish.train.step import Train, trained_constants


@dataclass(frozen=True)
class RankTask:
    """What one device is told, as plain values: its artifact, how to train, and what to train on."""

    artifact: str
    data: Any  # arrays by name or in order, or the path of an .npz file
    limits: TrainingLimits
    shuffle: bool
    seed: int
    threads: int
    checkpoint: str | None
    facts: Mapping[str, Any]
    evaluation: str | None = None
    validation_data: Any = None
    metrics: tuple[str, ...] = ()
    watch: Callable[[TrainingProgress], object] | None = None  # on device 0
    beside: Mapping[str, str] = field(default_factory=dict)  # artifacts of companions, see :func:`_companions`


@dataclass(frozen=True, eq=False)
class RanksFitted:
    """A model trained by a plan: the report of device 0, the states, the graph with trained weights."""

    report: TrainingReport
    states: Mapping[str, np.ndarray]
    graph: Graph
    memory: tuple[Mapping[str, int], ...]  # bytes by use, a device

    def compile(self, **arguments: Any) -> Module:
        """The trained model in its form of inference; ``arguments`` are those of :func:`burnish.compile`."""
        return compile(self.graph, **arguments)


def fit_ranks(
    graph: Graph,
    data: Any,
    train: Train,
    limits: TrainingLimits,
    plan: TensorSplits | Stages,
    ranks: int,
    *,
    worker_kind: str = "process",
    validation_data: Any = None,
    metrics: Sequence[str] = (),
    shuffle: bool = True,
    seed: int = 0,
    threads: int = 1,
    checkpoint: str | Path | None = None,
    timeout: float = TIMEOUT,
    target: str = "cpu",
    exact: bool = False,
    cache_dir: str | Path | None = None,
    watch: Callable[[TrainingProgress], object] | None = None,
) -> RanksFitted:
    """Trains a graph as :func:`burnish.fit` does, on ``ranks`` devices of this machine or cluster.

    ``plan``: how tensors of the graph are split over the devices (``parallel.plans.splits_of`` of a strategy), what it
    does not name follows; or the stages of a pipeline (``parallel.plans.stages_of``). ``worker_kind``: "process" or
    "thread" on this machine, "torch" (gloo), or "ray" (actors on a cluster). ``data`` and ``validation_data``: arrays,
    or the path of an .npz file that all devices reach. ``threads``: of each device. Losses and weights are those of one
    device, up to the order of sums; of a pipeline, where a loss is a mean in which all samples weigh alike. A device
    that dies ends the training of all with WorkerError, which names it; ``limits.resume`` goes on from the last
    checkpoint.
    """
    launched = launcher(worker_kind, timeout)
    if train.memory_budget is not None:
        raise refusal("memory_budget", train.memory_budget, "None where a plan says what each device keeps")
    machine = find_target(target)
    guarded = replace(train, skip_nonfinite=True)
    made = rank_programs(graph, guarded, plan, ranks, machine, Settings(exact, cache_dir)).executables()
    facts = {"train": str(train), "parameters": sorted(trained_constants(graph, train))}
    with tempfile.TemporaryDirectory() as folder:
        evaluation = None
        if validation_data is not None:
            evaluation = f"{folder}/evaluation.bn"
            make_module(compile_kernels(evaluation_graph(graph, train), machine, exact, cache_dir), 1).save(evaluation)
        beside = _saved(
            step_companions(graph, guarded, exact=exact, cache_dir=cache_dir, threads=1),
            graph,
            data,
            validation_data,
            folder,
        )
        tasks = []
        for rank, executable in enumerate(made):
            path = f"{folder}/rank{rank}.bn"
            modules.artifact.save(executable, path)
            tasks.append(RankTask(
                path, _plain(data), limits, shuffle, seed, threads, None if checkpoint is None else str(checkpoint),
                facts, evaluation, None if validation_data is None else _plain(validation_data), tuple(metrics), watch,
                beside,
            ))  # fmt: skip
        found = launched(train_rank, [(task,) for task in tasks])
    report, states = _report(found[0]["report"]), found[0]["states"]
    kept = {name: value for name, value in states.items() if name in graph.constants}
    return RanksFitted(report, states, trained(graph, kept), tuple(told["report"]["memory"] for told in found))


def _saved(found: Companions, graph: Graph, data: Any, validation_data: Any, folder: str) -> dict[str, str]:
    """Artifacts of the companions that training will need: of the whole model, which every device then has for a call.

    ``last``, and ``step`` and ``evaluation`` for the rows that fill no batch.
    """
    size = graph.types[graph.inputs[0]].shape[0]
    made: dict[str, Module | None] = {"last": found.last()}
    for name, given, of_rows in (("step", data, found.step), ("evaluation", validation_data, found.evaluation)):
        rows = 0 if given is None else _rows(given) % size
        made[name] = of_rows(rows) if rows else None
    for name, module in made.items():
        if module is not None:
            module.save(f"{folder}/{name}.beside.bn")
    return {name: f"{folder}/{name}.beside.bn" for name, module in made.items() if module is not None}


def _rows(data: Any) -> int:
    given = _plain(data)
    arrays = _given(given)
    first = next(iter(arrays.values() if isinstance(arrays, Mapping) else arrays), np.zeros(0))
    return len(first) if np.ndim(first) else 0


def _companions(task: RankTask) -> Companions:
    """The companions of a device's step, from their artifacts."""

    @lru_cache(maxsize=4)
    def loaded(name: str) -> Module | None:
        return modules.load(task.beside[name], task.threads) if name in task.beside else None

    def of_rows(name: str, rows: int) -> Module | None:
        found = loaded(name)
        return found if found is not None and found.inputs[0].shape[0] == rows else None

    return Companions(partial(of_rows, "step"), partial(of_rows, "evaluation"), lambda: loaded("last"))


def _plain(data: Any) -> Any:
    """Data that every device can have for itself."""
    if isinstance(data, (str, Path)):
        return str(data)
    if isinstance(data, Mapping):
        return {str(name): np.asarray(value) for name, value in data.items()}
    if isinstance(data, (tuple, list)) and all(isinstance(value, np.ndarray) for value in data):
        return list(data)
    raise refusal("data", type(data).__name__, "arrays by name or in order, or the path of an .npz file")


def train_rank(comm: Comm, task: RankTask) -> dict[str, Any]:
    """What one device does: the report and, on device 0, the states of the whole model, as plain values."""
    step = RankStep(modules.load(task.artifact, task.threads, comm=comm), comm)
    evaluation: Module | None = None
    validation_data: Source | None = None
    if task.evaluation is not None:
        evaluation = modules.load(task.evaluation, task.threads)
        validation_data = source(_given(task.validation_data), evaluation.inputs, shuffle=False)
    batches = source(_given(task.data), step.inputs, shuffle=task.shuffle, seed=task.seed)
    folder: Folder | None = None
    if task.checkpoint is not None:
        folder = Folder(task.checkpoint, task.limits.keep) if comm.rank == 0 else ReadFolder(task.checkpoint)
    trainer = Trainer(
        step, batches, task.limits, evaluation=evaluation, validation_data=validation_data,
        metrics=metrics_named(task.metrics), checkpoint=folder, progress=task.watch if comm.rank == 0 else None,
        facts=task.facts, companions=_companions(task),
    )  # fmt: skip
    report = trainer.run()
    states = {name: step.state[name] for name in step.state}
    told = {name: getattr(report, name) for name in report.__dataclass_fields__}
    told["checkpoint"] = None if report.checkpoint is None else str(report.checkpoint)
    return {"report": told, "states": states if comm.rank == 0 else {}}


def _given(data: Any) -> Any:
    return read_npz(Path(data)) if isinstance(data, str) else tuple(data) if isinstance(data, list) else data


def _report(told: Mapping[str, Any]) -> TrainingReport:
    """The report from its plain values."""
    path = told["checkpoint"]
    evaluations = tuple(e if isinstance(e, Evaluation) else Evaluation(**e) for e in told["evaluations"])
    return TrainingReport(**{
        **told, "checkpoint": None if path is None else Path(path), "evaluations": evaluations,
        "live": tuple(told["live"]),
    })  # fmt: skip


def faster_plan(
    graph: Graph,
    data: Any,
    train: Train,
    plans: Mapping[str, TensorSplits | Stages],
    ranks: int,
    *,
    worker_kind: str = "process",
    threads: int = 1,
    steps: int = 12,
    timeout: float = TIMEOUT,
    target: str = "cpu",
    exact: bool = False,
    cache_dir: str | Path | None = None,
    clock: str = "wall",
) -> tuple[str, dict[str, float]]:
    """The plan whose step is fastest where it will run, and the seconds of a step of each: medians of steps in turn.

    Nothing of what is trained meanwhile is kept. ``clock``: see :data:`burnish.measure.together.CLOCKS`.
    """
    machine = find_target(target)
    guarded = replace(train, skip_nonfinite=True)
    with tempfile.TemporaryDirectory() as folder:
        paths: list[list[str]] = [[] for _ in range(ranks)]
        for number, chosen in enumerate(plans.values()):
            made = rank_programs(graph, guarded, chosen, ranks, machine, Settings(exact, cache_dir)).executables()
            for rank, executable in enumerate(made):
                paths[rank].append(f"{folder}/{number}-{rank}.bn")
                modules.artifact.save(executable, paths[rank][-1])
        orders = [(own, _plain(data), threads, steps, clock) for own in paths]
        found = launcher(worker_kind, timeout)(time_rank, orders)
    times = dict(zip(plans, found[0], strict=True))
    return min(times, key=lambda name: times[name]), times


def time_rank(comm: Comm, paths: Sequence[str], data: Any, threads: int, steps: int, clock: str) -> list[float]:
    """Median seconds of a step of each artifact, with the first batch, in turn; those of the slowest device."""
    made = [RankStep(modules.load(path, threads, comm=comm), comm) for path in paths]
    batches = source(_given(data), made[0].inputs, shuffle=False).epoch(0)
    arrays = bound(next(iter(batches)), made[0].inputs)
    if any(array.shape != spec.shape for array, spec in zip(arrays, made[0].inputs, strict=True)):
        raise DataError("data: found no whole batch; allowed: one or more")
    tasks = [partial(step, *arrays) for step in made]
    return [float(seconds) for seconds in seconds_in_turns(tasks, comm, steps, clock)]
