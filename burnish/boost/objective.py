"""Objectives by name: the loss whose gradient and Hessian trees are fitted to (§2.1.2), and its predictions."""

from burnish.boost.links import predicted
from burnish.boost.losses import regression, survival
from burnish.boost.losses.base import Floats, Objective
from burnish.boost.losses.basic import Custom, Logistic, Poisson, Quantile, Softmax, SquaredError, least_quantile
from burnish.boost.losses.ranking import MapRanking, NdcgRanking, PairwiseRanking
from burnish.boost.params import Params
from burnish.runtime.threads import Workers

__all__ = ["Floats", "Objective", "least_quantile", "objective_of", "transform"]

_KINDS: tuple[type[Objective], ...] = (
    SquaredError, Logistic, Poisson, Quantile, Softmax, PairwiseRanking, NdcgRanking, MapRanking, *regression.KINDS,
    *survival.KINDS,
)  # fmt: skip
_OBJECTIVES = {kind.name: kind for kind in _KINDS}
_LINKED = {kind.name: kind for kind in (Logistic, Poisson, Softmax, regression.Gamma, regression.Tweedie)} | {
    kind.name: kind for kind in survival.KINDS
}


def objective_of(params: Params) -> Objective:
    """The objective that the parameters name."""
    if callable(params.objective):
        return Custom(params, params.objective)
    return _OBJECTIVES[params.objective](params)


def transform(objective: str, margin: Floats, workers: Workers | None = None) -> Floats:
    """Predictions of a model with the named objective at margins, both (outputs, rows), by its link."""
    if objective not in _LINKED:
        return predicted(objective, margin)
    return _LINKED[objective](Params(num_class=margin.shape[0])).prediction(margin, workers)
