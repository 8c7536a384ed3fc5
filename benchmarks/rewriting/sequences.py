"""Substitutions in NasNet-A (figure 2.8 of the thesis): a cell before and after, and the sequence that leads there.

By each machine's costs. ``before`` and ``after``: operators as [label, numbers of the operators they read, changed];
``changed`` are those whose value is computed otherwise on the other side. The thesis' two sequences: average pools that
become depthwise convolutions, which are added up as one; and sums of separable convolutions that become one.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.rewriting.networks import nasnet
from benchmarks.rewriting.search import MACHINES
from burnish.driver.rewritten import shipped_rules
from burnish.graph.graph import Graph, Node
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.search.budget import Budget

SECONDS = 3.0  # of CPU time, of each search
SHORT = {"conv2d": "conv", "avg_pool2d": "avg", "max_pool2d": "max"}
Drawn = list[tuple[str, list[int], bool]]


def run(seconds: float = SECONDS) -> list[dict[str, Any]]:
    """A row for each machine."""
    rows = []
    for machine, cost in MACHINES.items():
        graph = nasnet(cells=1)
        found = rewrite_graph(graph, shipped_rules(), cost, Budget(seconds=seconds, clock=time.process_time))
        before, after = signatures(graph), signatures(found.graph)
        rows.append({
            "network": "NasNet-A, 1 cell", "machine": machine, "ratio": round(found.after / found.before, 4),
            "applied": [f"{s.times} × {s.rule}" for s in found.applied],
            "before": drawn(graph, before, set(after.values())),
            "after": drawn(found.graph, after, set(before.values())),
        })  # fmt: skip
    return rows


def signatures(graph: Graph) -> dict[str, str]:
    """Of every tensor how it is computed: equal where operators, attributes and what they read are."""
    known = {name: name for name in graph.inputs}
    known |= {name: f"const{value.shape}" for name, value in graph.constants.items()}
    for node in graph.nodes:
        attributes = sorted((key, str(value)) for key, value in node.attrs.items())
        own = f"{node.op}{attributes}({','.join(known[name] for name in node.inputs)})"
        known |= {name: f"{number}:{hash(own)}" for number, name in enumerate(node.outputs)}
    return known


def drawn(graph: Graph, own: dict[str, str], others: set[str]) -> Drawn:
    """The operators on activations as [label, operators they read, changed]; what weights alone give is left out."""
    fixed, places, found = set(graph.constants), dict[str, int](), list[tuple[str, list[int], bool]]()
    for node in graph.nodes:
        if all(name in fixed for name in node.inputs):
            fixed.update(node.outputs)
            continue
        reads = [places[name] for name in node.inputs if name in places]
        places |= dict.fromkeys(node.outputs, len(found))
        found.append((label(node, graph), reads, own[node.outputs[0]] not in others))
    return found


def label(node: Node, graph: Graph) -> str:
    """The operator, with the extents of a window; DWC: a depthwise convolution."""
    if node.op != "conv2d":
        window = node.attrs.get("kernel_shape") or node.attrs.get("kernel")
        size = "×".join(map(str, window)) if isinstance(window, tuple) else ""
        return f"{SHORT.get(node.op, node.op)} {size}".strip()
    shape = graph.types[node.inputs[1]].shape
    groups = node.attrs.get("groups", 1)
    name = "DWC" if groups == graph.types[node.inputs[0]].shape[1] else f"conv/{groups}" if groups != 1 else "conv"
    return f"{name} {shape[2]}×{shape[3]}"


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    return "\n".join(
        f"{r['network']} {r['machine']:9} {len(r['before'])} -> {len(r['after'])} operators, time {r['ratio']:.3f}: "
        f"{', '.join(r['applied'])}"
        for r in rows
    )
