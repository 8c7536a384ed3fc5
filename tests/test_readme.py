"""README: its recipes run, its table is what was measured, and its links and commands exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from math import exp, log
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper
from typer.main import get_command

from burnish.cli import app

HOME = Path(__file__).parents[1]
README = (HOME / "README.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
DOCUMENTS = [HOME / "README.md", HOME / "ARCHITECTURE.md", HOME / "CONTRIBUTING.md", HOME / "benchmarks/README.md"]
DOCUMENTS += sorted((HOME / "docs").glob("*.md"))


HAVE = """
import numpy as np
random = np.random.default_rng(0)
x, rows = random.normal(size=(4, 4)).astype("f4"), random.normal(size=(128, 64)).astype("f4")
labels, table = random.integers(0, 10, 128), random.normal(size=(200, 5))
y = label = (table[:, 0] > 0).astype(int)
edges, features = random.integers(0, 500, (2, 4000)), random.normal(size=(500, 16))
classes, mask = np.arange(500) % 4, np.arange(500) < 300
"""
HOLDS = """
assert logits.shape == (500, 4) and np.mean((probability > 0.5) == label) > 0.95
assert done.report.epochs == 20
"""


@pytest.mark.slow
def test_the_recipes_run(tmp_path: Path) -> None:
    """One after the other in a process, as a reader has them: with a model's file, and rows of tables and images."""
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (4, 4)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx"
    )
    assert len(RECIPES) == 5 and all(len(recipe.splitlines()) == 4 for recipe in RECIPES)
    again = "\ny = label  # also the name of a compiled model's answer\n"
    script = "".join([HAVE, *(recipe + again for recipe in RECIPES), HOLDS])
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.bn").exists()


def speedups(results: Any, name: str) -> list[float]:
    """How many times as fast Burnish was, for each row of a file of results."""
    if name.startswith("gnn"):
        return [row["dgl ratio"] for row in results["epochs"]]
    if name.startswith("boost"):
        return [1 / row["ratio"] for row in results["sections"]["hist"] if "ms a tree" in row["name"]]
    return [row.get("speedup") or 1 / row["ratio"] for row in results["rows"]]


TABLE = re.findall(r"^\| (.*?) \|.*\| ([\d.]+) \| ([\d.]+) \| `([\w-]+)` \|$", README, re.MULTILINE)


@pytest.mark.parametrize(("what", "mean", "least", "name"), TABLE, ids=[row[-1] for row in TABLE])
def test_the_table_is_what_was_measured(what: str, mean: str, least: str, name: str) -> None:
    found = speedups(json.loads((HOME / "benchmarks/results" / f"{name}.json").read_text(encoding="utf-8")), name)
    assert f"{exp(sum(map(log, found)) / len(found)):.2f}" == mean and f"{min(found):.2f}" == least
    counted = re.findall(r"\d+", what)
    assert not counted or int(counted[0]) == len(found)


def test_two_commands_set_it_up() -> None:
    assert re.findall(r"^    (\S+ \S+)", README, re.MULTILINE) == ["make demo", "make test"]
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not (path.parent / link).exists()] == []


def commands(text: str) -> list[list[str]]:
    """The words of each `burnish …` in lines and spans of code, without comments."""
    lines = re.findall(r"^    (burnish [a-z].*(?:\n {8}-.*)*)", text, re.MULTILINE)
    spans = re.findall(r"`(burnish [a-z][^`]*)`", text)
    return [re.sub(r"\s#\s.*", "", found).split()[1:] for found in lines + spans]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_commands_and_programs_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"-m benchmarks\.([a-z]\w+)", text):
        assert (HOME / f"benchmarks/{name}.py").exists() or (HOME / "benchmarks" / name).is_dir(), name
    for words in commands(text):
        group: Any = get_command(app)
        for word in words:
            found = group.get_command(None, word)
            assert found is not None, words
            group = found
            if not hasattr(found, "commands"):
                break
        options = [word for word in words if word.startswith("-") and word != "-h"]
        if options:
            known = {name for p in group.made().params for name in (*p.opts, *p.secondary_opts)}
            assert {*options} <= known, words
