"""Rounds on a device: repeated calls are made one after another, each with its own places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.graph import Graph, GraphBuilder
from burnish.machines.target import target
from burnish.runtime.executable import Repeat
from burnish.simulators.gpu.emulator import emulated


def running(steps: int, reverse: bool, width: int = 4) -> Graph:
    """Of the rows of x [T, width], scaled: the sums up to every round, the product of all, and each."""
    b = GraphBuilder()
    x, factor = b.input("x", (steps, width)), b.input("factor", (width,))
    zero, one = b.constant(np.zeros(width, np.float32)), b.constant(np.ones(width, np.float32))
    body = (
        (
            ("mul", ("2", "3"), ("part",), ()),
            ("add", ("0", "part"), ("sum",), ()),
            ("mul", ("1", "part"), ("all",), ()),
        ),
        ("sum", "all", "part"),
    )
    found = b.add_many("scan", zero, one, x, factor, body=body, states=2, sequences=1, every=(0, 2), reverse=reverse)
    return b.build(*found)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [1, 4, 5])
def test_rounds_are_those_of_a_cpu(steps: int, reverse: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(steps)
    x, factor = rng.random((steps, 4), np.float32) + 0.5, rng.random(4, np.float32) + 0.5
    graph = running(steps, reverse)
    module = bn.compile(graph, target=emulated(target("cuda:sm_80")), cache_dir=tmp_path)
    assert any(isinstance(step, Repeat) for step in module.executable.steps)
    for found, wanted in zip(module(x, factor), bn.compile(graph, cache_dir=tmp_path)(x, factor), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
