"""The commands for models of operators: `burnish compile | tune | bench | check | inspect | plan`."""

from pathlib import Path
from typing import Annotated

import typer

from burnish.cli import clock
from burnish.errors import ParameterError

STRATEGIES = ("burnish", "autotvm", "adatune", "treegru", "random", "genetic")  # burnish.tune.strategy.STRATEGIES
RECORDS = Path("records.jsonl")
PEERS = ("onnxruntime", "openvino", "torch")  # burnish.measure.peers.NAMES, which take a while to import

app = typer.Typer()  # its commands join those of `burnish` itself

OnnxModel = Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)]
Model = Annotated[Path, typer.Argument(help="An ONNX file, or a compiled .bn file.", show_default=False)]
Target = Annotated[str, typer.Option(help="The machine to compile for.")]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target", help="The machine to compile for. Repeatable: one file then holds code for each of these CPUs.",
        show_default="cpu",
    ),
]  # fmt: skip
Threads = Annotated[int | None, typer.Option(min=1, help="Threads to run on. Default: one for each core.")]
Exact = Annotated[bool, typer.Option("--exact", help="No transformation that changes rounding, such as Winograd.")]
Shape = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=EXTENTS", help="An input's shape, such as x=8,3,224,224 or x=n,3,224,224. Repeatable."),
]
Dim = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=N|LOW..HIGH[:N]",
        help="A dimension that the model leaves open: its size, or bounds and the size to suit best. Repeatable.",
    ),
]
Fix = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="An input that never changes, such as sr=16000.")
]
Rewrite = Annotated[bool, typer.Option("--rewrite/--no-rewrite", help="Whether to look for an equal, faster graph.")]
Fuse = Annotated[bool, typer.Option("--fuse/--no-fuse", help="Whether several operators may become one kernel.")]
Records = Annotated[Path | None, typer.Option(help="Tuning records; kernels that won in them are used.")]
CacheDir = Annotated[Path | None, typer.Option(help="Where compiled kernels are kept between runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an output file that is no compiled model.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")]
Inputs = Annotated[Path | None, typer.Option(help="An .npz file with inputs by name, instead of random ones.")]
Onnx = Annotated[Path | None, typer.Option(help="With a .bn file: the ONNX file it was made from.", show_default=False)]


@app.command("compile")
def compile_command(
    model: OnnxModel,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: MODEL with the suffix .bn.")] = None,
    target: Targets = None,
    threads: Threads = None,
    exact: Exact = False,
    shape: Shape = None,
    dim: Dim = None,
    fix: Fix = None,
    rewrite: Rewrite = True,
    fuse: Fuse = True,
    records: Records = None,
    cache_dir: CacheDir = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Compile a model into one file of machine code and parameters. --threads is kept in it."""
    from burnish.cli import compiling  # the compiler takes a second to import, which `--help` need not wait for

    names = target or ["cpu"]
    options = compiling.Options(
        names[0] if len(names) == 1 else names,
        threads,
        exact,
        cache_dir,
        as_json,
        records,
        shape or (),
        rewrite,
        dim or (),
        fix or (),
        fuse,
    )
    compiling.compile_model(model, output or model.with_suffix(".bn"), options, force)


@app.command()
def tune(
    model: OnnxModel,
    seconds: Annotated[float | None, typer.Option(min=1, help="Time to tune. Default: 120 without --trials.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Most candidates to try.")] = None,
    least_gain: Annotated[
        float, typer.Option(min=0, max=1, help="Stop when all the rest should save less than this share of the time.")
    ] = 0.005,
    records: Annotated[Path, typer.Option(help="Where measurements are kept, to go on from.")] = RECORDS,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: MODEL with the suffix .tuned.bn.")
    ] = None,
    strategy: Annotated[str, typer.Option(help=f"One of {', '.join(STRATEGIES)}.")] = "burnish",
    cold: Annotated[
        bool | None, typer.Option("--cold/--hot", help="Weights from memory or from caches. Default: by their size.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    target: Target = "cpu",
    threads: Threads = None,
    exact: Exact = False,
    shape: Shape = None,
    dim: Dim = None,
    fix: Fix = None,
    rewrite: Rewrite = True,
    cache_dir: CacheDir = None,
    device: Annotated[
        str | None, typer.Option(metavar="KIND", help="Measure on boards of this kind; see `burnish device`.")
    ] = None,
    pool: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Their pool. Default: this process's, of the user's table.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The pool's key. Default: beside the table.")] = None,
    owner: Annotated[
        str | None, typer.Option(help="Whose share of the boards it is. Default: user and process.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Of its leases: higher ones come first.")] = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Search for faster kernels on this machine or on boards, and compile the model with them.

    Ctrl-C ends the search and keeps what is found; a second one ends at once, and the records hold all measurements.
    """
    if device is None and (pool, key, owner, priority) != (None, None, None, 0):
        raise ParameterError("tune: found --pool, --key, --owner or --priority; allowed: with --device")
    from burnish.cli import compiling, tuning

    limit = 120.0 if seconds is None and trials is None else seconds
    options = compiling.Options(
        target, threads, exact, cache_dir, as_json, None, shape or (), rewrite, dim or (), fix or ()
    )
    limit = None if limit is None else clock.left(limit)
    settings = tuning.Settings(limit, trials, least_gain, strategy, seed, cold)
    boards = tuning.Boards(device, pool, key, owner, priority) if device else None
    tuning.tune(model, output or model.with_suffix(".tuned.bn"), records, settings, options, force, boards)


@app.command()
def bench(
    model: Annotated[
        str,
        typer.Argument(
            help="An ONNX file, a compiled .bn file, or MODULE:FUNCTION where the function returns a torch.nn.Module "
            "and its inputs, NumPy arrays by name in the order of its arguments.",
            show_default=False,
        ),
    ],
    vs: Annotated[
        str | None,
        typer.Option(help=f"Peers to compare with, of {','.join(PEERS)}. Default: onnxruntime.", show_default=False),
    ] = None,
    onnx: Onnx = None,
    target: Target = "cpu",
    threads: Threads = None,
    exact: Exact = False,
    shape: Shape = None,
    dim: Dim = None,
    fix: Fix = None,
    rewrite: Rewrite = True,
    fuse: Fuse = True,
    records: Records = None,
    cache_dir: CacheDir = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to measure for.")] = 5.0,
    inputs: Inputs = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time a model side by side with other libraries, taking turns in one process.

    A .bn file is timed as it is, beside the peers if --onnx names the file that it was made from.
    """
    from burnish.cli import compiling, measuring

    options = compiling.Options(
        target, threads, exact, cache_dir, as_json, records, shape or (), rewrite, dim or (), fix or (), fuse
    )
    measuring.bench(model, vs, onnx, seconds, inputs, seed, options)


@app.command()
def check(
    model: Model,
    against: Annotated[str, typer.Option(help="reference (every kernel by itself) or onnxruntime.")] = "reference",
    onnx: Onnx = None,
    target: Target = "cpu",
    threads: Threads = None,
    exact: Exact = False,
    shape: Shape = None,
    dim: Dim = None,
    fix: Fix = None,
    rewrite: Rewrite = True,
    fuse: Fuse = True,
    records: Records = None,
    cache_dir: CacheDir = None,
    inputs: Inputs = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare a compiled model's answers with a reference; exit status 1 if they differ.

    A .bn file is compared as a whole, with the model of the ONNX file that --onnx names.
    """
    from burnish.cli import compiling, measuring

    options = compiling.Options(
        target, threads, exact, cache_dir, as_json, records, shape or (), rewrite, dim or (), fix or (), fuse
    )
    measuring.check(model, against, onnx, inputs, seed, options)


@app.command()
def inspect(
    model: Model,
    target: Target = "cpu",
    threads: Threads = None,
    exact: Exact = False,
    shape: Shape = None,
    dim: Dim = None,
    fix: Fix = None,
    rewrite: Rewrite = True,
    fuse: Fuse = True,
    records: Records = None,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Show what a model was compiled to: its graph, its memory plan and its kernels."""
    from burnish.cli import compiling

    options = compiling.Options(
        target, threads, exact, cache_dir, as_json, records, shape or (), rewrite, dim or (), fix or (), fuse
    )
    compiling.inspect(model, options)


@app.command()
def plan(
    model: OnnxModel,
    memory: Annotated[bool, typer.Option("--memory", help="The memory of a training step.")] = False,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="MACHINE",
            help="A strategy for devices: p100:4x4, k80:16x4, host:2, … or a file cluster.toml.",
        ),
    ] = None,
    main_memory: Annotated[
        list[str] | None,
        typer.Option(metavar="BYTES", help="What a call moves between so much main memory and a file. Repeatable."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Of search for a strategy, from the start of the command.")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the search.")] = 0,
    synchronization: Annotated[
        str, typer.Option(help="Sums of gradients: overlapped, or after the step and linear in replicas.")
    ] = "overlapped",
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Links and operations are timed on this machine's cores, and the plan as well."),
    ] = False,
    pipelines: Annotated[
        bool, typer.Option("--pipelines/--no-pipelines", help="Whether pipelines of micro-batches are looked for, too.")
    ] = True,
    sparse: Annotated[bool, typer.Option("--sparse", help="Gradients of picked rows are summed as rows.")] = False,
    byte_penalty: Annotated[
        float, typer.Option(min=0, help="Nanoseconds that a transferred byte counts in the search.")
    ] = 0.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file for the strategy, which `burnish train` reads.")
    ] = None,
    timeline: Annotated[Path | None, typer.Option(help="A file for a picture of the predicted step (.svg).")] = None,
    annotations: Annotated[
        Path | None,
        typer.Option(help="A file for placements of PyTorch's DTensor (.json), where these can say it."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an output file of another kind.")] = False,
    budget: Annotated[
        list[str] | None, typer.Option(metavar="BYTES", help="A budget, such as 2GB or 512MiB. Repeatable.")
    ] = None,
    loss: Annotated[str, typer.Option(help="The loss between the output and labels.")] = "softmax_cross_entropy",
    momentum: Annotated[float, typer.Option(min=0, max=1, help="Of stochastic gradient descent.")] = 0.9,
    solve: Annotated[float, typer.Option(min=0, help="Seconds for an integer program, if operations are few.")] = 0.0,
    target: Target = "cpu",
    exact: Exact = False,
    shape: Shape = None,
    dim: Dim = None,
    fix: Fix = None,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Plan a training step: its memory by each strategy and within budgets, or its parallel execution on devices; or a
    call within so much main memory, beside a file.
    """
    from burnish.cli import compiling, paging, planning

    asked = {"--memory": memory, "--devices": devices is not None, "--main-memory": bool(main_memory)}
    if sum(asked.values()) != 1:
        found = " and ".join(name for name, given in asked.items() if given) or "none"
        raise ParameterError(f"plan: found {found}; allowed: one of --memory, --devices MACHINE, --main-memory BYTES")
    options = compiling.Options(target, None, exact, cache_dir, as_json, None, shape or (), False, dim or (), fix or ())
    if main_memory:
        paging.plan(model, main_memory, options)
        return
    if devices is None:
        planning.plan(model, budget or (), loss, momentum, solve, options)
        return
    from burnish.cli import strategies

    wanted = strategies.Wanted(
        model, devices, seconds, seed, synchronization, sparse, byte_penalty, output, timeline, annotations, force,
        measure, pipelines, loss,
    )  # fmt: skip
    strategies.plan(wanted, options)
