"""Operator fusion by the four classes that follow from definitions: injective, reduction, complex-out-fusable, opaque.

Source: thesis-chen section 4.2 ("Operator Fusion", figure 4.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from burnish.graph.divide import joins_in_place
from burnish.graph.fusion_properties import contiguous_offset, facts_of, separable
from burnish.graph.graph import Graph, Node
from burnish.ops import OPERATORS

LOOKAHEAD = 16  # nodes taken in on trial before a group must again have a single result
FEW = 8  # members that are never too many
MOST_MEMBERS = 96  # of a group: each is a stage of its own before it is inlined
MOST_PLACES = 8  # at which one member may be computed for one element of a group's result
MOST_DEPTH = 96  # of a group's expression: everything that works on expressions calls itself at every level


@dataclass(frozen=True)
class Group:
    """Nodes that become one kernel, in topological order.

    ``inputs`` are the tensors the kernel reads from memory, in order of first use, constants of one element excepted
    (these are written into the code); ``outputs`` what it writes. ``anchor`` is the complex, reduction or opaque node;
    None for a purely injective group. ``alias``: the output has its only input's elements in the same order, so it may
    share its memory where both have the plain layout.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    anchor: Node | None = None
    alias: bool = False

    def __str__(self) -> str:
        ops = " ".join(f"[{node.op}]" if node is self.anchor else node.op for node in self.nodes)
        word = "alias " if self.alias else ""
        return f"{word}{', '.join(self.outputs)} = {ops} ({', '.join(self.inputs)})"


def fuse(graph: Graph, lanes: int = 1) -> list[Group]:
    """The graph's nodes in groups, each node in one, in topological order. Images come in blocks of ``lanes`` channels.

    - A complex node takes in the element-wise chain behind it, and then views up to the last that moves elements
      (unless it computes pixels: a view would undo blocks of channels), and element-wise nodes that only feed those; in
      front, views that move or select elements and only feed it. The latter holds for opaque nodes too. Casts to wider
      numbers that only feed the chain join it.
    - A reduction takes in the element-wise chain behind it, and injective nodes in front that only feed it.
    - An operator without a definition stays alone.
    - Injective nodes merge into chains, with element-wise nodes that only feed them. A reshape stays alone: it moves
      nothing. So do a join whose parts kernels can write where they lie in it, and a slice that can be read where it
      lies.

    A group has one result: where an intermediate is needed elsewhere, the group ends. Hence no two groups can wait for
    each other. A complex node's may have a second one, see :meth:`Fusion._second_result`.
    """
    fusion = Fusion(graph, lanes)
    for kind in ("extern", "complex", "reduction", "opaque", "injective"):
        for position, node in enumerate(graph.nodes):
            if position not in fusion.owner and fusion.facts[position].kind == kind:
                fusion.grow(position, node)
    return fusion.groups()


def renamed_inputs(group: Group, names: Mapping[str, str]) -> Group:
    """The group reading other values in the place of some of its inputs: old name -> new name."""
    changed = {node: replace(node, inputs=tuple(names.get(n, n) for n in node.inputs)) for node in group.nodes}
    return _exchanged(group, changed, tuple(names.get(n, n) for n in group.inputs), group.outputs)


def renamed_outputs(group: Group, names: Mapping[str, str]) -> Group:
    """The group with other names for some of its outputs: old name -> new name."""
    changed = {node: replace(node, outputs=tuple(names.get(n, n) for n in node.outputs)) for node in group.nodes}
    return _exchanged(group, changed, group.inputs, tuple(names.get(n, n) for n in group.outputs))


def renamed_everywhere(group: Group, name: Callable[[str], str]) -> Group:
    """The group with other names for all its tensors, inner ones too."""
    changed = {
        node: replace(node, inputs=tuple(map(name, node.inputs)), outputs=tuple(map(name, node.outputs)))
        for node in group.nodes
    }
    return _exchanged(group, changed, tuple(map(name, group.inputs)), tuple(map(name, group.outputs)))


def _exchanged(group: Group, changed: Mapping[Node, Node], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Group:
    anchor = None if group.anchor is None else changed[group.anchor]
    nodes = tuple(changed[node] for node in group.nodes)
    return replace(group, nodes=nodes, inputs=inputs, outputs=outputs, anchor=anchor)


class Fusion:
    """Fusion state: which group, named by its first node's position, owns each node."""

    def __init__(self, graph: Graph, lanes: int) -> None:
        self.graph = graph
        self.facts = [facts_of(graph, node) for node in graph.nodes]
        self.position = {name: p for p, node in enumerate(graph.nodes) for name in node.outputs}
        self.readers: dict[str, list[int]] = {name: [] for name in graph.types}
        for p, node in enumerate(graph.nodes):
            for name in dict.fromkeys(node.inputs):
                self.readers[name].append(p)
        self.outputs = frozenset(graph.outputs)
        self.after = {graph.outputs[state.output] for state in graph.states.values()}
        self.owner: dict[int, int] = {}
        self.anchors: dict[int, Node | None] = {}
        joins = joins_in_place(graph, lanes)
        self.alone = joins | self._parts_in_place(joins, lanes)

    def _parts_in_place(self, joins: set[int], lanes: int) -> set[int]:
        """The positions of slices of computed tensors that no join needs elsewhere.

        Not those that are read by a step of a recurrent layer: its kernel sees by them which step it is.
        """
        copied = {name for p in joins for name in self.graph.nodes[p].inputs} | self.outputs
        return {
            p
            for p, node in enumerate(self.graph.nodes)
            if node.op == "slice" and node.inputs[0] in self.position and node.outputs[0] not in copied
            and contiguous_offset(self.graph, node, lanes) is not None
            and not any(OPERATORS[self.graph.nodes[r].op].traits.recurrent for r in self.readers[node.outputs[0]])
        }  # fmt: skip

    def grow(self, position: int, node: Node) -> None:
        """Makes a group around a node that no group owns yet."""
        facts = self.facts[position]
        members = {position}
        if (
            len(node.outputs) == 1
            and facts.kind not in ("opaque", "extern")
            and (facts.channels or not facts.alias)
            and position not in self.alone
        ):
            chain = self._continues_chain if facts.kind == "injective" else self._is_epilogue
            members, tail = self._epilogue(members, node.outputs[0], chain)
            if facts.kind == "complex" and not facts.pixels:
                members |= self._views_behind(tail, members)
                members = self._second_result(members, tail)
                members |= self._elementwise_beside(position, members, self.graph.types[tail].shape)
            elif facts.kind == "reduction":
                members |= self._prologue(position, members)
            elif facts.kind == "injective":
                members |= self._elementwise_before(members)
        if facts.kind == "complex":
            members |= self._widened_before(position, members)
        if facts.kind in ("complex", "opaque"):
            members |= self._views_before(position, members)
        self.owner.update(dict.fromkeys(members, position))
        self.anchors[position] = None if facts.kind == "injective" else node

    # --- behind the anchor ---

    def _epilogue(self, members: set[int], tail: str, accepts: Callable[[int, set[str]], bool]) -> tuple[set[int], str]:
        """The largest extension of ``members`` by readers of their results that again has a single result.

        Takes readers in one at a time, in topological order; between, several results may be open: x, erf(x) and
        1 + erf(x) on the way to x * (1 + erf(x)).
        """
        best, end = set(members), tail
        current, live = set(members), {tail}
        while len(current) - len(best) < LOOKAHEAD and self.outputs.isdisjoint(live):
            candidates = sorted({p for name in live for p in self.readers[name]} - current)
            inside = {name for p in current for name in self.graph.nodes[p].outputs}
            if not candidates or candidates[0] in self.owner or not accepts(candidates[0], inside):
                break
            taken = candidates[0]
            current.add(taken)
            if not self._is_small(current):
                break
            live = {name for name in inside.union(self.graph.nodes[taken].outputs) if self._needed(name, current)}
            if len(live) == 1 and self._is_worth_code(taken, current):
                best, (end,) = set(current), live
        return best, end

    def _second_result(self, members: set[int], tail: str) -> set[int]:
        """The members and the element-wise readers of their result, a matrix that is a state's next value as well.

        That is a velocity, from which a weight's next value is made: all that reads it is taken in, and has one result
        itself. So nothing outside waits for the first result, and no two groups can wait for each other. (Another
        output may be sent to a device from which comes what the second result is made of.)
        """
        if tail not in self.after or len(self.graph.types[tail].shape) != 2:
            return members
        current, live = set(members), {tail}
        while live == {tail} or self.outputs.isdisjoint(live - {tail}):
            candidates = sorted({p for name in live for p in self.readers[name]} - current)
            inside = {name for p in current for name in self.graph.nodes[p].outputs}
            if not candidates or candidates[0] in self.owner or not self._is_epilogue(candidates[0], inside):
                return members
            current.add(candidates[0])
            if not self._is_small(current):
                return members
            results = {name for p in current for name in self.graph.nodes[p].outputs}
            live = {name for name in results if self._needed(name, current)}
        closed = all(p in current for p in self.readers[tail])
        return current if closed and len(live) == 2 else members

    def _is_worth_code(self, last: int, members: set[int]) -> bool:
        """Whether a group that ends here should be a kernel. Not one that begins or ends with an alias, which needs
        none alone; but channels, which come in blocks, are split or joined best where others move them.
        """
        aliases = [p for p in (min(members), last) if self.facts[p].alias]
        moves = any(self.facts[p].view and not self.facts[p].alias for p in members)
        return not aliases or (moves and all(self.facts[p].channels for p in aliases))

    def _needed(self, name: str, members: set[int]) -> bool:
        """Whether anything outside ``members`` uses a tensor."""
        return name in self.outputs or any(p not in members for p in self.readers[name])

    def _is_epilogue(self, position: int, inside: set[str]) -> bool:
        """An element-wise node that reads the group's results at its own index, without broadcasting them."""
        node = self.graph.nodes[position]
        shape = self.graph.types[node.outputs[0]].shape
        own = all(self.graph.types[name].shape == shape for name in node.inputs if name in inside)
        return self.facts[position].elementwise and own and not self._waits(position, inside)

    def _continues_chain(self, position: int, inside: set[str]) -> bool:
        """An injective node that reads every element of the group's results at most once: nothing is recomputed."""
        node, facts = self.graph.nodes[position], self.facts[position]
        if facts.kind != "injective" or len(node.outputs) != 1 or position in self.alone:
            return False
        if self._waits(position, inside):
            return False
        return all(i in facts.once for i, name in enumerate(node.inputs) if name in inside)

    def _waits(self, position: int, inside: set[str]) -> bool:
        """Whether a node adds to a sum that the group makes: what comes later, and keeps what the group reads alive."""
        node = self.graph.nodes[position]
        return OPERATORS[node.op].traits.accumulates and node.inputs[0] in inside

    def _views_behind(self, tail: str, members: set[int]) -> set[int]:
        """The chain of views behind ``tail`` up to the last one that moves elements, if a store can follow its map."""
        taken: list[int] = []
        moving = 0
        while len(self.readers[tail]) == 1 and tail not in self.outputs:
            (p,) = self.readers[tail]
            if p in self.owner or not self.facts[p].bijection or not self._is_small({*members, *taken, p}):
                break
            taken.append(p)
            moving = moving if self.facts[p].alias else len(taken)
            tail = self.graph.nodes[p].outputs[0]
        chain = taken[:moving]
        return set(chain) if separable(self.graph, [self.graph.nodes[p] for p in chain]) else set()

    # --- in front of the anchor ---

    def _views_before(self, anchor: int, members: set[int]) -> set[int]:
        """Views (slices too) that only feed the node, up to the first of each chain that moves elements.

        Not in front of pixels if dimensions are split or joined, as in a shuffle of channels: these come in blocks.
        """
        taken: set[int] = set()
        operands = self.graph.nodes[anchor].inputs
        for name in operands[:1] if self.facts[anchor].pixels else operands:  # weights are packed in any case
            chain: list[int] = []
            moving = 0
            while (p := self._sole_producer(name, {*members, *taken, *chain})) is not None and self._is_moved(p):
                if not self._is_small({*members, *taken, *chain, p}):
                    break
                chain.append(p)
                moving = moving if self.facts[p].alias else len(chain)
                name = self.graph.nodes[p].inputs[0]
            ranks = {self._rank(p) for p in (anchor, *chain[:moving])}
            if not self.facts[anchor].pixels or len(ranks) == 1:
                taken.update(chain[:moving])
        return taken

    def _widened_before(self, anchor: int, members: set[int]) -> set[int]:
        """Element-wise nodes that only feed the chain behind the node and read fewer bytes than they write: a kernel
        that reads the narrow numbers, or those that are the same for all channels, needs no others in memory.
        """
        taken: set[int] = set()
        for name in [name for p in members if p != anchor for name in self.graph.nodes[p].inputs]:
            taken |= self._widened_chain(anchor, name, members | taken)
        return taken

    def _widened_chain(self, anchor: int, name: str, members: set[int]) -> set[int]:
        """The chain of element-wise nodes that alone make ``name`` of the fewest bytes."""
        wide, least = self.graph.types[name], self.graph.types[name].nbytes
        chain: list[int] = []
        taken: set[int] = set()
        while (p := self._sole_producer(name, {*members, *chain})) is not None and self.facts[p].elementwise:
            computed = [s for s in self.graph.nodes[p].inputs if s not in self.graph.constants]
            if len(computed) != 1 or not self._is_small({*members, *chain, p}):
                break
            chain.append(p)
            (name,) = computed
            narrow = self.graph.types[name]
            if narrow.nbytes < least and (narrow.shape == wide.shape or self.facts[anchor].pixels):
                least, taken = narrow.nbytes, {*chain}
        return taken

    def _is_moved(self, position: int) -> bool:
        """Whether a node is a view that needs code."""
        return self.facts[position].view and position not in self.alone

    def _rank(self, position: int) -> int:
        """Dimensions of a node's first operand."""
        return len(self.graph.types[self.graph.nodes[position].inputs[0]].shape)

    def _prologue(self, anchor: int, members: set[int]) -> set[int]:
        """Injective nodes that only feed what the reduction reduces, if a pass computes no element twice."""
        taken: set[int] = set()
        pending = [name for i, name in enumerate(self.graph.nodes[anchor].inputs) if i in self.facts[anchor].reduced]
        while pending:
            p = self._sole_producer(pending.pop(), members | taken)
            free = p is not None and self.facts[p].kind == "injective" and p not in self.alone
            if p is not None and free and self._is_small({*members, *taken, p}):
                taken.add(p)
                pending.extend(name for i, name in enumerate(self.graph.nodes[p].inputs) if i in self.facts[p].once)
        while leading := {p for p in taken if self.facts[p].alias and not self._reads_from(p, taken)}:
            taken -= leading  # a reshape in front saves nothing here, and costs nothing alone
        return taken

    def _elementwise_before(self, members: set[int]) -> set[int]:
        """Element-wise nodes that only feed members, and those that only feed them."""
        taken: set[int] = set()
        pending = [name for p in members for name in self.graph.nodes[p].inputs]
        while pending:
            p = self._sole_producer(pending.pop(), members | taken)
            if p is not None and self.facts[p].elementwise and self._is_small({*members, *taken, p}):
                taken.add(p)
                pending.extend(self.graph.nodes[p].inputs)
        return taken

    def _elementwise_beside(self, anchor: int, members: set[int], shape: tuple[int, ...]) -> set[int]:
        """Element-wise nodes, of the result's shape, that only feed what comes behind the anchor."""
        taken: set[int] = set()
        pending = [name for p in members - {anchor} for name in self.graph.nodes[p].inputs]
        while pending:
            p = self._sole_producer(pending.pop(), members | taken)
            if p is None or not self.facts[p].elementwise or p in self.alone:
                continue
            node = self.graph.nodes[p]
            if self.graph.types[node.outputs[0]].shape == shape and self._is_small({*members, *taken, p}):
                taken.add(p)
                pending.extend(node.inputs)
        return taken

    def _sole_producer(self, name: str, members: set[int]) -> int | None:
        """The position of the node that computes ``name`` for ``members`` alone and is still free."""
        p = self.position.get(name)
        if p is None or p in self.owner or p in members or len(self.graph.nodes[p].outputs) != 1:
            return None
        return None if self._needed(name, members) or self._is_total(name) else p

    def _is_total(self, name: str) -> bool:
        """Whether a node adds to a tensor, a sum so far."""
        return any(self._waits(p, {name}) for p in self.readers[name])

    def _is_small(self, members: set[int]) -> bool:
        """Whether the members are few, make expressions of bounded depth, and none is computed at many places.

        A value that is read at two places is computed twice, what it is made of four times if that is read so as well.
        """
        if len(members) <= FEW or len(members) > MOST_MEMBERS:
            return len(members) <= FEW
        places: dict[str, set[object]] = {}
        depth: dict[str, int] = {}
        for p in sorted(members, reverse=True):
            node, facts = self.graph.nodes[p], self.facts[p]
            own = set[object]().union(*(places.get(name, ()) for name in node.outputs)) or {None}
            below = facts.depth + max((depth.get(name, 0) for name in node.outputs), default=0)
            if len(own) > MOST_PLACES or below > MOST_DEPTH:
                return False
            for i, name in enumerate(node.inputs):
                at = own if i in facts.own else {(p, i, k, place) for k in range(facts.reads[i]) for place in own}
                places.setdefault(name, set()).update(at)
                depth[name] = max(depth.get(name, 0), below)
        return True

    def _reads_from(self, position: int, members: set[int]) -> bool:
        return any(self.position.get(name) in members for name in self.graph.nodes[position].inputs)

    # --- the result ---

    def groups(self) -> list[Group]:
        """All groups, ordered by their last node."""
        members: dict[int, list[int]] = {}
        for p in range(len(self.graph.nodes)):
            members.setdefault(self.owner[p], []).append(p)
        order = sorted(members, key=lambda first: members[first][-1])
        return [self.group(members[first], self.anchors[first]) for first in order]

    def group(self, members: Sequence[int], anchor: Node | None) -> Group:
        """The members as a group: what it reads and what it writes."""
        nodes = tuple(self.graph.nodes[p] for p in members)
        inside = {name for node in nodes for name in node.outputs}
        read = dict.fromkeys(name for node in nodes for name in node.inputs if name not in inside)
        extern = anchor is not None and self.facts[members[0]].kind == "extern"
        inputs = tuple(name for name in read if extern or not self._literal(name, members))
        written = (name for node in nodes for name in node.outputs)
        outputs = tuple(name for name in written if extern or self._needed(name, set(members)))
        if not outputs:  # nothing reads an output of a node with several: keep the kernel's signature
            outputs = nodes[-1].outputs
        alias = len(members) == 1 and self.facts[members[0]].alias
        return Group(nodes, inputs, outputs, anchor, alias)

    def _literal(self, name: str, members: Iterable[int]) -> bool:
        """Whether a tensor is a constant of one element that only injective nodes read."""
        if name not in self.graph.constants or self.graph.types[name].size != 1:
            return False
        readers = [p for p in members if name in self.graph.nodes[p].inputs]
        return all(self.facts[p].kind == "injective" for p in readers)
