# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Set Sphinx's options; sphinx-build reads the variables of this file."""

from pathlib import Path

import docutils.nodes
import pygments.lexers.special
import yaml

GALAXY = yaml.safe_load((Path(__file__).parents[2] / "galaxy.yml").read_text("utf-8"))

project = "baton.kubernetes"
project_copyright = "The baton.kubernetes contributors"
html_title = html_short_title = project

extensions = ["myst_parser", "sphinx_antsibull_ext"]
root_doc = "README"
exclude_patterns = ["docs/docsite", "tests/unit", "tests/integration"]
#: As on GitHub.
myst_heading_anchors = 6

pygments_style = "ansible"
highlight_language = "YAML+Jinja"
html_theme = "sphinx_ansible_theme"
html_theme_options = {"documentation_home_url": GALAXY["homepage"]}
html_show_sphinx = False
html_copy_source = False
html_use_index = False

ANSIBLE = "https://docs.ansible.com/projects/ansible/latest/"
#: Pages of Ansible's documentation, by label. (intersphinx would need the network.)
LABELS = {
    "action_plugins": "plugins/action.html",
    "ansible_configuration_settings": "reference_appendices/config.html",
    "common_return_values": "reference_appendices/common_return_values.html",
}
BUILTIN = "ansible_collections.ansible.builtin."


def ansible_reference(_app, _environment, node, content):
    """Return the link to a label of Ansible's documentation, or None if the label is unknown."""
    label = node.get("reftarget", "")
    path = (f"collections/ansible/builtin/{label.removeprefix(BUILTIN)}.html"
            if label.startswith(BUILTIN) else LABELS.get(label))
    return path and docutils.nodes.reference("", "", content, refuri=ANSIBLE + path)


def setup(app):
    """Register the links to Ansible's documentation, and show Mermaid diagrams as text."""
    app.connect("missing-reference", ansible_reference)
    app.add_lexer("mermaid", pygments.lexers.special.TextLexer)
