"""Parallel regions of numba's functions: native threads run the parts of a loop, and no interpreter between them.

A region is one call from Python: its arguments are unboxed once, into a structure on the caller's stack, and threads
that Python knows nothing of call the compiled loop with them. So a loop may neither make arrays, nor count references,
nor raise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from burnish.base.jit import Cache, njit

_WORD, _BYTES = ir.IntType(64), ir.IntType(8).as_pointer()
_BODY = ir.FunctionType(ir.VoidType(), [_BYTES, _WORD, _WORD, _WORD])
_PARALLEL = ir.FunctionType(ir.VoidType(), [_BYTES, _BODY.as_pointer(), _BYTES, _WORD])


def region(function: Callable[..., None], *, wide: bool = False, **options: Any) -> Any:
    """A function ``loop(*arguments, begin, end, thread)`` as a parallel region: ``(pool, extent, grain, *arguments)``.

    Threads take ranges of the iterations ``0 … extent``, of `grain` each or of many. pool: the addresses of the native
    ``parallel`` and of its state, or zeros: the calling thread does it all. thread: from 0 to below the pool's number;
    no two ranges that run at once have the same one, unless several regions do. Compiled with numba's `options`, and
    cached as by `jit.njit`.
    """
    loop = njit(**options, inner=True, nogil=True)(function)
    own = list(inspect.signature(function).parameters)
    if own[-3:] != ["begin", "end", "thread"]:
        raise TypeError(f"{function.__qualname__}: its last parameters are {own[-3:]}; allowed: begin, end, thread")
    # Parameters by name: numba finds code that takes any number of them, once it is cached, in no call but the first.
    names = ", ".join(own[:-3])
    made = {"__name__": __name__, "_run": run_ranges, "_loop": loop}
    text = f"def enter(_pool, _extent, _grain, {names}):\n    _run(_pool, _extent, _grain, _loop, ({names},))\n"
    exec(compile(text, function.__code__.co_filename, "exec"), made)
    made["enter"].__module__, made["enter"].__qualname__ = function.__module__, function.__qualname__
    entry = njit(**options, counted=False, nogil=True, no_cfunc_wrapper=True)(made["enter"])
    entry._cache = Cache(function, wide, __file__)
    entry.py_func = function  # what functions that call this one are compiled of
    return entry


@intrinsic
def run_ranges(_context: Any, pool: Any, extent: Any, grain: Any, loop: Any, arguments: Any) -> Any:
    """``run_ranges(pool, extent, grain, loop, arguments)`` in a compiled function: a parallel region of `loop`."""
    number = types.int64
    signature = types.void(types.UniTuple(number, 2), number, number, loop, arguments)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pool, extent, grain, _, given = values
        called = loop.get_call_type(context.typing_context, (*arguments.types, number, number, number), {})
        kind = ir.LiteralStructType([_WORD, _WORD, context.get_value_type(arguments)])
        body = ir.Function(builder.module, _BODY, builder.module.get_unique_name(f"{builder.function.name}.ranges"))
        body.linkage = "internal"
        body.attributes.add("noinline")  # or its loops are there twice: for threads, and for the calling one alone
        made = loop.dispatcher.overloads[called.args]
        context.add_linking_libs([made.library])
        _body(context, body, kind, made.fndesc, called)
        whole = ir.Constant(kind, ir.Undefined)
        for place, value in enumerate((extent, grain, given)):
            whole = builder.insert_value(whole, value, place)
        state = builder.bitcast(cgutils.alloca_once_value(builder, whole), _BYTES)
        rounded = builder.add(extent, builder.sub(grain, ir.Constant(_WORD, 1)))
        grains = builder.sdiv(rounded, grain)
        parallel, address = (builder.extract_value(pool, place) for place in range(2))
        native = cgutils.is_not_null(builder, parallel)
        with builder.if_else(native) as (several, alone):
            with several:
                entry = builder.inttoptr(parallel, _PARALLEL.as_pointer())
                builder.call(entry, [builder.inttoptr(address, _BYTES), body, state, grains])
            with alone:
                zero = ir.Constant(_WORD, 0)
                builder.call(body, [state, zero, grains, zero])
        return context.get_dummy_value()

    return signature, generate


def _body(context: Any, body: ir.Function, kind: ir.Type, loop: Any, signature: Any) -> None:
    """Writes the function that threads call: ranges of grains become ranges of iterations."""
    builder = ir.IRBuilder(body.append_basic_block("entry"))
    state, first, last, thread = body.args
    whole = builder.bitcast(state, kind.as_pointer())
    extent, grain = (builder.load(cgutils.gep_inbounds(builder, whole, 0, place)) for place in range(2))
    arguments = [
        builder.load(cgutils.gep_inbounds(builder, whole, 0, 2, place)) for place in range(len(kind.elements[2]))
    ]
    begin, end = builder.mul(first, grain), builder.mul(last, grain)
    end = builder.select(builder.icmp_signed("<", end, extent), end, extent)
    context.call_internal_no_propagate(builder, loop, signature, [*arguments, begin, end, thread])
    builder.ret_void()
