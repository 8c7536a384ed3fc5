"""`burnish train`: options of training a model on rows of data."""

from typing import Annotated, Any

from burnish.cli.compile_options import CompileOptions, OnnxModel
from burnish.cli.options import ChoiceOf, OptionsOf
from burnish.cli.signatures import Declaration
from burnish.cli.train_options import DataOptions, OutputOptions, RankOptions, RateOptions
from burnish.train.losses import LOSSES
from burnish.train.optimizers import OPTIMIZERS, Optimizer
from burnish.train.step import Train


def train(
    model: OnnxModel,
    rows: Annotated[DataOptions, OptionsOf(choices={"metric": Declaration("burnish.train.evaluation:METRICS")})],
    recipe: Annotated[
        Train,
        OptionsOf(omit=("optimizer", "parameters", "seed", "schedule", "skip_nonfinite"), choices={"loss": LOSSES}),
    ],
    optimizer: Annotated[Optimizer, ChoiceOf(OPTIMIZERS, "adamw", {"momentum": 0.9})],
    rates: RateOptions,
    limits: Annotated[dict[str, Any], OptionsOf(Declaration("burnish.fitting.loop:TrainingLimits"))],
    ranks: RankOptions,
    written: OutputOptions,
    options: Annotated[
        CompileOptions, OptionsOf(only=("threads", "exact", "shapes", "dims", "fixed", "cache_dir", "as_json"))
    ],
) -> None:
    """Train a model on rows of data and write it with its new weights. Without --epochs and --steps, for one epoch.

    Ctrl-C ends training after the batch under way, with a checkpoint and what is trained so far; a second one at once.
    """
    from burnish.cli import training  # the trainer takes two seconds to import, which `--help` need not wait for

    training.train(model, rows, recipe, optimizer, rates, limits, ranks, written, options)
