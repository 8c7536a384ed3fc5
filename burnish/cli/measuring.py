"""`burnish bench` and `burnish check`: a compiled model beside its peers, in time and in its answers."""

import importlib
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from burnish import peers
from burnish.accuracy import EXACT_TOLERANCE, TOLERANCE, scaled_error
from burnish.check import KernelCheck
from burnish.check import check as check_kernels
from burnish.cli.compiling import Options, compiled, progress_bar
from burnish.cli.output import print_json
from burnish.compiler import import_graph, stored
from burnish.errors import InputError
from burnish.graph.domain import input_domains
from burnish.measure.samples import module_inputs, random_inputs
from burnish.runtime.executable import TensorSpec

WORST = 5  # rows that `check` prints


def bench(model: str, names: Sequence[str], seconds: float, inputs: Path | None, seed: int, options: Options) -> None:
    """Times a model and the peers `names` on the same inputs, in turn, and prints a table."""
    with onnx_file(model) as (path, network):
        module = compiled(path, options)
        threads = module.threads
        arrays = read_inputs(inputs, module.inputs) if inputs else module_inputs(module, seed)
        runs = {"burnish": peers.compiled(module)}
        for name in names:
            runs[name] = (
                peers.torch_eager(network, threads)
                if name == "torch" and network is not None
                else peers.prepare(name, path, threads)
            )
        outputs = runs["burnish"](arrays)
        errors = {name: scaled_error(outputs, runs[name](arrays)) for name in names}
        timings = peers.alternate({name: partial(run, arrays) for name, run in runs.items()}, seconds)
    rows = [
        {
            "name": name,
            "median_ms": timing.median * 1e3,
            "p10_ms": timing.p10 * 1e3,
            "p90_ms": timing.p90 * 1e3,
            "calls": timing.calls,
            "speedup": peers.speedup(timings["burnish"], timing) if name in errors else None,
            "error": errors.get(name),
        }
        for name, timing in timings.items()
    ]
    if options.as_json:
        print_json({"model": model, "threads": threads, "contenders": rows})
    else:
        Console().print(bench_table(f"{model}, {threads} threads", rows))


def bench_table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title)
    table.add_column("")
    for heading in ("median ms", "p10 … p90 ms", "burnish is faster by", "max error / scale"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['median_ms']:.3f}",
            f"{row['p10_ms']:.3f} … {row['p90_ms']:.3f}",
            "" if row["speedup"] is None else f"{row['speedup']:.2f}×",
            "" if row["error"] is None else f"{row['error']:.1e}",
        )
    return table


def check(model: Path, against: str, inputs: Path | None, seed: int, options: Options) -> None:
    """Compares a model's answers with a reference, prints the worst, and ends with status 1 if they differ."""
    if against not in ("reference", "onnxruntime"):
        raise InputError(f"--against {against}: allowed are reference and onnxruntime")
    graph = import_graph(model)
    specs = [stored(graph, name, {}) for name in graph.inputs]
    arrays = read_inputs(inputs, specs) if inputs else random_inputs(specs, seed, input_domains(graph))
    if against == "onnxruntime":
        module = compiled(model, options)
        expected = peers.prepare("onnxruntime", model, module.threads)(arrays)
        error = scaled_error(peers.compiled(module)(arrays), expected)
        rows = [KernelCheck("all", "the whole model", "", error, EXACT_TOLERANCE if options.exact else TOLERANCE)]
    else:
        with progress_bar(options.as_json) as report:
            rows = check_kernels(
                graph, arrays, target=options.target, threads=options.threads, exact=options.exact,
                cache_dir=options.cache_dir, progress=report,
            )  # fmt: skip
    wrong = [row for row in rows if not row.ok]
    if options.as_json:
        found = [asdict(row) for row in rows]
        print_json({"model": str(model), "against": against, "kernels": found, "ok": not wrong})
    else:
        Console().print(check_table(rows))
        print(f"{len(rows) - len(wrong)} of {len(rows)} agree")
    if wrong:
        raise typer.Exit(1)


def check_table(rows: list[KernelCheck]) -> Table:
    """The kernels with the largest errors; all that err too much."""
    table = Table(title="largest errors")
    for heading in ("kernel", "template", "computes", "error / scale", "allowed"):
        table.add_column(heading, justify="right" if heading in ("error / scale", "allowed") else "left")
    worst_first = sorted(rows, key=lambda row: (row.ok, -row.error))
    wrong = sum(not row.ok for row in rows)
    for row in worst_first[: max(WORST, wrong)]:
        table.add_row(row.kernel, row.template, row.nodes, f"{row.error:.1e}", f"{row.allowed:.0e}")
    return table


@contextmanager
def onnx_file(model: str) -> Iterator[tuple[Path, Any]]:
    """The path of the ONNX file to run, and the torch network it was exported from if MODULE:FUNCTION was given."""
    if Path(model).exists() or not re.fullmatch(r"[\w.]+:\w+", model):
        yield Path(model), None
        return
    module_name, function = model.split(":")
    sys.path.insert(0, "")
    try:
        network, arrays = getattr(importlib.import_module(module_name), function)()
    except (ModuleNotFoundError, AttributeError) as error:
        raise InputError(f"{model}: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        peers.export_onnx(network, arrays, path)
        yield path, network


def read_inputs(path: Path, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """The model's inputs from an .npz file, in the model's order."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
    except (OSError, ValueError) as error:
        raise InputError(f"--inputs {path}: {error}") from error
    names = [spec.name for spec in specs]
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InputError(f"--inputs {path}: no array {missing[0]!r}; found {sorted(arrays)}, needed {names}")
    return {name: arrays[name] for name in names}
