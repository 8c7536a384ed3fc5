"""Training through torch.compile: what AOT autograd's joint graph is decomposed into, and how it is parted.

The forward and the backward graph are compiled like graphs of inference, but parameters are their inputs: optimizers
change them at every step.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from burnish.frontend.torch.backward import POOL_BACKWARD
from burnish.frontend.torch.program import TRANSLATORS, operator_name

# Operators whose further results the backward graph reads, which translations do not give, and that are no core ATen.
_DECOMPOSED = (
    "native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "native_group_norm", "log_sigmoid_forward",
)  # fmt: skip


@cache
def decompositions() -> dict[Any, Any]:
    """The decompositions of a training graph: torch's to core ATen, but for what is translated."""
    from torch import ops
    from torch._decomp import core_aten_decompositions, get_decompositions

    table = {op: rule for op, rule in core_aten_decompositions().items() if operator_name(op) not in TRANSLATORS}
    table.update(get_decompositions([getattr(ops.aten, name) for name in _DECOMPOSED]))
    return table


def partition(joint: Any, inputs: Any, **arguments: Any) -> tuple[Any, Any]:
    """The forward and the backward graph of a joint one, which keeps least between them (Chen et al. 2016; min cut).

    Views and element-wise operators are computed again rather than kept. A pool's gradient reads its input, instead of
    indices that nothing else needs.
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    _register()
    _without_indices(joint)
    return min_cut_rematerialization_partition(joint, inputs, **arguments)


def _without_indices(joint: Any) -> None:
    from torch import ops

    replaced = ops.aten.max_pool2d_with_indices_backward.default
    by_input = ops.burnish.max_pool2d_backward.default
    for node in [*joint.graph.nodes]:
        if node.op == "call_function" and node.target is replaced:
            with joint.graph.inserting_before(node):
                made = joint.graph.call_function(by_input, tuple(node.args[:7]))
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)
            joint.graph.erase_node(node)
    joint.graph.eliminate_dead_code()
    joint.recompile()


@cache
def _register() -> Any:
    """Makes the operator known to torch, which runs it where a graph cannot be compiled."""
    import torch

    aten = torch.ops.aten

    def by_input(grad: Any, x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
        arguments = (kernel_size, stride, padding, dilation, ceil_mode)
        _, indices = aten.max_pool2d_with_indices(x, *arguments)
        return aten.max_pool2d_with_indices_backward(grad, x, *arguments, indices)

    library = torch.library.Library(POOL_BACKWARD.partition(":")[0], "FRAGMENT")
    sizes = ", ".join(f"SymInt[] {name}" for name in ("kernel_size", "stride", "padding", "dilation"))
    library.define(
        f"{POOL_BACKWARD.rpartition(':')[2]}(Tensor grad_output, Tensor self, {sizes}, bool ceil_mode) -> Tensor"
    )
    library.impl(POOL_BACKWARD.rpartition(":")[2], by_input, "CompositeExplicitAutograd")
    return library  # which ends its operators when it is collected
