"""`burnish boost predict`: the rows of a file to predictions in a file, a bounded number of rows at a time."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from burnish.boost import Dataset, Model, readers
from burnish.boost import predict as boosted
from burnish.cli.boost_options import READING
from burnish.cli.output import check_input, check_output, print_json
from burnish.errors import DataError, ParameterError

ROWS = 1 << 16  # predicted at a time


def run(
    model_file: Path, data: Path, output: Path | None, chosen: Sequence[str], options: dict[str, Any], as_json: bool
) -> None:
    """Predicts `chosen` ("margin", "leaf" or "contributions"; none is predictions) and writes them."""
    began = time.perf_counter()
    if len(chosen) > 1:
        raise ParameterError(f"--{chosen[0]} and --{chosen[1]}: found both; allowed is one of them")
    if output is not None and output.suffix not in (".csv", ".npy"):
        raise ParameterError(f"--output {output}: allowed are names that end in .csv or .npy")
    if output is None and as_json:
        raise ParameterError("--json: needs --output, as predictions go to standard output without it")
    check_input(model_file, "model")
    if output is not None:
        check_output(output, inputs=[model_file, data])
    kind = chosen[0] if chosen else "prediction"
    model = Model.load(model_file)
    console = Console(stderr=True, quiet=as_json or output is None)
    parts = _predictions(model, kind, data, _settled(model, data, options))
    with console.status(f"predicting {data}"):
        rows = (
            _write_array(parts, output)
            if output and output.suffix == ".npy"
            else _write_text(model, kind, parts, output)
        )
    report = {"output": str(output), "rows": rows, "kind": kind, "seconds": time.perf_counter() - began}
    if as_json:
        print_json(report)
    elif output is not None:
        print(f"{output}: {kind} of {rows} rows in {report['seconds']:.1f} s")


def _settled(model: Model, data: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Reading options that find the model's features in the file and skip its other columns."""
    saved = json.loads(model.attributes.get(READING, "{}"))
    options = options | {"categories": model.categories, "policy": model.category_policy}
    roles = ("label", "weight", "qid")
    if readers.kind_of(data, options["format"]) == "libsvm":
        first = options["first_index"]
        first = saved.get("first_index") if first is None else first
        return options | {"features": model.features, "first_index": first}
    names, fields = readers.columns_of(
        data, **{key: options[key] for key in ("format", "header", "separator", "missing")}
    )
    if names and model.feature_names:  # of the rest, nothing is needed
        return options | {"columns": model.feature_names} | dict.fromkeys(roles) | {"ignore": []}
    given = [options[role] for role in roles if options[role] is not None] + list(options["ignore"])
    if not given and fields > model.features:
        given = [saved[role] for role in roles if saved.get(role) is not None] + list(saved.get("ignore", ()))
        given = [column for column in given if isinstance(column, int) or column in names]
    return options | dict.fromkeys(roles) | {"ignore": given}


def _predictions(model: Model, kind: str, data: Path, options: dict[str, Any]) -> Iterator[NDArray[Any]]:
    """Predictions of the file's rows in parts, each (rows, columns)."""
    for part in readers.chunks(data, ROWS, **options):
        if part.features != model.features:
            raise DataError(f"{data}: found {part.features} features; allowed is {model.features}, as in training")
        yield _predicted(model, kind, part, options["threads"])


def _predicted(model: Model, kind: str, part: Dataset, threads: int | None) -> NDArray[Any]:
    if kind == "contributions":
        from burnish.boost import shap

        found = shap.contributions(model, part)
    else:
        found = boosted(model, part, output=kind, threads=threads)
    return found.reshape(part.rows, -1)


def headings(model: Model, kind: str, columns: int) -> list[str]:
    """Names of the columns of predictions."""
    if kind == "contributions":
        names = [*model.names, "bias"]
        return names if model.outputs == 1 else [f"{name}_{k}" for k in range(model.outputs) for name in names]
    return [kind] if columns == 1 else [f"{kind}_{number}" for number in range(columns)]


def _write_text(model: Model, kind: str, parts: Iterator[NDArray[Any]], output: Path | None) -> int:
    """Writes CSV with a header; numbers have the fewest digits that give them back exactly. Returns the rows."""
    rows = 0
    with contextlib.ExitStack() as stack:
        file: TextIO = sys.stdout if output is None else stack.enter_context(output.open("w", encoding="utf-8"))
        for part in parts:
            if not rows:
                file.write(",".join(map(_field, headings(model, kind, part.shape[1]))) + "\n")
            file.write("".join(",".join(line) + "\n" for line in part.astype(str).tolist()))
            rows += len(part)
    return rows


def _field(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\n\r') else name


def _write_array(parts: Iterator[NDArray[Any]], output: Path) -> int:
    whole = np.concatenate(list(parts))
    np.save(output, whole[:, 0] if whole.shape[1] == 1 else whole, allow_pickle=False)
    return len(whole)
