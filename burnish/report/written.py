"""Reports of models that are compiled, of every kind: ``CompiledModel.report``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from burnish.base.arguments import refusal
from burnish.base.files import write_atomic
from burnish.errors import InputError, ParameterError
from burnish.measure.samples import module_inputs, random_inputs
from burnish.report.collect import described
from burnish.report.page import page
from burnish.runtime.callable import CompiledModel
from burnish.runtime.module import Module
from burnish.runtime.steps import TensorSpec

DEFAULT = "report.html"
BEGINS = b"<!doctype html>"
CALLS = 5  # whole calls and runs of each step, of models that are no module


def write_report(model: CompiledModel, path: str | Path | None, inputs: Mapping[str, Any] | None) -> Path:
    """Writes the page about a model and returns its path; see ``CompiledModel.report``."""
    where = _checked(DEFAULT if path is None else path)
    given = _inputs(model, inputs)
    name = type(model).__name__ if path is None else where.stem
    with _kept_state(model):
        data = described(name, model, given) if isinstance(model, Module) else _described(name, model, given)
    write_atomic(where, [page(data).encode()])
    return where


def _checked(path: str | Path) -> Path:
    """The path, unless it is something that a report must not replace."""
    if not isinstance(path, str | Path):
        raise refusal("path", path, "the name of a file, or None for report.html")
    where = Path(path)
    if where.exists():
        if not where.is_file():
            raise ParameterError(f"path: '{where}' is not a regular file; allowed: the name of a page of HTML")
        with where.open("rb") as file:
            if file.read(len(BEGINS)) not in (b"", BEGINS):
                raise ParameterError(f"path: '{where}' exists and is no page of HTML; allowed: another name")
    return where


def _inputs(model: CompiledModel, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The inputs by name, or random ones."""
    if inputs is not None:
        if not isinstance(inputs, Mapping):
            raise refusal("inputs", inputs, "arrays by the names of inputs, or None for random ones")
        return dict(inputs)
    if isinstance(model, Module):
        return dict(module_inputs(model))
    specs = []
    for spec in model.inputs:
        if spec.shape is None or not all(isinstance(n, int) or hasattr(n, "hint") for n in spec.shape):
            raise InputError(f"report: input '{spec.name}' has an open shape; allowed: inputs= with arrays by name")
        specs.append(TensorSpec(spec.name, tuple(spec.shape), spec.dtype))
    return dict(random_inputs(specs, 0))


@contextmanager
def _kept_state(model: CompiledModel) -> Iterator[None]:
    """Gives states their values back, which calls change."""
    before = {name: np.array(value) for name, value in model.state.items()}
    try:
        yield
    finally:
        for name, value in before.items():
            model.state[name] = value


def _described(name: str, model: CompiledModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a page about a model that is no module: its steps as ``profile`` names and times them."""
    rows = model.profile(repeat=CALLS, **inputs)
    began = time.perf_counter()
    for _ in range(CALLS):
        model(**inputs)
    call = 1e6 * (time.perf_counter() - began) / CALLS
    kernels: list[dict[str, Any]] = [
        {
            "kernel": row.kernel, "node": row.node, "group": row.node, "template": "", "microseconds": row.microseconds,
            "resource": None, "bound": None, "reached": None, "choice": {}, "layouts": {}, "flops": None,
            "moved": None, "slow": row.slow, "recorded": False, "search": None,
        }
        for row in rows
    ]  # fmt: skip
    return {
        "name": name, "target": type(model).__name__, "threads": getattr(model, "threads", 0), "call": call,
        "attributed": min(1.0, sum(row.microseconds for row in rows) / call) if call else 1.0,
        "inputs": [str(s) for s in model.inputs], "outputs": [str(s) for s in model.outputs],
        "memory": model.memory, "plan": "", "kernels": kernels, "stages": {}, "passes": [], "buffers": [],
        "rewrites": None, "choices": None, "errors": None,
    }  # fmt: skip
