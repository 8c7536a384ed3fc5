"""Sums over the neighbours of graph vertices: a compiled `aggregate` against PyTorch's CSR product, SciPy's, and DGL's.

A graph is generated, the same for the same seed: degrees by a power law, of classes of vertices, which have most of
their neighbours in their own (`community`: numbered class by class), or in random order, or by falling degree. Sizes
are those of Reddit (233 K vertices, 115 M edges) and Amazon (9.4 M, 231 M); `--scale` divides vertices and edges alike.
Burnish and the peers multiply in turn in one process; a time is the median of CPU seconds (all threads) or, with
`--wall`, of elapsed ones: on a machine without other work. `gathered` is edges * features * 4 bytes by the time,
`share` that over what this machine reads from its second-level caches, measured here.

DGL takes part only if it is installed, with an empty module in place of `dgl.graphbolt` (see `graph_peers`).

`python -m benchmarks.aggregation [--graph reddit|amazon] [--scale N] [--features 16,64,128,602] [--order random]
[--threads 2] [--wall] [--json FILE]`
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import burnish as bn
from benchmarks.graph_peers import dgl_graph, stubbed_dgl
from benchmarks.provenance import stored
from burnish.base.jit import njit
from burnish.base.optional import require
from burnish.errors import MissingDependencyError
from burnish.graph.graph import GraphBuilder
from burnish.machines.target import host
from burnish.runtime.module import Module

GRAPHS: Mapping[str, tuple[int, int]] = {"reddit": (232_965, 114_848_857), "amazon": (9_430_088, 231_594_310)}
CLASSES, INSIDE, EXPONENT, MOST = 41, 0.7, 2.1, 60.0
ORDERS = ("random", "community", "degree")
SECONDS, ROUNDS = 20.0, 7  # of one row at most; turns at most

Run = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One width: seconds by runner, the fastest peer's over Burnish's, and bytes gathered a second."""

    features: int
    seconds: dict[str, float]
    template: str
    ratio: float
    gathered: float
    share: float


@njit(cache=True)
def _drawn(table: NDArray[np.int32], pick: NDArray[np.int64], own: NDArray[np.int64]) -> NDArray[np.int32]:
    """Sources by random numbers: of all vertices by weight, or of a range of the table (``own``: begin, end)."""
    found = np.empty(len(pick), np.int32)
    for e in range(len(pick)):
        begin, end = own[e] >> 32, own[e] & 0xFFFFFFFF
        found[e] = table[begin + pick[e] % (end - begin)]
    return found


def generate(vertices: int, edges: int, order: str, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Offsets and sources by target: neighbours by weight, most of them of the target's class; duplicates are kept."""
    rng = np.random.default_rng(seed)
    weight = np.minimum((1 - rng.random(vertices)) ** (-1 / (EXPONENT - 1)), MOST)
    classes = np.sort(rng.integers(0, CLASSES, vertices))
    copies = np.maximum(1, np.round(weight * (8 * vertices / weight.sum()))).astype(np.int64)
    table = np.repeat(np.arange(vertices, dtype=np.int32), copies)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(classes, copies, CLASSES).astype(np.int64))])
    number = np.arange(vertices)  # of each vertex, new by old
    if order == "random":
        number = rng.permutation(vertices)
    elif order == "degree":
        number[np.argsort(-weight, kind="stable")] = np.arange(vertices)
    degrees = np.floor(weight * (edges / weight.sum()) + rng.random(vertices)).astype(np.int64)
    old = np.argsort(number)
    offsets = np.concatenate([[0], np.cumsum(degrees[old])])
    sources = np.empty(offsets[-1], np.int32)
    whole = len(table)
    for first in range(0, vertices, 1 << 14):
        part = old[first : first + (1 << 14)]
        begin, end = offsets[first], offsets[min(first + (1 << 14), vertices)]
        own = np.repeat((bounds[classes[part]] << 32) | bounds[classes[part] + 1], degrees[part])
        own[rng.random(len(own)) > INSIDE] = whole
        sources[begin:end] = number[_drawn(table, rng.integers(0, 1 << 60, len(own)), own)]
    return offsets, sources


def compiled(offsets: NDArray[np.int64], sources: NDArray[np.int32], width: int, threads: int) -> Module:
    """A model of nothing but the sum."""
    b = GraphBuilder()
    x = b.input("x", (len(offsets) - 1, width), "float32")
    o, s = b.input("offsets", offsets.shape, "int64"), b.input("sources", sources.shape, "int32")
    return bn.compile(b.build(b.add("aggregate", x, o, s)), threads=threads)


def peers(
    offsets: NDArray[np.int64], sources: NDArray[np.int32], threads: int, wanted: str
) -> dict[str, Callable[[NDArray[np.float32]], Run]]:
    """Runners by name: of features, what multiplies. Those that are not installed are left out."""
    vertices, edges = len(offsets) - 1, len(sources)
    found: dict[str, Callable[[NDArray[np.float32]], Run]] = {}
    names = wanted.split(",")
    torch = _installed("torch")
    if torch is not None:
        torch.set_num_threads(threads)
        warnings.filterwarnings("ignore", message="Sparse")
        for name, dtype in (("torch int32", np.int32), ("torch int64", np.int64)):
            if name.split()[1] in names:
                parts = torch.from_numpy(offsets.astype(dtype)), torch.from_numpy(sources.astype(dtype, copy=False))
                matrix = torch.sparse_csr_tensor(*parts, torch.ones(edges), (vertices, vertices))
                found[name] = _product(matrix, torch.from_numpy)
    scipy = _installed("scipy.sparse")
    if scipy is not None and "scipy" in names:
        matrix = scipy.csr_matrix((np.ones(edges, np.float32), sources, offsets), (vertices, vertices))
        found["scipy (1 thread)"] = _product(matrix, lambda x: x)
    dgl = stubbed_dgl() if "dgl" in names else None
    if dgl is not None:
        found["dgl (graphbolt stubbed)"] = _dgl_sum(dgl, dgl_graph(dgl, offsets, sources), torch.from_numpy)
    return found


def _product(matrix: Any, convert: Callable[[NDArray[np.float32]], Any]) -> Callable[[NDArray[np.float32]], Run]:
    def of(x: NDArray[np.float32]) -> Run:
        right = convert(x)
        return lambda: matrix @ right

    return of


def _dgl_sum(dgl: Any, graph: Any, convert: Callable[[NDArray[np.float32]], Any]) -> Any:
    def of(x: NDArray[np.float32]) -> Run:
        right = convert(x)
        return lambda: dgl.ops.copy_u_sum(graph, right)

    return of


def _installed(package: str) -> Any:
    try:
        return require(package, "peers")
    except (MissingDependencyError, ImportError, FileNotFoundError, OSError):
        return None


@njit(cache=True, fastmath=True)
def _read(x: NDArray[np.float32], times: int) -> float:
    """Sums an array ``times`` times: a stream of reads."""
    total = np.float32(0)
    for t in range(times):
        part = np.float32(t)
        for i in range(len(x)):
            part += x[i]
        total += part
    return float(total)


def cache_rate(threads: int) -> float:
    """Bytes a second that the second-level caches of all threads give, by sums of half of one; the best of 20."""
    x = np.ones(host().l2_bytes // 2 // 4, np.float32)
    _read(x, 1)
    best = np.inf
    for _ in range(20):
        began = time.perf_counter()
        _read(x, 100)
        best = min(best, (time.perf_counter() - began) / 100)
    return threads * x.nbytes / best


def in_turn(runs: Mapping[str, Run], wall: bool) -> dict[str, float]:
    """Median seconds of each, taken in turns after one that is not counted."""
    clock = time.perf_counter if wall else time.process_time
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + SECONDS
    for turn in range(ROUNDS):
        if turn and time.perf_counter() > end:
            break
        for name, run in runs.items():
            began = clock()
            run()
            times[name].append(clock() - began)
    return {name: statistics.median(found) for name, found in times.items()}


def measure(
    graph: tuple[NDArray[np.int64], NDArray[np.int32]], widths: list[int], threads: int, wall: bool, wanted: str
) -> list[Row]:
    """A row for every width; the result is compared with the first peer's."""
    offsets, sources = graph
    others, rate = peers(offsets, sources, threads, wanted), cache_rate(threads)
    rows = []
    for width in widths:
        x = np.random.default_rng(1).standard_normal((len(offsets) - 1, width), dtype=np.float32)
        module = compiled(offsets, sources, width, threads)
        out = [np.empty(module.outputs[0].shape, np.float32)]
        runs: dict[str, Run] = {name: make(x) for name, make in others.items()}
        for run in list(runs.values())[:1]:
            module.run_into([x, offsets, sources], out)
            expected = np.asarray(run())
            np.testing.assert_allclose(out[0], expected, rtol=0, atol=1e-4 * float(np.abs(expected).max()))
            del expected
        runs["burnish"] = lambda m=module, x=x, out=out: m.run_into([x, offsets, sources], out)  # type: ignore[misc]
        seconds = in_turn(runs, wall)
        own = seconds["burnish"]
        fastest = min((s for name, s in seconds.items() if name != "burnish"), default=float("nan"))
        gathered = len(sources) * width * 4 / own * (1 if wall else threads)
        template = module.executable.info["kernels"][-1]["template"]
        rows.append(Row(width, seconds, template, fastest / own, gathered, gathered / rate))
        print(_line(rows[-1]), flush=True)
    return rows


def _line(row: Row) -> str:
    times = ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in row.seconds.items())
    gathered = f"{row.gathered / 1e9:.0f} GB/s, {row.share:.0%} of L2"
    return f"{row.features:4} features: {times}; {row.ratio:.2f} x the fastest peer; {row.template}, {gathered}"


def main() -> None:
    """Measures, prints, writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", choices=[*GRAPHS], default="reddit")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--features", default="16,64,128,602")
    parser.add_argument("--order", choices=ORDERS, default="random")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", default="int32,int64,dgl", help="of int32, int64, scipy, dgl")
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    vertices, edges = (int(n / args.scale) for n in GRAPHS[args.graph])
    graph = generate(vertices, edges, args.order)
    degrees = np.diff(graph[0])
    print(f"{args.graph} / {args.scale:g}: {vertices} vertices, {len(graph[1])} edges, at most {degrees.max()} of one")
    rows = measure(graph, [int(w) for w in args.features.split(",")], args.threads, args.wall, args.peers)
    if args.json:
        facts = {"graph": args.graph, "scale": args.scale, "order": args.order, "vertices": vertices}
        facts |= {"edges": len(graph[1]), "threads": args.threads, "clock": "wall" if args.wall else "cpu"}
        args.json.write_text(stored({**facts, "cpu": host().cpu, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
