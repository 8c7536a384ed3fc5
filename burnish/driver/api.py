"""The public door of the compiler: any model in, a callable module out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from burnish.base import dump
from burnish.base.arguments import check_flag, refusal
from burnish.base.garbage import rarely_collected
from burnish.driver.checks import algorithms_are_measured, check_common, check_model
from burnish.driver.compilation import Progress
from burnish.driver.importing import import_model, open_extents
from burnish.driver.module_by_size import ModuleBySize, compile_by_size, compile_one, needs_sizes
from burnish.driver.nested import PythonStep
from burnish.driver.open_module import OpenModule, unchanged
from burnish.driver.rewritten import rewrite_model, shipped_rules
from burnish.driver.segmented import AT_CALLS, compile_segments
from burnish.driver.torch_module import TorchCall, TorchModule
from burnish.driver.trees import compile_trees, is_boosted
from burnish.driver.variants import compile_variants
from burnish.errors import ArtifactError, ParameterError, TargetError, UnsupportedOperator, VerificationError
from burnish.frontend.onnx.context import OpenDimensions, RuntimeValue
from burnish.frontend.torch.export import import_torch, is_network
from burnish.graph.align import align_parts
from burnish.graph.graph import Graph
from burnish.graph.passes import optimize
from burnish.graph.specialize import graph_at
from burnish.graph.weights import HALVES, store_weights
from burnish.machines.target import Target
from burnish.machines.target import target as find_target
from burnish.pipeline.attention_gradients import gathered
from burnish.pipeline.plan import DEFAULTS, Choices
from burnish.rewrite.search.objective import RewriteObjective
from burnish.runtime.callable import CompiledModel
from burnish.runtime.devices import device_for, is_timed, usual_threads
from burnish.runtime.host import fingerprint
from burnish.runtime.module import Module
from burnish.runtime.sized import hints
from burnish.train.step import Train, noted_indices, noted_labels, training_graph

if TYPE_CHECKING:
    from burnish.boards.leasing import Devices
    from burnish.driver.tuned import Tuned
    from burnish.tune.session import Session, Tune

RECORDS = "records.jsonl"  # where tuning keeps its measurements unless told otherwise


class CompileArguments(TypedDict, total=False):
    """Keyword arguments of :func:`compile`."""

    dynamic: Any
    target: str | Target | Sequence[str | Target]
    threads: int | None
    exact: bool
    rewrite: bool | RewriteObjective
    shapes: Mapping[str, Sequence[int | str]] | None
    fix: Mapping[str, Any] | None
    cache_dir: str | Path | None
    progress: Progress | None
    tune: Tune | None
    records: str | Path | None
    output: str | None
    weights: str | None
    train: Train | None
    fuse: bool
    choose: str | None
    precision: str | None


@overload
def compile(model: Graph, example_inputs: None = None, **arguments: Unpack[CompileArguments]) -> Module: ...


@overload
def compile(
    model: Any,
    example_inputs: Any = None,
    *,
    memory_budget: int | str | None = None,
    **arguments: Unpack[CompileArguments],
) -> CompiledModel: ...


def compile(
    model: Any,
    example_inputs: Any = None,
    *,
    memory_budget: int | str | None = None,
    dynamic: Any = None,
    target: str | Target | Sequence[str | Target] = "cpu",
    threads: int | None = None,
    exact: bool = False,
    rewrite: bool | RewriteObjective = True,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix: Mapping[str, Any] | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    tune: Tune | None = None,
    records: str | Path | None = None,
    output: str | None = None,
    weights: str | None = None,
    train: Train | None = None,
    fuse: bool = True,
    choose: str | None = None,
    precision: str | None = None,
) -> CompiledModel:
    """Compiles ``model`` into a callable module: an ONNX file or ``ModelProto``, a network of PyTorch, a
    :class:`Graph`, or boosted trees.

    A network is an ``nn.Module``, taken in its form of inference, with ``example_inputs`` (a tensor, a tuple of
    arguments, or a mapping by name), or an ``ExportedProgram``. The module is called as it is, with tensors or arrays.
    ``dynamic``: what stays open, ``{"batch": (1, 64)}`` the first extent of every input, ``{"x": {0: "batch", 1:
    "tokens"}, "batch": (1, 64), "tokens": (1, 512)}`` those of some, or what torch.export takes as ``dynamic_shapes``.

    Boosted trees are a ``burnish.boost.Model`` or estimator, or a booster or estimator of XGBoost or LightGBM;
    ``output`` says whether they give the "prediction" (as ``burnish.boost.predict``; the default) or the "margin".

    ``threads``: threads it will run on, also when it is loaded again (default: one a core). ``exact``: no
    transformation that changes rounding beyond re-association. ``rewrite``: look for half a second for an equal graph
    that should be faster, and take it where it is measured to be; the module's ``rewrites`` tell. An
    :class:`RewriteObjective` says what else shall be less, and what memory a model may take. ``shapes``: extents of
    inputs the model leaves open; an open first one is else 1, and other sizes are compiled when they come.
    ``{"batch": (1, 32)}`` keeps a dimension of this name open between bounds, ``{"x": ("rows", 768), "rows": (1,
    512)}`` names one: the module takes any value of it, and no substitutions are looked for; nor are they for a graph
    with states. ``fix``: values of
    inputs that never change, such as ``{"sr": 16000}``; an input with a default in the model (an initializer of its
    name) is a constant and not among ``inputs``, unless ``fix`` gives None for it: then a call gives it. A model that
    is no static graph (control flow, shapes that depend on values, sizes that nobody has given) becomes a
    ``SegmentedModule``, which compiles at its calls.
    ``weights``: "bfloat16" or "float16" stores weights of products in half of the memory, which a model of few rows,
    such as a language model that decodes, waits for; sums stay float32. The module's ``stored`` tells how far that
    moves a weight; no substitutions are looked for.
    ``train``: the module is one step of training. It is called with arrays, the model's inputs and then the labels,
    updates the parameters, which are its ``state``, and returns the loss. Trained are, unless ``train`` names them, the
    parameters of a network of PyTorch that require a gradient (the network itself stays what it is), and of an ONNX
    model the initializers of several floating-point numbers that are no running statistics. See docs/training.md.
    ``target``: "cpu", "cuda" (the GPU of this machine, as is "cpu" for a network whose example inputs lie on one),
    another by name, or a :class:`Target` of a machine of one's own, whose device then runs the model
    (``examples/toy``); substitutions, which are measured on this machine, are not looked for there. Several CPUs, such
    as ["x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64-cortex-a53"], make one artifact with code for each, of which
    ``load`` takes the one that uses most of what the CPU there has and the system allows.
    ``fuse``: False makes every node of the graph a kernel of its own, to compare with; no substitutions are looked for.
    ``choose``: how the algorithm of a convolution is chosen, "predicted" by a model of the machine or "measured", where
    predictions are close, by timing both once here, for at most three seconds a model; what was found is kept in the
    cache. None: the environment variable ``BURNISH_CHOOSE``, or else "predicted".
    ``precision``: what products and convolutions may round. "tf32", on GPUs, takes float32 to tensor cores, where 19
    bits of each factor count, as PyTorch's convolutions do by default; with "strict" all count. None: as the target
    says, such as "cuda:sm_90a,tf32", else strict. The module's ``repr`` and ``info`` name it.
    ``memory_budget``: main memory for a call's tensors, weights among them, in bytes or as in "200MB"; what does not
    fit moves to a file and back as ``burnish.compile_paged``, which says more, plans it. The budget of a step of
    training is ``Train(memory_budget=)``.
    ``progress(stage, done, total)`` is called as work goes on. ``records``: a file of tuning records; kernels that won
    in them are used. ``tune``: how long to look for faster kernels first, which adds to the records (by default
    "records.jsonl"); a model, or a step of training, that is not faster as a whole is compiled as
    without. Raises ModelError,
    UnsupportedOperator, TargetError, RecordError or ParameterError before any work is lost, and ParameterError for a
    limit of memory not met.

    >>> x = bn.sym.variable("x")
    >>> graph = bn.sym.graph(bn.sym.relu(x) + 1.0, {"x": (3,)})
    >>> model = bn.compile(graph, rewrite=False)
    >>> model(np.array([-1, 0, 2], "f4")), model(x=np.zeros(3, "f4"))
    (array([1., 1., 3.], dtype=float32), array([1., 1., 1.], dtype=float32))
    >>> import torch
    >>> bn.compile(torch.nn.ReLU(), (torch.ones(2),), rewrite=False)(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    with dump.compilation(), rarely_collected():
        target = _placed(target, example_inputs)
        if precision is not None:
            target = _with_precision(target, precision)
        if is_network(model):
            check_common(threads=threads, exact=exact, shapes=shapes, cache_dir=cache_dir, records=records)
            _check_unused("networks of PyTorch", shapes=shapes, fix=fix, output=output)
            network = import_torch(model, example_inputs, dynamic, training=train is not None)
            if train is not None:
                _check_train(train, weights)
                train = replace(train, parameters=train.parameters or network.parameters)
            whole: CompiledModel = compile(
                network.graph, target=target, threads=threads, exact=exact, rewrite=rewrite, cache_dir=cache_dir,
                progress=progress, tune=tune, records=records, weights=weights, train=train, fuse=fuse,
                memory_budget=memory_budget, choose=choose,
            )  # fmt: skip
            if isinstance(whole, Module):
                return whole if train is not None else TorchModule.called_as(whole, network.signature)
            if isinstance(whole, ModuleBySize):
                return whole if train is not None else whole.called_as(network.signature)
            # The planners take a second to import, which no other compilation should wait for.
            from burnish.driver.paged import PagedBySize, PagedModule

            assert isinstance(whole, (PagedModule, PagedBySize))
            whole.call = TorchCall(network.signature, len(whole.outputs))
            return whole
        if isinstance(target, Sequence) and not isinstance(target, str):
            _check_unused("several targets", tune=tune, memory_budget=memory_budget)
            one = partial(
                compile, model, example_inputs, dynamic=dynamic, threads=threads, exact=exact, rewrite=rewrite,
                shapes=shapes, fix=fix, cache_dir=cache_dir, progress=progress, records=records, output=output,
                weights=weights, train=train, fuse=fuse, choose=choose,
            )  # fmt: skip
            return compile_variants(target, lambda machine: one(target=machine))
        check_flag("fuse", fuse)
        if tune is not None:
            _check_unused(
                "tuning", weights=weights, fuse=None if fuse else fuse, memory_budget=memory_budget, choose=choose
            )
            return tuned(
                model, tune, target=target, threads=threads, exact=exact, rewrite=rewrite, shapes=shapes, fix=fix,
                cache_dir=cache_dir, progress=progress, records=records or RECORDS, train=train,
            ).module  # fmt: skip
        check_common(
            threads=threads, exact=exact, shapes=shapes, cache_dir=cache_dir, records=records, progress=progress
        )
        _check_rewrite(rewrite)
        # A step of training has the same kernels, and gives the same bits, for any number of threads.
        machine = find_target(target, threads=None if train is not None else threads)
        if example_inputs is not None or dynamic is not None:
            raise refusal("example_inputs and dynamic", "some", "None for models that are no network of PyTorch")
        if is_boosted(model):
            _check_unused(
                "boosted trees", shapes=shapes, records=records, train=train, fuse=None if fuse else fuse,
                memory_budget=memory_budget, choose=choose,
            )  # fmt: skip
            executable = compile_trees(model, machine, cache_dir, progress, "prediction" if output is None else output)
            return _kept(Module(executable, threads), threads, {})
        check_model(model)
        if output is not None:
            raise refusal("output", output, "None for models of operators")
        if weights is not None and weights not in HALVES:
            raise refusal("weights", weights, f"{' or '.join(map(repr, HALVES))}, or None")
        if train is not None:
            _check_train(train, weights)
        if memory_budget is not None:
            if train is not None:
                raise refusal("memory_budget", memory_budget, "None beside train=, a step's is Train(memory_budget=)")
            _check_unused("a memory budget", records=records, weights=weights, fuse=None if fuse else fuse)
            # The planners take a second to import, which no other compilation should wait for.
            from burnish.driver.paged import compile_paged

            return compile_paged(
                model, memory_budget, shapes=shapes, fix=fix, target=machine, exact=exact, threads=threads,
                cache_dir=cache_dir, progress=progress,
            )  # fmt: skip
        labels: list[list[int | None]] = []
        try:
            sized = train is None and weights is None and fuse  # other sizes can be compiled as they come
            again = unchanged(model)
            found = import_model(model, shapes, fix, training=train is not None, tell=not sized)
            limits = noted_indices(found.graph)
            if train is not None:
                labels = noted_labels(found.graph, train)
                found = replace(found, graph=_step_graph(found.graph, train, found.weights, machine))
        except (UnsupportedOperator, OpenDimensions) as error:
            if (
                train is not None
                or isinstance(model, Graph)
                or not (shapes or isinstance(error, (RuntimeValue, OpenDimensions)))
            ):
                raise
            _check_unused("models compiled at their calls", fuse=None if fuse else fuse)
            segments = compile_segments(
                model, machine, threads=threads, exact=exact, cache_dir=cache_dir, shapes=shapes, fix=fix
            )
            if shapes or isinstance(error, OpenDimensions):
                warnings.warn(f"{error}; until then it is compiled {AT_CALLS}", stacklevel=3)
            return segments
        choices = DEFAULTS if records is None else read_choices(found.graph, records, machine, threads)
        choices = replace(choices, fused=fuse)
        if algorithms_are_measured(choose) and not exact:
            if machine.is_host:
                from burnish.driver.measured import measured_choices

                choices = measured_choices(choices, machine, threads, cache_dir)
            elif choose is not None:
                raise refusal(
                    "choose", choose, f"'predicted' or None for target '{machine.name}', which is not this CPU"
                )
        graph, stored = found.graph, None
        if weights is not None:
            graph, stored = store_weights(optimize(found.graph, exact, machine), weights)

        how: dict[str, Any] = {
            "exact": exact, "threads": threads, "cache_dir": cache_dir, "progress": progress, "choices": choices,
            "optimized": stored is not None, "trains": train is not None,
            "memory_budget": None if train is None else train.memory_budget,
        }  # fmt: skip
        changed = rewrite and fuse and not (found.graph.dims or found.graph.states or stored) and not _device(machine)
        try:
            if changed:
                made: Module | ModuleBySize = rewrite_model(
                    found.graph, shipped_rules(), target=machine, threads=threads, exact=exact, cache_dir=cache_dir,
                    progress=progress, choices=choices, objective=_objective(rewrite),
                ).module  # fmt: skip
            elif needs_sizes(graph, machine):
                made = compile_by_size(graph, machine, **how)
            else:
                made = compile_one(graph, machine, **how)
        except (UnsupportedOperator, VerificationError, ArtifactError, TargetError) as error:
            counts = bool(found.graph.counts)  # which parts of the model may do with once they are numbers
            if train is not None or isinstance(model, Graph) or not fuse:
                raise
            if not (counts or isinstance(error, UnsupportedOperator)):
                raise
            if not (counts or found.graph.dims or isinstance(error, PythonStep)):
                raise
            if found.graph.dims and not counts:
                warnings.warn(f"{error}; it is compiled {AT_CALLS}", stacklevel=2)
            return compile_segments(
                model, machine, threads=threads, exact=exact, cache_dir=cache_dir, shapes=shapes, fix=fix
            )
        if labels:
            made.note(labels=labels)
        if limits:
            made.note(indices=limits)
        if stored is not None:
            parts = {"weights": stored.weights, "elements": stored.elements}
            made.note(stored={"dtype": weights, **parts, "error": stored.error})
        _kept(made, threads, found.assumed)
        if not (found.assumed and sized) or isinstance(made, ModuleBySize):
            return made
        return OpenModule.of(
            made, lambda: compile_segments(
                again(), machine, threads=threads, exact=exact, cache_dir=cache_dir, shapes=shapes, fix=fix, ahead=False
            ), open_extents(found),
        )  # fmt: skip


def _placed(target: Any, example_inputs: Any) -> Any:
    """The target, of which "cuda" is the GPU of this machine, as is "cpu" for example inputs that lie on one. Raises
    TargetError without a GPU.
    """
    there = isinstance(target, str) and target == "cpu" and _on_gpu(example_inputs)
    if not there and not (isinstance(target, str) and target == "cuda"):
        return target
    from burnish.runtime.gpu.driver import gpu_target  # the driver's package, which CPUs do without

    return gpu_target()


def _on_gpu(value: Any) -> bool:
    """Whether a tensor lies on a GPU, or one in tuples, lists and dicts."""
    if isinstance(value, Mapping):
        return any(map(_on_gpu, value.values()))
    if isinstance(value, (tuple, list)):
        return any(map(_on_gpu, value))
    return bool(getattr(value, "is_cuda", False))


def _with_precision(target: str | Target | Sequence[str | Target], precision: str) -> Any:
    """The target, or each of several, with a precision. Raises ParameterError for one that it does not have."""
    if isinstance(target, Sequence) and not isinstance(target, str):
        return [_with_precision(each, precision) for each in target]
    machine = find_target(target)
    if not isinstance(precision, str) or precision not in machine.machine.precisions:
        allowed = " or ".join(map(repr, machine.machine.precisions))
        raise refusal("precision", precision, f"{allowed} for target '{machine.name}', or None")
    return machine.with_precision(precision)


def tuned(
    model: Any,
    tune: Any,
    *,
    target: str | Target = "cpu",
    threads: int | None = None,
    exact: bool = False,
    rewrite: bool | RewriteObjective = True,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix: Mapping[str, Any] | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    records: str | Path = RECORDS,
    train: Train | None = None,
    watch: Callable[[Session], None] | None = None,
    devices: Devices | None = None,
) -> Tuned:
    """Compiles ``model`` as ``compile(tune=)`` does, and tells what tuning found; ``watch`` and ``devices`` are those
    of tune_model. A step of training is tuned and measured as the function of its states that it is.
    """
    with dump.compilation():
        # The tuner takes a second to import, with its boosted trees, which no other compilation should wait for.
        from burnish.driver.tuned import tune_model
        from burnish.tune.session import Tune

        check_common(
            threads=threads, exact=exact, shapes=shapes, cache_dir=cache_dir, records=records, progress=progress
        )
        _check_rewrite(rewrite)
        if not isinstance(tune, Tune):
            number = isinstance(tune, (int, float)) and not isinstance(tune, bool)
            raise refusal("tune", tune, f"burnish.Tune(seconds={tune if number else 120}), or None")
        machine = find_target(target, threads=None if train is not None else threads)
        if _device(machine) is not None and not is_timed(machine.machine) and devices is None:
            raise refusal("tune", tune, f"None for target '{machine.name}', whose device this machine does not time")
        if is_boosted(model):
            _check_unused("boosted trees", tune=tune)
        check_model(model)
        found = import_model(model, shapes, fix, training=train is not None)
        graph, step = found.graph, None
        if train is not None:
            _check_train(train, None)
            step = _step_graph(found.graph, train, found.weights, machine)
            graph, rewrite = replace(step, states={}), False
        opened = needs_sizes(graph, machine)
        if graph.dims and devices is None and not (machine.is_host or opened):
            named = ", ".join(f"'{d}'" for d in graph.dims)
            raise ParameterError(f"tune: found open dimensions {named}; allowed on another device: numbers")
        if graph.states:
            raise ParameterError(f"tune: found a model with states {[*graph.states]}; allowed: a model without")
        if graph.dims or (devices is not None and not machine.is_host):
            rewrite = False  # substitutions are of static graphs, and measured here
        if rewrite:
            chosen = rewrite_model(
                graph, shipped_rules(), target=machine, threads=threads, exact=exact, cache_dir=cache_dir,
                progress=progress, objective=_objective(rewrite),
            )  # fmt: skip
            graph = chosen.graph if chosen.graph is graph else align_parts(chosen.graph, machine.lanes)
        result = tune_model(
            graph_at(graph, hints(graph.dims)) if opened else graph, tune, records, target=machine, threads=threads,
            exact=exact, cache_dir=cache_dir, progress=progress, watch=watch, devices=devices,
        )  # fmt: skip
        if rewrite and chosen.module.rewrites is not None:
            result.module.note(rewrites=chosen.module.rewrites)
        if step is not None or opened:
            choices = read_choices(graph, records, machine, threads) if result.gain.second_wins else DEFAULTS
            how: dict[str, Any] = {
                "exact": exact, "threads": threads, "cache_dir": cache_dir, "progress": progress, "choices": choices,
                "trains": train is not None, "memory_budget": None if train is None else train.memory_budget,
            }  # fmt: skip
            compiler: Callable[..., Module | ModuleBySize] = compile_by_size if opened else compile_one
            module = compiler(graph if step is None else step, machine, **how)
            if train is not None and (labels := noted_labels(found.graph, train)):
                module.note(labels=labels)
            result = replace(result, module=module)
        if limits := noted_indices(found.graph):
            result.module.note(indices=limits)
        _kept(result.module, threads, found.assumed)
        return result


def read_choices(graph: Graph, records: str | Path, machine: Target, threads: int | None) -> Choices:
    """Choices by the winners among a file's records for this graph, machine and number of threads.

    Raises RecordError where there is no such file or it is none of records; warns where no winner applies.
    """
    from burnish.tune.choices import recorded_choices, runs_cold, usable_records

    cold, count = runs_cold(graph, machine), threads or usual_threads(machine)
    return recorded_choices(usable_records(records, machine, count, cold), machine, count, cold)


def _objective(rewrite: bool | RewriteObjective) -> RewriteObjective | None:
    return rewrite if isinstance(rewrite, RewriteObjective) else None


def _check_rewrite(rewrite: Any) -> None:
    if not isinstance(rewrite, RewriteObjective):
        try:
            check_flag("rewrite", rewrite)
        except ParameterError:
            raise refusal("rewrite", rewrite, "True, False or a burnish.RewriteObjective") from None


def _step_graph(graph: Graph, train: Train, weights: Collection[str] | None, machine: Target) -> Graph:
    """The step of training for a machine; attention is gathered for GPUs, whose templates keep scores in registers."""
    own = graph if machine.machine.dialect.grid is None else gathered(graph, machine)
    return training_graph(own, train, weights, train.recomputes)


def _device(machine: Target) -> Any | None:
    """Device that runs a target's code in this CPU's place; None where this CPU runs it."""
    return device_for(machine.machine, fingerprint(machine.triple, machine.cpu, machine.features))


def _check_train(train: Any, weights: Any) -> None:
    _check_unused("training", weights=weights)
    if not isinstance(train, Train):
        raise refusal("train", train, 'burnish.Train(loss="mse", optimizer=burnish.SGD(0.1)), or None')


def _check_unused(kind: str, **unused: Any) -> None:
    """Raises ParameterError for arguments that are of no use to models of this kind."""
    for argument, found in unused.items():
        if found is not None:
            raise refusal(argument, found, f"{not found} for {kind}" if isinstance(found, bool) else f"None for {kind}")


def _kept(module: Module | ModuleBySize, threads: int | None, assumed: Mapping[str, str]) -> Module | ModuleBySize:
    """The module with what its artifact shall remember: threads that were asked for, and extents that were assumed."""
    if threads is not None:
        module.note(threads=int(threads))
    if assumed:
        module.note(assumed=dict(assumed))
    return module
