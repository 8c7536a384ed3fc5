"""Rates: declared ones are data and the same everywhere; measured ones are asked for by name, rounded and kept."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from math import log2
from pathlib import Path

import pytest

from burnish.base.cache import ObjectCache
from burnish.errors import TargetError
from burnish.machines import measure
from burnish.machines.known import MACHINES
from burnish.machines.machine import Rates
from burnish.machines.target import RATES_VARIABLE, host, target


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    return tmp_path


def test_declared_rates_are_those_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RATES_VARIABLE, raising=False)
    wide = target("x86-64-v4")
    assert wide.rates is None
    assert (wide.flops, wide.cache_bandwidth, wide.memory_bandwidth) == (2 * 64 * 3.3e9, 2 * 19e9, 2 * 15e9)
    tiled = replace(wide, features=wide.features | {"amx-bf16"})
    assert (wide.matrix_flops, tiled.matrix_flops) == (0.0, 2 * 3.0e12)
    assert tiled.unit and (tiled.unit.name, wide.unit) == ("amx", None)
    for machine in MACHINES:
        for core in (machine.core, *machine.cores.values()):
            assert min(core.clock, core.cache_bandwidth, core.memory_bandwidth) > 0


def test_given_rates_replace_declared_ones() -> None:
    own = target("x86-64-v4", rates=Rates(1e11, 2e10, 1e10))
    assert (own.flops, own.cache_bandwidth, own.memory_bandwidth) == (2e11, 4e10, 2e10)
    assert target("x86-64-v4,-avx512", rates=Rates(1e11, 2e10, 1e10)).flops == 2e11


def test_measured_rates_are_kept_and_rounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "REPEATS", 1)
    monkeypatch.setattr(measure, "SECONDS", 1e-4)
    monkeypatch.setattr(measure, "MEMORY_BYTES", 1 << 20)
    measure._measure.cache_clear()
    own = target("cpu", rates="measured").rates
    measure._measure.cache_clear()
    assert own is not None and min(astuple(own)[:3]) > 0
    assert (own.matrix_flops > 0) == (host().unit is not None)
    for rate in astuple(own):
        assert rate == 0 or (log2(rate) * measure.STEPS_PER_OCTAVE).is_integer()
    assert folder.exists() and len(ObjectCache().entries()) == 1
    here = host()
    key = measure.rates_key(here.triple, here.cpu, here.feature_string, here.vector_bytes, here.l2_bytes)
    assert tuple(json.loads(ObjectCache().get(key) or b"")) == astuple(own)
    ObjectCache().put(key, json.dumps([1e11, 2e10, 1e10, 0.0]).encode())
    assert target("cpu", rates="measured").flops == host().cores * 1e11, "it is read, not measured again"


@pytest.mark.parametrize("text", ["", "{}", "[1e11, 2e10]", "[1e11, 2e10, NaN, 0.0]", "[0.0, 1.0, 1.0, 1.0]", '["a"]'])
def test_an_entry_that_says_something_else_is_measured_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    good = Rates(1e11, 2e10, 1e10)
    monkeypatch.setattr(measure, "_measure", lambda *machine: (good, True))
    machine = ("x86_64-unknown-linux-gnu", "mine", "+avx2", 32, 1 << 20)
    ObjectCache().put(measure.rates_key(*machine), text.encode())
    assert measure.measured_rates(*machine, None) == good
    assert tuple(json.loads(ObjectCache().get(measure.rates_key(*machine)) or b"")) == astuple(good)


def test_rates_of_a_busy_machine_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, good = ("x86_64-unknown-linux-gnu", "mine", "+avx2", 32, 1 << 20), Rates(1e11, 2e10, 1e10)
    monkeypatch.setattr(measure, "_measure", lambda *machine: (good, False))
    assert measure.measured_rates(*machine, None) == good
    assert ObjectCache().get(measure.rates_key(*machine)) is None


def test_repetitions_take_turns_and_the_fastest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    spans = {"a": [1.0, 4.0, 2.0], "b": [3.0, 3.0, 3.0]}

    class Clocked(measure._Probe):
        def seconds(self, count: int) -> float:
            name = self.run(0)
            asked.append(str(name))
            return spans[str(name)][asked.count(str(name)) - 2] if asked.count(str(name)) > 1 else 1.0

    monkeypatch.setattr(measure, "REPEATS", 3)
    rates, steady = measure._rates([Clocked(lambda n: "a", 2.0), Clocked(lambda n: "b", 6.0)])
    assert (rates, steady) == ([2.0, 2.0], False), "the median of the first is half as fast as its best"
    assert "".join(asked) == "ab" + "ab" * 3


def test_the_environment_chooses_and_named_targets_keep_declared_rates(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("burnish.machines.target.measured_rates", lambda *machine: Rates(1e11, 2e10, 1e10))
    monkeypatch.setenv(RATES_VARIABLE, "measured")
    assert target("cpu").flops == host().cores * 1e11
    assert target("x86-64-v4").rates is None
    assert target("cpu", rates="declared").rates is None
    with pytest.raises(TargetError, match="rates are measured on this machine, for the target 'cpu' alone"):
        target("x86-64-v4", rates="measured")
    monkeypatch.setenv(RATES_VARIABLE, "guessed")
    with pytest.raises(TargetError, match="rates are 'guessed'; allowed: declared, measured, or Rates"):
        target("cpu")


def test_rounding_is_to_the_nearest_quarter_of_an_octave() -> None:
    assert measure.rounded(0.0) == 0.0
    assert measure.rounded(2.0**37 * 1.05) == 2.0**37
    assert measure.rounded(2.0**37 * 1.1) == 2.0**37.25
