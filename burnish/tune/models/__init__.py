"""Statistical cost models of the tuner (AutoTVM, thesis-chen ch. 5, AdaTune): fitted on measurements, they score."""

import importlib
from typing import Any

_HOME = {
    "BootstrapEnsemble": "ensemble",
    "CostModel": "base",
    "ForestModel": "forest",
    "LoopNests": "base",
    "TransferModel": "transfer",
    "TreeGRUModel": "neural",
    "TreeModel": "trees",
    "UncertainModel": "base",
    "acquire": "acquisition",
    "ei": "acquisition",
    "load_model": "registry",
    "log_ei": "acquisition",
    "ucb": "acquisition",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: numba takes time."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
