"""Parameter updates of one training step: gradients, their accumulation, scaling and clipping, and the optimizer.

All of it is part of the step's graph. What lasts is state: the rate and the counts below, and for each parameter what
the optimizer remembers and, as ``parameter.sum``, the gradients that are accumulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.graph.gradient import backpropagate
from burnish.graph.graph import Graph, GraphBuilder, Node
from burnish.loops.sizes import hinted
from burnish.ops import OPERATORS
from burnish.train.optimizers import Optimizer, UpdateNames
from burnish.train.precision import MixedPrecision
from burnish.train.schedules import RateSchedule

LEARNING_RATE, STEP = "optimizer.learning_rate", "optimizer.step"  # the rate before the schedule; updates made
CALLS = "optimizer.calls"  # calls since the last update, where gradients are accumulated
SCALE, SOUND, SKIPPED = "optimizer.scale", "optimizer.sound", "optimizer.skipped"
"""The loss scale, the updates since it has changed, and the updates left out as a gradient was not finite."""

GRADIENTS = "gradients"  # a guard that reads nothing in their place
_NORM_MARGIN = 1e-6  # added to the norm that gradients are divided by, as PyTorch's clip_grad_norm_ does


@dataclass(frozen=True)
class UpdatePlan:
    """Plan of the updates from gradients; the fields are those of :class:`burnish.train.step.Train`."""

    optimizer: Optimizer
    schedule: RateSchedule | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulation_steps: int = 1
    precision: MixedPrecision | None = None
    skip_nonfinite: bool | str = False

    @property
    def scale(self) -> float | None:
        """The loss scale that training begins with; None for none."""
        return None if self.precision is None else self.precision.scale


def add_updates(b: GraphBuilder, loss: str, parameters: Sequence[str], plan: UpdatePlan) -> str:
    """Adds backward graph and updates behind ``loss``, a scalar; returns the name of the loss to report.

    States that are updated already, such as running statistics, are guarded with the rest.
    """
    scale = None if plan.scale is None else b.state(b.fresh(SCALE), np.array(plan.scale))
    return apply_gradients(
        b, loss, parameters, _gradients(b, loss, parameters, scale, plan.accumulation_steps), plan, scale
    )


def apply_gradients(
    b: GraphBuilder,
    loss: str,
    parameters: Sequence[str],
    found: Sequence[str],
    plan: UpdatePlan,
    scale: str | None = None,
) -> str:
    """Adds updates by gradients ``found``, each a share of one update's; returns the name of the loss to report.

    ``scale``: the state that is the loss scale, where there is one.
    """
    running, read = [*b.updates], _finite_by(b, found, plan.skip_nonfinite) if plan.skip_nonfinite else ()
    due, found = _accumulated(b, parameters, found, plan.accumulation_steps)
    return _applied(b, loss, parameters, found, plan, scale, due, running, read)


def remaining_update(parameters: Mapping[str, np.ndarray], plan: UpdatePlan) -> Graph:
    """The update by what is accumulated since the last one, the mean of as many calls as there were; none after none.

    ``parameters``: by name. The states are a step's of the same plan: parameters, what the optimizer remembers, sums
    and counts. The output is NaN where the gradients are not finite, and nothing has changed then, else 0.
    """
    b, found = GraphBuilder(), []
    for name, value in parameters.items():
        b.state(name, value)
    scale = None if plan.scale is None else b.state(b.fresh(SCALE), np.array(plan.scale))
    calls = b.state(b.fresh(CALLS), np.zeros((), np.int64))
    due = b.add("greater", calls, b.constant(0))
    share = b.add(
        "div", _real(b, plan.accumulation_steps), b.add("maximum", b.add("cast", calls, to="float64"), _real(b, 1.0))
    )
    for name, value in parameters.items():
        zeros = np.zeros(value.shape, value.dtype)
        held = b.state(b.fresh(f"{name}.sum"), zeros)
        found.append(b.add("mul", held, _as(b, share, b.types[held].dtype)))
        b.update(held, b.constant(zeros))
    b.update(calls, b.constant(0))
    read = found if plan.skip_nonfinite else ()
    done = _applied(b, _real(b, 0.0), [*parameters], found, plan, scale, due, [*b.updates], read)
    return b.build(b.add("identity", done, name=b.fresh("loss")))


def _applied(
    b: GraphBuilder, loss: str, parameters: Sequence[str], found: Sequence[str], plan: UpdatePlan, scale: str | None,
    due: str | None, running: Sequence[str], read: Sequence[str],
) -> str:  # fmt: skip
    """Updates by the gradients of one, where they are ``due``, finite where what is ``read`` is; returns the loss."""
    found = [b.add("clip", g, min=-plan.clip_value, max=plan.clip_value) for g in found] if plan.clip_value else found
    norm = _norm(b, found) if plan.clip_norm is not None or scale is not None else None
    finite = None if norm is None else _is_finite(b, norm)
    if plan.clip_norm is not None and norm is not None:
        found = _clipped(b, found, norm, plan.clip_norm)
    if scale is not None:
        assert finite is not None and plan.precision is not None
        applied = _both(b, due, finite)
        add_optimizer(b, parameters, found, plan, applied)
        _keep(b, running, _is_finite(b, loss))
        _rescale(b, scale, due, applied, plan.precision.growth)
        return loss
    if plan.skip_nonfinite and finite is None:
        finite = _is_finite(b, _norm(b, read))
    sound = _both(b, finite, _is_finite(b, loss)) if plan.skip_nonfinite else None
    _keep(b, [*b.updates], sound)  # running statistics, and gradients that are accumulated
    add_optimizer(b, parameters, found, plan, due if sound is None else _both(b, due, sound))
    if sound is None or finite is None:
        return loss
    return b.add("where", finite, loss, b.constant(float("nan"), dtype=b.types[loss].dtype))


def _gradients(
    b: GraphBuilder, loss: str, parameters: Sequence[str], scale: str | None, accumulation_steps: int
) -> Sequence[str]:
    """The gradients by the parameters, each a share of one update's; with a loss scale, of the scaled loss and back."""
    dtype = b.types[loss].dtype
    seed = b.constant(1.0, dtype=dtype) if scale is None else _as(b, scale, dtype)
    found = backpropagate(b, {loss: seed}, parameters)
    if scale is None and accumulation_steps == 1:
        return found
    share = b.constant(1.0 / accumulation_steps, dtype="float64")
    factor = share if scale is None else b.add("div", share, scale)
    return [b.add("mul", g, _as(b, factor, b.types[g].dtype)) for g in found]


def _accumulated(
    b: GraphBuilder, parameters: Sequence[str], found: Sequence[str], accumulation_steps: int
) -> tuple[str | None, Sequence[str]]:
    """Whether an update is due, None for always, and the gradients summed over the calls since the last one."""
    if accumulation_steps == 1:
        return None, found
    calls = b.state(b.fresh(CALLS), np.zeros((), np.int64))
    now = b.add("add", calls, b.constant(1))
    due = b.add("greater_equal", now, b.constant(accumulation_steps))
    b.update(calls, b.add("where", due, b.constant(0), now))
    totals = []
    for parameter, gradient in zip(parameters, found, strict=True):
        t = b.types[parameter]
        held = b.state(b.fresh(f"{parameter}.sum"), np.zeros(t.shape, t.dtype))
        total = b.add("add", held, gradient)
        b.update(held, b.add("where", due, b.constant(0.0, dtype=t.dtype), total))
        totals.append(total)
    return due, totals


def add_optimizer(
    b: GraphBuilder, parameters: Sequence[str], found: Sequence[str], plan: UpdatePlan, applied: str | None
) -> None:
    """The optimizer's update of each parameter, and of the number of steps, where it is ``applied``."""
    rate = b.state(b.fresh(LEARNING_RATE), np.array(float(plan.optimizer.learning_rate)))
    step = b.state(b.fresh(STEP), np.zeros((), np.int64))
    now = b.add("add", step, b.constant(1))
    if plan.schedule is not None:
        rate = b.add("mul", rate, plan.schedule.factor(b, b.add("cast", step, to="float64")))
    progress = UpdateNames(rate, b.add("cast", now, to="float64"), applied)
    progress.remember(b, step, now)
    for parameter, gradient in zip(parameters, found, strict=True):
        progress.remember(b, parameter, plan.optimizer.update(b, parameter, gradient, progress))


def _finite_by(b: GraphBuilder, found: Sequence[str], skip_nonfinite: bool | str) -> Sequence[str]:
    """Tensors that are finite only where the gradients are, with few elements.

    A product of finite tensors is finite, but for sums beyond the dtype's range. Where its operands are smaller than
    itself, as those of a weight's gradient from a small batch are, they are read instead: it then need not be stored.
    ``skip_nonfinite`` "gradients": these themselves, so that the graph is the same for any number of rows.
    """
    if skip_nonfinite == GRADIENTS:
        return found
    made, sources = {name: node for node in b.nodes for name in node.outputs}, dict[str, None]()
    for name in found:
        node = made.get(name)
        operands = node.inputs if node is not None and _is_product(node) else ()
        fewer = 0 < hinted(sum(b.types[n].size for n in operands)) < hinted(b.types[name].size)
        sources |= dict.fromkeys(operands if fewer else (name,))
    return [*sources]


def _is_product(node: Node) -> bool:
    known = OPERATORS.get(node.op)
    return known is not None and known.traits.weight_channel is not None


def _norm(b: GraphBuilder, found: Sequence[str]) -> str:
    """The Euclidean norm of all gradients together, float64."""
    total = None
    for gradient in found:
        if len(b.types[gradient].shape) > 1:  # by rows first: one sum of many is slower, and loses more digits
            rows = b.add("reduce_sumsq", gradient, axes=(-1,), keepdims=False)
            square = b.add("reduce_sum", rows, keepdims=False)
        else:
            square = b.add("reduce_sumsq", gradient, keepdims=False)
        square = b.add("cast", square, to="float64")
        total = square if total is None else b.add("add", total, square)
    assert total is not None, "there are parameters"
    return b.add("sqrt", total)


def _clipped(b: GraphBuilder, found: Sequence[str], norm: str, most: float) -> Sequence[str]:
    """The gradients, times ``most / norm`` where that is less than 1 (Pascanu et al. 2013)."""
    ratio = b.add("div", b.constant(most, dtype="float64"), b.add("add", norm, _real(b, _NORM_MARGIN)))
    factor = b.add("minimum", ratio, _real(b, 1.0))
    return [b.add("mul", g, _as(b, factor, b.types[g].dtype)) for g in found]


def _rescale(b: GraphBuilder, scale: str, due: str | None, applied: str, growth: int) -> None:
    """Halves the loss scale where a due update was not applied; doubles it after ``growth`` that were, in a row."""
    sound = b.state(b.fresh(SOUND), np.zeros((), np.int64))
    skipped = b.state(b.fresh(SKIPPED), np.zeros((), np.int64))
    run = b.add("add", sound, b.constant(1))
    grown = b.add("greater_equal", run, b.constant(growth))
    after = b.add("where", grown, b.add("mul", scale, _real(b, 2.0)), scale)
    b.update(scale, b.add("where", applied, after, b.add("mul", scale, _real(b, 0.5))))
    b.update(sound, b.add("where", b.add("logical_and", applied, b.add("logical_not", grown)), run, b.constant(0)))
    b.update(skipped, b.add("add", skipped, b.add("where", applied, b.constant(0), b.constant(1))))
    _keep(b, (scale, sound, skipped), due)


def _keep(b: GraphBuilder, states: Iterable[str], condition: str | None) -> None:
    """Lets states become what their updates say only where ``condition`` holds; None: everywhere."""
    if condition is not None:
        for state in states:
            b.revise(state, b.add("where", condition, b.updates[state], state))


def _is_finite(b: GraphBuilder, x: str) -> str:
    return b.add("less", b.add("abs", x), b.constant(float("inf"), dtype=b.types[x].dtype))


def _both(b: GraphBuilder, one: str | None, other: str) -> str:
    return other if one is None else b.add("logical_and", one, other)


def _real(b: GraphBuilder, value: float) -> str:
    return b.constant(value, dtype="float64")


def _as(b: GraphBuilder, x: str, dtype: str) -> str:
    return x if b.types[x].dtype == dtype else b.add("cast", x, to=dtype)
