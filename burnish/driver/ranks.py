"""Compilation of a plan: the executable of every device, whose steps compute its part and exchange messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from burnish.driver.assembly import assemble, live_values
from burnish.driver.compilation import Progress, compile_kernels
from burnish.driver.stages import Compilation
from burnish.graph.fuse import Group
from burnish.graph.graph import Graph
from burnish.memory.pieces import Place
from burnish.parallel.messages import Points, check_messages, with_messages
from burnish.parallel.plans import Splits
from burnish.parallel.program import BUCKET, Program, facts_of, programs
from burnish.runtime.executable import Executable
from burnish.target import Target


def compile_ranks(
    graph: Graph,
    plan: Splits,
    devices: int,
    target: Target,
    *,
    exact: bool = False,
    cache_dir: str | Path | None = None,
    bucket: int = BUCKET,
    progress: Progress | None = None,
) -> list[Executable]:
    """One executable a device for a graph, of inference or of a training step, and the splits of some of its tensors.

    ``bucket``: bytes of gradients on a device after which their sums are sent. Raises PlanError for splits that do not
    fit, UnsupportedOperator, and TargetError.
    """
    found = programs(graph, plan.splits, devices, bucket, plan.inner)
    made = []
    for program in found:
        compiled = in_order(compile_kernels(program.graph, target, exact, cache_dir, progress), program)
        facts = facts_of(graph, found, program.rank)
        made.append(with_messages(assemble(compiled), program, message_points(compiled), facts))
    check_messages(made)
    return made


def in_order(made: Compilation, program: Program) -> Compilation:
    """The compilation with its steps in the order of the program's nodes, which passes over the graph may have changed:
    in it no device waits for a message before it has sent what others need to send that.
    """
    place = {name: number for number, node in enumerate(program.graph.nodes) for name in node.outputs}
    for message in program.receipts:
        reads = [n for n, node in enumerate(program.graph.nodes) if message.tensor in node.inputs]
        place[message.tensor] = min(reads, default=len(place))
    groups = [step if isinstance(step, Group) else step.group for step in made.steps]
    producer = {name: number for number, group in enumerate(groups) for name in group.outputs}
    keys = [max((place[name] for name in group.outputs if name in place), default=len(place)) for group in groups]
    for number in reversed(range(len(groups))):  # what a step reads comes before it, a packed weight just before
        for name in groups[number].inputs:
            if name in producer:
                keys[producer[name]] = min(keys[producer[name]], keys[number])
    order = sorted(range(len(groups)), key=lambda number: (keys[number], number))
    return replace(made, steps=tuple(made.steps[number] for number in order))


def message_points(made: Compilation) -> Points:
    """Where the steps of a compilation write the outputs and read the inputs that callers give."""
    graph = made.graph
    home = live_values(made)[2]
    written: dict[str, int] = {}
    read: dict[str, int] = {}
    for number, step in enumerate(made.computed):
        for name in step.group.outputs:
            written[home.get(name, Place(name)).buffer] = number
        for name in step.group.inputs:
            read.setdefault(home.get(name, Place(name)).buffer, number)
    after = {state.output for state in graph.states.values()}
    outputs = [name for i, name in enumerate(graph.outputs) if i not in after]
    inputs = [name for name in graph.inputs if name not in graph.states]
    places = [home.get(name, Place(name)).buffer for name in outputs]
    return Points([written.get(place) for place in places], [read.get(name) for name in inputs])
