"""Boosted trees to machine code: an executable like any other, for any number of rows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite
import numpy as np

from burnish.cache import ObjectCache, cache_key
from burnish.codegen.objects import compile_ir
from burnish.runtime.build import build
from burnish.runtime.executable import ANY, Call, Executable, Slot, TensorSpec
from burnish.runtime.host import fingerprint
from burnish.target import Target

if TYPE_CHECKING:
    from burnish.boost.model import Model

KERNEL = "predict_margin"
_MOST_LANES = 16  # rows side by side: more of them need more registers than there are


def is_boosted(model: Any) -> bool:
    """Whether `model` is a ``burnish.boost.Model``; nothing is imported to find out."""
    module = sys.modules.get("burnish.boost.model")
    return module is not None and isinstance(model, module.Model)


def compile_trees(
    model: Model,
    target: Target,
    cache_dir: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Executable:
    """The executable that maps x (rows, features), NaN where missing, to margins (rows, outputs), float32.

    They are those of ``model.predict_margin``, to the last bit. Categories are given by their numbers.
    """
    from burnish.boost.inference.emit import emit

    report = progress or (lambda stage, done, total: None)
    report("kernels", 0, 2)
    code = emit(model, KERNEL, max(4, min(_MOST_LANES, target.lanes)))
    store = ObjectCache(cache_dir)
    objects = {"margins": _object(code.main, target, 3, store)}
    report("kernels", 1, 2)
    if code.trees:
        objects["trees"] = _object(code.trees, target, 0, store)
    report("link", 0, 1)
    node = f"{len(model.trees)} trees"
    return build(
        inputs=[TensorSpec("x", (ANY, model.features), "float32")],
        outputs=[TensorSpec("margin", (ANY, model.outputs), "float32")],
        calls=[Call(KERNEL, (Slot("input"), Slot("output"), Slot("rows")), node)],
        objects=objects,
        params=np.zeros(0, np.uint8),
        arena_bytes=0,
        scratch_bytes=code.scratch_bytes,
        target=fingerprint(target.triple, target.cpu, target.features),
        graph=f"margin[rows, {model.outputs}] = {node} of x[rows, {model.features}]  # {model.objective}",
        info={"objective": model.objective, "trees": len(model.trees), "feature_names": list(model.feature_names)},
    )


def _object(text: str, target: Target, effort: int, store: ObjectCache) -> bytes:
    """The object of a module of IR, through the cache."""
    machine = f"{target.triple} {target.cpu} {target.feature_string}"
    key = cache_key("trees", llvmlite.__version__, machine, str(effort), text)
    found = store.get(key)
    if found is None:
        found = compile_ir(text, target, effort)
        store.put(key, found)
    return found
