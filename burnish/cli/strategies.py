"""`burnish plan --devices`: a parallel strategy for a training step, and what is predicted of it."""

import json
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from burnish.cli import clock
from burnish.cli.compiling import Options
from burnish.cli.output import check_input, check_output, is_json, print_json, print_table
from burnish.driver.calibration import Ranks
from burnish.driver.parallel_plan import Plan
from burnish.driver.planned import plan as find_plan
from burnish.files import write_atomic
from burnish.memory.sizes import text_of
from burnish.parallel.export_torch import torch_annotations
from burnish.parallel.search import PlanObjective
from burnish.train.step import Train


@dataclass(frozen=True)
class Wanted:
    """What the command was asked for."""

    model: Path
    devices: str
    seconds: float
    seed: int
    synchronization: str
    sparse: bool
    byte_penalty: float
    output: Path | None
    timeline: Path | None
    annotations: Path | None
    force: bool
    measure: bool = False
    pipelines: bool = True
    loss: str = "softmax_cross_entropy"


def plan(wanted: Wanted, options: Options) -> None:
    """Searches, writes the files that were asked for, and prints the plan."""
    check_input(wanted.model, "model")
    for path, option, is_ours in (
        (wanted.output, "--output", _is_strategy),
        (wanted.timeline, "--timeline", _is_picture),
        (wanted.annotations, "--annotations", is_json),
    ):
        if path is not None:
            check_output(path, option, inputs=[wanted.model], is_ours=is_ours, force=wanted.force)
    found = find_plan(
        str(wanted.model), wanted.devices, seconds=wanted.seconds, seed=wanted.seed,
        synchronization=wanted.synchronization, sparse=wanted.sparse, objective=PlanObjective(wanted.byte_penalty),
        shapes=options.arguments["shapes"], measure=_ranks(wanted, options), pipelines=wanted.pipelines,
        deadline=clock.began() + wanted.seconds,
    )  # fmt: skip
    exported = torch_annotations(found.model, found.machine, found.strategy)
    texts = {
        wanted.output: found.text, wanted.timeline: found.timeline.svg,
        wanted.annotations: lambda: _json(exported.as_json()),
    }  # fmt: skip
    for path, text in texts.items():
        if path is not None:
            write_atomic(path, [text().encode()])
    if options.as_json:
        print_json({"model": str(wanted.model), **found.as_json(), "torch": exported.as_json()})
        return
    print(found.text())
    print(found.timeline.text())
    print_table(_comparison(found))
    print_table(_memory(found))
    print(summary(found))
    print(exported.statement())


def _ranks(wanted: Wanted, options: Options) -> bool | Ranks:
    """How costs and the plan are measured, if they shall be."""
    given = options.arguments
    return (
        Ranks(train=Train(wanted.loss), exact=given["exact"], cache_dir=given["cache_dir"]) if wanted.measure else False
    )


def summary(found: Plan) -> str:
    """The time of a step beside its bound, the alternatives that were considered, and if it is data parallelism."""
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
    table = Table(title=f"a training step on {found.machine.name}")
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


def _json(value: object) -> str:
    return json.dumps(value, indent=1)


def _is_strategy(path: Path) -> bool:
    """Whether a file is a strategy, or empty."""
    text = path.read_bytes()[:16]
    return not text or text.startswith(b"strategy of ")


def _is_picture(path: Path) -> bool:
    """Whether a file is a picture, or empty."""
    text = path.read_bytes()[:4]
    return not text or text == b"<svg"
