"""`burnish gnn`: a graph is converted, shown, cut and trained on, and the network applied."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from burnish.cli import app
from burnish.errors import BurnishError, DataError, ModelError, ParameterError
from burnish.gnn.data.cost import FEATURES, LayerCostModel
from burnish.gnn.data.generators import block_model
from burnish.gnn.data.partition import Partitioner
from burnish.gnn.data.store import load
from burnish.gnn.model.models import Network

COMMANDS = ("train", "infer", "partition", "info", "convert")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a graph of 80 vertices as arrays."""
    graph = block_model(80, 640, 3, 6, seed=1)
    target = np.repeat(np.arange(80), graph.in_degrees)
    np.savez(
        tmp_path / "graph.npz", edge_index=np.stack([graph.sources, target]), features=graph.features,
        labels=graph.labels, train=graph.train, validation=graph.validation, test=graph.test,
    )  # fmt: skip
    return tmp_path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["gnn", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_from_arrays_to_classes(folder: Path) -> None:
    graph, net = folder / "graph.bngraph", folder / "net.safetensors"
    report = json.loads(run("convert", folder / "graph.npz", "-o", graph, "--json"))
    assert (report["vertices"], report["symmetric"]) == (80, True)
    assert load(graph).edges == report["edges"]
    shown = json.loads(run("info", graph, "--json"))
    assert (shown["features"], shown["classes"]) == (6, 3)
    assert "edges" in run("info", graph)
    trained = json.loads(run("train", graph, "-o", net, "--hidden", 8, "--epochs", 5, "--dropout", 0, "--threads", 1,
                             "--report", folder / "report.html", "--json"))  # fmt: skip
    assert trained["losses"][-1] < trained["losses"][0]
    assert trained["evaluations"][-1]["metrics"].keys() == {"accuracy"}
    assert "6 &rarr; gcn 8 &rarr; gcn 3" in (folder / "report.html").read_text()
    assert json.loads(run("info", net, "--json"))["parameters"] == Network.load(net).parameters == 6 * 8 + 8 + 8 * 3 + 3
    found = json.loads(run("infer", net, graph, "-o", folder / "logits.npy", "--threads", 1, "--json"))
    assert np.load(folder / "logits.npy").shape == (80, 3)
    assert {*found["scores"]} == {"train", "validation", "test"}


def test_ranges_are_told_and_drawn(folder: Path) -> None:
    report = json.loads(run("partition", folder / "graph.npz", "--workers", 3, "--picture", folder / "p.svg", "--json"))
    assert report["cuts"][0] == 0 and report["cuts"][-1] == 80 and len(report["workers"]) == 3
    assert (folder / "p.svg").read_text().count("<rect") == 9
    assert run("partition", folder / "graph.npz", "--by", "vertices").count("worker") == 2
    seen = json.loads(run("partition", folder / "graph.npz", "--width", 6, "--json"))["workers"]
    assert sum(worker["features"]["vertices"] for worker in seen) == 80
    assert [worker["features"]["neighbours"] for worker in seen] == [worker["edges"] for worker in seen]


def test_costs_that_were_learned_cut_a_graph(folder: Path) -> None:
    """A file as `train --costs` writes it: time is by vertices alone."""
    x = np.zeros((2, len(FEATURES)))
    x[:, FEATURES.index("vertices")] = 10, 20
    Partitioner((6,), (LayerCostModel().learned(x, [1e-3, 2e-3]),)).save(folder / "costs.json")
    report = json.loads(run("partition", folder / "graph.npz", "--learned", folder / "costs.json", "--json"))
    assert report["by"] == "learned" and abs(report["cuts"][1] - 40) <= 1
    assert [worker["seconds"] for worker in report["workers"]] == pytest.approx([4e-3, 4e-3], rel=0.05)


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        (["train", "GRAPH", "--model", "gru"], ParameterError, "kind: found 'gru'; allowed: gcn"),
        (["train", "GRAPH", "--optimizer", "lbfgs"], ParameterError, "--optimizer: found 'lbfgs'; allowed: sgd, adam"),
        (["train", "GRAPH", "-o", "x.bn"], ParameterError, "ends in .safetensors"),
        (["train", "GRAPH", "--resume"], ParameterError, "allowed: with --checkpoint"),
        (["train", "GRAPH", "--sample", "many"], ParameterError, "allowed: numbers such as 25,10"),
        (["partition", "GRAPH", "--learned", "none.json"], ParameterError, "none.json"),
        (["train", "nothing.npz"], ParameterError, "no file or folder 'nothing.npz'"),
        (["train", "dataset:cora"], ParameterError, "found 'cora'; allowed: pubmed"),
        (["train", "GRAPH", "--memory-budget", "1MB"], ParameterError, "memory_budget: found 1000000 bytes"),
        (["convert", "GRAPH", "-o", "x.npz"], ParameterError, "ends in .bngraph"),
        (["partition", "GRAPH", "--by", "luck"], ParameterError, "--by: found 'luck'; allowed: edges, vertices"),
        (["info", "GRAPH2"], DataError, "truncated"),
        (["infer", "NET", "GRAPH"], ModelError, "found no graph neural network"),
    ],
)
def test_refusals(
    folder: Path, more: list[str], kind: type[BurnishError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "half.bngraph").write_bytes(b"BNGRAPH1" + bytes(7))
    (folder / "net.safetensors").write_bytes(b"nothing")
    names = {"GRAPH": "graph.npz", "GRAPH2": "half.bngraph", "NET": "net.safetensors"}
    given = [names.get(word, word) for word in more]
    with pytest.raises(kind, match=message):
        CliRunner().invoke(app, ["gnn", *given], catch_exceptions=False)


@pytest.mark.parametrize("command", ["train", "info", "partition", "convert"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"edge_index": [[0, 80], [1, 2]]}, "edge 1: found 80 → 2; allowed: vertices 0 to 79"),
        ({"features": np.where(np.arange(480).reshape(80, 6) == 8, np.nan, 0.0)}, "features: found nan in row 1, col"),
        ({"labels": np.where(np.arange(80) == 3, 10**9, 0)}, "labels: found 1000000000 of vertex 3; allowed: 0 to"),
        ({"train": np.array([0, 81])}, "train: found vertices 0 to 81; allowed: below 80"),
        ({}, "truncated"),
    ],
)
def test_damaged_graphs_are_refused(folder: Path, command: str, damage: dict, message: str) -> None:
    """By every command that reads one, and nothing is written."""
    path, out = folder / "graph.npz", folder / "out"
    with np.load(path) as held:
        np.savez(path, **{**held, **damage})
    if not damage:
        path.write_bytes(path.read_bytes()[:-200])
    suffix = {"train": ".safetensors", "convert": ".bngraph"}.get(command)
    more = ["-o", str(out) + suffix] if suffix else []
    with pytest.raises(DataError, match=message):
        CliRunner().invoke(app, ["gnn", command, str(path), *more], catch_exceptions=False)
    assert [*folder.iterdir()] == [path]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    assert "Usage" in run(command, "--help")
