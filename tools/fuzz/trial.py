"""One trial: a model compiled in one way and called, and compared with what the oracles expect."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx

import burnish as bn
from burnish.errors import BurnishError, UnsupportedOperator
from burnish.measure.accuracy import EXACT_TOLERANCE, TOLERANCE
from burnish.pipeline.kernel import SLOW as SLOW_KERNEL
from tools.fuzz.oracles import MANY_SAMPLES, Expected, expect, judge
from tools.fuzz.pages import run_fenced
from tools.fuzz.standard import NotComputable

SLOW = 20.0  # seconds that compiling a small model may take
FAILURES = ("slow", "definition", "wrong", "error", "crash", "hang")


@dataclass(frozen=True)
class Way:
    """Configuration of compiling and running a model. ``edge``: on which side of forbidden pages its memory lies, if at
    all. ``open``: with extents of inputs left open, drawn by ``draw``.
    """

    exact: bool = False
    rewrite: bool = False
    threads: int = 1
    edge: str = ""
    open: bool = False
    draw: int = 0

    def __str__(self) -> str:
        words = ["exact"] * self.exact + ["rewrite"] * self.rewrite + ["open"] * self.open
        words.append(f"threads={self.threads}")
        return " ".join(words + ([f"edge={self.edge}"] if self.edge else []))


@dataclass(frozen=True)
class Result:
    """Outcome of a trial; ``kind`` is the same for failures that look alike. ``apart``: right, but with a warning
    that a group of operators has no schedule, and became several kernels. ``by size``: right, but an open extent had to
    be compiled for each of its sizes. Beside inputs that are infinite or NaN:
    ``spread``: right but for NaN that Winograd's convolution and its like take in; ``padding``: right but for NaN of
    weights times padding, which kernels may leave out.
    """

    outcome: str
    detail: str = ""
    kind: str = ""
    seconds: float = 0.0  # of compiling


def ways(seed: int, pages: bool, opened: bool = False) -> list[Way]:
    """The ways in which the model of a seed is tried: exactly, and freely; one in eight with rewriting."""
    threads = 1 + seed % 2
    if opened:
        return [Way(exact=seed % 3 == 0, threads=threads, open=True, draw=seed)]
    if pages:
        edge = ("end", "start")[seed // 2 % 2]
        return [Way(exact=seed % 3 == 0, threads=threads, edge=edge)]
    return [Way(exact=True, threads=3 - threads), Way(rewrite=seed % 8 == 0, threads=threads)]


def attempt(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    way: Way,
    cache_dir: Path,
    mark: Callable[[str], None] = lambda stage: None,
    expected: Sequence[Expected] | None = None,
) -> Result:
    """The outcome of one trial; ``mark`` is called with each stage before it begins, so that a crash has a place."""
    began = time.perf_counter()
    seconds = 0.0
    try:
        if expected is None:
            mark("oracles")
            expected = expect(model, feeds)
        mark("compile")
        began = time.perf_counter()
        with warned() as warnings:
            source, shapes = opened(model, way.draw) if way.open else (model, None)
            module: Any = bn.compile(
                source, threads=way.threads, exact=way.exact, rewrite=way.rewrite, cache_dir=cache_dir, shapes=shapes
            )
        seconds = time.perf_counter() - began
        outcome, detail = _called(module, model, feeds, way, mark, expected)
        for resized, others, values in at_sizes(model, feeds, source, shapes or {}, way.draw):
            if outcome != "right":
                break
            outcome, detail = _called(module, resized, others, way, mark, values)
            detail = detail and f"at {[list(array.shape) for array in others.values()]}: {detail}"
    except NotComputable as error:
        return Result("no oracle", str(error))
    except UnsupportedOperator as error:
        return Result("refused", str(error))
    except Exception as error:
        return Result("error", *describe(error), seconds)
    if outcome == "right" and seconds > SLOW:
        return Result("slow", f"compiled in {seconds:.1f} s", "slow", seconds)
    if outcome == "right" and isinstance(module, bn.Module):
        far = [row for row in module.info.get("kernels", ()) if row.get("times", 0.0) >= SLOW_KERNEL]
        if far:
            return Result("slow", f"kernel {far[0]['kernel']}: {far[0]['slow']}", "slow kernel", seconds)
    if outcome == "right" and not isinstance(module, bn.Module):
        return Result("by size", "", "", seconds)
    if outcome == "right" and warnings:
        return Result("apart", warnings[0], "apart", seconds)
    kind = f"{outcome} shape" if outcome in FAILURES and "elements" not in detail else outcome
    return Result(outcome, detail, kind, seconds)


def _called(
    module: Any,
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    way: Way,
    mark: Callable[[str], None],
    expected: Sequence[Expected],
) -> tuple[str, str]:
    """The outcome of one call of a compiled model, and what is wrong."""
    mark("run")
    ordered = [feeds[spec.name] for spec in module.inputs]
    if way.edge:
        found = run_fenced(module, ordered, way.edge)
    else:
        results = module(*ordered)
        found = list(results) if isinstance(results, tuple) else [results]
    mark("judge")
    relative = EXACT_TOLERANCE if way.exact else TOLERANCE
    outcome, detail = judge(model, feeds, found, expected, relative)
    if outcome != "right":
        expected = expect(model, feeds, samples=MANY_SAMPLES, relative=relative)
        outcome, detail = judge(model, feeds, found, expected, relative)
    if outcome == "wrong" and any(holds_no_number(array) for array in feeds.values()):
        outcome, detail = _excused(model, feeds, way, found, expected) or (outcome, detail)
    return outcome, detail


def opened(model: onnx.ModelProto, draw: int) -> tuple[onnx.ModelProto, dict[str, tuple[int, ...]]]:
    """The model with extents of its inputs open, equal ones under one name, and their bounds and hints by ``draw``.

    The first extents, or in one of three draws any, each by its input's name and axis alone: a smaller model's stay.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    shapes: dict[str, tuple[int, ...]] = {}
    constants = {tensor.name for tensor in made.graph.initializer}
    del made.graph.value_info[:]  # which say the sizes of the trial
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    for value in made.graph.input:
        if value.name in constants:
            continue
        for axis, d in enumerate(value.type.tensor_type.shape.dim):
            extent = d.dim_value
            of_axis = np.random.default_rng((draw, crc32(value.name.encode()), axis))
            if not extent or (axis if draw % 3 else of_axis.random() < 0.5):
                continue
            random = np.random.default_rng((draw, extent))
            low, high = int(random.choice((1, 1, extent))), extent + int(random.choice((0, 1, 5, 32)))
            if low == high:
                high += 1
            d.dim_param = f"open{extent}"
            shapes[d.dim_param] = (low, high, 1, int(random.choice((low, high, random.integers(low, high + 1)))))
    return made, shapes


def at_sizes(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    source: onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]],
    seed: int,
) -> Iterator[tuple[onnx.ModelProto, dict[str, np.ndarray], list[Expected]]]:
    """The model at the least, the greatest and the hinted sizes of open extents that it can have, its inputs repeated
    or cut to those, and what its outputs must be.
    """
    for column in (0, 1, 3) if shapes else ():
        sizes = {name: bounds[column] for name, bounds in shapes.items()}
        resized, others = onnx.ModelProto(), dict(feeds)
        resized.CopyFrom(source)
        for value in resized.graph.input:
            for axis, d in enumerate(value.type.tensor_type.shape.dim):
                if d.dim_param in sizes:
                    old, new = feeds[value.name].shape[axis], sizes[d.dim_param]
                    others[value.name] = np.take(others[value.name], np.arange(new) % old, axis)
                    d.dim_value = new
        if all(others[name].shape == array.shape for name, array in feeds.items()):
            continue
        try:
            yield resized, others, expect(resized, others, seed, samples=1)
        except (NotComputable, BurnishError):
            continue  # constants of the model may demand the size that was drawn


def _excused(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    way: Way,
    found: Sequence[np.ndarray],
    expected: Sequence[Expected],
) -> tuple[str, str] | None:
    """Documented difference (docs/limits.md, on infinite and NaN inputs) that explains all that is wrong."""
    if not way.exact:
        numbers = [np.where(np.isnan(y), e.native, y) for y, e in zip(found, expected, strict=True)]
        if judge(model, feeds, numbers, expected, TOLERANCE)[0] == "right":
            return "spread", "NaN has spread, as other algorithms than the definition's let it"
    if any(_pads(node) for node in model.graph.node):
        numbers = [np.where(np.isnan(e.native), e.native, y) for y, e in zip(found, expected, strict=True)]
        if judge(model, feeds, numbers, expected, TOLERANCE)[0] != "wrong":
            return "padding", "weights that are no numbers, times padding, were left out or not"
    return None


def _pads(node: onnx.NodeProto) -> bool:
    """Whether a node may multiply weights by padding; that of a transposed convolution is inside its input, too."""
    padding = any(a.name in ("pads", "auto_pad") and (any(a.ints) or a.s) for a in node.attribute)
    return padding or node.op_type == "ConvTranspose"


def holds_no_number(array: np.ndarray) -> bool:
    """Whether some element is infinite or NaN."""
    return array.dtype.kind not in "iub" and not bool(np.isfinite(array.astype(np.float64)).all())


@contextmanager
def warned() -> Iterator[list[str]]:
    """The warnings that the package logs inside, as text."""
    texts: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    handler = Collector(logging.WARNING)
    logger = logging.getLogger("burnish")
    logger.addHandler(handler)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)


def describe(error: BaseException) -> tuple[str, str]:
    """An exception in words, and where it arose."""
    frames = traceback.extract_tb(error.__traceback__)
    place = frames[-1]
    own = next((f for f in reversed(frames) if "burnish" in f.filename), place)
    where = f"{Path(own.filename).name}:{own.name}"
    return f"{type(error).__name__}: {str(error)[:600]} [{where}:{own.lineno}]", f"{type(error).__name__} {where}"
