import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.compiler import DefaultPassBuilder, Flags
from numba.core.registry import cpu_target

from burnish.boost import kernels
from burnish.boost.growth.shares import deal_rows

_MODULE = """
import sys
import numpy as np
from burnish.boost.kernels import kernel, lean

@lean
def double(a):
    for i in range(len(a)):
        a[i] *= 2

@kernel
def zeros(n):
    return np.zeros(n)

a = np.arange(3.0)
double(a)
assert a.tolist() == [0.0, 2.0, 4.0] and zeros(2).tolist() == [0.0, 0.0]
hits = [sum(function.stats.cache_hits.values()) for function in (double, zeros)]
print(*hits, "numba.np.arraymath" in sys.modules)
"""


@pytest.mark.slow
def test_a_second_process_loads_kernels_without_numbas_tables(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(_MODULE)
    path = os.pathsep.join([str(tmp_path), *(entry or os.getcwd() for entry in sys.path)])
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}
    command = [sys.executable, "-c", "import module"]
    runs = [
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
        for _ in range(2)
    ]
    assert runs == [["0", "0", "True"], ["1", "1", "False"]]


def test_the_passes_left_out_are_passes_of_numba_and_left_out() -> None:
    compiler = kernels.KernelCompiler(cpu_target.typing_context, cpu_target.target_context, None, (), None, Flags(), {})
    every = {entry[0].name() for entry in DefaultPassBuilder.define_nopython_pipeline(compiler.state).passes}
    (pipeline,) = compiler.define_pipelines()
    assert every >= kernels.IDLE
    assert {entry[0].name() for entry in pipeline.passes} == every - kernels.IDLE


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("groups", [1, 3])
def test_rows_are_dealt_in_equal_shares(threads: int, groups: int) -> None:
    random = np.random.default_rng(threads)
    size = random.integers(0, 9, 6) * random.integers(0, 2, 6)
    size[2] = 11
    end = np.cumsum(size + 3)
    begin = end - size
    pieces, start = np.empty((groups * 6 + threads, 5), np.int64), np.empty(threads + 1, np.int64)
    pieces = pieces[: deal_rows.py_func(begin, end, groups, threads, pieces, start)]
    rows = [(g, n, r) for g in range(groups) for n in range(6) for r in range(begin[n], end[n])]
    assert [(g, n, r) for g, n, low, high, _ in pieces.tolist() for r in range(low, high)] == rows
    assert (pieces[:, 2] < pieces[:, 3]).all()
    assert [bool(target) for target in pieces[:, 4]] == [low > begin[n] for _, n, low, _, _ in pieces.tolist()]
    counts = [int((pieces[a:b, 3] - pieces[a:b, 2]).sum()) for a, b in itertools.pairwise(start)]
    assert len(counts) == threads and sum(counts) == len(rows) and max(counts) - min(counts) <= 1
