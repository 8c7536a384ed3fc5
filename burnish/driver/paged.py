"""Paged model in two memories: kernels run within a budget of bytes of main memory, all else lies in a file.

What moves, and when, is a swap plan (thesis-jia §4.5): weights are loaded for the kernel that reads them, and a value
between kernels is written out and loaded again where it does not fit until its next use.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from burnish.base.arguments import refusal, typed
from burnish.base.cache import ObjectCache
from burnish.base.sizes import parse_budget, text_of
from burnish.driver.assembly import live_values
from burnish.driver.compilation import Progress, build_kernels, import_graph
from burnish.driver.kept_sizes import KeptSizes
from burnish.driver.open_inputs import OpenInputs, OpenSpec
from burnish.driver.stages import (
    Compilation,
    HostStage,
    KernelStage,
    NestedStage,
    RepeatStage,
    make_call,
    make_host,
    stored,
)
from burnish.driver.torch_module import TorchCall
from burnish.errors import UnsupportedOperator
from burnish.graph.graph import Graph, TensorType
from burnish.graph.passes import optimize
from burnish.graph.specialize import graph_at
from burnish.loops.layout import layout
from burnish.machines.target import Target
from burnish.machines.target import target as find_target
from burnish.memory.lifetimes import LifetimeStep as Access
from burnish.memory.swap import PLANNERS, SwapFile, SwapPlan, SwapProblem, execute, swap_problem
from burnish.memory.swap.store import Executed
from burnish.pipeline.plan import DEFAULTS, plan_kernels
from burnish.runtime.arguments import Arguments
from burnish.runtime.buffers import aligned_array, allocate, numpy_dtype
from burnish.runtime.build import build as link_executable
from burnish.runtime.callable import CompiledBase, ProfileRow, medians
from burnish.runtime.devices import device_for, has_own_form
from burnish.runtime.executable import Host, KernelCall, Slot, TensorSpec
from burnish.runtime.host import fingerprint
from burnish.runtime.module import Module
from burnish.runtime.sized import bind, upper_ends
from burnish.runtime.state import ModuleStates

KEPT = 4  # sizes whose code, and whose file with the weights, are kept

ConstantKey = tuple[str, str]  # a constant, and the layout that its kernel wants it in


@dataclass(frozen=True)
class PagedStep:
    """A kernel or an opaque operator as a module of its own, whose operands are all inputs."""

    module: Module
    access: Access


class PagedModule(CompiledBase):
    """Compiled model within a memory budget, called as others are; closed, its file is removed.

    ``problem``: the steps and the bytes of their tensors, weights among them. ``plan``: what moves; ``moved``: what
    the latest call moved, and the most bytes that it had in main memory. The arrays of the caller, machine code, and
    what kernels work in (``workspace`` bytes) come on top. ``call``: of a network of PyTorch, whose arguments it takes.
    """

    unsupported: ClassVar[Mapping[str, str]] = {
        "save": "save what burnish.compile gives without memory_budget=, as here weights lie in a file of their own"
    }

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __init__(self, made: Compilation, budget: int, planner: str, folder: str | Path | None, threads: int | None):
        graph = made.graph
        _require_static(made)
        self.inputs = tuple(TensorSpec(n, graph.types[n].shape, graph.types[n].dtype) for n in graph.inputs)
        self.outputs = tuple(TensorSpec(n, graph.types[n].shape, graph.types[n].dtype) for n in graph.outputs)
        self._signature = OpenInputs(tuple(OpenSpec(s.name, s.shape, s.dtype) for s in self.inputs))
        steps = _Steps(made, threads)
        self._modules = [step.module for step in steps.found]
        nbytes = {name: kind.nbytes for name, kind in steps.types.items()}
        accesses = [step.access for step in steps.found]
        self.problem: SwapProblem = swap_problem(accesses, nbytes, [n for n in graph.outputs if n in steps.written])
        self.plan: SwapPlan = PLANNERS[planner](self.problem, budget)
        self.workspace = max((m.memory["scratch"] for m in self._modules), default=0)
        self.moved: Executed | None = None
        self._room = _Room(steps.types)
        self._folder = tempfile.TemporaryDirectory(prefix="burnish-paged-", dir=folder)
        self._store = SwapFile(Path(self._folder.name) / "tensors", steps.types)
        self._lock = threading.RLock()
        self._seconds: dict[tuple[str, str], float] = {}  # of the steps of the latest call
        self.call: TorchCall | None = None
        self.state = ModuleStates()  # a model with states is refused
        for key, name in steps.constants.items():
            self._store.write(name, _packed(made, key))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The output, or the tuple of several. Raises InputError for arguments that do not fit, OSError of the file."""
        if self.call is not None:
            return self.call.run(lambda arrays: self._run(self._signature.bind(arrays, {})), args, kwargs)
        results = self._run(self._signature.bind(args, kwargs))
        return results[0] if len(results) == 1 else tuple(results)

    def _run(self, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with self._lock:
            for name, value in values.items():
                if name in self._store.types:
                    self._store.write(name, np.ascontiguousarray(value))
            self._seconds = {}
            self.moved = execute(self.problem, self.plan, self._store, self._compute, self._room)
            return [self._store.read(spec.name) for spec in self.outputs]

    def _compute(self, number: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        module, began = self._modules[number], perf_counter()
        module.run_into(inputs, outputs)
        (step,) = module.executable.steps
        key = (step.node, step.label)
        self._seconds[key] = self._seconds.get(key, 0.0) + perf_counter() - began

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of tensors, weights among them, at once by the plan (``arena``), and of ``scratch`` and ``code``;
        ``file``: of tensors that move.
        """
        code = sum(module.memory["code"] for module in self._modules)
        return {"arena": self.plan.peak, "scratch": self.workspace, "code": code, "file": self._store.nbytes}

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """Time of each step, and, last, of what moves between main memory and the file: medians over ``repeat`` runs,
        after one that is not counted.
        """
        rounds = []
        for _ in range(repeat + 1):
            with self._lock:
                began = perf_counter()
                self(*args, **kwargs)
                moving = perf_counter() - began - sum(self._seconds.values())
                rounds.append({**self._seconds, (self._store.path.name, "loads and stores"): moving})
        return medians(rounds)

    def close(self) -> None:
        """Removes the file, and frees what is in memory; waits for calls of other threads."""
        if not self.closed:
            with self._lock:
                super().close()

    def _release(self) -> None:
        self._store.__exit__(None, None, None)
        self._folder.cleanup()
        for module in self._modules:
            module.close()

    def _facts(self) -> list[str]:
        """Facts for ``repr``."""
        return [f"{len(self._modules)} steps", f"{text_of(self.plan.capacity)} of main memory"]


class PagedBySize(CompiledBase):
    """Paged models by size, called as one: each size is compiled when it comes first, those called last are kept.

    ``problem``, ``plan``, ``workspace``: those of the greatest sizes, which are compiled first, so that the budget is
    known to do for all; ``moved``: what the latest call moved. ``call``: of a network of PyTorch, whose arguments it
    takes.
    """

    unsupported: ClassVar[Mapping[str, str]] = PagedModule.unsupported

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __init__(self, graph: Graph, make: Callable[[Graph], PagedModule]) -> None:
        """``make``: compiles the graph of one size. Raises what that does for the greatest sizes."""
        types = graph.types
        self.inputs = tuple(TensorSpec(name, types[name].shape, types[name].dtype) for name in graph.inputs)
        self.outputs = tuple(TensorSpec(name, types[name].shape, types[name].dtype) for name in graph.outputs)
        self._arguments = Arguments(self.inputs, {})
        self._lock = threading.RLock()
        self._known = KeptSizes(graph.dims, lambda sizes: make(graph_at(graph, sizes)), PagedModule.close, KEPT)
        self._latest = self._known.at(upper_ends(graph.dims))
        self.problem: SwapProblem = self._latest.problem
        self.plan: SwapPlan = self._latest.plan
        self.workspace = self._latest.workspace
        self.call: TorchCall | None = None
        self.state = ModuleStates()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The output, or the tuple of several. Raises InputError, OSError of the file, and what compilation raises."""
        if self.call is not None:
            return self.call.run(self._run, args, kwargs)
        results = self._run(self._arguments.bind(args, kwargs))
        return results[0] if len(results) == 1 else tuple(results)

    def _run(self, given: Sequence[Any]) -> Sequence[np.ndarray]:
        with self._lock:
            arrays = self._chosen(given)
            found = self._latest(*arrays)
            return found if isinstance(found, tuple) else (found,)

    def _chosen(self, given: Sequence[Any]) -> list[np.ndarray]:
        """The arguments as arrays, for whose sizes the latest module is. Raises InputError."""
        arrays = self._arguments.arrays(given, None)
        self._latest = self._known.at(bind(self.inputs, [array.shape for array in arrays]))
        return arrays

    @property
    def moved(self) -> Executed | None:
        """Bytes that the latest call moved, and the most that it had in main memory."""
        return self._latest.moved

    @property
    def memory(self) -> dict[str, int]:
        """Bytes as of :class:`PagedModule`, for the sizes called last; ``file``: of all sizes that are kept."""
        return {**self._latest.memory, "file": sum(each.memory["file"] for each in self._known)}

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """As of :class:`PagedModule`."""
        given = self.call.flat(args, kwargs) if self.call is not None else self._arguments.bind(args, kwargs)
        with self._lock:
            arrays = self._chosen(given)
            return self._latest.profile(*arrays, repeat=repeat)

    def close(self) -> None:
        """Removes the files, and frees what is in memory; waits for calls of other threads."""
        if not self.closed:
            with self._lock:
                super().close()

    def _release(self) -> None:
        self._known.close()

    def _facts(self) -> list[str]:
        """Facts for ``repr``."""
        return [f"{len(self._known)} sizes kept", f"{text_of(self.plan.capacity)} of main memory"]


class _Room:
    """Arrays where kernels find them aligned."""

    def __init__(self, types: Mapping[str, TensorType]) -> None:
        self._types = types

    def take(self, name: str) -> np.ndarray:
        kind = self._types[name]
        return aligned_array(kind.shape, numpy_dtype(kind.dtype))[0]

    def leave(self, name: str) -> None:
        """Nothing refers to the array any more."""


class _Steps:
    """The steps of a compilation: ``types`` of all tensors as they lie in memory, ``constants`` by key, ``written``."""

    def __init__(self, made: Compilation, threads: int | None) -> None:
        self._made, self._threads = made, threads
        self._home = live_values(made)[2]
        self.types: dict[str, TensorType] = {}
        self.constants: dict[ConstantKey, str] = {}
        self.written: set[str] = set()
        self.found = [self._step(stage) for stage in made.computed if not isinstance(stage, (RepeatStage, NestedStage))]

    def _step(self, stage: KernelStage | HostStage) -> PagedStep:
        made, group = self._made, stage.group
        keys = list(dict.fromkeys(_constants_of(stage, made.constants)))
        values = [n for n in group.inputs if n not in made.constants]
        if isinstance(stage, KernelStage):  # what kernels read is what is not computed ahead of calls
            used = {stage.values[t.name] for t in stage.task.inputs if t.name not in stage.task.constants}
            values = [n for n in values if n in used]
        buffers = [*dict.fromkeys(self._buffer(n) for n in values)]
        reads = [*map(self._constant, keys), *buffers]
        writes = [self._buffer(n) for n in group.outputs]
        self.written.update(writes)
        fixed = {key: Slot("input", i, 0, self.types[reads[i]].nbytes) for i, key in enumerate(keys)}
        slots = {name: Slot("input", len(keys) + i) for i, name in enumerate(buffers)}
        slots |= {name: Slot("output", i) for i, name in enumerate(writes)}
        call: KernelCall | Host
        objects, scratch = dict[str, bytes](), 0
        if isinstance(stage, KernelStage):
            call = make_call(stage, self._home, fixed, slots, [])
            objects, scratch = {stage.kernel.symbol: stage.kernel.code}, stage.kernel.scratch_bytes
        else:
            call = make_host(made.graph, stage, self._home, fixed, slots)
            if stage.kernel is not None:
                objects, scratch = {stage.kernel.symbol: stage.kernel.code}, stage.kernel.scratch_bytes
        executable = link_executable(
            inputs=[self._spec(n) for n in reads], outputs=[self._spec(n) for n in writes], steps=[call],
            objects=objects, params=allocate(1), arena_bytes=0, scratch_bytes=scratch,
            target=fingerprint(made.target.triple, made.target.cpu, made.target.features), graph=str(group),
            driven_by="" if has_own_form(made.target.machine) else None,
        )  # fmt: skip
        device = device_for(made.target.machine, executable.target)
        return PagedStep(Module(executable, self._threads, device=device), Access(tuple(reads), tuple(writes)))

    def _buffer(self, value: str) -> str:
        """The tensor that a value is, or is another name of."""
        name = self._home[value].buffer if value in self._home else value
        spec = stored(self._made.graph, name, self._made.layouts)
        self.types.setdefault(name, TensorType(spec.shape, spec.dtype))
        return name

    def _constant(self, key: ConstantKey) -> str:
        name = self.constants.setdefault(key, f"{key[0]} as {key[1]}" if key[1] else key[0])
        if name not in self.types:
            array = self._made.constants[key[0]]
            shape = layout(key[1]).physical_shape(array.shape) if key[1] else array.shape
            self.types[name] = TensorType(tuple(shape), str(array.dtype))
        return name

    def _spec(self, name: str) -> TensorSpec:
        return TensorSpec(name, self.types[name].shape, self.types[name].dtype)


def _constants_of(stage: KernelStage | HostStage, constants: Mapping[str, np.ndarray]) -> list[ConstantKey]:
    if isinstance(stage, HostStage):
        return [(name, "") for name in stage.group.inputs if name in constants]
    tasks = [t for t in stage.task.inputs if t.name in stage.task.constants]
    return [(stage.values[t.name], stage.kernel.packing.get(t.name, "")) for t in tasks]


def _packed(made: Compilation, key: ConstantKey) -> np.ndarray:
    array, tag = made.constants[key[0]], key[1]
    return np.ascontiguousarray(layout(tag).pack(array) if tag else array)


def _require_static(made: Compilation) -> None:
    """Raises UnsupportedOperator for what does not run kernel by kernel on tensors of the host's memory."""
    rounds = next((stage.node for stage in made.computed if isinstance(stage, (RepeatStage, NestedStage))), None)
    found = (
        f"accelerator '{made.target.name}', which a CPU drives" if made.target.machine.offloads
        else f"dimensions {', '.join(d.name for d in made.graph.dims)}" if made.graph.dims
        else f"states {', '.join(made.graph.states)}" if made.graph.states
        else f"node '{rounds.name or rounds.op}', of rounds or branches" if rounds is not None
        else "structures of graphs" if made.structures
        else ""
    )  # fmt: skip
    if found:
        raise UnsupportedOperator(f"two memories: found {found}; allowed: a graph of known sizes without")


@typed
def compile_paged(
    model: Any,
    memory_budget: int | str,
    *,
    planner: str = "best",
    folder: str | Path | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix: Mapping[str, Any] | None = None,
    target: str | Target = "cpu",
    exact: bool = False,
    threads: int | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> PagedModule | PagedBySize:
    """Compiles a model for ``memory_budget`` bytes (a number, or "200MB") of main memory for tensors, weights among
    them.

    The rest lies in a file in ``folder`` (by default where temporary files are). ``planner``: "best", "streaming",
    "lru" or "lru drop dead" (``memory/swap/``). The other arguments are those of ``burnish.compile``. Raises
    ParameterError for less memory than the largest step needs, which it names, with open dimensions that at their
    upper bounds; UnsupportedOperator for states, and recurrent layers that are rounds of a body. Where dimensions are
    open, code for each size is compiled when it comes (:class:`PagedBySize`).

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.eye(64, dtype="f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.tanh(x @ w) @ w, {"x": (1, 64)})
    >>> with bn.compile_paged(graph, "20KB") as model:
    ...     y = model(np.zeros((1, 64), "f4"))
    ...     model.moved.peak <= 20_000, float(y.max())
    (True, 0.0)
    """
    if planner not in PLANNERS:
        raise refusal("planner", planner, ", ".join(PLANNERS))
    capacity = parse_budget("memory_budget", memory_budget)
    machine = find_target(target, threads=threads)

    def paged(graph: Graph) -> PagedModule:
        planned = plan_kernels(optimize(graph, exact, machine), machine, exact, DEFAULTS.decide)
        apart = replace(planned, pieces={}, views={})  # every tensor lies alone, so that it can move alone
        made = build_kernels(apart, machine, ObjectCache(cache_dir), DEFAULTS, progress or (lambda *done: None))
        return PagedModule(made, capacity, planner, folder, threads)

    graph = import_graph(model, shapes, fix)
    return PagedBySize(graph, paged) if graph.dims and not graph.counts else paged(graph)
