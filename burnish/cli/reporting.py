"""`burnish run`, `burnish profile`, `burnish report`: a model's answers, its kernels' times, a page about both."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import burnish as bn
from burnish.base.files import write_atomic
from burnish.cli.compile_options import CompileOptions
from burnish.cli.compiling import compiled, loaded
from burnish.cli.measuring import read_inputs
from burnish.cli.output import begins, check_input, check_output, print_answer, print_json, print_table
from burnish.driver.check import check
from burnish.driver.compilation import import_graph
from burnish.errors import ParameterError
from burnish.measure.samples import module_inputs
from burnish.report.collect import collected
from burnish.report.page import page
from burnish.report.profile import ModelProfile, chrome_trace, profile

is_npz, is_page, is_trace = begins(b"PK"), begins(b"<!doctype html>"), begins(b'{\n "traceEvents"')


def run(model: Path, inputs: Path | None, output: Path | None, seed: int, force: bool, options: CompileOptions) -> None:
    """Computes a model's outputs, prints what they are, and writes them as an .npz file."""
    if output is not None:
        check_output(output, inputs=[model], is_ours=is_npz, force=force)
    module = _module(model, options)
    given = _inputs(module, inputs, seed)
    found = module(**given)
    outputs = dict(zip((s.name for s in module.outputs), found if isinstance(found, tuple) else (found,), strict=True))
    if output is not None:
        with output.open("wb") as file:
            np.savez(file, **outputs)
    rows = {name: {"shape": list(value.shape), "dtype": str(value.dtype)} for name, value in outputs.items()}
    lines = [f"{name}: {value.dtype}{list(value.shape)} {_few(value)}" for name, value in outputs.items()]
    if inputs is None:
        lines.insert(0, f"inputs: random, by seed {seed}")
    print_answer(options.as_json, {"random": inputs is None, "outputs": rows, "file": output and str(output)}, *lines)


def show_profile(
    model: Path, inputs: Path | None, trace: Path | None, seed: int, force: bool, options: CompileOptions
) -> None:
    """Profile as a table, the longest step first, and as a trace."""
    if trace is not None:
        check_output(trace, inputs=[model], is_ours=is_trace, force=force)
    module = _module(model, options)
    found = profile(module, _inputs(module, inputs, seed))
    if trace is not None:
        write_atomic(trace, [chrome_trace(found, model.name).encode()])
    if options.as_json:
        steps = [asdict(k) | {"reached": k.reached} for k in found.kernels]
        print_json({"microseconds": found.call, "attributed": found.attributed, "steps": steps})
        return
    print_table(_profile_table(model.name, found))
    print(f"a call takes {found.call:.1f} µs; its steps are {100 * found.attributed:.0f} % of that")


def report(
    model: Path, output: Path, inputs: Path | None, checked: bool, seed: int, force: bool, options: CompileOptions
) -> None:
    """Writes the page of a model that is compiled now."""
    check_input(model, "model")
    if model.suffix == ".bn":
        raise ParameterError(f"report: '{model}' is compiled already; allowed: an ONNX file, whose passes are shown")
    check_output(output, inputs=[model], is_ours=is_page, force=force)
    given: dict[str, Any] = {}

    def sample(module: bn.Module) -> dict[str, np.ndarray]:
        given.update(_inputs(module, inputs, seed))
        return given

    def errors() -> list[dict[str, Any]]:
        own = {key: value for key, value in options.arguments.items() if key not in ("shapes", "fix", "choose")}
        graph = import_graph(model, options.arguments["shapes"], options.arguments["fix"])
        return [asdict(row) for row in check(graph, given, records=options.records, **own)]

    make = partial(compiled, model, options)
    data = collected(model.name, make, sample, errors if checked else None, options.records)
    write_atomic(output, [page(data).encode()])
    said = {"output": str(output), "microseconds": data["call"], "attributed": data["attributed"]}
    print_answer(options.as_json, said, f"{output}: {output.stat().st_size / 1e6:.1f} MB; open it in any browser")


def _module(model: Path, options: CompileOptions) -> bn.Module:
    check_input(model, "model")
    if model.suffix == ".bn":
        options.without_compiling(model)
        return loaded(model, options.threads)
    return compiled(model, options)


def _inputs(module: bn.Module, path: Path | None, seed: int) -> dict[str, np.ndarray]:
    if path is None:
        return module_inputs(module, seed)
    check_input(path, "--inputs")
    return read_inputs(path, module.inputs)


def _few(value: np.ndarray) -> str:
    """The first numbers of an array."""
    first = [f"{x:.6g}" if value.dtype.kind == "f" else str(x) for x in np.ravel(value)[:4]]
    return f"{' '.join(first)}{' …' if value.size > len(first) else ''}"


def _profile_table(name: str, found: ModelProfile) -> Table:
    table = Table(title=name)
    for heading in ("step", "template", "µs", "share", "bound µs", "bound by", "reached"):
        table.add_column(heading, justify="left" if heading in ("step", "template", "bound by") else "right")
    total = sum(k.microseconds for k in found.kernels) or 1.0
    for k in sorted(found.kernels, key=lambda k: -k.microseconds):
        least = "" if k.bound is None else f"{k.bound:.1f}"
        reached = "" if k.reached is None else f"{100 * k.reached:.0f} %"
        table.add_row(
            k.node or k.kernel, k.template, f"{k.microseconds:.1f}", f"{100 * k.microseconds / total:.0f} %", least,
            k.resource or "", reached,
        )  # fmt: skip
    return table
