"""Algorithms of convolutions measured where predictions are close: choices, their cache, and what is refused."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.driver import measured
from burnish.driver.measured import MeasuredChoice, contenders
from burnish.graph.algorithms import alternatives
from burnish.graph.estimates import Estimate, label_of
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import host
from burnish.pipeline.plan import DEFAULTS
from burnish.runtime.callable import ProfileRow
from burnish.runtime.executable import Executable
from burnish.runtime.module import Module


def layer(channels: int = 32) -> Graph:
    random = np.random.default_rng(0)
    b = GraphBuilder()
    weight = b.constant(random.standard_normal((channels, channels, 3, 3), np.float32))
    y = b.add("conv2d", b.input("x", (1, channels, 12, 12)), weight, pads=(1, 1, 1, 1))
    return b.build(b.add("relu", y))


@pytest.fixture(autouse=True)
def all_are_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "CLOSE", 1e9)


def test_contenders_are_those_close_to_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "CLOSE", 1.5)
    found = [Estimate(name, {}, seconds) for name, seconds in (("a", 1.6), ("b", 1.0), ("c", 1.5), ("d", 9.0))]
    assert [e.op for e in contenders(found)] == ["b", "c"]


def test_the_fastest_contender_is_chosen_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is said to be fastest, its kernel alone ran; another process finds that in the cache."""
    graph = layer()
    node, target = graph.nodes[0], host()
    found = alternatives(graph, node, target)
    close = contenders(found)
    assert len(close) > 1
    for wanted in close:
        made: list[Timed] = []
        monkeypatch.setattr(measured, "Module", partial(Timed, made, close.index(wanted)))
        folder = tmp_path / label_of(wanted)
        for _ in range(2):
            assert MeasuredChoice(DEFAULTS, target, 1, folder)(graph, node, found) is wanted
            assert len(made) == len(close)  # in the second round nothing was timed again


class Timed:
    """A module of which that number ``fastest`` of all that are ``made`` takes the least time."""

    def __init__(self, made: list[Any], fastest: int, executable: Executable, threads: int) -> None:
        self._module, self._seconds = Module(executable, threads), 1.0 if len(made) == fastest else 2.0
        self.inputs = self._module.inputs
        made.append(self)

    def profile(self, value: np.ndarray, repeat: int) -> list[ProfileRow]:
        """One kernel, which runs."""
        assert len(self._module.profile(value, repeat=1)) == 1
        return [ProfileRow("", "", self._seconds, 1.0)]


def test_after_its_seconds_layers_are_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "MOST_SECONDS", -1.0)
    monkeypatch.setattr(measured, "Module", None)
    graph = layer()
    found = alternatives(graph, graph.nodes[0], host())
    assert MeasuredChoice(DEFAULTS, host(), 1, tmp_path)(graph, graph.nodes[0], found) is contenders(found)[0]


def test_models_are_right_by_measured_algorithms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).standard_normal((1, 32, 12, 12), np.float32)
    wanted = bn.compile(layer(), exact=True, cache_dir=tmp_path)(x)
    monkeypatch.setenv("BURNISH_CHOOSE", "measured")
    np.testing.assert_allclose(bn.compile(layer(), cache_dir=tmp_path)(x), wanted, rtol=1e-3, atol=1e-3)


def test_other_words_and_other_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(bn.errors.ParameterError, match="choose: found 'fast'; allowed: 'predicted' or 'measured'"):
        bn.compile(layer(), choose="fast")
    with pytest.raises(bn.errors.ParameterError, match="choose"):
        bn.compile(layer(), choose="measured", target="aarch64-cortex-a53")
    monkeypatch.setenv("BURNISH_CHOOSE", "guess")
    with pytest.raises(bn.errors.ParameterError, match="BURNISH_CHOOSE: found 'guess'"):
        bn.compile(layer())
