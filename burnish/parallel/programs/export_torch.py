"""Export of a strategy as placements of PyTorch's DTensor, where these can say it, and what they cannot say.

A mesh of two devices a dimension says every power of two. DTensor gives an operator the whole mesh; an operation on
other devices, with several tasks on one, or whose parts need a halo, has no placement (and convolutions split by
channels or pixels get wrong results from DTensor of PyTorch 2.13, labelled as replicated: they are refused here).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.ops.reads import volume
from burnish.parallel.model.machine import DeviceCluster
from burnish.parallel.model.operations import Operation, OperationGraph
from burnish.parallel.model.strategy import Configuration, Strategy

REPLICATE = "Replicate()"


@dataclass(frozen=True)
class Annotations:
    """``mesh``: extents. By operation the placements of its result, by name those of parameters; a word for each
    dimension of the mesh. ``refused``: operations that have none, and why. ``conflicts``: parameters that operations
    would place differently.
    """

    mesh: tuple[int, ...]
    results: Mapping[str, tuple[str, ...]]
    parameters: Mapping[str, tuple[str, ...]]
    refused: Mapping[str, str]
    conflicts: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """JSON form: what ``torch.distributed.tensor.distribute_tensor`` is given."""
        return {
            "mesh": [*self.mesh], "results": {k: [*v] for k, v in self.results.items()},
            "parameters": {k: [*v] for k, v in self.parameters.items()}, "refused": dict(self.refused),
            "conflicts": dict(self.conflicts),
        }  # fmt: skip

    def statement(self) -> str:
        """Summary of the annotations, and of what they cannot express."""
        sharded = [name for name, own in self.parameters.items() if any(word != REPLICATE for word in own)]
        lines = [
            f"{len(self.results)} of {len(self.results) + len(self.refused)} operations have DTensor placements on a "
            f"mesh of {' x '.join(map(str, self.mesh))}; {len(sharded)} of {len(self.parameters)} parameters are "
            "sharded, the others replicated (fully_shard of FSDP may shard these over the replicas at rest)",
        ]
        reasons: dict[str, list[str]] = {}
        for name, why in {**self.refused, **self.conflicts}.items():
            reasons.setdefault(why, []).append(name)
        lines += [f"not expressed: {why}: {', '.join(names[:6])}{', …' * (len(names) > 6)}"
                  for why, names in reasons.items()]  # fmt: skip
        return "\n".join(lines)


def torch_annotations(model: OperationGraph, machine: DeviceCluster, strategy: Strategy) -> Annotations:
    """The placements of a strategy. Every operation is in ``results`` or in ``refused``."""
    results: dict[str, tuple[str, ...]] = {}
    parameters: dict[str, tuple[str, ...]] = {}
    refused: dict[str, str] = {}
    conflicts: dict[str, str] = {}
    bits = machine.size.bit_length() - 1
    for op in model.operations:
        chosen = strategy.configurations[op.name]
        axes = _axes_of_mesh(chosen, machine.size)
        if machine.size != 1 << bits:
            axes = "the number of devices is no power of two"
        if isinstance(axes, list):
            axes = _halo(op, chosen) or axes
        if isinstance(axes, str):
            refused[op.name] = axes
            continue
        results[op.name] = tuple(_word(op, axis) for axis in axes)
        for name in op.parameters:
            own = _parameter(op, name, axes)
            if parameters.setdefault(name, own) != own:
                conflicts[name] = "operations that share a parameter place it differently"
    return Annotations((2,) * bits, results, parameters, refused, conflicts)


def _axes_of_mesh(chosen: Configuration, size: int) -> list[int] | str:
    """The operation's axis that each dimension of the mesh splits; or why there is no such mesh."""
    if len({*chosen.devices}) < len(chosen.devices):
        return "several tasks on one device"
    if len(chosen.devices) != size:
        return "a set of devices of its own"
    steps = [1]
    for degree in reversed(chosen.degrees[1:]):
        steps.insert(0, steps[0] * degree)
    axes = [-1] * (size.bit_length() - 1)
    for axis, (degree, step) in enumerate(zip(chosen.degrees, steps, strict=True)):
        if degree & (degree - 1):
            return "a degree that is no power of two"
        for bit in range(degree.bit_length() - 1):
            moved = chosen.devices[step << bit] ^ chosen.devices[0]
            if moved & (moved - 1) or not moved or axes[len(axes) - moved.bit_length()] >= 0:
                return "an order of devices that no mesh has"
            axes[len(axes) - moved.bit_length()] = axis
    ordered = all(_device(k, chosen, steps) == d for k, d in enumerate(chosen.devices))
    return axes if ordered and chosen.devices[0] == 0 else "an order of devices that no mesh has"


def _device(task: int, chosen: Configuration, steps: list[int]) -> int:
    """The device that a task has by the devices of the tasks that differ from the first in one bit."""
    found = 0
    for degree, step in zip(chosen.degrees, steps, strict=True):
        part = task // step % degree
        for bit in range(degree.bit_length() - 1):
            if part >> bit & 1:
                found ^= chosen.devices[step << bit]
    return found


def _word(op: Operation, axis: int) -> str:
    own = op.axes[axis]
    return "Partial()" if own.dim < 0 else f"Shard({own.dim})"


def _parameter(op: Operation, name: str, axes: list[int]) -> tuple[str, ...]:
    """DTensor placement of a parameter: the dimension that each axis splits, if it splits one."""
    spans = op.full(1 + len(op.axes))
    for m, axis in enumerate(op.axes):
        spans[m][1][1 + m] = axis.extent // 2
    region = op.regions(spans)[name]
    words = []
    for number in axes:
        lengths = [
            sum((box.high[d] - box.low[d] for box in region), np.zeros(1 + len(op.axes), np.int64))
            for d in range(region[0].low.shape[0])
        ]
        cut = [d for d, length in enumerate(lengths) if length[1 + number] < length[0]]
        words.append(f"Shard({cut[0]})" if cut else REPLICATE)
    return tuple(words)


def _halo(op: Operation, chosen: Configuration) -> str:
    """Halo: why parts of an operation cannot be DTensor's, since along an axis two halves read more than the whole of
    an input.
    """
    for m, axis in enumerate(op.axes):
        if chosen.degrees[m] == 1 or axis.dim < 2:
            continue
        spans = op.full(3)
        spans[m][1][1] = spans[m][0][2] = axis.extent // 2
        for name, region in op.regions(spans).items():
            held = volume(region)
            if name in op.inputs and np.all(held[1:] < held[0]) and held[1] + held[2] > held[0]:
                return "parts that need a halo"
    return ""
