"""Training parameters: their names, defaults and ranges, with the names that XGBoost, LightGBM and scikit-learn use."""

import contextlib
import difflib
import json
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from burnish.boost import synonyms
from burnish.errors import ParameterError

# Other names of a parameter. Where libraries disagree, one means what it means in XGBoost (`alpha` is the L1 term),
# but with an objective by another library's name, what it means there.
ALIASES = {
    "loss": "objective", "application": "objective", "num_classes": "num_class", "eta": "learning_rate",
    "shrinkage_rate": "learning_rate", "learning_rates": "learning_rate", "num_leaves": "max_leaves",
    "max_leaf_nodes": "max_leaves",
    "min_split_loss": "gamma", "min_gain_to_split": "gamma", "min_split_gain": "gamma", "lambda": "reg_lambda",
    "lambda_l2": "reg_lambda", "l2_regularization": "reg_lambda", "alpha": "reg_alpha", "lambda_l1": "reg_alpha",
    "min_sum_hessian_in_leaf": "min_child_weight", "min_sum_hessian": "min_child_weight",
    "min_hessian": "min_child_weight", "max_tree_output": "max_delta_step", "bagging_fraction": "subsample",
    "sub_row": "subsample", "feature_fraction": "colsample_bytree", "sub_feature": "colsample_bytree",
    "feature_fraction_bynode": "colsample_bynode", "sub_feature_bynode": "colsample_bynode",
    "max_features": "colsample_bynode", "monotonic_cst": "monotone_constraints", "max_bins": "max_bin",
    "random_state": "seed", "random_seed": "seed", "nthread": "threads", "n_jobs": "threads", "num_threads": "threads",
    "num_thread": "threads", "n_estimators": "rounds", "num_boost_round": "rounds", "num_iterations": "rounds",
    "num_round": "rounds", "num_rounds": "rounds", "num_trees": "rounds", "max_iter": "rounds",
    "boosting": "booster", "boosting_type": "booster",
    "early_stopping_round": "early_stopping_rounds", "n_iter_no_change": "early_stopping_rounds",
    "metric": "eval_metric", "metrics": "eval_metric", "quantile": "quantile_alpha",
    "drop_rate": "rate_drop", "min_child_samples": "min_data_in_leaf", "min_data_per_leaf": "min_data_in_leaf",
    "min_data": "min_data_in_leaf", "min_samples_leaf": "min_data_in_leaf",
    "interaction_cst": "interaction_constraints",
}  # fmt: skip

# LightGBM's and scikit-learn's name of an objective -> what `alpha` is.
ALPHA_OF = {"quantile": "quantile_alpha", "huber": "huber_slope"}

OBJECTIVES = {
    "squared_error": ("reg:squarederror", "reg:linear", "regression", "regression_l2", "l2", "mse"),
    "logistic": ("binary:logistic", "reg:logistic", "binary", "log_loss", "binary_crossentropy"),
    "softmax": ("multi:softprob", "multi:softmax", "multiclass"),
    "poisson": ("count:poisson",),
    "quantile": ("reg:quantileerror",),
    "reg:absoluteerror": ("regression_l1", "l1", "mae", "mean_absolute_error", "absolute_error"),
    "reg:pseudohubererror": ("pseudo_huber", "pseudohuber"),
    "huber": (),
    "reg:gamma": ("gamma",),
    "reg:tweedie": ("tweedie",),
    "survival:cox": ("cox",),
    "survival:aft": ("aft",),
    "rank_pairwise": ("rank:pairwise",),
    "rank_ndcg": ("rank:ndcg", "lambdarank"),
    "rank_map": ("rank:map",),
}
_OBJECTIVE_OF = synonyms.OBJECTIVES | {other: name for name, others in OBJECTIVES.items() for other in (name, *others)}
_TREE_METHODS = {"auto": "hist", "hist": "hist", "exact": "exact", "approx": "approx"}
_GROW_POLICIES = {"depthwise": "depthwise", "lossguide": "lossguide"}

# Names that say nothing about the model, or of which only one value makes sense here: accepted so that a dictionary
# written for another library works as it is.
_IGNORED = ("verbosity", "verbose", "silent", "disable_default_eval_metric", "validate_parameters", "deterministic")
_ONLY = {"device": ("cpu",)}
_BOOSTERS = {"gbtree": "gbtree", "gbdt": "gbtree", "dart": "dart"}


@dataclass(frozen=True)
class Params:
    """Hyperparameters: with the data, all that decides a model. Symbols are those of thesis-chen ch. 2."""

    objective: Any = "squared_error"  # a name, or a function (margin, dataset) -> (gradient, Hessian)
    num_class: int = 1
    learning_rate: Any = 0.3  # shrinkage, §2.1.3; of each round in a list, or by a function of its number from 0
    max_depth: int = 6  # 0: no limit
    max_leaves: int = 0  # 0: no limit
    grow_policy: str = "depthwise"  # or "lossguide": the leaf of the largest gain first
    gamma: float = 0.0  # least gain of a split, eq. 2.7
    reg_lambda: float = 1.0  # L2 on leaf weights, eq. 2.2
    reg_alpha: float = 0.0  # L1 on leaf weights
    min_child_weight: float = 1.0  # least sum of Hessians of a child
    max_delta_step: float = 0.0  # largest magnitude of a leaf's weight; 0: no limit
    subsample: float = 1.0  # share of the rows of each tree
    colsample_bytree: float = 1.0
    colsample_bylevel: float = 1.0
    colsample_bynode: float = 1.0
    monotone_constraints: tuple[int, ...] = ()  # -1, 0, 1 for each feature; empty: none
    tree_method: str = "hist"  # "exact" (Algorithm 1), "approx" (Algorithm 2) or "hist"
    proposal: str = "global"  # of "approx": candidates proposed once a tree, or again for every node ("local")
    max_bin: int = 256
    sketch_eps: float = 0.0  # error of ranks of cuts by the weighted quantile sketch (streams, workers); 0: exact cuts
    max_cat_to_onehot: int = 4  # categorical features of fewer categories are split one category against the rest
    max_cat_threshold: int = 0  # most categories of the smaller side of a partition; 0: 16 to 64, by rows and number
    cat_smooth: float = 10.0  # added to the Hessian of a category that is sorted; those of fewer rows stay together
    cat_l2: float = 10.0  # L2, beside reg_lambda, by which a partition of categories is judged
    min_data_per_group: int = 0  # least rows of a side of a partition; 0: 100, fewer of small tables or categories
    base_score: float | None = None  # None: the best constant, from the labels
    seed: int = 0
    scale_pos_weight: float = 1.0  # weight of the rows of label 1, of the objective "logistic"
    quantile_alpha: float | tuple[float, ...] = 0.5  # of the objective "quantile": one, or one for each output
    huber_slope: float = 1.0  # of "reg:pseudohubererror" and "huber": residuals beyond it count by their magnitude
    tweedie_variance_power: float = 1.5  # of "reg:tweedie": 1 is Poisson, 2 gamma
    aft_loss_distribution: str = "normal"  # of the noise of "survival:aft"; or "logistic", "extreme"
    aft_loss_distribution_scale: float = 1.0
    booster: str = "gbtree"  # or "dart": trees are dropped while others are grown (Vinayak and Gilad-Bachrach 2015)
    rate_drop: float = 0.0  # of "dart": chance of each tree to be dropped in a round
    one_drop: bool = False  # of "dart": one tree at least is dropped
    skip_drop: float = 0.0  # of "dart": chance of a round to drop none
    sample_type: str = "uniform"  # of "dart"; or "weighted": chances in proportion to what trees still count
    normalize_type: str = "tree"  # of "dart": a new tree weighs as one dropped one, or as all of them ("forest")
    process_type: str = "default"  # or "update": the trees of a model given to `train` get new leaves
    num_parallel_tree: int = 1  # trees of a round and output, which share the learning rate: boosted random forests
    interaction_constraints: tuple[tuple[int, ...], ...] = ()  # sets of features that a path may test together
    min_data_in_leaf: int = 0  # least number of rows in a leaf
    lambdarank_pair_method: str = "topk"  # or "mean": pairs sampled at random for each document
    lambdarank_num_pair_per_sample: int = 0  # 0: 32 of "topk", 1 of "mean"
    lambdarank_normalization: bool = True  # divides a query's gradients by a measure of how many pairs it has
    ndcg_exp_gain: bool = True  # the gain of label y is 2^y - 1, not y
    eval_metric: tuple[Any, ...] = ()  # names, or functions (prediction, dataset) -> float; empty: the objective's own
    rounds: int = 100
    early_stopping_rounds: int = 0  # 0: never
    threads: int = 0  # 0: every core of this process; they do not change the model

    @classmethod
    def of(cls, mapping: "Mapping[str, Any] | Params | None" = None, feature_names: Sequence[str] = ()) -> "Params":
        """Parameters from a mapping with the names and values of XGBoost, LightGBM or scikit-learn.

        A value of None stands for the default. `feature_names` is needed only if `monotone_constraints` is a mapping
        from names. Raises ParameterError for an unknown name (with the nearest known one), for two names of one
        parameter with different values, and for values out of range, singly or together.
        """
        if isinstance(mapping, Params):
            return mapping._checked()
        if mapping is not None and not isinstance(mapping, Mapping):
            raise ParameterError(f"params: found {type(mapping).__name__}; allowed: a mapping from names, or Params")
        if mapping and (wrong := synonyms.contradiction(mapping)):
            raise ParameterError(wrong)
        given: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        loss = next((v for k, v in (mapping or {}).items() if _own(k) == "objective" and v is not None), None)
        for key, value in (mapping or {}).items():
            name = _name_of(key, value)
            if key == "alpha" and isinstance(loss, str):
                name = ALPHA_OF.get(loss, name)
            if name is None or value is None:
                continue
            value = _READERS[name](name, value, feature_names)
            if name in given and given[name] != value:
                raise ParameterError(
                    f"parameter {name!r} is given twice: {spelled[name]}={given[name]!r} and {key}={value!r}"
                )
            given[name], spelled[name] = value, key
        if spelled.get("max_leaves") in ("num_leaves", "max_leaf_nodes"):  # those libraries grow the best leaf first
            given.setdefault("grow_policy", "lossguide")
            given.setdefault("max_depth", 0)
        if given.get("objective") == "poisson":  # as XGBoost: keeps exp(margin) from running away
            given.setdefault("max_delta_step", 0.7)
        return cls(**given)._checked()

    @property
    def scheduled(self) -> bool:
        """Whether the learning rate is one for each round."""
        return not isinstance(self.learning_rate, float)

    def of_round(self, number: int) -> "Params":
        """The parameters of round `number`, counted from 0 with those continued from: the learning rate is a number.

        Raises ParameterError for a round that the list has no rate for, and for what a function gives.
        """
        rate = self.learning_rate
        if not self.scheduled:
            return self
        if callable(rate):
            rate = _RATE(f"learning_rate of round {number}", rate(number), ())
        elif number < len(rate):
            rate = rate[number]
        else:
            raise ParameterError(
                f"parameter 'learning_rate': found {len(rate)} rates; allowed: one for each round, {number + 1} or more"
            )
        return replace(self, learning_rate=rate)

    @staticmethod
    def objective_named(name: str) -> str:
        """Our own name of an objective by any library's name. Raises ParameterError."""
        return str(_objective("objective", name, ()))

    def _checked(self) -> "Params":
        """The parameters themselves, once they agree with each other."""
        given = {name: value for name in _READERS if (value := getattr(self, name)) is not None and value != ()}
        self = replace(self, **{name: _READERS[name](name, value, ()) for name, value in given.items()})
        _check_use(self)
        if self.objective == "softmax" and self.num_class < 2:
            raise ParameterError(
                f"parameter 'num_class': found {self.num_class}; objective 'softmax' allows 2 and more classes"
            )
        if self.num_class > 1 and isinstance(self.objective, str) and self.objective != "softmax":
            raise ParameterError(
                f"parameter 'num_class': found {self.num_class}; objective {self.objective!r} allows only 1"
            )
        if self.max_depth == 0 and self.max_leaves == 0 and self.grow_policy == "lossguide":
            raise ParameterError("parameter 'max_depth': found 0 (no limit); allowed only together with 'max_leaves'")
        dropping = self.rate_drop or self.one_drop or self.skip_drop
        if dropping and self.booster != "dart":
            raise ParameterError(
                "parameters 'rate_drop', 'one_drop', 'skip_drop': found with booster 'gbtree', where they mean "
                "nothing; allowed: with booster 'dart'"
            )
        if self.objective in ("quantile", "reg:absoluteerror") and any(self.monotone_constraints):
            raise ParameterError(
                f"parameter 'monotone_constraints': found constraints with objective {self.objective!r}, whose leaves "
                "become quantiles after growth and may break them; allowed: none. The nearest there is: 'huber'"
            )
        return self


# Parameters that some objectives, or metrics by how their names begin, alone go by; and the nearest there is.
_ONLY_OF: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "scale_pos_weight": (("logistic",), (), "weights of rows"),
    "quantile_alpha": (("quantile",), ("quantile",), "objective 'quantile'"),
    "huber_slope": (("huber", "reg:pseudohubererror"), ("huber", "mphe"), "objective 'huber'"),
    "tweedie_variance_power": (("reg:tweedie",), ("tweedie",), "objective 'reg:tweedie'"),
    "aft_loss_distribution": (("survival:aft",), ("aft",), "objective 'survival:aft'"),
    "aft_loss_distribution_scale": (("survival:aft",), ("aft",), "objective 'survival:aft'"),
}


def _check_use(params: Params) -> None:
    """Raises ParameterError for a value that nothing would go by."""
    objective = "of your own" if callable(params.objective) else params.objective
    metrics = [metric for metric in params.eval_metric if isinstance(metric, str)]
    for parameter in fields(Params):
        allowed, measured, instead = _ONLY_OF.get(parameter.name, ((), (), ""))
        found = getattr(params, parameter.name)
        if not allowed or found == parameter.default or objective in allowed:
            continue
        if any(metric.startswith(measured) for metric in metrics):
            continue
        raise ParameterError(
            f"parameter {parameter.name!r}: found {found!r} with objective {objective!r}, which does not go by it; "
            f"allowed with {_listed(allowed)}; the nearest there is: {instead}"
        )
    if params.proposal != "global" and params.tree_method != "approx":
        raise ParameterError(
            f"parameter 'proposal': found {params.proposal!r} with tree method {params.tree_method!r}; allowed with "
            "'approx' alone"
        )


def _own(key: str) -> str:
    """Our name of a parameter, or the name itself."""
    return ALIASES.get(key) or synonyms.NAMES.get(key, key)


def _name_of(key: str, value: Any) -> str | None:
    """The parameter's own name, or None for one that is accepted and has no effect; ParameterError if unknown."""
    name = _own(key)
    if name in _READERS:
        return name
    if key in _IGNORED:
        return None
    if key in _ONLY:
        if value is not None and value not in _ONLY[key]:
            raise ParameterError(f"parameter {key!r}: found {value!r}; allowed: {_listed(_ONLY[key])}{_instead(value)}")
        return None
    nothing, instead = synonyms.is_nothing(key, value), synonyms.advice(key)
    if nothing:
        return None
    if nothing is not None or instead is not None:
        allowed = "no such parameter" if nothing is None else f"{synonyms.allowed_values(key)}, which change nothing"
        hint = "" if instead is None else f"; the nearest there is: {instead}"
        raise ParameterError(f"parameter {key!r}: found {value!r}; allowed: {allowed}{hint}")
    known = [*_READERS, *ALIASES, *_ONLY]
    near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else f"; allowed: {_listed(sorted(_READERS))}"
    raise ParameterError(f"unknown parameter {key!r}{hint}")


def _instead(value: Any) -> str:
    """Replacement for a parameter value of another library, as the end of an error message; empty if none is known."""
    found = synonyms.INSTEAD.get(str(value).split(":")[0] if str(value).startswith("cuda") else str(value))
    return "" if found is None else f"; the nearest there is: {found}"


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(repr(name) for name in names)


Reader = Callable[[str, Any, Sequence[str]], Any]


def _number(low: float, high: float = math.inf, open_low: bool = False, open_high: bool = False) -> Reader:
    """Reads a real number between `low` and `high`, which are allowed themselves unless open."""

    def read(name: str, value: Any, _: Sequence[str]) -> float:
        found = value
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = float(value)
        inside = isinstance(value, numbers.Real) and value is not True and value is not False and math.isfinite(value)
        inside = inside and low <= value <= high
        inside = inside and not (open_low and value == low) and not (open_high and value == high)
        if not inside:
            left = "(" if open_low or low == -math.inf else "["
            right = ")" if open_high or high == math.inf else "]"
            span = f"{left}{low}, {high}{right}"
            raise ParameterError(f"parameter {name!r}: found {found!r}; allowed: a number in {span}")
        return float(value)

    return read


def _integer(low: int, high: int | None = None, unlimited: tuple[Any, ...] = ()) -> Reader:
    """Reads an integer of at least `low` and at most `high`; the values of `unlimited` are read as 0."""

    def read(name: str, value: Any, _: Sequence[str]) -> int:
        found = value
        if isinstance(value, str) and value.lstrip("-").isdigit():
            value = int(value)
        if unlimited and value in unlimited:
            return 0
        whole = isinstance(value, numbers.Integral) and value is not True and value is not False
        whole = whole or (isinstance(value, float) and value.is_integer())
        if not whole or value < low or (high is not None and value > high):
            span = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
            raise ParameterError(f"parameter {name!r}: found {found!r}; allowed: {span}")
        return int(value)

    return read


def _choice(choices: Mapping[str, str]) -> Reader:
    """Reads one of several names, each of which may have synonyms."""

    def read(name: str, value: Any, _: Sequence[str]) -> str:
        if not isinstance(value, str) or value not in choices:
            own = sorted(set(choices.values()))
            near = difflib.get_close_matches(str(value), list(choices), n=1, cutoff=0.6)
            hint = _instead(value) or (f"; did you mean {near[0]!r}?" if near else "")
            raise ParameterError(f"parameter {name!r}: found {value!r}; allowed: {_listed(own)}{hint}")
        return choices[value]

    return read


def _flag(name: str, value: Any, _: Sequence[str]) -> bool:
    if value not in (True, False, 0, 1):
        raise ParameterError(f"parameter {name!r}: found {value!r}; allowed: True, False")
    return bool(value)


def _objective(name: str, value: Any, _: Sequence[str]) -> Any:
    return value if callable(value) else _choice(_OBJECTIVE_OF)(name, value, _)


def _metrics(name: str, value: Any, _: Sequence[str]) -> tuple[Any, ...]:
    metrics = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    for metric in metrics:
        if not isinstance(metric, str) and not callable(metric):
            raise ParameterError(f"parameter {name!r}: found {metric!r}; allowed: names of metrics, and functions")
    return metrics


def _monotone(name: str, value: Any, feature_names: Sequence[str]) -> tuple[int, ...]:
    """Reads a sequence of -1, 0 and 1, the same as text such as "(1,-1)", or a mapping from feature names."""
    if isinstance(value, Mapping):
        unknown = [feature for feature in value if feature not in feature_names]
        if unknown:
            raise ParameterError(f"parameter {name!r}: found {unknown[0]!r}; allowed: the names of the data's features")
        value = [value.get(feature, 0) for feature in feature_names]
    if isinstance(value, str):
        value = [part for part in value.strip("()[] ").replace(" ", "").split(",") if part]
    try:
        signs = tuple(int(sign) for sign in value)
    except (TypeError, ValueError):
        signs = (2,)
    if any(sign not in (-1, 0, 1) for sign in signs):
        raise ParameterError(f"parameter {name!r}: found {value!r}; allowed: -1, 0 or 1 for each feature")
    return signs


def _rate(name: str, value: Any, names: Sequence[str]) -> Any:
    """Reads one learning rate, a sequence of one for each round, the same as text, or a function of the round."""
    if isinstance(value, str) and value.strip()[:1] in ("[", "("):
        value = [part for part in value.strip("()[] ").replace(" ", "").split(",") if part]
    if callable(value):
        return value
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, (list, tuple)):
        return _RATE(name, value, names)
    if not value:
        raise ParameterError(f"parameter {name!r}: found no rates; allowed: one for each round")
    return tuple(_RATE(name, rate, names) for rate in value)


def _levels(name: str, value: Any, names: Sequence[str]) -> Any:
    """Reads one quantile, or several: a sequence, or text such as "[0.1, 0.9]"."""
    read = _number(0.0, 1.0, open_low=True, open_high=True)
    if isinstance(value, str):
        parts: Sequence[Any] = [part for part in value.strip("()[] ").replace(" ", "").split(",") if part]
    else:
        parts = value.tolist() if hasattr(value, "tolist") else value
        parts = list(parts) if isinstance(parts, Sequence) else [parts]
    levels = tuple(read(name, part, names) for part in parts)
    if not levels:
        raise ParameterError(f"parameter {name!r}: found none; allowed: numbers in (0, 1)")
    return levels[0] if len(levels) == 1 else levels


def _interactions(name: str, value: Any, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Reads sets of features, by number or name, or the same as text such as "[[0, 1], [2, 3]]"."""
    if isinstance(value, str):
        value = value or "[]"
        try:
            value = json.loads(value.replace("'", '"'))
        except ValueError:
            raise ParameterError(f"parameter {name!r}: found {value!r}; allowed: lists of features") from None
    if not isinstance(value, Sequence) or not all(
        isinstance(one, Collection) and not isinstance(one, str) for one in value
    ):
        raise ParameterError(f"parameter {name!r}: found {value!r}; allowed: lists of features, by number or name")
    sets = []
    for one in value:
        features = set()
        for feature in one:
            if isinstance(feature, str) and feature in names:
                feature = list(names).index(feature)
            if isinstance(feature, bool) or not isinstance(feature, numbers.Integral) or feature < 0:
                raise ParameterError(
                    f"parameter {name!r}: found the feature {feature!r}; allowed: numbers from 0, and the names of "
                    "the data's features"
                )
            features.add(int(feature))
        sets.append(tuple(sorted(features)))
    return tuple(sets)


_SHARE, _RATE = _number(0.0, 1.0, open_low=True), _number(0.0, open_low=True)
_READERS: dict[str, Reader] = {
    "objective": _objective,
    "num_class": _integer(1, unlimited=()),
    "learning_rate": _rate,
    "max_depth": _integer(0, unlimited=(-1,)),
    "max_leaves": _integer(0, unlimited=(-1,)),
    "grow_policy": _choice(_GROW_POLICIES),
    "gamma": _number(0.0),
    "reg_lambda": _number(0.0),
    "reg_alpha": _number(0.0),
    "min_child_weight": _number(0.0),
    "max_delta_step": _number(0.0),
    "subsample": _SHARE,
    "colsample_bytree": _SHARE,
    "colsample_bylevel": _SHARE,
    "colsample_bynode": _SHARE,
    "monotone_constraints": _monotone,
    "tree_method": _choice(_TREE_METHODS),
    "proposal": _choice({"global": "global", "local": "local"}),
    "max_bin": _integer(2, 65_534),  # bins are 16-bit numbers, and a missing value has one
    "sketch_eps": _number(0.0, 1.0, open_high=True),
    "max_cat_to_onehot": _integer(1),
    "max_cat_threshold": _integer(0),
    "cat_smooth": _number(0.0),
    "cat_l2": _number(0.0),
    "min_data_per_group": _integer(0),
    "base_score": _number(-math.inf),
    "seed": _integer(0),
    "scale_pos_weight": _number(0.0, open_low=True),
    "quantile_alpha": _levels,
    "huber_slope": _number(0.0, open_low=True),
    "tweedie_variance_power": _number(1.0, 2.0, open_low=True, open_high=True),
    "aft_loss_distribution": _choice({name: name for name in ("normal", "logistic", "extreme")}),
    "aft_loss_distribution_scale": _number(0.0, open_low=True),
    "booster": _choice(_BOOSTERS),
    "rate_drop": _number(0.0, 1.0),
    "one_drop": _flag,
    "skip_drop": _number(0.0, 1.0),
    "sample_type": _choice({"uniform": "uniform", "weighted": "weighted"}),
    "normalize_type": _choice({"tree": "tree", "forest": "forest"}),
    "process_type": _choice({"default": "default", "update": "update"}),
    "num_parallel_tree": _integer(1),
    "interaction_constraints": _interactions,
    "min_data_in_leaf": _integer(0),
    "lambdarank_pair_method": _choice({"topk": "topk", "mean": "mean"}),
    "lambdarank_num_pair_per_sample": _integer(0),
    "lambdarank_normalization": _flag,
    "ndcg_exp_gain": _flag,
    "eval_metric": _metrics,
    "rounds": _integer(0),
    "early_stopping_rounds": _integer(0),
    "threads": _integer(0, unlimited=(-1,)),
}
assert set(_READERS) == {parameter.name for parameter in fields(Params)}
