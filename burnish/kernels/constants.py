"""Stages that depend on constants alone are computed once, at compile time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from burnish.loops.sizes import dims_of
from burnish.loops.tensor import Tensor, stages


def split_constants(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], constants: Collection[str]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """(inputs, outputs, derived): ``derived`` are the stages to evaluate at compile time, inputs of the rest by name.

    A stage is derived when it reads only constant inputs and derived stages (or nothing), some other stage reads it,
    and it depends on no open dimension.
    Inputs that only derived stages read are dropped from the first list.
    """
    order = [t for t in stages(outputs) if t.body is not None]
    known: set[str] = set(constants)
    for t in order:
        if t not in outputs and not _is_open(t) and all(i.name in known for i in t.inputs):
            known.add(t.name)
    current: dict[str, Tensor] = {t.name: t for t in inputs}
    for t in order:
        reads = tuple(current[i.name] for i in t.inputs)
        same = all(new is old for new, old in zip(reads, t.inputs, strict=True))
        current[t.name] = Tensor(t.buffer) if t.name in known else t if same else replace(t, inputs=reads)
    results = [current[t.name] for t in outputs]
    reached = {t.name for t in stages(results) if t.body is None}
    derived = [t for t in order if t.name in reached]
    return [t for t in inputs if t.name in reached] + [current[t.name] for t in derived], results, derived


def _is_open(t: Tensor) -> bool:
    """Whether a stage's shape or elements depend on a dimension whose value only a call knows."""
    return bool(dims_of(t.shape)) or (t.body is not None and t.body.symbolic)
