"""A decode step: keys and values are states that are written in place, a layer is few launches, nothing is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import burnish as bn
from burnish.driver.compilation import compile_kernels
from burnish.driver.stages import KernelStage
from burnish.frontend.torch.export import import_torch
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import GraphBuilder
from burnish.machines.target import target
from burnish.runtime.executable import KernelCall
from burnish.simulators.gpu.emulator import emulated
from tests.marks import slow
from tools.launches import counted

nn = torch.nn

A_LAYER = 7  # four products, two of which compute norms, caches and scales together, attention and the sum of its parts


class Layer(nn.Module):
    """Attention to what is in the cache, in which a token is written, and a feed-forward network."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, heads, longest, width // heads))

    def forward(self, x: Any, place: Any, mask: Any) -> Any:
        own = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (t.view(1, 1, self.heads, -1).transpose(1, 2) for t in own)
        self.keys.index_copy_(2, place, k)
        self.values[:, :, place] = v
        mixed = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, -1))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """A token and its place to the logits of the next one."""

    def __init__(self, layers: int, width: int, heads: int, longest: int, words: int) -> None:
        super().__init__()
        self.longest, self.tokens, self.places = longest, nn.Embedding(words, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Layer(width, heads, longest) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, token: Any, place: Any) -> Any:
        mask = (torch.arange(self.longest) <= place)[None, None, None]
        x = self.tokens(token) + self.places(place)
        for layer in self.layers:
            x = layer(x, place, mask)
        return self.head(self.norm(x))[0, 0]


def given(token: int, place: int) -> tuple[Any, Any]:
    return torch.tensor([[token]]), torch.tensor([place])


def test_tokens_one_after_another_are_torchs_and_caches_are_written_in_place() -> None:
    torch.manual_seed(0)
    net = Decoder(2, 16, 2, 8, 24).eval()
    module = bn.compile(net, given(1, 0), target=emulated(target("cuda:sm_90a")))
    steps = module.executable.steps
    assert all(isinstance(step, KernelCall) for step in steps), "nothing is copied, nothing is done in Python"
    used = [row["template"] for row in module.executable.info["kernels"]]
    assert "rows" not in used, "norms are part of products"
    caches = {i for i, spec in enumerate(module.executable.states) if "keys" in spec.name or "values" in spec.name}
    written = [{s.index for s in step.args if s.memory == "state"} & caches for step in steps]
    assert len(caches) == 4 and sum(len(w) == 2 for w in written) >= 2
    with torch.inference_mode():
        for place, token in enumerate((3, 1, 4)):
            np.testing.assert_allclose(module(*given(token, place)), net(*given(token, place)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", slow(["float32", "bfloat16"], "float32"))
def test_a_layer_is_few_launches(dtype: str) -> None:
    """As many as inductor makes of it, or fewer, at the size of GPT-2: 768 wide, 512 tokens before."""
    machine, found = target("cuda:sm_90a"), []
    for layers in (1, 3):
        net = Decoder(layers, 768, 12, 512, 256).eval().to(getattr(torch, dtype))
        made = compile_kernels(import_torch(net, given(1, 0)).graph, machine, make=counted(kernels := {}))
        assert all(isinstance(stage, KernelStage) for stage in made.computed)
        found.append(sum(kernels[stage.kernel.symbol].launches for stage in made.stages))
    assert (found[1] - found[0]) / 2 <= A_LAYER


@pytest.mark.parametrize(("rows", "transposed", "count"), [(1, False, 1), (3, True, 1), (5, True, 2)])
def test_few_normalized_rows_are_part_of_their_product(rows: int, transposed: bool, count: int) -> None:
    """By every block for itself; more rows are a kernel of their own."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    arrays = [rng.standard_normal(s).astype("f4") for s in ((72,), (72,), (40, 72) if transposed else (72, 40), (40,))]
    x, (scale, shift, matrix, bias) = b.input("x", (rows, 72)), map(b.constant, arrays)
    y = b.add("matmul", b.add("layer_norm", x, scale, shift), matrix, transpose_b=transposed)
    graph = b.build(b.add("relu", b.add("add", y, bias)))
    module = bn.compile(graph, target=emulated(target("cuda:sm_80")))
    assert len(module.executable.steps) == count
    given = rng.standard_normal((rows, 72)).astype("f4")
    (wanted,) = evaluate(graph, {"x": given}).values()
    np.testing.assert_allclose(module(given), wanted, rtol=1e-4, atol=1e-4)
