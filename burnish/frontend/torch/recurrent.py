"""Translators of ATen recurrent layers: one product for the inputs of all steps, then one cell a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from burnish.frontend.torch.context import Ref, TorchContext, Translator
from burnish.frontend.torch.symbols import is_open
from burnish.graph.graph import GraphBuilder
from burnish.graph.rounds import add_rounds
from burnish.ops.scan import Operands

UNROLLED = 64  # steps up to which each has nodes of its own; more are rounds of one body
Step = Callable[[Ref, tuple[Ref, ...]], tuple[Ref, ...]]  # gates of one step, states -> new states, hidden first


def _ordered(c: TorchContext, parameter: Ref, order: Sequence[int]) -> Ref:
    """A parameter [G · H, …] with its gates in another order."""
    hidden = c.shape(parameter)[0] // len(order)
    if list(order) == sorted(order):
        return parameter
    return c.concat([c.slice(parameter, 0, g * hidden, hidden) for g in order], 0)


def _by_gate(c: TorchContext, weight: Ref) -> Ref:
    """A recurrent weight [G · H, H] as [G, H, H]."""
    rows, hidden = c.shape(weight)
    return c.reshape(weight, (rows // hidden, hidden, hidden))


def _lstm_cell(c: TorchContext, weight: Ref, bias: tuple[Ref, Ref]) -> tuple[Ref, Step]:
    recurrent = _by_gate(c, weight)
    return c.add("add", *bias), lambda gates, states: c.add_many("lstm_cell", gates, *states, recurrent)


def _gru_cell(c: TorchContext, weight: Ref, bias: tuple[Ref, Ref]) -> tuple[Ref, Step]:
    recurrent = _by_gate(c, weight)
    return bias[0], lambda gates, states: c.add_many("gru_cell", gates, states[0], recurrent, bias[1])


def _plain_cell(activation: str, c: TorchContext, weight: Ref, bias: tuple[Ref, Ref]) -> tuple[Ref, Step]:
    def step(gates: Ref, states: tuple[Ref, ...]) -> tuple[Ref, ...]:
        product = c.add("matmul", states[0], weight, transpose_b=True)
        return (c.add(activation, c.add("add", product, gates)),)

    return c.add("add", *bias), step


# The gates of Burnish's cells, by their number in torch's order: input, forget, cell, output; reset, update, new.
_CELLS: Mapping[str, tuple[tuple[int, ...], Callable[..., tuple[Ref, Step]]]] = {
    "lstm": ((0, 3, 1, 2), _lstm_cell),
    "gru": ((1, 0, 2), _gru_cell),
    "rnn_tanh": ((0,), partial(_plain_cell, "tanh")),
    "rnn_relu": ((0,), partial(_plain_cell, "relu")),
}


def _direction(
    c: TorchContext, kind: str, x: Ref, states: Sequence[Ref], params: Sequence[Ref], reverse: bool
) -> tuple[Ref, tuple[Ref, ...]]:
    """One direction of one layer: hidden states [T, B, H] in order of time, and the final states.

    ``x`` [T, B, I]; ``params``: input weight [G · H, I], recurrent weight [G · H, H], and their biases or none.
    """
    order, make = _CELLS[kind]
    weight, recurrent, *biases = (_ordered(c, p, order) for p in params)
    if not biases:
        biases = [c.constant(np.zeros(c.shape(weight)[0]), c.dtype(weight))] * 2
    steps, batch, features = c.shape(x)
    bias, step = make(c, recurrent, tuple(biases))
    rows = c.reshape(x, (steps * batch, features))
    gates = c.add("add", c.add("matmul", rows, weight, transpose_b=True), bias)
    if steps > UNROLLED:
        moving = c.reshape(gates, (steps, batch, c.shape(gates)[1]))
        return _rounds(c, make, moving, states, (recurrent, *biases), reverse)
    now, hidden = tuple(states), [Ref("")] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        now = step(c.slice(gates, 0, t * batch, batch), now)
        hidden[t] = now[0]
    sequence = c.concat(hidden, 0)
    return c.reshape(sequence, (steps, batch, c.shape(states[0])[-1])), now


def _rounds(
    c: TorchContext, make: Callable[..., tuple[Ref, Step]], gates: Ref, states: Sequence[Ref], fixed: Sequence[Ref],
    reverse: bool,
) -> tuple[Ref, tuple[Ref, ...]]:  # fmt: skip
    """All hidden states and the final ones, as :func:`_direction`, by a body that repeats."""
    count = len(states)

    def body(builder: GraphBuilder, names: Sequence[str]) -> Sequence[str]:
        refs = [Ref(name) for name in names]
        recurrent, *biases = refs[count + 1 :]
        _, step = make(c.inside(builder), recurrent, tuple(biases))
        return step(refs[count], tuple(refs[:count]))

    found = add_rounds(c.builder, body, Operands(tuple(states), (gates,), tuple(fixed)), (0,), reverse)
    last = c.slice(found[0], 0, 0 if reverse else c.shape(gates)[0] - 1, 1)
    return Ref(found[0]), (c.reshape(last, c.shape(states[0])), *(Ref(name) for name in found[1:]))


def _layers(
    kind: str, c: TorchContext, input: Ref, hx: Any, params: Sequence[Ref], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> list[Ref]:  # fmt: skip
    """All layers: the output of the last one, and the final states of all, [L · D, B, H]."""
    if train and dropout and not c.training:
        c.refuse("dropout", dropout, "0 in training: random numbers are not supported")
    initial = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    batched = c.rank(input) == 3
    x = input if batched else c.reshape(input, (c.shape(input)[0], 1, c.shape(input)[1]))
    x = c.transpose(x, (1, 0, 2)) if batch_first and batched else x
    steps, batch, _ = c.shape(x)
    if is_open(steps) or steps < 1:
        c.refuse("input", f"{steps} steps", "1 step or more: a number")
    directions, count = 2 if bidirectional else 1, 4 if has_biases else 2
    if len(params) != num_layers * directions * count:
        c.refuse("params", f"{len(params)} tensors", f"{count} for each layer and direction: no projections")
    finals: list[tuple[Ref, ...]] = []
    for layer in range(num_layers):
        sequences = []
        for d in range(directions):
            place = layer * directions + d
            states = [_state(c, s, place, batch) for s in initial]
            own = params[place * count : (place + 1) * count]
            sequence, final = _direction(c, kind, x, states, own, d == 1)
            sequences.append(sequence)
            finals.append(final)
        x = c.concat(sequences, 2)
        x = c.dropout(x, dropout) if c.training and train and layer < num_layers - 1 else x
    x = c.transpose(x, (1, 0, 2)) if batch_first and batched else x
    x = x if batched else c.reshape(x, (steps, c.shape(x)[-1]))
    return [x, *(_stacked(c, parts, batched) for parts in zip(*finals, strict=True))]


def _state(c: TorchContext, states: Ref, place: int, batch: int) -> Ref:
    """The initial state [B, H] of one layer and direction from those of all, [L · D, B, H]."""
    part = c.slice(states, 0, place, 1)
    return c.reshape(part, (batch, c.shape(states)[-1]))


def _stacked(c: TorchContext, states: Sequence[Ref], batched: bool) -> Ref:
    rows = [c.reshape(s, (1, *c.shape(s)) if batched else (1, c.shape(s)[-1])) for s in states]
    return c.concat(rows, 0)


TRANSLATORS: Mapping[str, Translator] = {f"aten.{kind}": partial(_layers, kind) for kind in _CELLS}
