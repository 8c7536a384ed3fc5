"""Messages among the steps of an executable: sent when they are computed, waited for where they are first read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from burnish.errors import PlanError
from burnish.parallel.programs.program import DeviceProgram
from burnish.runtime.executable import Collective, Executable, Slot, Step, Wait


@dataclass(frozen=True)
class Points:
    """Message positions among steps: the number of the last that writes each output, of the first that reads each
    input; None where no step does.
    """

    written: Sequence[int | None]
    read: Sequence[int | None]


def with_messages(
    executable: Executable, program: DeviceProgram, points: Points, facts: Mapping[str, Any]
) -> Executable:
    """The executable of a device's program with steps that send and receive.

    Receipts are posted at the begin of a step of training, and end where they are waited for; what is sent stays in the
    memory of an output, so that computation goes on at once. The last steps see to it that all has gone out. ``facts``
    are what an artifact remembers as ``info["rank"]``.
    """
    next_values = {state.output for state in program.graph.states.values()}  # of which one may be sent as well
    plain = [name for number, name in enumerate(program.graph.outputs) if number not in next_values]
    outputs = {name: i for i, name in enumerate(plain)}
    inputs = {name: i for i, name in enumerate(n for n in program.graph.inputs if n not in program.graph.states)}
    count = len(executable.steps)
    after: dict[int, list[Collective]] = {}
    for message in program.sends:
        number = outputs[message.tensor]
        spec = executable.outputs[number]
        sending = Collective("send", "", Slot("output", number, 0, spec.nbytes), None, spec, message.tensor, None,
                          message.peer, message.tag)  # fmt: skip
        at = points.written[number]
        after.setdefault(count - 1 if at is None else at, []).append(sending)
    steps: list[Step] = []
    before: dict[int, list[tuple[int, str]]] = {}
    for message in program.receipts:
        number = inputs[message.tensor]
        spec = executable.inputs[number]
        at = points.read[number]
        before.setdefault(count if at is None else at, []).append((len(steps), message.tensor))
        steps.append(Collective("recv", "", None, Slot("input", number, 0, spec.nbytes), spec, message.tensor, None,
                                message.peer, message.tag))  # fmt: skip
    under_way = []
    if not executable.steps:
        after = {-1: [s for found in after.values() for s in found]}
        under_way += _append(steps, after.get(-1, []))
    moved: list[int] = []  # where the steps are now
    for number, step in enumerate(executable.steps):
        steps += [Wait(begun, node) for begun, node in before.get(number, [])]
        moved.append(len(steps))
        steps.append(step)
        under_way += _append(steps, after.get(number, []))
    steps += [Wait(begun, node) for begun, node in before.get(count, [])]
    steps += [Wait(begun) for begun in under_way]
    concurrent = tuple(group.moved(moved) for group in executable.concurrent)
    info = {**executable.info, "rank": dict(facts)}
    return replace(executable, steps=tuple(steps), concurrent=concurrent, info=info)


def _append(steps: list[Step], more: Sequence[Collective]) -> list[int]:
    """Appends steps; their numbers."""
    first = len(steps)
    steps.extend(more)
    return [*range(first, len(steps))]


def check_messages(executables: Sequence[Executable]) -> None:
    """Raises PlanError if devices that run these steps would wait for each other."""
    at = [0] * len(executables)
    sent: set[int] = set()
    moving = True
    while moving:
        moving = False
        for rank, executable in enumerate(executables):
            while at[rank] < len(executable.steps) and not _waits(executable, at[rank], sent):
                step = executable.steps[at[rank]]
                if isinstance(step, Collective) and step.operation == "send":
                    sent.add(step.tag)
                at[rank] += 1
                moving = True
    stuck = [rank for rank, executable in enumerate(executables) if at[rank] < len(executable.steps)]
    if stuck:
        raise PlanError(f"programs: the steps of devices {stuck} wait for each other")


def _waits(executable: Executable, number: int, sent: set[int]) -> bool:
    """Whether a step waits for a message that has not been sent."""
    step = executable.steps[number]
    begun = executable.steps[step.step] if isinstance(step, Wait) else None
    return isinstance(begun, Collective) and begun.operation == "recv" and begun.tag not in sent
