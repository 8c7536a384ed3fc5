"""The size report counts files and functions, methods under their class's name, nested functions in their parent."""

from pathlib import Path

from tools.size import Piece, report

SOURCE = """
class Shape:
    def area(self):
        return 1


def outer():
    def inner():
        return 1

    return inner
"""


def test_report(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text(SOURCE)
    (package / "b.py").write_text("x = 1\n")
    summaries = report(package)
    assert (summaries["files"].count, summaries["files"].total, summaries["files"].median) == (2, 12, 6)
    assert summaries["functions"].largest == [Piece("package/a.py:outer", 5), Piece("package/a.py:Shape.area", 2)]
    assert summaries["functions"].over_limit == 0
