"""CUDA runner on a driver that only keeps books: what is launched, at which addresses, and what is copied."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.codegen.gridcode import GridCode
from burnish.comm import launch
from burnish.comm.protocol import Comm
from burnish.graph.evaluate import evaluate
from burnish.machines.nvptx.machine import VECTOR_BYTES
from burnish.machines.target import target
from burnish.parallel.model.operations import operations
from burnish.parallel.model.presets import machine
from burnish.parallel.programs.execute import RankStep
from burnish.parallel.programs.plans import splits_of
from burnish.parallel.programs.ranks import Settings, rank_programs
from burnish.parallel.simulate.baselines import data_parallel
from burnish.runtime.device import unpacked
from burnish.runtime.executable import Collective
from burnish.runtime.gpu import cuda, driver
from burnish.runtime.gpu.cuda import CudaDevice
from burnish.runtime.runner import ExecutableInstance
from tests.gpu.driver import emulated_gpu
from tests.gpu.test_rounds import running
from tests.parallel.networks import NETWORKS, TRAIN, batch_of, step_of, trained_alone


class Books:
    """A driver: memory is numbers, copies and launches are lists."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=0, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=1
    )

    def __init__(self, codes: list[GridCode]) -> None:
        self.counts = {launch.name: len(code.nbytes) for code in codes for launch in code.launches}
        self.next, self.copies, self.launches = 1 << 20, list[tuple[int, int, int]](), list[list[int]]()

    def __getattr__(self, name: str) -> Any:
        return lambda *args: (0, 1)

    def cuMemAlloc(self, nbytes: int) -> tuple[int, int]:  # noqa: N802 - the driver's name
        """New memory."""
        self.next += -(-nbytes // 256) * 256
        return 0, self.next - -(-nbytes // 256) * 256

    def cuMemcpyDtoDAsync(self, to: int, source: int, nbytes: int, stream: int) -> tuple[int]:  # noqa: N802
        """A copy."""
        del stream
        self.copies.append((to, source, nbytes))
        return (0,)

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[int, str]:  # noqa: N802
        """A function is its name."""
        del module
        return 0, name.decode()

    def cuLaunchKernel(self, function: str, *args: int) -> tuple[int]:  # noqa: N802
        """The addresses that a kernel is given."""
        pointers = (ctypes.c_uint64 * self.counts[function]).from_address(args[8])
        self.launches.append([ctypes.c_uint64.from_address(at).value for at in pointers])
        return (0,)


@pytest.mark.parametrize("width", [4, 3])
def test_addresses_are_multiples_of_what_is_moved_at_once(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = bn.compile(running(4, False, width), target="cuda:sm_80", cache_dir=tmp_path).executable
    kernels = unpacked(executable.code)
    books = Books([GridCode.unpacked(code) for code in kernels.values()])
    monkeypatch.setattr(driver, "require", lambda name, extra: books)
    monkeypatch.setattr(cuda, "first_gpu", driver.Gpu)
    state = np.zeros(executable.state_offsets[-1], np.uint8)
    runner = CudaDevice().runner(ExecutableInstance(executable, executable.params, state, {}), kernels)
    given = [np.zeros(spec.nbytes, np.uint8).ctypes.data for spec in (*executable.inputs, *executable.outputs)]
    runner.run(given, None)  # type: ignore[arg-type]
    assert books.launches
    assert all(place % VECTOR_BYTES == 0 for launch in books.launches for place in launch)
    odd = [source for _, source, _ in books.copies if source % VECTOR_BYTES]
    back = [to for to, _, _ in books.copies if to % VECTOR_BYTES]
    assert bool(odd) == bool(back) == (width == 3)  # rows of 12 bytes


@pytest.mark.parametrize("train", [None, pytest.param(TRAIN, marks=pytest.mark.slow)], ids=["inference", "training"])
def test_gpus_of_a_plan_exchange_messages(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks on an emulated driver, against one process by the definitions."""
    graph = NETWORKS["mlp"]()
    model = operations(graph)
    splits = splits_of(model, data_parallel(model, machine("host:2")))
    programs = rank_programs(graph, train, splits, 2, target("cuda:sm_80"), Settings(cache_dir=tmp_path))
    made = programs.executables()
    assert all(any(isinstance(step, Collective) for step in each.steps) for each in made)
    codes = [GridCode.unpacked(code) for each in made for code in unpacked(each.code).values()]
    gpu, _ = emulated_gpu(monkeypatch, codes)
    monkeypatch.setattr(cuda, "first_gpu", lambda: gpu)
    batch = batch_of(graph if train is None else step_of(graph))

    def run(comm: Comm) -> Any:
        step = RankStep(bn.Module(made[comm.rank], comm=comm), comm)
        results = [step(*[batch[spec.name] for spec in step.inputs]) for _ in range(2)]
        assert step.profile(*[batch[spec.name] for spec in step.inputs], repeat=1) if train is None else True
        return results[-1] if train is None else {name: step.state[name] for name in step.state}

    found = launch(run, [(), ()])
    if train is None:
        np.testing.assert_allclose(found[0], evaluate(graph, batch)["y"], rtol=1e-5, atol=1e-6)
        return
    wanted = trained_alone(step_of(graph), batch, 2)
    for states in found:
        for name, value in states.items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("network", NETWORKS)
def test_gpus_of_a_plan_do_not_wait_for_each_other(network: str, devices: int, tmp_path: Path) -> None:
    """Kernels that are bundled or fused need no message that they did not need alone."""
    graph = NETWORKS[network]()
    model = operations(graph)
    splits = splits_of(model, data_parallel(model, machine(f"host:{devices}")))
    programs = rank_programs(graph, TRAIN, splits, devices, target("cuda:sm_80"), Settings(cache_dir=tmp_path))
    assert len(programs.executables()) == devices
