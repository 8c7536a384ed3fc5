"""Checks of what ``compile`` and its kin have in common: the model, threads, shapes, folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from burnish.base.arguments import check_file, check_flag, check_folder, check_shapes, refusal
from burnish.errors import ModelError
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

CHOOSE_VARIABLE, WAYS = "BURNISH_CHOOSE", ("predicted", "measured")


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


def algorithms_are_measured(choose: Any) -> bool:
    """Whether ``choose``, or where it is None the variable BURNISH_CHOOSE, is "measured" and not "predicted".

    Raises ParameterError for anything else.
    """
    found = os.environ.get(CHOOSE_VARIABLE, WAYS[0]) if choose is None else choose
    if found not in WAYS:
        raise refusal("choose" if choose is not None else CHOOSE_VARIABLE, found, " or ".join(map(repr, WAYS)))
    return bool(found == WAYS[1])
