"""`burnish gnn train | infer | partition | info | convert`: options of training and using graph networks."""

from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.cli.compile_options import CacheDir, CompileOptions, Json, Threads
from burnish.cli.gnn_options import MemoryOptions, NetworkFiles, SampleOptions
from burnish.cli.options import ChoiceOf, OptionsOf
from burnish.cli.signatures import Declaration
from burnish.train.optimizers import OPTIMIZERS, Optimizer

# Graphs and their networks take seconds to import, which `--help` need not wait for.

GraphPath = Annotated[
    str,
    typer.Argument(
        help="A graph: .bngraph, .npz, a text of edges, a folder in OGB's layout; or dataset:NAME, generated.",
        show_default=False,
    ),
]
Learned = Annotated[
    Path | None,
    typer.Option(
        help="Costs of ranges that `train --costs` wrote: the graph is cut into ranges of equal predicted time.",
        show_default=False,
    ),
]


def train(
    graph: GraphPath,
    model: Annotated[
        dict[str, Any],
        OptionsOf(
            Declaration("burnish.gnn.model.models:network"), omit=("features", "classes", "weighted", "weights"),
            defaults={"kind": "gcn"}, names={"kind": "--model", "depth": "--layers"},
            choices={"kind": Declaration("burnish.gnn.model.models:KINDS")}, least={"heads": 1},
        ),
    ],
    optimizer: Annotated[Optimizer, ChoiceOf(OPTIMIZERS, "adam", {"learning_rate": 0.01, "weight_decay": 0.0})],
    limits: Annotated[
        dict[str, Any],
        OptionsOf(
            Declaration("burnish.fitting.loop:TrainingLimits"), omit=("steps", "min_gain"),
            defaults={
                "epochs": Declaration("burnish.fitting.graphs:EPOCHS").constant,
                "save_every": Declaration("burnish.fitting.graphs:SAVE_EVERY").constant,
            },
        ),
    ],
    samples: SampleOptions,
    memory: MemoryOptions,
    blocks: Annotated[
        dict[str, Any],
        OptionsOf(
            Declaration("burnish.gnn.run.train:GraphOptions"), only=("planner", "partition"),
            choices={
                "planner": Declaration("burnish.memory.swap:PLANNERS"),
                "partition": Declaration("burnish.gnn.run.train:PARTITIONS"),
            },
        ),
    ],
    workers: Annotated[
        dict[str, Any],
        OptionsOf(
            Declaration("burnish.fitting.fit:fit"), only=("workers", "worker_kind"),
            choices={"worker_kind": Declaration("burnish.comm.launchers:KINDS")}, least={"workers": 1},
        ),
    ],
    files: NetworkFiles,
    options: Annotated[CompileOptions, OptionsOf(only=("threads", "cache_dir", "as_json"))],
) -> None:  # fmt: skip
    """Train a network on a graph with features, labels and masks. Ctrl-C ends it with what is trained so far."""
    from burnish.cli import gnn_train

    gnn_train.train(graph, model, optimizer, limits, samples, memory, blocks, workers, files, options)


def infer(
    network: Annotated[Path, typer.Argument(help="A network that `train` wrote.", show_default=False)],
    graph: GraphPath,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Logits, .npy, or classes, .csv. Default: none.")
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help="Most memory that the process may take, such as 700MB.", show_default=False)
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that have a range of vertices each.")] = 1,
    learned: Learned = None,
    threads: Threads = None,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Apply a network to a graph, also one that it has never seen, and score it where the graph has labels."""
    from burnish.cli import gnn_files

    gnn_files.infer(network, graph, output, memory_budget, workers, learned, threads, cache_dir, as_json)


def partition(
    graph: GraphPath,
    workers: Annotated[int, typer.Option(min=1, help="Ranges of vertices.")] = 2,
    by: Annotated[str, typer.Option(help="edges or vertices.")] = "edges",
    learned: Learned = None,
    width: Annotated[
        int | None,
        typer.Option(min=1, help="Features of a vertex that a layer reads: shows what the cost model sees of ranges."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="An .svg file to draw it in.")] = None,
    as_json: Json = False,
) -> None:
    """Cut a graph into ranges of vertices, and show what each worker has and what it reads of others."""
    from burnish.cli import gnn_files

    gnn_files.partition(graph, workers, by, learned, width, picture, as_json)


def info(
    path: Annotated[str, typer.Argument(help="A graph, or a network that `train` wrote.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show what a graph or a network is."""
    from burnish.cli import gnn_files

    gnn_files.info(path, as_json)


def convert(
    graph: GraphPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="The .bngraph file to write.")],
    symmetrize: Annotated[bool, typer.Option("--symmetrize", help="Add the reverse of every edge.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an output file that is no graph.")] = False,
    as_json: Json = False,
) -> None:
    """Write a graph as a .bngraph file, whose features and edges training reads in blocks."""
    from burnish.cli import gnn_files

    gnn_files.convert(graph, output, symmetrize, force, as_json)
