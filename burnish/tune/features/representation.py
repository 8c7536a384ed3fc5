"""The representations of candidates by name, and their features for many points of a tuning space at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np

from burnish.base.jit import njit
from burnish.kernels.nest import CandidateNests
from burnish.search.space import Points
from burnish.tune.features.configuration import configuration, configuration_names
from burnish.tune.features.context import CONTEXT, SUMMARY, TABLE_2, context
from burnish.tune.features.invariant import INVARIANT, invariant
from burnish.tune.features.relation import RELATION, relation
from burnish.tune.space import TuningSpace

Representation = Literal["configuration", "loops", "both", "flattened", "relation", "invariant", "transfer"]
"""``configuration``: the knobs, which mean something in this space only (AutoTVM section 4). ``loops``: table 2, and
what it means on this machine, for every loop that the space's nests have, each in its own columns. ``both``: the loops
and the knobs, for a model of this space alone. ``flattened``: table
2 for the loops a candidate does have, outermost first, of any space alike (figure 3b). ``relation``: context relation
features (section 4, appendix A.2.2), which have no notion of particular loops. ``invariant``: these, and what else
means the same for every operator. ``transfer``: invariant, then both, for a global and a local model."""

REPRESENTATIONS: tuple[Representation, ...] = get_args(Representation)
MOST_UNROLLED = 9.0  # logarithm of the copies of a statement that are worth compiling
LEVELS = 16  # loops of a flattened nest; of a deeper one the innermost


def extract(space: TuningSpace, representation: Representation, points: Points) -> np.ndarray:
    """The features of ``points`` [n, width], float32 [n, d]; d depends on the space and the representation only.

    Raises ValueError for an unknown representation.
    """
    if representation == "configuration":
        return configuration(space, points)
    if representation == "both":
        return np.hstack([extract(space, "loops", points), configuration(space, points)])
    if representation not in REPRESENTATIONS:
        raise ValueError(f"representation {representation!r} is unknown; allowed: {', '.join(REPRESENTATIONS)}")
    loop_columns = max(space.levels) * len(CONTEXT) + len(SUMMARY) + len(space.alternatives)
    common = {"flattened": LEVELS * len(TABLE_2), "relation": len(RELATION), "invariant": len(INVARIANT)}
    widths = {"loops": loop_columns, **common, "transfer": len(INVARIANT) + loop_columns}
    features = np.zeros((len(points), widths[representation]), np.float32)
    own = features[:, len(INVARIANT) :] if representation == "transfer" else features
    for number, rows, nest in _nests(space, points):
        alternative = space.alternatives[number]
        loops, summary = context(nest, alternative.target)
        if representation in ("invariant", "transfer"):
            knobs = space.knobs(number, points[rows])
            features[rows, : len(INVARIANT)] = invariant(alternative, knobs, nest, loops, summary)
        if representation in ("loops", "transfer"):
            own[rows, : loops.shape[1] * loops.shape[2]] = loops.reshape(len(loops), -1)
            own[rows, _summary(space)] = summary
            own[rows, number - len(space.alternatives)] = 1.0
        elif representation == "flattened":
            features[rows] = _own_loops(nest, loops, len(TABLE_2))[0].reshape(len(loops), -1)
        elif representation == "relation":
            features[rows] = relation(nest, alternative.target, loops, summary)
    return np.hstack([features, configuration(space, points)]) if representation == "transfer" else features


def plausible(space: TuningSpace, points: Points) -> np.ndarray:
    """Mask of candidates that could be fast, bool [n]: sums fit the registers, and unrolled copies the instruction
    cache.

    What a template does not describe counts as plausible.
    """
    found = np.ones(len(points), bool)
    for number, rows, nest in _nests(space, points):
        summary = context(nest, space.alternatives[number].target)[1]
        fits, short = summary[:, SUMMARY.index("accumulators / registers")], summary[:, SUMMARY.index("unrolled")]
        found[rows] = (fits <= 0.0) & (short <= MOST_UNROLLED)
    return found


def names(space: TuningSpace, representation: Representation) -> tuple[str, ...]:
    """Column names of :func:`extract`."""
    if representation == "configuration":
        return configuration_names(space)
    if representation == "both":
        return (*names(space, "loops"), *configuration_names(space))
    if representation == "transfer":
        return (*INVARIANT, *names(space, "both"))
    if representation == "loops":
        each = (f"{feature} in loop {k}" for k in range(max(space.levels)) for feature in CONTEXT)
        return (*each, *SUMMARY, *(a.label for a in space.alternatives))
    if representation == "flattened":
        return tuple(f"{feature} in loop {k}" for k in range(LEVELS) for feature in TABLE_2)
    return RELATION if representation == "relation" else INVARIANT


def sequence(space: TuningSpace, points: Points) -> tuple[np.ndarray, np.ndarray]:
    """The loops that each candidate has, for models that read them in turn (AutoTVM section 4, TreeGRU, figure 3d).

    Returns features float32 [n, LEVELS, d], outermost loop first, and bool [n, LEVELS]: which are loops. A loop's are
    its context, and the summary of its nest: what no loop has by itself, such as whether the sums fit the registers,
    a recurrent network would have to find out from few measurements (without it, the rank correlation on a convolution
    was 0.40 after 64 of them; with it 0.64; of boosted trees, 0.70).
    """
    features = np.zeros((len(points), LEVELS, len(CONTEXT) + len(SUMMARY)), np.float32)
    mask = np.zeros((len(points), LEVELS), bool)
    for number, rows, nest in _nests(space, points):
        loops, summary = context(nest, space.alternatives[number].target)
        features[rows, :, : len(CONTEXT)], mask[rows] = _own_loops(nest, loops, len(CONTEXT))
        features[rows, :, len(CONTEXT) :] = np.where(mask[rows][:, :, None], summary[:, None], np.float32(0))
    return features, mask


def _nests(space: TuningSpace, points: Points) -> Iterator[tuple[int, np.ndarray | slice, CandidateNests]]:
    """Loop nests by alternative, where there are points of it: its number, the rows of its points, and their nests."""
    for number, (alternative, rows) in enumerate(zip(space.alternatives, space.rows(points), strict=True)):
        own = points[rows]
        if len(own):
            yield number, rows, alternative.describe(space.knobs(number, own), len(own))


def _summary(space: TuningSpace) -> slice:
    """The columns of the summary in the representation of loops, before those of the alternatives."""
    end = len(space.alternatives)
    return slice(-len(SUMMARY) - end, -end)


def _own_loops(nest: CandidateNests, features: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The first columns of the features [n, levels, d] of loops with more than one iteration, and their mask.

    As [n, LEVELS, columns] and [n, LEVELS].
    """
    packed = np.zeros((len(features), LEVELS, columns), np.float32)
    mask = np.zeros((len(features), LEVELS), np.bool_)
    _pack(nest.extent, features, packed, mask)
    return packed, mask


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)
def _pack(extent, features, packed, mask):  # type: ignore[no-untyped-def]
    levels, count = extent.shape
    for i in range(count):
        place = -mask.shape[1]
        for k in range(levels):
            place += extent[k, i] > 1.0
        place = -max(place, 0)  # where the first loop goes: before the start where there are too many
        for k in range(levels):
            if extent[k, i] > 1.0:
                if place >= 0:
                    mask[i, place] = True
                    for f in range(packed.shape[2]):
                        packed[i, place, f] = features[i, k, f]
                place += 1
