"""One static program a device: the part of a graph that it computes, with the messages to and from the others.

The programs follow from a strategy alone, so every device can make its own, and all agree. A program is a graph like
any other: compiled, fused, its memory planned; what it receives are inputs, what it sends outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from burnish.errors import PlanError
from burnish.graph.decompose import decompose
from burnish.graph.graph import Graph, GraphBuilder, Node
from burnish.ops.part import Box, whole
from burnish.parallel.model.placement import PartTask, TensorSplit, inside
from burnish.parallel.model.redistribute import DeviceGraphs, Piece, TensorTransfer, Wish, move
from burnish.parallel.model.values import NodeOutput
from burnish.parallel.simulate.assign import NONE, NOWHERE, Assignment, assign

BUCKET = 1 << 22  # bytes of gradients on a device after which their sums are sent


@dataclass(frozen=True, eq=False)
class DeviceProgram:
    """Program of device ``rank``. ``inputs``: of the model's inputs that it reads, the boxes; ``states``: of the states
    that it holds; ``outputs``: the graph's outputs that are the model's, by the model's names: on device 0, and those
    of one element, such as a loss, on all. ``sources``: by inputs of other names, the model's that they are of.
    """

    rank: int
    graph: Graph
    sends: tuple[TensorTransfer, ...]
    receipts: tuple[TensorTransfer, ...]
    inputs: Mapping[str, Box]
    states: Mapping[str, Box]
    outputs: Mapping[str, str]
    sources: Mapping[str, str] = field(default_factory=dict)


def programs(
    graph: Graph,
    splits: Mapping[str, TensorSplit],
    devices: int,
    bucket: int = BUCKET,
    inner: Collection[str] = frozenset(),
    given: Mapping[str, TensorSplit] = NONE,
    keeps: Mapping[str, Sequence[int]] = NOWHERE,
) -> tuple[DeviceProgram, ...]:
    """The programs of all devices for a graph, of inference or of a training step, and the splits of some tensors.

    ``inner``: tensors that each device computes as far as it needs them (``plans.splits_of`` gives both). ``given``:
    splits of inputs that values follow, as far as ``splits`` does not name them. ``keeps``: devices that have all of
    some states, whether they read them or not.

    Raises PlanError for splits that do not fit the graph or the devices, and for a graph with open dimensions.
    """
    if graph.dims:
        dims = ", ".join(d.name for d in graph.dims)
        raise PlanError(f"programs: found open dimensions {dims}; allowed: a graph with fixed shapes")
    assigned = assign(decompose(graph), splits, devices, inner, given, keeps)
    found = _Programs(assigned, bucket).run()
    check_order(found)
    return found


class _Programs:
    """The graphs of all devices, made in one walk over the nodes."""

    def __init__(self, assigned: Assignment, bucket: int) -> None:
        self.assigned, self.graph, self.bucket = assigned, assigned.values.graph, bucket
        self.builders = [GraphBuilder() for _ in range(assigned.devices)]
        for builder in self.builders:
            builder.trained = self.graph.trained
        self.network = DeviceGraphs(self.builders)
        self.local: dict[tuple[str, int], str] = {}  # what a device holds or has computed for itself
        self.moved: dict[tuple[str, int, Box], str] = {}
        self.whole: dict[tuple[int, tuple[str, ...]], tuple[str, ...]] = {}  # nodes that a device computes as they are
        self.waiting: list[Wish] = []  # sums that are still to be sent
        self.bytes = 0

    def run(self) -> tuple[DeviceProgram, ...]:
        """All programs."""
        self._declare()
        for value in updates_last(self.assigned):
            self._compute(value)
        self._flush()
        return tuple(self._finished(rank) for rank in range(self.assigned.devices))

    def _declare(self) -> None:
        """Inputs, states and constants: of each the box that a device reads."""
        for name in (*self.graph.inputs, *self.graph.constants):
            for device, box in sorted(self.assigned.held.get(name, {}).items()):
                b = self.builders[device]
                index = tuple(slice(start, stop) for start, stop in box)
                if name in self.graph.states:
                    self.local[name, device] = b.state(name, self.graph.states[name].initial[index])
                elif name in self.graph.constants:
                    value = np.ascontiguousarray(self.graph.constants[name][index])
                    self.local[name, device] = b.constant(value.reshape([s - a for a, s in box]), name)
                else:
                    self.local[name, device] = b.input(name, [s - a for a, s in box], self.graph.types[name].dtype)

    def _compute(self, value: NodeOutput) -> None:
        placement = self.assigned.placements[value.name]
        if not placement.copies and any(w.name in value.node.inputs for w in self.waiting):
            self._flush()
        if placement.copies:
            for task in placement.tasks:
                self.local[value.name, task.device] = self._part(value, task)
            return
        pieces = [Piece(t.device, t.box, t.term, self._part(value, t)) for t in placement.tasks]
        wish = Wish(value.name, tuple(pieces), placement.terms, self.assigned.wanted.get(value.name, ()))
        if not wish.wanted:
            return
        if placement.terms == 1:
            self.moved |= move(self.network, [wish])
            return
        self.waiting.append(wish)
        self.bytes += self.graph.types[value.name].nbytes
        if self.bytes >= self.bucket:
            self._flush()

    def _flush(self) -> None:
        """Sends the sums that wait, all together."""
        waiting, self.waiting, self.bytes = self.waiting, [], 0
        self.moved |= move(self.network, waiting)

    def _part(self, value: NodeOutput, task: PartTask) -> str:
        """Adds what a task computes; its name in the device's graph."""
        node, b = value.node, self.builders[task.device]
        reads = self.assigned.values.reads(value, task.box, task.reduced)
        pairs = zip(node.inputs, reads.boxes, strict=True)
        given = [self._operand(name, task.device, box) for name, box in pairs if box is not None]
        types = self.assigned.values.types(node)
        every = all(box == whole(shape) for box, (shape, _) in zip(reads.boxes, types, strict=True))
        if every and not task.reduced and task.box == whole(self.graph.types[value.name].shape):
            return self._node(node, task.device, given)[value.number]
        if reads.plain:
            return b.add(node.op, *given, name=b.fresh(value.name), node=node.name, **node.attrs)
        attributes = self.assigned.values.attributes(node)
        return b.add(
            "output_part", *given, name=b.fresh(value.name), node=node.name, operator=node.op, attributes=attributes,
            types=types, output=value.number, box=task.box, reduced=task.reduced,
        )  # fmt: skip

    def _node(self, node: Node, device: int, given: Sequence[str]) -> tuple[str, ...]:
        """All outputs of a node that a device computes as it is."""
        if (device, node.outputs) not in self.whole:
            b = self.builders[device]
            names = [b.fresh(name) for name in node.outputs]
            self.whole[device, node.outputs] = b.add_many(node.op, *given, names=names, node=node.name, **node.attrs)
        return self.whole[device, node.outputs]

    def _operand(self, name: str, device: int, box: Box) -> str:
        """A box of a tensor, on the device that reads it."""
        if (name, device) in self.local:
            return self.network.cut(device, self.local[name, device], inside(box, self.assigned.held[name][device]))
        if (name, device, box) not in self.moved:
            self._flush()
        return self.moved[name, device, box]

    def _finished(self, rank: int) -> DeviceProgram:
        b = self.builders[rank]
        states = {state.output: name for name, state in self.graph.states.items()}
        outputs: dict[str, str] = {}
        for number, name in enumerate(self.graph.outputs):
            if number not in states and (rank == 0 or self.graph.types[name].size == 1):
                outputs[name] = self._operand(name, rank, whole(self.graph.types[name].shape))
            elif number in states and states[number] != name:
                box = self.assigned.held[states[number]].get(rank)
                if box is not None:
                    b.update(states[number], self._operand(name, rank, box))
        sent = dict.fromkeys(message.tensor for message in self.network.sends[rank])
        finished = b.build(*dict.fromkeys([*outputs.values(), *sent]))
        held = {name: found[rank] for name, found in self.assigned.held.items() if rank in found}
        given = {n: box for n, box in held.items() if n in self.graph.inputs and n not in self.graph.states}
        kept = {n: box for n, box in held.items() if n in self.graph.states}
        sends, receipts = tuple(self.network.sends[rank]), tuple(self.network.receipts[rank])
        return DeviceProgram(rank, finished, sends, receipts, given, kept, outputs)


def updates_last(assigned: Assignment) -> list[NodeOutput]:
    """The values in the order in which devices compute them: updates, which nothing else reads, behind all others, and
    those first whose gradients were there first. So they wait for sums in the order in which these were sent.
    """
    graph, values, readers = assigned.values.graph, [*assigned.values], assigned.values.readers
    states = {state.output for state in graph.states.values()}
    results = {name for number, name in enumerate(graph.outputs) if number not in states}
    last: set[str] = set()
    for value in reversed(values):
        reading = [reader for name in value.node.outputs for reader in readers[name]]
        alone = all({*reader.outputs} <= last for reader in reading) and not results & {*value.node.outputs}
        if assigned.placements[value.name].copies and alone:
            last.add(value.name)
    ready: dict[str, int] = {}
    for number, value in enumerate(values):
        before = max((ready.get(name, 0) for name in value.node.inputs), default=0)
        ready[value.name] = before if value.name in last else number
    place = {value.name: number for number, value in enumerate(values)}
    return sorted(values, key=lambda v: (v.name in last, ready[v.name], place[v.name]))


def facts_of(graph: Graph, found: Sequence[DeviceProgram], rank: int) -> dict[str, Any]:
    """Metadata of a device's program about the whole, as JSON: types, and who holds which boxes."""
    own = found[rank]

    def typed(names: Sequence[str]) -> list[list[Any]]:
        return [[name, [*graph.types[name].shape], graph.types[name].dtype] for name in names]

    def boxes(held: Mapping[str, Box]) -> dict[str, list[list[int]]]:
        return {name: [[*span] for span in box] for name, box in held.items()}

    given = [name for name in graph.inputs if name not in graph.states]
    return {
        "rank": rank, "inputs": typed(given), "states": typed([*graph.states]), "reads": boxes(own.inputs),
        "sources": dict(own.sources),
        "held": [boxes(program.states) for program in found],
        "outputs": [[name, own.graph.outputs.index(local)] for name, local in own.outputs.items()],
    }  # fmt: skip


def check_order(found: Sequence[DeviceProgram]) -> None:
    """Raises PlanError unless every message is sent before what its receiver computes from it is waited for by another.

    Devices run their nodes in order, send at once, and wait where a message is first read.
    """
    at = [0] * len(found)
    arrived: set[int] = set()
    sends = [_by_tensor(p.sends) for p in found]
    receipts = [{m.tensor: m.tag for m in p.receipts} for p in found]
    moving = True
    while moving:
        moving = False
        for rank, program in enumerate(found):
            nodes = program.graph.nodes
            while at[rank] < len(nodes):
                needed = {receipts[rank][n] for n in nodes[at[rank]].inputs if n in receipts[rank]}
                if not needed <= arrived:
                    break
                arrived.update(tag for name in nodes[at[rank]].outputs for tag in sends[rank].get(name, ()))
                at[rank] += 1
                moving = True
    stuck = [p.rank for p in found if at[p.rank] < len(p.graph.nodes)]
    if stuck:
        raise PlanError(f"programs: devices {stuck} wait for each other")


def _by_tensor(messages: Sequence[TensorTransfer]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for message in messages:
        found.setdefault(message.tensor, []).append(message.tag)
    return found
