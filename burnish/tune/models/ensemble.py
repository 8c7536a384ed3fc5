"""Bootstrap ensembles (AutoTVM §3.3, thesis-chen §5.2.3): any cost model becomes one that knows its uncertainty."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from burnish.errors import DataError, ParameterError
from burnish.tune.models.base import CostModel, Floats, LoopNests, MeasuredTrials, document, not_fitted, opened, table
from burnish.tune.models.registry import load_model


class BootstrapEnsemble:
    """Models like the given one, each fitted on candidates drawn with replacement; AutoTVM trains five.

    The best of each task is in every sample beside, so that throughputs relative to it mean the same to all members.
    Scores are relative throughputs, to which expected improvement on 1 can refer. Those of a model with the objective
    "rank" are taken there by the line that fits the measured throughputs best. Raises ParameterError.
    """

    kind = "ensemble"
    objective = "regression"

    def __init__(self, model: CostModel, members: int = 5, seed: int = 0) -> None:
        if members < 2:
            raise ParameterError(f"members: found {members}; allowed: 2 and more")
        self._like = model
        self._count = members
        self._seed = seed
        self._members: list[CostModel] = []
        self._lines: list[tuple[float, float]] = []

    def fit(self, features: Any, cost_seconds: Any, groups: Any) -> None:
        """See CostModel."""
        rows = features if isinstance(features, LoopNests) else table("fit", features)
        measured = MeasuredTrials.of(len(rows), cost_seconds, groups)
        cost, task = np.asarray(cost_seconds, np.float64), np.asarray(groups)
        best = np.flatnonzero(measured.throughput == 1.0)
        members, lines = [], []
        for number in range(self._count):
            random = np.random.default_rng((self._seed, number))
            drawn = np.concatenate([random.integers(0, len(rows), len(rows)), best])
            member = self._like.fresh(self._seed + number)
            member.fit(rows[drawn], cost[drawn], task[drawn])
            members.append(member)
            regression = member.objective == "regression"
            lines.append((1.0, 0.0) if regression else _line(member.predict(rows), measured))
        self._members, self._lines = members, lines

    def predict(self, features: Any) -> Floats:
        """The mean of the members, (n,); see CostModel."""
        return self.predict_distribution(features)[0]

    def predict_distribution(self, features: Any) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the members' scores, (n,) each; see UncertainModel."""
        if not self._members:
            raise not_fitted()
        each = np.array([
            slope * member.predict(features).astype(np.float64) + shift
            for member, (slope, shift) in zip(self._members, self._lines, strict=True)
        ])  # fmt: skip
        return each.mean(axis=0).astype(np.float32), each.std(axis=0, ddof=1).astype(np.float32)

    def fresh(self, seed: int) -> "BootstrapEnsemble":
        """See CostModel."""
        return BootstrapEnsemble(self._like, self._count, seed)

    def dump(self) -> dict[str, Any]:
        """See CostModel."""
        settings = {"model": self._like.fresh(0).dump(), "members": self._count, "seed": self._seed}
        state = {"members": [m.dump() for m in self._members], "lines": [list(line) for line in self._lines]}
        return document(self.kind, settings, state if self._members else None)

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> Self:
        """See CostModel."""
        _, settings, state = opened(document, cls.kind)
        model = cls(load_model(settings["model"]), settings["members"], settings["seed"])
        if state is not None:
            model._members = [load_model(member) for member in state["members"]]
            model._lines = [(float(slope), float(shift)) for slope, shift in state["lines"]]
            if not len(model._members) == len(model._lines) == model._count:
                raise DataError(f"cost model: found {len(model._members)} members; allowed: {model._count}")
        return model


def _line(scores: NDArray[np.float32], measured: MeasuredTrials) -> tuple[float, float]:
    """Slope, not negative, and shift of the least squares line from scores to relative throughputs."""
    x, y = scores.astype(np.float64), measured.throughput.astype(np.float64)
    spread = x - x.mean()
    power = float(spread @ spread)
    slope = max(float(spread @ y) / power, 0.0) if power > 0 else 0.0
    return slope, float(y.mean() - slope * x.mean())
