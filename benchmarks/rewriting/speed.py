"""Models before and after rewriting, by our own kernels, alternately in one process, and whether answers agree.

Asked, 2 threads: ResNet-50 never slower; of the others, 1.15 in geometric mean, none below 1.0, one at least 1.5.
A model whose rewriting loses, or is predicted to gain nothing, stays as it is: its ratio is 1.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks import models
from burnish.accuracy import scaled_error
from burnish.compiler import import_graph
from burnish.graph.evaluate import evaluate
from burnish.graph.passes import optimize
from burnish.rewrite.cost import TargetCost
from burnish.rewrite.search import rewrite_graph
from burnish.rewriting import described, rewrite_model, shipped_rules
from burnish.search.budget import Budget
from burnish.target import host

SECONDS = 5.0  # of search for each model
THREADS = 2
NAMES = ("resnet50", "inception_v3", "nasrnn", "nasnet_a", "resnext50", "squeezenet", "bert_base", "repvgg_a0")


def run(names: Sequence[str] = NAMES, check: bool = False) -> list[dict[str, Any]]:
    """A row for each model. ``check``: also both graphs by the definitions, in float64, which takes minutes each."""
    return [row(name, check) for name in names]


def row(name: str, check: bool) -> dict[str, Any]:
    """What rewriting does to a model. ``speedup``: of the graph that is kept, with the interval of its confidence."""
    graph = import_graph(models.build(name))
    with tempfile.TemporaryDirectory() as cache:  # a full one would know the choice
        chosen = rewrite_model(graph, shipped_rules(), target=host(), threads=THREADS, seconds=SECONDS, cache_dir=cache)
    assert chosen.found is not None
    told = described(chosen.found, chosen.gain)
    gain = chosen.gain
    feeds = models.inputs(name, 0)
    found: dict[str, Any] = {
        "model": name,
        "speedup": 1 / gain.ratio if gain is not None and gain.second_wins else 1.0,
        "rewritten": None if gain is None else {"speedup": 1 / gain.ratio, "low": 1 / gain.high, "high": 1 / gain.low},
        **told,
    }
    if check:
        ready = optimize(graph)
        exact = rewrite_graph(
            ready, shipped_rules(), TargetCost(host()), Budget(), walks=chosen.found.walks, fold=False
        ).graph
        before, after = (list(evaluate(g, feeds, "float64").values()) for g in (ready, exact))
        found["error_float64"] = scaled_error(after, before)
        results = chosen.module(**feeds)
        found["error_float32"] = scaled_error(results if isinstance(results, tuple) else [results], before)
    print(f"{name}: {found['speedup']:.3f}", file=sys.stderr)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text, and their geometric mean without ResNet-50."""
    lines = ["model            speed-up   rewritten (95 %)        predicted   applied"]
    for r in rows:
        measured = r["rewritten"]
        interval = "-" if measured is None else "{speedup:.3f} ({low:.3f} to {high:.3f})".format(**measured)
        before, after = r["predicted_us"]
        applied = sum(s["times"] for s in r["applied"])
        lines.append(f"{r['model']:16} {r['speedup']:8.3f}   {interval:24} {before / after:8.3f} {applied:9}")
        if "error_float64" in r:
            lines[-1] += f"   errors {r['error_float64']:.1e} float64, {r['error_float32']:.1e} compiled"
    mean = statistics.geometric_mean([r["speedup"] for r in rows if r["model"] != "resnet50"] or [1.0])
    return "\n".join([*lines, f"geometric mean but ResNet-50: {mean:.3f}"])
