"""Models that are no static graph: compiled for the sizes of a call, as a whole where that can be (``by_size.py``).

Else they are segments, compiled for what a call gives them, and control flow in Python between them.
A segment is compiled when it first meets a combination of types, and of values where its operators want to know them;
what was compiled is kept, the last used ones of each segment. So a call never gives a wrong answer for a size or a
value that was not foreseen: it may take as long as a compilation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

from burnish.base.garbage import rarely_collected
from burnish.driver.assembly import make_module
from burnish.driver.by_size import BySize, Make, SizedForm
from burnish.driver.compilation import compile_kernels
from burnish.driver.nested import PythonStep
from burnish.driver.open_inputs import TEXT, OpenInputs, OpenSpec, open_spec
from burnish.driver.segment_calls import SegmentCalls
from burnish.errors import ArtifactError, ModelError
from burnish.frontend.onnx.context import RuntimeValue
from burnish.frontend.onnx.segments import SegmentedGraph, inputs_behind, read_program
from burnish.graph.graph import Graph
from burnish.loops.numeric import numpy_dtype
from burnish.machines.target import Target
from burnish.machines.target import target as find_target
from burnish.runtime.artifact import checked_key
from burnish.runtime.callable import CompiledBase, ProfileRow, medians, slow_text
from burnish.runtime.container import Container, write_container
from burnish.runtime.device import Device
from burnish.runtime.module import Module
from burnish.runtime.state import ModuleStates
from burnish.train.step import noted_indices

KIND = "segments"  # of file
AT_CALLS = "at the first call of each size, or for all sizes where others come and that can be"
KINDS = 64  # of arguments that are remembered
_STRINGS = frozenset([str])


class SegmentedModule(CompiledBase):
    """A compiled model whose segments are compiled at the calls that first need them; else as :class:`Module`.

    ``limits`` holds what callers promised of inputs: the shapes of those named. ``options`` are what a file keeps of
    how it is compiled. Calls from several threads take turns.
    """

    inputs: tuple[OpenSpec, ...]
    outputs: tuple[OpenSpec, ...]

    def __init__(
        self,
        program: SegmentedGraph,
        compiler: Callable[[Graph], Module],
        make: Make,
        limits: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._program, self._options = program, dict(options or {})
        self._calls = SegmentCalls(compiler)
        self._lock = threading.RLock()
        self._kinds: set[Any] = set()  # of arguments that were accepted as they are
        self._signature = OpenInputs(tuple(map(open_spec, program.inputs)), dict(limits or {}))
        self.inputs = self._signature.specs
        self.outputs = tuple(map(open_spec, program.graph.output))
        self._names = tuple(spec.name for spec in self.inputs)
        self._whole = BySize(self.inputs, make, lambda name: inputs_behind(program, name))
        self._noted: dict[str, Any] = {}
        self.state = ModuleStates()  # a model with states is one static graph

    @property
    def compilations(self) -> int:
        """Number of segments and whole models compiled so far."""
        return self._calls.compilations + self._whole.compilations

    @property
    def in_python(self) -> str:
        """Reason why calls go from segment to segment in Python; "" where the model is compiled as a whole."""
        return self._whole.refused

    @property
    def threads(self) -> int:
        """Threads that a call may use."""
        return next((run.threads for run in self._modules), 1)

    @property
    def graph(self) -> str:
        """The graphs of all segments compiled so far, as text."""
        return "\n".join(module.graph for module in self._modules)

    @property
    def rewrites(self) -> None:
        """Substitutions are looked for in models that are one static graph."""
        return None

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of arenas, parameters, scratch and code: the greatest of each over segments, the sum of parameters."""
        found = [module.memory for module in self._modules]
        keys = ("arena", "params", "scratch", "code")
        return {key: (sum if key in ("params", "code") else max)([m[key] for m in found] or [0]) for key in keys}

    @property
    def slow(self) -> dict[str, str]:
        """As of :class:`Module`, of all that was compiled so far, and why Python calls segments, if it does."""
        found = {label: why for module in self._modules for label, why in module.slow.items()}
        return {"segments in Python": self.in_python, **found} if self.in_python else found

    def note(self, **facts: Any) -> None:
        """Adds facts to what the module tells."""
        self._noted.update(facts)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The output, or the tuple of several outputs. Inputs are given in order or by name.

        Raises InputError for what is missing, unknown, or of another dtype or shape than the model declares.
        """
        if kwargs and not args and kwargs.keys() == {*self._names}:
            args, kwargs = tuple([kwargs[name] for name in self._names]), {}
        key = None
        if not kwargs:
            if not self._whole.refused:
                if (form := self._whole.known(args)) is not None:
                    return form.run(args)
            elif (key := _kind(args)) in self._kinds:
                with self._lock:
                    return self._in_python(dict(zip(self._names, args)))  # noqa: B905 as many
        values = self._signature.bind(args, kwargs)
        with self._lock:
            form = self._form(values)
            if form is None:
                if key is not None:
                    self._kinds = {*self._kinds, key} if len(self._kinds) < KINDS else {key}
                return self._in_python(values)
        return form.run([values[name] for name in self._names])

    def _in_python(self, values: Mapping[str, Any]) -> Any:
        """The result from segment to segment."""
        results = self._calls.run(self._program, values, {})
        return results[0] if len(results) == 1 else tuple(results)

    def form_of(self, args: Sequence[Any]) -> SizedForm | None:
        """The whole model for arguments of sizes that were met before; None where there is none."""
        return self._whole.known(args)

    def run_into(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """As calling the module, but writes to existing arrays. Raises InputError, as :meth:`Module.run_into`."""
        form = self._whole.known(inputs)
        if form is None:
            values = self._signature.bind(tuple(inputs), {})
            with self._lock:
                form = self._form(values)
        if form is not None:
            form.module.run_into([inputs[self._names.index(spec.name)] for spec in form.module.inputs], outputs)
            return
        super().run_into(inputs, outputs)

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """Time of every segment and of every node that runs between them, summed over its calls: medians of
        ``repeat`` runs, after one that is not counted.
        """
        values = self._signature.bind(args, kwargs)
        rounds: list[dict[tuple[str, str], float]] = []
        with self._lock:
            form = self._form(values)
            if form is not None:
                given = [values[spec.name] for spec in form.module.inputs]
                return form.module.profile(*given, repeat=repeat)
            for _ in range(repeat + 1):
                with self._calls.timed() as rows:
                    self._calls.run(self._program, values, {})
                total: dict[tuple[str, str], float] = {}
                for node, kernel, seconds in rows:
                    total[node, kernel] = total.get((node, kernel), 0.0) + seconds
                rounds.append(total)
        return medians(rounds)

    def save(self, path: str | Path, *, key: bytes | None = None) -> None:
        """Writes the model and how it is compiled, which ``burnish.load`` reads: it needs the compiler there, too,
        since what will be compiled depends on the calls. ``key``: as of :meth:`Module.save`. Raises OSError, and
        ArtifactError for a model of more than 2 GiB.
        """
        try:
            model = self._program.model().SerializeToString()
        except (ValueError, EncodeError) as error:
            raise ArtifactError(f"{path}: the model cannot be written: {error}") from error
        header = {"kind": KIND, "options": self._options, "facts": self._noted}
        write_container(Path(path), header, {"model": memoryview(model)}, checked_key(key))

    def close(self) -> None:
        """Closes all that was compiled; waits for calls of other threads. Later calls raise ClosedError."""
        if not self.closed:
            with self._lock:
                super().close()

    def _release(self) -> None:
        for module in self._modules:
            module.close()

    def _facts(self) -> list[str]:
        """Facts for ``repr``."""
        return [f"{self.compilations} {'segments' if self.in_python else 'sizes'} compiled", slow_text(self.slow)]

    def prepare(self) -> None:
        """Compiles what depends on no call where the model declares the types of its inputs: the whole, or the first
        segment.

        Raises what compilation raises.
        """
        given: dict[str, np.ndarray] = {}
        for spec in self.inputs:
            shape = self._signature.limits.get(spec.name, spec.shape)
            closed = shape is not None and all(isinstance(d, int) for d in shape)
            if spec.kind == "tensor" and spec.dtype != TEXT and closed:
                given[spec.name] = np.broadcast_to(np.zeros((), numpy_dtype(spec.dtype)), tuple(shape or ()))
        if not self._whole.refused and (len(given) < len(self.inputs) or self._form(given)):
            return  # compiled, or at the first call
        self._calls.prepare(self._program, given)

    @property
    def _modules(self) -> list[Module]:
        return [*self._whole.modules(), *self._calls.modules()]

    def _form(self, values: Mapping[str, Any]) -> SizedForm | None:
        """The whole model for the sizes of these inputs, if it can be one."""
        return self._whole.find([values[name] for name in self._names]) if not self._whole.refused else None


def _kind(args: Sequence[Any]) -> tuple[Any, ...] | None:
    """Key by which arguments are accepted as they are: types, shapes and the order in memory; None for others
    than arrays of numbers and of Python's strings.
    """
    found: list[Any] = []
    for a in args:
        if type(a) is not np.ndarray or not a.flags.c_contiguous:
            return None
        dtype = a.dtype
        if dtype.kind in "OU" and (dtype.kind == "U" or not _STRINGS.issuperset(map(type, a.reshape(-1).tolist()))):
            return None
        found += (a.shape, dtype)
    return tuple(found)


def compile_segments(
    model: Any,
    machine: Target,
    *,
    threads: int | None = None,
    exact: bool = False,
    cache_dir: str | Path | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix: Mapping[str, Any] | None = None,
    ahead: bool = True,
) -> SegmentedModule:
    """A model that is no static graph, or whose sizes are open, compiled as far as it can be before a call if that
    shall be ``ahead``.

    Raises what ``compile`` raises.
    """

    def compiled(graph: Graph) -> Module:
        module = make_module(compile_kernels(graph, machine, exact, cache_dir), threads)
        if limits := noted_indices(graph):
            module.note(indices=limits)
        return module

    promised = {name: given if isinstance(given, int) else list(given) for name, given in (shapes or {}).items()}
    options = {"target": machine.name, "threads": threads, "exact": exact, "shapes": promised}
    program, whole = read_program(model, fix)

    @rarely_collected()
    def make(sizes: Mapping[str, Any], values: Mapping[str, Any]) -> Module:
        try:
            return compiled(whole(sizes, values, True).graph)
        except PythonStep as error:
            try:
                return compiled(whole(sizes, values, False).graph)
            except RuntimeValue as missed:
                raise RuntimeValue(str(error), missed.tensor) from error

    made = SegmentedModule(program, compiled, make, promised, options)
    if ahead:
        made.prepare()
    return made


def load_segments(container: Container, threads: int | None = None, device: Device | None = None) -> SegmentedModule:
    """The model that :meth:`SegmentedModule.save` wrote; ``device``: as of ``load``. Raises ArtifactError for what is
    inconsistent.
    """
    try:
        options, model = container.header["options"], bytes(container.sections["model"])
        asked = options["threads"] if threads is None else threads
        machine = find_target(options["target"], threads=asked)
        if device is not None:
            machine = replace(machine, machine=machine.machine.with_(device=lambda: device))
        made = compile_segments(model, machine, threads=asked, exact=options["exact"], shapes=options["shapes"])
        made.note(**container.header["facts"])
    except (LookupError, TypeError, ValueError, AttributeError, ModelError) as error:
        raise ArtifactError(f"the model of segments is inconsistent: {type(error).__name__}: {error}") from error
    return made
