"""Sphinx: every page is run when it is built, and an error in a cell fails the build."""

import os
import sys
from pathlib import Path

# The package of this tree, for autodoc and for the kernels that run the pages.
source = str(Path(__file__).parent.parent / "src")
sys.path[:0] = [source, str(Path(__file__).parent)]  # and the helpers of the pages
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))

import fspool  # noqa: E402

project = "fspool"
author = "The fspool authors"
project_copyright = f"2026, {author}"
version = release = fspool.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml"]
exclude_patterns = ["_build", "jupyter_execute"]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3  # one page may link to a heading of another
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_output_stderr = "remove"  # torch's own notices
nb_merge_streams = True
nb_render_markdown_format = "myst"  # tables too
nb_code_prompt_show = "The code of this figure"
nb_code_prompt_hide = "Hide the code"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_custom_sections = ["Shapes"]
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_math_renderer = "mathml"
html_title = "fspool"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#3465a4",
        "color-brand-content": "#2f5f9e",
    },
}
