"""Launches of a model on a GPU, counted without one: kernels, their launches, and the work that tensor cores do.

`counted(found)` is given to ``compile_kernels`` as its ``make``: every task is scheduled by its first template and
lowered to launches, but no code is made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from burnish.base.cache import ObjectCache
from burnish.driver.compilation import Compilation
from burnish.errors import ScheduleError
from burnish.kernels.task import KernelTask
from burnish.loops.contraction import is_sum_of_products
from burnish.loops.expr import Reduce
from burnish.loops.program import Intrinsic, walk_stmt
from burnish.lower.threads import launches
from burnish.machines.target import Target
from burnish.pipeline import kernel as kernels


@dataclass(frozen=True)
class KernelWork:
    """A kernel's template, launches, floating-point operations of products, and whether tensor cores do these."""

    template: str
    launches: int
    flops: float
    tensor: bool


@dataclass(frozen=True)
class LaunchTotals:
    """All kernels of a model: how many, their launches, operations of products, and the share of tensor cores."""

    kernels: int
    launches: int
    gflops: float
    tensor: float
    in_python: int


def counted(found: dict[str, KernelWork]) -> Callable[..., kernels.CompiledKernel]:
    """What makes a kernel of a task without its code, and notes in ``found`` what it does, by its symbol."""

    def make(task: KernelTask, target: Target, store: ObjectCache | None, recipe: Any = None) -> kernels.CompiledKernel:
        del store, recipe
        own = kernels.named(task, kernels.task_key(task, target))
        for match in kernels.matches(own.hinted, target):
            try:
                schedule, trace, choice = kernels.scheduled_program(match, own, None)
            except ScheduleError:
                continue
            program = getattr(schedule, "program", schedule)
            grids = launches(program, target.machine).launches
            nodes = (s for launch in grids for s in walk_stmt(launch.body))
            tensor = any(isinstance(s, Intrinsic) and "mma" in s.name for s in nodes)
            found[own.name] = KernelWork(match.name, len(grids), _product_flops(own), tensor)
            return kernels.CompiledKernel(own.name, b"", 0, kernels.packing(trace, own), match.name, choice)
        raise ScheduleError(f"task '{own.name}': no template can schedule it")

    return make


def totals(made: Compilation, found: dict[str, KernelWork]) -> LaunchTotals:
    """Sums over the kernel calls of a compilation."""
    rows = [found[stage.kernel.symbol] for stage in made.stages]
    flops = sum(row.flops for row in rows)
    tensor = sum(row.flops for row in rows if row.tensor)
    launched = sum(row.launches for row in rows)
    return LaunchTotals(len(rows), launched, flops / 1e9, tensor / max(flops, 1.0), len(made.hosts))


def _product_flops(task: KernelTask) -> float:
    """Two for each term of the task's sums of products."""
    found = 0.0
    for t in task.stages():
        if isinstance(t.body, Reduce) and is_sum_of_products(t):
            found += 2.0 * prod(t.shape) * prod(a.extent for a in t.body.axes)
    return found


NAMES = ("gpt", "bert", "resnet18")


def training_steps(name: str, layers: int, precision: str | None) -> LaunchTotals:
    """Totals of a step of training on an H100: a GPT of 768 and a BERT of 768 with so many layers, by AdamW, 16 times
    512 and 64 times 128 tokens; ResNet-18 by SGD, 64 images.
    """
    import torch

    import burnish as bn
    from benchmarks import networks
    from benchmarks.architectures.trained import Gpt
    from burnish.driver.compilation import compile_kernels
    from burnish.frontend.torch.export import import_torch
    from burnish.graph.row_attention import gather_attention
    from burnish.machines.target import target
    from burnish.train.step import training_graph

    torch.manual_seed(0)
    if name == "gpt":
        net, x = Gpt(8192, 512, 768, layers, 12), torch.zeros(16, 512, dtype=torch.int64)
    elif name == "bert":
        encoder = (networks.EncoderLayer(768, 12, 3072) for _ in range(layers))
        net, x = torch.nn.Sequential(*encoder, torch.nn.Linear(768, 2)), torch.zeros(64, 128, 768)
    else:
        net, x = networks.resnet18(), torch.zeros(64, 3, 224, 224)
    found = import_torch(net.train(), (x,), training=True)
    optimizer = bn.SGD(0.1, momentum=0.9) if name == "resnet18" else bn.AdamW(1e-3)
    recipe = bn.Train(optimizer=optimizer, precision=precision, parameters=tuple(found.parameters))
    noted: dict[str, KernelWork] = {}
    step = training_graph(gather_attention(found.graph), recipe)
    return totals(compile_kernels(step, target("cuda:sm_90a"), make=counted(noted)), noted)


def main() -> None:
    """Prints a table of steps of training."""
    for name in NAMES:
        for precision in ("bfloat16", None):
            print(name, precision or "float32", training_steps(name, 4, precision), flush=True)


if __name__ == "__main__":
    main()
