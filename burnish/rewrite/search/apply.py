"""Incremental application of a substitution: new values for old, what laws make of their readers, and the cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from burnish.rewrite.search.states import Change, CycleError, SearchState, legal
from burnish.rewrite.search.view import ROOT, GraphView, Wiring

MOST = 100  # values made again for each that is replaced: laws that need more go round


def replace(state: SearchState, wiring: Wiring, replaced: Mapping[int, int], made: Mapping[int, int]) -> Change:
    """The change that gives names new values. ``made``: values of names that the graph does not have.

    Raises CycleError where a new value is made of what it replaces.
    """
    walk = state.walk
    key = (tuple(replaced.items()), tuple(made.items()))
    change: Change | None = walk.changes.get(key, wiring)
    if change is None:
        view = GraphView(walk, wiring)
        change = _Replacement(view, replaced, made).change()
        walk.changes.keep(key, view.asked, change)
    if not legal(state, wiring, change):
        raise CycleError("a value depends on its own replacement")
    return change


class _Replacement:
    """Values in place of others in a state, and what follows.

    ``same``: names whose readers read another name from then on; ``new_readers``: what may read a name that did not.
    """

    def __init__(self, view: GraphView, replaced: Mapping[int, int], made: Mapping[int, int]) -> None:
        self.view = view
        self.given = {**made, **replaced}
        self.same: dict[int, int] = {}
        self.new_readers: dict[int, dict[int, None]] = {}
        self.chosen: dict[int, int | None] = {}
        self.readers: dict[int, dict[int, None]] = {}
        for name, value in made.items():
            self._choose(name, value)
        self._put(replaced)

    # --- laws ---

    def _put(self, replaced: Iterable[int]) -> None:
        """Makes the values of these names, and of all that read them, again, until nothing changes."""
        view = self.view
        waiting = dict.fromkeys(replaced)
        for _ in range(MOST * len(waiting)):
            if not waiting:
                return
            name = next(iter(waiting))
            del waiting[name]
            known = len(view.changed)
            if self._renew(name):
                waiting.update(dict.fromkeys(r for r in view.readers(name) if r != ROOT))
                waiting.update(self.new_readers.get(name, {}))
            for other in list(view.changed)[known:]:
                self._choose(other, view.changed[other])
        raise CycleError("laws go round")

    def _renew(self, name: int) -> bool:
        """Makes a name's value again of what its arguments have become; whether it is another than before."""
        view = self.view
        value = self.given.get(name)
        if value is None:
            value = view.ask(name)
        if value is None:
            value = view.changed[name]
        args = tuple([self._followed(a) for a in view.args[value]])
        made = view.again(value, args) if args else value
        own = made if view.fixed[made] else view.walk.names.setdefault(made, name)
        if own != name:
            if self.same.get(name) == own:
                return False
            self.same[name] = view.name(made)
            return True
        was_same = self.same.pop(name, None) is not None
        if view.maker(name) == made:
            return was_same
        self._choose(name, made)
        return True

    def _followed(self, name: int) -> int:
        """The name that is read in place of this one."""
        seen = {name}
        while name in self.same:
            name = self.same[name]
            if name in seen:
                raise CycleError(f"value {name} depends on its own replacement")
            seen.add(name)
        return name

    def _choose(self, name: int, value: int) -> None:
        self.view.changed[name] = value
        for a in self.view.args[value]:
            self.new_readers.setdefault(a, {})[name] = None

    # --- readers ---

    def change(self) -> Change:
        """Difference that this replacement makes to the state: values, names, readers, and cost."""
        view, args = self.view, self.view.args
        new = {n: v for n, v in view.changed.items() if n not in self.same and view.ask(n) not in (None, v)}
        self.chosen.update(new)
        for name, value in new.items():
            for a in dict.fromkeys(args[value]):
                self._link(a, name)
        same = {name: self._followed(name) for name in self.same}
        roots = [name for name in same if ROOT in view.readers(name)]
        for root in roots:
            self._link(same[root], ROOT)
        for name, value in new.items():
            for a in dict.fromkeys(args[view.ask(name)]):
                if a not in args[value]:
                    self._unlink(a, name)
        for root in roots:
            self._unlink(root, ROOT)
        readers = {name: tuple(sorted(by)) or None for name, by in self.readers.items()}
        key = 0
        for name, made in self.chosen.items():
            for sign in (view.ask(name), made):
                if sign is not None:
                    key ^= view.walk.sign(sign)
        return Change(self.chosen, readers, same, self._saved(), key)

    def _of(self, name: int) -> dict[int, None]:
        found = self.readers.get(name)
        if found is None:
            found = self.readers[name] = dict.fromkeys(self.view.readers(name))
        return found

    def _link(self, name: int, reader: int) -> None:
        view = self.view
        stack = [(name, reader)]
        while stack:
            name, reader = stack.pop()
            if view.fixed[name]:
                continue
            self._of(name)[reader] = None
            if name not in self.chosen and view.ask(name) is None:
                value = self.chosen[name] = view.changed[name]
                stack.extend((a, name) for a in view.args[value])

    def _unlink(self, name: int, reader: int) -> None:
        view = self.view
        stack = [(name, reader)]
        while stack:
            name, reader = stack.pop()
            if view.fixed[name]:
                continue
            readers = self._of(name)
            readers.pop(reader, None)
            if readers:
                continue
            before = view.ask(name)
            value = self.chosen.get(name, before)
            if before is None:
                del self.chosen[name], self.readers[name]
            else:
                self.chosen[name] = None
            stack.extend((a, name) for a in dict.fromkeys(view.args[value]))

    # --- costs ---

    def _saved(self) -> float:
        """Seconds added: of what is new or gone, and of what reads another operator than before."""
        view = self.view
        before = GraphView(view.walk, view.wiring)
        before.asked = view.asked
        cost, labels = 0.0, view.labels
        touched = dict(self.chosen)
        for name, value in self.chosen.items():
            old = view.ask(name)
            if value is not None and old is not None and labels[value].op != labels[old].op:
                for reader in self.readers.get(name) or view.readers(name):
                    if reader != ROOT and reader not in touched:
                        touched[reader] = view.ask(reader)
        for name, now in touched.items():
            old = view.ask(name)
            cost += (0.0 if now is None else view.cost(now)) - (0.0 if old is None else before.cost(old))
        for name in {**self.chosen, **self.readers}:
            old = view.ask(name)
            now = self.chosen.get(name, old)
            if old is not None and ROOT in view.readers(name):
                cost -= before.output_cost(old)
            if now is not None and ROOT in self.readers.get(name, view.readers(name)):
                cost += view.output_cost(now)
        return cost
