"""Options that commands share: how to compile a model, where to run it, how to print."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.cli.sizes import parse_dims, parse_fixed, parse_shapes
from burnish.errors import ParameterError

OnnxModel = Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)]
Model = Annotated[Path, typer.Argument(help="An ONNX file, or a compiled .bn file.", show_default=False)]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads to run on. Default: one for each core.")]
CacheDir = Annotated[Path | None, typer.Option(help="Where compiled kernels are kept between runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an output file that this command did not write.")]


@dataclass(frozen=True)
class CompileOptions:
    """Compilation options, and whether to print JSON instead of text and bars. ``target`` may be several CPUs.

    ``target``: the machine to compile for. ``exact``: no transformation that changes rounding, such as Winograd.
    ``shapes``: an input's shape, such as x=8,3,224,224 or x=n,3,224,224. ``dims``: a dimension that the model leaves
    open, its size, or bounds and the size to suit best. ``fixed``: an input that never changes, such as sr=16000.
    ``rewrite``: whether to look for an equal, faster graph. ``fuse``: whether several operators may become one kernel.
    ``records``: tuning records, whose winning kernels are used.
    """

    target: Annotated[Any, typer.Option(parser=str, metavar="TEXT")] = "cpu"
    threads: Threads = None
    exact: bool = False
    shapes: Annotated[list[str] | None, typer.Option("--shape", metavar="NAME=EXTENTS")] = None
    dims: Annotated[list[str] | None, typer.Option("--dim", metavar="NAME=N|LOW..HIGH[:N]")] = None
    fixed: Annotated[list[str] | None, typer.Option("--fix", metavar="NAME=VALUE")] = None
    rewrite: bool = True
    fuse: bool = True
    records: Path | None = None
    cache_dir: CacheDir = None
    as_json: Json = False

    def __post_init__(self) -> None:
        """Raises ParameterError for texts of shapes, dimensions or values that cannot be read."""
        _ = self.arguments

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """Arguments of ``burnish.compile`` except records, and ``fuse`` only where it is off, since tuning has no such
        choice.
        """
        return {
            "target": self.target, "threads": self.threads, "exact": self.exact, "cache_dir": self.cache_dir,
            "shapes": parse_dims(self.dims or (), parse_shapes(self.shapes or ())), "rewrite": self.rewrite,
            "fix": parse_fixed(self.fixed or ()), **({} if self.fuse else {"fuse": False}),
        }  # fmt: skip

    def without_compiling(self, artifact: Path) -> None:
        """Raises ParameterError where an option says how to compile what is compiled already."""
        given = {
            "--target": self.target != "cpu", "--exact": self.exact, "--records": self.records is not None,
            "--shape": bool(self.shapes), "--dim": bool(self.dims), "--fix": bool(self.fixed),
            "--no-rewrite": not self.rewrite, "--no-fuse": not self.fuse,
        }  # fmt: skip
        for option, is_given in given.items():
            if is_given:
                raise ParameterError(f"{option}: '{artifact}' is compiled already; allowed: with an ONNX file")
