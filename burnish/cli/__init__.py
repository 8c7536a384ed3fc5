"""The command line: `burnish COMMAND`, one module for each command; `burnish --help` lists them."""

import os
import signal
import sys
from typing import Annotated, Any

import typer

import burnish
from burnish.cli import boost, caching, clock, devices, gnn, models, records, rewriting, train
from burnish.errors import BurnishError, InputError, ModelError, ParameterError, TargetError

__all__ = ["app", "main"]

FAILED, MISUSED = 1, 2  # exit status: the work failed, or what was asked for cannot be done
_in_main = False  # whether the command is all that the process does, so that both began at the same time
INTERRUPTED = 128 + signal.SIGINT  # as shells report what Ctrl-C ended

app = typer.Typer(
    help="Burnish compiles machine-learning models to fast native code, and boosts trees.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models.app)
app.add_typer(train.app)
app.add_typer(boost.app, name="boost")
app.add_typer(gnn.app, name="gnn")
app.add_typer(records.app, name="records")
app.add_typer(rewriting.app, name="rewrite")
app.add_typer(devices.app, name="device")
app.add_typer(caching.app, name="cache")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"burnish {burnish.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if not _in_main:
        clock.begin()


def main() -> None:
    """Runs the command. What goes wrong is one line on standard error, and the exit status says whose fault it is.

    2: what was asked for cannot be done; 1: the work failed; 130: interrupted by Ctrl-C. With BURNISH_DEBUG set, what
    nobody foresaw keeps its traceback.
    """
    from burnish.cli.output import show_warnings

    global _in_main
    show_warnings()
    clock.begin(clock.process_began())
    try:
        _in_main = True
        status = app(prog_name="burnish", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        status = _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader has left, as `head` does. What is still in the buffer goes nowhere, and not into a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = FAILED
    except (ParameterError, TargetError, InputError, ModelError) as error:
        status = _fail(str(error), MISUSED)
    except (BurnishError, OSError) as error:
        status = _fail(str(error), FAILED)
    except Exception as error:
        status = _unforeseen(error)
    finally:
        _in_main = False
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> int:
    print(f"burnish: {message}", file=sys.stderr)
    return status


def _unforeseen(error: Exception) -> int:
    """The exit status for an error of the command line's parser, or for one that is a fault of Burnish."""
    say: Any = getattr(error, "format_message", None)
    if say is None:
        if os.environ.get("BURNISH_DEBUG"):
            raise error
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        return _fail(f"internal error: {what}; please report it (BURNISH_DEBUG=1 shows where it arose)", FAILED)
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "burnish"
    text = say()
    if not text.strip() or type(error).__name__ == "NoArgsIsHelpError":  # the help of a group without a command
        print(text, file=sys.stderr)
        return MISUSED
    return _fail(f"{text.rstrip('.')} (see {command} --help)", MISUSED)
