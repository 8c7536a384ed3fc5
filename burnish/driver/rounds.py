"""Rounds of a body (scan, recurrent layers): one round compiled once, and the step of an executable that repeats it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from burnish.driver.stages import (
    Built,
    Compilation,
    HostStage,
    KernelStage,
    NestedStage,
    RepeatStage,
    make_call,
    nbytes_of,
)
from burnish.graph.fuse import Group
from burnish.graph.graph import Node
from burnish.graph.rounds import operands_of, round_name
from burnish.kernels.task import KernelTask
from burnish.loops.sizes import dims_of
from burnish.memory.lifetimes import Interval
from burnish.memory.pieces import Place
from burnish.ops import OPERATORS
from burnish.pipeline.kernel import CompiledKernel, KernelConfig
from burnish.runtime.devices import has_own_form
from burnish.runtime.executable import Pointer, Repeat, Slot, TensorSpec
from burnish.runtime.link import link


def repeat_stage(
    group: Group, inner: Compilation, build: Callable[[KernelTask, KernelConfig | None], CompiledKernel]
) -> RepeatStage | HostStage:
    """The stage that repeats the kernels of a body; with an opaque operator in it, that of the whole as such.

    ``build``: makes the kernels of odd rounds.
    """
    if any(isinstance(step, (HostStage, RepeatStage, NestedStage)) for step in inner.steps):
        return HostStage(group)
    node = group.nodes[0]
    own = operands_of(node)
    begin = len(own.states) + len(own.sequences)
    same = {*inner.graph.constants, *(round_name(node, f"{i}") for i in range(begin, len(node.inputs)))}
    once, calls = list[KernelStage](), list[KernelStage]()
    for step in inner.steps:
        owner = step if isinstance(step, Group) else step.group
        fixed = {*owner.inputs} <= same and not {*owner.outputs} & {*inner.graph.outputs}
        same |= {*owner.outputs} if fixed else set()
        if isinstance(step, KernelStage):
            (once if fixed else calls).append(step)
    own_form = has_own_form(inner.target.machine)
    odd = () if own_form else _odd_rounds(calls, build)
    return RepeatStage(group, inner, tuple(once), tuple(calls), odd, node.outputs[0])


def _odd_rounds(
    calls: Sequence[KernelStage], build: Callable[[KernelTask, KernelConfig | None], CompiledKernel]
) -> tuple[KernelStage, ...]:
    """The calls with the kernels that steps of recurrent layers have in every other round; none if all are the same."""
    found = list[KernelStage]()
    for stage in calls:
        anchor, kernel = stage.group.anchor, stage.kernel
        if anchor is not None and OPERATORS[anchor.op].traits.recurrent:
            recipe = KernelConfig(kernel.template, kernel.choice) if stage.recorded else None
            other = build(replace(stage.task, odd_round=True), recipe)
            alike = link({"kernel": kernel.code}).data == link({"kernel": other.code}).data
            kernel = kernel if alike or other.packing != kernel.packing else other
        found.append(replace(stage, kernel=kernel))
    same = all(a.kernel is b.kernel for a, b in zip(found, calls, strict=True))
    return () if same else tuple(found)


def buffers_of(stage: RepeatStage, inside: Sequence[Interval]) -> dict[str, int]:
    """Buffers of a stage besides its operands and results, bytes by name: the values ``inside`` of its body,
    and the places in which states that are no results take turns with these.
    """
    types, every = stage.inner.graph.types, stage.node.attrs["every"]
    found = {_of_run(stage, interval.name): interval.nbytes for interval in inside}
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
    own, every, backwards = operands_of(node), node.attrs["every"], bool(node.attrs.get("reverse", False))
    pointers: list[Pointer] = []
    own_names = {place.buffer: _of_run(stage, place.buffer) for place in inside.values()}
    slots = {**buffers, **{name: buffers[now] for name, now in own_names.items() if now in buffers}}

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
        point(f"{stage.label}/{i}", *results[i], place_of(value))
    for i, value in enumerate(own.sequences, len(own.states)):
        point(f"{stage.label}/{i}", (place_of(value),) * 2, True)
    for i, value in enumerate(own.fixed, len(own.states) + len(own.sequences)):
        if f"{stage.label}/{i}" in graph.inputs:
            slots[f"{stage.label}/{i}"] = place_of(value)
    once, calls, odd = (
        tuple(make_call(s, inside, constants, slots, dims) for s in part)
        for part in (stage.once, stage.calls, stage.odd)
    )
    return Repeat(rounds, once, calls, odd, tuple(pointers), node.name or node.op)


def moving_operands(steps: Sequence[Built]) -> list[str]:
    """The operands of stages with rounds that these find row-major where they are: states and sequences."""
    own = [operands_of(step.node) for step in steps if isinstance(step, RepeatStage)]
    return [name for operands in own for name in (*operands.states, *operands.sequences)]


def _of_run(stage: RepeatStage, name: str) -> str:
    """The name of a buffer for a value of the body, in this run of the stage: by its first result."""
    return stage.node.outputs[0] + name.removeprefix(stage.label)


def _spanned(nbytes: int) -> int:
    return 0 if dims_of((nbytes,)) else nbytes


def _turn(node: Node, i: int) -> str:
    """The name of the memory in which state ``i`` is every other round."""
    return f"{node.outputs[0]}/turn {i}"
