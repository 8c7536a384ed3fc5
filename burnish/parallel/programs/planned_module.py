"""Module of a plan: a model or a step of training on several devices at once, called like the module of the whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar
from weakref import finalize

import numpy as np

from burnish.comm.local import TIMEOUT, WorkerThreads
from burnish.comm.protocol import Comm
from burnish.driver.kept_sizes import KeptSizes
from burnish.driver.torch_module import TorchCall
from burnish.graph.graph import Graph
from burnish.graph.specialize import graph_at
from burnish.machines.target import Target
from burnish.parallel.programs.execute import RankStep
from burnish.parallel.programs.plans import Stages, TensorSplits
from burnish.parallel.programs.ranks import Settings, rank_programs
from burnish.runtime.arguments import Arguments
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.callable import CompiledBase, ProfileRow
from burnish.runtime.devices import device_for
from burnish.runtime.executable import Executable
from burnish.runtime.integers import check_integers, known_integers
from burnish.runtime.module import Module
from burnish.runtime.sized import bind, hints
from burnish.runtime.state import ModuleStates
from burnish.runtime.steps import TensorSpec
from burnish.train.step import Train, noted_indices, noted_labels, training_graph


@dataclass(frozen=True, eq=False)
class ModelToPlace:
    """Model whose programs are made by size: its ``graph``, with open dimensions or without, and how it is trained, if
    it is. ``place``: the splits, or the stages of a pipeline, of the graph at some sizes, over ``devices`` devices.
    """

    graph: Graph
    train: Train | None
    place: Callable[[Graph], TensorSplits | Stages]
    devices: int

    def executables(self, sizes: Mapping[str, int], target: Target, settings: Settings) -> list[Executable]:
        """One executable a device for these values of the dimensions. Raises PlanError, UnsupportedOperator."""
        graph = graph_at(self.graph, sizes)
        return rank_programs(graph, self.train, self.place(graph), self.devices, target, settings).executables()


class PlannedModule(CompiledBase):
    """Planned module: a model or step of training by a plan, on threads of this process, one for each of its devices.

    Programs are compiled for each combination of sizes when it comes first, with the plan's strategy for these sizes;
    states go along from one to the next. After a device has failed, every call raises WorkerError.
    ``device_memory``: bytes of each device by use, of the sizes called last.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> with bn.plan(graph, devices="host:2", seconds=0.1).compile() as model:
    ...     model(np.ones((2, 3), "f4")), len(model.device_memory)
    (array([3., 3.], dtype=float32), 2)
    """

    unsupported: ClassVar[Mapping[str, str]] = {
        "save": "Plan.save, which keeps the strategy, to be compiled where it will run"
    }

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __init__(
        self,
        model: ModelToPlace,
        target: Target,
        settings: Settings,
        threads: int = 1,
        timeout: float = TIMEOUT,
        call: TorchCall | None = None,
    ) -> None:
        """Compiles for the hints of the dimensions. ``call``: of a network of PyTorch, whose arguments calls take."""
        whole = model.graph if model.train is None else training_graph(model.graph, model.train)
        after = {state.output for state in whole.states.values()}
        self.inputs = tuple(_spec(whole, name) for name in whole.inputs if name not in whole.states)
        self.outputs = tuple(_spec(whole, name) for i, name in enumerate(whole.outputs) if i not in after)
        self._model, self._target, self._call = model, target, call
        self._threads = threads
        self._arguments = Arguments(self.inputs, {})
        labels = [] if model.train is None else noted_labels(model.graph, model.train)
        noted = {"indices": noted_indices(model.graph), "labels": labels}
        self._integers = known_integers(noted, len(self.inputs))
        self._lock = threading.RLock()
        self._known = KeptSizes(
            model.graph.dims, lambda sizes: self._steps(model.executables(sizes, target, settings)), _close
        )
        first = hints(model.graph.dims)
        made = model.executables(first, target, settings)  # before there are threads: it may be refused
        self._workers = WorkerThreads(model.devices, timeout)
        finalize(self, self._workers.dismiss)
        self._ranks = self._steps(made)
        self._known.put(first, self._ranks)
        types = {spec.name: (spec.shape, numpy_dtype(spec.dtype)) for spec in self._ranks[0].states}
        self.state = ModuleStates(types, self._read, self._write)

    @property
    def states(self) -> tuple[TensorSpec, ...]:
        """Names, shapes and dtypes of the states of the whole."""
        return self._ranks[0].states

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The result, or the tuple of several. Raises InputError, and WorkerError where a device failed."""
        if self._call is not None:
            return self._call.run(self._computed, args, kwargs)
        found = self._computed(self._arguments.bind(args, kwargs))
        return found[0] if len(found) == 1 else tuple(found)

    def _computed(self, given: Sequence[Any]) -> Sequence[np.ndarray]:
        arrays = self._accepted(given)
        with self._lock:
            ranks = self._of(arrays)
            found = self._workers.run(lambda comm: ranks[comm.rank](*arrays))[0]
        return found if isinstance(found, tuple) else (found,)

    def _accepted(self, given: Sequence[Any]) -> list[np.ndarray]:
        """The arguments as arrays, before any device is called. Raises InputError."""
        arrays = self._arguments.arrays(given, None)
        check_integers(self._integers, [spec.name for spec in self.inputs], arrays)
        return arrays

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by use, of all devices together, for the sizes called last."""
        found: dict[str, int] = {}
        for each in self.device_memory:
            for use, nbytes in each.items():
                found[use] = found.get(use, 0) + nbytes
        return found

    @property
    def device_memory(self) -> tuple[dict[str, int], ...]:
        """Bytes of each device by use, for the sizes called last."""
        return tuple(step.memory for step in self._ranks)

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """Time of each step on each device, messages among them, the device before the node's name."""
        given = self._call.flat(args, kwargs) if self._call is not None else self._arguments.bind(args, kwargs)
        arrays = self._accepted(given)
        with self._lock:
            ranks = self._of(arrays)
            found = self._workers.run(lambda comm: ranks[comm.rank].profile(*arrays, repeat=repeat))
        whole = sum(row.microseconds for rows in found for row in rows) or 1.0
        return [
            replace(row, node=f"{rank}: {row.node}", share=row.microseconds / whole)
            for rank, rows in enumerate(found)
            for row in rows
        ]

    def _of(self, arrays: Sequence[np.ndarray]) -> list[RankStep]:
        """The programs for inputs of these sizes, compiled if they are new, with the states as they are now."""
        found = self._known.at(bind(self.inputs, [array.shape for array in arrays]))
        if found is not self._ranks:
            before, ranks = self._ranks, found
            self._workers.run(lambda comm: ranks[comm.rank].take_states(before[comm.rank]))
            self._ranks = found
        return found

    def _steps(self, made: Sequence[Executable]) -> list[RankStep]:
        found: list[RankStep] = self._workers.run(partial(self._loaded, made))
        return found

    def _loaded(self, made: Sequence[Executable], comm: Comm) -> RankStep:
        executable = made[comm.rank]
        device = device_for(self._target.machine, executable.target)
        return RankStep(Module(executable, self._threads, comm=comm, device=device), comm)

    def _read(self, name: str) -> np.ndarray:
        with self._lock:
            ranks = self._ranks
            found: np.ndarray = self._workers.run(lambda comm: ranks[comm.rank].state[name])[0]
            return found

    def _write(self, name: str, value: np.ndarray) -> None:
        with self._lock:
            for step in self._ranks:
                step.state[name] = value

    def _release(self) -> None:
        self._workers.close()
        self._known.close()

    def _facts(self) -> list[str]:
        """Facts for ``repr``."""
        return [
            f"{self._model.devices} devices",
            f"{len(self._known)} sizes compiled" if self._model.graph.dims else "",
        ]


def _close(steps: Sequence[RankStep]) -> None:
    for step in steps:
        step.close()


def _spec(graph: Graph, name: str) -> TensorSpec:
    return TensorSpec(name, graph.types[name].shape, graph.types[name].dtype)
