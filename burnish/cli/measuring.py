"""`burnish bench` and `burnish check`: time and accuracy of a compiled model, compared with its peers."""

import importlib.util
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.table import Table

from burnish.cli.compile_options import CompileOptions
from burnish.cli.compiling import compiled, facts, loaded, progress_bar, records_text
from burnish.cli.output import check_input, print_json, print_table
from burnish.driver.check import KernelCheck, check_module
from burnish.driver.check import check as check_kernels
from burnish.driver.compilation import import_graph, stored
from burnish.errors import BurnishError, InputError, ModelError, ParameterError
from burnish.graph.domain import input_domains
from burnish.loops.sizes import hinted
from burnish.measure import peers
from burnish.measure.accuracy import EXACT_TOLERANCE, TOLERANCE, scaled_error
from burnish.measure.samples import module_inputs, random_inputs
from burnish.runtime.executable import TensorSpec

WORST = 5  # rows that `check` prints


def bench(
    model: str,
    vs: str | None,
    onnx: Path | None,
    seconds: float,
    inputs: Path | None,
    seed: int,
    options: CompileOptions,
) -> None:
    """Times a model and the peers of `vs` on the same inputs, in turn, and prints a table."""
    artifact = Path(model) if Path(model).suffix == ".bn" else None
    check_source(artifact, onnx, options)
    names = [name for name in (vs or "").split(",") if name]
    if vs is None and (artifact is None or onnx is not None):
        names = usual_peers()
    for name in names:
        if name not in peers.NAMES:
            raise ParameterError(f"--vs {name}: unknown; allowed: {', '.join(peers.NAMES)}")
        if artifact and onnx is None:
            raise ParameterError(f"--vs {name}: '{model}' is compiled; pass --onnx with the file it was made from")
    if inputs is not None:
        check_input(inputs, "--inputs")
    with onnx_file(str(onnx) if onnx else model) as (path, network):
        module = loaded(artifact, options.threads) if artifact else compiled(path, options)
        threads = module.threads
        arrays = read_inputs(inputs, module.inputs) if inputs else module_inputs(module, seed)
        runs = {"burnish": peers.compiled(module)}
        for name in names:
            runs[name] = (
                peers.torch_eager(network, threads)
                if name == "torch" and network is not None
                else prepare(name, path, threads)
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
        print_json({"model": model, **facts(module), "contenders": rows})
    else:
        print_table(bench_table(f"{model}, {threads} threads", rows))
        if options.records is not None:
            print(records_text(module, options.records))


def usual_peers() -> list[str]:
    """Default peers of a comparison: onnxruntime; where it is not installed none, with a warning."""
    if importlib.util.find_spec("onnxruntime") is not None:
        return ["onnxruntime"]
    warnings.warn('bench: onnxruntime, to time beside, is not installed: pip install "burnish[bench]"', stacklevel=2)
    return []


def bench_table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Table of a comparison: a row for each of ``rows``, by the keys of `compare_models`' results."""
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


def check(
    model: Path, against: str, onnx: Path | None, inputs: Path | None, seed: int, options: CompileOptions
) -> None:
    """Compares a model's answers with a reference, prints the worst, and ends with status 1 if they differ."""
    if against not in ("reference", "onnxruntime"):
        raise ParameterError(f"--against {against}: allowed are reference and onnxruntime")
    artifact = model if model.suffix == ".bn" else None
    check_source(artifact, onnx, options)
    if artifact and onnx is None:
        raise ParameterError(f"check: '{model}' is compiled; pass --onnx with the file that it was made from")
    source = onnx or model
    for path, what in ((source, "model"), (inputs, "--inputs")):
        if path is not None:
            check_input(path, what)
    module = loaded(artifact, options.threads) if artifact else None
    shapes = options.arguments["shapes"]
    if module:
        shapes = {spec.name: tuple(map(hinted, spec.shape)) for spec in module.inputs}
    graph = import_graph(source, shapes, options.arguments["fix"])
    specs = [stored(graph, name, {}) for name in graph.inputs]
    arrays = read_inputs(inputs, specs) if inputs else random_inputs(specs, seed, input_domains(graph))
    if against == "onnxruntime":
        module = module or compiled(source, options)
        expected = prepare("onnxruntime", source, module.threads)(arrays)
        error = scaled_error(peers.compiled(module)(arrays), expected)
        rows = [KernelCheck("all", "the whole model", "", error, EXACT_TOLERANCE if options.exact else TOLERANCE)]
    elif module is not None:
        rows = [check_module(module, graph, arrays)]
    else:
        with progress_bar(options.as_json) as report:
            own = {key: value for key, value in options.arguments.items() if key not in ("shapes", "fix")}
            rows = check_kernels(graph, arrays, records=options.records, progress=report, **own)
    wrong = [row for row in rows if not row.ok]
    if options.as_json:
        found = [asdict(row) for row in rows]
        print_json({"model": str(model), "against": against, "kernels": found, "ok": not wrong})
    else:
        print_table(check_table(rows))
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


def check_source(artifact: Path | None, onnx: Path | None, options: CompileOptions) -> None:
    """Raises ParameterError for an artifact that is no file or comes with options of compiling, or a stray --onnx."""
    if artifact is None and onnx is not None:
        raise ParameterError(f"--onnx {onnx}: allowed with a .bn file, which it was made from")
    if artifact is not None:
        check_input(artifact, "model")
        options.without_compiling(artifact)
    if onnx is not None:
        check_input(onnx, "--onnx")


def prepare(name: str, model: Path, threads: int) -> peers.Run:
    """Peer session of a model. Raises ModelError where the peer does not take the model, for any error of the peer."""
    try:
        return peers.prepare(name, model, threads)
    except BurnishError:
        raise
    except Exception as error:
        raise ModelError(f"{name} does not take '{model}': {error}") from error


@contextmanager
def onnx_file(model: str) -> Iterator[tuple[Path, Any]]:
    """The path of the ONNX file to run, and the torch network it was exported from if MODULE:FUNCTION was given."""
    if Path(model).exists() or not re.fullmatch(r"[\w.]+:\w+", model):
        check_input(Path(model), "model")
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
