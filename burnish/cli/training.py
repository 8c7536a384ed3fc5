"""Work of `burnish train`: an ONNX file and rows of data to the trained model, with checkpoints and a report."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import typer

import burnish as bn
from burnish.base.files import write_atomic
from burnish.cli.compile_options import CompileOptions
from burnish.cli.output import check_input, check_output, is_artifact, print_json
from burnish.cli.plan_devices import summary
from burnish.cli.reports import is_report, print_report, write_report
from burnish.cli.train_options import DataOptions, OutputOptions, RankOptions, RateOptions
from burnish.errors import DataError, ParameterError
from burnish.fitting.data import default_batch, read_npz
from burnish.fitting.fit import AUTO
from burnish.fitting.loop import TrainingLimits
from burnish.fitting.result import Fitted, TrainedGraph
from burnish.fitting.single import at_batch, import_batch
from burnish.frontend.onnx import to_onnx
from burnish.train.optimizers import Optimizer
from burnish.train.schedules import parse_schedule
from burnish.train.step import parameters_of


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
        plan = AUTO if _is_auto(ranks) else ranks.plan
        return {"plan": plan, "compare": ranks.compare and plan is not None and not _is_auto(ranks),
                "workers": ranks.workers, "worker_kind": ranks.worker_kind}  # fmt: skip


def train(
    model: Path,
    rows: DataOptions,
    recipe: bn.Train,
    optimizer: Optimizer,
    rates: RateOptions,
    limits: Mapping[str, Any],
    ranks: RankOptions,
    written: OutputOptions,
    options: CompileOptions,
) -> None:
    """Trains a model and writes it. Raises ParameterError, and what :func:`burnish.fit` does."""
    epochs = 1 if limits["epochs"] is None and limits["steps"] is None else limits["epochs"]
    written = replace(written, output=written.output or model.with_suffix(".trained.onnx"))
    task = TrainTask(
        model, rows, recipe, rates, TrainingLimits(**{**limits, "epochs": epochs}), ranks, written, options
    )
    _check(task)
    shapes, fix = options.arguments["shapes"], options.arguments["fix"]
    data = read_npz(rows.data)
    default = partial(default_batch, data, ranks.workers)
    found = import_batch(str(model), rows.batch, shapes, fix, default)
    graph = found.graph
    validation_data = None if rows.validation_data is None else read_npz(rows.validation_data)
    updates = _updates(task, at_batch(graph, rows.batch, default)[0], data)
    schedule = parse_schedule(rates.schedule, updates, rates.warm_up)
    recipe = replace(recipe, optimizer=optimizer, schedule=schedule)
    recipe = replace(recipe, parameters=parameters_of(graph, recipe, found.weights))
    batch = rows.batch if graph.dims else None
    fitted = bn.fit(
        graph, data, recipe, validation_data=validation_data, batch=batch, **task.loop, **task.devices, **task.arguments
    )
    if not options.as_json:
        print("".join(f"{note}\n" for note in [*_planned(fitted, task), *fitted.notes]), end="")
    _write(fitted, task)
    if fitted.report.stop_reason == "interrupted":
        raise typer.Exit(130)  # as shells report what Ctrl-C ended


def _is_auto(ranks: RankOptions) -> bool:
    """Whether a plan is to be searched for."""
    return ranks.plan is not None and str(ranks.plan) == AUTO


def _planned(fitted: Fitted, task: TrainTask) -> list[str]:
    """Predicted and measured seconds of a plan that was searched for, as lines of text; none for other plans."""
    return [summary(fitted.plan)] if _is_auto(task.ranks) and fitted.plan is not None else []


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
        if not _is_auto(task.ranks):
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
    except Exception:  # protobuf raises many kinds for another file
        return False


def _write(fitted: Fitted, task: TrainTask) -> None:
    if task.output.suffix == ".bn":
        fitted.compile(**task.arguments).save(task.output)
    else:
        assert isinstance(fitted.trained, TrainedGraph)
        write_atomic(task.output, [to_onnx(fitted.trained.open).SerializeToString()])
    report = fitted.report
    if task.written.report is not None:
        write_report(task.written.report, report, {})
    if task.options.as_json:
        print_json({"output": str(task.output), **report.as_json()})
        return
    skipped = [f"{report.skipped} updates left out, as a gradient was not finite"] if report.skipped else []
    print_report(task.output, report, f"{report.calls} batches, {report.updates} updates", skipped)
