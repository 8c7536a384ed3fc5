"""A model rewritten by substitutions, and compiled so where that is measured to be faster than the model as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from burnish import rewrite
from burnish.arrange import DEFAULTS, Choices
from burnish.build import code_version
from burnish.compiler import Progress, link, lower_model
from burnish.graph.align import align_parts
from burnish.graph.graph import Graph
from burnish.graph.passes import optimize
from burnish.rewrite.cost import TargetCost
from burnish.rewrite.match import both_ways, reassociates
from burnish.rewrite.search import Rewritten, rewrite_graph
from burnish.rewrite.terms import Rule
from burnish.rewrite.verify import read_rules
from burnish.runtime.cache import ObjectCache, cache_key
from burnish.runtime.comparison import Comparison, compare_modules
from burnish.runtime.module import Module
from burnish.search.budget import Budget
from burnish.target import Target, host

SECONDS = 0.5  # of search
LEAST_GAIN = 0.01  # of the predicted time: less cannot be told from noise when modules are compared


@dataclass(frozen=True)
class Chosen:
    """The faster of a model and its rewriting. ``gain``: the rewriting's time over the model's; None where they were
    not compared, since nothing was found that should be faster, or the target is another machine. Both ``gain`` and
    ``found`` are None where an earlier compilation of the same graph has chosen already: the choice is the same.
    """

    module: Module
    graph: Graph
    found: Rewritten | None
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

    def compiled(source: Graph, optimized: bool) -> Module:
        return Module(link(lower_model(source, target, exact, cache_dir, progress, choices, optimized)), threads)

    tell = progress or (lambda stage, done, total: None)
    tell("optimize", 0, 1)
    ready = optimize(graph, exact)
    store, key = ObjectCache(cache_dir), _key(ready, rules, target, threads, exact, seconds)
    allowed, cost = [rule for rule in rules if not exact or reassociates(rule)], TargetCost(target)
    tell("rewrite", 0, 1)
    known = store.get(key)
    if known is not None:
        report, walks = json.loads(known)
        if not report["kept"]:
            return Chosen(_told(compiled(ready, True), report), graph, None, None)
        kept = align_parts(rewrite_graph(ready, allowed, cost, Budget(), walks=walks).graph, target.lanes)
        return Chosen(_told(compiled(kept, False), report), kept, None, None)
    found = rewrite_graph(ready, allowed, cost, Budget(seconds=seconds))
    plain = compiled(ready, True)
    promising = found.after <= found.before * (1 - LEAST_GAIN)
    here = _is_here(target)
    gain, module, chosen = None, plain, graph
    if promising and here:
        rewritten = align_parts(found.graph, target.lanes)
        other = compiled(rewritten, False)
        gain = compare_modules(plain, other)
        if gain.second_wins:
            module, chosen = other, rewritten
    report = described(found, gain)
    if here or not promising:
        store.put(key, json.dumps([report, found.walks]).encode())
    return Chosen(_told(module, report), chosen, found, gain)


def measured_gain(
    before: Graph, after: Graph, target: Target, threads: int | None = None, exact: bool = False
) -> Comparison | None:
    """The time of an optimized graph's rewriting over its own, both compiled; None where the target is elsewhere."""
    if not _is_here(target):
        return None
    graphs = (before, align_parts(after, target.lanes))
    first, second = (Module(link(lower_model(g, target, exact, optimized=g is before)), threads) for g in graphs)
    return compare_modules(first, second)


def _is_here(target: Target) -> bool:
    """Whether what is compiled for a target can be timed: it is this machine."""
    return target.triple == host().triple and target.cpu == host().cpu


def _key(graph: Graph, rules: Sequence[Rule], target: Target, threads: int | None, exact: bool, seconds: float) -> str:
    """Of all that a choice depends on but noise: values of weights are not looked at."""
    machine = f"{target.triple} {target.cpu} {target.feature_string} {target.cores} {threads}"
    return cache_key("rewriting", _code_version(), machine, f"{exact} {seconds}", str(graph), *map(str, rules))


@cache
def _code_version() -> str:
    """A hash of the compiler's source and the search's: what another version has chosen is chosen again."""
    root = Path(rewrite.__file__).parent.parent
    files = [f for folder in ("ops", "graph", "rewrite") for f in sorted((root / folder).glob("*.py"))]
    return cache_key(code_version(), *(f.read_bytes() for f in files))


def _told(module: Module, report: Mapping[str, Any]) -> Module:
    """The module with a report of its rewriting, which its artifact keeps."""
    module.executable = replace(module.executable, info={**module.executable.info, "rewrites": dict(report)})
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
