"""The command `burnish train`: its options are the fields of `burnish.Train`, of optimizers and of `Limits`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.arguments import check_count
from burnish.cli.compile_options import CompileOptions, OnnxModel
from burnish.cli.options import ChoiceOf, OptionsOf
from burnish.train.evaluation import METRICS
from burnish.train.loop import Limits
from burnish.train.losses import LOSSES
from burnish.train.optimizers import OPTIMIZERS, Optimizer
from burnish.train.step import Train


@dataclass(frozen=True)
class DataOptions:
    """What is trained on and evaluated with.

    ``data``: an .npz file with arrays of rows, by the names of the model's inputs and 'label'. ``valid``: an .npz file
    to evaluate with. ``metric``: what is evaluated beside the loss. ``batch``: rows of a batch, where the model leaves
    it open. ``seed``: of the order of rows. ``shuffle``: whether rows are shuffled.
    """

    data: Path
    valid: Path | None = None
    metric: Sequence[str] | None = None
    batch: int | None = None
    seed: int = 0
    shuffle: bool = True


@dataclass(frozen=True)
class RateOptions:
    """How the learning rate moves.

    ``schedule``: one of constant, step:EVERY[:RATIO], cosine[:LEAST] or linear[:LEAST]. ``warm_up``: updates in which
    the rate rises from 0.
    """

    schedule: str = "constant"
    warm_up: int = 0


@dataclass(frozen=True)
class RankOptions:
    """The devices that train.

    ``plan``: a strategy of `burnish plan devices`, by which --ranks devices train, or auto for one that is searched for
    with costs measured here, by default data parallelism. ``ranks``: processes that train, each a device of the plan.
    ``ranks_on``: what ranks are, process or thread here, torch (gloo), or ray (a cluster's actors). ``compare``:
    whether some steps by data parallelism are timed as well.
    """

    plan: Path | None = None
    ranks: int = 1
    ranks_on: str = "process"
    compare: bool = True

    def __post_init__(self) -> None:
        """Raises ParameterError for no rank."""
        check_count("--ranks", self.ranks, 1)

    @property
    def is_auto(self) -> bool:
        """Whether a plan is to be searched for."""
        return self.plan is not None and str(self.plan) == "auto"


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


def train(
    model: OnnxModel,
    rows: Annotated[DataOptions, OptionsOf(choices={"metric": METRICS})],
    recipe: Annotated[
        Train, OptionsOf(omit=("optimizer", "parameters", "seed", "schedule", "guard"), choices={"loss": LOSSES})
    ],
    optimizer: Annotated[Optimizer, ChoiceOf(OPTIMIZERS, "adamw", {"momentum": 0.9})],
    rates: RateOptions,
    limits: Annotated[dict[str, Any], OptionsOf(Limits)],
    ranks: RankOptions,
    written: OutputOptions,
    options: Annotated[CompileOptions, OptionsOf(only=("threads", "exact", "shapes", "fixed", "cache_dir", "as_json"))],
) -> None:
    """Train a model on rows of data and write it with its new weights. Without --epochs and --steps, for one epoch.

    Ctrl-C ends training after the batch under way, with a checkpoint and what is trained so far; a second one at once.
    """
    from burnish.cli import model_training  # the compiler takes a while to import, which `--help` need not wait for

    epochs = 1 if limits["epochs"] is None and limits["steps"] is None else limits["epochs"]
    written = replace(written, output=written.output or model.with_suffix(".trained.onnx"))
    recipe = replace(recipe, optimizer=optimizer)
    task = model_training.TrainTask(
        model, rows, recipe, rates, Limits(**{**limits, "epochs": epochs}), ranks, written, options
    )
    model_training.train(task)
