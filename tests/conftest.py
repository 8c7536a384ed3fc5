"""Fixtures: loop programs run in a child process between forbidden pages; a kernel cache that is not the user's."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import settings

from burnish.base.files import cache_folder
from burnish.base.garbage import collect_rarely
from burnish.codegen.llvm import KernelCode, emit
from burnish.codegen.objects import compile_ir
from burnish.loops.numeric import numpy_dtype
from burnish.loops.program import LoopProgram
from burnish.loops.specialize import buffer_at
from burnish.lower.pipeline import lower
from burnish.machines.target import Target, host
from burnish.runtime.entry import driver_image
from burnish.runtime.image import Image
from burnish.runtime.link import link
from tests.small_process import Run, SmallProcess

# The same examples at every run; new draws are for `python -m tools.fuzz` and `pytest --hypothesis-profile=drawn`.
settings.register_profile("drawn", deadline=None)
settings.register_profile("fixed", deadline=None, derandomize=True, database=None)
settings.load_profile("fixed")

# Two processes of tests share two cores, which threads of other libraries take from each other when they wait by
# spinning. Children inherit this: the processes of pytest-xdist too.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
SMALL = SmallProcess()  # before tests are imported


def pytest_collection() -> None:
    collect_rarely()


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import are here to stay: looking through them took a sixth of the suite."""
    collect_rarely()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What the tests of a file leave in caches is here to stay too: a collection by a later test need not walk it."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        collect_rarely()


@lru_cache(maxsize=8)
def compiled(program: LoopProgram, lowered: bool, machine: Target) -> tuple[KernelCode, Image]:
    """A program's code; remembered because a symbolic one is run at many sizes."""
    code = emit(program if lowered else lower(program), machine)
    return code, link({program.name: compile_ir(code.text, machine)})


def run_native(
    program: LoopProgram,
    arrays: Mapping[str, np.ndarray],
    *,
    edge: str = "end",
    threads: int = 2,
    lowered: bool = False,
    machine: Target | None = None,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """What the compiled ``program`` leaves in the parameters that it writes; ``arrays`` are the others.

    ``lowered``: the program is emitted as it is. ``machine``: this one, perhaps with more than it ships with.
    ``sizes``: the values of its dimensions. Fails if the code reads or writes a byte outside its buffers (such an
    access kills the child or shows afterwards), or changes a parameter that it only reads.
    """
    code, image = compiled(program, lowered, machine or host())
    params = [buffer_at(p, sizes or {}) for p in program.params]
    buffers: dict[str, tuple[int, bytes | None]] = {p.name: (p.nbytes, None) for p in params}
    for p in params:
        if p.name in arrays:
            given = np.ascontiguousarray(arrays[p.name])
            assert (given.shape, given.dtype) == (p.shape, numpy_dtype(p.dtype)), p
            buffers[p.name] = p.nbytes, given.tobytes()
    values = tuple((sizes or {})[name] for name in code.dims)
    driver = driver_image(llvm.get_process_triple())
    done = SMALL.run(Run(image, program.name, driver, buffers, values, code.scratch_bytes, threads, edge))
    if isinstance(done, int):
        assert not os.WIFSIGNALED(done), f"killed by signal {os.WTERMSIG(done)}: memory outside the buffers\n{program}"
        pytest.fail(f"the child that ran it failed with status {done}")
    results, outputs = {}, program.body.writes & {p.name for p in params}
    for p in params:
        found, untouched = done[p.name]
        assert untouched, f"bytes next to '{p.name}' were written\n{program}"
        if p.name in outputs:
            results[p.name] = np.frombuffer(bytearray(found), numpy_dtype(p.dtype)).reshape(p.shape)
        else:
            assert found == buffers[p.name][1], f"'{p.name}' was changed"
    return results


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither use nor fill the user's cache: what they test is compiled anew. numba's functions, which take
    minutes to compile and are the means, not the end, come from there.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "NUMBA_CACHE_DIR" not in os.environ:
            patch.setenv("NUMBA_CACHE_DIR", str(cache_folder() or tmp_path_factory.mktemp("numba")))
        patch.setenv("BURNISH_CACHE", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.fixture(scope="session")
def native() -> Callable[..., dict[str, np.ndarray]]:
    """``native(program, arrays)``: see :func:`run_native`."""
    return run_native
