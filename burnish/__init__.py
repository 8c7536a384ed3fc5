"""Burnish: an optimizing compiler for machine-learning models. Importing it is cheap: names load on first use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.driver.api import compile
    from burnish.driver.loading import load
    from burnish.graph.gradient import gradients
    from burnish.graph.graph import Graph
    from burnish.rewrite.search.objective import Objective
    from burnish.runtime.module import Module
    from burnish.train.losses import CrossEntropy, Huber
    from burnish.train.optimizers import SGD, Adam, AdamW
    from burnish.train.step import Train
    from burnish.tune.session import Tune

__version__ = "0.1.0"
__all__ = [
    "SGD", "Adam", "AdamW", "CrossEntropy", "Graph", "Huber", "Module", "Objective", "Train", "Tune", "compile",
    "gradients", "load",
]  # fmt: skip

_HOME = {
    "compile": "burnish.driver.api",
    "load": "burnish.driver.loading",
    "Module": "burnish.runtime.module",
    "Graph": "burnish.graph.graph",
    "SGD": "burnish.train.optimizers",
    "Adam": "burnish.train.optimizers",
    "AdamW": "burnish.train.optimizers",
    "CrossEntropy": "burnish.train.losses",
    "Huber": "burnish.train.losses",
    "Train": "burnish.train.step",
    "gradients": "burnish.graph.gradient",
    "Objective": "burnish.rewrite.search.objective",
    "Tune": "burnish.tune.session",
}


def __getattr__(name: str) -> Any:
    """Imports the module that defines a public name when the name is first read (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'burnish' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
