"""`burnish gnn train`: a graph of a file, or a generated one, to a trained network, with checkpoints and a report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import burnish as bn
from burnish.cli.compile_options import CompileOptions
from burnish.cli.gnn import GENERATED, GraphPath, graph_of, is_file
from burnish.cli.options import ChoiceOf, OptionsOf
from burnish.cli.output import check_input, check_output, print_json
from burnish.cli.reports import is_report, print_report, write_report
from burnish.comm.launchers import KINDS
from burnish.errors import DataError, ModelError, ParameterError
from burnish.fitting.graphs import EPOCHS, SAVE_EVERY
from burnish.fitting.loop import TrainingLimits
from burnish.fitting.result import Fitted
from burnish.gnn.data.formats import read
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.store import GraphFile
from burnish.gnn.model.models import KINDS as LAYER_KINDS
from burnish.gnn.model.models import Network, network
from burnish.gnn.run.picture import partition_facts, partition_picture
from burnish.gnn.run.sampling import Sampling
from burnish.gnn.run.train import PARTITIONS, GraphOptions
from burnish.memory.swap import PLANNERS
from burnish.train.optimizers import OPTIMIZERS, Optimizer


@dataclass(frozen=True)
class SampleOptions:
    """Whether neighbours are sampled.

    ``sample``: how many neighbours a layer, such as 25,10. ``batch``: vertices of a batch, with --sample.
    """

    sample: Annotated[str | None, typer.Option(metavar="F1,F2")] = None
    batch: int = 1024

    def sampling(self, seed: int) -> Sampling | None:
        """The samples that are asked for. Raises ParameterError."""
        if self.sample is None:
            return None
        try:
            fanouts = tuple(int(part) for part in self.sample.split(","))
        except ValueError:
            raise ParameterError(f"--sample: found '{self.sample}'; allowed: numbers such as 25,10") from None
        return Sampling(self.batch, fanouts, seed)


@dataclass(frozen=True)
class MemoryOptions:
    """How much memory training may take.

    ``memory_budget``: the most that a process may take, all counted, as in 700MB; the rest moves to a file and back.
    """

    memory_budget: str | None = None


@dataclass(frozen=True)
class NetworkFiles:
    """Files that training reads and writes besides the graph.

    ``output``: the network's file. ``report``: a file for losses, evaluations, partition and memory, JSON, or .html.
    ``continue_from``: a network whose weights come first. ``checkpoint``: a folder for checkpoints. ``force``: replaces
    an output file that is no network.
    """

    output: Annotated[Path, typer.Option("--output", "-o")] = Path("network.safetensors")
    report: Path | None = None
    continue_from: Annotated[Path | None, typer.Option("--continue", metavar="NETWORK")] = None
    checkpoint: Path | None = None
    force: bool = False

    def check(self, inputs: list[Path]) -> None:
        """Raises ParameterError unless all can be read, or written."""
        if self.output.suffix != ".safetensors":
            raise ParameterError(f"--output: found '{self.output}'; allowed: a name that ends in .safetensors")
        check_output(self.output, inputs=inputs, is_ours=_is_network, force=self.force)
        if self.report is not None:
            check_output(self.report, "--report", inputs=inputs, is_ours=is_report, force=self.force)
        if self.continue_from is not None:
            check_input(self.continue_from, "--continue")


def train(
    graph: GraphPath,
    model: Annotated[
        dict[str, Any],
        OptionsOf(
            network, omit=("features", "classes", "weighted", "weights"), defaults={"kind": "gcn"},
            names={"kind": "--model", "depth": "--layers"}, choices={"kind": LAYER_KINDS}, least={"heads": 1},
        ),
    ],
    optimizer: Annotated[Optimizer, ChoiceOf(OPTIMIZERS, "adam", {"learning_rate": 0.01, "weight_decay": 0.0})],
    limits: Annotated[
        dict[str, Any],
        OptionsOf(TrainingLimits, omit=("steps", "min_gain"), defaults={"epochs": EPOCHS, "save_every": SAVE_EVERY}),
    ],
    samples: SampleOptions,
    memory: MemoryOptions,
    blocks: Annotated[
        dict[str, Any],
        OptionsOf(
            GraphOptions, only=("planner", "partition"), choices={"planner": PLANNERS, "partition": PARTITIONS}
        ),
    ],
    workers: Annotated[
        dict[str, Any],
        OptionsOf(bn.fit, only=("workers", "worker_kind"), choices={"worker_kind": KINDS}, least={"workers": 1}),
    ],
    files: NetworkFiles,
    options: Annotated[CompileOptions, OptionsOf(only=("threads", "cache_dir", "as_json"))],
) -> None:  # fmt: skip
    """Train a network on a graph with features, labels and masks. Ctrl-C ends it with what is trained so far."""
    files.check([Path(graph)] if not graph.startswith(GENERATED) else [])
    if limits["resume"] and files.checkpoint is None:
        raise ParameterError("--resume: found without a folder; allowed: with --checkpoint")
    if workers["workers"] > 1 and samples.sample is not None:
        raise ParameterError("--workers, --sample: found both; allowed: one of them")
    recipe = bn.Train(optimizer=optimizer, seed=model["seed"], memory_budget=memory.memory_budget)
    graph_options = GraphOptions(sampling=samples.sampling(model["seed"]), **blocks)
    source = Path(graph) if is_file(graph) else graph_of(graph)
    features, classes, multilabel, weighted = _sizes(source)
    if files.continue_from is not None:
        made = Network.load(files.continue_from)
    else:
        made = network(features=features, classes=classes, weighted=weighted, **model)
    trained = bn.fit(
        made, source, recipe, checkpoint=files.checkpoint, threads=options.threads, cache_dir=options.cache_dir,
        graph_options=graph_options, progress=not options.as_json, **limits, **workers,
    )  # fmt: skip
    _write(files, trained, source, multilabel, options.as_json)
    if trained.report.stop_reason == "interrupted":
        raise typer.Exit(130)  # as shells report what Ctrl-C ended


def _sizes(source: Graph | Path) -> tuple[int, int, bool, bool]:
    """Features and classes of a graph, whether vertices have several labels, and edges weights. Raises DataError."""
    if isinstance(source, Graph):
        found = source.width, source.classes, source.multilabel, source.weights is not None
    else:
        file = GraphFile.open(source)
        sections = file.sections
        width = sections["features"].shape[1] if "features" in sections else 0
        multilabel = "labels" in sections and len(sections["labels"].shape) == 2
        found = width, file.classes, multilabel, "weights" in sections
    if not found[0] or not found[1]:
        raise DataError(f"graph: found {found[0]} features, {found[1]} classes; allowed: a graph with both")
    return found


def _write(files: NetworkFiles, trained: Fitted, source: Graph | Path, multilabel: bool, as_json: bool) -> None:
    """Writes the network and the report, and says what came of training."""
    trained.model.save(files.output)
    report, facts = trained.report, list[dict[str, int]]()
    described = {"network": str(trained.model), "notes": [*trained.notes]}
    if files.report is not None:
        if trained.cuts:
            facts = partition_facts(source.csr if isinstance(source, Graph) else read(source).csr, trained.cuts)
        more = [*trained.parts, *(["<h2>Partition</h2>", partition_picture(facts)] if facts else [])]
        write_report(files.report, report, {**described, "partition": facts}, more)
    if as_json:
        ranges = {"cuts": list(trained.cuts), "multilabel": multilabel}
        print_json({"output": str(files.output), **described, **ranges, **report.as_json()})
        return
    print_report(files.output, report, f"{report.epochs} epochs", [str(trained.model), *trained.notes])


def _is_network(path: Path) -> bool:
    """Whether a file is a network that this command wrote, or empty."""
    try:
        return not path.stat().st_size or bool(Network.load(path))
    except ModelError:
        return False
