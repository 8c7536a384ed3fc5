"""Recurrent steps: all gates of a block in registers, against the definition."""

from __future__ import annotations

import pytest

from burnish.kernels.cpu.recurrent import RECURRENT
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS


def lstm(batch, hidden, step=0, steps=1):
    gates = placeholder((steps * batch, 4 * hidden), name="g")
    rows = {"starts": (step * batch, 0), "extents": (batch, 4 * hidden)}
    part = OPERATORS["slice"].define("s", [gates], rows)[0] if steps > 1 else gates
    h, c = placeholder((batch, hidden), name="h"), placeholder((batch, hidden), name="c")
    weight = placeholder((4, hidden, hidden), name="w")
    return OPERATORS["lstm_cell"].define("y", [part, h, c, weight], {})


@pytest.mark.parametrize(("batch", "hidden"), [(1, 16), (1, 150), (2, 20), (5, 33)])
def test_lstm_step(batch, hidden, check):
    check(RECURRENT, "lstm_cell", lstm(batch, hidden), ["w"])


def test_last_lstm_step_has_no_state(check):
    check(RECURRENT, "lstm_cell", lstm(2, 40)[:1], ["w"])


@pytest.mark.parametrize("step", [0, 1, 2])
def test_weights_beyond_the_cache_are_read_to_and_fro(step, check, monkeypatch):
    monkeypatch.setattr("burnish.kernels.cpu.recurrent.CACHED", 0.0)
    check(RECURRENT, "lstm_cell", lstm(1, 192, step, 3), ["w"])


@pytest.mark.parametrize(("batch", "hidden"), [(1, 150), (3, 33)])
def test_gru_step(batch, hidden, check):
    g, h = placeholder((batch, 3 * hidden), name="g"), placeholder((batch, hidden), name="h")
    weight, bias = placeholder((3, hidden, hidden), name="w"), placeholder((3 * hidden,), name="b")
    check(RECURRENT, "gru_cell", OPERATORS["gru_cell"].define("y", [g, h, weight, bias], {}), ["b", "w"])
