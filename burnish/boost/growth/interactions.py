"""Interaction constraints: which features a node may test, given those that its path has tested."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from burnish.errors import ParameterError


class Interactions:
    """Paths of a tree's nodes. At the root every feature is allowed; below, those of the path and of every set of
    `interaction_constraints` that holds the whole path, as in XGBoost and LightGBM.
    """

    def __init__(self, sets: Sequence[Sequence[int]], features: int) -> None:
        for one in sets:
            if one and max(one) >= features:
                raise ParameterError(
                    f"parameter 'interaction_constraints': found feature {max(one)}; allowed: 0 to {features - 1}"
                )
        self._sets = [frozenset(one) for one in sets]
        self._features = features
        self._paths: dict[int, frozenset[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._sets)

    def reset(self) -> None:
        """Forgets the nodes of the last tree."""
        self._paths.clear()

    def split(self, node: int, left: int, right: int, feature: int) -> None:
        """Notes the children of a node that tests a feature."""
        if self._sets:
            self._paths[left] = self._paths[right] = self._paths.get(node, frozenset()) | {int(feature)}

    def narrowed(self, node: int, allowed: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        """Features that a node may test, a mask within those allowed (None: all); None for all."""
        path = self._paths.get(node)
        if not path:
            return allowed
        mask = np.zeros(self._features, np.bool_)
        for features in (path, *(one for one in self._sets if path <= one)):
            mask[list(features)] = True
        return mask if allowed is None else mask & allowed
