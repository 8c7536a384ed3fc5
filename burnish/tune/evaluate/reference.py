"""Arrays to try a task's kernels on, and the answers they must give."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from burnish.kernels.task import KernelTask
from burnish.loops.domain import Domains, domains, row_offsets
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import FLOATS, ITEM_BYTES, Cast
from burnish.loops.layout import Layout
from burnish.loops.traverse import walk
from burnish.measure.accuracy import tolerance as allowed
from burnish.measure.samples import ANY, draw, draw_offsets

Examples = tuple[dict[str, np.ndarray], list[np.ndarray]]  # inputs by name, and the outputs that belong to them


def examples(task: KernelTask, seed: int = 0) -> Examples:
    """Random inputs by name and the outputs that belong to them.

    They are within the inputs' domains (:mod:`burnish.loops.domain`). If an answer is not finite nevertheless, all
    floats whose domain is not known are between 0.5 and 1.5 instead.
    """
    known = domains(task.outputs)
    feeds = _draw(task, known, np.random.default_rng(seed))
    outputs = reference(task, feeds)
    if not all(np.isfinite(value).all() for value in outputs):
        known = {**{t.name: (0.5, 1.5) for t in task.inputs if t.dtype in FLOATS}, **known}
        feeds = _draw(task, known, np.random.default_rng(seed))
        outputs = reference(task, feeds)
    return feeds, outputs


def _draw(task: KernelTask, known: Domains, random: np.random.Generator) -> dict[str, np.ndarray]:
    limits = row_offsets(task.outputs)
    return {
        t.name: draw_offsets(t.shape, t.dtype, limits[t.name], random)
        if t.name in limits
        else draw(t.shape, t.dtype, known.get(t.name, ANY), random)
        for t in task.inputs
    }


def reference(task: KernelTask, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The task's outputs by their definitions: in float64 where they are floating-point, but as it is written where the
    definition rounds on purpose, as sums of bfloat16 parts do. Random parts do not add up to what was split, so that
    without rounding the answer would be another.
    """
    return evaluate(task.outputs, feeds, None if _rounds(task) else "float64")


def _rounds(task: KernelTask) -> bool:
    """Whether a definition makes floating-point numbers narrower."""
    bodies = [t.body for t in task.stages() if t.body is not None]
    return any(isinstance(e, Cast) and _narrows(e.value.dtype, e.dtype) for body in bodies for e in walk(body))


def _narrows(before: str, after: str) -> bool:
    return {before, after} <= set(FLOATS) and ITEM_BYTES[after] < ITEM_BYTES[before]


def tolerance(task: KernelTask) -> float:
    """The largest allowed |found − reference| / max |reference|."""
    return allowed({t.dtype for t in (*task.inputs, *task.outputs) if t.name not in task.constants})


def packed(array: np.ndarray, layout: Layout | None) -> np.ndarray:
    """The array as kernels find it. Padding of floats is NaN: what lies there is anybody's guess."""
    if layout is None:
        return np.ascontiguousarray(array)
    result = layout.pack(array)
    if result.size != array.size and result.dtype.kind not in "biu":
        result[layout.pack(np.ones(array.shape, bool)) == 0] = np.nan
    return result
