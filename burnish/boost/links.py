"""Links of objectives that models of other libraries bring along: from margins to what those libraries predict."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def sigmoid(margin: Floats) -> Floats:
    """1 / (1 + e^-margin)."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-margin.astype(np.float64))), np.float32)


def exponential(margin: Floats) -> Floats:
    """e^margin."""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(margin.astype(np.float64)), np.float32)


def hinge(margin: Floats) -> Floats:
    """1 where the margin is positive, else 0."""
    return np.asarray(margin > 0, np.float32)


def softplus(margin: Floats) -> Floats:
    """log(1 + e^margin)."""
    return np.asarray(np.logaddexp(0.0, margin.astype(np.float64)), np.float32)


def signed_square(margin: Floats) -> Floats:
    """The square with the sign of the margin: of labels that were trained by their roots."""
    return np.asarray(np.sign(margin) * margin.astype(np.float64) ** 2, np.float32)


# The name of an objective in `Model.objective` -> its link, as `burnish.boost.inference` calls it; others have none.
LINKS = {
    "logistic": "sigmoid",
    "poisson": "exponential",
    "softmax": "softmax",
    "reg:gamma": "exponential",
    "reg:tweedie": "exponential",
    "survival:cox": "exponential",
    "survival:aft": "exponential",
    "binary:hinge": "hinge",
    "lightgbm:multiclassova": "sigmoid",
    "lightgbm:cross_entropy_lambda": "softplus",
    "lightgbm:regression_sqrt": "signed_square",
}
_FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {
    function.__name__: function for function in (sigmoid, exponential, hinge, softplus, signed_square)
}


def predicted(objective: str, margin: Floats) -> Floats:
    """Inverse link of margins, any shape, for objectives of one margin each; the margins themselves without a link."""
    link = _FUNCTIONS.get(LINKS.get(objective, ""))
    return margin if link is None else link(margin)
