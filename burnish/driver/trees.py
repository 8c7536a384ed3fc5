"""Boosted trees to machine code: an executable like any other, for any number of rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numpy as np

from burnish.base.cache import ObjectCache, cache_key
from burnish.boost.formats.foreign import as_model, holds_trees
from burnish.codegen.objects import compile_ir
from burnish.errors import ParameterError
from burnish.loops.sizes import dim
from burnish.machines.target import Target
from burnish.runtime.build import build
from burnish.runtime.executable import Executable, KernelCall, Slot, TensorSpec
from burnish.runtime.host import fingerprint

KERNEL, LINK_KERNEL = "predict_margin", "predict_link"
_MOST_ROWS = 1 << 40  # of a table
_WIDE = 16  # float32 of a vector, from which on there are registers for two vectors of rows side by side


OUTPUTS = ("prediction", "margin")


def is_boosted(model: Any) -> bool:
    """Whether `model` holds boosted trees: see ``burnish.boost.formats.foreign``. Nothing is imported to find out."""
    return holds_trees(model)


def compile_trees(
    model: Any,
    target: Target,
    cache_dir: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    output: str = "prediction",
) -> Executable:
    """The executable that maps x (rows, features), NaN where missing, to what ``burnish.boost.predict`` returns.

    That is (rows,), or (rows, outputs) of several, float32; `output` "margin" gives margins, before the objective's
    link. Equal to the last bit. Tables of other numbers are taken as float32. Categories are given by their numbers.
    Warns of a model that knows another number than NaN for a missing value. Raises ParameterError for another
    `output`, an estimator that is not fitted, or a link that has no code.
    """
    from burnish.boost import links
    from burnish.boost.inference.emit import emit
    from burnish.boost.inference.emit_links import LINKS, emit_link

    if output not in OUTPUTS:
        raise ParameterError(f"output: found {output!r}; allowed: {', '.join(map(repr, OUTPUTS))} for boosted trees")
    model = as_model(model)
    model = model.slice(*model.used)
    if not math.isnan(model.missing):
        warnings.warn(
            f"compile: the model's training data held {model.missing:g} where values were missing; a compiled model "
            "takes it for a number; allowed for missing values: NaN",
            stacklevel=3,
        )
    if model.infinite == "missing":
        warnings.warn(
            "compile: infinite values were missing in the model's training data; a compiled model takes them for "
            "numbers; allowed for missing values: NaN",
            stacklevel=3,
        )
    link = links.LINKS.get(model.objective) if output == "prediction" else None
    if link not in (None, *LINKS):
        raise ParameterError(f"output: objective {model.objective!r} has no compiled link; allowed: output='margin'")
    report = progress or (lambda stage, done, total: None)
    report("kernels", 0, 2)
    lanes = max(4, min(_WIDE, target.lanes))
    code = emit(model, KERNEL, 2 * lanes if lanes == _WIDE else lanes)
    store = ObjectCache(cache_dir)
    objects = {"margins": _object(code.main, target, 3, store)}
    report("kernels", 1, 2)
    if code.trees:
        objects["trees"] = _object(code.trees, target, 0, store)
    calls = [KernelCall(KERNEL, (Slot("input"), Slot("output"), Slot("size")), f"{len(model.trees)} trees")]
    if link is not None:
        objects["link"] = _object(emit_link(link, LINK_KERNEL, model.outputs), target, 3, store)
        calls.append(KernelCall(LINK_KERNEL, (Slot("output"), Slot("size")), link))
    report("link", 0, 1)
    node = f"{len(model.trees)} trees"
    rows = dim("rows", 0, _MOST_ROWS)
    return build(
        inputs=[TensorSpec("x", (rows, model.features), "float32")],
        outputs=[TensorSpec(output, (rows,) if model.outputs == 1 else (rows, model.outputs), "float32")],
        steps=calls,
        objects=objects,
        params=np.zeros(0, np.uint8),
        arena_bytes=0,
        scratch_bytes=code.scratch_bytes,
        target=fingerprint(target.triple, target.cpu, target.features),
        graph=f"{output}[rows, {model.outputs}] = {node} of x[rows, {model.features}]  # {model.objective}",
        info={
            "objective": model.objective,
            "trees": len(model.trees),
            "feature_names": list(model.feature_names),
            "output": output,
            "converts": True,
        },
    )


def _object(text: str, target: Target, effort: int, store: ObjectCache) -> bytes:
    """The object of a module of IR, through the cache."""
    key = cache_key("trees", llvmlite.__version__, target.key, str(effort), text)
    found = store.get(key)
    if found is None:
        found = compile_ir(text, target, effort)
        store.put(key, found)
    return found
