"""Options of `burnish boost`: how files are read, what training and prediction are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.cli.compile_options import Json, Threads

READING = "reading"  # the model's attribute that keeps how its training files were read, as JSON


class FileFormat(StrEnum):
    """File formats of training data."""

    LIBSVM = "libsvm"
    CSV = "csv"
    PARQUET = "parquet"


class Policy(StrEnum):
    """Policy for a category that training has not seen."""

    ERROR = "error"
    MISSING = "missing"
    OTHER = "other"


@dataclass(frozen=True)
class ReadOptions:
    """Reading options of data files; ``arguments`` are those of `burnish.boost.readers`.

    ``label``: column of the label, by name or number from 0 (CSV, Parquet). ``weight``: column of the rows' weights.
    ``qid``: column of the rows' queries, for ranking. ``ignore``: a column to leave out. ``categorical``: a column
    whose values are categories. ``policy``: what a category is that training has not seen. ``missing``: a text or
    number that stands for a missing value. ``format``: by default as the suffix says, or the first line. ``header``:
    whether CSV files have one, by default as they look. ``separator``: of CSV fields, by default as they look.
    ``first_index``: the first feature of LibSVM files, 0 or 1, by default as they look.
    """

    label: str | None = None
    weight: str | None = None
    qid: str | None = None
    ignore: Sequence[str] | None = None
    categorical: Sequence[str] | None = None
    policy: Policy = Policy.ERROR
    missing: Sequence[str] | None = None
    format: FileFormat | None = None
    header: bool | None = None
    separator: str | None = None
    first_index: Annotated[int | None, typer.Option(min=0, max=1)] = None
    threads: Threads = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments that all functions of the readers take."""
        return {
            "format": None if self.format is None else str(self.format),
            "label": column(self.label),
            "weight": column(self.weight),
            "qid": column(self.qid),
            "ignore": [column(one) for one in self.ignore or ()],
            "missing": self.missing or [],
            "header": self.header,
            "separator": {"tab": "\t", "\\t": "\t"}.get(self.separator or "", self.separator),
            "first_index": self.first_index,
            "threads": self.threads,
        }

    @property
    def training(self) -> dict[str, Any]:
        """Arguments of the readers for training: also columns of categories, and the policy for unknown ones."""
        categorical = [column(one) for one in self.categorical or ()]
        return {**self.arguments, "categorical": categorical, "policy": str(self.policy)}


@dataclass(frozen=True)
class BoostOptions:
    """Options of `burnish boost train`, except its data and how they are read.

    ``output``: the model file to write. ``param``: NAME=VALUE, by the names of XGBoost, LightGBM, scikit-learn.
    ``rounds``: boosting rounds, 100 by default. ``validation_data``: a file to evaluate after each round.
    ``early_stopping``: rounds without a better score of the last --validation-data after which training stops.
    ``continue_from``: a model whose rounds come first. ``memory_budget``: trains out of core within this much memory,
    such as 512M or 2G. ``folder``: where blocks are kept meanwhile, with --memory-budget. ``force``: replaces an output
    file that is no model.
    """

    output: Annotated[Path, typer.Option("--output", "-o")] = Path("model.json")
    param: Annotated[list[str] | None, typer.Option("--param", "-p")] = None
    rounds: Annotated[int | None, typer.Option(min=0)] = None
    validation_data: Sequence[Path] | None = None
    early_stopping: Annotated[int | None, typer.Option(min=1)] = None
    continue_from: Annotated[Path | None, typer.Option("--continue", metavar="MODEL")] = None
    memory_budget: str | None = None
    folder: Sequence[Path] | None = None
    force: bool = False
    as_json: Json = False


@dataclass(frozen=True)
class PredictOptions:
    """Outputs of `burnish boost predict` for each row: predictions, or one of these.

    ``margin``: margins, before the objective's transform. ``leaf``: the leaf of every tree. ``contributions``: what
    each feature adds to the margin (TreeSHAP), and at last the bias.
    """

    margin: bool = False
    leaf: bool = False
    contributions: bool = False
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Makes ``names``, of those that are asked for."""
        chosen = tuple(name for name in ("margin", "leaf", "contributions") if getattr(self, name))
        object.__setattr__(self, "names", chosen)


def column(name: str | None) -> int | str | None:
    """A column by number if the text is one."""
    return int(name) if name is not None and name.isdecimal() else name
