"""Translators of losses whose decompositions choose between two branches.

There the gradient through the branch that is not taken is 0 times infinity, where a difference is infinite, or a
probability 0 or 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from burnish.frontend.torch.context import Ref, TorchContext, Translator
from burnish.loops.tensor import HALVES

MEAN, SUM = 1, 2  # of ATen's numbers of reductions; 0: none
LEAST_LOG = -100.0  # of binary cross entropy, and the least probability of which its slope is that of the logarithm
LEAST_SHARE = 1e-12


def _reduced(c: TorchContext, loss: Ref, reduction: int) -> Ref:
    return c.add({MEAN: "reduce_mean", SUM: "reduce_sum"}[reduction], loss, keepdims=False) if reduction else loss


def _smooth_l1(c: TorchContext, x: Ref, target: Ref, reduction: int = MEAN, beta: float = 1.0) -> Ref:
    """``d² / (2 beta)`` of differences below ``beta``, else ``|d| - beta / 2`` (Girshick 2015); 0 for beta: ``|d|``."""
    if beta == 0:
        return _reduced(c, c.add("abs", _difference(c, x, target)), reduction)
    loss = _huber(c, x, target, 0, beta)
    return _reduced(c, c.add("mul", loss, c.scalar(1 / beta, loss)), reduction)


def _huber(c: TorchContext, x: Ref, target: Ref, reduction: int = MEAN, delta: float = 1.0) -> Ref:
    """``d² / 2`` of differences below ``delta``, else ``delta (|d| - delta / 2)`` (Huber 1964).

    It is ``m (d - m / 2)`` with m = d between -delta and delta; so its slope m is NaN where d is.
    """
    d = _difference(c, x, target)
    near = c.add("clip", d, min=-float(delta), max=float(delta))
    far = c.add("sub", d, c.add("mul", near, c.scalar(0.5, near)))
    return _reduced(c, c.add("mul", near, far), reduction)


def _difference(c: TorchContext, x: Ref, target: Ref) -> Ref:
    return c.add("sub", *(c.operand(t, c.out_dtype) for t in (x, target)))


def _binary_cross_entropy(
    c: TorchContext, x: Ref, target: Ref, weight: Ref | None = None, reduction: int = MEAN
) -> Ref:
    """``-(t log(x) + (1 - t) log(1 - x))``, of logarithms of at least -100, whose slopes are at most 1e12."""
    dtype = "float32" if c.out_dtype in HALVES else c.out_dtype  # of halves 1e12 is infinite
    x, target = c.operand(x, dtype), c.operand(target, dtype)
    one = c.scalar(1, x)
    other = c.add("sub", one, x)
    logs = [_bounded_log(c, "log", x, x, one), _bounded_log(c, "log1p", other, c.add("neg", x), c.scalar(0, x))]
    shares = (target, c.add("sub", one, target))
    loss = c.add("neg", c.add("add", *(c.add("mul", t, log) for t, log in zip(shares, logs, strict=True))))
    if weight is not None:
        loss = c.add("mul", loss, c.operand(weight, dtype))
    return c.cast(_reduced(c, loss, reduction), c.out_dtype)


def _bounded_log(c: TorchContext, op: str, share: Ref, argument: Ref, safe: Ref) -> Ref:
    """``op(argument)``, the logarithm of a share, or -100 where that is less; below 1e-12 its slope is that of 1e-12.

    ``safe``: an argument of finite slope.
    """
    known = c.add("greater", share, c.scalar(LEAST_SHARE, share))
    exact = c.add(op, c.add("where", known, argument, safe))
    moved = c.add("mul", c.add("sub", share, c.add("stop_gradient", share)), c.scalar(1 / LEAST_SHARE, share))
    bound = c.add("maximum", c.add(op, c.add("stop_gradient", argument)), c.scalar(LEAST_LOG, share))
    return c.add("where", known, exact, c.add("add", bound, moved))


TRANSLATORS: Mapping[str, Translator] = {
    "aten.smooth_l1_loss": _smooth_l1, "aten.huber_loss": _huber,
    "aten.binary_cross_entropy": _binary_cross_entropy,
}  # fmt: skip
