"""Open extents on machines whose kernels are of fixed sizes: a model compiled for each size when a call brings it.

Sizes share parameters, and states go along from one to the next. What is saved is code for the sizes that were called
last, and the graph, by which others are compiled where they come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from burnish.driver.assembly import make_module
from burnish.driver.compilation import Progress, compile_kernels
from burnish.driver.kept_sizes import KeptSizes
from burnish.driver.torch_module import TorchCall, TorchModule
from burnish.errors import ArtifactError, InputError, ModelError, VerificationError
from burnish.frontend.torch.signature import CallSignature
from burnish.graph.graph import Graph
from burnish.graph.graph_file import graph_from, graph_parts
from burnish.graph.specialize import graph_at
from burnish.loops.size_text import extent_text
from burnish.machines.target import Target
from burnish.machines.target import target as find_target
from burnish.pipeline.kernel import outline
from burnish.pipeline.plan import DEFAULTS, Choices
from burnish.runtime import variants
from burnish.runtime.arguments import Arguments
from burnish.runtime.artifact import checked_key, consistent
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.callable import CompiledBase, ProfileRow, slow_text
from burnish.runtime.container import Container, write_container
from burnish.runtime.device import Device
from burnish.runtime.executable import Executable
from burnish.runtime.module import Module
from burnish.runtime.sized import bind, hints, upper_ends
from burnish.runtime.state import ModuleStates, state_views
from burnish.runtime.steps import TensorSpec
from burnish.runtime.variants import Variant

KIND = "sizes"  # of file
SEEN = 256  # shapes of arguments whose sizes are remembered

Shapes = tuple[tuple[int, ...], ...]


class ModuleBySize(CompiledBase):
    """Modules by size, called as one: each size is compiled when it comes first, those called last are kept.

    ``inputs`` and ``outputs`` have the open extents; ``compilations``: how many sizes were compiled so far. Calls from
    several threads take turns.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __init__(
        self,
        graph: Graph,
        make: Callable[[Graph], Module],
        options: Mapping[str, Any],
        known: Sequence[tuple[Mapping[str, int], Module]] = (),
    ) -> None:
        """``make``: compiles the graph of one size; ``options``: what a file keeps of how it does. ``known``: modules
        that are compiled already, by their sizes; where there are none, that for the hints is compiled at once. Raises
        what compilation raises.
        """
        after = {state.output for state in graph.states.values()}
        self.inputs = tuple(_spec(graph, name) for name in graph.inputs if name not in graph.states)
        self.outputs = tuple(_spec(graph, name) for i, name in enumerate(graph.outputs) if i not in after)
        self._graph, self._compile, self._options = graph, make, dict(options)
        self._arguments = Arguments(self.inputs, {})
        self._call: TorchCall | None = None
        self._lock = threading.RLock()
        self._noted: dict[str, Any] = {}
        self._sizes: dict[Shapes, dict[str, int]] = {}  # by the shapes of arguments
        self._latest: Module | None = None
        self._modules = KeptSizes(graph.dims, self._made, Module.close)
        self.compilations = 0
        for sizes, module in known:
            self._latest = module if self._latest is None else module.sharing(self._latest)
            self._modules.put(sizes, self._latest)
        if self._latest is None:
            self._latest = self._modules.at(hints(graph.dims))
        types = {spec.name: (spec.shape, numpy_dtype(spec.dtype)) for spec in self.states}
        self.state = ModuleStates(types, self._read, self._write)

    @property
    def latest(self) -> Module:
        """The module for the sizes of the last call; before any, for the hints."""
        assert self._latest is not None
        return self._latest

    @property
    def states(self) -> tuple[TensorSpec, ...]:
        """Names, shapes and dtypes of the states."""
        return self.latest.states

    @property
    def assumed(self) -> dict[str, str]:
        """As of :class:`Module`."""
        return self.latest.assumed

    @property
    def rewrites(self) -> None:
        """Substitutions are not looked for where extents are open."""
        return None

    @property
    def in_python(self) -> str:
        """Empty: each size is compiled as a whole."""
        return ""

    @property
    def threads(self) -> int:
        """Threads of this machine that a call may use."""
        return self.latest.threads

    @property
    def graph(self) -> str:
        """The graph as text, its extents open."""
        return str(self._graph)

    @property
    def info(self) -> Mapping[str, Any]:
        """Metadata of the module for the sizes called last."""
        return self.latest.info

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by use, for the sizes called last; ``code``: of all sizes that are kept."""
        return {**self.latest.memory, "code": sum(each.memory["code"] for each in self._modules)}

    @property
    def slow(self) -> dict[str, str]:
        """As of :class:`Module`, for the sizes called last."""
        return self.latest.slow

    def note(self, **facts: Any) -> None:
        """Adds facts to what the modules of all sizes keep as ``info``."""
        self._noted.update(facts)
        for module in self._modules:
            module.note(**facts)

    def called_as(self, signature: CallSignature) -> ModuleBySize:
        """Itself, called from now on as the network of this signature: as :class:`TorchModule` says."""
        self._call = TorchCall(signature, len(self.outputs))
        for sizes, module in self._modules.items():
            self._modules.put(sizes, TorchModule.called_as(module, signature))
            self._latest = self._modules.at(sizes)
        return self

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The result for arguments of any sizes, as the module of these gives it. Raises InputError, and what
        compilation raises.
        """
        with self._lock:
            return self._of(args, kwargs)(*args, **kwargs)

    def run_into(self, inputs: Sequence[Any], outputs: Sequence[Any], *, stream: Any = None) -> None:
        """As of :class:`Module`; of a network the leaves of arguments and results in order."""
        with self._lock:
            self._at(inputs).run_into(inputs, outputs, stream=stream)

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """As of :class:`Module`, for the sizes of these arguments."""
        with self._lock:
            return self._of(args, kwargs).profile(*args, repeat=repeat, **kwargs)

    def reset(self) -> None:
        """Gives every state its initial value."""
        with self._lock:
            self.latest.reset()

    def save(self, path: str | Path, *, key: bytes | None = None) -> None:
        """Writes the graph, code for the sizes that are kept, and the state as it is now. Other sizes are compiled
        where it is loaded. ``key``: as of :meth:`Module.save`. Raises OSError.
        """
        with self._lock:
            executables = [(sizes, module.executable) for sizes, module in self._modules.items()]
            executables = [(sizes, self._with_state(each)) for sizes, each in executables]
        named = [Variant(_text(sizes), each) for sizes, each in executables]
        header, sections = variants.parts(named)
        known, arrays = graph_parts(self._graph)
        whole = {
            "kind": KIND, "options": self._options, "facts": self._noted, "graph": known,
            "sizes": [sizes for sizes, _ in executables], "variants": header["variants"],
        }  # fmt: skip
        write_container(Path(path), whole, {**arrays, **sections}, checked_key(key))

    def close(self) -> None:
        """Closes all that was compiled; waits for calls of other threads. Later calls raise ClosedError."""
        if not self.closed:
            with self._lock:
                super().close()

    def _release(self) -> None:
        self._modules.close()

    def _facts(self) -> list[str]:
        """Facts for ``repr``."""
        return [f"{len(self._modules)} sizes kept", slow_text(self.slow)]

    def _of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Module:
        """Module for the arguments of a call, but ``stream``. Raises InputError."""
        if "stream" in kwargs and all(spec.name != "stream" for spec in self.inputs):
            kwargs = {name: value for name, value in kwargs.items() if name != "stream"}
        if self._call is None:
            return self._at(self._arguments.bind(args, kwargs))
        return self._at(self._call.flat(args, kwargs) if kwargs or len(args) != self._call.plain else args)

    def _at(self, given: Sequence[Any]) -> Module:
        """The module for inputs of these sizes, with the states as they are now."""
        shapes = tuple([tuple(v.shape) if hasattr(v, "shape") else np.shape(v) for v in given])
        sizes = self._sizes.get(shapes)
        if sizes is None:
            sizes = self._bound(given, shapes)
            while len(self._sizes) >= SEEN:
                self._sizes.pop(next(iter(self._sizes)))
            self._sizes[shapes] = sizes
        found, before = self._modules.at(sizes), self.latest
        if found is not before:
            for name in before.state:
                found.state[name] = before.state[name]
            self._latest = found
        return found

    def _bound(self, given: Sequence[Any], shapes: Shapes) -> dict[str, int]:
        """The values of the dimensions. Raises InputError."""
        if len(given) != len(self.inputs):
            self._arguments.arrays(given, None)
        for spec, shape in zip(self.inputs, shapes, strict=True):
            if not spec.accepts(shape):
                raise InputError(f"input '{spec.name}' has shape {list(shape)}, allowed: {spec}")
        return bind(self.inputs, shapes)

    def _made(self, sizes: Mapping[str, int]) -> Module:
        """A module for new sizes, which has the parameters of another one where they are the same."""
        made = self._compile(graph_at(self._graph, sizes))
        self.compilations += 1
        if self._latest is not None:
            made = made.sharing(self._latest)
        if self._noted:
            made.note(**self._noted)
        return made if self._call is None else TorchModule.called_as(made, self._call.signature)

    def _read(self, name: str) -> np.ndarray:
        with self._lock:
            return self.latest.state[name]

    def _write(self, name: str, value: np.ndarray) -> None:
        with self._lock:
            self.latest.state[name] = value

    def _with_state(self, executable: Executable) -> Executable:
        """The executable with the states as they are now."""
        if not executable.states:
            return executable
        memory = executable.state.copy()
        for name, view in state_views(executable, memory).items():
            view[...] = self.state[name]
        return replace(executable, state=memory)


def compile_one(
    graph: Graph,
    machine: Target,
    *,
    exact: bool = False,
    threads: int | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    choices: Choices = DEFAULTS,
    optimized: bool = False,
    trains: bool = False,
    memory_budget: str | int | Mapping[str, int] | None = None,
) -> Module:
    """The module of a graph, or of the step of training that it is; ``memory_budget``: ``Train``'s.

    ``optimized``: the passes have been over the graph. Raises what ``compile`` raises.
    """
    compiled = compile_kernels(graph, machine, exact, cache_dir, progress, choices, optimized)
    if not trains:
        return make_module(compiled, threads)
    # The planners take a second to import, which no other compilation should wait for.
    from burnish.driver.recompute import trained_within

    return trained_within(compiled, memory_budget, choices, threads)


def needs_sizes(graph: Graph, machine: Target) -> bool:
    """Whether code for open extents is made for each size: the machine's kernels are of fixed sizes."""
    return bool(graph.dims) and not graph.counts and machine.machine.dialect.grid is not None


def compile_by_size(
    graph: Graph,
    machine: Target,
    *,
    exact: bool,
    threads: int | None,
    known: Sequence[tuple[Mapping[str, int], Module]] = (),
    **options: Any,
) -> ModuleBySize:
    """A model with open extents, compiled for their hints now, and for other sizes when they come.

    Arguments are those of :func:`compile_one`; ``known``: of :class:`ModuleBySize`. Raises ParameterError for a memory
    budget that does not do at the upper ends of the dimensions.
    """
    budget = options.get("memory_budget")
    if budget is not None and not known:
        _check_budget(graph_at(graph, upper_ends(graph.dims)), machine, exact, budget)
    kept = {
        "target": machine.name, "threads": threads, "exact": exact, "trains": bool(options.get("trains")),
        "memory_budget": dict(budget) if isinstance(budget, Mapping) else budget,
        "optimized": bool(options.get("optimized")),
    }  # fmt: skip
    return ModuleBySize(
        graph, lambda one: compile_one(one, machine, exact=exact, threads=threads, **options), kept, known
    )


def load_sizes(container: Container, path: Path, threads: int | None, device: Device | None) -> ModuleBySize:
    """The model that :meth:`ModuleBySize.save` wrote; ``device``: as of ``load``. Raises ArtifactError."""
    header = container.header
    with consistent(path):
        options = dict(header["options"])
        asked = options["threads"] if threads is None else threads
        try:
            machine = find_target(options.pop("target"), threads=asked)
            graph = graph_from(header["graph"], container.sections)
        except (ModelError, VerificationError) as error:
            raise ArtifactError(f"{path} is inconsistent: {error}") from error
        if device is not None:
            machine = replace(machine, machine=machine.machine.with_(device=lambda: device))
        modules = [
            ({str(name): int(n) for name, n in sizes.items()}, Module(each, asked, device=device))
            for sizes, each in zip(header["sizes"], variants.executables(header, container.sections), strict=True)
        ]
        options.pop("threads")
        made = compile_by_size(graph, machine, threads=asked, known=modules, **options)
        made.note(**header["facts"])
    return made


def _check_budget(graph: Graph, machine: Target, exact: bool, budget: str | int | Mapping[str, int]) -> None:
    """Raises ParameterError for a budget within which a step cannot be."""
    from burnish.driver.recompute import call_seconds, training_step
    from burnish.memory.strategies import wanted

    made = compile_kernels(graph, machine, exact, make=outline)
    wanted(training_step(made, call_seconds(made.graph, machine)).planner(), budget)


def _spec(graph: Graph, name: str) -> TensorSpec:
    return TensorSpec(name, graph.types[name].shape, graph.types[name].dtype)


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={extent_text(value)}" for name, value in sizes.items())
