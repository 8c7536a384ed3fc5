"""What every command prints with."""

import json
from typing import Any


def print_json(report: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    print(json.dumps(report, indent=2))
