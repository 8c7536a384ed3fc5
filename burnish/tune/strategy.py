"""Tuning strategy: a cost model, its features, the walk over the space, and the measurement rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from burnish.errors import ParameterError
from burnish.search.annealing import Annealing
from burnish.search.exhaustive import Exhaustive
from burnish.search.genetic import Evolution, Genetic
from burnish.search.random_search import RandomSearch
from burnish.search.space import SearchSpace
from burnish.search.walker import Walker
from burnish.tune.evaluate.stopping import Adaptive, Fixed, Rule
from burnish.tune.features import Representation
from burnish.tune.models.base import CostModel
from burnish.tune.models.ensemble import BootstrapEnsemble
from burnish.tune.models.forest import ForestModel
from burnish.tune.models.neural import TreeGRUModel
from burnish.tune.models.trees import TreeModel

SMALL = 1 << 14  # points that are all scored sooner than some are found by walking
VAST = 1 << 26  # points of which a population finds one hill only


@dataclass(frozen=True)
class TuningStrategy:
    """Tuning strategy. ``model`` makes a cost model from a seed (None: ``walker`` learns by itself, or not at all).

    ``representation`` is what the model sees. Batches have ``batch`` trials (with ``first``: so many at first, more
    as more is known), chosen for score and diversity
    (``diversity``, in standard deviations of the score a covered choice) from ``candidates`` proposals each, with a
    ``share`` at random ("contextual": AdaTune's equation 3). The model is first asked after ``initial`` trials.
    One with ``transfer`` starts from what other kernels have taught, and adds to it (thesis-chen eq. 5.4): they are
    known by the representation ``common``; its model, boosted trees, sees its own beside (together: "transfer"), unless
    that is the same, or "sequence", loop nests that a context-encoded TreeGRU reads (figure 5.3 d). ``prior_share`` is
    the share of a batch that others' teaching chooses before any trial of the kernel itself bears it out.
    ``selective``: proposals that are plausible by static facts alone come before all others.
    A share ``near`` of a batch, in whole trials, is next to the fastest measured: a model learns late how good an
    alternative is of which it has seen one candidate.
    A ``thorough`` one tries alternatives with few candidates for as long as they are expected to gain most.
    An ``adaptive`` one walks a vast space from many places, and its batches are as diverse as AutoTVM's there, out of
    as many: the proposals of one population are alike, and a model of few trials is wrong about all of them together.
    An ``informed`` one begins with what the templates would choose by themselves, and with neighbours of that.
    ``acquisition`` is one of ``models.acquisition.ACQUISITIONS``; all but "mean" need a model with uncertainty.
    """

    name: str
    model: Callable[[int], CostModel] | None
    walker: Callable[[SearchSpace, int], Walker]
    representation: str = "loops"
    rule: Rule = field(default_factory=Adaptive)
    batch: int = 16
    first: int | None = None
    initial: int = 16
    candidates: int = 3
    diversity: float = 0.25
    share: float | Literal["contextual"] = 0.1
    near: float = 0.0
    acquisition: str = "mean"
    selective: bool = False
    thorough: bool = False
    adaptive: bool = False
    transfer: bool = False
    common: Representation | Literal["sequence"] = "invariant"
    prior_share: float = 0.125
    informed: bool = True

    def with_(self, **changes: object) -> TuningStrategy:
        """A copy with some parts replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def within(self, space: SearchSpace) -> TuningStrategy:
        """Strategy adapted to a space of this size."""
        if not self.adaptive or space.size <= VAST:
            return self
        return self.with_(walker=_roaming, candidates=AUTOTVM.candidates, diversity=AUTOTVM.diversity)


def _thorough(space: SearchSpace, seed: int) -> Walker:
    return Exhaustive(space, seed) if space.size <= SMALL else Evolution(space, seed=seed)


def _annealing(space: SearchSpace, seed: int) -> Walker:
    return Annealing(space, chains=128, seed=seed, steps=500)


def _roaming(space: SearchSpace, seed: int) -> Walker:
    return Annealing(space, chains=128, seed=seed, steps=240)  # so that a batch takes less than half a second


# Of two kernels in turns, few batches tell enough.
BURNISH = TuningStrategy(
    "burnish", lambda seed: TreeModel("rank", seed=seed), _thorough, representation="both", first=8, initial=8,
    rule=Adaptive(0.01, most=6, enough_seconds=5e-3), near=0.25, selective=True, thorough=True, adaptive=True,
    transfer=True, prior_share=0.75,
)  # fmt: skip
# The published systems. AutoTVM: appendix A.3, which does not say out of how many candidates a batch is chosen. Of two
# for each place all stand on one hill of a model of few trials, where the search stays (`benchmarks.study diversity`).
# AdaTune: sections 4 and 5, "RFEI + CSA + AE".
AUTOTVM = TuningStrategy(
    "autotvm", lambda seed: TreeModel("rank", seed=seed), _annealing, representation="relation",
    rule=Fixed(10), batch=64, initial=64, candidates=32, diversity=1.0, share=0.05,
)  # fmt: skip
ADATUNE = AUTOTVM.with_(
    name="adatune", model=lambda seed: ForestModel(seed=seed), acquisition="ei", share="contextual",
    rule=Adaptive(variation=0.1),
)  # fmt: skip
# With an embedding for each loop of this one space; of few measurements ranking learns more than regression (`replay`).
TREEGRU = AUTOTVM.with_(
    name="treegru", model=lambda seed: TreeGRUModel("identifier", "rank", steps=200, seed=seed),
    representation="sequence",
)  # fmt: skip
# f_global + f_local (equation 5.4): a context-encoded TreeGRU of the kernels tuned before, and trees for this one.
TREEGRU_TRANSFER = AUTOTVM.with_(name="treegru-transfer", transfer=True, common="sequence")
# Thesis-chen section 5.2.3: five models on bootstrap samples, for expected improvement or an upper confidence bound.
AUTOTVM_EI, AUTOTVM_UCB = (
    AUTOTVM.with_(
        name=f"autotvm-{acquisition}", acquisition=acquisition,
        model=lambda seed: BootstrapEnsemble(TreeModel("regression", seed=seed), seed=seed),
    ) for acquisition in ("ei", "ucb")
)  # fmt: skip
RANDOM = TuningStrategy("random", None, lambda space, seed: RandomSearch(space, seed))
GENETIC = TuningStrategy("genetic", None, lambda space, seed: Genetic(space, seed=seed))
STRATEGIES: Mapping[str, TuningStrategy] = {
    "burnish": BURNISH, "autotvm": AUTOTVM, "autotvm-ei": AUTOTVM_EI, "autotvm-ucb": AUTOTVM_UCB,
    "adatune": ADATUNE, "treegru": TREEGRU, "treegru-transfer": TREEGRU_TRANSFER, "random": RANDOM, "genetic": GENETIC,
}  # fmt: skip


def strategy_named(name: str) -> TuningStrategy:
    """Raises ParameterError for a name that is none of STRATEGIES."""
    if name not in STRATEGIES:
        raise ParameterError(f"strategy: found {name!r}; allowed: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
