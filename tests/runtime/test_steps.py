"""Steps of an executable other than kernel calls: copies, collectives, and what the verifier refuses of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from burnish.comm import launch
from burnish.errors import ArtifactError, VerificationError
from burnish.runtime.executable import Call, Collective, Copy, Executable, Slot, TensorSpec, Wait
from burnish.runtime.module import Module, load

N = 1000
X = np.linspace(-1, 1, N, dtype=np.float32)
SPEC = TensorSpec("sum", (N,), "float32")
IN, OUT = Slot("input", 0, 0, 4 * N), Slot("output", 0, 0, 4 * N)
ARENA = Slot("arena", 0, 128, 4 * N)
REDUCE = Collective("all_reduce", "sum", IN, ARENA, SPEC, "gradients")


def reduced(made: Executable) -> Executable:
    """y = 2 * the sum of all workers' x."""
    return replace(made, steps=(REDUCE, Wait(0), Call("add", (ARENA, ARENA, OUT), "twice")))


def test_workers_reduce_in_the_middle_of_a_model(make_executable, tmp_path) -> None:
    executable = reduced(make_executable())

    def work(comm) -> np.ndarray:
        return Module(executable, threads=1, comm=comm)(X * (comm.rank + 1))

    for found in launch(work, [()] * 3):
        np.testing.assert_allclose(found, 2 * (X + X * 2 + X * 3), atol=1e-5)
    with pytest.raises(ArtifactError, match=r"node 'gradients' is a collective \(all_reduce\); allowed: with comm="):
        Module(executable)

    def again(comm) -> np.ndarray:
        module = Module(executable, threads=1, comm=comm)
        module.save(tmp_path / f"{comm.rank}.bn")
        read = load(tmp_path / f"{comm.rank}.bn", threads=1, comm=comm)
        assert read.executable.steps == executable.steps
        assert [row.kernel for row in read.profile(X, repeat=1)] == ["all_reduce (collective)", "wait", "add"]
        return read(X)

    assert all(np.array_equal(found, 4 * X) for found in launch(again, [()] * 2))


@pytest.mark.parametrize("nbytes", [1, 7, 8, 9, 4000])
def test_a_copy_moves_just_its_bytes(make_executable, nbytes: int) -> None:
    made = make_executable()
    parts = replace(IN, nbytes=nbytes), replace(OUT, nbytes=nbytes)
    module = Module(replace(made, steps=(*made.steps, Copy(*parts, "some"))))
    y, before = module(X).view(np.uint8), Module(made)(X).view(np.uint8)
    assert np.array_equal(y[:nbytes], X.view(np.uint8)[:nbytes]) and np.array_equal(y[nbytes:], before[nbytes:])


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((REDUCE, Call("add", (ARENA, ARENA, OUT), "early"), Wait(0)), "'early' touches the result of 'gradients'"),
        ((REDUCE, Call("add", (IN, IN, OUT), "n")), "nothing waits for the collective of node 'gradients'"),
        ((Wait(0),), "step 0 waits for step 0"),
        ((replace(REDUCE, operation="scatter"), Wait(0)), "is a collective 'scatter' by 'sum'"),
        ((replace(REDUCE, reduce="mean"), Wait(0)), "is a collective 'all_reduce' by 'mean'"),
        ((replace(REDUCE, target=replace(ARENA, offset=130)), Wait(0)), "allowed: offsets from 0 to 128"),
        ((replace(REDUCE, source=replace(IN, nbytes=4)), Wait(0)), "allowed: 4000 bytes at a multiple"),
        ((Copy(IN, replace(OUT, nbytes=8)),), "allowed: as many bytes"),
        ((Copy(Slot("state", 0, 0, 8), replace(OUT, nbytes=8)),), "which does not exist"),
    ],
)
def test_steps_that_do_not_fit_are_refused(make_executable, steps, message) -> None:
    with pytest.raises(VerificationError, match=message):
        replace(make_executable(), steps=steps)
