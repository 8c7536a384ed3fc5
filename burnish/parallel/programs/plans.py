"""Placements of strategies, from which programs are made: splits of tensors, or the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from burnish.errors import PlanError
from burnish.loops.expr import Reduce
from burnish.parallel.model.operations import Operation, OperationGraph
from burnish.parallel.model.placement import TensorSplit
from burnish.parallel.model.strategy import Configuration, Strategy
from burnish.parallel.model.values import reads_of


@dataclass(frozen=True)
class TensorSplits:
    """``splits`` of tensors by name; ``inner``: tensors that each task computes for itself, as far as it needs them.

    ``memory``: bytes of each device, within which its program recomputes what does not fit; None: it keeps everything.
    """

    splits: Mapping[str, TensorSplit]
    inner: frozenset[str] = frozenset()
    memory: int | None = None


@dataclass(frozen=True)
class Stages:
    """A pipeline: the number of the stage of every tensor that the model computes, the devices of every stage, each of
    which has a part of every micro-batch (equally many in each stage), and the number of micro-batches. ``memory``:
    bytes of each device, within which its program recomputes what does not fit; None: it keeps everything.
    """

    stage: Mapping[str, int]
    devices: tuple[tuple[int, ...], ...]
    micro_batches: int
    memory: int | None = None

    @property
    def replicas(self) -> int:
        """Devices of a stage."""
        return len(self.devices[0])


def splits_of(model: OperationGraph, strategy: Strategy) -> TensorSplits:
    """The splits of a strategy: of every operation's results, and of what it computes on the way.

    What has the shape of the result is split like it, element by element; of the rest each task computes its own.
    Raises PlanError for a strategy that recomputes but does not say how much memory there is.
    """
    splits: dict[str, TensorSplit] = {}
    inner: set[str] = set()
    for op in model.operations:
        chosen = strategy.configurations[op.name]
        check_recomputed(op, strategy)
        result = op.types[op.outputs[0]].shape
        for node in op.nodes:
            for name in node.outputs:
                if name in op.outputs or op.types[name].shape == result:
                    splits[name] = _split(op, chosen, name, name == op.outputs[0])
                else:
                    inner.add(name)
    return TensorSplits(splits, frozenset(inner), strategy.memory)


def check_recomputed(op: Operation, strategy: Strategy) -> None:
    """Raises PlanError for an operation that is recomputed to fit a memory of which nothing is said."""
    if strategy.configurations[op.name].recompute and strategy.memory is None:
        raise PlanError(
            f"operation '{op.name}' is recomputed; allowed: with the bytes of each device in the first line"
        )


def _split(op: Operation, chosen: Configuration, name: str, last: bool) -> TensorSplit:
    """The split of one tensor of an operation; of its last one also the terms of its sum."""
    degrees = [1] * len(op.types[name].shape)
    terms: tuple[int, ...] = ()
    parts = 1
    for axis, degree in zip(op.axes, chosen.degrees, strict=True):
        if axis.dim >= 0:
            degrees[axis.dim] = degree
        elif degree > 1 and last:
            terms, parts = _terms(op, axis.name, degree), degree
    devices = chosen.devices
    cut = next((d for a, d in zip(op.axes, chosen.degrees, strict=True) if a.dim < 0), 1)
    if parts == 1 and cut > 1:  # the summed axis is the last: the first term's devices
        devices = devices[::cut]
    return TensorSplit(tuple(degrees), devices, terms)


def _terms(op: Operation, name: str, degree: int) -> tuple[int, ...]:
    """Parts of each axis of the sum that an operation's last node is."""
    last = op.nodes[-1]
    known = reads_of(last, [op.types[n] for n in last.inputs])
    body = known.outputs[0].body
    assert isinstance(body, Reduce)
    return tuple(degree if name == f"{known.outputs[0].name}.{a.var.name}" else 1 for a in body.axes)


def stages_of(model: OperationGraph, strategy: Strategy) -> Stages:
    """The stages of a strategy for ``model``, that of a micro-batch.

    Raises PlanError, naming the operation, unless each is split by samples alone, over the devices of its stage, and
    reads nothing of a later stage.
    """
    for op in model.operations:
        check_recomputed(op, strategy)
        degrees = strategy.configurations[op.name].degrees
        if any(degree > 1 and axis.role != "sample" for axis, degree in zip(op.axes, degrees, strict=True)):
            raise PlanError(f"operation '{op.name}' of a pipeline is split; allowed: by samples alone")
    every_one = [strategy.configurations[op.name].devices for op in model.operations]
    devices = [*dict.fromkeys(each for each in every_one if len(each) == max(map(len, every_one)))]
    every = [device for each in devices for device in each]
    if len({*every}) != len(every):
        raise PlanError(f"stages on devices {[*map(list, devices)]}; allowed: no device twice")
    stage: dict[str, int] = {}
    for op in model.operations:
        chosen = strategy.configurations[op.name]
        own = [number for number, each in enumerate(devices) if {*chosen.devices} <= {*each}]
        earlier = max((stage[name] for name in op.inputs if name in stage), default=0)
        if not own or own[0] < earlier:
            found = f"operation '{op.name}' of a pipeline is on devices {list(chosen.devices)}"
            raise PlanError(f"{found}; allowed: those of stage {earlier} or a later one of {[*map(list, devices)]}")
        stage.update(dict.fromkeys((name for node in op.nodes for name in node.outputs), own[0]))
    return Stages(stage, tuple(devices), strategy.micro_batches or 1, strategy.memory)
