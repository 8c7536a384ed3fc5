"""Random trees and tables, and the prediction of a tree node by node: the oracle of every faster one."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from burnish.boost.model import Model
from burnish.boost.tree import Tree, TreeBuilder

CATEGORIES = 9


def random_tree(
    rng: np.random.Generator, features: int, depth: int, categorical: tuple[int, ...] = (), sparseness: float = 0.2
) -> Tree:
    """A tree of at most `depth` levels; a node above the last is a leaf with probability `sparseness`."""
    builder = TreeBuilder()
    leaves = [(builder.add(float(rng.normal()), 64.0), 0, 64.0)]
    while leaves:
        node, level, cover = leaves.pop(int(rng.integers(len(leaves))))
        if level == depth or not features or (level and rng.random() < sparseness):
            continue
        feature = int(rng.integers(features))
        listed: tuple[int, ...] = ()
        if feature in categorical:
            listed = tuple(int(c) for c in np.flatnonzero(rng.random(CATEGORIES) < 0.4)) or (3,)
        # Thresholds that occur in tables, so that equality is met.
        threshold = 0.0 if listed else float(np.float32(rng.integers(-4, 5) / 4))
        share = cover * float(rng.uniform(0.1, 0.9))
        children = builder.split(
            node, feature, threshold, bool(rng.random() < 0.5), float(rng.uniform(0.1, 5)),
            (float(rng.normal()), share), (float(rng.normal()), cover - share), listed,
        )  # fmt: skip
        leaves += [(children[0], level + 1, share), (children[1], level + 1, cover - share)]
    return builder.tree()


def random_table(
    rng: np.random.Generator, rows: int, features: int, categorical: tuple[int, ...] = (), missing: float = 0.2
) -> NDArray[np.float32]:
    """Values that meet thresholds, zeros of both signs and infinities; category numbers, unknown ones too."""
    table = rng.integers(-5, 6, (rows, features)).astype(np.float32) / np.float32(4)
    table[rng.random(table.shape) < 0.05] = -0.0
    table[rng.random(table.shape) < 0.02] = np.inf
    table[rng.random(table.shape) < 0.02] = -np.inf
    for feature in categorical:
        table[:, feature] = rng.integers(-1, CATEGORIES + 2, rows)
    table[rng.random(table.shape) < missing] = np.nan
    return table


def random_model(
    rng: np.random.Generator, trees: int, features: int, depth: int, outputs: int = 1,
    categorical: tuple[int, ...] = (), sparseness: float = 0.2,
) -> Model:  # fmt: skip
    made = tuple(random_tree(rng, features, depth, categorical, sparseness) for _ in range(trees * outputs))
    return Model(made, features, outputs, rng.normal(size=outputs).astype(np.float32))


def naive_leaf(tree: Tree, row: NDArray[np.float32]) -> int:
    """The leaf of a row."""
    node = 0
    while tree.left[node] >= 0:
        x = row[tree.feature[node]]
        listed = tree.categories(node)
        if math.isnan(x):
            left = bool(tree.default_left[node])
        elif len(listed):
            left = not (x >= 0 and int(x) in listed) if math.isfinite(x) else True
        else:
            left = bool(x < tree.threshold[node])
        node = int(tree.left[node] if left else tree.right[node])
    return node


def naive_margin(model: Model, table: NDArray[np.float32]) -> NDArray[np.float32]:
    """Margins (outputs, rows)."""
    margin = np.repeat(model.base_score[:, None], len(table), 1)
    for number, tree in enumerate(model.trees):
        for i, row in enumerate(table):
            margin[number % model.outputs, i] += tree.value[naive_leaf(tree, row)]
    return margin


@st.composite
def models_and_tables(
    draw: st.DrawFn, most_depth: int = 10, categorical: bool = True
) -> tuple[Model, NDArray[np.float32]]:
    """A random model, and a table for it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    features = draw(st.one_of(st.integers(1, 6), st.integers(15, 40)))
    depth = draw(st.integers(0, most_depth))
    outputs = draw(st.integers(1, 3))
    listed = tuple(f for f in range(features) if draw(st.booleans())) if categorical and draw(st.booleans()) else ()
    model = random_model(
        rng, draw(st.integers(0, 4)), features, depth, outputs, listed, draw(st.sampled_from([0.0, 0.2, 0.5]))
    )
    return model, random_table(rng, draw(st.integers(0, 70)), features, listed, draw(st.sampled_from([0.0, 0.3])))
