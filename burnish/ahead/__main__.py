"""`python -m burnish.ahead`: compiles ahead for baseline CPUs. With arguments: one of the processes that do so."""

import sys

from burnish.ahead.bake import again, bake
from burnish.ahead.tasks import run


def main(arguments: list[str]) -> None:
    """``TASK``: runs a task. ``--again FOLDER SHARE SHARES``: compiles a share of a folder's functions for this CPU."""
    if arguments[:1] == ["--again"]:
        again(arguments[1], *map(int, arguments[2:]))
    elif arguments:
        run(arguments[0])
    else:
        for path in bake():
            print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
