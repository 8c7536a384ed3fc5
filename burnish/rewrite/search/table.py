"""Hash-consed tensors: equal terms over a graph's inputs and constants are one number, in every graph they occur in.

Grammar of a value::

    value ::= input(name) | constant(name)            leaves
            | label(value, …)                         label: a word of the rules, its attributes complete and normal
            | item(value, i)                          output i of an operator with several

A graph is a tuple of values, its outputs. Arguments have smaller numbers than what is made of them: ascending order is
topological, and no value depends on itself. (A state of a search reads its values otherwise: see view.py.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from burnish import ops
from burnish.errors import ModelError
from burnish.graph.fusion_properties import FusionProperties, operator_facts
from burnish.graph.graph import Attribute, GraphBuilder, TensorType, infer_types
from burnish.rewrite.language.vocabulary import WORDS

Attributes = tuple[tuple[str, Attribute], ...]
CONSTANT_WORDS = frozenset(("eye", "dirac", "box", "full"))
COMMUTATIVE = frozenset(("add", "mul", "minimum", "maximum"))


@dataclass(frozen=True, slots=True)
class CostedOperator:
    """One operator as costs see it: what it computes, what makes its operands (operators' names), which are weights."""

    op: str
    attrs: Mapping[str, Attribute]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    makers: tuple[str, ...]
    fixed: tuple[bool, ...]
    facts: FusionProperties


Cost = Callable[[CostedOperator], float]  # seconds


@dataclass(frozen=True, eq=False)
class Label:
    """Operator label with all its attributes, in order of their keys. Equal ones are one object."""

    op: str
    attrs: Attributes

    @cached_property
    def values(self) -> dict[str, Attribute]:
        """The attributes by name."""
        return dict(self.attrs)


class Table:
    """Value table of a search (hash-consing). Lists are indexed by value.

    ``types``: a value's type, the first of several. ``fixed``: it depends on constants alone.
    """

    def __init__(self, cost: Cost = lambda operation: 0.0) -> None:
        self.labels: list[Label] = []
        self.args: list[tuple[int, ...]] = []
        self.types: list[TensorType] = []
        self.several: dict[int, tuple[TensorType, ...]] = {}  # types of operators with more or less than one output
        self.fixed: list[bool] = []
        self.origins: dict[int, str] = {}  # the name of the node that a value was made for
        self.constants: dict[str, np.ndarray] = {}
        self._cost = cost
        self._values: dict[tuple[Label, tuple[int, ...]], int] = {}
        self._labels: dict[tuple[str, Attributes], Label] = {}
        self._types: dict[TensorType, TensorType] = {}
        self._looks: dict[int, dict[int, int]] = defaultdict(dict)  # by depth and value
        self._look_numbers: dict[object, int] = {}
        self._known_types: dict[tuple[Label, tuple[int, ...]], Sequence[TensorType]] = {}  # by types' identities
        self._known_facts: dict[tuple[Label, tuple[int, ...]], FusionProperties] = {}
        self._known_costs: dict[object, float] = {}

    def __len__(self) -> int:
        return len(self.labels)

    # --- making values ---

    def leaf(self, op: str, name: str, kind: TensorType) -> int:
        """The input or the constant of a name."""
        return self._add(self.label(op, {"name": name}), (), (kind,))

    def label(self, op: str, attrs: Mapping[str, Attribute]) -> Label:
        """The one object of an operator with these attributes."""
        key = (op, tuple(sorted(attrs.items())))
        if key not in self._labels:
            self._labels[key] = Label(*key)
        return self._labels[key]

    def make(self, op: str, args: Sequence[int], attrs: Mapping[str, Attribute]) -> int:
        """The value of a word or an operator. Attributes are completed; no law but commutativity is applied.

        Raises ModelError for operands that do not fit.
        """
        args = tuple([self.name(a) for a in args])
        if op in COMMUTATIVE:
            args = tuple(sorted(args))
        attrs = self._complete(op, args, attrs)
        label = self.label(op, attrs)
        found = self._values.get((label, args))
        return self._add(label, args, self._inferred(label, args)) if found is None else found

    def again(self, value: int, args: tuple[int, ...]) -> int:
        """The operator of ``value`` on other arguments of the same types."""
        if args == self.args[value]:
            return value
        label = self.labels[value]
        args = tuple([self.name(a) for a in args])
        if label.op in COMMUTATIVE:
            args = tuple(sorted(args))
        found = self._values.get((label, args))
        if found is not None:
            return found
        made = self._append(label, args, self.types[value], all(map(self.fixed.__getitem__, args)))
        if value in self.several:
            self.several[made] = self.several[value]
        if value in self.origins:
            self.origins[made] = self.origins[value]
        return made

    def _add(self, label: Label, args: tuple[int, ...], types: Sequence[TensorType]) -> int:
        found = self._values.get((label, args))
        if found is not None:
            return found
        fixed = label.op != "input" and all(map(self.fixed.__getitem__, args))
        kind = types[0] if types else TensorType(())
        value = self._append(label, args, self._types.setdefault(kind, kind), fixed)
        if len(types) != 1:
            self.several[value] = tuple(types)
        return value

    def _append(self, label: Label, args: tuple[int, ...], kind: TensorType, fixed: bool) -> int:
        value = len(self.labels)
        self._values[label, args] = value
        self.labels.append(label)
        self.args.append(args)
        self.types.append(kind)
        self.fixed.append(fixed)
        return value

    # --- types and costs ---

    def _complete(self, op: str, args: Sequence[int], attrs: Mapping[str, Attribute]) -> Mapping[str, Attribute]:
        if op in ("part", "concat"):
            rank = len(self.types[args[0]].shape) if args else 0
            axis = int(attrs["axis"])  # type: ignore[arg-type]
            if not -rank <= axis < rank:
                raise ModelError(f"{op}: attribute 'axis': found {axis}; allowed: a dimension of {rank}")
            return {**attrs, "axis": axis % rank}
        if op in WORDS or op == "item":
            return attrs
        if op not in ops.OPERATORS:
            raise ModelError(f"unknown operator '{op}'; known: {', '.join(sorted(ops.OPERATORS))}")
        return ops.OPERATORS[op].complete(attrs)

    def _inferred(self, label: Label, args: tuple[int, ...]) -> Sequence[TensorType]:
        if label.op == "item":
            return [self.several[args[0]][int(label.values["index"])]]  # type: ignore[arg-type]
        key = (label, tuple([id(self.types[a]) for a in args]))
        if key not in self._known_types:
            self._known_types[key] = self._infer(label, args)
        return self._known_types[key]

    def _infer(self, label: Label, args: tuple[int, ...]) -> Sequence[TensorType]:
        kinds = [self.types[a] for a in args]
        if label.op in WORDS:
            return [_word_type(label, kinds)]
        return infer_types(label.op, kinds, label.values)

    def operation(self, value: int) -> CostedOperator:
        """The operator that makes a value, as costs see it. Words of the rules appear as themselves."""
        label, args = self.labels[value], self.args[value]
        kinds = tuple(self.types[a] for a in args)
        makers = tuple(self.operator(a).op for a in args)
        outputs = self.several.get(value, (self.types[value],))
        fixed = tuple(self.fixed[a] for a in args)
        return CostedOperator(label.op, label.values, kinds, outputs, makers, fixed, self.facts(label, args))

    def facts(self, label: Label, args: tuple[int, ...]) -> FusionProperties:
        """Fusion properties of an operator on arguments of these types."""
        if label.op in WORDS or label.op in ("input", "constant", "item"):
            return FusionProperties("injective")
        key = (label, tuple([id(self.types[a]) for a in args]))
        if key not in self._known_facts:
            self._known_facts[key] = operator_facts(label.op, tuple(self.types[a] for a in args), label.attrs)
        return self._known_facts[key]

    def cost(self, value: int) -> float:
        """Seconds of the operator that makes a value; nothing for what depends on constants alone."""
        label, args = self.labels[value], self.args[value]
        if self.fixed[value] or not args or label.op == "item":
            return 0.0
        key = (label, tuple([(id(self.types[a]), self.operator(a).op, self.fixed[a]) for a in args]))
        if key not in self._known_costs:
            self._known_costs[key] = self._cost(self.operation(value))
        return self._known_costs[key]

    def output_cost(self, value: int) -> float:
        """Seconds to give a value as an output, which is stored by rows: of its conversion, where it is a ``swap``."""
        if self.fixed[value] or self.labels[value].op != "swap":
            return 0.0
        kind = self.types[value]
        facts = FusionProperties("injective")
        return self._cost(CostedOperator("identity", {}, (kind,), (kind,), ("swap",), (False,), facts))

    # --- questions ---

    def maker(self, value: int) -> int:
        """The value whose operator makes this one. Here: itself."""
        return value

    def name(self, value: int) -> int:
        """The value that arguments call this one by. Here: itself."""
        return value

    def operator(self, value: int) -> Label:
        """Label of the operator that makes a value."""
        return self.labels[self.maker(value)]

    def operands(self, value: int) -> tuple[int, ...]:
        """Operands of the operator that makes a value."""
        return self.args[self.maker(value)]

    def reachable(self, roots: Iterable[int]) -> list[int]:
        """All values that these are made of, themselves included, arguments first."""
        seen: set[int] = set()
        stack = list(roots)
        while stack:
            value = stack.pop()
            if value not in seen:
                seen.add(value)
                stack.extend(self.args[value])
        return sorted(seen)

    def look(self, value: int, depth: int) -> int:
        """A number that is the same for values made by the same operators from the same types, ``depth`` deep."""
        known = self._looks[depth]
        found = known.get(value)
        if found is None:
            maker = self.maker(value)
            label = self.labels[maker]
            own = label.op if label.op in ("input", "constant") else label
            args = tuple([self.look(a, depth - 1) for a in self.args[maker]]) if depth else ()
            what = (own, id(self.types[value]), self.fixed[value], args)
            found = known[value] = self._look_numbers.setdefault(what, len(self._look_numbers))
        return found


def _word_type(label: Label, kinds: Sequence[TensorType]) -> TensorType:
    """The type of a word that is no operator, from the nodes it stands for."""
    b = GraphBuilder()
    inputs = [b.input(f"x{i}", kind.shape, kind.dtype) for i, kind in enumerate(kinds)]
    try:
        return b.types[WORDS[label.op](b, *inputs, **label.values)]
    except (TypeError, IndexError, ValueError, ZeroDivisionError) as error:
        raise ModelError(f"{label.op}: {error}") from None
