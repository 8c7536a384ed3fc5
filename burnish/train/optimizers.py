"""Optimizers: the graph that makes a parameter's next value from its gradient; what they remember are states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from burnish.base.arguments import check_number, typed
from burnish.graph.graph import GraphBuilder


@dataclass(frozen=True)
class UpdateNames:
    """Names that all updates share: of the learning rate and of this step's number, from 1 on; float64 scalars.

    ``applied``: a scalar that says whether this call makes an update; None for always.
    """

    learning_rate: str
    step: str
    applied: str | None = None

    def remember(self, b: GraphBuilder, state: str, value: str) -> str:
        """Makes a state ``value`` if the update is applied; returns what it becomes, to compute with."""
        kept = value if self.applied is None else b.add("where", self.applied, value, state)
        b.update(state, kept)
        return kept


class Optimizer(Protocol):
    """Optimizer: a learning rate, which is a state of the step's graph, and the update of one."""

    @property
    def learning_rate(self) -> float:
        """The learning rate that training starts with."""

    def update(self, b: GraphBuilder, parameter: str, gradient: str, progress: UpdateNames) -> str:
        """The name of the parameter's next value; slots become states called ``parameter.slot``.

        They are updated by ``progress.remember``: not every call makes an update.
        """


@typed
@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: ``v = momentum * v + g``, ``w -= learning_rate * v``, as PyTorch has it.

    ``learning_rate``: the step size. ``momentum``: the share of the velocity that a step keeps. ``weight_decay``: the
    multiple of the parameter that is added to its gradient. ``nesterov``: looks ahead along the velocity.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> step = bn.compile(graph, train=bn.Train("mse", bn.SGD(0.1)))
    >>> [round(float(step(np.ones((2, 3), "f4"), np.zeros(2, "f4"))), 3) for _ in range(4)]
    [9.0, 1.44, 0.23, 0.037]
    """

    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        check_number("SGD: learning_rate", self.learning_rate, 0)
        check_number("SGD: momentum", self.momentum, 0, 1)
        check_number("SGD: weight_decay", self.weight_decay, 0)

    def update(self, b: GraphBuilder, parameter: str, gradient: str, progress: UpdateNames) -> str:
        """The next value. Slot: ``velocity``, with momentum."""
        gradient = _decayed(b, parameter, gradient, self.weight_decay)
        if self.momentum:
            velocity = _slot(b, parameter, "velocity")
            new = progress.remember(b, velocity, b.add("add", _scaled(b, velocity, self.momentum), gradient))
            gradient = b.add("add", gradient, _scaled(b, new, self.momentum)) if self.nesterov else new
        rate = _as(b, progress.learning_rate, b.types[parameter].dtype)
        return b.add("sub", parameter, b.add("mul", gradient, rate))


@typed
@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015); ``weight_decay`` times the parameter is added to its gradient.

    ``beta1``, ``beta2``: the shares of the running moments that a step keeps. ``epsilon``: added to the divisor.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> step = bn.compile(graph, train=bn.Train("mse", bn.Adam(0.1)))
    >>> [round(float(step(np.ones((2, 3), "f4"), np.zeros(2, "f4"))), 3) for _ in range(4)]
    [9.0, 7.29, 5.766, 4.43]
    """

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        kind = type(self).__name__
        check_number(f"{kind}: learning_rate", self.learning_rate, 0)
        check_number(f"{kind}: beta1", self.beta1, 0, 1)
        check_number(f"{kind}: beta2", self.beta2, 0, 1)
        check_number(f"{kind}: epsilon", self.epsilon, 0)
        check_number(f"{kind}: weight_decay", self.weight_decay, 0)

    def update(self, b: GraphBuilder, parameter: str, gradient: str, progress: UpdateNames) -> str:
        """The next value. Slots: ``first`` and ``second``, the running moments."""
        return self._moved(b, parameter, parameter, _decayed(b, parameter, gradient, self.weight_decay), progress)

    def _moved(self, b: GraphBuilder, parameter: str, start: str, gradient: str, progress: UpdateNames) -> str:
        """The parameter's next value, from ``start`` on."""
        dtype = b.types[parameter].dtype
        first, second = _slot(b, parameter, "first"), _slot(b, parameter, "second")
        mean = progress.remember(b, first, _mixed(b, first, gradient, self.beta1))
        square = progress.remember(b, second, _mixed(b, second, b.add("mul", gradient, gradient), self.beta2))
        size = b.add("div", progress.learning_rate, _bias(b, self.beta1, progress.step))
        root = b.add("sqrt", _bias(b, self.beta2, progress.step))
        spread = b.add("div", b.add("sqrt", square), _as(b, root, dtype))
        step = b.add("div", mean, b.add("add", spread, b.constant(self.epsilon, dtype=dtype)))
        return b.add("sub", start, b.add("mul", step, _as(b, size, dtype)))


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): parameters shrink by ``learning_rate *
    weight_decay``.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> step = bn.compile(graph, train=bn.Train("mse", bn.AdamW(0.1)))
    >>> [round(float(step(np.ones((2, 3), "f4"), np.zeros(2, "f4"))), 3) for _ in range(4)]
    [9.0, 7.274, 5.739, 4.396]
    """

    weight_decay: float = 0.01

    def update(self, b: GraphBuilder, parameter: str, gradient: str, progress: UpdateNames) -> str:
        """The next value. Slots: ``first`` and ``second``, the running moments."""
        dtype = b.types[parameter].dtype
        decay = _scaled(b, progress.learning_rate, self.weight_decay)
        kept = b.add("mul", parameter, _as(b, b.add("sub", b.constant(1.0, dtype="float64"), decay), dtype))
        return self._moved(b, parameter, kept, gradient, progress)


OPTIMIZERS: Mapping[str, type[SGD] | type[Adam]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def _as(b: GraphBuilder, scalar: str, dtype: str) -> str:
    return scalar if b.types[scalar].dtype == dtype else b.add("cast", scalar, to=dtype)


def _slot(b: GraphBuilder, parameter: str, name: str) -> str:
    t = b.types[parameter]
    return b.state(b.fresh(f"{parameter}.{name}"), np.zeros(t.shape, t.dtype))


def _scaled(b: GraphBuilder, x: str, factor: float) -> str:
    return b.add("mul", x, b.constant(factor, dtype=b.types[x].dtype))


def _decayed(b: GraphBuilder, parameter: str, gradient: str, decay: float) -> str:
    return b.add("add", gradient, _scaled(b, parameter, decay)) if decay else gradient


def _mixed(b: GraphBuilder, old: str, new: str, share: float) -> str:
    """``share * old + (1 - share) * new``."""
    return b.add("add", _scaled(b, old, share), _scaled(b, new, 1.0 - share))


def _bias(b: GraphBuilder, beta: float, step: str) -> str:
    """``1 - beta ** step``, in float64."""
    power = b.add("pow", b.constant(beta, dtype="float64"), step)
    return b.add("sub", b.constant(1.0, dtype="float64"), power)
