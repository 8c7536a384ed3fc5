"""The libraries that Burnish is measured against, and a fair way to time several contenders in one process."""

import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from burnish.base.optional import require
from burnish.errors import InputError

Run = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]
"""Takes the inputs by name, returns the outputs in the model's order. They are valid until the next call."""

NAMES = ("onnxruntime", "openvino", "torch")

# onnxruntime's threads go on spinning for about 27 ms after a call and take the cores from whoever is timed next.
SETTLE_SECONDS = 0.05

# How many times its fastest round one takes whose threads the system kept on one core: onnxruntime's, which spin for
# each other, then take twenty times as long, for half a second or for most rounds of a short measurement.
DISTURBED = 3.0


def prepare(name: str, model: Path | bytes, threads: int) -> Run:
    """Loads an ONNX model into the peer `name`, "onnxruntime" or "openvino"."""
    if name == "onnxruntime":
        return onnxruntime(model, threads)
    if name == "openvino":
        return openvino(model, threads)
    if name == "torch":
        raise InputError("torch cannot run an ONNX file: give the network as MODULE:FUNCTION to compare with torch")
    raise InputError(f"unknown peer {name!r}; allowed: {', '.join(NAMES)}")


def share_onnxruntime_threads(threads: int) -> None:
    """Creates the pool of `onnxruntime(..., own_threads=False)`. Allowed once per process, before any session exists.

    Sessions with threads of their own spin after each call, and when they take turns each is an order of magnitude
    slower than alone.
    """
    require("onnxruntime", extra="bench").set_global_thread_pool_sizes(threads, 1)


def onnxruntime(model: Path | bytes, threads: int, own_threads: bool = True) -> Run:
    """An onnxruntime session with all graph optimizations (its default)."""
    ort = require("onnxruntime", extra="bench")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if own_threads:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    else:
        options.use_per_session_threads = False
    source = model if isinstance(model, bytes) else str(model)
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def run(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        outputs: list[np.ndarray] = session.run(None, inputs)
        return outputs

    return run


def openvino(model: Path | bytes, threads: int) -> Run:
    """An OpenVINO model for lowest latency, kept to float32, which reads and writes our arrays without copies."""
    ov = require("openvino", extra="bench")
    core = ov.Core()
    compiled = core.compile_model(
        core.read_model(model),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        },
    )
    request = compiled.create_infer_request()

    def run(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        results = request.infer(inputs, share_inputs=True, share_outputs=True)
        return list(results.values())

    return run


def compiled(module: Callable[..., Any]) -> Run:
    """A model compiled by Burnish, with the interface of the peers."""

    def run(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        outputs = module(*inputs.values())
        return [outputs] if isinstance(outputs, np.ndarray) else list(outputs)

    return run


def torch_eager(module: Any, threads: int) -> Run:
    """A torch.nn.Module called as it is, on arrays given in the order of its arguments."""
    torch = require("torch", extra="torch")
    torch.set_num_threads(threads)

    def run(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with torch.inference_mode():
            outputs = module(*(torch.from_numpy(array) for array in inputs.values()))
        if not isinstance(outputs, tuple | list):
            outputs = (outputs,)
        return [output.numpy() for output in outputs]

    return run


def export_onnx(
    module: Any, inputs: Mapping[str, np.ndarray], path: Path, opset: int = 17, dynamo: bool = False
) -> None:
    """Writes a torch.nn.Module as an ONNX file whose inputs carry the given names, in the order of its arguments.

    `dynamo` takes the exporter by torch.export, which needs the package onnxscript and opset 18 or newer.
    """
    torch = require("torch", extra="torch")
    with warnings.catch_warnings():
        # The exporter without torch.export is deprecated, but is the one that needs no further package.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(torch.from_numpy(array) for array in inputs.values()),
            path,
            input_names=list(inputs),
            opset_version=opset,
            dynamo=dynamo,
            verbose=False,
        )


@dataclass(frozen=True)
class ContenderTimes:
    """Times of one contender in seconds: one median for each round, and over all calls."""

    rounds: tuple[float, ...]
    median: float
    p10: float
    p90: float
    calls: int


def alternate(
    contenders: Mapping[str, Callable[[], object]],
    seconds: float = 3.0,
    rounds: int = 7,
    warm_up: int = 3,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, ContenderTimes]:
    """Times several contenders in turn, in about `seconds` of `clock` for all of them (waits not counted).

    Each round gives every contender a block of calls; the order rotates from round to round. A block starts after
    a pause in which the threads of the previous contender fall asleep, and after `warm_up` calls that are not timed.
    """
    samples: dict[str, list[list[int]]] = {name: [] for name in contenders}
    block = seconds / rounds / max(1, len(contenders))
    names = list(contenders)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            time.sleep(SETTLE_SECONDS)
            samples[name].append(time_block(contenders[name], block, warm_up, clock))
    return {name: summarize(blocks) for name, blocks in samples.items()}


def time_block(
    call: Callable[[], object], seconds: float, warm_up: int, clock: Callable[[], int] = time.perf_counter_ns
) -> list[int]:
    """Times single calls, in nanoseconds of `clock`, for the given time; at least three."""
    for _ in range(warm_up):
        call()
    times: list[int] = []
    end = clock() + int(seconds * 1e9)
    while len(times) < 3 or clock() < end:
        start = clock()
        call()
        times.append(clock() - start)
    return times


def summarize(blocks: Sequence[Sequence[int]]) -> ContenderTimes:
    """Timing of calls in nanoseconds, given by round: in seconds the median of each round, and quantiles of all."""
    every = sorted(sample for block in blocks for sample in block)
    return ContenderTimes(
        rounds=tuple(statistics.median(block) / 1e9 for block in blocks),
        median=statistics.median(every) / 1e9,
        p10=every[len(every) // 10] / 1e9,
        p90=every[len(every) * 9 // 10] / 1e9,
        calls=len(every),
    )


def speedup(ours: ContenderTimes, theirs: ContenderTimes) -> float:
    """Speed-up of `ours` over `theirs`: the median of the rounds' ratios, from which a drift of the machine cancels.

    Rounds in which either was disturbed do not count, unless no others are left.
    """
    pairs = list(zip(ours.rounds, theirs.rounds, strict=True))
    most = DISTURBED * min(ours.rounds), DISTURBED * min(theirs.rounds)
    calm = [(a, b) for a, b in pairs if a <= most[0] and b <= most[1]]
    return statistics.median(b / a for a, b in calm or pairs)
