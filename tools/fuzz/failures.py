"""Failures gathered by kind, one model of each made small and written to a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from tools.fuzz.generate import generate
from tools.fuzz.run import Job, Row, running
from tools.fuzz.shrink import save, shrink

MOST_KINDS = 60  # of failures that one run makes small


def kind_of(row: Row) -> str:
    """Failures that look alike: by exception and place, or by outcome and operators where there is no place."""
    placeless = row.result.outcome != "error"
    operators = " ".join(sorted({op for op, _ in row.operators})) if placeless else ""
    return f"{row.result.outcome} {row.result.kind} {operators}".strip()


def shrink_row(row: Row, cache: Path, limit: float) -> tuple[onnx.ModelProto, dict[str, np.ndarray], Row]:
    """The model of a failing trial made small, its feeds, and what it fails with."""
    sample = generate(row.job.seed, row.job.only, row.job.pages)
    last = row
    with running(cache, limit) as ask:

        def fails(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool:
            nonlocal last
            found = ask(Job(row.job.seed, (row.way,), model=model.SerializeToString(), feeds=feeds))
            alike = (found.result.outcome, found.result.kind) == (row.result.outcome, row.result.kind)
            last = found if alike else last
            return alike

        model, feeds = shrink(sample.model, sample.feeds, fails)
    return model, feeds, last


def shrink_all(rows: Sequence[Row], folder: Path, cache: Path, limit: float) -> Iterator[str]:
    """Writes the smallest model found for each kind of failure; yields one line for each."""
    known: dict[str, Row] = {}
    counts: dict[str, int] = {}
    for row in rows:
        counts[kind_of(row)] = counts.get(kind_of(row), 0) + 1
        known.setdefault(kind_of(row), row)
    small: dict[str, int] = {}
    for kind, row in list(known.items())[:MOST_KINDS]:
        model, feeds, last = shrink_row(row, cache, limit)
        now = kind_of(replace(last, operators=tuple((node.op_type, "") for node in model.graph.node)))
        small[now] = small.get(now, 0) + 1
        if small[now] > 1:
            continue
        notes = [f"# {now} ({counts[kind]}x)", f"# {row.way}", f"# {last.result.detail}"]
        notes.append(f"# python -m tools.fuzz --replay {row.job.seed}" + " --pages" * row.job.pages)
        save(folder, f"seed{row.job.seed}", model, feeds, notes)
        yield f"{folder / f'seed{row.job.seed}'}: {now}"
