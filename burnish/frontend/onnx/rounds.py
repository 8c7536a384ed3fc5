"""Steps of a recurrent layer in the graph: each as nodes of its own where they are few, else one body that repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from burnish.frontend.onnx.context import OnnxContext
from burnish.graph.graph import GraphBuilder
from burnish.graph.rounds import add_rounds
from burnish.loops.sizes import is_size
from burnish.ops.scan import Operands

Step = Callable[[OnnxContext, str, tuple[str, ...], tuple[str, ...]], tuple[str, ...]]
"""Adds one step: its gates, the states, what all steps read alike -> the new states, hidden first."""

UNROLLED = 64  # steps up to which each has nodes of its own; these take 2 ms a step to compile


def run_steps(
    c: OnnxContext, gates: str, states: Sequence[str], parameters: Sequence[str], reverse: bool, step: Step, live: str
) -> tuple[str, list[str]]:
    """All hidden states [T, B, H] in order of time, and the final states, of one direction.

    ``gates`` [T, B, G] is the product of all steps' inputs; ``states`` are [B, H]. ``live`` [T, B, 1] says which steps
    a row has ("": all): at others its state stays, and its hidden state is zero.
    """
    steps = c.shape(gates)[0]
    if not is_size(steps) and steps <= UNROLLED:
        return _unroll(c, gates, tuple(states), tuple(parameters), reverse, step, live)
    return _repeat(c, gates, tuple(states), tuple(parameters), reverse, step, live)


def _masked(c: OnnxContext, live: str, new: tuple[str, ...], before: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The hidden state to show of a step, and the states behind it, where only rows of ``live`` have it ("": all)."""
    if not live:
        return new[0], new
    now = tuple(c.add("where", live, *pair) for pair in zip(new, before, strict=True))
    return c.add("where", live, new[0], c.scalar(0.0, new[0])), now


def _unroll(
    c: OnnxContext,
    gates: str,
    states: tuple[str, ...],
    parameters: tuple[str, ...],
    reverse: bool,
    step: Step,
    live: str,
) -> tuple[str, list[str]]:
    """See :func:`run_steps`: every step is nodes."""
    (batch, hidden), steps, now = c.shape(states[0]), c.shape(gates)[0], states
    rows, own = c.reshape(gates, (steps * batch, c.shape(gates)[2])), ""
    alive = c.reshape(live, (steps * batch, 1)) if live else ""
    shown = [""] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        part = rows if steps == 1 else c.slice(rows, 0, t * batch, (t + 1) * batch)
        new = step(c, part, now, parameters)
        own = c.slice(alive, 0, t * batch, (t + 1) * batch) if alive else ""
        shown[t], now = _masked(c, own, new, now)
    sequence = shown[0] if steps == 1 else c.add("concat", *shown, axis=0)
    return c.reshape(sequence, (steps, batch, hidden)), list(now)


def _repeat(
    c: OnnxContext,
    gates: str,
    states: tuple[str, ...],
    parameters: tuple[str, ...],
    reverse: bool,
    step: Step,
    live: str,
) -> tuple[str, list[str]]:
    """See :func:`run_steps`: a scan, whose body is one step."""
    sequences = (gates, live) if live else (gates,)
    count = len(states)

    def body(builder: GraphBuilder, names: Sequence[str]) -> Sequence[str]:
        inner = replace(c, builder=builder, made=set())
        before, fixed = tuple(names[:count]), tuple(names[count + len(sequences) :])
        new = step(inner, names[count], before, fixed)
        shown, now = _masked(inner, names[count + 1] if live else "", new, before)
        return (*now, shown) if live else now

    every = (count,) if live else (0,)
    found = add_rounds(c.builder, body, Operands(states, sequences, parameters), every, reverse)
    if every != (0,):
        return found[count], list(found[:count])
    last = 0 if reverse else c.shape(gates)[0] - 1
    return found[0], [c.reshape(c.slice(found[0], 0, last, last + 1), c.shape(states[0])), *found[1:]]
