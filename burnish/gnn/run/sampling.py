"""Neighbour sampling (Hamilton et al. 2017): batches of vertices with a few random in-neighbours each, as small graphs.

All batches have the extents of the largest possible one, so that one compiled step takes them: what is left over is
edges of one more vertex, the last, which nothing else reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from burnish.base.arguments import check_count, refusal, typed
from burnish.base.jit import njit
from burnish.gnn.data.csr import NO_WEIGHTS
from burnish.gnn.data.edges import insert_self_loops, transpose
from burnish.gnn.data.graph import Graph, TakenRows
from burnish.gnn.model.models import FEATURES, LOOP, SCALE, Extents, Network, structure_names, weight_names
from burnish.gnn.run.feeds import LABEL, UNKNOWN, Batch, labels_of, loop_weights, scale_of

kernel = njit(cache=True, nogil=True, error_model="numpy")


@typed
@dataclass(frozen=True)
class Sampling:
    """``batch`` vertices at a time, with at most ``fanouts[k]`` in-neighbours of each vertex that is k edges away.

    ``seed``: of the batches and of the neighbours.
    """

    batch: int = 1024
    fanouts: tuple[int, ...] = (25, 10)
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        check_count("sampling: batch", self.batch, 1)
        check_count("sampling: seed", self.seed, 0)
        if not self.fanouts:
            raise refusal("sampling: fanouts", self.fanouts, "a number for each layer")
        for fanout in self.fanouts:
            check_count("sampling: fanouts", fanout, 1)

    @property
    def most_edges(self) -> int:
        """Edges of a batch, at most."""
        total, width = 0, self.batch
        for fanout in self.fanouts:
            width *= fanout
            total += width
        return total


@dataclass(eq=False)
class Sampled:
    """Batches of the vertices under a mask: a :class:`burnish.fitting.data.Source`. The same for the same seed."""

    network: Network
    graph: Graph
    sampling: Sampling
    mask: np.ndarray
    extents: Extents = field(init=False)

    def __post_init__(self) -> None:
        """Raises ParameterError if there are fewer layers of neighbours than the network has."""
        layers = len(self.network.layers)
        if len(self.sampling.fanouts) != layers:
            raise refusal("sampling: fanouts", self.sampling.fanouts, f"{layers} numbers, one for each layer")
        self._known = np.flatnonzero(self.mask).astype(np.int64)
        self._batch = min(self.sampling.batch, len(self._known))
        self._most = self.sampling.most_edges
        self._vertices = min(self._batch + self._most, self.graph.vertices) + 1
        plain = self.network.structures == ("plain",)
        self._csr = self.graph.csr if plain else self.graph.csr.without_self_loops()
        given = self._csr.weights
        self._loops = None if given is None or not self.network.scaled else loop_weights(self.graph.csr)
        self._labels = labels_of(self.graph, self.mask)
        self._place = np.full(self.graph.vertices, -1, np.int32)
        edges = {n: self._most + (self._vertices if n == "loops" else 0) for n in self.network.structures}
        self.extents = Extents(self._vertices, edges, weighted=given is not None)

    @property
    def batches(self) -> int:
        """Whole batches in an epoch."""
        return len(self._known) // self._batch

    def facts(self) -> dict[str, Any]:
        """Facts that batches follow from: number of vertices, batch, fanouts and seed."""
        s = self.sampling
        return {"vertices": len(self._known), "batch": s.batch, "fanouts": list(s.fanouts), "seed": s.seed}

    def random(self) -> dict[str, np.ndarray]:
        """None: batches follow from seed, epoch and place."""
        return {}

    def restore(self, found: Any) -> None:
        """Nothing is to be set."""

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch."""
        order = np.random.default_rng((self.sampling.seed, number)).permutation(self._known)
        for place in range(skip, self.batches):
            chosen = order[place * self._batch : (place + 1) * self._batch]
            yield self.sample(chosen, hash_of(self.sampling.seed, number, place))

    def sample(self, chosen: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """The small graph around vertices, by the names of a step's inputs."""
        vertices = np.empty(self._vertices - 1, np.int64)
        offsets = np.zeros(self._vertices + 1, np.int64)
        sources = np.full(self._most, self._vertices - 1, np.int32)
        given = NO_WEIGHTS if self._csr.weights is None else self._csr.weights
        weights = np.ones(self._most if self.extents.weighted else 0, np.float32)
        count = _sample(
            self._csr.offsets, self._csr.sources, given, chosen, np.array(self.sampling.fanouts, np.int64), seed,
            self._place, vertices, offsets, sources, weights,
        )  # fmt: skip
        vertices = vertices[:count]
        self._place[vertices] = -1
        found: dict[str, np.ndarray] = {FEATURES: self._features(vertices), LABEL: self._some_labels(chosen)}
        if self.network.scaled:
            found |= self._scales(offsets, weights, vertices)
        means = _means(offsets, weights)
        offsets[-1] = self._most
        for name in self.network.structures:
            ends, starts, own = _looped(offsets, sources, weights, means) if name == "loops" else (
                offsets, sources, weights
            )  # fmt: skip
            back_offsets, back = np.zeros(self._vertices + 1, np.int64), np.empty(len(starts), np.int32)
            back_weights = np.empty_like(own)
            transpose(ends, starts, own, back_offsets, back, back_weights)
            found |= zip(structure_names(name), (ends, starts, back_offsets, back), strict=True)
            found |= zip(weight_names(name), (own, back_weights) if self.extents.weighted else (), strict=False)
        return found

    def _scales(self, offsets: np.ndarray, weights: np.ndarray, vertices: np.ndarray) -> dict[str, np.ndarray]:
        """Scale by the edges in the sample and, of edges with weights, weights of the vertices' self loops."""
        if self._loops is None:
            return {SCALE: scale_of(np.diff(offsets))}
        loops = np.ones(self._vertices, np.float32)
        loops[: len(vertices)] = self._loops[vertices]
        return {SCALE: scale_of(_sums(offsets, weights), loops), LOOP: loops[:, None]}

    def _features(self, vertices: np.ndarray) -> np.ndarray:
        """Features of the vertices; zeros of those that are left over."""
        out = np.zeros((self._vertices, self.graph.width), np.float32)
        features = self.graph.features
        if isinstance(features, np.ndarray):
            np.take(features, vertices, axis=0, out=out[: len(vertices)], mode="clip")
        elif features is not None:
            TakenRows(features, vertices).read(0, len(vertices), out[: len(vertices)])
        return out

    def _some_labels(self, chosen: np.ndarray) -> np.ndarray:
        """Labels of the batch's vertices, which come first; none of the others."""
        out = np.full((self._vertices, *self._labels.shape[1:]), UNKNOWN, self._labels.dtype)
        out[: len(chosen)] = self._labels[chosen]
        return out


def hash_of(*numbers: int) -> int:
    """A seed of 63 bits from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sums(offsets: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Sums of the weights of the edges to each vertex."""
    before = np.concatenate([np.zeros(1), np.cumsum(weights, dtype=np.float64)])
    return np.diff(before[offsets])


def _means(offsets: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Means of the weights of the edges to each vertex, float32, 0 of none; nothing for edges without."""
    if not weights.size:
        return NO_WEIGHTS
    return (_sums(offsets, weights) / np.maximum(np.diff(offsets), 1)).astype(np.float32)


def _looped(
    offsets: np.ndarray, sources: np.ndarray, weights: np.ndarray, means: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """With one edge from each vertex to itself, in its place in the ascending row; of the weight ``means``, if any."""
    rows = len(offsets) - 1
    out, out_offsets = np.empty(len(sources) + rows, np.int32), np.zeros_like(offsets)
    out_weights = np.empty(len(out) if weights.size else 0, np.float32)
    insert_self_loops(offsets, sources, weights, np.zeros(rows, np.bool_), 0, means, out_offsets, out, out_weights)
    return out_offsets, out, out_weights


@kernel
def _sample(  # type: ignore[no-untyped-def]
    offsets, sources, weights, chosen, fanouts, seed, place, vertices, out_offsets, out, out_weights
):
    """Breadth first from ``chosen``: each vertex that is reached gets its sample of in-neighbours once.

    ``place``, -1 for all, gets the number of each vertex in the sample, ``vertices`` those in order; ``out_offsets``,
    ``out`` and ``out_weights``: the sample's rows, ascending. Returns how many vertices there are.
    """
    state = np.uint64(seed)
    count = chosen.shape[0]
    for i in range(count):
        place[chosen[i]] = i
        vertices[i] = chosen[i]
    begin, end, edges = 0, count, 0
    for hop in range(fanouts.shape[0]):
        fanout = fanouts[hop]
        picked = np.empty(fanout, np.int64)
        for i in range(begin, end):
            first = offsets[vertices[i]]
            degree = offsets[vertices[i] + 1] - first
            taken = min(degree, fanout)
            for k in range(taken):
                if degree <= fanout:
                    picked[k] = k
                    continue
                # Floyd's algorithm: taken different numbers below degree
                state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                last = degree - taken + k
                number = np.int64((state >> np.uint64(33)) % np.uint64(last + 1))
                for j in range(k):
                    if picked[j] == number:
                        number = last
                        break
                picked[k] = number
            row = edges
            for k in range(taken):
                u = sources[first + picked[k]]
                if place[u] < 0:
                    place[u] = count
                    vertices[count] = u
                    count += 1
                number = place[u]
                at = edges
                while at > row and out[at - 1] > number:
                    out[at] = out[at - 1]
                    if weights.size:
                        out_weights[at] = out_weights[at - 1]
                    at -= 1
                out[at] = number
                if weights.size:
                    out_weights[at] = weights[first + picked[k]]
                edges += 1
            out_offsets[i + 1] = edges
        begin, end = end, count
    for i in range(end, out_offsets.shape[0] - 1):
        out_offsets[i + 1] = edges
    for i in range(begin, end):
        out_offsets[i + 1] = edges
    return count
