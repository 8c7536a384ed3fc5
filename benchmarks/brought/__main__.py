"""`python -m benchmarks.brought`: see the package."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import benchmarks.brought as package
from benchmarks.brought import build, report
from benchmarks.brought.judge import Verdict
from benchmarks.brought.recipe import Recipe, Store
from benchmarks.provenance import stored

LIMIT = 600  # seconds for one model


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.brought", description=package.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--set", action="append", choices=[*build.FAMILIES, "small"], help="default: all but small")
    parser.add_argument("--small", action="store_true", help="a few models of every kind, minutes: --set small")
    parser.add_argument("--only", default="*", help="a pattern of names, such as 'skl-*'")
    parser.add_argument("--folder", type=Path, help="where models are kept")
    parser.add_argument("--models", type=Path, help="a folder of models of one's own instead: .onnx with .npz")
    parser.add_argument("--threads", type=int, default=2, help="of each side")
    parser.add_argument("--seconds", type=float, default=2.0, help="for timing one model; 0: none")
    parser.add_argument("--cpu-time", action="store_true", help="time by CPU seconds, one thread each")
    parser.add_argument("--phases", action="store_true", help="profile compilations of more than 5 CPU s")
    parser.add_argument("--limit", type=int, default=LIMIT, help="seconds for one model")
    parser.add_argument("--build", action="store_true", help="build models alone")
    parser.add_argument("--json", type=Path, help="a file for the verdicts")
    parser.add_argument("--continue", dest="resume", action="store_true", help="keep the verdicts of that file")
    arguments = parser.parse_args()
    found = _folder(arguments) if arguments.models else _built(arguments)
    if arguments.build:
        return 0
    verdicts = _kept(arguments.json) if arguments.resume and arguments.json else []
    known = {verdict.name for verdict in verdicts}
    for family, path in found:
        if path.stem in known:
            continue
        verdict = apart(path, family, arguments)
        print(report.row(verdict), flush=True)
        verdicts.append(verdict)
        if arguments.json:
            rows = [asdict(verdict) for verdict in verdicts]
            arguments.json.write_text(stored({"summary": report.summary(verdicts), "rows": rows}, indent=1))
    print(report.text(verdicts))
    return int(any(verdict.status not in ("right", "refused", "bad") for verdict in verdicts))


def _folder(arguments: argparse.Namespace) -> list[tuple[str, Path]]:
    paths = sorted(arguments.models.glob("*.onnx"))
    return [(arguments.models.name, p) for p in paths if fnmatch.fnmatch(p.stem, arguments.only)]


def _built(arguments: argparse.Namespace) -> list[tuple[str, Path]]:
    """The models chosen, after those that are not there yet are built."""
    sets = arguments.set or (["small"] if arguments.small else list(build.FAMILIES))
    store = Store(arguments.folder)
    recipes = [recipe for recipe in build.chosen(sets) if fnmatch.fnmatch(recipe.name, arguments.only)]
    _report_missing(recipes, store)
    for name, message in build.build(recipes, store):
        print(f"not built: {name}: {message}", flush=True)
    return [(recipe.family, store.path(recipe)) for recipe in recipes if store.has(recipe)]


def _report_missing(recipes: Sequence[Recipe], store: Store) -> None:
    missing: dict[str, int] = {}
    for recipe in recipes:
        for name in [] if store.has(recipe) else recipe.missing:
            missing[name] = missing.get(name, 0) + 1
    if missing:
        each = ", ".join(f"{name} ({count} models)" for name, count in missing.items())
        print(f"packages not installed: {each}; see the docstring of benchmarks/brought/__init__.py", flush=True)


def apart(path: Path, family: str, arguments: argparse.Namespace) -> Verdict:
    """The verdict on a model in a process of its own, so that a crash or a hang is an outcome."""
    command = [sys.executable, "-m", "benchmarks.brought.judge", str(path), "--seconds", str(arguments.seconds)]
    command += ["--threads", str(1 if arguments.cpu_time else arguments.threads)]
    command += ["--cpu-time"] * arguments.cpu_time + ["--phases"] * arguments.phases
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=arguments.limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Verdict(path.stem, family, "hang", f"more than {arguments.limit} s")
    try:
        verdict = Verdict(**json.loads(out.strip().rpartition("\n")[2]))
    except (ValueError, TypeError):
        return Verdict(path.stem, family, "crash", f"exit status {process.returncode}: {errors.strip()[-400:]}")
    verdict.family = family
    return verdict


def _kept(path: Path) -> list[Verdict]:
    return [Verdict(**row) for row in json.loads(path.read_text())["rows"]] if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
