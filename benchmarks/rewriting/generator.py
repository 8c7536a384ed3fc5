"""The generator of substitutions: time and memory of the enumeration, and what every pruning step leaves (table 2.3).

Asked: both of the papers' domains to size 4 in 10 s and 1 GB on one core, size 5 in 3 min and 8 GB, and the same terms
in every run: ``digest`` is of all that was found.
"""

from __future__ import annotations

import hashlib
import os
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from burnish.rewrite.domains import DOMAINS
from burnish.rewrite.enumerate import Terms, enumerate_terms
from burnish.rewrite.generate import generate
from burnish.rewrite.prune import Nodes, prune

PAPERS = ("matrix", "convolution")
SIZE = 4
LARGEST = 5
THESIS = "thesis  size 1 to 4  pairs 28744  renamed 17346  no_common_subgraph 743 (28744 / 39; the table prints 43)"


def run(size: int = SIZE, largest: int = LARGEST, rules: bool = False) -> list[dict[str, Any]]:
    """A row for each domain and size of terms; each domain in a process of its own, so that its memory is its own.

    ``rules``: also makes the substitutions of each domain.
    """
    rows = []
    for name in PAPERS:
        with _process() as alone:
            rows += alone.submit(_domain, name, range(1, size + 1)).result()
        if largest > size:
            with _process() as alone:
                rows += alone.submit(_domain, name, [largest]).result()
    for name in DOMAINS if rules else ():
        with _process() as alone:
            rows.append(alone.submit(_rules, name).result())
    return rows


def _process() -> ProcessPoolExecutor:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # one core: read by the child
    return ProcessPoolExecutor(1, get_context("spawn"))


def _peak_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _domain(name: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
    began = time.process_time()
    terms = enumerate_terms(DOMAINS[name], max(sizes))
    seconds = time.process_time() - began
    nodes = Nodes(terms, max(sizes) - 1)
    rows = []
    for n in sizes:
        left = prune(nodes, n)
        rows.append(
            {
                "domain": name, "size": n, "terms": left.terms, "pairs": left.pairs, "renamed": left.renamed,
                "no_common_subgraph": len(left.kept),
            }
        )  # fmt: skip
    rows[-1] |= {
        "digest": _digest(terms),
        "enumeration_cpu_seconds": round(seconds, 2),
        "cpu_seconds": round(time.process_time() - began, 2),
        "peak_megabytes": _peak_megabytes(),
    }
    return rows


def _digest(terms: Terms) -> str:
    """A hash of all terms and their classes."""
    found = hashlib.sha256()
    for level in terms.levels:
        for part in (level.operator, level.a, level.b, level.value, level.first):
            found.update(part.data)
    return found.hexdigest()[:12]


def _rules(name: str) -> dict[str, Any]:
    began = time.process_time()
    (found,) = generate([DOMAINS[name]])
    return {
        "domain": name, "rules": len(found.rules), "laws": found.laws, "savings": found.savings, "merges": found.merges,
        "refused": found.refused, "cpu_seconds": round(time.process_time() - began, 2),
        "peak_megabytes": _peak_megabytes(),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text, above them what the thesis' table counts of its own operators, to size 4."""
    return "\n".join([THESIS, *("  ".join(f"{key} {value}" for key, value in row.items()) for row in rows)])
