"""Graph partitioner of ROC (§4.4): contiguous ranges of equal predicted time, by cost models learned in training."""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.arguments import typed
from burnish.base.files import write_atomic
from burnish.errors import DataError, ParameterError
from burnish.gnn.data.cost import FEATURES, SUMMED, FeatureSums, Floats, LayerCostModel
from burnish.gnn.data.csr import CSR, integers

Cuts = NDArray[np.int64]
Cost = Callable[[int, int], float]  # of the vertices from one number to another
CLOSE = 1.0005  # times the least possible cost of the dearest range
LEAST_GAIN = 0.02  # of the slowest worker's time: less is within what two measurements differ by


@dataclass(frozen=True, eq=False)
class Graphs:
    """Feature sums of one graph for every layer of a model: what a partitioner asks of a graph."""

    layers: tuple[FeatureSums, ...]

    @property
    def vertices(self) -> int:
        """V."""
        return self.layers[0].vertices


@dataclass(frozen=True, eq=False)
class LayerSeconds:
    """Seconds that the layers took on the ranges between cuts: (layers, ranges)."""

    cuts: Cuts
    seconds: Floats

    @property
    def workers(self) -> Floats:
        """Seconds of each worker, all layers together."""
        return self.seconds.sum(axis=0)

    @property
    def balance(self) -> float:
        """Mean over slowest worker: 1 is perfect."""
        return float(self.workers.mean() / self.workers.max())


@dataclass(frozen=True, eq=False)
class Move:
    """New cuts and what they promise: the slowest worker's seconds before and after, and whether to move."""

    cuts: Cuts
    before: float
    after: float
    pays: bool


@typed
@dataclass(frozen=True)
class Partitioner:
    """One cost model a layer, and what follows: immutable, ``learned`` gives the next one.

    widths: features of each neighbour that the layers read, d_in. What is learned on one graph partitions others.
    """

    widths: tuple[int, ...]
    models: tuple[LayerCostModel, ...] = ()

    def __post_init__(self) -> None:
        """Raises ParameterError for no layers, or models of others."""
        if not self.widths or min(self.widths) < 1:
            raise ParameterError(f"partitioner: found widths {self.widths}; allowed: one of 1 or more for each layer")
        if not self.models:
            object.__setattr__(self, "models", tuple(LayerCostModel() for _ in self.widths))
        if len(self.models) != len(self.widths):
            raise ParameterError(f"partitioner: found {len(self.models)} models; allowed: {len(self.widths)}")

    def features(self, csr: CSR) -> Graphs:
        """The feature sums of a graph, O(E) for each width, once."""
        made = {width: FeatureSums.of(csr, width) for width in dict.fromkeys(self.widths)}
        return Graphs(tuple(made[width] for width in self.widths))

    def save(self, path: str | Path) -> None:
        """Writes the partitioner to a file, JSON. Raises OSError."""
        write_atomic(Path(path), [json.dumps(self.to_json()).encode() + b"\n"])

    @classmethod
    def load(cls, path: str | Path) -> Partitioner:
        """The partitioner of a file. Raises DataError, which names the file; OSError."""
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except (ValueError, DataError) as error:
            raise DataError(f"'{path}': {error}") from None

    @property
    def ready(self) -> bool:
        """Whether anything was learned."""
        return all(model.weights is not None for model in self.models)

    def learned(self, graph: Graphs, measured: LayerSeconds) -> Partitioner:
        """Also fitted to these N × P measurements. Raises DataError for other shapes, or times that are none."""
        cuts = checked_cuts(measured.cuts, graph.vertices)
        if measured.seconds.shape != (len(self.widths), len(cuts) - 1):
            raise DataError(
                f"partitioner: found seconds of shape {measured.seconds.shape}; allowed: "
                f"({len(self.widths)}, {len(cuts) - 1}), layers and ranges"
            )
        models = tuple(
            model.learned(layer.between(cuts), seconds)
            for model, layer, seconds in zip(self.models, graph.layers, measured.seconds, strict=True)
        )
        return replace(self, models=models)

    def predict(self, graph: Graphs, cuts: Cuts) -> Floats:
        """Seconds of the layers on ranges, (layers, ranges)."""
        pairs = zip(self.models, graph.layers, strict=True)
        return np.array([model.predict(layer.between(cuts)) for model, layer in pairs])

    def cuts(self, graph: Graphs, parts: int, near: LayerSeconds | None = None) -> Cuts:
        """Ranges whose slowest is predicted to be as fast as can be, (parts + 1,): some 20 times O(parts · log V).

        near: a measurement of this very graph; within each of its ranges predictions are scaled to what was measured.
        Raises ParameterError before anything was learned.
        """
        return level(self._cost(graph, near), graph.vertices, parts)

    def move(self, graph: Graphs, now: LayerSeconds, epochs: int, seconds: float) -> Move:
        """New cuts for a graph in training, and whether they pay: ``seconds`` to move, ``epochs`` that are left.

        They do if the slowest worker gains more in these epochs, and more than two measurements differ by.
        """
        cuts = self.cuts(graph, len(now.cuts) - 1, now)
        cost = self._cost(graph, now)
        after = max(cost(int(begin), int(end)) for begin, end in itertools.pairwise(cuts))
        before = float(now.workers.max())
        gain = before - after
        return Move(cuts, before, float(after), gain > LEAST_GAIN * before and gain * epochs > seconds)

    def _cost(self, graph: Graphs, near: LayerSeconds | None) -> Cost:
        """Predicted seconds of a range, all layers; of each that ``near`` has, what was measured.

        What was predicted wrongly is held to be wrong by a factor of what vertices add, the same within each range.
        """
        weights = [model.full_weights() for model in self.models]
        pairs = [(layer.sums, w[: len(SUMMED)]) for layer, w in zip(graph.layers, weights, strict=True)]
        rows = sum(float(w[-1]) for w in weights)

        def added(v: int) -> float:
            return float(sum(s[v] @ w for s, w in pairs))

        def other(begin: int, end: int) -> float:
            return rows * graph.layers[0].rows(begin, end)

        sums = added if near is None else _scaled(added, other, near)
        return lambda begin, end: sums(end) - sums(begin) + other(begin, end)

    def to_json(self) -> dict[str, Any]:
        """Plain lists from which `from_json` makes the partitioner again."""
        return {"widths": list(self.widths), "models": [model.to_json() for model in self.models]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Partitioner:
        """The partitioner that `to_json` has written. Raises DataError."""
        try:
            widths, models = tuple(int(width) for width in document["widths"]), document["models"]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"partitioner: found a file that cannot be read: {error!r}") from None
        return cls(widths, tuple(LayerCostModel.from_json(model) for model in models))


@typed
def equal_vertices(vertices: int, parts: int) -> Cuts:
    """Ranges of as many vertices, (parts + 1,): a baseline."""
    check_parts(parts)
    return np.array([vertices * part // parts for part in range(parts + 1)], np.int64)


@typed
def equal_edges(csr: CSR, parts: int) -> Cuts:
    """Ranges of as many in-edges, (parts + 1,): a baseline, and what to begin with."""
    return balanced(lambda v: float(csr.offsets[v]), csr.rows, parts)


def balanced(cost: Callable[[int], float], vertices: int, parts: int) -> Cuts:
    """Cuts between which a cost that never falls grows by equal shares; each is the nearer of two vertices."""
    check_parts(parts)
    total = cost(vertices)
    cuts = [0]
    for part in range(1, parts):
        share = total * part / parts
        v = bisect_left(range(vertices + 1), share, key=cost)
        if v > cuts[-1] and share - cost(v - 1) < cost(v) - share:
            v -= 1
        cuts.append(max(cuts[-1], v))
    return np.array([*cuts, vertices], np.int64)


def checked_cuts(cuts: Any, vertices: int) -> Cuts:
    """Cuts of all vertices into ranges, which may be empty. Raises DataError."""
    found = integers("cuts", cuts, np.int64)
    if len(found) < 2 or found[0] != 0 or found[-1] != vertices or (np.diff(found) < 0).any():
        raise DataError(f"partition: cuts: found {found.tolist()[:20]}; allowed: 0 to {vertices}, ascending")
    return found


def level(cost: Cost, vertices: int, parts: int) -> Cuts:
    """Cuts into ranges of which none costs much more than the least possible for the dearest, ``CLOSE`` times.

    cost: of the vertices begin … end - 1; does not fall where a range grows. Ranges take as many vertices as a limit
    allows, one after another; the limit is bisected.
    """
    check_parts(parts)

    def within(limit: float) -> list[int] | None:
        cuts = [0]
        while cuts[-1] < vertices and len(cuts) <= parts:
            begin = cuts[-1]
            past = bisect_left(range(begin + 1, vertices + 1), True, key=lambda end: cost(begin, end) > limit)
            cuts.append(begin + past)
            if not past:
                return None
        return cuts + [vertices] * (parts + 1 - len(cuts)) if cuts[-1] == vertices else None

    highest = cost(0, vertices)
    lowest, best = 0.0, [0, *[vertices] * parts]
    while highest - lowest > (CLOSE - 1) * highest:
        middle = (lowest + highest) / 2
        found = within(middle)
        lowest, highest = (middle, highest) if found is None else (lowest, middle)
        best = best if found is None else found
    return np.array(best, np.int64)


def occupied(cuts: Cuts, least: int) -> Cuts:
    """Cuts moved until every range has ``least`` vertices or more, of a graph with enough for all ranges."""
    steps = least * np.arange(len(cuts))
    later = np.maximum.accumulate(cuts - steps) + steps
    return np.minimum(later, cuts[-1] - steps[::-1])


def check_parts(parts: int) -> None:
    """Raises ParameterError for no parts."""
    if isinstance(parts, bool) or parts < 1:
        raise ParameterError(f"partition: found {parts} parts; allowed: 1 or more")


def learn(
    partitioner: Partitioner, graph: Graphs, measure: Callable[[Cuts], Floats], starts: Sequence[Cuts], rounds: int,
    pieces: int = 1,
) -> tuple[Partitioner, LayerSeconds]:  # fmt: skip
    """Learns from measurements of the starts, then of its own cuts, ``rounds`` times; the best measurement, too.

    What seems better than the best so far is taken if that is slower once more: a machine's speed changes meanwhile.

    measure: seconds (layers, ranges) of the ranges between cuts, as training iterations give them. All starts have as
    many ranges. pieces: of equal edges in each range of the starts, which are measured, too: more points for the model.
    """
    best: LayerSeconds | None = None
    for turn in range(len(starts) + rounds):
        cuts = starts[turn] if turn < len(starts) else partitioner.cuts(graph, len(starts[0]) - 1, best)
        found = LayerSeconds(cuts, measure(cuts))
        partitioner = partitioner.learned(graph, found)
        if pieces > 1 and turn < len(starts):
            fine = pieces_of(graph, cuts, pieces)
            partitioner = partitioner.learned(graph, LayerSeconds(fine, measure(fine)))
        if best is not None and found.workers.max() < best.workers.max():
            best = LayerSeconds(best.cuts, np.minimum(best.seconds, measure(best.cuts)))
        if best is None or found.workers.max() < best.workers.max():
            best = found
    if best is None:
        raise ParameterError("learn: found nothing to measure; allowed: a start or a round")
    return partitioner, best


def pieces_of(graph: Graphs, cuts: Cuts, pieces: int) -> Cuts:
    """Cuts of each range into pieces of equal in-edges, (ranges * pieces + 1,)."""
    check_parts(pieces)
    edges = graph.layers[0].sums[:, FEATURES.index("neighbours")]
    found = [np.zeros(1, np.int64)]
    for begin, end in itertools.pairwise(int(v) for v in cuts):
        own = edges[begin : end + 1] - edges[begin]
        found.append(begin + balanced(partial(_element, own), end - begin, pieces)[1:])
    return np.concatenate(found)


def _element(array: Floats, v: int) -> float:
    return float(array[v])


def _scaled(added: Callable[[int], float], other: Cost, near: LayerSeconds) -> Callable[[int], float]:
    """Scaled added cost of vertices: in each measured range, with ``other``, its seconds, or a tenth at least.

    A range to which nothing was predicted to be added stays as it is.
    """
    cuts = near.cuts.tolist()
    ends = [added(v) for v in cuts]
    ratios, before = [], [0.0]
    for r, (begin, end) in enumerate(itertools.pairwise(cuts)):
        predicted = ends[r + 1] - ends[r]
        left = max(float(near.workers[r]) - other(begin, end), 0.1 * predicted)
        ratios.append(left / predicted if predicted > 0 else 1.0)
        before.append(before[-1] + predicted * ratios[-1])

    def scaled(v: int) -> float:
        r = min(max(bisect_left(cuts, v) - 1, 0), len(ratios) - 1)
        return before[r] + (added(v) - ends[r]) * ratios[r]

    return scaled
