"""Translators of ai.onnx.ml's tree ensembles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from burnish.frontend.onnx.classical import TRANSFORMS, binary_label, labels_of, no_texts, real, rows, transformed
from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator
from burnish.frontend.onnx.dtypes import to_array
from burnish.ops.native.trees import AGGREGATES
from burnish.ops.trees import packed_trees

MODES = ("LEAF", "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")


@dataclass(frozen=True)
class OnnxTrees:
    """Trees as the operators have them: ``nodes`` [nodes, 5] with mode (by place in ``MODES``), feature, next node if
    true, if false, whether a missing value goes to the first; ``thresholds`` [nodes]; ``weights`` [nodes, targets], NaN
    where a leaf says nothing; ``members`` [pairs, 2]: a node that asks for members of a set, and one of these.
    """

    roots: np.ndarray
    nodes: np.ndarray
    thresholds: np.ndarray
    weights: np.ndarray
    members: np.ndarray

    def scores(self, c: OnnxContext, x: str, aggregate: str, silent: float = 0.0) -> str:
        """[N, targets] of a table; ``silent`` where no tree says anything."""
        least, most = self.nodes[:, 1].min(initial=0), self.nodes[:, 1].max(initial=0)
        if least < 0:
            c.invalid("attribute 'nodes_featureids'", least, "0 or more")
        if most >= c.shape(x)[1]:
            c.invalid("input 0", f"{c.shape(x)[1]} columns", f"at least {most + 1}, which trees read")
        constants = [c.constant(a) for a in packed_trees(*in_order(self, c.dtype(x)))]
        targets = self.weights.shape[1]
        return c.add("tree_ensemble", x, *constants, targets=targets, aggregate=aggregate, silent=silent)


class _Tests:
    """Inner nodes that ask whether a feature is at most a number: ``(feature, first, second, missing first)``."""

    def __init__(self, count: int, thresholds: np.ndarray) -> None:
        self.rows: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)] * count
        self.thresholds = thresholds.tolist()

    def fresh(self) -> int:
        """Another node."""
        self.rows.append((0, 0, 0, 0))
        self.thresholds.append(0.0)
        return len(self.rows) - 1

    def at_most(self, node: int, feature: int, bound: float, first: int, second: int, missing: int) -> None:
        """``node`` goes to ``first`` up to ``bound`` (NaN: never), else to ``second``; missing values to ``missing``,
        which is one of both.
        """
        if missing not in (first, second):  # nothing goes to the first
            first = missing
        self.rows[node] = (feature, first, second, int(missing == first))
        self.thresholds[node] = bound

    def equal(self, node: int, feature: int, value: np.floating, true: int, false: int, missing: int) -> None:
        """``node`` goes to ``true`` where the feature is ``value``."""
        if np.isnan(value):
            self.at_most(node, feature, np.nan, missing, false, missing)
            return
        below = self.fresh()
        self.at_most(node, feature, float(value), below, false, below if missing == true else false)
        self.at_most(below, feature, _before(value), false, true, true)


def _before(value: np.floating) -> float:
    """The greatest number less than ``value``; NaN where there is none."""
    return float(np.nextafter(value, type(value)(-np.inf))) if value != -np.inf else np.nan


def in_order(forest: OnnxTrees, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Arguments of :func:`packed_trees`, for a table of ``dtype``: every test is one of "at most"."""
    modes, count = forest.nodes[:, 0], len(forest.nodes)
    own = np.result_type(np.float64 if dtype == "float64" else np.float32, forest.thresholds)
    tests = _Tests(count, forest.thresholds.astype(own))
    leaves = np.flatnonzero(modes == 0)
    for node in np.flatnonzero(modes).tolist():
        mode, feature, true, false, tracks = forest.nodes[node].tolist()
        value, missing = own.type(forest.thresholds[node]), true if tracks else false
        match MODES[mode].removeprefix("BRANCH_"):
            case "MEMBER":
                _members_of(tests, forest, node, own)
            case "EQ":
                tests.equal(node, feature, value, true, false, missing)
            case "NEQ":
                tests.equal(node, feature, value, false, true, missing)
            case _ if np.isnan(value):
                tests.at_most(node, feature, np.nan, missing, false, missing)
            case "LEQ" | "GT" as name:
                first, second = (true, false) if name == "LEQ" else (false, true)
                tests.at_most(node, feature, float(value), first, second, missing)
            case name:
                first, second = (true, false) if name == "LT" else (false, true)
                tests.at_most(node, feature, _before(value), first, second, missing)
    nodes = np.asarray(tests.rows, np.uint32).reshape(-1, 4)
    nodes[leaves] = np.stack([np.zeros_like(leaves), leaves, leaves, np.arange(len(leaves))], 1)
    return forest.roots, nodes, np.asarray(tests.thresholds, own), forest.weights[leaves]


def _members_of(tests: _Tests, forest: OnnxTrees, node: int, own: np.dtype) -> None:
    """A chain of tests for every member of a node's set."""
    _, feature, true, false, tracks = forest.nodes[node].tolist()
    values = forest.members[forest.members[:, 0] == node, 1].astype(own)
    if not len(values):
        tests.at_most(node, feature, np.nan, true if tracks else false, false, true if tracks else false)
    for number, value in enumerate(values):
        following = tests.fresh() if number + 1 < len(values) else false
        tests.equal(node, feature, value, true, following, true if tracks else following)
        node = following


def _floats(n: OnnxNode, key: str) -> np.ndarray | None:
    """The numbers of an attribute, given as a list or as a tensor."""
    if f"{key}_as_tensor" in n.attrs:
        return to_array(n.attrs[f"{key}_as_tensor"], str(n)).reshape(-1)
    return np.asarray(n.attrs[key], np.float32) if key in n.attrs else None


def _named_forest(c: OnnxContext, n: OnnxNode, leaf: str, targets: int) -> OnnxTrees:
    """The trees of the older operators, whose nodes have a tree and a number; ``leaf``: what leaves' attributes begin
    with, target or class.
    """
    trees, numbers = (np.asarray(n.attrs[f"nodes_{key}"], np.int64) for key in ("treeids", "nodeids"))
    place = {pair: at for at, pair in enumerate(zip(trees.tolist(), numbers.tolist(), strict=True))}
    count = len(trees)
    modes = n.attrs["nodes_modes"]
    unknown = sorted(set(modes) - set(MODES[:-1]))
    if len(place) != count or unknown or len(modes) != count:
        c.invalid("nodes", f"{count} nodes, {len(place)} of them different, modes {unknown}", "each node once")
    thresholds = _floats(n, "nodes_values")
    missing = n.attr("nodes_missing_value_tracks_true") or [0] * count
    c.require_room((count, max(targets, 0)), "float32")
    lists = {key: n.attrs[f"nodes_{key}"] for key in ("featureids", "truenodeids", "falsenodeids")}
    _require_lengths(c, count, values=thresholds, missing_value_tracks_true=missing, **lists)
    nodes, children = np.zeros((count, 5), np.int64), set()
    for at, mode in enumerate(modes):
        nodes[at, 0], nodes[at, 1], nodes[at, 4] = MODES.index(mode), n.attrs["nodes_featureids"][at], missing[at]
        if mode == "LEAF":
            nodes[at, 1] = 0
            continue
        for side, key in ((2, "true"), (3, "false")):
            child = (int(trees[at]), int(n.attrs[f"nodes_{key}nodeids"][at]))
            if child not in place or place[child] in children:
                c.invalid(f"attribute 'nodes_{key}nodeids'", child, "a node of the tree, of one parent")
            nodes[at, side] = place[child]
            children.add(place[child])
    found = _floats(n, f"{leaf}_weights")
    weights = np.full((count, targets), np.nan, np.float32)
    if found is None or thresholds is None:
        c.invalid("attributes", "no weights or values", f"{leaf}_weights and nodes_values")
    ids = zip(n.attrs[f"{leaf}_treeids"], n.attrs[f"{leaf}_nodeids"], n.attrs[f"{leaf}_ids"], found, strict=True)
    weights = weights.astype(found.dtype)
    for tree, number, target, weight in ids:
        if (tree, number) not in place or not 0 <= target < targets:
            c.invalid(f"{leaf} of a leaf", (tree, number, target), f"a node of the trees, and 0 to {targets - 1}")
        at = place[tree, number]
        weights[at, target] = weight if np.isnan(weights[at, target]) else weights[at, target] + weight
    roots = np.asarray([at for at in range(count) if at not in children], np.int64)
    if len(_reached(nodes, roots)) != count:
        c.invalid("nodes", "nodes that no way from a root leads to", "trees, none of whose nodes is below itself")
    return OnnxTrees(roots, nodes, thresholds, weights, np.zeros((0, 2), np.float32))


def _require_lengths(c: OnnxContext, count: int, **lists: Sequence[int] | np.ndarray | None) -> None:
    """Refuses attributes that do not say one thing of each node."""
    for key, found in lists.items():
        if found is not None and len(found) != count:
            c.invalid(f"attribute 'nodes_{key}'", f"{len(found)} of them", f"{count}, one for each node")


def _reached(nodes: np.ndarray, roots: np.ndarray) -> set[int]:
    """The nodes that ways from roots lead to."""
    found, level = set[int](), roots
    while level.size:
        found |= {*level.tolist()}
        inner = level[nodes[level, 0] != 0]
        level = np.asarray([at for at in np.unique(nodes[inner, 2:4]).tolist() if at not in found], np.int64)
    return found


def _regressor(c: OnnxContext, n: OnnxNode) -> str:
    x = rows(c, real(c, n.inputs[0]))
    targets, aggregate = n.attr("n_targets", 1), n.attr("aggregate_function", "SUM")
    if aggregate not in AGGREGATES:
        c.invalid("attribute 'aggregate_function'", aggregate, ", ".join(AGGREGATES))
    scores = c.cast(_named_forest(c, n, "target", targets).scores(c, x, aggregate), "float32")
    base = _floats(n, "base_values")
    if base is not None and len(base) not in (0, 1, targets):
        c.invalid("attribute 'base_values'", f"{len(base)} of them", f"{targets}, one for each target")
    if base is not None and len(base):
        scores = c.add("add", scores, c.constant(base, "float32"))
    return transformed(c, scores, n.attr("post_transform", "NONE"))


def _classifier(c: OnnxContext, n: OnnxNode) -> list[str]:
    """Labels and scores; of two classes whose weights all belong to one, its score decides, and the other's follows."""
    no_texts(n, "classlabels_strings")
    x, labels = rows(c, real(c, n.inputs[0])), n.attrs["classlabels_int64s"]
    transform, base = n.attr("post_transform", "NONE"), _floats(n, "base_values")
    if not labels or not n.attrs["class_ids"]:
        c.invalid("attributes 'classlabels_int64s' and 'class_ids'", "none", "some")
    forest = _named_forest(c, n, "class", len(labels))
    own = sorted(set(n.attrs["class_ids"]))
    if len(labels) == 2 and len(own) == 1:
        scores = c.cast(forest.scores(c, x, "SUM"), "float32")
        return _binary(c, n, c.slice(scores, 1, own[0], own[0] + 1), base, transform)
    if base is not None and len(base):
        scores = c.add("add", c.cast(forest.scores(c, x, "SUM"), "float32"), c.constant(base, "float32"))
        index = c.add("argmax", scores, axis=1, keepdims=False)
    else:  # a class of which no tree speaks is none to choose
        found = c.cast(forest.scores(c, x, "SUM", -np.inf), "float32")
        index = c.add("argmax", found, axis=1, keepdims=False)
        none = c.add("equal", found, c.scalar(-np.inf, found))
        scores = c.add("where", none, c.scalar(0.0, found), found)
    return [labels_of(c, labels, index), transformed(c, scores, transform)]


def _binary(c: OnnxContext, n: OnnxNode, score: str, base: np.ndarray | None, transform: str) -> list[str]:
    """As onnxruntime has it: a probability's opposite where all weights are at least zero, else the negative score."""
    if base is not None and len(base):
        score = c.add("add", score, c.constant(base[-1:], "float32"))
    found = _floats(n, "class_weights")
    positive = found is not None and bool((found >= 0).all())
    label = binary_label(c, n.attrs["classlabels_int64s"], score, 0.5 if positive else 0.0)
    if transform == "LOGISTIC":
        return [label, c.add("sigmoid", c.add("concat", c.add("neg", score), score, axis=1))]
    opposite = c.add("sub", c.scalar(1.0, score), score) if positive else c.add("neg", score)
    return [label, c.add("concat", opposite, score, axis=1)]


_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")  # by number, of the newer operator


def _tree_ensemble(c: OnnxContext, n: OnnxNode) -> str:
    """The newer operator: inner nodes and leaves apart; sets of values are separated by NaN."""
    x = rows(c, n.inputs[0])
    modes = to_array(n.attrs["nodes_modes"], str(n)).astype(np.int64) + 1
    splits = to_array(n.attrs["nodes_splits"], str(n))
    leaves = to_array(n.attrs["leaf_weights"], str(n))
    inner, count, targets = len(modes), len(modes) + len(leaves), n.attr("n_targets", 1)
    c.require_room((count, max(targets, 0)), str(leaves.dtype))
    missing = n.attr("nodes_missing_value_tracks_true") or [0] * inner
    keys = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    lists = {key: n.attrs[f"nodes_{key}"] for key in keys}
    _require_lengths(c, inner, splits=splits, missing_value_tracks_true=missing, **lists)
    places = np.asarray(n.attrs["leaf_targetids"], np.int64)
    if len(places) != len(leaves) or ((places < 0) | (places >= targets)).any():
        c.invalid("attribute 'leaf_targetids'", places.tolist()[:9], f"{len(leaves)} of 0 to {targets - 1}")
    if (modes >= len(MODES)).any() or not {*lists["trueleafs"], *lists["falseleafs"]} <= {0, 1}:
        c.invalid("nodes_modes and flags of leaves", "unknown ones", f"0 to {len(MODES) - 2}, 0 and 1")
    nodes = np.zeros((count, 5), np.int64)
    nodes[:inner, 0], nodes[:inner, 1] = modes, n.attrs["nodes_featureids"]
    for side, key in ((2, "true"), (3, "false")):
        ids, ends = (np.asarray(n.attrs[f"nodes_{key}{what}"], np.int64) for what in ("nodeids", "leafs"))
        nodes[:inner, side] = ids + inner * ends
        if (ids < 0).any() or (nodes[:inner, side] >= np.where(ends, count, inner)).any():
            allowed = f"below {inner}, or below {len(leaves)} of leaves"
            c.invalid(f"attribute 'nodes_{key}nodeids'", ids.tolist(), allowed)
    nodes[:inner, 4] = missing
    thresholds = np.concatenate([splits, np.zeros(len(leaves), splits.dtype)])
    weights = np.full((count, targets), np.nan, leaves.dtype)
    weights[inner + np.arange(len(leaves)), n.attrs["leaf_targetids"]] = leaves
    aggregate, transform = n.attr("aggregate_function", 1), n.attr("post_transform", 0)
    if not 0 <= aggregate < len(_AGGREGATES) or not 0 <= transform < len(TRANSFORMS):
        c.invalid("aggregate_function and post_transform", f"{aggregate}, {transform}", "0 to 3, 0 to 4")
    _require_ends(c, nodes, n.attrs["tree_roots"], inner)
    forest = OnnxTrees(np.asarray(n.attrs["tree_roots"], np.int64), nodes, thresholds, weights, _members(n, modes))
    return transformed(c, forest.scores(c, x, _AGGREGATES[aggregate]), TRANSFORMS[transform])


def _require_ends(c: OnnxContext, nodes: np.ndarray, roots: Sequence[int], inner: int) -> None:
    """Refuses trees in which a way down never ends."""
    level = np.asarray(roots, np.int64)
    if (level < 0).any() or (level >= max(inner, 1)).any():
        c.invalid("attribute 'tree_roots'", list(roots), f"0 to {inner - 1}")
    for _ in range(inner + 2):
        if not level.size:
            return
        level = level[nodes[level, 0] != 0]
        level = np.unique(np.concatenate([nodes[level, 2], nodes[level, 3]]))
    c.invalid("nodes", "a way from node to node that never ends", "trees")


def _members(n: OnnxNode, modes: np.ndarray) -> np.ndarray:
    """Pairs of node and value, of the nodes that ask for members of a set."""
    tensor = n.attr("membership_values")
    if not isinstance(tensor, onnx.TensorProto):
        return np.zeros((0, 2), np.float32)
    values = to_array(tensor, str(n)).reshape(-1)
    owners = np.flatnonzero(modes == MODES.index("BRANCH_MEMBER"))
    group = np.cumsum(np.isnan(values)) - np.isnan(values)
    inside = ~np.isnan(values)
    return np.stack([owners[group[inside]].astype(values.dtype), values[inside]], 1)


_OPERATORS: Mapping[str, Translator] = {
    "TreeEnsembleRegressor": _regressor,
    "TreeEnsembleClassifier": _classifier,
    "TreeEnsemble": _tree_ensemble,
}
TRANSLATORS: Mapping[str, Translator] = {f"ai.onnx.ml.{name}": t for name, t in _OPERATORS.items()}
