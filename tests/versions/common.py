# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Functions that several kinds of rows use."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from namespace import Namespace
from row import AnyCluster

ROOT = Path(__file__).resolve().parents[2]
#: Folders of this checkout's Ansible commands and of this collection.
PROGRAMS, COLLECTIONS = ROOT / ".venv" / "bin", ROOT / ".venv" / "collections"


@contextlib.contextmanager
def namespace_for(cluster: AnyCluster) -> Iterator[Namespace]:
    """Provide a namespace with a short name, since it is in a user name of at most 64 characters.
    """
    namespace = Namespace(cluster.kubeconfig, "versions")
    try:
        yield namespace
    finally:
        namespace.delete()


@contextlib.contextmanager
def ansible_environment(programs: Path = PROGRAMS, collections: Path = COLLECTIONS,
                        **variables: str) -> Iterator[dict[str, str]]:
    """Provide the environment of Ansible commands, without the user's settings."""
    inherited_variables = {key: value
                           for key, value in os.environ.items()
                           if not key.startswith(("ANSIBLE_", "K8S_AUTH_"))}
    with tempfile.TemporaryDirectory(prefix="baton-versions-") as home:
        yield {**inherited_variables, "ANSIBLE_COLLECTIONS_PATH": str(collections),
               "ANSIBLE_HOME": home,
               "ANSIBLE_LOCALHOST_WARNING": "false",
               "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
               "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", **variables}
