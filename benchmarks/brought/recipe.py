"""Recipes of real models: how each is built, what it needs, and where it is kept.

A model is three files in a folder of its family: `NAME.onnx`, its inputs `NAME.npz`, the tolerance in `NAME.json`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
LARGEST_CONSTANT = 1e3  # a constant weight beyond is a mark, such as a mask's infinity


@dataclass(frozen=True)
class Made:
    """A model and inputs that it takes, by name. ``tolerance``: of the scaled error, for what counts as right."""

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    tolerance: float = 1e-3


@dataclass(frozen=True)
class Recipe:
    """Recipe to build a model. ``needs``: packages to import; ``source``: another model that must be there before."""

    name: str
    family: str
    make: Callable[[Store], Made]
    needs: tuple[str, ...] = ()
    source: str = ""

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


class Store:
    """The folder where models are built and stay. By default ``$BURNISH_BROUGHT``, else next to Burnish's cache."""

    def __init__(self, folder: Path | None = None) -> None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = folder or Path(os.environ.get("BURNISH_BROUGHT") or home / "burnish-brought")

    def path(self, recipe: Recipe) -> Path:
        return self.folder / recipe.family / f"{recipe.name}.onnx"

    def has(self, recipe: Recipe) -> bool:
        return self.path(recipe).with_suffix(".json").exists()

    def put(self, recipe: Recipe, made: Made) -> Path:
        """Writes the three files, the last of which says that all are there."""
        path = self.path(recipe)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            temporary = Path(folder) / path.name
            onnx.save(made.model, temporary)
            np.savez(temporary.with_suffix(".npz"), **made.inputs)  # type: ignore[arg-type]
            temporary.with_suffix(".json").write_text(json.dumps({"tolerance": made.tolerance}))
            for suffix in (".onnx", ".npz", ".json"):
                temporary.with_suffix(suffix).replace(path.with_suffix(suffix))
        return path

    def inputs(self, path: Path) -> dict[str, np.ndarray]:
        with np.load(path.with_suffix(".npz")) as stored:
            return {name: stored[name] for name in stored.files}


def with_random_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Makes weights that start at zero or one count: biases, norms, scales of layers.

    A floating-point initializer whose elements are all equal becomes random, around zero or around its value; else an
    answer does not depend on it, and proves nothing.
    """
    random = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_type not in FLOATS or 0 in tensor.dims or tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        array = onnx.numpy_helper.to_array(tensor)
        if array.size < 2 or (array != array.flat[0]).any() or not abs(array.flat[0]) < LARGEST_CONSTANT:
            continue
        value = float(array.flat[0])
        if value == 0:
            drawn = random.normal(0, 0.05, array.shape)
        else:
            drawn = random.uniform(0.7, 1.3, array.shape) * (value if abs(value) > 1e-3 else 1.0)
        tensor.CopyFrom(onnx.numpy_helper.from_array(drawn.astype(array.dtype), tensor.name))
    return model


def unique(recipes: Iterable[Recipe]) -> dict[str, Recipe]:
    """Recipes by name."""
    found: dict[str, Recipe] = {}
    for recipe in recipes:
        assert recipe.name not in found, recipe.name
        found[recipe.name] = recipe
    return found
