"""Source bundle for a board: the worker and the modules that it needs, for any Python from 3.8 on, in one file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import burnish

# Each imports only from those before it, and from the standard library.
MODULES = (
    "burnish.workers.limits", "burnish.runtime.abi", "burnish.runtime.pages", "burnish.runtime.image",
    "burnish.boards.frames", "burnish.boards.native", "burnish.boards.agent",
)  # fmt: skip

# Reads the length of the file (eight digits) and the file from standard input, whose rest is frames, and runs it.
BOOT = """\
import os, sys
def read(n):
    text = b""
    while len(text) < n:
        piece = os.read(0, n - len(text))
        if not piece:
            sys.exit(3)
        text += piece
    return text
exec(compile(read(int(read(8))), "burnish-agent", "exec"))
"""

_FILE = """\
import sys, types
SOURCES = {sources!r}
for name, text in SOURCES.items():
    for parent in [name.rsplit(".", n)[0] for n in range(name.count("."), 0, -1)]:
        if parent not in sys.modules:
            sys.modules[parent] = types.ModuleType(parent)
            sys.modules[parent].__path__ = []
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
sys.modules[{main!r}].main()
"""


@cache
def file() -> bytes:
    """The source text."""
    root = Path(burnish.__file__).parent.parent
    sources = {name: (root / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8") for name in MODULES}
    return _FILE.format(sources=sources, main=MODULES[-1]).encode()


def upload() -> bytes:
    """Upload message that :data:`BOOT` reads: the length, and the bundle."""
    return b"%08d" % len(file()) + file()
