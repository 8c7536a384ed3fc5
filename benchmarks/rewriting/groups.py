"""ResNeXt-50's grouped convolutions, otherwise grouped: what figure 2.9 of the thesis measures on a GPU.

The thesis launches 4 convolutions of 8 groups each instead of one of 32, 2.8 times as fast. Contenders, each equal to
the layer as it is: ``split n``, one convolution for each n-th of the groups; ``merged n``, n groups as one, with zeros
between them. A layer stands in its bottleneck, between convolutions by points, so that its images are stored as in the
network. CPU seconds of one thread, least of turns; ``share``: what the layer itself takes of its bottleneck;
``error``: of answers, of their scale; ``search``: what is found by estimates alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import burnish as bn
from benchmarks.rewriting.turns import least_seconds
from burnish.driver.rewritten import shipped_rules
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import host
from burnish.measure.accuracy import scaled_error
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.rewrite.search.cost import TargetCost
from burnish.rewrite.search.measured import MeasuredCost
from burnish.search.budget import Budget

GROUPS = 32
LAYERS = ((128, 56, 1), (256, 56, 2), (256, 28, 1), (512, 28, 2), (512, 14, 1), (1024, 14, 2), (1024, 7, 1))
WAYS = (1, 2, 4, 8)  # convolutions that a layer is split into
MERGED = (2, 4, 8, 32)  # groups that are made one
ROUNDS = 15


def run(rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """A row for each layer: microseconds of each way to group it, and the grouping that the search finds."""
    return [row(*layer, rounds) for layer in LAYERS]


def row(channels: int, size: int, stride: int, rounds: int) -> dict[str, Any]:
    """Microseconds of one layer's bottleneck in each grouping, and without the layer."""
    weights, x = values(channels, size)
    graphs = {f"split {n}" if n > 1 else "as it is": bottleneck(weights, size, stride, n) for n in WAYS}
    graphs |= {f"merged {n}": bottleneck(weights, size, stride, 1, n) for n in MERGED}
    modules = {name: bn.compile(graph, threads=1, rewrite=False) for name, graph in graphs.items()}
    answers = {name: np.asarray(module(x=x)) for name, module in modules.items()}
    found = least_seconds({name: partial(module, x=x) for name, module in modules.items()}, rounds)
    plain = found["as it is"]
    steps = [modules["as it is"].profile(x=x, repeat=1) for _ in range(20)]
    least = [min(row.microseconds for row in same) for same in zip(*steps, strict=True)]
    best = min(found, key=lambda name: found[name])
    price = MeasuredCost(TargetCost(host()))
    chosen = rewrite_graph(graphs["as it is"], shipped_rules(), price, Budget(seconds=1.0))
    return {
        "layer": f"{channels} channels, {size}x{size}, stride {stride}",
        "microseconds": {name: round(1e6 * seconds, 1) for name, seconds in found.items()},
        "share": round(least[1] / sum(least), 3),
        "best": best,
        "speedup": round(plain / found[best], 3),
        "error": max(scaled_error([answer], [answers["as it is"]]) for answer in answers.values()),
        "search": [f"{s.times} × {s.rule}" for s in chosen.applied],
    }


def values(channels: int, size: int) -> tuple[Mapping[str, np.ndarray], np.ndarray]:
    """Random weights of a bottleneck, and its input."""
    random = np.random.default_rng(0)
    shapes = {"reduce": (channels, 2 * channels, 1, 1), "middle": (channels, channels // GROUPS, 3, 3),
              "expand": (2 * channels, channels, 1, 1)}  # fmt: skip
    made = {n: (random.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32) for n, s in shapes.items()}
    return made, random.standard_normal((1, 2 * channels, size, size)).astype(np.float32)


def bottleneck(weights: Mapping[str, np.ndarray], size: int, stride: int, ways: int, merged: int = 1) -> Graph:
    """A bottleneck whose middle is ``ways`` convolutions, each of groups of which ``merged`` are one."""
    b = GraphBuilder()
    channels = len(weights["middle"])
    x = b.input("x", (1, 2 * channels, size, size))
    x = b.add("relu", b.add("conv2d", x, b.constant(weights["reduce"])))
    middle, own, parts = block_diagonal(weights["middle"], merged), channels // ways, []
    for first in range(0, channels, own):
        part = x
        if ways > 1:
            part = b.add("slice", x, starts=(0, first, 0, 0), extents=(1, own, size, size))
        weight, groups = b.constant(middle[first : first + own]), GROUPS // merged // ways
        parts.append(b.add("conv2d", part, weight, strides=(stride, stride), pads=(1, 1, 1, 1), groups=groups))
    x = b.add("relu", parts[0] if ways == 1 else b.add("concat", *parts, axis=1))
    return b.build(b.add("conv2d", x, b.constant(weights["expand"])))


def block_diagonal(weight: np.ndarray, merged: int) -> np.ndarray:
    """A weight in groups as one in fewer, of each ``merged``."""
    outputs, depth = weight.shape[:2]
    own = outputs // GROUPS
    made = np.zeros((outputs, depth * merged, *weight.shape[2:]), np.float32)
    for o in range(outputs):
        place = o // own % merged * depth
        made[o, place : place + depth] = weight[o]
    return made


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text: times, and what the search found by estimates alone."""
    names = list(rows[0]["microseconds"])
    lines = ["layer                            " + "".join(f"{name:>11}" for name in names) + "  share  best"]
    for r in rows:
        times = "".join(f"{r['microseconds'][name]:11.1f}" for name in names)
        lines.append(
            f"{r['layer']:33}{times}{r['share']:7.2f}  {r['best']} {r['speedup']:.2f}; {', '.join(r['search'])}"
        )
    return "\n".join(lines)
