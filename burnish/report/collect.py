"""Data of a report: graphs after every pass, kernels with their stages, memory, substitutions and errors."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from burnish.base import dump
from burnish.pipeline.kernel import DIGITS
from burnish.report.profile import profile
from burnish.runtime.module import Module
from burnish.runtime.steps import calls_of
from burnish.tune.records import Record, RecordFile

MOST_TEXT = 20_000  # letters of a stage that are shown
STAGES = ("task", "schedule")  # of a kernel, and its last form before code
_NODE = re.compile(r"^  (?P<outputs>.+?) = (?P<op>[\w.]+)\((?P<inside>.*)\) : (?P<types>.+)$")
_ATTRIBUTE = re.compile(r"^\w+=")


def collected(
    name: str, make: Callable[[], Module], inputs: Callable[[Module], Mapping[str, np.ndarray]],
    errors: Callable[[], Sequence[Mapping[str, Any]]] | None = None, records: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The data of a page: of the model that ``make`` compiles, timed on its ``inputs``; ``errors``: of kernels against
    the reference; ``records``: a file of the measurements by which kernels were tuned.
    """
    with tempfile.TemporaryDirectory(prefix="burnish-report-") as made:
        folder = Path(made)
        with dump.compilation(folder):
            module = make()
        passes, stages = _passes(folder), _stages(folder)
    return described(name, module, inputs(module), passes, stages, _searches(records, module)) | {
        "errors": list(errors()) if errors else None
    }


def described(
    name: str, module: Module, inputs: Mapping[str, np.ndarray], passes: Sequence[Mapping[str, Any]] = (),
    stages: Mapping[str, Any] | None = None, searches: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The data of a page about a module that is there, timed on ``inputs``; without ``passes`` its graph is the one
    that was compiled.
    """
    found, info = profile(module, inputs), module.info
    known = _described_kernels(module)
    kernels = []
    for row in found.kernels:
        own = known.get(row.kernel, {})
        kernels.append(
            {
                **asdict(row), "reached": row.reached, "choice": own.get("choice", {}),
                "layouts": own.get("layouts", {}), "flops": own.get("flops"), "moved": own.get("moved"),
                "slow": own.get("slow", ""), "recorded": bool(own.get("recorded")),
                "search": (searches or {}).get(row.kernel),
            }
        )  # fmt: skip
    only = [{"name": "compiled", "seconds": 0.0, "nodes": _nodes(module.graph)}]
    return {
        "name": name, "target": module.executable.target, "threads": module.threads, "call": found.call,
        "attributed": found.attributed, "inputs": [str(s) for s in module.inputs],
        "outputs": [str(s) for s in module.outputs], "memory": module.memory, "plan": str(info.get("arena", "")),
        "kernels": kernels, "stages": dict(stages or {}), "passes": list(passes) or only, "buffers": _buffers(module),
        "rewrites": info.get("rewrites"), "choices": info.get("measured"), "errors": None,
    }  # fmt: skip


def _described_kernels(module: Module) -> dict[str, dict[str, Any]]:
    return {str(row["kernel"]): dict(row) for row in module.info.get("kernels", ())}


def _passes(folder: Path) -> list[dict[str, Any]]:
    """The graph after each pass that changed it."""
    seconds = {}
    table = folder / dump.TABLE
    for line in table.read_text(encoding="utf-8").splitlines() if table.exists() else ():
        part, number, _, took = line.split("\t")
        if not part:
            seconds[int(number)] = float(took)
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.txt")):
        number, _, name = path.stem.partition("-")
        nodes = _nodes(path.read_text(encoding="utf-8"))
        if nodes and (not found or nodes != found[-1]["nodes"]):
            found.append({"name": name, "seconds": seconds.get(int(number), 0.0), "nodes": nodes})
    return found


def _searches(records: Path | None, module: Module) -> dict[str, dict[str, Any]]:
    """Measured candidates of each kernel that was tuned, in the order of their trials: microseconds of each, None of
    one that failed, the ``template`` of each, and how often every failure and victory in a pair came.
    """
    known = RecordFile(records).all() if records else []
    searched: dict[str, list[Record]] = {}
    for each in known:
        searched.setdefault(each.kernel or each.key, []).append(each)
    of = {each.key[:DIGITS]: each.kernel or each.key for each in known}
    found = {}
    for kernel in _described_kernels(module):
        own = searched.get(of.get(kernel.rpartition("_")[2], ""), [])
        if not own:
            continue
        outcomes = Counter("won against the default" if r.won else r.outcome for r in own)
        found[kernel] = {
            "microseconds": [1e6 * r.ranked if isfinite(r.ranked) else None for r in own],
            "templates": [r.algorithm or r.template for r in own], "outcomes": dict(outcomes.most_common()),
        }  # fmt: skip
    return found


def _nodes(text: str) -> list[dict[str, Any]]:
    """The nodes of a graph's text: operator, inputs, outputs, attributes, types."""
    nodes = []
    for line in text.splitlines():
        match = _NODE.match(line)
        if match is None:
            continue
        parts = _split(match["inside"])
        nodes.append(
            {
                "op": match["op"], "outputs": match["outputs"].split(", "), "types": match["types"],
                "inputs": [p for p in parts if not _ATTRIBUTE.match(p)],
                "attributes": [p for p in parts if _ATTRIBUTE.match(p)],
            }
        )  # fmt: skip
    return nodes


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no brackets."""
    parts, depth, begin = list[str](), 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append(text[begin:at].strip())
            begin = at + 1
    last = text[begin:].strip()
    return [*parts, last] if last else parts


def _stages(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Forms of each kernel by name: what it computes, its schedule, and the last program before code."""
    found: dict[str, list[dict[str, str]]] = {}
    for kernel in sorted((folder / "kernels").glob("*")):
        paths = {path.stem.partition("-")[2]: path for path in sorted(kernel.glob("*.txt"))}
        paths.pop("compile_ir", None)
        last = list(paths)[-1:] if paths else []
        names = [name for name in (*STAGES, *last) if name in paths]
        found[kernel.name] = [
            {"name": name, "text": paths[name].read_text(encoding="utf-8")[:MOST_TEXT]} for name in dict.fromkeys(names)
        ]
    return found


def _buffers(module: Module) -> list[dict[str, int]]:
    """Places in the arena and the steps between which they hold one value, as the calls' arguments say."""
    using: dict[tuple[int, int], dict[str, int]] = {}
    done: list[dict[str, int]] = []
    for number, step in enumerate(module.executable.steps):
        slots = [slot for call in calls_of([step]) for slot in call.args] or list(step.slots)
        for slot in slots:
            if slot.memory != "arena" or not slot.nbytes:
                continue
            key = (slot.offset, slot.nbytes)
            if key in using:
                using[key]["last"] = number
                continue
            for other in [k for k in using if k[0] < slot.offset + slot.nbytes and slot.offset < sum(k)]:
                done.append(using.pop(other))
            using[key] = {"offset": slot.offset, "nbytes": slot.nbytes, "first": number, "last": number}
    return sorted([*done, *using.values()], key=lambda b: (b["first"], b["offset"]))
