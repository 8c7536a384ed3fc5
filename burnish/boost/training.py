"""A training under way: margins, gradients, one tree for each output and round, and what grows them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from burnish.boost.dart import Drops, check_dart, without
from burnish.boost.data import Dataset
from burnish.boost.ensemble import Ensemble
from burnish.boost.inputs.tables import feature_label
from burnish.boost.leaves import LeafSums
from burnish.boost.losses import gradients
from burnish.boost.losses.outputs import objective_for
from burnish.boost.losses.reduction import Reduction
from burnish.boost.model import Model
from burnish.boost.objective import Floats, Objective
from burnish.boost.params import Params
from burnish.boost.predictor import add_tree
from burnish.boost.sampling import ColumnSampler, column_sampler, sample_rows
from burnish.boost.tree import Tree
from burnish.boost.update import GrownTrees
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import GRAIN, Workers


class Grower(Protocol):
    """Grows trees on the rows it was made with."""

    def grow(self, gradient: Floats, hessian: Floats, columns: ColumnSampler) -> tuple[Tree, NDArray[np.int32]]:
        """One tree on gradient statistics (rows,), and the leaf (node number) of every training row."""


def training_of(params: Params) -> "type[Training]":
    """The kind of training that `booster` names."""
    return DartTraining if params.booster == "dart" else Training


class Training:
    """Margins, gradients and trees of a training under way."""

    rescales = False  # whether a round changes earlier trees

    def __init__(
        self,
        params: Params,
        dataset: Dataset,
        workers: Workers,
        comm: Any = None,
        grower: Grower | None = None,
        continue_from: Ensemble | None = None,
    ) -> None:
        self.params, self.dataset, self.workers = params, dataset, workers
        if params.process_type == "update" and not isinstance(grower, GrownTrees):
            raise ParameterError(
                "parameter 'process_type': found 'update' without a model whose trees are known; allowed: with "
                "train(…, continue_from=model) alone"
            )
        self.reduction = Reduction(comm)
        _check_features(params, dataset)
        self.objective: Objective = objective_for(params, dataset)
        self.outputs = self.objective.outputs
        self._each = self.outputs * params.num_parallel_tree  # trees of a round
        self.objective.prepare(dataset, self.reduction)
        if dataset.weight is not None and self.reduction.maximum(float(dataset.weight.max(initial=0.0))) == 0.0:
            raise DataError("weight: found 0 for all rows; allowed: one that is positive, at least")
        self._first_row = self.reduction.before(dataset.rows)
        self.trees: list[Tree] = []
        if continue_from is None:
            self.base_score = self.objective.base_score()
        else:
            continue_from = continue_from.arranged(dataset.feature_names, "continue_from")
            check_continues(continue_from, self.objective.name, self.outputs, dataset)
            if len(continue_from.trees) % self._each:
                raise ParameterError(
                    f"continue_from: the model has {continue_from.rounds} trees of each output; allowed: a multiple of "
                    f"num_parallel_tree, {params.num_parallel_tree}"
                )
            self.base_score = continue_from.base_score
            self.trees.extend(continue_from.trees)
        self.margin = self.margins(dataset)
        self._gradient, self._hessian = np.empty_like(self.margin), np.empty_like(self.margin)
        if params.rounds:
            params.of_round(self.rounds + params.rounds - 1)  # refused before the first round
        first = params.of_round(self.rounds)
        shared = replace(first, learning_rate=first.learning_rate / params.num_parallel_tree)
        self.grower = grower or grower_of(dataset, shared, workers, comm)
        self._leaves = LeafSums(shared, dataset.rows, dataset.features, workers, self.reduction.comm)

    @property
    def rounds(self) -> int:
        """Rounds of the model so far."""
        return len(self.trees) // self._each

    def margins(self, dataset: Dataset) -> Floats:
        """The margins of a data set's rows by the trees so far, (outputs, rows)."""
        return self.model().predict_margin(dataset, self.workers)

    def boost(self) -> list[Tree]:
        """One round: trees for each output, all on the gradients at the margins before. Adds them to the margins."""
        number, parallel = self.rounds, self.params.num_parallel_tree
        if self.params.scheduled:
            self._take(self.params.of_round(number))
        self.objective.gradient(self.margin, self._gradient, self._hessian, number, self.workers)
        start = self.margin if parallel == 1 else self.margin.copy()
        grown: list[Tree] = []
        for copy in range(parallel):
            statistics = self._gradient, self._hessian
            if parallel > 1:
                statistics = self._gradient.copy(), self._hessian.copy()
            sample_rows(self.params, number * parallel + copy, *statistics, self.workers, self._first_row)
            for output in range(self.outputs):
                columns = column_sampler(self.params, self.dataset.features, len(self.trees) + len(grown))
                gradient, hessian = statistics[0][output], statistics[1][output]
                tree, leaf = self.grower.grow(gradient, hessian, columns)
                tree = self._leaves.refined(tree, leaf, gradient, hessian)
                tree = self.objective.refit(tree, leaf, start[output], hessian, output)
                self._add(tree, leaf, self.margin[output])
                grown.append(tree)
        self.trees.extend(grown)
        return grown

    def _take(self, params: Params) -> None:
        """Takes the learning rate of a round."""
        self.objective.set_params(params)
        self._leaves.learning_rate = params.learning_rate / params.num_parallel_tree

    def replay(self, trees: Sequence[Tree]) -> None:
        """One round whose trees are known. Adds them to the margins."""
        follow = getattr(self.grower, "follow", None)  # of one whose rows' values are not in the data set
        for number, tree in enumerate(trees):
            if follow is not None:
                self._add(tree, follow(tree), self.margin[number % self.outputs])
            else:
                add_tree(tree, self.dataset, self.margin[number % self.outputs], self.workers)
        self.trees.extend(trees)

    def _add(self, tree: Tree, leaf: NDArray[np.int32], margin: Floats) -> None:
        self.workers.each(gradients.add_leaves, len(margin), margin, leaf, tree.value, grain=GRAIN)

    def model(self, best_iteration: int | None = None, attributes: Mapping[str, str] | None = None) -> Model:
        """The model of the rounds so far."""
        whole = self.rounds * self._each
        if best_iteration is not None:  # a model counts parallel trees as rounds
            best_iteration = (best_iteration + 1) * self.params.num_parallel_tree - 1
        return Model(
            trees=tuple(self.trees[:whole]),
            features=self.dataset.features,
            outputs=self.outputs,
            base_score=self.base_score,
            objective=self.objective.name,
            objective_parameters=_kept(self.params),
            feature_names=self.dataset.feature_names,
            categories=self.dataset.categories,
            category_policy=self.dataset.policy,
            best_iteration=best_iteration,
            attributes=attributes or {},
            missing=self.dataset.missing,
            infinite=self.dataset.infinite,
        )


class DartTraining(Training):
    """Each round is fitted to what a random part of the trees lacks; then new and dropped trees share the step.

    Weights are multiplied into the leaves, so that a model is one as any other. Margins are computed anew whenever
    trees were dropped: a model predicts what its training saw, bit for bit.
    """

    rescales = True

    def __init__(self, params: Params, dataset: Dataset, workers: Workers, *more: Any) -> None:
        check_dart(params)
        super().__init__(params, dataset, workers, *more)
        self._drops = Drops(params, self.trees)

    def boost(self) -> list[Tree]:
        """One round; see Training."""
        dropped = self._drops.chosen(self.rounds)
        if dropped:
            whole, self.trees = self.trees, without(self.trees, dropped)
            self.margin[:] = self.margins(self.dataset)
            self.trees = whole
        grown = super().boost()
        self._drops.add(grown)
        if dropped:
            for number, tree in self._drops.shared(dropped, len(grown)).items():
                self.trees[number] = tree
            self.margin[:] = self.margins(self.dataset)
        return grown

    def _take(self, params: Params) -> None:
        """See Training."""
        super()._take(params)
        self._drops.params = params

    def replay(self, trees: Any) -> None:
        """Not possible: weights are not kept."""
        raise ParameterError("resume_from: found with booster 'dart', whose trees change later; allowed: 'gbtree'")


def grower_of(dataset: Dataset, params: Params, workers: Workers, comm: Any = None) -> Grower:
    """The grower that `tree_method` names. Raises ParameterError for "exact" where rows lie on several workers."""
    if params.tree_method == "exact":
        if comm is not None and comm.size > 1:
            raise ParameterError(
                "parameter 'tree_method': found 'exact' with comm; allowed: 'hist', 'approx', or train_distributed, "
                "whose workers then share the columns out"
            )
        from burnish.boost.exact import ExactGrower

        return ExactGrower(dataset, params, workers)
    if params.tree_method == "approx":
        from burnish.boost.approx import ApproxGrower

        return ApproxGrower(dataset, params, workers, comm)
    from burnish.boost.grower import HistGrower

    return HistGrower(dataset, params, workers, comm)


def _check_features(params: Params, dataset: Dataset) -> None:
    if dataset.rows == 0:
        raise DataError("the training data has no rows; allowed: 1 and more")
    signs = len(params.monotone_constraints)
    if signs not in (0, dataset.features):
        raise ParameterError(f"parameter 'monotone_constraints': found {signs} signs; allowed: {dataset.features}")
    ordered = np.flatnonzero(np.array(params.monotone_constraints or (0,)) * dataset.categorical)
    if len(ordered):
        name = feature_label(int(ordered[0]), dataset.feature_names)
        raise ParameterError(
            f"parameter 'monotone_constraints': found {params.monotone_constraints[ordered[0]]} for {name}, which is "
            "categorical: its values have no order; allowed: 0, or the feature as numbers"
        )


def check_continues(model: Ensemble, objective: str, outputs: int, dataset: Dataset) -> None:
    """Raises ParameterError or DataError for a model that no training of this data continues."""
    wanted = {"objective": objective, "outputs": outputs, "features": dataset.features}
    for what, value in wanted.items():
        found = getattr(model, what)
        if found != value:
            raise ParameterError(f"continue_from: the model's {what}: found {found!r}; allowed: {value!r}")
    if tuple(model.categories) != tuple(dataset.categories):
        raise DataError("continue_from: the model has other categories; make the data with categories=model.categories")


def _kept(params: Params) -> dict[str, Any]:
    """The parameters of an objective that belong to the model."""
    names: dict[str, tuple[str, ...]] = {
        "softmax": ("num_class",), "quantile": ("quantile_alpha",), "logistic": ("scale_pos_weight",),
        "poisson": ("max_delta_step",), "huber": ("huber_slope",), "reg:pseudohubererror": ("huber_slope",),
        "reg:tweedie": ("tweedie_variance_power",),
        "survival:aft": ("aft_loss_distribution", "aft_loss_distribution_scale"),
    }  # fmt: skip
    ranking = ("lambdarank_pair_method", "lambdarank_num_pair_per_sample", "lambdarank_normalization", "ndcg_exp_gain")
    objective = str(params.objective)
    own = ranking if objective.startswith("rank_") else names.get(objective, ())
    return {name: getattr(params, name) for name in own}
