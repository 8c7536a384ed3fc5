"""`burnish train`: an ONNX file and rows of data to the trained model, with checkpoints and a report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import onnx
import typer

import burnish as bn
from burnish.base.arguments import check_count
from burnish.base.files import write_atomic
from burnish.cli.compile_options import CompileOptions, OnnxModel
from burnish.cli.options import ChoiceOf, OptionsOf
from burnish.cli.output import check_input, check_output, is_artifact, print_json
from burnish.cli.plan_devices import summary
from burnish.cli.reports import is_report, print_report, write_report
from burnish.driver.importing import import_model
from burnish.errors import DataError, ParameterError
from burnish.fitting.data import read_npz
from burnish.fitting.fit import AUTO
from burnish.fitting.loop import TrainingLimits
from burnish.fitting.result import Fitted
from burnish.fitting.single import import_batch
from burnish.frontend.onnx import to_onnx
from burnish.train.evaluation import METRICS
from burnish.train.losses import LOSSES
from burnish.train.optimizers import OPTIMIZERS, Optimizer
from burnish.train.schedules import parse_schedule
from burnish.train.step import parameters_of


@dataclass(frozen=True)
class DataOptions:
    """Training and evaluation data.

    ``data``: an .npz file with arrays of rows, by the names of the model's inputs and 'label'. ``validation_data``: an
    .npz file to evaluate with. ``metric``: what is evaluated beside the loss. ``batch``: rows of a batch, where the
    model leaves it open. ``seed``: of the order of rows. ``shuffle``: whether rows are shuffled.
    """

    data: Path
    validation_data: Path | None = None
    metric: Sequence[str] | None = None
    batch: int | None = None
    seed: int = 0
    shuffle: bool = True


@dataclass(frozen=True)
class RateOptions:
    """Learning-rate schedule.

    ``schedule``: one of constant, step:EVERY[:RATIO], cosine[:LEAST] or linear[:LEAST]. ``warm_up``: updates in which
    the rate rises from 0.
    """

    schedule: str = "constant"
    warm_up: int = 0


@dataclass(frozen=True)
class RankOptions:
    """The devices that train.

    ``plan``: a strategy of `burnish plan devices`, by which --workers devices train, or auto for one that is searched
    for with costs measured here, by default data parallelism. ``workers``: processes that train, each a device of the
    plan. ``worker_kind``: what they are, process or thread here, torch (gloo), or ray (a cluster's actors).
    ``compare``: whether some steps by data parallelism are timed as well.
    """

    plan: Path | None = None
    workers: int = 1
    worker_kind: str = "process"
    compare: bool = True

    def __post_init__(self) -> None:
        """Raises ParameterError for no worker."""
        check_count("--workers", self.workers, 1)

    @property
    def is_auto(self) -> bool:
        """Whether a plan is to be searched for."""
        return self.plan is not None and str(self.plan) == AUTO


@dataclass(frozen=True)
class OutputOptions:
    """The files that come of training.

    ``output``: the trained model, .onnx, or .bn for a compiled one, by default MODEL.trained.onnx. ``report``: a file
    for losses, evaluations and memory, JSON, or pictures (.html). ``checkpoint``: a folder for checkpoints. ``force``:
    replaces an output file that is no model.
    """

    output: Annotated[Path | None, typer.Option("--output", "-o")] = None
    report: Path | None = None
    checkpoint: Path | None = None
    force: bool = False


@dataclass(frozen=True)
class TrainTask:
    """Training request of the command line."""

    model: Path
    rows: DataOptions
    recipe: bn.Train
    rates: RateOptions
    limits: TrainingLimits
    ranks: RankOptions
    written: OutputOptions
    options: CompileOptions

    @property
    def output(self) -> Path:
        """The file of the trained model."""
        assert self.written.output is not None
        return self.written.output

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of burnish.compile that training takes."""
        return {name: self.options.arguments[name] for name in ("threads", "exact", "cache_dir")}

    @property
    def loop(self) -> dict[str, Any]:
        """Arguments of the loop, by one device or by several."""
        rows, limits = self.rows, {each.name: getattr(self.limits, each.name) for each in fields(self.limits)}
        return {**limits, "metrics": tuple(rows.metric or ()), "shuffle": rows.shuffle, "seed": rows.seed,
                "checkpoint": self.written.checkpoint, "progress": not self.options.as_json}  # fmt: skip

    @property
    def devices(self) -> dict[str, Any]:
        """Arguments that say who trains."""
        ranks = self.ranks
        plan = AUTO if ranks.is_auto else ranks.plan
        return {"plan": plan, "compare": ranks.compare and plan is not None and not ranks.is_auto,
                "workers": ranks.workers, "worker_kind": ranks.worker_kind}  # fmt: skip


def train(
    model: OnnxModel,
    rows: Annotated[DataOptions, OptionsOf(choices={"metric": METRICS})],
    recipe: Annotated[
        bn.Train,
        OptionsOf(omit=("optimizer", "parameters", "seed", "schedule", "skip_nonfinite"), choices={"loss": LOSSES}),
    ],
    optimizer: Annotated[Optimizer, ChoiceOf(OPTIMIZERS, "adamw", {"momentum": 0.9})],
    rates: RateOptions,
    limits: Annotated[dict[str, Any], OptionsOf(TrainingLimits)],
    ranks: RankOptions,
    written: OutputOptions,
    options: Annotated[CompileOptions, OptionsOf(only=("threads", "exact", "shapes", "fixed", "cache_dir", "as_json"))],
) -> None:
    """Train a model on rows of data and write it with its new weights. Without --epochs and --steps, for one epoch.

    Ctrl-C ends training after the batch under way, with a checkpoint and what is trained so far; a second one at once.
    """
    epochs = 1 if limits["epochs"] is None and limits["steps"] is None else limits["epochs"]
    written = replace(written, output=written.output or model.with_suffix(".trained.onnx"))
    task = TrainTask(
        model, rows, recipe, rates, TrainingLimits(**{**limits, "epochs": epochs}), ranks, written, options
    )
    _check(task)
    shapes, fix = options.arguments["shapes"], options.arguments["fix"]
    if rows.batch is None:
        found = import_model(str(model), shapes, fix, training=True)
    else:
        found = import_batch(str(model), rows.batch, shapes, fix)
    graph = found.graph
    data = read_npz(rows.data)
    validation_data = None if rows.validation_data is None else read_npz(rows.validation_data)
    schedule = parse_schedule(rates.schedule, _updates(task, graph, data), rates.warm_up)
    recipe = replace(recipe, optimizer=optimizer, schedule=schedule)
    recipe = replace(recipe, parameters=parameters_of(graph, recipe, found.weights))
    fitted = bn.fit(graph, data, recipe, validation_data=validation_data, **task.loop, **task.devices, **task.arguments)
    if not options.as_json:
        print("".join(f"{note}\n" for note in [*_planned(fitted, task), *fitted.notes]), end="")
    _write(fitted, task)
    if fitted.report.stop_reason == "interrupted":
        raise typer.Exit(130)  # as shells report what Ctrl-C ended


def _planned(fitted: Fitted, task: TrainTask) -> list[str]:
    """Predicted and measured seconds of a plan that was searched for, as lines of text; none for other plans."""
    return [summary(fitted.plan)] if task.ranks.is_auto and fitted.plan is not None else []


def _check(task: TrainTask) -> None:
    rows, written = task.rows, task.written
    given = {"model": task.model, "--data": rows.data, "--validation-data": rows.validation_data}
    inputs = {what: path for what, path in given.items() if path is not None}
    for what, path in inputs.items():
        check_input(path, what)
    if task.output.suffix not in (".onnx", ".bn"):
        raise ParameterError(f"--output: found '{task.output}'; allowed: a name that ends in .onnx or .bn")
    is_ours = is_artifact if task.output.suffix == ".bn" else _is_onnx
    check_output(task.output, inputs=[*inputs.values()], is_ours=is_ours, force=written.force)
    if written.report is not None:
        check_output(written.report, "--report", inputs=[*inputs.values()], is_ours=is_report, force=written.force)
    if task.limits.resume and written.checkpoint is None:
        raise ParameterError("--resume: found without a folder; allowed: with --checkpoint")
    if task.ranks.plan is not None:
        if not task.ranks.is_auto:
            check_input(task.ranks.plan, "--plan")
        if task.ranks.workers == 1:
            raise ParameterError("--plan: found with --workers 1; allowed: with as many as the plan has devices")
    if task.limits.patience is not None and rows.validation_data is None:
        raise ParameterError("--patience: found without data to evaluate with; allowed: with --validation-data")


def _updates(task: TrainTask, graph: bn.Graph, data: Mapping[str, Any]) -> int:
    """Number of updates, which a schedule spreads over. Raises DataError."""
    first = graph.inputs[0]
    if first not in data:
        raise DataError(f"{task.rows.data}: found arrays {sorted(data)}; allowed: {', '.join(graph.inputs)}, label")
    shape = graph.types[first].shape
    batches = -(-len(data[first]) // max(shape[0] if shape else 1, 1))
    steps, epochs = task.limits.steps, task.limits.epochs
    known = [n for n in (steps, None if epochs is None else epochs * batches) if n is not None]
    return max(-(-min(known) // task.recipe.accumulation_steps), 1)


def _is_onnx(path: Path) -> bool:
    """Whether a file is an ONNX model, or empty."""
    if not path.stat().st_size:
        return True
    try:
        return bool(onnx.load(path, load_external_data=False).graph.node)
    except Exception:  # whatever protobuf raises for another file
        return False


def _write(fitted: Fitted, task: TrainTask) -> None:
    if task.output.suffix == ".bn":
        fitted.compile(**task.arguments).save(task.output)
    else:
        write_atomic(task.output, [to_onnx(fitted.model).SerializeToString()])
    report = fitted.report
    if task.written.report is not None:
        write_report(task.written.report, report, {})
    if task.options.as_json:
        print_json({"output": str(task.output), **report.as_json()})
        return
    skipped = [f"{report.skipped} updates left out, as a gradient was not finite"] if report.skipped else []
    print_report(task.output, report, f"{report.calls} batches, {report.updates} updates", skipped)
