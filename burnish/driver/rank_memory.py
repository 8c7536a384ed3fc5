"""Memory of a plan, device by device, before anything is compiled to machine code: as its programs will allocate it.

Programs are made, fused and scheduled, which tells how weights are packed, and their values placed in an arena.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from burnish.driver.assembly import live_values, pack_parameters
from burnish.driver.ranks import Ranks, Settings, rank_programs, split_programs
from burnish.driver.stages import Compilation
from burnish.graph.graph import Graph
from burnish.loops.sizes import hinted
from burnish.memory.share import plan as place
from burnish.parallel.plans import Splits
from burnish.parallel.program import BUCKET, Program
from burnish.parallel.stages import Stages
from burnish.pipeline.kernel import outline
from burnish.runtime.buffers import ALIGNMENT, round_up
from burnish.target import Target
from burnish.train.step import Train


def rank_memory(
    graph: Graph, plan: Splits, devices: int, target: Target, *, bucket: int = BUCKET
) -> list[dict[str, int]]:
    """Bytes of each device by use, the keys those of ``RankStep.memory``: ``arena`` (activations and gradients),
    ``params`` (constants), ``state`` (parameters and what the optimizer remembers), ``messages``.

    The graph, plan and errors are those of :func:`burnish.driver.ranks.compile_ranks`.
    """
    return memory_of(split_programs(graph, plan, devices, target, Settings(bucket=bucket, make=outline)))


def plan_memory(
    graph: Graph, train: Train, plan: Splits | Stages, devices: int, target: Target, settings: Settings = Settings()
) -> list[dict[str, int]]:
    """The same of a model's step of training; arguments and errors of :func:`burnish.driver.ranks.rank_programs`."""
    return memory_of(rank_programs(graph, train, plan, devices, target, replace(settings, make=outline)))


def memory_of(ranks: Ranks) -> list[dict[str, int]]:
    """Bytes of each device by use."""
    return [_bytes(program, made) for program, made in zip(ranks.programs, ranks.made, strict=True)]


def _bytes(program: Program, made: Compilation) -> dict[str, int]:
    intervals, pairs, _ = live_values(made)
    params, _ = pack_parameters(made.stages, made.constants)
    graph = program.graph
    states = {graph.outputs[state.output] for state in graph.states.values()}
    received = {message.tensor for message in program.receipts}
    moved = [*received, *(name for name in dict.fromkeys(graph.outputs) if name not in states)]
    return {
        "arena": place([replace(i, nbytes=hinted(i.nbytes)) for i in intervals], pairs).arena_bytes,
        "params": params.nbytes,
        "state": sum(round_up(graph.types[name].nbytes, ALIGNMENT) for name in graph.states),
        "messages": sum(graph.types[name].nbytes for name in moved),
    }


def kept_bytes(memory: Mapping[str, int]) -> int:
    """Bytes that a device needs for a plan: all but machine code and threads' scratch."""
    return sum(memory.get(use, 0) for use in ("arena", "params", "state", "messages"))
