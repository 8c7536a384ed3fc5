"""Operator-invariant features: context relations, the template, and the steps away from its default.

Source: thesis-chen section 5.3: a model that is to know other operators needs a representation that is invariant to the
search space. Beside the context relation features stand here the same numbers less those of the choice that the
template makes by itself. That choice is good for every shape, so that a step away from it means the same everywhere.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from burnish.kernels.nest import CandidateNests
from burnish.tune.features.context import SUMMARY, context
from burnish.tune.features.relation import RELATION, relation
from burnish.tune.space import Alternative

KNOBS = (
    "band", "block", "depth", "outer", "placement", "positions", "prefetch", "rows", "tile", "tile_h", "tile_ow",
    "tile_w", "tiles_m", "tiles_n", "unroll", "unroll_ic", "vectors", "weights",
)  # fmt: skip
"""Those of templates for one kind of operator. Their names are theirs: equal names mean much the same."""

TEMPLATES = (
    "depthwise_conv2d", "grouped_conv2d", "pointwise_conv2d", "direct_conv2d", "depthwise_rows", "plain_conv2d",
    "conv2d_transpose_phases", "conv2d_transpose_pixel", "pool2d", "neighbouring_channels", "winograd_conv2d",
    "polyphase_conv2d", "split_conv2d", "split_matmul", "matmul", "recurrent", "transpose", "generic", "tiled",
)  # fmt: skip
"""Those with a column. One that is added needs none, and what was learned before stays of use."""

INVARIANT = (
    *RELATION,
    *(f"{feature} over the default's" for feature in SUMMARY),
    *(f"{knob} over the default's" for knob in KNOBS),
    *(f"by {template}" for template in TEMPLATES),
)
_KNOBS = len(RELATION) + len(SUMMARY)  # where their columns begin
EDITION = 2
"""To be raised with whatever changes what a column means: records of other editions teach nothing."""


def invariant(
    alternative: Alternative, knobs: dict[str, np.ndarray], nest: CandidateNests, loops: np.ndarray, summary: np.ndarray
) -> np.ndarray:
    """:data:`INVARIANT` of candidates of one alternative, float32 [n, d]: of their knobs, nests and context."""
    target, template = alternative.target, alternative.template
    default, usual = _usual(alternative)
    features = np.zeros((len(summary), len(INVARIANT)), np.float32)
    features[:, : len(RELATION)] = relation(nest, target, loops, summary)
    features[:, len(RELATION) : _KNOBS] = summary - usual
    for column, knob in enumerate(KNOBS, _KNOBS):
        if knob in knobs:
            features[:, column] = _step(knobs[knob], default[knob])
    if template.name in TEMPLATES:
        features[:, TEMPLATES.index(template.name) - len(TEMPLATES)] = 1.0
    return features


@lru_cache(maxsize=64)
def _usual(alternative: Alternative) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The choice that the template makes by itself, each knob's [1], and its summary [1, features]."""
    default = {knob: np.array([choice]) for knob, choice in alternative.space.default.items()}
    return default, context(alternative.describe(default, 1), alternative.target)[1]


def _step(choices: np.ndarray, default: np.ndarray) -> np.ndarray:
    """Distance of choices from the default: the logarithm of the ratio of numbers, 0 or 1 of anything else."""
    if choices.dtype.kind in "iu":
        return np.log2((1.0 + choices) / (1.0 + default))
    return choices != default
