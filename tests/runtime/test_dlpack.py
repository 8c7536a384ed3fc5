import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import burnish as bn
from burnish.errors import InputError
from burnish.graph.graph import GraphBuilder
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.dlpack import from_dlpack


class Owner(np.ndarray):
    """An array that weak references can watch."""


def test_a_view_shares_memory_and_keeps_it_alive() -> None:
    source = np.arange(12, dtype=np.float32).reshape(3, 4).view(Owner)
    alive = weakref.ref(source)
    view = from_dlpack(source)
    assert type(view) is np.ndarray and np.shares_memory(view, source)
    part = view[1:]
    del source, view
    gc.collect()
    assert alive() is not None
    assert part[0, 0] == 4
    del part
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "name", ["float16", "float32", "float64", "int8", "int64", "uint8", "uint32", "bool", "complex64"]
)
def test_dtypes(name) -> None:
    source = np.arange(6).astype(name).reshape(2, 3)
    view = from_dlpack(source)
    assert view.dtype == source.dtype and np.array_equal(view, source)


@pytest.mark.parametrize("index", [np.s_[:, ::2], np.s_[1:, 1:], np.s_[::-1], np.s_[0, 0], np.s_[:0]])
def test_strides(index) -> None:
    source = np.arange(24, dtype=np.int32).reshape(4, 6)[index]
    if source.ndim == 0:
        source = np.asarray(source)
    assert np.array_equal(from_dlpack(source), source)


def test_refusals() -> None:
    class Unwilling:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self) -> object:
            raise BufferError("it requires gradients")

    with pytest.raises(InputError, match=r"Unwilling\.__dlpack__ failed: it requires gradients"):
        from_dlpack(Unwilling())
    with pytest.raises(InputError, match="list is no tensor that DLPack can share"):
        from_dlpack([1.0])


def test_torch_tensors() -> None:
    import torch

    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    view = from_dlpack(tensor.T)
    assert np.array_equal(view, tensor.numpy().T)
    tensor[0, 1] = 50
    assert view[1, 0] == 50
    half = from_dlpack(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert half.dtype == ml_dtypes.bfloat16 and half.tolist() == [1.5, -2.0]
    with pytest.raises(InputError, match=r"Tensor\.__dlpack__ failed"):
        from_dlpack(torch.ones(2, requires_grad=True))


def test_a_lazily_negated_view_of_torch_has_its_sign() -> None:
    import torch

    negated = torch._neg_view(torch.arange(4.0))
    np.testing.assert_array_equal(from_dlpack(negated), [0, -1, -2, -3])
    imaginary = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    np.testing.assert_array_equal(from_dlpack(imaginary), [-2, 4])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "bool", "int8", "uint16", "int64"])
def test_torch_tensors_of_every_dtype_and_layout_are_inputs(name: str) -> None:
    """Whatever lies otherwise in memory is copied; what holds no numbers is refused by name."""
    import torch

    b = GraphBuilder()
    module = bn.compile(b.build(b.add("transpose", b.input("x", (3, 4), name), perm=(1, 0))), threads=1)
    dtype = getattr(torch, name)
    plain = torch.arange(12).reshape(3, 4).to(dtype)
    layouts = [plain, plain.T.contiguous().T, plain.repeat_interleave(2, 1)[:, ::2], plain[:1].expand(3, 4)]
    if dtype.is_floating_point:
        layouts.append(torch._neg_view(plain))
    for tensor in layouts:
        want = tensor.to(torch.float64).resolve_neg().numpy().T
        np.testing.assert_array_equal(module(tensor).astype(float), want)
        out = np.empty((4, 3), numpy_dtype(name))
        module.run_into([tensor], [out])
        np.testing.assert_array_equal(out.astype(float), want)
        np.testing.assert_array_equal(bn.nd.array(tensor).numpy().astype(float), want.T)
    for refused in [plain.to("meta"), plain[:2], plain.to(torch.complex64), torch.ones(3, 4).to_sparse()]:
        with pytest.raises(InputError, match="input 'x'"):
            module(refused)
    with pytest.raises(InputError, match="is a Tensor, allowed: a NumPy array"):
        module.run_into([plain], [plain])
