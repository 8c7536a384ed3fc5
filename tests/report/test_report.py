"""Reports: profiles that add up, traces that viewers read, and a page that needs nothing and trusts nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import burnish as bn
from burnish.cli import app
from burnish.errors import InputError, ParameterError
from burnish.report.page import page
from burnish.report.profile import chrome_trace, profile

EVIL = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two products with activations, one of whose tensors has a name that would be a page of its own."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((64, 64), np.float32), n) for n in "vw"]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]), helper.make_node("Relu", ["a"], [EVIL]),
        helper.make_node("MatMul", [EVIL, "w"], ["b"]), helper.make_node("Softmax", ["b"], ["y"], axis=-1),
    ]  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (32, 64)) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    path = tmp_path_factory.mktemp("report") / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def invoke(*words: Any) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def test_the_answers_of_a_run_are_the_models(model: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((32, 64), np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    invoke("run", model, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["y"], bn.compile(model)(x))
    said = json.loads(invoke("run", model, "--json").stdout)
    assert said["random"] and said["outputs"]["y"] == {"shape": [32, 64], "dtype": "float32"}


def test_a_profile_knows_what_kernels_do(model: Path, tmp_path: Path) -> None:
    module = bn.compile(model)
    module.save(tmp_path / "m.bn")
    for own in (module, bn.load(tmp_path / "m.bn")):
        assert isinstance(own, bn.Module)
        found = profile(own, {"x": np.ones((32, 64), np.float32)})
        assert [k.kernel for k in found.kernels] == [c.kernel for c in own.executable.calls]
        assert 0 < found.attributed <= 1 and all(
            k.bound and k.resource and 0 < (k.reached or 0) <= 1 for k in found.kernels
        )
        work = {row["kernel"]: row["flops"] for row in own.info["kernels"]}
        assert sum(work.values()) >= 2 * 2 * 32 * 64 * 64
        events = json.loads(chrome_trace(found, "m"))["traceEvents"]
        steps = [e for e in events if e.get("tid") == 2 and e["ph"] == "X"]
        assert len(steps) == len(found.kernels)
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(steps))


def test_the_page_needs_nothing_and_trusts_nothing(model: Path, tmp_path: Path) -> None:
    invoke("report", model, "-o", tmp_path / "m.html", "--check")
    text = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert EVIL not in text and "onerror=alert" not in re.sub(
        r'<script type="application/json".*?</script>', "", text, flags=re.S
    )
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text) and "@import" not in text
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text and "unsafe-" not in text
    data = data_of(text)
    assert EVIL in str(data["passes"]) and data["passes"][0]["name"] == "import"
    assert [n["op"] for n in data["passes"][0]["nodes"]] == ["matmul", "relu", "matmul", "softmax"]
    for kernel in data["kernels"]:
        stages = data["stages"][kernel["kernel"]]
        assert stages[0]["name"] == "task" and all(stage["text"] for stage in stages)
    assert all(row["error"] <= row["allowed"] for row in data["errors"]) and len(data["errors"]) == len(data["kernels"])
    assert all(
        b["first"] <= b["last"] and b["offset"] + b["nbytes"] <= data["memory"]["arena"] for b in data["buffers"]
    )
    assert page({**data, "name": EVIL}).count("<script") == 2


def test_what_is_compiled_has_no_passes_to_show(model: Path, tmp_path: Path) -> None:
    bn.compile(model).save(tmp_path / "m.bn")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "m.bn")])
    assert done.exit_code != 0 and "is compiled already; allowed: an ONNX file" in str(done.exception)


def test_a_compiled_model_writes_its_own_page(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = bn.compile(model)
    made.save("m.bn")
    for own in (made, bn.load("m.bn")):
        assert own.report() == Path("report.html")
        data = data_of(Path("report.html").read_text(encoding="utf-8"))
        assert [k["kernel"] for k in data["kernels"]] == [c.kernel for c in made.executable.calls]
        assert [p["name"] for p in data["passes"]] == ["compiled"] and data["passes"][0]["nodes"]
        assert data["buffers"] and data["call"] > 0 and EVIL in str(data["passes"])
    (tmp_path / "note.html").write_text("mine")
    for path, why in (("note.html", "is no page of HTML"), (tmp_path, "is not a regular file"), (3, "path: found 3")):
        with pytest.raises(ParameterError, match=why):
            made.report(path)
    assert (tmp_path / "note.html").read_text() == "mine"
    with pytest.raises(ParameterError, match="inputs: found"):
        made.report(inputs=[1])
    with pytest.raises(InputError, match="'x'"):
        made.report(inputs={"x": np.zeros((2, 2), np.float32)})


@pytest.fixture(scope="module")
def records(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measurements of a few candidates of its kernels."""
    folder = tmp_path_factory.mktemp("tuned")
    invoke("tune", model, "--trials", 24, "--records", folder / "r.jsonl", "-o", folder / "m.bn")
    return folder / "r.jsonl"


@pytest.mark.slow
def test_the_page_shows_how_kernels_were_tuned(model: Path, records: Path, tmp_path: Path) -> None:
    invoke("report", model, "-o", tmp_path / "m.html", "--records", records)
    kernels = data_of((tmp_path / "m.html").read_text(encoding="utf-8"))["kernels"]
    searches = [kernel["search"] for kernel in kernels if kernel["search"]]
    assert searches, "no kernel was tuned"
    for found in searches:
        assert len(found["microseconds"]) == len(found["templates"]) == sum(found["outcomes"].values())
        assert any(time is not None for time in found["microseconds"])
    invoke("report", model, "-o", tmp_path / "plain.html")
    plain = data_of((tmp_path / "plain.html").read_text(encoding="utf-8"))["kernels"]
    assert not any(kernel["search"] for kernel in plain)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_in_a_browser_without_a_network(model: Path, records: Path, tmp_path: Path, width: int) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium")
    invoke("report", model, "-o", tmp_path / "m.html", "--records", records)
    kernels = data_of((tmp_path / "m.html").read_text(encoding="utf-8"))["kernels"]
    tuned = next(number for number, kernel in enumerate(kernels) if kernel["search"])
    shown = ("Kernels/0", "<h2>task</h2>"), (f"Kernels/{tuned}", 'class="search"')
    for tab, wanted in (*shown, ("Graph", '<g class="node'), ("Memory", 'class="buffer"')):
        done = subprocess.run(
            [
                browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND",
                f"--window-size={width},800", "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom",
                f"file://{tmp_path}/m.html#{tab}",
            ],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        assert wanted in done.stdout and "CONSOLE" not in done.stderr, done.stderr[-2000:]
