"""Launches of a model on a GPU, counted without one: kernels, their launches, and the work that tensor cores do.

`counted(found)` is given to ``compile_kernels`` as its ``make``: every task is scheduled by its first template and
lowered to launches; code is made of it only where ``assembled`` asks for its registers.

`python -m tools.launches [--layers N] [--target cuda:sm_90a] [--assembled]` prints steps of training, `--networks
[--dtype float16] [--batch N]` networks, and `--inductor` the kernels of torch.compile; all need torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from burnish.base.cache import ObjectCache
from burnish.codegen.grid import compile_grid
from burnish.driver.compilation import Compilation
from burnish.errors import ScheduleError
from burnish.kernels.task import KernelTask
from burnish.loops.contraction import contraction
from burnish.loops.program import Intrinsic, LoopProgram, walk_stmt
from burnish.lower.threads import launches
from burnish.machines.nvptx.occupancy import occupancy
from burnish.machines.target import Target
from burnish.pipeline import kernel as kernels


@dataclass(frozen=True)
class KernelWork:
    """A kernel's template, launches, floating-point operations of products, whether tensor cores do these, the bytes of
    its parameters; where it was assembled, ``registers`` of a thread, at most, bytes that are ``spilled``, and the
    least ``occupancy`` of its launches.
    """

    template: str
    launches: int
    flops: float
    tensor: bool
    nbytes: int = 0
    registers: int = 0
    spilled: int = 0
    occupancy: float = 1.0


@dataclass(frozen=True)
class LaunchTotals:
    """All kernels of a model: how many, their launches, operations of products, and the share of tensor cores; the
    bytes of all parameters, and what was assembled, see :class:`KernelWork`, with ``occupancy`` that of the products.
    """

    kernels: int
    launches: int
    gflops: float
    tensor: float
    in_python: int
    megabytes: float = 0.0
    registers: int = 0
    spilled: int = 0
    occupancy: float = 1.0


def counted(found: dict[str, KernelWork], assembled: bool = False) -> Callable[..., kernels.CompiledKernel]:
    """Kernel compiler that counts instead: notes the work of each task's kernel in ``found``, by its symbol, and
    generates code only of those to be ``assembled``.
    """

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
            nbytes = sum(t.buffer.nbytes for t in (*own.inputs, *own.outputs))
            work = KernelWork(match.name, len(grids), _product_flops(own), tensor, nbytes)
            if own.name not in found:  # kernels of equal layers are one
                found[own.name] = _with_resources(work, program, target) if assembled else work
            return kernels.CompiledKernel(own.name, b"", 0, kernels.packing(trace, own), match.name, choice)
        raise ScheduleError(f"task '{own.name}': no template can schedule it")

    return make


def totals(made: Compilation, found: dict[str, KernelWork]) -> LaunchTotals:
    """Sums over the kernel calls of a compilation."""
    rows = [found[stage.kernel.symbol] for stage in made.stages]
    flops = sum(row.flops for row in rows)
    tensor = sum(row.flops for row in rows if row.tensor)
    launched = sum(row.launches for row in rows)
    return LaunchTotals(
        len(rows), launched, flops / 1e9, tensor / max(flops, 1.0), len(made.hosts),
        sum(row.nbytes for row in rows) / 1e6, max((row.registers for row in rows), default=0),
        sum(row.spilled for row in rows), min((row.occupancy for row in rows if row.tensor), default=1.0),
    )  # fmt: skip


def _with_resources(work: KernelWork, program: LoopProgram, target: Target) -> KernelWork:
    """Resources of a kernel as reported by ptxas, where it is installed."""
    for launch in compile_grid(program, target).launches:
        used = launch.resources
        if used is not None:
            share = occupancy(target.cpu, prod(launch.block), used.registers, used.shared + launch.dynamic)
            work = replace(
                work, registers=max(work.registers, used.registers), spilled=work.spilled + used.spilled,
                occupancy=min(work.occupancy, share),
            )  # fmt: skip
    return work


def _product_flops(task: KernelTask) -> float:
    """Two for each term of the task's products of matrices: of depthwise convolutions there are none, since no two
    outputs of theirs share a row of one factor and differ in the other.
    """
    found = 0.0
    for t in task.stages():
        product = contraction(t)
        if product is None:
            continue
        axes = {v.name for v in t.axes}
        first, second = (axes & f.variables for f in product.factors)
        if first - second and second - first:
            found += 2.0 * prod(t.shape) * product.depth
    return found


NAMES = ("gpt", "bert", "resnet18")
NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "bert_base", "gpt")


def built(name: str, dtype: str, batch: int) -> tuple[Any, Any]:
    """Module and input of a benchmark network, or of the GPT of :func:`training_steps`, its weights of ``dtype``."""
    import numpy as np
    import torch

    from benchmarks import models
    from benchmarks.architectures.trained import Gpt

    module: Any
    if name == "gpt":
        module, x = Gpt(8192, 512, 768, 4, 12).eval(), torch.zeros(batch, 512, dtype=torch.int64)
    else:
        module, arrays = models.network(name)
        x = torch.from_numpy(np.repeat(next(iter(arrays.values())), batch, 0))
    kind = getattr(torch, dtype)
    return module.to(kind), x.to(kind) if x.is_floating_point() else x


def inductor_kernels(name: str, dtype: str, batch: int) -> int:
    """Number of kernels of torch.compile for a network in inference: what its scheduler has fused, and calls of
    libraries, without what it computes of weights alone, since freezing does that once. Counted for a CPU, since it
    needs a GPU to schedule for one; which nodes fuse is decided by the same rules.
    """
    import torch
    from torch._inductor.graph import GraphLowering
    from torch._inductor.ir import MultiOutput
    from torch._inductor.scheduler import NopKernelSchedulerNode

    module, x = built(name, dtype, batch)
    found: list[int] = []
    schedule = GraphLowering._update_scheduler

    def counting(graph: Any) -> None:
        schedule(graph)
        weights = {name for name, t in graph.graph_inputs.items() if list(t.get_size()) != list(x.shape)}
        for node in graph.scheduler.nodes:
            named = isinstance(node, NopKernelSchedulerNode) or isinstance(node.node, MultiOutput)
            if not named and not {dep.name for dep in node.read_writes.reads} <= weights:
                found.append(1)
        raise StopIteration

    GraphLowering._update_scheduler = counting
    torch._dynamo.reset()
    try:
        # `counting` ends the compilation: the kernels are counted before code is generated.
        with torch.no_grad(), suppress(torch._dynamo.exc.BackendCompilerFailed):
            torch.compile(module)(x)
    finally:
        GraphLowering._update_scheduler = schedule
    return sum(found)


def network(name: str, dtype: str, batch: int, machine: str, assembled: bool) -> LaunchTotals:
    """Totals of a network in inference, see :func:`built`."""
    from burnish.driver.compilation import compile_kernels
    from burnish.frontend.torch.export import import_torch
    from burnish.machines.target import target

    module, x = built(name, dtype, batch)
    graph = import_torch(module, (x,)).graph
    noted: dict[str, KernelWork] = {}
    return totals(compile_kernels(graph, target(machine), make=counted(noted, assembled)), noted)


def trained(name: str, layers: int) -> tuple[Any, Any]:
    """Network in training and a batch for it: a GPT of 768 and a BERT of 768 of ``layers`` layers, 16 times 512 and 64
    times 128 tokens; ResNet-18, 64 images.
    """
    import torch

    from benchmarks import networks
    from benchmarks.architectures.trained import Gpt

    torch.manual_seed(0)
    net: Any
    if name == "gpt":
        net, x = Gpt(8192, 512, 768, layers, 12), torch.zeros(16, 512, dtype=torch.int64)
    elif name == "bert":
        encoder = (networks.EncoderLayer(768, 12, 3072) for _ in range(layers))
        net, x = torch.nn.Sequential(*encoder, torch.nn.Linear(768, 2)), torch.zeros(64, 128, 768)
    else:
        net, x = networks.resnet18(), torch.zeros(64, 3, 224, 224)
    return net.train(), x


def training_steps(
    name: str, layers: int, precision: str | None, machine: str = "cuda:sm_90a", assembled: bool = False
) -> LaunchTotals:
    """Totals of a step of training, see :func:`trained`; transformers by AdamW, ResNet-18 by SGD."""
    import burnish as bn
    from burnish.driver.compilation import compile_kernels
    from burnish.frontend.torch.export import import_torch
    from burnish.machines.target import target
    from burnish.pipeline.attention_gradients import gathered
    from burnish.train.step import training_graph

    net, x = trained(name, layers)
    found = import_torch(net, (x,), training=True)
    optimizer = bn.SGD(0.1, momentum=0.9) if name == "resnet18" else bn.AdamW(1e-3)
    recipe = bn.Train(optimizer=optimizer, precision=precision, parameters=tuple(found.parameters))
    noted: dict[str, KernelWork] = {}
    own = target(machine)
    step = training_graph(gathered(found.graph, own), recipe)
    return totals(compile_kernels(step, own, make=counted(noted, assembled)), noted)


def inductor_step_kernels(name: str, layers: int) -> int:
    """Kernels that torch.compile makes of the forward and backward pass of a step in bfloat16, without the optimizer.

    Counted as by :func:`inductor_kernels`; what a CPU's scheduler joins by outer loops, a GPU's does not.
    """
    import copy

    import torch
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor import compile_fx
    from torch._inductor.graph import GraphLowering
    from torch._inductor.ir import MultiOutput
    from torch._inductor.scheduler import NopKernelSchedulerNode

    net, x = trained(name, layers)
    x = x[:2]
    found: list[int] = []
    schedule, make = GraphLowering._update_scheduler, compile_fx.compile_fx_inner

    def counting(graph: Any) -> None:
        schedule(graph)
        nodes = (node for node in graph.scheduler.nodes if not isinstance(node, NopKernelSchedulerNode))
        found.append(sum(not isinstance(node.node, MultiOutput) for node in nodes))
        raise StopIteration

    def counted_alone(module: Any, inputs: Any, **options: Any) -> Any:
        kept = copy.deepcopy(module)
        GraphLowering._update_scheduler = counting
        try:
            with suppress(StopIteration):  # from `counting`; PyTorch itself runs the graph
                make(module, inputs, **options)
        finally:
            GraphLowering._update_scheduler = schedule
        return make_boxed_func(kept.forward)

    def step(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = net(x)
        y = y.float().reshape(-1, y.shape[-1])
        return torch.nn.functional.cross_entropy(y, torch.zeros(len(y), dtype=torch.int64))

    torch._dynamo.reset()
    caches = torch._functorch.config.patch(enable_autograd_cache=False)
    with torch._inductor.config.patch(fx_graph_cache=False), caches:
        made = torch.compile(step, backend=lambda g, i: compile_fx.compile_fx(g, i, inner_compile=counted_alone))
        made(x).backward()
    return sum(found)


def main() -> None:
    """Prints a table of steps of training, or of networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", action="store_true")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("names", nargs="*", default=[], help="of networks; all by default")
    parser.add_argument("--assembled", action="store_true")
    parser.add_argument("--layers", type=int, default=4, help="of a step of training")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--target", default="cuda:sm_90a")
    args = parser.parse_args()
    for name in args.names or NETWORKS if args.networks or args.inductor else ():
        if args.inductor:
            print(name, args.dtype, "inductor", inductor_kernels(name, args.dtype, args.batch), flush=True)
        if args.networks:
            print(name, args.dtype, network(name, args.dtype, args.batch, args.target, args.assembled), flush=True)
    if args.networks or args.inductor:
        return
    for name in args.names or NAMES:
        print(name, "inductor", inductor_step_kernels(name, args.layers), flush=True)
        for precision in ("bfloat16", None):
            found = training_steps(name, args.layers, precision, args.target, args.assembled)
            print(name, precision or "float32", found, flush=True)


if __name__ == "__main__":
    main()
