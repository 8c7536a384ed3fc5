"""Apply-history: the kernel configurations and algorithms that records give to a compilation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from burnish.base.cache import cache_key
from burnish.errors import RecordError
from burnish.graph.algorithms import fastest, signature
from burnish.graph.estimates import Estimate, label_of
from burnish.graph.graph import Graph, Node
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import first_match
from burnish.machines.target import Target
from burnish.pipeline.kernel import KernelConfig, task_key
from burnish.pipeline.plan import Choices
from burnish.tune.records import RecordFile, is_records, machine


def runs_cold(graph: Graph, target: Target) -> bool:
    """Whether a model's weights come from memory, or a far cache, whenever it runs: they exceed the second cache."""
    return sum(array.nbytes for array in graph.constants.values()) > target.l2_bytes


def usable_records(path: str | Path, target: Target, threads: int, cold: bool) -> RecordFile:
    """The records of a file that somebody wants used, where a missing file is a mistake.

    Raises RecordError where there is no such file, or it is another program's; warns where none is a winner on this
    machine, with so many threads, and says what the file holds instead.
    """
    if not Path(path).is_file():
        raise RecordError(f"records: no file '{path}'; `burnish tune` writes one")
    if not is_records(Path(path)):
        raise RecordError(f"records: '{path}' is no file of tuning records")
    records = RecordFile(path)
    won = [r for r in records.all() if r.won]
    here = (machine(target), threads, cold)
    if not any((r.target, r.threads, r.cold) == here for r in won):
        held = {(r.target, r.threads, r.cold) for r in won} - {here}
        others = "; ".join(sorted(_setting(*each) for each in held)) or "no winner at all"
        note = f"records: '{path}' holds no winner for {_setting(*here)}, so that defaults are used; it holds {others}"
        warnings.warn(note, stacklevel=4)
    return records


def _setting(machine: str, threads: int, cold: bool) -> str:
    """Measurement setting of records, in words: CPU, threads, and whether weights are in the caches."""
    triple, _, rest = machine.partition("/")
    return f"{rest.partition('/')[0]} ({triple}), {threads} threads, weights {'cold' if cold else 'hot'}"


def recorded_choices(records: RecordFile, target: Target, threads: int, cold: bool = False) -> Choices:
    """Choices by the winners among the records of this machine: candidates that beat the default in a paired run.

    What no record speaks of is left to the defaults.
    """
    winners = [r for r in records.all() if r.won and (r.target, r.threads, r.cold) == (machine(target), threads, cold)]
    recipes = {r.key: KernelConfig(r.template, dict(r.choice)) for r in winners}
    chosen = choices_of(recipes, {r.node: r.algorithm for r in winners if r.node})

    def seconds(task: KernelTask, target: Target) -> float | None:
        task = task.hinted
        used = chosen.recipe(task, target)
        if used is None:
            match = first_match(task, target)
            used = KernelConfig(match.name, match.space.default)
        found = records.measurements(machine(target), threads, task_key(task, target), cold)
        wanted = (used.template, dict(used.choice))
        return next((r.seconds for r in found if r.outcome == "ok" and (r.template, dict(r.choice)) == wanted), None)

    return replace(chosen, seconds=seconds, name=cache_key(*(r.line() for r in winners)))


def choices_of(recipes: Mapping[str, KernelConfig], algorithms: Mapping[str, str]) -> Choices:
    """Choices by the recipes of some kernels, by their keys, and the algorithms of some nodes, by their signatures."""

    def decide(graph: Graph, node: Node, found: Sequence[Estimate]) -> Estimate:
        label = algorithms.get(signature(graph, node))
        return next((e for e in found if label_of(e) == label), None) or fastest(graph, node, found)

    return Choices(decide, lambda task, target: recipes.get(task_key(task.hinted, target)))  # open ones at their hints
