"""PyTorch's tensors on a GPU, by a driver on this CPU: compiled networks and graphs of torch.compile run on them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import burnish as bn
from burnish.codegen.gridcode import GridCode
from burnish.driver import tensors
from burnish.frontend.torch.dtypes import on_cpu
from burnish.runtime.dlpack import exported
from burnish.runtime.gpu import cuda, driver, streams
from burnish.torch import dynamo
from tests.gpu.driver import EmulatedDriver, emulated_gpu

SHAPE = (4, 32)
X = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
CALL = ["cuCtxSetCurrent", "cuStreamIsCapturing", "cuGraphLaunch", "cuEventRecord"]


class There(torch.Tensor):  # type: ignore[misc]
    """A tensor that says that it lies on the first GPU, whose memory is here."""

    is_cuda, is_cpu = True, False
    device = torch.device("cuda", 0)

    def get_device(self) -> int:
        return 0

    def cpu(self) -> Any:
        return self.as_subclass(torch.Tensor).clone()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int) -> Any:
        del stream
        return exported(self.data_ptr(), tuple(self.shape), np.dtype(np.float32), (2, 0), self)


def there(array: np.ndarray) -> Any:
    return torch.from_numpy(array.copy()).as_subclass(There)


def here(tensor: Any) -> np.ndarray:
    return tensor.detach().as_subclass(torch.Tensor).numpy()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[driver.Gpu, EmulatedDriver, int]]:
    """The GPU, its driver, and the stream that torch asks."""
    made, emulated = emulated_gpu(monkeypatch, [])
    load = driver.Gpu.module

    def module(self: driver.Gpu, code: GridCode) -> Any:
        emulated.codes |= {code.ptx.encode() + b"\0": code} | ({code.cubin: code} if code.cubin else {})
        return load(self, code)

    stream, empty = int(made.ask("cuStreamCreate", 1)), torch.empty
    blocks: dict[Any, Any] = {}  # in turn, as torch gives memory again

    def new(shape: Any, *, dtype: Any, device: Any = None) -> Any:
        if device is None:
            return empty(shape, dtype=dtype)
        if (shape, dtype) not in blocks:
            blocks[shape, dtype] = cycle([empty(shape, dtype=dtype) for _ in range(4)])
        return next(blocks[shape, dtype]).as_subclass(There)

    class Kinds(tuple[type, ...]):
        def __contains__(self, kind: object) -> bool:
            return kind is There or super().__contains__(kind)

    take = tensors.TensorModule._take_tensors

    def taken(self: Any) -> None:
        take(self)
        self._plain, self._empty = Kinds(self._plain), new

    monkeypatch.setattr(driver.Gpu, "module", module)
    monkeypatch.setattr(tensors.TensorModule, "_take_tensors", taken)
    for place in (tensors, streams):
        monkeypatch.setattr(place, "current_stream", lambda: lambda number: stream)
    for place in (cuda, driver):
        monkeypatch.setattr(place, "first_gpu", lambda: made)
    monkeypatch.setattr(torch, "from_dlpack", lambda array: there(array.numpy()))
    yield made, emulated, stream
    assert not emulated.races


class Network(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any, z: Any) -> Any:
        return torch.relu(x) + z, -x


def test_calls_are_one_launch_on_the_stream_that_torch_asks(gpu: Any, tmp_path: Path) -> None:
    """Nothing is copied, allocated or waited for; results are in memory of torch's."""
    _, emulated, stream = gpu
    example = torch.zeros(SHAPE)
    m = bn.compile(Network(), (example, example), target="cuda:sm_80", cache_dir=tmp_path)
    x, z = there(X), there(2 * X)
    for _ in range(6):  # results lie in two places in turn
        emulated.calls.clear()
        assert emulated.others(stream, writes=[x.data_ptr()]) == 0
        y, w = m(x, z)
        assert emulated.others(stream, reads=[y.data_ptr(), w.data_ptr()]) == 0
    assert emulated.calls == CALL
    assert type(y) is There
    np.testing.assert_array_equal(here(y), np.maximum(X, 0) + 2 * X)
    np.testing.assert_array_equal(here(w), -X)
    odd = there(np.zeros(129, np.float32))[1:].view(SHAPE)  # at no multiple of what threads move
    np.testing.assert_array_equal(here(m(x, odd)[0]), np.maximum(X, 0))
    mixed = m(x, torch.from_numpy(X))
    np.testing.assert_array_equal(here(mixed[1]), -X)
    np.testing.assert_array_equal(m(torch.from_numpy(X), torch.from_numpy(X))[1].numpy(), -X)


def test_a_loaded_file_takes_tensors_on_the_stream_that_torch_asks(gpu: Any, tmp_path: Path) -> None:
    _, emulated, stream = gpu
    example = torch.zeros(SHAPE)
    bn.compile(Network(), (example, example), target="cuda:sm_80", cache_dir=tmp_path).save(tmp_path / "m.bn")
    m, x = bn.load(tmp_path / "m.bn"), there(X)
    m(x, x)
    emulated.calls.clear()
    assert emulated.others(stream, writes=[x.data_ptr()]) == 0
    y, _ = m(x, x)
    assert emulated.others(stream, reads=[y.place]) == 0 and "cuStreamSynchronize" not in emulated.calls
    np.testing.assert_array_equal(y.numpy(), np.maximum(X, 0) + X)


def graph_of(function: Any, *shapes: tuple[int, ...]) -> Any:
    """The graph of a function of tensors on a GPU, as AOT autograd hands it over; no GPU is needed."""
    with FakeTensorMode():
        return make_fx(function)(*(torch.empty(shape, device="cuda") for shape in shapes))


def compiled_graph(function: Any, *shapes: tuple[int, ...], **options: Any) -> dynamo.CompiledGraph:
    return dynamo.CompiledGraph(graph_of(function, *shapes), (), dynamo._read(options))


def test_graphs_on_a_gpu_are_compiled_for_it(gpu: Any, tmp_path: Path) -> None:
    def function(x: Any, z: Any) -> Any:
        steps = torch.arange(32, device=x.device, dtype=x.dtype)
        return torch.relu(x) + z * steps, torch.exp(x.T)

    run = compiled_graph(function, SHAPE, SHAPE, cache_dir=str(tmp_path))
    x, z = there(X), there(2 * X)
    found = run([x, z])
    assert run._record.whole and [part.kernels for part in run._record.parts]
    for own, wanted in zip(found, function(torch.from_numpy(X), torch.from_numpy(2 * X)), strict=True):
        assert type(own) is There
        np.testing.assert_allclose(here(own), wanted.numpy(), rtol=1e-6)


def test_what_is_elsewhere_is_left_to_torch(gpu: Any, tmp_path: Path) -> None:
    """A result on the CPU, and operators that are not known, beside parts on the GPU."""

    def function(x: Any) -> Any:
        y = torch.relu(x) * 2 + 1
        return y.cpu(), torch.exp(torch.sort(y)[0]) * 3

    run = compiled_graph(function, SHAPE, cache_dir=str(tmp_path))
    dynamo._warned.clear()
    with pytest.warns(UserWarning, match="burnish: torch runs operators of a graph") as found:
        host, result = run([there(X)])
        run([there(X)])
    assert len(found) == 1
    wanted = function(torch.from_numpy(X))
    np.testing.assert_allclose(here(host), wanted[0].numpy(), rtol=1e-6)
    np.testing.assert_allclose(here(result), wanted[1].numpy(), rtol=1e-5)
    assert run._record.parts and not run._record.whole


@pytest.mark.parametrize(
    ("target", "reason"),
    [("cpu", "target: found 'cpu' for tensors on cuda:0; allowed: None, or that of a GPU"), (None, "no NVIDIA GPU")],
)
def test_graphs_that_no_gpu_runs_are_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, target: str | None, reason: str
) -> None:
    def absent() -> Any:
        raise bn.errors.TargetError("this machine has no NVIDIA GPU with a driver")

    monkeypatch.setattr(driver, "first_gpu", absent)
    run = compiled_graph(lambda x: torch.relu(x) + 1, SHAPE, target=target)
    dynamo._warned.clear()
    with pytest.warns(UserWarning, match="torch runs operators"):
        found = run([there(X)])
    np.testing.assert_array_equal(here(found), np.maximum(X, 0) + 1)
    assert reason in str(run._record)


def test_constants_of_a_gpu_are_computed_here() -> None:
    assert on_cpu(torch.device("cuda", 1)) == torch.device("cpu") and on_cpu(3) == 3
    assert type(on_cpu(there(X))) is torch.Tensor
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert on_cpu([torch.device("cuda")]) == [torch.device("cuda")]
