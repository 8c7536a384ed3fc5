"""Settings of the documentation site, which `make docs` builds without a network."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

import burnish  # noqa: E402
from tools.docs import docstrings, generated  # noqa: E402
from tools.docs.links import inside  # noqa: E402

project = "Burnish"
version = release = burnish.__version__
copyright = "the authors of Burnish, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
exclude_patterns = ["README.md", "build"]
myst_heading_anchors = 3
myst_enable_extensions = []
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
smartquotes = False
python_use_unqualified_type_names = True
add_module_names = False
default_role = "literal"
html_theme = "furo"
html_title = f"Burnish {version}"
html_show_sourcelink = False
html_copy_source = False


def _write_pages(app: object) -> None:
    generated.write(DOCS)


def _links(app: object, page: str, source: list[str]) -> None:
    source[0] = inside(source[0], page)


def _include(app: object, relative: Path, parent: str, source: list[str]) -> None:
    source[0] = inside(source[0], parent)


def setup(app: object) -> None:
    """Connects what makes pages and links to the build."""
    connect = app.connect  # type: ignore[attr-defined]
    connect("builder-inited", _write_pages)
    connect("source-read", _links)
    connect("include-read", _include)
    connect("autodoc-process-docstring", docstrings.escape)
    connect("autodoc-skip-member", docstrings.is_foreign)
