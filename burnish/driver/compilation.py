"""The compiler on one page: optimize, fuse, choose layouts, build kernels.

A model is imported before that (``importing.py``), and assembled to a module after it (``assembly.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from burnish.base import dump
from burnish.base.cache import ObjectCache
from burnish.base.garbage import rarely_collected
from burnish.driver.assembly import assemble as assemble
from burnish.driver.assembly import make_module as make_module
from burnish.driver.concurrent import side_by_side
from burnish.driver.importing import import_graph as import_graph
from burnish.driver.importing import import_model as import_model
from burnish.driver.nested import nested_stage
from burnish.driver.rounds import repeat_stage
from burnish.driver.stages import Built, Compilation, HostStage, KernelStage, structures_apart
from burnish.driver.stages import stored as stored
from burnish.errors import ScheduleError, UnsupportedOperator
from burnish.graph.flow import bodies_of, body_graph, body_name
from burnish.graph.fuse import Group, renamed_inputs, renamed_outputs
from burnish.graph.graph import Graph, Node
from burnish.graph.passes import optimize
from burnish.graph.regroup import fall_apart
from burnish.graph.rounds import has_rounds, round_graph, round_name
from burnish.kernels.task import KernelTask
from burnish.loops.layout import layout
from burnish.machines.target import Target
from burnish.ops import is_opaque
from burnish.ops.packing import OPERATORS as _TRANSFORMS
from burnish.ops.transposed import transposed_weight
from burnish.pipeline import kernel as kernels
from burnish.pipeline import native
from burnish.pipeline.plan import DEFAULTS, Choices, KernelPlan, make_task, plan_kernels, within

_log = logging.getLogger("burnish")

Progress = Callable[[str, int, int], None]
MakeKernel = Callable[[KernelTask, Target, ObjectCache, kernels.KernelConfig | None], kernels.CompiledKernel]
WEIGHT_TRANSFORMS = frozenset(op.name for op in (*_TRANSFORMS, transposed_weight))


@rarely_collected()
@dump.compilation()
def compile_kernels(
    graph: Graph,
    target: Target,
    exact: bool = False,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    choices: Choices = DEFAULTS,
    optimized: bool = False,
    make: MakeKernel = kernels.build,
) -> Compilation:
    """Everything up to the machine code of every kernel. ``optimized``: the passes have been over the graph. ``make``:
    what makes a kernel of a task (``kernel.outline``: without machine code, to plan memory).

    Raises UnsupportedOperator for a graph with open dimensions of which a pass needs to know more than their bounds.
    """
    if graph.dims:
        try:
            return _lowered(graph, target, exact, cache_dir, progress, choices, optimized, make)
        except TypeError as error:
            named = ", ".join(f"'{d}'" for d in graph.dims)
            raise UnsupportedOperator(f"model: open dimensions {named}: {error}; allowed: numbers for them") from error
    return _lowered(graph, target, exact, cache_dir, progress, choices, optimized, make)


def _lowered(
    graph: Graph,
    target: Target,
    exact: bool,
    cache_dir: str | Path | None,
    progress: Progress | None,
    choices: Choices,
    optimized: bool,
    make: MakeKernel,
) -> Compilation:
    """See :func:`compile_kernels`."""
    report = progress or (lambda stage, done, total: None)
    dump.form("graph", graph)
    if not optimized:
        report("optimize", 0, 1)
        graph = optimize(graph, exact, target)
    made = plan_kernels(graph, target, exact, choices.decide, choices.fused)
    return side_by_side(build_kernels(made, target, ObjectCache(cache_dir), choices, report, make))


def build_kernels(
    made: KernelPlan,
    target: Target,
    store: ObjectCache,
    choices: Choices,
    report: Progress = lambda *progress: None,
    make: MakeKernel = kernels.build,
) -> Compilation:
    """The machine code of every kernel of a plan."""
    constants = dict(made.graph.constants)
    steps: list[Built] = []
    later = {group.outputs[0]: group for group in made.groups if is_transform(made.graph, group)}
    for done, group in enumerate(made.groups):
        report("kernels", done, len(made.groups))
        if group.outputs[0] not in later:
            steps += build_group(made, group, constants, target, store, choices, make)
    made, steps = pack_weights(
        made, steps, later, lambda made, group: build_group(made, group, constants, target, store, choices, make)
    )
    report("link", 0, 1)
    computed, structures = structures_apart(made.graph, steps)
    return Compilation(
        made.reference, made.graph, computed, made.layouts, constants, made.pieces, made.views, target, structures
    )


def build_group(
    made: KernelPlan,
    group: Group,
    constants: dict[str, np.ndarray],
    target: Target,
    store: ObjectCache,
    choices: Choices,
    make: MakeKernel = kernels.build,
) -> list[Built]:
    """The steps of a group: its kernel, or those of its nodes where no schedule can make one of them all.

    Adds constants that are derived from others. Raises UnsupportedOperator for a node that has no schedule by itself.
    """
    if not made.computes(group):
        return [group]
    if has_rounds(group.nodes[0]):
        body = optimize(round_graph(made.graph, group.nodes[0]), made.exact, target)
        own = plan_kernels(body, target, made.exact, choices.decide, choices.fused)
        planned = within(replace(own, repeated=True), round_name(group.nodes[0], ""))
        inner = build_kernels(planned, target, store, choices, make=make)
        constants.update(inner.constants)
        return [repeat_stage(group, inner, lambda task, recipe: make(task, target, store, recipe))]
    if bodies := bodies_of(group.nodes[0]):
        found = []
        for number in range(len(bodies)):
            body = optimize(body_graph(made.graph, group.nodes[0], number), made.exact)
            own = replace(
                plan_kernels(body, target, made.exact, choices.decide, choices.fused), repeated=len(bodies) < 2
            )
            planned = within(own, body_name(group.nodes[0], number, ""))
            found.append(build_kernels(planned, target, store, choices, make=make))
            constants.update(found[-1].constants)
        return [nested_stage(group, found)]
    if is_opaque(group.nodes[0].op):
        return [HostStage(group, native.build(made.graph, group.nodes[0], target.driver, store))]
    task, values = make_task(made, group, constants)
    try:
        recipe = choices.recipe(task, target)
        return [KernelStage(group, task, make(task, target, store, recipe), values, recipe is not None)]
    except ScheduleError as error:
        names = ", ".join(f"{node.name or node.outputs[0]} ({node.op})" for node in group.nodes)
        if len(group.nodes) == 1:
            types = ", ".join(str(made.graph.types[name]) for name in group.nodes[0].inputs)
            raise UnsupportedOperator(f"node {names}: no schedule for operands {types}: {error}") from error
        _log.warning("nodes %s become kernels of their own, not one, which is slower: %s", names, error)
    parts = fall_apart(made.graph, group)
    return [step for part in parts for step in build_group(made, part, constants, target, store, choices, make)]


def is_transform(graph: Graph, group: Group) -> bool:
    """Whether a group makes the weight of an algorithm, which is written as the kernels that read it want it packed."""
    return group.nodes[-1].op in WEIGHT_TRANSFORMS and group.outputs[0] not in graph.outputs


def pack_weights(
    made: KernelPlan,
    steps: Sequence[Built],
    transforms: Mapping[str, Group],
    build: Callable[[KernelPlan, Group], list[Built]],
) -> tuple[KernelPlan, list[Built]]:
    """Adds the kernels that pack weights which are known at a call only, each in front of the first that reads it.

    ``transforms``: the groups that compute such weights, by value; they are built here, once for every layout.
    """
    found: dict[tuple[str, str], str] = {}
    types, layouts, result = dict(made.graph.types), dict(made.layouts), list[Built]()

    def value_in(name: str, tag: str) -> str:
        """The value that holds ``name`` in the layout ``tag``, after the steps that compute it."""
        if not tag and name not in transforms:
            return name
        if (name, tag) not in found:
            fresh = f"{name}@{tag}" if tag else name
            types[fresh] = types[name]
            if tag:
                layouts[fresh] = layout(tag)
            source = transforms.get(name) or Group((Node("identity", (name,), (name,)),), (name,), (name,))
            group = renamed_outputs(source, {name: fresh})
            alone = replace(made, graph=replace(made.graph, nodes=group.nodes, types=types), layouts=layouts)
            result.extend(build(alone, group))
            found[name, tag] = fresh
        return found[name, tag]

    for step in steps:
        packed = sorted(step.task.packed) if isinstance(step, KernelStage) else []
        group = step if isinstance(step, Group) else step.group
        own_weights = {step.values[p] for p in packed} if isinstance(step, KernelStage) else set()
        for name in group.inputs:
            if name in transforms and name not in own_weights:
                value_in(name, "")
        if not isinstance(step, KernelStage) or not packed:
            result.append(step)
            continue
        tags = {p: step.kernel.packing.get(p, "") for p in packed}
        own = {p: value_in(step.values[p], tag) for p, tag in tags.items()}
        names = {step.values[p]: fresh for p, fresh in own.items() if fresh != step.values[p]}
        result.append(replace(step, group=renamed_inputs(step.group, names), values={**step.values, **own}))
    nodes = [node for step in result for node in (step if isinstance(step, Group) else step.group).nodes]
    return replace(made, graph=replace(made.graph, nodes=tuple(nodes), types=types), layouts=layouts), result
