"""Prefix cache (LRU) of primitive applications: schedules that begin alike are made once so far.

Primitives are functions of a program and their arguments, and programs never change. So whoever makes many schedules of
one program may keep what each step led to, and find it by the very program it was taken from.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from burnish.loops.program import LoopProgram


class Steps:
    """At most ``most`` results, of which the longest unused are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[tuple[int, Hashable], tuple[LoopProgram, Any]] = OrderedDict()

    def after(self, program: LoopProgram, step: Hashable, make: Callable[[], Any]) -> Any:
        """Memoized step: what ``make`` returned when it was taken from this very program; else ``make`` is called."""
        key = id(program), step  # an entry keeps its program alive, so that no other has its id
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key][1]
        made = make()
        self._known[key] = program, made
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return made
