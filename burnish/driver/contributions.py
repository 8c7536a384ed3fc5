"""Ablation of substitutions: a rewritten model compared with the best one found without each of its rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from burnish.driver.compilation import assemble, compile_kernels
from burnish.driver.rewritten import Chosen
from burnish.graph.align import align_parts
from burnish.graph.graph import Graph
from burnish.graph.passes import optimize
from burnish.machines.target import Target
from burnish.measure.comparison import Comparison
from burnish.measure.sandbox import Sandbox
from burnish.rewrite.language.terms import RewriteRule
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.rewrite.search.cost import TargetCost
from burnish.rewrite.search.match import forwards
from burnish.runtime.module import Module
from burnish.search.budget import Budget


def contributions(
    graph: Graph,
    chosen: Chosen,
    rules: Sequence[RewriteRule],
    *,
    target: Target,
    threads: int | None = None,
    exact: bool = False,
    cache_dir: str | Path | None = None,
    seconds: float = 5.0,
) -> dict[str, Comparison]:
    """Ablation of each applied rule: time of the best found without it, in either direction, over the model's.

    ``chosen``: what :func:`rewrite_model` made of ``graph``, with these settings. ``seconds``: of each search. Together
    the rules save another time than the sum of what they do: one may take the place of another, or need it. Nothing
    where the rewriting was not kept. A model is compiled for each rule.
    """
    rewrites = chosen.module.rewrites or {}
    if not rewrites.get("kept"):
        return {}
    names = dict.fromkeys(forwards(each["rule"]) for each in rewrites["applied"])
    ready, price, found = optimize(graph, exact, target), chosen.price or TargetCost(target), {}
    with Sandbox() as sandbox:
        for name in names:
            rest = [rule for rule in rules if forwards(rule.name) != name]
            without = align_parts(rewrite_graph(ready, rest, price, Budget(seconds=seconds)).graph, target.lanes)
            other = Module(assemble(compile_kernels(without, target, exact, cache_dir)), threads)
            found[name] = sandbox.compare(chosen.module, other, exact=exact)
    return found
