"""`burnish serve`: compiled models behind the open inference protocol."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.cli.compile_options import Json, Threads
from burnish.cli.options import OptionsOf
from burnish.cli.output import print_answer
from burnish.cli.signatures import Declaration
from burnish.errors import ParameterError

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]FILE...", help="Compiled .bn files. Default name: FILE without .bn.", show_default=False
    ),
]


def serve(
    models: Models,
    server: Annotated[dict[str, Any], OptionsOf(Declaration("burnish.serve.options:ServeOptions"), omit=("token",))],
    token: Annotated[
        str | None,
        typer.Option(
            envvar="BURNISH_TOKEN", help="What requests must show as a bearer token, but for probes of health."
        ),
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Serve compiled models by the open inference protocol (KServe v2, REST) until SIGTERM, which loses no request."""
    import burnish
    from burnish.serve.options import ServeOptions
    from burnish.serve.server import Server

    options = ServeOptions(**server, token=token)
    files: dict[str, Path] = {}
    for text in models:
        name, given, path = text.rpartition("=") if "=" in text else ("", "", text)
        own = name if given else Path(path).stem
        if own in files:
            raise ParameterError(f"serve: found two models named {own!r}; allowed: NAME=FILE with names of their own")
        files[own] = Path(path)
    made = Server({name: burnish.load(path, threads) for name, path in files.items()}, options)
    report = {"address": made.address, "models": {name: str(path) for name, path in files.items()}}
    apart = [f"{name}: requests are not joined: {why}" for name, why in made.unbatched.items()]
    print_answer(as_json, report | {"unbatched": made.unbatched}, f"{made.address}: {', '.join(files)}", *apart)
    sys.stdout.flush()
    made.run()
