"""Transfer from records: what is learned from, a training that can be repeated, files that are refused, rankings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from burnish.cli import app
from burnish.errors import DataError
from burnish.machines.target import target
from burnish.tune.features import EDITION, INVARIANT
from burnish.tune.pretrained import (
    SHIPPED,
    fit_transfer,
    fitted,
    held_out,
    load,
    pairs_in_order,
    save,
    shipped,
    train,
    training_records,
    training_set,
)
from burnish.tune.records import Record, RecordFile

COLUMNS = len(INVARIANT)


def records(kernels: int, each: int = 24, seed: int = 0) -> list[Record]:
    """Kernels of different sizes whose cost depends on the first three columns alike, with noise of 2 %."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(kernels):
        size = 2.0 ** random.uniform(0, 8)
        for _ in range(each):
            x = np.round(random.standard_normal(COLUMNS), 3)
            seconds = 1e-5 * size * np.exp(0.5 * abs(x[0] - 0.5) + 0.3 * x[1] + 0.2 * x[2] ** 2)
            seconds *= random.lognormal(0, 0.02)
            found.append(Record(
                "x86_64-linux/fast/avx2", 2, True, f"key {number}", "family", "matmul", {"tile": 4}, (), (seconds,),
                date="2026-01-01T00:00:00Z", kernel=f"kernel {number}", edition=EDITION, features=tuple(x.tolist()),
            ))  # fmt: skip
    return found


def test_what_cannot_be_compared_or_read_teaches_nothing() -> None:
    good = records(2)
    others = [
        replace(good[0], edition=EDITION + 1),
        replace(good[0], features=good[0].features[:-1]),
        replace(good[0], features=(), edition=0),
        replace(good[0], won=True, times=(1e-9,)),
        *(replace(r, kernel="few") for r in good[:3]),
        *(replace(r, kernel="none worked", times=(), outcome="crashed") for r in good[:8]),
    ]
    assert training_records([*good, *others]) == good
    assert {r.kernel for r in training_records(good, besides={"kernel 0"})} == {"kernel 1"}


def test_times_of_another_machine_or_setting_are_not_compared() -> None:
    good = records(1)
    elsewhere = [replace(r, target="aarch64-linux/small/neon") for r in good]
    alone, hot = [replace(r, threads=1) for r in good], [replace(r, cold=False) for r in good]
    known = training_set([*good, *elsewhere, *alone, *hot])
    assert known.groups == 4
    assert known.features.shape == (4 * 24, COLUMNS)
    assert np.bincount(known.kernels).tolist() == [24] * 4


def test_kernels_held_out_are_ranked_better_than_by_chance() -> None:
    known = training_set(records(10))
    found = held_out(known)
    assert 0.8 < found["pairs_in_order"] <= 1.0
    assert 1.0 >= found["reached_by_8"] > found["reached_by_first_8"]
    shuffled = np.random.default_rng(1).permutation(len(known))
    by_chance = held_out(replace(known, seconds=known.seconds[shuffled]))
    assert 0.4 < by_chance["pairs_in_order"] < 0.6


def test_an_operator_that_is_known_from_another_machine_is_not_held_out() -> None:
    """Times without any rule, the same on two machines: whoever has seen one of them knows the other."""
    known = records(10)
    shuffled = np.random.default_rng(1).permutation(len(known))
    own = [replace(r, times=known[i].times) for r, i in zip(known, shuffled, strict=True)]
    found = held_out(training_set([*own, *(replace(r, target="x86_64-linux/other/avx2") for r in own)]))
    assert 0.4 < found["pairs_in_order"] < 0.6


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a model of five kernels."""
    path = tmp_path_factory.mktemp("prior") / "prior.json"
    save(train(records(5, each=12), seed=3), path)
    return path.read_text()


def test_a_trained_model_is_read_back_and_says_how_it_was_trained(trained: str, tmp_path: Path) -> None:
    path = tmp_path / "prior.json"
    path.write_text(trained)
    how = json.loads(trained)["trained"]
    assert (how["records"], how["kernels"], how["seed"], how["by_template"]) == (60, 5, 3, {"matmul": 60})
    assert how["machines"] == ["x86_64-linux/fast/avx2"]
    known = training_set(records(5, each=12))
    assert np.array_equal(load(path).predict(known.features), fitted(known, 3).predict(known.features))


def test_too_little_is_no_training() -> None:
    with pytest.raises(DataError, match=r"found 96 records of 4 kernels .* allowed: records of 5 kernels and more"):
        train(records(4))


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda text: text[: len(text) // 2], "not JSON: .*; train it again"),
        (lambda text: "[]", "found no document of format 'burnish.tune.prior', version 1"),
        (lambda text: text.replace('"version":1', '"version":2', 1), "found no document of format"),
        (lambda text: text.replace(f'"edition":{EDITION}', '"edition":0', 1), "reads edition 0 of the features"),
        (lambda text: text.replace(f'"columns":{COLUMNS}', '"columns":3', 1), "3 columns; allowed: edition"),
        (lambda text: text.replace('"kind":"trees"', '"kind":"wood"', 1), "kind is 'wood'; allowed: 'trees'"),
        (lambda text: text.replace('"base_score":[0', '"base_score":[1', 1), "does not match its checksum"),
        (lambda text: text[: text.index('"model"')] + '"model":{}}', "cost model: found no document"),
    ],
)
def test_a_broken_file_is_refused_by_name(trained: str, tmp_path: Path, spoil: object, error: str) -> None:
    path = tmp_path / "prior.json"
    spoilt = spoil(trained)  # type: ignore[operator]
    assert spoilt != trained
    path.write_text(spoilt)
    with pytest.raises(DataError, match=error) as raised:
        load(path)
    assert str(path) in str(raised.value)


def test_records_teach_beside_a_model() -> None:
    few, many = records(1, each=8), records(4, seed=5)
    assert fit_transfer(None, few) is None
    base = fitted(training_set(records(6)))
    assert fit_transfer(base, few) is base
    own = training_set(many)
    both, alone = fit_transfer(base, many), fit_transfer(None, many)
    assert both is not None
    assert alone is not None
    held = training_set(records(4, seed=9))
    each = [[pairs_in_order(m.predict(held.of(held.kernels == k).features), held.seconds[held.kernels == k])
             for k in range(4)] for m in (both, alone)]  # fmt: skip
    assert np.mean(each[0]) > np.mean(each[1]) > 0.6
    assert len(own) == 96


@pytest.mark.parametrize(("name", "kind"), [("x86-64-v3", "16"), ("x86-64-v4", "32"), ("riscv64", "32_narrow")])
def test_the_model_that_is_shipped_for_a_machine_can_be_read(name: str, kind: str) -> None:
    found, path = shipped(target(name)), SHIPPED[kind]
    assert found.dump() == load(path).dump()
    assert found.predict(np.zeros((2, COLUMNS), np.float32)).shape == (2,)
    how = json.loads(path.read_text())["trained"]
    assert how["records"] >= 1000
    assert how["held_out"]["pairs_in_order"] > 0.5
    assert path.stat().st_size < 300_000


def test_one_command_trains(trained: str, tmp_path: Path) -> None:
    RecordFile(tmp_path / "r.jsonl").append(records(5, each=12))
    output = tmp_path / "prior.json"
    found = CliRunner().invoke(app, ["records", "train", str(tmp_path / "r.jsonl"), "-o", str(output), "--seed", "3"])
    assert "from 60 records of 5 kernels" in found.output
    assert output.read_text() == trained
