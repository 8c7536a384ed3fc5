"""Values as a state of a search sees them: a name stands for all values known to be equal, and the state chooses one.

A walk starts from a graph each of whose values is its own name. Whatever a rule puts in place of a value is called by
that value's name where it is an argument, so that what reads it stays as it is::

    y = add(p, x);  p = matmul(matmul(a, b), c)     a graph
    y = add(p, x);  p = matmul(a, q);  q = …        after a step: another value is chosen for p, y is what it was

A value has one name for all of a walk. So a graph is the set of the values it chooses, whatever way led to it, and a
step changes a few of them, whatever the size of the graph. In the words of e-graphs (Willsey et al. 2021) names are
classes, values are their nodes, and states are what could be extracted.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from burnish.rewrite.search.normal import NormalTable

RECENT = 2000  # graphs that a walk keeps whole: of 200 operators some 40 kB each
ROOT = -1  # the reader of a graph's outputs
Question = int  # a name: the value chosen for it; ~name: the names that read it


@dataclass(slots=True, weakref_slot=True, eq=False)
class Wiring:
    """A graph as names, those that depend on constants alone left out.

    ``chosen``: the value that a name stands for; ``readers``: the names whose values read it, and ROOT; ``found``: what
    begins at a name, but for those that are ``stale``; ``order``: see states.py, empty until it is asked for.
    """

    chosen: dict[int, int]
    readers: dict[int, tuple[int, ...]]
    found: dict[int, Any]
    order: dict[int, float]
    stale: set[int]

    def answer(self, question: Question) -> Hashable:
        """None: the name is not in the graph."""
        return self.chosen.get(question) if question >= 0 else self.readers.get(~question)


class Recall:
    """Results of computations that know a state only by what they ask it: if another answers alike, they are the same.

    For every key a tree of questions, as what is asked next depends on nothing but the answers before: selective
    memoization (Acar et al. 2003).
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def get(self, key: Hashable, wiring: Wiring) -> Any:
        """The result that is kept for these answers, or None."""
        entry = self._known.get(key)
        chosen, readers = wiring.chosen, wiring.readers
        while entry.__class__ is _Asked:
            question = entry.question
            entry = entry.then.get(chosen.get(question) if question >= 0 else readers.get(~question))
        return entry

    def keep(self, key: Hashable, asked: Mapping[Question, Hashable], result: object) -> None:
        """Keeps a result, not None, for what was asked and answered, in this order."""
        place, at = self._known, key
        for question, answer in asked.items():
            entry = place.get(at)
            if entry.__class__ is not _Asked or entry.question != question:  # a value got its name meanwhile
                entry = place[at] = _Asked(question)
            place, at = entry.then, answer
        place[at] = result


class _Asked:
    """A question, and what came next by its answer."""

    __slots__ = ("question", "then")

    def __init__(self, question: Question) -> None:
        self.question = question
        self.then: dict[Hashable, Any] = {}


class SearchKnowledge:
    """Memo tables of a search from one graph, for the values that it meets.

    ``names``: by value; ``legal``: whether a state has no cycle, by its key; ``changes``, ``found``, ``groups`` and
    ``merges``: what apply.py and moves.py have computed; ``askers``: at which names a name's value was asked for;
    ``recent``: graphs that are kept whole.
    """

    def __init__(self, table: NormalTable) -> None:
        self.table = table
        self.names: dict[int, int] = {}
        self.legal: dict[int, bool] = {}
        self.changes, self.found, self.groups, self.merges = Recall(), Recall(), Recall(), Recall()
        self.askers: dict[int, set[int]] = {}
        self.recent: deque[Wiring] = deque(maxlen=RECENT)
        self._signs: dict[int, int] = {}
        self._random = Random(0)

    def sign(self, value: int) -> int:
        """A number of 128 random bits. A set's key is the exclusive or of its values' (Zobrist 1970)."""
        found = self._signs.get(value)
        if found is None:
            found = self._signs[value] = self._random.getrandbits(128)
        return found


class GraphView(NormalTable):
    """View of the table from one state, for one computation.

    ``asked``: all that it has seen of the state. ``changed``: names that it sees otherwise, and those of values made
    here that the state does not have.
    """

    def __init__(self, walk: SearchKnowledge, wiring: Wiring) -> None:
        self.__dict__.update(walk.table.__dict__)  # the same values
        self._looks = defaultdict(dict)
        self.walk, self.wiring = walk, wiring
        self.asked: dict[Question, Hashable] = {}
        self.changed: dict[int, int] = {}

    def ask(self, question: Question) -> Any:
        """The state's answer; see :class:`Wiring`."""
        asked = self.asked
        if question not in asked:
            asked[question] = self.wiring.answer(question)
        return asked[question]

    def maker(self, value: int) -> int:
        """The value that the state has chosen for this one's name."""
        if self.fixed[value]:
            return value
        name = self.walk.names.get(value, value)
        made = self.changed.get(name)
        if made is None:
            made = self.ask(name)
        return value if made is None else made

    def name(self, value: int) -> int:
        """Name by which arguments refer to a value. A value without one is its own name; one not in the state enters
        it.
        """
        if self.fixed[value]:
            return value
        name = self.walk.names.setdefault(value, value)
        if name not in self.changed and self.ask(name) is None:
            self.changed[name] = value
        return name

    def readers(self, name: int) -> tuple[int, ...]:
        """The names that read this one in the state, and ROOT."""
        found: tuple[int, ...] | None = self.ask(~name)
        return found or ()
