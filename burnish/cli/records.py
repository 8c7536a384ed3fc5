"""`burnish records show | merge | compact | train`: files of tuning records, and the cost model they teach."""

from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.cli.compile_options import Json
from burnish.cli.output import check_input, check_output, check_records, print_answer

# Records take a second to import, which `--help` need not wait for.

File = Annotated[Path, typer.Argument(help="A file of tuning records, such as records.jsonl.", show_default=False)]


def show(
    file: File, won: Annotated[bool, typer.Option("--won", help="Only winners.")] = False, as_json: Json = False
) -> None:
    """List the fastest candidate of every kernel, machine and setting, and how many were tried."""
    rows = _summary(file, won)
    lines = []
    for row in rows:
        found = f"{row['best_us']} µs by {row['template']} {row['choice']}"
        best = "none succeeded" if row["best_us"] is None else found
        setting = f"{row['threads']} threads, {'cold' if row['cold'] else 'hot'}"
        lines.append(f"{row['key'][:12]} {setting}: {row['tried']} tried, {row['failed']} failed; {best}")
    print_answer(as_json, {"records": str(file), "kernels": rows}, *lines)


def merge(
    file: File,
    others: Annotated[list[Path], typer.Argument(help="Files to take records from.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Add the records of other files that FILE does not hold."""
    from burnish.tune.records import RecordFile

    check_records(file)
    for other in others:
        check_input(other, "records")
    added = RecordFile(file).merge(others)
    print_answer(as_json, {"records": str(file), "added": added}, f"{file}: {added} records added")


def compact(
    file: File,
    keep: Annotated[int, typer.Option(min=1, help="Candidates kept of every kernel and setting.")] = 8,
    as_json: Json = False,
) -> None:
    """Keep only winners and the fastest candidates of every kernel and setting."""
    from burnish.tune.records import RecordFile

    check_input(file, "records")
    check_records(file)
    dropped = RecordFile(file).compact(keep)
    print_answer(as_json, {"records": str(file), "dropped": dropped}, f"{file}: {dropped} records dropped")


def train(
    files: Annotated[list[Path], typer.Argument(help="Files of tuning records.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model's file.")] = Path("prior.json"),
    seed: Annotated[int, typer.Option(help="Seed of the training.")] = 0,
    as_json: Json = False,
) -> None:
    """Train the cost model that searches start from, and say how well it ranks kernels it has not seen."""
    from burnish.tune.pretrained import save
    from burnish.tune.pretrained import train as trained_on
    from burnish.tune.records import RecordFile

    check_output(output, inputs=files)
    for file in files:
        check_input(file, "records")
    document = trained_on([record for file in files for record in RecordFile(file).all()], seed)
    save(document, output)
    how = document["trained"]
    found = how["held_out"]
    print_answer(
        as_json, {"output": str(output), **how},
        f"{output}: {output.stat().st_size / 1e3:.0f} kB, from {how['records']} records of {how['kernels']} kernels",
        f"of kernels held out, {found['pairs_in_order']:.0%} of pairs are in order; the 8 that it would try first "
        f"reach {found['reached_by_8']:.0%} of the best speed measured",
    )  # fmt: skip


def _summary(file: Path, won: bool) -> list[dict[str, Any]]:
    from burnish.tune.records import RecordFile

    check_input(file, "records")
    groups: dict[tuple[str, int, str, bool], list[Any]] = {}
    for record in RecordFile(file).all():
        if record.won or not won:
            groups.setdefault((record.target, record.threads, record.key, record.cold), []).append(record)
    rows = []
    for (target, threads, key, cold), records in groups.items():
        good = [r for r in records if r.outcome == "ok"]
        best = min(good, key=lambda r: r.seconds, default=None)
        rows.append({
            "target": target, "threads": threads, "key": key, "cold": cold, "tried": len(records),
            "failed": len(records) - len(good), "best_us": round(1e6 * best.seconds, 2) if best else None,
            "template": best.template if best else None, "choice": dict(best.choice) if best else None,
        })  # fmt: skip
    return rows
