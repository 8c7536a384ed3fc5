"""The configuration as features: what usual hyper-parameter optimizers see, the knobs themselves.

Source: AutoTVM (Chen et al. 2018), section 4: it is bound to one search space.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from burnish.search.space import Points
from burnish.tune.space import Alternative, TuningSpace


def configuration(space: TuningSpace, points: Points) -> np.ndarray:
    """Feature encoding of configurations, float32 [n, d]: log2(1 + n) and log2 of the greatest power of two in n for a
    number n; one-hot for every other value and for the alternative.

    Whether vectors are whole, and aligned, hangs on the power of two. Knobs of other alternatives than a point's own
    are 0.
    """
    tables = [_tables(alternative) for alternative in space.alternatives]
    width = sum(table.shape[1] for own in tables for table in own) + len(tables)
    features = np.zeros((len(points), width), np.float32)
    first = int(len(tables) > 1)
    begin = 0
    for number, rows in enumerate(space.rows(points)):
        own = points[rows]
        for column, table in enumerate(tables[number], first):
            features[rows, begin : begin + table.shape[1]] = table[own[:, column]]
            begin += table.shape[1]
        features[rows, number - len(tables)] = 1.0
    return features


def configuration_names(space: TuningSpace) -> tuple[str, ...]:
    """Column names of :func:`configuration`."""
    knobs = (f"{a.label}.{name}" for a in space.alternatives for name in _knob_names(a))
    return (*knobs, *(a.label for a in space.alternatives))


def _knob_names(alternative: Alternative) -> list[str]:
    found = []
    for knob, choices in alternative.choices.items():
        found += [knob, f"2s in {knob}"] if _is_number(choices) else [f"{knob} = {choice}" for choice in choices]
    return found


@lru_cache(maxsize=64)
def _tables(alternative: Alternative) -> list[np.ndarray]:
    """Feature tables of the knobs, by choice."""
    return [_table(choices) for choices in alternative.choices.values()]


def _table(choices: np.ndarray) -> np.ndarray:
    """The features [choices, columns] of one knob's choices."""
    if _is_number(choices):
        return np.log2([1.0 + choices, np.maximum(choices & -choices, 1)]).T.astype(np.float32)
    return np.eye(len(choices), dtype=np.float32)


def _is_number(choices: np.ndarray) -> bool:
    return choices.dtype.kind in "iu"
