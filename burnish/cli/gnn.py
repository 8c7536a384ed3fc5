"""The commands for graph neural networks: `burnish gnn train | infer | partition | info | convert`."""

from pathlib import Path
from typing import Annotated

import typer

from burnish.cli.models import CacheDir, Json, Threads

KINDS = ("gcn", "sage", "gin", "commnet", "gat", "deep_gcn")  # of burnish.gnn.models, which takes a while to import
OPTIMIZERS = ("adam", "adamw", "sgd")
PARTITIONS = ("edges", "vertices", "learned")

app = typer.Typer(help="Train graph neural networks on whole graphs, and use them.", no_args_is_help=True)

GraphFile = Annotated[
    str,
    typer.Argument(
        help="A graph: .bngraph, .npz, a text of edges, a folder in OGB's layout; or dataset:NAME, generated.",
        show_default=False,
    ),
]
Budget = Annotated[
    str | None, typer.Option(help="Most memory that the process may take, such as 700MB.", show_default=False)
]


@app.command()
def train(
    graph: GraphFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="The network's file.")] = Path("network.safetensors"),
    model: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")] = "gcn",
    hidden: Annotated[int, typer.Option(min=1, help="Width of hidden layers.")] = 128,
    layers: Annotated[int, typer.Option(min=1, help="Layers.")] = 2,
    heads: Annotated[int, typer.Option(min=1, help="Of gat, together as wide as --hidden.")] = 8,
    dropout: Annotated[float, typer.Option(min=0, max=1, help="Probability, in front of hidden layers.")] = 0.5,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the graph.")] = 200,
    optimizer: Annotated[str, typer.Option(help=f"One of {', '.join(OPTIMIZERS)}.")] = "adam",
    rate: Annotated[float, typer.Option(min=0, help="The learning rate.")] = 0.01,
    weight_decay: Annotated[float, typer.Option(min=0)] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, dropout and samples.")] = 0,
    continue_from: Annotated[
        Path | None, typer.Option("--continue", metavar="NETWORK", help="A network whose weights come first.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="End after so many evaluations without a smaller loss.")
    ] = None,
    evaluate_every: Annotated[int | None, typer.Option(min=1, help="Steps. Default: after each epoch.")] = None,
    sample: Annotated[
        str | None, typer.Option(metavar="F1,F2", help="Sample so many neighbours a layer, such as 25,10.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Vertices of a batch, with --sample.")] = 1024,
    memory_budget: Budget = None,
    planner: Annotated[str, typer.Option(help="With a budget: best, streaming, lru, or 'lru drop dead'.")] = "best",
    workers: Annotated[int, typer.Option(min=1, help="Workers, each with a range of vertices.")] = 1,
    worker_kind: Annotated[str, typer.Option(help="thread, process, torch or ray.")] = "process",
    partition: Annotated[str, typer.Option(help=f"Of vertices: by {', '.join(PARTITIONS)}.")] = "edges",
    checkpoint: Annotated[Path | None, typer.Option(help="A folder for checkpoints.")] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 10,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint, if there is one.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="A file for losses, evaluations, partition and memory: JSON, or .html.")
    ] = None,
    threads: Threads = None,
    cache_dir: CacheDir = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an output file that is no network.")] = False,
    as_json: Json = False,
) -> None:
    """Train a network on a graph with features, labels and masks. Ctrl-C ends it with what is trained so far."""
    from burnish.cli import graph_training  # the compiler takes a second to import, which `--help` need not wait for

    graph_training.train(
        graph_training.Task(
            graph,
            output,
            report,
            model,
            hidden,
            layers,
            heads,
            dropout,
            epochs,
            optimizer,
            rate,
            weight_decay,
            seed,
            continue_from,
            patience,
            evaluate_every,
            sample,
            batch,
            memory_budget,
            planner,
            workers,
            worker_kind,
            partition,
            checkpoint,
            save_every,
            resume,
            threads,
            cache_dir,
            force,
            as_json,
        )
    )


@app.command()
def infer(
    network: Annotated[Path, typer.Argument(help="A network that `train` wrote.", show_default=False)],
    graph: GraphFile,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Logits, .npy, or classes, .csv. Default: none.")
    ] = None,
    memory_budget: Budget = None,
    threads: Threads = None,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Apply a network to a graph, also one that it has never seen, and score it where the graph has labels."""
    from burnish.cli import graph_training

    graph_training.infer(network, graph, output, memory_budget, threads, cache_dir, as_json)


@app.command()
def partition(
    graph: GraphFile,
    workers: Annotated[int, typer.Option(min=1, help="Ranges of vertices.")] = 2,
    by: Annotated[str, typer.Option(help="edges or vertices.")] = "edges",
    picture: Annotated[Path | None, typer.Option(help="An .svg file to draw it in.")] = None,
    as_json: Json = False,
) -> None:
    """Cut a graph into ranges of vertices, and show what each worker has and what it reads of others."""
    from burnish.cli import graph_training

    graph_training.partition(graph, workers, by, picture, as_json)


@app.command()
def info(
    path: Annotated[str, typer.Argument(help="A graph, or a network that `train` wrote.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show what a graph or a network is."""
    from burnish.cli import graph_training

    graph_training.info(path, as_json)


@app.command()
def convert(
    graph: GraphFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="The .bngraph file to write.")],
    symmetrize: Annotated[bool, typer.Option("--symmetrize", help="Add the reverse of every edge.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an output file that is no graph.")] = False,
    as_json: Json = False,
) -> None:
    """Write a graph as a .bngraph file, whose features and edges training reads in blocks."""
    from burnish.cli import graph_training

    graph_training.convert(graph, output, symmetrize, force, as_json)
