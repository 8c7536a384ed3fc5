"""`burnish compile` and `burnish inspect`: a model compiled with a progress bar, and what it was compiled to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import burnish as bn
from burnish.cli.compile_options import CompileOptions
from burnish.cli.output import check_input, check_output, is_artifact, on_terminal, print_answer, print_json
from burnish.cli.rewriting import rewriting_text
from burnish.errors import ModelError
from burnish.loops.size_text import extent_text
from burnish.runtime import variants


def compile_model(model: Path, output: Path, options: CompileOptions, force: bool) -> None:
    """Compiles an ONNX file to the file `output`."""
    check_input(model, "model")
    check_output(output, inputs=[model], is_ours=is_artifact, force=force)
    with progress_bar(options.as_json) as report:
        module: Any = bn.compile(model, progress=report, records=options.records, **options.arguments)
    module.save(output)
    if not isinstance(module, bn.Module):
        tell_segments(module, output, options)
        return
    if options.as_json:
        size, rewrites = output.stat().st_size, module.rewrites
        held = variants.described(output)
        print_json({"output": str(output), "bytes": size, **facts(module), "rewrites": rewrites, "variants": held})
        return
    print(signature_text(module))
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; {memory_text(module)}; {module.threads} threads")
    print_variants(variants.described(output))
    print(rewriting_text(module.rewrites) if module.rewrites else "substitutions: not looked for")
    if options.records is not None:
        print(records_text(module, options.records))


def tell_segments(module: Any, output: Path, options: CompileOptions) -> None:
    """Prints the summary of a written model that is compiled at its calls."""
    size = output.stat().st_size
    if options.as_json:
        inputs, outputs = (
            [
                {"name": s.name, "kind": getattr(s, "kind", "tensor"), "dtype": s.dtype, "shape": _extents(s)}
                for s in specs
            ]
            for specs in (module.inputs, module.outputs)
        )
        print_json({"output": str(output), "bytes": size, "segments": True, "inputs": inputs, "outputs": outputs})
        return
    for role, specs in (("input", module.inputs), ("output", module.outputs)):
        for spec in specs:
            print(f"{role:6}  {spec}")
    why = f"; segments run in Python: {module.in_python}" if module.in_python else ""
    print(f"{output}: {size / 1e6:.1f} MB; compiled at its calls, for the sizes and values that they bring{why}")


def _extents(spec: Any) -> list[Any] | None:
    return None if spec.shape is None else list(map(extent_text, spec.shape))


def facts(module: Any) -> dict[str, Any]:
    """JSON summary of a compiled model. ``assumed``: names of open extents, taken as 1, by input."""
    inputs, outputs = (
        [{"name": spec.name, "dtype": spec.dtype, "shape": list(map(extent_text, spec.shape))} for spec in specs]
        for specs in (module.inputs, module.outputs)
    )
    recorded, kernels = recorded_kernels(module)
    return {
        "memory": module.memory, "threads": module.threads, "inputs": inputs, "outputs": outputs,
        "assumed": module.assumed, "kernel_calls": kernels, "kernel_calls_from_records": recorded,
    }  # fmt: skip


def signature_text(module: Any) -> str:
    """Inputs and outputs with their names, types and shapes; what was assumed of them."""
    lines = []
    for role, specs in (("input", module.inputs), ("output", module.outputs)):
        for spec in specs:
            open_ = module.assumed.get(spec.name) if role == "input" else None
            note = ""
            if open_ is not None:
                note = f"  (the first extent, '{open_}', is open in the model and taken as {spec.shape[0]})"
            lines.append(f"{role:6}  {spec}{note}")
    return "\n".join(lines)


def records_text(module: Any, records: Path) -> str:
    """Share of kernels that are the best of the records, as text."""
    return "{} of {} kernels from {}".format(*recorded_kernels(module), records)


def recorded_kernels(module: Any) -> tuple[int, int]:
    """Kernel calls whose recipe came from records, and all."""
    calls = module.info.get("kernels", ())
    return sum(bool(call.get("recorded")) for call in calls), len(calls)


def export(model: Path, folder: Path, name: str | None, variant: str | None, options: CompileOptions) -> None:
    """Writes the C library of a compiled file, or of an ONNX file that is compiled first."""
    check_input(model, "model")
    if model.suffix == ".bn":
        options.without_compiling(model)
        files = bn.export_c(model, folder, name, variant=variant)
    else:
        files = bn.export_c(compiled(model, options), folder, name, variant=variant)
    sizes = {role: path.stat().st_size for role, path in files.items()}
    lines = [f"{role:8} {path}: {sizes[role] / 1e6:.2f} MB" for role, path in files.items()]
    if "shared" not in files:
        lines.append("no shared library: neither ld.lld nor an ld for this machine is installed")
    found = {role: {"path": str(path), "bytes": sizes[role]} for role, path in files.items()}
    print_answer(options.as_json, {"files": found}, *lines)


def inspect(model: Path, options: CompileOptions) -> None:
    """Prints the graph, memory plan and kernels of a compiled file, or of an ONNX file that is compiled first."""
    check_input(model, "model")
    if model.suffix == ".bn":
        options.without_compiling(model)
        held = variants.described(model)
        module = loaded(model, options.threads)
    else:
        held, module = [], compiled(model, options)
    calls = module.executable.steps
    info = dict(module.executable.info)
    if options.as_json:
        kernels = [{"kernel": c.label, "node": c.node, "slow": module.slow.get(c.label, "")} for c in calls]
        print_json({**facts(module), "graph": module.graph, "kernels": kernels, "info": info, "variants": held})
        return
    print_variants(held, module.variant)
    print(signature_text(module))
    print(module.graph)
    print(memory_text(module))
    chosen = {row["kernel"]: row for row in info.pop("kernels", ())}
    live = info.pop("live", ())
    if live:
        print(f"live: at most {max(live)} bytes, over {len(live)} steps")
    for key, value in info.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{name}={each}" for name, each in value.items())
        if value or value == 0:
            print(f"{key}: {value}")
    print(f"{len(calls)} kernel calls:")
    for call in calls:
        why, row = module.slow.get(call.label), chosen.get(call.label)
        how = "" if row is None else f"  by {template_text(row)}"
        print(f"  {call.label}  {call.node}{how}{f'  (slow: {why})' if why else ''}")


def template_text(row: Mapping[str, Any]) -> str:
    """The template of a kernel and what was chosen in it, as what a module holds of it says."""
    choice = ", ".join(f"{name}={value}" for name, value in row.get("choice", {}).items())
    return f"{row.get('template', '?')}({choice}){', from records' if row.get('recorded') else ''}"


def print_variants(held: Sequence[Mapping[str, Any]], taken: str = "") -> None:
    """A line for each variant of a file: its bytes, and whether it runs here; ``taken``: the one that was loaded."""
    for v in held:
        state = f"was compiled for {v['obstacle']}" if v["obstacle"] else "runs here"
        print(f"variant {v['name']}: {v['bytes'] / 1e6:.1f} MB; {'taken' if v['name'] == taken else state}")


def memory_text(module: Any) -> str:
    """The module's memory in one line."""
    return ", ".join(f"{part} {nbytes / 1e6:.2f} MB" for part, nbytes in module.memory.items())


def compiled(model: Path, options: CompileOptions) -> bn.Module:
    """Compiles the model with a progress bar on the terminal's error stream."""
    with progress_bar(options.as_json) as report:
        return whole(bn.compile(model, progress=report, records=options.records, **options.arguments), model)


def loaded(artifact: Path, threads: int | None) -> bn.Module:
    """Compiled module in a file. Raises ModelError for a model that is compiled at its calls."""
    return whole(bn.load(artifact, threads), artifact)


def whole(made: Any, path: Path) -> bn.Module:
    """The module itself. Raises ModelError for a model that is compiled at its calls."""
    if not isinstance(made, bn.Module):
        raise ModelError(
            f"'{path}': found a model that is compiled at its calls, for what they give; allowed: sizes and values "
            "that are known before (--shape, --dim, --fix), or burnish.compile in Python"
        )
    return made


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A callback (stage, steps done, steps in all) that draws one bar, which disappears at the end."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not on_terminal()) as progress:
        task = progress.add_task("compiling", total=None)

        def report(stage: str, done: int, total: int) -> None:
            progress.update(task, description=stage, completed=done, total=total)

        yield report
