"""Attention of PyTorch on GPUs: one launch, which reads no mask, computes no hidden block, copies no heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import burnish as bn
from burnish.driver.compilation import compile_kernels
from burnish.kernels.gpu.attention_form import attention
from burnish.kernels.task import KernelTask
from burnish.machines.target import target
from burnish.pipeline.kernel import outline
from burnish.simulators.gpu.emulator import GridEmulator, emulated
from tests.gpu.attentions import attended
from tests.gpu.cases import check
from tests.marks import slow_except

attend = torch.nn.functional.scaled_dot_product_attention
H100 = target("cuda:sm_90a")


def window(q: Any, k: Any, v: Any) -> Any:
    """A sliding window of 32 keys."""
    row, column = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    return attend(q, k, v, attn_mask=(column <= row) & (column > row - 32))


def across(q: Any, k: Any, v: Any) -> Any:
    """Keys that are stored with the tokens next to each other."""
    return torch.softmax(q @ k.transpose(-1, -2).contiguous() / 8, -1) @ v


FORMS: dict[str, tuple[Callable[..., Any], tuple[int, int, int], str]] = {
    "causal": (lambda q, k, v: attend(q, k, v, is_causal=True), (4, 4, 96), "tensor_attention"),
    "window": (window, (4, 4, 96), "tensor_attention"),
    "grouped": (lambda q, k, v: attend(q, k, v, enable_gqa=True), (4, 2, 96), "tensor_attention"),
    "across": (across, (4, 4, 96), "tensor_attention"),
    "decoded": (lambda q, k, v: attend(q[:, :, :1], k, v, enable_gqa=True), (4, 2, 96), "attention"),
}


class Called(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A function as a network."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return self.function(q, k, v)


def operands(name: str, dtype: Any, width: int = 32) -> tuple[Any, ...]:
    """Queries, keys and values of a form."""
    torch.manual_seed(0)
    heads, shared, tokens = FORMS[name][1]
    return tuple(torch.randn(1, h, tokens, width, dtype=dtype) for h in (heads, shared, shared))


@pytest.mark.parametrize("name", FORMS)
def test_attention_is_one_kernel_of_its_operands(name: str) -> None:
    from burnish.frontend.torch.export import import_torch

    found: list[tuple[KernelTask, str]] = []

    def made(task: KernelTask, machine: Any, store: Any, recipe: Any = None) -> Any:
        kernel = outline(task, machine, None, recipe)
        found.append((task, kernel.template))
        return kernel

    graph = import_torch(Called(FORMS[name][0]), operands(name, torch.float16, 64)).graph
    compile_kernels(graph, H100, make=made)
    attentions = [(task, template) for task, template in found if "attention" in template]
    assert len(attentions) == 1 and len(found) == 1
    task, template = attentions[0]
    assert template == FORMS[name][2] and len(task.inputs) == 3  # queries, keys, values
    form = attention(task)
    assert form is not None and form.sizes[:2] == ((2, 2) if name == "decoded" else (4, 96))  # heads that share keys


@pytest.mark.parametrize("name", slow_except(FORMS, "causal", "decoded"))
def test_attention_of_pytorch_is_right(name: str) -> None:
    given = operands(name, torch.float16)
    module = bn.compile(Called(FORMS[name][0]), given, target=emulated(target("cuda:sm_80")))
    wanted = FORMS[name][0](*(t.double() for t in given)).numpy()
    np.testing.assert_allclose(np.asarray(module(*given), np.float64), wanted, atol=4e-3 * np.abs(wanted).max())


def test_hidden_blocks_of_float32_are_not_loaded() -> None:
    seen, whole = (
        check(attended(64, 64, 8, heads=1, causal=causal, warps=2, rows_=4, splits=1)).global_load_bytes
        for causal in (True, False)
    )
    queries, block = 4 * 64 * 8, 2 * 4 * 32 * 8  # bytes; a block of 32 keys and values
    assert whole == queries + 8 * 2 * block and seen == queries + (4 * 1 + 4 * 2) * block


def padding(q: Any, k: Any, v: Any, shown: Any) -> Any:
    """Sequences of several lengths in a batch."""
    return attend(q, k, v, attn_mask=shown[:, None, None])


class Padded(Called):
    """A function of queries, keys and values, and of which keys there are."""

    def forward(self, q: Any, k: Any, v: Any, shown: Any) -> Any:  # type: ignore[override]
        return self.function(q, k, v, shown)


class Encoder(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Attention of two heads as exports of BERT have it: behind a normalization, with numbers added to hide keys."""

    def __init__(self, hidden: float, width: int = 32) -> None:
        super().__init__()
        self.hidden, self.rows = hidden, 16
        self.norm = torch.nn.LayerNorm(width)
        self.q, self.k, self.v = (torch.nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Any, shown: Any) -> Any:
        x = self.norm(x)
        rows = self.q(x[:, : self.rows]), self.k(x), self.v(x)
        q, k, v = (y.view(*y.shape[:2], 2, -1).transpose(1, 2) for y in rows)
        mask = (1.0 - shown[:, None, None, :].to(x.dtype)) * self.hidden
        return torch.softmax(q @ k.transpose(-1, -2) / 4.0 + mask, -1) @ v


LOWEST = float(torch.finfo(torch.float16).min)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [-10000.0, pytest.param(LOWEST, marks=pytest.mark.slow)])
def test_keys_that_ten_thousand_hides_are_not_loaded(hidden: float) -> None:
    torch.manual_seed(0)
    net, x, place = Encoder(hidden).half(), torch.randn(2, 96, 32, dtype=torch.float16), torch.arange(96)
    own, emulator = target("cuda:sm_80"), GridEmulator()
    own = replace(own, machine=own.machine.with_(device=lambda: emulator))
    module = bn.compile(net, (x, torch.ones(2, 96, dtype=torch.int64)), target=own)
    assert sum("attention" in row["template"] for row in module.info["kernels"]) == 1
    exact, loaded = Encoder(hidden).double(), []
    exact.load_state_dict(net.state_dict())
    for lengths in ([96, 96], [33, 20]):
        shown = (place[None] < torch.tensor(lengths)[:, None]).long()
        before = emulator.counts.global_load_bytes
        found = np.asarray(module(x, shown), np.float64)
        loaded.append(emulator.counts.global_load_bytes - before)
        np.testing.assert_allclose(found, exact(x.double(), shown).detach().numpy(), atol=4e-3)
    assert loaded[0] > loaded[1]


SLOW = [
    pytest.param(rows, machine, marks=pytest.mark.slow) for rows, machine in ((32, "cuda:sm_80"), (64, "cuda:sm_90a"))
]


@pytest.mark.parametrize(("rows", "machine"), [(1, "cuda:sm_80"), *SLOW])
def test_keys_behind_the_end_of_a_sequence_are_not_loaded(rows: int, machine: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 1, n, 32, dtype=torch.float16) for n in (rows, 160, 160))
    place, emulator = torch.arange(160), GridEmulator()
    own = target(machine)
    own = replace(own, machine=own.machine.with_(device=lambda: emulator))
    module = bn.compile(Padded(padding), (q, k, v, place[None] < torch.tensor([[9], [9]])), target=own)
    loaded = []
    for lengths in ([160, 160], [160, 20], [33, 20]):
        shown = place[None] < torch.tensor(lengths)[:, None]
        before = emulator.counts.global_load_bytes
        found = np.asarray(module(q, k, v, shown), np.float64)
        loaded.append(emulator.counts.global_load_bytes - before)
        wanted = padding(*(t.double() for t in (q, k, v)), shown).numpy()
        np.testing.assert_allclose(found, wanted, atol=4e-3)
    assert loaded[0] > loaded[1] > loaded[2]
