"""The superoptimizer: what its parts find and how long they take.

`python -m benchmarks.rewrite [SECTION ...] [--json]`; each section is a module of benchmarks/rewriting with ``run`` and
``table``.
"""

import argparse
import importlib
import json
import sys

SECTIONS = ("generator", "verifier", "search", "speed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(SECTIONS)}")
    report = {}
    for name in arguments.sections or SECTIONS:
        section = importlib.import_module(f"benchmarks.rewriting.{name}")
        report[name] = section.run()
        if not arguments.json:
            print(f"{name}\n{section.table(report[name])}")
    if arguments.json:
        print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
