"""Arguments of ``compile`` and its kin, checked before any work: each error names argument, found and allowed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from burnish.errors import ModelError, ParameterError
from burnish.graph.graph import Graph
from burnish.runtime.pool import check_threads

# Suffixes of files that other programs write, and what to do with such a file.
_FOREIGN: Mapping[str, str] = {
    ".bn": "it is compiled already: burnish.load runs it",
    ".pt": "compile the network itself, with example inputs: burnish.compile(network, (x,))",
    ".pth": "compile the network itself, with example inputs: burnish.compile(network, (x,))",
    ".pt2": "compile what torch.export.load gives",
    ".safetensors": "it holds weights without the network; load them into it, and compile the network",
    ".h5": "convert it to ONNX first: tf2onnx",
    ".keras": "convert it to ONNX first: tf2onnx",
    ".pb": "convert it to ONNX first: tf2onnx",
    ".tflite": "convert it to ONNX first: tf2onnx",
    ".json": "for boosted trees, compile what burnish.boost.Model.load gives",
}


def refusal(argument: str, found: Any, allowed: str) -> ParameterError:
    """The error for an argument that is not what is allowed."""
    return ParameterError(f"{argument}: found {found!r}; allowed: {allowed}")


def check_model(model: Any) -> None:
    """Raises ModelError for what is no model of operators, or is a file of another kind by its name."""
    if isinstance(model, (bytes, onnx.ModelProto, Graph)):
        return
    if not isinstance(model, (str, os.PathLike)):
        raise ModelError(
            f"model: found a {type(model).__module__}.{type(model).__qualname__}; allowed: the path or the bytes of "
            "an ONNX file, an onnx.ModelProto, an nn.Module with example inputs, a burnish.Graph, or a "
            "burnish.boost.Model"
        )
    path = Path(model)
    if path.is_dir():
        raise ModelError(f"model: '{path}' is a folder; allowed: an ONNX file")
    advice = _FOREIGN.get(path.suffix.lower())
    if advice is not None:
        raise ModelError(f"model: found '{path}'; allowed: an ONNX file; {advice}")


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


def check_common(
    *, threads: Any, exact: Any, shapes: Any, cache_dir: Any, records: Any = None, progress: Any = None
) -> None:
    """Checks what ``compile``, ``check`` and the command line have in common. Raises ParameterError."""
    check_threads(threads)
    check_flag("exact", exact)
    check_shapes(shapes)
    check_folder("cache_dir", cache_dir)
    check_file("records", records)
    if progress is not None and not callable(progress):
        raise refusal("progress", progress, "a function of (stage, done, total)")
