"""Groups of options of `burnish gnn train`: samples, memory and files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True)
class SampleOptions:
    """Whether neighbours are sampled.

    ``sample``: how many neighbours a layer, such as 25,10. ``batch``: vertices of a batch, with --sample.
    """

    sample: Annotated[str | None, typer.Option(metavar="F1,F2")] = None
    batch: int = 1024


@dataclass(frozen=True)
class MemoryOptions:
    """Options of the memory that training may take.

    ``memory_budget``: the most that a process may take, all counted, as in 700MB; the rest moves to a file and back.
    """

    memory_budget: str | None = None


@dataclass(frozen=True)
class NetworkFiles:
    """Files that training reads and writes besides the graph.

    ``output``: the network's file. ``report``: a file for losses, evaluations, partition and memory, JSON, or .html.
    ``costs``: a file for what workers have learned of the costs of ranges of vertices (`--partition learned`), JSON.
    ``continue_from``: a network whose weights come first. ``checkpoint``: a folder for checkpoints. ``force``: replaces
    an output file that is no network.
    """

    output: Annotated[Path, typer.Option("--output", "-o")] = Path("network.safetensors")
    report: Path | None = None
    costs: Path | None = None
    continue_from: Annotated[Path | None, typer.Option("--continue", metavar="NETWORK")] = None
    checkpoint: Path | None = None
    force: bool = False
