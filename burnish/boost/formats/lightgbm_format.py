"""LightGBM's text model format (versions 3 and 4): reading.

LightGBM tests ``x <= threshold`` in double precision; here the test is ``x < threshold`` in float32, with the least
float32 above: the same for every table of float32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from burnish.boost.ensemble import MOST_OUTPUTS, Ensemble
from burnish.boost.formats.lightgbm_trees import tree_from_lightgbm
from burnish.boost.tree import Tree
from burnish.errors import DataError

_END_OF_TREES = "end of trees"
# LightGBM's objective -> ours, that of XGBoost with the same link, or one of `burnish.boost.links`.
OBJECTIVES = {
    "regression": "squared_error",
    "regression_l1": "reg:absoluteerror",
    "mape": "reg:absoluteerror",
    "huber": "reg:pseudohubererror",
    "fair": "reg:pseudohubererror",
    "quantile": "quantile",
    "poisson": "poisson",
    "gamma": "reg:gamma",
    "tweedie": "reg:tweedie",
    "binary": "logistic",
    "cross_entropy": "logistic",
    "cross_entropy_lambda": "lightgbm:cross_entropy_lambda",
    "multiclass": "softmax",
    "multiclassova": "lightgbm:multiclassova",
    "lambdarank": "rank_ndcg",
    "rank_xendcg": "rank_ndcg",
    "": "custom",
}


def loads_lightgbm(text: str | bytes, source: str = "model") -> Ensemble:
    """The model in LightGBM's text. Raises DataError, naming `source` and what is wrong or not supported.

    Covers are numbers of rows, as LightGBM's own contributions take them. Where the logistic link has a factor
    ("sigmoid"), it is in the leaves: probabilities are the same, margins that many times LightGBM's raw scores.
    Categories that training has not seen are missing, as in LightGBM.
    """
    try:
        found = text.decode() if isinstance(text, bytes) else text
        return _model(found)
    except UnicodeDecodeError:
        raise DataError(f"{source} is no UTF-8 text") from None
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    except KeyError as error:
        raise DataError(f"{source} is no text model of LightGBM, or damaged: {error} is missing") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"{source}: a part has the wrong form: {error}") from None


def _model(text: str) -> Ensemble:
    body, mark, after = text.partition("\n" + _END_OF_TREES)
    if not mark:
        raise DataError(f"the line {_END_OF_TREES!r} is missing: the file is truncated")
    head, *blocks = body.split("\nTree=")
    header = _fields(head)
    if "max_feature_idx" not in header:
        raise KeyError("max_feature_idx")
    features, outputs = int(header["max_feature_idx"]) + 1, int(header["num_tree_per_iteration"])
    names, infos = header["feature_names"].split(), header["feature_infos"].split()
    if not len(names) == len(infos) == features:
        raise DataError(f"max_feature_idx says {features} features, there are {len(names)} names, {len(infos)} infos")
    if not 1 <= outputs <= MOST_OUTPUTS or len(blocks) % outputs:
        raise DataError(f"num_tree_per_iteration is {outputs}, which does not divide the {len(blocks)} trees")
    trees = [tree_from_lightgbm(_fields(block), f"tree {number}") for number, block in enumerate(blocks)]
    kind, settings = _objective(header.get("objective", ""))
    scale = 1.0
    if kind in ("binary", "multiclassova"):
        scale = float(settings.get("sigmoid", 1.0))
    if "average_output" in header and trees:
        scale /= len(trees) // outputs
    categories = _categories(after, infos)
    parameters: dict[str, Any] = {} if kind == "" else {"lightgbm_objective": kind}
    if kind == "multiclass":
        parameters["num_class"] = outputs
    if kind == "quantile" and "alpha" in settings:
        parameters["quantile_alpha"] = float(settings["alpha"])
    known = OBJECTIVES[kind] if not (kind == "regression" and "sqrt" in settings) else "lightgbm:regression_sqrt"
    return Ensemble(
        trees=tuple(_scaled(tree, scale) for tree in trees),
        features=features,
        outputs=outputs,
        base_score=np.zeros(outputs, np.float32),
        objective=known,
        objective_parameters=parameters,
        feature_names=() if names == [f"Column_{number}" for number in range(features)] else tuple(names),
        categories=categories,
        category_policy="missing" if categories else "error",
    )


def _fields(block: str) -> dict[str, str]:
    """The lines ``key=value`` of a block; a word alone is a key without value."""
    found: dict[str, str] = {}
    for line in block.splitlines():
        key, _, value = line.partition("=")
        found[key.strip()] = value.strip()
    return found


def _objective(text: str) -> tuple[str, Mapping[str, str]]:
    """The name, and its settings such as ``sigmoid:1``. Raises DataError for one that is not known."""
    name, *rest = text.split() or [""]
    name = "" if name in ("custom", "none", "None") else name
    if name not in OBJECTIVES:
        raise DataError(f"objective is {name!r}, allowed: {', '.join(filter(None, OBJECTIVES))}")
    return name, {key: value for key, _, value in (word.partition(":") for word in rest)}


def _categories(after: str, infos: list[str]) -> tuple[tuple[Any, ...] | None, ...]:
    """The values of categorical columns of a pandas frame; () where there was none, since numbers are themselves."""
    _, mark, listed = after.partition("\npandas_categorical:")
    known = json.loads(listed.strip().splitlines()[0]) if mark and listed.strip() else None
    if not known:
        return ()
    columns = [number for number, info in enumerate(infos) if info[:1] not in ("[", "n")]
    if len(columns) != len(known):
        raise DataError(
            f"pandas_categorical lists the categories of {len(known)} columns, allowed: {len(columns)}, one for each "
            "categorical feature"
        )
    values = dict(zip(columns, (tuple(each) for each in known), strict=True))
    return tuple(values.get(number) for number in range(len(infos)))


def _scaled(tree: Tree, scale: float) -> Tree:
    return tree if scale == 1.0 else replace(tree, value=(tree.value * np.float64(scale)).astype(np.float32))
