"""Conversion of a graph to values and back: names, types and order of inputs and outputs stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish import ops
from burnish.errors import ModelError
from burnish.graph.evaluate import evaluate_node
from burnish.graph.graph import Attribute, Graph, GraphBuilder
from burnish.graph.rewrite import drop_dead, restore_outputs
from burnish.rewrite.language.vocabulary import WORDS
from burnish.rewrite.search.normal import NormalTable
from burnish.rewrite.search.table import Label, Table


@dataclass(frozen=True)
class Reading:
    """A graph as values: its outputs, and the tensor of the graph that a value is."""

    roots: tuple[int, ...]
    names: dict[int, str]


def read_graph(table: NormalTable, graph: Graph) -> Reading:
    """The values of a graph's outputs. Raises ModelError naming the node whose operands do not fit."""
    values = {name: table.leaf("input", name, graph.types[name]) for name in graph.inputs}
    for name, array in graph.constants.items():
        values[name] = table.leaf("constant", name, graph.types[name])
        table.constants[name] = array
    for node in graph.nodes:
        args = [values[name] for name in node.inputs]
        first = len(table)
        try:
            made = table.make(node.op, args, node.attrs)
        except ModelError as error:
            raise ModelError(f"node '{node.name}': {error}") from None
        outputs = [made] if len(node.outputs) == 1 else _items(table, made, len(node.outputs))
        for name, value in zip(node.outputs, outputs, strict=True):
            if table.types[value] != graph.types[name]:
                found, allowed = graph.types[name], table.types[value]
                raise ModelError(f"node '{node.name}': output '{name}': found {found}; allowed: {allowed}")
        table.origins.update(dict.fromkeys(range(first, len(table)), node.name))
        values.update(zip(node.outputs, outputs, strict=True))
    names: dict[int, str] = {}
    for name, value in values.items():
        names.setdefault(value, name)
    return Reading(tuple(values[name] for name in graph.outputs), names)


def _items(table: Table, made: int, count: int) -> list[int]:
    return [table.make("item", (made,), {"index": i}) for i in range(count)]


def write_graph(table: Table, reading: Reading, roots: Sequence[int], graph: Graph, fold: bool = True) -> Graph:
    """The graph of values that stand for the outputs of ``graph``.

    New values of constants alone are computed; without ``fold`` they stay nodes, for an evaluation in float64.
    """
    return _Writer(table, reading, graph, fold).write(roots)


class _Writer(GraphBuilder):
    def __init__(self, table: Table, reading: Reading, graph: Graph, fold: bool) -> None:
        super().__init__()
        self.table, self.names, self.graph, self.fold = table, reading.names, graph, fold
        self.old = set(graph.types)
        self.known: dict[int, str] = {}
        self.weights: dict[int, np.ndarray] = {}
        for name in graph.inputs:
            self.input(name, graph.types[name].shape, graph.types[name].dtype)

    def write(self, roots: Sequence[int]) -> Graph:
        """The finished graph."""
        table = self.table
        roots = self._sunk(roots)
        needed = [v for v in table.reachable(roots) if not table.fixed[v]]
        fixed = dict.fromkeys(a for v in (*needed, *roots) for a in (*table.args[v], v) if table.fixed[a])
        for value in fixed:
            self._constant(value)
        for value in needed:
            label = table.labels[value]
            if label.op == "input":
                self.known[value] = str(label.values["name"])
            elif label.op == "item":
                continue  # named with its operator
            elif value in table.several:
                self._several(value, needed)
            else:
                self.known[value] = self._single(value)
        found = self.build(*[self.known[r] for r in roots])
        return drop_dead(restore_outputs(found, self.graph.outputs))

    def _taken(self, name: str) -> bool:
        return super()._taken(name) or name in self.old

    def _name(self, value: int, stem: str) -> str:
        """The tensor's name in the old graph where it was there, else a new one."""
        name = self.names.get(value)
        return name if name is not None and name not in self.types else self.fresh(stem)

    # --- constants ---

    def _constant(self, value: int) -> None:
        """Adds a value of constants alone: computed if the old graph does not have it, else as it is there."""
        for part in self.table.reachable([value]):
            if part not in self.known:
                label, args = self.table.labels[part], self.table.args[part]
                if label.op == "constant":
                    name = str(label.values["name"])
                    self.known[part] = self.constant(self.table.constants[name], name)
                elif label.op == "box" and not self.fold:
                    self.known[part] = self._box(**label.values)  # type: ignore[arg-type]
                elif (args and not self.fold) or (
                    part in self.names and all(a in self.known and a not in self.weights for a in args)
                ):
                    self.known[part] = self._single(part)
                else:
                    self.weights[part] = self._computed(part)
                    self.known[part] = self.constant(self.weights[part], self._name(part, f"{label.op}.weight"))

    def _box(self, channels: int, kernel: tuple[int, int]) -> str:
        """The weight of a mean, as a quotient: in float64 another than the one rounded to float32."""
        ones = self.constant(np.ones((channels, 1, *kernel), np.float32))
        return self.add("div", ones, self.constant(np.float32(kernel[0] * kernel[1])))

    def _computed(self, value: int) -> np.ndarray:
        label = self.table.labels[value]
        b = GraphBuilder()
        inputs = [self._weight(a) for a in self.table.args[value]]
        if label.op in _MOVES:
            return _MOVES[label.op](inputs, label.values)
        names = [b.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(inputs)]
        made = _emit(b, label, names)
        if made in b.constants:
            return b.constants[made]
        (node,) = b.build(made).nodes
        return evaluate_node(node, inputs)[0]

    def _weight(self, value: int) -> np.ndarray:
        if value not in self.weights:
            label = self.table.labels[value]
            if label.op == "constant":
                self.weights[value] = self.table.constants[str(label.values["name"])]
            else:
                self.weights[value] = self._computed(value)
        return self.weights[value]

    # --- nodes ---

    def _single(self, value: int) -> str:
        table = self.table
        label, args = table.labels[value], table.args[value]
        node = table.origins.get(value, "")
        name = self._name(value, node or label.op)
        if label.op == "part":
            return self._slice(value, name, node)
        if label.op == "matmul":
            swapped = [table.labels[a].op == "swap" and not table.fixed[a] for a in args]
            inputs = [self.known[table.args[a][0] if s else a] for a, s in zip(args, swapped, strict=True)]
            flags = {key: True for key, s in zip(("transpose_a", "transpose_b"), swapped, strict=True) if s}
            return self.add("matmul", *inputs, name=name, node=node, **flags)
        made = _emit(self, label, [self.known[a] for a in args], name, node)
        return made if label.op not in WORDS else self.rename(made, name)

    def _slice(self, value: int, name: str, node: str) -> str:
        """A chain of parts as one slice of what they are parts of."""
        table = self.table
        shape = table.types[value].shape
        starts = [0] * len(shape)
        while table.labels[value].op == "part":
            values = table.labels[value].values
            starts[int(values["axis"])] += int(values["start"])  # type: ignore[arg-type]
            (value,) = table.args[value]
        return self.add("slice", self.known[value], name=name, node=node, starts=tuple(starts), extents=shape)

    def _several(self, value: int, needed: Sequence[int]) -> None:
        table = self.table
        items = {int(table.labels[v].values["index"]): v for v in needed if table.args[v] == (value,)}  # type: ignore[arg-type]
        label, node = table.labels[value], table.origins.get(value, "")
        count = len(table.several[value])
        names = [self._name(items[i], f"{label.op}.{i}") if i in items else "" for i in range(count)]
        inputs = [self.known[a] for a in table.args[value]]
        made = self.add_many(label.op, *inputs, names=names, node=node, **_given(label))
        self.known.update((items[i], made[i]) for i in items)

    # --- parts go back in front of element-wise operators that nothing else needs ---

    def _sunk(self, roots: Sequence[int]) -> Sequence[int]:
        """``part(relu(x))`` as ``relu(part(x))`` where nothing else reads ``relu(x)``: less to compute."""
        table = self.table
        readers: dict[int, int] = dict.fromkeys(roots, 2)
        live = table.reachable(roots)
        for value in live:
            for a in table.args[value]:
                readers[a] = readers.get(a, 0) + 1
        moved: dict[int, int] = {}
        for value in live:
            args = tuple(moved.get(a, a) for a in table.args[value])
            if args and table.labels[value].op == "part" and readers[table.args[value][0]] == 1:
                sunk = self._sink(value, args[0])
                if sunk is not None:
                    moved[value] = sunk
                    continue
            if args != table.args[value]:
                moved[value] = Table.again(table, value, args)
        return [moved.get(r, r) for r in roots]

    def _sink(self, part: int, x: int) -> int | None:
        table, label = self.table, self.table.labels[part]
        if table.fixed[x] or not table.operation(x).facts.elementwise:
            return None
        data = [a for a in table.args[x] if not table.fixed[a]]
        if len(data) != 1 or any(table.types[a].size != 1 for a in table.args[x] if a != data[0]):
            return None
        if table.types[data[0]].shape != table.types[x].shape:
            return None
        inner = Table.make(table, "part", data, label.values)
        return Table.make(table, table.labels[x].op, [inner if a == data[0] else a for a in table.args[x]],
                          table.labels[x].values)  # fmt: skip


def _moved_part(arrays: Sequence[np.ndarray], values: Mapping[str, Attribute]) -> np.ndarray:
    axis, start, extent = (int(values[key]) for key in ("axis", "start", "extent"))  # type: ignore[arg-type]
    return arrays[0][(slice(None),) * axis + (slice(start, start + extent),)]


def _grown(arrays: Sequence[np.ndarray], values: Mapping[str, Attribute]) -> np.ndarray:
    pads = values["pads"]
    assert isinstance(pads, tuple)
    top, left, bottom, right = (int(p) for p in pads)  # type: ignore[arg-type]
    return np.pad(arrays[0], [(0, 0)] * (arrays[0].ndim - 2) + [(top, bottom), (left, right)])


def _block_diagonal(arrays: Sequence[np.ndarray], values: Mapping[str, Attribute]) -> np.ndarray:
    groups, merged = (int(values[key]) for key in ("groups", "merged"))  # type: ignore[arg-type]
    outputs, depth, *kernel = arrays[0].shape
    rows = arrays[0].reshape(groups, merged, -1, depth, *kernel)
    made = np.zeros((groups, merged, rows.shape[2], merged, depth, *kernel), rows.dtype)
    for own in range(merged):
        made[:, own, :, own] = rows[:, own]
    return made.reshape(outputs, merged * depth, *kernel)


# Words that move weights, which may be large, by NumPy: the reference evaluation would take seconds.
_MOVES: Mapping[str, Callable[[Sequence[np.ndarray], Mapping[str, Attribute]], np.ndarray]] = {
    "part": _moved_part,
    "grow": _grown,
    "block_diagonal": _block_diagonal,
    "swap": lambda arrays, values: arrays[0].swapaxes(-1, -2),
    "concat": lambda arrays, values: np.concatenate(arrays, axis=values["axis"]),  # type: ignore[arg-type]
}


def _emit(b: GraphBuilder, label: Label, inputs: Sequence[str], name: str | None = None, node: str = "") -> str:
    """Adds the node that a word or an operator stands for."""
    if label.op in WORDS:
        return WORDS[label.op](b, *inputs, **label.values)
    return b.add(label.op, *inputs, name=name, node=node, **_given(label))


def _given(label: Label) -> dict[str, Attribute]:
    """The attributes that are not what they are by default."""
    defaults = ops.OPERATORS[label.op].attrs
    return {key: value for key, value in label.attrs if value != defaults[key]}
