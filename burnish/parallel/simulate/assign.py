"""The tasks of every tensor of a training step: those that a strategy names, and those that follow from these.

A value follows an operand (``follow.py``): its axes take the degrees of the dimensions that they run along, its sums
too, and its tasks the devices that hold these parts. So the backward pass is on the devices of the forward pass, whose
operands are there, and leaves terms of sums for what reads its results. Parameters and what optimizers remember are
where tasks need them; their updates, and all that is computed from inputs, constants and states alone by moving
elements, are computed by each device for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from burnish.errors import PlanError
from burnish.graph.graph import Graph
from burnish.ops.part import Box, joined, whole
from burnish.parallel.model.follow import MOVING, Followers
from burnish.parallel.model.placement import PartTask, Placement, TensorSplit, placed, split_of_boxes
from burnish.parallel.model.values import GraphValues, NodeOutput

_LIGHT = {"injective", "reduction"}  # fusion classes of what costs less than to send it
_UNKNOWN = frozenset({"extern"})
NONE: Mapping[str, TensorSplit] = {}
NOWHERE: Mapping[str, Sequence[int]] = {}


@dataclass(frozen=True, eq=False)
class Assignment:
    """``placements`` of all computed tensors; ``held``: of inputs, constants and states, the box that a device needs.

    ``wanted``: the boxes that tasks read of each tensor that is placed as a grid, by device, in the order of the tasks.
    """

    values: GraphValues
    placements: Mapping[str, Placement]
    held: Mapping[str, Mapping[int, Box]]
    wanted: Mapping[str, tuple[tuple[int, Box], ...]]
    devices: int


def assign(
    graph: Graph,
    splits: Mapping[str, TensorSplit],
    devices: int,
    inner: Collection[str] = frozenset(),
    given: Mapping[str, TensorSplit] = NONE,
    keeps: Mapping[str, Sequence[int]] = NOWHERE,
) -> Assignment:
    """The tasks of all values of ``graph`` on ``devices``; ``splits`` are those of some, by tensor.

    ``inner``: values that devices compute for themselves, as far as they need them. ``given``: splits of inputs, which
    values follow; the inputs themselves are where tasks read them. ``keeps``: devices that have all of some states.

    Graph outputs are collected on device 0, those of one element on all. Raises PlanError for splits of tensors
    that are not there, or do not fit.
    """
    values = GraphValues(graph)
    _check(values, splits, devices)
    own = _computed_where_needed(values, splits, given) | _parted(values, {*inner} - {*splits})
    placements: dict[str, Placement] = {}
    follower = Followers(values, splits, placements, _led(values, splits, given), own)
    for value in values:
        if value.name not in own:
            split = splits[value.name] if value.name in splits else follower.split(value)
            placements[value.name] = placed(split, graph.types[value.name].shape, values.summed(value), value.name)
    held = _demands(values, placements, own, devices, keeps)
    for name in own:
        tasks = tuple(PartTask(device, box) for device, box in sorted(held.get(name, {}).items()))
        placements[name] = Placement(tasks, 1, True)
    found = _wanted(values, placements, held, devices)
    wanted = {name: tuple(dict.fromkeys(boxes)) for name, boxes in found.items()}
    return Assignment(values, placements, held, wanted, devices)


def _check(values: GraphValues, splits: Mapping[str, TensorSplit], devices: int) -> None:
    for name, split in splits.items():
        if name not in values.made:
            raise PlanError(f"strategy: found tensor '{name}'; allowed: those that the model computes")
        if max(split.devices) >= devices:
            raise PlanError(f"strategy: tensor '{name}' is on device {max(split.devices)}; allowed: 0 to {devices - 1}")
        if len(split.devices) > 1 and not values.has_definition(values.made[name].node):
            node = values.made[name].node
            raise PlanError(f"strategy: node '{node.name}' ({node.op}) is split; allowed: whole, it has no definition")


# --- which values every device computes for itself --------------------------------------------------------------------


def _computed_where_needed(
    values: GraphValues, splits: Mapping[str, TensorSplit], given: Mapping[str, TensorSplit]
) -> set[str]:
    """The values that each device computes for itself, as far as it needs them: what follows from inputs, constants,
    states and single elements without products, and what only updates states, element by element.
    """
    graph = values.graph
    after = {graph.outputs[state.output] for state in graph.states.values()}
    results = {name for i, name in enumerate(graph.outputs) if i not in {s.output for s in graph.states.values()}}
    free = {*graph.inputs, *graph.constants} - {*given}
    kinds = {node.outputs: values.kinds(node) for node in graph.nodes if not {*node.outputs} & {*splits}}
    for node in graph.nodes:
        known = all(name in free or graph.types[name].size == 1 for name in node.inputs)
        if known and kinds.get(node.outputs, _UNKNOWN) <= _LIGHT:
            free.update(node.outputs)
    updates: set[str] = set()
    for node in reversed(graph.nodes):
        readers = [reader for name in node.outputs for reader in values.readers[name]]
        used = any(name in after for name in node.outputs) or bool(readers)
        alone = all({*reader.outputs} <= updates for reader in readers) and not {*node.outputs} & results
        if kinds.get(node.outputs, _UNKNOWN) == MOVING and used and alone:
            updates.update(node.outputs)
    return (free | updates) & values.made.keys()


def _collected(graph: Graph, name: str, devices: int) -> range:
    """The devices that get a result of the model."""
    return range(devices if graph.types[name].size == 1 else 1)


def _parted(values: GraphValues, names: Collection[str]) -> set[str]:
    """Divisible values: those of ``names`` that are values which can be computed in parts."""
    return {name for name in names if name in values.made and values.has_definition(values.made[name].node)}


def _demands(
    values: GraphValues,
    placements: Mapping[str, Placement],
    own: set[str],
    devices: int,
    keeps: Mapping[str, Sequence[int]],
) -> dict[str, dict[int, Box]]:
    """Needed boxes by tensor and device, of what devices hold or compute for themselves."""
    graph = values.graph
    held: dict[str, dict[int, Box]] = {}
    kept = own | {*graph.inputs, *graph.constants}

    def need(name: str, device: int, box: Box) -> bool:
        """Widens what a device needs; whether that changed anything."""
        mine = held.setdefault(name, {})
        wider = joined(mine[device], box) if device in mine else box
        changed = mine.get(device) != wider
        mine[device] = wider
        return changed

    def read(value: NodeOutput, device: int, box: Box, reduced: Box) -> bool:
        found = values.reads(value, box, reduced).boxes
        pairs = zip(value.node.inputs, found, strict=True)
        changes = [need(name, device, b) for name, b in pairs if b is not None and name in kept]
        return any(changes)

    for name, keeping in keeps.items():
        for device in keeping:
            need(name, device, whole(graph.types[name].shape))
    states = {state.output for state in graph.states.values()}
    for number, name in enumerate(graph.outputs):
        for device in _collected(graph, name, devices) if number not in states and name in kept else ():
            need(name, device, whole(graph.types[name].shape))
    for name, placement in placements.items():
        for task in placement.tasks:
            read(values.made[name], task.device, task.box, task.reduced)

    # A fixed point: boxes only grow, and never beyond their tensors, so the loop ends. Nodes are taken from the last to
    # the first, so one pass settles all but what states carry from their updates to the next step.
    def settle() -> None:
        """Everything that is needed for what is needed."""
        changed = True
        while changed:
            changed = False
            for node in reversed(graph.nodes):
                for number, name in enumerate(node.outputs):
                    for device, box in [*held.get(name, {}).items()] if name in own else []:
                        changed |= read(NodeOutput(node, number), device, box, ())
            for name, state in graph.states.items():
                after = graph.outputs[state.output]
                for device, box in [*held.get(name, {}).items()]:
                    changed |= after in kept and after != name and need(after, device, box)

    settle()
    for name in graph.states:
        if name not in held:  # nothing reads it: one device keeps it
            need(name, 0, whole(graph.types[name].shape))
            settle()
    return held


def _wanted(
    values: GraphValues, placements: Mapping[str, Placement], held: Mapping[str, Mapping[int, Box]], devices: int
) -> dict[str, list[tuple[int, Box]]]:
    """The boxes that devices read of tensors that are placed as grids."""
    graph = values.graph
    wanted: dict[str, list[tuple[int, Box]]] = {}
    for value in values:
        for task in placements[value.name].tasks:
            boxes = values.reads(value, task.box, task.reduced).boxes
            for name, box in zip(value.node.inputs, boxes, strict=True):
                if box is not None and name in placements and not placements[name].copies:
                    wanted.setdefault(name, []).append((task.device, box))
    states = {state.output: name for name, state in graph.states.items()}
    for number, name in enumerate(graph.outputs):
        if name not in placements or placements[name].copies:
            continue
        box = whole(graph.types[name].shape)
        places: Iterable[tuple[int, Box]] = [(device, box) for device in _collected(graph, name, devices)]
        if number in states:
            places = held[states[number]].items()
        wanted.setdefault(name, []).extend(places)
    return wanted


# --- splits that follow -----------------------------------------------------------------------------------------------


def _led(
    values: GraphValues, splits: Mapping[str, TensorSplit], given: Mapping[str, TensorSplit]
) -> dict[str, Placement]:
    """Placements of inputs that values follow: of those whose splits are given, and of states of which the tasks of a
    strategy read each element on one device only, such as weights that are split.
    """
    graph = values.graph
    read: dict[str, dict[int, Box]] = {}
    for name, split in splits.items():
        value = values.made[name]
        for task in placed(split, graph.types[name].shape, values.summed(value), name).tasks:
            for operand, box in zip(value.node.inputs, values.reads(value, task.box, task.reduced).boxes, strict=True):
                if box is not None and operand in graph.states:
                    own = read.setdefault(operand, {})
                    own[task.device] = joined(own[task.device], box) if task.device in own else box
    found = {name: split_of_boxes(graph.types[name].shape, own) for name, own in read.items()}
    led = {name: split for name, split in found.items() if split is not None} | {**given}
    return {name: placed(split, graph.types[name].shape, (), name) for name, split in led.items()}
