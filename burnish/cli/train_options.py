"""Groups of options of `burnish train`: data, rates, devices and files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from burnish.base.arguments import check_count


@dataclass(frozen=True)
class DataOptions:
    """Training and evaluation data.

    ``data``: an .npz file with arrays of rows, by the names of the model's inputs and 'label'. ``validation_data``: an
    .npz file to evaluate with. ``metric``: what is evaluated with the loss. ``batch``: rows of a batch, where the
    model leaves it open, by default 32, or all if there are fewer. ``seed``: of the order of rows. ``shuffle``:
    whether rows are shuffled.
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
