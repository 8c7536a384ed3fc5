"""Executors: symbols bound to arrays, with forward, backward, or both as one compiled program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from burnish.array.array import Array, as_value, check_fits, holding, stretched
from burnish.array.binding import BoundSymbols, bind_types
from burnish.array.lazy import LazyValue, call, evaluate, flush, pending
from burnish.array.operators import COPY
from burnish.array.program import ArrayProgram, GraphCall
from burnish.array.recording import from_numpy
from burnish.array.symbol import Symbol
from burnish.array.types import array_type, dtype_name, is_float
from burnish.errors import InputError
from burnish.graph.gradient import gradients
from burnish.graph.graph import Graph, GraphBuilder, TensorType

Given = Any  # an array, or a shape, or a shape and a dtype


class NamedArrays(Mapping[str, Array]):
    """Named arrays as one: signs apply to each, with the array of its name on the other side, or with a number."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def _each(self, other: Any, apply: Callable[[Array, Any], Array]) -> NamedArrays:
        if isinstance(other, Mapping):
            if set(other) != set(self._arrays):
                raise InputError(f"arrays: found {', '.join(other)}; allowed: {', '.join(self._arrays)}, on both sides")
            return NamedArrays({name: apply(array, other[name]) for name, array in self._arrays.items()})
        return NamedArrays({name: apply(array, other) for name, array in self._arrays.items()})

    def __add__(self, other: Any) -> NamedArrays:
        return self._each(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> NamedArrays:
        return self._each(other, lambda a, b: a - b)

    def __mul__(self, other: Any) -> NamedArrays:
        return self._each(other, lambda a, b: a * b)

    def __truediv__(self, other: Any) -> NamedArrays:
        return self._each(other, lambda a, b: a / b)

    def __pow__(self, other: Any) -> NamedArrays:
        return self._each(other, lambda a, b: a**b)

    __rmul__, __radd__ = __mul__, __add__

    def __iadd__(self, other: Any) -> NamedArrays:
        self._each(other, lambda a, b: a.__iadd__(b))  # type: ignore[attr-defined]
        return self

    def __isub__(self, other: Any) -> NamedArrays:
        self._each(other, lambda a, b: a.__isub__(b))  # type: ignore[attr-defined]
        return self

    def __imul__(self, other: Any) -> NamedArrays:
        self._each(other, lambda a, b: a.__imul__(b))  # type: ignore[attr-defined]
        return self

    def __repr__(self) -> str:
        return f"Arrays({', '.join(f'{name}: {a.value.type}' for name, a in self._arrays.items())})"


class Executor:
    """Symbols with an array for each variable and state: what :func:`bind` gives.

    ``net["name"]`` is the array of a variable or a state, which may be changed in place or replaced. ``w`` are the
    arrays that gradients are taken by, and ``g`` these gradients, after :meth:`backward` or :meth:`forward_backward`:
    ``net.w -= 0.1 * net.g`` is a step of gradient descent.
    """

    def __init__(
        self,
        heads: Sequence[Symbol],
        types: Mapping[str, TensorType],
        arrays: Mapping[str, Array],
        data: Sequence[str],
        wrt: Sequence[str] | None,
        threads: int | None,
    ) -> None:
        self._heads, self._types, self._threads, self._data = tuple(heads), types, threads, tuple(data)
        bound = bind_types(heads, types, training=True)
        kinds = bound.graph.types
        free = [n for n in bound.variables if n not in data and is_float(kinds[n].dtype)]
        self._wrt = tuple(free if wrt is None else wrt)
        wrong = [n for n in self._wrt if n not in bound.variables or not is_float(kinds[n].dtype)]
        if wrong:
            raise InputError(f"bind: gradients: found {wrong}; allowed: {', '.join(bound.variables)}, of floats")
        scalars = [h for h in bound.heads if kinds[h].size == 1 and is_float(kinds[h].dtype)]
        self._of = scalars or [h for h in bound.heads if is_float(kinds[h].dtype)]
        self._arrays: dict[str, Array] = {}
        for name in bound.variables:
            t = kinds[name]
            made = arrays.get(name)
            if made is None:
                made = holding(from_numpy(np.zeros(t.shape, array_type(t.shape, t.dtype).numpy)))
            self._arrays[name] = made
        self._arrays |= {name: holding(from_numpy(value)) for name, value in bound.states.items()}
        self._states = tuple(bound.states)
        self._bound: dict[bool, BoundSymbols] = {True: bound}
        self._programs: dict[str, Any] = {}
        self._gradients: dict[str, Array] = {}
        self._saved: list[LazyValue] | None = None
        self.outputs: tuple[Array, ...] = ()

    # --- arrays ----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Array:
        if name not in self._arrays:
            raise InputError(f"executor: found no array '{name}'; allowed: {', '.join(self._arrays)}")
        return self._arrays[name]

    def __setitem__(self, name: str, given: Any) -> None:
        own = self[name]
        if given is own:
            return
        value = as_value(given, own.value.type.dtype)
        check_fits(value, own.shape, own.value.type.dtype)
        own._assign(stretched(value, own.value))

    @property
    def w(self) -> NamedArrays:
        """The arrays that gradients are taken by."""
        return NamedArrays({name: self._arrays[name] for name in self._wrt})

    @w.setter
    def w(self, arrays: Mapping[str, Array]) -> None:
        for name in self._wrt:
            self[name] = arrays[name]

    @property
    def g(self) -> NamedArrays:
        """The gradients. Raises InputError before there are any."""
        if not self._gradients:
            raise InputError("executor: found no gradients; allowed: after forward_backward() or backward()")
        return NamedArrays(self._gradients)

    @property
    def states(self) -> NamedArrays:
        """The auxiliary states."""
        return NamedArrays({name: self._arrays[name] for name in self._states})

    # --- evaluation ------------------------------------------------------------------------------------------------

    def forward(self, *, training: bool = False, **data: Any) -> Any:
        """The head's value, or the tuple of several. ``data`` are first written to the arrays of these variables.

        In ``training`` states are updated, and what :meth:`backward` needs is kept.
        """
        self._feed(data)
        bound = self._graph(training)
        if not training:
            program = self._program("forward", lambda: bound.graph)
            return self._finish(evaluate(program, self._operands(bound.graph)), bound)
        first, _, _ = self._split()
        found = evaluate(self._program("first", lambda: first), self._operands(first))
        self._saved = found[len(bound.graph.outputs) :]
        return self._finish(found[: len(bound.graph.outputs)], bound)

    def backward(self, *seeds: Any) -> None:
        """Gradients of the sum of all heads, each weighted by its seed (of its shape; ones by default): see ``g``.

        Of heads that are scalars, these alone are differentiated, and need no seed. Raises InputError without a
        forward pass in training before it.
        """
        if self._saved is None:
            raise InputError("backward: found no forward pass; allowed: after forward(training=True)")
        _, second, kept = self._split()
        known = dict(zip(kept, self._saved, strict=True))
        program, operands = self._program("second", lambda: second), self._operands(second, known, seeds)
        self._release_gradients()
        found = evaluate(program, operands)
        self._saved = None
        self._keep_gradients(found)

    def forward_backward(self, **data: Any) -> Any:
        """Heads, updates of states and gradients: the head's value, or the tuple of several.

        It is recorded like any other operation, and so becomes one program with updates of the parameters that follow
        before a value is asked for. Of the pass before, gradients that nobody has read by then are not kept.
        """
        self._feed(data)
        bound, operands = self._graph(True), self._operands(self.joint)
        if "step" not in self._programs:
            self._programs["step"] = GraphCall(self.joint, self._threads)
        self._release_gradients()
        found = call(self._programs["step"], operands)
        self._keep_gradients(found[len(bound.graph.outputs) :])
        return self._finish(found[: len(bound.graph.outputs)], bound)

    def _feed(self, data: Mapping[str, Any]) -> None:
        for name, given in data.items():
            self[name] = given

    def _graph(self, training: bool) -> BoundSymbols:
        if training not in self._bound:
            self._bound[training] = bind_types(self._heads, self._types, training)
        return self._bound[training]

    @property
    def inference(self) -> Graph:
        """The graph of :meth:`forward` outside of training."""
        return self._graph(False).graph

    @property
    def joint(self) -> Graph:
        """The graph of :meth:`forward_backward`: heads, what states become, gradients. Raises InputError."""
        if "joint" not in self._programs:
            if not self._of:
                raise InputError("backward: found no head of floating-point numbers; allowed: one that has gradients")
            self._programs["joint"] = gradients(self._graph(True).graph, self._of, self._wrt)
        joint: Graph = self._programs["joint"]
        return joint

    def _split(self) -> tuple[Graph, Graph, tuple[str, ...]]:
        """Forward and backward apart, and the names of what the first hands to the second."""
        if "split" not in self._programs:
            self._programs["split"] = split(self.joint, self._graph(True).graph)
        found: tuple[Graph, Graph, tuple[str, ...]] = self._programs["split"]
        return found

    def _program(self, name: str, graph: Callable[[], Graph]) -> ArrayProgram:
        if name not in self._programs:
            self._programs[name] = ArrayProgram(graph(), self._threads)
        program: ArrayProgram = self._programs[name]
        return program

    def _operands(
        self, graph: Graph, known: Mapping[str, LazyValue] | None = None, seeds: Sequence[Any] = ()
    ) -> list[LazyValue]:
        """The values of a graph's inputs."""
        given = dict(known or {})
        wanted = [name for name in graph.inputs if name not in self._arrays and name not in given]
        if seeds and len(seeds) != len(wanted):
            raise InputError(f"backward: found {len(seeds)} seeds; allowed: {len(wanted)}, or none")
        for at, name in enumerate(wanted):
            t = graph.types[name]
            kind = array_type(t.shape, t.dtype)
            value = as_value(seeds[at], t.dtype) if seeds else from_numpy(np.ones(t.shape, kind.numpy))
            if value.type is not kind:
                raise InputError(f"backward: seed {at}: found {value.type}; allowed: {kind}")
            given[name] = value
        return [given[n] if n in given else self._arrays[n].value for n in graph.inputs]

    def _finish(self, found: Sequence[LazyValue], bound: BoundSymbols) -> Any:
        """Keeps what states have become; gives the heads."""
        for name, value in zip(bound.updates, found[len(bound.heads) :], strict=True):
            self._arrays[name]._assign(value)
        self.outputs = tuple(holding(value) for value in found[: len(bound.heads)])
        return self.outputs[0] if len(self.outputs) == 1 else self.outputs

    def _release_gradients(self) -> None:
        """Lets go of the gradients: what is recorded before need not write them, and new ones take their memory."""
        for name, array in self._gradients.items():
            block = array.value.block
            if block is None or block.home is not None:
                gone = pending(array.value.type)
                gone.error = InputError(
                    f"gradient by '{name}': found a pass that failed; allowed: after one that did not"
                )
                array.value = gone
        flush()

    def _keep_gradients(self, found: Sequence[LazyValue]) -> None:
        for name, value in zip(self._wrt, found, strict=True):
            if name in self._gradients:
                self._gradients[name]._assign(value)
            else:
                self._gradients[name] = holding(value)

    def __repr__(self) -> str:
        heads = ", ".join(h.name for h in self._heads)
        return f"Executor({heads}; {', '.join(f'{n}: {a.value.type}' for n, a in self._arrays.items())})"


def split(joint: Graph, forward: Graph) -> tuple[Graph, Graph, tuple[str, ...]]:
    """Split of a joint graph into forward and backward, and the names of forward values that backward needs besides
    common inputs.
    """
    first = {name for node in forward.nodes for name in node.outputs}
    rest = [node for node in joint.nodes if not first.intersection(node.outputs)]
    gradient_names = joint.outputs[len(forward.outputs) :]
    read = [name for node in rest for name in node.inputs] + [*gradient_names]
    kept = tuple(dict.fromkeys(name for name in read if name in first))
    builder = GraphBuilder.of(forward)
    copies = [builder.add(COPY, name, name=builder.fresh(f"{name}.kept")) for name in kept]
    before = builder.build(*forward.outputs, *copies)
    behind = GraphBuilder()
    for name in joint.inputs:
        if name in read:
            behind.input(name, joint.types[name].shape, joint.types[name].dtype)
    for name in kept:
        behind.input(name, joint.types[name].shape, joint.types[name].dtype)
    for name, value in joint.constants.items():
        if name in read:
            behind.constant(value, name)
    for node in rest:
        behind.add_many(node.op, *node.inputs, names=node.outputs, node=node.name, **node.attrs)
    return before, behind.build(*gradient_names), kept


def bind(
    heads: Symbol | Sequence[Symbol],
    data: Mapping[str, Given] | None = None,
    arrays: Mapping[str, Any] | None = None,
    *,
    gradients: Sequence[str] | None = None,
    initial: Callable[[str, tuple[int, ...]], Any] | None = None,
    threads: int | None = None,
) -> Executor:
    """An executor of symbols.

    ``data``: the variables that are fed, by name: an array, a shape (of float32), or a shape and a dtype. ``arrays``:
    of other variables; one of ours is used itself, so that what changes it is seen here. Those that are left are made
    by ``initial(name, shape)``, or are zeros. ``gradients``: names that they are taken by, by default all of floats
    but the data. Raises InputError, naming the variable; ModelError for operands that do not fit.
    """
    symbols = (heads,) if isinstance(heads, Symbol) else tuple(heads)
    types = {name: type_given(name, given) for name, given in {**(data or {}), **(arrays or {})}.items()}
    held = {name: _array_of(given) for name, given in {**(data or {}), **(arrays or {})}.items() if _is_array(given)}
    net = Executor(symbols, types, held, tuple(data or ()), gradients, threads)
    for name in net.w:
        if initial is not None and name not in types:
            net[name] = initial(name, net[name].shape)
    return net


def type_given(name: str, given: Given) -> TensorType:
    """The type of an array, of a shape (in float32), or of a shape and a dtype. Raises InputError."""
    if isinstance(given, Array):
        return given.value.type.tensor
    if _is_array(given):
        found = np.asarray(given)
        return TensorType(found.shape, dtype_name(found.dtype))
    try:
        if len(given) == 2 and isinstance(given[0], list | tuple):
            return TensorType(tuple(int(d) for d in given[0]), dtype_name(given[1]))
        return TensorType(tuple(int(d) for d in given), "float32")
    except TypeError as error:
        raise InputError(
            f"variable '{name}': found {given!r}; allowed: an array, a shape, or (shape, dtype)"
        ) from error


def _is_array(given: Any) -> bool:
    return isinstance(given, Array | np.ndarray) or hasattr(given, "__dlpack__")


def _array_of(given: Any) -> Array:
    return given if isinstance(given, Array) else holding(as_value(np.asarray(given)))
