# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the environments of examples/ with ansible-builder, without a registry.

The base image is Debian, installed by debootstrap, in place of UBI. The collection is installed
from the built archive.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

import engine
import subtask
import yaml
from workspace import cache, locked

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BASE_IMAGE = "localhost/debian:bookworm"
MIRROR = "http://deb.debian.org/debian"
CA_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
#: Debian's packages, by the names of the system packages in examples/.
PACKAGES = {"java-17-openjdk-headless [platform:rpm]": "openjdk-17-jre-headless [platform:dpkg]"}
JAVA_HOME = "/usr/lib/jvm/java-17-openjdk-amd64"


def definition(name: str, archive: str) -> dict[str, t.Any]:
    """Return the definition of an environment, on Debian and with the archive of the collection."""
    text = (EXAMPLES / f"{name}-environment.yml").read_text("utf-8")
    content = yaml.safe_load(text.replace("/usr/lib/jvm/jre-17", JAVA_HOME))
    dependencies, steps = content["dependencies"], content["additional_build_steps"]
    content["images"] = {"base_image": {"name": BASE_IMAGE}}
    dependencies["python_interpreter"] = {"package_system": "python3",
                                          "python_path": "/usr/bin/python3"}
    dependencies["galaxy"] = {"collections": [{"name": f"/tmp/{archive}", "type": "file"}]}
    dependencies["system"] = [PACKAGES[line] for line in dependencies.get("system", ())]
    # replace the examples' steps, which install git with the package manager of UBI
    steps["prepend_galaxy"] = [f"COPY _build/archive/{archive} /tmp/"]
    steps["prepend_base"] = [f"ENV PIP_CERT=/{CA_BUNDLE}",
                             "RUN rm -f /usr/lib/python3*/EXTERNALLY-MANAGED && apt-get update"]
    return {**content, "build_arg_defaults": {"PKGMGR_PRESERVE_CACHE": "always"},
            "additional_build_files": [{"src": archive, "dest": "archive"}],
            "options": {"package_manager_path": "/usr/bin/apt-get", "skip_pip_install": True}}


def base_image() -> Path:
    """Return a tar file with Debian's root file system. Raises ClusterError."""
    file = cache() / "environments" / "debian-bookworm.tar"
    with locked(file.with_suffix(".lock"), "the base image of the environments"):
        if not file.exists():
            draft = file.with_suffix(".new")
            script = ('set -e; root=$(mktemp -d); trap \'rm -rf "$root"\' EXIT; '
                      f"debootstrap --variant=minbase --include=python3,python3-pip,python3-venv,"
                      f'ca-certificates bookworm "$root" {MIRROR}; '
                      f'cp -L /{CA_BUNDLE} "$root/{CA_BUNDLE}"; '
                      "rm -rf \"$root\"/var/cache/apt/archives/*.deb; "
                      f'tar --numeric-owner -C "$root" --exclude="./dev/*" -cf "{draft}" .')
            subtask.run("building Debian's image (first use only)",
                        [*engine.isolation_prefix(), "bash", "-c", script])
            draft.rename(file)
    return file


def run(commands: t.Sequence[str], folder: Path, environment: t.Mapping[str, str]) -> int:
    """Run shell commands with a Docker engine that has the base image, until a command fails.

    Return the exit code of the failed command, or 0. Raises ClusterError.
    """
    engine.install()
    script = "\n".join([f"set -ex; cd '{folder}'", *commands])
    # Debian's package docker.io has no BuildKit
    return engine.run(["bash", "-c", script], base_image(), BASE_IMAGE,
                      {**environment, "DOCKER_BUILDKIT": "0"}, has_private_network=False)
