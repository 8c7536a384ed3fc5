"""What workers are asked to do in the tests; they import it by name."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.errors import DataError, WorkerError
from burnish.workers import tell

_held: list[Any] = []


@dataclass(frozen=True)
class Pair:
    """Two values."""

    first: Any
    second: Any


class Ordinary:
    """A class that is no dataclass: its making is seen."""

    def __init__(self, *_: object) -> None:
        os._exit(9)


def add(first: Any, second: Any) -> Any:
    return first + second


def give_back(value: Any) -> Any:
    return value


def hold(value: Any) -> int:
    """Keeps a value in its process; how many there are."""
    _held.append(value)
    return len(_held)


def hang() -> None:
    time.sleep(600)


def compute() -> int:
    return sum(range(10**12))


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


def leave(code: int) -> None:
    os._exit(code)


def fail(kind: str) -> None:
    if kind == "WorkerError":
        raise WorkerError(3, "as asked")
    raise {"DataError": DataError, "ZeroDivisionError": ZeroDivisionError, "SystemExit": SystemExit}[kind]("as asked")


def take(nbytes: int) -> int:
    return int(np.zeros(nbytes, np.uint8).nbytes)


def unplain() -> object:
    return object()


def count(number: int, seconds: float) -> int:
    """Tells the numbers up to one, with a pause before each."""
    for each in range(number):
        time.sleep(seconds)
        tell(each)
    return number


def die_with(value: str) -> str:
    """Kills its process for one value."""
    if value == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return value
