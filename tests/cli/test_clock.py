"""Limits of seconds count from when a command began."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import burnish
from burnish.cli import app, clock
from burnish.parallel.programs.alternatives import MIN_SHARE, SearchRequest


@pytest.fixture(autouse=True)
def unnoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_began", None)


def test_a_process_began_before_its_first_line_ran() -> None:
    code = "import time; now = time.monotonic(); from burnish.cli import clock; print(now, clock.process_began())"
    environment = os.environ | {"PYTHONPATH": str(Path(burnish.__file__).parents[1])}
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    first, began = map(float, done.stdout.split())
    tick = 1 / os.sysconf("SC_CLK_TCK")  # in which the system counts
    assert before - 2 * tick <= began <= first + tick


def test_a_process_that_waits_between_two_clocks_began_no_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    began, boottime, calls = clock.process_began(), time.clock_gettime, iter(range(5))

    def late(which: int) -> float:
        return boottime(which) + (3.0 if next(calls) < 4 else 0.0)

    monkeypatch.setattr(clock.time, "clock_gettime", late)
    assert abs(clock.process_began() - began) < 1.0


def test_what_is_left_of_a_limit_shrinks_to_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock.time, "monotonic", lambda: 103.0)
    assert clock.left(8.0) == 8.0  # nobody has noted when a command began
    clock.begin(100.0)
    assert [clock.left(seconds) for seconds in (10.0, 5.0, 2.0)] == [7.0, 2.5, 1.0]


def test_a_command_within_a_process_begins_when_it_is_called(tmp_path: Path) -> None:
    before = time.monotonic()
    assert CliRunner().invoke(app, ["cache", "path", "--cache-dir", str(tmp_path)]).exit_code == 0
    assert before <= clock.began() <= time.monotonic()


@pytest.mark.parametrize("command", ["plan", "tune", "apply"])
def test_commands_pass_on_what_is_left(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from burnish.cli import plan_devices, tuning
    from burnish.driver import rewritten

    seen: dict[str, Any] = {}

    def look(*_: Any, **given: Any) -> None:
        seen.update(given)
        raise SystemExit(9)

    monkeypatch.setattr(plan_devices, "find_plan", look)
    monkeypatch.setattr(tuning, "tune_and_compile", lambda _, settings, **__: look(seconds=settings.seconds))
    monkeypatch.setattr(rewritten, "rewrite_model", look)
    path = tmp_path / "model.onnx"
    _model(path)
    given = {
        "plan": ["plan", "devices", str(path), "p100:1x2"],
        "tune": ["tune", str(path)],
        "apply": ["rewrite", "apply", str(path), "-o", str(tmp_path / "new.onnx")],
    }[command]
    before = time.monotonic()
    assert CliRunner().invoke(app, [*given, "--seconds", "50"]).exit_code == 9
    after = time.monotonic()
    if command == "plan":
        assert before + 50 <= seen["deadline"] <= after + 50
    else:
        assert max(25.0, 50 - (after - before)) <= seen["seconds"] < 50


def _model(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", types[:1], types[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def test_searches_share_what_is_left_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.parallel.programs.alternatives.time", SimpleNamespace(monotonic=lambda: 100.0))
    ends = [
        SearchRequest(*[None] * 9, seconds=10.0, seed=0, deadline=deadline).allowed(0.5, 0.8)  # type: ignore[arg-type]
        for deadline in (None, 120.0, 105.0, 99.0)
    ]
    assert ends == [5.0, 5.0, 4.0, MIN_SHARE * 10.0]
