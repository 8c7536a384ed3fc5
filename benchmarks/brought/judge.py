"""The judgement of one model file, in a process of its own: right or not, the first answer, the time of calls.

`python -m benchmarks.brought.judge MODEL.onnx [--threads N] [--seconds S] [--cpu-time] [--phases]` prints a `Verdict`
as JSON on its last line. The arrays of `MODEL.npz` are the inputs, `MODEL.json` holds the tolerance.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import burnish as bn
from burnish.driver.segmented import SegmentedModule
from burnish.errors import BurnishError, InputError, ModelError, UnsupportedOperator
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error

ALLOWED_RATIO = 1.2  # of onnxruntime's time
SLOW_FIRST = 5.0  # CPU seconds from the file to the first answer
NUDGE = 1e-6  # relative change of inputs that tells how far onnxruntime's own answer moves
Feeds = dict[str, np.ndarray]


@dataclass
class Verdict:
    """Verdict on one model. Times of calls in microseconds, of the first answer in CPU seconds.

    ``status``: right; refused (by the name of an operator or input); wrong; error (of another kind); crash; hang; bad
    (onnxruntime does not run it either). ``ratio``: our time over onnxruntime's, the median of rounds, and
    ``least_ratio`` that of the fastest rounds. ``top``: kernel, microseconds and why it is expected to be slow.
    """

    name: str
    family: str = ""
    status: str = "right"
    message: str = ""
    error: float | None = None
    compile_cpu: float | None = None
    first_cpu: float | None = None
    ours: float | None = None
    theirs: float | None = None
    ratio: float | None = None
    least_ratio: float | None = None
    kernels: int = 0
    segments: int = 0
    cause: str = ""
    top: list[tuple[str, float, str]] = field(default_factory=list)
    phases: list[tuple[str, float]] = field(default_factory=list)

    @property
    def slow(self) -> bool:
        """Whether it takes more than allowed by both measures, so that one disturbed round does not make it so."""
        return min(self.ratio or 0.0, self.least_ratio or 0.0) > ALLOWED_RATIO


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for timing; 0: none")
    parser.add_argument("--cpu-time", action="store_true", help="time by CPU seconds; for one thread")
    parser.add_argument("--phases", action="store_true", help="profile the compiler where the first answer is slow")
    arguments = parser.parse_args()
    verdict = judge(arguments.model, arguments.threads, arguments.seconds, arguments.cpu_time, phases=arguments.phases)
    sys.stdout.flush()
    print("\n" + json.dumps(asdict(verdict)), flush=True)


def judge(
    path: Path, threads: int = 2, seconds: float = 2.0, cpu_time: bool = False, *, phases: bool = False
) -> Verdict:
    """Compiles a model from empty caches, compares its answers with onnxruntime's, and times both in turns."""
    verdict = Verdict(path.stem)
    feeds, tolerance = read_case(path)
    try:
        session = peers.onnxruntime(path, threads)
        wanted = session(feeds)
    except Exception as error:  # whatever the reference says
        verdict.status, verdict.message = "bad", f"onnxruntime: {type(error).__name__}: {error}"[:300]
        return verdict
    try:
        call = _first_answer(path, feeds, threads, verdict)
        _compare(path, call, session, feeds, wanted, tolerance, verdict)
    except (UnsupportedOperator, ModelError) as error:
        verdict.status, verdict.message = "refused", f"{type(error).__name__}: {error}"[:400]
        return verdict
    except Exception as error:
        internal = "" if isinstance(error, BurnishError) else "internal "
        verdict.status, verdict.message = "error", f"{internal}{type(error).__name__}: {error}"[:400]
        return verdict
    if seconds:
        _time(call, session, feeds, seconds, cpu_time, verdict)
        _explain(call, feeds, verdict)
    if phases and (verdict.first_cpu or 0.0) > SLOW_FIRST:
        verdict.phases = _phases(path, feeds, threads)
    return verdict


def read_case(path: Path) -> tuple[Feeds, float]:
    """The inputs by name, and how far answers may be from onnxruntime's."""
    facts = path.with_suffix(".json")
    tolerance = json.loads(facts.read_text()).get("tolerance", 1e-3) if facts.exists() else 1e-3
    with np.load(path.with_suffix(".npz")) as stored:
        feeds = {name: stored[name] for name in stored.files}
    return {name: a.astype(object) if a.dtype.kind == "U" else a for name, a in feeds.items()}, tolerance


@dataclass(frozen=True)
class Compiled:
    """A compiled model, called with inputs by name."""

    module: Any

    def positions(self, feeds: Mapping[str, Any]) -> list[Any]:
        return [feeds[spec.name] for spec in self.module.inputs]

    def __call__(self, feeds: Mapping[str, Any]) -> list[Any]:
        found = self.module(*self.positions(feeds))
        return list(found) if isinstance(found, tuple) else [found]


def _first_answer(path: Path, feeds: Feeds, threads: int, verdict: Verdict) -> Compiled:
    """Compiles, without shapes first: what somebody does who brings a file. Raises what compiling and calling do."""
    _warm_up()
    with tempfile.TemporaryDirectory() as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = cpu_seconds()
        compiled = Compiled(bn.compile(str(path), threads=threads, cache_dir=cache))
        verdict.compile_cpu = cpu_seconds() - start
        try:
            compiled(feeds)
        except InputError as error:  # an extent that the file leaves open was taken as another
            verdict.message = f"needs shapes: {error}"[:300]
            start = cpu_seconds()
            compiled = Compiled(
                bn.compile(str(path), threads=threads, cache_dir=cache, shapes=open_shapes(path, feeds))
            )
            verdict.compile_cpu = cpu_seconds() - start
            compiled(feeds)
        verdict.first_cpu = cpu_seconds() - start
    module = compiled.module
    if isinstance(module, SegmentedModule):
        verdict.segments = module.compilations
    else:
        verdict.kernels = len(module.executable.calls)
    return compiled


def _warm_up() -> None:
    """Imports and starts what no model has to answer for."""
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    bn.compile(model, threads=1)(np.zeros(4, np.float32))


def open_shapes(path: Path, feeds: Feeds) -> dict[str, list[int]]:
    """The shapes of inputs whose extents the file leaves open."""
    graph = onnx.load(path, load_external_data=False).graph
    extents = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    return {
        name: list(array.shape)
        for name, array in feeds.items()
        if not all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in extents.get(name, ()))
    }


def cpu_seconds() -> float:
    """CPU seconds of this process and its children, which other load hardly changes."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _compare(
    path: Path,
    call: Compiled,
    session: peers.Run,
    feeds: Feeds,
    wanted: Sequence[Any],
    tolerance: float,
    verdict: Verdict,
) -> None:
    """Two inputs, so that an answer that depends on none of them, or is kept from the call before, is found."""
    for given in (feeds, nudged(feeds, 0.01)):
        expected = wanted if given is feeds else session(given)
        error = difference(call(given), expected)
        if error > tolerance:  # a quantum or a tie may fall to either side: how far does the reference itself move?
            error = min(error, max(error - difference(session(nudged(given, NUDGE)), expected), 0.0))
        if not error <= tolerance and (second := _definition(path, given)) is not None:
            error = min(error, difference(call(given), second))  # its own sigmoid errs by a tenth at 1e-7
            verdict.message += "onnxruntime itself is further from the definition" * (error <= tolerance)
        verdict.error = max(verdict.error or 0.0, error)
        if not error <= tolerance:
            verdict.status, verdict.message = "wrong", f"error {error:.2e}, allowed {tolerance:g}"
            return


def _definition(path: Path, feeds: Feeds) -> list[Any] | None:
    """Outputs of onnx's ReferenceEvaluator, which lacks some operators."""
    try:
        with np.errstate(all="ignore"):
            return list(ReferenceEvaluator(str(path)).run(None, feeds))
    except Exception:  # whatever it fails with
        return None


def nudged(feeds: Feeds, by: float) -> Feeds:
    """The inputs with floating-point values changed by about ``by`` of themselves."""
    random = np.random.default_rng(1)
    return {
        name: (a * (1 + by * random.standard_normal(a.shape))).astype(a.dtype) if a.dtype.kind == "f" else a
        for name, a in feeds.items()
    }


def difference(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest scaled error over all arrays, also those within sequences and maps; of integers and texts the share
    that differs. Infinite for another structure, type or shape.
    """
    ours, theirs = _leaves(list(found)), _leaves(list(wanted))
    if len(ours) != len(theirs):
        return np.inf
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape or (a.dtype != b.dtype and "O" not in (a.dtype.kind, b.dtype.kind)):
            return np.inf
        if b.dtype.kind in "fV":
            error = scaled_error([a], [b])
            worst = max(worst, np.inf if np.isnan(error) else error)
        elif b.size:
            worst = max(worst, float(np.mean(a != b)))
    return worst


def _leaves(value: Any) -> list[np.ndarray]:
    if isinstance(value, Mapping):
        return [np.asarray(list(value)), np.asarray(list(value.values()))]
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in _leaves(each)]
    return [np.asarray(value)]


def _time(call: Compiled, session: peers.Run, feeds: Feeds, seconds: float, cpu_time: bool, verdict: Verdict) -> None:
    clock = time.process_time_ns if cpu_time else time.perf_counter_ns
    arguments = call.positions(feeds)
    contenders: dict[str, Callable[[], object]] = {
        "burnish": lambda: call.module(*arguments),
        "onnxruntime": lambda: session(feeds),
    }
    timings = peers.alternate(contenders, seconds, clock=clock)
    ours, theirs = timings["burnish"], timings["onnxruntime"]
    verdict.ours, verdict.theirs = 1e6 * min(ours.rounds), 1e6 * min(theirs.rounds)
    verdict.ratio = 1 / peers.speedup(ours, theirs)
    verdict.least_ratio = verdict.ours / verdict.theirs


def _explain(call: Compiled, feeds: Feeds, verdict: Verdict) -> None:
    """The steps that hold a slow call, and of which kind they are: the first kind that makes half of what is lost."""
    if not verdict.slow or verdict.ours is None or verdict.theirs is None:
        return
    rows = call.module.profile(*call.positions(feeds), repeat=10)
    why = call.module.slow
    rows = sorted(rows, key=lambda row: -row.microseconds)
    verdict.top = [(row.kernel, round(row.microseconds, 1), row.slow or why.get(row.kernel, "")) for row in rows[:6]]
    inside = [row for row in rows if row.kernel.startswith("segment of")]
    largest = max((row.microseconds for row in inside), default=0.0)
    host = [row for row in rows if row.kernel.endswith("(host)")]
    generic = [row for row in rows if (row.slow or why.get(row.kernel)) and row not in host]
    names = list(dict.fromkeys(row.kernel.removesuffix(" (host)") for row in host))
    kinds = {
        "kernels of one segment": largest - verdict.theirs if largest > verdict.ours / 2 else 0.0,
        f"{len(inside)} segments in Python, {len(host)} nodes between": verdict.ours if inside else 0.0,
        f"operators in Python: {', '.join(names[:4])}": sum(row.microseconds for row in host),
        f"generic schedules: {', '.join(row.kernel for row in generic[:4])}": sum(row.microseconds for row in generic),
        "around kernels": verdict.ours - sum(row.microseconds for row in rows),
    }
    lost = verdict.ours - verdict.theirs
    verdict.cause = next((kind for kind, time_ in kinds.items() if time_ > lost / 2), "kernels")


def _phases(path: Path, feeds: Feeds, threads: int) -> list[tuple[str, float]]:
    """CPU seconds of a further compilation and first call by function of Burnish, the callees of each included."""
    profile = cProfile.Profile(time.process_time)
    shapes = open_shapes(path, feeds)
    with tempfile.TemporaryDirectory() as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profile.enable()
        try:
            call = Compiled(bn.compile(str(path), threads=threads, cache_dir=cache))
            call(feeds)
        except InputError:
            Compiled(bn.compile(str(path), threads=threads, cache_dir=cache, shapes=shapes))(feeds)
        finally:
            profile.disable()
    root = str(Path(bn.__file__).parent)
    found = [
        (f"{file.removeprefix(root + '/')}:{name}", round(cumulative, 2))
        for (file, _, name), (_, _, _, cumulative, _) in pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
        if file.startswith(root)
    ]
    return sorted(found, key=lambda row: -row[1])[:40]


if __name__ == "__main__":
    main()
