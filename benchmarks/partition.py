"""Partitions of graphs over workers: ROC's learned cost model beside equal vertices, equal edges and few cut edges.

`python -m benchmarks.partition [rmat|mixed|ppi …] [--scale S] [--parts 4,8 …] [--rounds N] [--keep FOLDER] [--json F]`

Workers are measured one after another on one thread, in CPU seconds: two layers, each a product (602 → 64, 64 → 48) of
the own rows and the sum over in-neighbours; for "ppi gin" the sum first, of 700 features. All partitions of one number
of workers are measured in turns; times are medians of the turns. "rmat" is an R-MAT graph of Reddit's density, "mixed"
a block model of classes from sparse to 300 times denser ones, "ppi" 24 graphs of which 4 are unseen: a model that has
learned on the others partitions them. --scale: of Reddit's size. --keep: where generated graphs are kept. Fails where a
bar of ``BARS`` is missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import burnish as bn
from burnish.gnn.clusters import clusters
from burnish.gnn.csr import CSR
from burnish.gnn.generators import PPI_UNSEEN, SIZES, block_model, ppi_graphs, rmat
from burnish.gnn.graph import Graph
from burnish.gnn.halo import halo_sizes
from burnish.gnn.partition import Cuts, Graphs, Measured, Partitioner, equal_edges, equal_vertices, learn
from burnish.gnn.reorder import grouped
from burnish.gnn.store import load, save
from burnish.graph.graph import GraphBuilder
from burnish.loops.sizes import dim

GCN = ((602, 64), (64, 48))  # input and output features of the layers
PPI = ((700, 64), (64, 121))  # the same, at the widths of PPI
NAMES = ("rmat", "mixed", "ppi")
MEASURED, SIMULATED = (4, 8), (12, 16, 20)
POINTS = 16  # measurements in each turn of learning, by pieces of ranges where there are fewer ranges
BARS = {
    "vertices": 1.5,
    "edges": {"rmat": 1.0, "mixed": 1.2},
    "balance": 0.9,
    "error": 0.05,
    "unseen": 1.15,
    "reached": 0.95,
}
Row = dict[str, Any]
Layers = tuple[tuple[int, int], ...]


def compiled_product(width: int, features: int) -> Any:
    """Rows (any, width) times weights, on one thread."""
    net = GraphBuilder()
    x = net.input("x", (dim("rows", 1, 1 << 24), width))
    w = net.constant(np.random.default_rng(0).standard_normal((width, features), dtype=np.float32), "w")
    return bn.compile(net.build(net.add("matmul", x, w)), threads=1, rewrite=False)


def compiled_sum(columns: int, width: int) -> Any:
    """Sums over in-neighbours of any rows of a graph of ``columns`` vertices, on one thread."""
    net = GraphBuilder()
    x = net.input("x", (columns, width))
    offsets = net.input("offsets", (dim("ends", 2, 1 << 24),), "int64")
    sources = net.input("sources", (dim("edges", 1, 1 << 30),), "int32")
    return bn.compile(net.build(net.add("aggregate", x, offsets, sources)), threads=1, rewrite=False)


class Work:
    """The layers of a graph on ranges of its vertices, compiled, timed. Layers multiply or aggregate first."""

    def __init__(self, csr: CSR, layers: Layers = GCN, aggregate_first: bool = False) -> None:
        self.csr, self.layers, self.first = csr, layers, aggregate_first
        self.products = [compiled_product(*layer) for layer in layers]
        self.sums = [compiled_sum(csr.rows, width) for width in self.widths]
        self.inputs = [np.ones((csr.rows, width), np.float32) for width, _ in layers]
        self.read = [np.ones((csr.rows, width), np.float32) for width in self.widths]

    @property
    def widths(self) -> tuple[int, ...]:
        """Features that the layers aggregate."""
        return tuple(layer[0 if self.first else 1] for layer in self.layers)

    def range(self, layer: int, rows: CSR, begin: int, end: int) -> float:
        """CPU seconds of a layer on the vertices begin … end - 1, whose in-edges are ``rows``."""
        started = time.thread_time()
        if self.first:
            near = self.sums[layer](self.read[layer], rows.offsets, rows.sources)
            self.products[layer](near)
        else:
            self.products[layer](self.inputs[layer][begin:end])
            self.sums[layer](self.read[layer], rows.offsets, rows.sources)
        return time.thread_time() - started

    def measure(self, cuts: Cuts, repeats: int = 3) -> np.ndarray:
        """Seconds (layers, ranges): the least of the repeats, so that of none that first sees a range's edges."""
        found = np.full((len(self.layers), len(cuts) - 1), 1e-9)
        for place, (begin, end) in enumerate(itertools.pairwise(cuts.tolist())):
            rows = self.csr.slice(begin, end)
            if rows.edges:
                for layer in range(len(self.layers)):
                    found[layer, place] = min(self.range(layer, rows, begin, end) for _ in range(repeats))
        return found


def in_turns(contenders: Mapping[str, Callable[[], np.ndarray]], rounds: int) -> dict[str, np.ndarray]:
    """Median seconds (layers, ranges) of every contender, measured one after another, ``rounds`` times."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, measure in contenders.items():
            found[name].append(measure())
    return {name: np.median(times, axis=0) for name, times in found.items()}


def made(name: str, scale: float, folder: Path | None) -> Graph:
    """The graph of a table, without features; read from the folder where it is there."""
    path = folder and folder / f"{name}-{scale:g}.bngraph"
    if path and path.exists():
        return load(path)
    size = SIZES["reddit"]
    vertices, edges = int(scale * size.vertices), int(scale * size.edges)
    if name == "rmat":
        graph = rmat(vertices, edges)
    else:
        densities = np.geomspace(1, 300, 20).tolist()
        graph = block_model(vertices, edges // 10, 20, densities=densities, shuffle=False)
    if path:
        save(path, graph)
    return graph


def balance(name: str, graph: Graph, parts: Iterable[int], rounds: int, clustered: bool) -> list[Row]:
    """One row for each number of workers: slowest worker by each partition, and what the model predicts of others."""
    work = Work(graph.csr)
    partitioner = Partitioner(work.widths)
    features, rows = partitioner.features(graph.csr), []
    for count in parts:
        starts = [equal_vertices(graph.vertices, count), equal_edges(graph.csr, count)]
        pieces = max(1, POINTS // count)
        partitioner, best = learn(partitioner, features, work.measure, starts, rounds=4, pieces=pieces)
        cuts = {"vertices": starts[0], "edges": starts[1], "model": best.cuts}
        contenders = {kind: partial(work.measure, found) for kind, found in cuts.items()}
        if clustered and count == MEASURED[0]:
            new, ends = grouped(clusters(graph.csr, count), count)
            contenders["clusters"] = partial(Work(graph.csr.permuted(new)).measure, ends)
        found = {kind: Measured(cuts.get(kind, starts[0]), t) for kind, t in in_turns(contenders, rounds).items()}
        slowest = {kind: float(each.workers.max()) for kind, each in found.items()}
        rows.append(
            {
                "graph": name, "parts": count, "slowest": slowest, "balance": found["model"].balance,
                "over": {kind: slowest[kind] / slowest["model"] for kind in slowest if kind != "model"},
                "halo": {kind: int(halo_sizes(graph.csr, each).sum()) for kind, each in cuts.items()},
                "error": errors(work, partitioner, features, count),
            }
        )  # fmt: skip
    return rows


def errors(work: Work, partitioner: Partitioner, features: Graphs, seed: int, trials: int = 3) -> float:
    """Median relative error of predictions of ranges that were not fitted: random ones, all layers."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(trials):
        inner = np.sort(rng.integers(1, features.vertices, 7))
        cuts = np.array([0, *inner.tolist(), features.vertices])
        seconds, predicted = work.measure(cuts), partitioner.predict(features, cuts)
        wide = np.diff(cuts) > features.vertices // 1000
        found += np.abs(predicted[:, wide] / seconds[:, wide] - 1).ravel().tolist()
    return statistics.median(found)


def unseen(kind: str, parts: int, rounds: int) -> Row:
    """Inference on graphs that were not learned from: the slowest workers' seconds, summed over these graphs."""
    layers, first = (PPI, True) if kind == "gin" else (PPI, False)
    graphs = [graph.csr for graph in ppi_graphs()]
    partitioner: Partitioner | None = None
    for csr in graphs[:-PPI_UNSEEN]:
        work = Work(csr, layers, first)
        partitioner = partitioner or Partitioner(work.widths)
        features = partitioner.features(csr)
        for count in (parts, 2 * parts):
            for cuts in (equal_vertices(csr.rows, count), equal_edges(csr, count)):
                partitioner = partitioner.learned(features, Measured(cuts, work.measure(cuts, 5)))
    assert partitioner is not None
    total: dict[str, float] = dict.fromkeys(("vertices", "edges", "model"), 0.0)
    means = 0.0
    for csr in graphs[-PPI_UNSEEN:]:
        work, features = Work(csr, layers, first), partitioner.features(csr)
        every = {"vertices": equal_vertices(csr.rows, parts), "edges": equal_edges(csr, parts)}
        every["model"] = partitioner.cuts(features, parts)
        found = in_turns({kind: partial(work.measure, cuts, 5) for kind, cuts in every.items()}, rounds)
        for name, times in found.items():
            total[name] += float(times.sum(axis=0).max())
        means += float(found["model"].sum(axis=0).mean())
    over = {name: total[name] / total["model"] for name in ("vertices", "edges")}
    return {"graph": f"ppi {kind}", "parts": parts, "slowest": total, "over": over, "balance": means / total["model"]}


def missed(rows: list[Row]) -> list[str]:
    """Bars of issue 34 that a row misses."""
    out = []
    for row in rows:
        name = f"{row['graph']}, {row['parts']} workers"
        if row["graph"].startswith("ppi"):
            # Perfect balance may be worth less than the bar: then nearly all of that.
            possible = row["over"]["vertices"] / row["balance"]
            wanted = [("over vertices", row["over"]["vertices"], min(BARS["unseen"], BARS["reached"] * possible))]
        else:
            wanted = [("over edges", row["over"]["edges"], BARS["edges"][row["graph"]])]  # type: ignore[index]
            wanted += [("over vertices", row["over"]["vertices"], BARS["vertices"])]
            wanted += [("mean over slowest", row["balance"], BARS["balance"])] if row["parts"] in MEASURED else []
            if row["error"] > BARS["error"]:
                out.append(f"{name}: median error {row['error']:.3f}, allowed {BARS['error']}")
        out += [f"{name}: {what} {found:.2f}, allowed {bar:.3g}" for what, found, bar in wanted if found < bar]
    return out


def table(rows: list[Row]) -> Table:
    """Slowest workers, and how much faster the model's is."""
    result = Table(title="slowest worker, CPU ms")
    for heading in ("graph", "workers", "vertices", "edges", "clusters", "model", "over vertices", "over edges",
                    "mean/slowest", "median error", "halo rows: vertices", "edges", "model"):  # fmt: skip
        result.add_column(heading, justify="left" if heading == "graph" else "right")
    for row in rows:
        times = [f"{1e3 * row['slowest'][k]:.1f}" if k in row["slowest"] else ""
                 for k in ("vertices", "edges", "clusters", "model")]  # fmt: skip
        over = [f"{row['over'][kind]:.2f}×" for kind in ("vertices", "edges")]
        rest = [f"{row['balance']:.2f}", "", "", "", ""]
        if "error" in row:
            halos = [str(row["halo"][kind]) for kind in ("vertices", "edges", "model")]
            rest[1:] = [f"{100 * row['error']:.1f} %", *halos]
        result.add_row(row["graph"], str(row["parts"]), *times, *over, *rest)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="what to measure (default: everything)")
    parser.add_argument("--scale", type=float, default=0.5, help="of Reddit's size (default 0.5)")
    parser.add_argument("--parts", default=",".join(map(str, (*MEASURED, *SIMULATED))), help="numbers of workers")
    parser.add_argument("--rounds", type=int, default=3, help="turns of measurements (default 3)")
    parser.add_argument("--keep", type=Path, help="a folder for generated graphs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    arguments = parser.parse_args()
    parts = [int(count) for count in arguments.parts.split(",")]
    rows: list[Row] = []
    for name in arguments.names or NAMES:
        if name == "ppi":
            rows += [unseen(kind, count, arguments.rounds) for kind in ("gin", "gcn") for count in MEASURED]
        else:
            graph = made(name, arguments.scale, arguments.keep)
            rows += balance(name, graph, parts, arguments.rounds, clustered=True)
        Console(width=None if sys.stdout.isatty() else 160).print(table(rows))
    failures = missed(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "missed": failures}, indent=1))
    for failure in failures:
        print(f"missed: {failure}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
