"""One page of HTML for a report's data: style and script within it, nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_POLICY = "default-src 'none'; style-src '{}'; script-src '{}'; img-src data:"
_FOLDER = Path(__file__).parent
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p id="facts"></p><nav id="tabs"></nav></header>
<main id="main"></main>
<noscript>This page draws its data by a script within it, which is switched off.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def page(data: Mapping[str, Any]) -> str:
    """The text of the page. Its policy allows its own style and script, and nothing else."""
    style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    text = json.dumps(data, default=str).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return _PAGE.format(
        policy=_POLICY.format(_hash(style), _hash(script)),
        title=html.escape(f"{data['name']}: report of Burnish"), style=style, script=script, data=text,
    )  # fmt: skip


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
