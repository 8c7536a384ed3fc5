"""Dumps of intermediate forms: with ``BURNISH_DUMP=folder`` the text after every pass lies there, and its seconds.

    folder/00-import.txt  01-fold.txt  …  09-graph.txt  10-arrange.txt  the graph after every pass; groups and layouts
    folder/kernels/NAME/00-task.txt  01-schedule.txt  02-simplify_program.txt  …  09-emit.ll
    folder/passes.tsv                                           what ran when, and for how long

Text is what ``str`` gives for a form, which is also what tests compare. A pass is numbered by when it ran. While dumps
are written no kernel is taken from the cache, since one that is found runs no passes.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from burnish.errors import ParameterError

VARIABLE = "BURNISH_DUMP"
TABLE = "passes.tsv"

Form = TypeVar("Form")


@dataclass
class _Folder:
    """Dump folder of one compilation, or of one kernel in it. ``part``: its name in the table of passes."""

    path: Path
    table: Path
    part: str = ""
    count: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, name: str, text: str, seconds: float, suffix: str = ".txt") -> None:
        with self.lock:
            number, self.count = self.count, self.count + 1
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / f"{number:02d}-{name}{suffix}").write_text(text.rstrip("\n") + "\n", encoding="utf-8")
            with self.table.open("a", encoding="utf-8") as table:
                table.write(f"{self.part}\t{number}\t{name}\t{seconds:.6f}\n")
        except OSError as error:
            found = f"{VARIABLE}: found '{self.table.parent}'"
            raise ParameterError(f"{found}; allowed: a folder that can be written to ({error})") from error


_current: ContextVar[_Folder | None] = ContextVar("dump folder", default=None)


def active() -> bool:
    """Whether forms are being written."""
    return _current.get() is not None


@contextmanager
def compilation(folder: Path | None = None) -> Iterator[None]:
    """Writes the forms of what is compiled inside to ``folder``, or the one that BURNISH_DUMP names, if it is set.

    A second compilation of a process goes to a folder of its own inside it, ``2``, then ``3``, …
    Raises ParameterError, naming the folder, if nothing can be written there.
    """
    chosen = folder or os.environ.get(VARIABLE)
    if not chosen or active():
        yield
        return
    path = _unused(Path(chosen))
    with _into(_Folder(path, path / TABLE)):
        yield


@contextmanager
def kernel(name: str) -> Iterator[None]:
    """Writes the forms of one kernel to a folder of its own, if a compilation is being dumped."""
    outer = _current.get()
    if outer is None:
        yield
        return
    part = re.sub(r"[^\w.-]", "_", name)
    with _into(_Folder(outer.table.parent / "kernels" / part, outer.table, part)):
        yield


def form(name: str, value: Any, seconds: float = 0.0, suffix: str = ".txt") -> None:
    """Writes one form under the name of the pass that made it, if dumps are asked for."""
    if (folder := _current.get()) is not None:
        folder.write(name, str(value), seconds, suffix)


def through(value: Form, passes: Iterable[Callable[[Form], Form]]) -> Form:
    """``value`` after every one of the passes, each of which is written with its seconds, if dumps are asked for."""
    for apply in passes:
        began = time.perf_counter()
        value = apply(value)
        if active():
            form(_name(apply), value, time.perf_counter() - began)
    return value


def _name(apply: Callable[..., Any]) -> str:
    """A pass's name; that of the function behind a ``functools.partial``."""
    return str(getattr(getattr(apply, "func", apply), "__name__", type(apply).__name__))


def _unused(path: Path) -> Path:
    """The folder itself, or the first numbered one inside that holds no dump."""
    number, found = 1, path
    while (found / TABLE).exists():
        number += 1
        found = path / str(number)
    return found


@contextmanager
def _into(folder: _Folder) -> Iterator[None]:
    token = _current.set(folder)
    try:
        yield
    finally:
        _current.reset(token)
