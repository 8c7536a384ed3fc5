"""What the workers of the communication tests do; worker processes import it by name."""

import os
import signal
import time
from typing import Any

import numpy as np

from burnish.comm import Comm
from burnish.errors import DataError

SHAPES = ((), (0,), (3,), (5, 7), (4097,), (40_001,))
REDUCED = ("i1", "i4", "i8", "u2", "u8", "f4", "f8")
OPERATIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def values(shape: tuple[int, ...], dtype: str, rank: int) -> np.ndarray[Any, Any]:
    """What a worker contributes: every worker can make every other's."""
    random = np.random.default_rng([rank, len(shape), int(np.prod(shape))])
    if np.dtype(dtype).kind == "f":
        return np.asarray((random.standard_normal(shape) * 10.0 ** random.integers(-3, 4, shape)).astype(dtype))
    return np.asarray(random.integers(0, 1 << 63, shape, np.int64, endpoint=False).astype(dtype))  # wraps around


def same(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), (found, expected)
    assert found.tobytes() == expected.tobytes()


def collectives(comm: Comm) -> int:
    """Every collective against NumPy, on this worker's side."""
    checks = 0
    for shape in SHAPES:
        for dtype in REDUCED:
            parts = [values(shape, dtype, rank) for rank in range(comm.size)]
            mine = parts[comm.rank].copy()
            for op, reduce in OPERATIONS.items():
                expected = parts[0]
                for part in parts[1:]:
                    expected = np.asarray(reduce(expected, part))
                same(comm.all_reduce(mine, op), expected)
                same(mine, parts[comm.rank])
                checks += 1
            target = mine.copy()
            assert comm.all_reduce(target, "max", out=target) is target
            same(target, expected_max(parts))
    for dtype in ("bool", "i2", "u4", "f2", "f8"):
        ragged = [values((rank * 3, 2), dtype, rank) for rank in range(comm.size)]
        for found, expected in zip(comm.all_gather_v(ragged[comm.rank]), ragged, strict=True):
            same(found, expected)
        sent = [values((to + comm.rank,), dtype, 10 * comm.rank + to) for to in range(comm.size)]
        for source, found in enumerate(comm.all_to_all_v(sent)):
            same(found, values((source + comm.rank,), dtype, 10 * source + comm.rank))
        for root in range(comm.size):
            expected = values((2, 5), dtype, root)
            same(comm.broadcast(expected if comm.rank == root else None, root), expected)
            checks += 1
    return checks


def expected_max(parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.asarray(np.max(np.stack(parts), axis=0)) if parts[0].size else parts[0]


def strided(comm: Comm) -> None:
    """Arrays that are not contiguous, and answers that share no memory with what was given."""
    table = np.arange(24.0).reshape(4, 6)
    same(comm.all_reduce(table[:, ::2], "max"), table[:, ::2].copy())
    mine = np.arange(3)
    gathered = comm.all_gather_v(mine)[comm.rank]
    swapped = comm.all_to_all_v([mine] * comm.size)[comm.rank]
    mine[:] = -1
    same(gathered, np.arange(3))
    same(swapped, np.arange(3))


def messages(comm: Comm) -> None:
    """Messages of two tags and of 8 MB, all sent before any is received, in a ring."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    large = np.full(1_000_000, comm.rank, np.int64)
    requests = [comm.isend(large, right, tag=2), comm.isend(np.array([comm.rank]), right, tag=1)]
    comm.send(np.array([comm.rank, 7]), right, tag=1)
    same(comm.recv(left, tag=1), np.array([left]))
    same(comm.recv(left, tag=1), np.array([left, 7]))
    assert comm.irecv(left, tag=2).wait()[-1] == left
    for request in requests:
        request.wait()
    comm.barrier()


def groups(comm: Comm) -> tuple[int, int] | None:
    """Collectives in a group in reverse order, a group of it, and the whole again."""
    ranks = list(reversed(range(1, comm.size)))
    group = comm.group(ranks)
    assert (group is None) == (comm.rank == 0)
    found = None
    if group is not None:
        assert group.rank == ranks.index(comm.rank)
        assert [int(part[0]) for part in group.all_gather_v(np.array([comm.rank]))] == ranks
        pair = group.group([0, 1])
        if pair is not None:
            found = pair.rank, int(pair.all_reduce(np.array([comm.rank]))[0])
    assert int(comm.all_reduce(np.array([1]))[0]) == comm.size
    return found


def kill_one(comm: Comm, victim: int) -> None:
    """One worker is killed while the others wait, some of them for a worker that lives and waits itself."""
    comm.barrier()
    if comm.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 0:
        comm.recv(1)
    else:
        comm.all_reduce(np.arange(10))


def fail_one(comm: Comm, culprit: int, expected: bool) -> None:
    """One worker raises an error while the others wait."""
    if comm.rank == culprit:
        if expected:
            raise DataError("label: 3 rows, allowed: 4")
        raise ZeroDivisionError("by nought")
    comm.all_reduce(np.arange(10))


def leave_early(comm: Comm) -> None:
    """Worker 1 ends as if all were done, when worker 0 still wants something of it."""
    if comm.rank == 0:
        same(comm.recv(1), np.arange(4))
        comm.recv(1)
    else:
        comm.send(np.arange(4), 0)


def stay_silent(comm: Comm, seconds: float) -> None:
    """Worker 1 lives on, but does not answer in time."""
    if comm.rank == 1:
        time.sleep(seconds)
    else:
        comm.recv(1)


def disagree(comm: Comm, what: str) -> None:
    """Worker 1 makes another call than worker 0."""
    first = comm.rank == 0
    match what:
        case "shape":
            comm.all_reduce(np.zeros((2, 3) if first else (3, 2)))
        case "dtype":
            comm.all_gather_v(np.zeros(3, np.float32 if first else np.float64))
        case "op":
            comm.all_reduce(np.zeros(3), "sum" if first else "max")
        case "call":
            if first:
                comm.barrier()
            else:
                comm.broadcast(np.zeros(1), 1)
        case "large":
            comm.all_reduce(np.zeros(50_000 if first else 50_001))


def give_back(comm: Comm, *arguments: Any) -> Any:
    """The arguments, as they arrived."""
    return list(arguments)


def listeners(comm: Comm | None = None) -> list[tuple[str, str]]:
    """Address and port, in the kernel's own writing, of every TCP socket that listens on this machine."""
    found = []
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(file):
            with open(file, encoding="ascii") as lines:
                fields = [line.split() for line in list(lines)[1:]]
            found += [(field[1].split(":")[0], field[1].split(":")[1]) for field in fields if field[3] == "0A"]
    return found


def tell_process_and_sleep(comm: Comm, folder: str) -> None:
    """Writes the number of its process to a file, and sleeps."""
    with open(os.path.join(folder, str(comm.rank)), "w", encoding="ascii") as file:
        file.write(str(os.getpid()))
    comm.barrier()
    time.sleep(60)
