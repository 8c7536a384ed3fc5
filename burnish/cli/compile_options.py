"""Options of commands for models: how to compile one, where to measure it, how to print, what files come of a plan."""

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
    ``records``: tuning records, whose winning kernels are used. ``choose``: how the algorithms of convolutions are
    chosen, predicted (the default) or measured where predictions are close. ``precision``: what products may round,
    strict or, on GPUs, tf32.
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
    choose: str | None = None
    precision: str | None = None
    cache_dir: CacheDir = None
    as_json: Json = False

    def __post_init__(self) -> None:
        """Raises ParameterError for texts of shapes, dimensions or values that cannot be read."""
        _ = self.arguments

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """Arguments of ``burnish.compile`` except records; ``fuse`` and ``choose`` only where they are given, since
        tuning has no such choices.
        """
        return {
            "target": self.target if self.precision is None else f"{self.target},{self.precision}",
            "threads": self.threads, "exact": self.exact, "cache_dir": self.cache_dir,
            "shapes": parse_dims(self.dims or (), parse_shapes(self.shapes or ())), "rewrite": self.rewrite,
            "fix": parse_fixed(self.fixed or ()), **({} if self.fuse else {"fuse": False}),
            **({} if self.choose is None else {"choose": self.choose}),
        }  # fmt: skip

    def without_compiling(self, artifact: Path) -> None:
        """Raises ParameterError where an option says how to compile what is compiled already."""
        given = {
            "--target": self.target != "cpu", "--exact": self.exact, "--records": self.records is not None,
            "--shape": bool(self.shapes), "--dim": bool(self.dims), "--fix": bool(self.fixed),
            "--no-rewrite": not self.rewrite, "--no-fuse": not self.fuse, "--choose": self.choose is not None,
            "--precision": self.precision is not None,
        }  # fmt: skip
        for option, is_given in given.items():
            if is_given:
                raise ParameterError(f"{option}: '{artifact}' is compiled already; allowed: with an ONNX file")


@dataclass(frozen=True)
class BoardOptions:
    """Measuring boards of a kind, in a pool.

    ``device``: measures on boards of this kind, see `burnish device`. ``pool``: their pool, by default this process's,
    of the user's table. ``key``: the pool's key, by default next to the table. ``owner``: whose share of the boards it
    is, by default user and process. ``priority``: of its leases, of which higher ones come first.
    """

    device: Annotated[str | None, typer.Option(metavar="KIND")] = None
    pool: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None
    key: Annotated[Path | None, typer.Option(metavar="FILE")] = None
    owner: str | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        """Raises ParameterError where there is no kind of boards to lease."""
        if self.device is None and (self.pool, self.key, self.owner, self.priority) != (None, None, None, 0):
            raise ParameterError("tune: found --pool, --key, --owner or --priority; allowed: with --device")


@dataclass(frozen=True)
class PlanFiles:
    """The files that come of a plan.

    ``output``: a file for the strategy, which `burnish train` reads. ``timeline``: a file for a picture of the
    predicted step (.svg). ``annotations``: a file for placements of PyTorch's DTensor (.json), where these can say it.
    ``force``: replaces an output file of another kind.
    """

    output: Annotated[Path | None, typer.Option("--output", "-o")] = None
    timeline: Path | None = None
    annotations: Path | None = None
    force: bool = False
