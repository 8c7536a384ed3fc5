"""Compilation options of the numba kernels: without what costs compile time and gives nothing; cached."""

from functools import partial
from typing import Any

from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager

from burnish.base import regions
from burnish.base.jit import njit

# Passes of numba's, by their names, that find nothing to do in kernels: these have no closures, no generated code, no
# parallel loops, and no expressions of arrays. They take 5 % of the time of a compilation.
IDLE = frozenset(
    {
        "with_lifting", "inline_closure_likes", "make_function_op_code_to_jit_function", "inline_inlinables",
        "literal_unroll", "LiteralPropagation", "inline_overloads", "nopython_rewrites",
        "nopython_supported_feature_validation", "dump_parfor_diagnostics",
    }
)  # fmt: skip


class KernelCompiler(CompilerBase):
    """numba's compiler of functions without Python objects, less the passes that are idle."""

    def define_pipelines(self) -> list[Any]:
        """The one pipeline of passes."""
        pipeline = PassManager("kernel")
        every = DefaultPassBuilder.define_nopython_pipeline(self.state).passes
        pipeline.passes = [entry for entry in every if entry[0].name() not in IDLE]
        pipeline.finalize()
        return [pipeline]


_OPTIONS: dict[str, Any] = {
    "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "pipeline_class": KernelCompiler,
}  # fmt: skip

# No tests for division by zero; no second entry for callers of C.
kernel = njit(cache=True, **_OPTIONS)

# The same of a kernel that makes no array: nothing in it counts references, and no function that makes one is compiled.
lean = njit(cache=True, **_OPTIONS, _nrt=False)

# The same, where the widest vectors of a CPU make it faster.
wide = njit(cache=True, wide=True, **_OPTIONS, _nrt=False)

# A loop that native threads share, for `regions.run_ranges` in a compiled function.
loop = njit(**_OPTIONS, inner=True)

# The same, entered from Python: see `regions.region`.
region = partial(regions.region, error_model="numpy", pipeline_class=KernelCompiler)

# A part of other kernels, that Python never calls: it has no entry for it, and no file in the cache.
inlined = njit(**_OPTIONS, no_cpython_wrapper=True, _nrt=False)

# The same, where a call costs as much as its work (a few bytes of text): in machine code there is never one.
always_inlined = njit(**_OPTIONS, no_cpython_wrapper=True, _nrt=False, forceinline=True)
