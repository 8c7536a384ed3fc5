"""Training mode of a PyTorch network: modes of its modules, and gradient changes made outside the forward graph.

Every module computes in the mode that it is in: dropout and batch normalization in eval mode are those of inference,
and so is what asks ``self.training``. A network of which no module is in training mode is taken as by ``train()``.
Hooks that change gradients, and what forward changes for its next call other than buffers, no graph has: refused by
name. The backward of an ``autograd.Function`` is in the graph, see :mod:`burnish.frontend.torch.functions`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from burnish.errors import UnsupportedOperator
from burnish.frontend.torch.context import Ref, TorchContext, Translator
from burnish.frontend.torch.reduction import batch_norm

HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
RECURRENT_MODE = 6  # the argument of recurrent layers that says whether they train
TENSOR_METHODS = ("register_hook", "register_post_accumulate_grad_hook", "requires_grad_")
PLAIN = (bool, int, float, str)  # attributes of modules that forward may count with


@contextlib.contextmanager
def training_modes(network: Any) -> Iterator[None]:
    """The network in its modes of training, without counts of batches and fused paths; then as it was."""
    import torch

    modules = [*network.modules()]
    modes = [(m, m.training) for m in modules]
    counts = [(m, m._buffers["num_batches_tracked"]) for m in modules if "num_batches_tracked" in m._buffers]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        if not any(mode for _, mode in modes):
            network.train()
        for module, _ in counts:  # no momentum depends on them
            module._buffers["num_batches_tracked"] = None
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, count in counts:
            module._buffers["num_batches_tracked"] = count
        for module, mode in modes:
            module.training = mode


def asks_for_mode(network: Any) -> bool:
    """Whether forward may compute something else in training, other than by what ``torch.nn`` has."""
    modules = network.modules() if hasattr(network, "modules") else ()  # an exported program has its mode
    return any(not type(m).__module__.startswith("torch.nn.modules.") for m in modules)


def check_hooks(network: Any) -> None:
    """Raises UnsupportedOperator, naming module or parameter, for hooks that change gradients."""
    import torch

    everywhere = torch.nn.modules.module
    if everywhere._global_backward_hooks or everywhere._global_backward_pre_hooks:
        raise _refusal("all modules", "a backward hook")
    for name, module in network.named_modules():
        if any(getattr(module, hooks, None) for hooks in HOOKS):
            raise _refusal(f"module '{name}'", "a backward hook")
    for name, parameter in network.named_parameters():
        if any(getattr(parameter, hooks, None) for hooks in HOOKS):
            raise _refusal(f"parameter '{name}'", "a hook on its gradient")


@contextlib.contextmanager
def watched(network: Any) -> Iterator[None]:
    """Detection of side effects of forward. Raises UnsupportedOperator for hooks on gradients, parameters that no
    longer require one, attributes of modules that count, random numbers of Python and NumPy.
    """
    import torch

    found: list[tuple[str, str]] = []
    names = {id(module): name for name, module in network.named_modules()}
    counted = [(module, _plain(module)) for module in network.modules()]
    hook, after, require = (getattr(torch.Tensor, name) for name in TENSOR_METHODS)
    assign, drawn = torch.nn.Module.__setattr__, _drawn()

    def noted(method: Any) -> Any:
        def register(tensor: Any, call: Any) -> Any:
            words = getattr(call, "__qualname__", type(call).__name__)
            found.append(("forward", f"a hook on a tensor's gradient, '{words}'"))
            return method(tensor, call)

        return register

    def requires(tensor: Any, wanted: bool = True) -> Any:
        if not wanted:
            found.append(("forward", "requires_grad_(False)"))
        return require(tensor, wanted)

    def assigned(module: Any, name: str, value: Any) -> None:
        old = vars(module).get(name, value)
        if id(module) in names and name != "training" and type(value) in PLAIN and type(old) in PLAIN and old != value:
            found.append((f"module '{names[id(module)]}'", f"attribute '{name}' that forward changes"))
        assign(module, name, value)

    try:
        for name, method in zip(TENSOR_METHODS, (noted(hook), noted(after), requires), strict=True):
            setattr(torch.Tensor, name, method)
        torch.nn.Module.__setattr__ = assigned
        yield
    finally:
        torch.nn.Module.__setattr__ = assign
        for name, method in zip(TENSOR_METHODS, (hook, after, require), strict=True):
            setattr(torch.Tensor, name, method)
        for module, values in counted:
            module.__dict__.update(values)
    if found:
        raise _refusal(*found[0])
    if _drawn() != drawn:
        raise _refusal("forward", "random numbers of Python or NumPy")


def _refusal(where: str, found: str) -> UnsupportedOperator:
    return UnsupportedOperator(f"train: {where}: found {found}; allowed: none, which no compiled step would follow")


def _plain(module: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if type(value) in PLAIN and key != "training"}


def _drawn() -> tuple[Any, ...]:
    return random.getstate(), str(np.random.get_state(legacy=False))


# --- batch normalization ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def kept_modes(program: Any, own: bool) -> Iterator[None]:
    """The exported program with batch normalizations that a step moves in the form of inference, as the step takes
    them, and those that are frozen by an operator of ours; then as it was.

    Without modes of their ``own`` all of them move, and recurrent layers drop.
    """
    import torch

    nodes = [n for n in program.graph.nodes if n.target is torch.ops.aten.batch_norm.default and n.args[3] is not None]
    recurrent = [n for n in program.graph.nodes if n.target in _recurrent()]
    before = [(n, n.target, n.args) for n in (*nodes, *recurrent)]
    try:
        for node in () if own else recurrent:
            node.args = (*node.args[:RECURRENT_MODE], True, *node.args[RECURRENT_MODE + 1 :])
        for node in nodes:
            x, weight, bias, mean, variance, training, momentum, epsilon, *rest = node.args
            if training:
                node.args = (x, weight, bias, mean, variance, False, momentum, epsilon, *rest)
            elif own:
                node.target, node.args = _frozen_operator()[0], (x, weight, bias, mean, variance, epsilon)
        yield
    finally:
        for node, target, arguments in before:
            node.target, node.args = target, arguments


def is_training(program: Any) -> bool:
    """Whether a batch normalization or a dropout of an exported program is in training mode."""
    import torch

    aten = torch.ops.aten
    places = {aten.batch_norm.default: 5, aten.dropout.default: 2, aten.feature_dropout.default: 2}
    places |= dict.fromkeys(_recurrent(), RECURRENT_MODE)
    return any(n.args[places[n.target]] for n in program.graph.nodes if n.target in places)


def _recurrent() -> tuple[Any, ...]:
    import torch

    return tuple(getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


@lru_cache(maxsize=1)
def _frozen_operator() -> tuple[Any, Any]:
    """An operator that torch knows to return a tensor like its first, and the library, which lasts as this does."""
    import torch

    library = torch.library.Library("burnish", "FRAGMENT")
    library.define(
        "frozen_batch_norm(Tensor x, Tensor? w, Tensor? b, Tensor mean, Tensor variance, float eps) -> Tensor"
    )
    library.impl("frozen_batch_norm", lambda x, *rest: x.clone(), "CompositeExplicitAutograd")
    return torch.ops.burnish.frozen_batch_norm.default, library


def _frozen(c: TorchContext, x: Ref, w: Ref | None, b: Ref | None, mean: Ref, variance: Ref, eps: float) -> Ref:
    return batch_norm(c, x, w, b, mean, variance, None, eps)


TRANSLATORS: Mapping[str, Translator] = {"burnish.frozen_batch_norm": _frozen}
