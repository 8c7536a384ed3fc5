"""The command `burnish train`."""

from pathlib import Path
from typing import Annotated

import typer

from burnish.cli.models import CacheDir, Exact, Fix, Json, OnnxModel, Shape, Threads

LOSSES = (
    "softmax_cross_entropy",
    "squared",
    "binary_logistic",
)  # of burnish.train.losses, which take a while to import
METRICS = ("accuracy", "binary_accuracy", "absolute_error")  # of burnish.train.evaluation
OPTIMIZERS = ("sgd", "adam", "adamw")

app = typer.Typer()  # its command joins those of `burnish` itself


@app.command("train")
def train_command(
    model: OnnxModel,
    data: Annotated[
        Path,
        typer.Option(help="An .npz file with arrays of rows, by the names of the model's inputs and 'label'."),
    ],
    loss: Annotated[str, typer.Option(help=f"One of {', '.join(LOSSES)}, and others of docs.")] = LOSSES[0],
    optimizer: Annotated[str, typer.Option(help=f"One of {', '.join(OPTIMIZERS)}.")] = "adamw",
    rate: Annotated[float | None, typer.Option(min=0, help="The learning rate. Default: the optimizer's.")] = None,
    momentum: Annotated[float | None, typer.Option(min=0, max=1, help="Of sgd alone. Default: 0.9.")] = None,
    weight_decay: Annotated[float | None, typer.Option(min=0, help="Default: the optimizer's.")] = None,
    schedule: Annotated[
        str, typer.Option(help="How the rate moves: constant, step:EVERY[:RATIO], cosine[:LEAST] or linear[:LEAST].")
    ] = "constant",
    warm_up: Annotated[int, typer.Option(min=0, help="Updates in which the rate rises from 0.")] = 0,
    clip_norm: Annotated[float | None, typer.Option(help="Most that the norm of all gradients may be.")] = None,
    clip_value: Annotated[float | None, typer.Option(help="Most that an element of a gradient may be.")] = None,
    accumulate: Annotated[int, typer.Option(min=1, help="Batches whose mean gradient makes one update.")] = 1,
    precision: Annotated[
        str | None, typer.Option(help="bfloat16 or float16: products in half precision. Default: float32.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data. Default: 1 without --steps.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Batches to train on.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Rows of a batch, where the model leaves it open.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of rows.")] = 0,
    shuffle: Annotated[bool, typer.Option("--shuffle/--no-shuffle", help="Whether rows are shuffled.")] = True,
    valid: Annotated[Path | None, typer.Option(help="An .npz file to evaluate with.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(METRICS)}. Repeatable.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(min=1, help="Batches. Default: after each epoch.")] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="End after so many evaluations without a smaller loss.")
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="A folder for checkpoints.")] = None,
    save_every: Annotated[int | None, typer.Option(min=1, help="Batches. Default: after each epoch.")] = None,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints that stay.")] = 2,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint, if there is one.")
    ] = False,
    memory_budget: Annotated[
        str | None, typer.Option(help="Most memory that a step may take, such as 2GB.", show_default=False)
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="A strategy of `burnish plan --devices`, by which --ranks devices train; auto: searched for, with "
            "costs measured here."
        ),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Processes that train, each a device of the plan.")] = 1,
    ranks_on: Annotated[
        str, typer.Option(help="What ranks are: process or thread here, torch (gloo), or ray (a cluster's actors).")
    ] = "process",
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Whether some steps by data parallelism are timed as well.")
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The trained model: .onnx, or .bn for a compiled one. Default: MODEL.trained.onnx."
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="A file for losses, evaluations and memory: JSON, or pictures (.html).")
    ] = None,
    threads: Threads = None,
    exact: Exact = False,
    shape: Shape = None,
    fix: Fix = None,
    cache_dir: CacheDir = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an output file that is no model.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model on rows of data and write it with its new weights.

    Ctrl-C ends training after the batch under way, with a checkpoint and what is trained so far; a second one at once.
    """
    from burnish.cli import fitting  # the compiler takes a second to import, which `--help` need not wait for

    recipe = fitting.Recipe(
        loss, optimizer, rate, momentum, weight_decay, schedule, warm_up, clip_norm, clip_value, accumulate, precision,
        memory_budget,
    )  # fmt: skip
    task = fitting.Task(
        model, data, valid, output or model.with_suffix(".trained.onnx"), report, recipe, epochs, steps, batch, seed,
        shuffle, tuple(metric or ()), evaluate_every, patience, checkpoint, save_every, keep, resume, force, as_json,
        {"threads": threads, "exact": exact, "cache_dir": cache_dir}, tuple(shape or ()), tuple(fix or ()),
        fitting.Ranks(plan, ranks, ranks_on, compare),
    )  # fmt: skip
    fitting.train(task)
