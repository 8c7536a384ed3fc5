"""Input specifications on the command line: shapes, open dimensions and values."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.errors import ParameterError

Extents = tuple[int | str, ...]


def parse_shapes(texts: Sequence[str]) -> dict[str, Extents] | None:
    """Shapes of inputs from NAME=EXTENT,EXTENT,…; without extents a scalar. Names may hold '='.

    An extent is a number or the name of a dimension; numbers alone may be separated by "x".
    """
    found: dict[str, Extents] = {}
    for text in texts:
        match = re.fullmatch(r"(.+)=\s*((?:\d+\s*[,x]\s*)*\d+)?\s*", text)
        named = re.fullmatch(r"(.+)=\s*((?:(?:\d+|[^\W\d][\w.]*)\s*,\s*)+(?:\d+|[^\W\d][\w.]*))\s*", text)
        if match is None and named is None:
            raise ParameterError(f"--shape {text}: allowed is NAME=EXTENTS, such as x=8,3,224,224")
        name, extents = (match or named).groups()  # type: ignore[union-attr]
        if name in found:
            raise ParameterError(f"--shape {name}: found twice; allowed is once")
        words = re.split(r"\s*[,x]\s*" if match else r"\s*,\s*", (extents or "").strip())
        found[name] = tuple(int(word) if word.isdigit() else word for word in words if word)
    return found or None


def parse_dims(texts: Sequence[str], shapes: Mapping[str, Extents] | None) -> dict[str, Any] | None:
    """``shapes`` and what is said of dimensions: NAME=N, NAME=LOW..HIGH or NAME=LOW..HIGH:HINT."""
    found: dict[str, Any] = dict(shapes or {})
    for text in texts:
        match = re.fullmatch(r"(.+)=\s*(\d+)\s*(?:\.\.\s*(\d+)\s*(?::\s*(\d+)\s*)?)?", text)
        if match is None:
            raise ParameterError(f"--dim {text}: allowed is NAME=N or NAME=LOW..HIGH, such as batch=1..32")
        name, low, high, hint = match.groups()
        if name in found:
            raise ParameterError(f"--dim {name}: found twice; allowed is once")
        bounds = (int(low), int(high or low)) + ((1, int(hint)) if hint else ())
        found[name] = int(low) if high is None else bounds
    return found or None


def parse_fixed(texts: Sequence[str]) -> dict[str, Any] | None:
    """Values of inputs from NAME=VALUE, or NAME=VALUE,VALUE,…"""
    found: dict[str, Any] = {}
    for text in texts:
        name, _, words = text.rpartition("=")
        try:
            values = [int(w) if re.fullmatch(r"\s*[-+]?\d+\s*", w) else float(w) for w in words.split(",")]
        except ValueError:
            values = []
        if not name or not values:
            raise ParameterError(f"--fix {text}: allowed is NAME=NUMBER or NAME=NUMBER,NUMBER,…, such as sr=16000")
        if name in found:
            raise ParameterError(f"--fix {name}: found twice; allowed is once")
        found[name] = values if "," in words else values[0]
    return found or None
