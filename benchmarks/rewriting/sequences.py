"""Substitutions in NasNet-A (figure 2.8 of the thesis): a cell before and after, and the sequence that leads there.

By each machine's costs. ``before`` and ``after``: operators as [label, numbers of the operators they read, changed];
``changed`` are those whose value no operator of the other side has. The thesis' two sequences: average pools that
become depthwise convolutions, which are added up as one; and sums of separable convolutions that become one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.rewriting.networks import nasnet
from benchmarks.rewriting.search import MACHINES
from burnish.driver.rewritten import shipped_rules
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, Node
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.search.budget import Budget

SECONDS = 3.0  # of CPU time, of each search
SHORT = {"conv2d": "conv", "avg_pool2d": "avg", "max_pool2d": "max"}
Drawn = list[tuple[str, list[int], bool]]
Moments = Mapping[str, tuple[float, float]]


def run(seconds: float = SECONDS) -> list[dict[str, Any]]:
    """A row for each machine."""
    rows, random = [], np.random.default_rng(0)
    cell = nasnet(cells=1)
    weights = {
        name: (random.standard_normal(value.shape) / np.sqrt(np.prod(value.shape[1:]))).astype(np.float32)
        for name, value in cell.constants.items()
    }
    graph = replace(cell, constants=weights)
    feeds = {name: random.standard_normal(graph.types[name].shape).astype(np.float32) for name in graph.inputs}
    for machine, cost in MACHINES.items():
        found = rewrite_graph(graph, shipped_rules(), cost, Budget(seconds=seconds, clock=time.process_time))
        before, after = moments(graph, feeds), moments(found.graph, feeds)
        rows.append({
            "network": "NasNet-A, 1 cell", "machine": machine, "ratio": round(found.after / found.before, 4),
            "applied": [f"{s.times} × {s.rule}" for s in found.applied],
            "before": drawn(graph, before, after), "after": drawn(found.graph, after, before),
        })  # fmt: skip
    return rows


def moments(graph: Graph, feeds: Mapping[str, np.ndarray]) -> Moments:
    """Means of the magnitudes and of the squares of every operator's values, by which equal tensors are found."""
    names = tuple(dict.fromkeys(name for node in graph.nodes for name in node.outputs))
    values = evaluate(replace(graph, outputs=names), feeds)
    return {name: (float(np.abs(v).mean()), float(np.square(v).mean())) for name, v in values.items()}


def drawn(graph: Graph, own: Moments, others: Moments) -> Drawn:
    """The operators on activations as [label, operators they read, changed]; what weights alone give is left out."""
    known = np.array(list(others.values()))
    fixed, places, found = set(graph.constants), dict[str, int](), list[tuple[str, list[int], bool]]()
    for node in graph.nodes:
        if all(name in fixed for name in node.inputs):
            fixed.update(node.outputs)
            continue
        reads = [places[name] for name in node.inputs if name in places]
        places |= dict.fromkeys(node.outputs, len(found))
        same = np.isclose(known, own[node.outputs[0]], rtol=1e-4).all(axis=1).any()
        found.append((label(node, graph), reads, not same))
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
