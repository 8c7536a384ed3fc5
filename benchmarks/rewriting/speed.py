"""Models before and after rewriting, by our own kernels, alternately in one process, and whether answers agree.

Asked, 2 threads: ResNet-50 never slower; of the others, 1.15 in geometric mean, none below 1.0, one at least 1.5.
A model whose rewriting does not surely win, or is predicted to gain nothing, stays as it is: its ratio is 1. Every
model is searched for as long as `bn.compile` does by default, and for longer.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks import models
from burnish.driver.compilation import import_graph
from burnish.driver.rewritten import SECONDS, rewrite_model, shipped_rules
from burnish.graph.evaluate import evaluate
from burnish.graph.passes import optimize
from burnish.machines.target import host
from burnish.measure.accuracy import scaled_error
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.search.budget import Budget

LONG = 5.0  # seconds of search, beside the default of the compiler
THREADS = 2
NAMES = ("resnet50", "inception_v3", "nasrnn", "nasnet_a", "resnext50", "squeezenet", "bert_base", "repvgg_a0")


def run(names: Sequence[str] = NAMES, check: bool = False) -> list[dict[str, Any]]:
    """A row for each model and time of search. ``check``: also compares all answers with those of the definitions in
    float64, which takes minutes each.
    """
    return [row(name, seconds, check) for name in names for seconds in (SECONDS, LONG)]


def row(name: str, seconds: float, check: bool) -> dict[str, Any]:
    """Effect of rewriting on a model. ``speedup``: of the graph that is kept, with the interval of its confidence."""
    graph = import_graph(models.build(name))
    with tempfile.TemporaryDirectory() as cache:  # a full one would know the choice
        chosen = rewrite_model(graph, shipped_rules(), target=host(), threads=THREADS, seconds=seconds, cache_dir=cache)
    gain, report = chosen.gain, chosen.module.rewrites
    assert report is not None
    found: dict[str, Any] = {
        "model": name,
        "asked_seconds": seconds,
        "speedup": 1 / gain.ratio if gain is not None and gain.second_wins else 1.0,
        "rewritten": None if gain is None else {"speedup": 1 / gain.ratio, "low": 1 / gain.high, "high": 1 / gain.low},
        **report,
    }
    if check:
        feeds = models.inputs(name, 0)
        ready = optimize(graph)
        before = list(evaluate(ready, feeds, "float64").values())
        assert chosen.found is not None and chosen.price is not None
        walks = chosen.found.walks
        exact = rewrite_graph(ready, shipped_rules(), chosen.price, Budget(), walks=walks, fold=False).graph
        found["error_float64"] = scaled_error(list(evaluate(exact, feeds, "float64").values()), before)
        results = chosen.module(**feeds)
        found["error_float32"] = scaled_error(results if isinstance(results, tuple) else [results], before)
    print(f"{name}, {seconds} s: {found['speedup']:.3f}", file=sys.stderr)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text, and their geometric mean without ResNet-50."""
    lines = ["model         search s   speed-up   rewritten (95 %)        predicted   applied"]
    for r in rows:
        measured = r["rewritten"]
        interval = "-" if measured is None else "{speedup:.3f} ({low:.3f} to {high:.3f})".format(**measured)
        before, after = r["predicted_us"]
        applied = sum(s["times"] for s in r["applied"])
        figures = f"{r['asked_seconds']:8} {r['speedup']:10.3f}   {interval:24} {before / after:8.3f} {applied:9}"
        lines.append(f"{r['model']:13} {figures}")
        if "error_float64" in r:
            lines[-1] += f"   errors {r['error_float64']:.1e} float64, {r['error_float32']:.1e} compiled"
    for seconds in sorted({r["asked_seconds"] for r in rows}):
        kept = [r["speedup"] for r in rows if r["model"] != "resnet50" and r["asked_seconds"] == seconds]
        if kept:
            lines.append(f"geometric mean but ResNet-50, {seconds} s: {statistics.geometric_mean(kept):.3f}")
    return "\n".join(lines)
