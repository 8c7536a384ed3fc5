"""`burnish plan devices`: a parallel strategy for a step of training or inference, and what is predicted of it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from burnish.base.files import write_atomic
from burnish.base.sizes import text_of
from burnish.cli import clock
from burnish.cli.compile_options import CompileOptions, PlanFiles
from burnish.cli.output import begins, check_input, check_output, is_json, is_svg, print_json, print_table
from burnish.fitting.planned import plan as find_plan
from burnish.parallel.programs.calibration import LaunchConfig
from burnish.parallel.programs.export_torch import torch_annotations
from burnish.parallel.programs.parallel_plan import Plan
from burnish.parallel.simulate.search import PlanObjective
from burnish.train.optimizers import Adam
from burnish.train.step import Train


def plan(
    model: Path,
    devices: str,
    search: dict[str, Any],
    files: PlanFiles,
    train: Train,
    options: CompileOptions,
    measure: bool,
    inference: bool,
    byte_penalty: float,
) -> None:
    """Prints a plan and writes its files. Raises ParameterError, PlanError."""
    check_input(model, "model")
    _check(files, [model])
    step = None if inference else train if measure else replace(train, optimizer=Adam())  # two arrays a parameter
    ranks = LaunchConfig(train=step, exact=options.exact, cache_dir=options.cache_dir)
    found = find_plan(
        str(model), train=step, devices=devices, **search, objective=PlanObjective(byte_penalty),
        measure=ranks if measure else False, shapes=options.arguments["shapes"],
        deadline=clock.began() + search["seconds"],
    )  # fmt: skip
    exported = torch_annotations(found.model, found.machine, found.strategy)
    texts = {
        files.output: found.text, files.timeline: found.timeline.svg,
        files.annotations: lambda: json.dumps(exported.as_json(), indent=1),
    }  # fmt: skip
    for path, text in texts.items():
        if path is not None:
            write_atomic(path, [text().encode()])
    if options.as_json:
        print_json({"model": str(model), **found.as_json(), "torch": exported.as_json()})
        return
    print(found.text())
    print(found.timeline.text())
    print_table(_comparison(found))
    print_table(_memory(found))
    print(summary(found))
    print(exported.statement())


def _check(files: PlanFiles, inputs: Sequence[Path]) -> None:
    """Raises ParameterError unless all can be written."""
    for path, option, is_ours in (
        (files.output, "--output", begins(b"strategy of ")),
        (files.timeline, "--timeline", is_svg),
        (files.annotations, "--annotations", is_json),
    ):
        if path is not None:
            check_output(path, option, inputs=inputs, is_ours=is_ours, force=files.force)


def summary(found: Plan) -> str:
    """Summary of a plan: time of a step and its bound, the alternatives considered, and if it is data parallelism."""
    words = f"{found.milliseconds:.3f} ms a step, predicted"
    if found.bound is not None:
        words += f"; no strategy of this space takes less than {found.bound.ns / 1e6:.3f} ms: a gap of {found.gap:.1%}"
    words += f"\nthe plan: {found.why}"
    how = f"searched for {found.seconds:.1f} s, {found.trials} trials, ended: {found.stop_reason}"
    if found.measured:
        how += "\nmeasured: " + ", ".join(f"{name} {ms:.3f} ms a step" for name, ms in found.measured.items())
        used = min(found.measured, key=lambda name: found.measured[name])
        how += f": {'data parallelism' if found.is_data_parallel else 'the ' + used} is the plan"
    elif found.is_data_parallel:
        how += "; nothing was found that is faster than data parallelism, which is the plan"
    return f"{words}\n{how}"


def _comparison(found: Plan) -> Table:
    what = "inference" if found.train is None else "a training step"
    table = Table(title=f"{what} on {found.machine.name}")
    for heading in ("strategy", "ms", "of the plan's"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    table.add_row("plan", f"{found.milliseconds:.3f}", "1.00")
    for name, ms in found.baselines.items():
        fits = ms != float("inf")
        table.add_row(name, f"{ms:.3f}" if fits else "no room", f"{ms / found.milliseconds:.2f}" if fits else "")
    return table


def _memory(found: Plan) -> Table:
    table = Table(title="memory of devices")
    for heading in ("device", "needed", "there is", "busy"):
        table.add_column(heading, justify="left" if heading == "device" else "right")
    busy = found.timeline.busy()
    for number, (device, nbytes) in enumerate(zip(found.machine.devices, found.memory, strict=True)):
        nbytes = found.allocated[number] if found.allocated else nbytes
        needed, limit = text_of(int(nbytes)), text_of(int(device.memory))
        table.add_row(f"{number} {device.kind}", needed, limit, f"{busy[number]:.0%}")
    return table
