"""One time step of recurrent layers; the products with the input, which need no recurrence, come precomputed."""

from __future__ import annotations

from burnish.loops.expr import FLOATS, Expr, Var, math
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.operator import Application, Composed, declare, differentiated, operator, require_input
from burnish.ops.terms import GraphTerm


def _recurrent_product(name: str, h: Tensor, weight: Tensor, first: int, gates: int) -> Tensor:
    """``name[g, b, j] = sum_k h[b, k] * weight[first + g, j, k]`` for ``gates`` gates."""
    batch, hidden = h.shape

    def element(g: Var, b: Var, j: Var) -> Expr:
        k = reduce_axis(hidden, "k")
        return sum_over(h[b, k.var] * weight[g + first, j, k.var], k)

    return compute((gates, batch, hidden), element, name)


def _require_state(x_gates: Tensor, h: Tensor, recurrent: Tensor, gates: int) -> tuple[int, int]:
    require_input(h, "h", 2, "[B, H]", dtype=FLOATS)
    batch, hidden = h.shape
    require_input(x_gates, "x_gates", shape=(batch, gates * hidden))
    require_input(recurrent, "recurrent", shape=(gates, hidden, hidden))
    return batch, hidden


def _lstm_gradient(a: Application) -> list[str | None]:
    """Composed: gates are computed again, once for all inputs."""
    x_gates, h, c, recurrent = a.inputs
    (batch, hidden), dtype = a.types[1]
    flat = a.add("reshape", recurrent, shape=(4 * hidden, hidden))
    sums = a.add("add", a.add("matmul", h, flat, transpose_b=True), x_gates)
    one = a.emit.constant(1.0, dtype=dtype)
    entry, output, forget, proposal = (
        a.add(fn, a.add("slice", sums, starts=(0, g * hidden), extents=(batch, hidden)))
        for g, fn in enumerate(("sigmoid", "sigmoid", "sigmoid", "tanh"))
    )

    def through_sigmoid(seed: str, y: str) -> str:
        return a.add("mul", seed, a.add("mul", y, a.add("sub", one, y)))

    def through_tanh(seed: str, y: str) -> str:
        return a.add("mul", seed, a.add("sub", one, a.add("mul", y, y)))

    seed_h, seed_c = a.seeds
    to_output = a.zeros(1)
    if seed_h is not None:
        squashed = a.add("tanh", a.outputs[1])
        to_output = through_sigmoid(a.add("mul", seed_h, squashed), output)
        inner = through_tanh(a.add("mul", seed_h, output), squashed)
        seed_c = inner if seed_c is None else a.add("add", seed_c, inner)
    assert seed_c is not None
    gates = a.add(
        "concat",
        through_sigmoid(a.add("mul", seed_c, proposal), entry),
        to_output,
        through_sigmoid(a.add("mul", seed_c, c), forget),
        through_tanh(a.add("mul", seed_c, entry), proposal),
        axis=1,
    )
    found: list[str | None] = [gates, None, None, None]
    if a.wanted[1]:
        found[1] = a.add("matmul", gates, flat)
    if a.wanted[2]:
        found[2] = a.add("mul", seed_c, forget)
    if a.wanted[3]:
        found[3] = a.add("reshape", a.add("matmul", gates, h, transpose_a=True), shape=(4, hidden, hidden))
    return found


@differentiated(_lstm_gradient)
@declare(recurrent=True)
@operator
def lstm_cell(name: str, x_gates: Tensor, h: Tensor, c: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor]:
    """One LSTM step: new ``h`` [B, H] and ``c`` [B, H] (Hochreiter and Schmidhuber 1997).

    ``x_gates`` [B, 4H] is the input's product plus both biases, ``recurrent`` [4, H, H]; gates in the order input,
    output, forget, cell. Stage ``name.gates`` [4, B, H] is the recurrent product.
    """
    batch, hidden = _require_state(x_gates, h, recurrent, 4)
    require_input(c, "c", shape=h.shape)
    gates = _recurrent_product(f"{name}.gates", h, recurrent, 0, 4)

    def gate(fn: str, g: int, b: Var, j: Var) -> Expr:
        return math(fn, gates[g, b, j] + x_gates[b, j + g * hidden])

    def cell(b: Var, j: Var) -> Expr:
        return gate("sigmoid", 2, b, j) * c[b, j] + gate("sigmoid", 0, b, j) * gate("tanh", 3, b, j)

    new_c = compute((batch, hidden), cell, f"{name}.1")
    new_h = compute((batch, hidden), lambda b, j: gate("sigmoid", 1, b, j) * math("tanh", new_c[b, j]), f"{name}.0")
    return new_h, new_c


def _gru_terms(a: Application) -> list[str]:
    """The step in products and element-wise operators."""
    batch, hidden = a.types[1][0]
    x, h, recurrent, bias = (GraphTerm.of(a, i) for i in range(4))
    linear, shape = a.attrs["linear_before_reset"], (batch, 3 * hidden)

    def part(t: GraphTerm, first: int, gates: int = 1) -> GraphTerm:
        return t.part(shape, 1, first * hidden, gates * hidden)

    def product(state: GraphTerm, first: int, gates: int) -> GraphTerm:
        rows = recurrent.part((3, hidden, hidden), 0, first, gates).reshape(gates * hidden, hidden)
        own = bias.part((3 * hidden,), 0, first * hidden, gates * hidden)
        return state.apply("matmul", rows, transpose_b=True) + own

    sums = product(h, 0, 3 if linear else 2)
    both = (sums.part(shape, 1, 0, 2 * hidden) if linear else sums) + part(x, 0, 2)
    gates = both.apply("sigmoid")
    update, reset = (gates.part((batch, 2 * hidden), 1, g * hidden, hidden) for g in (0, 1))
    inner = reset * part(sums, 2) if linear else product(reset * h, 2, 1)
    proposal = (inner + part(x, 2)).apply("tanh")
    return [(proposal + update * (h - proposal)).name]


@differentiated(Composed(_gru_terms))
@declare(recurrent=True)
@operator
def gru_cell(
    name: str, x_gates: Tensor, h: Tensor, recurrent: Tensor, bias: Tensor, *, linear_before_reset: bool = True
) -> Tensor:
    """One GRU step: new ``h`` [B, H] (Cho et al. 2014).

    ``x_gates`` [B, 3H] is the input's product plus its bias, ``recurrent`` [3, H, H], ``bias`` [3H] that of the
    recurrent product; gates in the order update, reset, hidden. With ``linear_before_reset`` the reset gate scales the
    hidden gate's recurrent product, else the state that enters it. Stages ``name.gates``, ``.reset``, ``.hidden``.
    """
    batch, hidden = _require_state(x_gates, h, recurrent, 3)
    require_input(bias, "bias", shape=(3 * hidden,))
    gates = _recurrent_product(f"{name}.gates", h, recurrent, 0, 3 if linear_before_reset else 2)

    def gate(g: int, b: Var, j: Var) -> Expr:
        at = j + g * hidden
        return math("sigmoid", gates[g, b, j] + bias[at] + x_gates[b, at])

    if linear_before_reset:
        product, entry = gates, 2
    else:
        state = compute((batch, hidden), lambda b, j: gate(1, b, j) * h[b, j], f"{name}.reset")
        product, entry = _recurrent_product(f"{name}.hidden", state, recurrent, 2, 1), 0

    def element(b: Var, j: Var) -> Expr:
        at = j + 2 * hidden
        inner = product[entry, b, j] + bias[at]
        proposal = math("tanh", (gate(1, b, j) * inner if linear_before_reset else inner) + x_gates[b, at])
        update = gate(0, b, j)
        return (1.0 - update) * proposal + update * h[b, j]

    return compute((batch, hidden), element, name)


OPERATORS = (lstm_cell, gru_cell)
