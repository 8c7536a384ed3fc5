"""Import of a model as a graph, from each accepted source, with a warning about the extents that it leaves open."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.errors import ParameterError
from burnish.frontend.onnx import Imported, import_onnx
from burnish.graph.graph import Graph

WANTED = 8  # an extent that the warning about an assumed one shows how to ask for


def import_graph(
    model: Any, shapes: Mapping[str, Sequence[int | str]] | None = None, fix: Mapping[str, Any] | None = None
) -> Graph:
    """Graph of a model: that of :func:`import_model`, from the same sources and with the same errors."""
    return import_model(model, shapes, fix).graph


def import_model(
    model: Any,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix: Mapping[str, Any] | None = None,
    training: bool = False,
    tell: bool = True,
) -> Imported:
    """Imported graph of a model, and the extents that were assumed, of which it warns with the remedy, unless
    ``tell`` is False.

    Raises what ``import_onnx`` raises, and ParameterError for ``shapes`` and ``fix`` of a graph, which knows its own.
    """
    if isinstance(model, Graph):
        if shapes:
            raise ParameterError(f"shapes: found {dict(shapes)}; allowed: None for a Graph, whose shapes are known")
        if fix:
            raise ParameterError(f"fix: found {[*fix]}; allowed: None for a Graph, whose constants are its own")
        return Imported(model)
    found = import_onnx(model, shapes, fix, training)
    if found.assumed and tell:
        warnings.warn(open_extents(found), stacklevel=3)
    return found


def open_extents(found: Imported) -> str:
    """Warning about the extents assumed of a model's inputs, and the arguments that set others."""
    types = found.graph.types
    words = [f"'{n}' [{', '.join(map(str, (open_, *types[n].shape[1:])))}]" for n, open_ in found.assumed.items()]
    wanted = {name: (WANTED, *types[name].shape[1:]) for name in found.assumed}
    options = " ".join(f"--shape {name}={','.join(map(str, shape))}" for name, shape in wanted.items())
    return (
        f"model: the first extent of input {', '.join(words)} is open and taken as 1; for another one, such as "
        f"{WANTED}, pass shapes={wanted} (on the command line {options})"
    )
