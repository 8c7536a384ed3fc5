"""XGBoost's model format, JSON and UBJ (version 3, and 1 to 2 as far as they agree with it): reading and writing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.ensemble import MOST_FEATURES, MOST_OUTPUTS, Ensemble
from burnish.boost.formats.ubjson import dumps_ubjson
from burnish.boost.formats.values import float32_array, floats, int32_array, parse_json
from burnish.boost.formats.xgboost_trees import tree_from_xgboost, tree_to_xgboost, with_lists
from burnish.boost.tree import Tree
from burnish.errors import DataError

VERSION = [3, 2, 0]
# XGBoost's name -> ours, for objectives that predict alike; the first with a name of ours is what we write.
OBJECTIVES = {
    "reg:squarederror": "squared_error",
    "reg:linear": "squared_error",
    "binary:logistic": "logistic",
    "reg:logistic": "logistic",
    "multi:softprob": "softmax",
    "multi:softmax": "softmax",
    "count:poisson": "poisson",
    "reg:quantileerror": "quantile",
    "rank:pairwise": "rank_pairwise",
    "rank:ndcg": "rank_ndcg",
    "rank:map": "rank_map",
    # Of these, what the model predicts is the margin, as of any objective that is not ours.
    "reg:squaredlogerror": "reg:squaredlogerror",
    "reg:pseudohubererror": "reg:pseudohubererror",
    "reg:absoluteerror": "reg:absoluteerror",
    "binary:logitraw": "binary:logitraw",
    "reg:gamma": "reg:gamma",
    "reg:tweedie": "reg:tweedie",
    "survival:cox": "survival:cox",
    "survival:aft": "survival:aft",
    "binary:hinge": "binary:hinge",
}
_LOGISTIC, _EXPONENTIAL = (
    ("binary:logistic", "reg:logistic"),
    ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft"),
)
_INT64 = 15  # XGBoost's number of this kind of category values
_PARAMETERS = {  # objective of ours -> XGBoost's section, and what must be there
    "squared_error": ("reg_loss_param", {"scale_pos_weight": "1"}),
    "logistic": ("reg_loss_param", {"scale_pos_weight": "1"}),
    "softmax": ("softmax_multiclass_param", {"num_class": "0"}),
    "poisson": ("poisson_regression_param", {"max_delta_step": "0.7"}),
    "quantile": ("quantile_loss_param", {"quantile_alpha": "0.5"}),
    "rank_pairwise": ("lambdarank_param", {}),
    "rank_ndcg": ("lambdarank_param", {}),
    "rank_map": ("lambdarank_param", {}),
    "reg:pseudohubererror": ("pseudo_huber_param", {"huber_slope": "1"}),
    "reg:tweedie": ("tweedie_regression_param", {"tweedie_variance_power": "1.5"}),
    "survival:aft": (
        "aft_loss_param", {"aft_loss_distribution": "normal", "aft_loss_distribution_scale": "1"},
    ),
}  # fmt: skip
# The kinds of number of arrays in UBJ, where XGBoost trusts that they are such.
_KINDS = {
    "base_weights": "f4", "categories": "i4", "categories_nodes": "i4", "categories_segments": "i8",
    "categories_sizes": "i8", "default_left": "u1", "left_children": "i4", "loss_changes": "f4", "parents": "i4",
    "right_children": "i4", "split_conditions": "f4", "split_indices": "i4", "split_type": "u1", "sum_hessian": "f4",
    "offsets": "i4", "feature_segments": "i4", "sorted_idx": "i4",
}  # fmt: skip
_CATEGORY_KINDS = {7: "f4", 8: "f8", 9: "i1", 10: "u1", 11: "i2", 13: "i4", 15: "i8"}  # XGBoost's numbers of them


def dumps_xgboost_ubj(model: Ensemble) -> bytes:
    """The model as UBJ that XGBoost loads; what `dumps_xgboost` says of predictions holds. Raises DataError."""
    return dumps_ubjson(_typed(document_of_model(model)))


def loads_xgboost(text: str | bytes, source: str = "model") -> Ensemble:
    """The model in the JSON text of XGBoost. Raises DataError, naming `source` and what is wrong or not supported.

    A round of k parallel trees becomes k rounds. An inner node's value is the mean of its leaves by cover, since the
    format keeps no learning rate.
    """
    return model_of_document(parse_json(text, source), source)


def model_of_document(document: Mapping[str, Any], source: str = "model") -> Ensemble:
    """The model in a parsed file of XGBoost. Raises DataError as `loads_xgboost`."""
    try:
        return _model(document["learner"])
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    except KeyError as error:
        raise DataError(f"{source} is no model of XGBoost, or damaged: {error} is missing") from None
    except (TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
        raise DataError(f"{source}: a part has the wrong type: {error}") from None


def _model(learner: Mapping[str, Any]) -> Ensemble:
    booster = learner["gradient_booster"]
    if booster["name"] not in ("gbtree", "dart"):
        raise DataError(f"booster is {booster['name']!r}, which has no trees; allowed: 'gbtree', 'dart'")
    dart = booster["name"] == "dart"
    forest, common = (booster["gbtree"] if dart else booster)["model"], learner["learner_model_param"]
    features = int(common["num_feature"])
    outputs = max(int(common["num_class"]), int(common.get("num_target", "1")), 1)
    if not (0 <= features <= MOST_FEATURES and outputs <= MOST_OUTPUTS):
        raise DataError(f"found {features} features, {outputs} outputs; allowed: {MOST_FEATURES}, {MOST_OUTPUTS}")
    trees = [tree_from_xgboost(tree, f"tree {number}") for number, tree in enumerate(forest["trees"])]
    if dart:
        trees = _weighted(trees, float32_array(booster["weight_drop"], "weight_drop"))
    trees = _interleaved(trees, int32_array(forest["tree_info"], "tree_info"), outputs)
    parallel = max(int(forest["gbtree_model_param"].get("num_parallel_tree", "1")), 1)
    objective = learner["objective"]
    if objective["name"] not in OBJECTIVES:
        raise DataError(f"objective is {objective['name']!r}, allowed: {', '.join(OBJECTIVES)}")
    attributes = {str(key): str(value) for key, value in learner.get("attributes", {}).items()}
    best = attributes.pop("best_iteration", None)
    best_iteration = None if best is None else (int(best) + 1) * parallel - 1
    if best_iteration is not None and not 0 <= best_iteration < max(len(trees) // outputs, 1):
        best_iteration = None  # of a model that was cut
    names = tuple(map(str, learner.get("feature_names", ())))
    return Ensemble(
        trees=tuple(trees),
        features=features,
        outputs=outputs,
        base_score=_margins(_base_score(common["base_score"], outputs), objective["name"]),
        objective=OBJECTIVES[objective["name"]],
        objective_parameters=_parameters(objective),
        feature_names=names,
        categories=_categories(forest.get("cats", {}), learner.get("feature_types", ()), features),
        best_iteration=best_iteration,
        attributes=attributes,
    )


def _weighted(trees: Sequence[Tree], weights: NDArray[np.float32]) -> list[Tree]:
    """The trees of "dart", each times what dropping left of it."""
    if len(weights) != len(trees):
        raise DataError(f"weight_drop has {len(weights)} entries for {len(trees)} trees")
    with np.errstate(over="ignore"):  # what overflows becomes infinite, which the model refuses
        return [replace(tree, value=tree.value * weight) for tree, weight in zip(trees, weights, strict=True)]


def _interleaved(trees: Sequence[Tree], owner: NDArray[np.int32], outputs: int) -> list[Tree]:
    """The trees in our order: one of each output in turn. The order among those of an output stays."""
    if len(owner) != len(trees):
        raise DataError(f"tree_info has {len(owner)} entries for {len(trees)} trees")
    of: list[list[Tree]] = [[] for _ in range(outputs)]
    for tree, output in zip(trees, owner.tolist(), strict=True):
        if 0 <= output < outputs:
            of[output].append(tree)
    if len({len(group) for group in of}) > 1 or sum(map(len, of)) != len(trees):
        raise DataError(f"tree_info gives the outputs {[len(group) for group in of]} of {len(trees)} trees")
    return [tree for each in zip(*of, strict=True) for tree in each]


def _base_score(text: Any, outputs: int) -> NDArray[np.float32]:
    """The base score of every output: version 3 keeps a list of them in a string, versions 1 and 2 one number."""
    values = json.loads(str(text)) if str(text).lstrip().startswith("[") else [float(text)]
    scores = float32_array(values, "base_score")
    if len(scores) not in (1, outputs):
        raise DataError(f"base_score has {len(scores)} values for {outputs} outputs")
    return np.broadcast_to(scores, outputs).copy()


def _margins(score: NDArray[np.float32], objective: str) -> NDArray[np.float32]:
    """Base scores, which are predictions, as margins: in float32, and probabilities clipped, as in XGBoost."""
    one, least, top = np.float32(1), np.float32(1e-6), np.float32(1 if objective in _LOGISTIC else np.inf)
    if objective not in (*_LOGISTIC, *_EXPONENTIAL):
        return score
    if not ((score >= 0) & (score <= top)).all():
        raise DataError(f"base_score is {score.tolist()}, allowed for {objective!r}: 0 … {top:g}")
    if objective in _LOGISTIC:
        return -np.log(one / np.clip(score, least, one - least) - one)
    # The mean of labels that are all 0: XGBoost's margin is -inf and its prediction 0, which e^-87 is to 1e-38.
    return np.log(np.maximum(score, np.finfo(np.float32).tiny))


def _scores(margin: NDArray[np.float32], objective: str) -> NDArray[np.float32]:
    """Base scores whose margins are those given, as nearly as float32 can say it."""
    exact = margin.astype(np.float64)
    with np.errstate(over="ignore"):
        if objective in _LOGISTIC:
            # Near 1, neighbouring float32 are far apart as margins.
            return np.clip(1 / (1 + np.exp(-exact)), 1e-6, 0.9).astype(np.float32)
        limit = np.finfo(np.float32)
        if objective in _EXPONENTIAL:
            return np.clip(np.exp(exact), limit.tiny, limit.max).astype(np.float32)
    return margin


def _parameters(objective: Mapping[str, Any]) -> dict[str, Any]:
    """Our parameters of the objective, and XGBoost's own name where we would write another."""
    name = objective["name"]
    result: dict[str, Any] = {}
    section: Mapping[str, Any] = next((value for key, value in objective.items() if key.endswith("_param")), {})
    for key, value in section.items():
        known = json.loads(value) if isinstance(value, str) and value[:1] in "[-0123456789" else value
        single = isinstance(known, list) and len(known) == 1
        result[str(key)] = known[0] if single else known
    if _name_of(OBJECTIVES[name]) != name:
        result["xgboost_objective"] = name
    return result


def _name_of(objective: str) -> str | None:
    return next((theirs for theirs, ours in OBJECTIVES.items() if ours == objective), None)


def _categories(cats: Mapping[str, Any], types: Sequence[str], features: int) -> tuple[tuple[Any, ...] | None, ...]:
    """The category values of every feature, where the file has them: it has none for data that came as numbers."""
    listed = cats.get("enc", [])
    if not any(len(entry["values"]) for entry in listed):
        return ()
    if len(listed) != features:
        raise DataError(f"cats lists {len(listed)} features, the model has {features}")
    result: list[tuple[Any, ...] | None] = []
    for entry in listed:
        values = np.asarray(entry["values"]).tolist()
        if "offsets" in entry and len(values):
            text, ends = bytes(value & 255 for value in values), np.asarray(entry["offsets"]).tolist()
            result.append(tuple(text[a:b].decode(errors="replace") for a, b in pairwise(ends)))
        else:
            result.append(tuple(values) if len(values) else None)
    return tuple(result)


def dumps_xgboost(model: Ensemble) -> str:
    """The model as JSON text that XGBoost loads, with the same predictions.

    Margins agree to the last bit where the base score has an equal in XGBoost's terms (a probability for "logistic", a
    mean for "poisson"), and to about 1e-7 elsewhere. Raises DataError for an objective that XGBoost does not have; one
    of the user's own is written as reg:squarederror, as XGBoost itself does.
    """
    return json.dumps(document_of_model(model), separators=(",", ":"), allow_nan=False)


def document_of_model(model: Ensemble) -> dict[str, Any]:
    """XGBoost's JSON document of a model, as lists and mappings, which `dumps_xgboost` writes. Raises DataError."""
    objective = "reg:squarederror" if model.objective == "custom" else _name_of(model.objective)
    if objective is None:
        raise DataError(f"xgboost format: objective is {model.objective!r}, allowed: {', '.join(OBJECTIVES.values())}")
    objective = str(model.objective_parameters.get("xgboost_objective", objective))
    scores = _scores(model.base_score, objective)
    trees = [
        with_lists(tree, model.categories, model.category_policy == "other")
        for tree in _corrected(model, model.base_score.astype(np.float64) - _margins(scores, objective))
    ]
    categorical = _categorical(model)
    count = len(trees)
    return {
        "learner": {
            "attributes": _attributes(model),
            "feature_names": list(model.feature_names),
            "feature_types": ["c" if c else "float" for c in categorical]
            if model.feature_names or any(categorical)
            else [],
            "gradient_booster": {
                "model": {
                    "cats": _encoded(model),
                    "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(count)},
                    "iteration_indptr": list(range(0, count + 1, model.outputs)),
                    "tree_info": [number % model.outputs for number in range(count)],
                    "trees": [tree_to_xgboost(tree, number, model.features) for number, tree in enumerate(trees)],
                },
                "name": "gbtree",
            },
            "learner_model_param": {
                "base_score": json.dumps(floats(scores)),
                "boost_from_average": "1",
                "num_class": str(model.outputs if model.objective == "softmax" else 0),
                "num_feature": str(model.features),
                "num_target": str(1 if model.objective == "softmax" else model.outputs),
            },
            "objective": _objective(model, objective),
        },
        "version": VERSION,
    }


def _typed(value: Any, kind: str | None = None) -> Any:
    """A document with arrays of numbers as XGBoost has them in UBJ."""
    if isinstance(value, Mapping):
        own = _CATEGORY_KINDS[value["type"]] if "type" in value else "i1" if "offsets" in value else None
        return {key: _typed(entry, own if key == "values" else _KINDS.get(key)) for key, entry in value.items()}
    if isinstance(value, list):
        return [_typed(entry) for entry in value] if kind is None else np.array(value, kind)
    return value


def _corrected(model: Ensemble, rest: NDArray[np.float64]) -> list[Tree]:
    """The trees, where a base score has no equal in XGBoost's terms with the difference in the leaves of the first."""
    trees = list(model.trees)
    large = np.abs(rest) > 1e-7 * np.maximum(np.abs(model.base_score), 1)
    if not large.any():
        return trees
    if not trees:
        raise DataError(f"xgboost format: base_score {model.base_score.tolist()} has no equal, and there are no trees")
    for output in range(model.outputs):
        tree = trees[output]
        trees[output] = replace(tree, value=(tree.value + rest[output]).astype(np.float32))
    return trees


def _objective(model: Ensemble, name: str) -> dict[str, Any]:
    ours = OBJECTIVES[name]
    if ours not in _PARAMETERS:
        return {"name": name}
    section, defaults = _PARAMETERS[ours]
    given = dict(model.objective_parameters)
    values = {key: given.get(key, value) for key, value in defaults.items()}
    if ours == "softmax":
        values["num_class"] = model.outputs
    if ours == "quantile":
        values["quantile_alpha"] = json.dumps(np.atleast_1d(np.float64(values["quantile_alpha"])).tolist())
    return {"name": name, section: {key: str(value) for key, value in values.items()}}


def _attributes(model: Ensemble) -> dict[str, str]:
    best = {} if model.best_iteration is None else {"best_iteration": str(model.best_iteration)}
    return {**model.attributes, **best}


def _categorical(model: Ensemble) -> list[bool]:
    """Which features are categorical: by their categories, or by a test of any tree."""
    found = [values is not None for values in model.categories] or [False] * model.features
    for tree in model.trees:
        for feature in tree.feature[np.diff(tree.category_start) > 0].tolist():
            found[feature] = True
    return found


def _signed(value: Any) -> Any:
    """Sort key of a category in XGBoost's files: bytes of text as signed integers."""
    return [byte - 256 if byte > 127 else byte for byte in value] if isinstance(value, bytes) else value


def _encoded(model: Ensemble) -> dict[str, Any]:
    """The categories as XGBoost keeps them: text as signed bytes with offsets, integers of pandas' int64.

    Raises DataError for others, which XGBoost refuses in frames: with the values left out, it would take the numbers
    that a frame of its own gives them, in any order.
    """
    if not any(model.categories):
        return {"enc": [], "feature_segments": [], "sorted_idx": []}
    entries: list[dict[str, Any]] = []
    segments, order = [0], []
    for feature, values in enumerate(model.categories):
        known: list[Any] = list(values or ())
        if known and not isinstance(known[0], str):
            if not all(float(value).is_integer() and abs(value) < 2**63 for value in known):
                raise DataError(
                    f"xgboost format: the categories of {model.names[feature]} are fractions, such as {known[0]!r}; "
                    "allowed: text and integers"
                )
            known = [int(value) for value in known]
            entries.append({"type": _INT64, "values": known})
        else:
            known = [value.encode() for value in known]
            offsets = np.cumsum([0, *map(len, known)]).tolist() if known else []
            data = _signed(b"".join(known))
            entries.append({"offsets": offsets, "values": data})
        segments.append(segments[-1] + len(known))
        order += sorted(range(len(known)), key=[_signed(value) for value in known].__getitem__)
    return {"enc": entries, "feature_segments": segments, "sorted_idx": order}
