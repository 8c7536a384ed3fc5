"""Resident memory of a training step in a process of its own, against what was planned, and PyTorch's memory budget.

`measured(path)` starts a process that loads a compiled step and calls it once: what the process grows by should be the
arena. `budgeted(name, share)` starts one in which PyTorch trains the same network with
`torch._functorch.config.activation_memory_budget = share`; it counts the bytes that are saved for the backward pass,
and what the process grows by. A share is one of what is saved without a budget.

`python -m benchmarks.resident step FILE | torch NAME SHARE` is what these processes run; it prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import burnish as bn
from benchmarks.memory_networks import NETWORKS, Network, Residual

SECONDS = 1200.0  # of one process


def measured(path: Path) -> dict[str, Any]:
    """Bytes of a saved step's process: before the first call, how much more at the most, and the arena it has."""
    return _started("step", str(path))


def budgeted(name: str, share: float) -> dict[str, Any]:
    """Bytes of PyTorch's step with a budget: saved for the backward pass, and by how much the process grew."""
    return _started("torch", name, str(share))


def _started(*arguments: str) -> dict[str, Any]:
    # Blocks of 64 KB and more are maps of their own, which are given back when they are freed.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(64 << 10), "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-m", "benchmarks.resident", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- in the process ---


def resident(field: str) -> int:
    """Bytes of this process that are in memory: now ("VmRSS"), or the most so far ("VmHWM")."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split(f"{field}:")[1].split()[0]) << 10


def forget_peak() -> None:
    """Makes the most so far what is now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def step(path: str) -> dict[str, Any]:
    """One call of a saved step. What it reads, and what it keeps, was touched before."""
    module = bn.load(path, threads=1)
    r = np.random.default_rng(0)
    given = [
        r.standard_normal(s.shape).astype(s.dtype) if s.dtype == "float32" else r.integers(0, 1000, s.shape)
        for s in module.inputs
    ]
    for array in module.state.values():
        array.sum()
    forget_peak()
    before = resident("VmRSS")
    module(*given)
    return {"before": before, "growth": resident("VmHWM") - before, "arena": module.memory["arena"]}


def torch_step(name: str, share: float) -> dict[str, Any]:
    """A step of PyTorch behind one that compiles. Weights and gradients are there before."""
    import torch
    import torch._functorch.config as functorch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = NETWORKS[name]
    net = torch_network(network)
    functorch.activation_memory_budget = share
    compiled = torch.compile(net, backend="aot_eager")  # partitioned by the budget, then run by PyTorch's kernels
    images, labels = torch.randn(*network.shape), torch.randint(0, network.classes, network.shape[:1])
    kept = {t.untyped_storage().data_ptr() for t in (*net.parameters(), *net.buffers(), images, labels)}
    saved: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in kept:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def call() -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = torch.nn.functional.cross_entropy(compiled(images), labels)
        loss.backward()

    call()
    for p in net.parameters():
        p.grad.zero_()
    saved.clear()
    forget_peak()
    before = resident("VmRSS")
    call()
    return {"before": before, "growth": resident("VmHWM") - before, "saved": sum(saved.values())}


def torch_network(network: Network) -> Any:
    """The network for PyTorch, in training."""
    import torch
    from torch import nn

    if not isinstance(network.form, Residual):
        layers: list[Any] = []
        for _ in range(network.form):
            layers += [nn.Linear(network.shape[1], network.shape[1], bias=False), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(network.shape[1], network.classes, bias=False))
    form = network.form

    def conv(inputs: int, channels: int, kernel: int, stride: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(inputs, channels, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(channels)
        )

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            channels = width * form.expansion
            if form.bottleneck:
                parts = [(inputs, width, 1, 1), (width, width, 3, stride), (width, channels, 1, 1)]
            else:
                parts = [(inputs, width, 3, stride), (width, width, 3, 1)]
            self.parts = nn.ModuleList(conv(*part) for part in parts)
            same = stride == 1 and inputs == channels
            self.shortcut = nn.Identity() if same else conv(inputs, channels, 1, stride)

        def forward(self, x: Any) -> Any:
            y = x
            for number, part in enumerate(self.parts):
                y = part(y) if number == len(self.parts) - 1 else torch.relu(part(y))
            return torch.relu(y + self.shortcut(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = conv(3, form.width, 7, 2)
            self.blocks, inputs = nn.ModuleList(), form.width
            for stage, count in enumerate(form.blocks):
                for number in range(count):
                    self.blocks.append(Block(inputs, form.width << stage, 2 if stage and not number else 1))
                    inputs = (form.width << stage) * form.expansion
            self.head = nn.Linear(inputs, form.classes)

        def forward(self, x: Any) -> Any:
            x = nn.functional.max_pool2d(torch.relu(self.stem(x)), 3, 2, 1)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean((2, 3)))

    return Net()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("step", "torch"))
    parser.add_argument("name", help="a file, or a network: " + ", ".join(NETWORKS))
    parser.add_argument("share", type=float, nargs="?", default=1.0)
    args = parser.parse_args()
    print(json.dumps(step(args.name) if args.what == "step" else torch_step(args.name, args.share)))


if __name__ == "__main__":
    main()
