"""The superoptimizer: what its parts find and how long they take.

`python -m benchmarks.rewrite [SECTION ...] [--json]`; each section is a module of benchmarks/rewriting with ``run`` and
``table``. `speed MODEL ... [--check]` takes only these models, and compares the graphs by the definitions, in float64;
`runtimes MODEL ...` too takes only these. `groups`, `uses`, `layouts`, `runtimes` and `sequences` are figures 2.9, 2.10
with 2.11, 2.12, 2.7 and 2.8 of Jia's thesis.
"""

import argparse
import importlib
import sys

from benchmarks.harness import check_names
from benchmarks.provenance import stored
from benchmarks.rewriting import speed

SECTIONS = ("generator", "verifier", "search", "speed", "groups", "uses", "layouts", "runtimes", "sequences")
OF_MODELS = ("speed", "runtimes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "sections", nargs="*", help=f"of {', '.join(SECTIONS)}; default: all; behind speed or runtimes also models"
    )
    parser.add_argument("--check", action="store_true", help="of speed: also compare values, which takes minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    sections = [name for name in arguments.sections if name in SECTIONS]
    models = [name for name in arguments.sections if name not in SECTIONS]
    allowed = (*SECTIONS, *(speed.NAMES if set(sections) & set(OF_MODELS) else ()))
    check_names(parser, models, allowed)
    report = {}
    for name in sections or SECTIONS:
        section = importlib.import_module(f"benchmarks.rewriting.{name}")
        if name in OF_MODELS:
            given = models or section.NAMES
            report[name] = speed.run(given, arguments.check) if section is speed else section.run(given)
        else:
            report[name] = section.run()
        if not arguments.json:
            print(f"{name}\n{section.table(report[name])}")
    if arguments.json:
        print(stored(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
