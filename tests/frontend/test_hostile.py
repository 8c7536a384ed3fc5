"""Hostile ONNX models, refused by name within ten seconds and two gigabytes each, in a child process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LEAST = {"quick": 150, "all": 400}


@pytest.mark.parametrize("which", ["quick", pytest.param("all", marks=pytest.mark.slow)])
def test_hostile_models_are_refused_by_name(which: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.frontend.hostile", which]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len({name for name, _ in found}) == len(found) >= LEAST[which]
    assert {name: what for name, what in found if what} == {}
