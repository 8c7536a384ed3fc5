"""Graph networks: epochs beside PyTorch, memory budgets and transfers, samples beside whole graphs, depth and width.

`python -m benchmarks.gnn [epochs|memory|sampling|depth|workers …] [--scale 0.1] [--json]`. Graphs are generated, of
Reddit's size times `--scale`. The peer is a plain implementation on `torch.sparse` CSR with int64 numbers, with
products first as ours. Not timed here: PyG's edge form, which is slower, and DGL, whose newest CPU wheel does not
import (libgraphbolt ends at torch 2.2.1; it runs only with an empty module in place of `dgl.graphbolt`).
Times are CPU seconds of both sides in turn, medians; memory is the resident peak of a process of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import burnish as bn
from burnish.errors import ParameterError
from burnish.gnn.blocked import PLANNERS
from burnish.gnn.feeds import LABEL, inputs_of, labels_of
from burnish.gnn.generators import SIZES, block_model
from burnish.gnn.graph import Graph
from burnish.gnn.models import Network, network
from burnish.gnn.regions import peak_bytes
from burnish.gnn.sampling import Sampling
from burnish.gnn.store import save
from burnish.gnn.train import fit, recipe_of
from burnish.gnn.workers import fit_workers
from burnish.optional import require

Row = dict[str, Any]
WHAT = ("epochs", "memory", "sampling", "depth", "workers")
REDDIT = SIZES["reddit"]
BUDGETS = 10


def main() -> None:
    """Measures what is asked for, and prints tables or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(WHAT)}; default: all")
    parser.add_argument("--scale", type=float, default=0.1, help="share of Reddit's vertices, and of its edges")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", default="700MB", help="of the memory benchmark's first run")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)  # a graph's file and a budget: one training
    arguments = parser.parse_args()
    if arguments.child:
        path, budget = arguments.child
        print(json.dumps(trained_within(path, budget, arguments)))
        return
    makers: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
        "epochs": epochs, "memory": memory, "sampling": sampling, "depth": depth, "workers": workers,
    }  # fmt: skip
    for name in arguments.names:
        if name not in makers:
            parser.error(f"unknown: {name}; allowed: {', '.join(WHAT)}")
    found = {name: makers[name](arguments) for name in arguments.names or WHAT}
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    for name, rows in found.items():
        show(name, rows)


def reddit(scale: float, **more: Any) -> Graph:
    """A block model of Reddit's size times ``scale``."""
    vertices, edges = int(REDDIT.vertices * scale), int(REDDIT.edges * scale)
    inside = 0.4 if edges > 0.02 * vertices**2 else 0.7
    return block_model(vertices, edges, REDDIT.classes, REDDIT.width, inside=inside, **more)


# --- epochs -----------------------------------------------------------------------------------------------------------


def epochs(arguments: argparse.Namespace) -> list[Row]:
    """CPU seconds of an epoch of two layers: forward, backward, Adam."""
    graph = reddit(arguments.scale)
    rows = []
    for kind in ("gcn", "sage", "gin", "gat"):
        net = network(kind, graph.width, graph.classes, hidden=arguments.hidden, dropout=0.0)
        step, call = burnish_step(net, graph, arguments.threads)
        peer = torch_step(net, graph, arguments.threads)
        times: dict[str, list[float]] = {"burnish": [], "torch": []}
        losses: dict[str, float] = {}
        for _ in range(arguments.rounds + 1):
            for name, run in (("burnish", call), ("torch", peer)):
                if run is None:
                    continue
                began = time.process_time()
                losses[name] = run()
                times[name].append(time.process_time() - began)
        medians = {name: statistics.median(found[1:]) for name, found in times.items() if len(found) > 1}
        ratio = medians["torch"] / medians["burnish"] if "torch" in medians else None
        rows.append({
            "network": kind, "burnish s": medians["burnish"], "torch.sparse CSR s": medians.get("torch"),
            "ratio": ratio, "loss": losses["burnish"], "torch loss": losses.get("torch"),
            "arena MB": step.memory["arena"] / 1e6, "dgl": dgl_state(),
        })  # fmt: skip
    return rows


def burnish_step(net: Network, graph: Graph, threads: int) -> tuple[bn.Module, Callable[[], float]]:
    """The compiled step, and a call of it."""
    extents, arrays = inputs_of(net, graph)
    step = bn.compile(net.graph(extents), train=recipe_of(None, net, False), threads=threads, rewrite=False)
    arrays[LABEL] = labels_of(graph, graph.train)
    given = [arrays[spec.name] for spec in step.inputs]
    return step, lambda: float(step(*given))


def torch_step(net: Network, graph: Graph, threads: int) -> Callable[[], float] | None:
    """The same step by products with a matrix of torch.sparse; None for attention, or without torch."""
    if importlib.util.find_spec("torch") is None or net.layers[0].kind == "gat":
        return None
    torch = require("torch", "torch")
    torch.set_num_threads(threads)
    csr = graph.csr.without_self_loops()
    ones = torch.ones(csr.edges)
    ends = torch.from_numpy(np.array(csr.offsets)), torch.from_numpy(np.array(csr.sources, np.int64))
    matrix = torch.sparse_csr_tensor(*ends, ones, (graph.vertices, graph.vertices))
    degrees = torch.from_numpy(csr.degrees.astype(np.float32))[:, None]

    class Sum(torch.autograd.Function):  # type: ignore[name-defined]
        """A symmetric matrix is its own transpose."""

        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return matrix @ x

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return matrix @ gradient

    spread: Callable[[Any], Any] = Sum.apply
    w = {name: torch.tensor(np.array(value), requires_grad=True) for name, value in net.weights.items()}
    x = torch.from_numpy(np.array(graph.rows(0, graph.vertices)))
    labels, mask = torch.from_numpy(np.array(graph.labels, np.int64)), torch.from_numpy(np.array(graph.train))
    scale, mean = (degrees + 1).rsqrt(), 1 / degrees.clamp(min=1)

    def layer(number: int, h: Any) -> Any:
        own = {name.partition(".")[2]: value for name, value in w.items() if name.startswith(f"{number}.")}
        if net.layers[number].kind == "gcn":
            z = (h @ own["weight"]) * scale
            return (spread(z) + z) * scale + own["bias"]
        if net.layers[number].kind == "sage":
            return h @ own["own"] + spread(h @ own["neighbours"]) * mean + own["bias"]
        z = h @ own["first"]
        return torch.relu(spread(z) + z + own["first_bias"]) @ own["second"] + own["second_bias"]

    optimizer = torch.optim.Adam([*w.values()], 0.01)

    def call() -> float:
        optimizer.zero_grad()
        h = x
        for number in range(len(net.layers)):
            h = layer(number, torch.relu(h) if number else h)
        loss = torch.nn.functional.cross_entropy(h[mask], labels[mask])
        loss.backward()
        optimizer.step()
        return float(loss)

    return call


def dgl_state() -> str:
    """Whether DGL takes part."""
    return "not installed" if importlib.util.find_spec("dgl") is None else "installed; runs only stubbed, not timed"


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(arguments: argparse.Namespace) -> list[Row]:
    """Ten budgets, each in a process of its own, whose resident peak is measured; and the baselines' transfers."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.bngraph"
        code = (
            f"from benchmarks.gnn import reddit; from burnish.gnn.store import save; "
            f"save({str(path)!r}, reddit({arguments.scale}))"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        first = child(path, arguments.budget, arguments)
        if "refused" in first:
            return [{"budget MB": arguments.budget, **first}]
        least, most = first["least MB"], first["everything MB"]
        for budget in np.linspace(1.02 * least, max(most, 1.1 * least), BUDGETS):
            rows.append(child(path, f"{budget:.0f}MB", arguments))
        return [first, *rows]


def child(path: Path, budget: str, arguments: argparse.Namespace) -> Row:
    """One training in a new process."""
    more = [f"--{name}={getattr(arguments, name)}" for name in ("hidden", "rounds", "threads")]
    command = [sys.executable, "-m", "benchmarks.gnn", *more, "--child", str(path), budget]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    result: Row = json.loads(found.stdout.splitlines()[-1])
    return result


def trained_within(path: str, budget: str, arguments: argparse.Namespace) -> Row:
    """A GCN trained for some epochs within a budget: measured peak, seconds, and bytes moved by each planner."""
    file = bn.gnn.GraphFile.open(path)
    net = network("gcn", file.sections["features"].shape[1], file.classes, hidden=arguments.hidden)
    seconds: list[float] = []
    steps: list[Any] = []
    try:
        found = fit(
            net, path, epochs=arguments.rounds, memory_budget=budget, threads=arguments.threads, evaluate_every=10**6,
            progress=lambda now: seconds.append(now.seconds), watch=steps.append,
        )  # fmt: skip
    except ParameterError as error:
        return {"budget": budget, "refused": str(error)}
    (step,) = steps
    problem, capacity = step.problem, step.capacity
    moved = {name: make(problem, capacity).moved / 1e6 for name, make in PLANNERS.items()}
    return {
        "budget": budget, "peak MB": peak_bytes() / 1e6, "epoch s": seconds[-1] / len(seconds),
        "loss": float(found.report.losses[-1]), "least MB": (step.budget - capacity + problem.least_capacity) / 1e6,
        "everything MB": (step.budget - capacity + sum(problem.nbytes.values())) / 1e6,
        **{f"{name} MB": value for name, value in moved.items()},
    }  # fmt: skip


# --- accuracy ---------------------------------------------------------------------------------------------------------


def sampling(arguments: argparse.Namespace) -> list[Row]:
    """Whole graph and samples from the same weights (thesis-jia figure 4.6): accuracy and CPU seconds."""
    graph = reddit(arguments.scale / 5, noise=0.02)
    net = network("sage", graph.width, graph.classes, hidden=arguments.hidden)
    rows = []
    ways: list[tuple[str, Sampling | None, int]] = [
        ("whole graph", None, 60), ("25, 10", Sampling(512, (25, 10)), 4), ("10, 5", Sampling(512, (10, 5)), 4)
    ]  # fmt: skip
    for name, how, count in ways:
        began = time.process_time()
        found = fit(net, graph, epochs=count, sampling=how, threads=arguments.threads, evaluate_every=5)
        seconds = time.process_time() - began
        rows.append({
            "training": name, "epochs": count, "updates": found.report.updates, "CPU s": seconds,
            "test accuracy": found.score(graph),
        })  # fmt: skip
    return rows


def depth(arguments: argparse.Namespace) -> list[Row]:
    """Deeper and wider residual GCNs (figure 4.7) where few vertices have features, so that reach counts."""
    graph = block_model(2000, 12_000, 8, 32, seed=3, inside=0.75, noise=0.0)
    rng = np.random.default_rng(0)
    features = np.array(graph.features)
    features[rng.random(graph.vertices) < 0.9] = 0.0
    graph = graph.with_(features=features)
    rows = []
    for layers, hidden in ((1, 64), (2, 16), (2, 64), (3, 64), (4, 64), (4, 128)):
        net = network("deep_gcn", 32, graph.classes, hidden=hidden, depth=layers, dropout=0.3)
        found = fit(net, graph, epochs=100, threads=arguments.threads, evaluate_every=5)
        rows.append({"layers": layers, "hidden": hidden, "test accuracy": found.score(graph)})
    return rows


def workers(arguments: argparse.Namespace) -> list[Row]:
    """Losses of 1, 2 and 4 workers in processes of one thread each."""
    graph = reddit(arguments.scale / 5)
    net = network("gcn", graph.width, graph.classes, hidden=arguments.hidden)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.bngraph"
        save(path, graph)
        for count in (1, 2, 4):
            found = fit_workers(net, path, workers=count, kind="process", epochs=5, threads=1, evaluate_every=5)
            first = rows[0]["loss"] if rows else float(found.report.losses[-1])
            loss = float(found.report.losses[-1])
            rows.append({"workers": count, "loss": loss, "relative difference": abs(loss / first - 1)})
    return rows


def show(name: str, rows: list[Row]) -> None:
    """A table."""
    table = Table(title=name)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        table.add_column(column)
    for row in rows:
        values = (row.get(column) for column in columns)
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else "" if v is None else str(v) for v in values))
    Console(width=160, highlight=False).print(table)


if __name__ == "__main__":
    main()
