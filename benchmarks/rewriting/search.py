"""The search on the papers' networks by the model of a machine: what it finds, how soon, and how fast it walks.

Asked: SqueezeNet's optimum in 0.5 s, BERT's in 5 s, Inception-v3 within 1 % of the integer program in 5 s, NasRNN to
681 µs, 2,000 graphs a second at 200 operators. A graph is a distinct state that was shown to have no cycle, priced and
offered to the queue; states that were known already are not counted. A state is its parent and a change: it is written
out when steps from it are looked for. At 200 operators: NasNet-A of five cells, which cannot be cut into regions, so
that every graph is of all its operators.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.rewriting.costs import CPU_LIKE, GPU_LIKE
from benchmarks.rewriting.networks import NETWORKS, nasnet
from burnish.driver.rewritten import shipped_rules
from burnish.rewrite.search.backtracking import Rewritten, rewrite_graph
from burnish.search.budget import Budget

SECONDS = 5.0  # of search for each network
WHOLE = "NasNet-A, 5 cells"
MACHINES = {"gpu-like": GPU_LIKE, "cpu-like": CPU_LIKE}


def run(seconds: float = SECONDS) -> list[dict[str, Any]]:
    """A row for each network and machine."""
    rows = []
    for machine, cost in MACHINES.items():
        for name, build in {**NETWORKS, WHOLE: lambda: nasnet(cells=5)}.items():
            graph = build()
            for program in (False, True) if name != WHOLE else (False,):
                began = time.process_time()
                budget = Budget(seconds=seconds)
                found = rewrite_graph(graph, shipped_rules(), cost, budget, integer_program=program)
                label = f"{name} + ILP" if program else name
                rows.append(row(label, machine, len(graph.nodes), found, time.process_time() - began))
    return rows


def row(name: str, machine: str, operators: int, found: Rewritten, cpu_seconds: float) -> dict[str, Any]:
    """Report of a search. Times in microseconds, but for those called seconds."""
    return {
        "network": name,
        "machine": machine,
        "operators": operators,
        "before_us": round(1e6 * found.before, 1),
        "after_us": round(1e6 * found.after, 1),
        "ratio": round(found.after / found.before, 4),
        "best_after_seconds": round(found.best_after, 3),
        "seconds": round(found.seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        "graphs": found.graphs,
        "graphs_per_second": round(found.graphs / found.seconds),
        "stop_reason": found.stop_reason,
        "applied": [f"{s.times} × {s.rule}" for s in found.applied],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    lines = ["network            machine     ops  before µs  after µs   ratio  best s  graphs/s"]
    for r in rows:
        lines.append(
            f"{r['network']:19}{r['machine']:10}{r['operators']:5}{r['before_us']:11.0f}{r['after_us']:10.0f}"
            f"{r['ratio']:8.3f}{r['best_after_seconds']:8.2f}{r['graphs_per_second']:10}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(run()))
