"""`burnish compile` and `burnish inspect`: a model compiled with a progress bar, and what it was compiled to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import burnish as bn
from burnish.cli.output import print_json
from burnish.cli.rewriting import rewriting_text


@dataclass(frozen=True)
class Options:
    """How to compile, and whether to print JSON instead of text and bars."""

    target: str
    threads: int | None
    exact: bool
    cache_dir: Path | None
    as_json: bool
    records: Path | None = None


def compile_model(model: Path, output: Path, options: Options) -> None:
    """Compiles an ONNX file to the file `output`."""
    module = compiled(model, options)
    module.save(output)
    if options.as_json:
        size, rewrites = output.stat().st_size, module.rewrites
        print_json({"output": str(output), "bytes": size, "memory": module.memory, "rewrites": rewrites})
    else:
        print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; {memory_text(module)}")
        print(rewriting_text(module.rewrites or {"applied": []}))


def inspect(model: Path, options: Options) -> None:
    """Prints the graph, memory plan and kernels of a compiled file, or of an ONNX file that is compiled first."""
    module = bn.load(model) if model.suffix == ".bn" else compiled(model, options)
    calls = module.executable.calls
    info = dict(module.executable.info)
    if options.as_json:
        kernels = [{"kernel": call.kernel, "node": call.node} for call in calls]
        print_json({"graph": module.graph, "memory": module.memory, "kernels": kernels, "info": info})
        return
    print(module.graph)
    print(memory_text(module))
    for key, value in info.items():
        print(f"{key}: {value}")
    print(f"{len(calls)} kernel calls:")
    for call in calls:
        print(f"  {call.kernel}  {call.node}")


def memory_text(module: bn.Module) -> str:
    """The module's memory in one line."""
    return ", ".join(f"{part} {nbytes / 1e6:.2f} MB" for part, nbytes in module.memory.items())


def compiled(model: Path, options: Options) -> bn.Module:
    """Compiles the model with a progress bar on the terminal's error stream."""
    with progress_bar(options.as_json) as report:
        return bn.compile(
            model, target=options.target, threads=options.threads, exact=options.exact, cache_dir=options.cache_dir,
            progress=report, records=options.records,
        )  # fmt: skip


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A callback (stage, steps done, steps in all) that draws one bar, which disappears at the end."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as progress:
        task = progress.add_task("compiling", total=None)

        def report(stage: str, done: int, total: int) -> None:
            progress.update(task, description=stage, completed=done, total=total)

        yield report
