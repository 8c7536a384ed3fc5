"""Translators of the optimizers of ai.onnx.preview.training: one step for each of several tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator

Update = Callable[[OnnxContext, OnnxNode, Sequence[str]], Sequence[str]]


class _Arithmetic:
    """Sums and products of tensors and numbers, in a tensor's dtype."""

    def __init__(self, c: OnnxContext, like: str) -> None:
        self._c, self._like = c, like

    def number(self, value: str | float) -> str:
        return value if isinstance(value, str) else self._c.scalar(value, self._like)

    def __call__(self, op: str, a: str | float, b: str | float) -> str:
        return self._c.add(op, self.number(a), self.number(b))


def _each(update: Update, count: int, c: OnnxContext, n: OnnxNode) -> list[str]:
    """The update of every tensor: rate and time, then all tensors, all gradients, and all of each other state."""
    tensors = (len(n.inputs) - 2) // count
    if tensors * count != len(n.inputs) - 2:
        c.invalid("inputs", len(n.inputs), f"2 and {count} for each tensor")
    groups = [n.inputs[2 + k * tensors : 2 + (k + 1) * tensors] for k in range(count)]
    found = [update(c, n, [*n.inputs[:2], *own]) for own in zip(*groups, strict=True)]
    return [name for part in zip(*found, strict=True) for name in part]


def _regularized(c: OnnxContext, n: OnnxNode, x: str, gradient: str) -> str:
    a = _Arithmetic(c, x)
    return a("add", a("mul", n.attr("norm_coefficient", 0.0), x), gradient)


def _momentum(c: OnnxContext, n: OnnxNode, given: Sequence[str]) -> Sequence[str]:
    rate, time, x, gradient, velocity = given
    a = _Arithmetic(c, x)
    g = _regularized(c, n, x, gradient)
    zero = c.constant(0, c.dtype(time))
    beta = c.add("where", c.add("greater", time, zero), a.number(n.attrs["beta"]), a.number(1.0))
    moved = a("add", a("mul", n.attrs["alpha"], velocity), a("mul", beta, g))
    step = moved if n.attrs["mode"] == "standard" else a("add", g, a("mul", n.attrs["alpha"], moved))
    return a("sub", x, a("mul", c.cast(rate, c.dtype(x)), step)), moved


def _adagrad(c: OnnxContext, n: OnnxNode, given: Sequence[str]) -> Sequence[str]:
    rate, time, x, gradient, squares = given
    a = _Arithmetic(c, x)
    slower = a("add", 1.0, a("mul", c.cast(time, c.dtype(x)), n.attr("decay_factor", 0.0)))
    g = _regularized(c, n, x, gradient)
    total = a("add", squares, a("mul", g, g))
    scale = a("add", c.add("sqrt", total), n.attr("epsilon", 1e-6))
    return a("sub", x, a("div", a("mul", a("div", c.cast(rate, c.dtype(x)), slower), g), scale)), total


def _adam(c: OnnxContext, n: OnnxNode, given: Sequence[str]) -> Sequence[str]:
    rate, time, x, gradient, first, second = given
    a = _Arithmetic(c, x)
    alpha, beta = n.attr("alpha", 0.9), n.attr("beta", 0.999)
    g = _regularized(c, n, x, gradient)
    mean = a("add", a("mul", alpha, first), a("mul", 1 - alpha, g))
    square = a("add", a("mul", beta, second), a("mul", 1 - beta, a("mul", g, g)))
    steps = c.cast(time, c.dtype(x))
    corrected = a("div", c.add("sqrt", a("sub", 1.0, a("pow", beta, steps))), a("sub", 1.0, a("pow", alpha, steps)))
    late = c.add("greater", time, c.constant(0, c.dtype(time)))
    own = c.cast(rate, c.dtype(x))
    own = c.add("where", late, a("mul", own, corrected), own)
    step = a("div", a("mul", own, mean), a("add", c.add("sqrt", square), n.attr("epsilon", 1e-6)))
    moved = a("mul", 1 - n.attr("norm_coefficient_post", 0.0), a("sub", x, step))
    return moved, mean, square


TRANSLATORS: Mapping[str, Translator] = {
    "ai.onnx.preview.training.Momentum": partial(_each, _momentum, 3),
    "ai.onnx.preview.training.Adagrad": partial(_each, _adagrad, 3),
    "ai.onnx.preview.training.Adam": partial(_each, _adam, 4),
}
