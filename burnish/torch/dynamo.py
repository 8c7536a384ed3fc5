"""The backend of torch.compile: graphs of AOT autograd, compiled at their first call."""

from __future__ import annotations

import operator
import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.base.arguments import check_flag, refusal
from burnish.driver.api import compile
from burnish.driver.by_size import KEPT_SIZES
from burnish.errors import BurnishError, TargetError
from burnish.frontend.torch.dtypes import on_cpu
from burnish.frontend.torch.symbols import Symbols
from burnish.graph.graph import Graph
from burnish.loops.sizes import MOST, dim
from burnish.machines.target import target
from burnish.runtime.module import Module
from burnish.runtime.pool import check_threads
from burnish.torch.parts import Function, Setting, compile_parts, compile_whole, device_of
from burnish.torch.report import add_graph
from burnish.torch.training import decompositions, partition

OPTIONS = ("threads", "target", "exact", "rewrite", "cache_dir", "training")
_warned: set[str] = set()


@dataclass(frozen=True)
class BackendOptions:
    """Options of ``torch.compile(options=)``, as arguments of :func:`burnish.compile`; ``rewrite`` is False.

    ``target``: by default where the tensors are, the CPU or the GPU of this machine. ``training``: graphs with
    gradients are compiled, too; else they are left to torch.
    """

    threads: int | None = None
    target: str | None = None
    exact: bool = False
    rewrite: bool = False
    cache_dir: str | None = None
    training: bool = True

    def compile(self, graph: Graph, device: Any) -> Module:
        """Compiled module of the graph, for tensors on ``device``; on as many threads as torch uses unless ``threads``
        is given. Raises TargetError for a target that does not read them.
        """
        import torch

        name = device.type if self.target is None else self.target
        known = self.target in (None, device.type) or target(name).machine.dialect.grid is not None
        if device.type != "cpu" and not known:
            raise TargetError(f"target: found '{name}' for tensors on {device}; allowed: None, or that of a GPU")
        threads = torch.get_num_threads() if self.threads is None else self.threads
        return compile(graph, target=name, threads=threads, exact=self.exact, rewrite=self.rewrite,
                       cache_dir=self.cache_dir)  # fmt: skip


def backend(
    module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Any:
    """The backend "burnish" of ``torch.compile``: a function that runs the FX graph ``module``.

    Graphs are compiled in as few parts as there can be around operators that are not supported, which torch runs.
    :func:`burnish.torch.report` tells. Without gradients, parameters are constants: one that is replaced or changed in
    place is seen at the next call, and compiled in again, but for changes in place through ``.data``, which torch
    itself does not count. With gradients, forward and backward are a graph each, and parameters are inputs, which
    optimizers may change. Raises ParameterError for unknown ``options``, and for a ``mode``, which is inductor's.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    if mode is not None:
        raise refusal("mode", mode, "None; options={'threads': 2, 'exact': True, …}")
    chosen = _read(options or {})
    frozen = [e for e in example_inputs if getattr(e, "_dynamo_static_input_type", None) is not None]

    def inference(graph: Any, fake: Sequence[Any]) -> Any:
        return _boxed(CompiledGraph(graph, frozen, chosen))

    def compiled(direction: str) -> Callable[..., Any]:
        return lambda graph, fake: _boxed(CompiledGraph(graph, (), chosen, direction))

    def left(graph: Any, fake: Sequence[Any]) -> Any:
        add_graph(_count(graph), "forward", left=True)
        _warn_once(
            "burnish: a network that is called with gradients is left to torch; call it under torch.no_grad() or "
            "torch.inference_mode()"
        )
        return make_boxed_func(graph.forward)

    def unseen(graph: Any, fake: Sequence[Any]) -> Any:
        return make_boxed_func(graph.forward)

    if not chosen.training:
        wrapped = aot_autograd(fw_compiler=left, bw_compiler=unseen, inference_compiler=inference)
    else:
        wrapped = aot_autograd(
            fw_compiler=compiled("forward"), bw_compiler=compiled("backward"), inference_compiler=inference,
            partition_fn=partition, decompositions=decompositions(),
        )  # fmt: skip
    return wrapped(module, example_inputs)


def _boxed(function: Callable[[list[Any]], Any]) -> Any:
    """Marks a function that takes its arguments in one list."""

    def run(args: list[Any]) -> Any:
        return function(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _read(options: Mapping[str, Any]) -> BackendOptions:
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise refusal("options", unknown, ", ".join(OPTIONS))
    found = BackendOptions(**options)
    check_threads(found.threads)
    check_flag("options['exact']", found.exact)
    check_flag("options['rewrite']", found.rewrite)
    check_flag("options['training']", found.training)
    return found


def _count(graph: Any) -> int:
    return sum(node.op == "call_function" for node in graph.graph.nodes)


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=3)


_version, _pointer = operator.attrgetter("_version"), operator.methodcaller("data_ptr")


class Frozen:
    """Parameters that are compiled in as constants, and whether those of a call are still the same.

    A parameter that was changed twice becomes an input: what changes again and again is not worth compiling.
    """

    def __init__(self, candidates: Sequence[Any]) -> None:
        self._candidates = {id(t) for t in candidates}
        self._changes: Counter[int] = Counter()  # by the place of the argument
        self.places: list[int] = []
        self._take: Callable[[Sequence[Any]], tuple[Any, ...]] = lambda args: ()
        self._held: tuple[Any, ...] = ()
        self._versions: list[int] = []
        self._pointers: list[int] = []

    def same(self, args: Sequence[Any]) -> bool:
        """Whether the parameters among these arguments are those that were taken, and unchanged."""
        given = self._take(args)
        return (
            all(map(operator.is_, given, self._held))
            and list(map(_version, given)) == self._versions
            and list(map(_pointer, given)) == self._pointers
        )

    def take(self, args: Sequence[Any]) -> int:
        """Takes the parameters as they are now; returns how many have become inputs."""
        if self._held:
            for place, held, version, pointer in zip(
                self.places, self._held, self._versions, self._pointers, strict=True
            ):
                now = args[place]
                self._changes[place] += now is not held or now._version != version or now.data_ptr() != pointer
            eligible = self.places
        else:
            eligible = [i for i, a in enumerate(args) if id(a) in self._candidates]
        # Tensors made in inference mode count no changes.
        self.places = [i for i in eligible if self._changes[i] < 2 and not args[i].is_inference()]
        places = self.places
        self._take = operator.itemgetter(*places) if len(places) > 1 else lambda args: tuple([args[i] for i in places])
        self._held = self._take(args)
        self._versions, self._pointers = list(map(_version, self._held)), list(map(_pointer, self._held))
        return sum(count >= 2 for count in self._changes.values())


class CompiledGraph:
    """Compiled graph of AOT autograd, as a function of its arguments, compiled when it is first called: only then are
    there real parameters, and no fake mode.
    """

    def __init__(self, graph: Any, candidates: Sequence[Any], options: BackendOptions, direction: str = "") -> None:
        self._graph, self._options = graph, options
        self._holders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._frozen = Frozen(candidates)
        self._record = add_graph(_count(graph), direction)
        self._symbolic = _symbols(self._holders)
        self._run: Function | None = None  # for all sizes
        self._seen: list[tuple[int, ...]] = []  # values of the symbols, by which those are told that are always equal
        self._equal: tuple[tuple[int, ...], ...] = ()  # places of symbols that the code for all sizes takes as one
        self._sized: OrderedDict[tuple[int, ...], Function] = OrderedDict()  # for some, if there is none for all
        self._ready = False
        self._lock = threading.RLock()

    def __call__(self, args: list[Any]) -> Any:
        """The results for tensors and symbols in the order of the placeholders."""
        if not (self._ready and self._frozen.same(args)):
            with self._lock:
                if not (self._ready and self._frozen.same(args)):
                    self._prepare(args)
        run = self._run
        if run is None or (self._symbolic and not self._fits(args)):
            run = self._again(args) or self._for_sizes(args)
        return run(args)

    def _prepare(self, args: Sequence[Any]) -> None:
        """Takes the parameters; compiles the graph for all sizes if it can be."""
        self._record.recompilations += self._ready
        self._record.inputs = self._frozen.take(args)
        self._record.parts.clear()
        self._record.eager.clear()
        self._run, self._ready = None, True
        self._sized.clear()
        if not self._symbolic:
            self._run = self._compiled(args, {}, None)
            return
        self._seen = [self._values(args)]
        self._compile_open(args, [[name] for name in self._symbolic])
        if self._run is None:  # lengths that are equal by construction, as those of a cache's keys and values
            self._compile_open(args, self._groups())

    def _compile_open(self, args: Sequence[Any], groups: Sequence[Sequence[str]]) -> None:
        """Compiles the graph for all sizes at which the symbols of each group are equal, if it can be."""
        extents: dict[str, int] = {}
        for group in groups:
            bounds = [self._symbolic[name] for name in group]
            low, high = max(b[1] for b in bounds), min(b[2] for b in bounds)
            own = dim(group[0], low, high, hint=min(max(args[bounds[0][0]], low), high))
            extents.update(dict.fromkeys(group, own))
        self._equal = tuple(tuple(self._symbolic[name][0] for name in group) for group in groups if len(group) > 1)
        try:
            self._run, refused = compile_whole(self._graph.graph, self._setting(args, extents, None))
            self._record.specialized = "; ".join(f"{k}: {why}" for k, why in refused.items())[:500]
        except BurnishError as error:
            self._record.specialized = str(error)[:500]

    def _values(self, args: Sequence[Any]) -> tuple[int, ...]:
        return tuple(args[place] for place, _, _ in self._symbolic.values())

    def _groups(self) -> list[list[str]]:
        """The symbols in groups of those that were equal at every call that was looked at."""
        groups: dict[tuple[int, ...], list[str]] = {}
        for name, own in zip(self._symbolic, zip(*self._seen, strict=True), strict=True):
            groups.setdefault(own, []).append(name)
        return list(groups.values())

    def _again(self, args: Sequence[Any]) -> Function | None:
        """The graph compiled for all sizes once more, if symbols that it takes as one are not equal now."""
        with self._lock:
            if self._run is None or not self._equal or not self._in_bounds(args):
                return None
            self._seen.append(self._values(args))
            self._run = None
            self._record.recompilations += 1
            self._compile_open(args, self._groups())
            return self._run

    def _in_bounds(self, args: Sequence[Any]) -> bool:
        return all(low <= args[place] <= high for place, low, high in self._symbolic.values())

    def _fits(self, args: Sequence[Any]) -> bool:
        equal = all(args[places[0]] == args[place] for places in self._equal for place in places[1:])
        return equal and self._in_bounds(args)

    def _for_sizes(self, args: Sequence[Any]) -> Function:
        """The graph compiled for the sizes of these arguments."""
        with self._lock:
            key = tuple(args[place] for place, _, _ in self._symbolic.values())
            found = self._sized.get(key)
            if found is None:
                sizes = dict(zip(self._symbolic, key, strict=True))
                found = self._compiled(args, sizes, sizes)
                while len(self._sized) >= KEPT_SIZES:
                    self._sized.popitem(last=False)
                self._sized[key] = found
            self._sized.move_to_end(key)
            return found

    def _setting(self, args: Sequence[Any], extents: Mapping[str, int], sizes: dict[str, int] | None) -> Setting:
        known = {self._holders[i].name: on_cpu(args[i].detach()) for i in self._frozen.places}
        device = device_of(self._graph.graph)
        return Setting(self._options.compile, Symbols(dict(extents)), known, self._record, device, sizes)

    def _compiled(self, args: Sequence[Any], extents: Mapping[str, int], sizes: dict[str, int] | None) -> Function:
        """The graph as a whole, or in parts where operators are left to torch."""
        import copy

        setting = self._setting(args, extents, sizes)
        try:
            whole, refused = compile_whole(self._graph.graph, setting)
        except BurnishError as error:
            whole, refused = None, {"": str(error)}
            self._record.eager["all operators of the graph", str(error)] += 1
            self._announce()
            return lambda args: self._graph.forward(*args)
        if whole is not None:
            return whole
        forward = compile_parts(copy.deepcopy(self._graph), refused, setting)
        self._announce()
        return lambda args: forward(*args)

    def _announce(self) -> None:
        names = ", ".join(dict.fromkeys(name for name, _ in self._record.eager))
        if names:
            _warn_once(f"burnish: torch runs operators of a graph ({names}); burnish.torch.report() says why")


def _symbols(holders: Sequence[Any]) -> dict[str, tuple[int, int, int]]:
    """The symbols of a graph: the place of the argument that gives it, and its bounds."""
    found = {}
    for place, node in enumerate(holders):
        value = node.meta.get("val")
        if type(value).__name__ == "SymInt" and value.node.expr.is_Symbol:
            limits = value.node.shape_env.var_to_range.get(value.node.expr)
            low = int(limits.lower) if limits is not None and limits.lower.is_Integer else 0
            high = int(limits.upper) if limits is not None and limits.upper.is_Integer else MOST
            found[value.node.expr.name] = (place, max(low, 1), min(high, MOST))  # an empty one is compiled alone
    return found
