"""Compiled nn.Module: called as the network is, with tensors or arrays, which are not copied on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from burnish.driver.tensors import TensorModule
from burnish.errors import InputError
from burnish.frontend.torch.dtypes import to_numpy, to_torch
from burnish.frontend.torch.signature import CallSignature, children_of
from burnish.runtime.arguments import Arguments
from burnish.runtime.callable import ProfileRow
from burnish.runtime.module import Module


class TorchCall:
    """Calls of a network of PyTorch: arguments flattened to the inputs of its graph, results built from its outputs.

    ``plain``: how many arguments by position are the inputs, one by one; -1 where they are not.
    """

    def __init__(self, signature: CallSignature, outputs: int) -> None:
        """Signature of a graph's call, and the number of its ``outputs``."""
        from torch.utils import _pytree

        self.signature, self._tree = signature, _pytree
        positional, named = children_of(signature.in_spec)
        plain = all(number >= 0 for number, _ in signature.inputs) and not named.num_children
        flat = plain and all(leaf.is_leaf() for leaf in children_of(positional))
        self.plain = positional.num_children if flat else -1  # arguments that are just tensors
        out = signature.out_spec
        each = [number for number, _ in signature.outputs] == list(range(outputs))
        self._single = each and out.is_leaf()
        self._tuple = each and out.type is tuple and out.num_children == out.num_leaves == outputs

    def flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The leaves of the arguments that are the graph's inputs, in order. Raises InputError."""
        signature = self.signature
        leaves, spec = self._tree.tree_flatten((tuple(args), dict(kwargs)))
        if spec != signature.in_spec:
            leaves, spec = self._tree.tree_flatten(self._as_in_example(args, kwargs))
        if spec != signature.in_spec:
            found, allowed = _structure_text(spec), _structure_text(signature.in_spec)
            raise InputError(f"arguments: found the structure {found}; allowed: {allowed}")
        given = []
        for leaf, (number, example) in zip(leaves, signature.inputs, strict=True):
            if number >= 0:
                given.append(leaf)
            elif leaf is not example and leaf != example:
                raise InputError(f"arguments: found {leaf!r}; allowed: {example!r}, for which the model was compiled")
        return tuple(given)

    def _as_in_example(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments by position and by name as the example had them. Raises InputError."""
        names, positional = self.signature.names, self.signature.positional
        bound = dict(zip(names, args, strict=False))
        twice, unknown = sorted(bound.keys() & kwargs.keys()), sorted(kwargs.keys() - set(names))
        bound.update(kwargs)
        missing = [name for name in names if name not in bound]
        if twice or unknown or missing or len(args) > len(names):
            found = f"{len(args)} by position and {sorted(kwargs)} by name"
            raise InputError(f"arguments: found {found}; allowed: {', '.join(names)}, as in the example inputs")
        return tuple(bound[n] for n in names[:positional]), {n: bound[n] for n in names[positional:]}

    def run(self, compute: Callable[[list[np.ndarray]], Sequence[np.ndarray]], args: Any, kwargs: Any) -> Any:
        """The network's result by ``compute``, which takes and gives arrays: tensors if any argument is a tensor."""
        given = self.flat(args, kwargs)
        found = compute([to_numpy(v, f"input {i}") if hasattr(v, "detach") else v for i, v in enumerate(given)])
        return self.built([to_torch(array) for array in found] if any(hasattr(v, "detach") for v in given) else found)

    def built(self, found: Sequence[Any]) -> Any:
        """The network's result from the graph's outputs."""
        if self._single:
            return found[0]
        if self._tuple:
            return tuple(found)
        leaves = [found[number] if number >= 0 else value for number, value in self.signature.outputs]
        return self._tree.tree_unflatten(leaves, self.signature.out_spec)


class TorchModule(TensorModule):
    """A :class:`Module` that takes the arguments of the network that it was compiled from and gives results of the same
    structure: tensors if any argument is a tensor, else arrays.

    Compiled for a GPU it takes tensors there, too, and then gives tensors there. What ``save`` writes is loaded as a
    plain :class:`Module`, without torch: the leaves of arguments and results in order.
    """

    _call: TorchCall

    @classmethod
    def called_as(cls, module: Module, signature: CallSignature) -> TorchModule:
        """The compiled ``module``, called as ``signature`` says; it shares code and parameters."""
        made = cls.of(module)
        assert isinstance(made, TorchModule)
        made._call = TorchCall(signature, len(made.outputs))
        made._arguments = Arguments(made.inputs, made.executable.info, exemplary=True)
        return made

    def __copy__(self) -> TorchModule:
        return self.called_as(self, self._call.signature)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The network's result, its tensors new. Raises InputError for arguments unlike those it was compiled for."""
        call, stream = self._call, None
        if kwargs and self._gpu is not None:
            kwargs, stream = self._gpu.stream_in(kwargs)
        if kwargs or len(args) != call.plain:
            args = call.flat(args, kwargs)
        for value in args:
            if isinstance(value, self._tensor):
                found: Sequence[Any] = self.run(args, stream)
                break
        else:
            arrays = super().__call__(*args, **({} if stream is None else {"stream": stream}))
            found = arrays if isinstance(arrays, tuple) else (arrays,)
        return call.built(found)

    def run_into(self, inputs: Sequence[Any], outputs: Sequence[Any], *, stream: Any = None) -> None:
        """As of :class:`Module`, also with tensors: the leaves of arguments and results in order."""
        super().run_into(self._readable(inputs), self._readable(outputs, "output"), stream=stream)

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """As of :class:`Module`, with the arguments of the network; of tensors on a GPU, copies."""
        given = [v.cpu() if isinstance(v, self._tensor) else v for v in self._call.flat(args, kwargs)]
        return super().profile(*self._readable(given), repeat=repeat)


def _structure_text(spec: Any) -> str:
    return " ".join(str(spec).split())
