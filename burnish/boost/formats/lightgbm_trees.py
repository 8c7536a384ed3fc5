"""One tree of LightGBM's text format: its lines, and our arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.boost.formats.xgboost_trees import with_means
from burnish.boost.inference.validate import MOST_CATEGORIES
from burnish.boost.tree import Tree, TreeBuilder
from burnish.errors import DataError

MOST_NODES = 1 << 20  # of one tree; more come only of tests that send zeros and small numbers to different sides
_NONE, _ZERO, _NAN = 0, 1, 2  # what is missing, in bits 2 and 3 of decision_type
_CATEGORICAL, _DEFAULT_LEFT = 1, 2
_NEARLY_ZERO = np.float32(1e-35)  # as much as this, of either sign, is zero to LightGBM
_ABOVE_ZERO = float(np.nextafter(_NEARLY_ZERO, np.float32(1)))
_LARGEST = np.finfo(np.float32).max


_Side = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class _Columns:
    """LightGBM's arrays: inner nodes, and leaves, which children name by ``-1 - leaf``."""

    left: list[int]
    right: list[int]
    feature: list[int]
    threshold: list[float]
    decision: list[int]
    gain: list[float]
    value: list[float]  # of leaves
    rows: list[float]  # of leaves
    inner_rows: list[float]
    sets: list[tuple[int, ...]]  # of categories

    def covered(self, side: _Side) -> float:
        """The rows of training that reach nodes or leaves."""
        return sum(share * (self.inner_rows[node] if node >= 0 else self.rows[-1 - node]) for node, share in side)


def tree_from_lightgbm(fields: Mapping[str, str], where: str) -> Tree:
    """The tree of a block of lines. Raises DataError, naming `where`, for what does not fit together.

    A test of a feature whose zeros are missing (``zero_as_missing``) needs three tests here where zeros do not go the
    way of their neighbours, and its subtrees twice.
    """
    if fields.get("is_linear", "0") != "0":
        raise DataError(f"{where} has linear models at its leaves (linear_tree), allowed: one value")
    columns = _columns(fields, where)
    builder = TreeBuilder()
    first = 0 if columns.left else -1
    whole = ((first, 1.0),)
    stack = [(builder.add(_value(columns, whole), columns.covered(whole)), first, 1.0)]
    made = 1
    while stack:
        place, node, share = stack.pop()
        if node < 0:
            continue
        at = place
        for number, test in enumerate(_tests(columns, node, where)):
            sides = test.left, test.right
            children = builder.split(
                at, columns.feature[node], test.threshold, test.default_left, columns.gain[node] * (number == 0),
                (_value(columns, test.left), share * columns.covered(test.left)),
                (_value(columns, test.right), share * columns.covered(test.right)), test.category,
            )  # fmt: skip
            made += 2
            for child, side in zip(children, sides, strict=True):
                if len(side) == 1:
                    stack.append((child, side[0][0], share * side[0][1]))
                else:  # the next test is here
                    at = child
        if made > MOST_NODES:
            raise DataError(f"{where} needs more than {MOST_NODES} nodes, as zeros are missing (zero_as_missing)")
    return with_means(builder.tree())


@dataclass(frozen=True)
class _Test:
    """A test here. A side is a node of LightGBM with its share of the node's rows; of two, the next test decides."""

    threshold: float
    default_left: bool
    left: _Side
    right: _Side
    category: tuple[int, ...] = ()


def _tests(columns: _Columns, node: int, where: str) -> list[_Test]:
    """The tests that together are a node's."""
    left, right = columns.left[node], columns.right[node]
    yes, no, half_yes, half_no = ((left, 1.0),), ((right, 1.0),), ((left, 0.5),), ((right, 0.5),)
    decision, threshold = columns.decision[node], columns.threshold[node]
    missing, default_left = decision >> 2 & 3, bool(decision & _DEFAULT_LEFT)
    if decision & _CATEGORICAL:  # what is listed goes left there; here it goes right, and what is missing the other way
        number = int(threshold)
        if not 0 <= number < len(columns.sets) or not columns.sets[number]:
            raise DataError(f"{where}, node {node}: categories {number} of {len(columns.sets)} lists, or an empty list")
        return [_Test(0.0, True, no, yes, columns.sets[number])]
    limit, zero = _above(threshold), float(_NEARLY_ZERO)
    if missing == _NONE:  # NaN counts as zero
        return [_Test(limit, threshold >= 0, yes, no)]
    if missing == _NAN or default_left == (threshold >= 0):
        return [_Test(limit, default_left, yes, no)]
    if threshold >= 0:  # zeros go right, smaller and larger numbers left
        if threshold <= zero:
            return [_Test(-zero, False, yes, no)]
        return [
            _Test(limit, False, yes + half_no, half_no),
            _Test(-zero, False, half_yes, half_yes + half_no),
            _Test(_ABOVE_ZERO, False, half_no, half_yes),
        ]
    if threshold >= -zero:  # zeros go left with what is below them
        return [_Test(_ABOVE_ZERO, True, yes, no)]
    return [
        _Test(limit, True, half_yes, no + half_yes),
        _Test(-zero, True, half_no, half_no + half_yes),
        _Test(_ABOVE_ZERO, True, half_yes, half_no),
    ]


def _above(threshold: float) -> float:
    """The least float32 t for which ``x < t`` is ``x <= threshold`` for every float32 x."""
    with np.errstate(over="ignore"):
        near = np.float32(threshold)
    if not float(near) > threshold:
        near = np.nextafter(near, np.float32(np.inf))
    return float(np.clip(near, -_LARGEST, _LARGEST))


def _value(columns: _Columns, side: _Side) -> float:
    """A leaf's value; inner nodes get theirs from the leaves below."""
    return columns.value[-1 - side[0][0]] if len(side) == 1 and side[0][0] < 0 else 0.0


def _columns(fields: Mapping[str, str], where: str) -> _Columns:
    """The arrays, checked: every node and leaf but the root is the child of one node before it."""
    leaves = int(fields["num_leaves"])
    if not 1 <= leaves <= MOST_NODES:
        raise DataError(f"{where}: num_leaves is {leaves}, allowed: 1 … {MOST_NODES}")
    inner = leaves - 1

    def numbers(name: str, count: int, default: bool = False) -> list[Any]:
        texts = fields[name].split() if not default or fields.get(name) else ["0"] * count
        if len(texts) != count:
            raise DataError(f"{where}: {name} has {len(texts)} values, allowed: {count}")
        found = np.array(texts, np.float64)
        if np.isnan(found).any() or (name != "threshold" and np.isinf(found).any()):
            raise DataError(f"{where}: {name} holds a value that is not finite")
        return list(found.tolist())

    def whole(name: str) -> list[int]:
        found = numbers(name, inner)
        if any(value != int(value) or abs(value) >= 2**31 for value in found):
            raise DataError(f"{where}: {name} is no list of 32-bit integers")
        return [int(value) for value in found]

    value, rows = numbers("leaf_value", leaves), numbers("leaf_count", leaves, default=True)
    if not inner:
        return _Columns([], [], [], [], [], [], value, rows, [], [])
    left, right = whole("left_child"), whole("right_child")
    children = left + right
    if (
        sorted(children) != sorted([*range(1, inner), *range(-leaves, 0)])
        or any(0 <= child <= node % inner for node, child in enumerate(children))
    ):  # fmt: skip
        raise DataError(f"{where}: its children are no tree")
    sets = _sets(fields, int(fields.get("num_cat", "0")), where)
    return _Columns(
        left, right, whole("split_feature"), numbers("threshold", inner), whole("decision_type"),
        numbers("split_gain", inner, default=True), value, rows, numbers("internal_count", inner, default=True), sets,
    )  # fmt: skip


def _sets(fields: Mapping[str, str], count: int, where: str) -> list[tuple[int, ...]]:
    """The lists of categories, which the file holds as bits in words of 32."""
    if count <= 0:
        return []
    bounds = np.array(fields["cat_boundaries"].split(), np.int64)
    words = np.array(fields["cat_threshold"].split(), np.int64)
    if (
        len(bounds) != count + 1 or bounds[0] != 0 or bounds[-1] != len(words) or (np.diff(bounds) < 0).any()
        or ((words < 0) | (words >= 2**32)).any()
    ):  # fmt: skip
        raise DataError(f"{where}: cat_boundaries do not ascend from 0 to the {len(words)} words of cat_threshold")
    if 32 * len(words) > MOST_CATEGORIES:
        raise DataError(f"{where}: cat_threshold has {len(words)} words, allowed: {MOST_CATEGORIES // 32}")
    found = []
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        bits = words[begin:end, None] >> np.arange(32) & 1
        found.append(tuple(np.flatnonzero(bits.reshape(-1)).tolist()))
    return found
