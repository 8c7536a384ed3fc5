"""Amounts of memory as people write them: \"2GB\" and \"2G\" are 2 * 10**9 bytes, \"2GiB\" 2 * 2**30."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.errors import ParameterError

RECOMPUTING = ("drop-cheap", "sublinear", "least")  # strategies that can be asked for in place of a budget
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
         "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


def parse_budget(argument: str, budget: str | int | float, also: Sequence[str] = ()) -> int:
    """Bytes of a budget such as 2_000_000_000, "2GB" or "1.5 GiB". Raises ParameterError naming the argument, and what
    is allowed ``also``.
    """
    allowed = ", ".join(['bytes, a number with a unit, such as "2GB" or "512 MiB"', *also])
    number, unit = budget, "B"
    if isinstance(budget, str):
        text = budget.strip().upper()
        digits = text.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ ")
        unit = text[len(digits) :].strip() or "B"
        try:
            number = float(digits)
        except ValueError:
            raise ParameterError(f"{argument}: found {budget!r}; allowed: {allowed}") from None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < float("inf"):
        raise ParameterError(f"{argument}: found {budget!r}; allowed: {allowed}")
    if unit not in UNITS:
        raise ParameterError(f"{argument}: found {budget!r}; allowed: {allowed}; units {', '.join(UNITS)}")
    return int(number * UNITS[unit])


def text_of(nbytes: int) -> str:
    """Bytes for people, such as "1.25 GB"."""
    for unit in ("TB", "GB", "MB", "KB"):
        if nbytes >= UNITS[unit]:
            return f"{nbytes / UNITS[unit]:.3g} {unit}"
    return f"{nbytes} bytes"


def check_budget(argument: str, found: Any) -> None:
    """Raises ParameterError for what is no budget, strategy, or mapping from names of nodes to mirror counts."""
    if isinstance(found, Mapping):
        for name, count in found.items():
            if not isinstance(name, str) or not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise ParameterError(
                    f"{argument}: found {{{name!r}: {count!r}}}; allowed: names of nodes, integers from 0"
                )
    elif found not in RECOMPUTING:
        parse_budget(argument, found, RECOMPUTING)
