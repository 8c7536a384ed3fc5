"""Arrays in a GPU's memory as inputs and outputs, by a driver on this CPU: used where they are, checked, exported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import burnish as bn
from burnish.codegen.gridcode import GridCode
from burnish.errors import InputError
from burnish.graph import GraphBuilder
from burnish.runtime.buffers import address_of
from burnish.runtime.device import bytes_at, unpacked
from burnish.runtime.dlpack import _exported, exported, tensor_of
from burnish.runtime.gpu import cuda
from burnish.runtime.gpu.arrays import GpuArray, is_on_gpu
from burnish.runtime.gpu.driver import Gpu
from tests.gpu.driver import EmulatedDriver, emulated_gpu

SHAPE = (4, 32)
X = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)


class Foreign:
    """An array of another library, by the CUDA array interface."""

    def __init__(self, gpu: Gpu, data: np.ndarray, shift: int = 0, **changes: Any) -> None:
        self.held = GpuArray(gpu, (data.nbytes + shift,), np.dtype(np.uint8))
        self.place = self.held.place + shift
        bytes_at(self.place, data.nbytes)[:] = data.reshape(-1).view(np.uint8)
        found = {"shape": data.shape, "typestr": data.dtype.str, "data": (self.place, False), "version": 3}
        self.__cuda_array_interface__ = {**found, "strides": None, **changes}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``y = relu(x) + z``, ``w = -x``: two inputs, two outputs."""
    b = GraphBuilder()
    x, z = b.input("x", SHAPE), b.input("z", SHAPE)
    y, w = b.add("add", b.add("relu", x), z), b.add("neg", x)
    return bn.compile(b.build(y, w), target="cuda:sm_80", cache_dir=tmp_path_factory.mktemp("cache")).executable


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, compiled: Any) -> Iterator[tuple[bn.Module, Gpu, EmulatedDriver]]:
    codes = [GridCode.unpacked(code) for code in unpacked(compiled.code).values()]
    gpu, driver = emulated_gpu(monkeypatch, codes)
    monkeypatch.setattr(cuda, "first_gpu", lambda: gpu)
    yield bn.Module(compiled), gpu, driver
    assert not driver.races


Running = tuple[bn.Module, Gpu, EmulatedDriver]


def test_inputs_are_read_where_they_are_and_outputs_stay(running: Running) -> None:
    m, gpu, driver = running
    x, z = Foreign(gpu, X), Foreign(gpu, 2 * X)
    y, w = m(x, z)
    assert is_on_gpu(y) and isinstance(w, GpuArray)
    np.testing.assert_array_equal(np.asarray(y), np.maximum(X, 0) + 2 * X)
    np.testing.assert_array_equal(w.numpy(), -X)
    driver.calls.clear()
    again = m(y, z=X)  # what it gave is taken back; the other is copied from here
    assert "cuMemcpyDtoDAsync" not in driver.calls and driver.calls.count("cuMemcpyHtoDAsync") == 1
    np.testing.assert_array_equal(again[1].numpy(), -y.numpy())
    assert isinstance(m(X, X)[0], np.ndarray)  # all from here: back here


def test_outputs_are_written_where_they_are_asked_for(running: Running) -> None:
    m, gpu, driver = running
    x, y, w = (Foreign(gpu, a) for a in (X, 0 * X, 0 * X))
    for turn in range(3):  # launches, then a graph, which is replayed
        driver.calls.clear()
        bytes_at(y.place, X.nbytes)[:] = 0xFF
        m.run_into([x, x], [y, w])
        np.testing.assert_array_equal(bytes_at(y.place, X.nbytes).view(np.float32), (np.maximum(X, 0) + X).reshape(-1))
        assert ("cuGraphLaunch" in driver.calls, "cuLaunchKernel" in driver.calls) == (turn > 0, turn < 2)
    with pytest.raises(InputError, match="shares memory with another array"):
        m.run_into([x, x], [y, y])
    with pytest.raises(InputError, match="shares memory"):
        m.run_into([x, x], [x, w])


def test_an_array_that_is_at_no_multiple_of_a_vector_is_copied(running: Running) -> None:
    m, gpu, driver = running
    odd, z = Foreign(gpu, X, shift=4), Foreign(gpu, X)
    driver.calls.clear()
    y, _ = m(odd, z)
    assert driver.calls.count("cuMemcpyDtoDAsync") == 1
    np.testing.assert_array_equal(y.numpy(), np.maximum(X, 0) + X)
    out = [Foreign(gpu, X, shift=8), Foreign(gpu, X)]
    m.run_into([z, z], out)
    np.testing.assert_array_equal(bytes_at(out[0].place, X.nbytes).view(np.float32), y.numpy().reshape(-1))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"shape": (4, 16)}, r"input 'x' is float32\[4, 16\] on a GPU, allowed: float32\[4, 32\]"),
        ({"typestr": "<i4"}, r"input 'x' is int32\[4, 32\] on a GPU"),
        ({"strides": (4, 16)}, r"input 'x': array of a GPU with strides \[1, 4\], allowed: \[32, 1\]"),
    ],
)
def test_other_arrays_are_refused(running: Running, changes: dict[str, Any], found: str) -> None:
    m, gpu, _ = running
    with pytest.raises(InputError, match=found):
        m(Foreign(gpu, X, **changes), X)


def test_the_stream_of_an_array_is_waited_for(running: Running) -> None:
    m, gpu, driver = running
    x, stream = Foreign(gpu, X), int(gpu.ask("cuStreamCreate", 1))
    x.__cuda_array_interface__["stream"] = stream
    assert driver.others(stream, writes=[x.place]) == 0
    m(x, X)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, ml_dtypes.bfloat16])
def test_exported_tensors_keep_the_memory_until_they_go(running: Running, dtype: Any) -> None:
    _, gpu, driver = running
    before, exports = len(driver.memory), len(_exported)
    array = GpuArray(gpu, (2, 3), np.dtype(dtype))
    bytes_at(array.place, array.nbytes)[:] = 1
    assert array.__dlpack_device__() == (2, 0)
    place, shape, strides, kind, capsule = tensor_of(array, 1)
    assert (place, shape, strides, kind) == (array.place, (2, 3), (3, 1), np.dtype(dtype))
    assert hasattr(array, "__cuda_array_interface__") == (dtype is not ml_dtypes.bfloat16)
    del array
    assert len(driver.memory) == before + 1 and len(_exported) == exports + 1
    del capsule
    gpu.pool.clear()
    assert len(driver.memory) == before and len(_exported) == exports


def test_arrays_of_a_gpu_are_no_inputs_of_a_cpu(running: Running, tmp_path: Path) -> None:
    _, gpu, _ = running
    b = GraphBuilder()
    here = bn.compile(b.build(b.add("relu", b.input("x", SHAPE))), cache_dir=tmp_path)
    with pytest.raises(InputError, match="allowed: CPU memory"):
        here(GpuArray(gpu, SHAPE, np.dtype(np.float32)))
    assert not is_on_gpu(X) and not is_on_gpu(3.0)
    assert address_of(X)


def test_the_stream_of_a_library_is_waited_for_once_a_call(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    m, gpu, _ = running
    asked = list[Any]()

    class Tensor:
        """A tensor of a library, by DLPack."""

        def __init__(self) -> None:
            self.array = Foreign(gpu, X)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, *, stream: int) -> Any:
            asked.append(stream)
            return exported(self.array.place, SHAPE, X.dtype, (2, 0), self)

    y, _ = m(Tensor(), Tensor())
    np.testing.assert_array_equal(y.numpy(), np.maximum(X, 0) + X)
    assert asked == [int(m._runner._loaded.gpu.stream), -1]  # type: ignore[union-attr]
    monkeypatch.setattr(Tensor, "__dlpack_device__", lambda self: (2, 1))
    with pytest.raises(InputError, match="input 'x': array of GPU 1, allowed: of the first one"):
        m(Tensor(), X)


def test_a_network_takes_tensors_on_a_gpu_and_gives_them_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    class There(torch.Tensor):  # type: ignore[misc,name-defined]
        """A tensor that says that it lies on the first GPU, whose memory is here."""

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, *, stream: int) -> Any:
            del stream
            return exported(self.data_ptr(), tuple(self.shape), np.dtype(np.float32), (2, 0), self)

    class Network(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, more: dict[str, Any]) -> Any:
            return {"sum": torch.relu(x) + more["z"], "neg": -x}

    def there(array: np.ndarray) -> Any:
        return torch.from_numpy(array).as_subclass(There)

    example = torch.zeros(SHAPE)
    compiled = bn.compile(Network(), (example, {"z": example}), target="cuda:sm_80", cache_dir=tmp_path)
    assert isinstance(compiled, bn.Module)
    gpu, driver = emulated_gpu(
        monkeypatch, [GridCode.unpacked(code) for code in unpacked(compiled.executable.code).values()]
    )
    monkeypatch.setattr(cuda, "first_gpu", lambda: gpu)
    monkeypatch.setattr(torch, "from_dlpack", lambda array: there(array.numpy()))
    wanted = Network()(torch.from_numpy(X), {"z": torch.from_numpy(2 * X)})
    x = there(np.ascontiguousarray(X.T)).T.requires_grad_()  # not contiguous, and with a gradient
    compiled(x, {"z": x})  # everything is loaded
    for z in (there(2 * X), torch.from_numpy(2 * X)):
        driver.calls.clear()
        found = compiled(x, {"z": z})
        assert driver.calls.count("cuMemcpyHtoDAsync") == int(type(z) is torch.Tensor)
        for name in ("sum", "neg"):
            assert type(found[name]) is There
            np.testing.assert_array_equal(np.asarray(found[name]), wanted[name].numpy())
    here = compiled(torch.from_numpy(X), more={"z": torch.from_numpy(2 * X)})
    assert type(here["neg"]) is torch.Tensor and torch.equal(here["neg"], wanted["neg"])
    y, w = there(np.zeros_like(X)), there(np.zeros_like(X))
    compiled.run_into([x, there(2 * X)], [y, w])
    np.testing.assert_array_equal(np.asarray(y), wanted["sum"].numpy())
    compiled.close()
    gpu.pool.clear()
    assert not driver.memory and not driver.races  # parameters, arena and copies of inputs are freed
