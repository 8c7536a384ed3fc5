"""Compiled nn.Module: called as the network is, with tensors or arrays, which are not copied on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.errors import InputError
from burnish.frontend.torch.dtypes import to_numpy, to_torch
from burnish.frontend.torch.export import Signature
from burnish.runtime.module import Module


class TorchModule(Module):
    """A :class:`Module` that takes the arguments of the network that it was compiled from and gives results of the same
    structure: tensors if any argument is a tensor, else arrays.

    What ``save`` writes is loaded as a plain :class:`Module`, without torch: the leaves of arguments and results in
    order.
    """

    _signature: Signature

    @classmethod
    def of(cls, module: Module, signature: Signature) -> TorchModule:
        """The compiled ``module``, called as ``signature`` says; it shares code and parameters."""
        made = object.__new__(cls)
        made._externs, made._comm = module._externs, module._comm
        made._set_up(module.executable, module._pool, module._code, module._params, module._state_bytes)
        made._called_as(signature)
        return made

    def __copy__(self) -> TorchModule:
        return self.of(self, self._signature)

    def _called_as(self, signature: Signature) -> None:
        import torch
        from torch.utils import _pytree

        self._signature, self._tensor, self._tree = signature, torch.Tensor, _pytree
        positional, named = signature.in_spec.children()
        leaves = [*positional.children(), *named.children()]
        plain = all(leaf.is_leaf() for leaf in leaves) and all(number >= 0 for number, _ in signature.inputs)
        self._leaves = len(leaves) if plain and not named.num_children else -1  # of arguments that are just tensors
        out = signature.out_spec
        each = [number for number, _ in signature.outputs] == list(range(len(self.outputs)))
        self._as_it_is = each and (out.is_leaf() or (out.type is tuple and len(self.outputs) > 1 and out.num_children
                                                     == out.num_leaves))  # fmt: skip

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The network's result, its tensors new. Raises InputError for arguments unlike those it was compiled for."""
        if kwargs or len(args) != self._leaves:
            args = self._flat(args, kwargs)
        tensor, tensors = self._tensor, False
        arrays = []
        for value in args:
            if isinstance(value, tensor):
                tensors = True
                try:
                    value = value.detach().numpy()
                except (TypeError, RuntimeError):
                    value = to_numpy(value, f"input '{self.inputs[len(arrays)].name}'")
            arrays.append(value)
        found = super().__call__(*arrays)
        if tensors:
            found = tuple(map(to_torch, found)) if isinstance(found, tuple) else to_torch(found)
        return found if self._as_it_is else self._built(found)

    def _flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The leaves of the arguments that are the graph's inputs, in order. Raises InputError."""
        signature = self._signature
        leaves, spec = self._tree.tree_flatten((tuple(args), dict(kwargs)))
        if spec != signature.in_spec:
            leaves, spec = self._tree.tree_flatten(self._as_in_example(args, kwargs))
        if spec != signature.in_spec:
            raise InputError(f"arguments: found the structure {_told(spec)}; allowed: {_told(signature.in_spec)}")
        given = []
        for leaf, (number, example) in zip(leaves, signature.inputs, strict=True):
            if number >= 0:
                given.append(leaf)
            elif leaf is not example and leaf != example:
                raise InputError(f"arguments: found {leaf!r}; allowed: {example!r}, for which the model was compiled")
        return tuple(given)

    def _as_in_example(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments by position and by name as the example had them. Raises InputError."""
        names, positional = self._signature.names, self._signature.positional
        bound = dict(zip(names, args, strict=False))
        twice, unknown = sorted(bound.keys() & kwargs.keys()), sorted(kwargs.keys() - set(names))
        bound.update(kwargs)
        missing = [name for name in names if name not in bound]
        if twice or unknown or missing or len(args) > len(names):
            found = f"{len(args)} by position and {sorted(kwargs)} by name"
            raise InputError(f"arguments: found {found}; allowed: {', '.join(names)}, as in the example inputs")
        return tuple(bound[n] for n in names[:positional]), {n: bound[n] for n in names[positional:]}

    def _built(self, found: Any) -> Any:
        """The result's structure from the graph's outputs."""
        results = found if isinstance(found, tuple) else (found,)
        leaves = [results[number] if number >= 0 else value for number, value in self._signature.outputs]
        return self._tree.tree_unflatten(leaves, self._signature.out_spec)


def _told(spec: Any) -> str:
    return " ".join(str(spec).split())
