"""How often each substitution is used, by network, and what larger ones add (figures 2.10 and 2.11 of the thesis).

``uses``: of each substitution in the graph that the search finds for a network, by each machine's costs. ``sizes``: the
predicted time of the network over that of the graph found with the substitutions whose both sides have at most so many
operators; size 0 allows none. The thesis: 4 to 10 substitutions a network, different ones for each; gains up to size 3,
and up to 4 for NasNet-A.
"""

from __future__ import annotations

from typing import Any

from benchmarks.rewriting.networks import NETWORKS
from benchmarks.rewriting.search import MACHINES
from burnish.driver.rewritten import shipped_rules
from burnish.machines.target import host
from burnish.rewrite.language.terms import Apply, RewriteRule, Term, TermVariable, subterms
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.rewrite.search.cost import TargetCost
from burnish.rewrite.search.match import forwards
from burnish.rewrite.search.table import Cost
from burnish.search.budget import Budget

SECONDS = 2.0  # of each search
SIZES = (0, 1, 2, 3, 4)


def run(seconds: float = SECONDS) -> list[dict[str, Any]]:
    """A row for each network and machine."""
    rows = []
    costs: dict[str, Cost] = {**MACHINES, "this CPU": TargetCost(host())}
    for machine, cost in costs.items():
        for name, build in NETWORKS.items():
            graph, speedups, uses = build(), {}, dict[str, int]()
            for size in (*SIZES, None):
                rules = [r for r in shipped_rules() if size is None or size_of(r) <= size]
                found = rewrite_graph(graph, rules, cost, Budget(seconds=seconds))
                speedups["all" if size is None else str(size)] = round(found.before / found.after, 4)
                if size is None:
                    for s in found.applied:
                        uses[forwards(s.rule)] = uses.get(forwards(s.rule), 0) + s.times
            rows.append({"network": name, "machine": machine, "uses": uses, "speedup_by_size": speedups})
    return rows


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
