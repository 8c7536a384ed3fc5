"""Graph networks: epochs against PyTorch, memory budgets and transfers, samples against whole graphs, depth and width.

`python -m benchmarks.gnn [epochs|memory|budgets|sampling|depth|workers …] [--scale 0.1] [--json]`. Graphs are
generated: `epochs` of the sizes `--graphs`, Reddit's (and `memory` Amazon's) times `--scale`. One peer is a plain
implementation on `torch.sparse` CSR with int32 numbers, with products first as ours; another PyTorch Geometric, where
it is installed and its messages, edges times features, fit `--most` bytes; a third DGL, where it is installed, with an
empty module in place of `dgl.graphbolt` (see `graph_peers`). Times are CPU seconds of all sides in turn (`--wall`:
elapsed ones, on a machine without other work), medians; memory is the resident peak of a process of its own, of epochs
what it grew by. Fails where a bar is missed that does not depend on time, and where `epochs` of `torch.sparse` from the
same weights have another loss.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import burnish as bn
from benchmarks import gnn_memory
from benchmarks.graph_peers import dgl_step, pyg_step, torch_step
from benchmarks.provenance import stored
from benchmarks.resident import forget_peak, resident
from burnish.fitting.fit import fit
from burnish.gnn.data.generators import block_model, dataset
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.store import save
from burnish.gnn.model.models import Network, network
from burnish.gnn.run.feeds import LABEL, inputs_of, labels_of
from burnish.gnn.run.sampling import Sampling
from burnish.gnn.run.train import GraphOptions, recipe_of, score

Row = dict[str, Any]
WHAT = ("epochs", "memory", "budgets", "sampling", "depth", "workers")


def main() -> None:
    """Measures what is asked for, and prints tables or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(WHAT)}; default: all")
    parser.add_argument("--scale", type=float, default=0.1, help="share of a data set's vertices, and of its edges")
    parser.add_argument("--graphs", default="pubmed,ppi,reddit", help="of epochs")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-budget", default="700MB", help="of the first run of budgets")
    parser.add_argument("--network", default="gcn", help="of budgets")
    parser.add_argument("--layers", type=int, default=2, help="of the network of budgets")
    parser.add_argument("--data", default="all", help="of memory: reddit or amazon; default: both")
    parser.add_argument("--folder", help="for graphs and what budgets do not hold; default: that of temporary files")
    parser.add_argument("--planner", default="best", help=argparse.SUPPRESS)
    parser.add_argument("--most", type=float, default=1e9, help="bytes of PyG's messages, edges times features")
    parser.add_argument("--wall", action="store_true", help="epochs by elapsed time: a machine without other work")
    parser.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)  # whose growth of memory, of which network
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)  # a graph's file and a budget: one training
    parser.add_argument("--generate", nargs=2, help=argparse.SUPPRESS)  # a data set and a graph's file
    arguments = parser.parse_args()
    children = {"child": gnn_memory.trained_within, "generate": gnn_memory.write, "peer": growth}
    for name, child in children.items():
        if getattr(arguments, name):
            print(json.dumps(child(arguments)))
            return
    makers: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
        "epochs": epochs, "memory": gnn_memory.memory, "budgets": gnn_memory.budgets, "sampling": sampling,
        "depth": depth, "workers": workers,
    }  # fmt: skip
    for name in arguments.names:
        if name not in makers:
            parser.error(f"unknown: {name}; allowed: {', '.join(WHAT)}")
    found = {name: makers[name](arguments) for name in arguments.names or WHAT}
    missed = [f"{name}: {what}" for name, rows in found.items() for what in BARS.get(name, lambda _: [])(rows)]
    if arguments.json:
        print(stored({**found, "missed": missed}, indent=1))
    else:
        for name, rows in found.items():
            show(name, rows)
        for what in missed:
            print(f"missed: {what}")
    sys.exit(bool(missed))


def reddit(scale: float) -> Graph:
    """A block model of Reddit's size times ``scale``."""
    return dataset("reddit", scale=scale)


# --- epochs -----------------------------------------------------------------------------------------------------------


PEERS: dict[str, Callable[[Network, Graph, argparse.Namespace], Callable[[], float] | None]] = {
    "burnish": lambda net, graph, given: burnish_step(net, graph, given.threads),
    "torch": lambda net, graph, given: torch_step(net, graph, given.threads),
    "pyg": lambda net, graph, given: pyg_step(net, graph, given.threads, given.most),
    "dgl": lambda net, graph, given: dgl_step(net, graph, given.threads),
}


def graph_of(name: str, arguments: argparse.Namespace) -> Graph:
    """A data set's graph, Reddit's scaled."""
    return reddit(arguments.scale) if name == "reddit" else dataset(name)


def epochs(arguments: argparse.Namespace) -> list[Row]:
    """Seconds of an epoch of two layers, forward, backward, Adam, and the peers' over ours; peaks in MB."""
    return [
        epochs_of(name, kind, graph, arguments)
        for name in arguments.graphs.split(",")
        for graph in [graph_of(name, arguments)]
        for kind in ("gcn", "sage", "gin", "commnet", "gat")
    ]


def epochs_of(data: str, kind: str, graph: Graph, arguments: argparse.Namespace) -> Row:
    """Epochs of one network on one graph, by Burnish and its peers."""
    clock = time.perf_counter if arguments.wall else time.process_time
    net = network(kind, graph.width, graph.classes, hidden=arguments.hidden, dropout=0.0)
    made = {name: peer(net, graph, arguments) for name, peer in PEERS.items()}
    runs = {name: run for name, run in made.items() if run is not None}
    times: dict[str, list[float]] = {name: [] for name in runs}
    losses: dict[str, float] = {}
    for _ in range(arguments.rounds + 1):
        for name, run in runs.items():
            time.sleep(0.3)  # until the threads of the one before no longer spin
            began = clock()
            losses[name] = run()
            times[name].append(clock() - began)
    medians = {name: statistics.median(found[1:]) for name, found in times.items() if len(found) > 1}
    row: Row = {"graph": data, "vertices": graph.vertices, "edges": graph.edges, "network": kind}
    row |= {"burnish s": medians["burnish"], "clock": "wall" if arguments.wall else "CPU"}
    row |= {f"{name} ratio": medians[name] / medians["burnish"] for name in medians}
    row |= {f"{name} loss": loss for name, loss in losses.items()}
    return row | {f"{name} peak MB": grown(name, data, kind, arguments) for name in ("burnish", "dgl") if name in runs}


def unequal(rows: list[Row]) -> list[str]:
    """Losses of torch.sparse, which begins with our weights, that are not ours within 1e-3."""
    return [
        f"{row['network']} on {row['graph']}: loss {row['burnish loss']:.5g}, torch.sparse {row['torch loss']:.5g}"
        for row in rows
        if "torch loss" in row and abs(row["burnish loss"] / row["torch loss"] - 1) > 1e-3
    ]


def grown(name: str, data: str, kind: str, arguments: argparse.Namespace) -> float:
    """MB by which the resident peak of a process of its own grows while it makes a step and runs it twice."""
    options = {"--scale": arguments.scale, "--hidden": arguments.hidden, "--threads": arguments.threads}
    given = [str(part) for option in options.items() for part in option]
    return gnn_memory.run_child(["--peer", name, kind, "--graphs", data, *given])["MB"]


def growth(arguments: argparse.Namespace) -> Row:
    """The child of `grown`."""
    name, kind = arguments.peer
    graph = graph_of(arguments.graphs, arguments)
    net = network(kind, graph.width, graph.classes, hidden=arguments.hidden, dropout=0.0)
    forget_peak()
    before = resident("VmRSS")
    run = PEERS[name](net, graph, arguments)
    for _ in range(2):
        assert run is not None
        run()
    return {"MB": (resident("VmHWM") - before) / 1e6}


def burnish_step(net: Network, graph: Graph, threads: int) -> Callable[[], float]:
    """A call of the compiled step."""
    extents, arrays = inputs_of(net, graph)
    step = bn.compile(net.graph(extents), train=recipe_of(None, net, False), threads=threads, rewrite=False)
    arrays[LABEL] = labels_of(graph, graph.train)
    given = [arrays[spec.name] for spec in step.inputs]
    return lambda: float(step(*given))


# --- accuracy ---------------------------------------------------------------------------------------------------------


def sampling(arguments: argparse.Namespace) -> list[Row]:
    """Whole graph and samples from the same weights (thesis-jia figure 4.6): accuracy, and CPU seconds to reach it.

    On a block model of which 7 vertices in 10 have no features, so that neighbours count. Compilation is not counted.
    """
    graph = hidden_features(block_model(6000, 120_000, 8, 32, seed=3, inside=0.5, noise=0.0), 0.7)
    rows: list[Row] = []
    ways: list[tuple[str, Sampling | None, int]] = [
        ("whole graph", None, 120), ("25, 10", Sampling(256, (25, 10)), 12), ("10, 5", Sampling(256, (10, 5)), 12)
    ]  # fmt: skip
    for name, how, count in ways:
        net = network("sage", graph.width, graph.classes, hidden=arguments.hidden, dropout=0.3)
        seen: list[tuple[float, float]] = []

        def note(now: Any, seen: list[tuple[float, float]] = seen) -> None:
            if now.evaluation is not None:
                seen.append((time.process_time(), float(next(iter(now.evaluation.metrics.values())))))

        began: list[float] = []
        found = fit(
            net, graph, epochs=count, graph_options=GraphOptions(sampling=how), threads=arguments.threads,
            evaluate_every=5,
            progress=note, on_step=partial(_begin, began),
        )  # fmt: skip
        wanted = rows[0]["reached"] if rows else 0.99 * max(accuracy for _, accuracy in seen)
        to = next((t - began[0] for t, accuracy in seen if accuracy >= wanted), None)
        rows.append({
            "training": name, "epochs": count, "updates": found.report.updates,
            "CPU s": time.process_time() - began[0], "reached": wanted, "CPU s to reach it": to,
            "best validation": max(accuracy for _, accuracy in seen), "test accuracy": score(found.model, graph),
        })  # fmt: skip
    return rows


def _begin(times: list[float], step: Any) -> None:
    del step
    times.append(time.process_time())


def below(rows: list[Row]) -> list[str]:
    """Samples that reach a higher accuracy than the whole graph, by more than half a percent."""
    whole = rows[0]["test accuracy"]
    return [
        f"{r['training']}: {r['test accuracy']:.3f} over {whole:.3f}" for r in rows if r["test accuracy"] > whole + 5e-3
    ]


def hidden_features(graph: Graph, share: float) -> Graph:
    """The graph with features of 0 at a share of its vertices."""
    features = np.array(graph.features)
    features[np.random.default_rng(0).random(graph.vertices) < share] = 0.0
    return graph.with_(features=features)


def depth(arguments: argparse.Namespace) -> list[Row]:
    """Deeper and wider residual GCNs (figure 4.7) where few vertices have features, so that reach counts."""
    graph = hidden_features(block_model(2000, 12_000, 8, 32, seed=3, inside=0.75, noise=0.0), 0.9)
    rows = []
    for layers, hidden in ((1, 64), (2, 16), (2, 64), (3, 64), (4, 64), (4, 128)):
        net = network("deep_gcn", 32, graph.classes, hidden=hidden, depth=layers, dropout=0.3)
        found = fit(net, graph, epochs=100, threads=arguments.threads, evaluate_every=5)
        rows.append({"layers": layers, "hidden": hidden, "test accuracy": score(found.model, graph)})
    return rows


def workers(arguments: argparse.Namespace) -> list[Row]:
    """Losses of 1, 2 and 4 workers in processes of one thread each, by kind of network; CPU seconds, all included."""
    graph = reddit(arguments.scale / 5).with_(validation=None)  # to evaluate is a second compilation, of each worker
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.bngraph"
        save(path, graph)
        for kind in ("gcn", "sage", "gin", "gat"):
            net = network(kind, graph.width, graph.classes, hidden=arguments.hidden)
            first: float | None = None
            for count in (1, 2, 4):
                began = resource.getrusage(resource.RUSAGE_CHILDREN)
                found = fit(net, path, workers=count, epochs=5, threads=1)
                loss = float(found.report.losses[-1])
                first = loss if first is None else first
                rows.append({
                    "network": kind, "workers": count, "loss": loss, "relative difference": abs(loss / first - 1),
                    "CPU s": resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began.ru_utime,
                })  # fmt: skip
    return rows


def shallow(rows: list[Row]) -> list[str]:
    """Deeper and wider networks gain: the best of three layers and more over the best of less, wide over narrow."""
    found = {(row["layers"], row["hidden"]): row["test accuracy"] for row in rows}
    deep = max(value for (layers, _), value in found.items() if layers > 2)
    rest = max(value for (layers, _), value in found.items() if layers <= 2)
    out = [] if deep >= rest + 0.015 else [f"deeper: {deep:.3f} after {rest:.3f}; allowed: 0.015 more"]
    return out + ([] if found[2, 64] > found[2, 16] else [f"wider: {found[2, 64]:.3f} after {found[2, 16]:.3f}"])


def apart(rows: list[Row]) -> list[str]:
    """Numbers of workers whose losses differ from those of one by more than 1e-5."""
    return [
        f"{row['network']}, {row['workers']} workers: {row['relative difference']:.1e}"
        for row in rows
        if row["relative difference"] > 1e-5
    ]


BARS: dict[str, Callable[[list[Row]], list[str]]] = {
    "epochs": unequal, "memory": gnn_memory.over, "budgets": gnn_memory.broken, "sampling": below,
    "depth": shallow, "workers": apart,
}  # fmt: skip


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
