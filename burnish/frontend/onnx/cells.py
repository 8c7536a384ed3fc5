"""Steps of recurrent layers with other activations than the usual ones, clipping, peepholes or coupled gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from burnish.frontend.onnx.context import OnnxContext, OnnxNode

Function = Callable[[str], str]
_PLAIN = ("tanh", "relu", "sigmoid", "softplus", "softsign")
_WITH_ALPHA = {"leakyrelu": ("leaky_relu", 0.01), "thresholdedrelu": ("thresholded_relu", 1.0), "elu": ("elu", 1.0)}
_WITH_BOTH = {"affine": (1.0, 0.0), "scaledtanh": (1.0, 1.0), "hardsigmoid": (0.2, 0.5)}
NAMES = (*_PLAIN, *_WITH_ALPHA, *_WITH_BOTH)


def functions(c: OnnxContext, n: OnnxNode, names: Sequence[Sequence[str]]) -> list[list[Function]]:
    """The activations of each direction; parameters are taken in order by those that have some."""
    alphas, betas = list(n.attr("activation_alpha", [])), list(n.attr("activation_beta", []))
    clip = float(n.attr("clip", 0.0))
    return [[_function(c, name, alphas, betas, clip) for name in own] for own in names]


def _function(c: OnnxContext, name: str, alphas: list[float], betas: list[float], clip: float) -> Function:
    if name not in NAMES:
        c.refuse("attribute 'activations'", name, ", ".join(NAMES))
    inner: Function
    if name in _PLAIN:
        inner = lambda x: c.add(name, x)  # noqa: E731
    elif name in _WITH_ALPHA:
        op, default = _WITH_ALPHA[name]
        alpha = alphas.pop(0) if alphas else default
        inner = lambda x: c.add(op, x, alpha=alpha)  # noqa: E731
    else:
        alpha, beta = (
            given.pop(0) if given else own for given, own in zip((alphas, betas), _WITH_BOTH[name], strict=True)
        )
        inner = _two_parameters(c, name, alpha, beta)
    return (lambda x: inner(c.add("clip", x, min=-clip, max=clip))) if clip else inner


def _two_parameters(c: OnnxContext, name: str, alpha: float, beta: float) -> Function:
    if name == "hardsigmoid":
        return lambda x: c.add("hard_sigmoid", x, alpha=alpha, beta=beta)
    if name == "affine":
        return lambda x: c.add("add", c.add("mul", x, c.scalar(alpha, x)), c.scalar(beta, x))
    return lambda x: c.add("mul", c.add("tanh", c.add("mul", x, c.scalar(beta, x))), c.scalar(alpha, x))


def _product(c: OnnxContext, state: str, recurrent: str) -> str:
    return c.add("matmul", state, recurrent, transpose_b=True)


def _part(c: OnnxContext, gates: str, position: int, hidden: int) -> str:
    return c.slice(gates, 1, position * hidden, (position + 1) * hidden)


def lstm(
    c: OnnxContext, gates: str, states: Sequence[str], own: Sequence[Function], peephole: str, coupled: bool
) -> tuple[str, str]:
    """One LSTM step; ``peephole`` [3 H] or "": input, output, forget; ``coupled``: the forget gate is 1 - the input's.

    ``gates`` [B, 4 H] are the input's and the hidden state's products with biases: input, output, forget, cell.
    """
    total, (h, cell) = gates, states
    hidden = c.shape(h)[1]
    first, squash, last = own

    def seen(x: str, position: int, state: str) -> str:
        if not peephole:
            return x
        weight = c.slice(peephole, 0, position * hidden, (position + 1) * hidden)
        return c.add("add", x, c.add("mul", weight, state))

    enter = first(seen(_part(c, total, 0, hidden), 0, cell))
    keep = c.add("sub", c.scalar(1.0, enter), enter) if coupled else first(seen(_part(c, total, 2, hidden), 2, cell))
    proposal = squash(_part(c, total, 3, hidden))
    new = c.add("add", c.add("mul", keep, cell), c.add("mul", enter, proposal))
    leave = first(seen(_part(c, total, 1, hidden), 1, new))
    return c.add("mul", leave, last(new)), new


def gru(
    c: OnnxContext, gates: str, h: str, recurrent: str, bias: str, own: Sequence[Function], linear_before_reset: bool
) -> str:
    """One GRU step; ``gates`` [B, 3 H]: update, reset, hidden; ``recurrent`` [3 H, H], and its ``bias`` [3 H]."""
    hidden = c.shape(h)[1]
    first, squash = own
    total = c.add("add", _product(c, h, recurrent), bias)
    update, reset = (first(c.add("add", _part(c, gates, k, hidden), _part(c, total, k, hidden))) for k in (0, 1))
    if linear_before_reset:
        inner = c.add("mul", reset, _part(c, total, 2, hidden))
    else:
        rows = c.slice(recurrent, 0, 2 * hidden, 3 * hidden)
        inner = c.add("add", _product(c, c.add("mul", reset, h), rows), c.slice(bias, 0, 2 * hidden, 3 * hidden))
    proposal = squash(c.add("add", _part(c, gates, 2, hidden), inner))
    other = c.add("sub", c.scalar(1.0, update), update)
    return c.add("add", c.add("mul", other, proposal), c.add("mul", update, h))
