"""The twelve models and a GPT block at their real sizes: all kernels are assembled for both machines, none spills.

Their operators on coroutines, in small, are those of ``test_networks.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import burnish as bn
from benchmarks import models
from burnish.codegen.gridcode import GridCode, LaunchCode, Resources
from burnish.codegen.ptxas import find_ptxas
from burnish.graph import Graph
from burnish.runtime.device import unpacked
from tests.gpu.test_networks import Net, attention

MACHINES = ("cuda:sm_80", "cuda:sm_86", "cuda:sm_89", "cuda:sm_90a")
pytestmark = pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")


def launches_of(model: Path | Graph, machine: str, folder: Path) -> dict[str, list[LaunchCode]]:
    """The launches of every kernel of a model."""
    executable = bn.compile(model, target=machine, cache_dir=folder).executable
    return {name: [*GridCode.unpacked(code).launches] for name, code in unpacked(executable.code).items()}


def check(found: dict[str, list[LaunchCode]]) -> None:
    """Everything is assembled, and no register is spilled or indexed."""
    assert found
    resources = {(name, launch.name): launch.resources for name, own in found.items() for launch in own}
    assert None not in resources.values()
    spilled = {key: str(r) for key, r in resources.items() if r is not None and r.spilled + r.stack}
    assert not spilled


def gpt(width: int = 768, rows: int = 128) -> Graph:
    """A block of GPT-2 (Radford et al. 2019)."""
    n = Net()
    return n.g.build(attention(n, causal=True, rows=rows, width=width, heads=width // 64))


@pytest.fixture(autouse=True)
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No template that matches a kernel fails to schedule it, which is warned of."""
    yield
    assert not [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.WARNING]


def test_a_gpt_block_of_real_size_spills_nothing(tmp_path: Path) -> None:
    found = launches_of(gpt(), "cuda:sm_90a", tmp_path)
    check(found)
    assert len(found) == 6  # attention is one of them; queries, keys and values are one product


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", [*models.names(), "gpt"])
def test_models_are_assembled_and_spill_nothing(name: str, machine: str, tmp_path: Path) -> None:
    check(launches_of(gpt() if name == "gpt" else models.build(name), machine, tmp_path))


@pytest.mark.parametrize("resources", [None, Resources(255, 0, 8, 0), Resources(40, 16, 0, 0)])
def test_what_is_not_assembled_or_spills_is_found(resources: Resources | None) -> None:
    with pytest.raises(AssertionError):
        check({"k": [LaunchCode("k", (1, 1, 1), (32, 1, 1), resources)]})
