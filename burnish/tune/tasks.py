"""What there is to tune in a model: every distinct kernel once, with all algorithms that can compute it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    made = arrange(reference, target, exact)
    nodes = {name: node for node in reference.nodes for name in node.outputs}
    found = {name: [] if exact else alternatives(reference, node, target) for name, node in nodes.items()}
    labels = sorted({label_of(estimate) for choices in found.values() for estimate in choices})
    variants = {label: _tasks_by_values(arrange(reference, target, exact, prefer(label))) for label in labels}
    tasks: dict[str, TuningTask] = {}
    for group, own in _tasks(made):
        anchor = group.anchor.outputs[0] if group.anchor else ""
        choices = found.get(anchor, [])
        ranked = sorted(choices, key=lambda e: e is not fastest(reference, nodes[anchor], choices))
        ways = {label_of(e): variants[label_of(e)].get(_values(group)) for e in ranked}
        computed = {label: task for label, task in ways.items() if task is not None} or {"": own}
        kernel = _join(group, computed, own, target)
        if choices:
            kernel = replace(kernel, signature=signature(reference, nodes[anchor]))
        before = tasks.get(kernel.key)
        tasks[kernel.key] = replace(before, calls=before.calls + 1) if before else kernel
    return list(tasks.values())


def _tasks(made: Arrangement) -> Iterator[tuple[Group, Task]]:
    """The groups that need code, and what their kernels compute."""
    constants = dict(made.graph.constants)
    for group in made.groups:
        if made.computes(group):
            yield group, make_task(made, group, constants)[0]


def _values(group: Group) -> frozenset[str]:
    """What a group computes: groups of different arrangements with equal values do the same work."""
    return frozenset(name for node in group.nodes for name in node.outputs)


def _tasks_by_values(made: Arrangement) -> dict[frozenset[str], Task]:
    return {_values(group): task for group, task in _tasks(made)}


def prefer(label: str) -> Decide:
    """Takes the algorithm with this label where there is one, elsewhere the one estimated to be fastest."""

    def decide(graph: Graph, node: Node, found: Sequence[Estimate]) -> Estimate:
        return next((e for e in found if label_of(e) == label), None) or fastest(graph, node, found)

    return decide


def _join(group: Group, ways: Mapping[str, Task], own: Task, target: Target) -> TuningTask:
    """One tuning task of the given ways to compute a group, each by every template that fits it."""
    found = [
        Alternative(f"{label}/{template.name}", task, template, template.space(task, target), target)
        for label, task in ways.items()
        for template in templates_for(task, target)
    ]
    key = cache_key(*sorted(task_key(task, target) for task in ways.values()))
    names = " + ".join(node.name or node.op for node in group.nodes)
    return TuningTask(key, names, 1, float(flops(own.outputs)), TuningSpace(tuple(found)))
