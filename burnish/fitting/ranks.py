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
from burnish.comm.protocol import Comm
from burnish.driver.assembly import make_module
from burnish.driver.compilation import compile_kernels
from burnish.driver.loading import load_module
from burnish.errors import DataError
from burnish.fitting.checkpoint import Folder, ReadFolder
from burnish.fitting.companions import Companions, step_companions
from burnish.fitting.data import Source, bound, read_npz, rows_of, source
from burnish.fitting.loop import Trainer
from burnish.fitting.report import Evaluation, TrainingReport
from burnish.fitting.result import Fitted
from burnish.fitting.single import LoopOptions, TrainableModel
from burnish.graph.graph import Graph
from burnish.machines.target import target as find_target
from burnish.measure.together import seconds_in_turns
from burnish.parallel.programs.calibration import LaunchConfig
from burnish.parallel.programs.execute import RankStep
from burnish.parallel.programs.plans import Stages, TensorSplits
from burnish.parallel.programs.ranks import Settings, rank_programs
from burnish.runtime import artifact
from burnish.runtime.module import Module
from burnish.train.evaluation import METRICS, evaluation_graph
from burnish.train.step import trained_constants


@dataclass(frozen=True)
class RankTask:
    """Training task of one device, as plain values: its artifact, how to train, and what to train on."""

    artifact: str
    data: Any  # arrays by name or in order, or the path of an .npz file
    loop: LoopOptions  # whose progress is called on device 0
    threads: int
    facts: Mapping[str, Any]
    evaluation: str | None = None
    beside: Mapping[str, str] = field(default_factory=dict)  # artifacts of companions, see :func:`_companions`
    device: Callable[[], Any] | None = None  # makes what runs them, where the machine has a device of its own

    def module(self, artifact: str, comm: Comm | None = None) -> Module:
        """The module of an artifact, on the device."""
        return load_module(artifact, self.threads, comm=comm, device=None if self.device is None else self.device())


def train_ranks(
    model: TrainableModel,
    data: Any,
    loop: LoopOptions,
    plan: TensorSplits | Stages,
    ranks: int,
    launch: LaunchConfig,
) -> Fitted:
    """Trains a model as :func:`burnish.fit` does, on ``ranks`` devices of this machine or cluster.

    ``plan``: how tensors of the graph are split over the devices (``parallel.plans.splits_of`` of a strategy), what it
    does not name follows; or the stages of a pipeline (``parallel.plans.stages_of``). ``launch``: the devices; its
    ``train`` is the model's. Data are arrays, or the path of an .npz file that all devices reach. Losses and weights
    are those of one device, up to the order of sums; of a pipeline, where a loss is a mean in which all samples weigh
    alike. A device that dies ends the training of all with WorkerError, which names it.
    """
    launched = launcher(launch.worker_kind, launch.timeout)
    graph, train, given = model.graph, model.train, loop.validation_data
    if train.memory_budget is not None:
        raise refusal("memory_budget", train.memory_budget, "None where a plan says what each device keeps")
    if isinstance(loop.metrics, Mapping):
        raise refusal("metrics", [*loop.metrics], f"names of {', '.join(METRICS)} with several workers")
    machine = find_target(launch.target)
    guarded = replace(train, skip_nonfinite=True)
    settings = Settings(launch.exact, launch.cache_dir)
    made = rank_programs(graph, guarded, plan, ranks, machine, settings).executables()
    facts = {"train": str(train), "parameters": sorted(trained_constants(graph, train))}
    with tempfile.TemporaryDirectory() as folder:
        evaluation = None
        if given is not None:
            evaluation = f"{folder}/evaluation.bn"
            found = evaluation_graph(model.infers, train, trained_constants(graph, train))
            make_module(compile_kernels(found, machine, launch.exact, launch.cache_dir), 1).save(evaluation)
        companions = step_companions(
            graph,
            guarded,
            model.of_rows,
            model.infers_of_rows,
            exact=launch.exact,
            cache_dir=launch.cache_dir,
            threads=1,
            target=machine,
        )
        beside = _saved(companions, graph, data, given, folder)
        rows = loop if given is None else replace(loop, validation_data=_plain(given))
        rows = replace(rows, checkpoint=None if loop.checkpoint is None else str(loop.checkpoint))
        tasks = []
        for rank, executable in enumerate(made):
            path = f"{folder}/rank{rank}.bn"
            artifact.save(executable, path)
            own = machine.machine.device
            tasks.append(RankTask(path, _plain(data), rows, launch.threads, facts, evaluation, beside, own))
        results = launched(train_rank, [(task,) for task in tasks])
    report, states = _report(results[0]["report"]), results[0]["states"]
    kept = {name: value for name, value in states.items() if name in model.infers.constants}
    return Fitted(report, model.trained(kept), states, tuple(each["report"]["memory"] for each in results))


def _saved(found: Companions, graph: Graph, data: Any, validation_data: Any, folder: str) -> dict[str, str]:
    """Artifacts of the companions that training will need: of the whole model, which every device then has for a call.

    ``last``, and ``step`` and ``evaluation`` for the rows that fill no batch.
    """
    size = graph.types[graph.inputs[0]].shape[0]
    made: dict[str, Module | None] = {"last": found.last()}
    for name, given, of_rows in (("step", data, found.step), ("evaluation", validation_data, found.evaluation)):
        rows = 0 if given is None else rows_of(_given(_plain(given))) % size
        made[name] = of_rows(rows) if rows else None
    for name, module in made.items():
        if module is not None:
            module.save(f"{folder}/{name}.beside.bn")
    return {name: f"{folder}/{name}.beside.bn" for name, module in made.items() if module is not None}


def _companions(task: RankTask) -> Companions:
    """The companions of a device's step, from their artifacts."""

    @lru_cache(maxsize=4)
    def loaded(name: str) -> Module | None:
        return task.module(task.beside[name]) if name in task.beside else None

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
    """Training on one device: the report and, on device 0, the states of the whole model, as plain values."""
    step, loop = RankStep(task.module(task.artifact, comm), comm), task.loop
    evaluation: Module | None = None
    checked: Source | None = None
    if task.evaluation is not None:
        evaluation = task.module(task.evaluation)
        checked = source(_given(loop.validation_data), evaluation.inputs, shuffle=False)
    batches = source(_given(task.data), step.inputs, shuffle=loop.shuffle, seed=loop.seed)
    folder: Folder | None = None
    if loop.checkpoint is not None:
        kept = loop.limits.keep
        folder = Folder(loop.checkpoint, kept) if comm.rank == 0 else ReadFolder(loop.checkpoint)
    trainer = Trainer(
        step, batches, loop.limits, evaluation=evaluation, validation_data=checked, metrics=loop.chosen_metrics,
        checkpoint=folder, progress=loop.progress if comm.rank == 0 else None, facts=task.facts,
        companions=_companions(task),
    )  # fmt: skip
    report = trainer.run()
    states = {name: step.state[name] for name in step.state}
    fields = {name: getattr(report, name) for name in report.__dataclass_fields__}
    fields["checkpoint"] = None if report.checkpoint is None else str(report.checkpoint)
    return {"report": fields, "states": states if comm.rank == 0 else {}}


def _given(data: Any) -> Any:
    return read_npz(Path(data)) if isinstance(data, str) else tuple(data) if isinstance(data, list) else data


def _report(fields: Mapping[str, Any]) -> TrainingReport:
    """The report from its plain values."""
    path = fields["checkpoint"]
    evaluations = tuple(e if isinstance(e, Evaluation) else Evaluation(**e) for e in fields["evaluations"])
    return TrainingReport(**{
        **fields, "checkpoint": None if path is None else Path(path), "evaluations": evaluations,
        "live": tuple(fields["live"]),
    })  # fmt: skip


def faster_plan(
    graph: Graph, data: Any, plans: Mapping[str, TensorSplits | Stages], ranks: int, launch: LaunchConfig
) -> tuple[str, dict[str, float]]:
    """The plan whose step is fastest where it will run, and the seconds of a step of each: medians of steps in turn.

    ``launch``: the devices, how they train, how many steps are timed and by which clock. Nothing of what is trained
    meanwhile is kept.
    """
    machine, settings = find_target(launch.target), Settings(launch.exact, launch.cache_dir)
    guarded = None if launch.train is None else replace(launch.train, skip_nonfinite=True)
    with tempfile.TemporaryDirectory() as folder:
        paths: list[list[str]] = [[] for _ in range(ranks)]
        for number, chosen in enumerate(plans.values()):
            made = rank_programs(graph, guarded, chosen, ranks, machine, settings).executables()
            for rank, executable in enumerate(made):
                paths[rank].append(f"{folder}/{number}-{rank}.bn")
                artifact.save(executable, paths[rank][-1])
        orders = [(own, _plain(data), launch.threads, launch.steps, launch.clock) for own in paths]
        found = launcher(launch.worker_kind, launch.timeout)(time_rank, orders)
    times = dict(zip(plans, found[0], strict=True))
    return min(times, key=lambda name: times[name]), times


def time_rank(comm: Comm, paths: Sequence[str], data: Any, threads: int, steps: int, clock: str) -> list[float]:
    """Median seconds of a step of each artifact, with the first batch, in turn; those of the slowest device."""
    made = [RankStep(load_module(path, threads, comm=comm), comm) for path in paths]
    batches = source(_given(data), made[0].inputs, shuffle=False).epoch(0)
    arrays = bound(next(iter(batches)), made[0].inputs)
    if any(array.shape != spec.shape for array, spec in zip(arrays, made[0].inputs, strict=True)):
        raise DataError("data: found no whole batch; allowed: one or more")
    tasks = [partial(step, *arrays) for step in made]
    return [float(seconds) for seconds in seconds_in_turns(tasks, comm, steps, clock)]
