"""Recurrent steps against ONNX's reference implementation of the whole layer."""

import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.loops.tensor import placeholder, stages
from burnish.ops import OPERATORS, infer

BATCH, FEATURES, HIDDEN = 3, 5, 4


def test_lstm_cell_matches_one_step_of_onnx(apply, reference, normal):
    x, w, r = normal(1, BATCH, FEATURES), normal(1, 4 * HIDDEN, FEATURES), normal(1, 4 * HIDDEN, HIDDEN)
    bias, h, c = normal(1, 8 * HIDDEN), normal(1, BATCH, HIDDEN), normal(1, BATCH, HIDDEN)
    _, expected_h, expected_c = reference("LSTM", x, w, r, bias, None, h, c, outputs=3, hidden_size=HIDDEN)
    x_gates = x[0] @ w[0].T + bias[0, : 4 * HIDDEN] + bias[0, 4 * HIDDEN :]
    new_h, new_c = apply("lstm_cell", x_gates, h[0], c[0], r[0].reshape(4, HIDDEN, HIDDEN))
    np.testing.assert_allclose(new_h, expected_h[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new_c, expected_c[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("linear_before_reset", [True, False])
def test_gru_cell_matches_one_step_of_onnx(linear_before_reset, apply, reference, normal):
    x, w, r = normal(1, BATCH, FEATURES), normal(1, 3 * HIDDEN, FEATURES), normal(1, 3 * HIDDEN, HIDDEN)
    bias, h = normal(1, 6 * HIDDEN), normal(1, BATCH, HIDDEN)
    _, expected = reference(
        "GRU", x, w, r, bias, None, h, outputs=2, hidden_size=HIDDEN, linear_before_reset=int(linear_before_reset)
    )
    x_gates = x[0] @ w[0].T + bias[0, : 3 * HIDDEN]
    weight = r[0].reshape(3, HIDDEN, HIDDEN)
    state = apply("gru_cell", x_gates, h[0], weight, bias[0, 3 * HIDDEN :], linear_before_reset=linear_before_reset)[0]
    np.testing.assert_allclose(state, expected[0], rtol=1e-5, atol=1e-6)


def test_lstm_outputs_are_numbered():
    shapes = [(BATCH, 4 * HIDDEN), (BATCH, HIDDEN), (BATCH, HIDDEN), (4, HIDDEN, HIDDEN)]
    outputs = OPERATORS["lstm_cell"].define("step", [placeholder(s, name=f"x{i}") for i, s in enumerate(shapes)])
    assert [t.name for t in outputs] == ["step.0", "step.1"]
    assert {t.name for t in stages(outputs) if t.body is not None} == {"step.gates", "step.0", "step.1"}


def test_refusals():
    shapes = [(BATCH, 4 * HIDDEN), (BATCH, HIDDEN), (BATCH, HIDDEN), (3, HIDDEN, HIDDEN)]
    with pytest.raises(ModelError, match=r"lstm_cell 'y': input 'recurrent'.*\[3, 4, 4\].*\[4, 4, 4\]"):
        infer("lstm_cell", [(s, "float32") for s in shapes])
