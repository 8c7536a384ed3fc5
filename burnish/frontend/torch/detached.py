"""Regions without gradients of PyTorch (``torch.no_grad``): decompositions inline them, and forget what they were."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def detached_regions(program: Any) -> Iterator[None]:
    """The exported program with the results of its regions without gradients detached; then as it was."""
    import torch

    graph, added = program.graph, []
    region = torch.ops.higher_order.wrap_with_set_grad_enabled
    found = [n for n in graph.nodes if n.target is region and not n.args[0]]
    results = [user for node in found for user in node.users if user.target is operator.getitem]
    try:
        for result in results:
            readers = [*result.users]
            with graph.inserting_after(result):
                detached = graph.call_function(torch.ops.aten.detach.default, (result,))
            detached.meta.update(result.meta)
            for reader in readers:
                reader.replace_input_with(result, detached)
            added.append((result, detached))
        yield
    finally:
        for result, detached in added:
            detached.replace_all_uses_with(result)
            graph.erase_node(detached)
