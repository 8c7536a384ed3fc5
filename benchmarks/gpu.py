"""Kernels and models on a GPU against those of PyTorch (cuBLAS, cuDNN, torch.compile); without a GPU it says so.

`python -m benchmarks.gpu [SECTION or ROW ...] [--compile] [--tf32] [--profile] [--processes N] [--json FILE]`:
sections and rows are those of `benchmarks.gpu_rows`. Each row is a process of its own: all prepare at once, then they
measure one after another. Times are the GPU's own, of graphs that are replayed, on one clock: on both sides all replays
are queued, each between two events, before any is waited for, so that no side pays for an idle GPU; the least of two
medians of CALLS, taken in opposite orders. Inputs and outputs stay on the GPU. `--compile` adds torch.compile with
constants frozen and kernels tuned (of whole networks and of operators). Float32 is float32 on both sides; `--tf32` adds
a row `NAME@tf32` for each of float32, with TF32 allowed on both.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np

import burnish
from benchmarks.gpu_rows import SECTIONS, work
from benchmarks.provenance import stored
from burnish.base.optional import require
from burnish.errors import MissingDependencyError, ParameterError

CALLS, WARM = 30, 5
TF32, TF32_ERROR = "@tf32", 1e-2  # what names of rows with TF32 end with, and their tolerance
LONGEST = 8  # kernels of a profile
CAPABILITIES = {(8, 0): "cuda:sm_80", (9, 0): "cuda:sm_90a"}
SECONDS = 180.0  # of one row, its preparation with it


def device() -> tuple[Any, str] | None:
    """PyTorch and the target of this machine's GPU; None, saying why, where there is no GPU that this can use."""
    try:
        torch = require("torch", extra="torch")
    except MissingDependencyError as error:
        print(f"no device: {error}")
        return None
    if not torch.cuda.is_available():
        print("no device: PyTorch finds no GPU")
        return None
    found = CAPABILITIES.get(torch.cuda.get_device_capability())
    if found is None:
        print(f"no device: {torch.cuda.get_device_name()}; allowed: compute capability 8.0 or 9.0")
    return None if found is None else (torch, found)


def captured(torch: Any, peer: Callable[[], Any]) -> Callable[[], Any]:
    """CUDA graph of a call as a function that replays it; the call itself where it cannot be captured."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            peer()
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            peer()
    except RuntimeError:
        torch.cuda.synchronize()
        return peer
    return graph.replay


def seconds(torch: Any, call: Callable[[], Any]) -> float:
    """Median of CALLS calls by the GPU's clock; all are queued before any is waited for, as ``Module.replays`` does."""
    marks = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(WARM + CALLS)]
    for first, last in marks:
        first.record()
        call()
        last.record()
    torch.cuda.synchronize()
    return float(np.median([1e-3 * first.elapsed_time(last) for first, last in marks[WARM:]]))


def least(sides: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Seconds of each side, the least of two measurements: in order, and in the opposite one."""
    found: dict[str, float] = {}
    for order in (list(sides), list(sides)[::-1]):
        for side in order:
            found[side] = min(found.get(side, math.inf), sides[side]())
    return {side: found[side] for side in sides}


def compiled_peer(torch: Any, peer: Callable[[], Any]) -> Callable[[], Any]:
    """A call compiled by torch.compile, with constants folded and laid out anew, and kernels chosen by measuring."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(freezing=True):
        fast: Callable[[], Any] = torch.compile(peer, mode="max-autotune-no-cudagraphs")
        fast()
    torch.cuda.synchronize()
    return fast


def measured(name: str, compiled: bool, profiled: bool, turn: Callable[[], None]) -> dict[str, Any]:
    """One row: microseconds here and of the peers, the error, and what the row has of operations; ``turn`` waits until
    nobody else measures.
    """
    found = device()
    if found is None:
        return {"name": name, "failed": "no device"}
    torch, target = found
    precision: dict[str, Any] = {"precision": "tf32"} if name.endswith(TF32) else {}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = bool(precision)
    torch.backends.cudnn.benchmark = True
    row = work(name.removesuffix(TF32), torch)
    began = time.perf_counter()
    arguments = [row.example] if row.example else []
    options: dict[str, Any] = {**row.options, **precision}
    ours: Any = burnish.compile(row.source, *arguments, target=target, **options)
    took = time.perf_counter() - began
    peers = {"torch": row.peer}
    with torch.no_grad():
        if compiled:
            try:
                peers["compiled"] = compiled_peer(torch, row.peer)
            except Exception as problem:
                print(f"{name}: torch.compile: {type(problem).__name__}", file=sys.stderr)
        turn()
        expected = row.right().double().cpu().numpy()
        outcomes = [ours(*row.inputs) for _ in range(2)]
        got = [np.asarray(o[0] if isinstance(o, tuple) else o).astype(np.float64) for o in outcomes]
        error = float(np.linalg.norm(got[0] - expected) / max(float(np.linalg.norm(expected)), 1e-30))
        sides = {side: partial(seconds, torch, captured(torch, peer)) for side, peer in peers.items()}
        times = least({"ours": lambda: float(np.median(ours.replays(WARM + CALLS)[WARM:])), **sides})
    steps = sorted(ours.profile(*row.inputs, repeat=5), key=lambda r: -r.microseconds)[:LONGEST] if profiled else []
    return {
        "name": name,
        "gpu": torch.cuda.get_device_name(),
        "kernels": len(ours.executable.calls),
        "compile_seconds": round(took, 2),
        "error": error,
        "right": bool(error <= (TF32_ERROR if precision else row.tolerance) and np.array_equal(got[0], got[1])),
        "microseconds": {side: round(1e6 * t, 2) for side, t in times.items()},
        "speedup": round(min(t for side, t in times.items() if side != "ours") / times["ours"], 3),
        "teraflops": round(row.flops / times["ours"] / 1e12, 1) if row.flops else None,
        "longest": [(f"{step.node}: {step.kernel}", round(step.microseconds, 1)) for step in steps],
    }


def child(name: str, compiled: bool, profiled: bool) -> None:
    """A row, in its own process: says that it is ready, waits for a line, measures, prints what it found."""

    def turn() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    try:
        row = measured(name, compiled, profiled, turn)
    except Exception as error:
        text = traceback.format_exc()[-1500:]
        row = {"name": name, "failed": f"{type(error).__name__}: {str(error)[:500]}", "traceback": text}
    print(f"row {json.dumps(row)}", flush=True)


def rows(
    names: Sequence[str], processes: int, options: Sequence[str], keep: Callable[[list[dict[str, Any]]], object]
) -> list[dict[str, Any]]:
    """All rows, ``processes`` at once in their preparation, one at a time while they measure; ``keep`` is given those
    that there are after each.
    """
    found: list[dict[str, Any]] = []
    for start in range(0, len(names), processes):
        batch = names[start : start + processes]
        command = [sys.executable, "-m", "benchmarks.gpu", "--child", *options]
        running = [
            subprocess.Popen([*command, n], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for n in batch
        ]
        ends = time.monotonic() + SECONDS
        said = [_until(p, ("ready", "row "), ends) for p in running]
        for name, process, line in zip(batch, running, said, strict=True):
            if line == "ready":
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
                line = _until(process, ("row ",), ends)
            process.kill()
            ended = f"the process ended with {process.wait()}" if line != "time" else f"longer than {SECONDS:g} s"
            found.append(json.loads(line[4:]) if line.startswith("row ") else {"name": name, "failed": ended})
            print(shown(found[-1]), flush=True)
            keep(found)
    return found


def _until(process: subprocess.Popen[str], starts: tuple[str, ...], ends: float) -> str:
    """The next line with one of these beginnings; "" if the process ends without, "time" if it takes too long."""
    timer = _kill_at(process, ends)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(starts):
                return line.rstrip("\n")
        return "time" if time.monotonic() >= ends else ""
    finally:
        timer.cancel()


def _kill_at(process: subprocess.Popen[str], ends: float) -> Timer:
    timer = Timer(max(ends - time.monotonic(), 0.0), process.kill)
    timer.daemon = True
    timer.start()
    return timer


def shown(row: dict[str, Any]) -> str:
    """A row as a line."""
    if "failed" in row:
        return f"{row['name']:36} {row['failed']}"
    times = " ".join(f"{side} {t:9.1f}" for side, t in row["microseconds"].items())
    rate = f" {row['teraflops']:6.1f} TFLOP/s" if row["teraflops"] else ""
    wrong = "" if row["right"] else "  WRONG"
    longest = "".join(f"\n    {time:9.1f} us  {step}" for step, time in row["longest"])
    return f"{row['name']:36} {times} us  {row['speedup']:5.2f}x{rate}  error {row['error']:.1e}{wrong}{longest}"


def means(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Geometric means of the speedups by kind and last part of the name, such as the batch of convolutions."""
    groups: dict[str, list[float]] = {}
    for row in found:
        if "failed" not in row:
            kind, *parts = row["name"].split(":")
            group = f"{kind}:{parts[-1]}" if kind == "convolution" else kind
            groups.setdefault(group, []).append(row["speedup"])
    return {group: math.exp(sum(map(math.log, values)) / len(values)) for group, values in groups.items()}


def with_tf32(names: Sequence[str]) -> list[str]:
    """Names of rows, those of float32 also with TF32. Raises ParameterError where this version has no TF32."""
    if "precision" not in inspect.signature(burnish.compile).parameters:
        raise ParameterError("--tf32: found a version of burnish.compile without 'precision'; allowed: one with it")
    halves = ("float16", "bfloat16", "operator:")
    return [row for name in names for row in ([name] if any(h in name for h in halves) else [name, name + TF32])]


def main() -> None:
    """Compares what is asked for, by default everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SECTIONS), help=f"rows, or of {', '.join(SECTIONS)}")
    parser.add_argument("--compile", action="store_true", help="beside torch.compile, too")
    parser.add_argument("--tf32", action="store_true", help="rows of float32 with TF32 allowed on both sides, too")
    parser.add_argument("--profile", action="store_true", help=f"the {LONGEST} longest kernels of each row, too")
    parser.add_argument("--processes", type=int, default=4, help="rows that are prepared at once")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.names[0], args.compile, args.profile)
        return
    if device() is None:
        return
    options = ["--compile"] * args.compile + ["--profile"] * args.profile

    def keep(found: list[dict[str, Any]]) -> None:
        if args.json:
            args.json.write_text(stored({"rows": found, "means": means(found)}, indent=1))

    names = [row for name in args.names for row in SECTIONS.get(name, [name])]
    found = rows(with_tf32(names) if args.tf32 else names, args.processes, options, keep)
    for group, value in means(found).items():
        print(f"{group}: {value:.2f}x the fastest of PyTorch's (geometric mean)")


if __name__ == "__main__":
    main()
