import gc

import ml_dtypes
import numpy as np
import pytest

from burnish.runtime.buffers import HUGE_PAGE, address_of, aligned, aligned_array, allocate, numpy_dtype


@pytest.mark.parametrize("nbytes", [0, 1, 63, 4096, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5])
def test_memory_is_aligned_writable_and_of_its_own(nbytes) -> None:
    first, second = allocate(nbytes), allocate(nbytes)
    for memory in (first, second):
        assert memory.nbytes == nbytes and memory.dtype == np.uint8
        assert address_of(memory) % (HUGE_PAGE if nbytes >= HUGE_PAGE else 64) == 0
    first[:] = 1
    second[:] = 2
    assert (first == 1).all()


def test_a_view_keeps_large_memory_alive() -> None:
    view = allocate(2 * HUGE_PAGE)[-4:]
    view[:] = 7
    gc.collect()
    assert view.tolist() == [7] * 4


@pytest.mark.parametrize("shape", [(), (0,), (5, 3), (2, 0, 4), (1000,)])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "bool"])
def test_arrays_are_aligned(shape, name) -> None:
    array, address = aligned_array(shape, numpy_dtype(name))
    assert array.shape == shape and array.dtype == numpy_dtype(name)
    assert address == address_of(array) and address % 64 == 0
    assert array.flags.c_contiguous and array.flags.writeable


def test_only_misaligned_bytes_are_copied() -> None:
    memory = allocate(200)
    memory[:] = np.arange(200)
    assert aligned(memory) is memory
    moved = aligned(memory[1:])
    assert address_of(moved) % 64 == 0 and np.array_equal(moved, memory[1:])
    assert np.array_equal(aligned(memory[::2]), memory[::2])


def test_dtype_names() -> None:
    assert numpy_dtype("bfloat16") == ml_dtypes.bfloat16
    with pytest.raises(TypeError, match="float33"):
        numpy_dtype("float33")
