from dataclasses import fields
from typing import Any

import pytest

from burnish.boost.params import ALIASES, OBJECTIVES, Params
from burnish.errors import ParameterError


def test_defaults_are_valid_and_no_field_is_without_a_range() -> None:
    assert Params.of({}) == Params() == Params.of(None)
    assert set(ALIASES.values()) <= {parameter.name for parameter in fields(Params)}


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"eta": 0.1}, "learning_rate", 0.1),
        ({"min_split_loss": 2}, "gamma", 2.0),
        ({"lambda": "3"}, "reg_lambda", 3.0),
        ({"alpha": 0.5}, "reg_alpha", 0.5),
        ({"n_estimators": 7}, "rounds", 7),
        ({"num_boost_round": 7.0}, "rounds", 7),
        ({"feature_fraction": 0.5}, "colsample_bytree", 0.5),
        ({"bagging_fraction": 0.5}, "subsample", 0.5),
        ({"random_state": 3}, "seed", 3),
        ({"n_jobs": -1}, "threads", 0),
        ({"max_depth": -1}, "max_depth", 0),
        ({"monotonic_cst": "(1, -1, 0)"}, "monotone_constraints", (1, -1, 0)),
        ({"monotone_constraints": [1, 0]}, "monotone_constraints", (1, 0)),
        ({"metric": "auc"}, "eval_metric", ("auc",)),
        ({"eval_metric": ["auc", "logloss"]}, "eval_metric", ("auc", "logloss")),
        ({"tree_method": "auto"}, "tree_method", "hist"),
        ({"max_bin": None}, "max_bin", 256),
        ({"verbosity": 2, "booster": "gbtree", "device": "cpu"}, "objective", "squared_error"),
    ],
)
def test_other_libraries_names(given: dict[str, Any], name: str, value: Any) -> None:
    found = getattr(Params.of(given), name)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(("name", "others"), OBJECTIVES.items())
def test_objectives_of_other_libraries(name: str, others: tuple[str, ...]) -> None:
    for other in (name, *others):
        assert Params.of({"objective": other, "num_class": 3 if name == "softmax" else 1}).objective == name


def test_num_leaves_grows_the_best_leaf_first_without_a_depth() -> None:
    params = Params.of({"num_leaves": 31})
    assert (params.max_leaves, params.grow_policy, params.max_depth) == (31, "lossguide", 0)
    params = Params.of({"num_leaves": 31, "max_depth": 5})
    assert (params.max_leaves, params.grow_policy, params.max_depth) == (31, "lossguide", 5)
    assert Params.of({"max_leaves": 31}).grow_policy == "depthwise"


def test_poisson_limits_its_steps_unless_told() -> None:
    assert Params.of({"objective": "count:poisson"}).max_delta_step == 0.7
    assert Params.of({"objective": "count:poisson", "max_delta_step": 0}).max_delta_step == 0.0


def test_monotone_constraints_by_name() -> None:
    params = Params.of({"monotone_constraints": {"b": -1}}, ("a", "b", "c"))
    assert params.monotone_constraints == (0, -1, 0)
    with pytest.raises(ParameterError, match="'d'"):
        Params.of({"monotone_constraints": {"d": -1}}, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"leraning_rate": 0.1}, "unknown parameter 'leraning_rate'; did you mean 'learning_rate'"),
        ({"qqqqqqqqqqqq": 0.1}, "unknown parameter 'qqqqqqqqqqqq'; allowed: 'aft_loss_distribution'"),
        ({"eta": 0.1, "learning_rate": 0.2}, "given twice: eta=0.1 and learning_rate=0.2"),
        ({"eta": 0}, r"'learning_rate': found 0; allowed: a number in \(0.0, inf\)"),
        ({"eta": float("nan")}, "'learning_rate': found nan"),
        ({"eta": True}, "'learning_rate': found True"),
        ({"lambda": -1}, "'reg_lambda': found -1"),
        ({"subsample": 1.5}, r"'subsample': found 1.5; allowed: a number in \(0.0, 1.0\]"),
        ({"colsample_bynode": 0.0}, "'colsample_bynode': found 0.0"),
        ({"quantile_alpha": 1.0}, r"'quantile_alpha': found 1.0; allowed: a number in \(0.0, 1.0\)"),
        ({"max_depth": 2.5}, "'max_depth': found 2.5; allowed: an integer of at least 0"),
        ({"max_depth": -2}, "'max_depth': found -2"),
        ({"max_bin": 1}, "'max_bin': found 1; allowed: an integer from 2 to 65534"),
        ({"objective": "binary:logit"}, "'objective': found 'binary:logit'; .*did you mean 'binary:logistic'"),
        ({"grow_policy": "leafwise"}, "'grow_policy': found 'leafwise'; allowed: 'depthwise', 'lossguide'"),
        ({"tree_method": "gpu_hist"}, "'tree_method': found 'gpu_hist'; allowed: 'approx', 'exact', 'hist'"),
        ({"booster": "gblinear"}, "'booster': found 'gblinear'; allowed: 'dart', 'gbtree'"),
        ({"device": "cuda"}, "'device': found 'cuda'; allowed: 'cpu'"),
        ({"monotone_constraints": (1, 2)}, "'monotone_constraints': found"),
        ({"monotone_constraints": (1, 0), "objective": "quantile"}, "'monotone_constraints': found constraints"),
        ({"objective": "softmax"}, "'num_class': found 1"),
        ({"objective": "logistic", "num_class": 3}, "'num_class': found 3; objective 'logistic' allows only 1"),
        ({"grow_policy": "lossguide", "max_depth": 0}, "'max_depth': found 0"),
        ({"eval_metric": [3]}, "'eval_metric': found 3"),
        ({"scale_pos_weight": 2.0}, "'scale_pos_weight': found 2.0 with objective 'squared_error'.*weights of rows"),
        ({"scale_pos_weight": 2.0, "objective": "softmax", "num_class": 3}, "objective 'softmax'"),
        ({"scale_pos_weight": 2.0, "objective": max}, "objective 'of your own'"),
        ({"quantile_alpha": 0.9}, "'quantile_alpha': found 0.9 with objective 'squared_error'"),
        ({"proposal": "local"}, "'proposal': found 'local' with tree method 'hist'; allowed with 'approx'"),
        ({"objective": "quantile", "alpha": 0.9, "quantile_alpha": 0.5}, "given twice: alpha=0.9"),
        ({"extra": {"max_depth": 3}}, "unknown parameter 'extra'"),
        ({"lambdarank_normalization": "yes"}, "'lambdarank_normalization': found 'yes'; allowed: True, False"),
    ],
)
def test_refusals_name_parameter_found_and_allowed(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Params.of(given)


@pytest.mark.parametrize("key", ["objective", "loss", "application"])
@pytest.mark.parametrize("backwards", [False, True])
def test_alpha_means_what_it_means_in_the_library_that_the_objective_is_named_by(key: str, backwards: bool) -> None:
    def of(name: str) -> Params:
        items = [(key, name), ("alpha", 0.95)]
        return Params.of(dict(reversed(items) if backwards else items))

    lightgbm, xgboost = of("quantile"), of("reg:quantileerror")
    assert (lightgbm.quantile_alpha, lightgbm.reg_alpha) == (0.95, 0.0)
    assert (xgboost.quantile_alpha, xgboost.reg_alpha) == (0.5, 0.95)
    assert of("l2").reg_alpha == 0.95


def test_what_a_metric_goes_by_is_no_refusal_and_values_by_hand_are_read() -> None:
    assert Params.of({"quantile_alpha": 0.9, "eval_metric": "quantile"}).quantile_alpha == 0.9
    assert Params.of({"scale_pos_weight": 2.0, "objective": "binary"}).scale_pos_weight == 2.0
    rounds: Any = "7"
    assert Params.of(Params(rounds=rounds)).rounds == 7


def test_parameters_built_by_hand_are_checked_too() -> None:
    with pytest.raises(ParameterError, match=r"'subsample': found 2\.0"):
        Params.of(Params(subsample=2.0))
