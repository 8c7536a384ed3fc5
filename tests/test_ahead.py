"""The build hook compiles ahead, and an installation does not fail with it."""

import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import setuptools

ROOT = Path(__file__).parents[1]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The hook, for a distribution without files that is built into a folder."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    monkeypatch.delenv("BURNISH_AHEAD", raising=False)
    runpy.run_path(str(ROOT / "setup.py"))
    hook = given["cmdclass"]["build_py"](setuptools.Distribution({"packages": [], "py_modules": []}))
    hook.ensure_finalized()
    hook.build_lib = str(tmp_path / "lib")
    return hook


def test_it_runs_the_package_that_is_built(command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs: list[tuple[list[str], Any]] = []
    monkeypatch.setattr(subprocess, "run", lambda line, **options: runs.append((line, options)))
    command.run()
    command.editable_mode = True
    command.run()
    assert [line[1:] for line, _ in runs] == [["-m", "burnish.ahead"]] * 2
    for (_, options), root in zip(runs, (tmp_path / "lib", ROOT), strict=True):
        assert options["cwd"] == root and options["env"]["PYTHONPATH"].startswith(str(root)) and options["check"]


@pytest.mark.parametrize("error", [OSError("no room"), subprocess.CalledProcessError(1, "python")])
def test_a_failure_is_a_warning(command: Any, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    warned: list[str] = []
    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(command, "warn", warned.append)
    command.run()
    assert warned == [f"kernels are not compiled ahead, but when they are first used: {error}"]


def test_a_variable_leaves_it_out(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_AHEAD", "0")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("nothing is to run"))
    command.run()
