"""The documentation site's own pages: what is generated from the code, and how links out of `docs` are shown."""
