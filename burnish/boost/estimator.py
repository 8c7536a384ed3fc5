"""Base class of the scikit-learn estimators: parameters, checks of tables, predictions."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.optional import require
from burnish.boost.booster import train
from burnish.boost.data import Dataset
from burnish.boost.inputs.arguments import (
    of_true_and_predicted,
    refuse_of_predict,
    with_others,
    without_class_count,
)
from burnish.boost.model import Model
from burnish.boost.params import Params
from burnish.boost.prediction import predict
from burnish.errors import ParameterError

_base: Any = require("sklearn.base", "boost")
_validation: Any = require("sklearn.utils.validation", "boost")
_multiclass: Any = require("sklearn.utils.multiclass", "boost")
_class_weight: Any = require("sklearn.utils.class_weight", "boost")


class Estimator(_base.BaseEstimator):
    """Base class of the three estimators. Parameters are those of `Params`; None stands for its default.

    Other keywords that `train` knows (`alpha`, `num_leaves`, `rate_drop`, …) become entries of `extra`; `fit` raises
    ParameterError for one that it does not know.

    categorical, category_policy, missing, infinite: as of `Dataset.of`. Predictions take base_margin, (rows,) or (rows,
    outputs), in the place of the base score, as `fit` does.

    After `fit`: model_ (a Model), evals_result_ (metrics of eval_set by round), best_iteration_ and best_score_ with
    early stopping, feature_importances_, n_features_in_.
    """

    _objective = "squared_error"
    _multi_output = True

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        objective: Any = None,
        learning_rate: Any = None,
        max_depth: int | None = None,
        max_leaves: int | None = None,
        grow_policy: str | None = None,
        tree_method: str | None = None,
        max_bin: int | None = None,
        gamma: float | None = None,
        reg_lambda: float | None = None,
        reg_alpha: float | None = None,
        min_child_weight: float | None = None,
        max_delta_step: float | None = None,
        subsample: float | None = None,
        colsample_bytree: float | None = None,
        colsample_bylevel: float | None = None,
        colsample_bynode: float | None = None,
        monotone_constraints: Any = None,
        base_score: float | None = None,
        scale_pos_weight: float | None = None,
        interaction_constraints: Any = None,
        num_parallel_tree: int | None = None,
        warm_start: bool = False,
        quantile_alpha: float | None = None,
        eval_metric: Any = None,
        early_stopping_rounds: int | None = None,
        categorical: Sequence[int | str] | None = None,
        category_policy: str = "error",
        missing: float = math.nan,
        importance_type: str = "gain",
        random_state: Any = None,
        n_jobs: int | None = None,
        extra: dict[str, Any] | None = None,
        class_weight: Any = None,
        one_class: str = "error",
        infinite: str = "error",
        **others: Any,
    ) -> None:
        n_estimators, extra = with_others(n_estimators, extra, others)
        self.n_estimators = n_estimators
        self.objective = objective
        self.learning_rate = learning_rate
        self.max_depth = max_depth
        self.max_leaves = max_leaves
        self.grow_policy = grow_policy
        self.tree_method = tree_method
        self.max_bin = max_bin
        self.gamma = gamma
        self.reg_lambda = reg_lambda
        self.reg_alpha = reg_alpha
        self.min_child_weight = min_child_weight
        self.max_delta_step = max_delta_step
        self.subsample = subsample
        self.colsample_bytree = colsample_bytree
        self.colsample_bylevel = colsample_bylevel
        self.colsample_bynode = colsample_bynode
        self.monotone_constraints = monotone_constraints
        self.base_score = base_score
        self.scale_pos_weight = scale_pos_weight
        self.interaction_constraints = interaction_constraints
        self.num_parallel_tree = num_parallel_tree
        self.warm_start = warm_start
        self.quantile_alpha = quantile_alpha
        self.eval_metric = eval_metric
        self.early_stopping_rounds = early_stopping_rounds
        self.categorical = categorical
        self.category_policy = category_policy
        self.missing = missing
        self.importance_type = importance_type
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.extra = extra
        self.class_weight = class_weight
        self.one_class = one_class
        self.infinite = infinite

    def set_params(self, **params: Any) -> Any:
        """Sets parameters, by their names or those of other libraries as in the constructor. Returns the estimator."""
        own = self.get_params(deep=False)
        others = {name: params.pop(name) for name in tuple(params) if name not in own and "__" not in name}
        super().set_params(**params)
        rounds, self.extra = with_others(None, self.extra, others)
        self.n_estimators = self.n_estimators if rounds is None else rounds
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.categorical = bool(self.categorical)
        tags.target_tags.required = True
        tags.target_tags.multi_output = self._multi_output
        return tags

    def _settings(self, **more: Any) -> Params:
        """The parameters of `train`."""
        own = (
            "categorical", "category_policy", "missing", "importance_type", "random_state", "extra", "class_weight",
            "warm_start", "one_class", "infinite",
        )  # fmt: skip
        given = {name: value for name, value in self.get_params(deep=False).items() if name not in own}
        if self.class_weight is not None and not _base.is_classifier(self):
            raise ParameterError(f"class_weight: found {self.class_weight!r}; allowed: None, as there are no classes")
        if self.one_class not in (("error", "constant") if _base.is_classifier(self) else ("error",)):
            raise ParameterError(f"one_class: found {self.one_class!r}; allowed: 'error', of a classifier 'constant'")
        seed = self.random_state
        if seed is not None and not isinstance(seed, (int, np.integer)):
            seed = int(_validation.check_random_state(seed).randint(2**31 - 1))
        if not isinstance(self.extra, (dict, type(None))):
            raise ParameterError(f"extra: found {self.extra!r}; allowed: a dictionary of parameters, or None")
        extra = dict(self.extra or {})
        if _base.is_classifier(self):
            extra = without_class_count(extra, self.n_classes_)
        twice = [name for name in extra if given.get(name) is not None and given[name] != extra[name]]
        if twice:
            name = twice[0]
            raise ParameterError(f"extra: found {name}={extra[name]!r}; allowed: {given[name]!r}, the parameter itself")
        given |= {"seed": seed, "objective": self.objective or self._objective, "num_class": None} | more
        given["objective"] = of_true_and_predicted(given["objective"])
        return Params.of(given | extra, self._names() or ())

    def _checked(self, x: Any, reset: bool) -> Any:
        """The table as `Dataset.of` reads it, with scikit-learn's checks and messages; frames stay frames."""
        frame = hasattr(x, "columns") or hasattr(x, "column_names")
        if frame:
            _validation._check_feature_names(self, x, reset=reset)
            _validation._check_n_features(self, x, reset=reset)
            return x
        return _validation.validate_data(
            self,
            x,
            reset=reset,
            accept_sparse="csr",
            dtype="numeric",
            ensure_all_finite="allow-nan" if self.infinite == "error" else False,
        )

    def _dataset(self, x: Any, like: Dataset | Model | None = None, **rows: Any) -> Dataset:
        """The rows of x; those of training data, or with the columns and categories of the data or model `like`."""
        frame = hasattr(x, "columns") or hasattr(x, "column_names")
        return Dataset.of(
            x,
            missing=self.missing,
            categorical=self.categorical or (),
            categories=() if like is None else like.categories,
            policy=self.category_policy,
            feature_names=None if frame else self._names(),
            columns=() if like is None else like.feature_names,
            infinite=self.infinite,
            **rows,
        )

    def _names(self) -> list[str] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else [str(name) for name in names]

    def _fit(
        self, params: Params, training: Dataset, validation_data: dict[str, Dataset], callbacks: Sequence[Any]
    ) -> None:
        self.evals_result_: dict[str, dict[str, list[float]]] = {}
        for name in ("best_iteration_", "best_score_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        if params.early_stopping_rounds and not validation_data:
            raise ParameterError(
                f"early_stopping_rounds: found {params.early_stopping_rounds} without eval_set; allowed: with an "
                "eval_set in fit, or None"
            )
        before = getattr(self, "model_", None) if self.warm_start else None
        if before is not None and params.process_type == "default":
            grown = before.rounds // params.num_parallel_tree
            if params.rounds < grown:
                raise ValueError(f"n_estimators={params.rounds} must be at least {grown}: warm_start keeps those")
            params = dataclasses.replace(params, rounds=params.rounds - grown)
        self.model_: Model = train(
            params,
            training,
            validation_data=validation_data,
            history=self.evals_result_,
            callbacks=callbacks,
            continue_from=before,
        )
        self.n_iter_ = self.model_.rounds
        if self.model_.best_iteration is not None:
            self.best_iteration_ = self.model_.best_iteration
            self.best_score_ = float(self.model_.attributes["best_score"])

    def _predict(self, x: Any, output: str, others: Mapping[str, Any], base_margin: Any = None) -> NDArray[Any]:
        refuse_of_predict(others)
        _validation.check_is_fitted(self, "model_")
        x = self._checked(x, reset=False)
        data = self._dataset(x, self.model_, base_margin=base_margin)
        return predict(self.model_, data, output=output, threads=self.n_jobs)

    def apply(self, X: Any, **others: Any) -> NDArray[np.int32]:  # noqa: N803 - scikit-learn's name
        """The leaf (node number) of every row in every tree, (rows, trees)."""
        return self._predict(X, "leaf", others)

    @property
    def feature_importances_(self) -> NDArray[np.float32]:
        """Share of each feature in the importance `importance_type`, (features,), adding up to 1 (or all 0)."""
        _validation.check_is_fitted(self, "model_")
        from burnish.boost.importance import shares

        return shares(self.model_, self.importance_type)
