"""The commands for models of operators: `burnish compile | bench | check | inspect`."""

import importlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import burnish as bn
from burnish import peers
from burnish.accuracy import scaled_error
from burnish.check import EXACT_TOLERANCE, TOLERANCE, KernelCheck
from burnish.check import check as check_kernels
from burnish.cli.output import print_json
from burnish.compiler import import_graph, stored
from burnish.errors import InputError
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.executable import TensorSpec

WORST = 5  # rows that `check` prints

app = typer.Typer()  # its commands join those of `burnish` itself

Model = Annotated[str, typer.Argument(help="An ONNX file, or a compiled .bn file.", show_default=False)]
Target = Annotated[str, typer.Option(help="The machine to compile for.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads to run on. Default: one for each core.")]
Exact = Annotated[bool, typer.Option("--exact", help="No transformation that changes rounding, such as Winograd.")]
CacheDir = Annotated[Path | None, typer.Option(help="Where compiled kernels are kept between runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seed = Annotated[int, typer.Option(help="Seed of the random inputs.")]
Inputs = Annotated[Path | None, typer.Option(help="An .npz file with inputs by name, instead of random ones.")]


@app.command("compile")
def compile_command(
    model: Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: MODEL with the suffix .bn.")] = None,
    target: Target = "cpu",
    threads: Threads = None,
    exact: Exact = False,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Compile a model into one file of machine code and parameters."""
    output = output or model.with_suffix(".bn")
    module = compiled(model, target, threads, exact, cache_dir, quiet=as_json)
    module.save(output)
    if as_json:
        print_json({"output": str(output), "bytes": output.stat().st_size, "memory": module.memory})
    else:
        print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; {memory_text(module)}")


@app.command()
def bench(
    model: Annotated[
        str,
        typer.Argument(
            help="An ONNX file, or MODULE:FUNCTION where the function returns a torch.nn.Module and its inputs, "
            "NumPy arrays by name in the order of its arguments.",
            show_default=False,
        ),
    ],
    vs: Annotated[str, typer.Option(help=f"Peers to compare with, out of {','.join(peers.NAMES)}.")] = "onnxruntime",
    target: Target = "cpu",
    threads: Threads = None,
    exact: Exact = False,
    cache_dir: CacheDir = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to measure for.")] = 5.0,
    inputs: Inputs = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time a model side by side with other libraries, taking turns in one process."""
    names = [name for name in vs.split(",") if name]
    with onnx_file(model) as (path, network):
        module = compiled(path, target, threads, exact, cache_dir, quiet=as_json)
        threads = module.threads
        arrays = read_inputs(inputs, module.inputs) if inputs else random_inputs(module.inputs, seed)
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
    if as_json:
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


@app.command()
def check(
    model: Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)],
    against: Annotated[str, typer.Option(help="reference (every kernel by itself) or onnxruntime.")] = "reference",
    target: Target = "cpu",
    threads: Threads = None,
    exact: Exact = False,
    cache_dir: CacheDir = None,
    inputs: Inputs = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare a compiled model's answers with a reference; exit status 1 if they differ."""
    if against not in ("reference", "onnxruntime"):
        raise InputError(f"--against {against}: allowed are reference and onnxruntime")
    graph = import_graph(model)
    specs = [stored(graph, name, {}) for name in graph.inputs]
    arrays = read_inputs(inputs, specs) if inputs else random_inputs(specs, seed)
    if against == "onnxruntime":
        module = compiled(model, target, threads, exact, cache_dir, quiet=as_json)
        expected = peers.prepare("onnxruntime", model, module.threads)(arrays)
        error = scaled_error(peers.compiled(module)(arrays), expected)
        rows = [KernelCheck("all", "the whole model", "", error, EXACT_TOLERANCE if exact else TOLERANCE)]
    else:
        with progress_bar(as_json) as report:
            rows = check_kernels(
                graph, arrays, target=target, threads=threads, exact=exact, cache_dir=cache_dir, progress=report
            )
    wrong = [row for row in rows if not row.ok]
    if as_json:
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


@app.command()
def inspect(
    model: Model,
    target: Target = "cpu",
    threads: Threads = None,
    exact: Exact = False,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Show what a model was compiled to: its graph, its memory plan and its kernels."""
    path = Path(model)
    if path.suffix == ".bn":
        module = bn.load(path)
    else:
        module = compiled(path, target, threads, exact, cache_dir, quiet=as_json)
    calls = module.executable.calls
    info = dict(module.executable.info)
    if as_json:
        kernels = [{"kernel": call.kernel, "node": call.node} for call in calls]
        print_json({"graph": module.graph, "memory": module.memory, "kernels": kernels, "info": info})
        return
    print(module.graph)
    print(memory_text(module))
    for key, value in info.items():
        print(f"{key}: {value}")
    print(f"{len(calls)} kernel calls:")
    for call in calls:
        print(f"  {call.kernel}  {call.node}")


def memory_text(module: bn.Module) -> str:
    """The module's memory in one line."""
    return ", ".join(f"{part} {nbytes / 1e6:.2f} MB" for part, nbytes in module.memory.items())


def compiled(
    model: Path, target: str, threads: int | None, exact: bool, cache_dir: Path | None, quiet: bool
) -> bn.Module:
    """Compiles the model with a progress bar on the terminal's error stream."""
    with progress_bar(quiet) as report:
        return bn.compile(model, target=target, threads=threads, exact=exact, cache_dir=cache_dir, progress=report)


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A callback (stage, steps done, steps in all) that draws one bar, which disappears at the end."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as progress:
        task = progress.add_task("compiling", total=None)

        def report(stage: str, done: int, total: int) -> None:
            progress.update(task, description=stage, completed=done, total=total)

        yield report


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


def random_inputs(specs: Sequence[TensorSpec], seed: int) -> dict[str, np.ndarray]:
    """Standard normal floats, and integers 0 or 1, which are valid indices into anything that has two entries."""
    random = np.random.default_rng(seed)
    arrays = {}
    for spec in specs:
        floating = "float" in spec.dtype
        values = random.standard_normal(spec.shape) if floating else random.integers(0, 2, spec.shape)
        arrays[spec.name] = np.asarray(values).astype(numpy_dtype(spec.dtype))
    return arrays


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
