"""Translators of ONNX recurrent layers: one product for the inputs of all steps, then one cell a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from burnish.frontend.onnx import cells
from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator
from burnish.frontend.onnx.quantized import dynamic_product
from burnish.frontend.onnx.rounds import Step, run_steps
from burnish.loops.sizes import dims_of, is_size, least

Product = Callable[[int, str, str], str]  # the direction's number, all inputs [T · B, I], weight [G · H, I]
Cell = Callable[[int, str, tuple[str, str]], tuple[str, tuple[str, ...], Step]]
"""The number of the direction, recurrent weight, biases -> bias of the gates, what all steps read, step."""


def _layer(
    c: OnnxContext,
    n: OnnxNode,
    gate_count: int,
    state_inputs: Sequence[int],
    cell: Cell,
    product: Product | None = None,
) -> list[str]:
    """A recurrent layer of one or two directions: the outputs Y and the final states; ``product``: if no plain one."""
    _check(c, n)
    if n.attr("layout", 0) not in (0, 1):
        c.invalid("attribute 'layout'", n.attrs["layout"], "0, 1")
    if c.rank(n.inputs[0]) != 3:
        c.invalid("input 0", f"shape {list(c.shape(n.inputs[0]))}", "3 dimensions")
    x, batch_first = n.inputs[0], bool(n.attr("layout", 0))
    x = c.transpose(x, (1, 0, 2)) if batch_first else x
    steps, batch, _ = c.shape(x)
    if least(steps) < 1 or least(batch) < 1:
        c.refuse("input 0 (X)", f"{steps} steps of {batch} rows", "1 step or more, of some rows")
    hidden = c.shape(n.inputs[2])[-1]
    directions = 2 if n.attr("direction", "forward") == "bidirectional" else 1
    _check_shapes(c, n, gate_count, directions, hidden)
    rows, live = c.flatten(x, 2), _live_steps(c, n, steps, batch)
    sequences, finals = [], []
    for d in range(directions):
        reverse = d == 1 or n.attr("direction", "forward") == "reverse"
        weight, recurrent, bias = _parameters(c, n, d, gate_count, hidden)
        initial = [_initial_state(c, n, p, d, batch, hidden, batch_first) for p in state_inputs]
        gate_bias, parameters, step = cell(d, recurrent, bias)
        entered = product(d, rows, weight) if product else c.add("matmul", rows, weight, transpose_b=True)
        gates = c.add("add", entered, gate_bias)
        gates = c.reshape(gates, (steps, batch, gate_count * hidden))
        sequence, final = run_steps(c, gates, initial, parameters, reverse, step, live)
        sequences.append(c.reshape(sequence, (steps, 1, batch, hidden)))
        finals.append([c.reshape(state, (1, batch, hidden)) for state in final])
    y = sequences[0] if directions == 1 else c.add("concat", *sequences, axis=1)
    states = [parts[0] if directions == 1 else c.add("concat", *parts, axis=0) for parts in zip(*finals, strict=True)]
    if batch_first:
        y, states = c.transpose(y, (2, 0, 1, 3)), [c.transpose(s, (1, 0, 2)) for s in states]
    return [y, *states][: max(len(n.outputs), 1)]


def _check(c: OnnxContext, n: OnnxNode) -> None:
    """Refuses what the cells do not compute."""
    direction = n.attr("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        c.invalid("attribute 'direction'", direction, "forward, reverse, bidirectional")


def _live_steps(c: OnnxContext, n: OnnxNode, steps: int, batch: int) -> str:
    """Mask of the steps that each row has, [T, B, 1], by the lengths of sequences; "" where it has all."""
    lengths = n.input(4)
    known = c.builder.constants.get(lengths) if lengths else None
    if not lengths or (known is not None and (known == steps).all()):
        return ""
    if not is_size(steps):
        c.require_range(lengths, "sequence_lens", 0, steps + 1, "numbers of steps")
    if c.shape(lengths) != (batch,):
        c.invalid("input 4 (sequence_lens)", f"shape {list(c.shape(lengths))}", f"shape {[batch]}")
    places = c.reshape(c.add("iota", c.constant(0, c.dtype(lengths)), extent=steps), (steps, 1))
    return c.reshape(c.add("less", places, c.reshape(lengths, (1, batch))), (steps, batch, 1))


def _check_shapes(c: OnnxContext, n: OnnxNode, gate_count: int, directions: int, hidden: int) -> None:
    """Refuses parameters of other shapes than the standard's."""
    size, features = gate_count * hidden, c.shape(n.inputs[0])[2]
    wanted = {1: (directions, size, features), 2: (directions, size, hidden), 3: (directions, 2 * size)}
    for position, shape in wanted.items():
        if n.input(position) and c.shape(n.inputs[position]) != shape:
            c.invalid(f"input {position}", f"shape {list(c.shape(n.inputs[position]))}", f"shape {list(shape)}")
    if n.attr("hidden_size", hidden) != hidden:
        c.invalid("attribute 'hidden_size'", n.attr("hidden_size"), f"{hidden}, as the recurrent weight has it")


def _activations(c: OnnxContext, n: OnnxNode, *default: str) -> list[list[str]]:
    """The names of the activations, in small letters, of each direction."""
    count = len(default)
    directions = 2 if n.attr("direction", "forward") == "bidirectional" else 1
    found = [name.lower() for name in n.attr("activations", [])] or list(default) * directions
    if len(found) != count * directions:
        c.invalid("attribute 'activations'", found, f"{count * directions} names, {count} for each direction")
    return [found[d * count : (d + 1) * count] for d in range(directions)]


def _is_usual(c: OnnxContext, n: OnnxNode, *default: str) -> bool:
    """Whether the operators of one step compute this layer."""
    plain = all(found == list(default) for found in _activations(c, n, *default))
    return plain and not n.attr("clip") and not n.attr("input_forget") and not n.input(7)


def _parameters(c: OnnxContext, n: OnnxNode, d: int, gate_count: int, hidden: int) -> tuple[str, str, tuple[str, str]]:
    """Weight [G · H, I], recurrent weight [G · H, H] and both biases [G · H] of direction ``d``."""
    weight, recurrent = (
        c.reshape(c.slice(p, 0, d, d + 1) if c.shape(p)[0] > 1 else p, c.shape(p)[1:]) for p in n.inputs[1:3]
    )
    size = gate_count * hidden
    if not n.input(3):
        zero = c.constant(np.zeros(size), c.dtype(n.inputs[0]))
        return weight, recurrent, (zero, zero)
    both = n.inputs[3]
    both = c.reshape(c.slice(both, 0, d, d + 1) if c.shape(both)[0] > 1 else both, (2 * size,))
    return weight, recurrent, (c.slice(both, 0, 0, size), c.slice(both, 0, size, 2 * size))


def _initial_state(
    c: OnnxContext, n: OnnxNode, position: int, d: int, batch: int, hidden: int, batch_first: bool
) -> str:
    """The initial state [B, H] of direction ``d``; zero if it is left out."""
    name = n.input(position)
    if not name:
        if dims_of((batch,)):
            return c.add("expand", c.constant(np.zeros((1, hidden)), c.dtype(n.inputs[0])), shape=(batch, hidden))
        return c.constant(np.zeros((batch, hidden)), c.dtype(n.inputs[0]))
    axis = 1 if batch_first else 0
    part = c.slice(name, axis, d, d + 1) if c.shape(name)[axis] > 1 else name
    return c.reshape(part, (batch, hidden))


def _by_gate(c: OnnxContext, recurrent: str) -> str:
    """A recurrent weight [G · H, H] as [G, H, H]."""
    rows, hidden = c.shape(recurrent)
    return c.reshape(recurrent, (rows // hidden, hidden, hidden))


def _lstm(c: OnnxContext, n: OnnxNode) -> list[str]:
    names = _activations(c, n, "sigmoid", "tanh", "tanh")
    usual, coupled = _is_usual(c, n, "sigmoid", "tanh", "tanh"), bool(n.attr("input_forget", 0))

    def cell(d: int, recurrent: str, bias: tuple[str, str]) -> tuple[str, tuple[str, ...], Step]:
        size = 3 * c.shape(recurrent)[1]
        peephole = (c.reshape(c.slice(n.input(7), 0, d, d + 1), (size,)),) if n.input(7) else ()

        def step(c: OnnxContext, gates: str, states: tuple[str, ...], fixed: tuple[str, ...]) -> tuple[str, ...]:
            if usual:
                return c.add_many("lstm_cell", gates, *states, *fixed)
            own = cells.functions(c, n, names)[d]
            total = c.add("add", gates, c.add("matmul", states[0], fixed[0], transpose_b=True))
            return cells.lstm(c, total, states, own, fixed[1] if peephole else "", coupled)

        return c.add("add", *bias), (_by_gate(c, recurrent),) if usual else (recurrent, *peephole), step

    return _layer(c, n, 4, (5, 6), cell)


def _dynamic_quantize_lstm(c: OnnxContext, n: OnnxNode) -> list[str]:
    """An LSTM on quantized weights [D, I, 4 H] and [D, H, 4 H]; inputs are quantized by their range, a row's hidden
    state by its own, so that it does not depend on other rows.
    """
    names, coupled = _activations(c, n, "sigmoid", "tanh", "tanh"), bool(n.attr("input_forget", 0))

    def parameters(d: int, position: int) -> tuple[str, str]:
        scale, zero = (_of_direction(c, n.input(p), d) for p in (position, position + 1))
        return scale, zero or c.constant(0, c.dtype(n.inputs[1]))

    def product(d: int, rows: str, weight: str) -> str:
        return dynamic_product(c, rows, c.transpose(weight, (1, 0)), parameters(d, 8))

    def cell(d: int, recurrent: str, bias: tuple[str, str]) -> tuple[str, tuple[str, ...], Step]:
        size = 3 * c.shape(recurrent)[1]
        peephole = (c.reshape(c.slice(n.input(7), 0, d, d + 1), (size,)),) if n.input(7) else ()

        def step(c: OnnxContext, gates: str, states: tuple[str, ...], fixed: tuple[str, ...]) -> tuple[str, ...]:
            weight, scale, zero, *rest = fixed
            total = c.add("add", gates, dynamic_product(c, states[0], weight, (scale, zero), by_row=True))
            return cells.lstm(c, total, states, cells.functions(c, n, names)[d], rest[0] if rest else "", coupled)

        return c.add("add", *bias), (c.transpose(recurrent, (1, 0)), *parameters(d, 10), *peephole), step

    weights = [c.transpose(w, (0, 2, 1)) for w in n.inputs[1:3]]
    return _layer(c, replace(n, inputs=(n.inputs[0], *weights, *n.inputs[3:])), 4, (5, 6), cell, product)


def _of_direction(c: OnnxContext, parameter: str, d: int) -> str:
    """A scale or a zero point of direction ``d``: one number, or one a column."""
    if not parameter:
        return ""
    shape = c.shape(parameter)
    part = c.slice(parameter, 0, d, d + 1) if shape[0] > 1 else parameter
    return c.reshape(part, shape[1:])


def _gru(c: OnnxContext, n: OnnxNode) -> list[str]:
    names, usual = _activations(c, n, "sigmoid", "tanh"), _is_usual(c, n, "sigmoid", "tanh")
    linear = bool(n.attr("linear_before_reset", 0))

    def cell(d: int, recurrent: str, bias: tuple[str, str]) -> tuple[str, tuple[str, ...], Step]:
        def step(c: OnnxContext, gates: str, states: tuple[str, ...], fixed: tuple[str, ...]) -> tuple[str, ...]:
            if usual:
                return c.add_many("gru_cell", gates, states[0], *fixed, linear_before_reset=linear)
            weight, bias = fixed
            return (cells.gru(c, gates, states[0], weight, bias, cells.functions(c, n, names)[d], linear),)

        return bias[0], (_by_gate(c, recurrent) if usual else recurrent, bias[1]), step

    return _layer(c, n, 3, (5,), cell)


def _rnn(c: OnnxContext, n: OnnxNode) -> list[str]:
    names = _activations(c, n, "tanh")

    def cell(d: int, recurrent: str, bias: tuple[str, str]) -> tuple[str, tuple[str, ...], Step]:
        def step(c: OnnxContext, gates: str, states: tuple[str, ...], fixed: tuple[str, ...]) -> tuple[str, ...]:
            product = c.add("matmul", states[0], *fixed, transpose_b=True)
            return (cells.functions(c, n, names)[d][0](c.add("add", product, gates)),)

        return c.add("add", *bias), (recurrent,), step

    return _layer(c, n, 1, (5,), cell)


TRANSLATORS: Mapping[str, Translator] = {
    "LSTM": _lstm, "GRU": _gru, "RNN": _rnn, "com.microsoft.DynamicQuantizeLSTM": _dynamic_quantize_lstm
}  # fmt: skip
