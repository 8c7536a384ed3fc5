"""Our own model format, JSON with a checksum: reading and writing."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.ensemble import Ensemble
from burnish.boost.formats.values import float32_array, floats, int32_array, parse_json
from burnish.boost.tree import Tree
from burnish.errors import DataError

FORMAT = "burnish.boost"
VERSION = 1
_INTEGERS = ("left", "right", "feature", "category_start", "category")
_FLOATS = ("threshold", "value", "gain", "cover")


def dumps_own(model: Ensemble) -> str:
    """The model as JSON text, in which every float has the fewest digits that give it back exactly."""
    content = {
        "features": model.features,
        "outputs": model.outputs,
        "base_score": floats(model.base_score),
        "objective": model.objective,
        "objective_parameters": dict(model.objective_parameters),
        "feature_names": list(model.feature_names),
        "categories": [None if values is None else [_plain(value) for value in values] for values in model.categories],
        "category_policy": model.category_policy,
        "best_iteration": model.best_iteration,
        "attributes": dict(model.attributes),
        "trees": [_tree_to_json(tree) for tree in model.trees],
    }
    if not math.isnan(model.missing):
        content["missing"] = str(model.missing)  # it may be infinite
    if model.infinite != "error":
        content["infinite"] = model.infinite
    try:
        text = _canonical(content)
    except (TypeError, ValueError) as error:
        raise DataError(f"save: the model has a part that JSON cannot hold: {error}") from None
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"format":"{FORMAT}","version":{VERSION},"sha256":"{digest}","model":{text}}}\n'


def loads_own(text: str | bytes, source: str = "model") -> Ensemble:
    """The model that `dumps_own` wrote. Raises DataError, naming `source` and what is wrong with it."""
    document = parse_json(text, source)
    if document.get("format") != FORMAT:
        raise DataError(f"{source}: format is {document.get('format')!r}, allowed: {FORMAT!r}")
    if document.get("version") != VERSION:
        raise DataError(f"{source}: version is {document.get('version')!r}, allowed: {VERSION}")
    content = document.get("model")
    if not isinstance(content, dict):
        raise DataError(f"{source}: 'model' is missing, or is no object")
    try:
        digest = hashlib.sha256(_canonical(content).encode()).hexdigest()
    except ValueError as error:
        raise DataError(f"{source}: 'model' holds a value that no model has: {error}") from None
    if digest != document.get("sha256"):
        raise DataError(f"{source}: 'model' does not match its checksum: the file is damaged or was altered")
    try:
        return _model_from_json(content)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    except KeyError as error:
        raise DataError(f"{source}: {error} is missing") from None
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise DataError(f"{source}: a part has the wrong type: {error}") from None


def _model_from_json(content: Mapping[str, Any]) -> Ensemble:
    best = content["best_iteration"]
    return Ensemble(
        trees=tuple(_tree_from_json(tree, f"tree {number}") for number, tree in enumerate(content["trees"])),
        features=int(content["features"]),
        outputs=int(content["outputs"]),
        base_score=np.array(content["base_score"], np.float64).astype(np.float32),
        objective=str(content["objective"]),
        objective_parameters=dict(content["objective_parameters"]),
        feature_names=tuple(map(str, content["feature_names"])),
        categories=tuple(None if values is None else tuple(values) for values in content["categories"]),
        category_policy=str(content["category_policy"]),
        best_iteration=None if best is None else int(best),
        attributes={str(key): str(value) for key, value in content["attributes"].items()},
        missing=float(content.get("missing", math.nan)),
        infinite=content.get("infinite", "error"),
    )


def _tree_to_json(tree: Tree) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: getattr(tree, name).tolist() for name in _INTEGERS}
    columns |= {name: floats(getattr(tree, name)) for name in _FLOATS}
    return columns | {"default_left": tree.default_left.astype(int).tolist()}


def _tree_from_json(columns: Mapping[str, Any], where: str) -> Tree:
    def integers(name: str) -> NDArray[np.int32]:
        return int32_array(columns[name], f"{where}: {name}")

    def floats(name: str) -> NDArray[np.float32]:
        return float32_array(columns[name], f"{where}: {name}")

    arrays: dict[str, Any] = {name: integers(name) for name in _INTEGERS} | {name: floats(name) for name in _FLOATS}
    return Tree(**arrays, default_left=integers("default_left") != 0)


def _plain(value: Any) -> Any:
    """A category's value as JSON knows it; NumPy's numbers become Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _canonical(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
