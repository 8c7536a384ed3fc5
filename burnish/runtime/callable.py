"""Compiled models by one protocol: questions that every kind of them answers, one way to refuse, one to close."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from burnish.base.lazy import later
from burnish.errors import ClosedError, InputError, UnsupportedMethod
from burnish.runtime.arguments import described
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.gpu.arrays import holds_gpu_array
from burnish.runtime.state import ModuleStates
from burnish.runtime.steps import Step, TensorSpec

NAMED_SLOW = 3  # slow steps that a ``repr`` names


@dataclass(frozen=True)
class ProfileRow:
    """One step: median time in microseconds, and its share of the sum over all. ``kernel`` is the kernel of a call, and
    says of other steps what they are: "topk (host)" is the opaque operator ``topk``, in Python. ``slow``: why the step
    is expected to be slow, if it is.
    """

    node: str
    kernel: str
    microseconds: float
    share: float
    slow: str = ""


def profile_rows(steps: Sequence[Step], rounds: np.ndarray, slow: Mapping[str, str]) -> list[ProfileRow]:
    """Rows of a profile: medians of ``rounds`` [runs, steps], in nanoseconds; ``slow``: reasons by steps' labels."""
    medians = [statistics.median(times) / 1e3 for times in rounds.T.tolist()]
    total = sum(medians) or 1.0
    return [
        ProfileRow(step.node, step.label, time, time / total, slow.get(step.label, ""))
        for step, time in zip(steps, medians, strict=True)
    ]


def slow_text(slow: Mapping[str, str]) -> str:
    """The first of the steps that are expected to be slow, as a fact of a ``repr``; empty where there are none."""
    names = [f"{label}: {why}" for label, why in list(slow.items())[:NAMED_SLOW]]
    more = [f"{len(slow) - NAMED_SLOW} more"] * (len(slow) > NAMED_SLOW)
    return f"slow: {', '.join([*names, *more])}" if slow else ""


class ArraySpec(Protocol):
    """Type of an input or output: of its extents some may be open (names, dimensions), and of some kinds the rank."""

    @property
    def name(self) -> str:
        """As calls by name give it."""

    @property
    def shape(self) -> tuple[Any, ...] | None:
        """Extents: integers, and what stands for open ones; None for an open rank."""

    @property
    def dtype(self) -> str:
        """Such as "float32"."""


class CompiledModel(Protocol):
    """Compiled model or training step of any kind, called with arrays: what ``burnish.compile`` and ``load`` return.

    What a kind cannot do raises UnsupportedMethod, which says what to do instead; after ``close`` everything but
    ``closed``, ``close`` and ``repr`` raises ClosedError. Use as a context manager to close it.

    >>> graph = bn.sym.graph(bn.sym.relu(bn.sym.variable("x")), {"x": (3,)})
    >>> model = bn.compile(graph, rewrite=False)
    >>> [spec.shape for spec in model.inputs], dict(model.state), model.closed
    ([(3,)], {}, False)
    >>> with model:
    ...     print(model(np.array([-1, 0, 2], "f4")))
    [0. 0. 2.]
    >>> model
    Module(closed)
    """

    @property
    def inputs(self) -> Sequence[ArraySpec]:
        """Names, shapes and dtypes of the arguments, in the order of a call."""

    @property
    def outputs(self) -> Sequence[ArraySpec]:
        """Names, shapes and dtypes of the results, in order."""

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by use."""

    @property
    def state(self) -> ModuleStates:
        """Values that last from call to call, by name, to read and to replace; empty for a model without."""

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""

    @property
    def calls_at_once(self) -> int:
        """Calls that run at the same time at most; others wait."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The result, or the tuple of several, as new arrays. Raises InputError for arguments that do not fit."""

    def run_into(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """As a call, but writes to existing arrays. Raises InputError for arrays that do not fit."""

    def run_async(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The result of a call that another thread makes: the arguments must not change until then. Calls that take
        turns, as those of a model with state do, are made in the order in which they are asked for.
        """

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """Time of each step in such a call, in order: medians over ``repeat`` runs, after one that is not counted."""

    def report(self, path: str | Path | None = None, inputs: Mapping[str, Any] | None = None) -> Path:
        """Writes a page of HTML about the model and its time, and returns its path: "report.html" unless given.

        Calls are timed on ``inputs``, by name, else on random ones; states stay as they are. Raises
        MissingDependencyError where only what runs models is installed.
        """

    def save(self, path: str | Path, *, key: bytes | None = None) -> None:
        """Writes a file, with the state as it is now, that ``burnish.load`` reads; ``key`` signs it. Raises OSError."""

    def close(self) -> None:
        """Frees memory and files; what others hold of it (copies, results, states) stays theirs."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""


class CompiledBase:
    """Answers that all kinds of :class:`CompiledModel` share. ``unsupported``: methods that a kind refuses, with what
    to do instead.
    """

    unsupported: ClassVar[Mapping[str, str]] = {}

    if TYPE_CHECKING:  # some kinds have attributes in their place

        @property
        def inputs(self) -> Sequence[ArraySpec]:
            """Names, shapes and dtypes of the arguments, in the order of a call."""

        @property
        def outputs(self) -> Sequence[ArraySpec]:
            """Names, shapes and dtypes of the results, in order."""

        def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
            """The result, or the tuple of several."""

    def run_into(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """As calling it, but writes to existing arrays: contiguous and writable. Raises InputError."""
        if len(outputs) != len(self.outputs):
            raise InputError(f"{len(outputs)} output arrays given, the model has {len(self.outputs)}")
        for spec, array in zip(self.outputs, outputs, strict=True):  # before a call, which changes states
            if isinstance(spec, TensorSpec) and not spec.dims:
                check_output(spec.name, array, spec.shape, numpy_dtype(spec.dtype))
        found = self(*inputs)
        results = found if isinstance(found, tuple) else (found,)
        for spec, array, result in zip(self.outputs, outputs, results, strict=True):
            if not isinstance(result, np.ndarray):
                raise InputError(f"output '{spec.name}' is {described(array)}, allowed: {type(result).__name__}")
            check_output(spec.name, array, result.shape, result.dtype)
            array[...] = result

    def run_async(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The result of a call that another thread makes: the arguments must not change until then. Calls that take
        turns are made in the order in which they are asked for. One on arrays of a GPU is made by this thread, at once.

        What the call raises, the future's ``result`` raises; after ``close`` that is ClosedError.
        """
        if holds_gpu_array((args, kwargs)):
            return self._done(args, kwargs)
        threads = self._asked_threads(make=True)
        assert threads is not None
        future: Future[Any] = threads.submit(self, *args, **kwargs)
        return future

    def _done(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Future[Any]:
        """A call that is made now, after those that threads make: on arrays of a GPU it does not wait for its end."""
        found: Future[Any] = Future()
        try:
            threads = self._asked_threads()
            if threads is not None:  # one, as a model on a GPU has
                threads.submit(int).result()
            found.set_result(self(*args, **kwargs))
        except Exception as error:
            found.set_exception(error)
        return found

    def _asked_threads(self, make: bool = False) -> ThreadPoolExecutor | None:
        """The threads of :meth:`run_async`; None before it was called first, unless they are to be made."""
        own = f"_executor_{os.getpid()}"  # threads do not outlive a fork
        threads: ThreadPoolExecutor | None = self.__dict__.get(own)
        if threads is None and make:
            threads = self.__dict__.setdefault(own, ThreadPoolExecutor(self.calls_at_once, "burnish"))
        return threads

    @property
    def calls_at_once(self) -> int:
        """Calls that run at the same time at most; others wait."""
        return 1

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """Refused by kinds that have no steps to time: raises UnsupportedMethod."""
        raise self._refusal("profile")

    def report(self, path: str | Path | None = None, inputs: Mapping[str, Any] | None = None) -> Path:
        """Writes a page of HTML (offline, one file) about the model, and returns its path: ``path``, or "report.html".

        Steps and whole calls are timed on ``inputs``, arrays by name, else on random ones; states are what they were
        then. A page about a model that is compiled shows its kernels, its compiled graph and its memory; ``burnish
        report`` of an ONNX file compiles it and shows every pass. Raises ParameterError for a ``path`` that is
        something else than such a page, OSError if it cannot be written, InputError for inputs that do not fit, and
        MissingDependencyError where only what runs models is installed.
        """
        written: Path = later("burnish.report.written", "write_report", "pages about models")(self, path, inputs)
        return written

    def save(self, path: str | Path, *, key: bytes | None = None) -> None:
        """Refused by kinds that are no one file: raises UnsupportedMethod."""
        raise self._refusal("save")

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return "_closed" in self.__dict__

    def close(self) -> None:
        """Frees what it holds; later calls raise ClosedError. What others hold (copies, results, states) stays."""
        if not self.closed:
            self._release()
            self.__dict__ = {"_closed": True}  # at once: other threads find either all or this

    def _release(self) -> None:
        """Gives back what is not freed with the last reference to it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        name = type(self).__name__
        if self.closed:
            return f"{name}(closed)"
        inputs, outputs = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        return f"{name}({inputs} -> {outputs}{''.join(f'; {fact}' for fact in self._facts() if fact)})"

    def _facts(self) -> Sequence[str]:
        """Facts for ``repr``, besides inputs and outputs."""
        return ()

    def _refusal(self, method: str) -> UnsupportedMethod:
        kind = type(self).__name__
        return UnsupportedMethod(f"{kind}.{method}: not supported; allowed: {self.unsupported[method]}")

    if not TYPE_CHECKING:  # else a type checker would take any attribute

        def __getattr__(self, name: str) -> Any:
            # Called for missing attributes alone, which a closed model has no others of: calls pay nothing for it.
            kind = type(self).__name__
            if name.startswith("__") or "_closed" not in self.__dict__:
                raise AttributeError(f"'{kind}' object has no attribute '{name}'", name=name, obj=self)
            raise ClosedError(f"{kind}: it is closed; allowed: calls before close()")


def check_output(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raises InputError for what is no array of this type to write a result to, or not contiguous or writable."""
    if not isinstance(array, np.ndarray):
        raise InputError(f"output '{name}' is a {type(array).__name__}, allowed: a NumPy array to write to")
    if array.shape != shape or array.dtype != dtype:
        raise InputError(f"output '{name}' is {described(array)}, allowed: {dtype}{list(shape)}")
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise InputError(f"output '{name}' is not contiguous or not writable, allowed: both")


def medians(
    rounds: Sequence[Mapping[tuple[str, str], float]], slow: Mapping[str, str] | None = None
) -> list[ProfileRow]:
    """Rows of a profile from seconds by (node, kernel) of several rounds, the first of which is not counted."""
    counted = rounds[1:] or rounds
    found = {key: 1e6 * float(np.median([r.get(key, 0.0) for r in counted])) for key in rounds[-1]}
    whole = sum(found.values()) or 1.0
    reasons = slow or {}
    return [ProfileRow(node, kernel, t, t / whole, reasons.get(kernel, "")) for (node, kernel), t in found.items()]
