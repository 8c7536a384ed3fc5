"""The commands for models of operators: `burnish compile | tune | bench | check | inspect`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.cli.compile_options import BoardOptions, CompileOptions, Force, Model, OnnxModel
from burnish.cli.options import OptionsOf
from burnish.cli.signatures import Declaration

RECORDS = Path("records.jsonl")
PEERS = ("onnxruntime", "openvino", "torch")  # burnish.measure.peers.NAMES, which take a while to import

Seed = Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")]
Inputs = Annotated[Path | None, typer.Option(help="An .npz file with inputs by name, instead of random ones.")]
Onnx = Annotated[Path | None, typer.Option(help="With a .bn file: the ONNX file it was made from.", show_default=False)]


def compile_command(
    model: OnnxModel,
    options: Annotated[CompileOptions, OptionsOf(omit=("target",))],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: MODEL with the suffix .bn.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="The machine to compile for. Repeatable: one file then holds code for each of these CPUs.",
            show_default="cpu",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Compile a model into one file of machine code and parameters. --threads is kept in it."""
    from burnish.cli import compiling  # the compiler takes a second to import, which `--help` need not wait for

    names = target or ["cpu"]
    options = replace(options, target=names[0] if len(names) == 1 else names)
    compiling.compile_model(model, output or model.with_suffix(".bn"), options, force)


def tune(
    model: OnnxModel,
    search: Annotated[
        dict[str, Any],
        OptionsOf(
            Declaration("burnish.tune.session:Tune"),
            defaults={"seconds": None},
            names={"cold": "--cold/--hot"},
            choices={"strategy": Declaration("burnish.tune.strategy:STRATEGIES")},
        ),
    ],
    boards: BoardOptions,
    options: Annotated[CompileOptions, OptionsOf(omit=("records", "fuse"))],
    records: Annotated[Path, typer.Option(help="Where measurements are kept, to go on from.")] = RECORDS,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: MODEL with the suffix .tuned.bn.")
    ] = None,
    force: Force = False,
) -> None:
    """Search for faster kernels on this machine or on boards, and compile the model with them.

    Without --seconds and --trials, for 120 seconds. Ctrl-C ends the search and keeps what is found, with exit status
    130; a second one ends at once, without a model, and the records hold all measurements.
    """
    from burnish.cli import tuning

    tuning.tune(model, search, boards, options, records, output or model.with_suffix(".tuned.bn"), force)


def bench(
    model: Annotated[
        str,
        typer.Argument(
            help="An ONNX file, a compiled .bn file, or MODULE:FUNCTION where the function returns a torch.nn.Module "
            "and its inputs, NumPy arrays by name in the order of its arguments.",
            show_default=False,
        ),
    ],
    options: CompileOptions,
    vs: Annotated[
        str | None,
        typer.Option(
            help=f"Peers to compare with, of {','.join(PEERS)}. Default: onnxruntime, if it is installed.",
            show_default=False,
        ),
    ] = None,
    onnx: Onnx = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to measure for.")] = 5.0,
    inputs: Inputs = None,
    seed: Seed = 0,
) -> None:
    """Time a model side by side with other libraries, taking turns in one process.

    A .bn file is timed as it is, alternating with the peers if --onnx names the file that it was made from.
    """
    from burnish.cli import measuring

    measuring.bench(model, vs, onnx, seconds, inputs, seed, options)


def check(
    model: Model,
    options: CompileOptions,
    against: Annotated[str, typer.Option(help="reference (every kernel by itself) or onnxruntime.")] = "reference",
    onnx: Onnx = None,
    inputs: Inputs = None,
    seed: Seed = 0,
) -> None:
    """Compare a compiled model's answers with a reference; exit status 1 if they differ.

    A .bn file is compared as a whole, with the model of the ONNX file that --onnx names.
    """
    from burnish.cli import measuring

    measuring.check(model, against, onnx, inputs, seed, options)


def inspect(model: Model, options: CompileOptions) -> None:
    """Show what a model was compiled to: its graph, its memory plan and its kernels."""
    from burnish.cli import compiling

    compiling.inspect(model, options)


def export(
    model: Model,
    options: CompileOptions,
    c: Annotated[Path, typer.Option("--c", metavar="FOLDER", help="The folder of the C library.", show_default=False)],
    name: Annotated[
        str | None, typer.Option(help="What all symbols of the library begin with. Default: the folder's name.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(help="Of a .bn file with code for several CPUs: which.", show_default=False)
    ] = None,
) -> None:
    """Write a C library of a model: an archive, a shared library, a C header and a C++ wrapper.

    A program that links it needs neither Python nor LLVM. A .bn file may be of another CPU than this one.
    """
    from burnish.cli import compiling

    compiling.export(model, c, name, variant, options)


def run(
    model: Model,
    options: CompileOptions,
    inputs: Inputs = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="An .npz file for the outputs by name.", show_default=False)
    ] = None,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Compute a model's outputs on the arrays of an .npz file, else on random ones."""
    from burnish.cli import reporting

    reporting.run(model, inputs, output, seed, force, options)


def profile(
    model: Model,
    options: CompileOptions,
    inputs: Inputs = None,
    trace: Annotated[
        Path | None, typer.Option(help="A file of Chrome trace events, for Perfetto.", show_default=False)
    ] = None,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Measure each kernel's time and its roofline bound, at rates measured on this machine."""
    from burnish.cli import reporting

    reporting.show_profile(model, inputs, trace, seed, force, options)


def report(
    model: OnnxModel,
    options: CompileOptions,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: MODEL with the suffix .html.")] = None,
    inputs: Inputs = None,
    check: Annotated[bool, typer.Option("--check", help="Compare every kernel with the reference, too.")] = False,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Write one page of HTML about how a model was compiled, and how long its kernels take.

    It shows the graph after every pass, kernels beside their roofline bounds, memory over time, substitutions, and
    errors. It needs nothing from elsewhere, and works offline.
    """
    from burnish.cli import reporting

    reporting.report(model, output or model.with_suffix(".html"), inputs, check, seed, force, options)
