"""An ensemble of boosted trees: with what turns their sums into predictions, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inference.forest import CompiledForest
from burnish.boost.inference.validate import check_tree
from burnish.boost.inputs.factors import POLICIES
from burnish.boost.inputs.naming import order_of
from burnish.boost.inputs.tables import INFINITE
from burnish.boost.predictor import predict_leaf, predict_margin
from burnish.boost.tree import Tree
from burnish.errors import DataError

if TYPE_CHECKING:
    from burnish.boost.data import Dataset, Sparse
    from burnish.runtime.threads import Workers

MOST_FEATURES, MOST_OUTPUTS = 1 << 24, 1 << 20  # a file that claims more costs memory before a tree is read


@dataclass(frozen=True, eq=False)
class Ensemble:
    """An ensemble of regression trees, eq. 2.1: the margin of output k is base_score[k] plus the sum of its trees.

    Tree t belongs to output ``t % outputs``; a round makes one tree for each output. Raises DataError if the parts do
    not fit together, naming which, so that no code after it needs to check a tree.
    """

    trees: tuple[Tree, ...]
    features: int
    outputs: int = 1
    base_score: NDArray[np.float32] = field(default_factory=lambda: np.zeros(1, np.float32))  # (outputs,), margins
    objective: str = "squared_error"
    objective_parameters: Mapping[str, Any] = field(default_factory=dict)  # anything that JSON can hold
    feature_names: tuple[str, ...] = ()  # empty: none are known
    categories: tuple[tuple[Any, ...] | None, ...] = ()  # for each feature None or its values; empty: none categorical
    category_policy: str = "error"  # one of POLICIES
    best_iteration: int | None = None  # the best round by early stopping, counted from 0
    attributes: Mapping[str, str] = field(default_factory=dict)
    missing: float = math.nan  # the number that stands for a missing value in tables, beside NaN
    infinite: str = "error"  # what an infinite value in tables is: one of INFINITE

    def __post_init__(self) -> None:
        base_score = np.ascontiguousarray(self.base_score, np.float32).reshape(-1)
        object.__setattr__(self, "base_score", base_score)
        _demand(1 <= self.outputs <= MOST_OUTPUTS, "outputs", self.outputs, f"1 … {MOST_OUTPUTS}")
        _demand(0 <= self.features <= MOST_FEATURES, "features", self.features, f"0 … {MOST_FEATURES}")
        _demand(base_score.shape == (self.outputs,), "base_score", f"{len(base_score)} values", f"{self.outputs}")
        _demand(bool(np.isfinite(base_score).all()), "base_score", base_score.tolist(), "finite values")
        _demand(len(self.trees) % self.outputs == 0, "trees", len(self.trees), f"a multiple of {self.outputs} outputs")
        names, categories = self.feature_names, self.categories
        _demand(len(names) in (0, self.features), "feature_names", f"{len(names)} names", f"{self.features}")
        _demand(len(categories) in (0, self.features), "categories", f"{len(categories)} entries", f"{self.features}")
        _demand(self.category_policy in POLICIES, "category_policy", self.category_policy, ", ".join(POLICIES))
        _demand(self.infinite in INFINITE, "infinite", self.infinite, ", ".join(INFINITE))
        best = self.best_iteration
        _demand(best is None or 0 <= best < max(self.rounds, 1), "best_iteration", best, f"below {self.rounds} rounds")
        for number, tree in enumerate(self.trees):
            check_tree(tree, self.features, f"tree {number}")

    def __repr__(self) -> str:
        parts = [f"{self.objective}", f"{self.rounds} rounds", f"{self.features} features"]
        parts += [f"{self.outputs} outputs"] if self.outputs > 1 else []
        parts += [f"best_iteration {self.best_iteration}"] if self.best_iteration is not None else []
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def rounds(self) -> int:
        """Boosting rounds: trees of each output."""
        return len(self.trees) // self.outputs

    @property
    def used(self) -> tuple[int, int]:
        """The rounds ``begin … end - 1`` that predictions and explanations use: those up to `best_iteration`."""
        return (0, self.rounds if self.best_iteration is None else min(self.best_iteration + 1, self.rounds))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of every feature: f0, f1, … where none are known."""
        return self.feature_names or tuple(f"f{number}" for number in range(self.features))

    @cached_property
    def forest(self) -> CompiledForest:
        """The trees as the predictor wants them."""
        return CompiledForest(self.trees, self.outputs)

    def slice(self, begin: int, end: int) -> Self:
        """The model of rounds ``begin … end - 1`` alone, with the same base score. Raises DataError."""
        _demand(0 <= begin <= end <= self.rounds, "rounds", f"{begin} … {end}", f"0 … {self.rounds}")
        best = self.best_iteration
        kept = best - begin if best is not None and begin <= best < end else None
        return replace(self, trees=self.trees[begin * self.outputs : end * self.outputs], best_iteration=kept)

    def arranged(self, names: Sequence[str], what: str) -> Self:
        """The same model of features in the order of `names`; as it is if either has no names.

        Raises DataError, which begins with `what`, if they are other features.
        """
        order = order_of(self.feature_names, names, what)
        if order is None:
            return self
        place = np.append(np.argsort(order), -1).astype(np.int32)  # of every feature, and of none
        return replace(
            self,
            trees=tuple(replace(tree, feature=place[tree.feature]) for tree in self.trees),
            feature_names=tuple(names),
            categories=tuple(self.categories[j] for j in order.tolist()) if self.categories else (),
        )

    def predict_margin(
        self,
        data: Dataset | Sparse | NDArray[np.float32],
        workers: Workers | None = None,
        rounds: tuple[int, int] | None = None,
        base_margin: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Margins (outputs, rows): see :func:`burnish.boost.predictor.predict_margin`."""
        return predict_margin(self, data, workers, rounds, base_margin)

    def predict_leaf(
        self,
        data: Dataset | Sparse | NDArray[np.float32],
        workers: Workers | None = None,
        rounds: tuple[int, int] | None = None,
    ) -> NDArray[np.int32]:
        """The leaf (node number) of every row in every tree, (rows, trees)."""
        return predict_leaf(self, data, workers, rounds)


def _demand(condition: bool, what: str, found: object, allowed: str) -> None:
    if not condition:
        raise DataError(f"model: {what} is {found}, allowed: {allowed}")
