"""A training step over blocks of vertices, within a memory budget and among workers, as a module is called.

What lasts from segment to segment lies in main memory or in a file, as a plan of :mod:`burnish.memory.swap` says.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from burnish.base.sizes import text_of
from burnish.comm.protocol import OPERATIONS, Comm
from burnish.errors import ParameterError
from burnish.gnn.data.regions import RowMemory, peak_bytes, resident_bytes, trim
from burnish.gnn.data.rows import FeatureRows, check_finite
from burnish.gnn.data.share import Share
from burnish.gnn.model.program import Gathering, SegmentProgram, SegmentStep
from burnish.graph.graph import TensorType
from burnish.loops.numeric import numpy_dtype
from burnish.memory.swap import PLANNERS, SwapFile, SwapProblem, execute, live_bytes, swap_problem
from burnish.runtime.arguments import Arguments
from burnish.runtime.callable import CompiledBase, ProfileRow, medians
from burnish.runtime.state import ModuleStates
from burnish.runtime.steps import TensorSpec
from burnish.search.integer import load_solver

INDEX_BYTES = 8
MARGIN = 24 << 20  # bytes of a budget left to what cannot be counted before: stacks, small arrays, the allocator


class BudgetError(ParameterError):
    """A memory budget below ``least``, bytes, which are ``parts``."""

    def __init__(self, budget: int, least: int, parts: str) -> None:
        """Message of a budget in bytes that is too small, and the least possible one with its parts."""
        self.least = least
        super().__init__(
            f"memory_budget: found {budget} bytes ({text_of(budget)}); allowed: {least} bytes ({text_of(least)}) or "
            f"more: {parts}"
        )


@dataclass(frozen=True)
class Moved:
    """Bytes moved between memory and file by the latest call, and the most bytes of tensors at once."""

    loaded: int = 0
    stored: int = 0
    peak: int = 0


@dataclass(eq=False, repr=False)
class BlockedStep(CompiledBase):
    """A program with its share of a graph, called with the labels of its vertices: the loss, and other results.

    ``budget``: the most bytes of this process, all counted; None for as many as are needed. ``capacity``: bytes of
    tensors at once, in place of what a budget leaves. ``planner``: of :data:`PLANNERS`. ``comm``: of the workers that
    have the other shares. ``folder``: where the file lies. Use as a context manager, or ``close`` it.
    """

    unsupported: ClassVar[Mapping[str, str]] = {
        "save": "keep what it trains: bn.gnn.fit(checkpoint=) writes its states, and a network is saved by name"
    }

    program: SegmentProgram
    share: Share
    features: str
    first: str
    budget: int | None = None
    planner: str = "best"
    comm: Comm | None = None
    folder: str | Path | None = None
    labels: Sequence[str] = ("label",)
    capacity: int | None = None
    later: bool = False
    inputs: tuple[TensorSpec, ...] = field(init=False)
    outputs: tuple[TensorSpec, ...] = field(init=False)
    moved: Moved = field(default_factory=Moved)
    seconds: float = 0.0  # of the latest call, without what waits for other workers

    def __post_init__(self) -> None:
        """Prepares edges and, unless that is to be done ``later``, plans; raises as ``settle`` does."""
        graph, rows = self.program.graph, self.share.rows
        self._kept = {name: np.array(state.initial) for name, state in graph.states.items()}
        lock = threading.RLock()
        self.state = ModuleStates.of(self._kept, lambda writes: lock)
        self.inputs = tuple(
            TensorSpec(n, (rows, *graph.types[n].shape[1:]), graph.types[n].dtype)
            for n in graph.inputs if n in self.labels
        )  # fmt: skip
        self._arguments = Arguments(self.inputs, {})
        self._results = [n for n in self._outputs if n in self.program.axes.rows]
        self.outputs = tuple(self._output_spec(n) for n in self._outputs)
        self._timed: dict[tuple[str, str], float] | None = None  # seconds of parts, while they are profiled
        self._types = self._block_types()
        written = {n for step in self.program.steps for n in step.writes}
        kept = [n for n in written if n.partition(":")[0] in self._results]
        nbytes = {name: t.nbytes for name, t in self._types.items()}
        operators = [part.segment for part in self.program.parts]
        self.problem: SwapProblem = swap_problem(self.program.steps, nbytes, kept, operators)
        self._partial: dict[int, list[list[np.ndarray] | None]] = {}
        self._regions = {name: self._region(name) for name in self._lasting}
        self._streams: dict[str, np.ndarray] = {}
        self._prepared: dict[str, np.ndarray | None] = {}
        self._sound: set[int] = set()
        self._folder = tempfile.TemporaryDirectory(prefix="burnish-gnn-", dir=self.folder)
        self._store = SwapFile(Path(self._folder.name) / "tensors", self._types, self._elsewhere())
        try:
            self._prepare()
            trim()
            if not self.later:
                self.settle()
        except BaseException:
            self.close()
            raise
        self.states = tuple(TensorSpec(n, a.shape, str(a.dtype)) for n, a in self._kept.items())

    def settle(self, beside: int = 0) -> None:
        """Plans moves between memory and file, once all that stays in memory is there.

        ``beside``: bytes that other steps of this process work in. Raises BudgetError for a budget below
        the least possible one, which it names.
        """
        if self.capacity is None and self.budget is not None:
            load_solver()
            trim()
        overhead = self._overhead() + beside
        self.least = overhead + max(self.problem.least_capacity, self._result_bytes())
        self.capacity = self._capacity(overhead) if self.capacity is None else self.capacity
        self.plan = PLANNERS[self.planner](self.problem, self.capacity)
        self.info = {"live": live_bytes(self.problem, self.plan), "plan": str(self.plan)}
        trim()

    # --- memory ---

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of tensors at once by the plan, of what modules work in, and of this process so far, at most."""
        return {"tensors": self.plan.peak, "workspace": self.program.workspace, "process": peak_bytes()}

    @property
    def _outputs(self) -> tuple[str, ...]:
        graph = self.program.graph
        after = {state.output for state in graph.states.values()}
        return tuple(n for i, n in enumerate(graph.outputs) if i not in after)

    def _output_spec(self, name: str) -> TensorSpec:
        t = self.program.graph.types[name]
        return TensorSpec(name, (self.share.rows, *t.shape[1:]) if name in self._results else t.shape, t.dtype)

    def _overhead(self) -> int:
        """Bytes besides tensors: what is resident now, and what modules work in."""
        return resident_bytes() + self.program.workspace + self.program.partial_bytes + MARGIN

    def _result_bytes(self) -> int:
        """Bytes of results with rows, and of the most likely class of each as a metric finds it."""
        types = [self.program.graph.types[name] for name in self._results]
        row = sum(prod(t.shape[1:]) * numpy_dtype(t.dtype).itemsize + INDEX_BYTES for t in types)
        return self.share.rows * row

    def _capacity(self, overhead: int) -> int:
        if self.budget is None:
            return max(sum(self.problem.nbytes.values()), 1)
        least = self.least
        if self.budget < least:
            raise BudgetError(
                self.budget, least,
                f"{text_of(overhead)} of this process and {text_of(least - overhead)} of the largest step or results",
            )  # fmt: skip
        return self.budget - overhead

    @property
    def _lasting(self) -> list[str]:
        names = {n for step in self.program.steps for n in (*step.reads, *step.writes)}
        return sorted({n.partition(":")[0] for n in names} & self.program.axes.rows.keys())

    def _region(self, name: str) -> RowMemory:
        t = self.program.graph.types[name]
        columns = [e.columns for e in self.share.edges.values()]
        return RowMemory((max(self.share.rows, *columns), *t.shape[1:]), t.dtype)

    def _block_types(self) -> dict[str, TensorType]:
        """The types of tensors by block."""
        types, found = self.program.graph.types, dict[str, TensorType]()
        for name in dict.fromkeys(n for step in self.program.steps for n in (*step.reads, *step.writes)):
            tensor, _, place = name.partition(":")
            if tensor not in self.program.axes.rows:
                spec = next(s for g in self._gatherings(int(place)) for s in g.module.inputs if s.name == tensor)
                found[name] = TensorType(spec.shape, spec.dtype)
                continue
            t = types[tensor]
            if place.startswith("far"):
                gather = self.program.gathers[int(place.partition(":")[2])]
                rows = self.share.edges[gather.offsets].columns - self.share.rows
                found[name] = TensorType((rows, *t.shape[1:]), t.dtype)
                continue
            begin, end = self.share.blocks[int(place)]
            found[name] = TensorType((end - begin, *t.shape[1:]), t.dtype)
        return found

    def _elsewhere(self) -> dict[str, Callable[[np.ndarray], object]]:
        """Readers of tensors that the graph's own file has."""
        found: dict[str, Callable[[np.ndarray], object]] = {}
        for name in self._types:
            tensor, _, place = name.partition(":")
            if place.startswith("far"):
                continue
            if tensor == self.features:
                begin, end = self.share.blocks[int(place)]
                assert self.share.features is not None
                found[name] = partial(_read_rows, self.share.features, begin, end, self._sound)
        return found

    def _gatherings(self, block: int) -> list[Gathering]:
        return [by_block[block] for by_block in self.program.gatherings.values()]

    def _prepare(self) -> None:
        """Edges as gatherings read them: in memory where their sources are, else in the file."""
        for i, by_block in self.program.gatherings.items():
            gather = self.program.gathers[i]
            edges = self.share.edges[gather.offsets]
            for k, gathering in enumerate(by_block):
                if all(f"{n}:{k}" in self._prepared for n in gathering.edges):
                    continue
                given = {gather.offsets: edges.offsets[k]}
                if gather.sources is not None:
                    given[gather.sources] = edges.of(k)
                if gather.weights is not None:
                    given[gather.weights] = edges.weights_of(k)
                for name, array in gathering.prepared(given).items():
                    self._prepared[f"{name}:{k}"] = None if edges.sources is None else array
                    if edges.sources is None:
                        self._store.write(f"{name}:{k}", array)

    # --- a call ---

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """One step: the loss, and the graph's other outputs with rows, [vertices of this share, ...].

        ``args``, ``kwargs``: the labels of its vertices. Raises InputError for labels of other shapes.
        """
        labels = self._arguments.arrays(self._arguments.bind(args, kwargs), None)
        self._rows = {**self.share.tensors, **{s.name: a for s, a in zip(self.inputs, labels, strict=True)}}
        self._values = dict(self._kept)
        self.seconds = 0.0
        done = execute(self.problem, self.plan, self._store, self._compute, self)
        self.moved = Moved(done.loaded, done.stored, done.peak)
        graph = self.program.graph
        values = [self._result(name) if name in self._results else self._values[name].copy() for name in self._outputs]
        for name, state in graph.states.items():
            np.copyto(self._kept[name], self._values[graph.outputs[state.output]])
        return values[0] if len(values) == 1 else tuple(values)

    def _result(self, name: str) -> np.ndarray:
        """A result with rows, which the plan has left in the file."""
        t = self.program.graph.types[name]
        out = np.empty((self.share.rows, *t.shape[1:]), numpy_dtype(t.dtype))
        for k, (begin, end) in enumerate(self.share.blocks):
            self._store.read(f"{name}:{k}", out[begin:end])
        return out

    def take(self, name: str) -> np.ndarray:
        """Memory for a block: rows of its tensor's region."""
        tensor, _, place = name.partition(":")
        if tensor in self._regions:
            array = self._regions[tensor].array
            if place.startswith("far"):
                return array[self.share.rows : self.share.rows + self._types[name].shape[0]]
            begin, end = self.share.blocks[int(place)]
            return array[begin:end]
        t = self._types[name]
        self._streams[name] = RowMemory(t.shape, t.dtype).array  # which the allocator would keep when it is freed
        return self._streams[name]

    def leave(self, name: str) -> None:
        """Gives the memory of a block back."""
        tensor, _, place = name.partition(":")
        if tensor not in self._regions:
            del self._streams[name]
        elif place.startswith("far"):
            self._regions[tensor].release(self.share.rows, self.share.rows + self._types[name].shape[0])
        else:
            self._regions[tensor].release(*self.share.blocks[int(place)])

    def _compute(self, number: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        part = self.program.parts[number]
        began = time.perf_counter()
        self._do(part, outputs)
        took = time.perf_counter() - began
        if part.what in ("rows", "gather"):
            self.seconds += took
        if self._timed is not None:
            key = (f"segment {part.segment}", part.what)
            self._timed[key] = self._timed.get(key, 0.0) + took

    def _do(self, part: SegmentStep, outputs: Sequence[np.ndarray]) -> None:
        program = self.program
        segment = program.segments[part.segment]
        if part.what == "exchange":
            edges = self.share.edges[program.gathers[part.segment].offsets]
            assert edges.exchange is not None
            rows = self._regions[part.tensor].array[: edges.columns]
            edges.exchange(rows.reshape(edges.columns, prod(rows.shape[1:])))
        elif part.what == "finish":
            for name, value in zip(segment.sums, self._summed(part.segment), strict=True):
                self._values[name] = value
        elif part.what == "plain":
            module = program.modules[part.segment][0]
            found = module(*(self._values[n] for n in segment.given))
            found = found if isinstance(found, tuple) else (found,)
            self._values.update(zip(segment.values, found, strict=True))
        elif part.what == "gather":
            self._gather(part.segment, part.block, outputs)
        else:
            self._run_rows(part.segment, part.block, outputs)

    def _run_rows(self, number: int, block: int, outputs: Sequence[np.ndarray]) -> None:
        segment, module = self.program.segments[number], self.program.modules[number][block]
        begin, end = self.share.blocks[block]
        given = [self._own(name, begin, end) for name in segment.reads]
        given += [self._given(name, begin) for name in segment.given]
        sums = [np.empty(s.shape, numpy_dtype(s.dtype)) for s in module.outputs[len(segment.writes) :]]
        module.run_into(given, [*outputs, *sums])
        if segment.sums:
            self._partial.setdefault(number, [None] * len(self.share.blocks))[block] = sums

    def _gather(self, number: int, block: int, outputs: Sequence[np.ndarray]) -> None:
        segment, module = self.program.segments[number], self.program.modules[number][block]
        gather = self.program.gathers[number]
        edges = self.share.edges[gather.offsets]
        begin, end = self.share.blocks[block]
        given = []
        for spec in module.inputs:
            name = spec.name
            if name in segment.gathered:
                lasts = name in self.share.tensors
                rows = self.share.read(name, gather.offsets) if lasts else self._regions[name].array
                given.append(rows[: edges.columns])
            elif name in self.program.axes.rows:
                given.append(self._own(name, begin, end))
            elif name == gather.offsets:
                given.append(edges.offsets[block])
            elif f"{name}:{block}" in self._prepared:
                held = self._prepared[f"{name}:{block}"]
                given.append(self._streams[f"{name}:{block}"] if held is None else held)
            else:
                given.append(self._given(name, begin))
        module.run_into(given, outputs)

    def _whole(self, name: str) -> np.ndarray:
        return self._rows[name] if name in self._rows else self._regions[name].array

    def _own(self, name: str, begin: int, end: int) -> np.ndarray:
        return self._whole(name)[begin:end]

    def _given(self, name: str, begin: int) -> np.ndarray:
        return np.array(self.share.begin + begin, np.int64) if name == self.first else self._values[name]

    def _summed(self, number: int) -> list[np.ndarray]:
        """Reductions of a segment over all rows: over all blocks, then over all workers, in their order."""
        blocks = [found for found in self._partial.pop(number) if found is not None]
        reductions = self.program.segments[number].reductions
        totals = []
        for parts, kind in zip(zip(*blocks, strict=True), reductions, strict=True):
            total = np.asarray(reduce(OPERATIONS[kind], parts))
            alone = self.comm is None or self.comm.size == 1
            totals.append(total if alone or self.comm is None else self.comm.all_reduce(total, kind))
        return totals

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """Time of each segment of the step by what is done of it ("rows" of blocks, "gather", "exchange" with other
        workers), and of what moves between memory and file: medians over ``repeat`` steps, after one that is not
        counted. They change the state as calls do.
        """
        rounds = []
        for _ in range(repeat + 1):
            self._timed, began = {}, time.perf_counter()
            try:
                self(*args, **kwargs)
                moving = time.perf_counter() - began - sum(self._timed.values())
                rounds.append({**self._timed, (self._store.path.name, "loads and stores"): moving})
            finally:
                self._timed = None
        return medians(rounds)

    def _release(self) -> None:
        """Removes the file."""
        self._store.__exit__(None, None, None)
        self._folder.cleanup()

    def _facts(self) -> list[str]:
        """Facts for ``repr``."""
        return [f"{len(self.share.blocks)} blocks of {self.share.rows} vertices"]


def _read_rows(rows: FeatureRows, begin: int, end: int, sound: set[int], out: np.ndarray) -> None:
    """Reads a block; the first time, which is noted in ``sound``, values are checked."""
    rows.read(begin, end, out)
    if begin not in sound:
        check_finite(out, begin)
        sound.add(begin)
