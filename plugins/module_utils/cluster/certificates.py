# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Use the inline certificates and keys of a kubeconfig without leaving files behind.

Python's ssl module loads a client certificate only from a file.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json


class Certificates(t.NamedTuple):
    """The inline certificates and the inline key of a kubeconfig, in PEM, or b""."""

    ca_certificates: bytes = b""
    certificate: bytes = b""
    key: bytes = b""


def refuse_encrypted_keys(certificates: Certificates, paths: t.Iterable[str | None]) -> None:
    """Raise RolloutError for an encrypted key: OpenSSL would wait for its pass phrase.

    paths: of files with certificates or keys. urllib3 would not check a file that contains both.
    """
    contents = {"the kubeconfig": certificates.certificate + certificates.key}
    for path in filter(None, paths):
        # The first request reports a file that cannot be read.
        with contextlib.suppress(OSError), open(path, "rb") as file:
            contents[path] = file.read()
    for name, content in contents.items():
        if b"ENCRYPTED" in content:  # as in urllib3
            raise RolloutError(f"the client key in {name} is encrypted",
                               next_command="decrypt it, for example with openssl pkey; Ansible "
                                            "Vault can encrypt the kubeconfig with the key instead")


def set_ssl_context(certificates: Certificates, options: Json) -> None:
    """Replace the certificate files in the options of a connection pool by an SSL context.

    Inline certificates override certificates in files.
    """
    from urllib3.util import ssl_

    context = ssl_.create_urllib3_context(cert_reqs=options["cert_reqs"])
    authority_file, certificate_file, key_file = (
        options.pop(option, None) for option in ("ca_certs", "cert_file", "key_file"))
    if certificates.ca_certificates:
        # cadata must be ASCII, but a comment in PEM may have other characters.
        data = certificates.ca_certificates.decode("ascii", errors="ignore")
        context.load_verify_locations(cadata=data)
    elif authority_file:
        context.load_verify_locations(authority_file)
    else:
        context.load_default_certs()
    with contextlib.ExitStack() as stack:
        if certificates.certificate:
            certificate_file = stack.enter_context(_temporary_file(certificates.certificate))
        if certificates.key:
            key_file = stack.enter_context(_temporary_file(certificates.key))
        if certificate_file:
            context.load_cert_chain(certificate_file, key_file)
    options["ssl_context"] = context


@contextlib.contextmanager
def _temporary_file(content: bytes) -> t.Iterator[str]:
    """Yield the path of a file that only this user can read."""
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
