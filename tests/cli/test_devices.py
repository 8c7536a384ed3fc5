"""`burnish device`: boards are added, listed and tested; a pool is served with a key; wrong use is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli import app
from burnish.errors import DeviceError, ParameterError, TargetError


def run(*words: object) -> object:
    return app([str(word) for word in words], prog_name="burnish", standalone_mode=False)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "devices.toml"
    monkeypatch.setenv("BURNISH_DEVICES", str(path))
    return path


def test_boards_are_added_and_listed(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("device", "add", "pi", "--kind", "aarch64-cortex-a53", "--ssh", "tuner@pi.lab")
    run("device", "add", "arm", "--kind", "slow", "--target", "aarch64-cortex-a53", "--emulator")
    capsys.readouterr()
    run("device", "list")
    assert capsys.readouterr().out.splitlines() == [
        "pi: aarch64-cortex-a53, ssh at tuner@pi.lab", "arm: slow, emulator",
    ]  # fmt: skip
    run("device", "list", "--json")
    rows = json.loads(capsys.readouterr().out)["devices"]
    assert [row["target"] for row in rows] == ["aarch64-cortex-a53"] * 2


def test_wrong_use_is_refused(table: Path) -> None:
    with pytest.raises(DeviceError, match=r"no table .*; make one by `burnish device add`"):
        run("device", "list")
    with pytest.raises(TargetError, match="target 'pi4' is unknown"):
        run("device", "add", "pi", "--kind", "pi4")
    with pytest.raises(ParameterError, match="found --ssh and --emulator"):
        run("device", "add", "pi", "--kind", "cpu", "--ssh", "a@b", "--emulator")
    assert not table.exists()
    run("device", "add", "pi", "--kind", "cpu")
    with pytest.raises(ParameterError, match="no device 'po'; known: pi"):
        run("device", "test", "po")
    with pytest.raises(ParameterError, match="found --pool, --key, --owner or --priority; allowed: with --device"):
        run("tune", "m.onnx", "--pool", "127.0.0.1:1")


@pytest.mark.slow
def test_boards_are_tested(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no route to host' >&2\nexit 255\n")
    broken.chmod(0o700)
    run("device", "add", "here", "--kind", "cpu")
    run("device", "add", "gone", "--kind", "cpu", "--python", broken)
    capsys.readouterr()
    assert run("device", "test", "--json") == 1
    here, gone = json.loads(capsys.readouterr().out)["devices"]
    assert here["problem"] == ""
    assert 0 < here["seconds"] < 1
    assert here["upload"] > 1e5
    assert "no route to host" in gone["problem"]
    assert run("device", "test", "here") in (0, None)
    assert "here: well; " in capsys.readouterr().out


def test_a_pool_is_served_until_it_is_ended(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("device", "add", "here", "--kind", "cpu")
    words = [sys.executable, "-m", "burnish", "device", "serve", "--json", "--devices", str(table)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as server:
        assert server.stdout is not None
        text = ""
        while not text.endswith("}\n") or text.count("{") != text.count("}"):
            text += server.stdout.readline()
        address = json.loads(text)["address"]
        assert address.startswith("127.0.0.1:")
        capsys.readouterr()
        run("device", "list", "--pool", address)
        assert capsys.readouterr().out == "here: cpu, closed, 0 leases\n"
        other = table.with_name("other.key")
        other.write_text("0" * 32)
        other.chmod(0o600)
        with pytest.raises(DeviceError, match=f"the pool at {address} has another key"):
            run("device", "list", "--pool", address, "--key", other)
        server.send_signal(signal.SIGTERM)
        assert server.wait(30.0) == 0
