"""An opaque operator of classification by pairs of classes: probabilities of classes by pairwise coupling."""

from __future__ import annotations

import numpy as np

from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.native.lines import coupled_probabilities_call
from burnish.ops.operator import Refused, differentiated, internal, opaque, require, require_input

_ROUNDS = 100


def _coupled_probabilities(pairs: np.ndarray) -> np.ndarray:
    """The fixed point of Wu, Lin and Weng (2004), second method; rows end as soon as they are close to it."""
    classes = pairs.shape[1]
    r = pairs.astype(np.float64)
    q = -np.swapaxes(r, 1, 2) * r
    at = np.arange(classes)
    q[:, at, at] = (np.swapaxes(r, 1, 2) ** 2).sum(2) - r[:, at, at] ** 2
    p = np.full((len(r), classes), 1 / classes)
    live = np.arange(len(r))
    for _ in range(_ROUNDS):
        part, x = q[live], p[live]
        product = np.einsum("nij,nj->ni", part, x)
        total = (x * product).sum(1)
        open_ = np.abs(product - total[:, None]).max(1, initial=0) >= 0.005 / classes
        live, part, x, product, total = live[open_], part[open_], x[open_], product[open_], total[open_]
        if not live.size:
            break
        for t in range(classes):
            own = part[:, t, t]
            step = (total - product[:, t]) / np.where(own == 0, 1, own)
            x[:, t] += step
            total = (total + step * (step * own + 2 * product[:, t])) / (1 + step) ** 2
            product = (product + step[:, None] * part[:, t]) / (1 + step)[:, None]
            x /= (1 + step)[:, None]
        p[live] = x
    return p.astype(pairs.dtype)


@differentiated(Refused("an iteration that ends as soon as each row is close enough"))
@opaque(_coupled_probabilities, coupled_probabilities_call)
def coupled_probabilities(name: str, pairs: Tensor) -> Tensor:
    """Probabilities [N, classes] from those of pairs [N, classes, classes]: of the class of the row against that of the
    column. The diagonal is not read.
    """
    require_input(pairs, "pairs", 3, "[N, classes, classes]", dtype=("float32", "float64"))
    require(pairs.shape[1] == pairs.shape[2], "input 'pairs'", str(pairs.shape), "as many columns as rows")
    return placeholder(pairs.shape[:2], pairs.dtype, name)


OPERATORS = internal(coupled_probabilities)
