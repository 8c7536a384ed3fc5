"""Argument checks before any work: each error names argument, found and allowed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.errors import ParameterError


def refusal(argument: str, found: Any, allowed: str) -> ParameterError:
    """The error for an argument that is not what is allowed."""
    return ParameterError(f"{argument}: found {found!r}; allowed: {allowed}")


def check_flag(argument: str, found: Any) -> None:
    """Raises ParameterError for what is not True or False."""
    if not isinstance(found, bool):
        raise refusal(argument, found, "True or False")


def check_number(argument: str, found: Any, least: float, most: float = math.inf, open_below: bool = False) -> None:
    """Raises ParameterError for what is no finite number from ``least`` to ``most``; above it where ``open_below``."""
    number = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found)
    if not (number and least <= found <= most and not (open_below and found == least)):
        beyond = "more than " if open_below else "from "
        raise refusal(argument, found, f"a number {beyond}{least:g}" + (f" to {most:g}" if most < math.inf else ""))


def check_count(argument: str, found: Any, least: int) -> None:
    """Raises ParameterError for what is no integer from ``least``."""
    if not isinstance(found, int) or isinstance(found, bool) or found < least:
        raise refusal(argument, found, f"an integer from {least}")


def check_shapes(shapes: Any) -> None:
    """Raises ParameterError for what is no mapping from names to extents; names are the importer's to check.

    An extent is an integer or the name of a dimension that stays open; a dimension may have a number for itself.
    """
    if shapes is None:
        return
    if not isinstance(shapes, Mapping) or not all(isinstance(name, str) for name in shapes):
        raise refusal("shapes", shapes, "extents of inputs by their names, such as {'x': (1, 3, 224, 224)}")
    for name, extents in shapes.items():
        if _is_extent(extents):
            continue
        fits = isinstance(extents, Sequence) and not isinstance(extents, (str, bytes))
        if not fits or not all(isinstance(e, str) or _is_extent(e) for e in extents):
            raise refusal(f"shapes[{name!r}]", extents, "integers from 0, one for each dimension")


def _is_extent(e: Any) -> bool:
    return hasattr(e, "__index__") and not isinstance(e, bool) and not hasattr(e, "__len__") and e >= 0


def check_folder(argument: str, found: Any) -> None:
    """Raises ParameterError for what cannot be the path of a folder."""
    _check_path(argument, found)
    if found is not None and Path(found).exists() and not Path(found).is_dir():
        raise ParameterError(f"{argument}: '{found}' is a file; allowed: a folder, which need not exist yet")


def check_file(argument: str, found: Any) -> None:
    """Raises ParameterError for what cannot be the path of a file."""
    _check_path(argument, found)
    if found is not None and Path(found).is_dir():
        raise ParameterError(f"{argument}: '{found}' is a folder; allowed: a file")


def _check_path(argument: str, found: Any) -> None:
    if found is not None and not isinstance(found, (str, os.PathLike)):
        raise refusal(argument, found, "a path")
