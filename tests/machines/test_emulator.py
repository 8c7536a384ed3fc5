"""Code for ARM CPUs in an emulator: the answers of definitions, forbidden pages, modules for absent machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from benchmarks import layers
from benchmarks.emulated import measure, smaller
from burnish.errors import ArtifactError, TargetError
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.machines.target import host
from burnish.measure.accuracy import scaled_error
from burnish.runtime.device import address_of
from burnish.runtime.module import Module
from burnish.simulators.emulator import CpuEmulator, _laid_out

TARGETS = ("aarch64-cortex-a53", "aarch64-neoverse-n1")


def block() -> Graph:
    """Attention over 7 rows, a normalization, and a product with an activation."""
    random = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", (7, 24))
    q, k, v = (b.add("matmul", x, b.constant(random.standard_normal((24, 24)).astype("float32") / 5)) for _ in range(3))
    weights = b.add("softmax", b.add("matmul", q, b.add("transpose", k, perm=(1, 0))), axis=1)
    y = b.add("add", x, b.add("matmul", weights, v))
    scale, bias = (b.constant(random.standard_normal(24).astype("float32")) for _ in range(2))
    y = b.add("layer_norm", y, scale, bias, axis=1)
    return b.build(b.add("gelu", b.add("matmul", y, b.constant(random.standard_normal((24, 50)).astype("float32")))))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["C2", "C3", "D2", "D9"])
def test_layers_are_right(name: str, target: str) -> None:
    row = measure(smaller(layers.LAYERS[name], 9), target, exact=False)
    assert row.error <= 1e-5
    assert row.instructions > 1000
    assert 0 < row.share <= row.inner_share * 1.5


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("name", layers.LAYERS)
def test_every_layer_is_right(name: str, exact: bool) -> None:
    assert measure(smaller(layers.LAYERS[name], 14), TARGETS[0], exact).error <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_whole_networks_are_right(name: str) -> None:
    import torch

    from benchmarks import models

    network, _ = models.network(name)
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    executable = bn.compile(network, (x,), target=TARGETS[0], threads=1).executable
    found = Module(executable, 1, device=CpuEmulator())(x.numpy())
    with torch.no_grad():
        assert scaled_error([found], [network(x).numpy()]) <= 1e-4


@pytest.mark.parametrize("target", TARGETS)
def test_a_block_of_a_transformer_is_right_after_save_and_load(target: str, tmp_path: Path) -> None:
    graph = block()
    module = bn.compile(graph, target=target, threads=2)
    module.save(tmp_path / "model.bn")
    x = np.random.default_rng(1).standard_normal((7, 24)).astype("float32")
    (wanted,) = evaluate(graph, {"x": x}).values()
    assert scaled_error([bn.load(tmp_path / "model.bn", device=CpuEmulator())(x)], [wanted]) <= 1e-5


def test_a_module_for_an_absent_machine_is_saved_and_not_called(tmp_path: Path) -> None:
    absent = TARGETS[0] if host().triple.startswith("x86") else "x86-64-v3"
    module = bn.compile(block(), target=absent)
    assert module.inputs[0].shape == (7, 24)
    module.save(tmp_path / "model.bn")
    with pytest.raises(ArtifactError, match="compile it for this machine, or save it and load it there"):
        module(np.zeros((7, 24), np.float32))
    with pytest.raises(ArtifactError, match="was compiled for"):
        bn.load(tmp_path / "model.bn")


def test_a_kernel_that_leaves_its_memory_is_named() -> None:
    executable = bn.compile(block(), target=TARGETS[0], threads=1).executable
    emulator = CpuEmulator()
    code = emulator.kernels(executable.code)
    step = executable.steps[0]
    short = [np.zeros(4, np.uint8) for _ in step.args]  # type: ignore[union-attr]
    with pytest.raises(TargetError, match=f"kernel '{step.kernel}'"):  # type: ignore[union-attr]
        emulator.run(code[step.kernel], short)  # type: ignore[union-attr]
    for machine, counted, allowed in (
        ("ppc64le", False, "aarch64, riscv64, x86_64"),
        ("x86_64", True, "aarch64, riscv64"),
    ):
        with pytest.raises(TargetError, match=f"found code for {machine}; allowed: {allowed}$"):
            CpuEmulator(count=counted).kernels(replace(executable.code, machine=machine))


def test_buffers_that_overlap_still_do() -> None:
    whole, other = np.zeros(5000, np.uint8), np.zeros(100, np.uint8)
    views = [whole[:4000], other, whole[3000:]]
    places, pages = _laid_out([(address_of(v), v.nbytes) for v in views])
    assert places[2] - places[0] == 3000
    assert len(pages) == 2
    for place, view in zip(places, views, strict=True):
        assert any(begin <= place and place + view.nbytes <= begin + nbytes for begin, nbytes in pages)


@pytest.mark.parametrize("rows", [1, 5, 9])
def test_a_module_of_open_dimensions_runs_on_a_device(tmp_path: Path, rows: int) -> None:
    b, n = GraphBuilder(), dim("n", 1, 9)
    x = b.input("x", (n, 24), "float32")
    w = b.constant(np.random.default_rng(0).standard_normal((24, 16)).astype("float32"))
    y = b.add("softmax", b.add("matmul", x, w), axis=1)
    graph = b.build(b.add("reduce_sum", y, axes=(0,), keepdims=True), y)
    bn.compile(graph, target=TARGETS[0], threads=1).save(tmp_path / "model.bn")
    value = np.random.default_rng(rows).standard_normal((rows, 24)).astype("float32")
    found = bn.load(tmp_path / "model.bn", device=CpuEmulator())(value)
    wanted = bn.compile(graph, threads=1)(value)
    assert scaled_error(found, wanted) <= 1e-5


def test_a_training_step_for_an_absent_machine_is_saved(tmp_path: Path) -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 8), "float32")
    w = b.constant(np.random.default_rng(0).standard_normal((8, 3)).astype("float32"), "w")
    graph = b.build(b.add("matmul", x, w))
    train = bn.Train(bn.CrossEntropy(), bn.SGD(0.1))
    bn.compile(graph, train=train, target=TARGETS[0], threads=1).save(tmp_path / "step.bn")
    rng = np.random.default_rng(1)
    batches = [(rng.standard_normal((4, 8)).astype("float32"), rng.integers(0, 3, 4)) for _ in range(3)]
    there, here = bn.load(tmp_path / "step.bn", device=CpuEmulator()), bn.compile(graph, train=train, threads=1)
    assert scaled_error([there(*batch) for batch in batches], [here(*batch) for batch in batches]) <= 1e-5
