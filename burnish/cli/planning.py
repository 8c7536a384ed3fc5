"""The commands that plan before anything runs: `burnish plan memory | devices | paging`."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from burnish.cli.compile_options import CompileOptions, OnnxModel, PlanFiles
from burnish.cli.options import OptionsOf
from burnish.cli.signatures import Declaration
from burnish.train.losses import LOSSES
from burnish.train.optimizers import SGD
from burnish.train.step import Train

# What plans takes seconds to import, which `--help` need not wait for.


def memory(
    model: OnnxModel,
    train: Annotated[Train, OptionsOf(only=("loss",), choices={"loss": LOSSES})],
    optimizer: Annotated[SGD, OptionsOf(only=("momentum",), defaults={"momentum": 0.9})],
    options: Annotated[
        CompileOptions, OptionsOf(only=("target", "exact", "shapes", "dims", "fixed", "cache_dir", "as_json"))
    ],
    memory_budget: Annotated[
        list[str] | None, typer.Option(metavar="BYTES", help="A budget, such as 2GB or 512MiB. Repeatable.")
    ] = None,
    solve: Annotated[float, typer.Option(min=0, help="Seconds for an integer program, if operations are few.")] = 0.0,
) -> None:
    """Plan the memory of a training step: each strategy, budgets, and live memory over time.

    A budget that cannot be kept is a row that says so, and then an error.
    """
    from burnish.cli import plan_memory

    plan_memory.plan(model, replace(train, optimizer=optimizer), options, memory_budget or (), solve)


def devices(
    model: OnnxModel,
    machine: Annotated[
        str,
        typer.Argument(
            metavar="MACHINE", help="Devices: p100:4x4, k80:16x4, host:2, … or a file cluster.toml.", show_default=False
        ),
    ],
    search: Annotated[
        dict[str, Any],
        OptionsOf(
            Declaration("burnish.fitting.planned:plan"),
            only=("seconds", "seed", "synchronization", "sparse", "recompute", "pipelines"),
            least={"seed": 0},
        ),
    ],
    files: PlanFiles,
    train: Annotated[Train, OptionsOf(only=("loss",), choices={"loss": LOSSES})],
    options: Annotated[CompileOptions, OptionsOf(only=("exact", "shapes", "dims", "cache_dir", "as_json"))],
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Links and operations are timed on this machine's cores, and the plan as well."),
    ] = False,
    inference: Annotated[
        bool, typer.Option("--inference", help="It is inference that is planned, in place of a step of training.")
    ] = False,
    byte_penalty: Annotated[
        float, typer.Option(min=0, help="Nanoseconds that a transferred byte counts in the search.")
    ] = 0.0,
) -> None:
    """Search for a parallel strategy of a step on devices that need not be there: time, memory, bound."""
    from burnish.cli import plan_devices

    plan_devices.plan(model, machine, search, files, train, options, measure, inference, byte_penalty)


def paging(
    model: OnnxModel,
    memory_budget: Annotated[
        list[str], typer.Option(metavar="BYTES", help="Of main memory, such as 20MB. Repeatable.")
    ],
    options: Annotated[
        CompileOptions, OptionsOf(only=("target", "exact", "shapes", "dims", "fixed", "cache_dir", "as_json"))
    ],
) -> None:
    """Plan and make a call within a budget of main memory, paging to a file: the bytes that each planner moves.

    A budget in which a kernel does not fit is a row that says so, and then an error.
    """
    from burnish.cli import plan_paging

    plan_paging.plan(model, memory_budget, options)
