"""The report: verdicts by family, every slow or failing model with its cause, slow first answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from benchmarks import harness
from benchmarks.brought.judge import ALLOWED_RATIO, SLOW_FIRST, Verdict

FAR = 3.0  # times onnxruntime's: nobody would take Burnish
PERCENTILE = 0.95


def summary(verdicts: Sequence[Verdict]) -> dict[str, object]:
    """Counts, shares and times of verdicts; times are ratios to onnxruntime's, or CPU seconds to the first answer."""
    ratios = [v.ratio for v in verdicts if v.ratio]
    first = sorted(v.first_cpu for v in verdicts if v.first_cpu is not None)
    found: dict[str, object] = {"models": len(verdicts), **Counter(v.status for v in verdicts)}
    if ratios:
        found["timed"] = len(ratios)
        found["geometric_mean"] = round(harness.geometric_mean(ratios), 3)
        found["above_1.2"] = sum(v.slow for v in verdicts)
        found["above_3"] = sum(v.slow and min(v.ratio or 0, v.least_ratio or 0) > FAR for v in verdicts)
    if first:
        found["first_95"] = round(first[min(len(first) - 1, math.ceil(PERCENTILE * len(first)) - 1)], 2)
        found["first_most"] = round(first[-1], 2)
    return found


def text(verdicts: Sequence[Verdict]) -> str:
    """All that `python -m benchmarks.brought` prints in the end."""
    lines = [""]
    for family in (*dict.fromkeys(v.family for v in verdicts), "all"):
        chosen = [v for v in verdicts if family in ("all", v.family)]
        lines.append(f"{family}: " + ", ".join(f"{key} {value}" for key, value in summary(chosen).items()))
    failing = [v for v in verdicts if v.status not in ("right", "bad")]
    if failing:
        lines += ["", "not right:", *(f"  {v.name}: {v.status}, {v.message}" for v in failing)]
    slow = sorted((v for v in verdicts if v.slow), key=lambda v: -(v.ratio or 0.0))
    if slow:
        lines += ["", f"above {ALLOWED_RATIO} x onnxruntime's time:"]
        lines += [line for v in slow for line in slow_lines(v)]
        kinds = Counter(_kind(v.cause) for v in slow)
        lines += ["", "causes: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())]
    late = sorted((v for v in verdicts if (v.first_cpu or 0) > SLOW_FIRST), key=lambda v: -(v.first_cpu or 0.0))
    if late:
        lines += ["", f"first answer above {SLOW_FIRST:g} CPU s:"]
        for v in late:
            lines.append(f"  {v.name}: {v.first_cpu:.1f} s, of which compile {v.compile_cpu:.1f}")
            lines += [f"      {spent:6.2f} s  {where}" for where, spent in v.phases[:20]]
    return "\n".join(lines)


def row(verdict: Verdict) -> str:
    """One line of a model, as soon as it is judged."""
    times = ""
    if verdict.ours is not None and verdict.theirs is not None:
        times = f"{verdict.ours:10.1f} µs {verdict.ratio:7.2f} x"
    first = "" if verdict.first_cpu is None else f"{verdict.first_cpu:5.1f} s"
    return f"{verdict.name[:56]:56} {verdict.status:8} {first:>8} {times:24} {verdict.cause} {verdict.message}"


def slow_lines(verdict: Verdict) -> list[str]:
    head = f"  {verdict.name}: {verdict.ratio:.2f} (least {verdict.least_ratio:.2f}), "
    head += f"{verdict.ours:.1f} against {verdict.theirs:.1f} µs; {verdict.cause}"
    if verdict.segments:
        head += f" ({verdict.segments} segments)"
    steps = [f"      {time:9.1f} µs  {kernel}{f': {why}' if why else ''}" for kernel, time, why in verdict.top[:4]]
    return [head, *steps]


def _kind(cause: str) -> str:
    return "segments in Python" if "segments" in cause else cause.partition(":")[0]
