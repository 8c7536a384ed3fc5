"""Steps of an executable other than kernel calls: copies, collectives, and what the verifier refuses of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from burnish.comm import launch
from burnish.driver.loading import load
from burnish.errors import ArtifactError, VerificationError
from burnish.runtime.executable import Collective, CopyStep, Executable, KernelCall, Slot, TensorSpec, Wait
from burnish.runtime.module import Module

N = 1000
X = np.linspace(-1, 1, N, dtype=np.float32)
SPEC = TensorSpec("sum", (N,), "float32")
IN, OUT = Slot("input", 0, 0, 4 * N), Slot("output", 0, 0, 4 * N)
ARENA = Slot("arena", 0, 128, 4 * N)
REDUCE = Collective("all_reduce", "sum", IN, ARENA, SPEC, "gradients")


def reduced(made: Executable) -> Executable:
    """y = 2 * the sum of all workers' x."""
    return replace(made, steps=(REDUCE, Wait(0), KernelCall("add", (ARENA, ARENA, OUT), "twice")))


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
    module = Module(replace(made, steps=(*made.steps, CopyStep(*parts, "some"))))
    y, before = module(X).view(np.uint8), Module(made)(X).view(np.uint8)
    assert np.array_equal(y[:nbytes], X.view(np.uint8)[:nbytes]) and np.array_equal(y[nbytes:], before[nbytes:])


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            (REDUCE, KernelCall("add", (ARENA, ARENA, OUT), "early"), Wait(0)),
            "'early' touches the result of 'gradients'",
        ),
        ((REDUCE, KernelCall("add", (IN, IN, OUT), "n")), "nothing waits for the collective of node 'gradients'"),
        ((Wait(0),), "step 0 waits for step 0"),
        ((replace(REDUCE, operation="scatter"), Wait(0)), "is a collective 'scatter' by 'sum'"),
        ((replace(REDUCE, reduce="mean"), Wait(0)), "is a collective 'all_reduce' by 'mean'"),
        ((replace(REDUCE, target=replace(ARENA, offset=130)), Wait(0)), "allowed: offsets from 0 to 128"),
        ((replace(REDUCE, source=replace(IN, nbytes=4)), Wait(0)), "allowed: 4000 bytes at a multiple"),
        ((CopyStep(IN, replace(OUT, nbytes=8)),), "allowed: as many bytes"),
        ((CopyStep(Slot("state", 0, 0, 8), replace(OUT, nbytes=8)),), "which does not exist"),
    ],
)
def test_steps_that_do_not_fit_are_refused(make_executable, steps, message) -> None:
    with pytest.raises(VerificationError, match=message):
        replace(make_executable(), steps=steps)


ROWS = 250
PART, WHOLE = TensorSpec("part", (ROWS, 2), "float32"), TensorSpec("whole", (2 * ROWS, 2), "float32")
PART_IN, PART_OUT = replace(IN, nbytes=2000), replace(ARENA, nbytes=2000)
PAIR = np.stack([X, -3 * X])  # what the two workers have


def collective(operation: str, **changes: object) -> Collective:
    """One of two workers from the input to the arena, on tensors of 500 rows or 250."""
    fields = {
        "all_reduce": ("sum", IN, ARENA, WHOLE, None, -1),
        "reduce_scatter": ("max", IN, PART_OUT, WHOLE, PART, -1),
        "all_gather": ("", PART_IN, ARENA, PART, WHOLE, -1),
        "all_to_all": ("", IN, ARENA, WHOLE, None, -1),
        "broadcast": ("", IN, ARENA, WHOLE, None, 1),
    }[operation]
    reduce, source, target, spec, result, peer = fields
    return replace(Collective(operation, reduce, source, target, spec, operation, result, peer), **changes)


def expected(operation: str, rank: int) -> np.ndarray:
    """By NumPy on the arrays of both workers, as rows of two; what is not written is 0."""
    both = PAIR.reshape(2, 2 * ROWS, 2)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    found = {
        "all_reduce": lambda: both[0] + both[1],
        "reduce_scatter": lambda: np.maximum(both[0, mine], both[1, mine]),
        "all_gather": lambda: np.concatenate([both[0, :ROWS], both[1, :ROWS]]),
        "all_to_all": lambda: np.concatenate([both[0, mine], both[1, mine]]),
        "broadcast": lambda: both[1],
    }[operation]().reshape(-1)
    return np.concatenate([found, np.zeros(N - found.size, np.float32)])


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"])
def test_collectives_compute_what_numpy_does(make_executable, tmp_path, operation: str, between: bool) -> None:
    """Blocking, and with a step before the wait, which overwrites nothing that the collective reads."""
    made, step = make_executable(), collective(operation)
    clear = Collective("all_reduce", "min", IN, OUT, SPEC, "other")
    if between:
        steps = (step, clear, Wait(1), Wait(0), KernelCall("add", (ARENA, ARENA, OUT), "twice"))
    else:
        steps = (step, Wait(0), KernelCall("add", (ARENA, ARENA, OUT), "twice"))
    executable = replace(made, steps=steps)

    def work(comm) -> np.ndarray:
        module = Module(executable, threads=1, comm=comm)
        module.save(tmp_path / f"{comm.rank}.bn")
        assert load(tmp_path / f"{comm.rank}.bn", threads=1, comm=comm).executable.steps == steps
        for _ in range(3):
            found = module(PAIR[comm.rank])
        return found

    for rank, found in enumerate(launch(work, [()] * 2)):
        wanted = expected(operation, rank)
        written = wanted.size if operation != "reduce_scatter" else 2 * ROWS
        np.testing.assert_array_equal(found[:written], 2 * wanted[:written])


@pytest.mark.parametrize("between", [False, True])
def test_messages_go_round_a_ring(make_executable, between: bool) -> None:
    """Every worker sends before it waits for what the one before it sends: nobody waits for ever."""
    made, size = make_executable(), 3

    def work(comm) -> np.ndarray:
        to, source = (comm.rank + 1) % size, (comm.rank - 1) % size
        send = Collective("send", "", IN, None, SPEC, "to the next", None, to, 7)
        recv = Collective("recv", "", None, ARENA, SPEC, "from the one before", None, source, 7)
        waits = (Wait(0), recv, Wait(2)) if not between else (recv, Wait(0), Wait(1))
        steps = (send, *waits, KernelCall("add", (ARENA, ARENA, OUT), "twice"))
        module = Module(replace(made, steps=steps), threads=1, comm=comm)
        module(X * 0)
        return module(X * (comm.rank + 1))

    for rank, found in enumerate(launch(work, [()] * size)):
        np.testing.assert_array_equal(found, 2 * (X * ((rank - 1) % size + 1)))


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter"])
def test_sums_are_those_of_all_reduce_to_the_bit(make_executable, operation: str) -> None:
    made = make_executable()
    step = collective(operation, reduce="sum")
    steps = (step, Wait(0), KernelCall("add", (ARENA, ARENA, OUT), "twice"))
    rng = np.random.default_rng(0)
    values = rng.standard_normal((2, N)).astype(np.float32)

    def work(comm) -> np.ndarray:
        return Module(replace(made, steps=steps), threads=1, comm=comm)(values[comm.rank])

    found = launch(work, [()] * 2)
    whole = found[0] if operation == "all_reduce" else np.concatenate([part[: 2 * ROWS] for part in found])
    np.testing.assert_array_equal(whole, 2 * (values[0] + values[1]))


def test_collectives_of_other_numbers_of_workers_are_refused(make_executable) -> None:
    made = make_executable()

    def refused(step: Collective, size: int) -> None:
        def work(comm) -> None:
            Module(replace(made, steps=(step, Wait(0), *made.steps)), threads=1, comm=comm)

        launch(work, [()] * size)

    with pytest.raises(ArtifactError, match=r"'all_gather' is a collective \(all_gather\) of 2 workers; allowed: 3"):
        refused(collective("all_gather"), 3)
    with pytest.raises(ArtifactError, match=r"with worker 1; allowed: 0 to 0"):
        refused(collective("broadcast"), 1)
    with pytest.raises(ArtifactError, match="a first extent that is a multiple of 3 workers"):
        refused(collective("all_to_all"), 3)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (collective("all_gather", reduce="sum"), "'all_gather' by 'sum'"),
        (collective("reduce_scatter", reduce=""), "'reduce_scatter' by ''"),
        (collective("broadcast", peer=-1), "with worker -1"),
        (collective("all_reduce", peer=0), "with worker 0"),
        (collective("all_gather", result=replace(WHOLE, dtype="int32")), "which do not fit"),
        (collective("all_gather", result=replace(WHOLE, shape=(ROWS + 1, 2)), target=None), "a target but of send"),
        (collective("all_to_all", result=PART, target=PART_OUT), "which do not fit"),
    ],
)
def test_collectives_that_do_not_fit_are_refused(make_executable, step: Collective, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        replace(make_executable(), steps=(step, Wait(0)))
