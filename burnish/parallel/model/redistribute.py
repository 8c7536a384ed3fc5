"""Redistribution of tensors between devices: what tasks have computed goes to those that read it, summed on the way.

A tensor is a list of (device, box, term). A move sends every intersection of these with the boxes that are wanted,
all of one pair of devices in one message, and adds up terms in their order, so that devices that want the same get the
same bits. Sums of three devices or more that all of them want are an all-reduce in two rounds: each adds up a part of
what lies in a bucket, and sends it to the others.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from burnish.graph.graph import GraphBuilder
from burnish.ops.part import Box, extents_of, whole
from burnish.parallel.model.placement import inside, meet, size, within

SMALL = 16384  # bytes of an all-reduce below which everyone sends everything to everyone: half the latency


@dataclass(frozen=True)
class Piece:
    """Computed piece on a device: a box of a tensor, or a term of it, under a name of its graph."""

    device: int
    box: Box
    term: int
    name: str


@dataclass(frozen=True)
class TensorTransfer:
    """A tensor of a device's graph that goes to another, or comes from it: the graph's output or input ``tensor``."""

    tensor: str
    peer: int
    tag: int


@dataclass(frozen=True)
class Wish:
    """Redistribution request for a tensor: its pieces, the number of their terms, and the boxes wanted, by device."""

    name: str
    pieces: tuple[Piece, ...]
    terms: int
    wanted: tuple[tuple[int, Box], ...]


@dataclass(eq=False)
class DeviceGraphs:
    """The graphs of all devices under construction, and the messages between them."""

    builders: Sequence[GraphBuilder]
    sends: list[list[TensorTransfer]] = field(default_factory=list)
    receipts: list[list[TensorTransfer]] = field(default_factory=list)
    _tags: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.sends = [[] for _ in self.builders]
        self.receipts = [[] for _ in self.builders]

    def cut(self, device: int, name: str, box: Box) -> str:
        """A box of a device's tensor, counted from its begin."""
        b = self.builders[device]
        if box == whole(b.types[name].shape):
            return name
        return b.add("slice", name, starts=tuple(start for start, _ in box), extents=extents_of(box))

    def send(self, source: int, target: int, names: Sequence[str]) -> str:
        """Sends tensors of one dtype to another device in one message; its name there, see :meth:`unpack`."""
        a, b = self.builders[source], self.builders[target]
        tag = next(self._tags)
        sent = names[0] if len(names) == 1 else a.add("concat", *[flat(a, name) for name in names], axis=0)
        self.sends[source].append(TensorTransfer(sent, target, tag))
        t = a.types[sent]
        received = b.input(b.fresh(f"message.{tag}"), t.shape, t.dtype)
        self.receipts[target].append(TensorTransfer(received, source, tag))
        return received

    def unpack(self, target: int, received: str, shapes: Sequence[tuple[int, ...]]) -> list[str]:
        """The tensors of these shapes that a message holds."""
        return [received] if len(shapes) == 1 else apart(self.builders[target], received, shapes)


def flat(b: GraphBuilder, name: str) -> str:
    """A tensor as a vector."""
    shape = b.types[name].shape
    return name if len(shape) == 1 else b.add("reshape", name, shape=(prod(shape),))


def apart(b: GraphBuilder, name: str, shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """The tensors of these shapes that lie in a vector one after the other."""
    ends = [0, *itertools.accumulate(prod(shape) for shape in shapes)]
    found = []
    for shape, start in zip(shapes, ends, strict=False):
        cut = b.add("slice", name, starts=(start,), extents=(prod(shape),)) if len(shapes) > 1 else name
        found.append(cut if len(shape) == 1 else b.add("reshape", cut, shape=shape))
    return found


def move(network: DeviceGraphs, wishes: Sequence[Wish]) -> dict[tuple[str, int, Box], str]:
    """Brings tensors where they are wanted: by tensor, device and box the names there."""
    found: dict[tuple[str, int, Box], str] = {}
    groups: dict[tuple[tuple[int, ...], str], list[tuple[Wish, Box]]] = defaultdict(list)
    rest = []
    for wish in wishes:
        shared = _shared_sums(network, wish)
        for devices, box in shared:
            dtype = network.builders[devices[0]].types[wish.pieces[0].name].dtype
            groups[devices, dtype].append((wish, box))
        done = {(device, box) for devices, box in shared for device in devices}
        rest.append(Wish(wish.name, wish.pieces, wish.terms, tuple(w for w in wish.wanted if w not in done)))
    for (devices, _), members in groups.items():
        found |= _all_reduce(network, devices, members)
    return found | _exchange(network, rest)


# --- direct exchange --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """The part of a piece that lies in a box that is wanted."""

    piece: Piece
    box: Box


def _exchange(network: DeviceGraphs, wishes: Sequence[Wish]) -> dict[tuple[str, int, Box], str]:
    """Every intersection is sent to who wants it."""
    blocks: dict[tuple[str, int, Box], list[_Block]] = {}
    mail: dict[tuple[int, int, str], dict[_Block, None]] = defaultdict(dict)
    for wish in wishes:
        for device, box in wish.wanted:
            mine = _blocks(wish, device, box)
            blocks[wish.name, device, box] = mine
            for block in mine:
                source = block.piece.device
                if source != device:
                    dtype = network.builders[source].types[block.piece.name].dtype
                    mail[source, device, dtype][block] = None
    local: dict[tuple[int, _Block], str] = {}
    arriving = []
    for (source, target, _), sent in mail.items():  # all are under way before any is waited for
        names = [network.cut(source, b.piece.name, inside(b.box, b.piece.box)) for b in sent]
        arriving.append((target, network.send(source, target, names), sent))
    for target, message, sent in arriving:
        names = network.unpack(target, message, [extents_of(block.box) for block in sent])
        local |= {(target, block): name for block, name in zip(sent, names, strict=True)}
    found = {}
    for (name, device, box), mine in blocks.items():
        parts = []
        for block in mine:
            if (device, block) not in local:
                local[device, block] = network.cut(device, block.piece.name, inside(block.box, block.piece.box))
            parts.append((block, local[device, block]))
        found[name, device, box] = _assembled(network.builders[device], parts)
    return found


def _blocks(wish: Wish, device: int, box: Box) -> list[_Block]:
    """Source blocks of a box: the device's own piece if it has all of its elements, else every piece's part."""
    if wish.terms == 1:
        own = [p for p in wish.pieces if p.device == device and within(box, p.box)]
        if own:
            return [_Block(own[0], box)]
    met = ((piece, meet(piece.box, box)) for piece in wish.pieces)
    return [_Block(piece, shared) for piece, shared in met if shared is not None]


def _assembled(b: GraphBuilder, parts: Sequence[tuple[_Block, str]]) -> str:
    """Blocks put together, and terms added up in their order."""
    terms: dict[int, list[tuple[Box, str]]] = defaultdict(list)
    for block, name in parts:
        terms[block.piece.term].append((block.box, name))
    total = ""
    for term in sorted(terms):
        value = _joined(b, terms[term], 0)
        total = b.add("add", total, value) if total else value
    return total


def _joined(b: GraphBuilder, blocks: Sequence[tuple[Box, str]], dim: int) -> str:
    """The blocks of a grid as one tensor."""
    if len(blocks) == 1:
        return blocks[0][1]
    rows: dict[tuple[int, int], list[tuple[Box, str]]] = defaultdict(list)
    for box, name in blocks:
        rows[box[dim]].append((box, name))
    joined = [_joined(b, rows[row], dim + 1) for row in sorted(rows)]
    return joined[0] if len(joined) == 1 else b.add("concat", *joined, axis=dim)


# --- all-reduce -------------------------------------------------------------------------------------------------------


def _shared_sums(network: DeviceGraphs, wish: Wish) -> list[tuple[tuple[int, ...], Box]]:
    """The boxes of a tensor whose terms are those of three devices or more, all of which want the sum."""
    if wish.terms < 3:
        return []
    boxes: Mapping[Box, list[Piece]] = defaultdict(list)
    for piece in wish.pieces:
        boxes[piece.box].append(piece)
    found = []
    for box, pieces in boxes.items():
        devices = tuple(p.device for p in sorted(pieces, key=lambda p: p.term))
        wanting = {device for device, wanted in wish.wanted if wanted == box}
        if len(devices) == len({*devices}) == wish.terms and wanting == {*devices}:
            found.append((devices, box))
    return found


def _all_reduce(
    network: DeviceGraphs, devices: tuple[int, ...], members: Sequence[tuple[Wish, Box]]
) -> dict[tuple[str, int, Box], str]:
    """Sums of what each device has a term of, as a reduce-scatter and an all-gather of all of them in one bucket."""
    b = network.builders
    names: dict[int, list[str]] = {device: [] for device in devices}
    for wish, box in members:
        for piece in wish.pieces:
            if piece.box == box:
                names[piece.device].append(piece.name)
    item = b[devices[0]].types[names[devices[0]][0]]
    total = sum(size(box) for _, box in members)
    if total * (item.nbytes // max(item.size, 1)) <= SMALL or total < len(devices):
        wishes = [Wish(w.name, tuple(p for p in w.pieces if p.box == box), w.terms, tuple((d, box) for d in devices))
                  for w, box in members]  # fmt: skip
        return _exchange(network, wishes)
    bucket = {d: flat(b[d], names[d][0]) if len(names[d]) == 1 else
              b[d].add("concat", *[flat(b[d], name) for name in names[d]], axis=0) for d in devices}  # fmt: skip
    edges = [total * k // len(devices) for k in range(len(devices) + 1)]
    parts = [(pair,) for pair in itertools.pairwise(edges)]
    terms = {(d, to): network.cut(d, bucket[d], part) for to, part in zip(devices, parts, strict=True) for d in devices}
    for source, target in itertools.permutations(devices, 2):
        terms[source, target] = network.send(source, target, [terms[source, target]])
    sums = {}
    for target in devices:
        value = terms[devices[0], target]
        for source in devices[1:]:
            value = b[target].add("add", value, terms[source, target])
        sums[target, target] = value
    for source, target in itertools.permutations(devices, 2):
        sums[source, target] = network.send(source, target, [sums[source, source]])
    found = {}
    for device in devices:
        joined = b[device].add("concat", *[sums[source, device] for source in devices], axis=0)
        shapes = [extents_of(box) for _, box in members]
        for (wish, box), name in zip(members, apart(b[device], joined, shapes), strict=True):
            found[wish.name, device, box] = name
    return found
