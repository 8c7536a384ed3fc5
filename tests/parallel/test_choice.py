"""Choice of a plan: splits, recomputation where memory binds, pipelines; what is said of each; never beyond memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from burnish.cli import app
from burnish.errors import ParameterError, PlanError
from burnish.fitting import planned
from burnish.fitting.fit import fit
from burnish.fitting.planned import plan, read_plan
from burnish.frontend.onnx import to_onnx
from burnish.machines.target import target
from burnish.measure import together
from burnish.parallel.model.machine import DeviceCluster
from burnish.parallel.model.presets import machine
from burnish.parallel.programs.calibration import LaunchConfig
from burnish.parallel.programs.parallel_plan import Plan
from burnish.parallel.programs.plans import Stages, TensorSplits
from burnish.parallel.programs.ranks import kept_bytes, plan_memory
from burnish.train.optimizers import SGD, Adam
from burnish.train.step import Train
from tests.parallel.networks import NETWORKS, TRAIN
from tests.parallel.problems import layers
from tests.parallel.test_execute import rows
from tests.parallel.test_pipelines import SQUARED, check, deep, normalized

ADAM = Train(optimizer=Adam(0.001))


def changed(where: DeviceCluster, memory: int | None = None, slower: float = 1.0) -> DeviceCluster:
    """The machine with so many bytes a device, and slower links."""
    devices = where.devices if memory is None else tuple(replace(d, memory=memory) for d in where.devices)
    links = tuple(replace(link, bandwidth=link.bandwidth / slower) for link in where.links)
    return DeviceCluster(where.name, devices, links)


def within(found: Plan) -> bool:
    """Whether each device has room for what the plan says it needs."""
    return all(n <= d.memory for n, d in zip(found.memory, found.machine.devices, strict=True))


def test_a_pipeline_wins_where_one_device_is_too_small_and_links_are_slow() -> None:
    graph, where = layers(16, 1024, 2048).graph, machine("p100:2x1")
    found = plan(graph, train=ADAM, devices=changed(where, memory=986_500_300, slower=10), seconds=0.3, bound=False)
    assert found.is_pipeline and within(found) and found.bound is None
    assert found.milliseconds <= found.considered["splits"]
    assert found.name.startswith("pipeline of 2 stages")
    assert found.why.startswith(f"{found.name} (considered: splits ") and f"; {found.name} " in found.why
    report = found.as_json()
    assert report["pipeline"] and report["considered"] == found.considered and len(report["memory"]) == 2
    again = read_plan(found.text(), graph, 2)
    assert isinstance(again, Stages) and again == found.placement


def test_recomputation_is_considered_where_memory_binds() -> None:
    graph, where = layers(12, 4096, 64).graph, machine("p100:1x2")
    free = plan(graph, train=ADAM, devices=where, seconds=0.2, bound=False)
    assert "splits, recomputed" not in free.considered and within(free)
    need = int(free.simulator.memory(free.choice).max())
    found = plan(
        graph, train=ADAM, devices=changed(where, memory=int(0.7 * need)), seconds=0.3, bound=False, pipelines=False
    )
    assert found.strategy.memory == int(0.7 * need) and within(found)
    assert [*found.considered] == ["splits", "splits, recomputed"]
    assert "no strategy was found that fits" in str(found.considered["splits"])
    placed = read_plan(found.text(), graph, 2)
    assert isinstance(placed, TensorSplits) and placed.memory == found.strategy.memory
    with pytest.raises(PlanError, match=r"splits: no .*; splits, recomputed: no .*; pipeline: no pipeline"):
        plan(graph, train=ADAM, devices=changed(where, memory=1000), seconds=0.2, bound=False)


def test_a_plan_that_recomputes_is_executed_within_its_bytes() -> None:
    graph = deep(512, layers=6)
    splits = TensorSplits({})  # all on device 0
    free = max(kept_bytes(memory) for memory in plan_memory(graph, SQUARED, splits, 2, target("cpu")))
    tight = replace(splits, memory=int(0.7 * free))
    made = check(graph, SQUARED, tight, 2)
    assert made[0].info["recomputation"]["repeated"] > 0
    predicted = plan_memory(graph, SQUARED, tight, 2, target("cpu"))
    assert kept_bytes(predicted[0]) <= tight.memory


def test_why_there_is_no_pipeline() -> None:
    found = plan(normalized(), train=ADAM, devices="p100:1x2", seconds=0.2, bound=False)
    assert "node 'n' (batch_norm) keeps a state" in str(found.considered["pipeline"])
    assert not found.is_pipeline
    odd = plan(layers(3, 9).graph, train=ADAM, devices="p100:1x2", seconds=0.2, bound=False)
    assert "9 samples in 2 micro-batches" in str(odd.considered["pipeline"])
    alone = plan(layers(3, 8).graph, train=ADAM, devices="p100:1x2", seconds=0.2, bound=False, pipelines=False)
    assert [*alone.considered] == ["splits"]


@pytest.mark.slow
def test_the_best_pipeline_is_timed_beside_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "COLD_BYTES", 1 << 10)
    timed: dict[str, float] = {}

    def fastest(*given: Any, **_: Any) -> tuple[str, dict[str, float]]:
        timed.update({name: 1.0 if name == "pipeline" else 2.0 for name in given[2]})
        assert isinstance(given[2]["pipeline"], Stages)
        return "pipeline", timed

    monkeypatch.setattr(planned, "faster_plan", fastest)
    ranks = LaunchConfig(TRAIN, worker_kind="thread", steps=2, cache_dir=tmp_path)
    found = plan(NETWORKS["mlp"](), devices="host:2", seconds=0.2, measure=ranks)
    assert found.is_pipeline and found.measured["pipeline"] == 1000.0 and len(found.allocated) == 2
    trained = fit(NETWORKS["mlp"](), rows(), TRAIN, steps=2, plan=found, worker_kind="thread")
    assert trained.report.calls == 2


def test_the_commands_plan_and_train_by_a_pipeline(tmp_path: Path) -> None:

    path, text, data = tmp_path / "mlp.onnx", tmp_path / "plan.txt", tmp_path / "rows.npz"
    path.write_bytes(to_onnx(NETWORKS["mlp"]()).SerializeToString())
    found = CliRunner().invoke(app, ["plan", "devices", str(path), "host:2", "--seconds", "0.2", "--json"])
    assert found.exit_code == 0, found.output
    assert "pipeline of 2 stages" in found.output and '"considered"' in found.output
    without = CliRunner().invoke(
        app, ["plan", "devices", str(path), "host:2", "--seconds", "0.2", "--no-pipelines"]
    )  # fmt: skip
    assert (
        "the plan: splits (considered: splits" in without.output
        and "pipeline" not in without.output.split("considered:")[1]
    )
    lines = ["strategy of 2 operations on 2 devices, 4 micro-batches"]
    for number, line in enumerate(row for row in without.output.splitlines() if " = " in row and " on " in row):
        head = line.split(" = ")[0].replace("[8, ", "[2, ")
        lines.append(f"{head} = whole on {number}")
    text.write_text("\n".join(lines), encoding="utf-8")
    np.savez(data, **rows())
    command = ["train", str(path), "--data", str(data), "--plan", str(text), "--workers", "2", "--worker-kind",
               "thread", "--no-compare", "--epochs", "1", "--output", str(tmp_path / "out.onnx")]  # fmt: skip
    trained = CliRunner().invoke(app, command)
    assert trained.exit_code == 0, trained.output
    assert "in 8 batches" in trained.output


def test_a_network_is_planned_as_it_is_compiled() -> None:
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    net[0].requires_grad_(False)
    recipe = Train(loss="mse", optimizer=SGD(0.1))
    found = plan(net, (torch.zeros(4, 8),), recipe, "p100:1x2", seconds=0.1, bound=False, pipelines=False)
    trained = sorted(found.graph.constants[name].shape for name in found.model.parameters)
    assert trained == [(4,), (4, 8)]  # of the second layer alone
    assert found.slots == 0 and found.machine.size == 2
    with pytest.raises(ParameterError, match="example_inputs: found 'tuple'; allowed: None for models that"):
        plan(layers(3, 8).graph, (torch.zeros(4, 8),))
