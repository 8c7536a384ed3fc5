"""Layers of transformers on GPUs: launches of each, what tensor cores do of it, right results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import burnish as bn
from burnish.driver.compilation import compile_kernels
from burnish.graph.passes import optimize
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import first_match
from burnish.lower.threads import launches
from burnish.machines.target import target
from burnish.pipeline.kernel import outline
from burnish.simulators.gpu.emulator import emulated
from tests.marks import slow

functional, nn = torch.nn.functional, torch.nn
H100 = target("cuda:sm_90a")
TENSOR = ("tensor_product", "warpgroup_product", "split_product", "tensor_attention", "warpgroup_attention")


class Layer(nn.Module):  # type: ignore[misc, name-defined]
    """A layer of BERT, whose norms are behind, or of GPT: causal, norms in front."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attended(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        q, k, v = (f(x).view(batch, tokens, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x: Any) -> Any:
        if self.causal:
            x = x + self.attended(self.first(x))
            return x + self.narrow(functional.gelu(self.wide(self.second(x))))
        x = self.first(x + self.attended(x))
        return self.second(x + self.narrow(functional.gelu(self.wide(x))))


def kernels(layer: Any, x: Any) -> list[tuple[str, int]]:
    """Template and launches of each kernel."""
    from burnish.frontend.torch.export import import_torch

    found: list[tuple[str, int]] = []

    def made(task: KernelTask, machine: Any, store: Any, recipe: Any = None) -> Any:
        match = first_match(task, machine)
        program = match.apply(match.space.default).program
        found.append((match.name, len(launches(program, machine.machine).launches)))
        return outline(task, machine, None, recipe)

    compile_kernels(import_torch(layer, (x,)).graph, H100, make=made)
    return found


@pytest.mark.parametrize(
    ("causal", "tokens", "dtype"),
    [pytest.param(False, 128, torch.float16, marks=pytest.mark.slow), (True, 512, torch.bfloat16)],
)
def test_a_layer_is_seven_kernels(causal: bool, tokens: int, dtype: Any) -> None:
    """Queries, keys and values; attention; its output and the sum; two norms; two products, of which one is split.

    Inductor has ten or more: three products, attention, four products and norms with what is element-wise, activation.
    """
    found = kernels(Layer(768, 12, causal).to(dtype).eval(), torch.zeros(1, tokens, 768, dtype=dtype))
    names = [name for name, _ in found]
    assert sum(name in TENSOR for name in names) == 5 and names.count("rows") == 2 and len(names) == 7
    assert sum(count for _, count in found) <= 8


def test_queries_keys_and_values_are_one_product_on_grids_alone() -> None:
    from burnish.frontend.torch.export import import_torch

    graph = import_torch(Layer(64, 2, False).eval(), (torch.zeros(1, 16, 64),)).graph
    counts = [
        sum(node.op == "matmul" for node in optimize(graph, target=machine).nodes) for machine in (H100, target("cpu"))
    ]
    assert counts[0] == counts[1] - 2
    wide = import_torch(Layer(64, 2, False).eval(), (torch.zeros(600, 16, 64),)).graph  # fills the machine as it is
    assert sum(node.op == "matmul" for node in optimize(wide, target=H100).nodes) == counts[1]


@pytest.mark.parametrize("causal", slow([False, True], False))
def test_a_small_layer_is_right(causal: bool) -> None:
    torch.manual_seed(0)
    layer, x = Layer(32, 2, causal).half().eval(), torch.randn(1, 20, 32, dtype=torch.float16)
    found = np.asarray(bn.compile(layer, (x,), target=emulated(target("cuda:sm_80")))(x), np.float64)
    wanted = layer.double()(x.double()).detach().numpy()
    np.testing.assert_allclose(found, wanted, atol=6e-3)
