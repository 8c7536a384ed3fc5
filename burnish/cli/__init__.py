"""The command line: `burnish COMMAND`; ``COMMANDS`` names the function of each, ``burnish --help`` lists them."""

import os
import signal
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

import burnish
from burnish.cli import clock
from burnish.cli.commands import CommandGroup, group_class
from burnish.errors import BurnishError, InputError, ModelError, ParameterError, PlanError, TargetError

__all__ = ["app", "main"]

FAILED, MISUSED = 1, 2  # exit status: the work failed, or what was asked for cannot be done
_in_main = False  # whether the command is all that the process does, so that both began at the same time
INTERRUPTED = 128 + signal.SIGINT  # as shells report what Ctrl-C ended

# Functions by the names of commands, and of groups with what they are for. A module is imported when its command is
# called: the compiler takes a second to import.
COMMANDS: Mapping[str, str | CommandGroup] = {
    "compile": "models:compile_command",
    "tune": "models:tune",
    "bench": "models:bench",
    "check": "models:check",
    "inspect": "models:inspect",
    "export": "models:export",
    "run": "models:run",
    "profile": "models:profile",
    "report": "models:report",
    "serve": "serving:serve",
    "plan": CommandGroup(
        "Plan memory, parallel execution or paging of a model before it runs.",
        {name: f"planning:{name}" for name in ("memory", "devices", "paging")},
    ),
    "quantize": "quantizing:quantize",
    "train": "train:train",
    "boost": CommandGroup(
        "Train boosted trees on files, predict with them, look into them.",
        {"train": "boost:train", "predict": "boost:predict", "inspect": "boost:inspect"},
    ),
    "gnn": CommandGroup(
        "Train graph neural networks on whole graphs, and use them.",
        {name: f"gnn:{name}" for name in ("train", "infer", "partition", "info", "convert")},
    ),
    "records": CommandGroup(
        "Show, join and compact files of tuning records, and learn from them.",
        {name: f"records:{name}" for name in ("show", "merge", "compact", "train")},
    ),
    "rewrite": CommandGroup(
        "Graph substitutions: generate, list, verify and apply them.",
        {
            "verify": "rewriting:verify", "list": "rewriting:list_", "generate": "rewriting:generate",
            "apply": "rewriting:apply_",
        },
    ),
    "device": CommandGroup(
        "Boards to measure on: name them, test them, share them among tuners.",
        {"add": "devices:add", "list": "devices:list_command", "test": "devices:test", "serve": "devices:serve"},
    ),
    "cache": CommandGroup(
        "The folder of compiled kernels: where it is, what it holds; empty it.",
        {name: f"caching:{name}" for name in ("path", "info", "clear")},
    ),
}  # fmt: skip

app = typer.Typer(
    cls=group_class(COMMANDS),
    help="Burnish compiles machine-learning models to fast native code, and boosts trees.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    except (ParameterError, TargetError, InputError, ModelError, PlanError) as error:
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
