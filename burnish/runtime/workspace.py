"""Workspace memory of a call: lent for one call, so that models that run in turn find it in the caches.

A process has as many workspaces as calls run at the same time, not as many as there are models.
"""

from __future__ import annotations

from weakref import ref

from burnish.runtime.buffers import address_of, allocate


class Workspace:
    """``nbytes`` bytes at ``address``, a multiple of 64; the contents are undefined."""

    def __init__(self, nbytes: int) -> None:
        self._memory = allocate(nbytes)
        self.nbytes = nbytes
        self.address = address_of(self._memory)
        self.reference = ref(self)


# Only borrowers keep workspaces alive. Their order is that of return; list operations are atomic, so no lock is needed.
_idle: list[ref[Workspace]] = []


def borrow(nbytes: int) -> Workspace:
    """A workspace of at least ``nbytes`` for one call: that returned last if it is large enough, or else a new one.

    Smaller ones are not offered again: they die with their last borrower. Raises MemoryError.
    """
    while True:
        try:
            found = _idle.pop()()
        except IndexError:
            return Workspace(nbytes)
        if found is not None and found.nbytes >= nbytes:
            return found


def give_back(workspace: Workspace) -> None:
    """Ends a loan. The workspace lives on for as long as the borrower keeps it."""
    _idle.append(workspace.reference)
