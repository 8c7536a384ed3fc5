"""The commands for boosted trees: `burnish boost train | predict | inspect`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.cli.compile_options import Json, Threads
from burnish.cli.options import OptionsOf

READING = "reading"  # the model's attribute that keeps how its training files were read, as JSON


class Format(StrEnum):
    """File formats of training data."""

    LIBSVM = "libsvm"
    CSV = "csv"
    PARQUET = "parquet"


class Policy(StrEnum):
    """What becomes of a category that training has not seen."""

    ERROR = "error"
    MISSING = "missing"
    OTHER = "other"


DataFile = Annotated[
    Path, typer.Argument(help="A LibSVM, CSV or Parquet file, or a folder of them; also .gz.", show_default=False)
]
ModelFile = Annotated[Path, typer.Argument(help="A model: Burnish's JSON, or XGBoost's.", show_default=False)]


@dataclass(frozen=True)
class ReadOptions:
    """How files of data are read; ``arguments`` are those of `burnish.boost.readers`.

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
    format: Format | None = None
    header: bool | None = None
    separator: str | None = None
    first_index: Annotated[int | None, typer.Option(min=0, max=1)] = None
    threads: Threads = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Those that all functions of the readers take."""
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
        """Those that training takes, too: columns of categories, and what becomes of unknown ones."""
        categorical = [column(one) for one in self.categorical or ()]
        return {**self.arguments, "categorical": categorical, "policy": str(self.policy)}


@dataclass(frozen=True)
class BoostOptions:
    """What `burnish boost train` is asked for, beside its data and how they are read.

    ``output``: the model file to write. ``param``: NAME=VALUE, by the names of XGBoost, LightGBM, scikit-learn.
    ``rounds``: boosting rounds, 100 by default. ``valid``: a file to evaluate after each round. ``early_stopping``:
    rounds without a better score of the last --valid after which training stops. ``continue_from``: a model whose
    rounds come first. ``memory_budget``: trains out of core within this much memory, such as 512M or 2G. ``folder``:
    where blocks are kept meanwhile, with --memory-budget. ``force``: replaces an output file that is no model.
    """

    output: Annotated[Path, typer.Option("--output", "-o")] = Path("model.json")
    param: Annotated[list[str] | None, typer.Option("--param", "-p")] = None
    rounds: Annotated[int | None, typer.Option(min=0)] = None
    valid: Sequence[Path] | None = None
    early_stopping: Annotated[int | None, typer.Option(min=1)] = None
    continue_from: Annotated[Path | None, typer.Option("--continue", metavar="MODEL")] = None
    memory_budget: str | None = None
    folder: Sequence[Path] | None = None
    force: bool = False
    as_json: Json = False


@dataclass(frozen=True)
class PredictOptions:
    """What `burnish boost predict` writes of each row: predictions, or one of these.

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


def train(data: DataFile, boosting: BoostOptions, reading: ReadOptions) -> None:
    """Train a model. Ctrl-C keeps the rounds that are finished."""
    from burnish.cli import boost_training  # numba takes a while to import, which `--help` need not wait for

    boost_training.run(data, boosting, reading.training)


def predict(
    model: ModelFile,
    data: DataFile,
    chosen: PredictOptions,
    reading: Annotated[ReadOptions, OptionsOf(omit=("categorical", "policy"))],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .csv or .npy file. Default: CSV on standard output.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the rows of a file, a bounded number at a time. Columns are found by the names that training knew."""
    from burnish.cli import boost_predicting

    boost_predicting.run(model, data, output, chosen.names, reading.arguments, as_json)


def inspect(
    model: ModelFile,
    tree: Annotated[list[int] | None, typer.Option(min=0, help="Print this tree, from 0. Repeatable.")] = None,
    most: Annotated[int, typer.Option(min=0, help="Features to list, the most important first.")] = 20,
    as_json: Json = False,
) -> None:
    """Show a model's parameters, the importance of its features, and its trees."""
    from burnish.cli import boost_inspecting

    boost_inspecting.run(model, tree or [], most, as_json)
