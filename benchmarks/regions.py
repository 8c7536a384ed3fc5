"""Parallel regions of boosting: how many a tree takes, what is serial between them, and what more threads would give.

`python -m benchmarks.regions [--rows N] [--threads T ...] [--quick] [--json FILE]`

A tree is grown as by T threads, but by one, which does the parts of each parallel region in turn. The CPU time of every
part is measured. Serial is what is left of the tree's time: Python, what a call from Python takes, and compiled code
between two regions. The projected time of a tree by T cores is the serial time, plus that of the slowest part of each
region, plus what it costs to begin and end a region, which is measured on the real threads. Not in it: caches and
memory that the cores share. Times are milliseconds of the tree of least time of several.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.boosting.datasets import higgs_like
from benchmarks.provenance import stored
from burnish.base.regions import region
from burnish.boost.data import Dataset
from burnish.boost.growth.trunk import grow_levels
from burnish.boost.params import Params
from burnish.boost.training import Training
from burnish.machines.target import target
from burnish.runtime.pool_ir import CHUNKS
from burnish.runtime.threads import Workers

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class Region(NamedTuple):
    """A region that ran: what Python called, the seconds that each thread's part took, and those that all took."""

    name: str
    parts: list[float]
    seconds: float  # more than the parts': they are timed, and begun by Python, which native threads do not


class CountedWorkers(Workers):
    """Workers that do all parts on the calling thread, one after the other, and note what each takes.

    What lies around the parts is not in a region: also what a call from Python takes, and compiled code between two.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.regions: list[Region] = []
        self.calls: list[tuple[str, int]] = []  # what Python called, and how many regions there were before
        self.levels, self.level_regions = 0, 0  # grown level by level, and regions of these
        self._stand_in = _PARALLEL(self._parts)

    @property
    def region(self) -> tuple[int, int]:
        """See `Workers.region`."""
        return ctypes.cast(self._stand_in, ctypes.c_void_p).value or 0, 0

    def each(self, region: Any, extent: int, *arguments: Any, grain: int = 1) -> None:
        """Parallel region, as `Workers.each`; regions of one part count too."""
        self.calls.append((region.py_func.__name__, len(self.regions)))
        region(self.region, extent, grain, *arguments)

    def call(self, function: Any, *arguments: Any) -> Any:
        """See `Workers.call`."""
        before = len(self.regions)
        self.calls.append((function.py_func.__name__, before))
        found = function(self.region, *arguments)
        if function is grow_levels and arguments[1]:  # not the subtrees
            shares = arguments[5]
            self.levels, self.level_regions = int(shares.nodes["depth"][:found].max()), len(self.regions) - before
        return found

    def _parts(self, _pool: int, body: int, context: int, extent: int) -> None:
        first, times = time.process_time(), []
        function, chunks = _BODY(body), max(1, min(CHUNKS * self.threads, extent))
        for thread in range(self.threads):
            begin = time.process_time()
            for chunk in range(chunks * thread // self.threads, chunks * (thread + 1) // self.threads):
                function(context, extent * chunk // chunks, extent * (chunk + 1) // chunks, thread)
            times.append(time.process_time() - begin)
        self.regions.append(Region(self.calls[-1][0], times, time.process_time() - first))


def _nothing(
    a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, numbers: Any, begin: int, end: int, thread: int
) -> None:
    numbers[thread] += end - begin


def lost(threads: int) -> float:
    """Microseconds that a region of no work and eight arrays takes on the real pool, at best of several runs."""
    entry, workers, numbers = region(_nothing), Workers(threads), np.zeros(threads, np.int64)
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(500):
            workers.each(entry, threads, *[numbers] * 8)
        best = min(best, (time.perf_counter() - begin) / 500)
    return best * 1e6


def tree(table: Any, depth: int, threads: int, rounds: int, cost: float) -> dict[str, Any]:
    """Counts of one tree, the one of least CPU time of `rounds`; cost: microseconds of a region."""
    workers = CountedWorkers(threads)
    params = Params(max_depth=depth, learning_rate=0.1, objective="logistic")
    training = Training(params, Dataset.of(table.features, table.label), workers)
    training.boost()
    found: list[tuple[float, list[Region], float]] = []
    for _ in range(rounds):
        workers.regions, workers.calls = [], []
        begin = time.process_time()
        training.boost()
        seconds = time.process_time() - begin
        found.append((seconds, workers.regions, workers.level_regions / max(1, workers.levels)))
    total, regions, of_level = min(found, key=lambda one: one[0])
    inside, instrumented = sum(sum(r.parts) for r in regions), sum(r.seconds for r in regions)
    slowest = sum(max(r.parts) for r in regions)
    serial = total - instrumented
    total = serial + inside
    return {
        "threads": threads,
        "regions": len(regions),
        "regions_a_level": of_level,
        "total_ms": total * 1e3,
        "serial_ms": serial * 1e3,
        "serial_share": serial / total,
        "balance": inside / threads / slowest,
        "lost_us": cost,
        "projected_ms": (serial + slowest) * 1e3 + len(regions) * cost / 1e3,
        "slowest": {
            name: round(sum(max(r.parts) for r in regions if r.name == name) * 1e3, 3)
            for name in dict.fromkeys(r.name for r in regions)
        },
    }


def main() -> None:
    """Prints one line for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="small data: whether it runs, not how fast")
    parser.add_argument("--json", type=Path, help="a file to write the results to")
    given = parser.parse_args()
    table = higgs_like(20_000 if given.quick else given.rows)
    cost = statistics.median(lost(2) for _ in range(3))
    rows = [tree(table, given.depth, threads, 2 if given.quick else given.rounds, cost) for threads in given.threads]
    if given.json:
        size = {"rows": len(table.label), "features": table.features.shape[1], "depth": given.depth}
        given.json.write_text(stored({"machine": target("cpu").cpu, **size, "trees": rows}, indent=1))
    for row in rows:
        print(
            f"{row['threads']:3} threads: {row['regions']} regions, {row['regions_a_level']:.1f} a level, "
            f"serial {row['serial_ms']:.2f} of {row['total_ms']:.1f} ms ({row['serial_share']:.1%}), "
            f"balance {row['balance']:.2f}, {row['lost_us']:.1f} µs lost a region, "
            f"projected {row['projected_ms']:.1f} ms a tree"
        )


if __name__ == "__main__":
    main()
