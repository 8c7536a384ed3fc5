"""Work of `burnish gnn train`: a graph to a trained network, with checkpoints and a report."""

from pathlib import Path
from typing import Any

import typer

import burnish as bn
from burnish.cli.compile_options import CompileOptions
from burnish.cli.gnn_files import GENERATED, graph_of, is_file
from burnish.cli.gnn_options import MemoryOptions, NetworkFiles, SampleOptions
from burnish.cli.output import begins, check_input, check_output, print_json
from burnish.cli.reports import is_report, print_report, write_report
from burnish.errors import DataError, ModelError, ParameterError
from burnish.fitting.result import Fitted
from burnish.gnn.data.formats import read
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.store import GraphFile
from burnish.gnn.model.models import Network, network
from burnish.gnn.run.picture import partition_facts, partition_picture
from burnish.gnn.run.sampling import Sampling
from burnish.gnn.run.train import GraphOptions
from burnish.train.optimizers import Optimizer


def train(
    graph: str,
    model: dict[str, Any],
    optimizer: Optimizer,
    limits: dict[str, Any],
    samples: SampleOptions,
    memory: MemoryOptions,
    blocks: dict[str, Any],
    workers: dict[str, Any],
    files: NetworkFiles,
    options: CompileOptions,
) -> None:
    """Trains a network on a graph and writes it. Raises ParameterError, and what :func:`burnish.fit` does."""
    _check(files, [Path(graph)] if not graph.startswith(GENERATED) else [])
    if limits["resume"] and files.checkpoint is None:
        raise ParameterError("--resume: found without a folder; allowed: with --checkpoint")
    if workers["workers"] > 1 and samples.sample is not None:
        raise ParameterError("--workers, --sample: found both; allowed: one of them")
    recipe = bn.Train(optimizer=optimizer, seed=model["seed"], memory_budget=memory.memory_budget)
    graph_options = GraphOptions(sampling=_sampling(samples, model["seed"]), **blocks)
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


def _sampling(samples: SampleOptions, seed: int) -> Sampling | None:
    """The samples that are asked for. Raises ParameterError."""
    if samples.sample is None:
        return None
    try:
        fanouts = tuple(int(part) for part in samples.sample.split(","))
    except ValueError:
        raise ParameterError(f"--sample: found '{samples.sample}'; allowed: numbers such as 25,10") from None
    return Sampling(samples.batch, fanouts, seed)


def _check(files: NetworkFiles, inputs: list[Path]) -> None:
    """Raises ParameterError unless all can be read, or written."""
    if files.output.suffix != ".safetensors":
        raise ParameterError(f"--output: found '{files.output}'; allowed: a name that ends in .safetensors")
    check_output(files.output, inputs=inputs, is_ours=_is_network, force=files.force)
    if files.report is not None:
        check_output(files.report, "--report", inputs=inputs, is_ours=is_report, force=files.force)
    if files.costs is not None:
        check_output(files.costs, "--costs", inputs=inputs, is_ours=begins(b'{"widths"'), force=files.force)
    if files.continue_from is not None:
        check_input(files.continue_from, "--continue")


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
    if files.costs is not None and trained.partitioner is not None:
        trained.partitioner.save(files.costs)
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
