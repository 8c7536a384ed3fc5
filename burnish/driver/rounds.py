"""Rounds of a body (scan, recurrent layers): one round compiled once, and the step of an executable that repeats it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from burnish.driver.stages import Built, Compilation, HostStage, RepeatStage, Stage, make_call, nbytes_of
from burnish.graph.fuse import Group
from burnish.graph.graph import Graph, GraphBuilder, Node
from burnish.kernels.task import Task
from burnish.memory.lifetimes import Interval
from burnish.memory.pieces import Place
from burnish.ops import OPERATORS
from burnish.ops.scan import Operands
from burnish.pipeline.kernel import Kernel
from burnish.runtime.executable import Pointer, Repeat, Slot, TensorSpec


def has_rounds(group: Group) -> bool:
    """Whether a group is a node that repeats a body."""
    return len(group.nodes) == 1 and OPERATORS[group.nodes[0].op].rounds


def round_graph(graph: Graph, node: Node) -> Graph:
    """One round of ``node`` as a graph whose names no other has: operands that are constants are its constants, too."""
    builder, own, (nodes, results) = GraphBuilder(), _operands(node), node.attrs["body"]  # type: ignore[misc]
    names = {}
    for i, value in enumerate(node.inputs):
        t, name = graph.types[value], _name(node, f"{i}")
        if value in graph.constants and value in own.fixed:
            names[f"{i}"] = builder.constant(graph.constants[value], name)
        else:
            sequence = len(own.states) <= i < len(own.states) + len(own.sequences)
            names[f"{i}"] = builder.input(name, t.shape[1:] if sequence else t.shape, t.dtype)
    for op, inputs, outputs, attrs in nodes:  # type: ignore[misc]
        fresh = [_name(node, name) for name in outputs]
        made = builder.add_many(op, *(names[n] for n in inputs), names=fresh, node=node.name, **dict(attrs))
        names |= dict(zip(outputs, made, strict=True))
    return builder.build(*(names[name] for name in results))


def repeat_stage(
    group: Group, inner: Compilation, build: Callable[[Task], Kernel]
) -> RepeatStage | HostStage:
    """The stage that repeats the kernels of a body; with an opaque operator in it, that of the whole as such.

    ``build``: makes the kernels of odd rounds.
    """
    if any(isinstance(step, (HostStage, RepeatStage)) for step in inner.steps):
        return HostStage(group)
    node = group.nodes[0]
    own = _operands(node)
    begin = len(own.states) + len(own.sequences)
    same = {*inner.graph.constants, *(_name(node, f"{i}") for i in range(begin, len(node.inputs)))}
    once, calls = list[Stage](), list[Stage]()
    for step in inner.steps:
        owner = step if isinstance(step, Group) else step.group
        fixed = {*owner.inputs} <= same and not {*owner.outputs} & {*inner.graph.outputs}
        same |= {*owner.outputs} if fixed else set()
        if isinstance(step, Stage):
            (once if fixed else calls).append(step)
    return RepeatStage(group, inner, tuple(once), tuple(calls), _odd_rounds(calls, build))


def _odd_rounds(calls: Sequence[Stage], build: Callable[[Task], Kernel]) -> tuple[Stage, ...]:
    """The calls with the kernels that steps of recurrent layers have in every other round; none if all are the same."""
    found = list[Stage]()
    for stage in calls:
        anchor, kernel = stage.group.anchor, stage.kernel
        if anchor is not None and OPERATORS[anchor.op].traits.recurrent and not stage.recorded:
            other = build(replace(stage.task, odd_round=True))
            alike = kernel.code.replace(kernel.symbol.encode(), other.symbol.encode()) == other.code
            kernel = kernel if alike or other.packing != kernel.packing else other
        found.append(replace(stage, kernel=kernel))
    same = all(a.kernel is b.kernel for a, b in zip(found, calls, strict=True))
    return () if same else tuple(found)


def buffers_of(stage: RepeatStage, inside: Sequence[Interval]) -> dict[str, int]:
    """The memory that a stage needs beside its operands and results, bytes by name: the values ``inside`` of its body,
    and the places in which states that are no results take turns with these.
    """
    types, every = stage.inner.graph.types, stage.node.attrs["every"]
    found = {interval.name: interval.nbytes for interval in inside}
    for i, name in enumerate(stage.inner.graph.outputs):
        if i not in every:  # type: ignore[operator]
            found[_turn(stage.node, i)] = types[name].nbytes
    return found


def make_repeat(
    stage: RepeatStage,
    inside: Mapping[str, Place],
    constants: Mapping[tuple[str, str], Slot],
    buffers: Mapping[str, Slot],
    place_of: Callable[[str], Slot],
    dims: Sequence[str],
    rounds: int,
) -> Repeat:
    """The step of a stage. ``inside``: where the values of its body are, in buffers; ``place_of``: where the operands
    and results of its node are; ``rounds``: how many, a number or a size.
    """
    node, graph = stage.node, stage.inner.graph
    own, every, backwards = _operands(node), node.attrs["every"], bool(node.attrs.get("reverse", False))
    pointers: list[Pointer] = []
    slots = dict(buffers)

    def point(name: str, places: tuple[Slot, Slot], moves: bool, before: Slot | None = None) -> None:
        t = graph.types[name]
        one = nbytes_of(TensorSpec(name, t.shape, t.dtype))
        nbytes = TensorSpec(name, t.shape, t.dtype).nbytes
        whole = tuple(replace(place, nbytes=_spanned(one * rounds if moves else one)) for place in places)
        first = None if before is None else replace(before, nbytes=nbytes)
        slots[name] = Slot("repeat", len(pointers))
        pointers.append(Pointer(whole, one if moves else 0, moves and backwards, first, nbytes))  # type: ignore[arg-type]

    results = []
    for i, name in enumerate(graph.outputs):
        moves, place = i in every, place_of(node.outputs[i])  # type: ignore[operator]
        results.append(((place, place if moves else buffers[_turn(node, i)]), moves))
        point(name, *results[i])
    for i, value in enumerate(own.states):
        point(_name(node, f"{i}"), *results[i], place_of(value))
    for i, value in enumerate(own.sequences, len(own.states)):
        point(_name(node, f"{i}"), (place_of(value),) * 2, True)
    for i, value in enumerate(own.fixed, len(own.states) + len(own.sequences)):
        if _name(node, f"{i}") in graph.inputs:
            slots[_name(node, f"{i}")] = place_of(value)
    once, calls, odd = (
        tuple(make_call(s, inside, constants, slots, dims) for s in part)
        for part in (stage.once, stage.calls, stage.odd)
    )
    return Repeat(rounds, once, calls, odd, tuple(pointers), node.name or node.op)


def rounds_of(graph: Graph, stage: RepeatStage) -> int:
    """How many rounds there are: the length of the sequences, a number or a size."""
    return graph.types[_operands(stage.node).sequences[0]].shape[0]


def moving_operands(steps: Sequence[Built]) -> list[str]:
    """The operands of stages with rounds that these find row-major where they are: states and sequences."""
    own = [_operands(step.node) for step in steps if isinstance(step, RepeatStage)]
    return [name for operands in own for name in (*operands.states, *operands.sequences)]


def _spanned(nbytes: Any) -> int:
    return nbytes if isinstance(nbytes, (int, np.integer)) else 0


def _operands(node: Node) -> Operands:
    return Operands.of(node.inputs, node.attrs["states"], node.attrs["sequences"])  # type: ignore[arg-type]


def _name(node: Node, name: str) -> str:
    """The name in the graph of one round of a value of the body."""
    return f"{node.outputs[0]}/{name}"


def _turn(node: Node, i: int) -> str:
    """The name of the memory in which state ``i`` is every other round."""
    return f"{node.outputs[0]}/turn {i}"
