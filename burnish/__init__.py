"""Burnish: an optimizing compiler for machine-learning models. Importing it is cheap: names load on first use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish import gnn
    from burnish.array import nd, sym
    from burnish.driver.api import compile
    from burnish.driver.fit import fit
    from burnish.driver.loading import load
    from burnish.driver.paged import compile_paged
    from burnish.driver.parallel_plan import Plan
    from burnish.driver.planned import plan
    from burnish.graph.gradient import gradients
    from burnish.graph.graph import Graph
    from burnish.rewrite.search.objective import Objective
    from burnish.runtime.module import Module
    from burnish.train.losses import CrossEntropy, Huber
    from burnish.train.optimizers import SGD, Adam, AdamW
    from burnish.train.precision import MixedPrecision
    from burnish.train.schedules import CosineDecay, LinearDecay, StepDecay, WarmUp
    from burnish.train.step import Train
    from burnish.tune.session import Tune

__version__ = "0.1.0"
__all__ = [
    "SGD", "Adam", "AdamW", "CosineDecay", "CrossEntropy", "Graph", "Huber", "LinearDecay", "MixedPrecision", "Module",
    "Objective", "Plan", "StepDecay", "Train", "Tune", "WarmUp", "compile", "compile_paged", "fit", "gnn", "gradients",
    "load", "nd", "plan", "sym",
]  # fmt: skip

_HOME = {
    "compile": "burnish.driver.api",
    "compile_paged": "burnish.driver.paged",
    "fit": "burnish.driver.fit",
    "load": "burnish.driver.loading",
    "Plan": "burnish.driver.parallel_plan",
    "plan": "burnish.driver.planned",
    "Module": "burnish.runtime.module",
    "Graph": "burnish.graph.graph",
    "SGD": "burnish.train.optimizers",
    "Adam": "burnish.train.optimizers",
    "AdamW": "burnish.train.optimizers",
    "CrossEntropy": "burnish.train.losses",
    "Huber": "burnish.train.losses",
    "gradients": "burnish.graph.gradient",
    "CosineDecay": "burnish.train.schedules",
    "LinearDecay": "burnish.train.schedules",
    "MixedPrecision": "burnish.train.precision",
    "StepDecay": "burnish.train.schedules",
    "Train": "burnish.train.step",
    "WarmUp": "burnish.train.schedules",
    "Objective": "burnish.rewrite.search.objective",
    "Tune": "burnish.tune.session",
    "nd": "burnish.array",
    "sym": "burnish.array",
}

_PACKAGES = ("gnn",)


def __getattr__(name: str) -> Any:
    """Imports the module that defines a public name when the name is first read (PEP 562)."""
    if name in _PACKAGES:
        return importlib.import_module(f"burnish.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'burnish' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
