"""Families of operators: by name, functions that add a node or a few to a sketch."""

from __future__ import annotations

from collections.abc import Mapping

from tools.fuzz.families import elementwise, movement, placement, product, reduction, window
from tools.fuzz.families.common import Draw

FAMILIES: Mapping[str, Mapping[str, Draw]] = {
    "elementwise": elementwise.DRAWS,
    "integer": elementwise.INTEGER_DRAWS,
    "logic": elementwise.LOGIC_DRAWS,
    "movement": movement.DRAWS,
    "gather": movement.GATHER_DRAWS,
    "placement": placement.DRAWS,
    "structure": movement.STATIC_DRAWS,
    "reduction": reduction.DRAWS,
    "normalization": reduction.NORMALIZATION_DRAWS,
    "window": window.DRAWS,
    "product": product.DRAWS,
    "recurrent": product.RECURRENT_DRAWS,
}

# How often a model's theme takes each family; what is not named has weight 0.
THEMES: Mapping[str, Mapping[str, float]] = {
    "mixed": {
        "elementwise": 6, "integer": 1, "logic": 1.5, "movement": 5, "gather": 1, "structure": 0.5, "reduction": 2,
        "normalization": 1, "window": 2, "product": 1.5, "recurrent": 0.2, "placement": 1.5,
    },
    "arithmetic": {"elementwise": 6, "logic": 2, "reduction": 1, "movement": 1},
    "convnet": {"window": 6, "elementwise": 4, "normalization": 1, "movement": 2, "reduction": 0.5},
    "joins": {"movement": 6, "placement": 2, "reduction": 2, "elementwise": 2, "gather": 1, "normalization": 0.5},
    "integers": {
        "integer": 5, "placement": 1, "gather": 3, "logic": 1, "movement": 2, "reduction": 1, "structure": 0.3,
    },
    "transformer": {"product": 4, "normalization": 2, "elementwise": 3, "movement": 3, "logic": 1, "gather": 1},
    "recurrent": {"recurrent": 3, "movement": 1, "elementwise": 2, "product": 1},
}  # fmt: skip
THEME_WEIGHTS = {
    "mixed": 6, "arithmetic": 2, "convnet": 4, "joins": 3, "integers": 2, "transformer": 2, "recurrent": 0.5,
}  # fmt: skip
