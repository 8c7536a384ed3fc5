"""Parallel regions of boosting: how many a tree takes, what is serial beside them, and what more threads would give.

`python -m benchmarks.regions [--rows N] [--threads T ...] [--quick] [--json]`

For each number of threads a tree grows as it does with so many, but on one thread, in CPU time: a stand-in for the
native pool calls the parts of each region one after the other and notes what they take. The serial remainder is what is
left of the tree's time; Amdahl's law with the slowest part of each region, and with what a region costs, gives the
time with so many cores that do not share caches or memory. What a region costs is measured on the real pool.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.boosting.datasets import higgs_like
from burnish.base.regions import region
from burnish.boost.data import Dataset
from burnish.boost.params import Params
from burnish.boost.training import Training
from burnish.runtime.threads import Workers

CHUNKS = 4  # of each thread's part, as `runtime.pool_ir` cuts
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
        self._stand_in = _PARALLEL(self._parts)

    @property
    def region(self) -> tuple[int, int]:
        """See `Workers.region`."""
        return ctypes.cast(self._stand_in, ctypes.c_void_p).value or 0, 0

    def each(self, region: Any, extent: int, *arguments: Any, grain: int = 1) -> None:
        """As `Workers.each`; regions of one part count too."""
        self.calls.append((region.py_func.__name__, len(self.regions)))
        region(self.region, extent, grain, *arguments)

    def call(self, function: Any, *arguments: Any) -> Any:
        """See `Workers.call`."""
        self.calls.append((function.py_func.__name__, len(self.regions)))
        return function(self.region, *arguments)

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
    found: list[tuple[float, list[Region], list[tuple[str, int]]]] = []
    for _ in range(rounds):
        workers.regions, workers.calls = [], []
        begin = time.process_time()
        training.boost()
        found.append((time.process_time() - begin, workers.regions, workers.calls))
    total, regions, calls = min(found, key=lambda one: one[0])
    inside, instrumented = sum(sum(r.parts) for r in regions), sum(r.seconds for r in regions)
    slowest = sum(max(r.parts) for r in regions)
    serial = total - instrumented
    total = serial + inside
    # A level: from its rows' partition to the next one's, or to the leaves.
    at = [before for name, before in calls if name.startswith("_split_")]
    last = next((before for name, before in calls if name == "_find_leaves"), len(regions))
    levels, first = max(1, len(at)), at[0] if at else last
    return {
        "threads": threads,
        "regions": len(regions),
        "regions_a_level": (last - first) / levels,
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
    """Prints one line for each number of threads, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="small data: whether it runs, not how fast")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    table = higgs_like(20_000 if given.quick else given.rows)
    cost = statistics.median(lost(2) for _ in range(3))
    rows = [tree(table, given.depth, threads, 2 if given.quick else given.rounds, cost) for threads in given.threads]
    if given.json:
        print(json.dumps({"rows": len(table.label), "depth": given.depth, "trees": rows}, indent=2))
        return
    for row in rows:
        print(
            f"{row['threads']:3} threads: {row['regions']} regions, {row['regions_a_level']:.1f} a level, "
            f"serial {row['serial_ms']:.2f} of {row['total_ms']:.1f} ms ({row['serial_share']:.1%}), "
            f"balance {row['balance']:.2f}, {row['lost_us']:.1f} µs lost a region, "
            f"projected {row['projected_ms']:.1f} ms a tree"
        )


if __name__ == "__main__":
    main()
