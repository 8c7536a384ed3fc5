"""Uses of each substitution, by network, and the gain from larger ones (figures 2.10 and 2.11 of the thesis).

``uses``: of each substitution in the graph that the search finds for a network, by each machine's costs. ``sizes``: the
predicted time of the network over that of the graph found with substitutions of at most that size (operators on either
side); size 0 allows none. ``timed``: the same of models with weights, by this CPU's costs, compiled by Burnish: CPU
seconds of one thread, least of turns. The thesis: 4 to 10 substitutions a network, different ones for each; gains up to
size 3, and up to 4 for NasNet-A.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import burnish as bn
from benchmarks import models
from benchmarks.rewriting.networks import NETWORKS
from benchmarks.rewriting.search import MACHINES
from benchmarks.rewriting.turns import least_seconds
from burnish.driver.compilation import import_graph
from burnish.driver.rewritten import shipped_rules
from burnish.graph.passes import optimize
from burnish.machines.target import host
from burnish.rewrite.language.terms import Apply, RewriteRule, Term, TermVariable, subterms
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.rewrite.search.cost import TargetCost
from burnish.rewrite.search.match import forwards
from burnish.rewrite.search.table import Cost
from burnish.search.budget import Budget

SECONDS = 2.0  # of each search
SIZES = (0, 1, 2, 3, 4)
TIMED = ("nasrnn", "resnext50", "bert_base", "nasnet_a")
ROUNDS = 9


def run(seconds: float = SECONDS) -> list[dict[str, Any]]:
    """A row for each network and machine, and for each model that is timed."""
    rows = [timed(name, seconds) for name in TIMED]
    costs: dict[str, Cost] = {**MACHINES, "this CPU": TargetCost(host())}
    for machine, cost in costs.items():
        for name, build in NETWORKS.items():
            graph, speedups, uses = build(), {}, dict[str, int]()
            for size in (*SIZES, None):
                found = rewrite_graph(graph, rules_of(size), cost, Budget(seconds=seconds, clock=time.process_time))
                speedups["all" if size is None else str(size)] = round(found.before / found.after, 4)
                if size is None:
                    for s in found.applied:
                        uses[forwards(s.rule)] = uses.get(forwards(s.rule), 0) + s.times
            rows.append({"network": name, "machine": machine, "uses": uses, "speedup_by_size": speedups})
    return rows


def timed(name: str, seconds: float) -> dict[str, Any]:
    """Measured speed-ups of a model by the size of substitutions; equal graphs are one."""
    graph, feeds = optimize(import_graph(models.build(name))), models.inputs(name, 0)
    chosen, runs = dict[str, str](), dict[str, Callable[[], object]]()
    for size in SIZES:
        found = rewrite_graph(
            graph, rules_of(size), TargetCost(host()), Budget(seconds=seconds, clock=time.process_time)
        )
        text = str(found.graph)
        chosen[str(size)] = text
        if text not in runs:
            runs[text] = partial(bn.compile(found.graph, threads=1, rewrite=False), **feeds)
    least = least_seconds(runs, ROUNDS)
    speedups = {size: round(least[chosen["0"]] / least[text], 4) for size, text in chosen.items()}
    print(f"{name}: {speedups}", file=sys.stderr)
    return {"network": name, "machine": "this CPU, timed", "uses": {}, "speedup_by_size": speedups}


def rules_of(size: int | None) -> list[RewriteRule]:
    """The shipped substitutions of at most this size; None: all."""
    return [rule for rule in shipped_rules() if size is None or size_of(rule) <= size]


def size_of(rule: RewriteRule) -> int:
    """Operators of the larger side, without the parts of a result and what is made of weights alone to join them."""
    return max(len(operators(rule.left)), len(operators(rule.right)))


def operators(terms: tuple[Term, ...]) -> set[Term]:
    """Distinct operators of a side; ``part``, the thesis' split, is one for each tensor that is split."""
    found: set[Term] = set()
    for term in terms:
        for t in subterms(term):
            if isinstance(t, Apply):
                found.add(Apply("part", t.args, ()) if t.word == "part" else t)
    return {t for t in found if not isinstance(t, TermVariable)}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text: a column for each network, a line for each substitution; then speed-ups by size."""
    lines = []
    for machine in dict.fromkeys(r["machine"] for r in rows):
        own = [r for r in rows if r["machine"] == machine]
        lines.append(f"{machine:60}" + "".join(f"{r['network']:>14}" for r in own))
        for rule in sorted({rule for r in own for rule in r["uses"]}):
            lines.append(f"  {rule:58}" + "".join(f"{r['uses'].get(rule, ''):>14}" for r in own))
        for size in own[0]["speedup_by_size"]:
            what = f"  speed-up with substitutions of size {size}"
            lines.append(f"{what:60}" + "".join(f"{r['speedup_by_size'][size]:14.3f}" for r in own))
    return "\n".join(lines)
