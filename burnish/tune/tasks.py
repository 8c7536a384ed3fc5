"""What there is to tune in a model: every distinct kernel once, with all algorithms that can compute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from burnish.arrange import Arrangement, arrange, make_task
from burnish.build import task_key
from burnish.graph.algorithms import Decide, alternatives, fastest, signature
from burnish.graph.estimates import Estimate, label_of
from burnish.graph.fuse import Group
from burnish.graph.graph import Graph, Node
from burnish.kernels.cpu import templates_for
from burnish.kernels.task import Task
from burnish.ops.classify import flops
from burnish.runtime.cache import cache_key
from burnish.target import Target
from burnish.tune.space import Alternative, TuningSpace


@dataclass(frozen=True)
class TuningTask:
    """A kernel of a model, and the space of the ways to compute it.

    ``key`` identifies it on this machine, ``name`` says which graph nodes it computes, ``calls`` how often the model
    runs it. ``signature`` is that of the node whose algorithm is open (empty: there is one), ``algorithms`` the
    operator and attributes behind the label of each alternative. ``flops`` are operations of the definition.
    """

    key: str
    name: str
    calls: int
    flops: float
    space: TuningSpace
    signature: str = ""
    algorithms: Mapping[str, Estimate] | None = None


def tuning_tasks(reference: Graph, target: Target, exact: bool) -> list[TuningTask]:
    """The distinct kernels of an optimized graph, in the order of their first call."""
    made = arrange(reference, target, exact)
    nodes = {name: node for node in reference.nodes for name in node.outputs}
    open_nodes = {} if exact else {name: _by_label(alternatives(reference, n, target)) for name, n in nodes.items()}
    labels = sorted({label for found in open_nodes.values() for label in found})
    variants = {label: arrange(reference, target, exact, prefer(label)) for label in labels}
    tasks: dict[str, TuningTask] = {}
    for group in made.groups:
        if not made.computes(group):
            continue
        own = make_task(made, group, {})[0]
        name = group.anchor.outputs[0] if group.anchor else ""
        algorithms = open_nodes.get(name, {})
        ways = {label: _same_work(variants[label], group) for label in algorithms}
        computed = {label: task for label, task in ways.items() if task is not None}
        kernel = _join(group, computed or {"": own}, own, target)
        if computed:
            kernel = replace(kernel, signature=signature(reference, nodes[name]), algorithms=algorithms)
        before = tasks.get(kernel.key)
        tasks[kernel.key] = replace(before, calls=before.calls + 1) if before else kernel
    return list(tasks.values())


def prefer(label: str) -> Decide:
    """Takes the algorithm with this label where there is one, elsewhere the one estimated to be fastest."""

    def decide(graph: Graph, node: Node, found: Sequence[Estimate]) -> Estimate:
        return _by_label(found).get(label) or fastest(graph, node, found)

    return decide


def _by_label(found: Sequence[Estimate]) -> dict[str, Estimate]:
    return {label_of(estimate): estimate for estimate in found}


def _same_work(variant: Arrangement, group: Group) -> Task | None:
    """The kernel that computes the same values in another arrangement; None where its groups are other ones."""
    values = {name for node in group.nodes for name in node.outputs}
    for other in variant.groups:
        if values == {name for node in other.nodes for name in node.outputs} and variant.computes(other):
            return make_task(variant, other, {})[0]
    return None


def _join(group: Group, ways: Mapping[str, Task], own: Task, target: Target) -> TuningTask:
    """One tuning task of the given ways to compute a group, each by every template that fits it."""
    found = [
        Alternative(f"{label}/{template.name}" if label else template.name, task, template, template.space(task, target))
        for label, task in ways.items()
        for template in templates_for(task, target)
    ]
    key = cache_key(*sorted(task_key(task, target) for task in ways.values()))
    names = " + ".join(node.name or node.op for node in group.nodes)
    return TuningTask(key, names, 1, float(flops(own.outputs)), TuningSpace(tuple(found)))
