"""Small tasks, by name, that between them call the numba kernels of all products as users would.

What they compile is what an installation brings along. A signature that none of them meets is compiled when a user
first needs it, so a task more is never a matter of right or wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from burnish.graph.graph import Graph

# Of each task its module's name. Two or more run at the same time, in this order: those of one kind, which share
# kernels, stand apart.
TASKS = {
    "operators": "tasks", "planning": "tasks", "common": "boosting", "tuning": "tasks", "large": "boosting",
    "memory": "tasks",
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
    from burnish.fitting.planned import plan
    from burnish.parallel.simulate.search import search
    from burnish.search.budget import Budget
    from burnish.train.step import Train

    made = plan(_network(), train=Train(), devices="p100:2x2", seconds=1.0, pipelines=False)
    search(made.simulator, {made.name: made.choice}, Budget(trials=2), blocks=False)


def operators() -> None:
    """Loops of opaque operators, for the types that models have."""
    from burnish.driver.compilation import compile_kernels
    from burnish.graph.graph import GraphBuilder
    from burnish.loops.sizes import dim
    from burnish.machines.target import target

    number = "float32"
    image, mask, line, matrix = ((2, 3, 8, 8), number), ((9,), "bool"), ((9,), "int64"), ((4, 9), number)
    trees = ((1,), "uint32"), ((1, 4), "uint32"), ((1, 1), number), ((0,), "uint32")
    window = {"strides": (2, 2), "pads": (0,) * 4, "dilations": (1, 1)}
    drawn, whole = {"shape": (9,), "dtype": number}, ((4, 8, 2), number)
    boxes = ((1, 9, 4), number), ((1, 2, 9), number), ((1,), "int64"), ((1,), number), ((1,), number)
    wanted: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("sort", [matrix], {}), ("top_k", [matrix], {"k": 3}), ("top_k", [line], {"k": 3}),
        ("scatter_nd", [matrix, ((3, 1), "int64"), ((3, 9), number)], {}),
        ("scatter_nd", [matrix, ((3, 1), "int64"), ((3, 9), number)], {"reduction": "add"}),
        ("scatter_elements", [matrix, ((4, 2), "int64"), ((4, 2), number)], {"axis": 1}),
        ("scatter_elements", [matrix, ((4, 2), "int64"), ((4, 2), number)], {"axis": 1, "reduction": "add"}),
        ("scatter_rows", [image, ((2, 3, 1, 8), number), ((2,), "int64")], {"axis": 2}),
        ("max_unpool", [image, (image[0], "int64")], {"size": (16, 16)}),
        ("max_pool_indices", [image], {"kernel": (2, 2), "size": (4, 4), **window}),
        ("fold_windows", [((1, 4, 16), number)], {"size": (8, 8), "block": (2, 2), **window}),
        ("roi_align", [image, ((5, 4), number), ((5,), "int64")], {"size": (2, 2)}),
        ("non_max_suppression", list(boxes), {"most": 9, "count": dim("boxes", 0, 18)}),
        ("compress", [matrix, mask], {"axis": 1, "count": dim("rows", 0, 9)}),
        *(("nonzero", [((9,), d)], {"count": dim(f"found_{d}", 0, 9)}) for d in ("bool", number, "int64")),
        *(("unique", [((9,), d)], {"count": dim(f"distinct_{d}", 0, 9)}) for d in (number, "int64")),
        *(("find_keys", [((9,), d), ((3,), d)], {}) for d in (number, "int64")),
        ("random_uniform", [], drawn), ("random_normal", [], drawn), ("multinomial", [matrix], {"count": 2}),
        ("cumprod", [matrix], {"axis": 1}), ("determinant", [((2, 3, 3), number)], {}),
        ("dft", [((4, 300, 1), number)], {"axis": 1, "length": 300}),
        ("dft", [((4, 300, 2), number)], {"axis": 1, "length": 300}),
        ("dft", [whole], {"axis": 1, "length": 30, "inverse": True, "onesided": True}),
        ("count_ngrams", [((2, 9), "int64")], {"pool": (1,), "starts": (0,), "indexes": (0,), "lengths": (1, 1)}),
        ("tree_ensemble", [matrix, *trees], {}), ("coupled_probabilities", [((2, 3, 3), number)], {}),
    ]  # fmt: skip
    for op, types, attrs in wanted:
        b = GraphBuilder()
        given = [b.input(f"x{i}", shape, dtype) for i, (shape, dtype) in enumerate(types)]
        compile_kernels(b.build(*b.add_many(op, *given, **attrs)), target("cpu"))


def memory() -> None:
    """Memory of a compiled training step, by every strategy and within a budget."""
    from burnish.driver.compilation import compile_kernels
    from burnish.driver.recompute import call_seconds, training_step
    from burnish.machines.target import target
    from burnish.memory.budget import Planner
    from burnish.memory.strategies import STRATEGIES, by_strategy
    from burnish.train.step import Train, training_graph

    machine = target("cpu")
    with tempfile.TemporaryDirectory() as folder:
        made = compile_kernels(training_graph(_network(), Train()), machine, False, folder)
        planner = Planner(training_step(made, call_seconds(made.graph, machine)).work, seconds=0.0)
        plans = [by_strategy(planner, name) for name in STRATEGIES]
        planner.within((min(plan.arena for plan in plans) + plans[0].arena) // 2)


def whole_graphs() -> None:
    """Networks on graphs, trained and applied: a symmetric graph, and a directed one with weights and self loops."""
    from burnish.fitting.fit import fit
    from burnish.gnn.data.csr import CSR
    from burnish.gnn.data.generators import block_model
    from burnish.gnn.data.graph import Graph
    from burnish.gnn.model.models import network
    from burnish.gnn.run.train import score

    graph, draw = block_model(400, 4000, 3, 8), np.random.default_rng(0)
    source, target = draw.integers(0, 400, (2, 3000))
    for loops in ("keep", "add", "remove"):
        csr = CSR.from_edges(source, target, 400, draw.random(3000, np.float32), self_loops=loops)
    directed = Graph(csr, graph.features, graph.labels, graph.train, graph.validation, graph.test)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("gcn", "sage", "gin", "gat"):
            made = network(kind, graph.width, graph.classes, hidden=16)
            trained = fit(made, graph, epochs=2, cache_dir=folder)
            score(trained.model, graph, "test")
        fit(network("gcn", graph.width, graph.classes, hidden=16), directed, epochs=2, cache_dir=folder)


def sampled_graphs() -> None:
    """Batches of vertices with some of their neighbours."""
    from burnish.fitting.fit import fit
    from burnish.gnn.data.generators import block_model
    from burnish.gnn.model.models import network
    from burnish.gnn.run.sampling import Sampling
    from burnish.gnn.run.train import GraphOptions

    graph = block_model(400, 4000, 3, 8)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("sage", "gcn"):
            made = network(kind, graph.width, graph.classes, hidden=16)
            fit(made, graph, epochs=2, graph_options=GraphOptions(Sampling(64, (5, 5))), cache_dir=folder)


def tuning() -> None:
    """A search for schedules of kernels."""
    from burnish.driver.tuned import tune_model
    from burnish.machines.target import host
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
