"""Tuning one kernel: propose a batch, have it measured, learn from it. Proposals only; whoever asks measures them."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from math import inf
from typing import cast

import numpy as np
from numpy.typing import NDArray

from burnish.search.annealing import ContextualShare
from burnish.search.diversity import DiverseBatches
from burnish.search.remembered import Remembered
from burnish.search.space import Points
from burnish.search.walker import NOTHING, Score, Walker, best_distinct, evaluate, unseen
from burnish.tune.features import INVARIANT, Representation, extract, plausible, sequence
from burnish.tune.models.acquisition import acquire
from burnish.tune.models.base import CostModel, LoopNests, NestsAndTable, UncertainModel
from burnish.tune.models.transfer import TransferModel
from burnish.tune.models.trees import TreeModel
from burnish.tune.remaining_gain import Mixture, allocate_draws, mixture_forecast
from burnish.tune.space import Candidate, TuningSpace
from burnish.tune.strategy import TuningStrategy
from burnish.tune.transfer_bandit import TransferBandit

_SPARE = 4  # proposals asked for each that is wanted, where some may be sifted out
_STEPS = 32  # neighbours looked at for each that is wanted
_PARENTS, _ALIKE = 4, 1.1  # the fastest candidates, whose neighbours are tried: how many at most, and how much slower
_FEW = 64  # candidates of an alternative that are tried one after the other, as far as they are expected to gain
_NEAR = 0.5  # of the first trials: the share that are neighbours of the defaults
TRUSTED = 0.1  # weight of a global model, from which on it has a part in proposals
_SCREENED = 2048  # random points among which the first trials of a search that is not informed are chosen


class Tuner:
    """Tuner of one kernel: searches one space for the fastest candidate.

    ``prior``: a model of other kernels by their features in the strategy's ``common`` representation, which a strategy
    with transfer asks until it has measurements of its own, and adds to then. It may be replaced at any time. Its
    part in a batch follows how well it ranks this kernel's own trials (`TransferBandit`).
    """

    def __init__(
        self, space: TuningSpace, strategy: TuningStrategy, seed: int = 0, prior: CostModel | None = None
    ) -> None:
        self.space = space
        self.strategy = strategy = strategy.within(space.space)
        self.prior = prior if strategy.transfer else None
        self.points: Points = np.empty((0, space.space.width), np.int32)
        self.costs: list[float] = []
        self._seed, self._rng = seed, np.random.default_rng(seed)
        self._tried: set[int] = set()
        self._model = strategy.model(seed) if strategy.model else None
        self._fitted: CostModel | None = None
        self._incumbent = 1.0  # the most that the fitted model says of any candidate measured
        self._bandit = TransferBandit()
        self._alone: CostModel | None = None  # the model of this kernel's trials without the prior
        self._walker, self._batches = self._walk(seed)
        self._apart = self._walk(seed + 1) if strategy.transfer else None  # the walk of `_alone`

    def _walk(self, seed: int) -> tuple[Walker, DiverseBatches]:
        """A walk over the space, and the batches that are chosen of what it finds."""
        strategy = self.strategy
        walker = strategy.walker(self.space.space, seed)
        share = ContextualShare(self._deviation, lambda: 1.0) if strategy.share == "contextual" else strategy.share
        sifted = _Sifted(walker, self._sift) if strategy.selective else walker
        return walker, DiverseBatches(sifted, strategy.candidates, strategy.diversity, share, seed)

    @property
    def best(self) -> Candidate | None:
        """The fastest candidate measured."""
        return self.space.candidate(self.points[int(np.argmin(self.costs))]) if self.seconds < inf else None

    @property
    def seconds(self) -> float:
        """The time of the fastest candidate measured; infinite where none succeeded."""
        return min(self.costs, default=inf)

    @property
    def exhausted(self) -> bool:
        """Whether every candidate was tried."""
        return len(self._tried) >= self.space.size

    def forecast(self) -> Mixture | None:
        """Forecast of the costs that further trials find; None before two trials succeeded."""
        return mixture_forecast(self.costs, self._kinds, [a.space.size for a in self.space.alternatives])

    def propose(self, count: int) -> Points:
        """Untried points (at most ``count``, width): the defaults at first, then what the model thinks best.

        A strategy that is not informed begins at random, or with the best of random ones by what the prior says.
        """
        if not self.costs:
            if self.strategy.informed:
                first = defaults(self.space)
                return np.concatenate([first, self._early(count - len(first), first, self._keys(first))])
            return self._screened(count)
        if self._model is None:
            return self._walker.propose(_indifferent, count, self._tried)
        self._fit()
        if self.strategy.first is not None:
            count = min(count, max(self.strategy.first, len(self.costs) // 2))
        score = Remembered(self.space.space, self._score if self._fitted else _indifferent)
        few = self._few(count, score) if self.strategy.thorough else self.points[:0]
        count -= len(few)
        met = self._tried | self._keys(few)
        if self._fitted is None:
            return np.concatenate([few, self._early(count, self._fastest(), met)])
        if self.prior is not None and self._alone is None:  # nothing has borne the prior out yet
            by_prior = round(self.strategy.prior_share * count)
            found = self._proposed(by_prior, score, met, self._batches)
            early = self._early(count - len(found), self._fastest(), met | self._keys(found))
            return np.concatenate([few, found, early])
        return np.concatenate([few, self._shared(count, score, met)])

    def _fit(self) -> None:
        """Fits the model to what is measured, where that is enough; with a prior, also one that does without."""
        model, self._alone = self._model, None
        enough = len(self.costs) >= self.strategy.initial and self.seconds < inf
        if model is None or not (enough or self.prior is not None):
            return
        costs, groups = np.asarray(self.costs), np.zeros(len(self.costs), np.int64)
        features = self._features(self.points) if enough else None
        if self.prior is not None:
            local = cast(TreeModel, model).fresh(self._seed)
            if enough:
                self._alone = cast(TreeModel, model).fresh(self._seed)
                self._alone.fit(_own(features), costs, groups)
            model = TransferModel(self.prior, local, len(INVARIANT) if self._beside else None)
        self._fitted = model
        if enough:
            model.fit(features, costs, groups)
            if self.strategy.acquisition == "ei":
                self._incumbent = float(cast(UncertainModel, model).predict_distribution(features)[0].max())

    def _shared(self, count: int, score: Score, met: Set[int]) -> Points:
        """A batch by the model; with a prior, the bandit's share by what that has taught, the rest without it."""
        if self.prior is None or self._alone is None or self._apart is None:
            return self._proposed(count, score, met, self._batches)
        alone = self._alone
        if not self._bandit.begun:
            self._bandit.begin(self.prior.predict(self._common(self.points)), self.costs)
        own = Remembered(self.space.space, lambda points: alone.predict(_own(self._features(points))))
        trusted = cast(TransferModel, self._fitted).trust >= TRUSTED
        by_prior = round(self._bandit.share * count) if trusted else 0
        found = self._proposed(by_prior, score, met, self._batches)
        rest = self._proposed(count - len(found), own, met | self._keys(found), self._apart[1])
        points = np.concatenate([found, rest])
        self._bandit.foresee(self.space.space.keys(points).tolist(), score(points), own(points))
        return points

    def _proposed(self, count: int, score: Score, met: Set[int], batches: DiverseBatches) -> Points:
        """Points, (at most ``count``, width): the best by the score next to the fastest measured, and anywhere."""
        if count <= 0:
            return self.points[:0]
        near = self._near(self._fastest(), int(self.strategy.near * count), score, met)
        far = batches.propose(score, count - len(near), met | self._keys(near))
        return np.concatenate([near, far])

    def observe(self, points: Points, costs: Sequence[float]) -> None:
        """Learns what points (n, width) cost: seconds, infinite for those that failed."""
        self.points = np.concatenate([self.points, points])
        self.costs.extend(float(cost) for cost in costs)
        keys = self.space.space.keys(points).tolist()
        self._tried.update(keys)
        self._bandit.observe(keys, costs)
        with np.errstate(divide="ignore"):
            for walker in (self._walker, *(self._apart[:1] if self._apart else ())):
                walker.observe(points, -np.log(np.asarray(costs, float)))

    @property
    def _kinds(self) -> list[int]:
        """Alternative number of every candidate measured."""
        found: list[int] = self.space.space.alternatives(self.points).tolist()
        return found

    def _keys(self, points: Points) -> set[int]:
        return set(self.space.space.keys(points).tolist())

    def _few(self, count: int, score: Score) -> Points:
        """Best candidates of small alternatives, in addition to the others: at most ``count``, as many as are worth a
        trial.

        A model learns late how good so few are.
        """
        space, sizes = self.space.space, [a.space.size for a in self.space.alternatives]
        if len(sizes) == 1 or min(sizes) > _FEW:
            return self.points[:0]
        draws = allocate_draws(self.costs, self._kinds, sizes, count)
        found = [self.points[:0]]
        for first, size, own in zip(np.cumsum([0, *sizes]), sizes, draws, strict=False):
            if size <= _FEW and own:
                points = space.at(np.arange(first, first + size))
                best, _ = best_distinct(space, points, evaluate(score, points), _SPARE * own, self._tried)
                found.append(self._sift(best, own))
        return np.concatenate(found)

    def _screened(self, count: int) -> Points:
        """Random points; with a prior, the strategy's share of prior_share the best of many by the prior.

        A walk would follow the prior to its extremes, which lie where none of its kernels has taught it anything.
        """
        by_prior = round(self.strategy.prior_share * count) if self.prior is not None else 0
        if self.prior is None or not by_prior:
            return unseen(self.space.space, self._rng, count, NOTHING)
        points = unseen(self.space.space, self._rng, _SCREENED, NOTHING)
        scores = self.prior.predict(self._common(points))
        best = self._sift(best_distinct(self.space.space, points, scores, _SPARE * by_prior)[0], by_prior)
        return np.concatenate([best, unseen(self.space.space, self._rng, count - len(best), self._keys(best))])

    def _early(self, count: int, around: Points, met: Set[int]) -> Points:
        """Neighbours of the given points and random ones, for as long as no model can be asked; none that was met."""
        if count <= 0:
            return np.empty((0, self.space.space.width), np.int32)
        near = self._near(around, max(1, int(_NEAR * count)), _indifferent, met)
        far = unseen(self.space.space, self._rng, _SPARE * count, met | self._keys(near))
        return np.concatenate([near, self._sift(far, count - len(near))])

    def _fastest(self) -> Points:
        """The candidates measured that are about as fast as the best, (at most _PARENTS, width)."""
        first = np.argsort(self.costs, kind="stable")[:_PARENTS]
        return self.points[first[np.asarray(self.costs)[first] <= _ALIKE * self.seconds]]

    def _near(self, around: Points, count: int, score: Score, exclude: Set[int]) -> Points:
        """Points (at most ``count``, width) two steps or less from the given ones, of equal alternatives: the best."""
        space = self.space.space
        if not len(around):
            return around
        parents = around[self._rng.integers(len(around), size=_STEPS * count)]
        near = space.neighbours(self._rng, space.neighbours(self._rng, parents))
        if len(self.space.alternatives) > 1:
            near = near[near[:, 0] == parents[:, 0]]
        return self._sift(best_distinct(space, near, evaluate(score, near), _SPARE * count, exclude)[0], count)

    def _sift(self, points: Points, count: int) -> Points:
        """The first ``count`` of the points, of a selective strategy those that could be fast before the others."""
        if self.strategy.selective and len(points) > count:
            points = points[np.argsort(~plausible(self.space, points), kind="stable")]
        return points[:count]

    def _features(self, points: Points) -> NDArray[np.float32] | LoopNests | NestsAndTable:
        if self.strategy.representation == "sequence":
            return LoopNests(*sequence(self.space, points))
        own = cast(Representation, self.strategy.representation)
        if self.prior is not None and self.strategy.common == "sequence":
            return NestsAndTable(LoopNests(*sequence(self.space, points)), extract(self.space, own, points))
        return extract(self.space, "transfer" if self._beside else own, points)

    def _common(self, points: Points) -> NDArray[np.float32] | LoopNests:
        """Features of points for the prior."""
        if self.strategy.common == "sequence":
            return LoopNests(*sequence(self.space, points))
        return extract(self.space, self.strategy.common, points)

    @property
    def _beside(self) -> bool:
        """Whether the prior reads the first columns of a table whose others are the model's own."""
        common = self.strategy.common
        return self.prior is not None and common not in ("sequence", self.strategy.representation)

    def _score(self, points: Points) -> NDArray:
        if self.strategy.acquisition == "mean":
            return cast(CostModel, self._fitted).predict(self._features(points))
        model = cast(UncertainModel, self._fitted)
        return acquire(model, self.strategy.acquisition, self._features(points), self._incumbent)

    def _deviation(self, points: Points) -> NDArray:
        return cast(UncertainModel, self._fitted).predict_distribution(self._features(points))[1]


class _Sifted(Walker):
    """Another walker's best proposals, sifted; what is added at random later, to learn from, is not."""

    def __init__(self, walker: Walker, sift: Callable[[Points, int], Points]) -> None:
        super().__init__(walker.space)
        self._walker, self._sift = walker, sift

    def propose(self, score: Score, count: int, exclude: Set[int] = NOTHING) -> Points:
        return self._sift(self._walker.propose(score, _SPARE * count, exclude), count)


def defaults(space: TuningSpace) -> Points:
    """The choice that the template of every alternative makes by itself, (alternatives, width)."""
    return np.stack([space.point(Candidate(a, dict(a.space.default))) for a in space.alternatives])


def _own(features: object) -> object:
    """Features of a local model."""
    return features.table if isinstance(features, NestsAndTable) else features


def _indifferent(points: Points) -> NDArray:
    return np.zeros(len(points))
