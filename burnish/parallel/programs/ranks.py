"""Compilation of a plan: the executable of every device, whose steps compute its part and exchange messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from burnish.driver.assembly import assemble, pack_parameters
from burnish.driver.compilation import MakeKernel, Progress, compile_kernels
from burnish.driver.recompute import call_seconds, kept_in_order, recomputation_facts
from burnish.driver.side_by_side import arena_bytes
from burnish.driver.stages import Compilation, MessageStage
from burnish.errors import ParameterError, PlanError
from burnish.graph.fuse import Group
from burnish.graph.graph import Graph
from burnish.machines.target import Target
from burnish.parallel.programs.messages import check_messages, with_messages
from burnish.parallel.programs.pipelined import pipeline_programs
from burnish.parallel.programs.plans import Stages, TensorSplits
from burnish.parallel.programs.program import BUCKET, DeviceProgram, facts_of, programs
from burnish.parallel.programs.side_by_side import between_messages, message_points
from burnish.pipeline import kernel as kernels
from burnish.runtime.buffers import ALIGNMENT, round_up
from burnish.runtime.executable import Executable
from burnish.train.step import Train, training_graph


@dataclass(frozen=True)
class Settings:
    """Compilation settings of programs. ``bucket``: bytes of gradients on a device after which their sums are sent;
    ``make``: what makes a kernel of a task (``kernel.outline``: without machine code, to plan memory).
    """

    exact: bool = False
    cache_dir: str | Path | None = None
    bucket: int = BUCKET
    progress: Progress | None = None
    make: MakeKernel = kernels.build


DEFAULT = Settings()


@dataclass(frozen=True, eq=False)
class RankPrograms:
    """The programs of all devices for a step of training, with their kernels."""

    step: Graph
    programs: tuple[DeviceProgram, ...]
    made: tuple[Compilation, ...]
    recomputed: tuple[Mapping[str, Any] | None, ...] = ()  # what a module notes of it, a device; none: () or None

    @property
    def memory(self) -> list[dict[str, int]]:
        """Bytes of each device by use, the keys those of ``RankStep.memory``: ``arena`` (activations and gradients),
        ``params`` (constants), ``state`` (parameters and what the optimizer remembers), ``messages``.
        """
        return [device_memory(program, made) for program, made in zip(self.programs, self.made, strict=True)]

    def within(self, memory: int | None) -> RankPrograms:
        """Programs within a memory limit of bytes a device, by recomputation where it must be; None: no limit.

        Raises PlanError naming a device that needs more.
        """
        if memory is None:
            return self
        found = [_within(p, m, memory) for p, m in zip(self.programs, self.made, strict=True)]
        return replace(self, made=tuple(made for made, _ in found), recomputed=tuple(facts for _, facts in found))

    def executables(self) -> list[Executable]:
        """One executable a device. Raises PlanError where they would wait for each other."""
        found = []
        for program, compiled in zip(self.programs, self.made, strict=True):
            facts = facts_of(self.step, self.programs, program.rank)
            found.append(with_messages(assemble(compiled), program, message_points(compiled), facts))
        check_messages(found)
        pairs = zip(found, self.recomputed or [None] * len(found), strict=True)
        return [e if not notes else replace(e, info={**e.info, "recomputation": dict(notes)}) for e, notes in pairs]


def rank_programs(
    graph: Graph,
    train: Train | None,
    plan: TensorSplits | Stages,
    devices: int,
    target: Target,
    settings: Settings = DEFAULT,
) -> RankPrograms:
    """The programs of a model's step of training by a plan: splits of its tensors, or the stages of a pipeline; of its
    inference, by splits, without ``train``.

    Raises PlanError for a plan that does not fit, UnsupportedOperator, and TargetError.
    """
    step = graph if train is None else training_graph(graph, train)
    if isinstance(plan, TensorSplits):
        return split_programs(step, plan, devices, target, settings)
    if train is None:
        raise PlanError("a pipeline of inference; allowed: splits")
    compiled = partial(_compiled, target=target, settings=settings)
    found = pipeline_programs(graph, step, train, plan, devices, settings.bucket, compiled)
    return RankPrograms(step, tuple(program for program, _ in found), tuple(made for _, made in found)).within(
        plan.memory
    )


def split_programs(
    step: Graph, plan: TensorSplits, devices: int, target: Target, settings: Settings = DEFAULT
) -> RankPrograms:
    """The programs of a graph, of inference or of a training step, and the splits of some of its tensors."""
    found = programs(step, plan.splits, devices, settings.bucket, plan.inner)
    made = tuple(_compiled(program.graph, target, settings) for program in found)
    return RankPrograms(step, found, made).within(plan.memory)


def compile_ranks(
    graph: Graph, plan: TensorSplits, devices: int, target: Target, *, bucket: int = BUCKET
) -> list[Executable]:
    """One executable a device for a graph, of inference or of a training step, and the splits of some of its tensors.

    Raises PlanError for splits that do not fit, UnsupportedOperator, and TargetError.
    """
    return split_programs(graph, plan, devices, target, Settings(bucket=bucket)).executables()


def rank_memory(
    graph: Graph, plan: TensorSplits, devices: int, target: Target, *, bucket: int = BUCKET
) -> list[dict[str, int]]:
    """Bytes of each device by use before anything is compiled to machine code: see :attr:`RankPrograms.memory`.

    Programs are made, fused and scheduled, which tells how weights are packed, and their values placed in an arena.
    The graph, plan and errors are those of :func:`compile_ranks`.
    """
    return split_programs(graph, plan, devices, target, Settings(bucket=bucket, make=kernels.outline)).memory


def plan_memory(
    graph: Graph,
    train: Train | None,
    plan: TensorSplits | Stages,
    devices: int,
    target: Target,
    settings: Settings = DEFAULT,
) -> list[dict[str, int]]:
    """The same of a step, with arguments and errors of :func:`rank_programs`."""
    return rank_programs(graph, train, plan, devices, target, replace(settings, make=kernels.outline)).memory


def device_memory(program: DeviceProgram, made: Compilation) -> dict[str, int]:
    """Bytes of a device's program by use, of which those of the arena are as it will be placed."""
    params, _ = pack_parameters(made.stages, made.constants)
    graph = program.graph
    states = {graph.outputs[state.output] for state in graph.states.values()}
    received = {message.tensor for message in program.receipts}
    moved = [*received, *(name for name in dict.fromkeys(graph.outputs) if name not in states)]
    return {
        "arena": arena_bytes(made),
        "params": params.nbytes,
        "state": sum(round_up(graph.types[name].nbytes, ALIGNMENT) for name in graph.states),
        "messages": sum(graph.types[name].nbytes for name in moved) + _under_way(made),
    }


def _under_way(made: Compilation) -> int:
    """The most bytes of messages that are copied to be sent, one to each worker at most."""
    sent: dict[int, int] = {}
    most = 0
    for step in made.calls:
        if isinstance(step, MessageStage) and step.sends:
            sent[step.peer] = step.type.nbytes
            most = max(most, sum(sent.values()))
    return most


def kept_bytes(memory: Mapping[str, int]) -> int:
    """Bytes that a device needs for a plan: all but machine code and threads' scratch."""
    return sum(memory.get(use, 0) for use in ("arena", "params", "state", "messages"))


def _within(program: DeviceProgram, made: Compilation, memory: int) -> tuple[Compilation, Mapping[str, Any] | None]:
    """The compilation of a device that needs at most ``memory`` bytes, and what was planned for that."""
    needed = device_memory(program, made)
    if kept_bytes(needed) <= memory:
        return made, None
    own = kept_in_order(made, call_seconds(made.graph, made.target))
    budget = memory - kept_bytes(needed) + needed["arena"]
    try:
        found = own.planner().within(max(budget, 0))
    except ParameterError as error:
        rest = kept_bytes(needed) - needed["arena"]
        raise PlanError(f"device {program.rank}: {memory} bytes, {rest} of them for what lasts; {error}") from error
    return own.ordered(found.order), recomputation_facts(own.work, found, budget)


def _compiled(graph: Graph, target: Target, settings: Settings) -> Compilation:
    made = compile_kernels(graph, target, settings.exact, settings.cache_dir, settings.progress, make=settings.make)
    return in_order(made, graph)


def in_order(made: Compilation, graph: Graph) -> Compilation:
    """The compilation with its steps in the order of the graph's nodes, which passes over it may have changed: in it no
    device waits for a message before it has sent what others need to send that.
    """
    at = {name: number for number, node in enumerate(graph.nodes) for name in node.outputs}
    for number, node in reversed([*enumerate(graph.nodes)]):
        at.update((name, number) for name in node.inputs if name in graph.inputs and name not in graph.states)
    groups = [step if isinstance(step, Group) else step.group for step in made.steps]
    producer = {name: number for number, group in enumerate(groups) for name in group.outputs}
    keys = [max((at[name] for name in group.outputs if name in at), default=len(at)) for group in groups]
    for number in reversed(range(len(groups))):  # what a step reads comes before it, a packed weight just before
        for name in groups[number].inputs:
            if name in producer:
                keys[producer[name]] = min(keys[producer[name]], keys[number])
    order = sorted(range(len(groups)), key=lambda number: (keys[number], number))
    return between_messages(replace(made, steps=tuple(made.steps[number] for number in order), concurrent=()))
