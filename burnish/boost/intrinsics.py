"""Machine intrinsics for the kernels: cache prefetching, and arrays that begin at a cache line."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

CACHE_LINE = 64


@intrinsic
def prefetch(_context: Any, array: Any, index: Any) -> Any:
    """``prefetch(array, index)`` in a kernel asks for the cache line of ``array.data[index]``; it never faults."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte = ir.IntType(8).as_pointer()
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(function, [address, *(ir.Constant(word, value) for value in (0, 3, 1))])  # read, keep, data
        return context.get_dummy_value()

    return types.void(array, index), generate


@intrinsic
def add_pair(_context: Any, array: Any, index: Any, first: Any, second: Any) -> Any:
    """``add_pair(array, i, a, b)`` in a kernel adds a to ``array.data[i]`` and b to the next, both int64, at once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pair, word = ir.VectorType(ir.IntType(64), 2), ir.IntType(32)
        terms = ir.Constant(pair, ir.Undefined)
        for lane in range(2):
            terms = builder.insert_element(terms, arguments[2 + lane], ir.Constant(word, lane))
        address = builder.bitcast(builder.gep(data, [arguments[1]]), pair.as_pointer())
        sums = builder.load(address, align=8)
        builder.store(builder.add(sums, terms), address, align=8)
        return context.get_dummy_value()

    return types.void(array, index, types.int64, types.int64), generate


def aligned(shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An uninitialised array in C order whose first element is at a multiple of 64 bytes (NumPy's own are at 16)."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    return memory[first : first + size].view(dtype).reshape(shape)
