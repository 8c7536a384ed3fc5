"""torch.export: an ``nn.Module`` with example inputs, or an ``ExportedProgram``, into a Graph and its signature."""

from __future__ import annotations

import contextlib
import inspect
import operator
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from burnish.base.optional import require
from burnish.errors import ModelError, UnsupportedOperator
from burnish.frontend.torch.context import Ref, TorchContext
from burnish.frontend.torch.detached import detached_regions
from burnish.frontend.torch.dropout import kept_dropout
from burnish.frontend.torch.dtypes import dtype_name, require_device, to_numpy, to_torch
from burnish.frontend.torch.dynamic import Bounds, Dynamic, read_dynamic
from burnish.frontend.torch.functions import own_backward
from burnish.frontend.torch.program import TRANSLATORS, Translation, operator_name, refusal, translate
from burnish.frontend.torch.signature import CallSignature, argument_names, changed_buffers, output_names
from burnish.frontend.torch.symbols import Symbols
from burnish.frontend.torch.training import check_hooks, is_training, kept_modes, training_modes, watched
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.rewrite import drop_dead
from burnish.loops.sizes import MOST, dim


@dataclass(frozen=True)
class TorchModel:
    """A network as a graph, and how it is called. ``parameters``: the constants that are parameters, not buffers;
    ``origins``: the names that parameters and buffers have in the network, by those of the constants: the same, unless
    an argument or a result has it.
    """

    graph: Graph
    signature: CallSignature
    parameters: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


def is_network(model: Any) -> bool:
    """Whether this is an ``nn.Module`` or an ``ExportedProgram``; imports nothing."""
    names = {f"{c.__module__}.{c.__qualname__}" for c in type(model).__mro__}
    return bool(names & {"torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"})


def import_torch(
    model: Any, example_inputs: Any = None, dynamic: Any = None, training: bool = False, inference: bool = False
) -> TorchModel:
    """Import of a PyTorch network as a graph of its inference; the network's own mode is left as it is.

    ``example_inputs``: a tensor, a tuple of positional arguments, or a mapping of arguments by name; an
    ``ExportedProgram`` needs none. ``dynamic``: extents that stay open; see :func:`burnish.compile`; those of training
    suit the example inputs best unless it says otherwise. Buffers that the
    network changes become states of the graph. ``training``: nothing is computed of parameters that require a gradient
    but in the graph, where those that are one tensor are one constant, and every module is in its mode of training, see
    :mod:`burnish.frontend.torch.training`; with ``inference``, in that of inference. Raises
    ModelError for what torch.export refuses, and UnsupportedOperator naming all operators that cannot be translated.
    """
    require("torch", "torch")
    if hasattr(model, "graph_signature"):
        if example_inputs is not None or dynamic is not None:
            raise ModelError("example_inputs and dynamic: found for an ExportedProgram; allowed: None, it has its own")
        return _imported(model, (), Dynamic(), training, is_training(model))
    if example_inputs is None:
        raise ModelError("example_inputs: found None; allowed: a tensor, a tuple, or a mapping of arguments by name")
    if training and not inference:
        _check_momentum(model)
    args, kwargs = _arguments(example_inputs)
    names = _names(model, args, kwargs)
    ranks = {name: value.dim() for name, value in names.items() if hasattr(value, "dim")}
    opened = read_dynamic(dynamic, ranks)
    if training:  # the example is a batch of what will be trained on; of inference it is often one row
        opened = opened.hinted({name: value.shape for name, value in names.items() if name in ranks})
    args, kwargs = _apart(*_enlarged(names, args, kwargs, opened))
    program = _exported(model, args, kwargs, opened.shapes([*names]), training and not inference)
    return _imported(program, tuple(names), opened, training, not inference)


# --- torch.export -----------------------------------------------------------------------------------------------------


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments, arrays as tensors."""
    if isinstance(example, Mapping):
        return (), {key: _tensor(value) for key, value in example.items()}
    if isinstance(example, (tuple, list)):
        return tuple(_tensor(v) for v in example), {}
    return (_tensor(example),), {}


def first_rows(example: Any, size: int, rows: int) -> Any:
    """Example inputs with ``rows`` rows of those tensors and arrays that have ``size`` of them."""
    from torch.utils import _pytree

    def cut(leaf: Any) -> Any:
        shape: tuple[int, ...] = getattr(leaf, "shape", ())
        return leaf[:rows] if len(shape) and shape[0] == size else leaf

    return _pytree.tree_map(cut, example)


def open_rows(model: Any, example: Any, size: int, name: str, bounds: tuple[int, ...]) -> dict[str, Any]:
    """Dynamic shapes (``dynamic``) that leave ``size`` rows of the example inputs open as ``name``, within bounds."""
    given = _names(model, *_arguments(example))
    own = {key: {0: name} for key, value in given.items() if getattr(value, "shape", ())[:1] == (size,)}
    return {**own, name: bounds}


def _tensor(value: Any) -> Any:
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(_tensor(v) for v in value)
    return to_torch(value) if isinstance(value, np.ndarray) else value


def _names(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The example arguments by the names that ``forward`` has for them."""
    try:
        return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise ModelError(f"example_inputs: they do not fit {type(model).__name__}.forward: {error}") from None


def _enlarged(
    names: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], opened: Dynamic
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example arguments with other extents where a dimension stays open but torch would take it as fixed."""
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    for name, axes in opened.dims.items():
        for axis, bounds in axes.items():
            given[name] = _with_extent(given[name], axis, bounds.example(given[name].shape[axis]))
    return tuple(given[name] for name in [*names][: len(args)]) if len(names) >= len(args) else args, {
        key: given[key] for key in kwargs
    }


def _with_extent(tensor: Any, axis: int, extent: int) -> Any:
    import torch

    found = tensor.shape[axis]
    if found == extent:
        return tensor
    if found == 0:
        return tensor.new_zeros([extent if d == axis else e for d, e in enumerate(tensor.shape)])
    return tensor.index_select(axis, torch.arange(extent) % found)


def _apart(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example arguments, none twice: torch.export takes those that are the same tensor as one input."""
    import torch
    from torch.utils import _pytree

    seen: set[int] = set()

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        again = id(leaf) in seen
        seen.add(id(leaf))
        return leaf.clone() if again else leaf

    args, kwargs = _pytree.tree_map(own, (args, kwargs))
    return args, kwargs


def _check_momentum(model: Any) -> None:
    """Refuses batch normalization whose running statistics are the mean of all batches, which no graph counts."""
    for name, module in model.named_modules():
        if getattr(module, "track_running_stats", False) and getattr(module, "momentum", 0) is None:
            found = f"train: module '{name}': momentum: found None, the mean of all batches"
            raise ModelError(f"{found}; allowed: a number")


def _exported(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Any, training: bool) -> Any:
    import torch

    if training:
        check_hooks(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(training_modes(model) if training else _inference(model))
        stack.enter_context(torch.set_grad_enabled(training))
        try:
            if not training:
                return torch.export.export(model, args, dict(kwargs), dynamic_shapes=shapes)
            with watched(model), own_backward(model, args, dict(kwargs)):
                return torch.export.export(model, args, dict(kwargs), dynamic_shapes=shapes)
        except UnsupportedOperator:
            raise
        except Exception as error:  # of Dynamo, Python and the network itself: no common base but this one
            operator = getattr(error, "func", None)
            if operator is not None and hasattr(operator, "_schema"):  # whose result depends on values
                words = f"{operator_name(operator)}: its result depends on values in a way that torch cannot trace"
                raise UnsupportedOperator(f"model uses operators that are not supported: {words}") from error
            raise ModelError(f"model: torch.export refuses it: {_brief(error)}") from error


@contextlib.contextmanager
def _inference(model: Any) -> Iterator[None]:
    """The network in eval mode, without gradients and fused paths that hide operators; then as it was."""
    import torch

    modes = [(m, m.training) for m in model.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.no_grad(), _whole_batches():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def _whole_batches() -> Iterator[None]:
    """Up to PyTorch 2.11 its LSTM of one layer (``one_layer_lstm``) leaves a dimension too many in the states of
    batches above 1, by which torch knows the shapes of all that follows: while it traces, they have two.
    """
    from torch._decomp import decompositions

    plain = getattr(decompositions, "one_layer_lstm", None)
    if plain is None:
        yield
        return

    def mended(*args: Any, **kwargs: Any) -> Any:
        out, states = plain(*args, **kwargs)
        return out, tuple(s.squeeze(0) if s.dim() == 3 else s for s in states)

    decompositions.one_layer_lstm = mended
    try:
        yield
    finally:
        decompositions.one_layer_lstm = plain


def _brief(error: Exception) -> str:
    """An error of torch without its traces."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: " + " ".join(lines[:6])[:1000]


def _decomposed(program: Any) -> Any:
    """The program in functional ATen; what has a translation of its own is kept whole."""
    import torch

    with _composites_once(), _whole_batches(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = torch.export.default_decompositions()
        for op in [op for op in table if operator_name(op) in TRANSLATORS]:
            table.pop(op)
        try:
            return program.run_decompositions(table)
        except Exception as error:
            raise ModelError(f"model: torch's decompositions fail: {_brief(error)}") from error


@contextlib.contextmanager
def _composites_once() -> Iterator[None]:
    """Torch searches all its operators for composite ones, for every namespace and twice a program, half of the time of
    a small one: here what it has found counts until other operators are registered.
    """
    import torch
    from torch.export import decomp_utils, exported_program

    places = [m for m in (decomp_utils, exported_program) if hasattr(m, "_collect_all_valid_cia_ops")]
    searches = [m._collect_all_valid_cia_ops for m in places]
    registered = getattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", None)
    if not searches or registered is None:
        yield
        return

    def found() -> Any:
        state = tuple(torch.ops._dir), tuple(registered("CompositeImplicitAutograd"))
        if state not in _composites:
            _composites.clear()
            _composites[state] = searches[0]()
        return _composites[state]

    for module in places:
        module._collect_all_valid_cia_ops = found
    try:
        yield
    finally:
        for module, search in zip(places, searches, strict=True):
            module._collect_all_valid_cia_ops = search


_composites: dict[Any, Any] = {}  # by the operators registered when they were searched


# --- the program as a graph -------------------------------------------------------------------------------------------


def _imported(
    program: Any, names: tuple[str, ...], opened: Dynamic, training: bool = False, own: bool = False
) -> TorchModel:
    """The program as it is if all of it is known, which spares torch to trace it again, else its decomposition."""
    if training:
        with kept_modes(program, own), kept_dropout(program, own), detached_regions(program):
            return _translated(_decomposed(program), names, opened, training)
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    if all(target is operator.getitem or operator_name(target) in TRANSLATORS for target in calls):
        with contextlib.suppress(UnsupportedOperator):
            return _translated(program, names, opened, training)
    return _translated(_decomposed(program), names, opened, training)


def _translated(program: Any, names: tuple[str, ...], opened: Dynamic, training: bool) -> TorchModel:
    signature = program.graph_signature
    holders = [node for node in program.graph.nodes if node.op == "placeholder"]
    symbols = _symbols(program, holders, names, opened)
    own_names = _own_names(program, holders)
    work = Translation(TorchContext(GraphBuilder(), symbols, training=training), names=own_names)
    lifted: dict[tuple[Any, ...], Ref] = {}  # parameters by where they lie in memory
    changed = changed_buffers(signature)
    copies: dict[tuple[Any, ...], Any] = {}  # of tensors on a GPU, which stay as long as their places are compared
    trained: dict[tuple[Any, ...], str] = {}  # the first name of those that require a gradient
    for spec, node in zip(signature.input_specs, holders, strict=True):
        if spec.kind.name == "PARAMETER" and program.state_dict[spec.target].requires_grad:
            trained.setdefault(_place_of(_given(program, spec, node, copies)), work.name_of(node))
    inputs: list[tuple[int, Any]] = []
    states: dict[str, Ref] = {}
    for spec, node in zip(signature.input_specs, holders, strict=True):
        value, name = _given(program, spec, node, copies), work.name_of(node)
        if spec.target in changed:
            array = to_numpy(value, f"buffer '{spec.target}'")
            work.values[node] = states[spec.target] = Ref(work.builder.state(name, array))
        elif training and spec.kind.name == "PARAMETER":
            own = trained.get(_place_of(value), name)
            ref = lifted.setdefault(_place_of(value), work.context.constant_of(value, own))
            tied = own != name and not program.state_dict[spec.target].requires_grad
            work.values[node] = work.context.add("stop_gradient", ref) if tied else ref
        elif spec.kind.name != "USER_INPUT":
            work.values[node] = value
        elif type(spec.arg).__name__ == "ConstantArgument":
            inputs.append((-1, spec.arg.value))
            work.values[node] = spec.arg.value
        else:
            work.values[node] = _input(work, node)
            inputs.append((sum(i >= 0 for i, _ in inputs), None))
    translate(program.graph.nodes, work)
    if work.refused:
        raise refusal(work.refused)
    graph, outputs = _finished(work, program, states)
    positional, arguments = argument_names(program, names)
    specs = program.call_spec
    called = CallSignature(specs.in_spec, specs.out_spec, tuple(inputs), outputs, arguments, positional)
    named = [(spec, work.name_of(node)) for spec, node in zip(signature.input_specs, holders, strict=True)]
    parameters = tuple(
        name
        for spec, name in named
        if spec.kind.name == "PARAMETER" and name in graph.constants
        and (not training or program.state_dict[spec.target].requires_grad)
    )  # fmt: skip
    origins = {name: spec.target for spec, name in named if name in graph.constants}
    return TorchModel(graph, called, parameters, origins)


def _own_names(program: Any, holders: Sequence[Any]) -> dict[Any, str]:
    """Names of parameters, buffers and constants, by node: those that the network has for them.

    One that an argument, a result or the labels have too is called as torch.export does, `p_x`.
    """
    pairs = [*zip(program.graph_signature.input_specs, holders, strict=True)]
    taken = {node.name for spec, node in pairs if spec.kind.name == "USER_INPUT"}
    taken |= {"label", "output", *output_names(program.call_spec.out_spec)}
    return {node: spec.target for spec, node in pairs if spec.target and spec.target not in taken}


def _place_of(tensor: Any) -> tuple[Any, ...]:
    """Memory location of a tensor: parameters that are one tensor have one location."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _given(program: Any, spec: Any, node: Any, copies: dict[tuple[Any, ...], Any]) -> Any:
    """A parameter, buffer or constant, of one on a GPU the copy in ``copies``; None for an input."""
    if spec.kind.name == "USER_INPUT":
        return None
    found = program.state_dict.get(spec.target)
    found = program.constants.get(spec.target) if found is None else found
    if not hasattr(found, "detach"):
        name, kind = spec.target or node.name, spec.kind.name.lower()
        raise UnsupportedOperator(f"'{name}': found {kind}; allowed: parameters and buffers")
    there = found.detach()
    if not there.is_cuda:
        return there
    place = _place_of(there)
    if place not in copies:
        copies[place] = there.cpu()
    return copies[place]


def _input(work: Translation, node: Any) -> Ref:
    value = node.meta["val"]
    if not hasattr(value, "detach"):
        allowed = "tensors, and numbers that stay what they are"
        raise UnsupportedOperator(f"input '{node.name}': found a number that changes; allowed: {allowed}")
    require_device(value, f"input '{node.name}'")
    where = f"input '{node.name}'"
    shape, dtype = work.context.symbols.shape(value, where), dtype_name(value.dtype, where)
    return Ref(work.builder.input(node.name, shape, dtype))


def _symbols(program: Any, holders: Sequence[Any], names: Sequence[str], opened: Dynamic) -> Symbols:
    """The dimensions that torch's symbols stand for: of the user's names where an input has them, else of torch's."""
    extents: dict[str, int] = {}
    for node in holders:
        value = node.meta.get("val")
        for axis, extent in enumerate(getattr(value, "shape", ())):
            free = [] if isinstance(extent, int) else sorted(extent.node.expr.free_symbols, key=str)
            for symbol in free:
                if symbol.name in extents:
                    continue
                found = program.range_constraints.get(symbol)
                low, high = _limits(found)
                own = opened.dims.get(node.name, {}).get(axis) or Bounds(symbol.name)
                low, high = max(low, -(-own.low // own.multiple)), min(high, own.high // own.multiple)
                hint = None if own.hint is None else own.hint // own.multiple
                label = re.sub(r"\W|^(?=\d)", "_", own.name)
                extents[symbol.name] = dim(label, low, high, hint=hint)
    return Symbols(extents)


def _limits(found: Any) -> tuple[int, int]:
    """Bounds of a symbol by torch's range, which may have no end. Torch says 2 where it means that 1 is special."""
    if found is None:
        return 1, MOST
    low = int(found.lower) if found.lower.is_Integer else 1
    return (1 if low == 2 else low), (int(found.upper) if found.upper.is_Integer and found.upper < MOST else MOST)


def _finished(work: Translation, program: Any, states: Mapping[str, Ref]) -> tuple[Graph, tuple[tuple[int, Any], ...]]:
    """The graph with an output for each tensor of the result, and the result's leaves."""
    (end,) = (node for node in program.graph.nodes if node.op == "output")
    names = output_names(program.call_spec.out_spec)
    results: list[str] = []
    leaves: list[tuple[int, Any]] = []
    for spec, node in zip(program.graph_signature.output_specs, end.args[0], strict=True):
        value = work.values[node] if hasattr(node, "meta") else node
        if spec.kind.name == "BUFFER_MUTATION":
            work.builder.update(states[spec.target], work.ref(value, spec.target))
        elif isinstance(value, Ref) or hasattr(value, "detach"):
            stem = names[len(leaves)] if len(leaves) < len(names) else "output"
            inner = work.ref(value, stem)
            leaves.append((len(results), None))
            results.append(work.builder.add("identity", inner, name=work.builder.fresh(stem), node=stem))
        elif value is None or isinstance(value, (int, float, str)):
            leaves.append((-1, value))
        else:
            raise UnsupportedOperator(f"model output {len(leaves)}: found {value}, open; allowed: tensors and numbers")
    if not results:
        raise UnsupportedOperator("model outputs: found no tensor; allowed: one at least")
    return drop_dead(work.builder.build(*results)), tuple(leaves)
