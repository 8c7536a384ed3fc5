"""`burnish gnn`: graphs and networks of files, trained, applied, cut into ranges and shown."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

import burnish as bn
from burnish.cli.output import check_input, check_output, is_json, print_json
from burnish.errors import DataError, ModelError, ParameterError
from burnish.files import write_atomic
from burnish.gnn.disjoint import union
from burnish.gnn.feeds import labels_of, mask_of
from burnish.gnn.formats import read
from burnish.gnn.generators import dataset, ppi_graphs, write_dataset
from burnish.gnn.graph import MASKS, Graph
from burnish.gnn.inference import logits_of
from burnish.gnn.losses import scores
from burnish.gnn.models import Network, network
from burnish.gnn.partition import equal_edges, equal_vertices
from burnish.gnn.picture import partition_facts, partition_picture
from burnish.gnn.sampling import Sampling
from burnish.gnn.store import SUFFIX, GraphFile, load, save
from burnish.gnn.train import Trained, fit
from burnish.gnn.workers import fit_workers
from burnish.train.optimizers import Optimizer
from burnish.train.picture import page
from burnish.train.progress import evaluation_text, shown

GENERATED, PPI = "dataset:", "ppi"


@dataclass(frozen=True)
class Task:
    """What `burnish gnn train` was asked for."""

    graph: str
    output: Path
    report: Path | None
    model: str
    hidden: int
    layers: int
    heads: int
    dropout: float
    epochs: int
    optimizer: str
    rate: float
    weight_decay: float
    seed: int
    continue_from: Path | None
    patience: int | None
    evaluate_every: int | None
    sample: str | None
    batch: int
    memory_budget: str | None
    planner: str
    workers: int
    worker_kind: str
    partition: str
    checkpoint: Path | None
    save_every: int
    resume: bool
    threads: int | None
    cache_dir: Path | None
    force: bool
    as_json: bool

    @property
    def recipe(self) -> bn.Train:
        """Optimizer and seed. Raises ParameterError."""
        made: Mapping[str, Callable[..., Optimizer]] = {"adam": bn.Adam, "adamw": bn.AdamW, "sgd": bn.SGD}
        if self.optimizer not in made:
            raise ParameterError(f"--optimizer: found '{self.optimizer}'; allowed: {', '.join(made)}")
        return bn.Train(optimizer=made[self.optimizer](self.rate, weight_decay=self.weight_decay), seed=self.seed)

    @property
    def sampling(self) -> Sampling | None:
        """The samples that are asked for. Raises ParameterError."""
        if self.sample is None:
            return None
        try:
            fanouts = tuple(int(part) for part in self.sample.split(","))
        except ValueError:
            raise ParameterError(f"--sample: found '{self.sample}'; allowed: numbers such as 25,10") from None
        return Sampling(self.batch, fanouts, self.seed)


def train(task: Task) -> None:
    """Reads, trains, writes the network and the report, and says what came of it."""
    _check(task)
    recipe, sampling = task.recipe, task.sampling
    source = Path(task.graph) if _is_file(task.graph) else graph_of(task.graph)
    features, classes, multilabel, weighted = _sizes(source)
    if task.continue_from is not None:
        made = Network.load(task.continue_from)
    else:
        made = network(
            task.model, features, classes, hidden=task.hidden, depth=task.layers, heads=task.heads,
            dropout=task.dropout, seed=task.seed, weighted=weighted,
        )  # fmt: skip
    limits: dict[str, Any] = {
        "epochs": task.epochs, "patience": task.patience, "evaluate_every": task.evaluate_every,
        "checkpoint": task.checkpoint, "save_every": task.save_every, "resume": task.resume, "threads": task.threads,
        "cache_dir": task.cache_dir, "memory_budget": task.memory_budget,
    }  # fmt: skip
    with shown(not task.as_json) as bar:
        if task.workers > 1:
            trained = fit_workers(made, source, recipe, workers=task.workers, kind=task.worker_kind,
                                  partition=task.partition, progress=bar, **limits)  # fmt: skip
        else:
            trained = fit(made, source, recipe, sampling=sampling, planner=task.planner,
                          progress=bar if bar is not None else False, **limits)  # fmt: skip
    trained.chosen.save(task.output)
    if task.report is not None:
        _write_report(task.report, trained, source)
    _tell(task, trained, multilabel)
    if trained.report.stop_reason == "interrupted":
        raise typer.Exit(130)  # as shells report what Ctrl-C ended


def infer(
    path: Path, source: str, output: Path | None, memory_budget: str | None, threads: int | None,
    cache_dir: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Logits of a graph, to a file; scores by mask."""
    check_input(path, "network")
    if output is not None and output.suffix not in (".npy", ".csv"):
        raise ParameterError(f"--output: found '{output}'; allowed: a name that ends in .npy or .csv")
    if output is not None:
        check_output(output, inputs=[path], force=True)
    net = Network.load(path)
    graph: Graph | Path = Path(source) if memory_budget and _is_file(source) else graph_of(source)
    logits = logits_of(net, graph, threads=threads, cache_dir=cache_dir, memory_budget=memory_budget)
    if output is not None:
        _write_logits(output, logits)
    labelled = graph if isinstance(graph, Graph) else None
    found = {} if labelled is None or labelled.labels is None else _scores(labelled, logits)
    told = {"network": str(net), "vertices": len(logits), "classes": logits.shape[1], "scores": found}
    if as_json:
        print_json({**told, "output": None if output is None else str(output)})
        return
    print(f"{net}: {len(logits)} vertices, {logits.shape[1]} classes")
    for mask, values in found.items():
        print(f"{mask}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()))
    if output is not None:
        print(f"written to {output}")


def partition(source: str, workers: int, by: str, picture: Path | None, as_json: bool) -> None:
    """Ranges of vertices, with what each has."""
    if by not in ("edges", "vertices"):
        raise ParameterError(f"--by: found '{by}'; allowed: edges, vertices")
    if picture is not None:
        check_output(picture, "--picture", is_ours=_is_svg)
    csr = graph_of(source).csr
    cuts = equal_edges(csr, workers) if by == "edges" else equal_vertices(csr.rows, workers)
    facts = partition_facts(csr, cuts.tolist())
    if picture is not None:
        drawn = partition_picture(facts).replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        write_atomic(picture, [drawn.encode()])
    if as_json:
        print_json({"by": by, "cuts": cuts.tolist(), "workers": facts})
        return
    for k, f in enumerate(facts):
        print(f"worker {k}: vertices {f['begin']} to {f['end'] - 1}, {f['edges']:,} edges, halo of {f['halo']:,} rows")


def info(path: str, as_json: bool) -> None:
    """A graph or a network in words."""
    if Path(path).suffix == ".safetensors":
        check_input(Path(path), "network")
        net = Network.load(path)
        shapes = {name: list(np.shape(value)) for name, value in net.weights.items()}
        told: dict[str, Any] = {
            "network": str(net), "dropout": net.dropout, "parameters": net.parameters, "weights": shapes,
        }  # fmt: skip
    else:
        told = dict(graph_of(path).facts())
    if as_json:
        print_json(told)
        return
    for name, value in told.items():
        print(f"{name}: {_words(value)}")


def convert(source: str, output: Path, symmetrize: bool, force: bool, as_json: bool) -> None:
    """A graph as a file of Burnish's own form."""
    if output.suffix != SUFFIX:
        raise ParameterError(f"--output: found '{output}'; allowed: a name that ends in {SUFFIX}")
    check_output(output, is_ours=_is_graph, force=force)
    if source.startswith(GENERATED) and source != GENERATED + PPI:  # symmetric, and written piece by piece
        write_dataset(output, *_generated(source))
    else:
        graph = graph_of(source)
        save(output, graph.symmetrized() if symmetrize else graph)
    size, file = output.stat().st_size, GraphFile.open(output)
    if as_json:
        print_json({"output": str(output), "bytes": size, **load(output, "file").facts()})
    else:
        print(f"{output}: {file.vertices:,} vertices, {file.edges:,} edges, {size / 1e6:.1f} MB")


def graph_of(source: str) -> Graph:
    """A graph from a path, or a generated one by its name. Raises ParameterError, DataError, OSError."""
    if not source.startswith(GENERATED):
        if not Path(source).exists():
            raise ParameterError(f"graph: no file or folder '{source}'; allowed also: dataset:reddit/10 and its kin")
        return read(source)
    return union(ppi_graphs()) if source == GENERATED + PPI else dataset(*_generated(source))


def _generated(source: str) -> tuple[str, str]:
    """The name and the kind of a graph that is generated."""
    name, _, kind = source.removeprefix(GENERATED).partition(",")
    return name, kind or "block"


def _is_file(source: str) -> bool:
    """Whether a graph is a file that training reads in blocks."""
    return not source.startswith(GENERATED) and Path(source).suffix == SUFFIX and Path(source).is_file()


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


def _check(task: Task) -> None:
    inputs = [Path(task.graph)] if not task.graph.startswith(GENERATED) else []
    if task.output.suffix != ".safetensors":
        raise ParameterError(f"--output: found '{task.output}'; allowed: a name that ends in .safetensors")
    check_output(task.output, inputs=inputs, is_ours=_is_network, force=task.force)
    if task.report is not None:
        check_output(task.report, "--report", inputs=inputs, is_ours=_is_report, force=task.force)
    if task.continue_from is not None:
        check_input(task.continue_from, "--continue")
    if task.resume and task.checkpoint is None:
        raise ParameterError("--resume: found without a folder; allowed: with --checkpoint")
    if task.workers > 1 and task.sample is not None:
        raise ParameterError("--workers, --sample: found both; allowed: one of them")


def _scores(graph: Graph, logits: np.ndarray) -> dict[str, dict[str, float]]:
    """Scores by mask, of masks under which vertices are."""
    found = {}
    for name in MASKS:
        mask = getattr(graph, name)
        if mask is not None and mask.any():
            labels = labels_of(graph, mask_of(graph, name))
            found[name] = {key: metric(logits, labels) for key, metric in scores(graph.multilabel).items()}
    return found


def _write_logits(output: Path, logits: np.ndarray) -> None:
    if output.suffix == ".npy":
        with output.open("wb") as file:
            np.save(file, logits)
        return
    classes: Sequence[int] = np.argmax(logits, 1).tolist()
    write_atomic(output, ["".join(f"{c}\n" for c in classes).encode()])


def _write_report(path: Path, trained: Trained, source: Graph | Path) -> None:
    facts: list[dict[str, int]] = []
    if trained.cuts:
        csr = source.csr if isinstance(source, Graph) else read(source).csr
        facts = partition_facts(csr, trained.cuts)
    told = {
        "burnish": bn.__version__, "network": str(trained.network), "plan": trained.plan, "partition": facts,
        **trained.report.as_json(),
    }  # fmt: skip
    if path.suffix != ".html":
        write_atomic(path, [json.dumps(told, indent=1).encode()])
        return
    more = [f"<h2>Network</h2><p>{trained.network}</p>".replace("->", "&rarr;")]
    if trained.plan:
        more.append(f"<h2>Memory plan</h2><p>{trained.plan}</p>")
    if facts:
        more += ["<h2>Partition</h2>", partition_picture(facts)]
    write_atomic(path, [page(trained.report, more).encode()])


def _tell(task: Task, trained: Trained, multilabel: bool) -> None:
    report = trained.report
    if task.as_json:
        print_json({
            "output": str(task.output), "network": str(trained.network), "plan": trained.plan,
            "cuts": list(trained.cuts), "multilabel": multilabel, **report.as_json(),
        })  # fmt: skip
        return
    losses = report.losses
    if len(losses):
        print(f"{trained.network}: loss {losses[0]:.4f} -> {losses[-1]:.4f} in {report.epochs} epochs")
    if report.best is not None:
        print(f"best {evaluation_text(report.best)}")
    if trained.plan:
        print(f"memory plan: {trained.plan}")
    memory = ", ".join(f"{part} {nbytes / 1e6:.1f} MB" for part, nbytes in report.memory.items())
    print(f"{task.output}: trained for {report.seconds:.1f} s, ended by {report.stop_reason}; {memory}")
    if report.checkpoint is not None:
        print(f"checkpoint: {report.checkpoint}", file=sys.stderr)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(v)}" for name, v in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_report(path: Path) -> bool:
    """Whether a file is a report, or empty."""
    return path.read_bytes()[:15] == b"<!DOCTYPE html>" if path.suffix == ".html" else is_json(path)


def _is_svg(path: Path) -> bool:
    return path.read_bytes()[:4] in (b"", b"<svg")


def _is_graph(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8) in (b"", b"BNGRAPH1")


def _is_network(path: Path) -> bool:
    """Whether a file is a network that this command wrote, or empty."""
    try:
        return not path.stat().st_size or bool(Network.load(path))
    except ModelError:
        return False
