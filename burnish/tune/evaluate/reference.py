"""Arrays to try a task's kernels on, and the answers they must give."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from burnish.accuracy import ROUNDINGS, TOLERANCE
from burnish.kernels.task import Task
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import FLOATS, ITEM_BYTES, Cast, loads, walk
from burnish.loops.layout import Layout
from burnish.runtime.buffers import numpy_dtype

Examples = tuple[dict[str, np.ndarray], list[np.ndarray]]  # inputs by name, and the outputs that belong to them


def examples(task: Task, seed: int = 0) -> Examples:
    """Random inputs by name and the outputs that belong to them.

    Floats are normal, integers up to ±100, but 0 and 1 where they are used as indices. Where the normal distribution
    has no finite answer (a root, a logarithm), all floats are between 0.5 and 1.5.
    """
    feeds = _draw(task, np.random.default_rng(seed), positive=False)
    outputs = reference(task, feeds)
    if not all(np.isfinite(value).all() for value in outputs):
        feeds = _draw(task, np.random.default_rng(seed), positive=True)
        outputs = reference(task, feeds)
    return feeds, outputs


def _draw(task: Task, random: np.random.Generator, positive: bool) -> dict[str, np.ndarray]:
    indices = {
        inner.buffer.name
        for t in task.stages() if t.body is not None
        for outer in loads(t.body)
        for index in outer.indices
        for inner in loads(index)
    }  # fmt: skip
    feeds = {}
    for t in task.inputs:
        if t.dtype in FLOATS:
            array: np.ndarray = random.uniform(0.5, 1.5, t.shape) if positive else random.standard_normal(t.shape)
        elif t.dtype == "bool" or t.name in indices:
            array = random.integers(0, 2, t.shape)
        else:
            array = random.integers(0 if t.dtype.startswith("u") else -100, 101, t.shape)
        feeds[t.name] = np.asarray(array).astype(numpy_dtype(t.dtype))
    return feeds


def reference(task: Task, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The task's outputs by their definitions: in float64 where they are floating-point, but as it is written where the
    definition rounds on purpose, as sums of bfloat16 parts do. Random parts do not add up to what was split, so that
    without rounding the answer would be another.
    """
    return evaluate(task.outputs, feeds, None if _rounds(task) else "float64")


def _rounds(task: Task) -> bool:
    """Whether a definition makes floating-point numbers narrower."""
    bodies = [t.body for t in task.stages() if t.body is not None]
    return any(isinstance(e, Cast) and _narrows(e.value.dtype, e.dtype) for body in bodies for e in walk(body))


def _narrows(before: str, after: str) -> bool:
    return {before, after} <= set(FLOATS) and ITEM_BYTES[after] < ITEM_BYTES[before]


def tolerance(task: Task) -> float:
    """The largest allowed |found − reference| / max |reference|."""
    dtypes = {t.dtype for t in (*task.inputs, *task.outputs) if t.name not in task.constants} & set(FLOATS)
    return max([TOLERANCE, *(ROUNDINGS * float(ml_dtypes.finfo(numpy_dtype(dtype)).eps) for dtype in dtypes)])


def packed(array: np.ndarray, layout: Layout | None) -> np.ndarray:
    """The array as kernels find it. Padding of floats is NaN: what lies there is anybody's guess."""
    if layout is None:
        return np.ascontiguousarray(array)
    result = layout.pack(array)
    if result.size != array.size and result.dtype.kind not in "biu":
        result[layout.pack(np.ones(array.shape, bool)) == 0] = np.nan
    return result
