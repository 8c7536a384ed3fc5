"""Small tasks, by name, that between them call the numba kernels of all products as users would.

What they compile is what an installation brings along. A signature that none of them meets is compiled when a user
first needs it, so a task more is never a matter of right or wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from burnish.graph.graph import Graph

# Of each task its module's name. Two or more run at the same time, in this order: those of one kind, which share
# kernels, stand apart.
TASKS = {
    "planning": "tasks", "common": "boosting", "tuning": "tasks", "large": "boosting", "memory": "tasks",
    "methods": "boosting", "whole_graphs": "tasks", "sparse": "boosting", "sampled_graphs": "tasks",
    "shapes": "boosting", "files": "boosting", "categories": "boosting", "ranking": "boosting",
    "objectives": "boosting", "explained": "boosting",
}  # fmt: skip


def run(task: str) -> None:
    """Runs a task. KeyError for another name."""
    work: Callable[[], None] = getattr(import_module(f"burnish.ahead.{TASKS[task]}"), task)
    work()


def planning() -> None:
    """A plan of training on many devices, and a walk, which a plan begins when everything else is done."""
    from burnish.driver.planned import plan
    from burnish.parallel.search import search
    from burnish.search.budget import Budget

    made = plan(_network(), "p100:2x2", seconds=1.0, pipelines=False)
    search(made.simulator, {made.name: made.choice}, Budget(trials=2), blocks=False)


def memory() -> None:
    """Memory of a compiled training step, by every strategy and within a budget."""
    from burnish.driver.compilation import compile_kernels
    from burnish.driver.recompute import call_seconds, training_step
    from burnish.memory.budget import Planner
    from burnish.memory.strategies import STRATEGIES, by_strategy
    from burnish.target import target
    from burnish.train.step import Train, training_graph

    machine = target("cpu")
    with tempfile.TemporaryDirectory() as folder:
        made = compile_kernels(training_graph(_network(), Train()), machine, False, folder)
        planner = Planner(training_step(made, call_seconds(made.graph, machine)).work, seconds=0.0)
        plans = [by_strategy(planner, name) for name in STRATEGIES]
        planner.within((min(plan.arena for plan in plans) + plans[0].arena) // 2)


def whole_graphs() -> None:
    """Networks on graphs, trained and applied: a symmetric graph, and a directed one with weights and self loops."""
    from burnish.gnn.csr import CSR
    from burnish.gnn.generators import block_model
    from burnish.gnn.graph import Graph
    from burnish.gnn.models import network
    from burnish.gnn.train import fit

    graph, draw = block_model(400, 4000, 3, 8), np.random.default_rng(0)
    source, target = draw.integers(0, 400, (2, 3000))
    for loops in ("keep", "add", "remove"):
        csr = CSR.from_edges(source, target, 400, draw.random(3000, np.float32), self_loops=loops)
    directed = Graph(csr, graph.features, graph.labels, graph.train, graph.validation, graph.test)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("gcn", "sage", "gin", "gat"):
            made = network(kind, graph.width, graph.classes, hidden=16)
            trained = fit(made, graph, epochs=2, cache_dir=folder)
            trained.score(graph, "test")
        fit(network("gcn", graph.width, graph.classes, hidden=16), directed, epochs=2, cache_dir=folder)


def sampled_graphs() -> None:
    """Batches of vertices with some of their neighbours."""
    from burnish.gnn.generators import block_model
    from burnish.gnn.models import network
    from burnish.gnn.sampling import Sampling
    from burnish.gnn.train import fit

    graph = block_model(400, 4000, 3, 8)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("sage", "gcn"):
            made = network(kind, graph.width, graph.classes, hidden=16)
            fit(made, graph, epochs=2, sampling=Sampling(64, (5, 5)), cache_dir=folder)


def tuning() -> None:
    """A search for schedules of kernels."""
    from burnish.driver.tuned import tune_model
    from burnish.target import host
    from burnish.tune.session import Tune

    with tempfile.TemporaryDirectory() as folder:
        tune_model(_network(), Tune(trials=40), Path(folder) / "records.jsonl", target=host(), cache_dir=folder)


def _network() -> Graph:
    """Three dense layers."""
    from burnish.graph.graph import GraphBuilder

    b = GraphBuilder()
    found, draw = b.input("x", (64, 128)), np.random.default_rng(0)
    for number, (rows, columns) in enumerate(((128, 256), (256, 256), (256, 10))):
        weight = b.constant(draw.normal(size=(rows, columns)).astype(np.float32) / 16, f"w{number}")
        bias = b.constant(np.zeros(columns, np.float32), f"b{number}")
        found = b.add("add", b.add("matmul", found, weight), bias)
        if columns != 10:
            found = b.add("relu", found)
    return b.build(found)
