"""Concurrent inference: threads that call one module, and `burnish serve` under load until SIGTERM.

`python -m benchmarks.serving [threads serve] [--model resnet18] [--threads 2] [--callers 8] [--clients 4]
[--seconds 60] [--json]`

`threads`: calls a second of `--callers` threads of Python on one module beside those of one caller, in turns; every
answer is compared bit for bit. `serve`: requests a second of `--clients` connections that stay open, of binary tensors,
beside calls a second of the module in this process, in turns while the server runs and after it has paused; at the end
SIGTERM under load: a request that was sent and got no answer is lost. The clients compute on the server's cores.
Fails where an answer is wrong or a request is lost.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import burnish as bn
from benchmarks import models
from benchmarks.harness import check_names
from benchmarks.provenance import stored
from burnish.serve.protocol import LENGTH_HEADER

PARTS = ("threads", "serve")
TURNS = 6  # of each side
TOLERANCE = 1e-5  # of an answer beside the module's in this process, which may have another number of threads at work


@dataclass
class Row:
    """One part: calls a second of one caller and under load, medians of turns; their ratio; answers that were wrong;
    requests without an answer; requests or calls under load.
    """

    part: str
    alone: float
    loaded: float
    ratio: float
    wrong: int
    lost: int
    calls: int


@dataclass
class Counts:
    """Numbers of right and wrong answers, and of requests without one."""

    right: int = 0
    wrong: int = 0
    lost: int = 0

    def add(self, other: Counts) -> None:
        """Adds those of another thread."""
        self.right, self.wrong, self.lost = self.right + other.right, self.wrong + other.wrong, self.lost + other.lost


def callers(count: int, seconds: float, work: Callable[[Callable[[], bool]], Counts]) -> tuple[Counts, float]:
    """Counts of `count` threads that work until the time is over, and right answers a second."""
    began = time.perf_counter()
    total = Counts()
    with ThreadPoolExecutor(count) as threads:
        for counts in threads.map(lambda _: work(lambda: time.perf_counter() - began < seconds), range(count)):
            total.add(counts)
    return total, total.right / (time.perf_counter() - began)


class Calls:
    """Calls of a module on one input, compared with its first answer."""

    def __init__(self, module: bn.CompiledModel, x: np.ndarray) -> None:
        self._module, self._x, self.expected = module, x, np.array(module(x))

    def __call__(self, more: Callable[[], bool]) -> Counts:
        counts = Counts()
        while more():
            same = np.array_equal(self._module(self._x), self.expected)
            counts.add(Counts(right=int(same), wrong=int(not same)))
        return counts


class Requests:
    """Requests of the open inference protocol on one connection, compared with an answer."""

    def __init__(self, address: str, name: str, x: np.ndarray, expected: np.ndarray) -> None:
        self._address, self._path, self._expected = address, "/v2/models/m/infer", expected
        tensor = {"name": name, "shape": [*x.shape], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        self._body, self._headers = head + x.tobytes(), {LENGTH_HEADER: str(len(head))}

    def __call__(self, more: Callable[[], bool]) -> Counts:
        """Asks until the time is over, or until the server takes no connection any more."""
        counts, link = Counts(), None
        while more():
            if link is None:
                link = http.client.HTTPConnection(self._address, timeout=60)
                try:
                    link.connect()
                except ConnectionError:
                    return counts
            try:
                link.request("POST", self._path, self._body, self._headers)
                answer = link.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException):
                counts.lost += 1
                return counts
            counts.add(self._judged(answer, body))
            if answer.headers.get("connection") == "close":
                link.close()
                link = None
        if link is not None:
            link.close()
        return counts

    def _judged(self, answer: http.client.HTTPResponse, body: bytes) -> Counts:
        if answer.status != 200:
            return Counts(wrong=1)
        found = np.frombuffer(body[int(answer.headers[LENGTH_HEADER]) :], np.float32)
        error = np.abs(found - self._expected.ravel()).max() / np.abs(self._expected).max()
        return Counts(right=1) if error <= TOLERANCE else Counts(wrong=1)


@contextmanager
def server(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`burnish serve` of a saved module in a process, and its address."""
    command = [sys.executable, "-m", "burnish", "serve", f"m={path}", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[0].removeprefix("http://").rstrip(":")
    finally:
        process.kill()
        process.wait()


def in_turns(
    one: Callable[[float], tuple[Counts, float]], many: Callable[[float], tuple[Counts, float]], seconds: float
) -> tuple[list[float], list[float], Counts]:
    """Rates of both sides, turn by turn, and the counts of the second, which has ``seconds`` in all."""
    alone, loaded, total = [], [], Counts()
    for _ in range(TURNS):
        alone.append(one(seconds / TURNS / 4)[1])
        counts, rate = many(seconds / TURNS)
        loaded.append(rate)
        total.add(counts)
    return alone, loaded, total


def row(part: str, alone: list[float], loaded: list[float], counts: Counts) -> Row:
    """Medians, and the median of the turns' ratios."""
    ratio = statistics.median(b / a for a, b in zip(alone, loaded, strict=True))
    calls = counts.right + counts.wrong + counts.lost
    return Row(part, statistics.median(alone), statistics.median(loaded), ratio, counts.wrong, counts.lost, calls)


def by_threads(calls: Calls, count: int, seconds: float) -> Row:
    """Several threads of Python that call one module."""
    return row(
        "threads",
        *in_turns(lambda time: callers(1, time, calls), lambda time: callers(count, time, calls), seconds),
    )


def by_server(calls: Calls, x: np.ndarray, name: str, path: Path, clients: int, seconds: float) -> Row:
    """Load of several connections on a server, which gets SIGTERM at the end."""
    with server(path) as (process, address):
        requests = Requests(address, name, x, calls.expected)
        callers(clients, 1.0, requests)
        alone, loaded, total = in_turns(
            lambda time: callers(1, time, calls), lambda time: callers(clients, time, requests), seconds
        )
        stop = threading.Timer(1.0, process.send_signal, [signal.SIGTERM])
        stop.start()
        counts, _ = callers(clients, 60.0, requests)
        total.add(counts)
        if process.wait(60) != 0:
            sys.exit(f"the server ended with status {process.returncode} after SIGTERM")
    return row("serve", alone, loaded, total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="threads, serve (default: both)")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--threads", type=int, default=2, help="of the module")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0, help="under load, for each part")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    check_names(parser, arguments.parts, PARTS)
    ((name, x),) = models.inputs(arguments.model, seed=0).items()
    module = bn.compile(models.build(arguments.model), threads=arguments.threads)
    calls, rows = Calls(module, x), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.bn"
        module.save(path)
        for part in arguments.parts or PARTS:
            if part == "threads":
                rows.append(by_threads(calls, arguments.callers, arguments.seconds))
            else:
                rows.append(by_server(calls, x, name, path, arguments.clients, arguments.seconds))
    if arguments.json:
        print(stored({**vars(arguments), "rows": [asdict(each) for each in rows]}, indent=2))
    else:
        for each in rows:
            print(
                f"{each.part:8} {each.alone:7.1f} calls/s, under load {each.loaded:7.1f}, ratio {each.ratio:.3f}, "
                f"{each.calls} calls, {each.wrong} wrong, {each.lost} lost"
            )
    if any(each.wrong or each.lost for each in rows):
        sys.exit("wrong answers or lost requests")


if __name__ == "__main__":
    main()
