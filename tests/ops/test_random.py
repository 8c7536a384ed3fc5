"""Dropout: a function of positions, seed and stream; the opaque generators are tested where models use them."""

from __future__ import annotations

import numpy as np

import burnish as bn
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import GraphBuilder


def kept(seed: int, stream: int = 0, rate: float = 0.5, shape: tuple[int, ...] = (100, 1000)) -> np.ndarray:
    b = GraphBuilder()
    y = b.add("dropout", b.input("x", shape), b.input("seed", (), "int64"), rate=rate, stream=stream)
    found = evaluate(b.build(y), {"x": np.ones(shape, "f4"), "seed": np.array(seed)})[y]
    assert set(np.unique(found)) <= {np.float32(0), np.float32(1 / (1 - rate))}
    return found != 0


def test_the_share_that_stays_is_what_it_should_be() -> None:
    for rate in (0.0, 0.1, 0.5, 0.9):
        share = kept(3, rate=rate).mean()
        assert abs(share - (1 - rate)) <= 5 * (rate * (1 - rate) / 1e5) ** 0.5  # five standard deviations


def test_masks_of_seeds_streams_and_places_are_independent() -> None:
    base = kept(7)
    assert np.array_equal(base, kept(7))
    others = [kept(8), kept(7, stream=1), kept(7 + 2**32), kept(0), np.roll(base, 1), np.roll(base, 1000)]
    others += [np.roll(kept(8), k) for k in (-1, 1)] + [np.roll(kept(7, stream=1), k) for k in (-1, 1)]
    for other in others:
        agree = (base == other).mean()
        assert abs(agree - 0.5) < 5 * 0.5 / 1e5**0.5
    assert abs(base.mean(0) - 0.5).max() < 6 * 0.05 and abs(base.mean(1) - 0.5).max() < 6 * 0.5 / 1000**0.5


def test_bits_are_equal_in_machine_code() -> None:
    b = GraphBuilder()
    x, seed = b.input("x", (5, 300)), b.input("seed", (), "int64")
    graph = b.build(b.add("dropout", b.add("relu", x), seed, rate=0.3, stream=4, name="y"))
    given = {"x": np.random.default_rng(0).normal(size=(5, 300)).astype("f4"), "seed": np.array(12345678901)}
    assert np.array_equal(bn.compile(graph, threads=1, rewrite=False)(**given), evaluate(graph, given)["y"])
