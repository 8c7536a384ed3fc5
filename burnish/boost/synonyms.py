"""Parameter names of XGBoost, LightGBM, CatBoost and scikit-learn: synonyms, values without effect, and advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Further names of parameters, where the meaning is the same.
NAMES = {
    "iterations": "rounds", "depth": "max_depth", "l2_leaf_reg": "reg_lambda", "rsm": "colsample_bylevel",
    "thread_count": "threads", "loss_function": "objective", "od_wait": "early_stopping_rounds",
    "num_iteration": "rounds", "n_iter": "rounds", "num_tree": "rounds", "bagging": "subsample",
    "min_sum_hessian_per_leaf": "min_child_weight", "max_leaf": "max_leaves", "num_leaf": "max_leaves",
    "mc": "monotone_constraints", "monotone_constraint": "monotone_constraints", "objective_type": "objective",
    "app": "objective",
}  # fmt: skip
OBJECTIVES = {
    "RMSE": "squared_error", "Logloss": "logistic", "CrossEntropy": "logistic", "MultiClass": "softmax",
    "Poisson": "poisson", "mean_squared_error": "squared_error", "l2_root": "squared_error", "rmse": "squared_error",
    "cross_entropy": "logistic", "xentropy": "logistic", "YetiRank": "rank_ndcg", "PairLogit": "rank_pairwise",
}  # fmt: skip

# What there is instead of an objective, a kind of booster or a device that is not here.
INSTEAD = {
    "reg:squaredlogerror": "'squared_error' on log(1 + label), and eval_metric 'rmsle'",
    "binary:logitraw": "'logistic', and predict(…, output='margin')",
    "binary:hinge": "'logistic', and predict(…, output='class')",
    "lambdarank_map": "'rank_map'", "rank_xendcg": "'rank_ndcg'", "xendcg": "'rank_ndcg'", "fair": "'huber'",
    "mape": "'reg:absoluteerror' with weights 1 / |label|, and eval_metric 'mape'",
    "quantile_l2": "'quantile'", "reg:expectileerror": "'quantile'", "Quantile": "'quantile'", "MAE": "'l1'",
    "multiclassova": "'softmax', or a label matrix of 0 and 1 with 'logistic'",
    "MultiRMSE": "'squared_error', with a label matrix", "MultiLogloss": "'logistic', with a label matrix",
    "MultiCrossEntropy": "'logistic', with a label matrix", "one_vs_rest": "'softmax'", "ova": "'softmax'",
    "custom": "a function (margin, dataset) -> (gradient, Hessian)",
    "gblinear": "trees of one level, max_depth=1; a linear model is sklearn.linear_model's",
    "goss": "'gbtree' with subsample", "rf": "num_parallel_tree with subsample, and one round",
    "random_forest": "num_parallel_tree with subsample, and one round",
    "cuda": "'cpu', with threads", "gpu": "'cpu', with threads", "GPU": "'cpu', with threads",
    "gpu_hist": "'hist'",
}  # fmt: skip
_ANY = object()
# Values that ask for what happens anyway.
_NOTHING: dict[str, tuple[Any, ...]] = {
    "predictor": ("auto", "cpu_predictor"), "enable_categorical": (True, False), "importance_type": (_ANY,),
    "device_type": ("cpu",), "task_type": ("CPU", "cpu"), "gpu_id": (-1,), "sampling_method": ("uniform",),
    "num_parallel_tree": (1,), "multi_strategy": ("one_output_per_tree",),
    "bagging_freq": (0, 1), "subsample_freq": (0, 1), "is_unbalance": (False,), "boost_from_average": (True,),
    "linear_tree": (False,), "extra_trees": (False,), "path_smooth": (0,), "use_missing": (True,),
    "zero_as_missing": (False,), "use_quantized_grad": (False,),
    "subsample_for_bin": (_ANY,), "bin_construct_sample_cnt": (_ANY,),
    "force_col_wise": (_ANY,), "force_row_wise": (_ANY,), "histogram_pool_size": (_ANY,), "two_round": (_ANY,),
    "first_metric_only": (False,), "logging_level": (_ANY,), "allow_writing_files": (_ANY,), "metric_period": (_ANY,),
    "single_precision_histogram": (_ANY,), "max_cached_hist_node": (_ANY,), "use_rmm": (False,), "warm_start":
    (False,), "early_stopping": (False,), "bootstrap_type": ("No", "Bernoulli"),
    "sampling_frequency": ("PerTree",), "nan_mode": ("Min",), "feature_pre_filter": (_ANY,), "init": (None,),
    "refresh_leaf": (0, 1), "interaction_constraints": ("", "[]"), "categorical_feature": ("auto", ""),
    "lambdarank_unbiased": (False,),
}  # fmt: skip
# The nearest thing that exists.
_ADVICE = {
    "min_samples_split": "min_child_weight", "is_unbalance": "scale_pos_weight, or weights of rows",
    "class_weight": "weights of rows, or class_weight of GBTClassifier", "auto_class_weights": "class_weight",
    "feature_fraction_seed": "seed", "bagging_seed": "seed", "data_random_seed": "seed", "extra_seed": "seed",
    "drop_seed": "seed", "objective_seed": "seed", "cat_features": "Dataset.of(…, categorical=…)",
    "categorical_feature": "Dataset.of(…, categorical=…)", "categorical_features": "Dataset.of(…, categorical=…)",
    "categorical_column": "Dataset.of(…, categorical=…)", "missing": "Dataset.of(…, missing=…)",
    "zero_as_missing": "Dataset.of(…, missing=0)", "sample_weight": "Dataset.of(…, weight=…)",
    "weight": "Dataset.of(…, weight=…)", "base_margin": "Dataset.of(…, base_margin=…)",
    "init_score": "Dataset.of(…, base_margin=…)", "group": "Dataset.of(…, group=…)", "qid": "Dataset.of(…, qid=…)",
    "updater": "tree_method, or process_type 'update' alone", "gpu_id": "threads",
    "device_type": "threads", "task_type": "threads",
    "predictor": "none is needed", "sampling_method": "subsample",
    "refresh_leaf": "train(…, continue_from=…)", "xgb_model": "train(…, continue_from=…)",
    "init_model": "train(…, continue_from=…)", "warm_start": "train(…, continue_from=…)",
    "early_stopping": "early_stopping_rounds with an evaluation set", "validation_fraction": "validation_data=…",
    "top_rate": "subsample", "other_rate": "subsample", "data_sample_strategy": "subsample",
    "bagging_freq": "subsample, of every tree", "subsample_freq": "subsample, of every tree",
    "border_count": "max_bin, one more than the borders", "max_bin_by_feature": "max_bin",
    "grow_policy_type": "grow_policy", "bagging_temperature": "subsample", "random_strength": "gamma",
    "linear_tree": "leaves have one value", "extra_trees": "colsample_bynode", "path_smooth": "reg_lambda",
    "multi_strategy": "'one_output_per_tree': a tree for each column of the label",
    "num_target": "the columns of the label matrix", "lambdarank_unbiased": "lambdarank_normalization, or query_weight",
    "num_parallel_tree": "rounds", "callbacks": "train(…, callbacks=…)", "feature_names": "Dataset.of",
    "pos_bagging_fraction": "weights of rows", "neg_bagging_fraction": "weights of rows", "scoring": "eval_metric",
}  # fmt: skip


def is_nothing(key: str, value: Any) -> bool | None:
    """Whether a value of a parameter of other libraries asks for what happens anyway; None if we do not know it."""
    allowed = _NOTHING.get(key)
    if allowed is None:
        return None
    if value is None or _ANY in allowed:
        return True
    parsed = {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value
    return any(parsed == each or str(parsed) == str(each) for each in allowed)


def allowed_values(key: str) -> str:
    """The values of a parameter of other libraries that have no effect, for an error."""
    return ", ".join(repr(value) for value in _NOTHING[key] if value is not _ANY)


def advice(key: str) -> str | None:
    """Replacement for a parameter of another library, in words; None if none is known."""
    return _ADVICE.get(key)


def contradiction(given: Mapping[str, Any]) -> str | None:
    """Error message for parameters that contradict each other, such as row sampling at frequency 0; or None."""
    for key in ("bagging_freq", "subsample_freq"):
        share = given.get("bagging_fraction", given.get("subsample"))
        if str(given.get(key)) == "0" and share is not None and float(share) < 1.0:
            return f"parameter {key!r}: found 0 with a share of rows of {share}; allowed: 1, or a share of 1"
    updates = given.get("process_type") == "update"
    if updates and str(given.get("refresh_leaf", 1)) in ("0", "False", "false"):
        return "parameter 'refresh_leaf': found 0 with process_type 'update'; allowed: 1, leaves are what is updated"
    return None
