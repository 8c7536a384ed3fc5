"""Live memory of PyTorch on a CPU: bytes of the storages that operators make, until they are collected."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def live_bytes() -> Iterator[list[int]]:
    """The greatest number of bytes of storages, made while it lasts, that are live at once; in a list of one."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    peak, live = [0], [0]
    known: dict[int, Any] = {}

    def tensors(tree: Any) -> list[Any]:
        return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]

    class Counting(TorchDispatchMode):
        """Counts the storages of results until they are collected."""

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = {t.untyped_storage()._cdata for t in tensors((args, kwargs))}
            result = function(*args, **(kwargs or {}))
            for tensor in tensors(result):
                storage = tensor.untyped_storage()
                if storage._cdata not in given:  # else a view, or the argument itself
                    self._count(storage)
            return result

        def _count(self, storage: Any) -> None:
            key = storage._cdata
            if key in known:
                return
            nbytes = storage.nbytes()

            def gone(_: Any) -> None:
                live[0] -= nbytes
                del known[key]

            known[key] = weakref.ref(storage, gone)
            live[0] += nbytes
            peak[0] = max(peak[0], live[0])

    with Counting():
        yield peak
