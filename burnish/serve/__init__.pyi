"""Public names, of which each is loaded on first use (``burnish/base/lazy.py``)."""

from burnish.serve.options import ServeOptions as ServeOptions
from burnish.serve.server import Server as Server
