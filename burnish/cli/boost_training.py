"""`burnish boost train`: files to a model file, with the rounds' progress on the terminal."""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from burnish.base.sizes import parse_budget
from burnish.boost import Dataset, Model, readers, train
from burnish.boost.booster import RoundProgress as Rounds
from burnish.boost.external import train_external
from burnish.cli.boost_options import READING, BoostOptions
from burnish.cli.output import check_input, check_output, is_json, print_json
from burnish.errors import DataError, ParameterError

FIRST_ROWS = 1 << 10
LINES = 10  # of progress where there is no terminal
KEPT = ("label", "weight", "qid", "ignore", "first_index")  # options that `predict` goes by


def parameters(texts: Sequence[str]) -> dict[str, Any]:
    """Parameters from NAME=VALUE; a value is JSON, or text where it is none."""
    found: dict[str, Any] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise ParameterError(f"--param {text}: allowed is NAME=VALUE")
        if name in found:
            raise ParameterError(f"--param {name}: found twice; allowed is once")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def run(data: Path, task: BoostOptions, options: dict[str, Any]) -> None:
    """Reads, trains, writes the model, and says what came of it. ``options``: those of `burnish.boost.readers`."""
    began = time.perf_counter()
    params = parameters(task.param or [])
    budget = None if task.memory_budget is None else parse_budget("--memory-budget", task.memory_budget)
    given = [data, *(task.validation_data or [])]
    check_output(task.output, inputs=given, is_ours=is_json, force=task.force)
    for path in given:
        if not path.exists():
            raise ParameterError(f"{path}: no such file or folder")
    if task.continue_from is not None:
        check_input(task.continue_from, "--continue")
    console = Console(stderr=True, quiet=task.as_json)
    before = None if task.continue_from is None else Model.load(task.continue_from)
    options = _settled(given, options, before)
    interrupted: list[bool] = []
    history: dict[str, dict[str, list[float]]] = {}

    def keep(progress: Rounds) -> bool:
        """Interrupt handling: on Ctrl-C, keeps the rounds that are finished, if there are any."""
        if progress.interrupted and progress.round:
            interrupted.append(True)
        return bool(interrupted)

    with console.status(f"reading {data}"):
        dataset = _training_set(data, budget, options)
        options = _by_name(data, dataset, options)
        validation_data = _evaluation_sets(task.validation_data or [], dataset, options)
    if dataset.label is None:
        raise DataError(f"{data}: found no label; pass --label with the name or number of its column")
    trainer: contextlib.AbstractContextManager[Callable[..., Model]]
    if budget is None:
        trainer = contextlib.nullcontext(partial(train, params, dataset))
    else:
        trainer = _out_of_core(params, data, budget, task, options | {"categories": dataset.categories})
    with shown(console) as show, trainer as boost:
        model = boost(
            rounds=task.rounds,
            validation_data=validation_data,
            early_stopping_rounds=task.early_stopping,
            callbacks=[show, keep],
            continue_from=before,
            history=history,
            threads=options["threads"],
        )
    kept = {key: options[key] for key in KEPT}
    model = replace(model, attributes={**model.attributes, READING: json.dumps(kept)})
    model.save(task.output)  # whole or not at all; a name that ends in .ubj is XGBoost's UBJ
    _report(task, model, history, bool(interrupted), time.perf_counter() - began)
    if interrupted:
        raise typer.Exit(130)  # as shells report what Ctrl-C ended


def _settled(files: Sequence[Path], options: dict[str, Any], before: Model | None) -> dict[str, Any]:
    """The options of reading, with what must agree with the model that is continued and between the files."""
    options = dict(options)
    if before is not None:
        options |= {"columns": before.feature_names, "categories": before.categories, "policy": before.category_policy}
        saved = json.loads(before.attributes.get(READING, "{}"))
        for key in ("first_index", "label", "weight", "qid"):
            options[key] = saved.get(key) if options[key] is None else options[key]
    if readers.kind_of(files[0], options["format"]) == "libsvm":
        chosen = {key: options[key] for key in ("format", "first_index", "threads")}
        found = [readers.numbering(path, **chosen) for path in files]
        first = min(number for number, _ in found)
        ends = [number + count for number, count in found]
        options |= {"first_index": first, "features": max(ends) - first if before is None else before.features}
    return options


def _by_name(data: Path, dataset: Dataset, options: dict[str, Any]) -> dict[str, Any]:
    """The options with names for numbers of columns, which speak of the training data: elsewhere, order may differ."""
    if not dataset.feature_names:
        return options
    look = {key: options[key] for key in ("format", "separator", "missing")}
    names, _ = readers.columns_of(data, **look, header=True)
    named = {key: names[options[key]] for key in ("label", "weight", "qid") if isinstance(options[key], int)}
    return options | named


def _training_set(data: Path, budget: int | None, options: dict[str, Any]) -> Dataset:
    """The training data; the first rows of them alone if all are not to be in memory, with the categories of all."""
    if budget is None:
        return readers.read(data, **options)
    with contextlib.closing(readers.chunks(data, FIRST_ROWS, **options)) as chunks:
        return next(chunks)


@contextmanager
def _out_of_core(
    params: dict[str, Any], data: Path, budget: int, task: BoostOptions, read: dict[str, Any]
) -> Iterator[Callable[..., Model]]:
    """The function that trains from blocks on disk, which are gone afterwards."""
    with contextlib.ExitStack() as stack:
        folders = list(task.folder or [])
        if not folders:
            near = stack.enter_context(
                tempfile.TemporaryDirectory(prefix=".burnish-", dir=task.output.absolute().parent)
            )
            folders = [Path(near) / "store"]
        yield partial(train_external, params, data, folders=folders, memory_budget=budget, read=read)


def _evaluation_sets(paths: Sequence[Path], dataset: Dataset, options: dict[str, Any]) -> dict[str, Dataset]:
    """The evaluation sets by the names of their files, encoded as the training data."""
    options = options | {"columns": dataset.feature_names, "categories": dataset.categories}
    if dataset.feature_names:  # of the rest, nothing is needed, nor need it be there
        options |= {"ignore": [], "categorical": []}
    sets: dict[str, Dataset] = {}
    for path in paths:
        name = path.name.partition(".")[0] or path.name
        while name in sets:
            name += "'"
        sets[name] = readers.read(path, **options)
    return sets


@contextmanager
def shown(console: Console) -> Iterator[Any]:
    """A callback of training that shows rounds, metrics and time left: a bar, or lines where there is no terminal."""
    columns = (
        SpinnerColumn(), TextColumn("boosting"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[scores]}"),
        TextColumn("{task.fields[left]}"),
    )  # fmt: skip
    live = console.is_terminal and not console.quiet
    with Progress(*columns, console=console, transient=True, disable=not live) as bar:
        line = bar.add_task("boosting", total=None, scores="", left="")

        def show(progress: Rounds) -> bool:
            scores = score_text(progress.scores)
            left = f"{progress.seconds_left:.0f} s left"
            bar.update(line, completed=progress.round, total=progress.rounds, scores=scores, left=left)
            step = max(1, progress.rounds // LINES)
            if (
                not live
                and not progress.interrupted
                and (progress.round % step == 0 or progress.round == progress.rounds)
            ):
                text = f"round {progress.round} of {progress.rounds}, {left}"
                console.print(f"{text}: {scores}" if scores else text, highlight=False)
            return False

        yield show


def score_text(scores: dict[str, dict[str, float]]) -> str:
    """Metrics in one line."""
    return ", ".join(
        f"{name} {metric} {value:.5g}" for name, metrics in scores.items() for metric, value in metrics.items()
    )


def _report(
    task: BoostOptions, model: Model, history: dict[str, dict[str, list[float]]], interrupted: bool, seconds: float
) -> None:
    best = model.best_iteration
    chosen = -1 if best is None else best - model.rounds  # counted from the end: a continued model has more rounds
    scores = {
        name: {metric: values[chosen] for metric, values in metrics.items() if values}
        for name, metrics in history.items()
    }
    report = {
        "output": str(task.output), "rounds": model.rounds, "best_iteration": best, "interrupted": interrupted,
        "features": model.features, "scores": scores, "history": history, "seconds": seconds,
    }  # fmt: skip
    if task.as_json:
        print_json(report)
        return
    parts = [f"{model.rounds} rounds in {seconds:.1f} s"]
    if interrupted:
        parts.append("interrupted")
    if best is not None:
        parts.append(f"best is round {best + 1}")
    if scores:
        parts.append(score_text(scores))
    print(f"{task.output}: {'; '.join(parts)}")
