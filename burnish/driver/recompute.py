"""Recomputation of a compiled training step: its kernel calls as operations of a planner, and an order as calls.

A call that is repeated is the same machine code on the same numbers: whatever is planned, gradients keep every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from burnish import ops
from burnish.driver.assembly import live_values, make_module
from burnish.driver.nested import buffers_of as nested_buffers
from burnish.driver.rounds import buffers_of
from burnish.driver.side_by_side import side_by_side_within
from burnish.driver.stages import (
    Built,
    Compilation,
    HostStage,
    KernelStage,
    MessageStage,
    NestedStage,
    RepeatStage,
    structures_apart,
)
from burnish.errors import VerificationError
from burnish.graph.costs import DIRECT_EFFICIENCY, KERNEL, roofline_seconds
from burnish.graph.fuse import Group, renamed_inputs, renamed_outputs
from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Attribute, Graph, TensorType
from burnish.graph.rounds import rounds_of
from burnish.loops.contraction import is_contraction
from burnish.loops.expr import Reduce
from burnish.loops.sizes import greatest, hinted
from burnish.loops.tensor import Tensor, placeholder, stages
from burnish.machines.target import Target
from burnish.memory.budget import Planner, Recomputation
from burnish.memory.earlier import earlier
from burnish.memory.pieces import Place
from burnish.memory.share import ArenaPlan, plan
from burnish.memory.strategies import wanted
from burnish.memory.work import Order, Work, WorkItem
from burnish.ops.classify import flops
from burnish.pipeline.plan import DEFAULTS, Choices, KernelPlan
from burnish.runtime.module import Module
from burnish.runtime.sized import plan_at, upper_ends

Seconds = Callable[[Built], float]


@dataclass(frozen=True, eq=False)
class StepWork:
    """A compiled training step as work: ``made`` with its calls in the order of ``work``'s operations."""

    made: Compilation
    work: Work

    def ordered(self, order: Order) -> Compilation:
        """The compilation with its calls in another order, some of them repeated."""
        return _ordered(self.made, order)

    def planner(self) -> Planner:
        """Planner of orders, whose arenas are those of the calls: views are among these, which the work leaves out."""
        return Planner(self.work, packed=self._packed)

    def _packed(self, order: Order, enough: int) -> ArenaPlan:
        """The arena of an order, which is not made smaller than ``enough`` bytes."""
        intervals, pairs, _ = live_values(self.ordered(order))
        return plan([replace(i, nbytes=greatest(i.nbytes)) for i in intervals], pairs, enough=enough)


def training_step(made: Compilation, seconds: Seconds) -> StepWork:
    """A compiled step as work, with its calls where they free memory earliest: updates as soon as gradients are there.

    ``seconds``: what a call takes. Memory is that where open dimensions are at their upper bounds.
    """
    made = _ordered(made, earlier(_work(made, seconds)))
    return StepWork(made, _work(made, seconds))


def kept_in_order(made: Compilation, seconds: Seconds) -> StepWork:
    """A compiled step as work whose calls stay in their order, between which some are only repeated: one that exchanges
    messages with other devices, which rely on that.
    """
    return StepWork(made, replace(_work(made, seconds), forward=frozenset()))


def trained_within(
    made: Compilation, budget: str | int | Mapping[str, int] | None, choices: Choices, threads: int | None
) -> Module:
    """The module of a compiled step whose arena is at most ``budget`` bytes, by recomputation if it must be.

    Without a budget calls are only put in order; for others than numbers see ``memory.strategies.wanted``. The module
    notes what was planned. Raises ParameterError with the smallest budget that can be kept.
    """
    step = training_step(made, call_seconds(made.graph, made.target, choices))
    if budget is None:
        return make_module(step.made if made.graph.dims else side_by_side_within(step.made), threads)
    found = wanted(step.planner(), budget)
    ordered = step.ordered(found.order)
    module, ends = make_module(ordered, threads), upper_ends(made.graph.dims)
    arena = plan_at(module.executable, ends).arena_bytes if ends else module.memory["arena"]
    if arena > found.arena:
        raise VerificationError(f"memory plan: {arena} bytes are needed, {found.arena} were planned")
    module.note(recomputation=recomputation_facts(step.work, found, budget))
    return module


def recomputation_facts(work: Work, found: Recomputation, budget: str | int | Mapping[str, int]) -> dict[str, Any]:
    """Notes of a module on its recomputation: calls, and the share of the step's seconds that repetition should add."""
    return {
        "budget": dict(budget) if isinstance(budget, Mapping) else budget, "strategy": found.strategy,
        "calls": len(found.order), "repeated": len(found.order) - len(work), "extra": found.extra(work),
    }  # fmt: skip


def outline(made: KernelPlan, target: Target) -> Compilation:
    """A kernel plan as a compilation without code: what its memory will be, before any kernel is made."""
    steps: list[Built] = []
    for group in made.groups:
        if not made.computes(group):
            steps.append(group)
        elif ops.is_opaque(group.nodes[0].op):
            steps.append(HostStage(group))
        else:
            steps.append(KernelStage(group, None, None, {}))  # type: ignore[arg-type]
    constants = dict(made.graph.constants)
    computed, structures = structures_apart(made.graph, steps)
    return Compilation(
        made.reference, made.graph, computed, made.layouts, constants, made.pieces, made.views, target, structures
    )


# --- costs ---


def call_seconds(graph: Graph, target: Target, choices: Choices = DEFAULTS) -> Seconds:
    """Seconds of each call: measured for the records that ``choices`` come from, else estimated."""

    def seconds(step: Built) -> float:
        if isinstance(step, KernelStage) and step.task is not None:
            known = choices.seconds(step.task, target)
            if known is not None:
                return known
        if isinstance(step, RepeatStage):
            inner, rounds = call_seconds(step.inner.graph, target, choices), hinted(rounds_of(graph, step.node))
            return sum(map(inner, step.once)) + rounds * sum(map(inner, step.calls))
        group = step if isinstance(step, Group) else step.group
        return group_seconds(graph, group, target)

    return seconds


def group_seconds(graph: Graph, group: Group, target: Target) -> float:
    """Estimated seconds of a kernel: the longer of its arithmetic and of its traffic, from memory and to it."""
    moved = sum(hinted(graph.types[n].nbytes) for n in (*group.inputs, *group.outputs) if n in graph.types)
    operations = 0.0
    for node in group.nodes:
        if not ops.is_opaque(node.op):
            types = tuple(graph.types[n] for n in node.inputs if n in graph.types)
            operations += _operations(node.op, types, tuple(sorted(node.attrs.items())))
    efficiency = DIRECT_EFFICIENCY if not _is_cheap(graph, group) else 1.0 / target.lanes
    return KERNEL + roofline_seconds(operations, 0.0, target, efficiency, weights=moved)


@lru_cache(maxsize=1 << 14)
def _operations(op: str, types: tuple[TensorType, ...], attrs: tuple[tuple[str, Attribute], ...]) -> float:
    return float(hinted(flops(_defined(op, types, attrs))))


def _defined(op: str, types: tuple[TensorType, ...], attrs: tuple[tuple[str, Attribute], ...]) -> tuple[Tensor, ...]:
    inputs = [placeholder(t.shape, t.dtype, f"x{i}") for i, t in enumerate(types)]
    return ops.OPERATORS[op].define("y", inputs, dict(attrs))


def _is_cheap(graph: Graph, group: Group) -> bool:
    """Whether a kernel is no product, no convolution, and nothing that is computed in Python."""
    anchor = group.anchor
    kind = None if anchor is None else facts_of(graph, anchor).kind
    if anchor is not None and kind == "opaque":  # several results that share sums
        types = tuple(graph.types[n] for n in anchor.inputs)
        return not _has_products(anchor.op, types, tuple(sorted(anchor.attrs.items())))
    return kind not in ("complex", "extern")


@lru_cache(maxsize=1 << 12)
def _has_products(op: str, types: tuple[TensorType, ...], attrs: tuple[tuple[str, Attribute], ...]) -> bool:
    """Whether one of the sums of a definition is a product of two tensors."""
    return any(is_contraction(t) for t in stages(_defined(op, types, attrs)) if isinstance(t.body, Reduce))


# --- calls as operations ---


def _work(made: Compilation, seconds: Seconds) -> Work:
    """The computed steps as operations; what updates a state must be the last to use it, and what reads a joined buffer
    waits for its pieces.
    """
    intervals, pairs, home = live_values(made)
    graph, nbytes = made.graph, {interval.name: greatest(interval.nbytes) for interval in intervals}
    for step in made.calls:  # results of the caller and states, which are in no arena
        nbytes.update((home[n].buffer, 0) for n in step.group.outputs if home[n].buffer not in nbytes)
    number = {name: i for i, name in enumerate(nbytes)}
    results = {*graph.outputs}
    shared = {*made.pieces, *(place.buffer for place in made.pieces.values())}
    places: dict[str, list[int]] = {}
    for dying, born in pairs:
        places.setdefault(born, []).append(number[dying])
    operations: list[WorkItem] = []
    written: set[int] = set()
    makers: dict[str, int] = {}
    parts: dict[str, list[int]] = {}  # of a buffer, the operations that have written pieces of it
    for step in made.calls:
        group = step.group
        reads = [number[b] for n in group.inputs if (b := home.get(n, Place(n)).buffer) in number]
        writes = [number[b] for n in group.outputs if (b := home[n].buffer) in number]
        needed = _writers(made, home, makers, parts, group.inputs)
        for name in made.pieces.keys() & {*group.outputs}:
            parts.setdefault(home[name].buffer, []).append(len(operations))
        once = isinstance(step, (NestedStage, MessageStage)) or bool((results | shared) & {*group.outputs})
        reads += [v for v in writes if v in written]  # pieces of a buffer that others began to write
        if isinstance(step, RepeatStage):
            writes += [number[name] for name in buffers_of(step, live_values(step.inner)[0])]
        elif isinstance(step, NestedStage):
            writes += [number[name] for name in nested_buffers(step, live_values)]
        fresh = tuple(v for v in dict.fromkeys(writes) if v not in written)
        written.update(fresh)
        makers.update(dict.fromkeys(group.outputs, len(operations)))
        operations.append(
            WorkItem(
                tuple(dict.fromkeys(reads)), fresh, seconds(step),
                tuple(p for n in group.outputs[:1] for p in places.get(n, ())), not once,
                isinstance(step, KernelStage) and _is_cheap(graph, group),
                " + ".join(n.name or n.op for n in group.nodes),
                needed,
            )
        )  # fmt: skip
    keep = frozenset(number[home[n].buffer] for n in results if n in home)
    for n, readers in _readers_of_states(made, home, makers).items():
        operations[n] = replace(operations[n], after=(*operations[n].after, *readers))
    return Work(tuple(operations), tuple(nbytes.values()), keep, _forward(made, operations, makers))


def _writers(
    made: Compilation,
    home: Mapping[str, Place],
    makers: Mapping[str, int],
    parts: Mapping[str, Sequence[int]],
    reads: Sequence[str],
) -> tuple[int, ...]:
    """The operations that write the pieces of joined buffers which are read: one piece, or by another name all."""
    whole = {home[name].buffer for name in reads if name in home and name not in makers}
    own = [makers[name] for name in reads if name in made.pieces and name in makers]
    return tuple(dict.fromkeys([*own, *(m for buffer in whole for m in parts.get(buffer, ()))]))


def _readers_of_states(made: Compilation, home: Mapping[str, Place], makers: Mapping[str, int]) -> dict[int, list[int]]:
    """Readers of a state's old value, call numbers by the number of the call that makes its new value."""
    readers: dict[str, list[int]] = {}
    for n, step in enumerate(made.calls):
        for name in step.group.inputs:
            readers.setdefault(home.get(name, Place(name)).buffer, []).append(n)
    after: dict[int, list[int]] = {}
    for name, state in made.graph.states.items():
        maker = makers.get(made.graph.outputs[state.output])
        if maker is not None:
            after.setdefault(maker, []).extend(n for n in readers.get(name, ()) if n != maker)
    return after


def _forward(made: Compilation, operations: Sequence[WorkItem], makers: Mapping[str, int]) -> frozenset[int]:
    """The operations that the model's own results, such as the loss, are made from, and those that make them."""
    states = {made.graph.outputs[state.output] for state in made.graph.states.values()}
    last = {makers[name] for name in made.graph.outputs if name not in states and name in makers}
    producer = {v: n for n, operation in enumerate(operations) for v in operation.writes}
    found = {*last}
    pending = [*last]
    while pending:
        for v in operations[pending.pop()].reads:
            if producer[v] not in found:
                found.add(producer[v])
                pending.append(producer[v])
    return frozenset(found)


# --- an order as calls ---


def _ordered(made: Compilation, order: Order) -> Compilation:
    """The computed steps in an order; what is computed again gets names of its own, and so does what only renames it.

    A step that only gives another name to memory comes right behind what it renames.
    """
    computed = made.calls
    renames = [step for step in made.steps if isinstance(step, Group)]
    waiting: dict[str, list[int]] = {}
    for i, group in enumerate(renames):
        for name in dict.fromkeys(group.inputs):
            waiting.setdefault(name, []).append(i)
    written = {name for step in computed for name in step.group.outputs} | {g.outputs[0] for g in renames}
    result = _Calls(made)
    there: set[str] = set()

    def emit_renames(names: Sequence[str]) -> None:
        pending = list(names)
        while pending:
            for i in waiting.get(pending.pop(0), ()):
                group = renames[i]
                if all(n in there or n not in written for n in group.inputs):
                    result.add(group)
                    there.update(group.outputs)
                    pending += group.outputs

    for group in renames:
        if not any(n in written for n in group.inputs):
            result.add(group)
            there.update(group.outputs)
            emit_renames(group.outputs)
    for n in order:
        result.add(computed[n])
        there.update(computed[n].group.outputs)
        emit_renames(computed[n].group.outputs)
    return result.compilation()


class _Calls:
    """Steps of a compilation under construction: a tensor that is written again gets a new name, read from then on."""

    def __init__(self, made: Compilation) -> None:
        self.made = made
        self.steps: list[Built] = []
        self.types: dict[str, TensorType] = dict(made.graph.types)
        self.layouts, self.views = dict(made.layouts), dict(made.views)
        self.names: dict[str, str] = {}  # the latest copy of each tensor
        self._copies: dict[str, int] = {}

    def add(self, step: Built) -> None:
        """One more step, which reads the latest copies."""
        group = step if isinstance(step, Group) else step.group
        read = {n: self.names[n] for n in group.inputs if self.names.get(n, n) != n}
        for n in group.outputs:
            self._copies[n] = self._copies.get(n, 0) + 1
            if self._copies[n] > 1:
                self._copy(n)
        written = {n: self.names[n] for n in group.outputs if n in self.names}
        if read or written:
            group = renamed_outputs(renamed_inputs(group, read), written)
        if isinstance(step, Group):
            self.steps.append(group)
        elif isinstance(step, KernelStage):
            names = {**read, **written}
            values = {parameter: names.get(value, value) for parameter, value in step.values.items()}
            self.steps.append(replace(step, group=group, values=values))
        else:
            self.steps.append(replace(step, group=group))

    def _copy(self, name: str) -> None:
        number = self._copies[name]
        while (fresh := f"{name}#{number}") in self.types:
            number += 1
        self.names[name] = fresh
        self.types[fresh] = self.types[name]
        if name in self.layouts:
            self.layouts[fresh] = self.layouts[name]
        if name in self.views:
            self.views[fresh] = self.views[name]

    def compilation(self) -> Compilation:
        """The compilation with these steps."""
        groups = (step if isinstance(step, Group) else step.group for step in self.steps)
        nodes = tuple(node for group in groups for node in group.nodes)
        graph: Graph = replace(self.made.graph, nodes=nodes, types=self.types)
        return replace(
            self.made, graph=graph, steps=tuple(self.steps), layouts=self.layouts, views=self.views, concurrent=()
        )
