"""Memory estimates: what bound symbols will need, from lifetimes of their fused groups, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from burnish.driver.stages import nbytes_of, stored
from burnish.graph.graph import Graph
from burnish.graph.passes import optimize
from burnish.machines.target import target
from burnish.memory.lifetimes import LifetimeStep, lifetimes
from burnish.memory.share import plan
from burnish.pipeline.plan import KernelPlan, plan_kernels


def arena_bytes(made: KernelPlan) -> int:
    """Bytes of all intermediate values of a plan, which share memory where their lifetimes allow it."""
    graph = made.graph
    steps = []
    for group in made.groups:
        reads = tuple(name for name in group.inputs if name not in graph.constants)
        view = made.views.get(group.outputs[0])
        steps.append(LifetimeStep(reads, group.outputs, not made.computes(group), view.offset if view else 0))
    sizes = {name: nbytes_of(stored(graph, name, made.layouts)) for name in graph.types}
    intervals, _ = lifetimes(steps, sizes, graph.outputs, made.pieces)
    return plan([i for i in intervals if i.name not in graph.outputs]).arena_bytes


def estimate(graph: Graph, states: Sequence[str] = (), parameters: Sequence[str] = ()) -> Mapping[str, int]:
    """Bytes of a graph's ``arena``, ``inputs``, ``parameters``, ``states``, ``outputs`` and ``constants``."""
    made = plan_kernels(optimize(graph), target("cpu"), exact=False)

    def total(names: Sequence[str]) -> int:
        return sum(graph.types[name].nbytes for name in names)

    rest = [name for name in graph.inputs if name not in states and name not in parameters]
    return {
        "arena": arena_bytes(made),
        "inputs": total(rest),
        "parameters": total(parameters),
        "states": total(states),
        "outputs": total(graph.outputs),
        "constants": total([*graph.constants]),
    }
