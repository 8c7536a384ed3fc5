"""Memory of a plan, device by device, before anything is compiled to machine code: as its programs will allocate it.

Programs are made, fused and scheduled, which tells how weights are packed, and their values placed in an arena.
"""

from __future__ import annotations

from dataclasses import replace

from burnish.graph.graph import Graph
from burnish.machines.target import Target
from burnish.parallel.programs.plans import Stages, TensorSplits
from burnish.parallel.programs.program import BUCKET
from burnish.parallel.programs.ranks import DEFAULT, Settings, rank_programs, split_programs
from burnish.parallel.programs.ranks import kept_bytes as kept_bytes
from burnish.pipeline.kernel import outline
from burnish.train.step import Train


def rank_memory(
    graph: Graph, plan: TensorSplits, devices: int, target: Target, *, bucket: int = BUCKET
) -> list[dict[str, int]]:
    """Bytes of each device by use, the keys those of ``RankStep.memory``.

    The graph, plan and errors are those of :func:`burnish.parallel.programs.ranks.compile_ranks`.
    """
    return split_programs(graph, plan, devices, target, Settings(bucket=bucket, make=outline)).memory


def plan_memory(
    graph: Graph,
    train: Train | None,
    plan: TensorSplits | Stages,
    devices: int,
    target: Target,
    settings: Settings = DEFAULT,
) -> list[dict[str, int]]:
    """The same of a step, with arguments and errors of :func:`burnish.parallel.programs.ranks.rank_programs`."""
    return rank_programs(graph, train, plan, devices, target, replace(settings, make=outline)).memory
