"""The generator of substitutions: what every pruning step leaves (table 2.3), the substitutions, time and memory.

Asked: each of the papers' domains to size 4 in 10 s and 1 GB on one core, to size 5 in 3 min and 8 GB, and the same
text in every run: ``digest`` is of the substitutions.
"""

from __future__ import annotations

import hashlib
import os
import resource
import time
from collections.abc import Sequence
from typing import Any

from burnish.rewrite.generation.domains import DOMAINS
from burnish.rewrite.generation.generate import generate, text
from burnish.workers import ResourceLimits, spawn

PAPERS = ("matrix", "convolution")
SIZES = (4, 5)
THESIS = "thesis  size 1 to 4  pairs 28744  renamed 17346  no_common_subgraph 743 (28744 / 39; the table prints 43)"


def run(sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """A row for each domain and size, each measured in a process of its own, so that its memory is its own; before it a
    row for each size of terms.
    """
    rows = []
    for name in PAPERS:
        for size in sizes:
            os.environ["OPENBLAS_NUM_THREADS"] = "1"  # one core: read by the child
            with spawn() as alone:
                outcome = alone.run(_domain, (name, size), ResourceLimits(memory=None))
            if outcome.kind != "ok":
                raise SystemExit(f"generator: domain {name} to size {size}: {outcome.detail}")
            found = outcome.value
            rows += found if size == max(sizes) else found[-1:]
    return rows


def _domain(name: str, size: int) -> list[dict[str, Any]]:
    began = time.process_time()
    (found,) = generate([DOMAINS[name]], size)
    rows: list[dict[str, Any]] = [
        {
            "domain": name, "size": left.size, "terms": left.terms, "pairs": left.pairs, "renamed": left.renamed,
            "no_common_subgraph": len(left.kept),
        }
        for left in found.pruned
    ]  # fmt: skip
    rows.append(
        {
            "domain": name,
            "to_size": size,
            "rules": len(found.rules),
            "laws": found.laws,
            "savings": found.savings,
            "merges": found.merges,
            "joint": found.joint,
            "refused": found.refused,
            "cpu_seconds": round(time.process_time() - began, 2),
            "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "digest": hashlib.sha256(text([found]).encode()).hexdigest()[:12],
        }
    )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text, above them what the thesis' table counts of its own operators, to size 4."""
    return "\n".join([THESIS, *("  ".join(f"{key} {value}" for key, value in row.items()) for row in rows)])
