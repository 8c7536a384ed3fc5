"""Stages of a compilation: groups as kernel calls, calls of opaque operators and rounds, and the steps these become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from burnish.graph.fuse import Group
from burnish.graph.graph import Graph, Node, TensorType
from burnish.kernels.task import KernelTask
from burnish.loops.layout import Layout, layout
from burnish.machines.target import Target
from burnish.memory.pieces import Place
from burnish.ops import OPERATORS
from burnish.pipeline.kernel import CompiledKernel
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.executable import Collective, Host, KernelCall, Slot, Step, TensorSpec, Wait


@dataclass(frozen=True)
class KernelStage:
    """A group on its way to being a kernel call. ``values``: the graph tensor or derived constant of each parameter.
    ``recorded``: its recipe is one that choices gave, not the default.
    """

    group: Group
    task: KernelTask
    kernel: CompiledKernel
    values: Mapping[str, str]
    recorded: bool = False


@dataclass(frozen=True)
class HostStage:
    """A group of one opaque node: its operator's native ``kernel``; without one, a call of the operator in Python."""

    group: Group
    kernel: CompiledKernel | None = None

    @property
    def node(self) -> Node:
        """The node."""
        return self.group.nodes[0]


@dataclass(frozen=True)
class MessageStage:
    """A message between two workers: a group without nodes, whose only input is sent to worker ``peer``, or whose only
    output, row-major, comes from it; ``type`` is that of the tensor.
    """

    group: Group
    type: TensorType
    peer: int
    tag: int

    @property
    def sends(self) -> bool:
        """Whether it sends."""
        return bool(self.group.inputs)


@dataclass(frozen=True)
class RepeatStage:
    """A group of one node whose operator is rounds of a body: the kernels of one round, called again and again.

    ``inner``: the compiled body, whose graph's inputs are the node's operands that are no constants, those of sequences
    without their first dimension. ``once``: the kernels that find the same in every round; ``calls``: the others;
    ``odd``: these as every other round has them, if that differs. ``label``: with which the names of the body begin,
    the node's first result when it was compiled: one that is computed again gives results of other names.
    """

    group: Group
    inner: Compilation
    once: tuple[KernelStage, ...]
    calls: tuple[KernelStage, ...]
    odd: tuple[KernelStage, ...] = ()
    label: str = ""

    @property
    def all_stages(self) -> tuple[KernelStage, ...]:
        """All kernel calls, each once."""
        return (*self.once, *self.calls, *self.odd)

    @property
    def node(self) -> Node:
        """The node."""
        return self.group.nodes[0]


@dataclass(frozen=True)
class NestedStage:
    """A group of one node whose operator is control flow that values decide: its ``bodies``, compiled.

    The inputs of a body's graph are the node's operands that are no constants.
    """

    group: Group
    bodies: tuple[Compilation, ...]

    @property
    def all_stages(self) -> tuple[KernelStage, ...]:
        """All kernel calls, each once."""
        return tuple(stage for body in self.bodies for stage in body.stages)

    @property
    def node(self) -> Node:
        """The node."""
        return self.group.nodes[0]


@dataclass(frozen=True)
class StageShare:
    """Share of a kernel in a parallel region of several: its place among the concurrent ones, the number of its own
    region (``CompiledKernel.regions``), the iterations of that, and predicted seconds of it on one thread.
    """

    place: int
    region: int
    extent: int
    seconds: float


@dataclass(frozen=True)
class ConcurrentStages:
    """Concurrent kernels: ``count`` steps of a compilation from step ``first`` on, which run side by side on
    ``threads`` threads or more, and the parallel regions that they share.
    """

    first: int
    count: int
    threads: int
    regions: tuple[tuple[StageShare, ...], ...]

    @property
    def last(self) -> int:
        """The last of the steps."""
        return self.first + self.count - 1


@dataclass(frozen=True, eq=False)
class Compilation:
    """A model as kernels, before memory is planned and code linked.

    ``reference`` is what must be computed: the optimized graph before algorithms are chosen. ``graph`` is what is
    computed, by ``steps`` in this order; a step that is a bare group is an alias: no code. ``layouts`` holds the values
    that are not row-major, ``constants`` those of the graph and those derived from them, ``pieces`` where the inputs of
    such joins lie in their outputs, ``views`` where such slices lie in what they are cut from. ``structures`` are no
    steps: what they make of the structures among the inputs is an input as well, which the module derives.
    ``concurrent``: which steps run side by side; what they work on is then needed by all of them.
    """

    reference: Graph
    graph: Graph
    steps: tuple[Built, ...]
    layouts: Mapping[str, Layout]
    constants: Mapping[str, np.ndarray]
    pieces: Mapping[str, Place]
    views: Mapping[str, Place]
    target: Target
    structures: tuple[HostStage, ...] = ()
    concurrent: tuple[ConcurrentStages, ...] = ()

    @cached_property
    def spans(self) -> dict[int, tuple[int, int]]:
        """The first and the last of the steps side by side with a step, by its number; only of those that have such."""
        return {n: (each.first, each.last) for each in self.concurrent for n in range(each.first, each.last + 1)}

    @property
    def stages(self) -> list[KernelStage]:
        """The kernel calls: steps, and those that a step holds, each once."""
        parts = (s.all_stages if isinstance(s, (RepeatStage, NestedStage)) else (s,) for s in self.steps)
        return [step for part in parts for step in part if isinstance(step, KernelStage)]

    @property
    def hosts(self) -> list[HostStage]:
        """The opaque operators: steps, and those that a step holds, each once."""
        parts = ([h for b in s.bodies for h in b.hosts] if isinstance(s, NestedStage) else [s] for s in self.steps)
        return [step for part in parts for step in part if isinstance(step, HostStage)]

    @property
    def within(self) -> list[Compilation]:
        """This one, and those of the bodies of control flow in it."""
        inner = [each for s in self.steps if isinstance(s, NestedStage) for body in s.bodies for each in body.within]
        return [self, *inner]

    @property
    def computed(self) -> list[KernelStage | HostStage | RepeatStage | NestedStage]:
        """The steps that compute something: all but aliases and messages."""
        return [step for step in self.steps if not isinstance(step, (Group, MessageStage))]

    @property
    def calls(self) -> list[KernelStage | HostStage | RepeatStage | NestedStage | MessageStage]:
        """The steps that do something: all but aliases."""
        return [step for step in self.steps if not isinstance(step, Group)]


def structures_apart(graph: Graph, steps: Sequence[Built]) -> tuple[tuple[Built, ...], tuple[HostStage, ...]]:
    """The steps without those that make structures of the structures among the inputs alone, and these."""
    known, own, others = {*graph.inputs} - {*graph.states}, list[HostStage](), list[Built]()
    static = not graph.dims
    for step in steps:
        alone = static and known.issuperset(() if isinstance(step, Group) else step.group.inputs)
        if isinstance(step, HostStage) and alone and _is_structural(graph, step):
            own.append(step)
            known.update(step.group.outputs)
        else:
            others.append(step)
    return tuple(others), tuple(own)


def _is_structural(graph: Graph, step: HostStage) -> bool:
    """Whether a step makes a structure that is no result of the model."""
    return OPERATORS[step.node.op].traits.structure and not set(step.group.outputs) & set(graph.outputs)


Built = KernelStage | HostStage | RepeatStage | NestedStage | MessageStage | Group
"""A step of a compilation; a bare group is no step but another name for memory."""


def stored(graph: Graph, name: str, layouts: Mapping[str, Layout]) -> TensorSpec:
    """A value as it lies in memory. A whole model's inputs and outputs are row-major."""
    t = graph.types[name]
    return TensorSpec(name, layouts[name].physical_shape(t.shape) if name in layouts else t.shape, t.dtype)


def nbytes_of(spec: TensorSpec) -> int:
    """Bytes of a tensor: a size where its shape has dimensions."""
    return prod(spec.shape) * numpy_dtype(spec.dtype).itemsize


def place_of(
    constants: Mapping[tuple[str, str], Slot], home: Mapping[str, Place], buffers: Mapping[str, Slot], value: str
) -> Slot:
    """Where a row-major value begins."""
    if (value, "") in constants:
        return constants[value, ""]
    buffer, offset = home.get(value, Place(value))
    return replace(buffers[buffer], offset=buffers[buffer].offset + offset)


def make_call(
    stage: KernelStage,
    home: Mapping[str, Place],
    constants: Mapping[tuple[str, str], Slot],
    buffers: Mapping[str, Slot],
    dims: Sequence[str],
) -> KernelCall:
    """The kernel call of a stage: where it finds every argument. ``buffers``: those of the arena and of the caller.

    ``dims``: the dimensions of the model, in order.
    """
    slots = []
    for t in (*stage.task.inputs, *stage.task.outputs):
        value = stage.values[t.name]
        if t.name in stage.task.constants:
            slots.append(constants[value, stage.kernel.packing.get(t.name, "")])
            continue
        buffer, offset = home.get(value, Place(value))
        tag = stage.kernel.packing.get(t.name)
        own = layout(tag) if tag else stage.task.layouts.get(t.name)
        nbytes = TensorSpec(t.name, own.physical_shape(t.shape) if own else t.shape, t.dtype).nbytes
        slots.append(replace(buffers[buffer], offset=buffers[buffer].offset + offset, nbytes=nbytes))
    slots += [Slot("size", dims.index(name)) for name in stage.kernel.dims]
    return KernelCall(stage.kernel.symbol, tuple(slots), " + ".join(n.name or n.op for n in stage.group.nodes))


def make_host(
    graph: Graph,
    stage: HostStage,
    home: Mapping[str, Place],
    constants: Mapping[tuple[str, str], Slot],
    buffers: Mapping[str, Slot],
    dims: Sequence[str] = (),
) -> Host | KernelCall:
    """The call of an opaque operator: where it finds every argument, all of them row-major. ``dims``: the dimensions of
    the model, in order.
    """
    node = stage.node
    slots, specs = [], []
    for value in (*node.inputs, *node.outputs):
        spec = TensorSpec(value, graph.types[value].shape, graph.types[value].dtype)
        specs.append(spec)
        slots.append(replace(place_of(constants, home, buffers, value), nbytes=spec.nbytes))
    if stage.kernel is not None:
        slots += [Slot("size", dims.index(name)) for name in stage.kernel.dims]
        return KernelCall(stage.kernel.symbol, tuple(slots), node.name or node.op)
    attrs = OPERATORS[node.op].complete(node.attrs)
    return Host(node.op, tuple(slots), tuple(specs), len(node.outputs), attrs, node.name or node.op)


def make_message(stage: MessageStage, place: Slot) -> Collective:
    """The step of a message, whose tensor lies in ``place``."""
    (name,) = (*stage.group.inputs, *stage.group.outputs)
    spec = TensorSpec(name, stage.type.shape, stage.type.dtype)
    slot = replace(place, nbytes=spec.nbytes)
    ends = ("send", slot, None) if stage.sends else ("recv", None, slot)
    return Collective(ends[0], "", ends[1], ends[2], spec, name, None, stage.peer, stage.tag)


def with_waits(steps: Sequence[Step]) -> list[Step]:
    """The steps, and where they wait for messages among them: for one that comes, at once; for one that is sent, before
    the next to the same worker, so that one to each is under way at most.
    """
    found: list[Step] = []
    sent: dict[int, int] = {}
    for step in steps:
        if not isinstance(step, Collective):
            found.append(step)
        elif step.operation == "recv":
            found += [step, Wait(len(found), step.node)]
        else:
            if step.peer in sent:
                found.append(Wait(sent[step.peer]))
            sent[step.peer] = len(found)
            found.append(step)
    return [*found, *(Wait(number) for number in sent.values())]
