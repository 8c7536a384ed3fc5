"""Code by size: what is compiled for the sizes that calls bring, of which those called last are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from burnish.loops.sizes import Dim

Made = TypeVar("Made")
KEPT = 8  # sizes whose code is kept


class KeptSizes(Generic[Made]):
    """Compiled code by values of ``dims``: ``make`` makes each when it comes first, the last ``most``, two or more, are
    kept. ``drop``: frees what is kept no longer.
    """

    def __init__(
        self,
        dims: Sequence[Dim],
        make: Callable[[Mapping[str, int]], Made],
        drop: Callable[[Made], object],
        most: int = KEPT,
    ) -> None:
        self._names, self._make, self._drop, self._most = tuple(d.name for d in dims), make, drop, most
        self._known: dict[tuple[int, ...], Made] = {}  # by values of the dimensions; the last was used last

    def at(self, sizes: Mapping[str, int]) -> Made:
        """The one for these values. Raises what compilation raises."""
        key = tuple(sizes[name] for name in self._names)
        found = self._known.pop(key, None)
        if found is None:
            found = self._make(sizes)
        self.put(sizes, found)
        while len(self._known) > self._most:
            self._drop(self._known.pop(next(iter(self._known))))
        return found

    def put(self, sizes: Mapping[str, int], made: Made) -> None:
        """Adds what is there already, as used last."""
        self._known[tuple(sizes[name] for name in self._names)] = made

    def items(self) -> list[tuple[dict[str, int], Made]]:
        """All that are kept, with their sizes."""
        return [(dict(zip(self._names, key, strict=True)), made) for key, made in self._known.items()]

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Made]:
        return iter([*self._known.values()])

    def close(self) -> None:
        """Drops all."""
        for made in self._known.values():
            self._drop(made)
        self._known.clear()
