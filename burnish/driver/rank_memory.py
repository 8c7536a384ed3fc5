"""Memory of a plan, device by device, before anything is compiled to machine code: as its programs will allocate it.

Programs are made, fused and scheduled, which tells how weights are packed, and their values placed in an arena.
"""

from __future__ import annotations

from dataclasses import replace

from burnish.driver.ranks import DEFAULT, Settings, rank_programs, split_programs
from burnish.driver.ranks import kept_bytes as kept_bytes
from burnish.graph.graph import Graph
from burnish.parallel.plans import Splits, Stages
from burnish.parallel.program import BUCKET
from burnish.pipeline.kernel import outline
from burnish.target import Target
from burnish.train.step import Train


def rank_memory(
    graph: Graph, plan: Splits, devices: int, target: Target, *, bucket: int = BUCKET
) -> list[dict[str, int]]:
    """Bytes of each device by use, the keys those of ``RankStep.memory``.

    The graph, plan and errors are those of :func:`burnish.driver.ranks.compile_ranks`.
    """
    return split_programs(graph, plan, devices, target, Settings(bucket=bucket, make=outline)).memory


def plan_memory(
    graph: Graph, train: Train, plan: Splits | Stages, devices: int, target: Target, settings: Settings = DEFAULT
) -> list[dict[str, int]]:
    """The same of a model's step of training; arguments and errors of :func:`burnish.driver.ranks.rank_programs`."""
    return rank_programs(graph, train, plan, devices, target, replace(settings, make=outline)).memory
