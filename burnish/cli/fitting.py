"""`burnish train`: an ONNX file and rows of data to the trained model, with checkpoints and a report."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import typer

import burnish as bn
from burnish.cli.output import check_input, check_output, is_artifact, is_json, print_json
from burnish.cli.sizes import parse_fixed, parse_shapes
from burnish.cli.strategies import summary
from burnish.driver.calibration import Ranks as DeviceRanks
from burnish.driver.fit import Fitted, import_batch, prepare
from burnish.driver.fit_ranks import RanksFitted, faster_plan, fit_ranks
from burnish.driver.importing import import_model
from burnish.driver.planned import data_parallel_splits, read_plan
from burnish.driver.planned import plan as find_plan
from burnish.errors import DataError, ParameterError
from burnish.files import write_atomic
from burnish.frontend.onnx import to_onnx
from burnish.parallel.plans import Splits, Stages
from burnish.train.data import read_npz
from burnish.train.loop import Limits
from burnish.train.optimizers import Optimizer
from burnish.train.picture import page
from burnish.train.progress import evaluation_text, shown
from burnish.train.schedules import parse_schedule
from burnish.train.step import parameters_of


@dataclass(frozen=True)
class Recipe:
    """How to train, as the options say it."""

    loss: str
    optimizer: str
    rate: float | None
    momentum: float | None
    weight_decay: float | None
    schedule: str
    warm_up: int
    clip_norm: float | None
    clip_value: float | None
    accumulate: int
    precision: str | None
    memory_budget: str | None

    def made(self, updates: int) -> bn.Train:
        """The recipe for so many updates. Raises ParameterError."""
        more: dict[str, Any] = {
            "schedule": parse_schedule(self.schedule, updates, self.warm_up), "clip_norm": self.clip_norm,
            "clip_value": self.clip_value, "accumulate": self.accumulate, "precision": self.precision,
            "memory_budget": self.memory_budget,
        }  # fmt: skip
        return bn.Train(self.loss, self._optimizer(), **more)

    def _optimizer(self) -> Optimizer:
        made: Mapping[str, Callable[..., Optimizer]] = {
            "sgd": lambda **given: bn.SGD(**{"momentum": 0.9, **given}), "adam": bn.Adam, "adamw": bn.AdamW,
        }  # fmt: skip
        if self.optimizer not in made:
            raise ParameterError(f"--optimizer: found '{self.optimizer}'; allowed: {', '.join(made)}")
        if self.momentum is not None and self.optimizer != "sgd":
            found = f"--momentum: found {self.momentum} for {self.optimizer}"
            raise ParameterError(f"{found}; allowed: with --optimizer sgd, as others have none")
        given = {"rate": self.rate, "momentum": self.momentum, "weight_decay": self.weight_decay}
        return made[self.optimizer](**{key: value for key, value in given.items() if value is not None})


@dataclass(frozen=True)
class Ranks:
    """The devices that train: how many of what kind, by which plan (None: data parallelism; ``auto``: one that is
    searched for with costs measured on them), and whether that is timed against data parallelism first.
    """

    plan: Path | None = None
    count: int = 1
    kind: str = "process"
    compare: bool = True

    @property
    def is_auto(self) -> bool:
        """Whether a plan is to be searched for."""
        return self.plan is not None and str(self.plan) == "auto"


@dataclass(frozen=True)
class Task:
    """What the command was asked for."""

    model: Path
    data: Path
    valid: Path | None
    output: Path
    report: Path | None
    recipe: Recipe
    epochs: int | None
    steps: int | None
    batch: int | None
    seed: int
    shuffle: bool
    metrics: tuple[str, ...]
    evaluate_every: int | None
    patience: int | None
    checkpoint: Path | None
    save_every: int | None
    keep: int
    resume: bool
    force: bool
    as_json: bool
    arguments: Mapping[str, Any]  # of burnish.compile
    shapes: tuple[str, ...]
    fixed: tuple[str, ...]
    ranks: Ranks = Ranks()


def train(task: Task) -> None:
    """Reads, trains, writes the model and the report, and says what came of it."""
    _check(task)
    epochs = 1 if task.epochs is None and task.steps is None else task.epochs
    limits = Limits(
        task.steps, epochs, task.evaluate_every, task.patience, 0.0, task.save_every, task.keep, task.resume
    )
    shapes, fix = parse_shapes(task.shapes), parse_fixed(task.fixed)
    model = str(task.model)
    if task.batch is None:
        found = import_model(model, shapes, fix, training=True)
    else:
        found = import_batch(model, task.batch, shapes, fix)
    graph = found.graph
    data = read_npz(task.data)
    valid = None if task.valid is None else read_npz(task.valid)
    recipe = task.recipe.made(_updates(task, graph, data, epochs))
    recipe = replace(recipe, parameters=parameters_of(graph, recipe, found.weights))
    fitted: Fitted | RanksFitted
    if task.ranks.count > 1:
        fitted = _by_ranks(task, graph, data, valid, recipe, limits)
    else:
        fitted = _alone(task, graph, data, valid, recipe, limits)
    _write(fitted, task)
    _tell(fitted, task)
    if fitted.report.stop_reason == "interrupted":
        raise typer.Exit(130)  # as shells report what Ctrl-C ended


def _alone(task: Task, graph: bn.Graph, data: Any, valid: Any, recipe: bn.Train, limits: Limits) -> Fitted:
    with shown(not task.as_json) as progress:
        return prepare(
            graph, data, recipe, limits, valid=valid, metrics=task.metrics, shuffle=task.shuffle, seed=task.seed,
            checkpoint=task.checkpoint, progress=progress, **task.arguments,
        ).run()  # fmt: skip


def _by_ranks(task: Task, graph: bn.Graph, data: Any, valid: Any, recipe: bn.Train, limits: Limits) -> RanksFitted:
    """Trains on several devices by the plan, or by data parallelism where that is faster, and says which."""
    ranks, arguments = task.ranks, task.arguments
    threads = arguments["threads"] or 1
    chosen: Splits | Stages = data_parallel_splits(graph, ranks.count, recipe.parameters)
    if ranks.is_auto:
        found = find_plan(graph, f"host:{ranks.count}", parameters=recipe.parameters, measure=DeviceRanks(
            recipe, ranks.kind, threads, exact=arguments["exact"], cache_dir=arguments["cache_dir"],
        ))  # fmt: skip
        chosen = found.placement
        if not task.as_json:
            print(summary(found))
    elif ranks.plan is not None:
        planned = read_plan(ranks.plan.read_text(encoding="utf-8"), graph, ranks.count, recipe.parameters)
        candidates: dict[str, Splits | Stages] = {"plan": planned, "data parallelism": chosen}
        used, times = "plan", dict[str, float]()
        if ranks.compare and planned != chosen:
            used, times = faster_plan(
                graph, data, recipe, candidates, ranks.count, kind=ranks.kind, threads=threads,
                exact=arguments["exact"], cache_dir=arguments["cache_dir"],
            )  # fmt: skip
        chosen = candidates[used]
        if times and not task.as_json:
            told = ", ".join(f"{name} {1e3 * seconds:.2f} ms a step" for name, seconds in times.items())
            print(f"{told}: trained by {used}")
    return fit_ranks(
        graph, data, recipe, limits, chosen, ranks.count, kind=ranks.kind, valid=valid, metrics=task.metrics,
        shuffle=task.shuffle, seed=task.seed, threads=threads, checkpoint=task.checkpoint, exact=arguments["exact"],
        cache_dir=arguments["cache_dir"],
    )  # fmt: skip


def _check(task: Task) -> None:
    for path, what in ((task.model, "model"), (task.data, "--data"), (task.valid, "--valid")):
        if path is not None:
            check_input(path, what)
    inputs = [path for path in (task.model, task.data, task.valid) if path is not None]
    if task.output.suffix not in (".onnx", ".bn"):
        raise ParameterError(f"--output: found '{task.output}'; allowed: a name that ends in .onnx or .bn")
    is_ours = is_artifact if task.output.suffix == ".bn" else _is_onnx
    check_output(task.output, inputs=inputs, is_ours=is_ours, force=task.force)
    if task.report is not None:
        check_output(task.report, "--report", inputs=inputs, is_ours=_is_report, force=task.force)
    if task.resume and task.checkpoint is None:
        raise ParameterError("--resume: found without a folder; allowed: with --checkpoint")
    if task.ranks.plan is not None:
        if not task.ranks.is_auto:
            check_input(task.ranks.plan, "--plan")
        if task.ranks.count == 1:
            raise ParameterError("--plan: found with --ranks 1; allowed: with as many as the plan has devices")
    if task.patience is not None and task.valid is None:
        raise ParameterError("--patience: found without data to evaluate with; allowed: with --valid")


def _updates(task: Task, graph: bn.Graph, data: Mapping[str, Any], epochs: int | None) -> int:
    """How many updates there will be, which a schedule spreads over. Raises DataError."""
    first = graph.inputs[0]
    if first not in data:
        raise DataError(f"{task.data}: found arrays {sorted(data)}; allowed: {', '.join(graph.inputs)}, label")
    shape = graph.types[first].shape
    batches = -(-len(data[first]) // max(shape[0] if shape else 1, 1))
    known = [n for n in (task.steps, None if epochs is None else epochs * batches) if n is not None]
    return max(-(-min(known) // task.recipe.accumulate), 1)


def _is_report(path: Path) -> bool:
    """Whether a file is a report, or empty."""
    return path.read_bytes()[:15] == b"<!DOCTYPE html>" if path.suffix == ".html" else is_json(path)


def _is_onnx(path: Path) -> bool:
    """Whether a file is an ONNX model, or empty."""
    if not path.stat().st_size:
        return True
    try:
        return bool(onnx.load(path, load_external_data=False).graph.node)
    except Exception:  # whatever protobuf raises for another file
        return False


def _write(fitted: Fitted | RanksFitted, task: Task) -> None:
    if task.output.suffix == ".bn":
        fitted.compile(**task.arguments).save(task.output)
    else:
        write_atomic(task.output, [to_onnx(fitted.graph).SerializeToString()])
    if task.report is not None:
        told = {"burnish": bn.__version__, **fitted.report.as_json()}
        is_page = task.report.suffix == ".html"
        text = page(fitted.report) if is_page else json.dumps(told, indent=1)
        write_atomic(task.report, [text.encode()])


def _tell(fitted: Fitted | RanksFitted, task: Task) -> None:
    report = fitted.report
    if task.as_json:
        print_json({"output": str(task.output), **report.as_json()})
        return
    losses = report.losses
    if len(losses):
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {report.calls} batches, {report.updates} updates")
    if report.best is not None:
        print(f"best {evaluation_text(report.best)}")
    if report.skipped:
        print(f"{report.skipped} updates left out, as a gradient was not finite")
    memory = ", ".join(f"{part} {nbytes / 1e6:.2f} MB" for part, nbytes in report.memory.items())
    print(f"{task.output}: trained for {report.seconds:.1f} s, ended by {report.stop_reason}; {memory}")
    if report.checkpoint is not None:
        print(f"checkpoint: {report.checkpoint}")
