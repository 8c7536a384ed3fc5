"""Files that are either complete or absent."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path


def write_atomic(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Writes the parts one after another under a temporary name in the same directory, then renames it to ``path``.

    Readers, other writers and a crash never see or leave an incomplete ``path``. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            for part in parts:
                file.write(part)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
