"""Tuning tasks of a model: every distinct kernel once, with all algorithms that can compute it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from burnish.base.cache import cache_key
from burnish.graph.algorithms import alternatives, computed_by, fastest, signature
from burnish.graph.estimates import Estimate, label_of
from burnish.graph.flow import bodies_of, body_graph
from burnish.graph.fuse import Group
from burnish.graph.graph import Graph, Node
from burnish.graph.passes import optimize
from burnish.graph.rounds import has_rounds, round_graph, rounds_of
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import matches, tunable_matches
from burnish.machines.target import Target
from burnish.ops import is_opaque
from burnish.ops.classify import flops
from burnish.pipeline.kernel import task_key
from burnish.pipeline.plan import KernelPlan, plan_kernels, plan_task
from burnish.tune.space import Alternative, TuningSpace


@dataclass(frozen=True)
class TuningTask:
    """Tuning task: a kernel of a model, and the space of its implementations.

    ``key`` identifies it on this machine, ``name`` says what it computes (``name_of``), ``calls`` how often the model
    runs it. ``flops`` are operations of the definition. Where the algorithm of a node is open, ``signature`` is that of
    the node, and labels of alternatives begin with the algorithm's, up to a slash. The default comes first.
    """

    key: str
    name: str
    calls: int
    flops: float
    space: TuningSpace
    signature: str = ""


def tuning_tasks(reference: Graph, target: Target, exact: bool) -> list[TuningTask]:
    """The distinct kernels of an optimized graph, in the order of their first call."""
    tasks: dict[str, TuningTask] = {}
    _add_tasks(tasks, reference, target, exact, 1)
    return list(tasks.values())


def _add_tasks(tasks: dict[str, TuningTask], reference: Graph, target: Target, exact: bool, times: int) -> None:
    """Adds the kernels of an optimized graph that the model runs ``times`` times; those of bodies that repeat, too."""
    made = plan_kernels(reference, target, exact)
    nodes = {name: node for node in reference.nodes for name in node.outputs}
    for group in made.groups:
        first_node = group.nodes[0]
        if has_rounds(first_node):
            body = optimize(round_graph(made.graph, first_node), exact, target)
            _add_tasks(tasks, body, target, exact, times * rounds_of(made.graph, first_node))
        for number, _ in enumerate(bodies_of(first_node)):
            body = optimize(body_graph(made.graph, first_node, number), exact)
            _add_tasks(tasks, body, target, exact, times)
        if not made.computes(group) or is_opaque(first_node.op):
            continue
        own = plan_task(made, group, made.graph.constants).task
        node = nodes.get(group.anchor.outputs[0]) if group.anchor else None
        known = node is not None and len(node.inputs) > 1 and node.inputs[1] in reference.constants
        found = alternatives(reference, node, target) if node and known and not exact else []
        ways = {"": own}
        if node and found:
            first = fastest(reference, node, found)
            others = {label_of(e): _by_algorithm(e, made, group, reference, node) for e in found if e is not first}
            ways = {label_of(first): own, **others}
        kernel = _join(group, ways, own, target)
        if node and found:
            kernel = replace(kernel, signature=signature(reference, node))
        before = tasks.get(kernel.key)
        tasks[kernel.key] = replace(kernel, calls=times + (before.calls if before else 0))


def name_of(group: Group) -> str:
    """A group for people: its most important operator, how many more there are, and the tensor that they compute."""
    main = group.anchor or group.nodes[-1]
    more = f"+{len(group.nodes) - 1}" if len(group.nodes) > 1 else ""
    return f"{main.op}{more} {group.outputs[0]}"


def _by_algorithm(chosen: Estimate, made: KernelPlan, group: Group, reference: Graph, node: Node) -> KernelTask:
    """Kernel task of a group whose anchor, ``node`` of the reference, is computed by another algorithm.

    Activations stay where and as they are in the arrangement, so that kernels can be exchanged for one another.
    """
    assert group.anchor is not None
    types, constants = dict(made.graph.types), dict(made.graph.constants)
    weight = node.inputs[1]
    types[weight], constants[weight] = reference.types[weight], reference.constants[weight]
    (other,) = computed_by(chosen, reference, node, types, constants)
    anchor = replace(other, inputs=(group.anchor.inputs[0], *other.inputs[1:]), outputs=group.anchor.outputs)
    members = tuple(anchor if member is group.anchor else member for member in group.nodes)
    renamed = {group.anchor.inputs[1]: anchor.inputs[1]}
    inputs = tuple(renamed.get(name, name) for name in group.inputs)
    changed = [anchor if member is group.anchor else member for member in made.graph.nodes]
    graph = made.graph.with_nodes(changed, types=types, constants=constants)
    variant = replace(made, graph=graph)
    return plan_task(variant, replace(group, nodes=members, inputs=inputs, anchor=anchor), constants).task


def _join(group: Group, ways: Mapping[str, KernelTask], own: KernelTask, target: Target) -> TuningTask:
    """One tuning task of the ways to compute a group: by the templates made for it, else by those for anything."""
    found = []
    for label, task in ways.items():
        special = [match for match in matches(task, target)[:-1] if match.template.searched is None]
        for match in special or (tunable_matches(task, target) if task is own else []):
            found.append(Alternative(f"{label}/{match.name}", task, match.template, match.space, target))
    key = cache_key(*sorted(task_key(task, target) for task in ways.values()))
    return TuningTask(key, name_of(group), 1, float(flops(own.outputs)), TuningSpace(tuple(found)))
