"""Compilation of a pipeline: each stage's kernels once, their calls for every micro-batch in the order of 1F1B.

What a stage keeps of a micro-batch lies in the arena from its forward pass to its backward pass, messages too, so what
is alive follows from the order alone: of ``stages - stage`` micro-batches at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from burnish.driver.recompute import call_seconds, training_step
from burnish.driver.stages import Built, Compilation, KernelStage, MessageStage, NestedStage, RepeatStage
from burnish.errors import PlanError
from burnish.graph.fuse import Group, renamed_everywhere
from burnish.graph.graph import Graph, Node, StateUpdate, TensorType
from burnish.loops.layout import Layout
from burnish.memory.pieces import Place
from burnish.ops.part import Box, whole
from burnish.parallel.programs.plans import Stages
from burnish.parallel.programs.program import DeviceProgram, programs
from burnish.parallel.programs.side_by_side import between_messages
from burnish.parallel.programs.stages import (
    StageEdge,
    StageGraph,
    StageGraphs,
    grads_of,
    one_forward_one_backward,
    total_of,
)
from burnish.train.step import Train

Compile = Callable[[Graph], Compilation]


def pipeline_programs(
    graph: Graph, step: Graph, train: Train, plan: Stages, devices: int, bucket: int, compiled: Compile
) -> list[tuple[DeviceProgram, Compilation]]:
    """Pipeline programs, one a device, with the compilation in which their messages are steps.

    ``graph``: the model; ``step``: its training step, which says what is given. ``compiled``: makes the kernels of a
    graph, in the order of its nodes. Raises PlanError for what a pipeline cannot do, and for other devices.
    """
    if sorted(device for each in plan.devices for device in each) != [*range(devices)]:
        raise PlanError(f"stages on devices {[*map(list, plan.devices)]}; allowed: each of {devices} devices once")
    pipeline = StageGraphs(graph, train, plan)
    update, splits, given = pipeline.update()
    keeps = {name: pipeline.holders(name) for name in pipeline.parameters}
    updates = programs(update, splits, devices, bucket, (), given, keeps)
    first_tag = 1 + max((m.tag for p in updates for m in (*p.sends, *p.receipts)), default=-1)
    found: dict[int, tuple[DeviceProgram, Compilation]] = {}
    for number, own in enumerate(pipeline.stages):
        variants = [_Variant.of(compiled(g), own) for g in (own.first, own.following)[: min(plan.micro_batches, 2)]]
        for replica, rank in enumerate(plan.devices[number]):
            made = _Unrolled(pipeline, number, replica, first_tag)
            for forward, k in one_forward_one_backward(len(plan.devices), number, plan.micro_batches):
                made.add_pass(variants[min(k, 1)], k, forward)
            found[rank] = made.finished(step, updates[rank], compiled(updates[rank].graph))
    return [found[rank] for rank in range(devices)]


@dataclass(frozen=True, eq=False)
class _Variant:
    """The compiled graph of a stage: its steps by pass, and those for all micro-batches: they read parameters alone."""

    made: Compilation
    forward: tuple[Built, ...]
    backward: tuple[Built, ...]
    shared: Mapping[str, Built]  # by what they write

    @classmethod
    def of(cls, made: Compilation, stage: StageGraph) -> _Variant:
        """The steps in an order that frees memory early. Raises PlanError for rounds of a body."""
        for step in made.steps:
            if isinstance(step, (RepeatStage, NestedStage)):
                raise PlanError(
                    f"node '{step.node.name}' ({step.node.op}) is rounds of a body, or control flow; allowed in "
                    "a pipeline: steps that are nodes of their own"
                )
        made = training_step(made, call_seconds(made.graph, made.target)).made
        shared: dict[str, Built] = {}
        known = {*stage.parameters, *made.constants}
        for step in made.steps:
            group = _group(step)
            if known.issuperset(group.inputs) and not {*group.outputs} & {*made.graph.outputs}:
                known.update(group.outputs)
                shared |= dict.fromkeys(group.outputs, step)
        rest = [step for step in made.steps if _group(step).outputs[0] not in shared]
        needed = {edge.tensor for edge in stage.forward}
        ahead: set[int] = set()
        for number in reversed(range(len(rest))):
            group = _group(rest[number])
            containers = {made.pieces[n].buffer for n in group.outputs if n in made.pieces}
            if needed & ({*group.outputs} | containers):
                ahead.add(number)
                needed |= {*group.inputs}
        late = needed & {edge.back for edge in stage.forward}
        if late:
            raise PlanError(f"pipeline: the forward pass of a stage needs the gradient '{min(late)}' in one kernel")
        forward = tuple(step for number, step in enumerate(rest) if number in ahead)
        return cls(made, forward, tuple(step for number, step in enumerate(rest) if number not in ahead), shared)


def _group(step: Built) -> Group:
    return step if isinstance(step, Group) else step.group


@dataclass(eq=False)
class _Unrolled:
    """The steps of one device under construction. Tensors of micro-batch k are called ``NAME#k``."""

    pipeline: StageGraphs
    number: int
    replica: int
    first_tag: int
    steps: list[Built] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    views: dict[str, Place] = field(default_factory=dict)
    pieces: dict[str, Place] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: dict[str, tuple[str, int]] = field(default_factory=dict)  # of the model's: the name, and the micro-batch
    made: dict[str, str] = field(default_factory=dict)  # what is shared, by the kernel that makes it
    there: set[str] = field(default_factory=set)

    @property
    def stage(self) -> StageGraph:
        """The graph of the stage."""
        return self.pipeline.stages[self.number]

    def add_pass(self, variant: _Variant, k: int, forward: bool) -> None:
        """The steps of one pass over micro-batch ``k``."""
        for step in variant.forward if forward else variant.backward:
            self._add(variant, step, k)

    def _add(self, variant: _Variant, step: Built, k: int) -> None:
        group = _group(step)
        for name in group.inputs:
            if name in variant.shared:
                self._share(variant, name, k)
            self._receive(variant, name, k)
        name_of = partial(self._name, variant, k)
        self.steps.append(self._renamed(step, name_of))
        for name in group.outputs:
            self._send(name, k)

    def _renamed(self, step: Built, name: Callable[[str], str]) -> Built:
        group = renamed_everywhere(_group(step), name)
        self.there.update(group.outputs)
        if isinstance(step, Group):
            return group
        if isinstance(step, KernelStage):
            return replace(step, group=group, values={p: name(value) for p, value in step.values.items()})
        return replace(step, group=group)

    def _share(self, variant: _Variant, name: str, k: int) -> None:
        """Makes what all micro-batches share, once, before the first that reads it."""
        if self._name(variant, k, name) not in self.there:
            self._add(variant, variant.shared[name], k)

    def _name(self, variant: _Variant, k: int, name: str) -> str:
        """Name in this program of a stage graph's tensor, whose type, constant, layout and place are taken over."""
        new, made = self._called(variant, k, name), variant.made
        if new not in self.types:
            self.types[new] = made.graph.types[name]
            if name in made.constants:
                self.constants[new] = made.constants[name]
            if name in made.layouts:
                self.layouts[new] = made.layouts[name]
            for places, found in ((self.views, made.views), (self.pieces, made.pieces)):
                if name in found:
                    places[new] = replace_buffer(found[name], self._name(variant, k, found[name].buffer))
        return new

    def _called(self, variant: _Variant, k: int, name: str) -> str:
        own, made = self.stage, variant.made
        if name in own.parameters:
            return name
        if name in made.constants:
            return self._constant(name, made.constants[name])
        if name in variant.shared:
            step = variant.shared[name]
            kernel = step.kernel.symbol if isinstance(step, KernelStage) else ""
            return name + "#" if self.made.setdefault(name, kernel) == kernel else name + "#again"
        if name in made.graph.inputs and name.removesuffix(".sum") in own.sums:
            return f"{total_of(name.removesuffix('.sum'))}#{k - 1}"
        if name in own.inputs:
            self.inputs[f"{name}#{k}"] = name, k
        return f"{name}#{k}"

    def _constant(self, name: str, value: np.ndarray) -> str:
        """A constant's name here; one of the same name and value is the same."""
        new = name + "#"
        while new in self.constants and not _equal(self.constants[new], value):
            new += "+"
        return new

    # --- messages -----------------------------------------------------------------------------------------------------

    def _receive(self, variant: _Variant, name: str, k: int) -> None:
        """Receives an input that another stage sends, before the first step that reads it."""
        new = f"{name}#{k}"
        if name not in variant.made.graph.inputs or new in self.there:
            return
        for edge in self.stage.received:
            if edge.tensor == name:
                self._message(self._name(variant, k, name), False, edge.source, self._tag(edge, k, False))
        for edge in self.stage.forward:
            if edge.gradient and edge.back == name:
                self._message(self._name(variant, k, name), False, edge.target, self._tag(edge, k, True))

    def _send(self, name: str, k: int) -> None:
        for edge in self.stage.forward:
            if edge.tensor == name:
                self._message(f"{name}#{k}", True, edge.target, self._tag(edge, k, False))
        for edge in self.stage.received:
            if edge.gradient and edge.back == name:
                self._message(f"{name}#{k}", True, edge.source, self._tag(edge, k, True))

    def _tag(self, edge: StageEdge, k: int, back: bool) -> int:
        edges = self.pipeline.edges
        number = (k * len(edges) + edges.index(edge)) * 2 + back
        return self.first_tag + number * self.pipeline.plan.replicas + self.replica

    def _message(self, name: str, sends: bool, stage: int, tag: int) -> None:
        self._between(name, sends, self.pipeline.plan.devices[stage][self.replica], tag)

    def _between(self, name: str, sends: bool, peer: int, tag: int) -> None:
        group = Group((), (name,) if sends else (), () if sends else (name,))
        self.there.add(name)
        self.steps.append(MessageStage(group, self.types[name], peer, tag))

    # --- the end ------------------------------------------------------------------------------------------------------

    def finished(self, step: Graph, update: DeviceProgram, made: Compilation) -> tuple[DeviceProgram, Compilation]:
        """The program and the compilation, with the update behind all passes."""
        self.types |= made.graph.types
        self.layouts |= made.layouts
        self.views |= made.views
        self.pieces |= made.pieces
        self.constants |= made.constants
        for name in self.stage.sums:
            if grads_of(name) in made.graph.inputs:
                last = f"{total_of(name)}#{self.pipeline.plan.micro_batches - 1}"
                shape = made.graph.types[grads_of(name)].shape
                node = Node("reshape", (last,), (grads_of(name),), {"shape": shape}, name)
                self.steps.append(Group((node,), (last,), (grads_of(name),), alias=True))
        self._update(update, made)
        nexts = [made.graph.outputs[state.output] for state in made.graph.states.values()]
        results = [*dict.fromkeys(update.outputs.values())]
        states = {n: StateUpdate(len(results) + i, s.initial) for i, (n, s) in enumerate(made.graph.states.items())}
        boxes = {name: self._box(step, *source) for name, source in self.inputs.items()}
        nodes = tuple(node for own in self.steps for node in _group(own).nodes)
        graph = Graph((*boxes, *states), (*results, *nexts), nodes, self.types, {}, states)
        graph = replace(graph, constants={n: v for n, v in self.constants.items() if n in graph.types})
        whole_made = Compilation(
            made.reference, graph, tuple(self.steps), self.layouts, self.constants, self.pieces, self.views, made.target
        )
        sources = {name: source for name, (source, _) in self.inputs.items()}
        program = DeviceProgram(update.rank, graph, (), (), boxes, update.states, update.outputs, sources)
        return program, between_messages(whole_made)

    def _update(self, update: DeviceProgram, made: Compilation) -> None:
        """The steps of the update, what they send behind those that make it, receipts before what reads them."""
        receipts = {message.tensor: message for message in update.receipts}
        sends: dict[str, list[tuple[int, int]]] = {}
        for message in update.sends:
            sends.setdefault(message.tensor, []).append((message.peer, message.tag))
        for name in [n for n in sends if n in made.graph.inputs or n in made.constants]:
            for peer, tag in sends[name]:
                self._between(name, True, peer, tag)
        for step in made.steps:
            for name in _group(step).inputs:
                if name in receipts and name not in self.there:
                    self._between(name, False, receipts[name].peer, receipts[name].tag)
            self.steps.append(step)
            for name in _group(step).outputs:
                for peer, tag in sends.get(name, ()):
                    self._between(name, True, peer, tag)

    def _box(self, step: Graph, name: str, k: int) -> Box:
        """The rows of an input or of labels that are this device's of a micro-batch."""
        plan, own = self.pipeline.plan, self.types[f"{name}#{k}"].shape
        given = step.types[name].shape if name in step.types else ()
        if own == given:
            return whole(given)
        rows = own[0]
        if given != (rows * self.pipeline.parts, *own[1:]):
            raise PlanError(
                f"labels '{name}' of shape {list(given)}, of a micro-batch {list(own)}; allowed: samples in dimension 0"
            )
        begin = (k * plan.replicas + self.replica) * rows
        return ((begin, begin + rows), *whole(own[1:]))


def replace_buffer(place: Place, buffer: str) -> Place:
    """The place in a buffer of another name."""
    return Place(buffer, place.offset)


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
