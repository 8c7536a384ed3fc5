"""Convolutions on tensor cores: images channels last, in halves, bytes, and float32 where TF32 is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import burnish as bn
from burnish.codegen.ptxas import find_ptxas
from burnish.driver.compilation import compile_kernels
from burnish.errors import ParameterError, TargetError
from burnish.graph import Graph, GraphBuilder
from burnish.graph.channels import padded_channels
from burnish.machines.target import target
from burnish.simulators.gpu.emulator import emulated
from tests.marks import slow
from tools.launches import KernelWork, LaunchTotals, counted, totals

KINDS: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def resnet18(batch: int, dtype: str = "float16") -> Graph:
    """ResNet-18 (He et al. 2016) with folded batch norms."""
    b = GraphBuilder()

    def weight(*shape: int) -> str:
        return b.constant(np.full(shape, 0.01, dtype))

    def conv(x: str, ins: int, outs: int, k: int, stride: int = 1) -> str:
        y = b.add("conv2d", x, weight(outs, ins, k, k), pads=(k // 2,) * 4, strides=(stride,) * 2)
        return b.add("add", y, weight(outs, 1, 1))

    x = b.add("relu", conv(b.input("x", (batch, 3, 224, 224), dtype), 3, 64, 7, 2))
    x = b.add("max_pool2d", x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    ins = 64
    for outs in (64, 128, 256, 512):
        for number in range(2):
            stride = 2 if number == 0 and outs > 64 else 1
            y = conv(b.add("relu", conv(x, ins, outs, 3, stride)), outs, outs, 3)
            x = b.add("relu", b.add("add", y, x if ins == outs else conv(x, ins, outs, 1, stride)))
            ins = outs
    x = b.add("reshape", b.add("reduce_mean", x, axes=(2, 3)), shape=(batch, 512))
    return b.build(b.add("add", b.add("matmul", x, weight(512, 1000)), weight(1000)))


def work_of(machine: str, batch: int, dtype: str = "float16", assembled: bool = False) -> LaunchTotals:
    noted: dict[str, KernelWork] = {}
    made = compile_kernels(resnet18(batch, dtype), target(machine), make=counted(noted, assembled))
    return totals(made, noted)


def test_tensor_cores_compute_resnet18() -> None:
    found = work_of("cuda:sm_90a", 64)
    assert found.tensor >= 0.95 and found.launches <= 26
    assert 117 < found.gflops / 2 < 120


@pytest.mark.slow
@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("machine", ["cuda:sm_80", "cuda:sm_90a", "cuda:sm_90a,tf32"])
@pytest.mark.parametrize("batch", [1, 64])
def test_resnet18_is_assembled_and_spills_nothing(machine: str, batch: int) -> None:
    found = work_of(machine, batch, "float32" if "tf32" in machine else "float16", assembled=True)
    assert found.tensor >= 0.95 and found.spilled == 0 and 0 < found.registers <= 255


def network(name: str, cast: Any) -> tuple[Graph, np.ndarray]:
    """One small network with an image; ``cast`` makes arrays of its type, and names that."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    dtype, own = cast

    def weight(*shape: int) -> str:
        scale = max(np.prod(shape[1:]), 1) ** -0.5
        return b.constant((rng.standard_normal(shape) * scale).astype(own).astype(numpy_of(dtype)))

    shape = {"stem": (1, 3, 9, 8), "grouped": (2, 32, 5, 4), "phases": (2, 16, 7, 7)}.get(name, (1, 24, 6, 5))
    image = rng.standard_normal(shape).astype(own)
    x = b.input("x", shape, dtype)
    if name == "stem":
        y = b.add("relu", b.add("conv2d", x, weight(16, 3, 5, 5), pads=(2, 2, 2, 2), strides=(2, 2)))
        y = b.add("max_pool2d", y, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    elif name == "grouped":
        y = b.add("add", b.add("conv2d", x, weight(32, 16, 3, 3), pads=(1, 1, 1, 1), groups=2), weight(32, 1, 1))
    elif name == "phases":
        y = b.add("conv2d_transpose", x, weight(16, 40, 4, 4), strides=(2, 2), pads=(1, 1, 1, 1))
    else:
        y = b.add("relu", b.add("conv2d", x, weight(24, 1, 3, 3), pads=(1, 1, 1, 1), groups=24))
        y = b.add("add", b.add("conv2d", y, weight(24, 24, 1, 1)), x)
        y = b.add("reduce_mean", y, axes=(2, 3))
    return b.build(y), image


def numpy_of(dtype: str) -> Any:
    return KINDS.get(dtype, np.float32)


@pytest.mark.parametrize(
    ("name", "dtype", "machine", "expected"),
    [
        ("stem", "float16", "cuda:sm_80", "tensor_product"),
        ("grouped", "bfloat16", "cuda:sm_80", "tensor_product"),
        pytest.param("phases", "float16", "cuda:sm_90a", "_product", marks=pytest.mark.slow),
        ("residual", "bfloat16", "cuda:sm_90a", "_product"),
        pytest.param("grouped", "float32", "cuda:sm_90a,tf32", "_product", marks=pytest.mark.slow),
    ],
)
def test_convolutions_are_right_on_coroutines(
    name: str, dtype: str, machine: str, expected: str, tmp_path: Path
) -> None:
    """Within a few roundings of the type's; TF32 has the digits of float16."""
    own = numpy_of(dtype)
    graph, image = network(name, (dtype, own))
    reference, _ = network(name, ("float32", own))
    module = bn.compile(graph, target=emulated(target(machine)), cache_dir=tmp_path)
    used = {str(row["template"]) for row in module.executable.info["kernels"]}
    assert any(expected in template for template in used) and "launches" not in used
    wanted = bn.compile(reference, exact=True, cache_dir=tmp_path)(image.astype("f4"))
    error = np.max(np.abs(np.asarray(module(image)).astype("f4") - wanted)) / np.max(np.abs(wanted))
    assert error < 4 * 2 ** (-8 if dtype == "bfloat16" else -11)


@pytest.mark.parametrize("left", slow(["int8", "uint8"], "int8"))
def test_bytes_are_multiplied_exactly(left: str, tmp_path: Path) -> None:
    rng, b = np.random.default_rng(0), GraphBuilder()
    low, high = np.iinfo(left).min, np.iinfo(left).max
    image = rng.integers(low, high, (1, 32, 5, 5), left, endpoint=True)
    x = b.input("x", image.shape, left)
    graph = b.build(b.add("conv2d", x, b.constant(rng.integers(-128, 128, (16, 32, 3, 3), "int8")), pads=(1, 1, 1, 1)))
    module = bn.compile(graph, target=emulated(target("cuda:sm_90a")), cache_dir=tmp_path)
    assert not {"shared_product", "launches"} & {row["template"] for row in module.executable.info["kernels"]}
    np.testing.assert_array_equal(module(image), bn.compile(graph, cache_dir=tmp_path)(image))


def test_many_means_of_channels_have_a_thread_each() -> None:
    b = GraphBuilder()
    x = b.input("x", (64, 64, 7, 7), "float16")
    y = b.add("conv2d", x, b.constant(np.ones((512, 64, 1, 1), "float16")))
    graph, noted = b.build(b.add("reduce_mean", y, axes=(2, 3))), dict[str, KernelWork]()
    compile_kernels(graph, target("cuda:sm_90a"), make=counted(noted))
    assert "columns" in {work.template for work in noted.values()}


def test_few_channels_are_padded_to_pieces() -> None:
    assert [padded_channels(n, 2) for n in (1, 3, 5, 9)] == [2, 4, 8, 16]
    assert [padded_channels(n, 1) for n in (1, 3)] == [4, 4]


def test_a_precision_is_named_where_it_is_asked_for(tmp_path: Path) -> None:
    b = GraphBuilder()
    graph = b.build(b.add("matmul", b.input("x", (64, 64)), b.constant(np.ones((64, 64), "f4"))))
    strict = bn.compile(graph, target="cuda:sm_90a", cache_dir=tmp_path)
    rounded = bn.compile(graph, target="cuda:sm_90a", precision="tf32", cache_dir=tmp_path)
    named = bn.compile(graph, target="cuda:sm_90a,tf32", cache_dir=tmp_path)
    assert "precision tf32" in repr(rounded) and "precision" not in repr(strict)
    assert rounded.executable.code == named.executable.code != strict.executable.code
    assert strict.executable.target == rounded.executable.target
    with pytest.raises(ParameterError, match=r"precision.*'tf32'.*allowed: 'strict' for target 'cpu'"):
        bn.compile(graph, precision="tf32")
    with pytest.raises(TargetError, match="found precision 'tf33'; allowed: 'strict', 'tf32'"):
        target("cuda:sm_90a").with_precision("tf33")
