"""Spaces of points: products of finite choices, and unions of such products. Every operation takes many points at once.

A point is a row of positions, int32. In a `GridSpace` each column is one choice. In a `Union` column 0 is the
alternative, the columns after it are the choices of that alternative's grid, and the columns that it has no use for are
0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.int32]

LARGEST_CHOICE = 2**31 - 1  # positions are int32
LARGEST_WORD = 2**63 - 1
JUMP = 0.05  # probability that a neighbour in a union is one of another alternative
STEPS = np.array([-2, -1, 1, 2, 0, 0, 0, 0])  # of an ordered choice, drawn uniformly; 0 stands for a uniform move


class SearchSpace:
    """Search space, base of `GridSpace` and `Union`: one table row of sizes for each alternative, of which a grid has
    one.

    `width` is the number of columns of a point, `size` the number of points (a Python integer without bound), `counts`
    those of each alternative, whose keys follow one another.
    """

    def __init__(self, grids: Sequence[tuple[Sequence[int], Sequence[bool]]], labelled: bool) -> None:
        first = int(labelled)
        self._labelled = labelled
        self.width = first + max(len(sizes) for sizes, _ in grids)
        self._alternatives = len(grids)
        self._sizes = np.ones((len(grids), self.width), np.int64)
        self._used = np.zeros((len(grids), self.width), bool)
        self._ordered = np.zeros((len(grids), self.width), bool)
        for row, (sizes, ordered) in enumerate(grids):
            columns = slice(first, first + len(sizes))
            self._sizes[row, columns] = sizes
            self._used[row, columns] = True
            self._ordered[row, columns] = ordered
        self.counts = counts = tuple(math.prod(sizes) for sizes, _ in grids)
        self.size = sum(counts)
        self._word = np.dtype(np.int64 if self.size <= LARGEST_WORD else object)
        self._offsets = np.array([sum(counts[:row]) for row in range(len(counts))], self._word)
        self._free = np.zeros((len(grids), max(1, self.width)), np.int64)
        for row in range(len(grids)):
            free = np.flatnonzero(self._sizes[row] > 1)
            self._free[row, : len(free)] = free
        self._free_count = (self._sizes > 1).sum(axis=1)
        self._groups = self._column_groups()

    def _column_groups(self) -> list[tuple[slice, NDArray[np.int64], NDArray]]:
        """Columns whose mixed-radix number fits one word: (columns, their strides, the group's own stride), per row."""
        groups: list[tuple[slice, NDArray[np.int64], NDArray]] = []
        base = [1] * self._alternatives
        stop = self.width
        while stop > 0:
            start, spans = stop, [1] * self._alternatives
            strides = np.ones((self._alternatives, 0), np.int64)
            while start > 0:
                grown = [span * int(size) for span, size in zip(spans, self._sizes[:, start - 1], strict=True)]
                if max(grown) > LARGEST_WORD:
                    break
                strides = np.column_stack([np.array(spans, np.int64), strides])
                start, spans = start - 1, grown
            groups.append((slice(start, stop), strides * self._used[:, start:stop], np.array(base, self._word)))
            base = [b * span for b, span in zip(base, spans, strict=True)]
            stop = start
        return groups

    def _of(self, table: NDArray, points: Points) -> NDArray:
        """The table's row for the alternative of each point; a grid's only row, to be broadcast."""
        return table[points[:, 0]] if self._labelled else table[0]

    def _fresh(self, rng: np.random.Generator, alternative: NDArray[np.int64] | int, count: int) -> Points:
        """Uniform points (count, width) of the given alternatives."""
        points = (rng.random((count, self.width)) * self._sizes[alternative]).astype(np.int32)
        if self._labelled:
            points[:, 0] = alternative
        return points

    def alternatives(self, points: Points) -> NDArray[np.int32]:
        """The alternative of each point, (n,); 0 in a grid."""
        return points[:, 0] if self._labelled else np.zeros(len(points), np.int32)

    def sample(self, rng: np.random.Generator, count: int) -> Points:
        """Independent random points, (count, width): uniform over alternatives, then over the points of each."""
        alternative = rng.integers(self._alternatives, size=count) if self._labelled else 0
        return self._fresh(rng, alternative, count)

    def neighbours(self, rng: np.random.Generator, points: Points) -> Points:
        """One random neighbour of each point, (n, width): another position in exactly one column.

        Half of the moves of an ordered choice are by one or two positions, all others are uniform over the other
        positions. In a union one move in twenty goes to a uniform point of another alternative, as does every move from
        an alternative of a single point. The point itself comes back only where the space has no other.
        """
        count = len(points)
        free = self._of(self._free_count, points)
        if self._alternatives == 1 and not self._free_count[0]:
            return points.copy()
        draw = rng.random((4, count))
        alternative = points[:, 0] if self._labelled else 0
        column = self._free[alternative, (draw[0] * free).astype(np.int64)]
        rows = np.arange(count)
        old, size = points[rows, column], self._sizes[alternative, column]
        new = (old + 1 + (draw[1] * (size - 1)).astype(np.int64)) % size
        step = STEPS[(draw[2] * len(STEPS)).astype(np.int64)]
        near = old + step
        stepped = (step != 0) & self._ordered[alternative, column] & (near >= 0) & (near < size)
        moved = points.copy()
        moved[rows, column] = np.where(stepped, near, new)
        if self._alternatives > 1:
            jumping = np.flatnonzero((draw[3] < JUMP) | (free == 0))
            other = rng.integers(1, self._alternatives, size=len(jumping)) + points[jumping, 0]
            moved[jumping] = self._fresh(rng, other % self._alternatives, len(jumping))
        return moved

    def crossover(self, rng: np.random.Generator, a: Points, b: Points) -> Points:
        """A child of each pair, (n, width): every column from either parent; parents that differ in the alternative
        have a copy of one of them.
        """
        from_a = rng.random(a.shape) < 0.5
        if self._labelled:
            from_a = np.where((a[:, 0] == b[:, 0])[:, None], from_a, from_a[:, :1])
        return np.where(from_a, a, b)

    def keys(self, points: Points) -> NDArray:
        """The place (n,) of every canonical point in the order of `enumerate`: int64 if all places fit, else Python
        integers in an object array. Equal for equal points only.
        """
        keys = np.zeros(len(points), self._word) + self._of(self._offsets, points)
        for columns, strides, base in self._groups:
            word = (points[:, columns] * self._of(strides, points)).sum(axis=1)
            keys = keys + word.astype(self._word) * self._of(base, points)
        return keys

    def at(self, keys: NDArray) -> Points:
        """The points (n, width) whose keys (n,) are given: the inverse of `keys`."""
        alternative = np.searchsorted(self._offsets, keys, side="right") - 1
        rest = (keys - self._offsets[alternative]).astype(self._word)
        points = np.zeros((len(keys), self.width), np.int32)
        for columns, strides, base in self._groups:
            place = alternative if self._labelled else np.zeros(len(keys), np.int64)
            word = rest // base[place]
            span = np.maximum(strides, 1)[place]
            digits = word[:, None] // span % self._sizes[place][:, columns]
            points[:, columns] = digits.astype(np.int32)
        if self._labelled:
            points[:, 0] = alternative
        return points

    def enumerate(self, start: int, stop: int) -> Points:
        """The points number start … min(stop, size) - 1, (n, width): last column fastest, alternative slowest."""
        return self.at(np.arange(start, max(start, min(stop, self.size)), dtype=self._word))

    def canonical(self, points: Points) -> Points:
        """The points (n, width) with every column that their alternative has no use for set to 0."""
        kept = self._used.copy()
        kept[:, : int(self._labelled)] = True
        return np.where(self._of(kept, points), points, np.int32(0))

    def contains(self, points: Points) -> NDArray[np.bool_]:
        """Mask of rows, (n,), that are canonical points of this space."""
        if points.ndim != 2 or points.shape[1] != self.width:
            return np.zeros(len(points), bool)
        known = np.ones(len(points), bool)
        if self._labelled:
            known = (points[:, 0] >= 0) & (points[:, 0] < self._alternatives)
        known_points = np.where(known[:, None], points, 0)
        inside = (known_points >= 0) & (known_points < self._of(self._sizes, known_points))
        if self._labelled:
            inside[:, 0] = True
        return known & inside.all(axis=1)

    def components(self, points: Points) -> NDArray[np.int64]:
        """A number for every choice of every point, (n, width), equal where alternative, column and position are; -1
        in columns that are no choice.
        """
        ends = np.cumsum(np.where(self._used, self._sizes, 0)).reshape(self._sizes.shape)
        numbers = points + self._of(ends - self._sizes, points)
        return np.where(self._of(self._used, points), numbers, np.int64(-1))


class GridSpace(SearchSpace):
    """Grid space, the product of finite choices: point column j is a position 0 … sizes[j] - 1.

    `ordered[j]` says that near positions are alike (tile sizes, but not names of loop orders); all are by default.
    """

    def __init__(self, sizes: Sequence[int], ordered: Sequence[bool] | None = None) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        self.ordered = (True,) * len(self.sizes) if ordered is None else tuple(ordered)
        if any(not 1 <= size <= LARGEST_CHOICE for size in self.sizes):
            raise ValueError(f"Grid: sizes {self.sizes}; each must be between 1 and {LARGEST_CHOICE}")
        if len(self.ordered) != len(self.sizes):
            raise ValueError(f"Grid: ordered has {len(self.ordered)} entries for {len(self.sizes)} sizes")
        super().__init__([(self.sizes, self.ordered)], labelled=False)

    def __repr__(self) -> str:
        return f"Grid({self.sizes})"


class Union(SearchSpace):
    """Alternatives, each a grid: column 0 of a point is the alternative, the others are the positions in its grid."""

    def __init__(self, grids: Sequence[GridSpace]) -> None:
        self.grids = tuple(grids)
        if not self.grids:
            raise ValueError("Union: no grids; it takes at least one")
        super().__init__([(grid.sizes, grid.ordered) for grid in self.grids], labelled=True)

    def __repr__(self) -> str:
        return f"Union({list(self.grids)})"
