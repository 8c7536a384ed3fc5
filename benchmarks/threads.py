"""Scaling of a model's kernels over many threads: parts, balance, serial remainder, and the time projected from them.

`python -m benchmarks.threads [NAME ...] [--training] [--threads T] [--target NAME] [--all] [--json]`

A model compiled for T threads runs on one, in CPU time: a replacement of the native thread pool runs the chunks of each
parallel region in sequence and logs the time of each, the minimum of several runs. Simulated work stealing (a thread
takes its own chunks from the front, then those of others from the back) gives the makespan of a region on T cores that
share no caches or memory; the rest of a step is serial. Synchronization costs two cache lines a thread and region: a
declared cost, which two cores cannot show.
Efficiency is the time for one thread over T times that for T. Of a target that this CPU is not, regions are counted:
instructions, and what its matrix unit is declared to do, take the place of time. `--training`: the names are those of
training steps (`benchmarks.training`), whose kernels are those for T cores at any number of threads.
"""

from __future__ import annotations

import argparse
import ctypes
import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import models
from benchmarks.provenance import stored
from burnish.base.cache import ObjectCache
from burnish.driver.compilation import compile_kernels, import_graph, make_module
from burnish.graph.costs import LINES
from burnish.kernels.task import KernelTask
from burnish.loops.program import Alloc, For, If, Intrinsic, Seq, Stmt
from burnish.loops.sizes import hinted
from burnish.lower.instructions import PER_CYCLE, instructions
from burnish.lower.pipeline import lower
from burnish.machines.target import Target
from burnish.machines.target import target as find_target
from burnish.pipeline import kernel as kernels
from burnish.runtime.executable import KernelCall
from burnish.runtime.module import Module
from burnish.runtime.pool_ir import CHUNKS

MODELS, STEP = ("light_resnet50", "bert_base", "mobilenet_v2"), "resnet18"
COUNTS = (1, 2, 4, 8, 16)
ROUNDS = 12
SHOWN = 24  # kernels of a table: those that a call waits for longest
_REGION, _STEP = -1, -2  # marks in the log, which are no times
_CAPACITY = 1 << 20
Step = tuple[float, list[list[float]]]  # microseconds beside the regions of a step, and those of their chunks

# The log: threads, clock_gettime, entries used, entries. A region is its mark, the number of its chunks, and a time
# before the first chunk and after each; a step begins with its mark and a time.
_STAND_IN = """
%Log = type { i64, ptr, i64, ptr }
define internal i64 @now(ptr %log) {
  %at = alloca { i64, i64 }
  %clock.at = getelementptr %Log, ptr %log, i64 0, i32 1
  %clock = load ptr, ptr %clock.at
  %failed = call i32 %clock(i32 3, ptr %at)
  %seconds = load i64, ptr %at
  %rest.at = getelementptr { i64, i64 }, ptr %at, i64 0, i32 1
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000000
  %time = add i64 %whole, %rest
  ret i64 %time
}
define internal void @note(ptr %log, i64 %value) {
  %used.at = getelementptr %Log, ptr %log, i64 0, i32 2
  %used = load i64, ptr %used.at
  %entries.at = getelementptr %Log, ptr %log, i64 0, i32 3
  %entries = load ptr, ptr %entries.at
  %index = and i64 %used, CAPACITY
  %at = getelementptr i64, ptr %entries, i64 %index
  store i64 %value, ptr %at
  %next = add i64 %used, 1
  store i64 %next, ptr %used.at
  ret void
}
define i32 @stamp(i32 %id, ptr %time) {
  %log = load ptr, ptr @the_log
  call void @note(ptr %log, i64 -2)
  %now = call i64 @now(ptr %log)
  call void @note(ptr %log, i64 %now)
  store { i64, i64 } zeroinitializer, ptr %time
  ret i32 0
}
define void @parallel(ptr %log, ptr %body, ptr %ctx, i64 %extent) {
entry:
  %threads = load i64, ptr %log
  %most = mul i64 %threads, CHUNKS
  %several = icmp sgt i64 %threads, 1
  %divisible = icmp sgt i64 %extent, 1
  %worth = and i1 %several, %divisible
  br i1 %worth, label %cut, label %alone
alone:
  %any = icmp sgt i64 %extent, 0
  br i1 %any, label %whole, label %exit
whole:
  call void %body(ptr %ctx, i64 0, i64 %extent, i64 0)
  br label %exit
cut:
  %fine = icmp ult i64 %most, %extent
  %chunks = select i1 %fine, i64 %most, i64 %extent
  call void @note(ptr %log, i64 -1)
  call void @note(ptr %log, i64 %chunks)
  %first = call i64 @now(ptr %log)
  call void @note(ptr %log, i64 %first)
  br label %chunk
chunk:
  %c = phi i64 [ 0, %cut ], [ %c.next, %chunk ]
  %c.next = add i64 %c, 1
  %low = mul i64 %c, %extent
  %begin = udiv i64 %low, %chunks
  %high = mul i64 %c.next, %extent
  %end = udiv i64 %high, %chunks
  %after = mul i64 %c.next, %threads
  %before = sub i64 %after, 1
  %thread = udiv i64 %before, %chunks
  call void %body(ptr %ctx, i64 %begin, i64 %end, i64 %thread)
  %now = call i64 @now(ptr %log)
  call void @note(ptr %log, i64 %now)
  %more = icmp slt i64 %c.next, %chunks
  br i1 %more, label %chunk, label %exit
exit:
  ret void
}
define void @nothing(ptr %ctx, i64 %begin, i64 %end, i64 %thread) { ret void }
@the_log = global ptr null
"""


class _Log(ctypes.Structure):
    _fields_ = (
        ("threads", ctypes.c_int64),
        ("clock", ctypes.c_void_p),
        ("used", ctypes.c_int64),
        ("entries", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class SplitRegion:
    """A parallel region: chunks that it is cut into, and its microseconds on one thread and on all."""

    chunks: int
    alone: float
    together: float


@dataclass(frozen=True)
class SplitKernel:
    """A step of a model: its node, kernel and template; its regions, and microseconds outside of them."""

    node: str
    kernel: str
    template: str
    choice: dict[str, Any]
    serial: float
    regions: tuple[SplitRegion, ...]

    @property
    def alone(self) -> float:
        """Microseconds on one thread."""
        return self.serial + sum(r.alone for r in self.regions)

    def together(self, cost: float) -> float:
        """Microseconds on all threads; ``cost``: of a region without work."""
        return self.serial + sum(r.together + cost for r in self.regions)


class StandIn:
    """A pool on which regions run on the calling thread, a chunk at a time, each timed in CPU time."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        text = _STAND_IN.replace("CAPACITY", str(_CAPACITY - 1)).replace("CHUNKS", str(CHUNKS))
        machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
        self._engine.finalize_object()
        self.entries = np.zeros(_CAPACITY, np.int64)
        clock = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value
        self.log = _Log(1, clock, 0, self.entries.ctypes.data)
        held = ctypes.c_void_p.from_address(self._engine.get_global_value_address("the_log"))
        held.value = ctypes.addressof(self.log)
        self.parallel, self.stamp = map(self._engine.get_function_address, ("parallel", "stamp"))
        self.reading = self._reading()

    def run(self, module: Any, arrays: dict[str, np.ndarray], threads: int) -> list[list[Step]]:
        """Runs a module several times; the steps of each run. The module keeps the stand-in as its pool."""
        runner = module._runner
        runner.runtime.parallel, runner.runtime.pool = self.parallel, ctypes.addressof(self.log)
        runner.runtime.threads = threads
        for at, part in enumerate(runner._parts):
            if not isinstance(part, int):
                part.plan.clock = self.stamp
                runner._parts[at] = replace(part, each=part.plan)  # concurrent calls are timed as one
        self.log.threads, self.log.used = threads, 0
        module.profile(repeat=ROUNDS - 1, **arrays)
        assert self.log.used <= _CAPACITY
        steps, count = steps_of(self.entries[: self.log.used], self.reading), len(runner.joined)
        return [steps[at : at + count] for at in range(0, len(steps), count + 1)]  # between runs lies one more

    def _reading(self) -> float:
        """Nanoseconds that a look at the clock takes."""
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
        self.log.threads = 64
        nothing = self._engine.get_function_address("nothing")
        for _ in range(20):
            signature(self.parallel)(ctypes.addressof(self.log), nothing, None, 1 << 20)
        found, self.log.used = self.entries[: self.log.used], 0
        return float(np.percentile(np.diff(found[found > 1 << 10]), 20))


def makespan(chunks: Sequence[float], threads: int) -> float:
    """Time of a region whose chunks take so long, by the pool's rule."""
    count = len(chunks)
    own = [deque(range(count * t // threads, count * (t + 1) // threads)) for t in range(threads)]
    waiting, last = [(0.0, t) for t in range(threads)], 0.0
    while waiting:
        now, t = heapq.heappop(waiting)
        chunk = own[t].popleft() if own[t] else None
        for other in (*range(t + 1, threads), *range(t)) if chunk is None else ():
            if own[other]:
                chunk = own[other].pop()
                break
        if chunk is not None:
            last = max(last, now + chunks[chunk])
            heapq.heappush(waiting, (now + chunks[chunk], t))
    return last


def steps_of(log: np.ndarray, reading: float) -> list[Step]:
    """Microseconds of each step outside of its regions, and those of each chunk of its regions."""
    found: list[Step] = []
    at, begun, values = 0, 0, log.tolist()
    regions: list[list[float]] = []
    while at < len(values):
        if values[at] == _STEP:
            now = values[at + 1]
            if begun:
                inside = sum(map(sum, regions)) * 1e3 + reading * (1 + sum(len(r) + 1 for r in regions))
                found.append((max(0.0, now - begun - inside) / 1e3, regions))
            begun, regions, at = now, [], at + 2
        else:
            count = values[at + 1]
            times = np.diff(values[at + 2 : at + 3 + count]) - reading
            regions.append((np.maximum(times, 0) / 1e3).tolist())
            at += 3 + count
    return found


def measured(graph: Any, arrays: dict[str, np.ndarray], own: Target, threads: int, pool: StandIn) -> list[SplitKernel]:
    """The kernels of a model on this CPU."""
    return split(make_module(compile_kernels(graph, own), threads), arrays, threads, pool)


def split(module: Module, arrays: dict[str, np.ndarray], threads: int, pool: StandIn) -> list[SplitKernel]:
    """The kernels of a compiled model on this CPU."""
    runs = pool.run(module, arrays, threads)
    templates = {row["kernel"]: row for row in module.info["kernels"]}
    result = []
    every, begins = module.executable.steps, [*module._runner.joined, len(module.executable.steps)]
    for number, (first, end) in enumerate(pairwise(begins)):
        step = every[first]
        rounds = [run[number] for run in runs]
        least = [np.min([r[1][i] for r in rounds], axis=0).tolist() for i in range(len(rounds[0][1]))]
        known = templates.get(step.kernel, {}) if isinstance(step, KernelCall) else {}
        regions = tuple(SplitRegion(len(r), sum(r), makespan(r, threads)) for r in least)
        result.append(
            SplitKernel(
                " | ".join(s.node for s in every[first:end]), step.label,
                "concurrent" if end - first > 1 else known.get("template", ""), known.get("choice", {}),
                min(r[0] for r in rounds), regions,
            )
        )  # fmt: skip
    return result


def counted(graph: Any, own: Target, threads: int) -> list[SplitKernel]:
    """The kernels of a model on a CPU that this one is not, by instructions that its scheduled loops count."""
    shapes: dict[str, tuple[float, tuple[SplitRegion, ...]]] = {}

    def make(task: KernelTask, target: Target, store: ObjectCache | None, recipe: Any) -> kernels.CompiledKernel:
        outlined = kernels.outline(task, target, None, recipe)
        match = next(m for m in kernels.matches(task.hinted, target) if m.name == outlined.template)
        program = lower(kernels.scheduled_program(match, task, outlined.choice)[0])
        serial, regions = 0.0, []
        for nest in _nests(program.body):
            counted = instructions(replace(program, body=nest), target.lanes)[0] / PER_CYCLE / own.core.clock
            microseconds = 1e6 * (counted + _unit_seconds(nest, own))
            extent = nest.extent if isinstance(nest, For) and nest.kind == "parallel" else 1
            if extent == 1 or threads == 1:
                serial += microseconds
                continue
            count = min(CHUNKS * threads, extent)
            sizes = [extent * (c + 1) // count - extent * c // count for c in range(count)]
            times = [microseconds * size / extent for size in sizes]
            regions.append(SplitRegion(count, microseconds, makespan(times, threads)))
        shapes[outlined.symbol] = serial, tuple(regions)
        return outlined

    made = compile_kernels(graph, own, make=make)
    return [
        SplitKernel(str(s.group), s.kernel.symbol, s.kernel.template, dict(s.kernel.choice), *shapes[s.kernel.symbol])
        for s in made.stages
    ]


def _unit_seconds(s: Stmt, own: Target) -> float:
    """Seconds that the products of a nest take of a core's matrix unit, which instructions do not count."""
    if isinstance(s, For):
        return hinted(s.extent) * _unit_seconds(s.body, own)
    unit = own.unit
    if isinstance(s, Intrinsic) and unit is not None and s.name == unit.dot.name:
        return 2 * unit.rows * unit.columns * unit.depth / unit.operations
    return sum(_unit_seconds(inner, own) for inner in s.parts)


def _nests(s: Stmt) -> list[Stmt]:
    """The outermost nests of a program."""
    if isinstance(s, (Alloc, If)):
        return _nests(s.body)
    return [n for inner in s.stmts for n in _nests(inner)] if isinstance(s, Seq) else [s]


Splits = Callable[[int], list[SplitKernel]]  # the kernels for a number of threads


def of_model(name: str, own: Target, pool: StandIn | None) -> Splits:
    """The kernels of a model, compiled for each number of threads."""
    graph = import_graph(models.build(name))

    def kernels_of(threads: int) -> list[SplitKernel]:
        asked = replace(own, cores=threads)
        if pool is None:
            return counted(graph, asked, threads)
        return measured(graph, models.inputs(name, 0), asked, threads, pool)

    return kernels_of


def of_step(name: str, own: Target, cores: int, pool: StandIn) -> Splits:
    """The kernels of a training step, compiled for as many cores."""
    from benchmarks.training import step_module

    module, arrays = step_module(name, 1, target=replace(own, cores=cores))
    return lambda threads: split(module, arrays, threads, pool)


def projected(name: str, kernels_of: Splits, counts: Sequence[int], cost: float) -> dict[str, Any]:
    """The times by numbers of threads, and the kernels for the last."""
    times: dict[int, float] = {}
    found: list[SplitKernel] = []
    for threads in counts:
        found = kernels_of(threads)
        times[threads] = sum(k.together(cost * threads) for k in found)
    last, first = counts[-1], counts[0]
    serial = sum(k.serial for k in found)
    return {
        "model": name,
        "microseconds": {str(t): round(time, 1) for t, time in times.items()},
        "efficiency": {str(t): round(times[first] * first / (t * time), 3) for t, time in times.items()},
        "regions": sum(len(k.regions) for k in found),
        "serial": round(serial, 1),
        "serial_share": round(serial / times[last], 4),
        "kernels": [
            {
                "node": k.node, "template": k.template, "choice": k.choice,
                "alone": round(k.alone, 1), "together": round(k.together(cost * last), 1),
                "serial": round(k.serial, 2), "chunks": [r.chunks for r in k.regions],
                "balance": [round(r.alone / last / r.together, 3) if r.together else 1.0 for r in k.regions],
            }
            for k in found
        ],
    }  # fmt: skip


def show(report: dict[str, Any], threads: int) -> None:
    """Prints a model's projected times, and the kernels that a call waits for longest."""
    table = Table(title=f"{report['model']}, {threads} threads: what is waited for longest")
    for heading in ("node", "template", "chunks", "balance", "alone µs", "serial", "projected", "speed-up"):
        table.add_column(heading, justify="left" if heading in ("node", "template") else "right")
    for k in sorted(report["kernels"], key=lambda k: -k["together"])[:SHOWN]:
        speed = f"{k['alone'] / k['together']:.1f}×" if k["together"] else ""
        listed = " ".join(map(str, k["chunks"])), " ".join(f"{b:.2f}" for b in k["balance"])
        table.add_row(
            k["node"][:32], k["template"], *listed, f"{k['alone']:.0f}", f"{k['serial']:.1f}",
            f"{k['together']:.1f}", speed,
        )  # fmt: skip
    Console(width=150).print(table)
    efficiency = ", ".join(
        f"{t}: {time / 1e3:.2f} ms ({report['efficiency'][t]:.2f})" for t, time in report["microseconds"].items()
    )
    few = Counter(k["template"] for k in report["kernels"] if sum(k["chunks"]) < threads)
    print(
        f"{report['model']}: {efficiency}; {report['regions']} regions, serial {report['serial_share']:.1%} of a call"
    )
    print(f"  kernels of fewer chunks than threads: {', '.join(f'{n} {t}' for t, n in few.most_common()) or 'none'}\n")


def main() -> None:
    """Prints one table for each model, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"default: {', '.join(MODELS)}; of steps: {STEP}")
    parser.add_argument("--training", action="store_true", help="names are those of training steps")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--target", default="cpu", help="what is compiled for, such as sapphirerapids")
    parser.add_argument(
        "--cost", type=float, default=1e6 * LINES, help="microseconds of a region without work, a thread"
    )
    parser.add_argument("--all", action="store_true", help="1, 2, 4, 8, ... threads, not 1 and the last alone")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    own = find_target(given.target)
    pool = StandIn() if own.is_host else None
    counts = [*(t for t in COUNTS if t < given.threads and (given.all or t == 1)), given.threads]
    if given.training and pool is None:
        parser.error("--training: measured on this CPU; allowed: with --target cpu")
    reports = [
        projected(
            name,
            of_step(name, own, given.threads, pool) if given.training and pool else of_model(name, own, pool),
            counts,
            given.cost,
        )
        for name in given.names or ([STEP] if given.training else MODELS)
    ]
    if given.json:
        report = {
            "target": given.target, "region_us_a_thread": given.cost, "threads": given.threads, "models": reports,
        }  # fmt: skip
        print(stored(report, indent=1))
        return
    for report in reports:
        show(report, given.threads)


if __name__ == "__main__":
    main()
