"""The commands for models of operators: `burnish compile | tune | bench | check | inspect`."""

from pathlib import Path
from typing import Annotated

import typer

STRATEGIES = ("burnish", "autotvm", "adatune", "treegru", "random", "genetic")  # burnish.tune.strategy.STRATEGIES
RECORDS = Path("records.jsonl")
PEERS = ("onnxruntime", "openvino", "torch")  # burnish.peers.NAMES, which take a while to import

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
    records: Annotated[Path | None, typer.Option(help="Tuning records; kernels that won in them are used.")] = None,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Compile a model into one file of machine code and parameters."""
    from burnish.cli import compiling  # the compiler takes a second to import, which `--help` need not wait for

    output = output or model.with_suffix(".bn")
    compiling.compile_model(model, output, compiling.Options(target, threads, exact, cache_dir, as_json, records))


@app.command()
def tune(
    model: Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)],
    seconds: Annotated[float | None, typer.Option(min=1, help="Time to tune. Default: 120 without --trials.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Most candidates to try.")] = None,
    least_gain: Annotated[
        float, typer.Option(min=0, max=1, help="Stop when all the rest should save less than this share of the time.")
    ] = 0.005,
    records: Annotated[Path, typer.Option(help="Where measurements are kept, to go on from.")] = RECORDS,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: MODEL with the suffix .bn.")] = None,
    strategy: Annotated[str, typer.Option(help=f"One of {', '.join(STRATEGIES)}.")] = "burnish",
    cold: Annotated[
        bool | None, typer.Option("--cold/--hot", help="Weights from memory or from caches. Default: by their size.")
    ] = None,
    seed: Seed = 0,
    target: Target = "cpu",
    threads: Threads = None,
    exact: Exact = False,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Search for faster kernels on this machine and compile the model with them. Ctrl-C keeps what is found."""
    from burnish.cli import compiling, tuning

    limit = 120.0 if seconds is None and trials is None else seconds
    options = compiling.Options(target, threads, exact, cache_dir, as_json)
    settings = tuning.Settings(limit, trials, least_gain, strategy, seed, cold)
    tuning.tune(model, output or model.with_suffix(".bn"), records, settings, options)


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
    vs: Annotated[str, typer.Option(help=f"Peers to compare with, out of {','.join(PEERS)}.")] = "onnxruntime",
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
    from burnish.cli import compiling, measuring

    options = compiling.Options(target, threads, exact, cache_dir, as_json)
    measuring.bench(model, [name for name in vs.split(",") if name], seconds, inputs, seed, options)


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
    from burnish.cli import compiling, measuring

    options = compiling.Options(target, threads, exact, cache_dir, as_json)
    measuring.check(model, against, inputs, seed, options)


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
    from burnish.cli import compiling

    compiling.inspect(Path(model), compiling.Options(target, threads, exact, cache_dir, as_json))
