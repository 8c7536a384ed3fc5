"""Learning-rate schedules: the factor of the learning rate at each step, computed by the step's own graph.

Steps are counted from 0: that many updates were made before. A schedule is a function of the count alone, so training
that goes on from a checkpoint goes on with the same rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from burnish.base.arguments import check_count, check_number, refusal
from burnish.errors import ParameterError
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import GraphBuilder

FLOAT = "float64"


class RateSchedule(Protocol):
    """Schedule of the learning rate."""

    def factor(self, b: GraphBuilder, step: str) -> str:
        """The name of what the rate is multiplied by; ``step`` is a float64 tensor of counts, from 0 on."""


@dataclass(frozen=True)
class StepDecay:
    """Step decay: the rate times ``factor`` after each ``every`` steps (PyTorch's StepLR).

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> step = bn.compile(graph, train=bn.Train("mse", bn.SGD(0.1), schedule=bn.StepDecay(1, 0.5)))
    >>> [round(float(step(np.ones((2, 3), "f4"), np.zeros(2, "f4"))), 3) for _ in range(4)]
    [9.0, 1.44, 0.706, 0.51]
    """

    every: int
    ratio: float = 0.1

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        check_count("StepDecay: every", self.every, 1)
        check_number("StepDecay: ratio", self.ratio, 0)

    def factor(self, b: GraphBuilder, step: str) -> str:
        """``ratio ** floor(step / every)``."""
        drops = b.add("floor", b.add("div", step, _number(b, self.every)))
        return b.add("pow", _number(b, self.ratio), drops)


@dataclass(frozen=True)
class CosineDecay:
    """Cosine decay (Loshchilov and Hutter 2017, no restarts): from 1 to ``least`` in ``steps``, and stays there.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> step = bn.compile(graph, train=bn.Train("mse", bn.SGD(0.1), schedule=bn.CosineDecay(2)))
    >>> [round(float(step(np.ones((2, 3), "f4"), np.zeros(2, "f4"))), 3) for _ in range(4)]
    [9.0, 1.44, 0.706, 0.706]
    """

    steps: int
    least: float = 0.0

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        check_count("CosineDecay: steps", self.steps, 1)
        check_number("CosineDecay: least", self.least, 0, 1)

    def factor(self, b: GraphBuilder, step: str) -> str:
        """``least + (1 - least) * (1 + cos(pi * done)) / 2``, where ``done`` is the share of ``steps``."""
        wave = b.add("cos", b.add("mul", _share(b, step, self.steps), _number(b, math.pi)))
        half = b.add("mul", b.add("add", wave, _number(b, 1.0)), _number(b, (1.0 - self.least) / 2))
        return b.add("add", half, _number(b, self.least))


@dataclass(frozen=True)
class LinearDecay:
    """Linear decay: from 1 to ``least`` in ``steps``, and stays there.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> step = bn.compile(graph, train=bn.Train("mse", bn.SGD(0.1), schedule=bn.LinearDecay(2)))
    >>> [round(float(step(np.ones((2, 3), "f4"), np.zeros(2, "f4"))), 3) for _ in range(4)]
    [9.0, 1.44, 0.706, 0.706]
    """

    steps: int
    least: float = 0.0

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        check_count("LinearDecay: steps", self.steps, 1)
        check_number("LinearDecay: least", self.least, 0, 1)

    def factor(self, b: GraphBuilder, step: str) -> str:
        """``1 - (1 - least) * done``, where ``done`` is the share of ``steps``."""
        fallen = b.add("mul", _share(b, step, self.steps), _number(b, 1.0 - self.least))
        return b.add("sub", _number(b, 1.0), fallen)


@dataclass(frozen=True)
class WarmUp:
    """Linear warm-up: from ``start`` to 1 in ``steps``, then the schedule ``after``, which counts from there on.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> step = bn.compile(graph, train=bn.Train("mse", bn.SGD(0.1), schedule=bn.WarmUp(2, bn.StepDecay(1))))
    >>> [round(float(step(np.ones((2, 3), "f4"), np.zeros(2, "f4"))), 3) for _ in range(4)]
    [9.0, 9.0, 4.41, 0.706]
    """

    steps: int
    after: RateSchedule | None = None
    start: float = 0.0

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        check_count("WarmUp: steps", self.steps, 1)
        check_number("WarmUp: start", self.start, 0, 1)
        check_schedule("WarmUp: after", self.after)

    def factor(self, b: GraphBuilder, step: str) -> str:
        """``start + (1 - start) * step / steps`` before ``steps``."""
        rise = b.add("mul", _share(b, step, self.steps), _number(b, 1.0 - self.start))
        risen = b.add("add", rise, _number(b, self.start))
        if self.after is None:
            return risen
        since = b.add("sub", step, _number(b, self.steps))
        then = self.after.factor(b, b.add("maximum", since, _number(b, 0)))
        return b.add("where", b.add("less", step, _number(b, self.steps)), risen, then)


def check_schedule(argument: str, found: object) -> None:
    """Raises ParameterError for what is no schedule and not None."""
    if found is not None and not callable(getattr(found, "factor", None)):
        raise refusal(argument, found, "a schedule, such as burnish.CosineDecay(1000), or None")


def factors(schedule: RateSchedule | None, steps: np.ndarray) -> np.ndarray:
    """The factors at these steps [N], from the schedule's own graph by the reference interpreter; float64 [N]."""
    counts = np.asarray(steps, np.float64)
    if schedule is None:
        return np.ones_like(counts)
    b = GraphBuilder()
    found = schedule.factor(b, b.input("step", counts.shape, FLOAT))
    graph = b.build(b.add("expand", found, shape=counts.shape) if b.types[found].shape != counts.shape else found)
    return evaluate(graph, {"step": counts})[graph.outputs[0]]


def parse_schedule(text: str, steps: int, warm_up: int = 0) -> RateSchedule | None:
    """A schedule over ``steps`` from its text: constant, step:EVERY[:RATIO], cosine[:LEAST], linear[:LEAST].

    The first ``warm_up`` steps warm up, the rest is the schedule's. Raises ParameterError.
    """
    name, *numbers = text.split(":")
    rest = max(steps - warm_up, 1)
    made: Mapping[str, Callable[..., RateSchedule | None]] = {
        "constant": lambda: None,
        "step": lambda every, ratio="0.1": StepDecay(int(every), float(ratio)),
        "cosine": lambda least="0": CosineDecay(rest, float(least)),
        "linear": lambda least="0": LinearDecay(rest, float(least)),
    }
    allowed = "constant, step:EVERY[:RATIO], cosine[:LEAST] or linear[:LEAST]"
    if name not in made:
        raise refusal("schedule", text, allowed)
    try:
        after = made[name](*numbers)
    except ParameterError:
        raise
    except (TypeError, ValueError):
        raise refusal("schedule", text, allowed) from None
    return WarmUp(warm_up, after) if warm_up else after


def _number(b: GraphBuilder, value: float) -> str:
    return b.constant(float(value), dtype=FLOAT)


def _share(b: GraphBuilder, step: str, steps: int) -> str:
    """The share of ``steps`` that is done, 1 at most."""
    return b.add("minimum", b.add("div", step, _number(b, steps)), _number(b, 1.0))
