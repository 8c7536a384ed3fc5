"""Building of models from recipes, each in a process forked from one that has imported what they need."""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from benchmarks.brought import converted, exported, packages, torchvision_schemas
from benchmarks.brought.recipe import Recipe, Store, unique

FAMILIES = ("packages", "exported", "converted")
LIMIT = 300  # CPU seconds for one model
PRELOADED = ("torch", "torchvision", "timm", "transformers", "diffusers", "onnxscript", "sklearn", "skl2onnx")
SMALL = (
    "onnx--squeezenet", "net-unet.static", "net-lstm.open", "net-gcn.static", "net-policy.static", "net-branch.static",
    "net-super_resolution.script", "net-keyword_spotting.script", "net-tabular.script", "net-conformer.static",
    "tv-mobilenet_v3_small.script", "tv-resnet18.static", "timm-vit_tiny_patch16_224.static", "hf-bert.script",
    "hf-gpt2-cache.static", "skl-logistic", "skl-forest", "skl-svc-rbf", "skl-knn", "lgbm-regressor",
    "int8-net-keyword_spotting-qdq-u8", "int8-tv-mobilenet_v3_small-dynamic", "fp16-net-super_resolution",
)  # fmt: skip


def recipes() -> dict[str, Recipe]:
    """All recipes by name, those that others start from first."""
    return unique([*packages.recipes(), *exported.recipes(), *converted.recipes()])


def chosen(sets: Sequence[str]) -> list[Recipe]:
    """The recipes of these sets: families, or "small"."""
    return [r for name, r in recipes().items() if r.family in sets or ("small" in sets and name in SMALL)]


def build(wanted: Sequence[Recipe], store: Store) -> Iterator[tuple[str, str]]:
    """Builds what is not there yet, and what that starts from; yields the names of models that cannot be built, and
    why. A model that could not be built with the packages that are installed is not tried again.
    """
    known = recipes()
    tried = store.folder / "not-built.json"
    failed: dict[str, str] = json.loads(tried.read_text()) if tried.exists() else {}
    ordered = dict.fromkeys(r for recipe in wanted for r in (known.get(recipe.source), recipe) if r is not None)
    todo = [r for r in ordered if not store.has(r) and not r.missing and r.name not in failed]
    needed = {name for recipe in todo for name in recipe.needs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "torch" in needed:  # also transformers and timm import torchvision
            torchvision_schemas.declare()
        for name in PRELOADED:
            if name in needed and len(todo) > 1:
                importlib.import_module(name)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # a child has none of its parent's threads
    for recipe in todo:
        message = _forked(recipe, store)
        if message:
            failed[recipe.name] = message
            tried.write_text(json.dumps(failed, indent=1))
    for recipe in wanted:
        if recipe.name in failed and not store.has(recipe):
            yield recipe.name, failed[recipe.name]


def _spent() -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int(usage.ru_utime + usage.ru_stime)


def _forked(recipe: Recipe, store: Store) -> str:
    """Builds a model in a child; what went wrong, or nothing."""
    read, write = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_CPU, (_spent() + LIMIT,) * 2)  # a busy machine stretches no limit
        message = ""
        try:
            with Path(os.devnull).open("w") as quiet, redirect_stdout(quiet), redirect_stderr(quiet):
                warnings.simplefilter("ignore")
                store.put(recipe, recipe.make(store))
        except BaseException as error:
            message = f"{type(error).__name__}: {str(error)[:300]}"
        with suppress(OSError):
            os.write(write, message.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        message = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return message or ("" if not status else f"the exporter died with status {status}")
