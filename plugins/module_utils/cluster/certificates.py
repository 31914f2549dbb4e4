# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keys and certificates of a kubeconfig's content, without remaining files.

The kubernetes package writes the content to files, because Python's ssl reads a client certificate
from files only, and removes these files when Python ends: not in a killed process, and not in a
worker of Ansible.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import typing as t

from ..model.fields import Json


class Certificates(t.NamedTuple):
    """PEM documents without files; b"" for a document that is missing, or in a file."""

    authority: bytes = b""
    certificate: bytes = b""
    key: bytes = b""


def use(certificates: Certificates, options: Json) -> None:
    """Replace the files among the options of a connection pool by an SSL context."""
    from urllib3.util import ssl_

    context = ssl_.create_urllib3_context(cert_reqs=options["cert_reqs"])
    authority, certificate, key = (
        options.pop(option, None) for option in ("ca_certs", "cert_file", "key_file"))
    if certificates.authority:
        # Comments may have other characters than ASCII, which cadata refuses.
        data = certificates.authority.decode("ascii", errors="ignore")
        context.load_verify_locations(cadata=data)
    elif authority:
        context.load_verify_locations(authority)
    else:
        context.load_default_certs()
    with contextlib.ExitStack() as stack:
        if certificates.certificate:
            certificate = stack.enter_context(_file(certificates.certificate))
        if certificates.key:
            key = stack.enter_context(_file(certificates.key))
        if certificate:
            context.load_cert_chain(certificate, key)
    options["ssl_context"] = context


@contextlib.contextmanager
def _file(content: bytes) -> t.Iterator[str]:
    """Yield the path of a private file with the content: in memory on Linux, else deleted."""
    try:
        descriptor = os.memfd_create("kubeconfig")
        path = f"/proc/self/fd/{descriptor}"
    except AttributeError:  # not Linux
        descriptor, path = tempfile.mkstemp()
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield path
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.remove(path)
