"""Workers: 1, 2 and 4 of them train alike; one that is killed is named, and training goes on from the checkpoint."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish.gnn.model.program as programs
import burnish.gnn.run.workers as workers
from burnish.comm.local import launch
from burnish.comm.protocol import Comm
from burnish.errors import ParameterError, WorkerError
from burnish.fitting.fit import fit
from burnish.fitting.graphs import train_share
from burnish.fitting.loop import TrainingLimits
from burnish.fitting.result import Fitted
from burnish.fitting.single import LoopOptions
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.partition import equal_edges
from burnish.gnn.data.store import save
from burnish.gnn.model.models import network
from burnish.gnn.run.blocked import BlockedStep
from burnish.gnn.run.picture import partition_facts, partition_picture
from burnish.gnn.run.train import GraphOptions
from burnish.gnn.run.workers import WorkerJob
from burnish.train.optimizers import Adam
from burnish.train.step import Train
from tests.gnn.references import Reference, small, weighted
from tests.gnn.test_blocks import Interpreted
from tests.marks import slow_except

TIMEOUT = 120.0


def threaded(*given: Any, **more: Any) -> Fitted:
    """What threads of this process have trained."""
    return fit(*given, worker_kind="thread", **more)


@pytest.mark.parametrize(
    "kind", slow_except(["gcn", "gat", "gcn with weights", "gat with weights"], "gcn with weights")
)
def test_any_number_of_workers_trains_alike(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a directed graph, whose out-edges are other ones than its in-edges, with vertices to evaluate with."""
    monkeypatch.setattr(programs, "compile", Interpreted)
    rng = np.random.default_rng(0)
    whole = small(60, validation=True)
    kept = rng.random(whole.edges) < 0.7
    target = np.repeat(np.arange(60), whole.in_degrees)[kept]
    graph = Graph.of(
        (whole.sources[kept], target), features=np.array(whole.features), labels=np.array(whole.labels),
        train=np.array(whole.train), validation=np.array(whole.validation),
    )  # fmt: skip
    assert not graph.symmetric
    graph = weighted(graph) if "weights" in kind else graph
    net = network(kind.split()[0], 12, 4, hidden=8, heads=2, dropout=0.4, weighted="weights" in kind)
    found = {
        n: threaded(net, graph, workers=n, epochs=3, graph_options=GraphOptions(partition="vertices"))
        for n in (1, 2, 4)
    }
    for n in (2, 4):
        np.testing.assert_allclose(found[n].report.losses, found[1].report.losses, rtol=1e-5)
        own, others = found[1].report.evaluations, found[n].report.evaluations
        np.testing.assert_allclose([e.loss for e in others], [e.loss for e in own], rtol=1e-5)
        assert [e.metrics for e in others] == [e.metrics for e in own]
        assert len(found[n].cuts) == n + 1
    assert found[1].report.losses[0] != found[1].report.losses[-1]
    whole = Reference(replace(net, dropout=0.0), graph).train(graph, 1, 0.01)
    alone = threaded(replace(net, dropout=0.0), graph, workers=2, epochs=1)
    np.testing.assert_allclose(alone.report.losses, whole, rtol=1e-5)


def test_ranges_that_move_train_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seconds as the vertices of a share say, equal edges become equal vertices; losses stay those of one worker."""
    monkeypatch.setattr(programs, "compile", Interpreted)
    called = BlockedStep.__call__

    def timed(step: BlockedStep, *labels: np.ndarray) -> object:
        found = called(step, *labels)
        step.seconds = 1000.0 * step.share.rows
        return found

    monkeypatch.setattr(BlockedStep, "__call__", timed)
    whole = small(60, validation=True)
    kept = np.random.default_rng(0).random(whole.edges) < np.where(whole.sources < 30, 1.0, 0.2)
    target = np.repeat(np.arange(60), whole.in_degrees)
    graph = whole.with_(csr=CSR.from_edges(target[kept], whole.sources[kept], 60))
    net = network("gcn", 12, 4, hidden=8, dropout=0.4)
    alone = threaded(net, graph, workers=1, epochs=4)
    found = threaded(net, graph, workers=2, epochs=4, graph_options=GraphOptions(partition="learned"))
    assert found.moves == 1
    assert abs(found.cuts[1] - 30) <= 1 < abs(int(equal_edges(graph.csr, 2)[1]) - 30)
    np.testing.assert_allclose(found.report.losses, alone.report.losses, rtol=1e-5)
    np.testing.assert_allclose(
        [e.loss for e in found.report.evaluations], [e.loss for e in alone.report.evaluations], rtol=1e-5
    )


def test_workers_compiled_are_the_whole() -> None:
    graph = small(60)
    net = network("gcn", 12, 4, hidden=8, dropout=0.4)
    alone = fit(net, graph, epochs=3, threads=1)
    found = threaded(net, graph, workers=2, epochs=3, threads=1, graph_options=GraphOptions(partition="learned"))
    np.testing.assert_allclose(found.report.losses, alone.report.losses, rtol=1e-5)


def test_partition_is_told_and_drawn() -> None:
    graph = small(60)
    facts = partition_facts(graph.csr, [0, 20, 60])
    assert [f["vertices"] for f in facts] == [20, 40]
    assert sum(f["edges"] for f in facts) == graph.edges
    inside = np.array(graph.sources[: graph.offsets[20]])
    assert facts[0]["halo"] == len(np.unique(inside[inside >= 20]))
    assert partition_picture(facts).count("<rect") == 6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": 0}, "workers: found 0"),
        ({"workers": 2, "worker_kind": "fork"}, "worker_kind: found 'fork'; allowed: process, thread"),
        ({"workers": 2, "graph_options": GraphOptions(planner="lru")}, "planner: found 'lru'; allowed: best"),
    ],
)
def test_refusals(given: dict, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        fit(network("gcn", 12, 4), small(60), **given)


def killed_at_a_checkpoint(comm: Comm, job: WorkerJob, loop: LoopOptions) -> None:
    """Trains; worker 1 kills itself as soon as there is a checkpoint."""

    def kill() -> None:
        while not [*Path(str(loop.checkpoint)).glob("step-*.safetensors")]:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    if comm.rank == 1:
        threading.Thread(target=kill, daemon=True).start()
    train_share(comm, job, loop)


@pytest.mark.slow
def test_a_killed_worker_is_named_and_its_training_goes_on(tmp_path: Path) -> None:
    """To the very weights of training that nothing ended."""
    graph = small(60)
    save(tmp_path / "g.bngraph", graph)
    net = network("gcn", 12, 4, hidden=8, dropout=0.4)
    folder = tmp_path / "states"
    loop = LoopOptions(TrainingLimits(epochs=5000, save_every=3), checkpoint=str(folder))
    job = WorkerJob(net, str(tmp_path / "g.bngraph"), np.array([0, 30, 60]), "edges", None, threads=1)
    with pytest.raises(WorkerError, match="worker 1"):
        launch(killed_at_a_checkpoint, [(job, loop), (job, loop)], "process", TIMEOUT)
    done = int(max(folder.glob("step-*.safetensors")).stem.removeprefix("step-"))
    assert done < 5000
    epochs = done + 2
    again = threaded(net, graph, workers=2, epochs=epochs, checkpoint=folder, resume=True, threads=1)
    assert again.report.resumed == done
    whole = threaded(net, graph, workers=2, epochs=epochs, threads=1)
    np.testing.assert_array_equal(again.report.losses, whole.report.losses)
    for name, weights in whole.weights.items():
        np.testing.assert_array_equal(again.weights[name], weights, err_msg=name)


def test_whole_shares_are_taken_where_a_budget_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "compile", Interpreted)
    plain, budgets = workers.blocked, list[int | None]()

    def noted(*arguments: Any, budget: int | None, **more: Any) -> Any:
        budgets.append(budget)
        return plain(*arguments, budget=budget, **more)

    monkeypatch.setattr(workers, "blocked", noted)
    graph, net = small(60, validation=True), network("gcn", 12, 4, hidden=8, dropout=0.0)
    free = threaded(net, graph, workers=2, epochs=3)
    held = threaded(net, graph, workers=2, epochs=3, train=Train(optimizer=Adam(0.01), memory_budget="20GB"))
    assert held.report.losses.tolist() == free.report.losses.tolist() and budgets == [None] * 4
    monkeypatch.setattr(workers, "resident_bytes", lambda: 20_000_000_000 - 10_000)  # with shares of 10 kB, too much
    parts = threaded(net, graph, workers=2, epochs=3, train=Train(optimizer=Adam(0.01), memory_budget="20GB"))
    np.testing.assert_allclose(parts.report.losses, free.report.losses, rtol=1e-5)
    assert 20_000_000_000 in budgets
    with pytest.raises(ParameterError, match="memory_budget: found 1000000 bytes"):
        threaded(net, graph, workers=2, epochs=1, train=Train(memory_budget="1MB"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch", "ray"])
def test_other_ways_of_talking(kind: str) -> None:
    if kind == "ray":
        pytest.importorskip("ray")
    graph = small(60)
    net = network("gcn", 12, 4, hidden=8, dropout=0.4)
    found = fit(net, graph, workers=2, worker_kind=kind, epochs=3, threads=1, timeout=TIMEOUT)
    np.testing.assert_allclose(found.report.losses, fit(net, graph, epochs=3, threads=1).report.losses, rtol=1e-5)
