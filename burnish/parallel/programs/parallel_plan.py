"""Plan of training on many devices: a strategy, and what is predicted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from burnish.graph.graph import Graph
from burnish.parallel.model.machine import DeviceCluster
from burnish.parallel.model.operations import OperationGraph
from burnish.parallel.model.strategy import Strategy
from burnish.parallel.programs.plans import Stages, TensorSplits, splits_of, stages_of
from burnish.parallel.simulate.baselines import data_parallel
from burnish.parallel.simulate.bound import LowerBound
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Plan:
    """Parallel plan: a strategy for a model on a machine, and the predictions for it.

    ``milliseconds``: of a simulated step; ``baselines``: those of other strategies by name, inf where one does not fit
    the devices' memory. ``considered``: the milliseconds of every alternative, splits with and without recomputation
    and a pipeline, or why there is none; ``name``: the one that it is. ``bound``: what no splits of the space fall
    below; None for a pipeline, and where it was not asked for. ``graph``: the whole model; ``model`` is that of a
    micro-batch for a pipeline. ``measured``: milliseconds of a step of the best splits, the best pipeline and data
    parallelism, if they were timed; the fastest is the strategy. ``allocated``: bytes that each device's program
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
        told = [f"{name} {v:.3f} ms" if isinstance(v, float) else f"{name}: {v}" for name, v in self.considered.items()]
        return f"{self.name} (considered: {'; '.join(told)})"

    @property
    def timeline(self) -> Timeline:
        """Tasks and transfers of the simulated step."""
        return self.simulator.timeline(self.choice)

    @property
    def placement(self) -> TensorSplits | Stages:
        """Placement that programs of devices are made from."""
        return (stages_of if self.is_pipeline else splits_of)(self.model, self.strategy)

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
