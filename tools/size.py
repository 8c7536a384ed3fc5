"""The size report: median and largest file and function of the package. `python -m tools.size [--json]`."""

import argparse
import ast
import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_LIMIT = 400
FUNCTION_LIMIT = 60


@dataclass(frozen=True)
class Piece:
    """A file or a function and its length in lines, blank lines and comments included."""

    name: str
    lines: int


@dataclass(frozen=True)
class Summary:
    """Lengths of all pieces of one kind, in lines."""

    count: int
    total: int
    median: float
    limit: int
    over_limit: int
    largest: list[Piece]


def functions(file: Path, name: str) -> Iterator[Piece]:
    """Every function and method of the file; a nested function is counted in its parent only."""
    waiting: list[tuple[str, ast.AST]] = [("", ast.parse(file.read_text(encoding="utf-8")))]
    while waiting:
        prefix, node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                assert child.end_lineno is not None
                yield Piece(f"{name}:{prefix}{child.name}", child.end_lineno - child.lineno + 1)
            elif isinstance(child, ast.ClassDef):
                waiting.append((f"{prefix}{child.name}.", child))


def summarize(pieces: list[Piece], limit: int, show: int = 5) -> Summary:
    """Count, total and median of lines, how many pieces are over the limit, and the ``show`` largest."""
    lengths = [piece.lines for piece in pieces]
    return Summary(
        count=len(lengths),
        total=sum(lengths),
        median=statistics.median(lengths) if lengths else 0,
        limit=limit,
        over_limit=sum(length > limit for length in lengths),
        largest=sorted(pieces, key=lambda piece: -piece.lines)[:show],
    )


def report(root: Path) -> dict[str, Summary]:
    """Summaries of the files and of the functions below the folder `root`."""
    files = sorted(root.rglob("*.py"))
    names = {file: str(file.relative_to(root.parent)) for file in files}
    lengths = [Piece(names[file], len(file.read_text(encoding="utf-8").splitlines())) for file in files]
    return {
        "files": summarize(lengths, FILE_LIMIT),
        "functions": summarize([piece for file in files for piece in functions(file, names[file])], FUNCTION_LIMIT),
    }


def main() -> None:
    """The command line: prints the summaries of a folder's files and functions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("burnish"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    summaries = report(arguments.folder.resolve())
    if arguments.json:
        print(json.dumps({kind: asdict(summary) for kind, summary in summaries.items()}, indent=2))
        return
    for kind, summary in summaries.items():
        print(
            f"{kind}: {summary.count}, median {summary.median:g} lines, total {summary.total}, "
            f"{summary.over_limit} over {summary.limit}"
        )
        for piece in summary.largest:
            print(f"  {piece.lines:5d}  {piece.name}")


if __name__ == "__main__":
    main()
