"""Measured choice of algorithms: those of a convolution that are predicted to be close are timed once on this machine.

The kernels of the contenders are compiled alone and take turns; what was found is kept in the cache by kind of machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from burnish.base.cache import ObjectCache, cache_key
from burnish.driver.assembly import assemble
from burnish.driver.compilation import build_kernels
from burnish.driver.stages import Compilation
from burnish.graph.algorithms import choose_algorithms, fastest, signature
from burnish.graph.estimates import Estimate, label_of
from burnish.graph.fuse import fuse
from burnish.graph.graph import Graph, Node
from burnish.graph.layout import blocked
from burnish.graph.passes import optimize
from burnish.loops.sizes import is_size
from burnish.machines.target import Target
from burnish.measure.samples import draw
from burnish.pipeline.plan import DEFAULTS, Choices, KernelPlan
from burnish.runtime.devices import usual_threads
from burnish.runtime.host import fingerprint
from burnish.runtime.module import Module

CLOSE = 1.4  # times the least prediction: as far off as predictions of two algorithms of a layer are for one another
CONTENDERS = 3
TURNS, TURN_SECONDS, MOST_CALLS = 5, 1e-3, 20  # of each contender
LEAST_GAIN = 0.03  # of the predicted one's time, below which it stays
MOST_SECONDS = 3.0  # of a compilation; layers after that are predicted


def measured_choices(choices: Choices, target: Target, threads: int | None, cache_dir: str | Path | None) -> Choices:
    """``choices`` with algorithms measured where predictions are close and no record says which is faster.

    ``target`` is this machine's CPU. Layers of open sizes, and weights that are no constants, are predicted.
    """
    choice = MeasuredChoice(choices, target, threads or usual_threads(target), cache_dir)
    return replace(choices, decide=choice, name=cache_key(choices.name, "measured"))


class MeasuredChoice:
    """Decision between a layer's algorithms, by time where the estimates are close: called as ``Choices.decide``."""

    def __init__(self, choices: Choices, target: Target, threads: int, cache_dir: str | Path | None) -> None:
        self._choices, self._target, self._threads = choices, target, threads
        self._cache, self._spent = ObjectCache(cache_dir), 0.0
        self._known: dict[str, str] = {}

    def __call__(self, graph: Graph, node: Node, found: Sequence[Estimate]) -> Estimate:
        """The algorithm of a node of a graph."""
        first = self._choices.decide(graph, node, found)
        close = contenders(found)
        types = [graph.types[name] for name in (*node.inputs, *node.outputs)]
        sized = any(is_size(extent) for t in types for extent in t.shape)
        if first is not fastest(graph, node, found) or len(close) < 2 or sized or node.inputs[1] not in graph.constants:
            return first
        key = self._key(graph, node, close)
        label = self._known.get(key) or self._stored(key)
        if label is None:
            if self._spent > MOST_SECONDS:
                return first
            began = time.perf_counter()
            label = self._measured(graph, node, close)
            self._spent += time.perf_counter() - began
            self._cache.put(key, json.dumps(label).encode())
        self._known[key] = label
        return next((e for e in found if label_of(e) == label), first)

    def _key(self, graph: Graph, node: Node, close: Sequence[Estimate]) -> str:
        target = self._target
        machine = fingerprint(target.triple, target.cpu, target.features)
        return cache_key("algorithm", machine, str(self._threads), signature(graph, node), *map(label_of, close))

    def _stored(self, key: str) -> str | None:
        data = self._cache.get(key)
        return None if data is None else str(json.loads(data))

    def _measured(self, graph: Graph, node: Node, close: Sequence[Estimate]) -> str:
        """The label of the fastest contender, the first where none is surely faster."""
        names = (*node.inputs, *node.outputs)
        types, weight = {name: graph.types[name] for name in names}, node.inputs[1]
        alone = Graph(node.inputs[:1], node.outputs, (node,), types, {weight: graph.constants[weight]})
        modules = [self._alone(alone, each) for each in close]
        spec = modules[0].inputs[0]
        value = draw(spec.shape, spec.dtype, (-1.0, 1.0), np.random.default_rng(0))
        times: list[list[float]] = [[] for _ in close]
        for turn in range(TURNS):
            order = list(zip(modules, close, times, strict=True))
            for module, each, mine in order if turn % 2 else reversed(order):
                calls = min(max(int(TURN_SECONDS / max(each.seconds, 1e-9)), 1), MOST_CALLS)
                mine.append(sum(row.microseconds for row in module.profile(value, repeat=calls)))
        medians = [median(mine) for mine in times]
        best = min(medians)
        return label_of(close[medians.index(best)] if best < (1 - LEAST_GAIN) * medians[0] else close[0])

    def _alone(self, graph: Graph, chosen: Estimate) -> Module:
        """The layer by one algorithm, its images in channel blocks as its neighbours in a network have them."""
        label, lanes = label_of(chosen), self._target.lanes
        choices = replace(DEFAULTS, decide=lambda g, n, found: next(e for e in found if label_of(e) == label))
        images = [name for name in (*graph.inputs, *graph.outputs) if graph.types[name].shape[1] % lanes == 0]
        return Module(assemble(compile_in_blocks(graph, images, self._target, choices, self._cache)), self._threads)


def compile_in_blocks(
    graph: Graph, images: Collection[str], target: Target, choices: Choices, cache: ObjectCache, exact: bool = False
) -> Compilation:
    """A graph whose inputs and results named ``images`` are in channel blocks, also where the module takes them."""
    reference = optimize(graph, exact, target)
    chosen = choose_algorithms(reference, target, exact, choices.decide)
    layouts = {name: blocked(target.lanes) for name in images}
    plan = KernelPlan(reference, chosen, tuple(fuse(chosen, target.lanes)), layouts, {}, {}, exact)
    return build_kernels(plan, target, cache, choices)


def contenders(found: Sequence[Estimate]) -> list[Estimate]:
    """The algorithms whose estimates are close to the least, the least first."""
    ranked = sorted(found, key=lambda e: e.seconds)
    return [e for e in ranked[:CONTENDERS] if e.seconds <= CLOSE * ranked[0].seconds]
