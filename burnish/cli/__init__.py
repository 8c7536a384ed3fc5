"""The command line: `burnish compile | tune | bench | check | inspect | records | boost | rewrite`, and `--json`."""

import sys

import typer

from burnish.cli import boost, models, records, rewriting
from burnish.errors import BurnishError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Burnish compiles machine-learning models to fast native code, and boosts trees.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(models.app)
app.add_typer(boost.app, name="boost")
app.add_typer(records.app, name="records")
app.add_typer(rewriting.app, name="rewrite")


def main() -> None:
    """Runs the command; an error of the user's making, or a file's, is one line and exit status 2."""
    try:
        app()
    except (BurnishError, OSError) as error:
        print(f"burnish: {error}", file=sys.stderr)
        sys.exit(2)
