"""Layouts and substitutions, apart and together, on BERT (figure 2.12 of the thesis), and what decides: the kernels.

``product``: microseconds of the products of BERT and of the thesis' example by how operands and results are stored,
rows (r) or columns (c): of the left operand and the result where the right one is a weight, which is packed at compile
time; of both operands where neither is. CPU seconds of one thread, least of turns.

``strategy``: BERT-base rewritten by substitutions alone, by those alone that choose layouts, by the first and then the
others, and by all together: ``predicted`` by these measured kernels; and as the compiler does it, which compiles what
is predicted to be faster and keeps it if it is (``tried``: measured then). The thesis: together 1.2 to 1.3 times as
fast as each other strategy, since a product of 64 by 1024 by 4096 is 1.5 times as fast transposed.

``images``: of networks whose images the compiler stores in blocks of channels, the share of the time that conversions
to and from blocks take: all that a search over blocks, too, could save.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import burnish as bn
from benchmarks import models
from benchmarks.rewriting.turns import least_seconds
from burnish.driver.compilation import import_graph
from burnish.driver.rewritten import rewrite_model, shipped_rules
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.passes import optimize
from burnish.machines.target import host
from burnish.rewrite.language.terms import RewriteRule
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.rewrite.search.cost import TargetCost
from burnish.rewrite.search.match import forwards
from burnish.rewrite.search.measured import MeasuredCost
from burnish.search.budget import Budget

SECONDS = 2.0  # of each search
ROUNDS = 15
WEIGHTED = ((128, 768, 768), (128, 768, 3072), (128, 3072, 768), (64, 1024, 4096))  # rows, depth, columns
BATCHED = ((12, 128, 64, 128), (12, 128, 128, 64))
LAYOUTS = ("rr", "rc", "cr", "cc")
NETWORKS = ("squeezenet", "resnet50", "resnext50", "nasnet_a")
LAYOUT_RULES = (
    "transposed product", "product of transposed", "sum of transposed",
)  # fmt: skip


def run(rounds: int = ROUNDS, model: str = "bert_base") -> list[dict[str, Any]]:
    """Rows of products, then rows of strategies."""
    price, rows = MeasuredCost(TargetCost(host())), []
    for sizes in (*WEIGHTED, *BATCHED):
        row, price = product_row(sizes, rounds, price)
        rows.append(row)
    return [*rows, *strategies(model, price), *map(images, NETWORKS)]


def product_row(sizes: Sequence[int], rounds: int, price: MeasuredCost) -> tuple[dict[str, Any], MeasuredCost]:
    """Microseconds of a product in each layout, and the costs that know them."""
    graphs = {name: product(sizes, name) for name in LAYOUTS}
    found = least_seconds({name: _run(graph) for name, graph in graphs.items()}, rounds)
    for name, graph in graphs.items():
        price = price.learned(graph, [(graph.outputs, found[name])])
    best = min(found, key=lambda name: found[name])
    return {
        "product": " x ".join(map(str, sizes)), "weight": len(sizes) == 3,
        "microseconds": {name: round(1e6 * seconds, 1) for name, seconds in found.items()},
        "best": best, "over_rows": round(found["rr"] / found[best], 3),
    }, price  # fmt: skip


def product(sizes: Sequence[int], layout: str) -> Graph:
    """A product whose left operand, and result or right operand, are stored by rows (r) or columns (c)."""
    b = GraphBuilder()
    by_columns = [letter == "c" for letter in layout]
    *batch, rows, depth, columns = (1, *sizes)
    left = b.input("a", (*batch, depth, rows) if by_columns[0] else (*batch, rows, depth))
    if len(batch) > 1:
        right = b.input("b", (*batch, columns, depth) if by_columns[1] else (*batch, depth, columns))
        return b.build(b.add("matmul", left, right, transpose_a=by_columns[0], transpose_b=by_columns[1]))
    weight = np.random.default_rng(0).standard_normal((depth, columns)).astype(np.float32)
    if by_columns[1]:  # the transpose of the result, by rows
        return b.build(b.add("matmul", b.constant(weight.T.copy()), left, transpose_b=not by_columns[0]))
    return b.build(b.add("matmul", left, b.constant(weight), transpose_a=by_columns[0]))


def _run(graph: Graph) -> Any:
    module = bn.compile(graph, threads=1, rewrite=False)
    random = np.random.default_rng(1)
    feeds = {name: random.standard_normal(graph.types[name].shape).astype(np.float32) for name in graph.inputs}
    return lambda: module(**feeds)


def strategies(model: str, price: MeasuredCost) -> list[dict[str, Any]]:
    """Speed-ups of a model by each strategy: predicted by these costs and, where it was compiled, measured."""
    graph, shipped = import_graph(models.build(model)), shipped_rules()
    layouts = [rule for rule in shipped if forwards(rule.name) in LAYOUT_RULES]
    others = [rule for rule in shipped if forwards(rule.name) not in LAYOUT_RULES]
    sets: dict[str, list[Sequence[RewriteRule]]]
    sets = {"substitutions": [others], "layouts": [layouts], "one, then the other": [others, layouts],
            "together": [shipped]}  # fmt: skip
    rows = []
    for name, steps in sets.items():
        ready, predicted = optimize(graph), 1.0
        for rules in steps:
            found = rewrite_graph(ready, rules, price, Budget(seconds=SECONDS, clock=time.process_time))
            ready, predicted = found.graph, predicted * found.before / found.after
        row = {"strategy": name, "model": model, "predicted": round(predicted, 4), **strategy(graph, steps)}
        rows.append(row)
    return rows


def strategy(graph: Graph, steps: Sequence[Sequence[RewriteRule]]) -> dict[str, Any]:
    """Speed-up of a graph by these sets of rules, one after the other: each is kept where its kernels are faster."""
    speedup, applied, tried = 1.0, [], []
    for rules in steps:
        with tempfile.TemporaryDirectory() as cache:
            chosen = rewrite_model(graph, rules, target=host(), threads=1, seconds=SECONDS, cache_dir=cache)
        report, gain = chosen.module.rewrites, chosen.gain
        assert report is not None
        tried.append(None if gain is None else round(1 / gain.ratio, 4))
        if report["kept"]:
            graph, speedup = chosen.graph, speedup / (gain.ratio if gain is not None else 1.0)
            applied += [f"{s['times']} × {s['rule']}" for s in report["applied"]]
    print(f"{applied}: {speedup:.3f}, tried {tried}", file=sys.stderr)
    return {"speedup": round(speedup, 4), "tried": tried, "applied": applied}


def images(model: str) -> dict[str, Any]:
    """Share of a network's time that conversions of images take, of kernels' least times."""
    module, feeds = bn.compile(models.build(model), threads=1, rewrite=False), models.inputs(model, 0)
    turns = [module.profile(**feeds, repeat=1) for _ in range(8)]
    least = [(same[0].node, min(row.microseconds for row in same)) for same in zip(*turns, strict=True)]
    copies = [seconds for node, seconds in least if node.split(" + ")[0] == "identity"]
    share = sum(copies) / sum(seconds for _, seconds in least)
    return {"images": model, "kernels": len(least), "conversions": len(copies), "share": round(share, 5)}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    lines = ["product             rr        rc        cr        cc   best over rr"]
    for r in rows:
        if "product" in r:
            times = "".join(f"{r['microseconds'][name]:10.1f}" for name in LAYOUTS)
            lines.append(f"{r['product']:14}{times}   {r['best']} {r['over_rows']:.3f}")
    lines.append("strategy              speed-up   predicted   tried   substitutions")
    for r in rows:
        if "strategy" in r:
            cells = f"{r['speedup']:8.3f}{r['predicted']:12.3f}   {r['tried']}   {', '.join(r['applied'])}"
            lines.append(f"{r['strategy']:22}{cells}")
        elif "images" in r:
            cells = f"{r['conversions']} of {r['kernels']} kernels convert images, {100 * r['share']:.2f} % of the time"
            lines.append(f"{r['images']:22}{cells}")
    return "\n".join(lines)
