"""One regression tree as arrays of nodes: what growers make and what everything after them reads."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PRESENT = float(np.finfo(np.float32).max)
"""The threshold of a test of a categorical feature that all categories, also unseen ones, pass: missing or not."""


@dataclass(frozen=True)
class Tree:
    """Nodes in order of their creation; node 0 is the root, and children come after their parent.

    A row goes left if ``x[feature] < threshold`` (the rule of XGBoost), and to the side of `default_left` if the
    value is missing. At a split of a categorical feature, it goes right if its category is listed for the node; one
    that tells missing from all categories lists none, and is a test against the threshold `PRESENT`.
    """

    left: NDArray[np.int32]  # (nodes,); -1 at leaves
    right: NDArray[np.int32]  # (nodes,); -1 at leaves
    feature: NDArray[np.int32]  # (nodes,); -1 at leaves
    threshold: NDArray[np.float32]  # (nodes,)
    default_left: NDArray[np.bool_]  # (nodes,)
    value: NDArray[np.float32]  # (nodes,); the weight (eq. 2.5) times the learning rate, at inner nodes too
    gain: NDArray[np.float32]  # (nodes,); reduction of the loss (eq. 2.7); 0 at leaves
    cover: NDArray[np.float32]  # (nodes,); sum of the Hessians of the rows that reach the node
    category_start: NDArray[np.int32]  # (nodes + 1,); node i's categories are category[start[i]:start[i + 1]]
    category: NDArray[np.int32]  # ascending in every node; empty for a split by threshold

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.left)

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return int(np.count_nonzero(self.left < 0))

    def categories(self, node: int) -> NDArray[np.int32]:
        """The categories that go right at a node; empty unless its feature is categorical."""
        return self.category[self.category_start[node] : self.category_start[node + 1]]


class TreeBuilder:
    """Collects the nodes of a tree while it grows."""

    def __init__(self) -> None:
        self._nodes: list[dict[str, Any]] = []

    def add(self, value: float, cover: float) -> int:
        """Adds a leaf, and returns its number."""
        self._nodes.append(
            {
                "left": -1, "right": -1, "feature": -1, "threshold": 0.0, "default_left": True,
                "value": value, "gain": 0.0, "cover": cover, "category": (),
            }
        )  # fmt: skip
        return len(self._nodes) - 1

    def split(
        self,
        node: int,
        feature: int,
        threshold: float,
        default_left: bool,
        gain: float,
        left: tuple[float, float],
        right: tuple[float, float],
        category: tuple[int, ...] = (),
    ) -> tuple[int, int]:
        """Makes a leaf an inner node with two leaves of the given (value, cover), and returns their numbers."""
        children = self.add(*left), self.add(*right)
        self._nodes[node] |= {
            "left": children[0], "right": children[1], "feature": feature, "threshold": threshold,
            "default_left": default_left, "gain": gain, "category": tuple(sorted(category)),
        }  # fmt: skip
        return children

    def tree(self) -> Tree:
        """The tree as collected so far."""
        nodes = self._nodes
        start = np.zeros(len(nodes) + 1, np.int32)
        start[1:] = np.cumsum([len(node["category"]) for node in nodes])

        def column(key: str, dtype: type) -> NDArray[Any]:
            return np.array([node[key] for node in nodes], dtype)

        return Tree(
            left=column("left", np.int32),
            right=column("right", np.int32),
            feature=column("feature", np.int32),
            threshold=column("threshold", np.float32),
            default_left=column("default_left", np.bool_),
            value=column("value", np.float32),
            gain=column("gain", np.float32),
            cover=column("cover", np.float32),
            category_start=start,
            category=np.array([c for node in nodes for c in node["category"]], np.int32),
        )
