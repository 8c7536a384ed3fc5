"""A boosted model: trees with what turns their sums into predictions; its own file format in JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inference.forest import Forest
from burnish.boost.inference.validate import check_tree
from burnish.boost.inputs.factors import POLICIES
from burnish.boost.inputs.naming import order_of
from burnish.boost.predictor import predict_leaf, predict_margin
from burnish.boost.tree import Tree
from burnish.errors import DataError
from burnish.files import read_regular

if TYPE_CHECKING:
    from burnish.boost.data import Dataset, Sparse
    from burnish.boost.threads import Workers

FORMAT = "burnish.boost"
VERSION = 1
MOST_FEATURES, MOST_OUTPUTS = 1 << 24, 1 << 20  # a file that claims more costs memory before a tree is read
_INTEGERS = ("left", "right", "feature", "category_start", "category")
_FLOATS = ("threshold", "value", "gain", "cover")


@dataclass(frozen=True, eq=False)
class Model:
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
        best = self.best_iteration
        _demand(best is None or 0 <= best < max(self.rounds, 1), "best_iteration", best, f"below {self.rounds} rounds")
        for number, tree in enumerate(self.trees):
            check_tree(tree, self.features, f"tree {number}")

    def __repr__(self) -> str:
        parts = [f"{self.objective}", f"{self.rounds} rounds", f"{self.features} features"]
        parts += [f"{self.outputs} outputs"] if self.outputs > 1 else []
        parts += [f"best_iteration {self.best_iteration}"] if self.best_iteration is not None else []
        return f"Model({', '.join(parts)})"

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
    def forest(self) -> Forest:
        """The trees as the predictor wants them."""
        return Forest(self.trees, self.outputs)

    def slice(self, begin: int, end: int) -> Model:
        """The model of rounds ``begin … end - 1`` alone, with the same base score. Raises DataError."""
        _demand(0 <= begin <= end <= self.rounds, "rounds", f"{begin} … {end}", f"0 … {self.rounds}")
        best = self.best_iteration
        kept = best - begin if best is not None and begin <= best < end else None
        return replace(self, trees=self.trees[begin * self.outputs : end * self.outputs], best_iteration=kept)

    def arranged(self, names: Sequence[str], what: str) -> Model:
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

    def plot_tree(self, tree: int = 0, ax: Any = None) -> Any:
        """Draws a tree by matplotlib: see :func:`burnish.boost.plots.plot_tree`."""
        from burnish.boost.plots import plot_tree

        return plot_tree(self, tree, ax)

    def plot_importance(self, kind: str = "gain", most: int = 20, ax: Any = None) -> Any:
        """Draws importances by matplotlib: see :func:`burnish.boost.plots.plot_importance`."""
        from burnish.boost.plots import plot_importance

        return plot_importance(self, kind, most, ax)

    def save(self, path: str | Path, format: str | None = None) -> None:
        """Writes the model file, whole or not at all: our JSON, or `format` "xgboost" (JSON) or "xgboost-ubj".

        A name that ends in ``.ubj`` is XGBoost's UBJ, with `format` "xgboost" too. Raises OSError, ParameterError for
        another format, and DataError for a part that the format cannot hold.
        """
        from burnish.boost.formats.files import save_as

        save_as(self, path, format)

    @staticmethod
    def load(path: str | Path) -> Model:
        """The model in a file of ours, of XGBoost (JSON or UBJ) or of LightGBM (text), told apart by its content.

        Raises DataError for a file that is not whole, not valid or of another kind, OSError.
        """
        from burnish.boost.formats.files import loads_any

        return loads_any(read_regular(path), str(path))


def dumps(model: Model) -> str:
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
    try:
        text = _canonical(content)
    except (TypeError, ValueError) as error:
        raise DataError(f"save: the model has a part that JSON cannot hold: {error}") from None
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"format":"{FORMAT}","version":{VERSION},"sha256":"{digest}","model":{text}}}\n'


def loads(text: str | bytes, source: str = "model") -> Model:
    """The model that `dumps` wrote. Raises DataError, naming `source` and what is wrong with it."""
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


def parse_json(text: str | bytes, source: str) -> dict[str, Any]:
    """A JSON object. Raises DataError where the text is none: truncated, not UTF-8, or nested too deeply."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source} is no JSON, or truncated: {error or 'nested too deeply'}") from None
    if not isinstance(document, dict):
        raise DataError(f"{source} holds a JSON {type(document).__name__}, allowed: an object")
    return document


def _model_from_json(content: Mapping[str, Any]) -> Model:
    best = content["best_iteration"]
    return Model(
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


def int32_array(values: Any, where: str) -> NDArray[np.int32]:
    """A list of JSON as int32 in one dimension. Raises DataError for anything but integers in range."""
    array = np.asarray(values if len(values) else np.empty(0, np.int64))
    if (
        array.ndim != 1
        or array.dtype.kind not in "iub"
        or (array.size and np.abs(array.astype(np.int64)).max() >= 2**31)
    ):
        raise DataError(f"{where} is no list of 32-bit integers")
    return array.astype(np.int32)


def float32_array(values: Any, where: str) -> NDArray[np.float32]:
    """A list of JSON as float32 in one dimension. Raises DataError for anything but numbers."""
    array = np.asarray(values if len(values) else np.empty(0))
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise DataError(f"{where} is no list of numbers")
    with np.errstate(over="ignore"):  # what overflows becomes infinite, which check_tree refuses
        return array.astype(np.float64).astype(np.float32)


def floats(values: NDArray[np.float32]) -> list[float]:
    """The doubles of fewest digits that round to the float32 values."""
    short = values.astype(str).astype(np.float64)
    exact: list[float] = np.where(short.astype(np.float32) == values, short, values.astype(np.float64)).tolist()
    return exact


def _plain(value: Any) -> Any:
    """A category's value as JSON knows it; NumPy's numbers become Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _canonical(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _demand(condition: bool, what: str, found: object, allowed: str) -> None:
    if not condition:
        raise DataError(f"model: {what} is {found}, allowed: {allowed}")
