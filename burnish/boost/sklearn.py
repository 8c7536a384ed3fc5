"""Estimators for scikit-learn: a classifier, a regressor and a ranker with the parameters of `Params`."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.booster import train
from burnish.boost.data import Dataset
from burnish.boost.inputs.arguments import (
    check_label_objective,
    column_of,
    either,
    label_indicators,
    labels_of,
    of_fit,
    of_true_and_predicted,
    pairs_of,
    refuse_of_predict,
    rows_of_sets,
    weights_of,
    with_others,
    without_class_count,
)
from burnish.boost.model import Model
from burnish.boost.params import Params
from burnish.boost.prediction import predict
from burnish.errors import ParameterError
from burnish.optional import require

_base: Any = require("sklearn.base", "boost")
_validation: Any = require("sklearn.utils.validation", "boost")
_multiclass: Any = require("sklearn.utils.multiclass", "boost")
_class_weight: Any = require("sklearn.utils.class_weight", "boost")


class _Estimator(_base.BaseEstimator):
    """What the three have in common. Parameters are those of `Params`; None stands for its default.

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

    def _fit(self, params: Params, training: Dataset, valid: dict[str, Dataset], callbacks: Sequence[Any]) -> None:
        self.evals_result_: dict[str, dict[str, list[float]]] = {}
        for name in ("best_iteration_", "best_score_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        if params.early_stopping_rounds and not valid:
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
            params, training, valid=valid, history=self.evals_result_, callbacks=callbacks, continue_from=before
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


class GBTRegressor(_base.RegressorMixin, _Estimator):
    """Tree boosting for regression: objectives "squared_error", "poisson", "quantile", "logistic" (labels 0 … 1)."""

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
        *,
        eval_set: Sequence[tuple[Any, Any]] = (),
        base_margin: Any = None,
        sample_weight_eval_set: Sequence[Any] | None = None,
        base_margin_eval_set: Sequence[Any] | None = None,
        callbacks: Sequence[Any] = (),
        **others: Any,
    ) -> "GBTRegressor":
        """Trains on rows X (rows, features) with labels y (rows,), or (rows, outputs) with trees for each output.

        eval_set holds further pairs (X, y) to evaluate.
        sample_weight_eval_set, base_margin_eval_set: those of each pair, or None for a pair that has none.
        """
        base_margin, sample_weight_eval_set, base_margin_eval_set = of_fit(
            others, base_margin, sample_weight_eval_set, base_margin_eval_set
        )
        x, y = self._checked(X, reset=True), labels_of(self, y)
        weight = None if sample_weight is None else weights_of(sample_weight, x)
        training = self._dataset(x, label=y, weight=weight, base_margin=base_margin)
        rows = rows_of_sets(len(eval_set), sample_weight_eval_set, base_margin_eval_set)
        valid = {}
        for number, (a, b, *_) in enumerate(pairs_of(eval_set)):
            table = self._checked(a, reset=False)
            valid[f"valid_{number}"] = self._dataset(table, training, label=b, **rows[number])
        self._fit(self._settings(), training, valid, callbacks)
        return self

    def predict(self, X: Any, *, base_margin: Any = None, **others: Any) -> NDArray[np.float32]:  # noqa: N803
        """Values (rows,), float32; of several outputs (rows, outputs), float64 as scikit-learn wants them."""
        values = self._predict(X, "prediction", others, base_margin)
        return values if values.ndim == 1 else values.astype(np.float64)


class GBTClassifier(_base.ClassifierMixin, _Estimator):
    """Tree boosting for classification: log-odds of two classes, or a margin for each of more. classes_ after `fit`.

    Labels (rows, labels) of 0 and 1 are multi-label: each is an output of its own, `classes_` their numbers.
    Data of one class raise ValueError; with one_class="constant" every row is of it, with a probability of 1.
    """

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
        *,
        eval_set: Sequence[tuple[Any, Any]] = (),
        base_margin: Any = None,
        sample_weight_eval_set: Sequence[Any] | None = None,
        base_margin_eval_set: Sequence[Any] | None = None,
        callbacks: Sequence[Any] = (),
        **others: Any,
    ) -> "GBTClassifier":
        """Trains on rows X (rows, features) with classes y (rows,) of any type, or labels 0 and 1 (rows, labels).

        eval_set holds further pairs (X, y).
        sample_weight_eval_set, base_margin_eval_set: those of each pair, or None for a pair that has none.
        """
        base_margin, sample_weight_eval_set, base_margin_eval_set = of_fit(
            others, base_margin, sample_weight_eval_set, base_margin_eval_set
        )
        x, matrix = self._checked(X, reset=True), label_indicators(y)
        y = column_of(y) if matrix is None else matrix
        _validation.check_consistent_length(x, y)
        self.multilabel_ = matrix is not None
        label = self._classes_of(y) if matrix is None else matrix
        if matrix is not None:
            self.n_classes_ = matrix.shape[1]
            self.classes_ = np.arange(self.n_classes_)
        weight = None if sample_weight is None else weights_of(sample_weight, x)
        if self.class_weight is not None:
            own = _class_weight.compute_sample_weight(self.class_weight, y)
            weight = own if weight is None else weight * own
        training = self._dataset(x, label=label, weight=weight, base_margin=base_margin)
        rows = rows_of_sets(len(eval_set), sample_weight_eval_set, base_margin_eval_set)
        valid = {}
        for number, (a, b, *_) in enumerate(pairs_of(eval_set)):
            table = self._checked(a, reset=False)
            label = self._numbers(b)
            valid[f"valid_{number}"] = self._dataset(table, training, label=label, **rows[number])
        self._fit(self._class_settings(), training, valid, callbacks)
        return self

    def _classes_of(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """The numbers of the classes of training, which become `classes_`; of one alone 1, if that is allowed.

        Raises ValueError if it is not.
        """
        _multiclass.check_classification_targets(y)
        self.classes_, label = np.unique(y, return_inverse=True)
        self.n_classes_ = len(self.classes_)
        if self.n_classes_ < 2 and self.one_class != "constant":
            raise ValueError(
                f"{type(self).__name__} needs 2 classes and more; found 1 class: {self.classes_[0]}; allowed with "
                "one_class='constant'"
            )
        return np.asarray(label) + self._alone

    def _class_settings(self) -> Params:
        """The parameters of `train`. Raises ParameterError for an objective that is none of so many classes."""
        if self.multilabel_:
            check_label_objective(self.objective)
            return self._settings(objective=self.objective or "logistic")
        objective = self.objective or ("logistic" if self.n_classes_ <= 2 else "softmax")
        alone = not callable(objective) and Params.objective_named(objective) != "softmax"
        if alone and self.n_classes_ > 2:
            raise ParameterError(
                f"objective: found {objective!r} with {self.n_classes_} classes; allowed: None or 'softmax', "
                "and with 2 classes 'logistic'"
            )
        params = self._settings(objective=objective, num_class=None if alone or self._one else self.n_classes_)
        if not callable(params.objective) and params.objective not in ("logistic", "softmax"):
            raise ParameterError(
                f"objective: found {params.objective!r}; allowed of classes: None, 'logistic', 'softmax' or a "
                "function; GBTRegressor takes the others"
            )
        if params.num_class != (1 if alone or self._one else self.n_classes_):
            raise ParameterError(f"num_class: found {params.num_class}; allowed: {self.n_classes_}, the classes of y")
        return params

    @property
    def _alone(self) -> int:
        """The number of the only class in training data of one, 1 as what is certain; of more classes 0."""
        return int(self.n_classes_ == 1)

    @property
    def _one(self) -> bool:
        """Whether a function of the user's has one margin for two classes."""
        return callable(self.objective) and self.n_classes_ == 2

    def _numbers(self, y: Any) -> Any:
        """The numbers of classes, or labels. Raises ParameterError for a class that training has not seen."""
        if self.multilabel_:
            return label_indicators(y, self.n_classes_)
        y = column_of(y)
        place = np.minimum(np.searchsorted(self.classes_, y), self.n_classes_ - 1)
        unseen = self.classes_[place] != y
        if unseen.any():
            found = y[np.argmax(unseen)].tolist()
            raise ParameterError(f"eval_set: found class {found!r}; allowed: {self.classes_.tolist()}")
        return place + self._alone

    def decision_function(self, X: Any, *, base_margin: Any = None, **others: Any) -> NDArray[np.float32]:  # noqa: N803
        """Margins: (rows,) of two classes, else (rows, classes) or (rows, labels)."""
        return self._predict(X, "margin", others, base_margin)

    def predict_proba(self, X: Any, *, base_margin: Any = None, **others: Any) -> NDArray[np.float32]:  # noqa: N803
        """Probabilities (rows, classes), or of label 1 (rows, labels).

        A function may have an attribute `prediction`: what gives probabilities at margins, (rows,) of class 1 for two
        classes, else (rows, classes). Raises ParameterError for a function without, of which none are known.
        """
        p = self._predict(X, "prediction", others, base_margin)
        if self.model_.objective == "custom":
            link = getattr(self.objective, "prediction", None)
            if link is None:
                raise ParameterError(
                    "predict_proba: the objective is a function, whose margins are no probabilities; allowed: "
                    "decision_function, predict, or a function with an attribute 'prediction': margins -> probabilities"
                )
            p = np.asarray(link(p), np.float32)
        if not self.multilabel_ and self._alone:
            return np.ones((len(p), 1), np.float32)
        return p if p.ndim == 2 else np.stack([1.0 - p, p], axis=1)

    def predict(self, X: Any, *, base_margin: Any = None, **others: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each row, (rows,); by a function as objective, of positive or largest margin.

        Of several labels 0 or 1 for each, (rows, labels).
        """
        _validation.check_is_fitted(self, "model_")
        if self.multilabel_:
            border = 0.0 if self.model_.objective == "custom" else 0.5
            return (self._predict(X, "prediction", others, base_margin) > border).astype(np.int64)
        number = self._predict(X, "class", others, base_margin)
        return self.classes_[number - self._alone * number]


class GBTRanker(_Estimator):
    """Tree boosting for ranking: objectives "rank_ndcg" (LambdaMART), "rank_map" and "rank_pairwise"."""

    _objective = "rank_ndcg"
    _multi_output = False

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        *,
        group: Any = None,
        qid: Any = None,
        query_weight: Any = None,
        eval_set: Sequence[tuple[Any, ...]] = (),
        eval_group: Sequence[Any] | None = None,
        eval_qid: Sequence[Any] | None = None,
        base_margin: Any = None,
        sample_weight_eval_set: Sequence[Any] | None = None,
        eval_sample_weight: Sequence[Any] | None = None,
        base_margin_eval_set: Sequence[Any] | None = None,
        callbacks: Sequence[Any] = (),
        **others: Any,
    ) -> "GBTRanker":
        """Trains on rows X with relevance grades y. Queries are given by the sizes `group` or a `qid` for each row.

        Without both, all rows are of one query. query_weight: (queries,), or (rows,) equal within a query. eval_set
        holds (X, y, group), or (X, y) with the sizes or ids of each set in eval_group or eval_qid.
        sample_weight_eval_set, or by its other name eval_sample_weight: weights of each set, of its queries or rows, or
        None for one that has none; base_margin_eval_set likewise. A keyword sample_weight is query_weight. Raises
        ParameterError for a set without queries beside training data that have them.
        """
        query_weight = either("query_weight", query_weight, "sample_weight", others.pop("sample_weight", None))
        base_margin, weights, base_margin_eval_set = of_fit(
            others | {"eval_sample_weight": eval_sample_weight}, base_margin, sample_weight_eval_set,
            base_margin_eval_set,
        )  # fmt: skip
        more = rows_of_sets(len(eval_set), weights, base_margin_eval_set)
        x, y = self._checked(X, reset=True), column_of(labels_of(self, y))
        whole = group is None and qid is None
        if whole:
            group = [len(y)]
        training = self._dataset(x, label=y, group=group, qid=qid, weight=query_weight, base_margin=base_margin)
        valid = {}
        for name, given in (("eval_group", eval_group), ("eval_qid", eval_qid)):
            if given is not None and len(given) != len(eval_set):
                raise ParameterError(f"{name}: found {len(given)} entries; allowed: {len(eval_set)}, one for each set")
        for number, (a, b, *rest) in enumerate(pairs_of(eval_set)):
            sizes = rest[0] if rest else None if eval_group is None else eval_group[number]
            ids = None if eval_qid is None else eval_qid[number]
            if sizes is None and ids is None:
                if not whole:
                    raise ParameterError(
                        f"eval_set: found entry {number} without queries; allowed: (X, y, group), or (X, y) with "
                        "eval_group or eval_qid"
                    )
                sizes = [len(b)]
            table = self._checked(a, reset=False)
            valid[f"valid_{number}"] = self._dataset(table, training, label=b, group=sizes, qid=ids, **more[number])
        self._fit(self._settings(), training, valid, callbacks)
        return self

    def predict(self, X: Any, *, base_margin: Any = None, **others: Any) -> NDArray[np.float32]:  # noqa: N803
        """Scores (rows,): larger ones come first."""
        return self._predict(X, "prediction", others, base_margin)
