"""Measured tables: all candidates of a kernel's small space, each measured once; searches are replayed on them.

A space is that of `benchmarks.study` with few values of the knobs that matter most (`CONVOLUTION`, `BATCHED`) and the
template's own choice of the others; the table says which. Convolutions but the `WHOLE` ones have images of half the
height and width, so that a table takes minutes. Kernels run on one thread, in turns with one of them, so that what else
the machine does is in no time. A session costs what its candidates cost: `building` and `seconds` of each are in the
table, and of `TRACED` kernels all batches of `RUNS`, so that any stopping rule can be replayed.

`python -m benchmarks.tables [KERNEL ...] --json FILE`: kernels that the file has are kept, so that it can go on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.harness import check_names
from benchmarks.layers import CONVOLUTIONS, model
from benchmarks.oracle import Known, Oracle
from benchmarks.provenance import provenance
from benchmarks.study import MACHINE, most_work
from burnish.driver.tuned import BUILD_LIMIT
from burnish.kernels.task import ScheduleSpace
from burnish.search.space import Points
from burnish.tune.evaluate import Evaluator, KernelTrial
from burnish.tune.evaluate.stopping import Adaptive, Fixed, Rule
from burnish.tune.records import machine
from burnish.tune.space import Alternative, TuningSpace
from burnish.tune.tasks import TuningTask

# Knob -> how many of its values are kept, at equal distances.
CONVOLUTION = {"tile_i2": 2, "tile_i3": 3, "block_i1": 4, "step_ic": 2, "vector": 2, "vectors": 2, "accumulate": 2}
BATCHED = {"tile_i1": 4, "block_i1": 3, "block_i2": 3, "step_k": 3, "vectors": 3, "accumulate": 2}
BMM = "BMM"  # attention scores of a Transformer: 8 heads, 128 tokens, 64 features of each
HEADS, TOKENS, FEATURES = 8, 128, 64
KERNELS = (*(layer.name for layer in CONVOLUTIONS), BMM)
TRACED = WHOLE = ("C8", BMM)
SMALLEST = 3  # a third of a knob's values, its smallest ones, is left out
RUNS = 50
Knobs = Mapping[str, Sequence[int | str]]
CHUNK = 48  # candidates that are built before any of them is measured
RULE = Adaptive(0.03, least=2, most=4, enough_seconds=3e-3)
SETTLED = (1.2, 8, 32, 5)  # see `Oracle.settle`


def batched_product() -> bytes:
    """A serialized ONNX model: x (heads, tokens, features) times w (heads, features, tokens)."""
    shapes = {"x": (HEADS, TOKENS, FEATURES), "w": (HEADS, FEATURES, TOKENS), "y": (HEADS, TOKENS, TOKENS)}
    types = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], BMM, [types["x"], types["w"]], [types["y"]])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    serialized: bytes = proto.SerializeToString()
    return serialized


def whole_kernel(name: str) -> TuningTask:
    """A kernel of ``KERNELS`` with all of the space that follows from its definition."""
    if name == BMM:
        return most_work(onnx.load_from_string(batched_product()))
    layer = next(each for each in CONVOLUTIONS if each.name == name)
    layer = layer if name in WHOLE else replace(layer, size=(layer.size + 1) // 2)
    return most_work(onnx.load_from_string(model(layer)))


def small_kernel(name: str, knobs: Knobs | None = None) -> TuningTask:
    """A kernel of ``KERNELS`` with its small space, or with that of these knobs.

    Raises ValueError where the kernel lacks one of the knobs or values.
    """
    task = whole_kernel(name)
    whole = task.space.alternatives[0]
    space = few_values(whole.space, BATCHED if name == BMM else CONVOLUTION)
    if knobs is not None:
        if set(knobs) != set(whole.space.knobs) or any(set(v) - set(whole.space.knobs[k]) for k, v in knobs.items()):
            raise ValueError(f"{name}: the table's knobs are of another space; measure it on this machine")
        space = ScheduleSpace(knobs, {knob: values[0] for knob, values in knobs.items()})
    return replace(task, space=TuningSpace([Alternative("tiled", whole.task, whole.template, space, MACHINE)]))


def few_values(space: ScheduleSpace, counts: Mapping[str, int]) -> ScheduleSpace:
    """Schedule space with few values of each named knob, evenly spaced, the smallest left out; defaults of others."""
    knobs: dict[str, Sequence[int | str]] = {}
    for knob, values in space.knobs.items():
        count = min(counts.get(knob, 1), len(values))
        places = np.unique(np.linspace(len(values) // SMALLEST, len(values) - 1, count).round().astype(int))
        knobs[knob] = [values[place] for place in places] if count > 1 else [space.default[knob]]
    return ScheduleSpace(knobs, {knob: kept[0] for knob, kept in knobs.items()})


@dataclass(frozen=True)
class KernelTable:
    """Costs of a small space by key: ``seconds`` a run (inf: failed), ``building`` seconds; ``times``: seconds a run of
    ``RUNS`` batches, in the order they were measured, of traced kernels.
    """

    kernel: str
    knobs: dict[str, list[int | str]]
    seconds: list[float]
    building: list[float]
    times: list[list[float]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As JSON: microseconds in four digits, None for a failure."""
        short = [[_micro(s) for s in values] for values in (self.seconds, self.building, *self.times)]
        return {**asdict(self), "seconds": short[0], "building": short[1], "times": short[2:]}

    @staticmethod
    def of(document: Mapping[str, Any]) -> KernelTable:
        """The table of a document."""
        seconds, building, *times = (
            [inf if us is None else us * 1e-6 for us in values]
            for values in (document["seconds"], document["building"], *document["times"])
        )
        return KernelTable(document["kernel"], document["knobs"], seconds, building, times)


def _micro(seconds: float) -> float | None:
    return float(f"{seconds * 1e6:.4g}") if seconds < inf else None


class _Traced(Oracle):
    """Costs in turns, and those of batches of a fixed number of runs."""

    traces: dict[int, list[float]]

    def _measure(self, keys: Sequence[int], trials: Sequence[KernelTrial]) -> None:
        super()._measure(keys, trials)
        rule, self._evaluator.rule = self._evaluator.rule, Fixed(RUNS)
        builds, _ = self._built(trials)
        for key, trial, build in zip(keys, trials, builds, strict=True):
            self.traces[key] = list(self._evaluator.measure(trial, build).times)
        self._evaluator.rule = rule


def measured(name: str, evaluator: Evaluator) -> KernelTable:
    """The table of a kernel."""
    task = small_kernel(name)
    oracle = _Traced(task, evaluator, RULE) if name in TRACED else Oracle(task, evaluator, RULE)
    if isinstance(oracle, _Traced):
        oracle.traces = {}
    keys = np.random.default_rng(0).permutation(task.space.size)
    for first in range(0, len(keys), CHUNK):
        oracle.ask(task.space.space.at(keys[first : first + CHUNK]))
    oracle.settle(*SETTLED)
    known = [oracle.known[key] for key in range(task.space.size)]
    times = [oracle.traces[key] for key in range(task.space.size)] if isinstance(oracle, _Traced) else []
    knobs = {knob: list(values) for knob, values in task.space.alternatives[0].space.knobs.items()}
    return KernelTable(name, knobs, [each.seconds for each in known], [each.building for each in known], times)


class Replayed(Oracle):
    """Costs from a table: nothing is built or measured.

    Without a ``rule`` a cost is that of the table, and measuring is reckoned as ``runs`` of it; with one, of a traced
    kernel, what the rule makes of its batches, each of which stands for ``runs / RUNS``. ``known`` is all there is.
    """

    def __init__(self, table: KernelTable, rule: Rule | None = None, runs: int = 10) -> None:
        self.task = small_kernel(table.kernel, table.knobs)
        self.known = {key: self._replay(table, key, rule, runs) for key in range(len(table.seconds))}

    @staticmethod
    def _replay(table: KernelTable, key: int, rule: Rule | None, runs: int) -> Known:
        seconds, building = table.seconds[key], table.building[key]
        if not seconds < inf:
            return Known(inf, building, 0.0)
        batch = Fixed().batch_seconds
        if rule is None:
            return Known(seconds, building, runs * max(seconds, batch))
        times = table.times[key]
        if not times:
            return Known(inf, building, 0.0)
        stop = next((n for n in range(1, len(times) + 1) if rule.stop(times[:n])), len(times))
        taken = sum(max(each, batch) for each in times[:stop])
        return Known(float(np.median(times[:stop])), building, runs / RUNS * taken)

    def ask(self, points: Points) -> list[Known]:
        """Measured records of points (n, width)."""
        return [self.known[key] for key in self.task.space.space.keys(points).tolist()]


def load(path: Path) -> dict[str, KernelTable]:
    """The tables of a file, by kernel; none where there is no file."""
    if not path.exists() or not path.stat().st_size:
        return {}
    return {each["kernel"]: KernelTable.of(each) for each in json.loads(path.read_text(encoding="utf-8"))["tables"]}


def notes_of(path: Path) -> dict[str, str]:
    """Notes on the kernels of a file, by kernel."""
    if not path.exists() or not path.stat().st_size:
        return {}
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8")).get("notes", {})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", help=f"default: {' '.join(KERNELS)}")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="that is written, or continued")
    parser.add_argument("--note", default="", help="said of the kernels that are measured now")
    arguments = parser.parse_args()
    check_names(parser, arguments.kernels, KERNELS)
    with Evaluator(MACHINE, threads=1, build_limit=BUILD_LIMIT) as evaluator:
        for name in arguments.kernels or KERNELS:
            tables = load(arguments.json)
            notes = notes_of(arguments.json)
            if name in tables:
                continue
            tables[name] = measured(name, evaluator)
            notes = {**notes, **({name: arguments.note} if arguments.note else {})}
            rows = [tables[known].document() for known in KERNELS if known in tables]
            head = {"measured": provenance(), "machine": machine(MACHINE), "threads": 1, "rule": str(RULE)}
            text = json.dumps({**head, "notes": notes, "tables": rows}, separators=(",", ":"))
            arguments.json.write_text(text + "\n", encoding="utf-8")
            finite = [s for s in tables[name].seconds if s < inf]
            print(
                f"{name}: {len(finite)} of {len(tables[name].seconds)}, {1e6 * min(finite):.0f} us at best", flush=True
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
