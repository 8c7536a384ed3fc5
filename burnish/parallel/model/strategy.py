"""Parallelization strategy: for every operation the degrees along its axes and a device for each task; text form.

Source: thesis-jia section 3.3 (configurations of the SOAP space). Text form, one operation a line::

    strategy of 3 operations on 4 devices
    conv1: relu float32[64, 32, 28, 28] = n:2 oc:2 on 0 1 2 3

Degrees stand by the axis' name, those of 1 are left out; devices stand for tasks in row-major order of the axes. The
word "recomputed" at the end: results are not kept for the backward pass, but computed again in it; then the first line
says how many bytes each device may use. A pipeline (1F1B) says in its first line how many micro-batches a batch has;
its operations are those of a micro-batch, and its stages are their devices::

    strategy of 3 operations on 4 devices, 8 micro-batches
    strategy of 3 operations on 4 devices, 16000000000 bytes each
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from burnish.errors import PlanError
from burnish.parallel.model.machine import DeviceCluster
from burnish.parallel.model.operations import Operation, OperationGraph


def part(extent: int, degree: int, number: int) -> tuple[int, int]:
    """First and one past the last index of a part: parts differ by at most one element."""
    return number * extent // degree, (number + 1) * extent // degree


@dataclass(frozen=True)
class Configuration:
    """Degrees along an operation's axes, and the devices of its tasks, row-major over the axes.

    ``recompute``: whether its results are dropped after the forward pass and computed again for the backward one.
    """

    degrees: tuple[int, ...]
    devices: tuple[int, ...]
    recompute: bool = False

    def task(self, number: int) -> tuple[int, ...]:
        """The part along each axis that a task computes."""
        parts: list[int] = []
        for degree in reversed(self.degrees):
            number, k = divmod(number, degree)
            parts.append(k)
        return tuple(reversed(parts))

    def box(self, op: Operation, number: int) -> tuple[tuple[int, int], ...]:
        """The interval along each axis that a task computes."""
        parts = zip(op.axes, self.degrees, self.task(number), strict=True)
        return tuple(part(axis.extent, degree, k) for axis, degree, k in parts)

    def check(self, op: Operation, machine: DeviceCluster) -> None:
        """Raises PlanError where the configuration does not fit the operation or the machine."""
        axes = ", ".join(f"{a.name} 1 to {a.extent}" for a in op.axes) or "none"
        fits = len(self.degrees) == len(op.axes) and all(
            1 <= degree <= axis.extent for degree, axis in zip(self.degrees, op.axes, strict=True)
        )
        if not fits:
            raise PlanError(f"operation '{op.name}': degrees {list(self.degrees)}; allowed: {axes}")
        if len(self.devices) != prod(self.degrees):
            raise PlanError(
                f"operation '{op.name}': {len(self.devices)} devices for degrees {list(self.degrees)}; allowed: "
                f"one for each of {prod(self.degrees)} tasks"
            )
        wrong = [d for d in self.devices if not 0 <= d < machine.size]
        if wrong:
            raise PlanError(f"operation '{op.name}': device {wrong[0]}; allowed: 0 to {machine.size - 1}")


@dataclass(frozen=True)
class Strategy:
    """Parallelization strategy: a configuration for every operation of a model, by the operation's name.

    ``micro_batches``: of a pipeline, whose operations are those of a micro-batch; None for none. ``memory``: bytes of
    each device, within which results are recomputed; None where all are kept.
    """

    configurations: Mapping[str, Configuration]
    micro_batches: int | None = None
    memory: int | None = None

    def check(self, model: OperationGraph, machine: DeviceCluster) -> None:
        """Raises PlanError unless it is for exactly the operations of the model and devices of the machine."""
        names = {op.name for op in model.operations}
        missing, more = sorted(names - self.configurations.keys()), sorted(self.configurations.keys() - names)
        if missing or more:
            words = f"no operation '{missing[0]}'" if missing else f"operation '{more[0]}'"
            raise PlanError(f"strategy of another model: {words}; allowed: exactly the model's {len(names)} operations")
        for op in model.operations:
            self.configurations[op.name].check(op, machine)

    def text(self, model: OperationGraph, machine: DeviceCluster) -> str:
        """The strategy as text that :func:`parse_strategy` reads back."""
        self.check(model, machine)
        head = f"strategy of {len(model.operations)} operations on {machine.size} devices"
        head += "" if self.micro_batches is None else f", {self.micro_batches} micro-batches"
        lines = [head + ("" if self.memory is None else f", {self.memory} bytes each")]
        for op in model.operations:
            chosen = self.configurations[op.name]
            degrees = [f"{a.name}:{n}" for a, n in zip(op.axes, chosen.degrees, strict=True) if n > 1]
            words = " ".join(
                [*(degrees or ["whole"]), "on", *map(str, chosen.devices), *["recomputed"] * chosen.recompute]
            )
            lines.append(f"{op.name}: {described(op)} = {words}")
        return "\n".join(lines) + "\n"


def described(op: Operation) -> str:
    """The operators of an operation and the type of its result: what a strategy's line is held against."""
    return f"{'+'.join(node.op for node in op.nodes)} {op.types[op.outputs[0]]}"


def resized(strategy: Strategy, model: OperationGraph, other: OperationGraph) -> Strategy:
    """A strategy for ``model`` as one for ``other``, the same model with other extents.

    An axis that is too short for its degree, or has gone, is split less, and the first devices along it do the work; an
    operation that ``model`` has not is computed on all devices of the strategy, by samples. Raises PlanError for a
    pipeline, whose micro-batches are of one size.
    """
    if strategy.micro_batches is not None:
        raise PlanError("a pipeline for other extents; allowed: splits")
    every = sorted({device for chosen in strategy.configurations.values() for device in chosen.devices})
    found = {}
    for op in other.operations:
        chosen = strategy.configurations.get(op.name)
        if chosen is None:
            found[op.name] = split(op, {"sample": len(every)}, every)
            continue
        axes = model.operations[model.index[op.name]].axes
        here = {(axis.name, axis.dim): axis.extent for axis in op.axes}
        most = [min(n, here.get((a.name, a.dim), 1)) for a, n in zip(axes, chosen.degrees, strict=True)]
        degrees = {(a.name, a.dim): n for a, n in zip(axes, most, strict=True)}
        tasks = [n for n in range(len(chosen.devices)) if all(k < m for k, m in zip(chosen.task(n), most, strict=True))]
        devices = tuple(chosen.devices[n] for n in tasks)
        own = tuple(degrees.get((axis.name, axis.dim), 1) for axis in op.axes)
        found[op.name] = Configuration(own, devices, chosen.recompute)
    return Strategy(found, None, strategy.memory)


_HEAD = re.compile(
    r"strategy of (?P<operations>\d+) operations on (?P<devices>\d+) devices"
    r"(?:, (?P<batches>[1-9]\d*) micro-batches)?(?:, (?P<memory>[1-9]\d*) bytes each)?"
)
_LINE = re.compile(
    r"(?P<name>.+): (?P<what>\S+ \w+\[[^\]]*\]) = (?P<degrees>.+) on (?P<devices>[\d ]*\d)(?P<again> recomputed)?"
)


def micro_batches_of(text: str) -> int | None:
    """Number of micro-batches in a strategy's text, None for none: its model is that of one. Raises PlanError."""
    batches = _head(_lines(text))["batches"]
    return None if batches is None else int(batches)


def devices_of(text: str) -> int:
    """Number of devices that a strategy's text is for. Raises PlanError."""
    return int(_head(_lines(text))["devices"])


def _lines(text: str) -> list[tuple[int, str]]:
    return [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]


def _head(lines: list[tuple[int, str]]) -> re.Match[str]:
    head = _HEAD.fullmatch(lines[0][1]) if lines else None
    if head is None:
        found = lines[0][1] if lines else "nothing"
        raise PlanError(
            f"line 1: found '{found}'; allowed: strategy of N operations on P devices[, M micro-batches]"
            "[, B bytes each]"
        )
    return head


def parse_strategy(text: str, model: OperationGraph, machine: DeviceCluster) -> Strategy:
    """The strategy of a text. Raises PlanError naming the line, and refuses one of another model or machine."""
    lines = _lines(text)
    head = _head(lines)
    if int(head["devices"]) != machine.size:
        raise PlanError(f"strategy for {head['devices']} devices; allowed: {machine.size}, those of '{machine.name}'")
    found_ones: dict[str, Configuration] = {}
    for number, line in lines[1:]:
        name, configuration = _parse_line(line, number, model)
        if name in found_ones:
            raise PlanError(f"line {number}: operation '{name}' again; allowed: each once")
        found_ones[name] = configuration
    batches, memory = (None if head[word] is None else int(head[word]) for word in ("batches", "memory"))
    strategy = Strategy(found_ones, batches, memory)
    strategy.check(model, machine)
    return strategy


def _parse_line(line: str, number: int, model: OperationGraph) -> tuple[str, Configuration]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise PlanError(f"line {number}: found '{line}'; allowed: NAME: OPERATORS TYPE = AXIS:DEGREE … on DEVICE …")
    name = match["name"]
    if name not in model.index:
        raise PlanError(f"line {number}: strategy of another model: operation '{name}' is not in it")
    op = model.operations[model.index[name]]
    if match["what"] != described(op):
        raise PlanError(f"line {number}: operation '{name}' is {match['what']}; the model's is {described(op)}")
    degrees = dict.fromkeys((axis.name for axis in op.axes), 1)
    for word in match["degrees"].split():
        axis, _, degree = word.partition(":")
        if word == "whole":
            continue
        if axis not in degrees or not degree.isdigit():
            raise PlanError(
                f"line {number}: operation '{name}', '{word}'; allowed: AXIS:DEGREE of {', '.join(degrees)}"
            )
        degrees[axis] = int(degree)
    return name, Configuration(tuple(degrees.values()), tuple(map(int, match["devices"].split())), bool(match["again"]))


# --- configurations ---------------------------------------------------------------------------------------------------


def placed(degrees: Iterable[int], first: int = 0, stride: int = 1) -> Configuration:
    """Tasks on devices ``first``, ``first + stride``…, in order."""
    degrees = tuple(degrees)
    return Configuration(degrees, tuple(first + stride * k for k in range(prod(degrees))))


def split(op: Operation, roles: Mapping[str, int], devices: Iterable[int]) -> Configuration:
    """The operation split along the longest axis of each role by a degree, on devices in order.

    Where the operation has no such axis, or one that is too short, fewer devices are used: the first ones.
    """
    degrees = [1] * len(op.axes)
    for role, degree in roles.items():
        axes = [i for i, axis in enumerate(op.axes) if axis.role == role]
        if axes:
            longest = max(axes, key=lambda i: op.axes[i].extent)
            degrees[longest] = min(degree, op.axes[longest].extent)
    chosen = tuple(devices)
    return Configuration(tuple(degrees), chosen[: prod(degrees)])
