"""Rewritten graphs under other runtimes: what `burnish rewrite apply -o` writes, run by onnxruntime and OpenVINO.

Figure 2.7 of the thesis compares TASO's graphs by cuDNN and by TVM with what other optimizers make of the same network.
Each model is rewritten by this CPU's costs; both graphs are written as ONNX and run by each runtime with its own
optimizations, in turns, one thread. ``error``: of the rewritten graph's answers under a runtime, of their scale.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks import models
from benchmarks.rewriting.costs import CPU_LIKE
from benchmarks.rewriting.turns import least_seconds
from burnish.driver.compilation import import_graph
from burnish.driver.rewritten import shipped_rules
from burnish.frontend.onnx import to_onnx
from burnish.graph.passes import optimize
from burnish.machines.target import host
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error
from burnish.rewrite.search.backtracking import rewrite_graph
from burnish.rewrite.search.cost import TargetCost
from burnish.search.budget import Budget

SECONDS = 5.0  # of the search
ROUNDS = 9
NAMES = ("resnet50", "resnext50", "nasrnn", "nasnet_a", "bert_base", "squeezenet", "inception_v3", "repvgg_a0")


def run(names: Sequence[str] = NAMES) -> list[dict[str, Any]]:
    """A row for each model and the costs by which it was rewritten."""
    costs = {"this CPU": TargetCost(host()), "cpu-like": CPU_LIKE}
    return [row(name, machine, cost) for name in names for machine, cost in costs.items()]


def row(name: str, machine: str, cost: Any) -> dict[str, Any]:
    """Speed-up of a rewritten model under each runtime."""
    graph = optimize(import_graph(models.build(name)))
    found = rewrite_graph(graph, shipped_rules(), cost, Budget(seconds=SECONDS, clock=time.process_time))
    feeds = models.inputs(name, 0)
    result: dict[str, Any] = {
        "model": name, "costs": machine, "predicted": round(found.before / found.after, 3),
        "applied": [f"{s.times} × {s.rule}" for s in found.applied], "runtimes": {},
    }  # fmt: skip
    if found.graph is not graph and found.applied:
        sources = [to_onnx(g).SerializeToString() for g in (graph, found.graph)]
        for peer in ("onnxruntime", "openvino"):
            plain, rewritten = (peers.prepare(peer, source, 1) for source in sources)
            error = scaled_error(rewritten(feeds), [answer.copy() for answer in plain(feeds)])
            times = least_seconds({"plain": partial(plain, feeds), "rewritten": partial(rewritten, feeds)}, ROUNDS)
            result["runtimes"][peer] = {
                "milliseconds": {key: round(1e3 * seconds, 3) for key, seconds in times.items()},
                "speedup": round(times["plain"] / times["rewritten"], 3), "error": error,
            }  # fmt: skip
    print(f"{name}, {machine}: {result['runtimes']}", file=sys.stderr)
    return result


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    lines = ["model          costs       predicted   onnxruntime      openvino   substitutions"]
    for r in rows:
        ratios = "".join(
            f"{r['runtimes'][peer]['speedup']:14.3f}" if peer in r["runtimes"] else f"{'-':>14}"
            for peer in ("onnxruntime", "openvino")
        )
        lines.append(f"{r['model']:15}{r['costs']:10}{r['predicted']:11.3f}{ratios}   {len(r['applied'])}")
    return "\n".join(lines)
