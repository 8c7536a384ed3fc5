"""The commands for boosted trees: `burnish boost train | predict | inspect`."""

from pathlib import Path
from typing import Annotated

import typer

from burnish.cli.boost_options import BoostOptions, PredictOptions, ReadOptions
from burnish.cli.compile_options import Json
from burnish.cli.options import OptionsOf

DataFile = Annotated[
    Path, typer.Argument(help="A LibSVM, CSV or Parquet file, or a folder of them; also .gz.", show_default=False)
]
ModelFile = Annotated[Path, typer.Argument(help="A model: Burnish's JSON, or XGBoost's.", show_default=False)]


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
