"""A model rewritten by substitutions, and compiled so where that is measured to be faster than the model as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from burnish.arrange import DEFAULTS, Choices
from burnish.compiler import Progress, link, lower_model
from burnish.graph.graph import Graph
from burnish.graph.passes import optimize
from burnish.rewrite.cost import TargetCost
from burnish.rewrite.match import both_ways, reassociates
from burnish.rewrite.search import Rewritten, rewrite_graph
from burnish.rewrite.terms import Rule
from burnish.rewrite.verify import read_rules
from burnish.runtime.comparison import Comparison, compare_modules
from burnish.runtime.module import Module
from burnish.search.budget import Budget
from burnish.target import Target, host

SECONDS = 0.5  # of search
LEAST_GAIN = 0.01  # of the predicted time: less cannot be told from noise when modules are compared


@dataclass(frozen=True)
class Chosen:
    """The faster of a model and its rewriting. ``gain``: the rewriting's time over the model's; None where they were
    not compared, since nothing was found that should be faster, or the target is another machine.
    """

    module: Module
    graph: Graph
    found: Rewritten
    gain: Comparison | None


@lru_cache(maxsize=1)
def shipped_rules() -> tuple[Rule, ...]:
    """The substitutions that come with Burnish. Their proofs are checked by the tests, not by every compilation."""
    return tuple(both_ways(read_rules("substitutions.txt")))


def rewrite_model(
    graph: Graph,
    rules: Sequence[Rule],
    *,
    target: Target,
    threads: int | None = None,
    exact: bool = False,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    choices: Choices = DEFAULTS,
    seconds: float = SECONDS,
) -> Chosen:
    """Compiles a model and, if substitutions should make it faster, the rewritten model too; the faster one is chosen.

    ``exact`` allows only rules that re-associate. The module's ``rewrites`` tell what was found.
    """

    def compiled(source: Graph) -> Module:
        return Module(link(lower_model(source, target, exact, cache_dir, progress, choices)), threads)

    if progress is not None:
        progress("rewrite", 0, 1)
    allowed = [rule for rule in rules if not exact or reassociates(rule)]
    found = rewrite_graph(optimize(graph, exact), allowed, TargetCost(target), Budget(seconds=seconds))
    plain = compiled(graph)
    here = target.triple == host().triple and target.cpu == host().cpu
    if found.after > found.before * (1 - LEAST_GAIN) or not here:
        return Chosen(_told(plain, found, None), graph, found, None)
    other = compiled(found.graph)
    gain = compare_modules(plain, other)
    if not gain.second_wins:
        return Chosen(_told(plain, found, gain), graph, found, gain)
    return Chosen(_told(other, found, gain), found.graph, found, gain)


def _told(module: Module, found: Rewritten, gain: Comparison | None) -> Module:
    """The module with a report of its rewriting, which its artifact keeps."""
    module.executable = replace(module.executable, info={**module.executable.info, "rewrites": described(found, gain)})
    return module


def described(found: Rewritten, gain: Comparison | None) -> dict[str, Any]:
    """The report as JSON holds it. Times in microseconds; ratios are of the rewritten model to the model as it is."""
    return {
        "applied": [
            {"rule": s.rule, "times": s.times, "saved_us": round(1e6 * s.saved, 2)} for s in found.applied
        ],
        "predicted_us": [round(1e6 * found.before, 2), round(1e6 * found.after, 2)],
        "measured": None if gain is None else {"ratio": gain.ratio, "low": gain.low, "high": gain.high},
        "kept": gain is not None and gain.second_wins,
        "graphs": found.graphs,
        "seconds": round(found.seconds, 3),
        "stop_reason": found.stop_reason,
    }  # fmt: skip
