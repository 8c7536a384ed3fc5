"""The commands for boosted trees: `burnish boost train | predict | inspect`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Train boosted trees on files, predict with them, look into them.", no_args_is_help=True)


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


Data = Annotated[
    Path, typer.Argument(help="A LibSVM, CSV or Parquet file, or a folder of them; also .gz.", show_default=False)
]
ModelFile = Annotated[Path, typer.Argument(help="A model: Burnish's JSON, or XGBoost's.", show_default=False)]
FileFormat = Annotated[
    Format | None, typer.Option("--format", help="Default: by the suffix, or the first line.", show_default=False)
]
Label = Annotated[str | None, typer.Option(help="Column of the label, by name or number from 0 (CSV, Parquet).")]
Weight = Annotated[str | None, typer.Option(help="Column of the rows' weights.")]
Qid = Annotated[str | None, typer.Option(help="Column of the rows' queries, for ranking.")]
Ignore = Annotated[list[str] | None, typer.Option(help="A column to leave out. Repeatable.")]
Categorical = Annotated[list[str] | None, typer.Option(help="A column whose values are categories. Repeatable.")]
Missing = Annotated[
    list[str] | None, typer.Option(help="A text or number that stands for a missing value. Repeatable.")
]
Header = Annotated[
    bool | None, typer.Option("--header/--no-header", help="Whether CSV files have one. Default: looks.")
]
Separator = Annotated[str | None, typer.Option(help="Of CSV fields. Default: looks.")]
FirstIndex = Annotated[int | None, typer.Option(min=0, max=1, help="First feature of LibSVM files. Default: looks.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads to run on. Default: one for each core.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def reading(
    format: Format | None,
    label: str | None,
    weight: str | None,
    qid: str | None,
    ignore: list[str] | None,
    missing: list[str] | None,
    header: bool | None,
    separator: str | None,
    first_index: int | None,
    threads: int | None,
) -> dict[str, Any]:
    """Options of `burnish.boost.readers` from those of the command line."""
    return {
        "format": None if format is None else str(format),
        "label": column(label),
        "weight": column(weight),
        "qid": column(qid),
        "ignore": [column(one) for one in ignore or ()],
        "missing": missing or [],
        "header": header,
        "separator": {"tab": "\t", "\\t": "\t"}.get(separator or "", separator),
        "first_index": first_index,
        "threads": threads,
    }


def column(name: str | None) -> int | str | None:
    """A column by number if the text is one."""
    return int(name) if name is not None and name.isdecimal() else name


@app.command()
def train(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.")] = Path("model.json"),
    label: Label = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", help="NAME=VALUE, by the names of XGBoost, LightGBM, scikit-learn. Repeatable."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=0, help="Boosting rounds. Default: 100.")] = None,
    valid: Annotated[list[Path] | None, typer.Option(help="A file to evaluate after each round. Repeatable.")] = None,
    early_stopping: Annotated[
        int | None, typer.Option(min=1, help="Stop when the last --valid has not improved for so many rounds.")
    ] = None,
    continue_from: Annotated[
        Path | None, typer.Option("--continue", metavar="MODEL", help="A model whose rounds come first.")
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help="Train out of core within so much memory, such as 512M or 2G.")
    ] = None,
    folder: Annotated[
        list[Path] | None, typer.Option(help="With --memory-budget: where blocks are kept meanwhile. Repeatable.")
    ] = None,
    weight: Weight = None,
    qid: Qid = None,
    ignore: Ignore = None,
    categorical: Categorical = None,
    policy: Annotated[Policy, typer.Option(help="What a category is that training has not seen.")] = Policy.ERROR,
    missing: Missing = None,
    format: FileFormat = None,
    header: Header = None,
    separator: Separator = None,
    first_index: FirstIndex = None,
    threads: Threads = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an output file that is no model.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model. Ctrl-C keeps the rounds that are finished."""
    from burnish.cli import training  # numba takes a while to import, which `--help` need not wait for

    options = reading(format, label, weight, qid, ignore, missing, header, separator, first_index, threads)
    options |= {"categorical": [column(one) for one in categorical or ()], "policy": str(policy)}
    task = training.Task(
        data=data,
        output=output,
        params=training.parameters(param or []),
        rounds=rounds,
        valid=valid or [],
        early_stopping=early_stopping,
        continue_from=continue_from,
        memory_budget=None if memory_budget is None else training.parse_bytes(memory_budget),
        folders=folder or [],
        options=options,
        quiet=as_json,
        force=force,
    )
    training.run(task)


@app.command()
def predict(
    model: ModelFile,
    data: Data,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .csv or .npy file. Default: CSV on standard output.")
    ] = None,
    margin: Annotated[bool, typer.Option("--margin", help="Margins, before the objective's transform.")] = False,
    leaf: Annotated[bool, typer.Option("--leaf", help="The leaf of every tree.")] = False,
    contributions: Annotated[
        bool,
        typer.Option("--contributions", help="What each feature adds to the margin (TreeSHAP); the last is the bias."),
    ] = False,
    label: Label = None,
    weight: Weight = None,
    qid: Qid = None,
    ignore: Ignore = None,
    missing: Missing = None,
    format: FileFormat = None,
    header: Header = None,
    separator: Separator = None,
    first_index: FirstIndex = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Predict the rows of a file, a bounded number at a time. Columns are found by the names that training knew."""
    from burnish.cli import predicting

    chosen = [name for name, on in (("margin", margin), ("leaf", leaf), ("contributions", contributions)) if on]
    options = reading(format, label, weight, qid, ignore, missing, header, separator, first_index, threads)
    predicting.run(model, data, output, chosen, options, as_json)


@app.command()
def inspect(
    model: ModelFile,
    tree: Annotated[list[int] | None, typer.Option(min=0, help="Print this tree, from 0. Repeatable.")] = None,
    most: Annotated[int, typer.Option(min=0, help="Features to list, the most important first.")] = 20,
    as_json: Json = False,
) -> None:
    """Show a model's parameters, the importance of its features, and its trees."""
    from burnish.cli import inspecting

    inspecting.run(model, tree or [], most, as_json)
