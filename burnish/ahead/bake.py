"""Ahead-of-time compilation for baseline CPUs, by running tasks in processes, into archives of the package."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import burnish
from burnish.ahead.tasks import TASKS
from burnish.base.baselines import BASELINES, archive_path
from burnish.base.cache import Archive, ObjectCache
from burnish.base.jit import Cache
from burnish.codegen.native import IR_MARK
from burnish.machines.probe import host_features, host_triple

_LOG = logging.getLogger("burnish")
_LIMIT = 600  # seconds of one task, which takes some ten


def bake(tasks: Sequence[str] = tuple(TASKS), folder: Path | None = None) -> list[Path]:
    """Compiles what `tasks` call, and returns the files written, one for each baseline CPU that code is made for.

    folder: where to write; by default beside the package, where `burnish.base.jit` looks. Empty where this machine has
    no baseline whose code it can run. A task that fails is left out with a line of the log: what it would have compiled
    is compiled when a user needs it.
    """
    levels = BASELINES.get(host_triple().split("-")[0], {})
    own = {name for name, on in host_features().items() if on}
    narrowest = next((level for level in reversed([*levels]) if levels[level] <= own), None)
    if narrowest is None:
        return []
    written = []
    with tempfile.TemporaryDirectory(prefix="burnish-ahead-") as room:
        for level in sorted(levels, key=lambda level: level != narrowest):
            made, cores = Path(room) / level, len(os.sched_getaffinity(0))
            work = [[task] for task in tasks]
            if level != narrowest:
                work = [["--again", str(Path(room) / narrowest), str(share), str(cores)] for share in range(cores)]
            with ThreadPoolExecutor(cores) as pool:
                list(pool.map(partial(_run, level, made), work))
            if entries := _entries(made):
                path = archive_path(level) if folder is None else folder / archive_path(level).name
                Archive.write(path, entries)
                written.append(path)
    return written


def again(folder: str, share: int = 0, shares: int = 1) -> None:
    """Compiles for this process's CPU, without a call, those functions in a folder of compiled ones that are `wide`.

    share: which of `shares` processes this one is; each compiles a part of the functions.
    """
    for key, data in _entries(Path(folder)).items():
        if data[:1] != pickle.PROTO or int(key[:8], 16) % shares != share:
            continue
        _, description, *_, signature = pickle.loads(data)[:4]  # noqa: S301 - this process's parent has written it
        found: Any = import_module(description.modname)
        for name in description.qualname.split("."):
            found = getattr(found, name, None)
        kept = getattr(found, "_cache", None)
        if isinstance(kept, Cache) and kept.wide:
            found.compile(tuple(signature.args))


def _run(level: str, made: Path, arguments: Sequence[str]) -> None:
    """Runs a task in a process that compiles for a baseline CPU and keeps that in the folder ``made``."""
    drop = ("NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT")
    here = Path(burnish.__file__).parents[1]
    chosen = {
        "NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": "", "BURNISH_CACHE": str(made), "BURNISH_AHEAD": "0",
        "PYTHONPATH": os.pathsep.join([str(here), *sys.path[1:]]), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name not in drop} | chosen
    command = [sys.executable, "-m", "burnish.ahead", *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT, check=False)
        failure = done.stderr.strip() if done.returncode else ""
    except subprocess.TimeoutExpired:
        failure = f"took more than {_LIMIT} s"
    if failure:
        _LOG.warning("burnish: compiling %s ahead for %s: %s", arguments[0], level, failure)


def _entries(folder: Path) -> dict[str, bytes]:
    """The compiled functions in a cache folder and operators' loops as LLVM IR, by key, without kernels of models."""
    found = {}
    store = ObjectCache(folder)
    for _, _, path in store.entries():
        key = path.name.partition(".")[0]
        data = store.get(key)
        if data is not None and (data[:1] == pickle.PROTO or data.startswith(IR_MARK)):
            found[key] = data
    return found
