"""Collectives protocol: one set of collectives and messages on NumPy arrays for all kinds of workers.

All workers of a communicator make the same collective calls in the same order. A result is the same on every worker
and for every implementation: integer sums wrap around and are exact, float sums are taken in the order of the ranks.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from burnish.errors import ParameterError

Array = NDArray[Any]

try:
    import ml_dtypes as _MORE
except ModuleNotFoundError:  # an installation that runs models alone; none of its arrays are bfloat16
    _MORE = None

OPERATIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}

_NAMES = ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
DTYPES = (*map(np.dtype, _NAMES), *([] if _MORE is None else [np.dtype(_MORE.bfloat16)]))


class PendingMessage(Protocol):
    """A message under way."""

    def wait(self) -> Array | None:
        """Ends when the message is sent (None), or has arrived (the array). Raises as the call itself would."""


class Comm(Protocol):
    """Communicator of ``size`` workers, one worker's end. One thread of a worker uses it at a time.

    Every call ends with WorkerError, which names the rank, when a worker dies, fails, disagrees about the call, or
    lets the others wait longer than the time limit of the communicator. After such an error only `close` is allowed.
    """

    @property
    def rank(self) -> int:
        """Number of this worker, from 0."""

    @property
    def size(self) -> int:
        """Number of workers."""

    def all_reduce(self, array: Array, op: str = "sum", out: Array | None = None) -> Array:
        """The element-wise sum, maximum or minimum of all workers' arrays, which have one shape and dtype.

        Returns a new array, or `out`, which is filled and may be `array` itself.
        """

    def all_gather_v(self, array: Array) -> list[Array]:
        """The arrays of all workers by rank; they have one dtype, and may differ in shape."""

    def all_to_all_v(self, arrays: Sequence[Array]) -> list[Array]:
        """Sends ``arrays[r]`` to worker r; returns what the workers sent to this one, by rank. Shapes may differ."""

    def broadcast(self, array: Array | None, root: int = 0) -> Array:
        """The array of worker `root`; the others' argument is not looked at."""

    def barrier(self) -> None:
        """Ends once every worker has called it."""

    def send(self, array: Array, to: int, tag: int = 0) -> None:
        """Sends an array to one worker; it may be changed afterwards."""

    def recv(self, source: int, tag: int = 0) -> Array:
        """The next array that `source` sends with this tag; messages of one tag arrive in the order of sending."""

    def isend(self, array: Array, to: int, tag: int = 0) -> PendingMessage:
        """Begins to send; the array must not change before the request's `wait` has returned."""

    def irecv(self, source: int, tag: int = 0, out: Array | None = None) -> PendingMessage:
        """Begins to receive; the request's `wait` returns the array, written to `out` if that is given."""

    def group(self, ranks: Sequence[int]) -> "Comm | None":
        """A communicator of some of the workers, numbered in the order given; None for a worker not among them.

        Every worker of this communicator makes the call, with the same ranks.
        """

    def close(self) -> None:
        """Takes leave of the other workers; further calls are refused."""


def checked(array: Array, call: str) -> Array:
    """The array as one contiguous block of a dtype that can be sent.

    Raises ParameterError, naming the call, for any other dtype.
    """
    array = np.asarray(array)
    if array.dtype not in DTYPES or not array.dtype.isnative:
        allowed = ", ".join(str(dtype) for dtype in DTYPES)
        raise ParameterError(f"{call}: array of dtype {array.dtype}, allowed: {allowed}, in native byte order")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def checked_operation(op: str) -> np.ufunc:
    """The ufunc of an all-reduce. Raises ParameterError for an unknown name."""
    if op not in OPERATIONS:
        raise ParameterError(f"all_reduce: op {op!r}, allowed: {', '.join(OPERATIONS)}")
    return OPERATIONS[op]


def checked_rank(rank: int, size: int, call: str) -> int:
    """A rank that exists. Raises ParameterError, naming the call, for any other."""
    if not 0 <= rank < size:
        raise ParameterError(f"{call}: worker {rank}, allowed: 0 to {size - 1}")
    return rank


def checked_group(ranks: Sequence[int], size: int) -> tuple[int, ...]:
    """Ranks of a group: at least one, all different, all of the communicator. Raises ParameterError otherwise."""
    chosen = tuple(int(rank) for rank in ranks)
    if not chosen or len(set(chosen)) != len(chosen) or min(chosen) < 0 or max(chosen) >= size:
        raise ParameterError(f"group: workers {list(chosen)}, allowed: different ones from 0 to {size - 1}")
    return chosen
