# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make the archive of a collection reproducible.

ansible-galaxy's order of files and modification times differ between machines.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path


def make_reproducible(file: Path, timestamp: int) -> None:
    """Sort the files of the archive by name, and set their modification times.

    timestamp: in seconds since 1970.
    """
    with tarfile.open(file) as archive:
        contents = {member: archive.extractfile(member).read() if member.isfile() else b""
                    for member in archive}
    by_name = {member.name: member for member in contents}
    file_list, manifest = (json.loads(contents[by_name[name]])
                           for name in ("FILES.json", "MANIFEST.json"))
    file_list["files"].sort(key=lambda entry: entry["name"])
    contents[by_name["FILES.json"]] = as_json(file_list)
    digest = hashlib.sha256(as_json(file_list)).hexdigest()
    manifest["file_manifest_file"]["chksum_sha256"] = digest
    contents[by_name["MANIFEST.json"]] = as_json(manifest)

    with (file.open("wb") as output,
          gzip.GzipFile(filename="", mode="wb", fileobj=output, mtime=timestamp) as gzip_file,
          tarfile.open(fileobj=gzip_file, mode="w") as archive):
        for member, content in sorted(contents.items(), key=lambda item: item[0].name):
            member.mtime = timestamp
            member.pax_headers = {}  # they would override mtime
            if member.isfile():
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def as_json(content: dict) -> bytes:
    """Return JSON in the format of ansible-galaxy."""
    return json.dumps(content, indent=1).encode()
