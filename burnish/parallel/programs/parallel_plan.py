"""Plan of training or inference on many devices: a strategy, and what is predicted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from burnish.base.arguments import refusal
from burnish.comm.local import TIMEOUT
from burnish.driver.torch_module import TorchCall
from burnish.errors import PlanError
from burnish.frontend.torch.signature import CallSignature
from burnish.graph.graph import Graph
from burnish.machines.target import Target
from burnish.machines.target import target as find_target
from burnish.parallel.model.machine import DeviceCluster
from burnish.parallel.model.operations import OperationGraph, operations
from burnish.parallel.model.strategy import Strategy, resized
from burnish.parallel.programs.micro import micro_graph
from burnish.parallel.programs.planned_module import ModelToPlace, PlannedModule
from burnish.parallel.programs.plans import Stages, TensorSplits, splits_of, stages_of
from burnish.parallel.programs.ranks import Settings
from burnish.parallel.simulate.baselines import data_parallel
from burnish.parallel.simulate.bound import LowerBound
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.timeline import Timeline
from burnish.train.step import Train


@dataclass(frozen=True, eq=False)
class Plan:
    """Parallel plan: a strategy for a model on a machine, and the predictions for it.

    ``milliseconds``: of a simulated step; ``baselines``: those of other strategies by name, inf where one does not fit
    the devices' memory. ``considered``: the milliseconds of every alternative, splits with and without recomputation
    and a pipeline, or why there is none; ``name``: the one that it is. ``bound``: what no splits of the space fall
    below; None for a pipeline, and where it was not asked for. ``graph``: the whole model, at the
    hints of its dimensions where ``opened`` has such; ``model`` is that of a micro-batch for a pipeline. ``train``: how
    it is trained; None for inference. ``measured``: milliseconds of a step of the best splits, the best pipeline and
    data parallelism, if they were timed; the fastest is the strategy. ``allocated``: bytes that each device's program
    allocates on this machine's cores, where they are measured. ``slots``: arrays of the optimizer's state for each
    parameter.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> found = bn.plan(graph, devices="p100:1x2", seconds=0.1, pipelines=False)
    >>> isinstance(found, bn.Plan), found.text().split()[0], found.memory.shape
    (True, 'strategy', (2,))
    """

    graph: Graph
    model: OperationGraph
    machine: DeviceCluster
    strategy: Strategy
    simulator: Simulator
    choice: np.ndarray
    baselines: Mapping[str, float]
    bound: LowerBound | None
    stop_reason: str
    seconds: float
    trials: int
    considered: Mapping[str, float | str]
    name: str
    measured: Mapping[str, float] = field(default_factory=dict)
    allocated: tuple[int, ...] = ()
    slots: int = 2
    train: Train | None = None
    opened: Graph | None = None
    signature: CallSignature | None = None  # how a network of PyTorch is called

    def __repr__(self) -> str:
        return f"Plan({self.name} on {self.machine.name}: {self.milliseconds:.3f} ms a step, {self.stop_reason})"

    @cached_property
    def milliseconds(self) -> float:
        """Milliseconds of a simulated step."""
        return self.simulator.full(self.choice) / 1e6

    @property
    def gap(self) -> float | None:
        """(found − bound) / found."""
        return None if self.bound is None else self.bound.gap(self.milliseconds * 1e6)

    @property
    def is_data_parallel(self) -> bool:
        """Whether the strategy is plain data parallelism: nothing better was found."""
        return self.strategy == data_parallel(self.model, self.machine)

    @property
    def is_pipeline(self) -> bool:
        """Whether the strategy is a pipeline of micro-batches."""
        return self.strategy.micro_batches is not None

    @property
    def memory(self) -> np.ndarray:
        """Bytes that each device needs, as the search estimates them."""
        return (self.simulator.peak_memory if self.is_pipeline else self.simulator.memory)(self.choice, self.slots)

    @property
    def why(self) -> str:
        """Explanation of the plan: which alternative it is, and what was predicted of it and of the others, or why
        there is none.
        """
        times = [
            f"{name} {v:.3f} ms" if isinstance(v, float) else f"{name}: {v}" for name, v in self.considered.items()
        ]
        return f"{self.name} (considered: {'; '.join(times)})"

    @property
    def timeline(self) -> Timeline:
        """Tasks and transfers of the simulated step."""
        return self.simulator.timeline(self.choice)

    @property
    def placement(self) -> TensorSplits | Stages:
        """Placement that programs of devices are made from."""
        return (stages_of if self.is_pipeline else splits_of)(self.model, self.strategy)

    def placement_at(self, graph: Graph) -> TensorSplits | Stages:
        """Placement of the same model with other extents.

        Splits keep their degrees as far as the extents go. A pipeline keeps its stages, with as many micro-batches as
        divide the batch, at most the plan's; where its devices cannot share any, samples are split over them.
        Raises PlanError.
        """
        if {n: t.shape for n, t in graph.types.items()} == {n: t.shape for n, t in self.graph.types.items()}:
            return self.placement
        if self.strategy.micro_batches is None:
            other = self._operations(graph)
            return splits_of(other, resized(self.strategy, self.model, other))
        stages = stages_of(self.model, self.strategy)
        for count in range(self.strategy.micro_batches, 0, -1):
            try:
                micro_graph(graph, count * stages.replicas)
            except PlanError:
                continue
            return Stages(stages.stage, stages.devices, count, stages.memory)
        other = operations(graph, self.model.parameters)
        return splits_of(other, data_parallel(other, self.machine))

    def _operations(self, graph: Graph) -> OperationGraph:
        """The operations of the plan, of the same nodes of the model with other extents."""
        groups = [[node.outputs[0] for node in op.nodes] for op in self.model.operations]
        return operations(graph, self.model.parameters, groups)

    def compile(
        self,
        *,
        target: str | Target = "cpu",
        threads: int = 1,
        exact: bool = False,
        cache_dir: str | Path | None = None,
        timeout: float = TIMEOUT,
    ) -> PlannedModule:
        """The model, or its step of training, on as many threads of this process as the plan has devices, each with
        ``threads`` for its kernels.

        A thread waits ``timeout`` seconds for another. The other arguments are those of :func:`burnish.compile`. Raises
        PlanError, UnsupportedOperator, TargetError and ParameterError.
        """
        if self.train is not None and self.train.memory_budget is not None:
            budget = self.train.memory_budget
            raise refusal("memory_budget", budget, "None where a plan says what each device keeps")
        graph = self.graph if self.opened is None else self.opened
        model = ModelToPlace(graph, self.train, self.placement_at, self.machine.size)
        call = None if self.signature is None else TorchCall(self.signature, len(graph.outputs))
        settings = Settings(exact, cache_dir)
        return PlannedModule(model, find_target(target, threads=threads), settings, threads, timeout, call)

    def text(self) -> str:
        """The strategy as text, which :func:`burnish.fitting.planned.read_plan` and ``burnish train --plan`` read."""
        return self.strategy.text(self.model, self.machine)

    def save(self, path: str | Path) -> None:
        """Writes the text. Raises OSError."""
        Path(path).write_text(self.text(), encoding="utf-8")

    def as_json(self) -> dict[str, Any]:
        """The plan and what is predicted of it, as JSON."""
        moved, summed = self.simulator.bytes(self.choice)
        return {
            "machine": self.machine.name, "devices": self.machine.size, "operations": len(self.model.operations),
            "milliseconds": self.milliseconds, "data_parallel": self.is_data_parallel,
            "baselines": {name: None if np.isinf(ms) else ms for name, ms in self.baselines.items()},
            "pipeline": self.is_pipeline, "alternative": self.name, "considered": dict(self.considered),
            "bound": None if self.bound is None else self.bound.ns / 1e6, "gap": self.gap,
            "memory": [float(n) for n in self.memory], "limits": [float(d.memory) for d in self.machine.devices],
            "bytes": {"activations": moved, "gradients": summed},
            "search": {"seconds": self.seconds, "trials": self.trials, "stop_reason": self.stop_reason},
            "measured": dict(self.measured), "allocated": [*self.allocated], "strategy": self.text(),
        }  # fmt: skip
