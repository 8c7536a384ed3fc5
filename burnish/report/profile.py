"""Profile of a compiled model: each kernel's time against its roofline bound, and what lies between kernels."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.machines.target import Target, target
from burnish.measure.comparison import seconds_of_a_call
from burnish.measure.roofline import bound
from burnish.runtime.host import obstacle
from burnish.runtime.module import Module

ROUNDS, CALLS = 5, 4  # of each, whole calls and runs of each step


@dataclass(frozen=True)
class ProfiledKernel:
    """A step of a call: microseconds that it takes, and at least needs of ``resource``; both None where no rates are
    known of what it does. ``group``: what it computes.
    """

    kernel: str
    node: str
    group: str
    template: str
    microseconds: float
    resource: str | None
    bound: float | None

    @property
    def reached(self) -> float | None:
        """Share of the time that the bound explains."""
        return None if self.bound is None or not self.microseconds else min(1.0, self.bound / self.microseconds)


@dataclass(frozen=True)
class ModelProfile:
    """The steps of a call in order, and the microseconds of a whole call."""

    kernels: tuple[ProfiledKernel, ...]
    call: float

    @property
    def attributed(self) -> float:
        """Share of a call's time that is its steps'; the rest lies between them."""
        return min(1.0, sum(k.microseconds for k in self.kernels) / self.call) if self.call else 1.0


def profile(module: Module, inputs: Mapping[str, np.ndarray]) -> ModelProfile:
    """Times every step of a call on ``inputs``, by name, and whole calls, medians of each; both change a model's state.

    Bounds are those of rates measured on this machine (once, in about a second).
    """
    calls, rounds = [], []
    for _ in range(ROUNDS):  # in turns, so that both see the same machine
        calls.append(seconds_of_a_call(module, inputs, CALLS))
        rounds.append(module.profile(repeat=CALLS, **inputs))
    described = {str(row["kernel"]): row for row in module.info.get("kernels", ())}
    rates = _rated(module)
    cold = rates is not None and module.memory["params"] > rates.l2_bytes
    rows = []
    for number, row in enumerate(rounds[0]):
        microseconds = statistics.median(each[number].microseconds for each in rounds)
        own: Mapping[str, Any] = described.get(row.kernel, {})
        least = bound(own, str(own["template"]), rates, cold) if rates is not None and "flops" in own else None
        rows.append(
            ProfiledKernel(
                row.kernel, row.node, str(own.get("group", row.node)), str(own.get("template", "")), microseconds,
                least.resource if least else None, least.microseconds if least else None,
            )
        )  # fmt: skip
    return ModelProfile(tuple(rows), 1e6 * statistics.median(calls))


def _rated(module: Module) -> Target | None:
    """This machine with measured rates and the module's threads; None for a model that another device runs."""
    if obstacle(module.executable.target):
        return None
    return target("cpu", rates="measured", threads=module.threads)


def chrome_trace(found: ModelProfile, name: str) -> str:
    """A call as Chrome trace events (for Perfetto or chrome://tracing): the steps one after another, as they ran.

    Source: "Trace Event Format", complete events; times in microseconds.
    """
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": name}},
        {"name": name, "ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": found.call, "cat": "call"},
    ]
    at = 0.0
    for kernel in found.kernels:
        facts = {
            "kernel": kernel.kernel, "computes": kernel.group, "template": kernel.template,
            "bound by": kernel.resource, "bound": kernel.bound,
        }  # fmt: skip
        events.append(
            {
                "name": kernel.node or kernel.kernel, "ph": "X", "pid": 1, "tid": 2, "ts": at,
                "dur": kernel.microseconds, "cat": kernel.template or "step", "args": facts,
            }
        )  # fmt: skip
        at += kernel.microseconds
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, indent=1)
