"""Loaded extents: axes and loops that run between two positions which are read from memory, as rows of a CSR matrix do.

A loop over ``Loaded(begin, end, most)`` counts from ``begin`` to below ``end``, two int64 expressions of outer
variables with ``0 <= begin <= end <= most``: its variable is the position itself, and lies in ``range(most)``. That the
numbers in memory are so is checked where they are given, not where they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeGuard

from burnish.errors import ScheduleError
from burnish.loops.expr import Expr
from burnish.loops.hashcons import Interned, Rebuilt, immutable, union


class UnknownExtentError(ScheduleError, TypeError):
    """A schedule asks for the number of iterations of a loop that memory bounds."""


@immutable(eq=False, weakref_slot=True)
class LoadedExtent(Rebuilt, metaclass=Interned):
    """The positions from ``begin`` to below ``end``, all below ``most``. ``mean``: how many there are on the average,
    for costs.

    It computes with nothing; a comparison with a number is decided where the bounds, 0 and ``most``, decide it. What
    asks for more is refused by UnknownExtentError, as a schedule that cannot be.
    """

    begin: Expr
    end: Expr
    most: int
    mean: int = 1

    def __str__(self) -> str:
        return f"{self.begin}..{self.end} (of {self.most})"

    @property
    def variables(self) -> frozenset[str]:
        """Names of the variables that both ends depend on."""
        return union((self.begin.variables, self.end.variables))

    @property
    def buffers(self) -> frozenset[str]:
        """Names of the buffers that both ends are read from."""
        return union((self.begin.buffers, self.end.buffers))

    @property
    def low(self) -> int:
        """The least number of positions."""
        return 0

    @property
    def high(self) -> int:
        """The greatest number of positions, and beyond every one of them."""
        return getattr(self.most, "high", self.most)

    @property
    def hint(self) -> int:
        """About how many positions there are."""
        return self.mean

    def mapped(self, fn: Callable[[Expr], Expr]) -> LoadedExtent:
        """The same with ``fn`` of both ends; itself where nothing changes."""
        begin, end = fn(self.begin), fn(self.end)
        return self if begin is self.begin and end is self.end else LoadedExtent(begin, end, self.most, self.mean)

    def __lt__(self, other: int) -> bool:
        return self._decided("<", self.high < other, other <= 0)

    def __le__(self, other: int) -> bool:
        return self._decided("<=", self.high <= other, other < 0)

    def __gt__(self, other: int) -> bool:
        return self._decided(">", other < 0, self.high <= other)

    def __ge__(self, other: int) -> bool:
        return self._decided(">=", other <= 0, self.high < other)

    def _decided(self, op: str, always: bool, never: bool) -> bool:
        if always == never:
            raise UnknownExtentError(f"whether the loaded extent {self} is {op} a number is known only when it is read")
        return always

    def _refused(self, other: object = None) -> NoReturn:
        raise UnknownExtentError(f"the loaded extent {self} is known only when it is read; its hint is {self.hint}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __index__ = _refused
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refused


def is_loaded(extent: object) -> TypeGuard[LoadedExtent]:
    """Whether an extent is read from memory: extents are annotated as numbers."""
    return isinstance(extent, LoadedExtent)
