"""A tuning space: the candidates for one task, under one or several templates or algorithms, as points of search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.machines.target import Target, host
from burnish.search.space import GridSpace, Points, Union


@dataclass(frozen=True, eq=False)
class Alternative:
    """One way to compute the same: a task (its algorithm's own definition), a template for it, the template's knobs."""

    label: str
    task: KernelTask
    template: Template
    space: ScheduleSpace
    target: Target = field(default_factory=host)

    @cached_property
    def choices(self) -> dict[str, np.ndarray]:
        """Knob -> its choices as an array, in the order of their positions."""
        return {knob: np.array(choices) for knob, choices in self.space.knobs.items()}

    @cached_property
    def describe(self) -> Describe:
        """Loop-nest builder for this alternative's candidates."""
        return self.template.on(self.task, self.target).nests


@dataclass(frozen=True)
class Candidate:
    """An alternative and a choice for each of its knobs."""

    alternative: Alternative
    choice: Choice

    @property
    def algorithm(self) -> str:
        """Algorithm of the node that is computed, where there is a choice; else empty."""
        return self.alternative.label.partition("/")[0]

    def __str__(self) -> str:
        knobs = ", ".join(f"{knob} {value}" for knob, value in self.choice.items())
        return f"{self.alternative.label}({knobs})"


class TuningSpace:
    """Alternatives as one space of search: points [n, width] as :mod:`burnish.search.space` has them.

    With one alternative, column k is the position of knob k; with several, column 0 is the alternative.
    """

    def __init__(self, alternatives: Sequence[Alternative]) -> None:
        self.alternatives = tuple(alternatives)
        labels = [a.label for a in self.alternatives]
        if not labels or len(set(labels)) < len(labels):
            raise ValueError(f"TuningSpace: alternatives {labels}; it takes at least one, with labels of their own")
        empty = [f"{a.label}.{knob}" for a in self.alternatives for knob, c in a.space.knobs.items() if not len(c)]
        if empty:
            raise ValueError(f"TuningSpace: knobs {empty} have no choices; each needs at least one")
        grids = [_grid(a.space) for a in self.alternatives]
        self.space: GridSpace | Union = grids[0] if len(grids) == 1 else Union(grids)
        self._first = int(len(grids) > 1)

    @property
    def size(self) -> int:
        """The number of candidates."""
        return self.space.size

    @cached_property
    def default(self) -> Candidate:
        """The first alternative with its template's own choice."""
        return Candidate(self.alternatives[0], dict(self.alternatives[0].space.default))

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Loop-nest depth of each alternative's candidates."""
        first = [{knob: choices[:1] for knob, choices in a.choices.items()} for a in self.alternatives]
        return tuple(len(a.describe(knobs, 1).axes) for a, knobs in zip(self.alternatives, first, strict=True))

    def candidate(self, point: np.ndarray) -> Candidate:
        """The candidate at a point [width]. Raises ValueError for what is no point of the space."""
        if not self.space.contains(np.asarray(point)[None]).all():
            raise ValueError(f"point {np.asarray(point).tolist()} is not in {self.space}")
        alternative = self.alternatives[int(point[0]) if self._first else 0]
        positions = point[self._first :]
        knobs = zip(alternative.space.knobs.items(), positions, strict=False)
        return Candidate(alternative, {knob: choices[int(at)] for (knob, choices), at in knobs})

    def point(self, candidate: Candidate) -> Points:
        """The point [width] of a candidate. Raises ValueError where it has another alternative, knob or choice."""
        number = next((i for i, a in enumerate(self.alternatives) if a is candidate.alternative), None)
        if number is None:
            allowed = [a.label for a in self.alternatives]
            raise ValueError(f"candidate {candidate} has an alternative of another space; allowed: {allowed}")
        point = np.zeros(self.space.width, np.int32)
        if self._first:
            point[0] = number
        knobs = candidate.alternative.space.knobs
        if set(candidate.choice) != set(knobs):
            raise ValueError(f"candidate {candidate} has other knobs than {list(knobs)}")
        for column, (knob, choices) in enumerate(knobs.items(), self._first):
            value = candidate.choice[knob]
            if value not in choices:
                raise ValueError(f"candidate {candidate}: {knob} is {value!r}; allowed: {list(choices)}")
            point[column] = list(choices).index(value)
        return point

    def rows(self, points: Points) -> list[np.ndarray | slice]:
        """Rows of ``points`` [n, width] by the alternative that they belong to."""
        if not self._first:
            return [slice(None)]
        return [np.flatnonzero(points[:, 0] == number) for number in range(len(self.alternatives))]

    def knobs(self, number: int, points: Points) -> dict[str, np.ndarray]:
        """Knob -> choices [n] of points that belong to alternative ``number``."""
        columns = enumerate(self.alternatives[number].choices.items(), self._first)
        return {knob: choices[points[:, column]] for column, (knob, choices) in columns}

    def __str__(self) -> str:
        lines = [f"{self.size} candidates"]
        for a in self.alternatives:
            lines.append(f"  {a.label}: {a.template.name}, {a.space.size}")
            for knob, choices in a.space.knobs.items():
                lines.append(f"    {knob}: {_shown(choices)}")
        return "\n".join(lines)


def _grid(space: ScheduleSpace) -> GridSpace:
    """Knobs as columns; numbers in order are ordered choices."""
    ordered = [
        all(isinstance(c, int) for c in choices) and list(choices) == sorted(choices, key=int)
        for choices in space.knobs.values()
    ]
    return GridSpace([len(choices) for choices in space.knobs.values()], ordered)


def _shown(choices: Sequence[int | str]) -> str:
    """The choices; a long row of them by its ends."""
    shown = [str(c) for c in choices]
    return " ".join(shown) if len(shown) <= 8 else f"{' '.join(shown[:3])} … {shown[-1]} ({len(shown)})"
