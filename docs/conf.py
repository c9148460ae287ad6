"""How Sphinx makes the book of `docs/book.py`: MyST pages, furo's theme, docstrings; nothing is fetched by a reader."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import vitrail

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Vitrail"
author = "the Vitrail contributors"
release = vitrail.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
smartquotes = False  # --out stays --out
highlight_language = "sh"  # of blocks that do not say theirs
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # those of torch and scikit-learn are theirs
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"Vitrail {release}"
html_logo = "images/logo.svg"
html_favicon = "images/mark.svg"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "sidebar_hide_name": True,  # the logo says it
    "light_css_variables": {"color-brand-primary": "#1d6f8c", "color-brand-content": "#1d6f8c"},
    "dark_css_variables": {"color-brand-primary": "#62bcd8", "color-brand-content": "#62bcd8"},
}
copybutton_prompt_text = "$ "


def setup(app: Sphinx) -> None:
    """Docstrings are written in plain English with `names` between single backticks; in the book those are code."""
    app.connect("autodoc-process-docstring", _names_as_code, priority=400)  # before napoleon sorts out Args and Raises


def _names_as_code(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = [re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line).replace("*", r"\*") for line in lines]
