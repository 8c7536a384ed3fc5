"""Marks of parametrized tests: the parameters that `make test-all` alone tries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """``values`` as parameters of one argument of a test; ``chosen``, which are among them, are marked slow."""
    values = list(values)
    assert all(value in values for value in chosen), chosen
    return [pytest.param(value, marks=pytest.mark.slow) if value in chosen else value for value in values]


def slow_except(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """``values`` as parameters of one argument of a test; all but ``chosen``, which are among them, are marked slow."""
    values = list(values)
    assert all(value in values for value in chosen), chosen
    return slow(values, *(value for value in values if value not in chosen))
