"""Marks of parametrized tests: the parameters that are tried by `make test-all` alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """``values`` as parameters of one argument of a test; ``chosen`` are marked slow."""
    return [pytest.param(value, marks=pytest.mark.slow) if value in chosen else value for value in values]


def slow_except(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """``values`` as parameters of one argument of a test; all but ``chosen`` are marked slow."""
    return [value if value in chosen else pytest.param(value, marks=pytest.mark.slow) for value in values]
