"""The generator of substitutions: time and memory of the enumeration, and what every pruning step leaves (table 2.3).

Asked: both of the papers' domains to size 4 in 10 s and 1 GB on one core, size 5 in 3 min and 8 GB, and the same terms
in every run: ``digest`` is of all that was found. Of size 5 the pairs are counted, not pruned.
"""

from __future__ import annotations

import hashlib
import os
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from burnish.rewrite.domains import DOMAINS
from burnish.rewrite.enumerate import Terms, enumerate_terms
from burnish.rewrite.generate import generate
from burnish.rewrite.prune import Nodes, orbits, prune, renamings

SIZE = 4
LARGEST = 5


def run(size: int = SIZE, largest: int = LARGEST, rules: bool = False) -> list[dict[str, Any]]:
    """A row for each domain and size of terms; each domain in a process of its own, so that its memory is its own.

    ``largest``: the size to which terms are only counted. ``rules``: also makes the substitutions, of terms of at most
    three operators.
    """
    rows = []
    for name in DOMAINS:
        with _process() as alone:
            rows += alone.submit(_domain, name, size).result()
        if largest > size:
            with _process() as alone:
                rows.append(alone.submit(_counted, name, largest).result())
        if rules:
            with _process() as alone:
                rows.append(alone.submit(_rules, name, size).result())
    return rows


def _process() -> ProcessPoolExecutor:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # one core: read by the child
    return ProcessPoolExecutor(1, get_context("spawn"))


def _peak_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _domain(name: str, size: int) -> list[dict[str, Any]]:
    began = time.process_time()
    terms = enumerate_terms(DOMAINS[name], size)
    seconds, peak = time.process_time() - began, _peak_megabytes()
    nodes = Nodes(terms, size)
    label = orbits(len(nodes.value), renamings(nodes))
    rows = []
    for n in range(1, size + 1):
        left = prune(nodes, label, n)
        rows.append(
            {
                "domain": name, "size": n, "terms": left.terms, "pairs": left.pairs, "renamed": left.renamed,
                "no_common_subgraph": len(left.kept),
            }
        )  # fmt: skip
    rows[-1] |= {
        "digest": _digest(terms),
        "enumeration_cpu_seconds": round(seconds, 2),
        "peak_megabytes": peak,
        "cpu_seconds": round(time.process_time() - began, 2),
    }
    return rows


def _counted(name: str, size: int) -> dict[str, Any]:
    began = time.process_time()
    terms = enumerate_terms(DOMAINS[name], size)
    seconds, peak, level = time.process_time() - began, _peak_megabytes(), terms.levels[-1]
    return {
        "domain": name, "size": size, "terms": len(level.first), "pairs": int((~level.first).sum()),
        "digest": _digest(terms), "enumeration_cpu_seconds": round(seconds, 2), "peak_megabytes": peak,
    }  # fmt: skip


def _digest(terms: Terms) -> str:
    """A hash of all terms and their classes."""
    found = hashlib.sha256()
    for level in terms.levels:
        for part in (level.operator, level.a, level.b, level.value, level.first):
            found.update(part.data)
    return found.hexdigest()[:12]


def _rules(name: str, size: int) -> dict[str, Any]:
    began = time.process_time()
    (found,) = generate([DOMAINS[name]], min(size, 3))
    return {
        "domain": name, "rules": len(found.rules), "laws": found.laws, "savings": found.savings, "merges": found.merges,
        "refused": found.refused, "cpu_seconds": round(time.process_time() - began, 2),
        "peak_megabytes": _peak_megabytes(),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    return "\n".join("  ".join(f"{key} {value}" for key, value in row.items()) for row in rows)
